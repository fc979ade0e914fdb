//! `wirecap capture`: records packets to a savefile.

mod convert;

use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{ArgAction, Args, Command, FromArgMatches, ValueEnum};
use serde_json::{Value, json};
use wirecap::savefile::{self, Format, Sink, WriteError};
use wirecap::{Capture, Ledger, Recorded, Timestamps, Worker, grouped};
use wirecap_broker::Broker;
use wirecap_recorder::capture::{
    Described, FLUSH_INTERVAL, Outlet, Program, RecordError, Recorder,
};
use wirecap_recorder::{Commands, CompressedSink, Compression, Launch, Target};

use crate::host::devices;
use crate::losses;
use crate::record::config;
use crate::record::privileges::{ByBroker, Place, UserOption, drop_privileges};
use crate::shared::control::{CONTROL, Claim, ControlOptions};
use crate::shared::failure::Failure;
use crate::shared::filter::{FilterOptions, filtered};
use crate::shared::options::{CaptureOptions, END_AND_OUTPUT, ENGINE, on_or_off};
use crate::shared::output;
use crate::shared::progress::Progress;
use crate::shared::recording;
use crate::shared::recording::options::{FileOptions, Plan};
use crate::shared::recording::outlet::{Files, Ruled, Stream};
use crate::shared::service;
use crate::shared::signals;
use crate::shared::sink::{self, Output, Writing};

/// The heading of options about it in the help.
const SAVEFILE: &str = "Savefile";

/// Record packets to a file, or to a pipe with -w -
#[derive(Debug, Args)]
#[command(after_long_help = "Examples:
  sudo wirecap capture -i eth1 -w trace.pcapng
  sudo wirecap capture -i eth1@0-3 -w - | tshark -r -
  sudo wirecap capture -i eth1 -w dns.pcapng.zst udp and port 53
  sudo wirecap capture -i eth1 -w /data/%Y%m%d-%H%M%S-%i.pcapng.zst --file-time 1h --keep-bytes 500G")]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: CaptureOptions,

    /// The savefile; - is standard output
    ///
    /// Its extension selects the format: .pcap, otherwise pcapng; .gz or .zst compresses.
    #[arg(
        short,
        long,
        value_name = "FILE",
        help_heading = SAVEFILE,
        required = false,
        required_unless_present = "list_interfaces",
        default_value_if("list_interfaces", "true", "-")
    )]
    write: PathBuf,

    /// Write each packet at once, as in tcpdump, instead of within a second; costs CPU time
    #[arg(short = 'U', long, visible_alias = "immediate-mode", overrides_with = "packet_buffered", help_heading = SAVEFILE)]
    packet_buffered: bool,

    /// Read options from a file, one NAME = VALUE per line
    ///
    /// NAME is a flag without --, or filter for the filter of all interfaces. A flag without a
    /// value is written alone, or with yes or no. Lines that begin with # are comments. The command
    /// line takes precedence. wirecap reload rereads the file.
    #[arg(long, value_name = "FILE", help_heading = CONTROL)]
    config: Option<PathBuf>,

    /// Replace the savefile if it exists
    #[arg(long, help_heading = SAVEFILE)]
    force: bool,

    /// Print all counts of the ledger at the end, also if no packet was lost
    #[arg(short, long, action = ArgAction::Count, help_heading = END_AND_OUTPUT)]
    verbose: u8,

    /// Format of the savefile, with nanosecond timestamps [default: by extension]
    #[arg(long, value_enum, help_heading = SAVEFILE)]
    format: Option<FileFormat>,

    /// Timestamps
    ///
    /// Without system time (hardware, none), packets of several rings are written in the order of
    /// their capture.
    #[arg(long, value_enum, default_value_t = TimestampName::Batch, help_heading = SAVEFILE)]
    timestamp: TimestampName,

    /// Wait for a removed interface and continue when it is back
    ///
    /// With off, and always with --elastic, the capture fails when an interface is removed.
    #[arg(long, value_name = "on|off", action = ArgAction::Set, value_parser = on_or_off, default_value = "on", help_heading = ENGINE)]
    reattach: bool,

    #[command(flatten)]
    files: FileOptions,

    #[command(flatten)]
    user: UserOption,

    #[command(flatten)]
    filter: FilterOptions,

    #[command(flatten)]
    control: ControlOptions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TimestampName {
    /// Read the clock for every packet
    Packet,
    /// xdp: read the clock for every eighth packet of a batch; up to a few µs early, but cheaper.
    /// packet: every packet
    Batch,
    /// Raw NIC clock for every packet; requires driver support and hwstamp_ctl -i DEV -r 1
    Hardware,
    /// No timestamps
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

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.options.habits.list_interfaces {
        return devices::list();
    }

    let mut plan = arguments.files.plan(&arguments.write, arguments.format.map(Format::from))?;
    let is_stream = arguments.is_stream();
    if is_stream && !arguments.files.is_default() {
        let message =
            format!("{} is not a file: options for sets of files do not apply", arguments.name());
        return Err(Failure::Usage(message));
    }

    let source = arguments.options.read.as_deref();
    if let Some(source) = source {
        if !arguments.files.is_default() {
            let message = "-r writes one file: options for sets of files do not apply";
            return Err(Failure::Usage(message.to_owned()));
        }
        convert::refuse_itself(source, arguments)?;
    }

    if output::is_standard_output(&arguments.write) {
        let output = sink::standard_output(arguments.options.json)?;
        return match source {
            Some(source) => convert::run(arguments, source, plan.format, |_| Ok(output)),
            None => record(arguments, &mut plan, |opening| Stream::begin(output, opening)),
        };
    }

    arguments.user.check(&arguments.place(&plan), || match &plan.pattern {
        Some(pattern) => recording::check(pattern),
        None => output::check(&arguments.write, arguments.force),
    })?;
    let create = |deadline| sink::create(&arguments.write, deadline, arguments.force);

    match (source, plan.compression) {
        (Some(source), Compression::None) => convert::run(arguments, source, plan.format, create),
        (Some(source), compression) => convert::run(arguments, source, plan.format, |deadline| {
            let Output { sink, pipe } = create(deadline)?;
            let name = arguments.name();
            Ok(Output { sink: CompressedSink::new(sink.into_file(), name, compression)?, pipe })
        }),
        (None, _) if is_stream => record(arguments, &mut plan, |opening| {
            Stream::begin(create(opening.deadline)?, opening)
        }),
        (None, _) => record(arguments, &mut plan, |opening| {
            let target = match &opening.plan.pattern {
                Some(pattern) => Target::Set(pattern.clone()),
                None => Target::File(
                    create(opening.deadline)?.sink.into_file(),
                    arguments.write.clone(),
                ),
            };
            let Opening { plan, broker, writing, interfaces, .. } = opening;
            let command = plan.command.clone().map(|command| match broker {
                Some(broker) => Box::new(ByBroker(broker)) as Box<dyn Launch>,
                None => Box::new(Commands::new(command)),
            });

            Files::begin(plan, command, target, writing, &recording::section(), &interfaces)
        }),
    }
}

