//! Savefiles tested with other programs, other programs' files, full disks, killed writers and
//! random bytes.

mod body;
mod converting;
mod crash;
mod creating;
mod mutated;
mod order;
mod packet;
#[path = "../../../wirecap-testbed/src/skip.rs"]
mod skip;
#[path = "../../../wirecap-testbed/src/traces.rs"]
mod stored;
mod tools;
mod traces;
