//! The standard trace: traffic with the properties that the WireCAP paper (section 2.2) states for
//! its trace.
//!
//! The paper states: 5 million packets in about 32 s, on six receive queues. Queue 0 gets about
//! 80,000 p/s from 10 s on ("to 35 s", which is beyond the trace's end: here to its end). Queue 3
//! gets about 20,000 p/s from 1 s to 32 s, in bursts: 2,724 packets in [3.86 s, 3.97 s]. The next
//! sentence of the paper compares them with the number of packets that a handler processes in 10
//! ms, and the figure's axis, in packets per 10 ms, ends at 3,000. So all of them arrived in 10 ms.
//! Here they arrive in the last 10 of these 110 ms, after 100 ms without packets, which agrees with
//! both readings.
//!
//! The paper does not state the following; the model uses:
//!
//! - All other traffic: the same rate for every queue and period that the paper does not describe
//!   (18,849 p/s), so that there are 5,000,000 packets.
//! - The bursts of the 20,000 p/s: nine of ten packets are in bursts of the described rate, with
//!   256 packets (a TCP window of some hundred kilobytes) to 2,724 (the described burst; the figure
//!   shows none that is much longer), heavy-tailed with the usual exponent 1.2. Bursts of one queue
//!   do not overlap. The drop rates of small rings depend on this choice. It was not fitted to the
//!   paper's Table 1.
//! - Queue 0's 80,000 p/s: three quarters belong to one flow without bursts, the others to some
//!   more such flows. Because of one large flow, the imbalance is the same with any number of
//!   queues, as the paper states.
//! - Lengths: four acknowledgements for five full frames and one medium frame.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::iter::Peekable;
use std::time::Duration;

use crate::Sizes;
use wirecap_units::random::Random;

use super::chance::{BoundedPareto, Scattered};
use super::flows::Flows;
use super::rss::STANDARD_QUEUES;
use super::{Arrival, Model};

/// Packets of the standard trace.
pub const STANDARD_PACKETS: u64 = 5_000_000;
/// How long it lasts.
pub const STANDARD_DURATION: Duration = Duration::from_secs(32);
/// The queue of long-term imbalance: 80,000 p/s from 10 s on.
pub const TOLD_HOT_QUEUE: u32 = 0;
/// The queue of short-term imbalance: 20,000 p/s in bursts from 1 s on.
pub const TOLD_BURSTY_QUEUE: u32 = 3;
/// Packets of the burst that the paper describes.
pub const PUBLISHED_BURST_PACKETS: u32 = 2_724;

const END_NS: u64 = STANDARD_DURATION.as_nanos() as u64;
const SECOND_NS: u64 = 1_000_000_000;
const HOT_FROM_NS: u64 = 10 * SECOND_NS;
const HOT_RATE: u64 = 80_000;
const BURSTY_FROM_NS: u64 = SECOND_NS;
const BURSTY_RATE: u64 = 20_000;
const PUBLISHED_NS: (u64, u64) = (3_860_000_000, 3_970_000_000);
const PUBLISHED_BURST_NS: u64 = 10_000_000;

/// Exponent of the lengths of bursts.
const BURST_EXPONENT: f64 = 1.2;

/// The parameters of bursts that the paper does not give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BurstMix {
    /// Packets of the shortest burst; at least 1 and less than [`PUBLISHED_BURST_PACKETS`], the
    /// longest.
    pub shortest: u32,
    /// The share of the packets in bursts, in percent.
    pub share_percent: u64,
}

impl BurstMix {
    /// The parameters of the standard trace.
    pub const STANDARD: Self = Self { shortest: 256, share_percent: 90 };

    fn packets(self) -> BoundedPareto {
        BoundedPareto::new(self.shortest, PUBLISHED_BURST_PACKETS, BURST_EXPONENT)
    }
}
/// One packet in this many of the queue does not belong to the hottest flow.
const HOT_REST_ONE_IN: u64 = 4;
/// Flows of each kind on a queue. Flow n is on queue n modulo the number of queues.
const LONE_FLOWS: u32 = 1024;
const BURST_FLOWS: u32 = 64;
const HOT_FLOWS: u32 = 8;

pub(super) fn sizes() -> Sizes {
    Sizes::mix(&[(60, 4), (590, 1), (1514, 5)])
}

pub(super) fn flows(seed: u64) -> Flows {
    Flows::dealt(seed)
}