/// The reload request for a running capture with these arguments, after its configuration file was
/// reread. Paths in the request are relative to `directory`.
pub(crate) fn reload_request(words: &[OsString], directory: &Path) -> Result<Value, Failure> {
    let Some(file) = config::file_of(words) else {
        return Err(Failure::Failed(
            "the capture was started without --config and has no file to reread".into(),
        ));
    };
    let command = Arguments::augment_args(Command::new("capture"));
    let words = config::with_file(words, &directory.join(&file), &command)?;
    let parsed = command.args_override_self(true).try_get_matches_from(&words[1..]);
    let parsed = parsed.and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = parsed.map_err(|error| {
        Failure::Usage(format!("{}: {}", file.display(), error.to_string().trim_end()))
    })?;
    let plan = arguments.files.plan(&arguments.write, arguments.format.map(Format::from))?;

    let expression = match arguments.filter.is_program() {
        true => None,
        false => Some(arguments.filter.expression()?.unwrap_or_default()),
    };
    Ok(json!({ "command": "reload", "expression": expression, "rules": plan.rules() }))
}

/// The state when the output is opened.
struct Opening<'a> {
    plan: &'a Plan,
    /// The privileged process, if this one has no privileges.
    broker: Option<Broker>,
    /// Time limit of waiting for a pipe's reader.
    deadline: Option<Instant>,
    writing: &'a Writing,
    interfaces: Described,
}

impl<S: Sink> Stream<S> {
    fn begin(output: Output<S>, opening: Opening<'_>) -> Result<Self, Failure> {
        let Opening { plan, writing, interfaces, .. } = opening;
        let section = recording::section();
        Ok(Self::new(output.sink, output.pipe, writing, plan.format, &section, &interfaces)?)
    }
}

