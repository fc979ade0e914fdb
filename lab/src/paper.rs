//! The papers' experiments, repeated on models.
//!
//! WireCAP itself is the engine's real pool, rings and buddy groups under a virtual clock
//! ([`wirecap::sim::Simulation`]), once with the paper's pushing capture threads and once with
//! wirecap's pulling workers. Its rivals ([`rivals`]) are models of the paper's descriptions. All
//! have the paper's parameters; parameters that a paper omits are taken from another paper, and
//! listed in the experiment's settings. No parameter is fitted: if a published figure does not
//! follow from the published parameters, the comparison states this.
//!
//! The papers: Wu and DeMar, *WireCAP: a Novel Packet Capture Engine for Commodity NICs in
//! High-speed Networks*, IMC 2014; Fusco and Deri, *High Speed Network Traffic Analysis with
//! Commodity Multi-core Systems*, IMC 2010.

pub mod engines;
pub mod rivals;

mod bursts;
mod fusco_deri;
mod imbalance;
mod load;
mod parallel;
mod scalability;
mod sensitivity;
mod sharing;
mod table_one;
mod table_two;

pub use load::{Load, Trace};

use crate::experiment::{Experiment, Run};

/// All of them, in the papers' order.
pub fn experiments() -> Vec<Box<dyn Experiment>> {
    vec![
        Box::new(imbalance::FigureThree),
        Box::new(table_one::TableOne),
        Box::new(sensitivity::Sensitivity),
        Box::new(bursts::FigureEight),
        Box::new(bursts::FigureNine),
        Box::new(bursts::FigureTen),
        Box::new(imbalance::FiguresElevenAndTwelve),
        Box::new(imbalance::FigureThirteen),
        Box::new(scalability::FigureFourteen),
        Box::new(table_two::TableTwo),
        Box::new(sharing::PushAndPull),
        Box::new(fusco_deri::TablesTwoAndThree),
    ]
}

/// Number of other seeds in a full run of most experiments. A seed changes the trace, or the
/// moments at which the simulated threads run.
const OTHER_SEEDS: u64 = 2;

/// The seeds of a run: its own, and `others` following ones in a full run, one in a quick one.
fn seeds(run: &Run<'_>, others: u64) -> Vec<u64> {
    (0..=run.effort.choose(1, others)).map(|step| run.seed.wrapping_add(step)).collect()
}

/// The setting of `seeds`, as text.
fn seeds_setting(seeds: &[u64]) -> (String, String) {
    let text = match seeds {
        [] | [_] => seeds.first().map(u64::to_string).unwrap_or_default(),
        [first, .., last] => format!("{first} to {last}"),
    };
    ("seeds".to_owned(), text)
}

/// Numbers from the lowest to the highest, as text.
fn range(numbers: impl Iterator<Item = u64> + Clone) -> String {
    let [low, high] =
        [numbers.clone().min(), numbers.max()].map(Option::unwrap_or_default).map(wirecap::grouped);
    if low == high { high } else { format!("{low} to {high}") }
}

/// N: descriptors of a receive ring (WireCAP, section 2.2).
pub const RING: usize = 1024;
/// Cells of PF_RING's buffer (section 2.2).
pub const PF_RING_BUFFER: usize = 10_240;
/// A handler's rate with x = 300, in packets per second (section 2.2).
pub const HEAVY_HANDLER: f64 = 38_844.0;

/// The rate of that handler, as text.
fn heavy_handler() -> String {
    format!("{} p/s", wirecap::grouped(HEAVY_HANDLER as u64))
}

/// 10 Gbit/s of the smallest frames, in packets per second (section 4).
pub const LINE_RATE: f64 = 14.88e6;
/// The processors' clock, in Hz (section 2.2).
pub const CLOCK_HZ: f64 = 2.4e9;

/// Total cycles per packet of capturing with a copy in the kernel: WinPcap's for a frame of 64
/// bytes (Degioanni et al., *Profiling and Optimization of Software-Based Network-Analysis
/// Applications*, section 4.4). The WireCAP paper does not state PF_RING's.
pub const COPYING_CYCLES: f64 = 5680.0;
/// Nanoseconds per packet of PF_RING itself if its two stages have a processor each: the time of
/// the slower stage (Fusco and Deri, Table 2, high-end, one thread: 1,326,000 packets/s).
pub const COPYING_STAGE_NANOS: f64 = 1e9 / 1_326_000.0;
/// Cycles per packet of receiving without a copy, and of sending: 14.88 million packets/s at 900
/// MHz (Rizzo, *netmap*, USENIX ATC 2012). A handler's cost with x = 0.
pub const MAPPED_CYCLES: f64 = 900e6 / LINE_RATE;

/// The reason why a comparison of DNA and NETMAP with x = 0 is a bound.
const UNABLE_TO_LOSE: &str = "Follows from an input: with the 60 cycles a packet that netmap's authors published, the handler is \
                              faster than the line.";

/// A handler's cost per packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Handler {
    /// Nanoseconds per packet.
    pub nanos: f64,
}

impl Handler {
    /// x = 0: takes the packet and drops it.
    pub const IDLE: Self = Self { nanos: MAPPED_CYCLES / CLOCK_HZ * 1e9 };
    /// x = 300.
    pub const HEAVY: Self = Self { nanos: 1e9 / HEAVY_HANDLER };

    /// The same, and sends the packet on.
    #[must_use]
    pub fn forwarding(self) -> Self {
        Self { nanos: self.nanos + Self::IDLE.nanos }
    }
}

#[cfg(test)]
mod tests;
