//! The processor's time stamp counter, and its rate.

#![cfg_attr(target_arch = "x86_64", allow(unsafe_code))]

use std::time::Instant;

/// The values of counter and clock at one moment.
#[derive(Debug)]
pub(super) struct Calibration {
    began: Instant,
    ticks: Option<u64>,
}

impl Calibration {
    pub(super) fn begin() -> Self {
        Self { began: Instant::now(), ticks: ticks() }
    }

    /// Ticks per second since then; `None` if the processor has no such counter.
    pub(super) fn hertz(&self) -> Option<f64> {
        let ticks = ticks()?.checked_sub(self.ticks?)?;
        Some(ticks as f64 / self.began.elapsed().as_secs_f64())
    }
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> Option<u64> {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets user space use it.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_counter_counts() {
        let calibration = Calibration::begin();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(calibration.hertz().is_some_and(|hertz| hertz > 0.0));
    }
}
