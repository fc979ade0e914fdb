//! How packets get from the worker to the program. All of it happens in the handle's turn.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use wirecap::filter::PacketType;
use wirecap::{CaptureError, Chunk, Packet, Worker};

use super::{Live, Sieve, locked};
use crate::abi::{D_INOUT, D_OUT, PacketHeader};
use crate::failure::{cancel, caught, chain, guarded};
use crate::pollable::Pollable;
use crate::socket::{self, Health};

/// How long a read waits at a time, before it looks whether its thread was cancelled. It goes on until there are
/// packets or somebody breaks it off, since libpcap's timeout is one for packets that have come.
const AT_A_TIME: Duration = Duration::from_millis(250);
/// What libpcap says, and clients compare, when the interface was removed.
const DISAPPEARED: &str = "The interface disappeared";

/// What reading moves.
pub(super) struct Reader {
    /// None only while the handle is being closed.
    pub(super) worker: Option<Worker>,
    chunk: Option<Chunk>,
    /// The first packet of the chunk that was not looked at.
    next: usize,
    wanted: Option<Arc<Sieve>>,
    generation: u32,
    /// How many chunks there were, and how many packets in those before this one, and before the next.
    chunks: u64,
    before_chunk: u64,
    before_next_chunk: u64,
    /// For packets as filters see them.
    room: Vec<u8>,
    /// What `pcap_next_ex` gave out last.
    header: PacketHeader,
    copy: Vec<u8>,
}

/// Packets for the program, up to N, looked at together. What a callback does may make those void that it has not got.
#[derive(Debug)]
pub(crate) struct Batch<const N: usize> {
    packets: [Delivered; N],
    len: usize,
    /// Where looking goes on.
    end: usize,
    /// Packets refused behind the last one.
    refused: u32,
    /// The chunk that they are from, and the filter and direction that they were looked at with.
    chunks: u64,
    generation: u32,
}

impl<const N: usize> Batch<N> {
    pub(crate) const fn new() -> Self {
        Self { packets: [Delivered::NONE; N], len: 0, end: 0, refused: 0, chunks: 0, generation: 0 }
    }

    #[inline]
    pub(crate) fn packets(&self) -> &[Delivered] {
        &self.packets[..self.len]
    }
}

/// A packet for the program. Its bytes stay until the next read of the handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivered {
    pub(crate) header: PacketHeader,
    pub(crate) data: *const u8,
    /// The packet behind it in its chunk.
    after: u32,
    /// Packets refused in front of it.
    refused: u32,
}

impl Delivered {
    const NONE: Self = Self {
        header: PacketHeader { seconds: 0, fraction: 0, captured_bytes: 0, wire_bytes: 0 },
        data: std::ptr::null(),
        after: 0,
        refused: 0,
    };
}

/// What became of looking for a packet.
#[derive(Debug)]
pub(crate) enum Found {
    Packets,
    Nothing,
    Broken,
    Failed(String),
}

impl Live {
    /// Looks at packets of the chunk in hand until `batch` is full of wanted ones or has `limit`. Whether there is a
    /// chunk; one of which nothing is left is given back.
    ///
    /// # Safety
    ///
    /// The caller must have the handle's turn, and nobody may use what a read gave out before.
    #[inline]
    unsafe fn look<const N: usize>(&self, batch: &mut Batch<N>, limit: usize) -> bool {
        // SAFETY: the turn; no other reference is alive.
        let reader = unsafe { &mut *self.reader.get() };
        let generation = self.filter.generation.load(Ordering::Acquire);
        if reader.generation != generation {
            reader.generation = generation;
            reader.wanted.clone_from(&locked(&self.filter.sieve));
        }
        let Some(chunk) = &reader.chunk else { return false };
        let direction = self.direction.load(Ordering::Relaxed);
        let until = reader.wanted.as_ref().map_or(0, |sieve| sieve.until.saturating_sub(reader.before_chunk));
        (batch.len, batch.refused, batch.generation, batch.chunks) = (0, 0, generation, reader.chunks);
        let mut next = reader.next;
        let mut packets = chunk.iter();
        if next > 0 {
            packets.nth(next - 1);
        }
        let limit = limit.min(N);
        while batch.len < limit
            && let Some(packet) = packets.next()
        {
            next += 1;
            if direction != D_INOUT && !is_direction(&packet, direction) {
                continue;
            }
            let kept = match &reader.wanted {
                Some(sieve) if next as u64 <= until => {
                    sieve.wanted.kept(&packet, self.device.index, &mut reader.room)
                }
                _ => u32::MAX,
            };
            if kept == 0 {
                batch.refused += 1;
                continue;
            }
            let place = &mut batch.packets[batch.len];
            self.deliver(&packet, kept, place);
            (place.after, place.refused) = (next as u32, std::mem::take(&mut batch.refused));
            batch.len += 1;
        }
        batch.end = next;
        if batch.len == 0 {
            self.refuse(batch.refused);
            reader.chunk = None;
        }
        true
    }

