//! Opening, stopping and closing a capture.

pub(crate) mod affinity;
mod all;
mod all_watch;
mod builder;
mod event;
mod filtering;
mod forwarding;
pub(crate) mod in_place;
mod interface;
pub(crate) mod keeper;
mod opening;
mod own_thread;
mod raw;
mod ring_state;
pub(crate) mod source;
mod target;
pub(crate) mod waiting;
pub(crate) mod watch;
pub(crate) mod worker;

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::capture::affinity::{Machine, Pin, Placement};
use crate::capture::all_watch::{AllAttachment, AllWatch};
use crate::capture::in_place::ReadableRing;
use crate::capture::keeper::Keeper;
use crate::capture::source::Source;
use crate::capture::worker::{Alarm, Worker, forget, ring_bell, watch};
use crate::device::Device;
use crate::device::events::Events;
use crate::error::{CaptureError, OpenError};
use crate::file::FileRing;
use crate::forward::Exchange;
use crate::group::Group;
use crate::group::guarantee::Guarantee;
use crate::ledger::{Ledger, Mode, RingLedger, Unseen};
use crate::names::RingName;
use crate::packet::{self, SeenInterface, SeenInterfaces, Unplaced};
use crate::sync::{Mutex, lock};
use crate::sys::packet::PacketSocket;
use crate::umem::pool::{Cells, Geometry};
use crate::umem::ring::Ring;
use crate::warning::Warning;
use crate::xdp;
use target::Target;
use watch::comparison::Comparison;
use watch::drops::DropCount;
use watch::{Watched, Watcher};

pub use builder::{CaptureBuilder, DEFAULT_CHUNK_CELLS, DEFAULT_CHUNKS, DEFAULT_SNAP_LEN, Engine};
pub use event::Event;
pub use interface::{Interface, Reception};
pub use ring_state::RingState;
pub use target::wanted_pool_bytes;

/// A running capture. Dropping it stops and closes it.
#[derive(Debug)]
pub struct Capture {
    shared: Arc<Shared>,
    interfaces: Vec<Interface>,
    workers: Mutex<Vec<Worker>>,
    placements: Vec<Placement>,
    geometry: Geometry,
    /// The interfaces, if these are all.
    seen: Option<SeenInterfaces>,
    _keeper: Option<Keeper>,
    _watcher: Option<Watcher>,
    /// Claims that keep other captures off the queues of transmit-only ports.
    _claims: Option<Vec<xdp::PortClaims>>,
}

/// State shared by a capture, its workers and its stoppers.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) group: Group,
    /// The ports, if the capture forwards.
    exchange: Option<Arc<Exchange>>,
    /// Another process has the rings as well (after a fork).
    left: AtomicBool,
    bells: Vec<Arc<OwnedFd>>,
    /// The epoll instances on which workers sleep.
    alarms: Vec<Arc<OwnedFd>>,
    /// Interfaces that are no longer captured, by index.
    failures: Mutex<Vec<(usize, Failure)>>,
    /// Whether there are any of these interfaces.
    has_failed: AtomicBool,
    /// The kernel's messages about interfaces, if they are watched.
    events: Option<Arc<Events>>,
    /// Whether removed interfaces may return.
    pub(crate) waits_for_interfaces: bool,
    /// Maximum nanoseconds from a packet's timestamp until it can be captured.
    delay_nanos: AtomicU64,
    started: Instant,
    running: Mutex<Running>,
}

/// Why an interface is no longer captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The interface of this name was removed.
    Gone(String),
    /// The program was detached from the interface of this name.
    Detached(String),
}

impl Failure {
    pub(crate) fn error(&self) -> CaptureError {
        match self {
            Self::Gone(interface) => CaptureError::InterfaceGone { interface: interface.clone() },
            Self::Detached(interface) => CaptureError::Detached { interface: interface.clone() },
        }
    }
}

/// The receiving side of an interface.
#[derive(Debug)]
enum Attachment {
    Xdp(Box<xdp::Attachment>),
    Packet(Box<packet::Attachment>),
    /// All interfaces, by the engine `packet`.
    All(Box<AllAttachment>),
}

