//! Programs: loads, inspects and runs them on test frames.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use super::asm::{Insn, to_bytes};
use super::{BpfError, collect_objects, name_text, object_name};
use crate::capability::{self, CapabilitySet};
use crate::sys::bpf::{self as sys, TestRunRequest};
use crate::sys::objects::{self, ObjectKind, ProgramRequest};

/// The licence of the programs: the kernel provides some helpers, for instance the clock, only to
/// programs under the GPL.
const LICENSE: &CStr = c"Dual MIT/GPL";
/// Size of the buffer for the verifier's log of a rejected program.
const LOG_BYTES: usize = 1 << 20;
/// Maximum number of attempts to load a program: the verifier returns EAGAIN when a signal arrives.
const LOAD_TRIES: u32 = 10;
/// Load flag: the program supports frames with several fragments.
const XDP_HAS_FRAGS: u32 = 1 << 5;
/// Load flag: the program is bound to one interface, whose metadata it may read.
const XDP_DEV_BOUND_ONLY: u32 = 1 << 6;
/// What an XDP program needs to be loaded: before Linux 5.8, which introduced CAP_BPF,
/// CAP_SYS_ADMIN.
const SUFFICIENT: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::NET_ADMIN);
/// With one of these, the verifier lets a program disclose kernel memory, also by speculative
/// execution.
const TRUSTED: CapabilitySet = CapabilitySet::PERFMON.union(CapabilitySet::SYS_ADMIN);
/// Bytes by which a program may extend a frame in a test run: the last fragment cannot exceed its
/// page.
const TEST_FRAME_GROWTH_BYTES: usize = 4096;

/// The kinds of program that wirecap loads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ProgramKind {
    /// Selects the packets that a socket receives.
    SocketFilter = 1,
    /// Classifies packets for a queueing discipline.
    SchedCls = 3,
    /// Runs on every frame that an interface receives, before the network stack.
    Xdp = 6,
    /// Runs at a kernel tracepoint.
    RawTracepoint = 17,
}

/// Options for loading a program.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LoadOptions {
    /// The program supports frames with several fragments, so it can be attached to interfaces with
    /// jumbo frames.
    pub fragments: bool,
    /// Binds the program to the interface with this index, which is required to read hardware
    /// metadata. The program cannot be attached to another interface, nor be the target of a tail
    /// call.
    pub device: Option<u32>,
}

/// A loaded program. It lives as long as a descriptor, a link or a map refers to it.
#[derive(Debug)]
pub struct Program {
    name: String,
    fd: OwnedFd,
    /// Set by the first query to the kernel: the ID never changes.
    id: OnceLock<u32>,
}

/// The kernel's information about a program.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ProgramInfo {
    /// The kernel's ID, unique until the program is gone.
    pub id: u32,
    /// The name that it was loaded with.
    pub name: String,
    /// `enum bpf_prog_type`; compare with `ProgramKind::Xdp as u32`.
    pub kind: u32,
    /// A hash of its instructions without map descriptors: equal programs have equal tags.
    pub tag: [u8; 8],
    /// The user who loaded it.
    pub uid: u32,
    /// The maps it uses.
    pub map_ids: Vec<u32>,
}

/// The result of a test run.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TestRun {
    /// The program's return value: [`XDP_PASS`](super::XDP_PASS) or another verdict.
    pub verdict: u32,
    /// The frame after the program ran.
    pub frame: Vec<u8>,
    /// Mean duration of one run, in nanoseconds.
    pub duration_ns: u32,
}

/// A run in which the kernel executes the verdicts, on copies of one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveFrames<'a> {
    /// The initial contents of each copy, 14 to 3,408 bytes. Copies are reused with the program's
    /// changes, so the program must write every field that it varies.
    pub frame: &'a [u8],
    /// Number of frames.
    pub frame_count: u32,
    /// Frames between two flushes, 1 to 256.
    pub batch_frames: u32,
    /// The interface on which the frames appear to arrive; `None` for the loopback interface of the
    /// current namespace.
    pub ingress_ifindex: Option<u32>,
}

