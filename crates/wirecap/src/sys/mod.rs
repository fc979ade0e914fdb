//! System calls that no crate wraps: the only place where the engine talks to the kernel by hand.

pub(crate) mod bpf;
pub(crate) mod ethtool;
pub(crate) mod memory;
pub(crate) mod netlink;
pub(crate) mod peer;
pub(crate) mod promiscuous;
pub(crate) mod xdp;
