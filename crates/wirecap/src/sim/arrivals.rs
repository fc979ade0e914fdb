//! The arrival times of packets at a ring.

use std::time::Duration;

use crate::sim::Random;

const NANOS_PER_SECOND: f64 = 1e9;

/// How packets arrive at one ring. Rates are in packets per second.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// No packets.
    Silence,
    /// At equal intervals.
    Constant {
        /// Packets per second.
        rate: f64,
    },
    /// Independently of each other.
    Poisson {
        /// Mean packets per second.
        rate: f64,
    },
    /// Bursts at equal intervals, without packets between them.
    Bursts {
        /// Packets in each burst.
        packets: u64,
        /// Packets per second within a burst.
        rate: f64,
        /// Start of the first burst.
        first: Duration,
        /// Time from the start of a burst to the start of the next; zero: a single burst.
        every: Duration,
    },
    /// A constant rate during on periods, which is never exceeded. The lengths of on and off
    /// periods are exponentially distributed.
    OnOff {
        /// Packets per second during on periods.
        rate: f64,
        /// Mean length of on periods.
        on: Duration,
        /// Mean length of off periods.
        off: Duration,
    },
    /// At the given times, in ascending order.
    Recorded(Vec<Duration>),
}

impl Arrivals {
    /// Splits a recording of (time, queue) into the arrivals of `rings` rings, queue by queue,
    /// modulo `rings`. The times must be ascending.
    pub fn recorded(packets: &[(Duration, usize)], rings: usize) -> Vec<Self> {
        let of_ring = |ring| {
            let times =
                packets.iter().filter(|(_, queue)| queue % rings == ring).map(|(time, _)| *time);
            Self::Recorded(times.collect())
        };
        (0..rings).map(of_ring).collect()
    }

    /// The arrival times before `end`, in nanoseconds from the start.
    pub(super) fn times(self, random: Random, end: Duration) -> Times {
        let mut times = Times {
            arrivals: self,
            random,
            end: end.as_nanos() as u64,
            count: 0,
            phase_start: 0.0,
            phase_end: 0.0,
            last: 0.0,
            upcoming: None,
        };
        times.advance();
        times
    }
}

/// An iterator over the times of [`Arrivals`].
#[derive(Debug)]
pub(super) struct Times {
    arrivals: Arrivals,
    random: Random,
    end: u64,
    /// Packets so far; with bursts or on periods, packets of the current one.
    count: u64,
    /// The current burst or on period.
    phase_start: f64,
    phase_end: f64,
    /// The last packet of [`Arrivals::OnOff`].
    last: f64,
    upcoming: Option<u64>,
}

impl Times {
    /// The arrival time of the next packet.
    pub(super) fn peek(&self) -> Option<u64> {
        self.upcoming
    }

    /// Advances to the following packet.
    pub(super) fn advance(&mut self) {
        let next = self.following().map(|time| time as u64);
        self.upcoming = next.filter(|time| *time < self.end);
    }

    fn following(&mut self) -> Option<f64> {
        let count = self.count;
        self.count += 1;

        match &self.arrivals {
            Arrivals::Silence => None,
            Arrivals::Constant { rate } => Some(distance(count, *rate)),
            Arrivals::Poisson { rate } => {
                self.phase_start += self.random.exponential(NANOS_PER_SECOND / rate);
                Some(self.phase_start)
            }
            Arrivals::Bursts { packets, rate, first, every } => {
                let burst = count / packets;
                let place = count % packets;
                if burst > 0 && every.is_zero() {
                    return None;
                }
                let start = nanos(*first) + burst as f64 * nanos(*every);
                Some(start + distance(place, *rate))
            }
            Arrivals::OnOff { rate, on, off } => {
                let on = nanos(*on);
                let off = nanos(*off);

                // The minimum interval also applies between two on periods, however short they are.
                let earliest = if count == 0 { 0.0 } else { self.last + distance(1, *rate) };
                if earliest >= self.end as f64 {
                    return None;
                }

                while earliest.max(self.phase_start) >= self.phase_end {
                    self.phase_start = self.phase_end + self.random.exponential(off);
                    self.phase_end = self.phase_start + self.random.exponential(on);
                }

                self.last = earliest.max(self.phase_start);
                Some(self.last)
            }
            Arrivals::Recorded(times) => times.get(count as usize).map(|time| nanos(*time)),
        }
    }
}

/// Time in which `packets` packets arrive, in nanoseconds.
fn distance(packets: u64, rate: f64) -> f64 {
    packets as f64 * NANOS_PER_SECOND / rate
}

fn nanos(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn times(arrivals: &Arrivals) -> Vec<u64> {
        let mut times = arrivals.clone().times(Random::new(1), SECOND);
        let mut all = Vec::new();
        while let Some(time) = times.peek() {
            all.push(time);
            times.advance();
        }
        all
    }

    #[test]
    fn a_constant_rate_does_not_drift() {
        let all = times(&Arrivals::Constant { rate: 3.0 });
        assert_eq!(all, [0, 333_333_333, 666_666_666]);
    }

    #[test]
    fn a_burst_is_followed_by_silence_or_by_the_next() {
        let bursts = |every| Arrivals::Bursts { packets: 2, rate: 1e9, first: SECOND / 4, every };
        assert_eq!(times(&bursts(Duration::ZERO)), [250_000_000, 250_000_001]);
        let repeated = times(&bursts(SECOND / 2));
        assert_eq!(repeated, [250_000_000, 250_000_001, 750_000_000, 750_000_001]);
    }

    #[test]
    fn random_arrivals_have_their_rate_and_ascend() {
        let on_off = Arrivals::OnOff { rate: 8000.0, on: SECOND / 500, off: SECOND / 500 };
        for arrivals in [Arrivals::Poisson { rate: 4000.0 }, on_off] {
            let all = times(&arrivals);
            assert!((3400..4600).contains(&all.len()), "{arrivals:?}: {}", all.len());
            assert!(all.is_sorted());
        }
    }

    #[test]
    fn short_times_on_are_no_faster_than_the_rate() {
        let short = Duration::from_micros(500);
        let all = times(&Arrivals::OnOff { rate: 1000.0, on: short, off: short });
        assert!((400..=1000).contains(&all.len()), "{}", all.len());
        assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= 999_999));
    }

    #[test]
    fn a_recording_is_split_by_queue() {
        let packets = [(SECOND / 8, 0), (SECOND / 4, 1), (SECOND / 2, 2)];
        let split = Arrivals::recorded(&packets, 2);
        assert_eq!(times(&split[0]), [125_000_000, 500_000_000]);
        assert_eq!(times(&split[1]), [250_000_000]);
    }
}