impl Program {
    /// Loads a program.
    ///
    /// If CAP_BPF and CAP_NET_ADMIN are in effect in the calling thread, an XDP program is loaded
    /// without CAP_PERFMON and CAP_SYS_ADMIN, even by root. So the verifier accepts the same
    /// programs from every user, and adds the same instructions against speculative execution, and
    /// none that could disclose kernel memory. It rejects loops, and sums of a register and the
    /// address of a packet; [`load_trusted`](Self::load_trusted) does not.
    ///
    /// # Errors
    ///
    /// [`BpfError::Rejected`] with the verifier's log, or another [`BpfError`] if the name is
    /// invalid, the process lacks the privilege, or the kernel does not support such a program.
    pub fn load(
        kind: ProgramKind,
        name: &str,
        code: &[Insn],
        options: LoadOptions,
    ) -> Result<Self, BpfError> {
        let load = || Self::load_trusted(kind, name, code, options);
        if kind != ProgramKind::Xdp || !capability::has(SUFFICIENT) {
            return load();
        }
        capability::without(TRUSTED, load)
            .map_err(|source| BpfError::new("load program", name, source))?
    }

    /// Loads a program with all capabilities that are in effect in the calling thread.
    ///
    /// # Errors
    ///
    /// As for [`load`](Self::load).
    pub fn load_trusted(
        kind: ProgramKind,
        name: &str,
        code: &[Insn],
        options: LoadOptions,
    ) -> Result<Self, BpfError> {
        let code = to_bytes(code);
        let mut log = Vec::new();

        let mut request = ProgramRequest {
            program_type: kind as u32,
            name: object_name(name)?,
            code: &code,
            license: LICENSE,
            flags: options.flags(),
            ifindex: options.device.unwrap_or(0),
            expected_attach_type: if kind == ProgramKind::Xdp { sys::ATTACH_XDP } else { 0 },
            log: &mut log,
        };

        // Most programs are accepted, so the first attempt is made without a log.
        load(&mut request).or_else(|_| load_with_log(name, request)).map(|fd| Self {
            name: name.to_owned(),
            fd,
            id: OnceLock::new(),
        })
    }

    /// Opens the program with this ID.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if there is no such program, or CAP_SYS_ADMIN is missing.
    pub fn by_id(id: u32) -> Result<Self, BpfError> {
        let failed = |source| BpfError::discovering("program", id, source);
        let fd = objects::by_id(ObjectKind::Program, id).map_err(failed)?;
        let name = name_text(&sys::program_info(fd.as_fd()).map_err(failed)?.0.name);
        Ok(Self { name, fd, id: OnceLock::from(id) })
    }

    /// Duplicates the descriptor.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if the process has reached its limit of descriptors.
    pub fn try_clone(&self) -> Result<Self, BpfError> {
        let fd = self.fd.try_clone();
        let fd = fd.map_err(|source| {
            BpfError::new("duplicate the descriptor of program", &self.name, source)
        })?;
        Ok(Self { name: self.name.clone(), fd, id: self.id.clone() })
    }

    /// The kernel's ID, unique until the program is gone. Only the first call asks the kernel.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if the kernel does not provide it.
    pub fn id(&self) -> Result<u32, BpfError> {
        match self.id.get() {
            Some(id) => Ok(*id),
            None => self.info().map(|info| *self.id.get_or_init(|| info.id)),
        }
    }

    /// The kernel's information about the program.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if the kernel does not provide it.
    pub fn info(&self) -> Result<ProgramInfo, BpfError> {
        let (raw, map_ids) = sys::program_info(self.fd.as_fd())
            .map_err(|source| BpfError::new("describe program", &self.name, source))?;
        Ok(ProgramInfo {
            id: raw.id,
            name: name_text(&raw.name),
            kind: raw.program_type,
            tag: raw.tag,
            uid: raw.created_by_uid,
            map_ids,
        })
    }

