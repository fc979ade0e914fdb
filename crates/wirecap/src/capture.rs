//! Opening, stopping and closing a capture.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::affinity::{Machine, Pin, Placement, may_run_on};
use crate::chunk::RingName;
use crate::device::{self, Device, DeviceCounters, DropSource, Rung};
use crate::error::OpenError;
use crate::file::FileRing;
use crate::filter::ClassicInsn;
use crate::group::Group;
use crate::ledger::{Account, Ledger, Mode, RingLedger};
use crate::limits;
use crate::packet::{self, Direction, Spread, Unplaced};
use crate::pool::Geometry;
use crate::ring::Ring;
use crate::source::Source;
use crate::sync::{Mutex, lock};
use crate::warning::Warning;
use crate::worker::{Alarm, Worker, ring_bell};
use crate::xdp;

/// Cells per chunk (M) unless something else is asked for.
pub const DEFAULT_CHUNK_CELLS: u32 = 256;
/// Chunks per pool (R) unless something else is asked for, or the machine is small.
pub const DEFAULT_CHUNKS: u32 = 512;
/// The largest M: the paper's largest ring, 4,096 descriptors, sixteen times.
const MAX_CHUNK_CELLS: u32 = 65_536;
/// The largest R x M: what AF_XDP's 32-bit ring indices and allocators take without complaint.
const MAX_CELLS: u64 = 1 << 26;
/// Instructions of a socket's filter at most (`BPF_MAXINSNS`).
const KERNEL_INSNS_MAX: usize = 4096;
/// How long a worker may be away before its buddies take everything from its rings.
const DEFAULT_STUCK_AFTER: Duration = Duration::from_secs(1);
/// Bytes kept of each packet unless something else is asked for: all of them.
pub const DEFAULT_SNAP_LEN: u32 = 262_144;

/// By which engine packets are captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// `xdp` where that takes nothing away from the host, else `packet`.
    #[default]
    Auto,
    /// AF_XDP: the capture takes packets from the host, and sees received ones only.
    Xdp,
    /// AF_PACKET: the capture gets copies, and the host keeps its packets.
    Packet,
}

/// What a capture is to be: made by [`Capture::on`], completed by [`open`](Self::open).
#[derive(Debug, Clone)]
pub struct CaptureBuilder {
    sources: Vec<String>,
    /// A savefile in place of interfaces.
    file: Option<PathBuf>,
    engine: Engine,
    take: bool,
    direction: Option<Direction>,
    retire_after: Duration,
    chunk_cells: u32,
    chunks: Option<u32>,
    buffer_bytes: Option<u64>,
    mode: Mode,
    stuck_after: Duration,
    workers: Option<usize>,
    timestamps: bool,
    promiscuous: bool,
    snap_len: u32,
    pin: Pin,
}

impl CaptureBuilder {
    /// Also captures from `device`, named as for [`Capture::on`].
    pub fn and(mut self, device: impl Into<String>) -> Self {
        self.sources.push(device.into());
        self
    }

    /// The engine. Default: [`Engine::Auto`].
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// With the engine `xdp`: captures also where the host uses the interface and will miss its packets.
    pub fn take(mut self, on: bool) -> Self {
        self.take = on;
        self
    }

    /// Which packets are captured, by their direction: those received, those sent, or both; the others
    /// do not count as seen. Default: both with the engine `packet` on a whole interface, else those
    /// received, and there is nothing else to be had then.
    pub fn direction(mut self, direction: Direction) -> Self {
        self.direction = Some(direction);
        self
    }

    /// With the engine `packet`: how long a packet may wait for others to be handed over with it; at
    /// least 1 ms, to which the kernel rounds. Default 20 ms.
    ///
    /// When less than a block arrives in this time the rest of the block stays empty, so a ring that
    /// nobody reads holds out for R times this long at least, however full its blocks.
    pub fn retire_after(mut self, longest: Duration) -> Self {
        self.retire_after = longest;
        self
    }

    /// M: cells per chunk, the most packets handed out at once. Default 256.
    pub fn chunk(mut self, cells: u32) -> Self {
        self.chunk_cells = cells;
        self
    }

    /// R: chunks per pool. Every ring can hold R x M packets, with the engine `packet` R x M full frames of
    /// an MTU of 1500 or more shorter ones. Default 512, or less on a machine with
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

    /// How many workers share the rings. Default: one per ring; never more than rings.
    ///
    /// With the engine `packet` a whole interface has as many rings as there are workers.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = Some(count);
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

