//! The runs on the live bed, in alternation: each has one component more than another.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use wirecap::bpf::asm::{Assembler, Reg, Size};
use wirecap::bpf::{
    BpfError, Link, LoadOptions, Map, MapKind, Program, ProgramKind, XDP_DROP, XDP_PASS, XdpMode,
};
use wirecap::bpf::{asm::Insn, xdp_md};
use wirecap::{Capture, CaptureBuilder, Engine, Ledger, Pin, Timestamps};
use wirecap_testbed::{Interface, drop_program, pass_program};

use super::bed::{Bed, PATIENCE, Pace};
use super::book::Book;
use super::line::{self, allowed_cpus};
use super::reader::Reading;
use super::{CostError, Effort};

/// R of a pool whose cells stay in the processor's cache: 2,048 cells.
const FEW_CHUNKS: u32 = 8;
/// M.
pub(super) const CHUNK_CELLS: u32 = 256;
const GLANCE: Duration = Duration::from_millis(1);

/// Matches every frame of the sender (destination port 9), at the last comparison.
const ONE_PORT_AMONG_FIVE: &str =
    "udp port 1000 or udp port 2000 or udp port 3000 or udp port 4000 or udp port 9";

/// The receiver of the sender's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Setup {
    /// None: the receiving interface rejects them.
    SenderAlone,
    /// A program that drops them.
    Drop,
    /// The same, reached through the dispatcher.
    DispatchedDrop,
    /// The engine `xdp` with few cells, without timestamps.
    FewCells,
    /// With a full-sized pool.
    NoTimes,
    /// The clock read for some packets of a batch.
    BatchTimes,
    /// The clock read for each packet.
    PacketTimes,
    /// Without timestamps, with a filter that all frames match.
    Filtered,
    /// A program that passes them to a host, which discards them.
    Pass,
    /// The engine `packet`.
    Packet,
    /// The same with the filter.
    PacketFiltered,
}

impl Setup {
    pub(super) const ALL: [Self; 11] = [
        Self::SenderAlone,
        Self::Drop,
        Self::DispatchedDrop,
        Self::FewCells,
        Self::NoTimes,
        Self::BatchTimes,
        Self::PacketTimes,
        Self::Filtered,
        Self::Pass,
        Self::Packet,
        Self::PacketFiltered,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::SenderAlone => "sender alone",
            Self::Drop => "XDP_DROP",
            Self::DispatchedDrop => "dispatcher and XDP_DROP",
            Self::FewCells => "xdp with few cells",
            Self::NoTimes => "xdp without times",
            Self::BatchTimes => "xdp with times of a batch",
            Self::PacketTimes => "xdp with times of each packet",
            Self::Filtered => "xdp with a filter",
            Self::Pass => "XDP_PASS",
            Self::Packet => "packet",
            Self::PacketFiltered => "packet with a filter",
        }
    }

    /// The capture, if it is one.
    fn capture(self, effort: &Effort) -> Option<CaptureBuilder> {
        let on = |engine| {
            Capture::on("a1").engine(engine).chunk(CHUNK_CELLS).pool(effort.chunks).workers(1)
        };
        let xdp = || on(Engine::Xdp);

        Some(match self {
            Self::SenderAlone | Self::Drop | Self::DispatchedDrop | Self::Pass => return None,
            Self::FewCells => xdp().pool(FEW_CHUNKS),
            Self::NoTimes => xdp(),
            Self::BatchTimes => xdp().timestamps(Timestamps::Batch),
            Self::PacketTimes => xdp().timestamps(Timestamps::Packet),
            Self::Filtered => xdp().filter(ONE_PORT_AMONG_FIVE),
            Self::Packet => on(Engine::Packet),
            Self::PacketFiltered => on(Engine::Packet).filter(ONE_PORT_AMONG_FIVE),
        })
    }

    /// The program on the receiving interface before any capture.
    fn program(self, interface: &Interface) -> Result<Option<Held>, CostError> {
        Ok(match self {
            Self::Drop => Some(Held::alone(drop_program(interface)?)),
            Self::DispatchedDrop => Some(dispatched_drop(interface)?),
            // Without a program, a veth loses the sender's frames before a packet socket sees them.
            Self::Pass | Self::Packet | Self::PacketFiltered => {
                Some(Held::alone(pass_program(interface)?))
            }
            _ => None,
        })
    }
}

/// A program on an interface, and the objects that keep it attached.
#[derive(Debug)]
struct Held {
    _link: Link,
    _array: Option<Map>,
}

impl Held {
    fn alone(link: Link) -> Self {
        Self { _link: link, _array: None }
    }
}

/// Programs as in the engine if several processes share an interface: the dispatcher makes a tail
/// call to the program of the frame's queue.
#[derive(Debug)]
pub(super) struct Dispatched {
    pub(super) dispatcher: Program,
    pub(super) array: Map,
}

impl Dispatched {
    /// The dispatcher with a program that returns `verdict`, on queue 0.
    pub(super) fn new(verdict: i32) -> Result<Self, BpfError> {
        let array = Map::create(MapKind::ProgArray, "cost_programs", 4, 1)?;
        array.update_fd(0, verdict_program(verdict)?)?;
        let mut asm = Assembler::new();
        asm.load(Size::Word, Reg::R3, Reg::R1, xdp_md::RX_QUEUE_INDEX);
        asm.tail_call(Reg::R1, &array, Reg::R3).mov(Reg::R0, XDP_PASS).exit();
        Ok(Self { dispatcher: load(&asm.finish().expect("there are no labels"))?, array })
    }
}

