//! What a capture is to be, and opening it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::event::{Event, Listener};
use super::forwarding::{Forwarding, Ports};
use super::target::{Lessons, Target, Way};
use super::watch::Watched;
use super::{Attached, Capture, Interface, Running};
use crate::capture::affinity::{Pin, may_run_on};
use crate::capture::source::Source;
use crate::error::OpenError;
use crate::file::FileRing;
use crate::filter::FilterRequest;
use crate::group::Group;
use crate::ledger::Mode;
use crate::limits;
use crate::packet::{self, Direction};
use crate::ring::Ring;
use crate::time::Timestamps;
use crate::umem::pool::Geometry;
use crate::xdp::Refusal;

/// Cells per chunk (M) unless something else is asked for.
pub const DEFAULT_CHUNK_CELLS: u32 = 256;
/// Chunks per pool (R) at most, unless something else is asked for.
pub const DEFAULT_CHUNKS: u32 = 512;
/// The largest M: the paper's largest ring, 4,096 descriptors, sixteen times.
const MAX_CHUNK_CELLS: u32 = 65_536;
/// The largest R x M: what AF_XDP's 32-bit ring indices and allocators take without complaint.
pub(super) const MAX_CELLS: u64 = 1 << 26;
/// More than any machine has CPUs for.
const MAX_WORKERS: usize = 1024;
/// How long a worker may be away before its buddies take everything from its rings.
const DEFAULT_STUCK_AFTER: Duration = Duration::from_secs(1);
/// How often opening may begin anew: each interface may teach something, and all of them together one thing more.
const ATTEMPTS_MAX: usize = 16;
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
    pub(super) sources: Vec<Source>,
    /// A savefile in place of interfaces.
    pub(super) file: Option<PathBuf>,
    pub(super) engine: Engine,
    pub(super) take: bool,
    pub(super) direction: Option<Direction>,
    pub(super) retire_after: Duration,
    pub(super) immediate: Option<u32>,
    pub(super) small_blocks: bool,
    pub(super) chunk_cells: u32,
    pub(super) chunks: Option<u32>,
    pub(super) buffer_bytes: Option<u64>,
    pub(super) mode: Mode,
    pub(super) stuck_after: Duration,
    pub(super) workers: Option<usize>,
    pub(super) most_workers: Option<usize>,
    pub(super) warm: Option<u32>,
    pub(super) elastic: bool,
    pub(super) timestamps: Timestamps,
    pub(super) promiscuous: bool,
    pub(super) snap_len: u32,
    pub(super) pin: Pin,
    pub(super) filter: Option<FilterRequest>,
    pub(super) drop_rejected: bool,
    pub(super) forwarding: Forwarding,
    pub(super) group_per_interface: bool,
    pub(super) reattach: bool,
    pub(super) watched: bool,
    pub(super) attaches_again: bool,
    pub(super) listener: Option<Listener>,
}

impl CaptureBuilder {
    /// A capture from `sources` or else from `file`, by defaults.
    pub(super) fn new(sources: Vec<Source>, file: Option<PathBuf>) -> Self {
        Self {
            sources,
            file,
            engine: Engine::default(),
            take: false,
            direction: None,
            retire_after: packet::DEFAULT_RETIRE_AFTER,
            immediate: None,
            small_blocks: false,
            chunk_cells: DEFAULT_CHUNK_CELLS,
            chunks: None,
            buffer_bytes: None,
            mode: Mode::Basic,
            stuck_after: DEFAULT_STUCK_AFTER,
            workers: None,
            most_workers: None,
            warm: None,
            elastic: false,
            timestamps: Timestamps::None,
            promiscuous: true,
            snap_len: DEFAULT_SNAP_LEN,
            pin: Pin::Off,
            filter: None,
            drop_rejected: false,
            forwarding: Forwarding::default(),
            group_per_interface: false,
            reattach: false,
            watched: true,
            attaches_again: true,
            listener: None,
        }
    }

