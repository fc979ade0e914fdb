//! Captures during changes of receive queues, programs, interfaces and addresses. Every test ends
//! by comparing the ledger with the sender's own count; missing packets must have been sent in a
//! period that the ledger lists.

mod bed;
mod counters;
mod host;
mod interfaces;
mod opening;
mod programs;
mod queues;
mod sequences;
