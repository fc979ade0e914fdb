//! Commands that send packets.

pub(crate) mod generate;
pub(crate) mod replay;