/// Times in ascending order, each with its flow.
type Part = Peekable<Box<dyn Iterator<Item = (u64, u32)> + Send>>;

/// The arrivals of the standard trace.
pub(super) struct Trace {
    parts: Vec<Part>,
    /// The next time of each part, the earliest on top.
    upcoming: BinaryHeap<Reverse<(u64, usize)>>,
    sizes: Sizes,
    random: Random,
}

impl Trace {
    pub(super) fn new(model: &Model, mix: BurstMix) -> Self {
        let mut composer = Composer { random: Random::new(model.seed), parts: Vec::new(), mix };
        composer.compose();
        let mut parts = composer.parts;
        let first = |(index, part): (usize, &mut Part)| Some(Reverse((part.peek()?.0, index)));
        let upcoming = parts.iter_mut().enumerate().filter_map(first).collect();
        Self { parts, upcoming, sizes: model.sizes.clone(), random: composer.random }
    }
}

impl Iterator for Trace {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let Reverse((time_ns, index)) = self.upcoming.pop()?;
        let part = &mut self.parts[index];
        let (_, flow) = part.next().expect("its time was seen");
        if let Some((time_ns, _)) = part.peek() {
            self.upcoming.push(Reverse((*time_ns, index)));
        }
        let frame_bytes = self.sizes.frame_bytes(self.random.bits() >> 1);
        Some(Arrival { time_ns, flow, frame_bytes })
    }
}

/// Puts the trace together.
struct Composer {
    random: Random,
    parts: Vec<Part>,
    mix: BurstMix,
}

impl Composer {
    fn compose(&mut self) {
        let hot = packets(HOT_RATE, END_NS - HOT_FROM_NS);
        let bursty = packets(BURSTY_RATE, END_NS - BURSTY_FROM_NS);

        // Traffic that the paper does not describe: queue 0 and queue 3 before these times, and the
        // other queues.
        let untold_ns = HOT_FROM_NS + BURSTY_FROM_NS + (u64::from(STANDARD_QUEUES) - 2) * END_NS;
        let mut untold = Untold { packets: STANDARD_PACKETS - hot - bursty, ns: untold_ns };

        for queue in 0..STANDARD_QUEUES {
            match queue {
                TOLD_HOT_QUEUE => {
                    self.bunched(queue, (0, HOT_FROM_NS), untold.packets_of(HOT_FROM_NS));
                    self.hot(queue, (HOT_FROM_NS, END_NS), hot);
                }
                TOLD_BURSTY_QUEUE => {
                    self.bunched(queue, (0, BURSTY_FROM_NS), untold.packets_of(BURSTY_FROM_NS));
                    self.bursty(queue);
                }
                _ => self.bunched(queue, (0, END_NS), untold.packets_of(END_NS)),
            }
        }
    }

    /// Queue 3 from 1 s on: the burst that the paper describes, and the traffic before and after
    /// it.
    fn bursty(&mut self, queue: u32) {
        let (silence_ns, burst_end_ns) = PUBLISHED_NS;
        let before = packets(BURSTY_RATE, silence_ns - BURSTY_FROM_NS);
        let total = packets(BURSTY_RATE, END_NS - BURSTY_FROM_NS);
        let published = Burst {
            start_ns: burst_end_ns - PUBLISHED_BURST_NS,
            packets: PUBLISHED_BURST_PACKETS,
            flow: self.flow_of(queue, Kind::Burst),
        };
        self.bunched(queue, (BURSTY_FROM_NS, silence_ns), before);
        self.add(published.packets());
        let after = total - before - u64::from(PUBLISHED_BURST_PACKETS);
        self.bunched(queue, (burst_end_ns, END_NS), after);
    }

    /// Few flows, one of which has most of the packets, at random times.
    fn hot(&mut self, queue: u32, span_ns: (u64, u64), packets: u64) {
        let rest = packets / HOT_REST_ONE_IN;
        let hottest = Flow { queue, kind: Kind::Hot, number: 0 }.number();
        let times = self.scattered(span_ns, packets - rest);
        self.add(times.map(move |time_ns| (time_ns, hottest)));
        self.scattered_over(queue, Kind::Hot, span_ns, rest);
    }

