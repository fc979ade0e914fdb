//! Captures while the world around them changes: receive queues, programs, interfaces, addresses. Every test ends with
//! the ledger against the sender's own count, and what is missing there was sent in a time that the ledger names.

mod bed;
mod counters;
mod host;
mod interfaces;
mod opening;
mod programs;
mod queues;
mod sequences;
