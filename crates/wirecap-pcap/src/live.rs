//! The engine's live capture of a handle.
//!
//! A handle with a single packet or AF_XDP socket reads blocks and cells in place, without making
//! chunks. Chunks are used for packets that a filter or a direction must be applied to in user
//! space, and for all other handles. On `packet`, packets are sent through the ring's own socket,
//! which does not receive them; on `xdp` through a separate packet socket. Statistics are read
//! without a lock and without allocation, so a signal handler can read them while the interrupted
//! thread holds the ring's lock.
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
use crate::group::{Counts, Group, Joined, Membership};
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

/// A filter instruction that accepts every packet in full length.
const EVERYTHING: ClassicInsn = ClassicInsn { code: RETURN, jt: 0, jf: 0, k: u32::MAX };

/// The bytes of a packet that the engine needs to reinsert a VLAN tag.
const SNAP_BYTES_MIN: u32 = 64;

/// The engine's capture of a handle.
///
/// Fields that every wake-up uses come first, so that it touches few cache lines: each wake-up has
/// to fetch them into the caches again.
#[repr(C, align(64))]
pub(crate) struct Live {
    broken: AtomicBool,
    nonblocking: AtomicBool,
    /// The interface went down.
    down: AtomicBool,
    nanos: bool,
    /// A read waits until it has a matching packet.
    endless: bool,
    /// The kernel truncates packets to the length that its filter returns: the engine `packet`.
    cuts: bool,
    promiscuous: bool,
    snap_len: u32,
    /// Counts events that may invalidate filtered packets: a read is interrupted or begins, the
    /// filter or the direction changes.
    disturbances: AtomicU32,
    direction: AtomicI32,
    /// Packets that this handle has taken from its rings.
    taken: AtomicU64,
    filter: Arc<FilterSlot>,
    pollable: Pollable,
    /// Guarded by the handle's turn.
    reader: UnsafeCell<Reader>,
    /// Guarded by the handle's turn.
    ahead: UnsafeCell<Ahead>,
    /// Sends frames: the ring's own packet socket if it has one, because a socket does not receive
    /// what it sends.
    sender: Arc<OwnedFd>,
    waker: Waker,
    capture: Arc<Capture>,
    /// The index of the handle's worker.
    worker: usize,
    device: Device,
    membership: Option<Membership>,
    /// The number of forks when the handle was opened.
    forks: u64,
    /// Taken packets that did not match the filter in user space.
    refused: AtomicU64,
    /// The highest number of packets that `counts` has found: it may find fewer while a thread
    /// takes packets from a ring.
    most_received: AtomicU64,
    interface_drops: InterfaceDrops,
}

// SAFETY: only the thread that has the handle's turn accesses `reader` and `ahead`, the only fields
// that are not `Sync`.
unsafe impl Sync for Live {}
// SAFETY: no field is tied to a thread.
unsafe impl Send for Live {}

/// Packets dropped by the interface, from its own counters. Reading them allocates no memory.
#[derive(Debug)]
struct InterfaceDrops {
    counters: [CString; 2],
    at_open: u64,
    /// The last values read: the process may lose access to /sys later.
    last: AtomicU64,
}