fn record<O: Ruled>(
    arguments: &Arguments,
    plan: &mut Plan,
    open: impl FnOnce(Opening<'_>) -> Result<O, Failure>,
) -> Result<(), Failure> {
    let options = &arguments.options;
    let filter = arguments.filter.request()?;
    let claim = arguments.control.claim("capture", &options.sources())?;
    let broker = arguments.drop_privileges(plan, &claim)?;
    let timestamps: Timestamps = arguments.timestamp.into();

    if plan.pattern.is_some() {
        signals::rotate_on_hangup();
    }

    options.warn_of_one_worker();
    let capture = options.open(|builder| {
        let builder = filtered(builder, filter).workers(1).timestamps(timestamps);
        let builder = builder.reattach(arguments.reattach);
        let builder = if plan.format == Format::Pcap { builder.one_link_type() } else { builder };
        match arguments.is_read_live() {
            true => builder,
            false => builder.retire_after(arguments.flush_interval(plan)).small_blocks(),
        }
    })?;

    let mut control = claim.serve()?;
    let duration = [options.duration, plan.duration].into_iter().flatten().min();
    let deadline = duration.map(|duration| Instant::now() + duration);
    let mut worker = capture.workers().pop().expect("a new capture has its workers");
    let writing = Writing::to(arguments.name());
    let mut recorder = None;

    let outcome = losses::watched(&capture, Some(&writing), &control, || {
        let interfaces = recording::described(&capture, timestamps);
        let outlet = open(Opening { plan, broker, deadline, writing: &writing, interfaces })?;
        let left = [options.count, plan.packets_max].into_iter().flatten().min();
        let waker = worker.waker();
        signals::wake_on_requests(move || waker.wake());

        let recorder = recorder.insert(Recorder::new(outlet, &capture, timestamps));
        recorder.left = left.unwrap_or(u64::MAX);
        recorder.deadline = deadline;
        recorder.flush_interval = arguments.flush_interval(plan);
        service::ready();

        let progress = Progress::new(options.habits.quiet);
        let mut program = Surroundings { writing: &writing, progress };
        Ok(recorder.record(&capture, &mut worker, &mut program)?)
    });
    capture.stop();
    drain(&mut worker);

    let interfaces: Vec<usize> =
        capture.named_interfaces().map(|interface| interface.rings).collect();
    let mut ledger = capture.close();

    let (recorded, outcome) = match recorder {
        Some(recorder) => finish(recorder, outcome, &writing, &ledger, &interfaces),
        None => (Recorded { to: arguments.name(), ..Recorded::default() }, outcome),
    };
    ledger.recorded = Some(recorded);

    let reported = options.report_briefly(&ledger, arguments.verbose > 0, arguments.hint());
    let outcome = outcome.and_then(|()| Failure::unless_lossless(&ledger));
    control.end(&ledger, &outcome);

    reported.and(outcome)
}

/// Takes the remaining packets out of the rings of a stopped capture: they were delivered, and the
/// ledger must not blame the engine for losses of the file.
fn drain(worker: &mut Worker) {
    while let Ok(Some(_)) = worker.next_chunk() {}
}

impl Arguments {
    /// The output of the packets.
    fn name(&self) -> String {
        match output::is_standard_output(&self.write) {
            true => "standard output".to_owned(),
            false => self.write.display().to_string(),
        }
    }

    /// Where the counts are; not for a command that shows the packets of this one.
    fn hint(&self) -> &'static str {
        if output::is_standard_output(&self.write) { "" } else { " (-v shows the counts)" }
    }

    fn place<'a>(&'a self, plan: &'a Plan) -> Place<'a> {
        match &plan.pattern {
            _ if output::is_standard_output(&self.write) => Place::Open,
            Some(pattern) => Place::Set(pattern),
            None if self.is_stream() => Place::Stream(&self.write),
            None => Place::File(&self.write),
        }
    }

    /// Drops the privileges of this process, if another user records, and starts a process that
    /// makes the privileged calls.
    fn drop_privileges(&self, plan: &mut Plan, claim: &Claim) -> Result<Option<Broker>, Failure> {
        let Some(user) = self.user.choose(&self.place(plan))? else { return Ok(None) };
        plan.open_line()?;
        let sources = &self.options.interfaces.sources;
        let command = plan.command.as_deref();
        let place = self.place(plan);
        drop_privileges(user, sources, &place, plan.index, command, &claim.sockets()).map(Some)
    }

    /// Whether the output is not a regular file: standard output, a pipe, a terminal, or a link to
    /// one.
    fn is_stream(&self) -> bool {
        output::is_standard_output(&self.write)
            || self.write.metadata().is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
    }

    /// Maximum time for which packets are collected before they are written.
    fn flush_interval(&self, plan: &Plan) -> Duration {
        plan.flush_interval(if self.packet_buffered { Duration::ZERO } else { FLUSH_INTERVAL })
    }

    /// Whether a process may read packets as they arrive: a pipe, a terminal.
    fn is_read_live(&self) -> bool {
        self.packet_buffered
            || match output::is_standard_output(&self.write) {
                true => !sink::is_regular_file(io::stdout()),
                false => self.write.metadata().is_ok_and(|metadata| !metadata.is_file()),
            }
    }
}