    /// Also captures from `source`, named as for [`Capture::on`].
    pub fn and(mut self, source: impl Into<Source>) -> Self {
        self.sources.push(source.into());
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

    /// With the engine `packet`: every packet is handed over at once, in a frame of its own (TPACKET_V2), and
    /// [`retire_after`](Self::retire_after) means nothing. Of a packet `kept` bytes are kept at least. A frame has room for so many, or for the
    /// longest packet that the interface can bring: 64 KiB where offloads join packets, so that a ring holds fewer
    /// of them than blocks do.
    pub fn immediate(mut self, kept: u32) -> Self {
        self.immediate = Some(kept);
        self
    }

    /// With the engine `packet`: the memory of a ring is divided into blocks as small as they can be (128 KiB) instead of
    /// R blocks. At low rates a ring then keeps the packets of more times [`retire_after`](Self::retire_after), and chunks
    /// are smaller at high ones.
    pub fn small_blocks(mut self) -> Self {
        self.small_blocks = true;
        self
    }

    /// M: cells per chunk, the most packets handed out at once. Default 256.
    pub fn chunk(mut self, cells: u32) -> Self {
        self.chunk_cells = cells;
        self
    }

    /// R: chunks per pool. Every ring can hold R x M packets, with the engine `packet` R x M full frames of
    /// an MTU of 1500 or more shorter ones. Default: as many as the speed of the link asks for, up to 512. All pools
    /// together take 64 MiB up to 1 Gbit/s and on virtual interfaces without a link (veth, tun), 256 MiB up to 10 Gbit/s and
    /// where the driver does not report a speed, 1 GiB at 100 Gbit/s; each 16 MiB at least, and all at most an eighth of the memory of the machine or of a memory cgroup of the process.
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

    /// Workers also read rings of their buddies whose backlog exceeds `threshold`, a share of the
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
    /// Where there are fewer receive queues than that, queues get several rings, so that each worker has one:
    /// a hash of a packet's flow decides which ring it comes in, the same for both directions. With the
    /// engine `xdp` the rings of a queue share the memory of their pools, but none takes more than its part
    /// of it, however long it is not read. With the engine `packet` a whole interface has as many rings as
    /// there are workers, and named queues have one each.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = Some(count);
        self
    }

    /// As [`workers`](Self::workers), but with the engine `xdp` no rings are made for it: there are no more
    /// workers than rings anyway.
    pub fn at_most_workers(mut self, count: usize) -> Self {
        self.most_workers = Some(count);
        self
    }

    /// K: how many cells of each ring are posted to the kernel, those that were used last; the others follow
    /// as the backlog grows. Only the engine `xdp` has this. Default: all cells are posted.
    ///
    /// Fewer cells in circulation stay warm in the processor's cache, and the kernel fills them faster. The
    /// price is the promise: with all cells posted a ring keeps R x M packets whatever the process is
    /// doing. With K of them it keeps K at any pace, and R x M while no more than K come from one
    /// look of the keeper to the next. The keeper is a thread of this capture's that looks every
    /// K/2 x 67 ns, but not more often than every 0.5 ms; at 10 Gbit/s it may then be late by as much again.
    /// A child process has no keeper: it keeps K packets until its workers ask for chunks. Rings that share a
    /// queue share the K cells.
    pub fn warm(mut self, cells: u32) -> Self {
        self.warm = Some(cells);
        self
    }

    /// The rings share the cells of all their pools. Each has a quarter of R x M for itself, posted to the
    /// kernel (or as many of them as [`warm`](Self::warm) says), and takes more from what is shared as
    /// its backlog grows: up to all of it, but no more than eight pools. What comes back goes back to what
    /// is shared. Only the engine `xdp` has this, and only with a queue for each ring. Default: every ring
    /// has its own R x M.
    ///
    /// A ring keeps a quarter of R x M at any pace, whatever the others are doing; more if it is not taken, and
    /// while no more than a quarter comes from one look of the keeper to the next, as with
    /// [`warm`](Self::warm).
    pub fn elastic(mut self) -> Self {
        self.elastic = true;
        self
    }

    /// Which packets' times of arrival are looked up. Default: none.
    pub fn timestamps(mut self, which: Timestamps) -> Self {
        self.timestamps = which;
        self
    }

    /// Whether the interface also receives what is not addressed to it. On by default.
    pub fn promiscuous(mut self, on: bool) -> Self {
        self.promiscuous = on;
        self
    }

    /// Bytes of each packet that [`Packet::data`](crate::Packet::data) gives at most, where
    /// [`Source::snap_len`] says nothing else. Default: 262,144.
    pub fn snap_len(mut self, bytes: u32) -> Self {
        self.snap_len = bytes;
        self
    }

    /// Where the workers run. Default: wherever the scheduler puts them.
    pub fn pin(mut self, pin: Pin) -> Self {
        self.pin = pin;
        self
    }

    /// Which packets are wanted, where [`Source::filter`] says nothing else; the others count as filtered.
    /// Default: all.
    ///
    /// An expression is compiled by the system's libpcap. What matches is decided on whole packets, as they
    /// were on the wire: VLAN tags in place. The engine `xdp` leaves what does not match to the host.
    pub fn filter(mut self, filter: impl Into<FilterRequest>) -> Self {
        self.filter = Some(filter.into());
        self
    }

    /// With the engine `xdp`: what the filter does not want is dropped, which costs less than to leave it to the
    /// host. For interfaces that serve the capture alone. Off by default.
    pub fn drop_rejected(mut self, on: bool) -> Self {
        self.drop_rejected = on;
        self
    }

