//! Traffic models: times, flows and lengths of packets, from a seed.
//!
//! A [`Model`] produces a [`Stream`] of [`Arrival`]s: a time, a flow and a length each. The flow's
//! addresses and ports ([`Flows::five_tuple`]) determine its receive queue by [`Rss`], as on a NIC,
//! so few large flows or bursts of one flow load the queues unevenly, for a long or a short time
//! (WireCAP, section 2.2 and Figure 3). Simulations use the times; live senders make frames.
//!
//! ```
//! use wirecap_send::traffic::{HashKey, Model, Rss};
//!
//! let stream = Model::standard(1).stream();
//! let (flows, rss) = (stream.flows(), Rss::new(HashKey::Standard, 6));
//! let first_second = stream.take_while(|arrival| arrival.time_ns < 1_000_000_000);
//! let mut packets = [0; 6];
//! for arrival in first_second {
//!     packets[rss.queue_of(&flows.five_tuple(arrival.flow)) as usize] += 1;
//! }
//! println!("packets per queue: {packets:?}");
//! ```
//!
//! The same seed gives the same stream on every machine and in every version: random numbers are
//! from the project's own [`Random`](wirecap_units::random::Random) (the `rand` crates do not
//! guarantee this for their distributions), and logarithms and powers from the crate `libm`,
//! because the system's functions differ in the last bit.

mod chance;
mod five_tuple;
mod flows;
mod frames;
mod models;
mod rss;
mod standard;

use crate::Sizes;

pub use five_tuple::FiveTuple;
pub use flows::{FlowQueues, Flows};
pub use frames::Frames;
pub use rss::{HashKey, Rss, STANDARD_QUEUES};
pub use standard::{
    BurstMix, PUBLISHED_BURST_PACKETS, STANDARD_DURATION, STANDARD_PACKETS, TOLD_BURSTY_QUEUE,
    TOLD_HOT_QUEUE,
};

/// A packet that arrives at the NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Its arrival time, in nanoseconds from the start. Times never decrease.
    pub time_ns: u64,
    /// Number of its flow; [`Flows::five_tuple`] has its addresses and ports.
    pub flow: u32,
    /// Length of its frame in bytes, without Ethernet's checksum.
    pub frame_bytes: u16,
}

/// The pattern of flows and packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Pattern {
    /// Packets of all flows with equal probability at random times: the even load with which the
    /// others are compared.
    Even,
    /// As [`Even`](Self::Even), but four packets of five belong to one flow.
    HotFlow,
    /// Flows with heavy-tailed sizes and rates: many mice, few elephants, which start and end.
    /// Their packets arrive in short trains.
    HeavyTailed,
    /// Bursts of one flow each, of heavy-tailed length, at ten times the mean rate, with pauses
    /// between them.
    Bursts,
    /// The standard trace: traffic as described in the WireCAP paper (section 2.2). 5,000,000
    /// packets in 32 s, on six queues with the standard key. It has a fixed rate, fixed flows and a
    /// fixed number of packets.
    Standard,
}

/// A traffic model. Set the required fields, and take the others from [`Model::new`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Model {
    /// The pattern of flows and packets.
    pub pattern: Pattern,
    /// Same seed, same stream.
    pub seed: u64,
    /// Mean packets per second.
    pub per_second: u64,
    /// Number of flows; if flows start and end, the number of concurrent ones.
    pub flows: u32,
    /// Lengths of frames, selected at random.
    pub sizes: Sizes,
    /// Where the stream ends.
    pub packets: u64,
}

impl Model {
    /// This pattern at 100,000 packets per second, in 256 flows, with lengths of the simple
    /// Internet mix, unlimited.
    pub fn new(pattern: Pattern, seed: u64) -> Self {
        let sizes = if pattern == Pattern::Standard { standard::sizes() } else { Sizes::imix() };
        Self { pattern, seed, per_second: 100_000, flows: 256, sizes, packets: u64::MAX }
    }

    /// The standard trace. The lab's seed is 1.
    pub fn standard(seed: u64) -> Self {
        Self::new(Pattern::Standard, seed)
    }

    /// The standard trace with other bursts, to see what depends on them.
    pub fn standard_stream(seed: u64, mix: BurstMix) -> Stream {
        let model = Self::standard(seed);
        let arrivals = Box::new(standard::Trace::new(&model, mix));
        Stream {
            flows: standard::flows(seed),
            arrivals,
            left: model.packets,
            wire: models::Wire::default(),
        }
    }

