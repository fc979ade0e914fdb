//! The worker's side: the times of getting a chunk, of a loop over its packets, and of recycling
//! it.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use wirecap::{CaptureError, Chunk, Worker};

use super::Figures;

/// Chunks with fewer packets are not timed, because reading the clock would affect the result.
const TIMED_PACKETS_MIN: usize = 128;
const PATIENCE: Duration = Duration::from_millis(100);

/// Nanoseconds per packet of each timed chunk.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// Packets of all chunks.
    pub(super) packets: u64,
    /// Getting a chunk that was available.
    pub(super) hand_over: Figures,
    /// A loop over its packets that touches each one's header.
    pub(super) look: Figures,
    /// Dropping it.
    pub(super) recycle: Figures,
}

impl Reading {
    /// Takes chunks until the capture has ended; times them while `timing` is set.
    pub(super) fn of(mut worker: Worker, timing: &AtomicBool) -> Result<Self, CaptureError> {
        let mut reading = Self::default();

        // A chunk for which the worker waited does not show the cost of handing over, and too
        // frequent requests disturb the sender: the next chunk is requested at once only if more
        // packets must be available.
        let mut more = false;

        while !worker.is_finished() {
            let asked = Instant::now();
            let chunk = if more {
                worker.try_next_chunk()?
            } else {
                worker.next_chunk_timeout(PATIENCE)?
            };
            let was_there = std::mem::replace(&mut more, chunk.is_some());
            let Some(chunk) = chunk else { continue };
            let hand_over = was_there.then(|| asked.elapsed());

            more = chunk.len() >= TIMED_PACKETS_MIN;
            reading.take(chunk, hand_over, timing.load(Relaxed));
        }
        Ok(reading)
    }

    /// Takes all available chunks while `wanted` returns true.
    pub(super) fn drain(
        worker: &mut Worker,
        wanted: impl Fn(&Chunk) -> bool,
    ) -> Result<Self, CaptureError> {
        let mut reading = Self::default();
        loop {
            let asked = Instant::now();
            let Some(chunk) = worker.try_next_chunk()?.filter(&wanted) else { return Ok(reading) };
            reading.take(chunk, Some(asked.elapsed()), true);
        }
    }

    fn take(&mut self, chunk: Chunk, hand_over: Option<Duration>, timed: bool) {
        let packets = chunk.len();
        self.packets += packets as u64;

        if !timed || packets < TIMED_PACKETS_MIN {
            return;
        }

        let per_packet = |time: Duration| time.as_nanos() as f64 / packets as f64;
        let begin = Instant::now();
        black_box(ipv4_packets(&chunk));

        let looked = Instant::now();
        drop(chunk);

        let recycled = looked.elapsed();
        hand_over.into_iter().for_each(|time| self.hand_over.push(per_packet(time)));
        self.look.push(per_packet(looked - begin));
        self.recycle.push(per_packet(recycled));
    }
}

fn ipv4_packets(chunk: &Chunk) -> usize {
    let is_ipv4 =
        |data: &[u8]| data.first_chunk::<14>().is_some_and(|header| header[12..] == [8, 0]);
    chunk.iter().filter(|packet| is_ipv4(packet.data())).count()
}
