//! Events of a capture's interfaces while it runs.

use std::fmt;
use std::sync::Arc;

use crate::ledger::{Unseen, UnseenReason};
use crate::names::RingName;

/// An event of an interface that the user of a capture should know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Packets are no longer seen.
    Lost {
        /// The interface.
        interface: String,
        /// Why.
        reason: UnseenReason,
        /// Why the capture could not resume at once, if it tried.
        obstacle: Option<String>,
    },
    /// Packets are captured again.
    Back(Unseen),
    /// A receive queue was added, and its packets are captured.
    QueueAppeared {
        /// Its ring; the first one, if there are several.
        ring: RingName,
    },
    /// A receive queue was added, and its packets are not captured.
    QueueMissed {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Why not.
        reason: String,
    },
    /// With [`Engine::Auto`](crate::Engine::Auto): the host began to use the interface and gets its
    /// packets back. The capture continues with the engine `packet`.
    HandedBack {
        /// The interface.
        interface: String,
        /// How the host uses it.
        reason: String,
    },
    /// With [`Engine::Auto`](crate::Engine::Auto): the host began to use the interface, but the
    /// capture cannot return it.
    NotHandedBack {
        /// The interface.
        interface: String,
        /// How the host uses it.
        reason: String,
        /// Why not.
        obstacle: String,
    },
    /// With [`Engine::Auto`](crate::Engine::Auto): captured frames were addressed to the interface
    /// itself. Told once; the final ledger has their number.
    OwnFrames {
        /// The interface.
        interface: String,
    },
    /// In a capture of all interfaces: an interface appeared, and its packets are captured.
    Appeared {
        /// The interface.
        interface: String,
    },
    /// The interface was renamed.
    Renamed {
        /// Its name when the capture began.
        interface: String,
        /// Its name now.
        name: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { interface, reason, obstacle } => {
                write!(f, "{interface}: packets are not captured: {reason}")?;
                obstacle
                    .as_ref()
                    .map_or(Ok(()), |obstacle| write!(f, "; capture cannot resume yet: {obstacle}"))
            }
            Self::Back(unseen) => write!(f, "captured again: {unseen}"),
            Self::QueueAppeared { ring } => write!(f, "{ring}: new receive queue, captured"),
            Self::QueueMissed { interface, queue, reason } => {
                write!(f, "{interface}@{queue}: new receive queue, not captured: {reason}")
            }
            Self::HandedBack { interface, reason } => {
                write!(
                    f,
                    "{interface}: handed back to the host, captured by the engine packet from now on: {reason}"
                )
            }
            Self::NotHandedBack { interface, reason, obstacle } => {
                write!(
                    f,
                    "{interface}: the host does not receive captured packets, but {reason}; the interface cannot be handed back: {obstacle}"
                )
            }
            Self::OwnFrames { interface } => write!(
                f,
                "{interface}: captured frames are addressed to it: if they are for this host, it does not receive them"
            ),
            Self::Appeared { interface } => write!(f, "{interface}: new interface, captured"),
            Self::Renamed { interface, name } => write!(f, "{interface} was renamed to {name}"),
        }
    }
}

/// The listener for events.
#[derive(Clone)]
pub(super) struct Listener(Arc<dyn Fn(&Event) + Send + Sync>);

impl Listener {
    pub(super) fn new(listen: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listen))
    }

    pub(super) fn tell(&self, event: &Event) {
        (self.0)(event);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}
