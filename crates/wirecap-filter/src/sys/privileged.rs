//! Privileged operations as plain data and descriptors, and their execution in this thread.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};

use super::bpf::{ATTACH_XDP, Command, ObjectName, address, address_mut, attribute, bpf, bpf_fd};

/// A privileged operation.
#[derive(Debug)]
#[non_exhaustive]
pub enum Request<'a> {
    /// Open a raw socket of this family (AF_XDP, AF_PACKET) without a protocol. CAP_NET_RAW.
    Socket {
        /// The family.
        family: i32,
    },
    /// Register memory of this process as the UMEM of an AF_XDP socket. CAP_IPC_LOCK, unless `RLIMIT_MEMLOCK`
    /// is high enough.
    Umem(Umem<'a>),
    /// Create a map by bpf(2). CAP_BPF.
    Map(MapRequest),
    /// Load a program by bpf(2). CAP_BPF and CAP_NET_ADMIN. Its instructions refer to maps by descriptors of
    /// this process; another process that executes the request needs these descriptors, too.
    Program(ProgramRequest<'a>),
    /// Run a program at a tracepoint. CAP_PERFMON.
    Tracepoint {
        /// The program.
        program: BorrowedFd<'a>,
        /// The tracepoint.
        name: &'a CStr,
    },
    /// Attach a program to an interface. CAP_NET_ADMIN.
    XdpLink {
        /// The program.
        program: BorrowedFd<'a>,
        /// The interface's index in the network namespace of the calling thread.
        ifindex: u32,
        /// The hook, as a flag of bpf(2).
        flags: u32,
    },
    /// Replace an attached program. CAP_NET_ADMIN.
    LinkUpdate {
        /// The link that holds it.
        link: BorrowedFd<'a>,
        /// The new program.
        program: BorrowedFd<'a>,
    },
    /// Open an object of bpf(2) by its ID. CAP_SYS_ADMIN.
    ById {
        /// The kind of object.
        kind: ObjectKind,
        /// Its ID.
        id: u32,
    },
    /// Find the next object of bpf(2). CAP_SYS_ADMIN.
    NextId {
        /// The kind of object.
        kind: ObjectKind,
        /// The previous ID.
        id: u32,
    },
    /// Open a listening socket with an abstract name (`unix(7)`) in the network namespace. This needs no
    /// privilege, but a process that connects to the socket learns which user created it (`SO_PEERCRED`).
    Listen {
        /// The name, without the leading NUL.
        name: &'a [u8],
        /// Length of the queue of pending connections.
        backlog: u32,
    },
}

/// A kind of object that has an ID in bpf(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// A map.
    Map,
    /// A program.
    Program,
    /// A link.
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

/// The parameters of a map, as in bpf(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of union bpf_attr")]
pub struct MapRequest {
    pub map_type: u32,
    pub name: [u8; 16],
    pub key_bytes: u32,
    pub value_bytes: u32,
    pub max_entries: u32,
    pub flags: u32,
}

/// The parameters of a program, as in bpf(2).
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields of union bpf_attr")]
pub struct ProgramRequest<'a> {
    pub program_type: u32,
    pub name: [u8; 16],
    /// Instructions of eight bytes each.
    pub code: &'a [u8],
    pub license: &'a CStr,
    pub flags: u32,
    pub ifindex: u32,
    pub expected_attach_type: u32,
    /// Buffer for the verifier's log; empty for no log.
    pub log: &'a mut [u8],
}

impl ProgramRequest<'_> {
    /// The same request, to execute it again.
    pub(crate) fn reborrow(&mut self) -> ProgramRequest<'_> {
        ProgramRequest { log: &mut *self.log, ..*self }
    }
}

/// Memory to be registered as a UMEM.
#[derive(Debug)]
pub struct Umem<'a> {
    /// The AF_XDP socket.
    pub(crate) socket: BorrowedFd<'a>,
    /// The file that the memory is mapped from, for a process that must map it first.
    pub(crate) memory: Option<BorrowedFd<'a>>,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) cell_bytes: u32,
}

impl<'a> Umem<'a> {
    /// `bytes` of memory from `address` on, for `socket`, with cells of `cell_bytes`.
    ///
    /// # Safety
    ///
    /// From now on the kernel may write to the memory at any time: this process must not use it for anything
    /// else until the socket and all others that share its UMEM are closed.
    pub unsafe fn new(
        socket: BorrowedFd<'a>,
        memory: Option<BorrowedFd<'a>>,
        address: u64,
        bytes: u64,
        cell_bytes: u32,
    ) -> Self {
        Self { socket, memory, address, bytes, cell_bytes }
    }

