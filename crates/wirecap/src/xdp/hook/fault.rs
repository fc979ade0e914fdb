//! The error of a request about a hook, in a message to another process.

use std::io;

use serde::{Deserialize, Serialize};

use crate::bpf::BpfError;
use crate::device::XdpOwner;
use crate::error::OpenError;
use crate::names::{Holder, RingName};
use crate::xdp::system;

/// The error of a request about a hook, in a message to another process.
#[derive(Debug, Serialize, Deserialize)]
pub enum HookFault {
    /// [`OpenError::QueueTaken`].
    QueueTaken(RingName, Holder),
    /// [`OpenError::Contended`].
    Contended(String, Holder),
    /// [`OpenError::NotShared`].
    NotShared(String, Option<Holder>),
    /// [`OpenError::OtherVersion`].
    OtherVersion(String, String),
    /// [`OpenError::Joining`].
    Joining(String, Holder, BpfError),
    /// [`OpenError::OtherProgram`].
    OtherProgram(String, Option<XdpOwner>, BpfError),
    /// [`OpenError::Program`].
    Program(String, BpfError),
    /// Any other error.
    System {
        /// What failed.
        action: String,
        /// Why.
        #[serde(with = "wirecap_filter::io_error")]
        source: io::Error,
    },
}

impl From<OpenError> for HookFault {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::QueueTaken { ring, holder } => Self::QueueTaken(ring, holder),
            OpenError::Contended { interface, holder } => Self::Contended(interface, holder),
            OpenError::NotShared { interface, holder } => Self::NotShared(interface, holder),
            OpenError::OtherVersion { interface, program } => {
                Self::OtherVersion(interface, program)
            }
            OpenError::Joining { interface, holder, source } => {
                Self::Joining(interface, holder, source)
            }
            OpenError::OtherProgram { interface, owner, source } => {
                Self::OtherProgram(interface, owner.map(|owner| *owner), source)
            }
            OpenError::Program { interface, source } => Self::Program(interface, source),
            OpenError::System { action, source } => Self::System { action, source },
            other => Self::System {
                action: "change the program of an interface".to_owned(),
                source: io::Error::other(other.to_string()),
            },
        }
    }
}

impl From<HookFault> for OpenError {
    fn from(fault: HookFault) -> Self {
        match fault {
            HookFault::QueueTaken(ring, holder) => Self::QueueTaken { ring, holder },
            HookFault::Contended(interface, holder) => Self::Contended { interface, holder },
            HookFault::NotShared(interface, holder) => Self::NotShared { interface, holder },
            HookFault::OtherVersion(interface, program) => {
                Self::OtherVersion { interface, program }
            }
            HookFault::Joining(interface, holder, source) => {
                Self::Joining { interface, holder, source }
            }
            HookFault::OtherProgram(interface, owner, source) => {
                Self::OtherProgram { interface, owner: owner.map(Box::new), source }
            }
            HookFault::Program(interface, source) => Self::Program { interface, source },
            HookFault::System { action, source } => system(&action, source),
        }
    }
}
