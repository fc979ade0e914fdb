//! Filters in all forms, compared with each other.

mod body;
mod choices;
mod compile;
mod differential;
mod expressions;
mod kernel;
mod mutated;
mod names;
mod packets;
mod programs;
#[path = "../../../wirecap-testbed/src/traces.rs"]
mod stored;
