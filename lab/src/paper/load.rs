//! The packets that arrive at a queue.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use wirecap::sim::Arrivals;

use wirecap_send::traffic::{BurstMix, HashKey, Model, Rss, STANDARD_QUEUES, Stream};

/// The packets that arrive at one queue.
#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// This many packets at a constant rate, then none.
    Burst {
        /// Packets.
        packets: u64,
        /// Packets per second.
        rate: f64,
    },
    /// Packets at these ascending times, in nanoseconds from the start.
    Recorded(Arc<[u64]>),
}

impl Load {
    /// How many packets arrive.
    pub fn packets(&self) -> u64 {
        match self {
            Self::Burst { packets, .. } => *packets,
            Self::Recorded(times) => times.len() as u64,
        }
    }

    /// The arrival time of packet `index`, in nanoseconds from the start.
    fn time(&self, index: u64) -> u64 {
        match self {
            Self::Burst { rate, .. } => (index as f64 * 1e9 / rate) as u64,
            Self::Recorded(times) => times[index as usize],
        }
    }

    /// The arrival times, in nanoseconds from the start.
    pub fn times(&self) -> impl Iterator<Item = u64> {
        (0..self.packets()).map(|index| self.time(index))
    }

    /// When all have arrived.
    pub fn end(&self) -> Duration {
        let last = self.packets().checked_sub(1).map_or(0, |last| self.time(last));
        Duration::from_nanos(last + 1)
    }

    /// The same for the simulator.
    pub fn arrivals(&self) -> Arrivals {
        match self {
            Self::Burst { packets, rate } => Arrivals::Bursts {
                packets: *packets,
                rate: *rate,
                first: Duration::ZERO,
                every: Duration::ZERO,
            },
            Self::Recorded(times) => {
                Arrivals::Recorded(times.iter().map(|&time| Duration::from_nanos(time)).collect())
            }
        }
    }
}

/// The standard trace on a number of queues.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The packets that arrive at each queue.
    pub queues: Vec<Load>,
}

impl Trace {
    /// The standard trace of `seed`, distributed over `queues` queues by a NIC's hash.
    pub fn standard(seed: u64, queues: u32) -> Self {
        Self::standard_part(seed, queues, Duration::ZERO..Duration::MAX)
    }

    /// Its packets in this period, with times relative to its start.
    pub fn standard_part(seed: u64, queues: u32, part: Range<Duration>) -> Self {
        Self::distributed(Model::standard(seed).stream(), queues, part)
    }

    /// The trace of `seed` with other bursts, on its own number of queues.
    pub fn with_bursts(seed: u64, mix: BurstMix) -> Self {
        Self::distributed(
            Model::standard_stream(seed, mix),
            STANDARD_QUEUES,
            Duration::ZERO..Duration::MAX,
        )
    }

    fn distributed(stream: Stream, queues: u32, part: Range<Duration>) -> Self {
        let start = part.start.as_nanos() as u64;
        let end = part.end.as_nanos();
        let rss = Rss::new(HashKey::Standard, queues);
        let mut flow_queues = stream.flows().queues(&rss);
        let mut times = vec![Vec::new(); queues as usize];
        let part = stream
            .skip_while(|arrival| arrival.time_ns < start)
            .take_while(|arrival| u128::from(arrival.time_ns) < end);
        for arrival in part {
            times[flow_queues.queue_of(arrival.flow) as usize].push(arrival.time_ns - start);
        }
        Self { queues: times.into_iter().map(|times| Load::Recorded(times.into())).collect() }
    }

    /// Packets of all queues.
    pub fn packets(&self) -> u64 {
        self.queues.iter().map(Load::packets).sum()
    }
}
