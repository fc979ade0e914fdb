//! Tests of the engine `xdp` only, on real veth pairs. Every test ends by comparing the ledger with
//! the sender's own count.

mod bed;
mod claims;
mod filter;
mod joining;
mod jumbo;
mod steering;
mod tags;
