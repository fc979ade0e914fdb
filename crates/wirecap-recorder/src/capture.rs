//! Recording a capture: from the ring to the outlet.
//!
//! Chunks for which the recording has no page stay in the pool until seven eighths of a ring's pool
//! are in chunks; then whole chunks are discarded and counted as *writer*, because the disk is slow
//! and not the capture. With `packet` this is true only until the kernel, which fills blocks in
//! turn, reaches a block that is still held; packets lost from then on count as *no cell*.
//! Meanwhile the thread looks at the ring once a millisecond. It does not wait for a page: the
//! writer would have to wake it for each one.
//!
//! Reading a packet from its cell is a cache miss. So the thread prefetches the packet that is
//! twelve places after the one that it copies, up to 2 KiB of it, into the second-level cache,
//! which waits for more lines at a time than the first-level cache. In a block of `packet`, the
//! processor's own prefetcher brings packets of up to 256 bytes into the second-level cache; these
//! are prefetched into the first-level cache.
//!
//! On `xdp` the timestamp is in the cache line before the packet's first bytes. By default the
//! program reads the clock for every eighth packet. So of a group of eight packets only the first
//! and the last timestamp are read: if they are equal, the other six are the same, because the
//! clock does not go back. The first 32 packets of a chunk show whether its packets come in such
//! groups; if a group has two times, the timestamps of the next 32 packets are all read.

mod form;
mod merge;
mod outlet;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use wirecap::{Capture, CaptureError, Cells, Chunk, Packet, Timestamp, Timestamps, Worker};
use wirecap_savefile::WriteError;

pub use form::{
    Form, counts, counts_of_any, described, in_file, interface, now, operating_system,
    safely_written,
};
use merge::Merge;
pub use outlet::{Described, Outlet};

/// Half the time within which a packet can be read from the output: with the engine `packet`, a
/// packet may wait this long for its block, and again for the outlet. A recording whose loss is
/// limited (`--sync`) uses a fifth of that time if it is shorter: the writer syncs after half of
/// it, the packet sockets hold packets for a fifth, and the rest is for the disk.
///
/// Packets that are read later may wait longer, and a ring that is not read keeps its packets for
/// as many times this long as it has blocks.
pub const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
/// Sleeping time while packets are held back for packets of other rings.
const MERGE_PAUSE: Duration = Duration::from_millis(1);
/// Maximum wait for the outlet between looks at the ring.
const ROOM_PAUSE: Duration = Duration::from_millis(1);
/// Maximum time from a packet's timestamp to its capture, if no other packets wait.
const LATE_PACKETS: Duration = Duration::from_secs(2);
/// Number of packets between two checks for room in the outlet.
const EMITTED_PACKETS: usize = 256;
/// The assumed memory of these packets.
const CHUNK_BYTES: usize = 1 << 20;
/// While more eighths of a ring's pool than these are in chunks, the outlet also uses memory that
/// is not allocated yet.
const PRESSED_EIGHTHS: u32 = 6;
/// While more eighths than these are in chunks and the outlet has no room, chunks are discarded.
const LOST_EIGHTHS: u32 = 7;

/// Why a recording ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The capture failed; earlier packets were recorded.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// Packets cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The program around a recording.
pub trait Program<O: Outlet> {
    /// Called after each look at the rings, at least once per
    /// [`longest_sleep`](Self::longest_sleep) unless the outlet waits.
    ///
    /// # Errors
    ///
    /// If the outlet cannot be written to.
    fn came_round(&mut self, capture: &Capture, outlet: &mut O) -> Result<(), WriteError> {
        let _ = (capture, outlet);
        Ok(())
    }

    /// Maximum time to wait for packets.
    fn longest_sleep(&self) -> Duration {
        Duration::MAX
    }

    /// This many packets wait in the pools for the outlet.
    fn set_waiting(&self, packets: usize) {
        let _ = packets;
    }

    /// This many packets were discarded because the outlet did not keep up.
    fn discard(&self, packets: u64);
}

