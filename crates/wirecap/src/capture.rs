//! Opening, stopping and closing a capture.

pub(crate) mod affinity;
mod builder;
mod filtering;
mod forwarding;
mod interface;
pub(crate) mod keeper;
mod raw;
pub(crate) mod source;
mod target;
pub(crate) mod waiting;
pub(crate) mod worker;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::capture::affinity::{Machine, Pin, Placement};
use crate::capture::keeper::Keeper;
use crate::capture::source::Source;
use crate::capture::worker::{Alarm, Worker, ring_bell};
use crate::device::DeviceCounters;
use crate::error::OpenError;
use crate::file::FileRing;
use crate::forward::Exchange;
use crate::group::Group;
use crate::group::guarantee::Guarantee;
use crate::ledger::{Ledger, Mode, RingLedger};
use crate::names::RingName;
use crate::packet::{self, Unplaced};
use crate::ring::Ring;
use crate::sync::{Mutex, lock};
use crate::umem::pool::Geometry;
use crate::warning::Warning;
use crate::xdp;
use target::Target;

pub use builder::{CaptureBuilder, DEFAULT_CHUNK_CELLS, DEFAULT_CHUNKS, DEFAULT_SNAP_LEN, Engine};
pub use interface::{Interface, Reception};

/// A running capture. Dropping it stops and closes it.
#[derive(Debug)]
pub struct Capture {
    shared: Arc<Shared>,
    interfaces: Vec<Interface>,
    rings: Vec<RingName>,
    workers: Mutex<Vec<Worker>>,
    placements: Vec<Placement>,
    geometry: Geometry,
    _keeper: Option<Keeper>,
    /// What keeps other captures off the queues that are only sent on.
    _claims: Option<Vec<xdp::PortClaims>>,
}

/// What a capture shares with its workers and with whoever may stop it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) group: Group,
    /// The ports, if the capture forwards.
    exchange: Option<Arc<Exchange>>,
    /// Another process has the rings as well.
    left: AtomicBool,
    bells: Vec<Arc<OwnedFd>>,
    started: Instant,
    running: Mutex<Running>,
}

/// What receives on an interface.
#[derive(Debug)]
enum Attachment {
    Xdp(Box<xdp::Attachment>),
    Packet(Box<packet::Attachment>),
}

impl Attachment {
    /// Ends receiving. When it returns, the last packet is in its ring; false if that is not certain.
    fn detach(self) -> bool {
        match self {
            Self::Xdp(attachment) => attachment.detach(),
            Self::Packet(attachment) => attachment.detach(),
        }
    }

    /// Closes its descriptors, and ends nothing.
    fn leave_to_others(self) {
        match self {
            Self::Xdp(attachment) => attachment.leave_to_others(),
            // All that it has is descriptors.
            Self::Packet(attachment) => drop(attachment),
        }
    }
}

#[derive(Debug)]
struct Running {
    interfaces: Vec<Attached>,
    /// The savefile in place of interfaces.
    file: Option<Arc<FileRing>>,
    /// How long the capture ran and what the devices dropped meanwhile, once it was stopped.
    end: Option<(Duration, Vec<Option<u64>>)>,
    /// The kernel offered no way to wait for the last packets.
    last_packets_uncertain: bool,
}

/// An interface that packets come from.
#[derive(Debug)]
struct Attached {
    target: Target,
    /// Its counters when the capture began.
    counters_at_start: Option<DeviceCounters>,
    /// None once the capture was stopped.
    attachment: Option<Attachment>,
    unplaced: Option<Arc<Unplaced>>,
}

impl Attached {
    fn device_drops(&self) -> Option<u64> {
        self.target.counters()?.dropped_since(self.counters_at_start.as_ref()?)
    }
}

impl Running {
    fn device_drops(&self) -> Vec<Option<u64>> {
        self.interfaces.iter().map(Attached::device_drops).collect()
    }
}

impl Shared {
    /// Nanoseconds since the capture began, for the advanced mode's sense of who is stuck.
    pub(crate) fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    pub(crate) fn wake(&self, worker: usize) {
        ring_bell(&self.bells[worker]);
    }

    pub(crate) fn wake_all(&self) {
        self.bells.iter().for_each(|bell| ring_bell(bell));
    }

    fn stop(&self) {
        if self.left.load(Ordering::SeqCst) {
            return;
        }
        let mut running = lock(&self.running);
        if running.end.is_some() {
            return;
        }
        let device_drops = running.device_drops();
        running.end = Some((self.started.elapsed(), device_drops));
        let attachments = running.interfaces.iter_mut().filter_map(|interface| interface.attachment.take());
        // All of them, whatever became of the first.
        let uncertain = attachments.map(Attachment::detach).filter(|certain| !certain).count();
        running.last_packets_uncertain = uncertain > 0;
        drop(running);
        self.group.end();
        self.wake_all();
    }
}

