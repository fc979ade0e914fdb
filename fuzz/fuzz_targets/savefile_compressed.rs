//! Fuzzes reading gzip and Zstandard. The body is in the crate's tests, which run it on the stored
//! corpus.

#![no_main]
#![allow(dead_code)] // Functions used only by the tests.

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/wirecap-savefile/tests/savefile/body.rs"]
mod body;
#[path = "../../crates/wirecap-savefile/tests/savefile/packet.rs"]
mod packet;

fuzz_target!(|bytes: &[u8]| body::read_compressed(bytes));
