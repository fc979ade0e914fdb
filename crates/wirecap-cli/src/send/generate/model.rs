//! `wirecap generate --model`: frames of a traffic model, sent or written to a savefile.
//!
//! Flows have addresses and ports, and the Toeplitz hash and indirection table (128 entries, queues
//! in turn, as on the 82599) select the queue of each packet: the imbalance of the queues results
//! from the hash and is not configured. The same seed gives the same packets on every machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;
use wirecap::device::Device;
use wirecap::savefile::{Format, Interface as Recorded, Record, Section, Sink, Writer};
use wirecap::{Timestamp, grouped};
use wirecap_recorder::{CompressedSink, Compression, format_of};
use wirecap_send::play::{Batch, Source, XdpOutlet};
use wirecap_send::traffic::{Frames, Model, Pattern, STANDARD_QUEUES};
use wirecap_send::{Counters, Interface, SetupError};

use super::Arguments;
use crate::shared::failure::Failure;
use crate::shared::output;
use crate::shared::sending::{Fate, PlayReport, SpreadOptions, Via, Watch, check_queues};
use crate::shared::signals::Interruption;
use crate::shared::sink;

/// Options that make no sense without a model.
#[derive(Debug, Args)]
pub(super) struct Options {
    /// Traffic model
    #[arg(long, value_enum)]
    pub(super) model: Option<ModelName>,

    /// Seed of the model: the same seed generates the same frames
    #[arg(long, value_name = "N", default_value_t = 1, requires = "model")]
    seed: u64,

    #[command(flatten)]
    pub(super) spread: SpreadOptions,

    /// Write the frames to a savefile instead of sending them, in the format of its extension; - is
    /// stdout
    #[arg(short, long, value_name = "FILE", requires = "model", conflicts_with = "interface")]
    pub(super) write: Option<PathBuf>,

