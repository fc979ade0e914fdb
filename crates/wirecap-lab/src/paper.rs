//! The papers' experiments once more, on models.
//!
//! WireCAP itself is the engine's real pool, rings and buddy groups under a virtual clock
//! ([`wirecap::sim::Simulation`]), once with the paper's pushing capture threads and once with wirecap's
//! pulling workers. Its rivals ([`rivals`]) are models of what the paper says of them. All have the
//! paper's parameters; what a paper does not say is taken from another that does, and named in the
//! experiment's settings. Nothing is tuned to fit: where a printed figure does not follow from the
//! printed parameters, the comparison says so.
//!
//! The papers: Wu and DeMar, *WireCAP: a Novel Packet Capture Engine for Commodity NICs in High-speed
//! Networks*, IMC 2014; Fusco and Deri, *High Speed Network Traffic Analysis with Commodity Multi-core
//! Systems*, IMC 2010.

pub mod engines;
pub mod rivals;

mod bursts;
mod fusco_deri;
mod imbalance;
mod load;
mod parallel;
mod scalability;
mod sharing;
mod table_one;

pub use load::{Load, Trace};

use crate::experiment::Experiment;

/// All of them, in the papers' order.
pub fn experiments() -> Vec<Box<dyn Experiment>> {
    vec![
        Box::new(imbalance::FigureThree),
        Box::new(table_one::TableOne),
        Box::new(bursts::FigureEight),
        Box::new(bursts::FigureNine),
        Box::new(bursts::FigureTen),
        Box::new(imbalance::FiguresElevenAndTwelve),
        Box::new(imbalance::FigureThirteen),
        Box::new(scalability::FigureFourteen),
        Box::new(sharing::PushAndPull),
        Box::new(fusco_deri::TablesTwoAndThree),
    ]
}

/// N: descriptors of a receive ring (WireCAP, section 2.2).
pub const RING: usize = 1024;
/// Cells of PF_RING's buffer (section 2.2).
pub const PF_RING_BUFFER: usize = 10_240;
/// What a handler processes with x = 300, in packets per second (section 2.2).
pub const HEAVY_HANDLER: f64 = 38_844.0;

/// The rate of that handler, as text.
fn heavy_handler() -> String {
    format!("{} p/s", wirecap::grouped(HEAVY_HANDLER as u64))
}

/// 10 Gbit/s of the smallest frames, in packets per second (section 4).
pub const LINE_RATE: f64 = 14.88e6;
/// The processors' clock, in Hz (section 2.2).
pub const CLOCK_HZ: f64 = 2.4e9;

/// Cycles per packet of capturing by a copy in the kernel, all of it: what WinPcap takes for a frame of 64
/// bytes (Degioanni et al., *Profiling and Optimization of Software-Based Network-Analysis Applications*,
/// section 4.4). The WireCAP paper does not say what PF_RING takes.
pub const COPYING_CYCLES: f64 = 5680.0;
/// Nanoseconds per packet of PF_RING itself where its two stages have a processor each: what the slower
/// one takes (Fusco and Deri, Table 2, high-end, one thread: 1,326,000 packets/s).
pub const COPYING_STAGE_NANOS: f64 = 1e9 / 1_326_000.0;
/// Cycles per packet of receiving without a copy, and of sending: 14.88 million packets/s at 900 MHz
/// (Rizzo, *netmap*, USENIX ATC 2012). What a handler takes with x = 0.
pub const MAPPED_CYCLES: f64 = 900e6 / LINE_RATE;

/// What a packet costs its handler.
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
