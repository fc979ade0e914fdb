//! A simulated slow application, as in the paper: a filter is applied x times to each packet. With
//! `--cost` it waits instead of computing, so two cores can simulate many slow ones.

use std::time::{Duration, Instant};

use clap::Args;
use wirecap::Chunk;
use wirecap::filter::{Context, Filter, Interpreter};
use wirecap::savefile::LinkType;
use wirecap_send::SlowCore;

use crate::shared::failure::Failure;

/// The maximum wait per packet.
const COST_NS_MAX: u64 = 1_000_000_000;

/// The cost of the simulated application.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Simulated slow application")]
pub(crate) struct AppCostOptions {
    /// Apply the filter this many times per packet
    #[arg(short = 'x', long, value_name = "TIMES", default_value_t = 0)]
    times: u32,

    /// Wait this long per packet, instead of computing; at most one second
    ///
    /// Waits once per chunk. A wait that lasts too long shortens the next ones, so a worker
    /// processes 10^9 / NANOSECONDS packets per second with chunks of any size.
    #[arg(long, value_name = "NANOSECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=COST_NS_MAX))]
    cost: u64,
}

impl AppCostOptions {
    /// The time per packet, if it is known beforehand.
    pub(crate) fn cost(self) -> Option<Duration> {
        (self.cost > 0 && self.times == 0).then(|| Duration::from_nanos(self.cost))
    }

    /// Whether there is any work per packet.
    pub(crate) fn is_nothing(self) -> bool {
        self.times == 0 && self.cost == 0
    }
}

/// A simulated application.
#[derive(Debug)]
pub(crate) struct AppCost {
    options: AppCostOptions,
    interpreter: Interpreter,
}

impl AppCost {
    /// One that applies this filter.
    pub(crate) fn new(
        options: AppCostOptions,
        expression: &str,
        snap_len: u32,
    ) -> Result<Self, Failure> {
        let filter = Filter::compile(expression, LinkType::ETHERNET, snap_len)
            .map_err(|error| Failure::Failed(error.into()))?;
        let interpreter =
            Interpreter::new(&filter).map_err(|error| Failure::Failed(error.into()))?;
        Ok(Self { options, interpreter })
    }

    /// Processes the packets on `core`, which belongs to the thread, and counts those that match.
    pub(crate) fn process(&self, core: &mut SlowCore, chunk: &Chunk) -> u64 {
        let begin = Instant::now();
        let context = Context::default();
        let mut matched = 0;

        for packet in chunk {
            let mut verdict = 0;
            for _ in 0..self.options.times {
                // The optimiser must not see that the verdict is the same each time.
                let data = std::hint::black_box(packet.data());
                verdict = self.interpreter.matches(data, packet.wire_len(), &context);
            }
            matched += u64::from(verdict > 0);
        }

        if self.options.cost > 0 {
            core.work_since(begin, Duration::from_nanos(self.options.cost * chunk.len() as u64));
        }

        matched
    }
}
