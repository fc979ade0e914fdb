//! A live capture of the engine's behind a handle.
#![allow(unsafe_code)]

mod batch;
mod reading;
mod rest;

use std::cell::UnsafeCell;
use std::error::Error;
use std::ffi::{CStr, CString, c_int};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use wirecap::device::Device;
use wirecap::filter::ClassicInsn;
use wirecap::{Capture, Engine, Waker, Worker};

use crate::abi::{D_INOUT, Program};
use crate::failure::causes;
use crate::filter_slot::{FilterSlot, Sieve, locked};
use crate::forks::{self, SoleReader};
use crate::group::{Group, Joined, Membership};
use crate::opening::{LiveError, open_capture};
use crate::pollable::Pollable;
use crate::request::{Name, Request};
use crate::settings::Settings;
use crate::socket;
use crate::wanted::{RETURN, RETURN_A, Wanted};
use batch::Ahead;
pub(crate) use batch::{Batch, Delivered};
pub(crate) use reading::Found;
use reading::Reader;
use rest::Rest;

/// A program that accepts all of every packet.
const EVERYTHING: ClassicInsn = ClassicInsn { code: RETURN, jt: 0, jf: 0, k: u32::MAX };

/// Bytes of a packet that the engine needs to put a VLAN tag back.
const SNAP_BYTES_MIN: u32 = 64;

/// A capture, as its handle has it.
///
/// What every wake-up uses comes first, in few cache lines: the others have left the caches since the last one.
#[repr(C, align(64))]
pub(crate) struct Live {
    broken: AtomicBool,
    nonblocking: AtomicBool,
    /// The interface went down.
    down: AtomicBool,
    nanos: bool,
    /// A read waits until it has a matching packet.
    endless: bool,
    /// The kernel cuts packets at what its filter says.
    cuts: bool,
    promiscuous: bool,
    snap_len: u32,
    /// Counts events that may invalidate filtered packets: a read is interrupted or begins, the filter or the direction
    /// changes.
    disturbances: AtomicU32,
    direction: AtomicI32,
    /// Packets in the chunks of this handle.
    taken: AtomicU64,
    filter: Arc<FilterSlot>,
    pollable: Pollable,
    /// Guarded by the handle's turn.
    reader: UnsafeCell<Reader>,
    /// Likewise.
    ahead: UnsafeCell<Ahead>,
    /// By which frames are sent: the ring's own socket, where it has one, since it does not see them.
    sender: Arc<OwnedFd>,
    waker: Waker,
    capture: Arc<Capture>,
    /// The handle's own rings in the capture.
    ring: Option<usize>,
    device: Device,
    membership: Option<Membership>,
    /// The forks when it was opened.
    forks: u64,
    /// The non-matching packets among the taken ones.
    refused: AtomicU64,
    /// The most packets that `counts` found: while a thread takes packets out of a ring fewer may be seen.
    most_received: AtomicU64,
    interface_drops: InterfaceDrops,
}

// SAFETY: `reader` and `ahead`, the only parts that are not `Sync` by themselves, are touched only by the thread that has
// the handle's turn.
unsafe impl Sync for Live {}
// SAFETY: no part is tied to a thread.
unsafe impl Send for Live {}

/// Packets that the interface dropped, by its own counters. Reading them takes no memory.
#[derive(Debug)]
struct InterfaceDrops {
    counters: [CString; 2],
    at_open: u64,
    /// What the counters said last: a process may be shut out of /sys later.
    last: AtomicU64,
}

impl Live {
    /// Opens the requested capture on `device`, keeping `snap_len` bytes of each packet, or joins a group.
    pub(crate) fn open(
        request: &Request,
        device: Device,
        snap_len: u32,
        settings: &Settings,
    ) -> Result<Self, LiveError> {
        let from = match Group::join(request, &device, snap_len, settings)? {
            Some(joined) => joined.into(),
            None => Origin::alone(request, settings)?,
        };
        Self::new(request, device, snap_len, from)
    }

