//! The engines on real veth pairs. Every test ends with the books balanced: the sender's own count
//! against the ledger.

mod bed;
mod every_engine;
mod frames;
mod one_body;
mod packet;
mod xdp;
