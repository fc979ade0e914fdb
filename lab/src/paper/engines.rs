//! The compared engines and their losses.

use std::fmt;
use std::time::Duration;

use wirecap::sim::{Mishap, Service, Sharing, SimSettings, Simulation, SimulationConfig};
use wirecap::{Geometry, Mode};

use super::rivals::{Fate, Release, TypeOne, TypeTwo};
use super::{CLOCK_HZ, COPYING_CYCLES, Handler, Load, PF_RING_BUFFER, RING};

/// A capture engine with its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EngineModel {
    /// PF_RING, whose copy takes this many nanoseconds.
    PfRing(f64),
    /// DNA.
    Dna,
    /// netmap, with a ring of this many descriptors.
    Netmap(usize),
    /// WireCAP.
    WireCap(WireCap),
}

/// WireCAP's settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WireCap {
    /// M.
    pub chunk_cells: u32,
    /// R.
    pub chunks: u32,
    /// Basic, or advanced with T.
    pub mode: Mode,
    /// How chunks move: the paper's capture threads push, wirecap's workers pull.
    pub sharing: Sharing,
}

/// The account of all packets.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Drops {
    /// The packets.
    pub fate: Fate,
    /// Packets processed by a worker other than their ring's own.
    pub offloaded: u64,
    /// Maximum time from a packet's arrival until its chunk was processed.
    pub longest_delay: Duration,
    /// The maximum number of packets that waited in one queue.
    pub max_backlog: u32,
}

impl Drops {
    /// The overall packet drop rate, in percent.
    pub fn rate(&self) -> f64 {
        self.of_packets(self.fate.capture_drops + self.fate.delivery_drops)
    }

    /// The packet capture drop rate, in percent.
    pub fn capture_rate(&self) -> f64 {
        self.of_packets(self.fate.capture_drops)
    }

    /// The packet delivery drop rate, in percent.
    pub fn delivery_rate(&self) -> f64 {
        self.of_packets(self.fate.delivery_drops)
    }

    /// The share of packets that were offloaded, in percent.
    pub fn offloaded_rate(&self) -> f64 {
        self.of_packets(self.offloaded)
    }

    fn of_packets(&self, packets: u64) -> f64 {
        100.0 * packets as f64 / self.fate.packets.max(1) as f64
    }
}

impl EngineModel {
    /// PF_RING with the cost of a copy used by the experiments.
    pub const PF_RING: Self = Self::PfRing(COPYING_CYCLES / CLOCK_HZ * 1e9);
    /// netmap with the paper's ring size.
    pub const NETMAP: Self = Self::Netmap(RING);

    /// WireCAP-B-(M,R).
    pub const fn basic(chunk_cells: u32, chunks: u32) -> Self {
        Self::WireCap(WireCap { chunk_cells, chunks, mode: Mode::Basic, sharing: Sharing::Pull })
    }

    /// WireCAP-A-(M,R,T) as in the paper: capture threads push chunks to others.
    pub const fn pushing(chunk_cells: u32, chunks: u32, threshold: f64) -> Self {
        let mode = Mode::Advanced(threshold);
        Self::WireCap(WireCap { chunk_cells, chunks, mode, sharing: Sharing::Push })
    }

    /// WireCAP-A-(M,R,T) as in wirecap: workers pull chunks from others above T.
    pub const fn pulling(chunk_cells: u32, chunks: u32, threshold: f64) -> Self {
        let mode = Mode::Advanced(threshold);
        Self::WireCap(WireCap { chunk_cells, chunks, mode, sharing: Sharing::Pull })
    }

    /// The account of the packets of each queue, if `handler` processes each queue's packets on a
    /// separate processor.
    pub fn receive(&self, loads: &[Load], handler: Handler, seed: u64) -> Drops {
        let handler_nanos = handler.nanos;
        let alone = |receive: &dyn Fn(&Load) -> Fate| {
            let fate = loads.iter().map(receive).fold(Fate::default(), sum);
            Drops { fate, ..Drops::default() }
        };

        let in_place = |ring, release| {
            alone(&|load| TypeTwo { ring, release, handler_nanos }.receive(load.times()))
        };

        match *self {
            Self::PfRing(copy_nanos) => alone(&|load| {
                let ring = RING;
                let buffer = PF_RING_BUFFER;
                TypeOne { ring, buffer, copy_nanos, handler_nanos }.receive(load.times())
            }),
            Self::Dna => in_place(RING, Release::EachPacket),
            Self::Netmap(ring) => in_place(ring, Release::EachSync),
            Self::WireCap(wirecap) => wirecap.receive(loads, handler, seed, Vec::new()),
        }
    }
}

fn sum(a: Fate, b: Fate) -> Fate {
    Fate {
        packets: a.packets + b.packets,
        capture_drops: a.capture_drops + b.capture_drops,
        delivery_drops: a.delivery_drops + b.delivery_drops,
    }
}

impl WireCap {
    /// The same with the engine's own code, and with `mishaps` of workers.
    ///
    /// # Panics
    ///
    /// If the engine violates a guarantee.
    pub fn receive(
        &self,
        loads: &[Load],
        handler: Handler,
        seed: u64,
        mishaps: Vec<Mishap>,
    ) -> Drops {
        let queues = loads.len();
        let settings = SimSettings {
            rings: queues,
            workers: queues,
            // Cells contain a packet's number, after its timestamp.
            geometry: Geometry {
                chunk_cells: self.chunk_cells,
                chunks: self.chunks,
                cell_bytes: 16,
            },
            mode: self.mode,
            descriptors: RING as u32,
            ..SimSettings::default()
        };

        let config = SimulationConfig {
            settings,
            sharing: self.sharing,
            arrivals: loads.iter().map(Load::arrivals).collect(),
            service: vec![
                Service { nanos_per_packet: handler.nanos, nanos_per_chunk: 0.0 };
                queues
            ],
            mishaps,
            duration: loads.iter().map(Load::end).max().unwrap_or_default(),
            seed,
            ..SimulationConfig::default()
        };
        let outcome = Simulation::new(config).run();
        assert!(outcome.broken_promises.is_empty(), "{}", outcome.broken_promises[0]);

        let total = &outcome.ledger.total;

        // The paper's threads may push chunks into the queue of a worker that is gone.
        let processed: u64 = outcome.workers.iter().map(|worker| worker.packets).sum();
        let capture_drops = total.dropped.total();
        Drops {
            fate: Fate {
                packets: total.offered,
                capture_drops,
                delivery_drops: (total.offered - capture_drops).saturating_sub(processed),
            },
            offloaded: outcome.workers.iter().map(|worker| worker.offloaded_packets).sum(),
            longest_delay: outcome.longest_delay,
            max_backlog: outcome.max_backlogs.into_iter().max().unwrap_or(0),
        }
    }
}

impl fmt::Display for EngineModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PfRing(_) => f.write_str("PF_RING"),
            Self::Dna => f.write_str("DNA"),
            Self::Netmap(_) => f.write_str("NETMAP"),
            Self::WireCap(wirecap) => wirecap.fmt(f),
        }
    }
}

impl fmt::Display for WireCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { chunk_cells, chunks, mode, sharing } = self;
        match (mode, sharing) {
            (Mode::Basic, _) => write!(f, "B-({chunk_cells},{chunks})"),
            (Mode::Advanced(threshold), sharing) => {
                let how = if *sharing == Sharing::Pull { ", pull" } else { "" };
                write!(f, "A-({chunk_cells},{chunks},{:.0}%){how}", threshold * 100.0)
            }
        }
    }
}
