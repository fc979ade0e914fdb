//! Repeatable random numbers.

/// Pseudorandom numbers that depend only on the seed: SplitMix64 (Steele, Lea and Flood, *Fast
/// Splittable Pseudorandom Number Generators*, OOPSLA 2014). Implemented here, because a seed must
/// give the same run in every version.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The high half of the product, which is as uniform as 64 bits allow (Lemire 2019).
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from `low` to `high`, inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in `turns` calls on average.
    pub fn once_in(&mut self, turns: u64) -> bool {
        self.below(turns) == 0
    }

    /// A number from 0 inclusive to 1 exclusive.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An exponentially distributed waiting time with mean `mean`.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Removes and returns a random element of `items`, if there is one.
    pub fn take<T>(&mut self, items: &mut Vec<T>) -> Option<T> {
        let count = items.len() as u64;
        (count > 0).then(|| items.swap_remove(self.below(count) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_in_every_version() {
        // The first numbers of the authors' reference implementation for seed 1234567.
        let mut random = Random::new(1_234_567);
        let expected =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.bits(), random.bits(), random.bits()], expected);
    }

    #[test]
    fn numbers_stay_in_their_range_and_reach_its_ends() {
        let mut random = Random::new(1);
        let drawn: Vec<u64> = (0..100).map(|_| random.between(3, 5)).collect();
        for number in 3..=5 {
            assert!(drawn.contains(&number));
        }
        assert!(drawn.iter().all(|number| (3..=5).contains(number)));
    }

    #[test]
    fn waiting_times_have_their_mean() {
        let mut random = Random::new(1);
        let sum: f64 = (0..1000).map(|_| random.exponential(3.0)).sum();
        assert!((sum / 1000.0 - 3.0).abs() < 0.3, "{sum}");
    }
}
