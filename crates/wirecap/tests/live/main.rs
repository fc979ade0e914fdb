//! The engines on real veth pairs. Every test ends by comparing the ledger with the sender's own
//! count.

mod bed;
mod counted;
mod every_engine;
mod frames;
mod one_body;
mod packet;
mod times;
mod xdp;
