//! Losses as reported to the clients of a capture.

use serde::Serialize;

/// The losses at one place for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Lost {
    /// A ring, an interface or a port.
    pub(crate) place: String,
    pub(crate) reason: &'static str,
    pub(crate) packets: u64,
    /// The time of the last loss, to the precision of the checks.
    pub(crate) last_unix_s: f64,
}
