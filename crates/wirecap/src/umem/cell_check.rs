//! Debug builds know for every cell where it is: the kernel skips a bad address silently and delivers
//! one that was posted twice, so only we can notice. Release builds know nothing and pay nothing.

pub(crate) use imp::CellCheck;

#[cfg(debug_assertions)]
mod imp {
    // The standard ones also under loom: what they guard is guarded by locks that loom sees.
    use std::sync::atomic::{AtomicU8, Ordering};

    /// In a chunk, or on its way back.
    const OUT: u8 = 0;
    /// Free, and not posted.
    const IDLE: u8 = 1;
    /// On a fill ring, or filled since.
    const POSTED: u8 = 2;
    /// On a tx ring, or being sent, or on a completion ring.
    const SENT: u8 = 3;

    /// Where each cell of a pool is. A pool may have several fill rings, each with a lock of its own.
    #[derive(Debug)]
    pub(crate) struct CellCheck(Vec<AtomicU8>);

    impl CellCheck {
        pub(crate) const ENABLED: bool = true;

        /// All cells are free.
        pub(crate) fn new(cells: u32) -> Self {
            Self((0..cells).map(|_| AtomicU8::new(IDLE)).collect())
        }

        /// The cell was given back.
        pub(crate) fn come_back(&self, index: usize) {
            let place = self.0[index].swap(IDLE, Ordering::Relaxed);
            assert!(place == OUT, "cell {index} comes back twice");
        }

        /// The cell was posted.
        pub(crate) fn post(&self, index: usize) {
            let place = self.0[index].swap(POSTED, Ordering::Relaxed);
            assert!(place == IDLE, "cell {index} is posted and was not free");
        }

        /// Whether the cell was posted, which it is no longer.
        pub(crate) fn capture(&self, index: usize) -> bool {
            self.0[index].compare_exchange(POSTED, OUT, Ordering::Relaxed, Ordering::Relaxed).is_ok()
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

        /// Whether the cell was on a tx ring, which it is no longer.
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
