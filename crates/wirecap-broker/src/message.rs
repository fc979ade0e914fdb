//! The messages between the two processes.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{self, Uid};
use serde::{Deserialize, Serialize};

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

    /// The owner of a file or directory. If the owner is not in the system's list of users, the name is the
    /// owner's number, and the group is that of the file.
    ///
    /// # Errors
    ///
    /// If the file does not exist, or the list of users cannot be read.
    pub fn owner_of(path: &Path) -> io::Result<Self> {
        let metadata = path.metadata()?;
        let entry = unistd::User::from_uid(Uid::from_raw(metadata.uid())).map_err(io::Error::from)?;
        Ok(match entry {
            Some(entry) => Self { name: entry.name, uid: entry.uid.as_raw(), gid: entry.gid.as_raw() },
            None => Self { name: metadata.uid().to_string(), uid: metadata.uid(), gid: metadata.gid() },
        })
    }
}

/// The terms: the requests that a broker may execute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The interfaces that programs may be attached to.
    pub interfaces: Vec<String>,
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

/// Maximum bytes of a message: a program of a million instructions, and a reserve.
pub(crate) const BYTES_MAX: usize = 16 << 20;
/// The maximum number of descriptors of a message: the kernel passes at most 253.
pub(crate) const DESCRIPTORS_MAX: usize = 64;

/// A request. Its descriptors are sent with it, in the order of the comments.
#[doc(hidden)] // public for tests
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    Socket {
        family: i32,
    },
    /// The socket, and the file that the memory is mapped from.
    Umem {
        bytes: u64,
        cell_bytes: u32,
    },
    Map {
        map_type: u32,
        name: [u8; 16],
        key_bytes: u32,
        value_bytes: u32,
        max_entries: u32,
        flags: u32,
    },
    /// The maps, to which the instructions refer by their position in this order.
    Program {
        program_type: u32,
        name: [u8; 16],
        code: Vec<u8>,
        license: Vec<u8>,
        flags: u32,
        ifindex: u32,
        expected_attach_type: u32,
        log_bytes: u32,
    },
    /// The program.
    Tracepoint {
        name: Vec<u8>,
    },
    /// The program.
    XdpLink {
        ifindex: u32,
        flags: u32,
    },
    /// The link, and the program.
    LinkUpdate,
    ById {
        kind: Kind,
        id: u32,
    },
    NextId {
        kind: Kind,
        id: u32,
    },
    Listen {
        name: Vec<u8>,
        backlog: u32,
    },
    /// The command is run with this path.
    Run {
        path: Vec<u8>,
    },
}

/// As [`ObjectKind`](wirecap_filter::opener::ObjectKind).
#[doc(hidden)] // public for tests
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Map,
    Program,
    Link,
}

/// The result of a request. `log` is the verifier's output.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) outcome: Outcome,
    pub(crate) log: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The descriptor is sent with the message.
    Descriptor,
    Id(Option<u32>),
    Done,
    /// The kernel's error.
    Errno(i32),
    /// A request outside the terms, or an unintelligible one.
    Refused(String),
}

impl From<Outcome> for Reply {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, log: Vec::new() }
    }
}

pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_allocvec(message).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> io::Result<T> {
    postcard::from_bytes(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
