//! Filter expressions, compiled by the system's libpcap: the language is libpcap's, in every detail.

use std::env;
use std::ffi::{CString, OsString, c_int};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use wirecap_savefile::LinkType;

use crate::classic::ClassicProgram;
use crate::error::{FilterError, LibpcapError};
use crate::filter::Filter;
use crate::insn::ClassicInsn;
use crate::sys::libpcap::{self as sys, RawInsn, Refusal, Runnable};

/// The environment variable with the path of libpcap.
const PATH_VARIABLE: &str = "WIRECAP_LIBPCAP";
/// The name in Debian, the name in other distributions, and the one that comes with the headers.
const NAMES: [&str; 3] = ["libpcap.so.0.8", "libpcap.so.1", "libpcap.so"];
/// The longest packets that libpcap captures; it returns this from filters that keep whole packets.
const SNAP_LEN_MAX: u32 = 262_144;

/// Where a drop-in says that the real libpcap is.
static REAL: OnceLock<PathBuf> = OnceLock::new();

/// The system's libpcap.
#[derive(Debug)]
pub struct Libpcap {
    functions: sys::Libpcap,
    /// Versions before 1.8 compile for one thread at a time only.
    compiling: Mutex<()>,
}

impl Libpcap {
    /// Sets the path of libpcap, for a library that has libpcap's own names and would find itself. Has no effect once
    /// libpcap is loaded or a path was set.
    pub fn is_at(path: PathBuf) {
        REAL.get_or_init(|| path);
    }

    /// The libpcap of this process, loaded at the first call and for good: from where [`is_at`](Self::is_at)
    /// or the variable `WIRECAP_LIBPCAP` says, else from where the dynamic linker finds it. A process with
    /// more rights than its user ignores the variable.
    ///
    /// # Errors
    ///
    /// [`LibpcapError`] if there is none.
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
        self.try_compile(expression, link_type, snap_len, netmask).map_err(|refusal| match refusal {
            Refusal::System(source) => FilterError::System(source),
            Refusal::Message(message) => FilterError::in_expression(expression, message),
        })
    }

    fn try_compile(
        &self,
        expression: &str,
        link_type: LinkType,
        snap_len: u32,
        netmask: u32,
    ) -> Result<Vec<ClassicInsn>, Refusal> {
        let expression = CString::new(expression)
            .map_err(|_| Refusal::Message("a filter expression has no zero byte".to_owned()))?;
        // As pcap_activate has it: "no limit" must not become "keep nothing".
        let snap_len = if snap_len == 0 { SNAP_LEN_MAX } else { snap_len.min(SNAP_LEN_MAX) };
        let _alone = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let insns = self.functions.compile(&expression, dlt(link_type), snap_len.cast_signed(), netmask)?;
        Ok(insns.into_iter().map(ClassicInsn::from).map(ClassicInsn::as_libpcap_runs_it).collect())
    }

    /// Prepares `filter` for libpcap's own interpreter, the standard that all others are held against. It does
    /// not know what Linux added to the language: there is none for a filter that asks for such.
    pub fn prepare(&self, filter: &Filter) -> Option<LibpcapFilter> {
        if filter.asks_linux() {
            return None;
        }
        let program = filter.program().iter().map(|&insn| insn.into()).collect();
        self.functions.prepare(program).map(LibpcapFilter)
    }
}

impl Filter {
    /// Compiles an expression in the language of pcap-filter(7) for packets of a link type. `snap_len` bytes of a
    /// matching packet are kept; 0: libpcap's maximum, 262,144.
    ///
    /// An empty expression matches every packet. Host names in it are resolved, which may take some time.
    ///
    /// # Errors
    ///
    /// [`FilterError`] if libpcap is missing or rejects the expression.
    pub fn compile(expression: &str, link_type: LinkType, snap_len: u32) -> Result<Self, FilterError> {
        Self::compile_in(expression, link_type, snap_len, Ipv4Addr::UNSPECIFIED)
    }

    /// As [`compile`](Self::compile), for an interface whose IPv4 network has this mask, by which `ip broadcast` knows
    /// the network's broadcast addresses. Without one (0.0.0.0) these are 0.0.0.0 and 255.255.255.255, as with
    /// tcpdump on a savefile or an interface without an address.
    ///
    /// # Errors
    ///
    /// As [`compile`](Self::compile).
    pub fn compile_in(
        expression: &str,
        link_type: LinkType,
        snap_len: u32,
        netmask: Ipv4Addr,
    ) -> Result<Self, FilterError> {
        let libpcap = Libpcap::get().map_err(FilterError::Libpcap)?;
        // libpcap has it in network order.
        let netmask = u32::from_ne_bytes(netmask.octets());
        let insns = libpcap.compile(expression, link_type, snap_len, netmask)?;
        let program = ClassicProgram::new(insns)?;
        Ok(Self { program, link_type, expression: Some(expression.to_owned()) })
    }
}

fn candidates() -> Vec<OsString> {
    let told = REAL.get().map(|path| path.clone().into_os_string());
    let told = told.or_else(|| env::var_os(PATH_VARIABLE).filter(|_| !sys::has_elevated_rights()));
    told.map_or_else(|| NAMES.map(OsString::from).to_vec(), |path| vec![path])
}

/// The number by which libpcap goes in its programming interface: for some old link types that is not the one
/// in files, because every BSD had its own.
fn dlt(link_type: LinkType) -> c_int {
    match link_type.0 {
        100 => 11, // RFC 1483 ATM
        101 => 12, // raw IP
        102 => 15, // SLIP of BSD/OS
        103 => 16, // PPP of BSD/OS
        106 => 19, // Linux' classical IP over ATM
        same => c_int::from(same),
    }
}

/// A filter in libpcap's interpreter.
#[derive(Clone, Debug)]
pub struct LibpcapFilter(Runnable);

impl LibpcapFilter {
    /// How many bytes of the packet to keep; 0: none of it.
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
