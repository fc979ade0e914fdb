//! Forwarding, on real veth pairs: A sends, wirecap in the middle forwards, B judges. Every test ends with the books
//! balanced: what A sent is what B received and what the ledger says was dropped, and why.

mod bed;
mod changing;
mod modes;
mod passing;
mod trouble;
