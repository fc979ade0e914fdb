//! Distributions that are the same on every machine.

use wirecap_units::random::Random;

/// An exponentially distributed waiting time with mean `mean`.
pub(super) fn exponential(random: &mut Random, mean: f64) -> f64 {
    -mean * libm::log(1.0 - random.unit())
}

/// Pareto-distributed sizes from `low` to `high` with exponent `alpha`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoundedPareto {
    low: f64,
    high: f64,
    alpha: f64,
}

impl BoundedPareto {
    /// Requires `0 < low < high` and an `alpha` that is neither 0 nor 1.
    pub(super) const fn new(low: u32, high: u32, alpha: f64) -> Self {
        Self { low: low as f64, high: high as f64, alpha }
    }

    pub(super) fn draw(&self, random: &mut Random) -> u32 {
        // The inverse of the distribution function.
        let cut = libm::pow(self.low / self.high, self.alpha);
        let size = self.low * libm::pow(1.0 - random.unit() * (1.0 - cut), -1.0 / self.alpha);
        size.min(self.high) as u32
    }
}

/// This many uniformly distributed times between two times, in ascending order.
#[derive(Clone, Debug)]
pub(super) struct Scattered {
    random: Random,
    time_ns: f64,
    end_ns: f64,
    left: u64,
}

impl Scattered {
    pub(super) fn new(random: Random, (start_ns, end_ns): (u64, u64), count: u64) -> Self {
        Self { random, time_ns: start_ns as f64, end_ns: end_ns as f64, left: count }
    }
}

impl Iterator for Scattered {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.left == 0 {
            return None;
        }
        // The minimum of the remaining numbers, which are uniformly distributed in the remaining
        // time.
        let later = libm::pow(1.0 - self.random.unit(), 1.0 / self.left as f64);
        self.time_ns = self.end_ns - (self.end_ns - self.time_ns) * later;
        self.left -= 1;
        Some((self.time_ns as u64).min(self.end_ns as u64 - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_sizes_stay_in_bounds_and_become_rarer_by_their_exponent() {
        let pareto = BoundedPareto::new(10, 1_000_000, 1.2);
        let mut random = Random::new(1);
        let drawn: Vec<u32> = (0..100_000).map(|_| pareto.draw(&mut random)).collect();
        assert!(drawn.iter().all(|size| (10..=1_000_000).contains(size)));
        let share_from =
            |size| drawn.iter().filter(|drawn| **drawn >= size).count() as f64 / 100_000.0;
        for (size, share) in [(20, 0.4353), (80, 0.0825), (160, 0.0359)] {
            assert!((share_from(size) / share - 1.0).abs() < 0.05, "{size}: {}", share_from(size));
        }
    }

    #[test]
    fn scattered_times_ascend_and_are_spread_evenly() {
        let times: Vec<u64> =
            Scattered::new(Random::new(1), (1_000_000, 2_000_000), 10_000).collect();
        assert_eq!(times.len(), 10_000);
        assert!(times.is_sorted());
        assert!(times.iter().all(|time| (1_000_000..2_000_000).contains(time)));
        let early = times.iter().filter(|time| **time < 1_250_000).count();
        assert!((2_300..2_700).contains(&early), "{early}");
    }
}