/// Takes chunks from one worker and gives their packets to an outlet.
#[derive(Debug)]
pub struct Recorder<O: Outlet> {
    /// Where the packets go.
    pub outlet: O,
    form: Form,
    /// When the recording began.
    pub started: Timestamp,
    /// Arrival time of the chunks that are being written.
    pub now: Timestamp,
    /// Remaining packets, with -c.
    pub left: u64,
    /// When the recording ends.
    pub deadline: Option<Instant>,
    flushed: Instant,
    /// Whether the outlet may hold packets that it has not passed on.
    is_unflushed: bool,
    /// Maximum time for which packets are collected before the outlet passes them on.
    pub flush_interval: Duration,
    /// Packets that arrived after the last requested one.
    pub surplus: u64,
    /// Packets bear times of the system's clock, by which rings are merged.
    has_system_times: bool,
    /// Packets bear times of the NIC's clock; files are not cut by any other.
    has_device_times: bool,
    /// Packets to which the NIC gave no time; in the file their time is 0.
    pub untimed: u64,
}

impl<O: Outlet> Recorder<O> {
    /// Packets of this capture, which was opened with these times, to `outlet`.
    pub fn new(outlet: O, capture: &Capture, timestamps: Timestamps) -> Self {
        let now = form::now();
        Self {
            outlet,
            form: Form::of(capture, timestamps),
            started: now,
            now,
            left: u64::MAX,
            deadline: None,
            flushed: Instant::now(),
            is_unflushed: false,
            flush_interval: FLUSH_INTERVAL,
            surplus: 0,
            has_system_times: !matches!(timestamps, Timestamps::None | Timestamps::Hardware),
            has_device_times: timestamps == Timestamps::Hardware,
            untimed: 0,
        }
    }

    /// Writes until the capture is stopped, by another thread, by time, or by the number of
    /// packets.
    ///
    /// # Errors
    ///
    /// If the capture fails or the outlet cannot be written to.
    pub fn record(
        &mut self,
        capture: &Capture,
        worker: &mut Worker,
        program: &mut impl Program<O>,
    ) -> Result<(), RecordError> {
        let waiting = self.record_ring(capture, worker, program)?;
        self.record_merged(capture, worker, program, waiting)
    }

    /// A single ring is in order: packets are held back only if the outlet has no room. Without
    /// timestamps of the system's clock, several rings cannot be ordered. Returns the chunks that
    /// must be merged with later ones, of a capture that got another ring.
    fn record_ring(
        &mut self,
        capture: &Capture,
        worker: &mut Worker,
        program: &mut impl Program<O>,
    ) -> Result<VecDeque<Chunk>, RecordError> {
        let mut failed = Ok(());
        let (mut waiting, mut packets): (VecDeque<Chunk>, _) = (VecDeque::new(), 0);

        while !worker.is_finished() && (capture.ring_count() == 1 || !self.has_system_times) {
            let found = match waiting.is_empty() {
                true => worker.next_chunk_timeout(self.pause(program)),
                false => worker.try_next_chunk(),
            };
            match found {
                Ok(Some(chunk)) => {
                    if !self.has_device_times {
                        self.now = form::now();
                    }
                    let kept = self.keep(capture, chunk, program);
                    packets += kept.as_ref().map_or(0, Chunk::len);
                    waiting.extend(kept);
                }
                Ok(None) if !waiting.is_empty() => self.outlet.wait_for_room(ROOM_PAUSE)?,
                Ok(None) => {}
                Err(error) if failed.is_ok() => failed = stopped_by(error, capture),
                Err(_) => break,
            }

            // Another ring may have packets before these.
            let has_system_times = self.has_system_times;
            let is_single = || capture.ring_count() == 1 || !has_system_times;
            while is_single() && !waiting.is_empty() && self.has_room(capture) {
                let Some(chunk) = waiting.pop_front() else { break };
                self.write_chunk(&chunk)?;
                packets -= chunk.len();
            }

            program.set_waiting(packets);
            self.housekeeping(capture, program)?;

            // Packets that wait in the ring fill the page at once.
            if worker.is_idle() {
                self.flush_if_due(waiting.is_empty())?;
            }
        }

        if worker.is_finished() || failed.is_err() {
            waiting.drain(..).try_for_each(|chunk| self.write_chunk(&chunk))?;
        }

        failed.map(|()| waiting)
    }

