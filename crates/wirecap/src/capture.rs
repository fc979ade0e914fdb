//! Opening, stopping and closing a capture.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::chunk::RingName;
use crate::device::Device;
use crate::error::OpenError;
use crate::group::Group;
use crate::ledger::{Ledger, Mode, RingLedger};
use crate::limits;
use crate::pool::Geometry;
use crate::source::Source;
use crate::steer::Steering;
use crate::sync::{Mutex, lock};
use crate::worker::{Alarm, Worker, ring_bell};
use crate::xdp::{self, Attachment, Rung};

/// Cells per chunk (M) unless something else is asked for.
pub const DEFAULT_CHUNK_CELLS: u32 = 256;
/// Chunks per pool (R) unless something else is asked for, or the machine is small.
pub const DEFAULT_CHUNKS: u32 = 512;
/// The largest M: the paper's largest ring, 4,096 descriptors, sixteen times.
const MAX_CHUNK_CELLS: u32 = 65_536;
/// The largest R x M: what AF_XDP's 32-bit ring indices and allocators take without complaint.
const MAX_CELLS: u64 = 1 << 26;
/// More than any machine has CPUs for.
const MAX_WORKERS: usize = 1024;
/// How long a worker may be away before its buddies take everything from its rings.
const DEFAULT_STUCK_AFTER: Duration = Duration::from_secs(1);
/// Bytes kept of each packet unless something else is asked for: all of them.
pub const DEFAULT_SNAP_LEN: u32 = 262_144;

/// What a capture is to be: made by [`Capture::on`], completed by [`open`](Self::open).
#[derive(Debug, Clone)]
pub struct CaptureBuilder {
    sources: Vec<String>,
    chunk_cells: u32,
    chunks: Option<u32>,
    buffer_bytes: Option<u64>,
    mode: Mode,
    stuck_after: Duration,
    workers: Option<usize>,
    most_workers: usize,
    timestamps: bool,
    promiscuous: bool,
    snap_len: u32,
}

impl CaptureBuilder {
    /// Also captures from `device`, named as for [`Capture::on`].
    pub fn and(mut self, device: impl Into<String>) -> Self {
        self.sources.push(device.into());
        self
    }

    /// M: cells per chunk, the most packets handed out at once. Default 256.
    pub fn chunk(mut self, cells: u32) -> Self {
        self.chunk_cells = cells;
        self
    }

    /// R: chunks per pool. Every ring can hold R x M packets. Default 512, or less on a machine with
    /// little memory: all pools together take at most an eighth of it unless R is given.
    pub fn pool(mut self, chunks: u32) -> Self {
        self.chunks = Some(chunks);
        self
    }

    /// Sizes R so that the cells of all rings together take `bytes`.
    pub fn buffer(mut self, bytes: u64) -> Self {
        self.buffer_bytes = Some(bytes);
        self
    }

    /// Every worker reads its own rings only (the paper's basic mode). The default.
    pub fn basic(mut self) -> Self {
        self.mode = Mode::Basic;
        self
    }

    /// Idle workers also read rings of their buddies whose backlog exceeds `threshold`, a share of the
    /// pool from 0 to 1 (the paper's advanced mode and its T; 0.6 is a good start).
    pub fn advanced(mut self, threshold: f64) -> Self {
        self.mode = Mode::Advanced(threshold);
        self
    }

    /// In advanced mode: how long a worker may not have asked for a chunk until its rings are drained
    /// by its buddies whatever their backlog. Default 1 s.
    pub fn stuck_after(mut self, away: Duration) -> Self {
        self.stuck_after = away;
        self
    }

