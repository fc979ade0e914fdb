//! `wirecap capture`: records packets to a savefile.

mod convert;

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{ArgAction, Args, ValueEnum};
use wirecap::savefile::{self, Format, Sink, WriteError};
use wirecap::{
    Capture, CaptureError, Chunk, Ledger, Packet, Recorded, Timestamp, Timestamps, Worker, grouped,
};

use crate::failure::Failure;
use crate::filter::{FilterOptions, filtered};
use crate::losses;
use crate::merge::Merge;
use crate::options::CaptureOptions;
use crate::output;
use crate::progress::Progress;
use crate::recording;
use crate::sink::{self, Output, PipeEnd, TimedSink, Writing};
use crate::size;

/// Record packets to a file, or to a pipe with -w -
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: CaptureOptions,

    /// The savefile; - is standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,

    /// Replace the savefile if it exists
    #[arg(long)]
    force: bool,

    /// The savefile's format; times are in nanoseconds in both
    #[arg(long, value_enum, default_value_t = FileFormat::Pcapng)]
    format: FileFormat,

    /// Which packets' times of arrival are read from a clock. Without the system's times packets of several rings are
    /// written as they come
    #[arg(long, value_enum, default_value_t = TimestampName::Batch)]
    timestamp: TimestampName,

    /// Whether to wait for an interface that is removed, and to capture from it again when it is back; else the capture
    /// ends with an error
    #[arg(long, value_name = "on|off", action = ArgAction::Set, value_parser = on_or_off, default_value = "on")]
    reattach: bool,

    #[command(flatten)]
    filter: FilterOptions,
}

/// `on` or `off`.
fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TimestampName {
    /// Every packet's
    Packet,
    /// With the engine xdp that of the first packet of a batch and of every eighth, which those behind it share: up to a
    /// few microseconds early, and cheaper; else as packet
    Batch,
    /// Every packet's, by the device's clock as it stands, where its driver shows it to XDP programs and stamps every
    /// packet (hwstamp_ctl -i DEV -r 1)
    Hardware,
    /// No packet's: they have no times
    None,
}