    fn record_merged(
        &mut self,
        capture: &Capture,
        worker: &mut Worker,
        program: &mut impl Program<O>,
        waiting: VecDeque<Chunk>,
    ) -> Result<(), RecordError> {
        let rings = capture.most_rings();

        // Held packets are missing in the pool: at most a quarter of it.
        let held_max = || capture.ring_count() * capture.geometry().cells() as usize / 4;
        let mut merge = Merge::new(rings, held_max(), capture.delay());
        waiting.into_iter().for_each(|chunk| merge.push(chunk));

        let mut failed = Ok(());

        while !worker.is_finished() {
            self.now = form::now();

            // An interface may have been handed back to the host: its packets come later from now
            // on.
            merge.set_limits(held_max(), capture.delay());
            if merge.is_after_step(self.now, Instant::now()) {
                merge.emit_all(|packet, chunk| self.write(packet, chunk))?;
            }

            let mut empty = capture.empty_rings();

            // A ring that does not exist cannot deliver an earlier packet.
            empty.resize(rings, true);
            let before = self.now;
            let has_room = merge.is_empty() || self.has_room(capture);
            let found = match (merge.is_empty(), has_room) {
                (true, _) => worker.next_chunk_timeout(self.pause(program)),
                (false, true) => worker.next_chunk_timeout(MERGE_PAUSE),
                (false, false) => worker.try_next_chunk(),
            };

            match found {
                Ok(Some(chunk)) => {
                    self.keep(capture, chunk, program)
                        .into_iter()
                        .for_each(|chunk| merge.push(chunk));
                }
                Ok(None) if !has_room => self.outlet.wait_for_room(ROOM_PAUSE)?,
                Ok(None) => {}
                Err(error) if failed.is_ok() => failed = stopped_by(error, capture),
                Err(_) => break,
            }

            empty
                .iter()
                .enumerate()
                .filter(|(_, empty)| **empty)
                .for_each(|(ring, _)| merge.found_empty(ring, before));

            while self.has_room(capture)
                && merge.emit(EMITTED_PACKETS, |packet, chunk| self.write(packet, chunk))?
            {
            }

            let waiting = if self.has_room(capture) { 0 } else { merge.held() };
            program.set_waiting(waiting);
            self.housekeeping(capture, program)?;
            self.flush_if_due(merge.is_empty())?;
        }

        merge.emit_all(|packet, chunk| self.write(packet, chunk))?;
        failed
    }

    /// Keeps a chunk until the outlet has taken its packets. If the outlet has no room and most of
    /// the ring's pool is in chunks, the chunk is discarded: the ring gets its cells back, and the
    /// loss counts as the writer's, not the capture's. (With AF_PACKET only until the kernel
    /// reaches a block that is still held: later losses count as the capture's.)
    fn keep(
        &mut self,
        capture: &Capture,
        chunk: Chunk,
        program: &impl Program<O>,
    ) -> Option<Chunk> {
        let ring = chunk.ring_index();
        if !self.has_room(capture) && is_in_chunks(capture, ring, LOST_EIGHTHS) {
            program.discard(chunk.len() as u64);
            return None;
        }
        Some(chunk)
    }

    /// Whether the outlet takes a chunk without waiting.
    fn has_room(&mut self, capture: &Capture) -> bool {
        let is_pressed =
            || (0..capture.ring_count()).any(|ring| is_in_chunks(capture, ring, PRESSED_EIGHTHS));
        self.outlet.has_room(CHUNK_BYTES, false)
            || is_pressed() && self.outlet.has_room(CHUNK_BYTES, true)
    }