/// For benches: returns a function that writes the waiting packets of `capture`, with the system's
/// times, into `sink` like the command, and returns their number.
///
/// # Errors
///
/// If the capture or the sink fails.
#[doc(hidden)]
pub fn record_waiting<S: Sink>(
    capture: &Capture,
    sink: S,
) -> Result<impl FnOnce() -> Result<u64, Box<dyn Error + Send + Sync>>, WriteError> {
    let writing = Writing::to("nothing");
    let interfaces =
        Described { named: vec![savefile::Interface::default()], ..Described::default() };
    let stream =
        Stream::new(sink, None, &writing, Format::Pcapng, &recording::section(), &interfaces)?;
    let mut recorder = Recorder::new(stream, capture, Timestamps::Packet);
    let mut worker = capture.workers().pop().expect("a new capture has its workers");

    capture.stop();
    Ok(move || {
        let mut program = Surroundings { writing: &writing, progress: Progress::new(false) };
        recorder
            .record(capture, &mut worker, &mut program)
            .map_err(|failure| failure.to_string())?;
        recorder.outlet.flush()?;
        Ok(recorder.outlet.packets())
    })
}

/// Writes each interface's counts, and everything that is still in memory, unless the file cannot
/// be written to any more. Returns the account of the recorded packets, and the outcome.
fn finish<O: Outlet>(
    mut recorder: Recorder<O>,
    outcome: Result<(), Failure>,
    writing: &Writing,
    ledger: &Ledger,
    interfaces: &[usize],
) -> (Recorded, Result<(), Failure>) {
    let written = recorder.outlet.packets();
    let (whole, outcome) = match outcome {
        Err(failure) if safely_written(&failure).is_some() => (written, Err(failure)),
        outcome => {
            let ended = end_outlet(&mut recorder, ledger, interfaces);
            let whole = match &ended {
                Ok(whole) => *whole,
                // The capture may have failed before: this error states what the file contains.
                Err(error) => recording::safely_written(error).unwrap_or(written),
            };
            (whole, outcome.and(ended.map(drop).map_err(Failure::from)))
        }
    };
    let whole = outcome.as_ref().err().and_then(safely_written).unwrap_or(whole);
    let unread = recorder.outlet.unread();
    let in_file = recording::in_file(written, whole, unread);

    if outcome.is_ok() {
        eprintln!("{}", summary(&recorder, &writing.names()));
    }

    let mut recorded = Recorded {
        to: writing.names(),
        surplus: recorder.surplus,
        writer: writing.discarded(),
        written,
        in_file,
        untimed: recorder.untimed,
        ..Recorded::default()
    };
    if unread > 0 || output::is_broken_pipe(&outcome) {
        recorded.reader_left(ledger.total.delivered);
    }

    (recorded, output::unless_broken_pipe(outcome))
}

fn end_outlet<O: Outlet>(
    recorder: &mut Recorder<O>,
    ledger: &Ledger,
    interfaces: &[usize],
) -> Result<u64, WriteError> {
    let counts = recording::counts(recorder.started, ledger, interfaces);
    recorder.outlet.end(&counts, &recording::counts_of_any(recorder.started, ledger))
}

fn summary<O: Outlet>(recorder: &Recorder<O>, name: &str) -> String {
    let surplus = match recorder.surplus {
        0 => String::new(),
        surplus => format!("; {} more arrived before the capture was stopped", grouped(surplus)),
    };
    let packets = grouped(recorder.outlet.packets());
    let extent = recorder.outlet.extent();
    format!("wrote {packets} packets, {extent}, to {name}{surplus}")
}

/// The command around the recording.
struct Surroundings<'a> {
    writing: &'a Writing,
    progress: Progress,
}

