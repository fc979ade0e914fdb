//! `wirecap forward` between two hosts: what one sends the other gets, and the books hold.
//!
//! `WIRECAP_TRANSFER_SECONDS=180` makes each transfer last as long, instead of a second.

mod asked;
mod bed;
mod changed;
mod egress;
mod hosts;
mod load;
mod refused;
mod unchanged;