    /// The name that it was loaded with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the program `repeat` times on `frame`. Verdicts are not executed.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if the frame is shorter than 14 bytes, or does not fit one page and the program
    /// does not support frames with several fragments.
    pub fn test_run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, BpfError> {
        let mut frame_out = vec![0; frame.len() + TEST_FRAME_GROWTH_BYTES];
        let request = TestRunRequest {
            data: frame,
            data_out: &mut frame_out,
            context: &[],
            repeat,
            flags: 0,
            batch_frames: 0,
        };
        let result = sys::program_test_run(self.fd.as_fd(), request)
            .map_err(|source| BpfError::new("test program", &self.name, source))?;
        frame_out.truncate(result.data_out_bytes);

        Ok(TestRun { verdict: result.verdict, frame: frame_out, duration_ns: result.duration_ns })
    }

    /// Runs the program on `frames.frame_count` frames and executes its verdicts: redirects,
    /// transmits, or passes each frame to the host's stack.
    ///
    /// The program runs on the calling thread's CPU. A signal ends it early with `EINTR`.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if a length or count is out of range, or the run was interrupted.
    pub fn run_live(&self, frames: LiveFrames<'_>) -> Result<(), BpfError> {
        let context =
            frames.ingress_ifindex.map(|ifindex| context_bytes(frames.frame.len(), ifindex));
        let request = TestRunRequest {
            data: frames.frame,
            data_out: &mut [],
            context: context.as_ref().map_or(&[], |context| context.as_slice()),
            repeat: frames.frame_count,
            flags: sys::TEST_XDP_LIVE_FRAMES,
            batch_frames: frames.batch_frames,
        };
        sys::program_test_run(self.fd.as_fd(), request)
            .map(drop)
            .map_err(|source| BpfError::new("run live frames through program", &self.name, source))
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl LoadOptions {
    fn flags(self) -> u32 {
        let fragments = if self.fragments { XDP_HAS_FRAGS } else { 0 };
        let device = if self.device.is_some() { XDP_DEV_BOUND_ONLY } else { 0 };
        fragments | device
    }
}

/// The loaded programs with this name, of all processes.
///
/// # Errors
///
/// [`BpfError`] if CAP_SYS_ADMIN is missing.
pub fn programs_named(name: &str) -> Result<Vec<Program>, BpfError> {
    let mut programs = collect_objects(ObjectKind::Program, Program::by_id)?;
    programs.retain(|program| program.name == name);
    Ok(programs)
}

/// Tries to load a rejected program again, to get the verifier's log.
fn load_with_log(name: &str, request: ProgramRequest<'_>) -> Result<OwnedFd, BpfError> {
    let mut log = vec![0; LOG_BYTES];
    load(&mut ProgramRequest { log: &mut log, ..request }).map_err(|error| {
        let log: Vec<u8> = log.into_iter().take_while(|&byte| byte != 0).collect();
        if log.is_empty() {
            return BpfError::new("load program", name, error);
        }
        let log = String::from_utf8_lossy(&log).into_owned();
        BpfError::Rejected { program: name.to_owned(), log, source: error }
    })
}

/// Loads a program, repeatedly if necessary: the verifier returns EAGAIN when a signal arrives.
fn load(request: &mut ProgramRequest<'_>) -> io::Result<OwnedFd> {
    for _ in 1..LOAD_TRIES {
        match objects::load_program(request) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            loaded => return loaded,
        }
    }
    objects::load_program(request)
}

/// A `struct xdp_md` for a frame of this length that arrived on queue 0 of this interface.
fn context_bytes(frame_bytes: usize, ingress_ifindex: u32) -> [u8; 24] {
    let fields = [0, frame_bytes as u32, 0, ingress_ifindex, 0, 0];
    let mut context = [0; 24];
    for (bytes, field) in context.as_chunks_mut::<4>().0.iter_mut().zip(fields) {
        *bytes = field.to_ne_bytes();
    }
    context
}