impl From<TimestampName> for Timestamps {
    fn from(name: TimestampName) -> Self {
        match name {
            TimestampName::Packet => Self::Packet,
            TimestampName::Batch => Self::Batch,
            TimestampName::Hardware => Self::Hardware,
            TimestampName::None => Self::None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FileFormat {
    Pcapng,
    Pcap,
}

impl From<FileFormat> for Format {
    fn from(format: FileFormat) -> Self {
        match format {
            FileFormat::Pcapng => Self::Pcapng,
            FileFormat::Pcap => Self::Pcap,
        }
    }
}

/// With the engine `packet`, and a regular file as the output: how long a packet waits for others at most. What is to be read
/// later may wait, and a ring that is not read keeps its packets for as many times longer as this is longer than usual.
const RETIRE_INTO_FILE: Duration = Duration::from_secs(1);
/// What was written at the latest after this time can be read from the file.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// How long to sleep while packets are held back for those of other rings.
const MERGE_PAUSE: Duration = Duration::from_millis(1);
/// How long to wait for packets between looks at the clock.
const IDLE_PAUSE: Duration = Duration::from_millis(200);

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let source = arguments.options.read.as_deref();
    if let Some(source) = source {
        convert::refuse_itself(source, arguments)?;
    }
    if output::is_standard_output(&arguments.write) {
        let output = output::savefile(arguments.options.json)?;
        return match source {
            Some(source) => convert::run(arguments, source, |_, _, _| Ok(output)),
            None => record(arguments, |_, _, _| Ok(output)),
        };
    }
    output::check_directory(&arguments.write)?;
    match source {
        Some(source) => convert::run(arguments, source, sink::create),
        None => record(arguments, sink::create),
    }
}

/// Opens what is recorded to: the path, when to give up waiting for a pipe's reader, whether to replace a file.
trait Create<S>: FnOnce(&Path, Option<Instant>, bool) -> Result<Output<S>, Failure> {}

impl<S, F: FnOnce(&Path, Option<Instant>, bool) -> Result<Output<S>, Failure>> Create<S> for F {}

fn record<S: Sink>(arguments: &Arguments, create: impl Create<S>) -> Result<(), Failure> {
    let options = &arguments.options;
    let filter = arguments.filter.request()?;
    let timestamps = arguments.timestamp.into();
    let capture = options.open(|builder| {
        let builder = filtered(builder, filter).workers(1).timestamps(timestamps);
        let builder = builder.reattach(arguments.reattach);
        match arguments.is_read_live() {
            true => builder,
            false => builder.retire_after(RETIRE_INTO_FILE).small_blocks(),
        }
    })?;
    let deadline = options.duration.map(|duration| Instant::now() + duration);
    let mut worker = capture.workers().pop().expect("a new capture has its workers");
    let writing = Writing::to(arguments.name());
    let mut recorder = None;
    let outcome = losses::watched(&capture, Some(&writing), || {
        let output = create(&arguments.write, deadline, arguments.force)?;
        let recorder = recorder.insert(Recorder::new(output, arguments, deadline, &writing, &capture)?);
        let mut progress = Progress::new();
        recorder.record(&capture, &mut worker, &mut progress)
    });
    capture.stop();
    drain(&mut worker);
    let interfaces: Vec<usize> = capture.interfaces().iter().map(|interface| interface.rings).collect();
    let mut ledger = capture.close();
    let (recorded, outcome) = match recorder {
        Some(recorder) => {
            let summary = recorder.summary();
            let (recorded, outcome) = recorder.finish(outcome, &ledger, &interfaces);
            if outcome.is_ok() {
                eprintln!("{summary}");
            }
            (recorded, outcome)
        }
        None => (Recorded { to: arguments.name(), ..Recorded::default() }, outcome),
    };
    ledger.recorded = Some(recorded);
    options.report(&ledger)?;
    outcome.and(Failure::unless_lossless(&ledger))
}

/// Takes out what is still in the rings of a capture that was stopped: it was delivered, and the ledger must not blame the
/// engine for what happened to the file.
fn drain(worker: &mut Worker) {
    while let Ok(Some(_)) = worker.next_chunk() {}
}

impl Arguments {
    /// What the packets are written to.
    fn name(&self) -> String {
        match output::is_standard_output(&self.write) {
            true => "standard output".to_owned(),
            false => self.write.display().to_string(),
        }
    }

    /// Whether a process may look at packets as they come: a pipe, a terminal.
    fn is_read_live(&self) -> bool {
        match output::is_standard_output(&self.write) {
            true => !sink::is_regular_file(io::stdout()),
            false => self.write.metadata().is_ok_and(|metadata| !metadata.is_file()),
        }
    }
}

/// For benches: something that writes what waits in the rings of `capture`, with the system's times, into `sink` as the
/// command does, and gives how many packets these were.
///
/// # Errors
///
/// When the capture or the sink fails.
#[doc(hidden)]
pub fn record_waiting<S: Sink>(
    capture: &Capture,
    sink: S,
) -> Result<impl FnOnce() -> Result<u64, Box<dyn Error + Send + Sync>>, WriteError> {
    let writing = Writing::to("nothing");
    let sink = TimedSink::new(sink, &writing);
    let mut writer = savefile::Writer::new(sink, Format::Pcapng, &recording::section());
    writer.add_interface(&savefile::Interface::default())?;
    let mut recorder = Recorder {
        writer,
        pipe: None,
        writing,
        started: recording::now(),
        left: u64::MAX,
        deadline: None,
        flushed: Instant::now(),
        surplus: 0,
        has_system_times: true,
    };
    let mut progress = Progress::new();
    let mut worker = capture.workers().pop().expect("a new capture has its workers");
    capture.stop();
    Ok(move || {
        recorder.record(capture, &mut worker, &mut progress).map_err(|failure| failure.to_string())?;
        recorder.writer.flush()?;
        Ok(recorder.writer.packets())
    })
}

/// Takes chunks from one worker and writes their packets to a savefile.
struct Recorder<S: Sink> {
    writer: savefile::Writer<TimedSink<S>>,
    /// Where the packets end, if they go to a pipe.
    pipe: Option<PipeEnd>,
    writing: Writing,
    started: Timestamp,
    /// Packets still to be written, with -c.
    left: u64,
    deadline: Option<Instant>,
    flushed: Instant,
    /// Packets that arrived after the last one that was asked for.
    surplus: u64,
    /// Packets bear times of the system's clock, by which rings are merged.
    has_system_times: bool,
}

impl<S: Sink> Recorder<S> {
    fn new(
        output: Output<S>,
        arguments: &Arguments,
        deadline: Option<Instant>,
        writing: &Writing,
        capture: &Capture,
    ) -> Result<Self, Failure> {
        let options = &arguments.options;
        let sink = TimedSink::new(output.sink, writing);
        let mut writer = savefile::Writer::new(sink, arguments.format.into(), &recording::section());
        for interface in capture.interfaces() {
            writer.add_interface(&recording::interface(interface, arguments.timestamp.into()))?;
        }
        // From now on it is a file that others read, whatever comes.
        writer.flush()?;
        Ok(Self {
            writer,
            pipe: output.pipe,
            writing: writing.clone(),
            started: recording::now(),
            left: options.count.unwrap_or(u64::MAX),
            deadline,
            flushed: Instant::now(),
            surplus: 0,
            has_system_times: !matches!(arguments.timestamp, TimestampName::None | TimestampName::Hardware),
        })
    }

    /// Writes until the capture is stopped, by a signal, by time, or by the number of packets.
    fn record(
        &mut self,
        capture: &Capture,
        worker: &mut Worker,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        self.record_ring(capture, worker, progress)?;
        self.record_merged(capture, worker, progress)
    }

    /// One ring is in order by itself, as long as there are no more: no packet is held back. Without the system's times
    /// there is nothing to put several in order by.
    fn record_ring(
        &mut self,
        capture: &Capture,
        worker: &mut Worker,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let mut failed = Ok(());
        while !worker.is_finished() && (capture.ring_count() == 1 || !self.has_system_times) {
            match worker.next_chunk_timeout(IDLE_PAUSE) {
                Ok(Some(chunk)) => {
                    for packet in &chunk {
                        self.write(&chunk, packet)?;
                    }
                }
                Ok(None) => {}
                Err(error) if failed.is_ok() => failed = stopped_by(error, capture),
                Err(_) => break,
            }
            self.housekeeping(capture, progress)?;
        }
        failed
    }

    fn record_merged(
        &mut self,
        capture: &Capture,
        worker: &mut Worker,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let rings = capture.most_rings();
        // What is held back is missing in the pool: a quarter of it at most.
        let delay = capture.interfaces().iter().map(|interface| interface.reception.delay()).max();
        let held_max = capture.ring_count() * capture.geometry().cells() as usize / 4;
        let mut merge = Merge::new(rings, held_max, delay.unwrap_or_default());
        let mut failed = Ok(());
        while !worker.is_finished() {
            let before = recording::now();
            if merge.is_after_step(before, Instant::now()) {
                merge.emit_all(|chunk, packet| self.write(chunk, packet))?;
            }
            let mut empty: Vec<bool> = capture.backlogs().into_iter().map(|backlog| backlog == 0).collect();
            // Of a ring that is not there nothing earlier will come.
            empty.resize(rings, true);
            let pause = if merge.is_empty() { IDLE_PAUSE } else { MERGE_PAUSE };
            match worker.next_chunk_timeout(pause) {
                Ok(chunk) => chunk.into_iter().for_each(|chunk| merge.push(chunk)),
                Err(error) if failed.is_ok() => failed = stopped_by(error, capture),
                Err(_) => break,
            }
            empty
                .iter()
                .enumerate()
                .filter(|(_, empty)| **empty)
                .for_each(|(ring, _)| merge.found_empty(ring, before));
            merge.emit(|chunk, packet| self.write(chunk, packet))?;
            self.housekeeping(capture, progress)?;
        }
        merge.emit_all(|chunk, packet| self.write(chunk, packet))?;
        failed
    }

    fn write(&mut self, chunk: &Chunk, packet: Packet<'_>) -> Result<(), WriteError> {
        if self.left == 0 {
            self.surplus += 1;
            return Ok(());
        }
        self.left -= 1;
        self.writer.write(&recording::record(chunk, packet))?;
        if let Some(pipe) = &mut self.pipe {
            pipe.packet_ends_at(self.writer.file_bytes());
        }
        Ok(())
    }

    fn housekeeping(&mut self, capture: &Capture, progress: &mut Progress) -> Result<(), Failure> {
        let now = Instant::now();
        if self.left == 0 || self.deadline.is_some_and(|deadline| now >= deadline) {
            capture.stop();
        }
        if now - self.flushed >= FLUSH_INTERVAL {
            self.writer.flush()?;
            self.flushed = now;
        }
        progress.tick(capture);
        Ok(())
    }

    /// Writes each interface's counts, and everything that is still in memory, unless the file cannot be written to
    /// any more. Gives what became of the packets.
    fn finish(
        mut self,
        outcome: Result<(), Failure>,
        ledger: &Ledger,
        interfaces: &[usize],
    ) -> (Recorded, Result<(), Failure>) {
        let written = self.writer.packets();
        let outcome = match outcome {
            Err(failure) if safely_written(&failure).is_some() => Err(failure),
            outcome => outcome.and(self.end_file(ledger, interfaces).map_err(Failure::from)),
        };
        let whole = outcome.as_ref().err().and_then(safely_written).unwrap_or(written);
        let unread = self.pipe.as_ref().map_or(0, |pipe| pipe.packets_unread(self.writing.accepted_bytes()));
        let in_file = whole.min(written - unread.min(written));
        let mut recorded =
            Recorded { to: self.writing.name().to_owned(), surplus: self.surplus, written, in_file };
        if unread > 0 {
            recorded.to += " (its reader ended)";
        }
        let lost = recorded.lost(ledger.total.delivered);
        // A reader that has seen enough, and has missed nothing.
        let outcome = if lost == 0 { output::unless_broken_pipe(outcome) } else { outcome };
        (recorded, outcome)
    }

    fn end_file(&mut self, ledger: &Ledger, interfaces: &[usize]) -> Result<(), WriteError> {
        recording::write_statistics(&mut self.writer, self.started, ledger, interfaces)?;
        self.writer.flush()
    }

    fn summary(&self) -> String {
        let (packets, bytes) = (self.writer.packets(), self.writer.file_bytes());
        let surplus = match self.surplus {
            0 => String::new(),
            surplus => format!("; {} more arrived before the capture was stopped", grouped(surplus)),
        };
        let (packets, bytes, name) = (grouped(packets), size::human_bytes(bytes), self.writing.name());
        format!("wrote {packets} packets, {bytes}, to {name}{surplus}")
    }
}

/// Stops a capture that failed: what has arrived before is recorded all the same.
fn stopped_by(error: CaptureError, capture: &Capture) -> Result<(), Failure> {
    capture.stop();
    Err(error.into())
}

/// An error with all its causes on one line.
fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// How many packets a file has whole that could not be written to any more.
fn safely_written(failure: &Failure) -> Option<u64> {
    let Failure::Failed(error) = failure else { return None };
    recording::safely_written(error.downcast_ref()?)
}
