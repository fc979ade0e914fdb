//! The one place at which the kernel is asked for what needs a privilege.
//!
//! Each [`Request`] is plain data and descriptors, and its [`Answer`] is a descriptor, a number or nothing, so that
//! another process may be asked in the stead of the kernel: one that has kept its privileges while this one, which looks
//! at packets, has none. What is done with the descriptors afterwards (binding, mapping, filtering, reading) takes none.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use crate::sys;

/// Something that needs a privilege.
#[derive(Debug)]
#[non_exhaustive]
pub enum Request<'a> {
    /// A raw socket of this family (AF_XDP, AF_PACKET), for no protocol. CAP_NET_RAW.
    Socket {
        /// The family.
        family: i32,
    },
    /// Memory of this process becomes the UMEM of an AF_XDP socket. CAP_IPC_LOCK, unless the limit of locked memory is
    /// high enough.
    Umem(Umem<'a>),
    /// A map of bpf(2). CAP_BPF.
    Map(MapRequest),
    /// A program of bpf(2). CAP_BPF and CAP_NET_ADMIN. Its instructions name maps by descriptors of this process, which
    /// another one must be given as well.
    Program(ProgramRequest<'a>),
    /// A program is run at a tracepoint. CAP_PERFMON.
    Tracepoint {
        /// The program.
        program: BorrowedFd<'a>,
        /// The tracepoint.
        name: &'a CStr,
    },
    /// A program is attached to an interface. CAP_NET_ADMIN.
    XdpLink {
        /// The program.
        program: BorrowedFd<'a>,
        /// The interface, in the network namespace of the asking thread.
        ifindex: u32,
        /// Where it runs, as bpf(2) has it.
        flags: u32,
    },
    /// A program takes the place of the one that is attached. CAP_NET_ADMIN.
    LinkUpdate {
        /// What is attached.
        link: BorrowedFd<'a>,
        /// The program.
        program: BorrowedFd<'a>,
    },
    /// An object of bpf(2) by its number. CAP_SYS_ADMIN.
    ById {
        /// What it is.
        kind: ObjectKind,
        /// Its number.
        id: u32,
    },
    /// The number of the object that follows. CAP_SYS_ADMIN.
    NextId {
        /// What it is.
        kind: ObjectKind,
        /// The number before.
        id: u32,
    },
}

/// An object of bpf(2) that has a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// A map.
    Map,
    /// A program.
    Program,
    /// A link.
    Link,
}

/// A map as bpf(2) has it.
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

/// A program as bpf(2) has it.
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
    /// Where the verifier writes its log, unless it is empty.
    pub log: &'a mut [u8],
}

/// Memory that is to become a UMEM.
#[derive(Debug)]
pub struct Umem<'a> {
    /// The AF_XDP socket.
    pub(crate) socket: BorrowedFd<'a>,
    /// The file that the memory is mapped from, for a process that has to map it first.
    pub(crate) memory: Option<BorrowedFd<'a>>,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) cell_bytes: u32,
}

impl<'a> Umem<'a> {
    /// `bytes` of memory from `address` on, for `socket`, in cells of `cell_bytes`.
    ///
    /// # Safety
    ///
    /// The kernel writes there from now on, whenever it likes: the memory must be nobody's who minds, until the socket
    /// and all that share its UMEM are closed.
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

    /// How long it is, and how long its cells are.
    pub fn sizes(&self) -> (u64, u32) {
        (self.bytes, self.cell_bytes)
    }
}

/// What came of a request.
#[derive(Debug)]
pub enum Answer {
    /// What was opened.
    Descriptor(OwnedFd),
    /// A number, or none after the last.
    Id(Option<u32>),
    /// Nothing, and it was done.
    Done,
}

impl Answer {
    pub(crate) fn descriptor(self) -> io::Result<OwnedFd> {
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

/// Who asks the kernel.
pub trait Opener: Send + Sync + fmt::Debug {
    /// Does what is asked for.
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn open(&self, request: Request<'_>) -> io::Result<Answer>;
}

/// Asks in the calling thread, with its privileges.
#[derive(Debug, Clone, Copy, Default)]
pub struct Direct;

impl Opener for Direct {
    fn open(&self, request: Request<'_>) -> io::Result<Answer> {
        sys::bpf::perform(request)
    }
}

static OPENER: OnceLock<Box<dyn Opener>> = OnceLock::new();

/// From now on `opener` is asked, in the whole process. Works once, before anything was opened.
///
/// # Errors
///
/// Gives `opener` back if it came too late.
pub fn set_opener(opener: Box<dyn Opener>) -> Result<(), Box<dyn Opener>> {
    OPENER.set(opener)
}

/// Asks for something that needs a privilege.
///
/// # Errors
///
/// The kernel's.
pub fn open(request: Request<'_>) -> io::Result<Answer> {
    OPENER.get_or_init(|| Box::new(Direct)).open(request)
}

/// Opens a raw socket of `family` for no protocol.
///
/// # Errors
///
/// The kernel's.
pub fn raw_socket(family: i32) -> io::Result<OwnedFd> {
    open(Request::Socket { family })?.descriptor()
}
