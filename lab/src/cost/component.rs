//! The components of a packet's cost, and the measurements from which each is computed.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Figures;
use super::filters::{Compiler, Kind};
use super::live::Setup;

/// A component of a packet's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Id {
    /// Making and sending a frame: not a cost of receivers, but included in all live measurements.
    Sender,
    /// The transfer of a cache line from the sender's CPU to the reader's.
    CacheLine,
    /// The driver hands over and receives; a program drops the frame.
    Driver,
    /// The dispatcher's tail call, on the live bed.
    Dispatch,
    /// The same by test run.
    DispatchInTestRun,
    /// Redirect and copy into a cell, with few cells in circulation.
    Copy,
    /// The additional time with a full-sized pool.
    ColdCells,
    /// Timestamps of `batch`.
    TimestampBatch,
    /// Timestamps of `packet`.
    TimestampPacket,
    /// One port among five in the program, on the live bed.
    FilterLive,
    /// The kernel's socket buffer, and the processing in a host that discards the packet.
    SocketBuffer,
    /// AF_PACKET: hook, clock and copy.
    PacketTap,
    /// One port among five in the kernel's socket filter.
    PacketFilter,
    /// A filter, by execution method.
    Filter(Kind, Compiler),
    /// The worker gets a chunk of the engine `xdp`.
    HandOver,
    /// The application's loop that touches each header.
    Look,
    /// Recycling the cells of a dropped chunk.
    Recycle,
    /// The worker gets a chunk of the engine `packet`.
    PacketHandOver,
    /// The application's loop over it.
    PacketLook,
    /// Returning the block of a dropped chunk.
    PacketRecycle,
    /// Getting a chunk of a buddy's ring.
    BuddysChunk,
    /// The additional time compared with a chunk of the worker's own ring.
    Offload,
    /// Writing a packet to pcap.
    Pcap,
    /// Writing a packet to pcapng.
    Pcapng,
}

impl Id {
    /// The filter in the WinPcap paper's totals, run by the XDP program.
    pub(super) const FILTER_IN_PROGRAM: Self = Self::Filter(Kind::Ports, Compiler::Program);

    /// All of them, in the order of the table.
    fn all() -> Vec<Self> {
        let filters = Compiler::ALL
            .iter()
            .flat_map(|&by| Kind::ALL.iter().map(move |&kind| Self::Filter(kind, by)));
        let mut all = vec![
            Self::Sender,
            Self::CacheLine,
            Self::Driver,
            Self::Dispatch,
            Self::DispatchInTestRun,
            Self::Copy,
        ];
        all.extend([
            Self::ColdCells,
            Self::TimestampBatch,
            Self::TimestampPacket,
            Self::FilterLive,
        ]);

        all.extend([Self::SocketBuffer, Self::PacketTap, Self::PacketFilter]);
        all.extend(filters);
        all.extend([Self::HandOver, Self::Look, Self::Recycle]);
        all.extend([Self::PacketHandOver, Self::PacketLook, Self::PacketRecycle]);
        all.extend([Self::BuddysChunk, Self::Offload, Self::Pcap, Self::Pcapng]);

        all
    }
}

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Not a component of a capture.
    Bed,
    /// The kernel's side of the engine `xdp`.
    Xdp,
    /// The kernel's side of the engine `packet`.
    Packet,
    /// Filters by kind and execution method.
    Filter,
    /// The worker's side.
    Worker,
    /// Savefiles.
    Savefile,
}

impl Group {
    /// In a few words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Bed => "the test bed, no part of a capture",
            Self::Xdp => "engine xdp, in the kernel",
            Self::Packet => "engine packet, in the kernel",
            Self::Filter => "filters, on a packet that they accept as late as they can",
            Self::Worker => "in the worker",
            Self::Savefile => "savefiles, without the disk",
        }
    }
}

/// How a component was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// On the live bed, as the difference of the sender's time per frame to the run without the
    /// component.
    Live,
    /// On the live bed, by the clock around each chunk of at least 128 packets; a round's median.
    Chunks,
    /// The same after a burst that fills the pool, while nothing is sent.
    Burst,
    /// By BPF test run, as the difference to a program that does nothing.
    TestRun,
    /// In a loop of this process.
    Loop,
}

