//! Loss as the clients of a capture see it.

use serde::Serialize;

/// The losses at one place for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Lost {
    /// A ring, an interface or a port.
    pub(crate) place: String,
    pub(crate) reason: &'static str,
    pub(crate) packets: u64,
    /// When the last of them was lost, as far as looks tell.
    pub(crate) last_unix_s: f64,
}
