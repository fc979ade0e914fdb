//! The time of a cache line from the sender's CPU to the reader's. A virtual machine does not show
//! whether the two share a core, and this may change.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{CostError, fastest};

/// There and back.
const TRIPS: u32 = 2_000;

/// Nanoseconds of one way; `None` if there is only one CPU.
pub(super) fn time() -> Result<Option<f64>, CostError> {
    let cpus = allowed_cpus()?;
    let (Some(&first), Some(&last)) = (cpus.first(), cpus.last()) else { return Ok(None) };
    if first == last {
        return Ok(None);
    }
    fastest(|| Ok(trips(first, last)? / f64::from(2 * TRIPS))).map(Some)
}

/// Nanoseconds of all trips between these CPUs.
fn trips(first: usize, last: usize) -> Result<f64, CostError> {
    let line = AtomicU32::new(0);
    let await_and_answer = |number: u32| {
        while line.load(Ordering::Acquire) != number {
            spin_loop();
        }
        line.store(number + 1, Ordering::Release);
    };

    thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let pinned = pin_to(last);
            // It answers even if it cannot be pinned, so the other side does not wait forever.
            (0..TRIPS).for_each(|trip| await_and_answer(2 * trip + 1));
            pinned
        });
        let asking = scope.spawn(|| {
            let pinned = pin_to(first);
            let begin = Instant::now();
            (0..TRIPS).for_each(|trip| await_and_answer(2 * trip));
            while line.load(Ordering::Acquire) != 2 * TRIPS {
                spin_loop();
            }
            pinned.map(|()| begin.elapsed().as_nanos() as f64)
        });
        answering.join().expect("answering does not panic")?;

        asking.join().expect("asking does not panic")
    })
}

fn pin_to(cpu: usize) -> Result<(), CostError> {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).map_err(|errno| CostError::Thread(errno.into()))
}

/// The CPUs that this process may use. The sender uses the first, readers use the last.
pub(super) fn allowed_cpus() -> Result<Vec<usize>, CostError> {
    let allowed = sched_getaffinity(None).map_err(|errno| CostError::Thread(errno.into()))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trip_comes_back() {
        assert!(time().unwrap().is_none_or(|ns| ns > 0.0));
    }
}
