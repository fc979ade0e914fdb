//! Whether a ring may be above T, in one word for all workers: workers of a balanced group need not
//! look at each other's rings, whose indices are in the caches of other processors.
//!
//! If every worker looked at all rings after every chunk, that would be W x W reads of other
//! processors' indices: for 256-packet chunks, 4 % of the instructions with one ring, 22 % with
//! eight. With this word the balanced case costs, per chunk, two loads of an unchanged word, one
//! comparison of the remaining backlog with the ring's limit, and a sixteenth of a look: 0.9 % of
//! the instructions of basic mode with 1, 2, 4 and 8 rings (`make instructions`).
//!
//! - A worker notes each ring that it finds above T: after each chunk it looks at its home rings,
//!   and before it waits at the rings of all its buddies.
//! - A look at all rings that finds none above T clears the notes made before the look began. Later
//!   notes remain (checked with loom).
//! - On every 16th request a worker looks at one ring of another worker, in turn, and notes it if
//!   it is above T. This covers the rings of a worker that is stuck with a chunk while no buddy
//!   waits.

use crate::sync::{AtomicU64, Ordering};

/// The state of the rings of one part of a group. While a ring is [noted](Self::note) as above T,
/// workers look for it, until a [`Look`] that began after the note finds none.
#[derive(Debug, Default)]
// In a separate cache line: it is read with every request, and rarely written.
#[repr(align(64))]
pub(super) struct Pressure {
    /// How often a ring was noted.
    noted: AtomicU64,
    /// How many notes there were when the latest look began that found no ring above T.
    settled: AtomicU64,
}

/// A look at all rings, from its begin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    noted: u64,
}

impl Pressure {
    /// Whether a ring may be above T.
    #[inline]
    pub(super) fn is_noted(&self) -> bool {
        self.noted.load(Ordering::Relaxed) != self.settled.load(Ordering::Relaxed)
    }

    /// A ring was seen above T.
    pub(super) fn note(&self) {
        // Release pairs with the acquire in `look`: a look that sees the note also sees the state
        // before it.
        self.noted.fetch_add(1, Ordering::Release);
    }

    /// A look at all rings begins.
    pub(super) fn look(&self) -> Look {
        Look { noted: self.noted.load(Ordering::Acquire) }
    }

    /// The look found no ring above T. It may have missed rings noted since it began.
    pub(super) fn settle(&self, look: Look) {
        #[cfg(sabotage)]
        if crate::sabotage::is("note-settled-by-an-earlier-look") {
            self.settled.store(self.noted.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.settled.fetch_max(look.noted, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod model {
    use std::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::sync::{AtomicU32, model};

    /// A ring's worker sees it above T and notes it, while two others look: whatever they find, the
    /// note stays until a look has seen the ring.
    #[test]
    fn no_note_is_lost() {
        model(|| {
            let pressure = Arc::new(Pressure::default());
            let backlog = Arc::new(AtomicU32::new(0));

            let worker = thread::spawn({
                let pressure = Arc::clone(&pressure);
                let backlog = Arc::clone(&backlog);
                move || {
                    backlog.store(1, Ordering::Relaxed);
                    pressure.note();
                }
            });
            let look_round = |pressure: &Pressure, backlog: &AtomicU32| {
                let look = pressure.look();
                if backlog.load(Ordering::Relaxed) == 0 {
                    pressure.settle(look);
                }
            };

            let other = thread::spawn({
                let pressure = Arc::clone(&pressure);
                let backlog = Arc::clone(&backlog);
                move || look_round(&pressure, &backlog)
            });
            look_round(&pressure, &backlog);
            worker.join().unwrap();
            other.join().unwrap();
            assert!(pressure.is_noted(), "a ring above T that is not noted");
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_note_stays_until_a_later_look_finds_nothing() {
        let pressure = Pressure::default();
        assert!(!pressure.is_noted());
        let earlier = pressure.look();
        pressure.note();
        assert!(pressure.is_noted());
        pressure.settle(earlier);
        assert!(pressure.is_noted(), "the look began before the note");
        let later = pressure.look();
        pressure.settle(later);
        assert!(!pressure.is_noted());
        pressure.settle(earlier);
        assert!(!pressure.is_noted(), "a look that ends late takes nothing back");
    }
}