    /// Where the workers run. Default: wherever the scheduler puts them.
    pub fn pin(mut self, pin: Pin) -> Self {
        self.pin = pin;
        self
    }

    /// Opens the capture: from now on packets are kept, also before a worker asks for them.
    ///
    /// # Errors
    ///
    /// Everything that can be known to be wrong is reported before anything is changed.
    pub fn open(self) -> Result<Capture, OpenError> {
        self.check_numbers()?;
        if let Some(path) = &self.file {
            return self.open_file(path);
        }
        let targets = self.targets()?;
        let ring_count = targets.iter().map(Target::rings).sum();
        let geometry = self.geometry(&targets, ring_count)?;
        let bytes = |target: &Target| {
            target.way.chunk_bytes(geometry) * u64::from(geometry.chunks) * target.rings() as u64
        };
        let locked = |target: &&Target| matches!(target.way, Way::Xdp);
        limits::check_memory(
            targets.iter().map(bytes).sum(),
            targets.iter().filter(locked).map(bytes).sum(),
        )?;
        let mut rings = Vec::new();
        let mut interfaces = Vec::new();
        let mut attached = Vec::new();
        for (interface_index, target) in targets.into_iter().enumerate() {
            let opened = self.open_target(&target, geometry, interface_index, rings.len())?;
            rings.extend(opened.rings);
            attached.push(Attached {
                target: target.clone(),
                counters_at_start: opened.counters_at_start,
                attachment: Some(opened.attachment),
                unplaced: opened.unplaced,
            });
            interfaces.push(Interface {
                rings: target.rings(),
                reception: opened.reception,
                why: target.why,
                device: target.device,
                queues: target.queues,
                snap_len: self.snap_len,
            });
        }
        let workers = self.workers.unwrap_or(rings.len()).clamp(1, rings.len());
        let group = Group::new(rings, workers, self.mode, self.stuck_after);
        Capture::start(group, interfaces, attached, geometry, &self.pin)
    }

    fn open_file(&self, path: &Path) -> Result<Capture, OpenError> {
        let ring = FileRing::open(path.to_owned(), self.chunk_cells, self.snap_len)
            .map_err(|source| OpenError::Savefile { path: path.to_owned(), source })?;
        let group = Group::new(vec![Arc::new(ring)], 1, self.mode, self.stuck_after);
        // Nothing is pooled: memory is taken chunk by chunk.
        let geometry = Geometry { chunk_cells: self.chunk_cells, chunks: 1, cell_bytes: 0 };
        Capture::start(group, Vec::new(), Vec::new(), geometry, &self.pin)
    }

    /// The interfaces and queues that are meant, each interface once.
    fn targets(&self) -> Result<Vec<Target>, OpenError> {
        let mut targets: Vec<Target> = Vec::new();
        for name in &self.sources {
            let source: Source = name.parse()?;
            let device = Device::find(&source.interface)?;
            let queues = source.queues_of(&device)?;
            match targets.iter_mut().find(|target| target.device.index == device.index) {
                Some(target) => {
                    target.queues.extend(queues);
                    target.queues.sort_unstable();
                    target.queues.dedup();
                    target.whole |= source.is_whole();
                }
                None => targets.push(Target {
                    device,
                    queues,
                    whole: source.is_whole(),
                    way: Way::Xdp,
                    why: None,
                }),
            }
        }
        for target in &mut targets {
            (target.way, target.why) = self.way(target)?;
        }
        Ok(targets)
    }

    /// The way in which packets are received from `target`, and why, if that is our choice.
    fn way(&self, target: &Target) -> Result<(Way, Option<String>), OpenError> {
        let device = &target.device;
        if !device.up {
            return Err(OpenError::InterfaceDown { interface: device.name.clone() });
        }
        let (engine, why) = match self.engine {
            Engine::Auto => self.choice(device),
            engine => (engine, None),
        };
        let way = if engine == Engine::Xdp { self.xdp_way(target) } else { self.packet_way(target) };
        way.map(|way| (way, why))
    }

    /// What [`Engine::Auto`] takes for `device`.
    fn choice(&self, device: &Device) -> (Engine, Option<String>) {
        let packet = |why| (Engine::Packet, Some(why));
        let choice = device.choose_engine();
        match choice.engine {
            device::Engine::Xdp(_) if self.wants_sent() => {
                packet("the engine xdp does not see what the host sends".to_owned())
            }
            device::Engine::Xdp(_) if xdp::cell_bytes(device, self.chunk_cells).is_err() => {
                packet(format!("frames of its MTU, {}, do not fit a cell", device.mtu))
            }
            device::Engine::Xdp(_) => (Engine::Xdp, Some(choice.why)),
            device::Engine::Packet => packet(choice.why),
        }
    }

