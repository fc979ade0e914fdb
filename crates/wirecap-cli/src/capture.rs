//! `wirecap capture`: records packets to a savefile.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use wirecap::filter::FilterRequest;
use wirecap::savefile::{self, FileSink, Format, Sink, WriteError};
use wirecap::{Capture, Chunk, Ledger, Packet, Timestamp, Timestamps, Worker, grouped};

use crate::failure::Failure;
use crate::filter::{FilterOptions, filtered};
use crate::merge::Merge;
use crate::options::CaptureOptions;
use crate::output;
use crate::progress::Progress;
use crate::recording;
use crate::size;

/// Record packets to a file, or to a pipe with -w -
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: CaptureOptions,

    /// The savefile; - is standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,

    /// The savefile's format; times are in nanoseconds in both
    #[arg(long, value_enum, default_value_t = FileFormat::Pcapng)]
    format: FileFormat,

    /// Which packets' times of arrival are read from a clock. Without the system's times packets of several rings are
    /// written as they come
    #[arg(long, value_enum, default_value_t = TimestampName::Batch)]
    timestamp: TimestampName,

    #[command(flatten)]
    filter: FilterOptions,
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

/// What was written at the latest after this time can be read from the file.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// How long to sleep while packets are held back for those of other rings.
const MERGE_PAUSE: Duration = Duration::from_millis(1);
/// How long to wait for packets between looks at the clock.
const IDLE_PAUSE: Duration = Duration::from_millis(200);

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if output::is_standard_output(&arguments.write) {
        let output = output::savefile(arguments.options.json)?;
        return record(arguments, |_| Ok(output));
    }
    output::check_directory(&arguments.write)?;
    record(arguments, |path| {
        FileSink::create(path).map_err(|source| {
            let message = format!("cannot write to {}: {source}", path.display());
            Failure::Failed(message.into())
        })
    })
}

fn record<S: Sink>(
    arguments: &Arguments,
    create: impl FnOnce(&Path) -> Result<S, Failure>,
) -> Result<(), Failure> {
    let options = &arguments.options;
    let filter = arguments.filter.request()?;
    let filtered = |builder| filtered(builder, filter.clone());
    let timestamps = arguments.timestamp.into();
    let capture = options.open(|builder| filtered(builder).workers(1).timestamps(timestamps))?;
    let sink = create(&arguments.write)?;
    let mut recorder = Recorder::new(sink, arguments, &capture, filter)?;
    let mut progress = Progress::new();
    let outcome = recorder.record(&capture, &mut progress);
    progress.clear();
    let interfaces: Vec<usize> = capture.interfaces().iter().map(|interface| interface.rings).collect();
    let ledger = capture.close();
    let outcome = outcome.and_then(|()| Ok(recorder.finish(&ledger, &interfaces)?));
    if outcome.is_ok() {
        eprintln!("{}", recorder.summary(&arguments.write));
    }
    options.report(&ledger)?;
    output::unless_broken_pipe(outcome)
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
    let mut writer = savefile::Writer::new(sink, Format::Pcapng, &recording::section());
    writer.add_interface(&savefile::Interface::default())?;
    let mut recorder = Recorder {
        writer,
        interfaces: 1,
        started: recording::now(),
        left: u64::MAX,
        deadline: None,
        flushed: Instant::now(),
        surplus: 0,
        has_system_times: true,
        filter: None,
    };
    let mut progress = Progress::new();
    capture.stop();
    Ok(move || {
        recorder.record(capture, &mut progress).map_err(|failure| failure.to_string())?;
        recorder.writer.flush()?;
        Ok(recorder.writer.packets())
    })
}

/// Takes chunks from one worker and writes their packets to a savefile.
struct Recorder<S: Sink> {
    writer: savefile::Writer<S>,
    /// How many the savefile has.
    interfaces: usize,
    started: Timestamp,
    /// Packets still to be written, with -c.
    left: u64,
    deadline: Option<Instant>,
    flushed: Instant,
    /// Packets that arrived after the last one that was asked for, or that could be written.
    surplus: u64,
    /// Packets bear times of the system's clock, by which rings are merged.
    has_system_times: bool,
    /// The filter, in words.
    filter: Option<String>,
}