    /// Whether an interface that is removed is waited for: when there is one of its name again, and up, its rings go on
    /// with it. Without this, the capture ends with [`CaptureError::InterfaceGone`](crate::CaptureError::InterfaceGone)
    /// once everything that had arrived was delivered. Off by default.
    ///
    /// The ledger tells for how long nothing was seen ([`Ledger::unseen`](crate::Ledger::unseen)). Not to be had where
    /// rings share their cells (elastic pools, forwarding), nor with several rings of the engine `packet` on one
    /// interface: such a capture ends.
    pub fn reattach(mut self, on: bool) -> Self {
        self.reattach = on;
        self
    }

    /// Whether a thread watches the interfaces. On by default. Without it, an interface that is removed is noticed by
    /// workers with nothing to do, nothing is attached again, and the ledger knows of no time in which nothing was seen. For
    /// programs that fork or count their threads and descriptors.
    pub fn watched(mut self, on: bool) -> Self {
        self.watched = on;
        self
    }

    /// With the engine `xdp`: whether the program is attached again when it was detached, or replaced by another one.
    /// On by default; the ledger tells for how long nothing was seen. Without this, the capture ends with
    /// [`CaptureError::Detached`](crate::CaptureError::Detached).
    pub fn attach_again(mut self, on: bool) -> Self {
        self.attaches_again = on;
        self
    }

    /// Has `listen` called when something happens to an interface while the capture runs, from a thread of the capture's:
    /// nothing of the capture may be asked there.
    pub fn on_event(mut self, listen: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.listener = Some(Listener::new(listen));
        self
    }

    pub(super) fn tell(&self, event: &Event) {
        self.listener.iter().for_each(|listener| listener.tell(event));
    }

    /// Opens the capture: from now on packets are kept, also before a worker asks for them.
    ///
    /// # Errors
    ///
    /// Everything that can be known to be wrong is reported before anything is changed.
    pub fn open(self) -> Result<Capture, OpenError> {
        let or_by_packet = self.engine == Engine::Auto && limits::may_open_packet_sockets();
        self.open_as_asked().map_err(|error| match error {
            error if or_by_packet && error.is_privilege_of_xdp() => OpenError::PacketPermitted(error.into()),
            error => error,
        })
    }

    fn open_as_asked(self) -> Result<Capture, OpenError> {
        self.check_numbers()?;
        self.check_forwarding()?;
        if let Some(path) = &self.file {
            return self.open_file(path);
        }
        let mut lessons = Lessons::default();
        for _ in 0..ATTEMPTS_MAX {
            match self.open_knowing(&lessons) {
                Ok(capture) => return Ok(capture),
                Err(Refusal::Error(error)) => return Err(error),
                Err(Refusal::Lesson(lesson)) => lessons.learn(lesson),
            }
        }
        let source = io::Error::other("they change with every attempt");
        Err(OpenError::System { action: "count the receive queues".to_owned(), source })
    }

    /// Opens the capture, with what earlier attempts taught.
    fn open_knowing(&self, lessons: &Lessons) -> Result<Capture, Refusal> {
        let targets = self.targets(lessons)?;
        if self.timestamps == Timestamps::Hardware {
            targets.iter().try_for_each(Target::check_hardware_clock)?;
        }
        let workers = self.worker_count(&targets)?;
        let transmit_on = self.transmit_devices(&targets)?;
        let filters = targets.iter().map(Target::compile_filter).collect::<Result<Vec<_>, _>>();
        let filters = filters.map_err(OpenError::from)?;
        let geometry = self.geometry(&targets)?;
        let bytes = |target: &Target| target.pool_bytes(geometry);
        let locked = |target: &&Target| matches!(target.way, Way::Xdp(_));
        let new_bytes = self.new_packets_bytes(geometry);
        limits::check_memory(
            targets.iter().map(bytes).sum::<u64>() + new_bytes,
            targets.iter().filter(locked).map(bytes).sum::<u64>() + new_bytes,
        )?;
        let mut devices = targets.iter().map(|target| &target.device);
        let copy_because = lessons.copy_because.clone();
        let copy_because = copy_because.or_else(|| devices.find_map(|device| lessons.why_copy(device)));
        let copy_because = copy_because.as_deref();
        let commons = if self.forwards() {
            self.forwarding_commons(&targets, &transmit_on, geometry, copy_because)?
        } else {
            self.commons(&targets, geometry, copy_because)?
        };
        let mut rings = Vec::new();
        let mut interfaces = Vec::new();
        let mut attached = Vec::new();
        let mut ports = Ports::default();
        for (interface_index, (target, filter)) in targets.into_iter().zip(filters).enumerate() {
            let places = (interface_index, rings.len());
            let why_copy = lessons.why_copy(&target.device);
            let opened = self.open_target(&target, filter, geometry, commons.as_ref(), places, why_copy)?;
            let standby = self.standby_sockets(&target)?;
            rings.extend(opened.rings);
            if self.forwards() {
                ports.add_captured(&target.device, opened.tx, opened.fill_rings)?;
            }
            attached.push(Attached {
                target: target.clone(),
                counters_at_start: opened.counters_at_start,
                attachment: Some(opened.attachment),
                unplaced: opened.unplaced,
                watched: Watched::new(target.device.name.clone(), !standby.is_empty()),
                index: interface_index,
                geometry,
                standby,
                former: None,
                was_handed_back: false,
                drops_before: 0,
                drops_seen: 0,
            });
            interfaces.push(Interface {
                rings: target.rings(),
                pool_bytes: target.pool_bytes(geometry),
                reception: opened.reception,
                why: target.why,
                device: target.device,
                queues: target.queues,
                snap_len: target.snap_len,
                filter: target.filter,
            });
        }
        for device in &transmit_on {
            ports.add_transmitting(device, commons.as_ref(), rings.len())?;
        }
        let port_devices = ports.devices();
        let forwarding =
            self.forwards().then(|| ports.open(self, &rings, commons.as_ref(), geometry)).unzip();
        let room = attached.iter().map(|attached| attached.target.rings_to_come()).sum();
        let group = self.group(rings, workers).with_room(room);
        let builder = self.clone();
        let running = Running {
            interfaces: attached,
            ports: port_devices,
            file: None,
            builder,
            end: None,
            last_packets_uncertain: false,
        };
        Ok(Capture::start(group, interfaces, running, forwarding, geometry, &self.pin)?)
    }

