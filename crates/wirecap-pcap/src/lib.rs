//! libpcap's API on the wirecap engine, for unmodified programs.
//!
//! The library replaces libpcap and exports the same symbols. Live captures on Ethernet and
//! loopback interfaces run on the engine. Everything else (savefiles, filter expressions, devices
//! that the engine does not support) is done by the system's libpcap (the real library), which is
//! opened at run time.
//!
//! A program's `pcap_t *` is the address of a slot in a table, so each function can check it. Each
//! slot has a handle of the real library. That handle captures if the engine does not. If the
//! engine captures, that handle does everything that does not concern packets (settings, link
//! types, errors, compilation), so this is exactly as in libpcap.

mod abi;
mod activate;
mod control;
mod data;
mod failure;
mod filter_slot;
mod find;
mod forks;
mod forward;
mod group;
mod handle;
#[doc(hidden)]
pub mod harness;
mod live;
mod opening;
mod pollable;
mod read;
mod read_lock;
mod real;
mod request;
#[cfg(sabotage)]
#[path = "../../wirecap-testbed/src/sabotage.rs"]
mod sabotage;
mod settings;
mod socket;
mod table;
mod wanted;
