//! System calls and foreign functions for which there is no crate.

pub(crate) mod bpf;
// Filters are compiled to machine code on x86-64 only, and not under Miri.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) mod code;
pub(crate) mod libpcap;
pub(crate) mod objects;
