//! Errors of bpf(2).

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// Capabilities needed to load and attach.
const NEEDS_BPF: &str = "CAP_BPF and CAP_NET_ADMIN";
/// Capability needed to find objects of other processes.
const NEEDS_ADMIN: &str = "CAP_SYS_ADMIN";

/// Why a bpf(2) call failed.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// The process lacks a capability.
    #[error(
        "cannot {operation} {object}; run as root or grant {needs} (kernel.unprivileged_bpf_disabled \
         excludes all other users)"
    )]
    NotPermitted {
        /// The operation, for instance `create map` or `load program`.
        operation: Box<str>,
        /// The name of the map or program, or the interface.
        object: String,
        /// The required capabilities.
        needs: Box<str>,
        /// The kernel's error.
        #[serde(with = "crate::io_error")]
        source: io::Error,
    },
    /// Another XDP program is attached to the interface.
    #[error(
        "cannot attach to interface {ifindex}: another XDP program is attached; find it with `bpftool net` \
         or `ip -d link`, and stop the process that holds it"
    )]
    InterfaceBusy {
        /// The interface's index in the current network namespace.
        ifindex: u32,
        /// The kernel's error.
        #[serde(with = "crate::io_error")]
        source: io::Error,
    },
    /// The program cannot be attached to the interface.
    #[error("cannot attach an XDP program to interface {ifindex}: {reason}")]
    Refused {
        /// The interface's index in the current network namespace.
        ifindex: u32,
        /// The reason reported by the kernel or the driver.
        reason: String,
        /// The kernel's error.
        #[serde(with = "crate::io_error")]
        source: io::Error,
    },
    /// The verifier rejected the program.
    #[error("the kernel's verifier rejected program {program}:\n{}", .log.trim_end())]
    Rejected {
        /// The program's name.
        program: String,
        /// The verifier's complete log.
        log: String,
        /// The kernel's error.
        #[serde(with = "crate::io_error")]
        source: io::Error,
    },
    /// The kernel does not allow this name for an object.
    #[error("invalid BPF object name {name:?}: expected up to 15 letters, digits, _ and .")]
    BadName {
        /// The name.
        name: String,
    },
    /// The length of a key or value differs from the map's.
    #[error("a {part} of map {map} has {map_bytes} bytes, not {given_bytes}")]
    WrongSize {
        /// The map's name.
        map: String,
        /// `key` or `value`.
        part: Box<str>,
        /// The length given, in bytes.
        given_bytes: usize,
        /// The map's length, in bytes.
        map_bytes: usize,
    },
    /// Any other error.
    #[error("cannot {operation} {object}")]
    Failed {
        /// The operation, for instance `create map` or `load program`.
        operation: Box<str>,
        /// The name of the map or program, or the interface.
        object: String,
        /// The kernel's error.
        #[serde(with = "crate::io_error")]
        source: io::Error,
    },
}

impl BpfError {
    pub(super) fn new(
        operation: &'static str,
        object: impl fmt::Display,
        source: io::Error,
    ) -> Self {
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

    fn classify(
        operation: &'static str,
        object: String,
        needs: &'static str,
        source: io::Error,
    ) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted {
                operation: operation.into(),
                object,
                needs: needs.into(),
                source,
            },
            _ => Self::Failed { operation: operation.into(), object, source },
        }
    }

    /// The kernel's error number, if the error is the kernel's.
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

    /// The error of an attach operation, with the kernel's reason, if known.
    pub(super) fn because(self, ifindex: u32, reason: Option<String>) -> Self {
        match (self, reason) {
            (Self::Failed { source, .. }, Some(reason)) => {
                Self::Refused { ifindex, reason, source }
            }
            (error, _) => error,
        }
    }

    /// The kernel's reason why a program cannot be attached to an interface.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Refused { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Whether the object disappeared before it could be opened, or is a link that is not attached
    /// yet: until then the kernel lists its ID, but a request to open it fails with EAGAIN.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOENT | libc::EAGAIN))
    }
}
