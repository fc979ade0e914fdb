//! A simulated core of selectable speed, which waits instead of computing, so a few processors can
//! simulate many slow ones.

use std::thread;
use std::time::{Duration, Instant};

/// A thread that waits instead of computing. A sleep ends late because of the kernel's timer slack,
/// or because another thread has the processor. The excess time of one piece of work is subtracted
/// from the next ones, because a core of that speed would have continued. So the capacity of the
/// thread does not depend on the size of the pieces.
#[derive(Debug, Clone, Default)]
pub struct SlowCore {
    /// The excess of the last wait.
    ahead: Duration,
}

impl SlowCore {
    /// Works for `time` in total.
    pub fn work(&mut self, time: Duration) {
        self.work_since(Instant::now(), time);
    }

    /// Works for `time`, which includes the time since `begin`.
    pub fn work_since(&mut self, begin: Instant, time: Duration) {
        let owed = time.saturating_sub(self.ahead);
        self.ahead = self.ahead.saturating_sub(time);
        let left = owed.saturating_sub(begin.elapsed());
        if !left.is_zero() {
            thread::sleep(left);
        }
        self.ahead += begin.elapsed().saturating_sub(owed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All pieces together take the required time, except for the excess of the last ones and for
    /// this loop.
    fn assert_takes(pieces: u32, each: Duration) {
        let mut core = SlowCore::default();
        let begin = Instant::now();
        (0..pieces).for_each(|_| core.work(each));
        let took = begin.elapsed();
        let owed = each * pieces;
        assert!(took >= owed, "{pieces} x {each:?} took {took:?}");
        assert!(
            took <= owed + core.ahead + owed / 100,
            "{pieces} x {each:?} took {took:?}, {core:?}"
        );
    }

    #[test]
    fn small_pieces_take_no_longer_than_large_ones() {
        assert_takes(10, Duration::from_millis(20));
        assert_takes(2000, Duration::from_micros(100));
        assert_takes(4000, Duration::from_micros(50));
    }

    #[test]
    fn computed_time_is_not_waited_again() {
        let mut core = SlowCore::default();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(3) {}
        core.work_since(begin, Duration::from_millis(1));
        assert!(core.ahead >= Duration::from_millis(2), "{core:?}");
        let begin = Instant::now();
        core.work(Duration::from_millis(2));
        assert!(begin.elapsed() < Duration::from_millis(2), "it was ahead by that");
    }

    #[test]
    fn a_core_without_work_gains_nothing() {
        let mut core = SlowCore::default();
        core.work(Duration::from_micros(100));
        let ahead = core.ahead;
        thread::sleep(Duration::from_millis(5));
        let begin = Instant::now();
        core.work(Duration::from_millis(5));
        assert!(begin.elapsed() + ahead >= Duration::from_millis(5), "{ahead:?}");
    }
}