/// Stops a capture from anywhere: a signal handler's thread, a timer, another worker.
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

    /// Reads a savefile as if its packets were being captured (the engine `file`): one ring, whose end is
    /// the end of the file. pcapng and pcap, as they are or compressed by gzip or Zstandard.
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
        let rings = group.rings().iter().map(|ring| ring.identity().name.clone()).collect();
        let shared = Arc::new(Shared {
            bells: alarms.iter().map(Alarm::bell).collect(),
            group,
            exchange,
            left: AtomicBool::new(false),
            started: Instant::now(),
            running: Mutex::new(running),
        });
        let placements = Machine::this().place(pin, &shared.group.first_rings());
        let worker = |(index, (alarm, placement)): (usize, (Alarm, &Placement))| {
            Worker::new(Arc::clone(&shared), index, alarm, placement.clone())
        };
        let workers = Mutex::new(alarms.into_iter().zip(&placements).enumerate().map(worker).collect());
        let keeper = shared.group.unattended().map(|posted| {
            Keeper::start(shared.group.rings(), shared.exchange(), keeper::period(posted))
                .map_err(|source| OpenError::System { action: "start a thread".to_owned(), source })
        });
        let keeper = keeper.transpose()?;
        let (_keeper, _claims) = (keeper, claims);
        Ok(Self { shared, interfaces, rings, workers, placements, geometry, _keeper, _claims })
    }

    /// A capture over rings that were opened elsewhere, on no interface.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn over(
        group: Group,
        exchange: Option<Arc<Exchange>>,
        geometry: Geometry,
    ) -> Result<Self, OpenError> {
        let running =
            Running { interfaces: Vec::new(), file: None, end: None, last_packets_uncertain: false };
        Self::start(group, Vec::new(), running, (exchange, None), geometry, &Pin::Off)
    }

    /// The workers, each for one thread. They are handed out once; a second call gives none.
    pub fn workers(&self) -> Vec<Worker> {
        std::mem::take(&mut *lock(&self.workers))
    }

    /// The rings, in the order of [`Chunk::ring_index`](crate::Chunk::ring_index).
    pub fn rings(&self) -> &[RingName] {
        &self.rings
    }

    /// The interfaces, in the order of [`Chunk::interface_index`](crate::Chunk::interface_index).
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Where the workers run, and why.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    fn warnings(&self, rings: &[RingLedger], running: &Running) -> Vec<Warning> {
        let interfaces = self.interfaces.iter().zip(&running.interfaces);
        let of_interface = |(index, (interface, attached)): (usize, (&Interface, &Attached))| {
            let is_here = |ring: &&Arc<dyn Ring>| ring.identity().interface_index == index;
            let here = self.shared.group.rings().iter().filter(is_here);
            let super_packets = here.map(|ring| rings[ring.identity().index].account.super_packets).sum();
            let unplaced = attached.unplaced.as_ref().map_or(0, |unplaced| unplaced.count());
            interface.warnings(super_packets, unplaced)
        };
        let warnings = interfaces.enumerate().flat_map(of_interface).chain(running.filter_warnings());
        warnings.chain(running.last_packets_uncertain.then_some(Warning::LastPacketsUncertain)).collect()
    }

    /// The engine's name in the ledger: `xdp` or `packet`, both where interfaces differ, or `file` or `sim`.
    fn engine(&self, running: &Running) -> &'static str {
        let uses = |engine| self.interfaces.iter().any(|interface| interface.reception.engine() == engine);
        match (uses(Engine::Xdp), uses(Engine::Packet)) {
            (true, true) => "xdp, packet",
            (true, false) => "xdp",
            (false, true) => "packet",
            (false, false) if running.file.is_some() => "file",
            (false, false) => "sim",
        }
    }

    /// What its settings guarantee if a packet costs a worker `cost`; `None` in basic mode. The engine `packet` promises
    /// less: its blocks go back in order.
    pub fn guarantee(&self, cost: Duration) -> Option<Guarantee> {
        let Mode::Advanced(threshold) = self.shared.group.mode() else { return None };
        let (workers, home_rings) = (self.shared.group.workers(), self.shared.group.home_rings());
        Some(Guarantee { geometry: self.geometry, threshold, workers, home_rings, cost })
    }

    /// The sizes of each ring's pool.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The configuration in the paper's notation: `B-(256,512)`.
    pub fn mode(&self) -> String {
        self.shared.group.mode().notation(self.geometry.chunk_cells, self.geometry.chunks)
    }

    /// How many packets wait in each ring, in the order of [`rings`](Self::rings): a snapshot. With the
    /// engine `packet`, how many cells' memory they take.
    pub fn backlogs(&self) -> Vec<u32> {
        self.shared.group.rings().iter().map(|ring| ring.backlog()).collect()
    }

    /// Stops the capture: packets that arrive from now on go to the host. What has arrived before is
    /// still delivered; then every worker's `next_chunk` gives `None`. Takes some milliseconds.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Something that can stop this capture from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }

    /// The account so far. While packets arrive, its numbers are taken one after the other.
    pub fn ledger(&self) -> Ledger {
        let page = |ring: &Arc<dyn Ring>| RingLedger {
            name: ring.identity().name.to_string(),
            account: ring.account(),
        };
        let rings: Vec<RingLedger> = self.shared.group.rings().iter().map(page).collect();
        let running = lock(&self.shared.running);
        let (duration, device) =
            running.end.clone().unwrap_or_else(|| (self.shared.started.elapsed(), running.device_drops()));
        let warnings = self.warnings(&rings, &running);
        let engine = self.engine(&running);
        drop(running);
        let ports = self.shared.exchange().map(|exchange| exchange.ledgers()).unwrap_or_default();
        Ledger { warnings, ports, ..Ledger::of(engine, self.mode(), duration, rings, device) }
    }

    /// Stops and closes the capture and gives its final account: what was not taken out of the rings
    /// until now counts as dropped. Chunks that are still held stay valid.
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