    fn refuse(&self, packets: u32) {
        if packets > 0 {
            self.refused.fetch_add(packets.into(), Ordering::Relaxed);
        }
    }

    /// Notes that the program gets `packet` now: whatever becomes of it, the next read goes on behind it.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look), which gave the packet, and nobody may have read since.
    #[inline]
    pub(crate) unsafe fn hand_out(&self, packet: &Delivered) {
        self.refuse(packet.refused);
        // SAFETY: the turn; no other reference is alive.
        unsafe { (*self.reader.get()).next = packet.after as usize };
    }

    /// Whether what is left of `batch` behind `packet` is still to be handed out: nobody has read meanwhile, and
    /// filter and direction are the same.
    ///
    /// # Safety
    ///
    /// The caller must have the handle's turn.
    #[inline]
    pub(crate) unsafe fn goes_on<const N: usize>(&self, batch: &Batch<N>, packet: &Delivered) -> bool {
        // SAFETY: the turn; no other reference is alive.
        let reader = unsafe { &*self.reader.get() };
        reader.next == packet.after as usize
            && reader.chunks == batch.chunks
            && self.filter.generation.load(Ordering::Acquire) == batch.generation
    }

    /// Notes that all of `batch` was handed out.
    ///
    /// # Safety
    ///
    /// As for [`hand_out`](Self::hand_out).
    pub(crate) unsafe fn finish<const N: usize>(&self, batch: &Batch<N>) {
        self.refuse(batch.refused);
        // SAFETY: the turn; no other reference is alive.
        unsafe { (*self.reader.get()).next = batch.end };
    }

    #[inline]
    fn deliver(&self, packet: &Packet<'_>, kept: u32, place: &mut Delivered) {
        let data = packet.data();
        let time = packet.timestamp().unwrap_or_default();
        let nanos = time.subsec_nanos();
        place.header = PacketHeader {
            seconds: time.unix_seconds() as _,
            fraction: if self.nanos { nanos } else { nanos / 1000 }.into(),
            captured_bytes: (data.len() as u32).min(kept).min(self.snap_len),
            wire_bytes: packet.wire_len(),
        };
        place.data = data.as_ptr();
    }

