//! The outlet of a capture's packets: a stream, written by the capturing thread; or files, written
//! by a separate thread.

use std::path::Path;
use std::thread;
use std::time::Duration;

use wirecap::savefile::{
    self, Format, Record, Section, Sink, Statistics, StreamSink, Timestamp, WriteError,
};
use wirecap_recorder::{Launch, Recording, Settings, Target};

use super::indexer::{Indexer, Told};
use super::options::Plan;
use super::{RulesRequest, RulesStep};
use crate::shared::events::{self, Kind};
use crate::shared::failure::Failure;
use crate::shared::sink::{PipeEnd, TimedSink, Writing};

/// Takes packets and writes them.
pub(crate) trait Outlet {
    /// Whether it accepts this many bytes of packets without waiting: in all of its memory if
    /// `all`, otherwise in the part with the lowest cost.
    fn has_room(&mut self, bytes: usize, all: bool) -> bool {
        let _ = (bytes, all);
        true
    }

    /// Gives it `pause` to make room.
    fn wait_for_room(&mut self, pause: Duration) -> Result<(), WriteError> {
        thread::sleep(pause);
        Ok(())
    }

    /// Takes a packet, which came at `now` if it has no time; `false` if the recording is over by
    /// its rules.
    fn write(&mut self, packet: &Record<'_>, now: Timestamp) -> Result<bool, WriteError>;

    /// As [`write`](Self::write), for a packet of one of all interfaces: the interface has this
    /// number, and is described when its first packet comes.
    fn write_of(
        &mut self,
        number: usize,
        describe: &dyn Fn() -> savefile::Interface,
        packet: &Record<'_>,
        now: Timestamp,
    ) -> Result<bool, WriteError>;

    /// Hands on the accepted packets.
    fn flush(&mut self) -> Result<(), WriteError>;

    /// Whether handed-on packets remain to be written.
    fn is_writing(&self) -> bool {
        false
    }

    /// No earlier packet will follow.
    fn look_at_clock(&mut self, now: Timestamp) -> Result<(), WriteError> {
        let _ = now;
        Ok(())
    }

    /// Ends the file, if there may be another one.
    fn rotate(&mut self) -> Result<(), WriteError> {
        Ok(())
    }

    /// Answers a request about the rules for files, if there may be another one.
    fn change_rules(&mut self, request: RulesRequest) -> Result<(), WriteError> {
        let _ = request;
        Ok(())
    }

    /// Packets that were taken.
    fn packets(&self) -> u64;

    /// The size of the packets: `4.1 KiB`.
    fn extent(&self) -> String;

    /// Writes the interfaces' counts, if there are any, and everything that is still in memory; how
    /// many packets were written whole. `of_any` are those of [`write_of`](Self::write_of), by
    /// number.
    fn end(&mut self, counts: &[Statistics], of_any: &[Statistics]) -> Result<u64, WriteError>;

    /// Packets that the reader of a pipe ended without.
    fn unread(&self) -> u64 {
        0
    }
}

/// A stream, or a device.
#[derive(Debug)]
pub(crate) struct Stream<S: Sink> {
    writer: savefile::Writer<TimedSink<S>>,
    /// Where the packets end, if they go to a pipe.
    pipe: Option<PipeEnd>,
    writing: Writing,
    /// The indices in the file of the interfaces of [`write_of`](Outlet::write_of).
    of_any: Vec<Option<u32>>,
}

impl<S: Sink> Stream<S> {
    pub(crate) fn new(
        sink: S,
        pipe: Option<PipeEnd>,
        writing: &Writing,
        format: Format,
        section: &Section,
        interfaces: &Described,
    ) -> Result<Self, WriteError> {
        let mut writer = savefile::Writer::new(TimedSink::new(sink, writing), format, section);
        for interface in &interfaces.named {
            writer.add_interface(interface)?;
        }

        let of_any =
            interfaces.of_any.iter().map(|interface| writer.add_interface(interface).map(Some));
        let of_any = of_any.collect::<Result<_, _>>()?;

        // From now on the file is readable by others in any case.
        writer.flush()?;
        Ok(Self { writer, pipe, writing: writing.clone(), of_any })
    }
}

impl<S: Sink> Outlet for Stream<S> {
    #[inline]
    fn write(&mut self, packet: &Record<'_>, _now: Timestamp) -> Result<bool, WriteError> {
        self.writer.write(packet)?;
        if let Some(pipe) = &mut self.pipe {
            pipe.packet_ends_at(self.writer.file_bytes());
        }
        Ok(true)
    }

