//! The messages between the two processes.
//!
//! Objects that the broker made are named by numbers. The first message has the version of the
//! protocol. Each message must come from the process that started the broker: the kernel adds the
//! sender's PID (`SCM_CREDENTIALS`), and the service ends with the first message of another
//! process, or when that process ends (pidfd). Descriptors in a request are discarded. A filter is
//! data: its size, operations and jumps are checked before it is translated, and more than 32,768
//! instructions run in user space.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{self, Uid};
use serde::{Deserialize, Serialize};
use wirecap::bpf::BpfError;
use wirecap::device::DeviceSummary;
use wirecap::filter::Filter;
use wirecap::privileged::{
    BindMode, GuardedHooks, HookFault, HookPlan, HookState, Inquiry, Pages, Where,
};

/// A user that a process can act for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The name, for messages.
    pub name: String,
    /// The user's number.
    pub uid: u32,
    /// The number of the user's primary group.
    pub gid: u32,
}

impl User {
    /// The user of this name.
    ///
    /// # Errors
    ///
    /// If there is none, or the system's list of users cannot be read.
    pub fn named(name: &str) -> io::Result<Self> {
        let entry = unistd::User::from_name(name).map_err(io::Error::from)?;
        let entry = entry.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("this system has no user {name}"))
        })?;
        Ok(Self { name: entry.name, uid: entry.uid.as_raw(), gid: entry.gid.as_raw() })
    }

    /// The owner of a file or directory. If the owner is not in the system's list of users, the
    /// name is the owner's number, and the group is that of the file.
    ///
    /// # Errors
    ///
    /// If the file does not exist, or the list of users cannot be read.
    pub fn owner_of(path: &Path) -> io::Result<Self> {
        let metadata = path.metadata()?;
        let entry =
            unistd::User::from_uid(Uid::from_raw(metadata.uid())).map_err(io::Error::from)?;
        Ok(match entry {
            Some(entry) => {
                Self { name: entry.name, uid: entry.uid.as_raw(), gid: entry.gid.as_raw() }
            }
            None => {
                Self { name: metadata.uid().to_string(), uid: metadata.uid(), gid: metadata.gid() }
            }
        })
    }
}

/// The terms: the requests that a broker may execute. They are fixed before the other process drops
/// its privileges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The interfaces that may be captured, in the network namespace of the broker.
    pub interfaces: Vec<Permitted>,
    /// Packet sockets may receive the packets of all interfaces, also of those that appear later,
    /// and all may become promiscuous. Programs and AF_XDP sockets are for the `interfaces` only.
    pub any: bool,
    /// The command runs as this user.
    pub user: User,
    /// The directory that paths given to the command must be in.
    pub directory: PathBuf,
    /// The command that the broker runs on request, with a path as the last argument.
    pub command: Option<Vec<String>>,
    /// Sockets that the broker removes when the unprivileged process has ended; that process has no
    /// permission to remove them.
    pub sockets: Vec<PathBuf>,
}

/// An interface that may be captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permitted {
    /// Its name. When the interface is removed, one that appears under this name replaces it.
    pub name: String,
    /// Those of its receive queues that may be captured; all of them, if `None`.
    pub queues: Option<Vec<u32>>,
}

/// The version of the messages. Both processes run the same program, so a difference is an error.
pub(crate) const VERSION: u32 = 3;

/// The first message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Greeting {
    pub(crate) version: u32,
    pub(crate) terms: Terms,
}

/// Maximum bytes of a message: a filter of `FILTER_INSNS_MAX` instructions, and a reserve.
pub const BYTES_MAX: usize = 1 << 20;
/// Maximum instructions of a filter. A longer one runs in user space, as the kernel's verifier
/// rejects it anyway.
pub(crate) const FILTER_INSNS_MAX: usize = 1 << 15;

/// A request, in the words of a capture: none contains instructions of eBPF, or the ID of an object
/// of the kernel. Objects that the broker made before are named by the numbers of its replies.
#[doc(hidden)] // public for tests
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Ask {
    /// A netlink socket.
    Netlink(Inquiry),
    /// A file in memory, for a pool.
    PoolFile { bytes: u64 },
    /// An AF_XDP socket that is bound to nothing.
    XdpSocket,
    /// The first bytes of a file become the UMEM of a socket.
    RegisterUmem { socket: u32, file: u32, bytes: u64, cell_bytes: u32 },
    /// Binds an AF_XDP socket.
    BindXdp { socket: u32, ifindex: u32, queue: u32, mode: BindMode },
    /// Binds an AF_XDP socket that shares the UMEM of another.
    BindXdpBeside { socket: u32, first: u32, ifindex: u32, queue: u32 },
    /// A packet socket that is bound to nothing.
    PacketSocket,
    /// Binds a packet socket.
    BindPacket { socket: u32, ifindex: u32 },
    /// Promiscuous mode.
    Promiscuous { ifindex: u32 },
    /// The right to change the program of an interface.
    AttachLock(DeviceSummary),
    /// Attaches a program.
    OpenHook { plan: Box<HookPlan>, turn: u32 },
    /// Changes or queries a program that was attached.
    Hook { hook: u32, ask: HookAsk },
    /// Closes an object.
    Release { object: u32 },
    /// The command is run with this path.
    Run { path: Vec<u8> },
    /// Promiscuous mode of a further interface, as long as that of the first.
    PromiscuousAlso { holder: u32, ifindex: u32 },
    /// The host's hooks of an interface that only a privileged process can see.
    GuardedHooks { ifindex: u32 },
}

/// A request to a [`Hook`](wirecap::privileged::Hook).
#[doc(hidden)] // public for tests
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the methods of the trait")]
pub enum HookAsk {
    Receive { key: u32, socket: u32 },
    Prepare(Option<Filter>),
    Exchange { turn: u32 },
    KeepUnfiltered,
    PrepareToPass,
    IsInPlace,
    AttachAgain,
    AttachAnew,
    RunOnNewQueues,
    ClaimQueue { queue: u32 },
    AddQueue { queue: u32 },
    CloseQueue { queue: u32, keys: Vec<u32> },
    MoveTo(DeviceSummary),
    Unseated,
    Filtered { queue: u32 },
    Leave,
    Own,
}

/// The result of a request. A descriptor, if there is one, is sent with the message.
#[doc(hidden)] // public for tests
#[derive(Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the results of the methods of the traits")]
pub enum Reply {
    Done,
    /// A descriptor without a number.
    Descriptor,
    /// An object with this number.
    Object(u32),
    /// A file with this number.
    File(u32, Pages),
    /// A hook with this number.
    Hook(u32, HookState),
    State(HookState),
    Filters(Where),
    Count(u64),
    Is(bool),
    Guarded(GuardedHooks),
    /// The kernel's error.
    Failed(#[serde(with = "wirecap_filter::io_error")] io::Error),
    Bpf(BpfError),
    Fault(HookFault),
    /// A request outside the terms, or an unintelligible one.
    Refused(String),
}

pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_allocvec(message)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> io::Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => {
            let text = format!("{} bytes after the message", rest.len());
            Err(io::Error::new(io::ErrorKind::InvalidData, text))
        }
        Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    }
}

pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