    /// How many workers share the rings of these targets.
    fn worker_count(&self, targets: &[Target]) -> Result<usize, OpenError> {
        let (rings, interfaces) = (targets.iter().map(Target::rings).sum(), targets.len());
        let workers = self.workers.or(self.most_workers).unwrap_or(rings).clamp(1, rings);
        if self.group_per_interface && workers < interfaces {
            return Err(OpenError::BadParameter {
                parameter: "the number of workers",
                value: workers as u64,
                allowed: format!("{interfaces} or more: one for each interface's group"),
            });
        }
        Ok(workers)
    }

    /// The buddy group of all rings, or one for each interface.
    fn group(&self, rings: Vec<Arc<dyn Ring>>, workers: usize) -> Group {
        if !self.group_per_interface {
            return Group::new(rings, workers, self.mode, self.stuck_after);
        }
        let parts = rings.iter().map(|ring| ring.identity().interface_index).collect();
        Group::in_parts(rings, parts, workers, self.mode, self.stuck_after)
    }

    fn open_file(&self, path: &Path) -> Result<Capture, OpenError> {
        let ring = FileRing::open(path.to_owned(), self.chunk_cells, self.snap_len)
            .map_err(|source| OpenError::Savefile { path: path.to_owned(), source })?;
        let ring = Arc::new(ring);
        if let Some(filter) = &self.filter {
            ring.set_filter(filter)?;
        }
        let group = Group::new(vec![ring.clone()], 1, self.mode, self.stuck_after);
        // Nothing is pooled: memory is taken chunk by chunk.
        let geometry = Geometry { chunk_cells: self.chunk_cells, chunks: 1, cell_bytes: 0 };
        let running = Running {
            interfaces: Vec::new(),
            ports: Vec::new(),
            file: Some(ring),
            builder: self.clone(),
            end: None,
            last_packets_uncertain: false,
        };
        Capture::start(group, Vec::new(), running, (None, None), geometry, &self.pin)
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
        if self.warm == Some(0) {
            return bad("K (warm cells)", 0, "1 or more");
        }
        if let Some(count) = self.workers.filter(|count| !(1..=MAX_WORKERS).contains(count)) {
            return bad("the number of workers", count as u64, "1 to 1024");
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
        let own = self.sources.iter().filter_map(|source| source.settings.snap_len);
        if own.chain([self.snap_len]).any(|bytes| bytes == 0) {
            return bad("the snap length", 0, "1 byte or more");
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_are_refused_before_anything_else() {
        let cases: [(&str, CaptureBuilder); 10] = [
            ("M", Capture::on("x").chunk(0)),
            ("M", Capture::on("x").chunk(1 << 20)),
            ("R (", Capture::on("x").pool(0)),
            ("R x M", Capture::on("x").pool(u32::MAX)),
            ("T", Capture::on("x").advanced(1.5)),
            ("K (", Capture::on("x").warm(0)),
            ("workers", Capture::on("x").workers(0)),
            ("workers", Capture::on("x").workers(1025)),
            ("snap length", Capture::on("x").snap_len(0)),
            ("snap length", Capture::on("x").and(Source::new("y").snap_len(0))),
        ];
        for (parameter, builder) in cases {
            let message = builder.open().unwrap_err().to_string();
            assert!(message.contains(parameter), "{message}");
        }
    }
}