impl Attachment {
    /// Matching packets that went to the host because their queue had no ring.
    fn missed(&self) -> u64 {
        match self {
            Self::Xdp(attachment) => attachment.missed(),
            Self::Packet(_) | Self::All(_) => 0,
        }
    }

    /// Whether it can continue on an interface that has returned.
    fn can_move(&self) -> bool {
        match self {
            Self::Xdp(attachment) => attachment.can_move(),
            Self::Packet(attachment) => attachment.can_move(),
            Self::All(_) => false,
        }
    }

    /// Continues on `device`, which replaces the interface.
    fn move_to(&mut self, device: &Device) -> Result<(), OpenError> {
        match self {
            Self::Xdp(attachment) => attachment.move_to(device),
            Self::Packet(attachment) => attachment.move_to(device),
            Self::All(_) => Err(OpenError::BadDeviceName { name: device.name.clone() }),
        }
    }

    /// Stops receiving. On return the last packet is in its ring; false if that is not certain.
    fn detach(self) -> bool {
        match self {
            Self::Xdp(attachment) => attachment.detach(),
            Self::Packet(attachment) => attachment.detach(),
            Self::All(attachment) => attachment.detach(),
        }
    }

    /// Closes its descriptors without stopping the capture.
    fn leave_to_others(self) {
        match self {
            Self::Xdp(attachment) => attachment.leave_to_others(),
            // It consists of descriptors only.
            Self::Packet(attachment) => drop(attachment),
            Self::All(attachment) => drop(attachment),
        }
    }
}

#[derive(Debug)]
struct Running {
    interfaces: Vec<Attached>,
    /// The interfaces of the ports, if the capture forwards.
    ports: Vec<Device>,
    /// The savefile in place of interfaces.
    file: Option<Arc<FileRing>>,
    /// The settings of the capture.
    builder: CaptureBuilder,
    /// Counts that no ring has, once the capture was stopped.
    end: Option<End>,
    /// The kernel offered no way to wait for the last packets.
    last_packets_uncertain: bool,
    /// The first ring, if it can be read in place.
    first_ring: Option<ReadableRing>,
}

/// Counts that no ring has.
#[derive(Debug, Clone)]
struct End {
    /// How long the capture ran.
    duration: Duration,
    /// What each device dropped.
    device_drops: Vec<Option<u64>>,
    /// Packets of queues that had no ring.
    missed: u64,
    /// Of each interface, captured frames for its own hardware address, where they are counted.
    own_frames: Vec<u64>,
}

/// An interface that packets come from.
#[derive(Debug)]
struct Attached {
    target: Target,
    /// What its device dropped.
    drops: DropCount,
    /// None once the capture was stopped.
    attachment: Option<Attachment>,
    unplaced: Option<Arc<Unplaced>>,
    watched: Watched,
    /// Its index among the interfaces.
    index: usize,
    geometry: Geometry,
    /// Unbound packet sockets, for handing the interface back to the host; a failed attempt uses
    /// some up.
    standby: Vec<PacketSocket>,
    /// Number of rings on it after it was handed back.
    rings_on_return: u32,
    /// The `xdp` attachment before the interface was handed back to the host.
    former: Option<Box<xdp::Attachment>>,
    was_handed_back: bool,
    /// Whether its filter depends on VLAN tags, or a former one did.
    tags_matter: bool,
    /// When the drops were last read.
    drops_read: Instant,
    /// What its device counted as received, compared with what the rings saw.
    comparison: Comparison,
    /// When the two were last compared.
    compared: Instant,
    /// The interfaces that it stands for, if these are all.
    all: Option<Box<AllWatch>>,
}

impl Attached {
    /// Restarts the counters with `device`, which replaces another one.
    fn begin_counting(&mut self, device: &Device) {
        self.drops.replace(device.counters().ok());
    }

    /// Captured frames for its own hardware address, if `auto` selected `xdp`.
    fn own_frames(&self) -> u64 {
        let now = match &self.attachment {
            Some(Attachment::Xdp(attachment)) => attachment.own_frames(),
            _ => 0,
        };
        now + self.former.as_ref().map_or(0, |former| former.own_frames())
    }