/// A program that does nothing else.
pub(super) fn verdict_program(verdict: i32) -> Result<Program, BpfError> {
    let mut asm = Assembler::new();
    asm.mov(Reg::R0, verdict).exit();
    load(&asm.finish().expect("there are no labels"))
}

pub(super) fn load(code: &[Insn]) -> Result<Program, BpfError> {
    Program::load(ProgramKind::Xdp, "lab_cost", code, LoadOptions { fragments: true, device: None })
}

fn dispatched_drop(interface: &Interface) -> Result<Held, CostError> {
    let Dispatched { dispatcher, array } = Dispatched::new(XDP_DROP)?;
    let link = Link::attach_xdp(&dispatcher, interface.index, XdpMode::Native)?;
    Ok(Held { _link: link, _array: Some(array) })
}

/// What a run showed.
#[derive(Debug)]
pub(super) struct Run {
    /// The time of a cache line from CPU to CPU directly before the run.
    pub(super) line_ns: Option<f64>,
    pub(super) pace: Pace,
    pub(super) book: Book,
    /// With a capture.
    pub(super) reading: Option<Reading>,
}

/// Makes a run, and repeats it if it was disturbed; the least disturbed one counts. The caller's
/// thread is in the receiver's namespace.
pub(super) fn calmest(bed: &mut Bed, setup: Setup, effort: &Effort) -> Result<Run, CostError> {
    let mut best = run(bed, setup, effort)?;
    for _ in 0..effort.repeats {
        if !best.pace.is_disturbed() {
            break;
        }
        let next = run(bed, setup, effort)?;
        if next.pace.waited < best.pace.waited {
            best = next;
        }
    }
    Ok(best)
}

fn run(bed: &mut Bed, setup: Setup, effort: &Effort) -> Result<Run, CostError> {
    let _program = setup.program(&bed.receiver)?;
    let line_ns = line::time()?;
    let (pace, book, reading) = match setup.capture(effort) {
        Some(builder) => captured(bed, setup, effort, builder)?,
        None => uncaptured(bed, setup, effort)?,
    };
    if book.balances() {
        Ok(Run { line_ns, pace, book, reading })
    } else {
        Err(CostError::Unbalanced(book))
    }
}

/// The results of a run's sender, account and reader.
type Outcome = (Pace, Book, Option<Reading>);

fn uncaptured(bed: &mut Bed, setup: Setup, effort: &Effort) -> Result<Outcome, CostError> {
    bed.begin()?;
    bed.send(effort.warm_up_frames())?;
    let pace = bed.send(effort.frames)?;
    bed.settle()?;
    let book = bed.book(setup.name(), effort.warm_up_frames() + effort.frames)?;
    Ok((pace, book, None))
}

fn captured(
    bed: &mut Bed,
    setup: Setup,
    effort: &Effort,
    builder: CaptureBuilder,
) -> Result<Outcome, CostError> {
    let last = allowed_cpus()?.last().map(|&cpu| cpu as u32);
    let capture = builder.pin(Pin::List(last.into_iter().collect())).open()?;
    let worker = capture.workers().pop().expect("a new capture has its worker");

    bed.begin()?;
    let timing = AtomicBool::new(false);

    let (pace, reading) = thread::scope(|scope| {
        let reader = scope.spawn(|| Reading::of(worker, &timing));
        let pace = send_to(bed, &capture, effort, &timing);
        capture.stop();
        (pace, reader.join().expect("the reader does not panic"))
    });
    let pace = pace?;
    let reading = reading?;
    let mut book = bed.book(setup.name(), effort.warm_up_frames() + effort.frames)?;
    let dropped = capture.close().total.dropped;
    book.dropped += dropped.no_cell + dropped.ring_full + dropped.other;
    book.delivered = reading.packets;

    if matches!(setup, Setup::Packet | Setup::PacketFiltered) {
        // The host got them and the capture got copies; each counts once.
        book.passed = 0;
    }

    Ok((pace, book, Some(reading)))
}

/// Sends one pool of frames unmeasured, then the measured frames, and waits until the capture has
/// all.
fn send_to(
    bed: &mut Bed,
    capture: &Capture,
    effort: &Effort,
    timing: &AtomicBool,
) -> Result<Pace, CostError> {
    bed.send(effort.warm_up_frames())?;
    timing.store(true, Relaxed);

    let pace = bed.send(effort.frames);
    timing.store(false, Relaxed);
    bed.settle()?;

    let sent = effort.warm_up_frames() + effort.frames;
    let book = bed.book("", sent)?;

    // The ledger's device drops include frames lost in the interface's ring.
    await_offered(capture, sent - book.lost)?;
    pace
}

/// Waits until the ledger has this many packets, without those that the device dropped.
pub(super) fn await_offered(capture: &Capture, packets: u64) -> Result<(), CostError> {
    let came = |ledger: Ledger| ledger.total.offered - ledger.total.dropped.device.unwrap_or(0);
    let deadline = Instant::now() + PATIENCE;

    loop {
        let came = came(capture.ledger());
        if came >= packets {
            return Ok(());
        }

        if Instant::now() > deadline {
            return Err(CostError::Missing {
                run: "a capture on the test bed",
                expected: packets,
                came,
            });
        }
        thread::sleep(GLANCE);
    }
}