    /// The stream of this model.
    ///
    /// # Panics
    ///
    /// If the number of flows or the rate is 0.
    pub fn stream(&self) -> Stream {
        assert!(
            self.flows > 0 && self.per_second > 0,
            "a model without flows or packets never sends"
        );
        let (flows, arrivals): (_, Box<dyn Iterator<Item = Arrival> + Send>) = match self.pattern {
            Pattern::Even => (Flows::anywhere(self.seed), Box::new(models::Even::new(self, None))),
            Pattern::HotFlow => (
                Flows::anywhere(self.seed),
                Box::new(models::Even::new(self, Some(models::HOT_SHARE))),
            ),
            Pattern::HeavyTailed => {
                (Flows::anywhere(self.seed), Box::new(models::HeavyTailed::new(self)))
            }
            Pattern::Bursts => (Flows::anywhere(self.seed), Box::new(models::Bursts::new(self))),
            Pattern::Standard => (
                standard::flows(self.seed),
                Box::new(standard::Trace::new(self, BurstMix::STANDARD)),
            ),
        };
        Stream { flows, arrivals, left: self.packets, wire: models::Wire::default() }
    }
}

/// The arrivals of a [`Model`], one after the other on a wire of 10 Gbit/s.
pub struct Stream {
    flows: Flows,
    arrivals: Box<dyn Iterator<Item = Arrival> + Send>,
    left: u64,
    wire: models::Wire,
}

impl Stream {
    /// Whose packets they are.
    pub fn flows(&self) -> Flows {
        self.flows
    }
}

impl Iterator for Stream {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        self.left = self.left.checked_sub(1)?;
        let arrival = self.arrivals.next()?;
        Some(self.wire.carry(arrival))
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("flows", &self.flows)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;
    const PATTERNS: [Pattern; 5] =
        [Pattern::Even, Pattern::HotFlow, Pattern::HeavyTailed, Pattern::Bursts, Pattern::Standard];

    fn arrivals(pattern: Pattern, packets: u64) -> Vec<Arrival> {
        Model { packets, ..Model::new(pattern, 1) }.stream().collect()
    }