    fn write_of(
        &mut self,
        number: usize,
        describe: &dyn Fn() -> savefile::Interface,
        packet: &Record<'_>,
        now: Timestamp,
    ) -> Result<bool, WriteError> {
        let interface = match self.of_any.get(number).copied().flatten() {
            Some(interface) => interface,
            None => {
                let interface = self.writer.add_interface(&describe())?;
                self.of_any.resize(self.of_any.len().max(number + 1), None);
                *self.of_any[number].insert(interface)
            }
        };
        self.write(&Record { interface, ..*packet }, now)
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        self.writer.flush()
    }

    fn packets(&self) -> u64 {
        self.writer.packets()
    }

    fn extent(&self) -> String {
        crate::size::human_bytes(self.writer.file_bytes())
    }

    fn end(&mut self, counts: &[Statistics], of_any: &[Statistics]) -> Result<u64, WriteError> {
        for counts in counts {
            self.writer.statistics(counts)?;
        }
        for (counts, interface) in of_any.iter().zip(&self.of_any) {
            if let Some(interface) = *interface {
                self.writer.statistics(&Statistics { interface, ..*counts })?;
            }
        }
        self.writer.flush()?;
        Ok(self.writer.packets())
    }

    fn unread(&self) -> u64 {
        self.pipe.as_ref().map_or(0, |pipe| pipe.packets_unread(self.writing.accepted_bytes()))
    }
}

/// One file or many.
#[derive(Debug)]
pub(crate) struct Files {
    /// `None` when it has ended.
    recording: Option<Recording>,
    indexer: Option<Indexer>,
    format: Format,
    packets: u64,
    extent: String,
}

/// The interfaces that a file describes before its first packet.
#[derive(Debug, Default)]
pub(crate) struct Described {
    /// Those that the capture names, in its order.
    pub(crate) named: Vec<savefile::Interface>,
    /// The first of all interfaces, by number: see [`Outlet::write_of`].
    pub(crate) of_any: Vec<savefile::Interface>,
}

impl Described {
    fn all(&self) -> impl Iterator<Item = &savefile::Interface> {
        self.named.iter().chain(&self.of_any)
    }
}

/// Announces each complete file, and then runs the command for it, if there is one.
#[derive(Debug)]
struct Reported(Option<Box<dyn Launch>>);

impl Launch for Reported {
    fn launch(&mut self, path: &Path) {
        events::log(Kind::Rotation, &format!("{} is complete", path.display()));
        self.0.iter_mut().for_each(|command| command.launch(path));
    }

    fn finish(&mut self) {
        self.0.iter_mut().for_each(|command| command.finish());
    }
}

impl Files {
    pub(crate) fn begin(
        plan: &Plan,
        command: Option<Box<dyn Launch>>,
        target: Target,
        writing: &Writing,
        section: &Section,
        interfaces: &Described,
    ) -> Result<Self, Failure> {
        let command = match plan.pattern {
            Some(_) => Some(Box::new(Reported(command)) as Box<dyn Launch>),
            None => command,
        };
        let count = interfaces.all().count();
        let counts_bytes = plan.format.statistics(&full_counts()).len() as u64;
        let first = interfaces.named.len() as u32;

        let settings = Settings {
            format: plan.format,
            head: head(plan.format, section, interfaces)?,
            tail_bytes: count as u64 * counts_bytes,
            sources: (first..count as u32).collect(),
            interfaces: count as u32,
            source_tail_bytes: counts_bytes,
            compression: plan.compression,
            compressors: thread::available_parallelism().map_or(1, usize::from),
            cut: plan.cut,
            store: plan.store,
            files_max: plan.files_max,
            bytes_max: plan.bytes_max,
            durability: plan.durability,
            command,
            line: plan.line()?,
        };
        let (indexer, complete) =
            if plan.index { Some(Indexer::start(writing)?).unzip() } else { (None, None) };
        let told = Told { writing: writing.clone(), complete };
        let recording = Recording::begin(settings, target, super::now(), Box::new(told))?;
        let packets = 0;
        let extent = String::new();

        Ok(Self { recording: Some(recording), indexer, format: plan.format, packets, extent })
    }

