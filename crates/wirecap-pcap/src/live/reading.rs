//! How packets get from the worker to the program. All of it happens in the handle's turn.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use wirecap::filter::PacketType;
use wirecap::{CaptureError, Chunk, Packet, Worker};

use super::{Live, Sieve, locked};
use crate::abi::{D_IN, D_OUT, PacketHeader};
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
    /// How many packets were looked at.
    looked_at: u64,
    /// For packets as filters see them.
    room: Vec<u8>,
    /// What `pcap_next_ex` gave out last.
    header: PacketHeader,
    copy: Vec<u8>,
}

/// A packet for the program. Its bytes stay until the next read of the handle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivered {
    pub(crate) header: PacketHeader,
    pub(crate) data: *const u8,
}

/// What became of looking for a packet.
#[derive(Debug)]
pub(crate) enum Found {
    Packet(Delivered),
    Nothing,
    Broken,
    Failed(String),
}

impl Live {
    /// The next wanted packet of the chunk in hand.
    ///
    /// # Safety
    ///
    /// The caller must have the handle's turn, and nobody may use what a read gave out before.
    #[inline]
    unsafe fn step(&self) -> Option<Delivered> {
        // SAFETY: the turn; no other reference is alive.
        let reader = unsafe { &mut *self.reader.get() };
        if reader.generation != self.filter.generation.load(Ordering::Acquire) {
            reader.generation = self.filter.generation.load(Ordering::Acquire);
            reader.wanted.clone_from(&locked(&self.filter.sieve));
        }
        let chunk = reader.chunk.as_ref()?;
        let mut refused = 0;
        let mut found = None;
        while let Some(packet) = chunk.get(reader.next) {
            reader.next += 1;
            reader.looked_at += 1;
            if !self.is_direction(&packet) {
                continue;
            }
            let kept = match &reader.wanted {
                Some(sieve) if reader.looked_at <= sieve.until => {
                    sieve.wanted.kept(&packet, self.device.index, &mut reader.room)
                }
                _ => u32::MAX,
            };
            if kept > 0 {
                found = Some(self.deliver(&packet, kept));
                break;
            }
            refused += 1;
        }
        if refused > 0 {
            self.refused.fetch_add(refused, Ordering::Relaxed);
        }
        if found.is_none() {
            reader.chunk = None;
        }
        found
    }

    #[inline]
    fn is_direction(&self, packet: &Packet<'_>) -> bool {
        let is_sent = || packet.packet_type() == Some(PacketType::Outgoing);
        match self.direction.load(Ordering::Relaxed) {
            D_IN => !is_sent(),
            D_OUT => is_sent(),
            _ => true,
        }
    }

    #[inline]
    fn deliver(&self, packet: &Packet<'_>, kept: u32) -> Delivered {
        let data = packet.data();
        let time = packet.timestamp().unwrap_or_default();
        let nanos = time.subsec_nanos();
        let header = PacketHeader {
            seconds: time.unix_seconds() as _,
            fraction: if self.nanos { nanos } else { nanos / 1000 }.into(),
            captured_bytes: (data.len() as u32).min(kept).min(self.snap_len),
            wire_bytes: packet.wire_len(),
        };
        Delivered { header, data: data.as_ptr() }
    }

    /// The next wanted packet, if there is one, without waiting.
    ///
    /// # Safety
    ///
    /// As for [`step`](Self::step).
    #[inline]
    pub(crate) unsafe fn next_there(&self) -> Found {
        loop {
            if self.was_broken_off() {
                return Found::Broken;
            }
            // SAFETY: the caller's promise.
            match caught(|| unsafe { self.step() }) {
                Ok(Some(packet)) => return Found::Packet(packet),
                Ok(None) => {}
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
    /// As for [`step`](Self::step).
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
    /// As for [`step`](Self::step).
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
        (reader.chunk, reader.next) = (Some(chunk), 0);
        Ok(true)
    }

    /// At the end of a read: gives the chunk back if all of it was read, and says whether packets are left.
    ///
    /// # Safety
    ///
    /// As for [`step`](Self::step).
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
    /// As for [`step`](Self::step), and the packet must be the last one that `step` gave.
    pub(crate) unsafe fn keep(&self, packet: Delivered) -> (*mut PacketHeader, *const u8) {
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
            looked_at: 0,
            room: Vec::new(),
            header: PacketHeader::default(),
            copy: Vec::new(),
        }
    }

    fn is_exhausted(&self) -> bool {
        self.chunk.as_ref().is_some_and(|chunk| self.next >= chunk.len())
    }
}
