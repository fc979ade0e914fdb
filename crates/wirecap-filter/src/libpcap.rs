//! Compiles filter expressions with the system's libpcap, so that the language is exactly
//! libpcap's.

use std::env;
use std::ffi::{CStr, CString, OsString, c_int};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use wirecap_savefile::LinkType;

use crate::classic::ClassicProgram;
use crate::error::{FilterError, LibpcapError};
use crate::filter::Filter;
use crate::insn::ClassicInsn;
use crate::sys::libpcap::{self as sys, FILE_HEADER, RawInsn, Refusal, Runnable};

/// The environment variable that contains the path of libpcap.
const PATH_VARIABLE: &str = "WIRECAP_LIBPCAP";
/// The name in Debian, the name in other distributions, and the name in development packages.
const NAMES: [&str; 3] = ["libpcap.so.0.8", "libpcap.so.1", "libpcap.so"];
/// libpcap's maximum packet length, which filters that keep whole packets return.
const SNAP_LEN_MAX: u32 = 262_144;

/// The path of the real libpcap, set by a drop-in.
static REAL: OnceLock<PathBuf> = OnceLock::new();

/// The system's libpcap.
#[derive(Debug)]
pub struct Libpcap {
    functions: sys::Libpcap,
    /// Versions before 1.8 are not thread-safe.
    compiling: Mutex<()>,
}

impl Libpcap {
    /// Sets the path of libpcap, for a library that is itself named libpcap and would otherwise
    /// find itself. Has no effect after libpcap was loaded or a path was set.
    pub fn is_at(path: PathBuf) {
        REAL.get_or_init(|| path);
    }

    /// The libpcap of this process, loaded by the first call and never unloaded: from the path set
    /// by [`is_at`](Self::is_at) or the variable `WIRECAP_LIBPCAP`, otherwise from the dynamic
    /// linker's search path. A process with more privileges than its user ignores the variable.
    ///
    /// # Errors
    ///
    /// [`LibpcapError`] if libpcap could not be loaded.
    pub fn get() -> Result<&'static Self, LibpcapError> {
        static LIBPCAP: OnceLock<Result<Libpcap, LibpcapError>> = OnceLock::new();
        LIBPCAP.get_or_init(Self::load).as_ref().map_err(LibpcapError::clone)
    }

    fn load() -> Result<Self, LibpcapError> {
        let mut tried = Vec::new();
        for name in candidates() {
            match sys::Libpcap::load(&name) {
                Ok(functions) => return Ok(Self { functions, compiling: Mutex::new(()) }),
                Err(answer) => tried.push((name, answer)),
            }
        }
        Err(LibpcapError { tried })
    }

    /// Compiles `expression`; see [`Filter::compile`].
    fn compile(
        &self,
        expression: &str,
        link_type: LinkType,
        snap_len: u32,
        netmask: u32,
    ) -> Result<Vec<ClassicInsn>, FilterError> {
        // As in pcap_activate: 0 means no limit, not "keep nothing".
        let snap_len = if snap_len == 0 { SNAP_LEN_MAX } else { snap_len.min(SNAP_LEN_MAX) };
        self.compile_with(expression, |functions, expression| {
            functions.compile(expression, dlt(link_type), snap_len.cast_signed(), netmask)
        })
    }

    /// Compiles `expression`; see [`Filter::compile_for_file`].
    fn compile_for_file(
        &self,
        expression: &str,
        link_type: LinkType,
    ) -> Result<Vec<ClassicInsn>, FilterError> {
        self.compile_with(expression, |functions, expression| {
            functions.compile_for_file(expression, file_header(link_type))
        })
    }

    fn compile_with(
        &self,
        expression: &str,
        compile: impl FnOnce(&sys::Libpcap, &CStr) -> Result<Vec<RawInsn>, Refusal>,
    ) -> Result<Vec<ClassicInsn>, FilterError> {
        let refused = |refusal| match refusal {
            Refusal::System(source) => FilterError::System(source),
            Refusal::Message(message) => {
                FilterError::Expression { expression: expression.to_owned(), message }
            }
        };
        let text = CString::new(expression).map_err(|_| {
            refused(Refusal::Message("a filter expression has no zero byte".to_owned()))
        })?;
        let _alone = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let insns = compile(&self.functions, &text).map_err(refused)?;

        Ok(insns.into_iter().map(ClassicInsn::from).map(ClassicInsn::as_libpcap_runs_it).collect())
    }

    /// Prepares `filter` for libpcap's own interpreter, the reference for all tests. Returns `None`
    /// for filters with Linux extensions, which libpcap's interpreter does not support.
    pub fn prepare(&self, filter: &Filter) -> Option<LibpcapFilter> {
        if filter.asks_linux() {
            return None;
        }
        let program = filter.program().iter().map(|&insn| insn.into()).collect();
        self.functions.prepare(program).map(LibpcapFilter)
    }
}

