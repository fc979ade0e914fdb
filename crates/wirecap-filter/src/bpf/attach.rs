//! Attaches an XDP program, and reports the kernel's reason if it refuses.
//!
//! A driver gives its reason as an extended acknowledgement, which bpf(2) does not return. Since
//! Linux 6.5 the kernel passes it to the tracepoint `bpf_xdp_link_attach_failed`, in the calling
//! thread.

use std::ffi::CStr;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use rustix::thread::gettid;

use super::asm::{Assembler, Condition, Helper, Reg, Size};
use super::{BpfError, Link, LoadOptions, Map, MapKind, Program, ProgramKind, XdpMode};
use crate::sys::objects;

const TRACEPOINT: &CStr = c"bpf_xdp_link_attach_failed";
/// Maximum length of a stored reason.
const TEXT_BYTES: u32 = 128;
/// Stack offset of the key of the map's only entry.
const KEY: i16 = -4;
/// Stack offset of the thread and process ID (`struct bpf_pidns_info`).
const THREAD: i16 = -16;

impl Link {
    /// Attaches `program` to the interface with this index in the current network namespace.
    ///
    /// # Errors
    ///
    /// [`BpfError::InterfaceBusy`] if another program is attached, [`BpfError::Refused`] if the
    /// driver rejects it and the kernel reports why (since Linux 6.5, with CAP_PERFMON), or another
    /// [`BpfError`] if there is no such interface, its driver has no native XDP, or its MTU is too
    /// large for the program.
    pub fn attach_xdp(program: &Program, ifindex: u32, mode: XdpMode) -> Result<Self, BpfError> {
        let error = match Self::try_attach_xdp(program, ifindex, mode) {
            Err(error @ BpfError::Failed { .. }) => error,
            outcome => return outcome,
        };
        // Try again while watching the tracepoint that passes the reason.
        let Ok(refusals) = Refusals::watch() else { return Err(error) };
        Self::try_attach_xdp(program, ifindex, mode)
            .map_err(|error| error.because(ifindex, refusals.last()))
    }

    fn try_attach_xdp(program: &Program, ifindex: u32, mode: XdpMode) -> Result<Self, BpfError> {
        objects::attach_xdp(program.as_fd(), ifindex, mode as u32)
            .map(Self::of)
            .map_err(|source| BpfError::attaching(ifindex, source))
    }
}

/// Records why attach attempts of this thread fail, for as long as the value lives.
#[derive(Debug)]
struct Refusals {
    reason: Map,
    _link: Link,
}

impl Refusals {
    /// Starts recording. Fails before Linux 6.5, and without CAP_PERFMON.
    fn watch() -> Result<Self, BpfError> {
        let reason = Map::create(MapKind::Array, "wirecap_why", TEXT_BYTES, 1)?;
        let namespace =
            fs::metadata("/proc/thread-self/ns/pid").map(|file| (file.dev(), file.ino()));
        let namespace = namespace.map_err(|source| {
            BpfError::new("look up the PID namespace for", reason.name(), source)
        })?;
        let code = noting(&reason, namespace, gettid().as_raw_nonzero().get());
        let program = Program::load(
            ProgramKind::RawTracepoint,
            "wirecap_why",
            &code,
            LoadOptions::default(),
        )?;
        let _link = Link::attach_tracepoint(&program, TRACEPOINT)?;

        Ok(Self { reason, _link })
    }

    /// The last recorded reason, if any.
    fn last(&self) -> Option<String> {
        let value = self.reason.lookup(0).ok()?.into_iter().next()?;
        let text =
            String::from_utf8_lossy(value.split(|byte| *byte == 0).next()?).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }
}

/// The program that stores the reason if the current thread has the ID `thread` in the PID
/// namespace.
fn noting(reason: &Map, (device, inode): (u64, u64), thread: i32) -> Vec<super::asm::Insn> {
    let mut program = Assembler::new();
    let done = program.label();

    // The context of a raw tracepoint contains its arguments; the first is the address of the text.
    program.load(Size::Double, Reg::R6, Reg::R1, 0);
    program.load_imm64(Reg::R1, device).load_imm64(Reg::R2, inode);
    program.mov(Reg::R3, Reg::R10).add(Reg::R3, i32::from(THREAD)).mov(Reg::R4, 8);
    program.call(Helper::NsCurrentPidTgid);
    program.jump_if(Reg::R0, Condition::Ne, 0, done);
    program.load(Size::Word, Reg::R1, Reg::R10, THREAD);
    program.jump_if(Reg::R1, Condition::Ne, thread, done);
    program.store(Size::Word, Reg::R10, KEY, 0);
    program.load_map_fd(Reg::R1, reason);
    program.mov(Reg::R2, Reg::R10).add(Reg::R2, i32::from(KEY));
    program.call(Helper::MapLookup);
    program.jump_if(Reg::R0, Condition::Eq, 0, done);
    program.mov(Reg::R1, Reg::R0).mov(Reg::R2, TEXT_BYTES.cast_signed()).mov(Reg::R3, Reg::R6);
    program.call(Helper::ProbeReadKernelStr);
    program.bind(done);
    program.mov(Reg::R0, 0).exit();

    program.finish().expect("every label is bound once, and near")
}
