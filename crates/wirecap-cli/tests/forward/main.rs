//! `wirecap forward` between two hosts: all frames of one arrive at the other, and the ledger
//! balances.
//!
//! With `WIRECAP_TRANSFER_SECONDS=180`, each transfer takes 180 seconds instead of one.

mod asked;
mod bed;
mod changed;
mod egress;
mod hosts;
mod load;
mod refused;
mod unchanged;