    fn xdp_way(&self, target: &Target) -> Result<Way, OpenError> {
        let interface = target.device.name.clone();
        if self.wants_sent() {
            return Err(OpenError::ReceivedOnly { interface, reason: "the engine xdp" });
        }
        match target.device.carries_host_traffic() {
            Some(reason) if !self.take => Err(OpenError::CarriesHostTraffic { interface, reason }),
            _ => Ok(Way::Xdp),
        }
    }

    fn packet_way(&self, target: &Target) -> Result<Way, OpenError> {
        if target.whole {
            let rings = self.workers.map_or(target.device.rx_queues, |count| count as u32);
            let direction = self.direction.unwrap_or_default();
            return Ok(Way::Packet { spread: Spread::Flows { rings }, direction });
        }
        if self.wants_sent() {
            let interface = target.device.name.clone();
            return Err(OpenError::ReceivedOnly { interface, reason: "a receive queue" });
        }
        Ok(Way::Packet { spread: Spread::Queues(target.queues.clone()), direction: Direction::In })
    }

    /// Whether packets that the host sends were asked for.
    fn wants_sent(&self) -> bool {
        matches!(self.direction, Some(Direction::Out | Direction::InOut))
    }

    /// Opens the rings of one interface, whose first one is the capture's ring `first_ring_index`.
    fn open_target(
        &self,
        target: &Target,
        geometry: Geometry,
        interface_index: usize,
        first_ring_index: usize,
    ) -> Result<Opened, OpenError> {
        match &target.way {
            Way::Xdp => {
                let settings = xdp::Settings {
                    geometry,
                    timestamps: self.timestamps,
                    promiscuous: self.promiscuous,
                    snap_len: self.snap_len,
                    interface_index,
                    first_ring_index,
                };
                let opened = xdp::open(&target.device, &target.queues, &settings)?;
                Ok(Opened {
                    rings: opened.rings,
                    counters_at_start: opened.counters_at_start,
                    attachment: Attachment::Xdp(opened.attachment),
                    unplaced: None,
                    reception: Reception::Xdp {
                        rung: opened.rung,
                        missed_rungs: opened.missed_rungs,
                        huge_pages: opened.huge_pages,
                    },
                })
            }
            Way::Packet { spread, direction } => {
                let settings = packet::Settings {
                    geometry,
                    spread: spread.clone(),
                    direction: *direction,
                    retire_after: self.retire_after,
                    timestamps: self.timestamps,
                    promiscuous: self.promiscuous,
                    snap_len: self.snap_len,
                    interface_index,
                    first_ring_index,
                };
                let opened = packet::open(&target.device, &settings)?;
                Ok(Opened {
                    rings: opened.rings,
                    counters_at_start: target.counters(),
                    attachment: Attachment::Packet(opened.attachment),
                    unplaced: opened.unplaced,
                    reception: Reception::Packet {
                        spread: settings.spread,
                        direction: settings.direction,
                        block_bytes: opened.shape.block_bytes,
                        retire_after: settings.retire_after,
                    },
                })
            }
        }
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
        if self.workers == Some(0) {
            return bad("the number of workers", 0, "1 or more");
        }
        if let Pin::List(cpus) = &self.pin
            && let Some(&cpu) = cpus.iter().find(|cpu| !may_run_on(**cpu))
        {
            return bad(
                "the CPU of a worker",
                cpu.into(),
                "one that this process may run on (see taskset -p)",
            );
        }
        if self.snap_len == 0 {
            return bad("the snap length", 0, "1 byte or more");
        }
        Ok(())
    }

    /// The same for all rings: cells large enough for the interface with the longest frames.
    fn geometry(&self, targets: &[Target], rings: usize) -> Result<Geometry, OpenError> {
        let mut geometry = Geometry { chunk_cells: self.chunk_cells, chunks: 0, cell_bytes: 0 };
        for target in targets {
            geometry.cell_bytes = geometry.cell_bytes.max(target.cell_bytes(self.chunk_cells)?);
        }
        let chunk_bytes = targets.iter().map(|target| target.way.chunk_bytes(geometry)).max().unwrap_or(1);
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
        Ok(Geometry { chunks: chunks as u32, ..geometry })
    }
}

/// What a capture is to receive from one interface.
#[derive(Debug, Clone)]
struct Target {
    device: Device,
    queues: Vec<u32>,
    /// No queues were named.
    whole: bool,
    way: Way,
    /// Why, if it was our choice.
    why: Option<String>,
}

