//! System calls and foreign functions that no crate wraps.

pub(crate) mod bpf;
// Filters become machine code on this processor only, and not under Miri.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) mod code;
pub(crate) mod libpcap;
pub(crate) mod privileged;