    fn new(request: &Request, device: Device, snap_len: u32, from: Origin) -> Result<Self, LiveError> {
        let Origin { capture, worker, .. } = &from;
        let system = |doing| move |error| LiveError::System(doing, error);
        let own = capture.packet_socket(worker.index());
        let pollable = match &own {
            Some(socket) if capture.rings().len() == 1 => {
                Pollable::single(Arc::clone(socket), worker.waker())
            }
            _ => Pollable::several(worker)
                .map_err(|errno| LiveError::System("make an epoll instance", errno.into()))?,
        };
        let cuts = own.is_some();
        let sender = own.map_or_else(|| socket::sender(device.index).map(Arc::new), Ok);
        let sender = sender.map_err(system("open a packet socket"))?;
        // Two processes may share a packet socket's ring, as with libpcap; a reader of AF_XDP's rings changes the state
        // that the other one relies on.
        let sole = if cuts { None } else { Some(SoleReader::new().map_err(system("map shared memory"))?) };
        Ok(Self::assemble(request, device, snap_len, from, pollable, sender, sole))
    }

    /// A capture of one worker that is open already and on no interface, for benches.
    pub(crate) fn over(capture: Capture, snap_len: u32) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let worker = capture.workers().pop().ok_or("a new capture has a worker")?;
        let pollable = Pollable::several(&worker)?;
        let from = Origin { capture: Arc::new(capture), worker, filter: Arc::default(), membership: None };
        // Any device, and nothing is sent.
        let (device, sender) = (Device::find("lo")?, OwnedFd::from(File::open("/dev/null")?));
        // As fast as it can: nothing comes later.
        let request = Request { immediate: 1, ..Request::new(None) };
        let sole = Some(SoleReader::new()?);
        Ok(Self::assemble(&request, device, snap_len, from, pollable, Arc::new(sender), sole))
    }

    fn assemble(
        request: &Request,
        device: Device,
        snap_len: u32,
        from: Origin,
        pollable: Pollable,
        sender: Arc<OwnedFd>,
        sole: Option<SoleReader>,
    ) -> Self {
        let Origin { capture, worker, filter, membership } = from;
        let (ring, waker) = (worker.index(), worker.waker());
        let (cuts, forks) = (sole.is_none(), forks::count());
        // In a group a reader must see that others need help, and a packet socket's blocks make it rest by themselves.
        let may_rest = !cuts && membership.is_none() && !request.is_immediate();
        let longest_rest = if may_rest { request.longest_wait() } else { Duration::ZERO };
        let rest = Rest::new(longest_rest, capture.geometry().cells());
        let promiscuous = request.promiscuous.is_some_and(|on| on != 0);
        let interface_drops = InterfaceDrops::of(&device.name);
        // In a group each worker has one ring; else the only one has all.
        let ring = membership.is_some().then_some(ring);
        Self {
            reader: UnsafeCell::new(Reader::new(worker, capture.most_rings(), sole, rest)),
            ahead: UnsafeCell::new(Ahead::new()),
            ring,
            pollable,
            sender,
            waker,
            capture,
            snap_len,
            nanos: request.wants_nanos(),
            endless: request.timeout_millis == 0,
            cuts,
            promiscuous,
            broken: AtomicBool::new(false),
            disturbances: AtomicU32::new(0),
            nonblocking: AtomicBool::new(false),
            down: AtomicBool::new(false),
            direction: AtomicI32::new(D_INOUT),
            filter,
            membership,
            forks,
            taken: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            most_received: AtomicU64::new(0),
            interface_drops,
            device,
        }
    }

    pub(crate) fn descriptor(&self) -> c_int {
        self.pollable.descriptor()
    }

    /// The interface.
    pub(crate) fn name(&self) -> &str {
        &self.device.name
    }

    /// The engine's name.
    pub(crate) fn engine(&self) -> &'static str {
        if self.cuts { "packet" } else { "xdp" }
    }

    pub(crate) fn sender(&self) -> BorrowedFd<'_> {
        self.sender.as_fd()
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    pub(crate) fn set_direction(&self, direction: c_int) {
        self.direction.store(direction, Ordering::Relaxed);
        self.filter.generation.fetch_add(1, Ordering::Release);
        self.disturb();
    }

    /// Makes the reading thread check whether its packets are still valid. A signal handler may call it.
    pub(crate) fn disturb(&self) {
        self.disturbances.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether a read continues until it has a matching packet.
    #[inline]
    pub(crate) fn is_endless(&self) -> bool {
        // A program that waits on the descriptor itself is woken for non-matching packets too, and must get control
        // back.
        let sifts = || !self.cuts && self.filter.sifts.load(Ordering::Relaxed);
        let waits = self.endless || sifts() && !self.pollable.is_wanted();
        waits && !self.is_nonblocking()
    }

    /// Ends the read that runs, or the next one. A signal handler may call it.
    pub(crate) fn break_off(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.disturb();
        self.waker.wake();
    }

    /// Whether [`break_off`](Self::break_off) was called since the last time.
    #[inline]
    pub(crate) fn was_broken_off(&self) -> bool {
        self.broken.load(Ordering::Relaxed) && self.broken.swap(false, Ordering::SeqCst)
    }

    /// Whether it was called and the read has not ended for it yet.
    #[inline]
    pub(crate) fn is_broken_off(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Stops receiving, so that nothing is left on the interface, and interrupts the read of another thread.
    pub(crate) fn end(&self) {
        if Arc::strong_count(&self.capture) == 1 && !self.is_shared() {
            self.capture.stop();
        }
        self.break_off();
    }

    /// Whether another process may have the capture, by a fork.
    fn is_shared(&self) -> bool {
        forks::is_past(self.forks)
    }

    /// From now on hands out only packets that match `program`, also of those that have come already.
    ///
    /// # Errors
    ///
    /// If other handles of the group have another filter.
    ///
    /// # Safety
    ///
    /// As for [`Wanted::new`].
    pub(crate) unsafe fn want(&self, program: &Program) -> Result<(), String> {
        // SAFETY: the caller's promise.
        let (insns, wanted) = unsafe { (program.classic(), || Wanted::new(program)) };
        let mut current = locked(&self.filter.program);
        if !current.is_empty() && *current == insns && self.membership.is_some() {
            return Ok(());
        }
        if !current.is_empty() && self.membership.as_ref().is_some_and(|group| !group.is_alone()) {
            return Err("wirecap: the other handles of the group have another filter".to_owned());
        }
        let is_in_kernel =
            self.run_in_kernel(&insns).map_err(|error| format!("wirecap: {}", causes(&error)))?;
        let rings = 0..self.capture.rings().len();
        // Only a handle that gets all of the capture's packets, each ring's in order, can tell which arrived later.
        let tells = is_in_kernel && self.membership.is_none();
        let until = tells.then(|| rings.map(|ring| self.capture.arrived(ring)).collect());
        self.filter.sift(Sieve { wanted: wanted(), until });
        self.filter.sifts.store(!is_in_kernel, Ordering::Relaxed);
        *current = insns;
        self.disturb();
        Ok(())
    }

    /// Makes the kernel run this program on later packets, or pass all of them. Returns whether it runs it.
    ///
    /// # Errors
    ///
    /// If it keeps rejecting packets that the previous program rejected.
    fn run_in_kernel(&self, insns: &[ClassicInsn]) -> io::Result<bool> {
        let cut_elsewhere = |insn: &ClassicInsn| insn.code == RETURN_A || cuts(insn, self.snap_len);
        if (self.cuts || !insns.iter().any(cut_elsewhere)) && self.capture.run_in_kernel(insns).is_ok() {
            return Ok(true);
        }
        self.capture.run_in_kernel(&[EVERYTHING]).map(|()| false)
    }

    /// Packets that passed the filter, dropped ones and those that wait included, and the dropped ones. A signal handler
    /// may call it.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let rings = self.ring.map_or(0..self.capture.ring_count(), |ring| ring..ring + 1);
        let tallies = rings.map(|ring| self.capture.tally(ring));
        let (mut arrived, mut delivered, mut dropped) = (0, 0, 0);
        for tally in tallies {
            arrived += tally.arrived;
            delivered += tally.delivered;
            dropped += tally.dropped;
        }
        let taken = self.taken.load(Ordering::Relaxed);
        // A packet socket counts what passed the kernel's filter, also where libpcap's own refuses it afterwards.
        let (sifts, refused) = match self.cuts {
            true => (false, 0),
            false => (self.filter.sifts.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed)),
        };
        let passed = match self.membership {
            // Waiting packets were not filtered yet, and most of them may not match.
            _ if sifts => taken,
            None => arrived,
            // In a group other handles took some of this ring's packets, and this handle some of theirs.
            Some(_) => taken + arrived.saturating_sub(delivered),
        };
        let received = passed.saturating_sub(refused) + dropped;
        if sifts {
            return (received, dropped);
        }
        (received.max(self.most_received.fetch_max(received, Ordering::Relaxed)), dropped)
    }

    /// What the interface itself dropped while it was captured whole, as libpcap counts it. A signal handler may call it.
    pub(crate) fn interface_drops(&self) -> u64 {
        if self.promiscuous { self.interface_drops.since_open() } else { 0 }
    }
}