    /// How many workers share the rings. Default: one per ring.
    ///
    /// Where the interfaces have fewer receive queues than that, queues get several rings, so that each
    /// worker has one: a hash of a packet's flow decides which of its queue's rings it comes in, the
    /// same for both directions. Those rings share the memory of their pools, but none takes more than
    /// R x M packets of it, however long it is not read.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = Some(count);
        self
    }

    /// As [`workers`](Self::workers), but no more than there are rings anyway.
    pub fn at_most_workers(mut self, count: usize) -> Self {
        self.most_workers = count;
        self
    }

    /// Whether packets carry their time of arrival. It costs a clock read per packet in the kernel, so
    /// it is off by default.
    pub fn timestamps(mut self, on: bool) -> Self {
        self.timestamps = on;
        self
    }

    /// Whether the interface also receives what is not addressed to it. On by default.
    pub fn promiscuous(mut self, on: bool) -> Self {
        self.promiscuous = on;
        self
    }

    /// Bytes of each packet that [`Packet::data`](crate::Packet::data) gives at most. Default: 262,144.
    pub fn snap_len(mut self, bytes: u32) -> Self {
        self.snap_len = bytes;
        self
    }

    /// Opens the capture: from now on packets are kept, also before a worker asks for them.
    ///
    /// # Errors
    ///
    /// Everything that can be known to be wrong is reported before anything is changed.
    pub fn open(self) -> Result<Capture, OpenError> {
        self.check_numbers()?;
        let targets = self.targets()?;
        let ring_count = targets.iter().map(|target| target.steering.rings()).sum();
        let geometry = self.geometry(&targets, ring_count)?;
        let pool_bytes = targets.iter().map(|target| xdp::pool_bytes(geometry, &target.steering));
        let pool_bytes = pool_bytes.collect::<Result<Vec<_>, _>>()?;
        limits::check_memory(pool_bytes.iter().sum())?;
        let mut rings = Vec::new();
        let mut interfaces = Vec::new();
        let mut attached = Vec::new();
        for (interface_index, (target, pool_bytes)) in targets.into_iter().zip(pool_bytes).enumerate() {
            let settings = xdp::Settings {
                geometry,
                timestamps: self.timestamps,
                promiscuous: self.promiscuous,
                snap_len: self.snap_len,
                interface_index,
                first_ring_index: rings.len(),
            };
            let base_drops = target.device.counters().ok().and_then(|counters| counters.dropped);
            let opened = xdp::open(&target.device, &target.steering, &settings)?;
            rings.extend(opened.rings);
            attached.push(Attached {
                device: target.device.clone(),
                base_drops,
                attachment: Some(opened.attachment),
            });
            interfaces.push(Interface {
                rung: opened.rung,
                missed_rungs: opened.missed_rungs,
                huge_pages: opened.huge_pages,
                rings: target.steering.rings(),
                pool_bytes,
                queues: target.steering.queues().to_vec(),
                device: target.device,
                snap_len: self.snap_len,
            });
        }
        let workers = self.workers.unwrap_or(rings.len()).min(self.most_workers).clamp(1, rings.len());
        let group = Group::new(rings, workers, self.mode, self.stuck_after);
        Capture::start(group, interfaces, attached, geometry)
    }

    /// The interfaces and queues that are meant, each interface once.
    fn targets(&self) -> Result<Vec<Target>, OpenError> {
        let mut named: Vec<(Device, Vec<u32>)> = Vec::new();
        for name in &self.sources {
            let source: Source = name.parse()?;
            let device = Device::find(&source.interface)?;
            let queues = source.queues_of(&device)?;
            match named.iter_mut().find(|(other, _)| other.index == device.index) {
                Some((_, others)) => {
                    others.extend(queues);
                    others.sort_unstable();
                    others.dedup();
                }
                None => named.push((device, queues)),
            }
        }
        let queue_count: usize = named.iter().map(|(_, queues)| queues.len()).sum();
        let mut extra = self.workers.unwrap_or(0).saturating_sub(queue_count);
        let mut left = queue_count;
        let steer = |(device, queues): (Device, Vec<u32>)| {
            // As near to the same share for each queue as whole rings are.
            let own = (extra * queues.len()).div_ceil(left);
            (extra, left) = (extra - own, left - queues.len());
            Target { device, steering: Steering::new(queues.clone(), queues.len() + own) }
        };
        Ok(named.into_iter().map(steer).collect())
    }

    fn check_numbers(&self) -> Result<(), OpenError> {
        let bad = |parameter, value, allowed: &str| {
            Err(OpenError::BadParameter { parameter, value, allowed: allowed.to_owned() })
        };
        if !(1..=MAX_CHUNK_CELLS).contains(&self.chunk_cells) {
            return bad("M (cells per chunk)", self.chunk_cells.into(), "1 to 65536");
        }
        if let Some(chunks) = self.chunks {
            let cells = u64::from(chunks) * u64::from(self.chunk_cells);
            if chunks == 0 {
                return bad("R (chunks per pool)", 0, "1 or more");
            }
            if cells > MAX_CELLS {
                return bad("R x M (cells per pool)", cells, "up to 67108864");
            }
        }
        if let Mode::Advanced(threshold) = self.mode
            && !(0.0..=1.0).contains(&threshold)
        {
            return bad("T (threshold in percent)", (threshold * 100.0) as u64, "0 to 100");
        }
        if let Some(count) = self.workers.filter(|count| !(1..=MAX_WORKERS).contains(count)) {
            return bad("the number of workers", count as u64, "1 to 1024");
        }
        if self.snap_len == 0 {
            return bad("the snap length", 0, "1 byte or more");
        }
        Ok(())
    }

    /// The same for all rings: cells large enough for the interface with the longest frames.
    fn geometry(&self, targets: &[Target], rings: usize) -> Result<Geometry, OpenError> {
        let mut cell_bytes = 0;
        for target in targets {
            cell_bytes = cell_bytes.max(xdp::cell_bytes(&target.device, self.chunk_cells)?);
        }
        let chunk_bytes = u64::from(self.chunk_cells) * u64::from(cell_bytes);
        let fitting = |bytes: u64| bytes / rings as u64 / chunk_bytes;
        let chunks = match (self.chunks, self.buffer_bytes) {
            (Some(chunks), _) => u64::from(chunks),
            (None, Some(bytes)) if fitting(bytes) == 0 => {
                return Err(OpenError::BadParameter {
                    parameter: "the buffer size",
                    value: bytes,
                    allowed: format!("{} bytes (one chunk per ring) or more", chunk_bytes * rings as u64),
                });
            }
            (None, Some(bytes)) => fitting(bytes).min(MAX_CELLS / u64::from(self.chunk_cells)),
            (None, None) => fitting(limits::memory_total() / 8).clamp(1, u64::from(DEFAULT_CHUNKS)),
        };
        let mut geometry = Geometry { chunk_cells: self.chunk_cells, chunks: chunks as u32, cell_bytes };
        if self.chunks.is_none() && targets.iter().any(|target| target.steering.is_needed()) {
            geometry = xdp::without_padding(geometry);
        }
        Ok(geometry)
    }
}

