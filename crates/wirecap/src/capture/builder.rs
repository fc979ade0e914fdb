//! The settings of a capture.

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

/// How often the watcher checks without a message from the kernel. A gap begins at the last check
/// that found everything in order, and must not exceed its cause by more than 250 ms: the rest of
/// that time is for the repair.
const LOOK_PERIOD: Duration = Duration::from_millis(150);

/// Default of M, cells per chunk.
pub const DEFAULT_CHUNK_CELLS: u32 = 256;
/// Default maximum of R, chunks per pool.
pub const DEFAULT_CHUNKS: u32 = 512;
/// The largest M: sixteen times the paper's largest ring, 4,096 descriptors.
const MAX_CHUNK_CELLS: u32 = 65_536;
/// The largest R x M that AF_XDP's 32-bit ring indices and allocators accept.
pub(super) const MAX_CELLS: u64 = 1 << 26;
/// More than any machine has CPUs.
const MAX_WORKERS: usize = 1024;
/// The time without a request after which buddies drain all rings of a worker.
const DEFAULT_STUCK_AFTER: Duration = Duration::from_secs(1);
/// Default snap length: complete packets.
pub const DEFAULT_SNAP_LEN: u32 = 262_144;

/// Default number of cells for new packets.
const DEFAULT_NEW_PACKETS: u32 = 1024;
/// Default of the maximum time that packets wait for earlier chunks.
const DEFAULT_ORDER_WAIT: Duration = Duration::from_millis(10);

/// A capture engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// `xdp` if the operator has dedicated the interface to capturing and nothing visible
    /// contradicts that, else `packet`.
    #[default]
    Auto,
    /// AF_XDP: the host does not get captured packets; received packets only.
    Xdp,
    /// AF_PACKET: captures copies; the host gets all packets.
    Packet,
}

/// Settings of a capture that forwards.
#[derive(Debug, Clone)]
pub(super) struct Forwarding {
    on: bool,
    /// Transmit-only interfaces.
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

/// The settings of a capture, created by [`Capture::on`](crate::Capture::on) and opened by
/// [`open`](Self::open).
#[derive(Debug, Clone)]
pub struct CaptureBuilder {
    pub(super) sources: Vec<Source>,
    /// A savefile instead of interfaces.
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
    pub(super) one_link_type: bool,
}

impl CaptureBuilder {
    /// A capture from `sources`, or else from `file`, with default settings.
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
            one_link_type: false,
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

    /// Engine `xdp`: captures even if the host uses the interface; the host loses these packets.
    pub fn take(mut self, on: bool) -> Self {
        self.take = on;
        self
    }

    /// Direction of captured packets: received, sent, or both; others do not count as seen.
    /// Default: both with the engine `packet` on a whole interface, otherwise received packets, the
    /// only ones available.
    pub fn direction(mut self, direction: Direction) -> Self {
        self.direction = Some(direction);
        self
    }

    /// Engine `packet`: maximum time that a packet waits for its block to fill; at least 1 ms, the
    /// kernel's resolution. Default 20 ms.
    ///
    /// If less than a block arrives in this time, the rest of the block stays empty. So a ring that
    /// no worker reads keeps packets for at least R times this long, however full its blocks are.
    pub fn retire_after(mut self, longest: Duration) -> Self {
        self.retire_after = longest;
        self
    }

    /// Engine `packet`: every packet is handed over at once, in its own frame (TPACKET_V2), and
    /// [`retire_after`](Self::retire_after) has no effect. At least `kept` bytes of a packet are
    /// kept. A frame has room for `kept` bytes or for the longest packet of the interface (64 KiB
    /// if offloads merge packets), so the ring holds fewer packets than with blocks.
    pub fn immediate(mut self, kept: u32) -> Self {
        self.immediate = Some(kept);
        self
    }

    /// Engine `packet`: divides a ring's memory into blocks of the minimum size (128 KiB) instead
    /// of R blocks. At low rates a ring then keeps packets for more times
    /// [`retire_after`](Self::retire_after); at high rates chunks are smaller.
    pub fn small_blocks(mut self) -> Self {
        self.small_blocks = true;
        self
    }

    /// M: cells per chunk, the maximum number of packets per chunk. Default 256.
    pub fn chunk(mut self, cells: u32) -> Self {
        self.chunk_cells = cells;
        self
    }

    /// R: chunks per pool. Every ring can hold R x M packets; with the engine `packet` R x M full
    /// frames at an MTU of 1500, or more shorter ones. Default: by link speed, up to 512. All pools
    /// together take 64 MiB up to 1 Gbit/s and on virtual interfaces without a link (veth, tun),
    /// 256 MiB up to 10 Gbit/s and if the driver does not report a speed, 1 GiB at 100 Gbit/s; each
    /// pool at least 16 MiB, and all at most an eighth of the memory of the machine or of the
    /// process's memory cgroup.
    pub fn pool(mut self, chunks: u32) -> Self {
        self.chunks = Some(chunks);
        self
    }