    /// The next wanted packets, `limit` at most, without waiting.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    pub(crate) unsafe fn next_there<const N: usize>(&self, batch: &mut Batch<N>, limit: usize) -> Found {
        loop {
            if self.was_broken_off() {
                return Found::Broken;
            }
            // SAFETY: the caller's promise.
            match caught(|| unsafe { self.look(batch, limit) }) {
                Ok(true) if batch.len > 0 => return Found::Packets,
                Ok(_) => {}
                Err(panic) => return Found::Failed(panic),
            }
            // SAFETY: the caller's promise.
            match unsafe { self.take_chunk(Worker::try_next_chunk) } {
                Ok(true) => {}
                Ok(false) => return Found::Nothing,
                Err(text) => return Found::Failed(text),
            }
        }
    }

    /// Waits, unless the handle does not, for packets to look at. `Nothing` means that there are some, or that
    /// it is time to say that there are none: [`Self::next_there`] tells.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    pub(crate) unsafe fn wait(&self) -> Result<(), Found> {
        // SAFETY: the turn.
        if unsafe { (*self.reader.get()).chunk.is_some() } {
            return Ok(());
        }
        self.pollable.tell(false);
        loop {
            if self.was_broken_off() {
                return Err(Found::Broken);
            }
            let nonblocking = self.is_nonblocking();
            // SAFETY: the caller's promise.
            let taken = unsafe {
                self.take_chunk(|worker| match &self.pollable {
                    Pollable::Several(_) if !nonblocking => worker.next_chunk_timeout(AT_A_TIME),
                    _ => worker.try_next_chunk(),
                })
            };
            match taken {
                Ok(true) => return Ok(()),
                Ok(false) if nonblocking => return self.look_at_interface(),
                Ok(false) => {
                    self.pause()?;
                    cancel::point();
                }
                Err(text) => return Err(Found::Failed(text)),
            }
        }
    }

    /// Lets some time go by until there are packets, where the worker has not done so.
    fn pause(&self) -> Result<(), Found> {
        let Pollable::Socket(single) = &self.pollable else { return Ok(()) };
        let look = || match self.look_at_interface() {
            Err(found @ Found::Failed(_)) => Err(found),
            _ => Ok(()),
        };
        // One that was down may be gone by now, of which its socket told once.
        if self.is_down() {
            look()?;
        }
        if single.wait(AT_A_TIME) { look() } else { Ok(()) }
    }

    /// Says what is wrong with the interface when there are no packets.
    fn look_at_interface(&self) -> Result<(), Found> {
        let health = socket::health(self.sender.as_fd(), self.device.index, self.is_down());
        match health {
            Health::Gone => {
                self.down.store(true, Ordering::Relaxed);
                return Err(Found::Failed(DISAPPEARED.to_owned()));
            }
            Health::Down => self.down.store(true, Ordering::Relaxed),
            Health::Well => {}
        }
        Err(Found::Nothing)
    }

    /// Gets a chunk from the worker; whether there was one.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    unsafe fn take_chunk(
        &self,
        get: impl FnOnce(&mut Worker) -> Result<Option<Chunk>, CaptureError>,
    ) -> Result<bool, String> {
        // SAFETY: the turn; no other reference is alive.
        let reader = unsafe { &mut *self.reader.get() };
        let chunk = guarded(|| get(reader.worker.as_mut().expect("an open handle has its worker")))?
            .map_err(|error| match error {
                CaptureError::InterfaceGone { .. } => DISAPPEARED.to_owned(),
                error => chain(&error),
            })?;
        let Some(chunk) = chunk else { return Ok(false) };
        self.taken.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        self.down.store(false, Ordering::Relaxed);
        reader.before_chunk = reader.before_next_chunk;
        reader.before_next_chunk += chunk.len() as u64;
        reader.chunks += 1;
        (reader.chunk, reader.next) = (Some(chunk), 0);
        Ok(true)
    }

    /// At the end of a read: gives the chunk back if all of it was read, and says whether packets are left.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look).
    pub(crate) unsafe fn tidy(&self) {
        // SAFETY: the turn; no other reference is alive.
        let reader = unsafe { &mut *self.reader.get() };
        if reader.is_exhausted() {
            reader.chunk = None;
        }
        self.pollable.tell(reader.chunk.is_some());
    }

    /// Keeps a packet for as long as `pcap_next` promises, and gives the chunk back if it was its last.
    ///
    /// # Safety
    ///
    /// As for [`look`](Self::look), and the packet must be the one that was handed out last.
    pub(crate) unsafe fn keep(&self, packet: &Delivered) -> (*mut PacketHeader, *const u8) {
        // SAFETY: the turn; no other reference is alive.
        let reader = unsafe { &mut *self.reader.get() };
        reader.header = packet.header;
        let mut data = packet.data;
        if reader.is_exhausted() {
            // SAFETY: the packet's bytes lie in the chunk, which is still there.
            let bytes = unsafe { std::slice::from_raw_parts(data, packet.header.captured_bytes as usize) };
            reader.copy.clear();
            reader.copy.extend_from_slice(bytes);
            data = reader.copy.as_ptr();
            reader.chunk = None;
        }
        self.pollable.tell(reader.chunk.is_some());
        (&raw mut reader.header, data)
    }
}

impl Reader {
    pub(super) fn new(worker: Worker) -> Self {
        Self {
            worker: Some(worker),
            chunk: None,
            next: 0,
            wanted: None,
            generation: 0,
            chunks: 0,
            before_chunk: 0,
            before_next_chunk: 0,
            room: Vec::new(),
            header: PacketHeader::default(),
            copy: Vec::new(),
        }
    }

    fn is_exhausted(&self) -> bool {
        self.chunk.as_ref().is_some_and(|chunk| self.next >= chunk.len())
    }
}

/// Whether a packet went in this direction, one of both.
fn is_direction(packet: &Packet<'_>, direction: c_int) -> bool {
    let is_sent = packet.packet_type() == Some(PacketType::Outgoing);
    is_sent == (direction == D_OUT)
}
