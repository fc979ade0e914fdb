//! Filters in captures. Filters alone are tested in the crate `wirecap-filter`, which also makes
//! the expressions, programs and frames.
#![allow(dead_code)] // what only the tests there use

#[path = "../../../wirecap-filter/tests/filter/choices.rs"]
mod choices;
#[path = "../../../wirecap-filter/tests/filter/expressions.rs"]
mod expressions;
mod live;
#[path = "../../../wirecap-filter/tests/filter/names.rs"]
mod names;
#[path = "../../../wirecap-filter/tests/filter/packets.rs"]
mod packets;
#[path = "../../../wirecap-filter/tests/filter/programs.rs"]
mod programs;
#[path = "../../../wirecap-testbed/src/traces.rs"]
mod stored;