impl Live {
    /// Opens the requested capture on `device`, keeping `snap_len` bytes of each packet, or joins a
    /// group.
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
        match Descriptors::new(&device, &from) {
            Ok(descriptors) => Ok(Self::assemble(request, device, snap_len, from, descriptors)),
            Err(error) => {
                from.give_up();
                Err(error)
            }
        }
    }

    /// For benchmarks: takes a capture with one worker that is already open and has no interface.
    pub(crate) fn over(
        capture: Capture,
        snap_len: u32,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let worker = capture.workers().pop().ok_or("a new capture has a worker")?;
        let pollable = Pollable::several(&worker)?;
        let from =
            Origin { capture: Arc::new(capture), worker, filter: Arc::default(), membership: None };

        // Any device and any descriptor: no frame is sent.
        let device = Device::find("lo")?;
        let sender = OwnedFd::from(File::open("/dev/null")?);

        // Immediate mode, which never rests: all packets have already arrived.
        let request = Request { immediate: 1, ..Request::new(None) };
        let descriptors =
            Descriptors { pollable, sender: Arc::new(sender), sole: Some(SoleReader::new()?) };
        Ok(Self::assemble(&request, device, snap_len, from, descriptors))
    }

    fn assemble(
        request: &Request,
        device: Device,
        snap_len: u32,
        from: Origin,
        descriptors: Descriptors,
    ) -> Self {
        let Origin { capture, worker, filter, membership } = from;
        let Descriptors { pollable, sender, sole } = descriptors;
        let index = worker.index();
        let waker = worker.waker();
        let cuts = sole.is_none();
        let forks = forks::count();

        // In a group a reader must notice that others need help, and the kernel already wakes the
        // reader of a packet socket only once per block.
        let may_rest = !cuts && membership.is_none() && !request.is_immediate();
        let longest_rest = if may_rest { request.longest_wait() } else { Duration::ZERO };
        let rest = Rest::new(longest_rest, capture.geometry().cells());
        let promiscuous = request.promiscuous.is_some_and(|on| on != 0);
        let interface_drops = InterfaceDrops::of(&device.name);

        Self {
            reader: UnsafeCell::new(Reader::new(worker, capture.most_rings(), sole, rest)),
            ahead: UnsafeCell::new(Ahead::new()),
            worker: index,
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

    /// Makes the reading thread check whether its packets are still valid. A signal handler may
    /// call it.
    pub(crate) fn disturb(&self) {
        self.disturbances.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether a read continues until it has a matching packet.
    #[inline]
    pub(crate) fn is_endless(&self) -> bool {
        // A program that waits on the descriptor itself is woken for non-matching packets too, and
        // must get control back.
        let sifts = || !self.cuts && self.filter.sifts.load(Ordering::Relaxed);
        let waits = self.endless || sifts() && !self.pollable.is_wanted();
        waits && !self.is_nonblocking()
    }

    /// Ends the current read, or the next one if none is running. A signal handler may call it.
    pub(crate) fn break_off(&self) {
        #[cfg(sabotage)]
        if crate::sabotage::is("breakloop-does-not-wake") {
            self.broken.store(true, Ordering::SeqCst);
            return;
        }
        self.broken.store(true, Ordering::SeqCst);
        self.disturb();
        self.waker.wake();
    }

    /// Whether [`break_off`](Self::break_off) was called; resets that state.
    #[inline]
    pub(crate) fn was_broken_off(&self) -> bool {
        self.broken.load(Ordering::Relaxed) && self.broken.swap(false, Ordering::SeqCst)
    }

    /// Whether [`break_off`](Self::break_off) was called and no read has ended because of it yet.
    #[inline]
    pub(crate) fn is_broken_off(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Stops the capture, unless other handles or processes use it, so that nothing stays attached
    /// to the interface. Interrupts a read by another thread.
    pub(crate) fn end(&self) {
        if Arc::strong_count(&self.capture) == 1 && !self.is_shared() {
            self.capture.stop();
        }
        self.break_off();
    }

    /// Whether another process may have the capture because of a fork.
    fn is_shared(&self) -> bool {
        forks::is_past(self.forks)
    }

    /// Delivers only packets that match `program` from now on; this includes packets that have
    /// already arrived.
    ///
    /// # Errors
    ///
    /// If other handles of the group have a different filter, or the kernel keeps the previous one.
    ///
    /// # Safety
    ///
    /// As for [`Wanted::new`].
    pub(crate) unsafe fn want(&self, program: &Program) -> Result<(), String> {
        // SAFETY: guaranteed by the caller.
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

        // Only a handle that gets all packets of the capture, in order for each ring, can tell
        // which packets arrived later.
        let tells = is_in_kernel && self.membership.is_none();
        let until = tells.then(|| rings.map(|ring| self.capture.arrived(ring)).collect());
        self.filter.sift(Sieve { wanted: wanted(), until });
        self.filter.sifts.store(!is_in_kernel, Ordering::Relaxed);
        *current = insns;
        self.disturb();

        Ok(())
    }

    /// Makes the kernel run this program on later packets, or accept all of them. Returns whether
    /// the kernel runs it.
    ///
    /// # Errors
    ///
    /// If the kernel keeps the previous program, which rejects packets.
    fn run_in_kernel(&self, insns: &[ClassicInsn]) -> io::Result<bool> {
        let cut_elsewhere = |insn: &ClassicInsn| insn.code == RETURN_A || cuts(insn, self.snap_len);
        if (self.cuts || !insns.iter().any(cut_elsewhere))
            && self.capture.run_in_kernel(insns).is_ok()
        {
            return Ok(true);
        }
        self.capture.run_in_kernel(&[EVERYTHING]).map(|()| false)
    }

    /// Returns the number of packets that passed the filter, including waiting and dropped ones,
    /// and the number of dropped ones. A signal handler may call it.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let Counts { arrived, dropped } = match &self.membership {
            Some(group) => group.counts(),
            None => {
                let tallies = (0..self.capture.ring_count()).map(|ring| self.capture.tally(ring));
                let counts =
                    tallies.map(|tally| Counts { arrived: tally.arrived, dropped: tally.dropped });
                counts.fold(Counts::default(), Counts::plus)
            }
        };
        #[cfg(sabotage)]
        let dropped = match self.membership {
            Some(_) if crate::sabotage::is("group-drops-counted-per-handle") => {
                (0..self.capture.ring_count()).map(|ring| self.capture.tally(ring).dropped).sum()
            }
            _ => dropped,
        };

        // A packet socket counts packets that passed the kernel's filter, as libpcap does, even if
        // user space rejects them afterwards.
        let (sifts, refused) = match self.cuts {
            true => (false, 0),
            false => {
                (self.filter.sifts.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
            }
        };

        // Waiting packets were not filtered yet, and most of them may not match.
        let passed = if sifts { self.taken.load(Ordering::Relaxed) } else { arrived };
        let received = passed.saturating_sub(refused) + dropped;

        if sifts {
            return (received, dropped);
        }

        (received.max(self.most_received.fetch_max(received, Ordering::Relaxed)), dropped)
    }

    /// Packets dropped by the interface, in promiscuous mode only, as in libpcap. A signal handler
    /// may call it.
    pub(crate) fn interface_drops(&self) -> u64 {
        #[cfg(sabotage)]
        if crate::sabotage::is("ps-ifdrop-always-zero") {
            return 0;
        }
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

/// The sum of the counters in these files; `None` if none of them can be read.
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
        if let (Some(group), Some(worker)) =
            (self.membership.take(), self.reader.get_mut().worker.take())
        {
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
    /// Opens a separate capture for the handle, with one ring for all its packets if that is
    /// possible.
    fn alone(request: &Request, settings: &Settings) -> Result<Self, LiveError> {
        let name = request.device.as_ref().map(Name::whole).unwrap_or_default();
        let capture = open_capture(request.builder(&name, settings).workers(1), request, settings)?;
        let kept = request.snap_len();

        if capture.interfaces()[0].reception.engine() == Engine::Packet {
            // Until a filter with its own length is set, the kernel need not copy more than
            // requested.
            let cut = ClassicInsn { k: kept.max(SNAP_BYTES_MIN), ..EVERYTHING };
            capture
                .run_in_kernel(&[cut])
                .map_err(|error| LiveError::System("attach a socket filter", error))?;
        }

        let worker = capture.workers().pop().expect("a capture has a worker");
        Ok(Self { capture: Arc::new(capture), worker, filter: Arc::default(), membership: None })
    }
}

impl Origin {
    /// Returns the worker to its group, if there is one: the handle cannot be opened.
    fn give_up(self) {
        if let Some(membership) = self.membership {
            membership.leave(self.worker);
        }
    }
}

impl From<Joined> for Origin {
    fn from(Joined { membership, capture, worker, filter }: Joined) -> Self {
        Self { capture, worker, filter, membership: Some(membership) }
    }
}

/// What a handle waits on, sends on, and shares with other processes.
#[derive(Debug)]
struct Descriptors {
    pollable: Pollable,
    sender: Arc<OwnedFd>,
    sole: Option<SoleReader>,
}

impl Descriptors {
    fn new(device: &Device, from: &Origin) -> Result<Self, LiveError> {
        let Origin { capture, worker, .. } = from;
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

        // Two processes can share the ring of a packet socket, as with libpcap. A process that
        // reads AF_XDP rings changes state that the other process relies on.
        let sole =
            if cuts { None } else { Some(SoleReader::new().map_err(system("map shared memory"))?) };
        Ok(Self { pollable, sender, sole })
    }
}

/// Whether the instruction accepts packets, but truncates them to less than the snapshot length.
fn cuts(insn: &ClassicInsn, snap_len: u32) -> bool {
    insn.code == RETURN && insn.k > 0 && insn.k < snap_len
}
