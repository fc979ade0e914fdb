//! A histogram of packets' waiting times, with eight bins per power of two.

use std::time::Duration;

const STEP_BITS: u32 = 3;
const STEPS: usize = 64 << STEP_BITS;

/// Number of packets by waiting time.
#[derive(Debug, Clone)]
pub(super) struct Delays(Box<[u64; STEPS]>);

impl Default for Delays {
    fn default() -> Self {
        Self(Box::new([0; STEPS]))
    }
}

impl Delays {
    pub(super) fn add(&mut self, nanos: u64) {
        self.0[step_of(nanos)] += 1;
    }

    /// The waiting time that `share` of the packets did not exceed, accurate to an eighth.
    pub(super) fn quantile(&self, share: f64) -> Duration {
        let mut left = (share * self.0.iter().sum::<u64>() as f64).ceil() as u64;
        if left == 0 {
            return Duration::ZERO;
        }
        let reaches = |count: &u64| {
            left = left.saturating_sub(*count);
            left == 0
        };
        self.0.iter().position(reaches).map_or(Duration::ZERO, end_of)
    }
}

fn step_of(nanos: u64) -> usize {
    let nanos = nanos.max(1 << STEP_BITS);
    let exponent = nanos.ilog2();
    let place = (nanos >> (exponent - STEP_BITS)) as usize - (1 << STEP_BITS);
    ((exponent as usize) << STEP_BITS) + place
}

fn end_of(step: usize) -> Duration {
    let exponent = step >> STEP_BITS;
    let place = step as u64 & ((1 << STEP_BITS) - 1);
    let end =
        (((1 << STEP_BITS) + place + 1) as f64) * 2_f64.powi(exponent as i32 - STEP_BITS as i32);
    Duration::from_nanos(end as u64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_right_to_an_eighth() {
        const MOST: u32 = if cfg!(miri) { 1000 } else { 100_000 };
        let mut delays = Delays::default();
        (1..=MOST).for_each(|micros| delays.add(u64::from(micros) * 1000));
        for share in [0.01, 0.5, 0.99, 1.0] {
            let micros = share * f64::from(MOST);
            let found = delays.quantile(share).as_secs_f64() * 1e6;
            assert!((micros..=1.125 * micros).contains(&found), "{found} us at {share}");
        }
        assert_eq!(Delays::default().quantile(0.99), Duration::ZERO);
    }
}