    /// The AF_XDP socket.
    pub fn socket(&self) -> BorrowedFd<'a> {
        self.socket
    }

    /// The file that the memory is mapped from.
    pub fn memory(&self) -> Option<BorrowedFd<'a>> {
        self.memory
    }

    /// The length of the memory, and that of a cell.
    pub fn sizes(&self) -> (u64, u32) {
        (self.bytes, self.cell_bytes)
    }
}

/// The result of a request.
#[derive(Debug)]
pub enum Answer {
    /// The opened descriptor.
    Descriptor(OwnedFd),
    /// An ID, or `None` after the last.
    Id(Option<u32>),
    /// Success without a result.
    Done,
}

impl Answer {
    /// Returns the opened descriptor.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](io::ErrorKind::InvalidData) if the answer is not a descriptor.
    pub fn descriptor(self) -> io::Result<OwnedFd> {
        match self {
            Self::Descriptor(descriptor) => Ok(descriptor),
            Self::Id(_) | Self::Done => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    pub(crate) fn id(self) -> io::Result<Option<u32>> {
        match self {
            Self::Id(id) => Ok(id),
            Self::Descriptor(_) | Self::Done => Err(io::ErrorKind::InvalidData.into()),
        }
    }
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

/// Executes a privileged request in this thread.
pub(crate) fn perform(request: Request<'_>) -> io::Result<Answer> {
    let opened = match request {
        Request::Socket { family } => raw_socket(family)?,
        Request::Umem(umem) => return register_umem(&umem).map(|()| Answer::Done),
        Request::Map(MapRequest { map_type, name, key_bytes, value_bytes, max_entries, flags }) => {
            let (inner_map, numa_node) = (0, 0);
            let mut attribute = MapCreate {
                map_type,
                key_bytes,
                value_bytes,
                max_entries,
                flags,
                inner_map,
                numa_node,
                name,
            };
            bpf_fd(Command::MapCreate, &mut attribute)?
        }
        Request::Program(program) => load(program)?,
        Request::Tracepoint { program, name } => {
            let (name, program) = (name.as_ptr() as u64, program.as_raw_fd());
            bpf_fd(Command::RawTracepointOpen, &mut RawTracepoint { name, program, pad: 0 })?
        }
        Request::XdpLink { program, ifindex, flags } => {
            let program = program.as_raw_fd();
            bpf_fd(Command::LinkCreate, &mut LinkCreate { program, ifindex, attach_type: ATTACH_XDP, flags })?
        }
        Request::LinkUpdate { link, program } => {
            let (link, new_program) = (link.as_raw_fd(), program.as_raw_fd());
            let mut attribute = LinkUpdate { link, new_program, flags: 0, old_program: 0 };
            return bpf(Command::LinkUpdate, &mut attribute).map(|_| Answer::Done);
        }
        Request::ById { kind, id } => {
            let command = match kind {
                ObjectKind::Map => Command::MapFdById,
                ObjectKind::Program => Command::ProgramFdById,
                ObjectKind::Link => Command::LinkFdById,
            };
            bpf_fd(command, &mut ObjectId { id, next_id: 0, open_flags: 0 })?
        }
        Request::NextId { kind, id } => {
            let command = match kind {
                ObjectKind::Program => Command::ProgramGetNextId,
                ObjectKind::Link => Command::LinkGetNextId,
                ObjectKind::Map => return Err(io::ErrorKind::Unsupported.into()),
            };
            let mut attribute = ObjectId { id, next_id: 0, open_flags: 0 };
            return match bpf(command, &mut attribute) {
                Ok(_) => Ok(Answer::Id(Some(attribute.next_id))),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Answer::Id(None)),
                Err(error) => Err(error),
            };
        }
        Request::Listen { name, backlog } => listen_at(name, backlog)?,
    };
    Ok(Answer::Descriptor(opened))
}

fn listen_at(name: &[u8], backlog: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    listen(&socket, backlog.try_into().unwrap_or(i32::MAX))?;
    Ok(socket)
}

fn load(program: ProgramRequest<'_>) -> io::Result<OwnedFd> {
    let log = program.log;
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
    bpf_fd(Command::ProgramLoad, &mut attribute)
}

fn raw_socket(family: i32) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes no pointers.
    let fd = unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just created the descriptor, and only this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn register_umem(umem: &Umem<'_>) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: umem.address,
        len: umem.bytes,
        chunk_size: umem.cell_bytes,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    let bytes = size_of::<libc::xdp_umem_reg>() as libc::socklen_t;
    let fd = umem.socket.as_raw_fd();
    // SAFETY: pointer and length describe `registration`; the caller of `Umem::new` has guaranteed that the
    // kernel may use the memory that it describes.
    let outcome = unsafe {
        libc::setsockopt(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, (&raw const registration).cast(), bytes)
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
