//! Names: of rings, and of the processes that have them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A receive ring by name: receive queue `queue` of `interface`, written `eth0@2`; if the packets
/// of a queue are distributed over several rings, `eth0@2.0`, `eth0@2.1` and so on. If the rings of
/// a whole interface share its packets by flow (engine `packet`), they are only numbered.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RingName {
    /// The interface's name.
    pub interface: String,
    /// Its receive queue, or its number among the interface's rings, counted from 0.
    pub queue: u32,
    /// Its number among the queue's rings, counted from 0; `None` if the queue has one ring.
    pub part: Option<u32>,
}

impl RingName {
    /// The only ring of receive queue `queue`.
    pub fn of_queue(interface: impl Into<String>, queue: u32) -> Self {
        Self { interface: interface.into(), queue, part: None }
    }
}

impl fmt::Display for RingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.interface, self.queue)?;
        match self.part {
            Some(part) => write!(f, ".{part}"),
            None => Ok(()),
        }
    }
}

/// The process that has a queue or an interface, as far as known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Holder {
    /// Its PID; `None` if it is not visible.
    pub pid: Option<u32>,
    /// The name of its program.
    pub program: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.program) {
            (Some(pid), Some(program)) => write!(f, "process {pid} ({program})"),
            (Some(pid), None) => write!(f, "process {pid}"),
            (None, _) => f.write_str("another process"),
        }
    }
}
