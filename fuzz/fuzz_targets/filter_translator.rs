//! Fuzzes the translation of filters. The body is in the crate's tests, which run it on the stored
//! corpus.

#![no_main]
#![allow(dead_code)] // Functions used only by the tests.

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/wirecap-filter/tests/filter/body.rs"]
mod body;
#[path = "../../crates/wirecap-filter/tests/filter/choices.rs"]
mod choices;
#[path = "../../crates/wirecap-filter/tests/filter/programs.rs"]
mod programs;

fuzz_target!(|bytes: &[u8]| body::translate(bytes));
