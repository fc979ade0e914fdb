//! The kernel's interfaces that no crate offers, each behind functions that are safe for every caller.

pub(crate) mod ethtool;
pub(crate) mod netlink;