    /// Sets R by the memory of the cells of all rings together.
    pub fn buffer(mut self, bytes: u64) -> Self {
        self.buffer_bytes = Some(bytes);
        self
    }

    /// Basic mode of the paper, the default: every worker reads its own rings only.
    pub fn basic(mut self) -> Self {
        self.mode = Mode::Basic;
        self
    }

    /// Advanced mode of the paper: workers also read rings of their buddies whose backlog exceeds
    /// T, a share of the pool from 0 to 1 (1: never); 0.6 is a good start. With the engine
    /// `packet`, T is a share of three quarters of the pool, because the kernel may lose packets if
    /// more is in use ([`Guarantee::USABLE_IN_BLOCKS`](crate::Guarantee::USABLE_IN_BLOCKS)).
    pub fn advanced(mut self, threshold: f64) -> Self {
        self.mode = Mode::Advanced(threshold);
        self
    }

    /// Advanced mode: buddies drain the rings of a worker that has not requested a chunk for this
    /// long, whatever the backlog. Default 1 s.
    pub fn stuck_after(mut self, away: Duration) -> Self {
        self.stuck_after = away;
        self
    }

    /// Number of workers. Default: one per ring.
    ///
    /// With more workers than receive queues, queues get several rings, so that each worker has
    /// one: a hash of the flow, the same for both directions, selects the ring. With the engine
    /// `xdp` the rings of a queue share the memory of their pools, but none takes more than its
    /// part, even if it is not read. With the engine `packet` each ring has its own pool, and a
    /// whole interface has one ring per worker; the rings share all packets by flow.
    pub fn workers(mut self, count: usize) -> Self {
        self.workers = Some(count);
        self
    }

    /// Like [`workers`](Self::workers), but no queue gets several rings: there are at most as many
    /// workers as rings.
    pub fn at_most_workers(mut self, count: usize) -> Self {
        self.most_workers = Some(count);
        self
    }

    /// K: keeps this many cells of each ring posted to the kernel, the most recently used ones, and
    /// adds more as the backlog grows. Engine `xdp` only. Default: all cells are posted.
    ///
    /// Fewer cells in circulation stay in the processor's cache, and the kernel fills them faster,
    /// but the guarantee is weaker. With all cells posted a ring keeps R x M packets, even if the
    /// process does not run. With K it keeps K at any rate, and R x M if at most K arrive between
    /// two checks of the keeper. The keeper is a thread of this capture that checks every K/2 x 67
    /// ns, at most every 0.5 ms; at 10 Gbit/s it may then be late by as much again. A child process
    /// has no keeper: it keeps K packets until its workers ask for chunks. Rings that share a queue
    /// share the K cells.
    pub fn warm(mut self, cells: u32) -> Self {
        self.warm = Some(cells);
        self
    }

    /// Shares the cells of all pools between the rings. Each ring reserves a quarter of R x M,
    /// posted to the kernel (or K of them with [`warm`](Self::warm)), and takes more from the
    /// shared cells as its backlog grows: all of them, but at most eight pools. Recycled cells
    /// return to the shared ones. Engine `xdp` only, and only with one queue per ring. Default:
    /// every ring has R x M cells.
    ///
    /// A ring keeps a quarter of R x M at any rate, whatever the others do. It keeps more if cells
    /// are available and at most a quarter arrives between two checks of the keeper, as with
    /// [`warm`](Self::warm).
    pub fn elastic(mut self) -> Self {
        self.elastic = true;
        self
    }

    /// Source of timestamps. Default: none.
    pub fn timestamps(mut self, which: Timestamps) -> Self {
        self.timestamps = which;
        self
    }

    /// Promiscuous mode. On by default.
    pub fn promiscuous(mut self, on: bool) -> Self {
        self.promiscuous = on;
        self
    }

    /// Snap length: maximum bytes of [`Packet::data`](crate::Packet::data), unless
    /// [`Source::snap_len`] sets another. Default: 262,144.
    pub fn snap_len(mut self, bytes: u32) -> Self {
        self.snap_len = bytes;
        self
    }

    /// The CPUs of the workers. Default: not pinned.
    pub fn pin(mut self, pin: Pin) -> Self {
        self.pin = pin;
        self
    }

    /// The filter, unless [`Source::filter`] sets another; non-matching packets count as filtered.
    /// Default: all packets match.
    ///
    /// The system's libpcap compiles expressions. The filter is applied to whole packets as they
    /// were on the wire, VLAN tags in place. With the engine `xdp` non-matching packets go to the
    /// host.
    pub fn filter(mut self, filter: impl Into<FilterRequest>) -> Self {
        self.filter = Some(filter.into());
        self
    }

    /// Engine `xdp`: drops non-matching packets, which costs less than passing them to the host.
    /// For interfaces that serve the capture only. Off by default.
    pub fn drop_rejected(mut self, on: bool) -> Self {
        self.drop_rejected = on;
        self
    }