/// What a capture is to receive from one interface.
#[derive(Debug)]
struct Target {
    device: Device,
    steering: Steering,
}

/// An interface of a capture.
#[derive(Debug)]
pub struct Interface {
    /// What the kernel says of it.
    pub device: Device,
    /// The receive queues that are captured.
    pub queues: Vec<u32>,
    /// How many rings its packets come in.
    pub rings: usize,
    /// Bytes of its pools' cells.
    pub pool_bytes: u64,
    /// How its packets are received.
    pub rung: Rung,
    /// The better ways that were tried, each with the reason why it was not to be had.
    pub missed_rungs: Vec<(Rung, String)>,
    /// Whether its pools lie on reserved huge pages.
    pub huge_pages: bool,
    /// Bytes kept of each packet.
    pub snap_len: u32,
}

/// A running capture. Dropping it stops and closes it.
#[derive(Debug)]
pub struct Capture {
    shared: Arc<Shared>,
    interfaces: Vec<Interface>,
    rings: Vec<RingName>,
    workers: Mutex<Vec<Worker>>,
    geometry: Geometry,
}

/// What a capture shares with its workers and with whoever may stop it.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) group: Group,
    pub(crate) ending: AtomicBool,
    bells: Vec<Arc<OwnedFd>>,
    started: Instant,
    running: Mutex<Running>,
}

#[derive(Debug)]
struct Running {
    interfaces: Vec<Attached>,
    /// How long the capture ran and what the devices dropped meanwhile, once it was stopped.
    end: Option<(Duration, Vec<Option<u64>>)>,
}

/// An interface that packets come from.
#[derive(Debug)]
struct Attached {
    device: Device,
    /// Its drop counter when the capture began; `None` if it reports none.
    base_drops: Option<u64>,
    /// None once the capture was stopped.
    attachment: Option<Attachment>,
}

impl Attached {
    fn device_drops(&self) -> Option<u64> {
        let now = self.device.counters().ok()?.dropped?;
        Some(now.saturating_sub(self.base_drops?))
    }
}