/// How packets are to be received from an interface.
#[derive(Debug, Clone)]
enum Way {
    Xdp,
    Packet { spread: Spread, direction: Direction },
}

impl Target {
    /// How many rings it has.
    fn rings(&self) -> usize {
        match &self.way {
            Way::Xdp => self.queues.len(),
            Way::Packet { spread, .. } => spread.rings(),
        }
    }

    /// The device's counters; `None` if they do not tell its drops, or not by themselves.
    fn counters(&self) -> Option<DeviceCounters> {
        let counters = self.device.counters().ok()?;
        // A veth's counter also has what the host's stack did not want, of packets that we saw.
        let mixed = matches!(self.way, Way::Packet { .. }) && counters.source == DropSource::VethReceiver;
        (!mixed).then_some(counters)
    }

    fn cell_bytes(&self, chunk_cells: u32) -> Result<u32, OpenError> {
        match self.way {
            Way::Xdp => xdp::cell_bytes(&self.device, chunk_cells),
            Way::Packet { .. } => Ok(packet::CELL_BYTES),
        }
    }
}

impl Way {
    /// Bytes of memory for each of the R chunks of a ring.
    fn chunk_bytes(&self, geometry: Geometry) -> u64 {
        match self {
            Self::Xdp => u64::from(geometry.chunk_cells) * u64::from(geometry.cell_bytes),
            Self::Packet { .. } => packet::block_shape(geometry).block_bytes.into(),
        }
    }
}

/// The rings of an interface, receiving.
#[derive(Debug)]
struct Opened {
    rings: Vec<Arc<dyn Ring>>,
    attachment: Attachment,
    counters_at_start: Option<DeviceCounters>,
    /// Counts packets that no ring gets because their queue is not known.
    unplaced: Option<Arc<Unplaced>>,
    reception: Reception,
}

/// What receives on an interface.
#[derive(Debug)]
enum Attachment {
    Xdp(xdp::Attachment),
    Packet(packet::Attachment),
}

impl Attachment {
    /// Ends receiving. When it returns, the last packet is in its ring.
    fn detach(self) {
        match self {
            Self::Xdp(attachment) => attachment.detach(),
            Self::Packet(attachment) => attachment.detach(),
        }
    }
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
    /// How its packets are received.
    pub reception: Reception,
    /// Why this engine was chosen, with [`Engine::Auto`].
    pub why: Option<String>,
    /// Bytes kept of each packet.
    pub snap_len: u32,
}

impl Interface {
    /// What should be known of it, after so many super-packets and packets of unknown queues.
    fn warnings(&self, super_packets: u64, unplaced: u64) -> Vec<Warning> {
        let interface = self.device.name.clone();
        let mut warnings = Vec::new();
        if self.reception.engine() == Engine::Xdp
            && let Some(reason) = self.device.carries_host_traffic()
        {
            warnings.push(Warning::TakenFromHost { interface: interface.clone(), reason });
        }
        if super_packets > 0 {
            warnings.push(Warning::SuperPackets { interface: interface.clone(), packets: super_packets });
        }
        if unplaced > 0 {
            warnings.push(Warning::QueueUnknown { interface, packets: unplaced });
        }
        warnings
    }
}

/// How the packets of an interface are received.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reception {
    /// By the engine `xdp`.
    Xdp {
        /// How fast a way it is.
        rung: Rung,
        /// The better ways that were tried, each with the reason why it was not to be had.
        missed_rungs: Vec<(Rung, String)>,
        /// Whether the pools lie on reserved huge pages.
        huge_pages: bool,
    },
    /// By the engine `packet`.
    Packet {
        /// What the rings share the packets by.
        spread: Spread,
        /// Which packets are captured.
        direction: Direction,
        /// Bytes of each of a ring's R blocks: the memory of M cells, rounded up to what the kernel wants.
        block_bytes: u32,
        /// How long a packet may wait for others to be handed over with it.
        retire_after: Duration,
    },
}

impl Reception {
    /// The engine.
    pub fn engine(&self) -> Engine {
        match self {
            Self::Xdp { .. } => Engine::Xdp,
            Self::Packet { .. } => Engine::Packet,
        }
    }

    /// How long after it was stamped a packet may be captured at the latest, if it is not lost. To put
    /// packets of several rings in order, wait that long for a ring that has none.
    pub fn delay(&self) -> Duration {
        match self {
            // The kernel stamps a batch of up to 64 packets before it publishes them together.
            Self::Xdp { .. } => Duration::from_millis(2),
            Self::Packet { retire_after, .. } => *retire_after + packet::RETIREMENT_SLACK,
        }
    }
}