impl InterfaceDrops {
    fn of(interface: &str) -> Self {
        let path = |counter: &str| {
            let path = format!("/sys/class/net/{interface}/statistics/{counter}");
            CString::new(path).expect("the kernel's name of an interface has no zero byte")
        };
        let counters = [path("rx_missed_errors"), path("rx_fifo_errors")];
        let at_open = sum(&counters).unwrap_or_default();
        Self { counters, at_open, last: AtomicU64::new(at_open) }
    }

    fn since_open(&self) -> u64 {
        if let Some(now) = sum(&self.counters) {
            self.last.store(now, Ordering::Relaxed);
        }
        self.last.load(Ordering::Relaxed).wrapping_sub(self.at_open)
    }
}

/// The sum of counters in files; `None` if there are none to be read.
fn sum(counters: &[CString]) -> Option<u64> {
    counters.iter().filter_map(|path| read_counter(path)).reduce(u64::wrapping_add)
}

fn read_counter(path: &CStr) -> Option<u64> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let mut text = [0; 24];
    let len = rustix::io::read(&file, &mut text).ok()?;
    str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}

impl Drop for Live {
    fn drop(&mut self) {
        if self.is_shared() {
            self.capture.leave_to_others();
        }
        if let (Some(group), Some(worker)) = (self.membership.take(), self.reader.get_mut().worker.take()) {
            group.leave(worker);
        }
    }
}