    /// Writes a chunk.
    ///
    /// # Errors
    ///
    /// If the outlet cannot be written to.
    pub fn write_chunk(&mut self, chunk: &Chunk) -> Result<(), WriteError> {
        self.is_unflushed = true;
        if chunk.is_of_any() {
            return chunk.iter().try_for_each(|packet| self.write(packet, chunk));
        }

        let most = self.left.min(chunk.len() as u64);
        if self.has_device_times {
            self.follow_device_clock(chunk, most as usize);
        }

        let mut taken = 0;
        let mut goes_on = Ok(true);
        let record_of = self.form.records(chunk);

        chunk.for_each_whole(0..most as usize, |head| {
            if let Ok(true) = goes_on {
                goes_on = self.outlet.write(&record_of(head), self.now);
                taken += u64::from(matches!(goes_on, Ok(true)));
            }
        });

        self.left = if goes_on? { self.left - taken } else { 0 };
        self.surplus += chunk.len() as u64 - taken;

        Ok(())
    }

    /// A packet without a time of the NIC's clock gets the last known one of that clock for the
    /// rules by which files are cut, never the system's: the two may be decades apart.
    #[cold]
    fn follow_device_clock(&mut self, chunk: &Chunk, most: usize) {
        let times = || chunk.iter().take(most).map(|packet| packet.timestamp());
        self.untimed += times().filter(Option::is_none).count() as u64;
        let is_first = self.outlet.packets() == 0;
        self.now = times().flatten().last().unwrap_or(if is_first {
            Timestamp::default()
        } else {
            self.now
        });
    }

    #[inline]
    fn write(&mut self, packet: Packet<'_>, chunk: &Chunk) -> Result<(), WriteError> {
        if self.left == 0 {
            self.surplus += 1;
            return Ok(());
        }

        self.is_unflushed = true;
        let record = self.form.record(chunk, packet);

        let goes_on = match self.form.has_any().then(|| packet.seen_interface()).flatten() {
            Some(number) => {
                let describe = || self.form.describe(number);
                self.outlet.write_of(number, &describe, &record, self.now)?
            }
            None => self.outlet.write(&record, self.now)?,
        };
        if goes_on {
            self.left -= 1;
        } else {
            self.left = 0;
            self.surplus += 1;
        }

        Ok(())
    }

    fn housekeeping(
        &mut self,
        capture: &Capture,
        program: &mut impl Program<O>,
    ) -> Result<(), RecordError> {
        if self.left == 0 || self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            capture.stop();
        }
        Ok(program.came_round(capture, &mut self.outlet)?)
    }

    /// Makes the outlet pass on its packets if they are due. `is_idle`: no packets are held back.
    fn flush_if_due(&mut self, is_idle: bool) -> Result<(), WriteError> {
        let now = Instant::now();
        if now - self.flushed < self.flush_interval {
            return Ok(());
        }

        if is_idle && !self.has_device_times {
            let late = Duration::as_nanos(&LATE_PACKETS) as u64;
            let complete = form::now().unix_nanos().saturating_sub(late);
            self.outlet.look_at_clock(Timestamp::from_unix_nanos(complete))?;
        }

        // Packets that it cannot pass on yet are due as soon as it can.
        if !self.outlet.is_writing() {
            self.flushed = now;
            self.is_unflushed = false;
        }

        self.outlet.flush()
    }

    /// How long to wait for packets: until the outlet must pass on its packets, the recording ends,
    /// or its progress is shown. While the outlet is writing, its last packets may be due as soon
    /// as the write is complete.
    fn pause(&self, program: &impl Program<O>) -> Duration {
        if self.outlet.is_writing() {
            return ROOM_PAUSE;
        }
        let due = self.is_unflushed.then(|| self.flushed + self.flush_interval);
        let first = due.into_iter().chain(self.deadline).min();
        let left =
            first.map_or(Duration::MAX, |first| first.saturating_duration_since(Instant::now()));
        left.min(program.longest_sleep()).max(ROOM_PAUSE)
    }
}

/// Stops a capture that failed: earlier packets are still recorded.
fn stopped_by(error: CaptureError, capture: &Capture) -> Result<(), RecordError> {
    capture.stop();
    Err(error.into())
}

/// Whether more than `eighths` eighths of a ring's pool are in chunks.
fn is_in_chunks(capture: &Capture, ring: usize, eighths: u32) -> bool {
    let Cells { posted, waiting, captured, free, .. } = capture.cells_of(ring).unwrap_or_default();
    let pool = posted + waiting + captured + free;
    captured > (pool / 8 * eighths).max(1)
}