impl Running {
    fn device_drops(&self) -> Vec<Option<u64>> {
        self.interfaces.iter().map(Attached::device_drops).collect()
    }
}

impl Shared {
    /// Nanoseconds since the capture began, for the advanced mode's sense of who is stuck; basic mode
    /// has no use for it and does not pay for it.
    pub(crate) fn now(&self) -> u64 {
        match self.group.mode() {
            Mode::Basic => 0,
            Mode::Advanced(_) => self.started.elapsed().as_nanos() as u64,
        }
    }

    pub(crate) fn wake(&self, worker: usize) {
        ring_bell(&self.bells[worker]);
    }

    pub(crate) fn wake_all(&self) {
        self.bells.iter().for_each(|bell| ring_bell(bell));
    }

    fn stop(&self) {
        let mut running = lock(&self.running);
        if running.end.is_some() {
            return;
        }
        let device_drops = running.device_drops();
        running.end = Some((self.started.elapsed(), device_drops));
        let attachments = running.interfaces.iter_mut().filter_map(|interface| interface.attachment.take());
        attachments.for_each(Attachment::detach);
        drop(running);
        self.ending.store(true, Ordering::SeqCst);
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
    /// A capture on `device`: an interface (`eth0`: all its receive queues) or receive queues of it
    /// (`eth0@2`, `eth0@0-3`, `eth0@0,2`).
    pub fn on(device: impl Into<String>) -> CaptureBuilder {
        CaptureBuilder {
            sources: vec![device.into()],
            chunk_cells: DEFAULT_CHUNK_CELLS,
            chunks: None,
            buffer_bytes: None,
            mode: Mode::Basic,
            stuck_after: DEFAULT_STUCK_AFTER,
            workers: None,
            most_workers: usize::MAX,
            timestamps: false,
            promiscuous: true,
            snap_len: DEFAULT_SNAP_LEN,
        }
    }

    fn start(
        group: Group,
        interfaces: Vec<Interface>,
        attached: Vec<Attached>,
        geometry: Geometry,
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
            ending: AtomicBool::new(false),
            started: Instant::now(),
            running: Mutex::new(Running { interfaces: attached, end: None }),
        });
        let worker = |(index, alarm)| Worker::new(Arc::clone(&shared), index, alarm);
        let workers = Mutex::new(alarms.into_iter().enumerate().map(worker).collect());
        Ok(Self { shared, interfaces, rings, workers, geometry })
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

    /// The sizes of each ring's pool.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The configuration in the paper's notation: `B-(256,512)`.
    pub fn mode(&self) -> String {
        self.shared.group.mode().notation(&self.geometry)
    }

    /// How many packets wait in each ring, in the order of [`rings`](Self::rings): a snapshot.
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
        let page = |ring: &Arc<dyn crate::ring::Ring>| RingLedger {
            name: ring.identity().name.to_string(),
            account: ring.account(),
        };
        let rings = self.shared.group.rings().iter().map(page).collect();
        let running = lock(&self.shared.running);
        let (duration, device) =
            running.end.clone().unwrap_or_else(|| (self.shared.started.elapsed(), running.device_drops()));
        drop(running);
        Ledger::of("xdp", self.mode(), duration, rings, device)
    }

    /// Stops and closes the capture and gives its final account: what was not taken out of the rings
    /// until now counts as dropped. Chunks that are still held stay valid.
    pub fn close(self) -> Ledger {
        self.shut();
        self.ledger()
    }

    fn shut(&self) {
        self.stop();
        self.shared.group.rings().iter().for_each(|ring| ring.close());
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.shut();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_are_refused_before_anything_else() {
        let cases: [(&str, CaptureBuilder); 6] = [
            ("M", Capture::on("x").chunk(0)),
            ("M", Capture::on("x").chunk(1 << 20)),
            ("R (", Capture::on("x").pool(0)),
            ("R x M", Capture::on("x").pool(u32::MAX)),
            ("T", Capture::on("x").advanced(1.5)),
            ("workers", Capture::on("x").workers(0)),
        ];
        for (parameter, builder) in cases {
            let message = builder.open().unwrap_err().to_string();
            assert!(message.contains(parameter), "{message}");
        }
    }
}
