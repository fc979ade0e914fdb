//! A capture of simulated rings in heap memory, with its workers.

use std::time::Duration;

use wirecap::sim::{Fate, SimCapture, SimSettings};
use wirecap::{Capture, Chunk, Geometry, Mode, Timestamp, Worker};

use crate::Outcome;

/// M: the default.
pub(crate) const CHUNK_CELLS: u32 = 256;
/// R.
const CHUNKS: u32 = 16;
/// Slots of the tx and completion rings: one for each cell.
const TX_SLOTS: u32 = CHUNK_CELLS * CHUNKS;
/// Chunks that arrive on each ring per round: fewer than T, so that none is offloaded.
pub(crate) const BALANCED: u32 = 8;
/// T of the WireCAP paper.
pub(crate) const ADVANCED: Mode = Mode::Advanced(0.6);

/// UDP over IPv4 in 60 bytes.
const FRAME: [u8; 60] = {
    let mut frame = [0; 60];
    (frame[0], frame[6], frame[12]) = (2, 2, 8);
    (frame[14], frame[17], frame[22], frame[23]) = (0x45, 46, 64, 17);
    frame
};

pub(crate) struct Bed {
    pub(crate) kernels: SimCapture,
    pub(crate) capture: Capture,
    pub(crate) workers: Vec<Worker>,
    /// Number of packets that have arrived.
    pub(crate) arrived: u64,
}

impl Bed {
    pub(crate) fn settings(rings: usize, workers: usize, mode: Mode) -> SimSettings {
        SimSettings {
            rings,
            workers,
            geometry: Geometry { chunk_cells: CHUNK_CELLS, chunks: CHUNKS, cell_bytes: 2048 },
            mode,
            // callgrind is slow; the workers must not be treated as stalled.
            stuck_after: Duration::from_secs(3600),
            tx_slots: TX_SLOTS,
            ..SimSettings::default()
        }
    }

    /// A capture with one worker per ring.
    pub(crate) fn new(rings: usize, mode: Mode) -> Outcome<Self> {
        let mut bed = Self::open(&Self::settings(rings, rings, mode))?;
        bed.workers = bed.capture.workers();
        Ok(bed)
    }

    /// Opens the capture, but does not take its workers.
    pub(crate) fn open(settings: &SimSettings) -> Outcome<Self> {
        let kernels = SimCapture::new(settings);
        let capture = kernels.capture()?;
        Ok(Self { kernels, capture, workers: Vec::new(), arrived: 0 })
    }

    /// Delivers `chunks` chunks of packets to each of `rings`, one packet per ring in turn.
    pub(crate) fn arrive(&mut self, rings: impl Iterator<Item = usize> + Clone, chunks: u32) {
        for _ in 0..chunks * CHUNK_CELLS {
            for ring in rings.clone() {
                self.arrived += 1;
                let time = Timestamp::from_unix_nanos(self.arrived * 100);
                assert_eq!(self.kernels.kernel(ring).receive(&FRAME, time), Fate::Received);
            }
        }
    }

    pub(crate) fn rings(&self) -> usize {
        self.capture.rings().len()
    }

    /// Takes the next `chunks` chunks of each worker.
    pub(crate) fn take(workers: &mut [Worker], chunks: u32, taken: &mut Vec<Chunk>) -> Outcome<()> {
        for worker in workers {
            for _ in 0..chunks {
                taken.push(worker.next_chunk()?.ok_or("the capture has ended")?);
            }
        }
        Ok(())
    }

    /// Checks that every packet was delivered, that buddies took `offloaded` chunks, and that the
    /// kernel has all cells again. Returns the number of packets.
    pub(crate) fn balance(self, offloaded: u64) -> Outcome<u64> {
        let delivered = self.kernels.ledger(Duration::ZERO);
        assert_eq!(delivered.total.delivered, self.arrived, "{delivered}");
        assert!(delivered.is_lossless(), "{delivered}");
        assert_eq!(delivered.total.offloaded_chunks, offloaded, "{delivered}");
        for ring in 0..self.rings() {
            let kernel = self.kernels.kernel(ring);
            assert_eq!(kernel.free_cells(), (CHUNKS * CHUNK_CELLS) as usize, "cells are missing");
            assert_eq!(kernel.violations(), []);
        }
        Ok(self.arrived)
    }
}