/// Where a handle's packets come from.
#[derive(Debug)]
struct Origin {
    capture: Arc<Capture>,
    worker: Worker,
    filter: Arc<FilterSlot>,
    membership: Option<Membership>,
}

impl Origin {
    /// A capture of the handle's own, with one ring for all its packets if that is possible.
    fn alone(request: &Request, settings: &Settings) -> Result<Self, LiveError> {
        let name = request.device.as_ref().map(Name::whole).unwrap_or_default();
        let capture = open_capture(request.builder(&name, settings).workers(1), request, settings)?;
        let kept = request.snap_len();
        if capture.interfaces()[0].reception.engine() == Engine::Packet {
            // Until a filter with its own length is set, the kernel need not copy more than requested.
            let cut = ClassicInsn { k: kept.max(SNAP_BYTES_MIN), ..EVERYTHING };
            capture
                .run_in_kernel(&[cut])
                .map_err(|error| LiveError::System("attach a socket filter", error))?;
        }
        let worker = capture.workers().pop().expect("a capture has a worker");
        Ok(Self { capture: Arc::new(capture), worker, filter: Arc::default(), membership: None })
    }
}

impl From<Joined> for Origin {
    fn from(Joined { membership, capture, worker, filter }: Joined) -> Self {
        Self { capture, worker, filter, membership: Some(membership) }
    }
}

/// Whether it ends a program that accepts a part of what the handle keeps of a packet.
fn cuts(insn: &ClassicInsn, snap_len: u32) -> bool {
    insn.code == RETURN && insn.k > 0 && insn.k < snap_len
}
