//! Objects of bpf(2): created, loaded, attached and looked up, each with the capability that it
//! needs.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::bpf::{ATTACH_XDP, Command, ObjectName, address, address_mut, attribute, bpf, bpf_fd};
use crate::capability::{self, CapabilitySet};

/// `BPF_PROG_TYPE_RAW_TRACEPOINT`.
const RAW_TRACEPOINT: u32 = 17;

/// A kind of object that has an ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Map,
    Program,
    Link,
}

impl ObjectKind {
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Map => "map",
            Self::Program => "program",
            Self::Link => "link",
        }
    }
}

/// The parameters of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MapRequest {
    pub(crate) map_type: u32,
    pub(crate) name: ObjectName,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    pub(crate) max_entries: u32,
    pub(crate) flags: u32,
}

/// The parameters of a program.
#[derive(Debug)]
pub(crate) struct ProgramRequest<'a> {
    pub(crate) program_type: u32,
    pub(crate) name: ObjectName,
    /// Instructions of eight bytes each.
    pub(crate) code: &'a [u8],
    pub(crate) license: &'a CStr,
    pub(crate) flags: u32,
    pub(crate) ifindex: u32,
    pub(crate) expected_attach_type: u32,
    /// Buffer for the verifier's log; empty for no log.
    pub(crate) log: &'a mut [u8],
}

attribute! {
    struct MapCreate = 44 {
        map_type: u32, key_bytes: u32, value_bytes: u32, max_entries: u32,
        flags: u32, inner_map: u32, numa_node: u32, name: ObjectName,
    }
}
attribute! {
    struct ProgramLoad = 72 {
        program_type: u32, instruction_count: u32, instructions: u64, license: u64,
        log_level: u32, log_bytes: u32, log: u64, kernel_version: u32, flags: u32,
        name: ObjectName, ifindex: u32, expected_attach_type: u32,
    }
}
attribute! {
    struct ObjectId = 12 { id: u32, next_id: u32, open_flags: u32 }
}
attribute! {
    struct LinkCreate = 16 { program: RawFd, ifindex: u32, attach_type: u32, flags: u32 }
}
attribute! {
    struct LinkUpdate = 16 { link: RawFd, new_program: RawFd, flags: u32, old_program: u32 }
}
attribute! {
    /// For `BPF_RAW_TRACEPOINT_OPEN`.
    struct RawTracepoint = 16 { name: u64, program: RawFd, pad: u32 }
}

/// Creates a map. CAP_BPF.
pub(crate) fn create_map(request: &MapRequest) -> io::Result<OwnedFd> {
    let MapRequest { map_type, name, key_bytes, value_bytes, max_entries, flags } = *request;
    let mut attribute = MapCreate {
        map_type,
        key_bytes,
        value_bytes,
        max_entries,
        flags,
        inner_map: 0,
        numa_node: 0,
        name,
    };
    bpf_fd(Command::MapCreate, &mut attribute)
}

/// Loads a program. CAP_BPF; for XDP also CAP_NET_ADMIN, for tracepoints CAP_PERFMON.
pub(crate) fn load_program(program: &mut ProgramRequest<'_>) -> io::Result<OwnedFd> {
    let log = &mut *program.log;
    let mut attribute = ProgramLoad {
        program_type: program.program_type,
        instruction_count: (program.code.len() / 8) as u32,
        instructions: address(program.code),
        license: program.license.as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_bytes: log.len() as u32,
        log: if log.is_empty() { 0 } else { address_mut(log) },
        kernel_version: 0,
        flags: program.flags,
        name: program.name,
        ifindex: program.ifindex,
        expected_attach_type: program.expected_attach_type,
    };

    // What a program at a tracepoint may read requires it.
    let raised = if program.program_type == RAW_TRACEPOINT {
        CapabilitySet::PERFMON
    } else {
        CapabilitySet::empty()
    };
    capability::with(raised, || bpf_fd(Command::ProgramLoad, &mut attribute))?
}

/// Runs a program at a tracepoint. CAP_PERFMON.
pub(crate) fn attach_tracepoint(program: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let mut attribute =
        RawTracepoint { name: name.as_ptr() as u64, program: program.as_raw_fd(), pad: 0 };
    capability::with(CapabilitySet::PERFMON, || bpf_fd(Command::RawTracepointOpen, &mut attribute))?
}

/// Attaches an XDP program to an interface of the calling thread's network namespace.
/// CAP_NET_ADMIN.
pub(crate) fn attach_xdp(program: BorrowedFd<'_>, ifindex: u32, flags: u32) -> io::Result<OwnedFd> {
    let program = program.as_raw_fd();
    bpf_fd(
        Command::LinkCreate,
        &mut LinkCreate { program, ifindex, attach_type: ATTACH_XDP, flags },
    )
}

/// Replaces an attached program. CAP_NET_ADMIN.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let link = link.as_raw_fd();
    let new_program = program.as_raw_fd();
    let mut attribute = LinkUpdate { link, new_program, flags: 0, old_program: 0 };
    bpf(Command::LinkUpdate, &mut attribute).map(drop)
}

/// Opens the object of this kind with this ID. CAP_SYS_ADMIN.
pub(crate) fn by_id(kind: ObjectKind, id: u32) -> io::Result<OwnedFd> {
    let command = match kind {
        ObjectKind::Map => Command::MapFdById,
        ObjectKind::Program => Command::ProgramFdById,
        ObjectKind::Link => Command::LinkFdById,
    };
    let mut attribute = ObjectId { id, next_id: 0, open_flags: 0 };
    capability::with(CapabilitySet::SYS_ADMIN, || bpf_fd(command, &mut attribute))?
}

/// The ID after `id`, or `None` after the last. CAP_SYS_ADMIN.
pub(crate) fn next_id(kind: ObjectKind, id: u32) -> io::Result<Option<u32>> {
    let command = match kind {
        ObjectKind::Program => Command::ProgramGetNextId,
        ObjectKind::Link => Command::LinkGetNextId,
        ObjectKind::Map => return Err(io::ErrorKind::Unsupported.into()),
    };
    let mut attribute = ObjectId { id, next_id: 0, open_flags: 0 };
    match capability::with(CapabilitySet::SYS_ADMIN, || bpf(command, &mut attribute))? {
        Ok(_) => Ok(Some(attribute.next_id)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}
