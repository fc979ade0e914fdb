//! Debug builds record the place of every cell, because the kernel silently skips a bad address and
//! fills a cell twice that was posted twice. Release builds record nothing, at no cost.

pub(crate) use imp::CellCheck;

#[cfg(debug_assertions)]
mod imp {
    // The standard types, also under loom: the data are protected by other locks, which loom
    // checks.
    use std::sync::atomic::{AtomicU8, Ordering};

    /// In a chunk, or returning from one.
    const OUT: u8 = 0;
    /// Free, and not posted.
    const IDLE: u8 = 1;
    /// On a fill ring, or filled.
    const POSTED: u8 = 2;
    /// On a tx ring, or being sent, or on a completion ring.
    const SENT: u8 = 3;

    /// The place of each cell of a pool. A pool may have several fill rings, each with a separate
    /// lock.
    #[derive(Debug)]
    pub(crate) struct CellCheck(Vec<AtomicU8>);

    impl CellCheck {
        pub(crate) const ENABLED: bool = true;

        /// All cells are free.
        pub(crate) fn new(cells: u32) -> Self {
            Self((0..cells).map(|_| AtomicU8::new(IDLE)).collect())
        }

        /// The cell was returned.
        pub(crate) fn come_back(&self, index: usize) {
            let place = self.0[index].swap(IDLE, Ordering::Relaxed);
            assert!(place == OUT, "cell {index} comes back twice");
        }

        /// The cell was posted.
        pub(crate) fn post(&self, index: usize) {
            let place = self.0[index].swap(POSTED, Ordering::Relaxed);
            assert!(place == IDLE, "cell {index} is posted and was not free");
        }

        /// Marks the cell as no longer posted. Returns whether it was.
        pub(crate) fn capture(&self, index: usize) -> bool {
            self.0[index]
                .compare_exchange(POSTED, OUT, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        }

        /// The cell was taken for a new packet.
        pub(crate) fn take(&self, index: usize) {
            let place = self.0[index].swap(OUT, Ordering::Relaxed);
            assert!(place == IDLE, "cell {index} is taken for a new packet and was not free");
        }

        /// The cell is about to be put on a tx ring.
        pub(crate) fn send(&self, index: usize) {
            let place = self.0[index].swap(SENT, Ordering::Relaxed);
            assert!(place == OUT, "cell {index} is sent and was not captured");
        }

        /// Marks the cell as no longer on a tx ring. Returns whether it was.
        pub(crate) fn complete(&self, index: usize) -> bool {
            self.0[index].compare_exchange(SENT, OUT, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        }
    }
}

#[cfg(not(debug_assertions))]
mod imp {
    /// What debug builds know.
    #[derive(Debug)]
    pub(crate) struct CellCheck;

    impl CellCheck {
        pub(crate) const ENABLED: bool = false;

        pub(crate) fn new(_cells: u32) -> Self {
            Self
        }

        pub(crate) fn come_back(&self, _index: usize) {}

        pub(crate) fn post(&self, _index: usize) {}

        pub(crate) fn capture(&self, _index: usize) -> bool {
            true
        }

        pub(crate) fn take(&self, _index: usize) {}

        pub(crate) fn send(&self, _index: usize) {}

        pub(crate) fn complete(&self, _index: usize) -> bool {
            true
        }
    }
}