impl<O: Ruled> Program<O> for Surroundings<'_> {
    fn came_round(&mut self, capture: &Capture, outlet: &mut O) -> Result<(), WriteError> {
        service::came_round();
        recording::with_request(|request| outlet.change_rules(request))?;
        if signals::rotation_asked_for() {
            outlet.rotate()?;
        }
        self.progress.tick(capture);
        Ok(())
    }

    fn longest_sleep(&self) -> Duration {
        let due = self.progress.due().map(|due| due.saturating_duration_since(Instant::now()));
        due.unwrap_or(Duration::MAX).min(service::longest_sleep())
    }

    fn set_waiting(&self, packets: usize) {
        self.writing.set_waiting(packets);
    }

    fn discard(&self, packets: u64) {
        self.writing.discard(packets);
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Capture(error) => error.into(),
            RecordError::Write(error) => error.into(),
            error => Self::Failed(error.into()),
        }
    }
}

/// Number of complete packets in a file that can no longer be written.
fn safely_written(failure: &Failure) -> Option<u64> {
    let Failure::Failed(error) = failure else { return None };
    recording::safely_written(error.downcast_ref()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wirecap::Timestamp;
    use wirecap::savefile::{Reader, StreamSink};
    use wirecap::sim::{Fate, SimCapture, SimSettings};

    #[test]
    fn the_packets_of_a_simulated_capture_are_recorded_with_their_queues() {
        const PACKETS: u64 = 10;
        let settings = SimSettings { rings: 2, workers: 1, ..SimSettings::default() };
        let kernels = SimCapture::new(&settings);
        let capture = kernels.capture().unwrap();

        for number in 0..PACKETS {
            let time = Timestamp::from_unix_nanos(number);
            let frame = [number as u8; 60];
            assert_eq!(kernels.kernel(number as usize % 2).receive(&frame, time), Fate::Received);
        }

        let file = tempfile::NamedTempFile::new().unwrap();
        let record =
            record_waiting(&capture, StreamSink::new(file.reopen().unwrap(), "packets")).unwrap();
        assert_eq!(record().unwrap(), PACKETS);
        assert_eq!(kernels.ledger(Duration::ZERO).total.delivered, PACKETS);

        let mut reader = Reader::open(file.path()).unwrap();

        for number in 0..PACKETS {
            let record = reader.next_record().unwrap().expect("all packets are in the file");
            assert_eq!(record.timestamp, Some(Timestamp::from_unix_nanos(number)));
            assert_eq!(record.data, [number as u8; 60]);
            assert!(record.queue.is_some(), "packet {number}");
        }

        assert!(reader.next_record().unwrap().is_none());
    }

    #[test]
    fn a_packet_without_the_nics_time_gets_no_other_clocks() {
        let kernels =
            SimCapture::new(&SimSettings { device_clock: true, ..SimSettings::default() });
        let capture = kernels.capture().unwrap();
        let writing = Writing::to("nothing");
        let file = tempfile::NamedTempFile::new().unwrap();
        let sink = StreamSink::new(file.reopen().unwrap(), "packets");
        let interfaces =
            Described { named: vec![savefile::Interface::default()], ..Described::default() };
        let stream =
            Stream::new(sink, None, &writing, Format::Pcapng, &recording::section(), &interfaces);
        let mut recorder = Recorder::new(stream.unwrap(), &capture, Timestamps::Hardware);

        // The NIC's clock counts from its own start.
        for nanos in [0, 700, 0, 900] {
            kernels.kernel(0).receive(&[1; 60], Timestamp::from_unix_nanos(nanos));
        }

        let mut worker = capture.workers().pop().unwrap();
        let chunk = worker.next_chunk().unwrap().unwrap();
        recorder.write_chunk(&chunk).unwrap();
        assert_eq!((recorder.now, recorder.untimed), (Timestamp::from_unix_nanos(900), 2));
        kernels.kernel(0).receive(&[1; 60], Timestamp::from_unix_nanos(0));
        recorder.write_chunk(&worker.next_chunk().unwrap().unwrap()).unwrap();
        assert_eq!((recorder.now, recorder.untimed), (Timestamp::from_unix_nanos(900), 3));
        recorder.outlet.flush().unwrap();

        let mut reader = Reader::open(file.path()).unwrap();
        let mut times = Vec::new();
        while let Some(record) = reader.next_record().unwrap() {
            times.push(record.timestamp.unwrap().unix_nanos());
        }

        assert_eq!(times, [0, 700, 0, 900, 0]);
    }
}
