//! Who sends to whom.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use wirecap_units::random::Random;

use super::five_tuple::FiveTuple;
use super::rss::{HashKey, Rss, STANDARD_QUEUES};

const PROTOCOL_UDP: u8 = 17;
/// Sources and destinations are in the networks reserved for benchmarks (RFC 2544).
const SOURCE_NETWORK: [u8; 2] = [198, 18];
const DESTINATION_NETWORK: [u8; 2] = [198, 19];
const SOURCE_PORT_MIN: u64 = 1024;
/// Ports of servers; their meaning does not matter here.
const SERVER_PORTS: [u16; 4] = [443, 80, 53, 4433];

/// The flows of a model: UDP over IPv4 between addresses reserved for benchmarks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flows {
    seed: u64,
    /// Whether flow n is on queue n modulo [`STANDARD_QUEUES`], instead of a random one.
    dealt: bool,
}

/// The hash that assigns flows to the standard trace's queues.
static STANDARD_RSS: LazyLock<Rss> = LazyLock::new(|| Rss::new(HashKey::Standard, STANDARD_QUEUES));

impl Flows {
    /// Random addresses and ports.
    pub(super) fn anywhere(seed: u64) -> Self {
        Self { seed, dealt: false }
    }

    /// Random addresses and ports, but flow n is on queue n modulo [`STANDARD_QUEUES`] with that
    /// number of queues and the standard key.
    pub(super) fn dealt(seed: u64) -> Self {
        Self { seed, dealt: true }
    }

    /// Addresses and ports of this flow.
    pub fn five_tuple(&self, flow: u32) -> FiveTuple {
        let mut random = Random::new(Random::new(self.seed ^ u64::from(flow) << 32).bits());
        let mut draws = std::iter::repeat_with(|| draw(&mut random));
        let fits = |tuple: &FiveTuple| {
            !self.dealt || STANDARD_RSS.queue_of(tuple) == flow % STANDARD_QUEUES
        };
        draws.find(fits).expect("draws without end")
    }

    /// Their queues with this distribution.
    pub fn queues<'a>(&self, rss: &'a Rss) -> FlowQueues<'a> {
        FlowQueues { flows: *self, rss, known: vec![None; KNOWN_FLOWS] }
    }
}

fn draw(random: &mut Random) -> FiveTuple {
    let mut address = |[first, second]: [u8; 2]| {
        let [third, fourth] = (random.between(1, 0xfffe) as u16).to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(first, second, third, fourth))
    };
    FiveTuple {
        protocol: PROTOCOL_UDP,
        source: address(SOURCE_NETWORK),
        destination: address(DESTINATION_NETWORK),
        source_port: random.between(SOURCE_PORT_MIN, u64::from(u16::MAX)) as u16,
        destination_port: SERVER_PORTS[random.below(SERVER_PORTS.len() as u64) as usize],
    }
}

/// Number of flows whose queues are cached.
const KNOWN_FLOWS: usize = 4096;

/// The queues of [`Flows`], with a cache.
#[derive(Clone, Debug)]
pub struct FlowQueues<'a> {
    flows: Flows,
    rss: &'a Rss,
    /// Flow and queue, at the index of the flow's last bits.
    known: Vec<Option<(u32, u32)>>,
}

impl FlowQueues<'_> {
    /// The queue of this flow.
    pub fn queue_of(&mut self, flow: u32) -> u32 {
        let known = &mut self.known[flow as usize % KNOWN_FLOWS];
        match *known {
            Some((same, queue)) if same == flow => queue,
            _ => {
                let queue = self.rss.queue_of(&self.flows.five_tuple(flow));
                *known = Some((flow, queue));
                queue
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn flows_differ_and_stay_the_same() {
        let flows = Flows::anywhere(7);
        let tuples: HashSet<FiveTuple> = (0..10_000).map(|flow| flows.five_tuple(flow)).collect();
        assert_eq!(tuples.len(), 10_000);
        assert!((0..10_000).all(|flow| tuples.contains(&flows.five_tuple(flow))));
    }

    #[test]
    fn dealt_flows_come_to_their_queues() {
        let rss = Rss::new(HashKey::Standard, STANDARD_QUEUES);
        let mut queues = Flows::dealt(1).queues(&rss);
        // More than are cached, and twice.
        for flow in (0..6_000).chain(0..6_000) {
            assert_eq!(queues.queue_of(flow), flow % STANDARD_QUEUES);
        }
    }
}