/// A running capture. Dropping it stops and closes it.
#[derive(Debug)]
pub struct Capture {
    shared: Arc<Shared>,
    interfaces: Vec<Interface>,
    rings: Vec<RingName>,
    workers: Mutex<Vec<Worker>>,
    placements: Vec<Placement>,
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
            file: None,
            engine: Engine::default(),
            take: false,
            direction: None,
            retire_after: packet::DEFAULT_RETIRE_AFTER,
            chunk_cells: DEFAULT_CHUNK_CELLS,
            chunks: None,
            buffer_bytes: None,
            mode: Mode::Basic,
            stuck_after: DEFAULT_STUCK_AFTER,
            workers: None,
            timestamps: false,
            promiscuous: true,
            snap_len: DEFAULT_SNAP_LEN,
            pin: Pin::Off,
        }
    }

    /// Reads a savefile as if its packets were being captured (the engine `file`): one ring, whose end is
    /// the end of the file. pcapng and pcap, as they are or compressed by gzip or Zstandard.
    pub fn file(path: impl Into<PathBuf>) -> CaptureBuilder {
        CaptureBuilder { sources: Vec::new(), file: Some(path.into()), ..Self::on("") }
    }

    fn start(
        group: Group,
        interfaces: Vec<Interface>,
        attached: Vec<Attached>,
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
            ending: AtomicBool::new(false),
            started: Instant::now(),
            running: Mutex::new(Running { interfaces: attached, end: None }),
        });
        let placements = Machine::this().place(pin, &shared.group.first_rings());
        let worker = |(index, (alarm, placement)): (usize, (Alarm, &Placement))| {
            Worker::new(Arc::clone(&shared), index, alarm, placement.clone())
        };
        let workers = Mutex::new(alarms.into_iter().zip(&placements).enumerate().map(worker).collect());
        Ok(Self { shared, interfaces, rings, workers, placements, geometry })
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
        interfaces.enumerate().flat_map(of_interface).collect()
    }

    /// The engine's name in the ledger: `xdp` or `packet`, both where interfaces differ, or `file`.
    fn engine(&self) -> &'static str {
        let uses = |engine| self.interfaces.iter().any(|interface| interface.reception.engine() == engine);
        match (uses(Engine::Xdp), uses(Engine::Packet)) {
            (true, true) => "xdp, packet",
            (true, false) => "xdp",
            (false, true) => "packet",
            (false, false) => "file",
        }
    }

    /// The sizes of each ring's pool.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The configuration in the paper's notation: `B-(256,512)`.
    pub fn mode(&self) -> String {
        self.shared.group.mode().notation(&self.geometry)
    }

    /// How many packets wait in each ring, in the order of [`rings`](Self::rings): a snapshot. With the
    /// engine `packet`, how many cells' memory they take.
    pub fn backlogs(&self) -> Vec<u32> {
        self.shared.group.rings().iter().map(|ring| ring.backlog()).collect()
    }

    /// The account of one ring so far, which asks nobody but its socket.
    pub fn account(&self, ring: usize) -> Account {
        self.shared.group.rings()[ring].account()
    }

    /// How many packets have come to a ring that it did not drop, captured yet or not.
    pub fn arrived(&self, ring: usize) -> u64 {
        self.shared.group.rings()[ring].arrived()
    }

    /// With the engine `packet`: has the kernel run `program` on the packets of a ring from now on, as it is.
    /// Its result is how many bytes of a packet come. What is in the ring already stays, and what the program
    /// turns away is counted nowhere. The kernel's filters see packets without the VLAN tag that it takes out.
    ///
    /// # Errors
    ///
    /// What the kernel says of the program, or that packets come in another way.
    pub fn run_in_kernel(&self, ring: usize, program: &[ClassicInsn]) -> io::Result<()> {
        if program.len() > KERNEL_INSNS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let insn = |&ClassicInsn { code, jt, jf, k }: &ClassicInsn| libc::sock_filter { code, jt, jf, k };
        let program: Vec<_> = program.iter().map(insn).collect();
        self.shared.group.rings()[ring].run_in_kernel(&program)
    }

    /// The packet socket of a ring, again: what is sent by it the ring does not see, and other options than
    /// a filter may be set. `None` where packets come in another way.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left.
    pub fn packet_socket(&self, ring: usize) -> io::Result<Option<OwnedFd>> {
        self.shared.group.rings()[ring].packet_socket().transpose()
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
        drop(running);
        Ledger { warnings, ..Ledger::of(self.engine(), self.mode(), duration, rings, device) }
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