impl<S: Sink> Recorder<S> {
    fn new(
        sink: S,
        arguments: &Arguments,
        capture: &Capture,
        filter: Option<FilterRequest>,
    ) -> Result<Self, Failure> {
        let options = &arguments.options;
        let mut writer = savefile::Writer::new(sink, arguments.format.into(), &recording::section());
        let filter = filter.map(|filter| filter.to_string());
        for interface in capture.interfaces() {
            writer.add_interface(&recording::interface(interface, arguments.timestamp.into()))?;
        }
        Ok(Self {
            writer,
            interfaces: capture.interfaces().len(),
            started: recording::now(),
            left: options.count.unwrap_or(u64::MAX),
            deadline: options.duration.map(|duration| Instant::now() + duration),
            flushed: Instant::now(),
            surplus: 0,
            has_system_times: !matches!(arguments.timestamp, TimestampName::None | TimestampName::Hardware),
            filter,
        })
    }

    /// Writes until the capture is stopped, by a signal, by time, or by the number of packets.
    fn record(&mut self, capture: &Capture, progress: &mut Progress) -> Result<(), Failure> {
        let mut worker = capture.workers().pop().expect("a new capture has its workers");
        let rings = capture.rings().len();
        let outcome = if rings == 1 || !self.has_system_times {
            self.record_ring(capture, &mut worker, progress)
        } else {
            self.record_merged(capture, &mut worker, progress)
        };
        capture.stop();
        // After a failure of the file, what has arrived meanwhile is taken out, so that the ledger does
        // not blame the engine for it.
        while let Ok(Some(chunk)) = worker.next_chunk() {
            self.surplus += chunk.len() as u64;
        }
        outcome
    }

    /// One ring is in order by itself: no packet is held back.
    fn record_ring(
        &mut self,
        capture: &Capture,
        worker: &mut Worker,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        while !worker.is_finished() {
            if let Some(chunk) = worker.next_chunk_timeout(IDLE_PAUSE)? {
                self.add_interfaces_up_to(&chunk)?;
                for packet in &chunk {
                    self.write(&chunk, packet)?;
                }
            }
            self.housekeeping(capture, progress)?;
        }
        Ok(())
    }

    fn record_merged(
        &mut self,
        capture: &Capture,
        worker: &mut Worker,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let rings = capture.rings().len();
        // What is held back is missing in the pool: a quarter of it at most.
        let delay = capture.interfaces().iter().map(|interface| interface.reception.delay()).max();
        let held_max = rings * capture.geometry().cells() as usize / 4;
        let mut merge = Merge::new(rings, held_max, delay.unwrap_or_default());
        while !worker.is_finished() {
            let before = recording::now();
            let empty: Vec<bool> = capture.backlogs().into_iter().map(|backlog| backlog == 0).collect();
            let pause = if merge.is_empty() { IDLE_PAUSE } else { MERGE_PAUSE };
            if let Some(chunk) = worker.next_chunk_timeout(pause)? {
                merge.push(chunk);
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
        Ok(())
    }

    /// The interfaces of a savefile are known only when their first packets come.
    fn add_interfaces_up_to(&mut self, chunk: &Chunk) -> Result<(), WriteError> {
        while self.interfaces <= chunk.interface_index() {
            self.writer.add_interface(&savefile::Interface {
                // One that had no packets is there for the others' numbers.
                name: (self.interfaces == chunk.interface_index()).then(|| chunk.ring().interface.clone()),
                link_type: chunk.link_type(),
                time_source: Some("as in the file that was read".to_owned()),
                filter: self.filter.clone(),
                ..savefile::Interface::default()
            })?;
            self.interfaces += 1;
        }
        Ok(())
    }

    fn write(&mut self, chunk: &Chunk, packet: Packet<'_>) -> Result<(), WriteError> {
        if self.left == 0 {
            self.surplus += 1;
            return Ok(());
        }
        self.left -= 1;
        self.writer.write(&recording::record(chunk, packet))
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

    /// Writes each interface's counts, and everything that is still in memory.
    fn finish(&mut self, ledger: &Ledger, interfaces: &[usize]) -> Result<(), WriteError> {
        recording::write_statistics(&mut self.writer, self.started, ledger, interfaces)?;
        self.writer.flush()
    }

    fn summary(&self, path: &Path) -> String {
        let (packets, bytes) = (self.writer.packets(), self.writer.file_bytes());
        let name = if output::is_standard_output(path) {
            "standard output".to_owned()
        } else {
            path.display().to_string()
        };
        let surplus = match self.surplus {
            0 => String::new(),
            surplus => format!("; {} more arrived before the capture was stopped", grouped(surplus)),
        };
        format!("wrote {} packets, {}, to {name}{surplus}", grouped(packets), size::human_bytes(bytes))
    }
}