    /// Some single packets, and most in bursts.
    fn bunched(&mut self, queue: u32, span_ns: (u64, u64), packets: u64) {
        let alone = packets * (100 - self.mix.share_percent) / 100;
        self.scattered_over(queue, Kind::Lone, span_ns, alone);
        let bursts = self.bursts(queue, span_ns, packets - alone);
        self.add(bursts.into_iter().flat_map(Burst::packets));
    }

    /// Bursts with this total number of packets, which do not overlap.
    fn bursts(&mut self, queue: u32, (start_ns, end_ns): (u64, u64), packets: u64) -> Vec<Burst> {
        let burst_packets = self.mix.packets();
        let mut sizes = Vec::new();
        let mut left = packets as u32;

        while left > 0 {
            let size = burst_packets.draw(&mut self.random).min(left);
            sizes.push(size);
            left -= size;
        }

        let busy_ns = sizes.iter().map(|size| burst_ns(*size)).sum::<u64>();
        let silence = self.scattered((start_ns, end_ns - busy_ns), sizes.len() as u64);
        let mut busy_before_ns = 0;

        let place = |(silence_ns, packets)| {
            let start_ns = silence_ns + busy_before_ns;
            busy_before_ns += burst_ns(packets);
            Burst { start_ns, packets, flow: self.flow_of(queue, Kind::Burst) }
        };
        silence.zip(sizes).map(place).collect()
    }

    /// Packets at random times, each of a random flow of this kind.
    fn scattered_over(&mut self, queue: u32, kind: Kind, span_ns: (u64, u64), packets: u64) {
        let times = self.scattered(span_ns, packets);
        let mut random = self.fork();
        self.add(times.map(move |time_ns| (time_ns, any_flow(&mut random, queue, kind))));
    }

    fn scattered(&mut self, span_ns: (u64, u64), count: u64) -> Scattered {
        Scattered::new(self.fork(), span_ns, count)
    }

    fn fork(&mut self) -> Random {
        Random::new(self.random.bits())
    }

    fn flow_of(&mut self, queue: u32, kind: Kind) -> u32 {
        any_flow(&mut self.random, queue, kind)
    }

    fn add(&mut self, part: impl Iterator<Item = (u64, u32)> + Send + 'static) {
        let part: Box<dyn Iterator<Item = (u64, u32)> + Send> = Box::new(part);
        self.parts.push(part.peekable());
    }
}

fn packets(per_second: u64, ns: u64) -> u64 {
    per_second * ns / SECOND_NS
}

/// The number of packets that the paper does not describe, and their total time on all queues.
struct Untold {
    packets: u64,
    ns: u64,
}

impl Untold {
    /// The share of this time. The shares add up to all packets.
    fn packets_of(&mut self, ns: u64) -> u64 {
        let share = (u128::from(self.packets) * u128::from(ns) / u128::from(self.ns)) as u64;
        self.packets -= share;
        self.ns -= ns;
        share
    }
}

/// Packets of one flow at equal intervals, those of the burst that the paper describes.
#[derive(Clone, Copy, Debug)]
struct Burst {
    start_ns: u64,
    packets: u32,
    flow: u32,
}

/// The duration of a burst of this many packets.
fn burst_ns(packets: u32) -> u64 {
    u64::from(packets) * PUBLISHED_BURST_NS / u64::from(PUBLISHED_BURST_PACKETS)
}

impl Burst {
    fn packets(self) -> impl Iterator<Item = (u64, u32)> + Send + 'static {
        (0..self.packets).map(move |packet| (self.start_ns + burst_ns(packet), self.flow))
    }
}

/// How a flow sends.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Lone,
    Burst,
    Hot,
}

/// A flow of a queue.
struct Flow {
    queue: u32,
    kind: Kind,
    /// Among those of its kind.
    number: u32,
}

impl Flow {
    /// Its number among all flows of the trace.
    fn number(&self) -> u32 {
        let of_queue = match self.kind {
            Kind::Hot => self.number,
            Kind::Burst => HOT_FLOWS + self.number,
            Kind::Lone => HOT_FLOWS + BURST_FLOWS + self.number,
        };
        of_queue * STANDARD_QUEUES + self.queue
    }
}

fn any_flow(random: &mut Random, queue: u32, kind: Kind) -> u32 {
    let count = match kind {
        Kind::Lone => LONE_FLOWS,
        Kind::Burst => BURST_FLOWS,
        Kind::Hot => HOT_FLOWS,
    };
    Flow { queue, kind, number: random.below(count.into()) as u32 }.number()
}