impl How {
    /// In a word or two.
    pub fn words(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Chunks => "chunks",
            Self::Burst => "burst",
            Self::TestRun => "test run",
            Self::Loop => "loop",
        }
    }
}

/// What a component costs.
#[derive(Debug, Clone, Serialize)]
pub struct Component {
    /// Which.
    #[serde(skip)]
    pub id: Id,
    /// Its name in files: `filter.ports.program`.
    pub key: String,
    /// Its place in the table.
    pub group: Group,
    /// In a few words.
    pub name: String,
    /// How it was measured.
    pub how: How,
    /// Nanoseconds per packet.
    pub ns: Figures,
    /// Ticks of the time stamp counter per packet, if there is one.
    pub cycles: Option<Figures>,
}

/// What a round measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sample {
    /// The sender's time per frame.
    Run(Setup),
    /// The times of the reader of a run's chunks.
    Reader(Setup, Act),
    /// A chunk taken by the ring's own worker after a burst.
    OwnChunk,
    /// One taken by its buddy.
    BuddysChunk,
    /// A cache line from CPU to CPU.
    CacheLine,
    /// A packet through a filter.
    Filter(Kind, Compiler),
    /// A test run of a program that does nothing.
    BareProgram,
    /// The same behind the dispatcher.
    DispatchedProgram,
    Pcap,
    Pcapng,
}

/// A reader's operations on a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    HandOver,
    Look,
    Recycle,
}

/// The samples by round.
pub(super) type Samples = BTreeMap<Sample, Figures>;

/// The samples from which a component is computed.
enum Source {
    Of(Sample),
    /// The first minus the second.
    Difference(Sample, Sample),
}

impl Source {
    fn figures(&self, samples: &Samples) -> Figures {
        let of = |sample| samples.get(sample).cloned().unwrap_or_default();
        match self {
            Self::Of(sample) => of(sample),
            Self::Difference(with, without) => of(with).less(&of(without)),
        }
    }
}

/// All components, from the measurements of the rounds.
pub(super) fn all(samples: &Samples, tsc_hz: Option<f64>) -> Vec<Component> {
    let component = |id: Id| {
        let Description { key, group, name, how, source } = describe(id);
        let ns = source.figures(samples);
        let cycles = tsc_hz.map(|hertz| ns.times(hertz / 1e9));
        Component { id, key, group, name, how, ns, cycles }
    };
    Id::all().into_iter().map(component).collect()
}

struct Description {
    key: String,
    group: Group,
    name: String,
    how: How,
    source: Source,
}

