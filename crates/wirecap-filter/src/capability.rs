//! Runs code with fewer, or more, of the calling thread's capabilities in effect
//! (`capabilities(7)`).
//!
//! A capability is in effect if it is in the thread's *effective* set; the *permitted* set has
//! those that the thread may put into effect. Both functions change the effective set only, and
//! restore it afterwards, also on a panic. Other threads of the process keep theirs.

use std::io;

use rustix::thread::{CapabilitySets, capabilities, set_capabilities};

pub use rustix::thread::CapabilitySet;

/// Runs `action` with `lowered` out of effect.
///
/// # Errors
///
/// The kernel's error if it refuses the change; `action` does not run then.
pub fn without<T>(lowered: CapabilitySet, action: impl FnOnce() -> T) -> io::Result<T> {
    let before = capabilities(None)?;
    in_effect(before, before.effective.difference(lowered), action)
}

/// Runs `action` with those of `raised` in effect that are permitted to the thread.
///
/// # Errors
///
/// The kernel's error if it refuses the change; `action` does not run then.
pub fn with<T>(raised: CapabilitySet, action: impl FnOnce() -> T) -> io::Result<T> {
    let before = capabilities(None)?;
    let raised = raised.intersection(before.permitted);
    in_effect(before, before.effective.union(raised), action)
}

/// Whether all of `needed` are in effect in the calling thread.
pub fn has(needed: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

fn in_effect<T>(
    before: CapabilitySets,
    effective: CapabilitySet,
    action: impl FnOnce() -> T,
) -> io::Result<T> {
    if effective == before.effective {
        return Ok(action());
    }
    set_capabilities(None, CapabilitySets { effective, ..before })?;
    let _restored = Restored(before);
    Ok(action())
}

/// Puts the previous set into effect when dropped.
struct Restored(CapabilitySets);

impl Drop for Restored {
    fn drop(&mut self) {
        // A thread may always put into effect what is permitted to it, and `action` cannot take
        // that away unless it gives up capabilities for good.
        let _ = set_capabilities(None, self.0);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::panic;

    use super::*;

    const SOME: CapabilitySet = CapabilitySet::NET_RAW.union(CapabilitySet::NET_ADMIN);

    #[test]
    fn capabilities_are_out_of_effect_during_the_action_only() {
        let before = capabilities(None).unwrap();
        let during = without(SOME, || capabilities(None).unwrap()).unwrap();
        assert_eq!(during.effective, before.effective.difference(SOME));
        assert_eq!(during.permitted, before.permitted);
        assert_eq!(capabilities(None).unwrap(), before);
    }

    #[test]
    fn permitted_capabilities_can_be_put_into_effect() {
        let before = capabilities(None).unwrap();
        let (outside, inside) =
            without(SOME, || (has(SOME), with(SOME, || has(SOME)).unwrap())).unwrap();
        let is_permitted = before.permitted.contains(SOME);
        assert_eq!((outside, inside), (false, is_permitted));
        assert_eq!(
            with(CapabilitySet::all(), || capabilities(None).unwrap().effective).unwrap(),
            before.permitted
        );
        assert_eq!(capabilities(None).unwrap(), before);
    }

    #[test]
    fn a_panic_restores_the_capabilities() {
        let before = capabilities(None).unwrap();
        let outcome = panic::catch_unwind(|| without(SOME, || panic!("inside")));
        assert!(outcome.is_err());
        assert_eq!(capabilities(None).unwrap(), before);
    }

    #[test]
    fn other_threads_keep_their_capabilities() {
        let before = capabilities(None).unwrap();
        let other = std::thread::spawn(|| {
            without(SOME, || {
                let main = rustix::process::getpid();
                capabilities(Some(main)).unwrap()
            })
            .unwrap()
        });
        // The process's ID is that of its main thread, which no test changes.
        assert_eq!(other.join().unwrap().effective, before.effective);
    }
}
