//! Forwarding on real veth pairs: A sends, wirecap in the middle forwards, B receives. Every test
//! ends by comparing the counts: packets sent by A = packets received by B + packets dropped, by
//! reason, in the ledger.

mod bed;
mod changing;
mod modes;
mod passing;
mod trouble;
