//! Why bpf(2) refused.

use std::error::Error;
use std::fmt;
use std::io;

/// Loading and attaching need these.
const NEEDS_BPF: &str = "CAP_BPF and CAP_NET_ADMIN";
/// Finding objects of other processes needs this.
const NEEDS_ADMIN: &str = "CAP_SYS_ADMIN";

/// Why a bpf(2) call failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum BpfError {
    /// The process lacks a capability.
    NotPermitted {
        /// The operation: `create map`, `load program`, ...
        operation: &'static str,
        /// The name of the map or program, or the interface.
        object: String,
        /// The capabilities that would do.
        needs: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another XDP program is on the interface.
    InterfaceBusy {
        /// The interface's index in the current network namespace.
        ifindex: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The interface cannot have the program.
    Refused {
        /// The interface's index in the current network namespace.
        ifindex: u32,
        /// Why, in the words of the kernel or of the driver.
        reason: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The verifier refused the program.
    Rejected {
        /// The program's name.
        program: String,
        /// What the verifier wrote, to its last line.
        log: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel would not accept this as an object's name.
    BadName {
        /// The name given.
        name: String,
    },
    /// A key or value is not as long as the map's.
    WrongSize {
        /// The map's name.
        map: String,
        /// `key` or `value`.
        part: &'static str,
        /// The length given, in bytes.
        given_bytes: usize,
        /// The map's length, in bytes.
        map_bytes: usize,
    },
    /// Anything else.
    Failed {
        /// The operation: `create map`, `load program`, ...
        operation: &'static str,
        /// The name of the map or program, or the interface.
        object: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl BpfError {
    pub(super) fn new(operation: &'static str, object: impl fmt::Display, source: io::Error) -> Self {
        Self::classify(operation, object.to_string(), NEEDS_BPF, source)
    }

    pub(super) fn discovering(kind: &'static str, id: u32, source: io::Error) -> Self {
        Self::classify("look up", format!("{kind} with id {id}"), NEEDS_ADMIN, source)
    }

    pub(super) fn attaching(ifindex: u32, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EBUSY | libc::EEXIST) => Self::InterfaceBusy { ifindex, source },
            _ => Self::new("attach an XDP program to", format!("interface {ifindex}"), source),
        }
    }

    fn classify(operation: &'static str, object: String, needs: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { operation, object, needs, source },
            _ => Self::Failed { operation, object, source },
        }
    }

    /// The kernel's error number, where the kernel was asked.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::NotPermitted { source, .. }
            | Self::InterfaceBusy { source, .. }
            | Self::Refused { source, .. }
            | Self::Rejected { source, .. }
            | Self::Failed { source, .. } => source.raw_os_error(),
            Self::BadName { .. } | Self::WrongSize { .. } => None,
        }
    }

    /// The same, of attaching, with the reason that the kernel gives, if that is known.
    pub(super) fn because(self, ifindex: u32, reason: Option<String>) -> Self {
        match (self, reason) {
            (Self::Failed { source, .. }, Some(reason)) => Self::Refused { ifindex, reason, source },
            (error, _) => error,
        }
    }

    /// Why an interface cannot have the program, in the kernel's words.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Refused { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// True if the object vanished before it could be opened, or is a link that is not attached yet: until then the kernel
    /// lists its id, and answers EAGAIN to a request to open it.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOENT | libc::EAGAIN))
    }
}

impl fmt::Display for BpfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted { operation, object, needs, .. } => {
                write!(f, "cannot {operation} {object}; run as root or grant {needs} ")?;
                f.write_str("(kernel.unprivileged_bpf_disabled excludes all other users)")
            }
            Self::InterfaceBusy { ifindex, .. } => {
                write!(f, "cannot attach to interface {ifindex}: another XDP program is attached; ")?;
                f.write_str("find it with `bpftool net` or `ip -d link`, and stop the process that holds it")
            }
            Self::Refused { ifindex, reason, .. } => {
                write!(f, "cannot attach an XDP program to interface {ifindex}: {reason}")
            }
            Self::Rejected { program, log, .. } => {
                write!(f, "the kernel's verifier rejected program {program}:\n{}", log.trim_end())
            }
            Self::BadName { name } => {
                write!(f, "invalid BPF object name {name:?}: expected up to 15 letters, digits, _ and .")
            }
            Self::WrongSize { map, part, given_bytes, map_bytes } => {
                write!(f, "a {part} of map {map} has {map_bytes} bytes, not {given_bytes}")
            }
            Self::Failed { operation, object, .. } => write!(f, "cannot {operation} {object}"),
        }
    }
}

impl Error for BpfError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::NotPermitted { source, .. }
            | Self::InterfaceBusy { source, .. }
            | Self::Refused { source, .. }
            | Self::Rejected { source, .. }
            | Self::Failed { source, .. } => Some(source),
            Self::BadName { .. } | Self::WrongSize { .. } => None,
        }
    }
}