    fn device_drops(&mut self) -> Option<u64> {
        self.drops_read = Instant::now();
        if let Some(all) = &mut self.all {
            return all.device_drops();
        }
        let now = SystemTime::now();
        let (drops, reset) = self.drops.read(self.target.counters(), now);
        if let Some(reset) = reset {
            self.watched.lose_count(reset, now);
        }
        drops
    }

    /// The unseen periods.
    fn unseen(&self) -> Vec<Unseen> {
        match &self.all {
            Some(all) => all.unseen().to_vec(),
            None => self.watched.unseen().to_vec(),
        }
    }
}

impl Running {
    /// The counts so far.
    fn so_far(&mut self, duration: Duration) -> End {
        let missed = |attached: &Attached| {
            let former = attached.former.as_ref().map_or(0, |former| former.missed());
            former + attached.attachment.as_ref().map_or(0, Attachment::missed)
        };
        End {
            duration,
            device_drops: self.interfaces.iter_mut().map(Attached::device_drops).collect(),
            missed: self.interfaces.iter().map(missed).sum(),
            own_frames: self.interfaces.iter().map(Attached::own_frames).collect(),
        }
    }
}

impl Shared {
    /// The first ring, if it can be read in place.
    pub(crate) fn first_ring(&self) -> Option<ReadableRing> {
        lock(&self.running).first_ring.clone()
    }

    /// Nanoseconds since the capture began, by which advanced mode detects stuck workers.
    pub(crate) fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    pub(crate) fn wake(&self, worker: usize) {
        ring_bell(&self.bells[worker]);
    }

    pub(crate) fn wake_all(&self) {
        self.bells.iter().for_each(|bell| ring_bell(bell));
    }

