//! Rings in heap memory, with the workers that applications have.

use std::time::Duration;

use wirecap::sim::{Fate, SimCapture, SimSettings};
use wirecap::{Capture, Chunk, Geometry, Mode, Timestamp, Worker};

use crate::Outcome;

/// M, the default.
pub(crate) const CHUNK_CELLS: u32 = 256;
/// R.
const CHUNKS: u32 = 16;
/// Slots of tx and completion rings: for all cells.
const TX_SLOTS: u32 = CHUNK_CELLS * CHUNKS;
/// Chunks of each ring in a round: less than T.
pub(crate) const BALANCED: u32 = 8;
/// The paper's T.
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
    /// How many packets have arrived.
    pub(crate) arrived: u64,
}

impl Bed {
    pub(crate) fn settings(rings: usize, workers: usize, mode: Mode) -> SimSettings {
        SimSettings {
            rings,
            workers,
            geometry: Geometry { chunk_cells: CHUNK_CELLS, chunks: CHUNKS, cell_bytes: 2048 },
            mode,
            // However slow callgrind is, no worker is.
            stuck_after: Duration::from_secs(3600),
            tx_slots: TX_SLOTS,
            ..SimSettings::default()
        }
    }

    /// A worker for each ring.
    pub(crate) fn new(rings: usize, mode: Mode) -> Outcome<Self> {
        let mut bed = Self::open(&Self::settings(rings, rings, mode))?;
        bed.workers = bed.capture.workers();
        Ok(bed)
    }

    /// Whose workers are still to be taken.
    pub(crate) fn open(settings: &SimSettings) -> Outcome<Self> {
        let kernels = SimCapture::new(settings);
        let capture = kernels.capture()?;
        Ok(Self { kernels, capture, workers: Vec::new(), arrived: 0 })
    }

    /// Lets so many chunks' worth of packets arrive on each of `rings`, on all of them by turns.
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

    /// Each worker's next chunks, so many.
    pub(crate) fn take(workers: &mut [Worker], chunks: u32, taken: &mut Vec<Chunk>) -> Outcome<()> {
        for worker in workers {
            for _ in 0..chunks {
                taken.push(worker.next_chunk()?.ok_or("the capture has ended")?);
            }
        }
        Ok(())
    }

    /// Checks that all that arrived was delivered, and `offloaded` chunks of it by buddies, and that all cells are where
    /// the kernel takes them. Gives the number of packets.
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