fn describe(id: Id) -> Description {
    use Setup::{
        BatchTimes, DispatchedDrop, Drop, FewCells, Filtered, NoTimes, Packet, PacketFiltered,
    };
    use Setup::{PacketTimes, Pass, SenderAlone};

    if let Id::Filter(kind, compiler) = id {
        return describe_filter(kind, compiler);
    }

    let live =
        |with, without| (How::Live, Source::Difference(Sample::Run(with), Sample::Run(without)));
    let reader = |setup, act| (How::Chunks, Source::Of(Sample::Reader(setup, act)));

    let (key, group, name, (how, source)) = match id {
        Id::Sender => (
            "bed.sender",
            Group::Bed,
            "making and sending a frame",
            (How::Live, Source::Of(Sample::Run(SenderAlone))),
        ),
        Id::CacheLine => (
            "bed.cache_line",
            Group::Bed,
            "a cache line, from CPU to CPU",
            (How::Loop, Source::Of(Sample::CacheLine)),
        ),
        Id::Driver => (
            "xdp.driver",
            Group::Xdp,
            "driver: veth and NAPI, then XDP_DROP",
            live(Drop, SenderAlone),
        ),
        Id::Dispatch => {
            ("xdp.dispatch", Group::Xdp, "dispatch: a tail call", live(DispatchedDrop, Drop))
        }
        Id::DispatchInTestRun => (
            "xdp.dispatch.test_run",
            Group::Xdp,
            "dispatch: a tail call",
            (How::TestRun, Source::Difference(Sample::DispatchedProgram, Sample::BareProgram)),
        ),
        Id::Copy => {
            ("xdp.copy", Group::Xdp, "redirect and copy, 2,048 cells in turn", live(FewCells, Drop))
        }
        Id::ColdCells => (
            "xdp.cold_cells",
            Group::Xdp,
            "more with all R x M cells in turn",
            live(NoTimes, FewCells),
        ),
        Id::TimestampBatch => (
            "xdp.timestamp.batch",
            Group::Xdp,
            "timestamp: batch, the default",
            live(BatchTimes, NoTimes),
        ),
        Id::TimestampPacket => {
            ("xdp.timestamp.packet", Group::Xdp, "timestamp: packet", live(PacketTimes, NoTimes))
        }
        Id::FilterLive => {
            ("xdp.filter.ports", Group::Xdp, "filter: one port among five", live(Filtered, NoTimes))
        }
        Id::SocketBuffer => (
            "packet.socket_buffer",
            Group::Packet,
            "socket buffer and host's stack",
            live(Pass, Drop),
        ),
        Id::PacketTap => {
            ("packet.tap", Group::Packet, "AF_PACKET: hook, clock and copy", live(Packet, Pass))
        }
        Id::PacketFilter => (
            "packet.filter.ports",
            Group::Packet,
            "filter: one port among five",
            live(PacketFiltered, Packet),
        ),
        Id::HandOver => (
            "worker.hand_over",
            Group::Worker,
            "xdp: chunk hand-over",
            reader(BatchTimes, Act::HandOver),
        ),
        Id::Look => (
            "worker.look",
            Group::Worker,
            "xdp: a loop that touches each header",
            reader(BatchTimes, Act::Look),
        ),
        Id::Recycle => {
            ("worker.recycle", Group::Worker, "xdp: recycle", reader(BatchTimes, Act::Recycle))
        }
        Id::PacketHandOver => (
            "worker.packet.hand_over",
            Group::Worker,
            "packet: chunk hand-over",
            reader(Packet, Act::HandOver),
        ),
        Id::PacketLook => (
            "worker.packet.look",
            Group::Worker,
            "packet: a loop that touches each header",
            reader(Packet, Act::Look),
        ),
        Id::PacketRecycle => (
            "worker.packet.recycle",
            Group::Worker,
            "packet: recycle",
            reader(Packet, Act::Recycle),
        ),
        Id::BuddysChunk => (
            "worker.offload.hand_over",
            Group::Worker,
            "offload: a buddy takes the chunk",
            (How::Burst, Source::Of(Sample::BuddysChunk)),
        ),
        Id::Offload => (
            "worker.offload",
            Group::Worker,
            "offload: more than its own worker",
            (How::Burst, Source::Difference(Sample::BuddysChunk, Sample::OwnChunk)),
        ),
        Id::Pcap => {
            ("savefile.pcap", Group::Savefile, "pcap", (How::Loop, Source::Of(Sample::Pcap)))
        }
        Id::Pcapng => (
            "savefile.pcapng",
            Group::Savefile,
            "pcapng, with queues",
            (How::Loop, Source::Of(Sample::Pcapng)),
        ),
        Id::Filter(..) => unreachable!("described above"),
    };
    Description { key: key.to_owned(), group, name: name.to_owned(), how, source }
}

fn describe_filter(kind: Kind, compiler: Compiler) -> Description {
    let how = if compiler == Compiler::Program { How::TestRun } else { How::Loop };
    Description {
        key: format!("filter.{}.{}", kind.key(), compiler.key()),
        group: Group::Filter,
        name: format!("{}: {}", compiler.words(), kind.words()),
        how,
        source: Source::Of(Sample::Filter(kind, compiler)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_component_is_made_of_its_samples_round_by_round() {
        let figures = |figures: &[f64]| figures.iter().copied().collect::<Figures>();
        let samples = Samples::from([
            (Sample::Run(Setup::Drop), figures(&[58.0, 60.0])),
            (Sample::Run(Setup::SenderAlone), figures(&[40.0, 61.0])),
        ]);
        let components = all(&samples, Some(2e9));
        let driver = components.iter().find(|component| component.id == Id::Driver).unwrap();
        assert_eq!(driver.ns.rounds(), [18.0, -1.0]);
        assert_eq!(driver.cycles.as_ref().unwrap().rounds(), [36.0, -2.0]);
    }

    #[test]
    fn keys_are_unique() {
        let components = all(&Samples::new(), None);
        let keys: BTreeSet<&str> =
            components.iter().map(|component| component.key.as_str()).collect();
        assert_eq!(keys.len(), components.len());
    }
}