    /// From now on a packet may be captured as late as `delay` after its timestamp.
    fn allow_delay(&self, delay: Duration) {
        self.delay_nanos.fetch_max(delay.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Adds a ring to the group: its worker serves it from now on.
    fn add_ring(&self, ring: Arc<dyn Ring>, group_per_interface: bool) -> Result<(), OpenError> {
        let part = if group_per_interface { ring.identity().interface_index } else { 0 };
        let name = ring.identity().name.clone();
        let Some(worker) = self.group.add(Arc::clone(&ring), part) else {
            return Err(OpenError::NoRoom { ring: name });
        };
        let mut outcome = Ok(());

        ring.watch(&mut |descriptor| {
            outcome = outcome.and(watch(&self.alarms[worker], descriptor));
        });
        outcome.map_err(|errno| OpenError::System {
            action: "wait for packets of another ring".to_owned(),
            source: errno.into(),
        })?;
        self.wake(worker);

        Ok(())
    }

    /// Makes the workers of an interface's rings wake up on the new sockets.
    fn watch_rings_of(&self, interface: usize) {
        for (worker, ring) in self.rings_of(interface) {
            // Fails only if it was already watched.
            ring.watch(&mut |descriptor| _ = watch(&self.alarms[worker], descriptor));
            self.wake(worker);
        }
    }

    /// Stops waking them on those sockets, which may outlive their interface while chunks are held.
    fn forget_rings_of(&self, interface: usize) {
        for (worker, ring) in self.rings_of(interface) {
            // Fails only if it is not watched.
            ring.watch(&mut |descriptor| _ = forget(&self.alarms[worker], descriptor));
        }
    }

    /// The rings of an interface, each with its home worker.
    fn rings_of(&self, interface: usize) -> impl Iterator<Item = (usize, &Arc<dyn Ring>)> {
        let rings = self.group.rings().iter().enumerate();
        let of_interface =
            rings.filter(move |(_, ring)| ring.identity().interface_index == interface);
        of_interface.map(|(index, ring)| (self.group.home_of(index), ring))
    }

    /// Marks the interface as no longer captured; the workers of its rings will get the error.
    fn fail(&self, interface: usize, failure: Failure) {
        let mut failures = lock(&self.failures);
        if failures.iter().all(|(failed, _)| *failed != interface) {
            failures.push((interface, failure));
            self.has_failed.store(true, Ordering::Release);
            self.wake_all();
        }
    }

    /// Whether any interface is no longer captured.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Why a home ring of `worker` gets no more packets, after all earlier packets were delivered.
    pub(crate) fn failure_of(&self, worker: usize) -> Option<CaptureError> {
        let failures = lock(&self.failures);
        let failed = |(interface, failure): &(usize, Failure)| {
            let mut home = self
                .group
                .home(worker)
                .filter(|ring| ring.identity().interface_index == *interface);
            let is_drained = |ring: &Arc<dyn Ring>| ring.is_empty();
            home.next()
                .is_some_and(|first| is_drained(first) && home.all(is_drained))
                .then(|| failure.error())
        };
        failures.iter().find_map(failed)
    }

    fn stop(&self) {
        if self.left.load(Ordering::SeqCst) {
            return;
        }

        let mut running = lock(&self.running);
        if running.end.is_some() {
            return;
        }

        running.interfaces.iter_mut().for_each(|attached| attached.look_at_end(self));
        running.interfaces.iter_mut().for_each(|attached| attached.compare_at_end(self));
        running.end = Some(running.so_far(self.started.elapsed()));

        let attachments =
            running.interfaces.iter_mut().filter_map(|interface| interface.attachment.take());

        // All of them, even if the first one fails.
        let uncertain = attachments.map(Attachment::detach).filter(|certain| !certain).count();
        let former = running.interfaces.iter_mut().filter_map(|interface| interface.former.take());
        let former_uncertain =
            former.map(|attachment| attachment.detach()).filter(|certain| !certain).count();
        running.last_packets_uncertain = uncertain + former_uncertain > 0;
        drop(running);
        self.group.end();
        self.wake_all();
    }
}

/// Stops a capture from any thread: a signal-handling thread, a timer, another worker.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Shared>);

impl Stopper {
    /// As [`Capture::stop`].
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl Capture {
    /// A capture on `source`: an interface (`eth0`: all its receive queues) or receive queues of it
    /// (`eth0@2`, `eth0@0-3`, `eth0@0,2`).
    pub fn on(source: impl Into<Source>) -> CaptureBuilder {
        CaptureBuilder::new(vec![source.into()], None)
    }

    /// Reads a savefile as if its packets were being captured (the engine `file`): one ring, which
    /// ends with the file. pcapng and pcap, plain or compressed with gzip or Zstandard.
    pub fn file(path: impl Into<PathBuf>) -> CaptureBuilder {
        CaptureBuilder::new(Vec::new(), Some(path.into()))
    }

    fn start(
        group: Group,
        interfaces: Vec<Interface>,
        running: Running,
        (exchange, claims): (Option<Arc<Exchange>>, Option<Vec<xdp::PortClaims>>),
        geometry: Geometry,
        pin: &Pin,
    ) -> Result<Self, OpenError> {
        let failed = |errno: rustix::io::Errno| OpenError::System {
            action: "make an epoll instance".to_owned(),
            source: errno.into(),
        };
        let mut alarms = Vec::new();

        for worker in 0..group.workers() {
            let alarm = Alarm::new().map_err(failed)?;
            let mut outcome = Ok(());
            for ring in group.home(worker) {
                ring.watch(&mut |descriptor| outcome = outcome.and(alarm.watch(descriptor)));
            }
            outcome.map_err(failed)?;
            alarms.push(alarm);
        }

        let all = running.interfaces.iter().find_map(|attached| attached.all.as_ref());
        let seen = all.map(|all| all.seen());
        let watched = running.builder.watched && !interfaces.is_empty();
        let look_period = running.builder.look_period;

        let delay = interfaces
            .iter()
            .map(|interface| interface.reception.delay())
            .max()
            .unwrap_or_default();
        let events = watched.then(Events::new).transpose().map_err(|source| OpenError::System {
            action: "listen to the kernel's messages about interfaces".to_owned(),
            source,
        })?;

        let shared = Arc::new(Shared {
            bells: alarms.iter().map(Alarm::bell).collect(),
            alarms: alarms.iter().map(Alarm::epoll).collect(),
            failures: Mutex::new(Vec::new()),
            has_failed: AtomicBool::new(false),
            events: events.map(Arc::new),
            waits_for_interfaces: running.builder.reattach,
            group,
            exchange,
            left: AtomicBool::new(false),
            started: Instant::now(),
            delay_nanos: AtomicU64::new(delay.as_nanos() as u64),
            running: Mutex::new(running),
        });
        let begin = |attached: &mut Attached| attached.begin_comparison(&shared);
        lock(&shared.running).interfaces.iter_mut().for_each(begin);

        let placements = Machine::this().place(pin, &shared.group.first_rings());
        let worker = |(index, (alarm, placement)): (usize, (Alarm, &Placement))| {
            Worker::new(Arc::clone(&shared), index, alarm, placement.clone())
        };
        let workers =
            Mutex::new(alarms.into_iter().zip(&placements).enumerate().map(worker).collect());

        let keeper = shared.group.unattended().map(|posted| {
            Keeper::start(&shared, keeper::period(posted))
                .map_err(|source| OpenError::System { action: "start a thread".to_owned(), source })
        });
        let keeper = keeper.transpose()?;
        let events = shared.events.clone();
        let watcher = events.map(|events| Watcher::start(&shared, events, look_period)).transpose();
        let watcher = watcher.map_err(|source| OpenError::System {
            action: "watch the interfaces".to_owned(),
            source,
        })?;

        let _keeper = keeper;
        let _watcher = watcher;
        let _claims = claims;

        Ok(Self {
            shared,
            interfaces,
            workers,
            placements,
            geometry,
            seen,
            _keeper,
            _watcher,
            _claims,
        })
    }

    /// A capture over rings that were opened elsewhere, without an interface.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn over(
        group: Group,
        first_ring: Option<ReadableRing>,
        exchange: Option<Arc<Exchange>>,
        geometry: Geometry,
    ) -> Result<Self, OpenError> {
        let builder = CaptureBuilder::new(Vec::new(), None);
        let running = Running {
            interfaces: Vec::new(),
            ports: Vec::new(),
            file: None,
            builder,
            end: None,
            last_packets_uncertain: false,
            first_ring,
        };
        Self::start(group, Vec::new(), running, (exchange, None), geometry, &Pin::Off)
    }

    /// The workers, each for one thread. The first call returns all of them, later calls none.
    pub fn workers(&self) -> Vec<Worker> {
        std::mem::take(&mut *lock(&self.workers))
    }

    /// The current rings, in the order of [`Chunk::ring_index`](crate::Chunk::ring_index). More may
    /// be added at the end while the capture runs, up to [`most_rings`](Self::most_rings).
    pub fn rings(&self) -> Vec<RingName> {
        self.shared.group.rings().iter().map(|ring| ring.identity().name.clone()).collect()
    }

    /// Maximum time from a packet's timestamp until it can be captured, with the engines that are
    /// in use: longer after an interface was handed back to the host ([`Event::HandedBack`]). To
    /// order packets of several rings, wait this long for a ring without packets.
    pub fn delay(&self) -> Duration {
        Duration::from_nanos(self.shared.delay_nanos.load(Ordering::Relaxed))
    }

    /// The current number of rings.
    pub fn ring_count(&self) -> usize {
        self.shared.group.rings().len()
    }

    /// The maximum number of rings, if receive queues are added.
    pub fn most_rings(&self) -> usize {
        self.shared.group.rings().room()
    }

    /// The interfaces, in the order of [`Chunk::interface_index`](crate::Chunk::interface_index).
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// The interfaces that the capture names: all but the one that stands for
    /// [all interfaces](Source::any).
    pub fn named_interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.interfaces.iter().filter(|interface| !interface.device.is_all())
    }

    /// The interfaces of a capture of [all interfaces](Source::any), up to now; `None` if the
    /// capture names its interfaces.
    pub fn seen_interfaces(&self) -> Option<SeenInterfaces> {
        self.seen.clone()
    }

    /// The CPU of each worker, with the reason.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    fn warnings(
        &self,
        rings: &[RingLedger],
        running: &Running,
        end: &End,
        seen: &[SeenInterface],
    ) -> Vec<Warning> {
        let interfaces = self.interfaces.iter().zip(&running.interfaces);
        let of_interface = |(index, (interface, attached)): (usize, (&Interface, &Attached))| {
            let is_here = |ring: &&Arc<dyn Ring>| ring.identity().interface_index == index;
            let here = self.shared.group.rings().iter().filter(is_here);
            let super_packets =
                here.map(|ring| rings[ring.identity().index].account.super_packets).sum();
            let unplaced = attached.unplaced.as_ref().map_or(0, |unplaced| unplaced.count());
            let frames = end.own_frames.get(index).copied().unwrap_or(0);
            #[cfg(sabotage)]
            let frames = if crate::sabotage::is("own-frames-uncounted") { 0 } else { frames };
            let name = interface.device.name.clone();
            let own = (frames > 0).then_some(Warning::OwnFrames { interface: name, frames });

            interface.warnings(super_packets, unplaced, attached.tags_matter).into_iter().chain(own)
        };

        let long = |seen: &SeenInterface| {
            let interface = seen.name.clone();
            Warning::SuperPackets { interface, packets: seen.super_packets }
        };
        let long = seen.iter().filter(|seen| seen.super_packets > 0).map(long);
        let warnings = interfaces
            .enumerate()
            .flat_map(of_interface)
            .chain(running.filter_warnings())
            .chain(long);

        warnings
            .chain(running.last_packets_uncertain.then_some(Warning::LastPacketsUncertain))
            .collect()
    }

