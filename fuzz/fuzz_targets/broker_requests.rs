//! Fuzzes the requests to the privileged process (broker). The body is in the crate's tests, which
//! run it on the stored corpus.

#![no_main]
#![allow(dead_code)] // Functions used only by the tests.

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/wirecap-broker/tests/requests/body.rs"]
mod body;

fuzz_target!(|bytes: &[u8]| {
    let _permitted = body::ask(bytes);
});