impl Filter {
    /// Compiles an expression in the language of pcap-filter(7) for packets of a link type.
    /// Matching packets are kept up to `snap_len` bytes; 0 for libpcap's maximum, 262,144.
    ///
    /// An empty expression matches every packet. Host names in the expression are resolved, which
    /// may take some time.
    ///
    /// # Errors
    ///
    /// [`FilterError`] if libpcap is missing or rejects the expression.
    pub fn compile(
        expression: &str,
        link_type: LinkType,
        snap_len: u32,
    ) -> Result<Self, FilterError> {
        Self::compile_in(expression, link_type, snap_len, Ipv4Addr::UNSPECIFIED)
    }

    /// Like [`compile`](Self::compile), for an interface whose IPv4 network has this mask;
    /// `ip broadcast` matches the network's broadcast addresses. Without a mask (0.0.0.0) these are
    /// 0.0.0.0 and 255.255.255.255, as with tcpdump on a savefile or on an interface without an
    /// address.
    ///
    /// # Errors
    ///
    /// As for [`compile`](Self::compile).
    pub fn compile_in(
        expression: &str,
        link_type: LinkType,
        snap_len: u32,
        netmask: Ipv4Addr,
    ) -> Result<Self, FilterError> {
        let libpcap = Libpcap::get().map_err(FilterError::Libpcap)?;
        // libpcap expects network byte order.
        let netmask = u32::from_ne_bytes(netmask.octets());
        let insns = libpcap.compile(expression, link_type, snap_len, netmask)?;
        let program = ClassicProgram::new(insns)?;
        Ok(Self { program, link_type, expression: Some(expression.to_owned()) })
    }

    /// Like [`compile`](Self::compile), for packets in a savefile. Those of BSD loopbacks and IPsec
    /// interfaces may have been captured on any system, and each has its own number for IPv6. The
    /// address family in their headers must be little-endian, as
    /// [`Reader`](wirecap_savefile::Reader) returns it.
    ///
    /// # Errors
    ///
    /// As for [`compile`](Self::compile).
    pub fn compile_for_file(expression: &str, link_type: LinkType) -> Result<Self, FilterError> {
        if !matches!(link_type, LinkType::NULL | LinkType::LOOP | LinkType::ENC) {
            return Self::compile(expression, link_type, 0);
        }
        let libpcap = Libpcap::get().map_err(FilterError::Libpcap)?;
        let program = ClassicProgram::new(libpcap.compile_for_file(expression, link_type)?)?;
        Ok(Self { program, link_type, expression: Some(expression.to_owned()) })
    }
}

/// The header of a little-endian pcap file of this link type.
fn file_header(link_type: LinkType) -> [u8; FILE_HEADER] {
    let words = [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, SNAP_LEN_MAX, link_type.0.into()];
    let mut header = [0; FILE_HEADER];
    for (bytes, word) in header.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    header
}

fn candidates() -> Vec<OsString> {
    let told = REAL.get().map(|path| path.clone().into_os_string());
    let told = told.or_else(|| env::var_os(PATH_VARIABLE).filter(|_| !sys::has_elevated_rights()));
    told.map_or_else(|| NAMES.map(OsString::from).to_vec(), |path| vec![path])
}

/// libpcap's DLT number of a link type. For some old link types it differs from the number in
/// files, because each BSD had its own.
fn dlt(link_type: LinkType) -> c_int {
    match link_type.0 {
        100 => 11, // RFC 1483 ATM.
        101 => 12, // Raw IP.
        102 => 15, // SLIP of BSD/OS.
        103 => 16, // PPP of BSD/OS.
        106 => 19, // Classical IP over ATM of Linux.
        same => c_int::from(same),
    }
}

/// A filter for libpcap's interpreter.
#[derive(Clone, Debug)]
pub struct LibpcapFilter(Runnable);

impl LibpcapFilter {
    /// Returns the number of bytes of the packet to keep; 0 rejects it.
    pub fn matches(&self, packet: &[u8], wire_len: u32) -> u32 {
        self.0.run(packet, wire_len)
    }
}

impl From<RawInsn> for ClassicInsn {
    fn from(RawInsn { code, jt, jf, k }: RawInsn) -> Self {
        Self { code, jt, jf, k }
    }
}

impl From<ClassicInsn> for RawInsn {
    fn from(ClassicInsn { code, jt, jf, k }: ClassicInsn) -> Self {
        Self { code, jt, jf, k }
    }
}
