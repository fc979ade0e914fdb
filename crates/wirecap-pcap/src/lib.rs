//! libpcap's interface over the wirecap engine, for programs that know nothing of it.
//!
//! The library takes libpcap's place and exports what it exports. Live captures on Ethernet interfaces run
//! on the engine; everything else (savefiles, filter expressions, devices that the engine does not serve)
//! the system's own libpcap does, which is opened at run time.
//!
//! What a program gets for a `pcap_t *` is a place in a table of ours, so each function can tell what it is
//! given. Behind each stands a handle of the real library: for what the engine does not serve it does the
//! work, and beside a capture of the engine's it keeps everything that has nothing to do with packets
//! (settings, link types, errors, compiling), so that all of this is libpcap's to the letter.

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
mod real;
mod request;
mod settings;
mod socket;
mod table;
mod turn;
mod wanted;