    /// The engine's name in the ledger: `xdp` or `packet`, both if interfaces differ, or `file` or
    /// `sim`.
    fn engine(&self, running: &Running) -> &'static str {
        let handed_back = running.interfaces.iter().any(|attached| attached.was_handed_back);
        let uses = |engine| {
            let mut interfaces = self.interfaces.iter();
            (handed_back && engine == Engine::Packet)
                || interfaces.any(|interface| interface.reception.engine() == engine)
        };
        match (uses(Engine::Xdp), uses(Engine::Packet)) {
            (true, true) => "xdp, packet",
            (true, false) => "xdp",
            (false, true) => "packet",
            (false, false) if running.file.is_some() => "file",
            (false, false) => "sim",
        }
    }

    /// What the settings guarantee if a worker needs `cost` per packet; `None` in basic mode. The
    /// engine `packet` guarantees less, because its blocks are reused in order.
    pub fn guarantee(&self, cost: Duration) -> Option<Guarantee> {
        let Mode::Advanced(threshold) = self.shared.group.mode() else { return None };
        let workers = self.shared.group.workers();
        let home_rings = self.shared.group.home_rings();
        let rings = self.shared.group.rings().iter();
        let sizes = rings.map(|ring| ring.size());
        let shares = sizes.map(|size| f64::from(size.usable) / f64::from(size.capacity));
        let usable = shares.fold(1.0, f64::min);
        Some(Guarantee { geometry: self.geometry, usable, threshold, workers, home_rings, cost })
    }

    /// The sizes of each ring's pool.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The configuration in the paper's notation: `B-(256,512)`.
    pub fn mode(&self) -> String {
        self.shared.group.mode().notation(self.geometry.chunk_cells, self.geometry.chunks)
    }

    /// The number of packets that wait in each ring, in the order of [`rings`](Self::rings): a
    /// snapshot. With the engine `packet`, the memory that they use, in cells.
    pub fn backlogs(&self) -> Vec<u32> {
        self.shared.group.rings().iter().map(|ring| ring.backlog()).collect()
    }

    /// Whether no packets wait, for each ring in the order of [`rings`](Self::rings): a snapshot.
    /// Costs less than [`backlogs`](Self::backlogs).
    pub fn empty_rings(&self) -> Vec<bool> {
        self.shared.group.rings().iter().map(|ring| ring.is_empty()).collect()
    }

    /// The state of each ring, in the order of [`rings`](Self::rings): its cells, its worker and
    /// its helpers. A snapshot for monitoring, which takes the rings' locks briefly.
    pub fn ring_states(&self) -> Vec<RingState> {
        let group = &self.shared.group;
        let state = |(index, ring): (usize, &Arc<dyn Ring>)| RingState {
            name: ring.identity().name.clone(),
            capacity: ring.size().capacity,
            cells: ring.cells(),
            threshold: group.limit_of(index),
            worker: group.home_of(index),
            helpers: group.helpers_of(index),
        };
        group.rings().iter().enumerate().map(state).collect()
    }

    /// The state of the cells of one ring, by its index in [`rings`](Self::rings). A snapshot; for
    /// a ring that was closed, the last one. It takes the ring's locks briefly.
    pub fn cells_of(&self, ring: usize) -> Option<Cells> {
        self.shared.group.rings().iter().nth(ring).map(|ring| ring.cells())
    }

    /// Stops the capture: packets that arrive from now on go to the host. Earlier packets are still
    /// delivered; then every worker's `next_chunk` returns `None`. Takes some milliseconds.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Closes one ring of the engine `xdp` and the rings that share its receive queue: their
    /// packets go to the host from now on, and the queue may be removed (`ethtool -L`). Waiting
    /// packets count as dropped. If the queue returns later, it gets a new ring.
    ///
    /// # Errors
    ///
    /// If there is no such ring, or it belongs to another engine.
    pub fn close_ring(&self, ring: usize) -> Result<(), CaptureError> {
        let failed = |kind: io::ErrorKind| CaptureError::System {
            action: "close a ring",
            source: kind.into(),
        };
        let rings = self.shared.group.rings();
        let chosen = rings.iter().nth(ring).ok_or_else(|| failed(io::ErrorKind::NotFound))?;
        let interface = chosen.identity().interface_index;
        let name = &chosen.identity().name;
        let mut running = lock(&self.shared.running);
        let attached = running.interfaces.get_mut(interface);
        let attachment = attached.and_then(|attached| attached.attachment.as_mut());
        let Some(Attachment::Xdp(attachment)) = attachment else {
            return Err(failed(io::ErrorKind::Unsupported));
        };

        attachment.close_queue(name.queue);
        let is_beside = |other: &&Arc<dyn Ring>| {
            let other = other.identity();
            other.interface_index == interface && other.name.queue == name.queue
        };
        rings.iter().filter(is_beside).for_each(|ring| ring.close());

        Ok(())
    }

    /// A handle that can stop this capture from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// The ledger so far. While packets arrive, the rings are read one after the other.
    pub fn ledger(&self) -> Ledger {
        let page = |ring: &Arc<dyn Ring>| RingLedger {
            name: ring.identity().name.to_string(),
            account: ring.account(),
        };

        // Before the rings: a ledger of a running capture has no packet that was sent and not
        // delivered.
        let ports = self.shared.exchange().map(|exchange| exchange.ledgers()).unwrap_or_default();

        // While this lock is held, the watcher opens no rings: the following code sees the same
        // ones.
        let mut running = lock(&self.shared.running);
        let rings: Vec<RingLedger> = self.shared.group.rings().iter().map(page).collect();
        let end =
            running.end.clone().unwrap_or_else(|| running.so_far(self.shared.started.elapsed()));
        let unseen = running.interfaces.iter().flat_map(Attached::unseen).collect();
        let seen = self.seen.as_ref().map(SeenInterfaces::list).unwrap_or_default();
        let warnings = self.warnings(&rings, &running, &end, &seen);
        let engine = self.engine(&running);
        let comparisons = running.interfaces.iter().map(|attached| &attached.comparison);
        let counted =
            comparisons.clone().flat_map(|comparison| comparison.counted().to_vec()).collect();
        let quiet_since = comparisons.filter_map(Comparison::may_be_dead_since).collect();
        let starved_wrong = running.interfaces.iter().any(Attached::delivers_wrong_if_starved);
        let unreadable = running.file.as_ref().and_then(|file| file.unreadable());
        let interfaces = seen.into_iter().map(SeenInterface::ledger).collect();

        drop(running);
        let ledger = Ledger::of(engine, self.mode(), end.duration, rings, end.device_drops);
        let ledger = ledger.with_gaps(end.missed, unseen);

        Ledger {
            warnings,
            ports,
            interfaces,
            counted,
            quiet_since,
            starved_wrong,
            unreadable,
            ..ledger
        }
    }

    /// Stops and closes the capture and returns its final ledger. Packets not yet taken out of the
    /// rings count as dropped. Outstanding chunks stay valid.
    pub fn close(self) -> Ledger {
        self.shut();
        self.ledger()
    }

    fn shut(&self) {
        self.stop();
        if self.shared.left.load(Ordering::SeqCst) {
            return;
        }
        if let Some(exchange) = self.shared.exchange() {
            exchange.close();
        }
        self.shared.group.rings().iter().for_each(|ring| ring.close());
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.shut();
    }
}
