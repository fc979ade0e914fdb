//! What a capture is to be.

use std::path::PathBuf;
use std::time::Duration;

use super::event::{Event, Listener};
use crate::capture::affinity::{Pin, may_run_on};
use crate::capture::source::Source;
use crate::error::OpenError;
use crate::filter::FilterRequest;
use crate::ledger::Mode;
use crate::packet::{self, Direction};
use crate::time::Timestamps;

/// How often the watcher looks when the kernel tells nothing. A gap begins at the last look that found all well, and no gap
/// should exceed what caused it by more than 250 ms: the rest of them is for the repair.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

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
/// Bytes kept of each packet unless something else is asked for: all of them.
pub const DEFAULT_SNAP_LEN: u32 = 262_144;

/// Cells for new packets unless something else is asked for.
const DEFAULT_NEW_PACKETS: u32 = 1024;
/// How long packets wait for those of earlier chunks at most unless something else is asked for.
const DEFAULT_ORDER_WAIT: Duration = Duration::from_millis(10);

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

/// What is special about a capture that forwards.
#[derive(Debug, Clone)]
pub(super) struct Forwarding {
    on: bool,
    /// Interfaces that are only sent on.
    pub(super) transmit_on: Vec<String>,
    pub(super) new_packets: u32,
    pub(super) ordered: bool,
    pub(super) order_wait: Duration,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self {
            on: false,
            transmit_on: Vec::new(),
            new_packets: DEFAULT_NEW_PACKETS,
            ordered: true,
            order_wait: DEFAULT_ORDER_WAIT,
        }
    }
}

/// What a capture is to be: made by [`Capture::on`](crate::Capture::on), completed by [`open`](Self::open).
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
    pub(super) look_period: Duration,
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
            look_period: LOOK_PERIOD,
            attaches_again: true,
            listener: None,
        }
    }

    /// Also captures from `source`, named as for [`Capture::on`](crate::Capture::on).
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
    /// no worker reads holds out for R times this long at least, however full its blocks.
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
    /// of it, however long it is not read. With the engine `packet` each ring has a pool of its own, and a
    /// whole interface has as many rings as there are workers, which share all its packets by flow.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = Some(count);
        self
    }

    /// As [`workers`](Self::workers), but no queue gets several rings for it: there are no more
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
    /// rings share their cells (elastic pools, forwarding): such a capture ends.
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

    /// How often that thread looks whether all is well when the kernel tells nothing: 100 ms by default. A program that is
    /// detached is noticed, and a gap in the ledger bounded, as exactly as that.
    pub fn look_every(mut self, period: Duration) -> Self {
        self.look_period = period;
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
    /// nothing of the capture may be asked there, and closing the capture waits until `listen` has returned.
    pub fn on_event(mut self, listen: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.listener = Some(Listener::new(listen));
        self
    }

    /// The interfaces of the capture are [`Port`](crate::Port)s as well: what was captured can be sent on them without being copied.
    ///
    /// All rings have one UMEM then, in which each has the R x M cells of its pool. Not to be had with
    /// [`elastic`](Self::elastic), with a [snap length](Self::snap_len), nor with more workers than receive queues. On
    /// interfaces captured by the engine `packet` only received packets are captured, and sending copies. The host
    /// keeps its own there: it must not forward them as well.
    pub fn forwarding(mut self) -> Self {
        self.forwarding.on = true;
        self
    }

    /// As [`forwarding`](Self::forwarding), with one more port: an interface on which nothing is captured.
    pub fn transmit_on(mut self, interface: impl Into<String>) -> Self {
        self.forwarding.transmit_on.push(interface.into());
        self.forwarding()
    }

    /// How many cells there are for packets that [`Port::build`](crate::Port::build) makes and that are copied. Default 1,024.
    pub fn new_packets(mut self, cells: u32) -> Self {
        self.forwarding.new_packets = cells;
        self
    }

    /// In advanced mode: packets go out as workers are done with them, as in the paper. Without this, what is sent of
    /// the chunks of a ring goes out in the order of their sequence numbers: that of a later one waits until all
    /// earlier ones were dropped, for [`order_wait`](Self::order_wait) at most.
    pub fn unordered(mut self) -> Self {
        self.forwarding.ordered = false;
        self
    }

    /// For how long packets wait for those of earlier chunks, at most, in advanced mode. Default 10 ms.
    pub fn order_wait(mut self, longest: Duration) -> Self {
        self.forwarding.order_wait = longest;
        self
    }

    /// The rings of each interface are a buddy group of their own, with workers of their own (the paper's Figure 14):
    /// of the [`workers`](Self::workers), one goes to each interface in turn that has more rings than workers. Default:
    /// all rings of the capture are one group.
    pub fn group_per_interface(mut self) -> Self {
        self.group_per_interface = true;
        self
    }

    pub(super) fn tell(&self, event: &Event) {
        self.listener.iter().for_each(|listener| listener.tell(event));
    }

    /// Whether what is captured may be sent.
    pub(super) fn forwards(&self) -> bool {
        self.forwarding.on
    }

    /// Refuses what a capture that forwards cannot have.
    pub(super) fn check_forwarding(&self) -> Result<(), OpenError> {
        let refuse = |option, reason| Err(OpenError::NotForwarding { option, reason });
        let mut snap_lens = self.sources.iter().filter_map(|source| source.settings.snap_len);
        if !self.forwards() {
            return Ok(());
        }
        if self.file.is_some() {
            return refuse("packets of a savefile", "there is no interface to send on");
        }
        if self.elastic {
            return refuse("elastic pools (--elastic)", "a sent cell returns to its own ring");
        }
        if self.snap_len < DEFAULT_SNAP_LEN || snap_lens.any(|bytes| bytes < DEFAULT_SNAP_LEN) {
            return refuse("a snap length (-s)", "packets are sent whole");
        }
        if matches!(self.direction, Some(Direction::Out | Direction::InOut)) {
            return refuse("packets that the host sends (-Q)", "it would forward its own packets again");
        }
        Ok(())
    }

    pub(super) fn check_numbers(&self) -> Result<(), OpenError> {
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
            return bad("number of workers", count as u64, "1 to 1024");
        }
        if let Pin::List(cpus) = &self.pin
            && let Some(&cpu) = cpus.iter().find(|cpu| !may_run_on(**cpu))
        {
            return bad("CPU of a worker", cpu.into(), "one that this process may run on (see taskset -p)");
        }
        let own = self.sources.iter().filter_map(|source| source.settings.snap_len);
        if own.chain([self.snap_len]).any(|bytes| bytes == 0) {
            return bad("snap length", 0, "1 byte or more");
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Capture;

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
