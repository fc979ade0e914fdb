//! What only the engine `xdp` does, on real veth pairs. Every test ends with the books balanced: the
//! sender's own count against the ledger.

mod bed;
mod claims;
mod filter;
mod joining;
mod jumbo;
mod steering;