    /// Waits for an interface that is removed, and continues when an interface of the same name is
    /// up. Otherwise the capture ends with
    /// [`CaptureError::InterfaceGone`](crate::CaptureError::InterfaceGone) after all earlier
    /// packets were delivered. Off by default.
    ///
    /// The ledger lists the gap ([`Ledger::unseen`](crate::Ledger::unseen)). Not supported if rings
    /// share their cells (elastic pools, forwarding): such a capture ends.
    pub fn reattach(mut self, on: bool) -> Self {
        self.reattach = on;
        self
    }

    /// Watches the interfaces with a thread. On by default. Without it, only idle workers notice
    /// that an interface was removed, no program is attached again, and the ledger lists no gaps.
    /// For programs that fork or count their threads and descriptors.
    pub fn watched(mut self, on: bool) -> Self {
        self.watched = on;
        self
    }

    /// Captures all interfaces of one link type only, for a file that holds no other: opening fails
    /// if interfaces of several are up, and those that appear later with another one are not
    /// captured (the ledger lists them as unseen).
    pub fn one_link_type(mut self) -> Self {
        self.one_link_type = true;
        self
    }

    /// How often that thread checks without a message from the kernel: 100 ms by default. The
    /// precision with which a detached program is noticed and gaps are bounded.
    pub fn look_every(mut self, period: Duration) -> Self {
        self.look_period = period;
        self
    }

    /// Engine `xdp`: attaches the program again if it is detached or replaced. On by default; the
    /// ledger lists the gap. Otherwise the capture ends with
    /// [`CaptureError::Detached`](crate::CaptureError::Detached).
    pub fn attach_again(mut self, on: bool) -> Self {
        self.attaches_again = on;
        self
    }

    /// Calls `listen`, from a thread of the capture, when something happens to an interface during
    /// the capture. `listen` must not call the capture, and closing the capture waits until it has
    /// returned.
    pub fn on_event(mut self, listen: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.listener = Some(Listener::new(listen));
        self
    }

    /// Makes the interfaces of the capture [`Port`](crate::Port)s as well: captured packets can be
    /// sent on them without being copied.
    ///
    /// All rings then share one UMEM, in which each has the R x M cells of its pool. Cannot be
    /// combined with [`elastic`](Self::elastic), a [snap length](Self::snap_len), or more workers
    /// than receive queues. On interfaces captured by the engine `packet` only received packets are
    /// captured, sending copies them, and the host, which also receives them, must not forward
    /// them.
    pub fn forwarding(mut self) -> Self {
        self.forwarding.on = true;
        self
    }

    /// Like [`forwarding`](Self::forwarding), and adds a port: an interface that only sends.
    pub fn transmit_on(mut self, interface: impl Into<String>) -> Self {
        self.forwarding.transmit_on.push(interface.into());
        self.forwarding()
    }

    /// Number of cells for packets from [`Port::build`](crate::Port::build) and for copied packets.
    /// Default 1,024.
    pub fn new_packets(mut self, cells: u32) -> Self {
        self.forwarding.new_packets = cells;
        self
    }

    /// Advanced mode: packets are sent as soon as workers hand them over, as in the paper.
    /// Otherwise the packets of a ring are sent in the order of its chunks' sequence numbers:
    /// packets of a later chunk wait until all earlier ones were dropped, at most for
    /// [`order_wait`](Self::order_wait).
    pub fn unordered(mut self) -> Self {
        self.forwarding.ordered = false;
        self
    }

    /// Advanced mode: maximum time that packets wait for earlier chunks. Default 10 ms.
    pub fn order_wait(mut self, longest: Duration) -> Self {
        self.forwarding.order_wait = longest;
        self
    }

    /// Makes a separate buddy group, with its own workers, of the rings of each interface (the
    /// paper's Figure 14). The [`workers`](Self::workers) are assigned one by one, in turn, to the
    /// interfaces that have more rings than workers. Default: all rings of the capture are one
    /// group.
    pub fn group_per_interface(mut self) -> Self {
        self.group_per_interface = true;
        self
    }

    pub(super) fn tell(&self, event: &Event) {
        self.listener.iter().for_each(|listener| listener.tell(event));
    }

    /// Whether captured packets may be sent.
    pub(super) fn forwards(&self) -> bool {
        self.forwarding.on
    }

    /// Rejects settings that a capture that forwards does not support.
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
            return refuse(
                "packets that the host sends (-Q)",
                "it would forward its own packets again",
            );
        }

        Ok(())
    }

    pub(super) fn check_numbers(&self) -> Result<(), OpenError> {
        #[cfg(sabotage)]
        if crate::sabotage::is("numbers-unchecked") {
            return Ok(());
        }

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
            return bad(
                "CPU of a worker",
                cpu.into(),
                "one that this process may run on (see taskset -p)",
            );
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
    fn impossible_numbers_are_rejected_before_anything_else() {
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
