//! The patterns that are not based on a trace.

use wirecap_units::random::Random;

use super::chance::{BoundedPareto, exponential};
use super::{Arrival, Model};

const NANOS_PER_SECOND: f64 = 1e9;

/// A wire of 10 Gbit/s, on which a frame begins after the end of the previous one.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Wire {
    free_at_ns: u64,
}

/// Additional bytes of a frame on the wire: preamble, checksum and gap.
const WIRE_OVERHEAD_BYTES: u64 = 24;

impl Wire {
    pub(super) fn carry(&mut self, arrival: Arrival) -> Arrival {
        let time_ns = arrival.time_ns.max(self.free_at_ns);
        let bits = (u64::from(arrival.frame_bytes) + WIRE_OVERHEAD_BYTES) * 8;
        self.free_at_ns = time_ns + bits.div_ceil(10);
        Arrival { time_ns, ..arrival }
    }
}

/// The share of the hot flow, in percent.
pub(super) const HOT_SHARE: u64 = 80;

/// Packets of all flows with equal probability, or mostly of one, at random times.
#[derive(Debug)]
pub(super) struct Even {
    model: Model,
    random: Random,
    /// Flow 0's share in percent, if it differs from the others'.
    hot_share: Option<u64>,
    time_ns: f64,
}

impl Even {
    pub(super) fn new(model: &Model, hot_share: Option<u64>) -> Self {
        Self { model: model.clone(), random: Random::new(model.seed), hot_share, time_ns: 0.0 }
    }

    fn flow(&mut self) -> u32 {
        let flows = u64::from(self.model.flows);
        let flow = match self.hot_share {
            Some(share) if flows > 1 => match self.random.below(100) < share {
                true => 0,
                false => self.random.between(1, flows - 1),
            },
            _ => self.random.below(flows),
        };
        flow as u32
    }
}

impl Iterator for Even {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let mean_ns = NANOS_PER_SECOND / self.model.per_second as f64;
        self.time_ns += exponential(&mut self.random, mean_ns);
        let flow = self.flow();
        let frame_bytes = frame_bytes(&self.model, &mut self.random);
        Some(Arrival { time_ns: self.time_ns as u64, flow, frame_bytes })
    }
}

fn frame_bytes(model: &Model, random: &mut Random) -> u16 {
    model.sizes.frame_bytes(random.bits() >> 1)
}

/// Exponent of the number of packets of a flow: the usual value for flows on the Internet.
const FLOW_PACKETS: BoundedPareto = BoundedPareto::new(1, 1_000_000, 1.2);
/// Mean number of packets of a train.
const TRAIN_PACKETS: f64 = 8.0;
/// A flow of pace k is 2^k times as fast as the slowest, and there are half as many flows of each
/// pace as of the next lower one.
const PACES: u32 = 7;

/// A flow with remaining packets.
#[derive(Clone, Copy, Debug)]
struct Active {
    flow: u32,
    packets_left: u32,
    /// Number of trains relative to other flows.
    weight: u64,
}

/// Flows of heavy-tailed size and pace; the model's number of flows are active at a time.
#[derive(Debug)]
pub(super) struct HeavyTailed {
    model: Model,
    random: Random,
    active: Vec<Active>,
    weights: u64,
    next_flow: u32,
    time_ns: f64,
    /// The flow of the current train, and its remaining packets.
    train: (usize, u32),
}

impl HeavyTailed {
    pub(super) fn new(model: &Model) -> Self {
        let mut this = Self {
            model: model.clone(),
            random: Random::new(model.seed),
            active: Vec::with_capacity(model.flows as usize),
            weights: 0,
            next_flow: 0,
            time_ns: 0.0,
            train: (0, 0),
        };

        for _ in 0..model.flows {
            let active = this.begin_flow();
            this.active.push(active);
        }
        this
    }

    fn begin_flow(&mut self) -> Active {
        let pace = self.random.below((1 << PACES) - 1) + 1;
        // The number of leading zeros of a random number with this many bits: each is half as
        // likely as the previous one.
        let weight = 1 << (PACES - 1 - pace.ilog2());
        self.weights += weight;
        self.next_flow = self.next_flow.wrapping_add(1);
        let packets_left = FLOW_PACKETS.draw(&mut self.random);
        Active { flow: self.next_flow.wrapping_sub(1), packets_left, weight }
    }

    fn begin_train(&mut self) {
        let mut place = self.random.below(self.weights);
        let of_place = |active: &Active| match place.checked_sub(active.weight) {
            Some(rest) => {
                place = rest;
                false
            }
            None => true,
        };
        let index =
            self.active.iter().position(of_place).expect("a place below the sum of the weights");
        let wanted = 1 + exponential(&mut self.random, TRAIN_PACKETS - 0.5) as u32;
        let packets = wanted.min(self.active[index].packets_left);

        // After a shorter train, the next one is due earlier, so that the mean rate is kept.
        let mean_ns = NANOS_PER_SECOND * f64::from(packets) / self.model.per_second as f64;
        self.time_ns += exponential(&mut self.random, mean_ns);
        self.train = (index, packets);
    }
}

impl Iterator for HeavyTailed {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        if self.train.1 == 0 {
            self.begin_train();
        }

        self.train.1 -= 1;
        let index = self.train.0;
        self.active[index].packets_left -= 1;

        let Active { flow, packets_left, weight } = self.active[index];
        if packets_left == 0 {
            self.weights -= weight;
            self.active[index] = self.begin_flow();
        }

        let frame_bytes = frame_bytes(&self.model, &mut self.random);
        Some(Arrival { time_ns: self.time_ns as u64, flow, frame_bytes })
    }
}

/// Packets of a burst.
const BURST_PACKETS: BoundedPareto = BoundedPareto::new(64, 4096, 1.2);
/// The rate in a burst, as a multiple of the mean rate.
const BURST_SPEED: f64 = 10.0;

/// Bursts of one flow each, with pauses between them.
#[derive(Debug)]
pub(super) struct Bursts {
    model: Model,
    random: Random,
    time_ns: f64,
    flow: u32,
    packets_left: u32,
}

impl Bursts {
    pub(super) fn new(model: &Model) -> Self {
        let random = Random::new(model.seed);
        Self { model: model.clone(), random, time_ns: 0.0, flow: 0, packets_left: 0 }
    }

    /// The interval between packets in a burst.
    fn distance_ns(&self) -> f64 {
        NANOS_PER_SECOND / (self.model.per_second as f64 * BURST_SPEED)
    }
}

impl Iterator for Bursts {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        self.time_ns += self.distance_ns();
        if self.packets_left == 0 {
            self.packets_left = BURST_PACKETS.draw(&mut self.random);
            self.flow = self.random.below(u64::from(self.model.flows)) as u32;
            let on_ns = f64::from(self.packets_left) * self.distance_ns();
            self.time_ns += exponential(&mut self.random, on_ns * (BURST_SPEED - 1.0));
        }
        self.packets_left -= 1;
        let frame_bytes = frame_bytes(&self.model, &mut self.random);
        Some(Arrival { time_ns: self.time_ns as u64, flow: self.flow, frame_bytes })
    }
}