    /// Replace the savefile if it exists
    #[arg(long, requires = "write")]
    force: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ModelName {
    /// Packets of random flows at random times
    Even,
    /// Like even, but 80 % of the packets belong to one flow
    Hot,
    /// Flows of heavy-tailed size and rate that start and end
    Heavy,
    /// Bursts of one flow each at ten times the mean rate, with pauses
    Bursts,
    /// The WireCAP paper's traffic: 5,000,000 packets in 32 s, six queues
    Standard,
}

impl From<ModelName> for Pattern {
    fn from(name: ModelName) -> Self {
        match name {
            ModelName::Even => Self::Even,
            ModelName::Hot => Self::HotFlow,
            ModelName::Heavy => Self::HeavyTailed,
            ModelName::Bursts => Self::Bursts,
            ModelName::Standard => Self::Standard,
        }
    }
}

/// Whether there is a model of limited length.
pub(super) fn ends_by_itself(arguments: &Arguments) -> bool {
    arguments.model.model == Some(ModelName::Standard)
}

/// The requested frames, between these hardware addresses.
fn frames(
    arguments: &Arguments,
    own_mac: [u8; 6],
    frame_bytes_max: u16,
) -> Result<Frames, Failure> {
    let options = &arguments.model;
    let pattern = Pattern::from(options.model.expect("a model was named"));
    if pattern == Pattern::Standard && (arguments.rate.is_some() || arguments.flows.is_some()) {
        let message = "--model standard sets the rate and the flows; omit --rate and --flows";
        return Err(Failure::Usage(message.to_owned()));
    }

    let plain = Model::new(pattern, options.seed);
    let model = Model {
        per_second: arguments.rate.unwrap_or(plain.per_second),
        flows: arguments.flows.unwrap_or(plain.flows),
        sizes: arguments.size.clone().unwrap_or(plain.sizes),
        packets: arguments.count.unwrap_or(plain.packets),
        ..plain
    };
    let longest = model.sizes.frame_bytes_max();

    if longest > frame_bytes_max {
        let what = "frame length in bytes";
        let given = longest.into();
        let max = frame_bytes_max.into();
        return Err(SetupError::Traffic { what, given, min: 60, max }.into());
    }

    let end_ns = arguments.duration.map_or(u64::MAX, |duration| duration.as_nanos() as u64);
    let destination_mac = arguments.to_mac.unwrap_or(own_mac);
    let rss = options.spread.over(default_queues(pattern));

    Ok(Frames::new(model.stream(), rss, own_mac, destination_mac, end_ns))
}

fn default_queues(pattern: Pattern) -> u32 {
    if pattern == Pattern::Standard { STANDARD_QUEUES } else { 1 }
}

pub(super) fn send(
    arguments: &Arguments,
    device: &Device,
    interface: &Interface,
) -> Result<(), Failure> {
    let model = arguments.model.model.expect("a model was named");
    let queues = arguments.model.spread.over(default_queues(model.into())).queue_count();
    let frame_bytes_max = u16::try_from(interface.frame_bytes_max()).unwrap_or(u16::MAX);
    let frames = frames(arguments, interface.mac, frame_bytes_max)?;

    check_queues(device, queues)?;
    let mut outlet = XdpOutlet::on(interface, queues)?;
    let mut counters = Counters::of(interface)?;
    let interruption = Interruption::watch()?;

    // The model ends by its own time.
    let watch = Watch { device, duration: None, interruption: &interruption };
    let (played, _, watched) = watch.play(frames, &mut outlet, true);

    let report = PlayReport {
        interface: &interface.name,
        of: Some(name(model)),
        via: Via::Xdp,
        fate: Fate::of(played.frames(), &mut counters),
        played: &played,
    };
    eprintln!("{report}");

    if arguments.json {
        output::print(report.json())?;
    }

    watched.and(report.fate.check(&interface.name))
}

fn name(model: ModelName) -> String {
    let value = model.to_possible_value().expect("no model is hidden");
    format!("model {}", value.get_name())
}

/// The hardware address of frames that no interface sends.
const NO_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
/// The longest frame that is written: any that a length can be said of.
const WRITTEN_BYTES_MAX: u16 = u16::MAX;

/// Writes the frames to a savefile.
pub(super) fn write(arguments: &Arguments, path: &Path) -> Result<(), Failure> {
    Compression::check(path).map_err(Failure::Usage)?;
    let frames = frames(arguments, NO_MAC, WRITTEN_BYTES_MAX)?;

    if output::is_standard_output(path) {
        let sink = sink::standard_output(arguments.json)?.sink;
        let written = write_to(sink, Format::Pcapng, arguments, frames);
        return output::unless_broken_pipe(written);
    }

    let sink = sink::create(path, None, arguments.model.force)?.sink;

    match Compression::of(path) {
        Compression::None => write_to(sink, format_of(path), arguments, frames),
        compression => {
            let sink =
                CompressedSink::new(sink.into_file(), path.display().to_string(), compression)?;
            write_to(sink, format_of(path), arguments, frames)
        }
    }
}

/// The model's time begins at the epoch, so that the same seed gives the same file.
fn write_to<S: Sink>(
    sink: S,
    format: Format,
    arguments: &Arguments,
    mut frames: Frames,
) -> Result<(), Failure> {
    let file = sink.name();
    let model = name(arguments.model.model.expect("a model was named"));
    let application = Some(format!("wirecap {}", env!("CARGO_PKG_VERSION")));
    let comment = Some(format!("{model}, seed {}", arguments.model.seed));
    let section = Section { application, comment, ..Section::default() };
    let mut writer = Writer::new(sink, format, &section);
    let interface = writer.add_interface(&Recorded { name: Some(model), ..Recorded::default() })?;
    let interruption = Interruption::watch()?;
    let mut batch = Batch::default();
    let mut queues = Vec::new();
    let mut bytes = 0;
    let mut last_ns = 0;

    while !interruption.came() {
        batch.clear();
        frames.fill(&mut batch);

        if batch.is_empty() {
            break;
        }

        for frame in batch.iter() {
            writer.write(&Record {
                interface,
                timestamp: Some(Timestamp::from_unix_nanos(frame.due_ns)),
                queue: Some(frame.queue),
                wire_len: frame.bytes.len() as u32,
                data: frame.bytes,
                ..Record::default()
            })?;

            queues.resize(queues.len().max(frame.queue as usize + 1), 0_u64);
            queues[frame.queue as usize] += 1;
            bytes += frame.bytes.len();
            last_ns = frame.due_ns;
        }
    }

    writer.finish()?;
    let count = queues.iter().sum::<u64>();
    let seconds = Duration::from_nanos(last_ns).as_secs_f64();
    eprintln!("wrote {} frames of {seconds:.2} s to {file}", grouped(count));

    if arguments.json {
        let queue = |(queue, frames): (usize, &u64)| json!({ "queue": queue, "frames": frames });
        let queues: Vec<_> = queues.iter().enumerate().map(queue).collect();
        let json = json!({ "file": file, "frames": count, "bytes": bytes, "queues": queues });
        output::print(json)?;
    }

    Ok(())
}