    fn recording(&mut self) -> &mut Recording {
        self.recording.as_mut().expect("nothing is written after the end")
    }
}

impl Outlet for Files {
    fn has_room(&mut self, bytes: usize, all: bool) -> bool {
        self.recording().has_room(bytes, all)
    }

    fn wait_for_room(&mut self, pause: Duration) -> Result<(), WriteError> {
        self.recording().wait_for_room(pause)
    }

    #[inline]
    fn write(&mut self, packet: &Record<'_>, now: Timestamp) -> Result<bool, WriteError> {
        self.recording().write(packet, now)
    }

    fn write_of(
        &mut self,
        number: usize,
        describe: &dyn Fn() -> savefile::Interface,
        packet: &Record<'_>,
        now: Timestamp,
    ) -> Result<bool, WriteError> {
        let format = self.format;
        self.recording().write_of(number, &|| format.description(&describe()), packet, now)
    }

    /// A page that is partly full stays while others wait: the disk would not take it sooner, and
    /// it has room.
    fn flush(&mut self) -> Result<(), WriteError> {
        self.recording().check()?;
        if self.recording().backlog() > 0.0 {
            return Ok(());
        }
        self.recording().flush()
    }

    fn is_writing(&self) -> bool {
        self.recording.as_ref().is_some_and(|recording| recording.backlog() > 0.0)
    }

    fn look_at_clock(&mut self, now: Timestamp) -> Result<(), WriteError> {
        self.recording().look_at_clock(now)
    }

    fn rotate(&mut self) -> Result<(), WriteError> {
        self.recording().rotate()
    }

    fn change_rules(&mut self, request: RulesRequest) -> Result<(), WriteError> {
        let RulesRequest { step, rules, answer } = request;
        match step {
            RulesStep::Check => self.recording().check_rules(rules.cut(), rules.store(), answer),
            RulesStep::Apply => self.recording().change_rules(rules.cut(), rules.store(), answer),
        }
    }

    fn packets(&self) -> u64 {
        self.recording.as_ref().map_or(self.packets, Recording::packets)
    }

    fn extent(&self) -> String {
        self.extent.clone()
    }

    fn end(&mut self, counts: &[Statistics], of_any: &[Statistics]) -> Result<u64, WriteError> {
        let Some(recording) = self.recording.take() else { return Ok(self.packets) };
        self.packets = recording.packets();

        let in_file = recording.sources();
        let numbered = in_file.iter().filter_map(|&(number, interface)| {
            let counts = of_any.get(number)?;
            Some(Statistics { interface, ..*counts })
        });
        let tail = counts
            .iter()
            .copied()
            .chain(numbered)
            .flat_map(|counts| self.format.statistics(&counts));
        let summary = recording.finish(tail.collect());

        if let Some(indexer) = self.indexer.take() {
            indexer.finish();
        }

        let summary = summary?;
        self.extent = crate::size::human_bytes(summary.bytes);

        if summary.files > 1 {
            self.extent += &format!(" in {} files", summary.files);
        }
        if summary.removed > 0 {
            self.extent += &format!(" ({} removed by a budget)", summary.removed);
        }

        if summary.vanished > 0 {
            self.extent +=
                &format!(" ({} removed by another process while it was written)", summary.vanished);
        }

        Ok(summary.packets)
    }
}

/// The bytes before a file's packets.
fn head(format: Format, section: &Section, interfaces: &Described) -> Result<Vec<u8>, WriteError> {
    let mut writer = savefile::Writer::new(StreamSink::new(Vec::new(), "memory"), format, section);
    for interface in interfaces.all() {
        writer.add_interface(interface)?;
    }
    Ok(writer.finish()?.into_inner())
}

/// As long as counts are at most.
fn full_counts() -> Statistics {
    Statistics {
        interface: 0,
        start: Some(Timestamp::default()),
        end: Some(Timestamp::default()),
        received: Some(0),
        dropped_by_interface: Some(0),
        accepted_by_filter: Some(0),
        dropped_by_os: Some(0),
        delivered: Some(0),
    }
}
