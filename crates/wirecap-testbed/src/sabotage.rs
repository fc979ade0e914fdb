//! Saboteurs: small changes that each break one promise, to see that a test notices. Only builds
//! with `--cfg sabotage` have them (`make sabotage`). Each crate includes this file as a module; a
//! hook is beside the code that it breaks:
//!
//! ```ignore
//! #[cfg(sabotage)]
//! if crate::sabotage::is("no-helping") {
//!     return None;
//! }
//! ```
//!
//! `.ci/sabotage.toml` lists the saboteurs with the promise and the test that must fail.

#![allow(dead_code, reason = "not each test program has a hook")]

use std::env;
use std::sync::OnceLock;

/// Whether this saboteur is at work: the environment variable `WIRECAP_SABOTEUR` names it.
pub(crate) fn is(name: &str) -> bool {
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    CHOSEN.get_or_init(|| env::var("WIRECAP_SABOTEUR").ok()).as_deref() == Some(name)
}