    /// FNV-1a over all fields.
    fn digest(stream: impl IntoIterator<Item = Arrival>) -> u64 {
        let bytes = stream.into_iter().flat_map(|arrival| {
            let time = arrival.time_ns.to_le_bytes();
            let flow = arrival.flow.to_le_bytes();
            time.into_iter().chain(flow).chain(arrival.frame_bytes.to_le_bytes())
        });
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    #[test]
    fn a_seed_gives_the_same_stream_in_every_version() {
        let digests = PATTERNS.map(|pattern| digest(arrivals(pattern, 100_000)));
        let expected = [
            0xe2c3_5290_2096_f53c,
            0xaed9_27f6_7cde_c120,
            0xd95f_975c_414f_cc67,
            0xe11c_86d0_1d95_1db9,
            0x0e5c_dc51_d16b_3e53,
        ];
        assert_eq!(digests, expected, "{digests:#x?}");
    }

    #[test]
    fn another_seed_means_another_stream() {
        for pattern in PATTERNS {
            let of_seed =
                |seed| digest(Model { packets: 1000, ..Model::new(pattern, seed) }.stream());
            assert_ne!(of_seed(1), of_seed(2), "{pattern:?}");
        }
    }

    #[test]
    fn times_ascend_as_fast_as_a_wire_can_carry_the_frames() {
        for pattern in PATTERNS {
            for pair in arrivals(pattern, 50_000).windows(2) {
                let wire_ns = (u64::from(pair[0].frame_bytes) + 24) * 8 / 10;
                assert!(pair[1].time_ns - pair[0].time_ns >= wire_ns, "{pattern:?}: {pair:?}");
            }
        }
    }

    #[test]
    fn a_model_keeps_its_mean_rate() {
        for pattern in [Pattern::Even, Pattern::HotFlow, Pattern::HeavyTailed, Pattern::Bursts] {
            let last = arrivals(pattern, 400_000).last().unwrap().time_ns as f64 / 1e9;
            assert!((3.4..4.6).contains(&last), "{pattern:?}: {last} s");
        }
    }

    #[test]
    fn frames_have_the_requested_lengths() {
        let count = |bytes| {
            arrivals(Pattern::Even, 120_000)
                .iter()
                .filter(|arrival| arrival.frame_bytes == bytes)
                .count()
        };
        let counts = [count(60), count(590), count(1514)];
        assert_eq!(counts.iter().sum::<usize>(), 120_000);
        for (count, share) in counts.into_iter().zip([70_000, 40_000, 10_000]) {
            assert!(count.abs_diff(share) < 1000, "{counts:?}");
        }
    }

    fn packets_per_flow(arrivals: &[Arrival]) -> HashMap<u32, usize> {
        arrivals.iter().fold(HashMap::new(), |mut counts, arrival| {
            *counts.entry(arrival.flow).or_default() += 1;
            counts
        })
    }

    #[test]
    fn the_hot_flow_has_four_packets_of_five() {
        let counts = packets_per_flow(&arrivals(Pattern::HotFlow, 100_000));
        assert_eq!(counts.len(), 256);
        let hot = counts.values().max().unwrap();
        assert!((79_000..81_000).contains(hot), "{hot}");
    }

    #[test]
    fn most_flows_are_mice_and_elephants_have_most_packets() {
        let counts = packets_per_flow(&arrivals(Pattern::HeavyTailed, 1_000_000));
        let mut sizes: Vec<_> = counts.into_values().collect();
        sizes.sort_unstable();
        let (mice, elephants) = sizes.split_at(sizes.len() * 9 / 10);
        assert!(elephants.iter().sum::<usize>() > 2 * mice.iter().sum::<usize>());
    }

    #[test]
    fn a_burst_is_of_one_flow_and_silence_follows() {
        let all = arrivals(Pattern::Bursts, 100_000);
        let changes = all.windows(2).filter(|pair| pair[0].flow != pair[1].flow).count();
        assert!(changes < 2_000, "{changes}");
        let silences =
            all.windows(2).filter(|pair| pair[1].time_ns - pair[0].time_ns > 100_000).count();
        assert!(silences > changes / 2, "{silences} of {changes}");
    }

    /// The published properties of the trace, see `standard`.
    #[test]
    fn the_standard_trace_has_the_papers_features() {
        let stream = Model::standard(1).stream();
        let rss = Rss::new(HashKey::Standard, STANDARD_QUEUES);
        let mut queues = stream.flows().queues(&rss);
        let mut bins = vec![[0_u32; STANDARD_QUEUES as usize]; 3200];

        for arrival in stream {
            bins[(arrival.time_ns / 10_000_000) as usize]
                [queues.queue_of(arrival.flow) as usize] += 1;
        }

        let sum = |queue: u32, from: usize, to: usize| -> u32 {
            bins[from..to].iter().map(|bin| bin[queue as usize]).sum()
        };
        let total: u32 = (0..STANDARD_QUEUES).map(|queue| sum(queue, 0, 3200)).sum();
        assert_eq!(u64::from(total), STANDARD_PACKETS);

        for second in 10..32 {
            let rate = sum(TOLD_HOT_QUEUE, second * 100, second * 100 + 100);
            assert!((78_000..82_000).contains(&rate), "{rate} in second {second}");
        }

        assert_eq!(sum(TOLD_BURSTY_QUEUE, 100, 3200), 31 * 20_000);
        assert_eq!(sum(TOLD_BURSTY_QUEUE, 386, 397), PUBLISHED_BURST_PACKETS);

        let highest = bins.iter().map(|bin| bin[TOLD_BURSTY_QUEUE as usize]).max().unwrap();
        assert!((2_724..3_000).contains(&highest), "the figure's axis ends at 3,000: {highest}");
    }

    #[test]
    fn the_standard_traces_imbalance_does_not_depend_on_the_number_of_queues() {
        for (key, queues) in
            [(HashKey::Standard, 4), (HashKey::Symmetric, 6), (HashKey::Standard, 2)]
        {
            let rss = Rss::new(key, queues);
            let stream = Model::standard(1).stream();
            let mut flow_queues = stream.flows().queues(&rss);
            let mut packets = vec![0_u64; queues as usize];
            let late = stream.skip_while(|arrival| arrival.time_ns < 10 * SECOND_NS).take(500_000);
            late.for_each(|arrival| packets[flow_queues.queue_of(arrival.flow) as usize] += 1);
            let fullest = packets.iter().max().unwrap();
            assert!(fullest * u64::from(queues) > 500_000 * 5 / 4, "{packets:?}");
        }
    }
}
