//! `wirecap capture`: records packets to a savefile.
//!
//! Chunks for which the recording has no page stay in the pool until seven eighths of a ring's pool
//! are in chunks; then whole chunks are discarded and counted as *writer*, because the disk is slow
//! and not the capture. With `packet` this is true only until the kernel, which fills blocks in
//! turn, reaches a block that is still held; packets lost from then on count as *no cell*.
//! Meanwhile the thread looks at the ring once a millisecond. It does not wait for a page: the
//! writer would have to wake it for each one.
//!
//! Reading a packet from its cell is a cache miss. So the thread prefetches the packet that is
//! twelve places after the one that it copies, up to 2 KiB of it, into the second-level cache,
//! which waits for more lines at a time than the first-level cache. In a block of `packet`, the
//! processor's own prefetcher brings packets of up to 256 bytes into the second-level cache; these
//! are prefetched into the first-level cache.
//!
//! On `xdp` the timestamp is in the cache line before the packet's first bytes. By default the
//! program reads the clock for every eighth packet. So of a group of eight packets only the first
//! and the last timestamp are read: if they are equal, the other six are the same, because the
//! clock does not go back. The first 32 packets of a chunk show whether its packets come in such
//! groups; if a group has two times, the timestamps of the next 32 packets are all read.

mod convert;

use std::collections::VecDeque;
use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{ArgAction, Args, Command, FromArgMatches, ValueEnum};
use serde_json::{Value, json};
use wirecap::savefile::{self, Format, Sink, WriteError};
use wirecap::{
    Capture, CaptureError, Cells, Chunk, Ledger, Packet, Recorded, Timestamp, Timestamps, Worker,
    grouped,
};
use wirecap_broker::Broker;
use wirecap_recorder::{Commands, CompressedSink, Compression, Launch, Target};

use crate::host::devices;
use crate::losses;
use crate::record::config;
use crate::record::merge::Merge;
use crate::record::privileges::{ByBroker, Place, UserOption, drop_privileges};
use crate::shared::control::{CONTROL, Claim, ControlOptions};
use crate::shared::failure::Failure;
use crate::shared::filter::{FilterOptions, filtered};
use crate::shared::options::{CaptureOptions, END_AND_OUTPUT, ENGINE, on_or_off};
use crate::shared::output;
use crate::shared::progress::Progress;
use crate::shared::recording::options::{FileOptions, Plan};
use crate::shared::recording::outlet::{Described, Files, Outlet, Stream};
use crate::shared::recording::{self, Form};
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

/// Half the time within which a packet can be read from the output: with the engine `packet`, a
/// packet may wait this long for its block, and again for the outlet. A recording whose loss is
/// limited (`--sync`) uses a fifth of that time if it is shorter: the writer syncs after half of
/// it, the packet sockets hold packets for a fifth, and the rest is for the disk.
///
/// Packets that are read later may wait longer, and a ring that is not read keeps its packets for
/// as many times this long as it has blocks.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
/// Sleeping time while packets are held back for packets of other rings.
const MERGE_PAUSE: Duration = Duration::from_millis(1);
/// Maximum wait for the outlet between looks at the ring.
const ROOM_PAUSE: Duration = Duration::from_millis(1);
/// Maximum time from a packet's timestamp to its capture, if no other packets wait.
const LATE_PACKETS: Duration = Duration::from_secs(2);
/// Number of packets between two checks for room in the outlet.
const EMITTED_PACKETS: usize = 256;
/// The assumed memory of these packets.
const CHUNK_BYTES: usize = 1 << 20;
/// While more eighths of a ring's pool than these are in chunks, the outlet also uses memory that
/// is not allocated yet.
const PRESSED_EIGHTHS: u32 = 6;
/// While more eighths than these are in chunks and the outlet has no room, chunks are discarded.
const LOST_EIGHTHS: u32 = 7;

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

fn record<O: Outlet>(
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

        let recorder = recorder.insert(Recorder {
            left: left.unwrap_or(u64::MAX),
            deadline,
            flush_interval: arguments.flush_interval(plan),
            ..Recorder::new(outlet, &capture, timestamps, &writing)
        });
        service::ready();

        let mut progress = Progress::new(options.habits.quiet);
        recorder.record(&capture, &mut worker, &mut progress)
    });
    capture.stop();
    drain(&mut worker);

    let interfaces: Vec<usize> =
        capture.named_interfaces().map(|interface| interface.rings).collect();
    let mut ledger = capture.close();

    let (recorded, outcome) = match recorder {
        Some(recorder) => recorder.finish(outcome, &writing, &ledger, &interfaces),
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
    let mut recorder = Recorder::new(stream, capture, Timestamps::Packet, &writing);
    let mut progress = Progress::new(false);
    let mut worker = capture.workers().pop().expect("a new capture has its workers");

    capture.stop();
    Ok(move || {
        recorder
            .record(capture, &mut worker, &mut progress)
            .map_err(|failure| failure.to_string())?;
        recorder.outlet.flush()?;
        Ok(recorder.outlet.packets())
    })
}

/// Whether more than `eighths` eighths of a ring's pool are in chunks.
fn is_in_chunks(capture: &Capture, ring: usize, eighths: u32) -> bool {
    let Cells { posted, waiting, captured, free, .. } = capture.cells_of(ring).unwrap_or_default();
    let pool = posted + waiting + captured + free;
    captured > (pool / 8 * eighths).max(1)
}

/// Takes chunks from one worker and gives their packets to an outlet.
struct Recorder<O: Outlet> {
    outlet: O,
    form: Form,
    started: Timestamp,
    /// Arrival time of the chunks that are being written.
    now: Timestamp,
    /// Remaining packets, with -c.
    left: u64,
    deadline: Option<Instant>,
    flushed: Instant,
    /// Whether the outlet may hold packets that it has not passed on.
    is_unflushed: bool,
    flush_interval: Duration,
    /// Packets that arrived after the last requested one.
    surplus: u64,
    /// Counts of packets that wait for the outlet, and of packets that were discarded because the
    /// outlet did not keep up.
    writing: Writing,
    /// Packets bear times of the system's clock, by which rings are merged.
    has_system_times: bool,
    /// Packets bear times of the NIC's clock; files are not cut by any other.
    has_device_times: bool,
    /// Packets to which the NIC gave no time; in the file their time is 0.
    untimed: u64,
}

impl<O: Outlet> Recorder<O> {
    fn new(outlet: O, capture: &Capture, timestamps: Timestamps, writing: &Writing) -> Self {
        let now = recording::now();
        Self {
            outlet,
            form: Form::of(capture, timestamps),
            started: now,
            now,
            left: u64::MAX,
            deadline: None,
            flushed: Instant::now(),
            is_unflushed: false,
            flush_interval: FLUSH_INTERVAL,
            surplus: 0,
            writing: writing.clone(),
            has_system_times: !matches!(timestamps, Timestamps::None | Timestamps::Hardware),
            has_device_times: timestamps == Timestamps::Hardware,
            untimed: 0,
        }
    }

    /// Writes until the capture is stopped, by a signal, by time, or by the number of packets.
    fn record(
        &mut self,
        capture: &Capture,
        worker: &mut Worker,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let waiting = self.record_ring(capture, worker, progress)?;
        self.record_merged(capture, worker, progress, waiting)
    }

    /// A single ring is in order: packets are held back only if the outlet has no room. Without
    /// timestamps of the system's clock, several rings cannot be ordered. Returns the chunks that
    /// must be merged with later ones, of a capture that got another ring.
    fn record_ring(
        &mut self,
        capture: &Capture,
        worker: &mut Worker,
        progress: &mut Progress,
    ) -> Result<VecDeque<Chunk>, Failure> {
        let mut failed = Ok(());
        let (mut waiting, mut packets): (VecDeque<Chunk>, _) = (VecDeque::new(), 0);

        while !worker.is_finished() && (capture.ring_count() == 1 || !self.has_system_times) {
            let found = match waiting.is_empty() {
                true => worker.next_chunk_timeout(self.pause(progress)),
                false => worker.try_next_chunk(),
            };
            match found {
                Ok(Some(chunk)) => {
                    if !self.has_device_times {
                        self.now = recording::now();
                    }
                    let kept = self.keep(capture, chunk);
                    packets += kept.as_ref().map_or(0, Chunk::len);
                    waiting.extend(kept);
                }
                Ok(None) if !waiting.is_empty() => self.outlet.wait_for_room(ROOM_PAUSE)?,
                Ok(None) => {}
                Err(error) if failed.is_ok() => failed = stopped_by(error, capture),
                Err(_) => break,
            }

            // Another ring may have packets before these.
            let has_system_times = self.has_system_times;
            let is_single = || capture.ring_count() == 1 || !has_system_times;
            while is_single() && !waiting.is_empty() && self.has_room(capture) {
                let Some(chunk) = waiting.pop_front() else { break };
                self.write_chunk(&chunk)?;
                packets -= chunk.len();
            }

            self.writing.set_waiting(packets);
            self.housekeeping(capture, progress)?;

            // Packets that wait in the ring fill the page at once.
            if worker.is_idle() {
                self.flush_if_due(waiting.is_empty())?;
            }
        }

        if worker.is_finished() || failed.is_err() {
            waiting.drain(..).try_for_each(|chunk| self.write_chunk(&chunk))?;
        }

        failed.map(|()| waiting)
    }

    fn record_merged(
        &mut self,
        capture: &Capture,
        worker: &mut Worker,
        progress: &mut Progress,
        waiting: VecDeque<Chunk>,
    ) -> Result<(), Failure> {
        let rings = capture.most_rings();

        // Held packets are missing in the pool: at most a quarter of it.
        let held_max = || capture.ring_count() * capture.geometry().cells() as usize / 4;
        let mut merge = Merge::new(rings, held_max(), capture.delay());
        waiting.into_iter().for_each(|chunk| merge.push(chunk));

        let mut failed = Ok(());

        while !worker.is_finished() {
            self.now = recording::now();

            // An interface may have been handed back to the host: its packets come later from now
            // on.
            merge.set_limits(held_max(), capture.delay());
            if merge.is_after_step(self.now, Instant::now()) {
                merge.emit_all(|packet, chunk| self.write(packet, chunk))?;
            }

            let mut empty = capture.empty_rings();

            // A ring that does not exist cannot deliver an earlier packet.
            empty.resize(rings, true);
            let before = self.now;
            let has_room = merge.is_empty() || self.has_room(capture);
            let found = match (merge.is_empty(), has_room) {
                (true, _) => worker.next_chunk_timeout(self.pause(progress)),
                (false, true) => worker.next_chunk_timeout(MERGE_PAUSE),
                (false, false) => worker.try_next_chunk(),
            };

            match found {
                Ok(Some(chunk)) => {
                    self.keep(capture, chunk).into_iter().for_each(|chunk| merge.push(chunk));
                }
                Ok(None) if !has_room => self.outlet.wait_for_room(ROOM_PAUSE)?,
                Ok(None) => {}
                Err(error) if failed.is_ok() => failed = stopped_by(error, capture),
                Err(_) => break,
            }

            empty
                .iter()
                .enumerate()
                .filter(|(_, empty)| **empty)
                .for_each(|(ring, _)| merge.found_empty(ring, before));

            while self.has_room(capture)
                && merge.emit(EMITTED_PACKETS, |packet, chunk| self.write(packet, chunk))?
            {
            }

            let waiting = if self.has_room(capture) { 0 } else { merge.held() };
            self.writing.set_waiting(waiting);
            self.housekeeping(capture, progress)?;
            self.flush_if_due(merge.is_empty())?;
        }

        merge.emit_all(|packet, chunk| self.write(packet, chunk))?;
        failed
    }

    /// Keeps a chunk until the outlet has taken its packets. If the outlet has no room and most of
    /// the ring's pool is in chunks, the chunk is discarded: the ring gets its cells back, and the
    /// loss counts as the writer's, not the capture's. (With AF_PACKET only until the kernel
    /// reaches a block that is still held: later losses count as the capture's.)
    fn keep(&mut self, capture: &Capture, chunk: Chunk) -> Option<Chunk> {
        let ring = chunk.ring_index();
        if !self.has_room(capture) && is_in_chunks(capture, ring, LOST_EIGHTHS) {
            self.writing.discard(chunk.len() as u64);
            return None;
        }
        Some(chunk)
    }

    /// Whether the outlet takes a chunk without waiting.
    fn has_room(&mut self, capture: &Capture) -> bool {
        let is_pressed =
            || (0..capture.ring_count()).any(|ring| is_in_chunks(capture, ring, PRESSED_EIGHTHS));
        self.outlet.has_room(CHUNK_BYTES, false)
            || is_pressed() && self.outlet.has_room(CHUNK_BYTES, true)
    }

    fn write_chunk(&mut self, chunk: &Chunk) -> Result<(), WriteError> {
        self.is_unflushed = true;
        if chunk.is_of_any() {
            return chunk.iter().try_for_each(|packet| self.write(packet, chunk));
        }

        let most = self.left.min(chunk.len() as u64);
        if self.has_device_times {
            self.follow_device_clock(chunk, most as usize);
        }

        let mut taken = 0;
        let mut goes_on = Ok(true);
        let record_of = self.form.records(chunk);

        chunk.for_each_whole(0..most as usize, |head| {
            if let Ok(true) = goes_on {
                goes_on = self.outlet.write(&record_of(head), self.now);
                taken += u64::from(matches!(goes_on, Ok(true)));
            }
        });

        self.left = if goes_on? { self.left - taken } else { 0 };
        self.surplus += chunk.len() as u64 - taken;

        Ok(())
    }

    /// A packet without a time of the NIC's clock gets the last known one of that clock for the
    /// rules by which files are cut, never the system's: the two may be decades apart.
    #[cold]
    fn follow_device_clock(&mut self, chunk: &Chunk, most: usize) {
        let times = || chunk.iter().take(most).map(|packet| packet.timestamp());
        self.untimed += times().filter(Option::is_none).count() as u64;
        let is_first = self.outlet.packets() == 0;
        self.now = times().flatten().last().unwrap_or(if is_first {
            Timestamp::default()
        } else {
            self.now
        });
    }

    #[inline]
    fn write(&mut self, packet: Packet<'_>, chunk: &Chunk) -> Result<(), WriteError> {
        if self.left == 0 {
            self.surplus += 1;
            return Ok(());
        }

        self.is_unflushed = true;
        let record = self.form.record(chunk, packet);

        let goes_on = match self.form.has_any().then(|| packet.seen_interface()).flatten() {
            Some(number) => {
                let describe = || self.form.describe(number);
                self.outlet.write_of(number, &describe, &record, self.now)?
            }
            None => self.outlet.write(&record, self.now)?,
        };
        if goes_on {
            self.left -= 1;
        } else {
            self.left = 0;
            self.surplus += 1;
        }

        Ok(())
    }

    fn housekeeping(&mut self, capture: &Capture, progress: &mut Progress) -> Result<(), Failure> {
        if self.left == 0 || self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            capture.stop();
        }
        service::came_round();
        recording::with_request(|request| self.outlet.change_rules(request))?;
        if signals::rotation_asked_for() {
            self.outlet.rotate()?;
        }
        progress.tick(capture);
        Ok(())
    }

    /// Makes the outlet pass on its packets if they are due. `is_idle`: no packets are held back.
    fn flush_if_due(&mut self, is_idle: bool) -> Result<(), WriteError> {
        let now = Instant::now();
        if now - self.flushed < self.flush_interval {
            return Ok(());
        }

        if is_idle && !self.has_device_times {
            let late = Duration::as_nanos(&LATE_PACKETS) as u64;
            let complete = recording::now().unix_nanos().saturating_sub(late);
            self.outlet.look_at_clock(Timestamp::from_unix_nanos(complete))?;
        }

        // Packets that it cannot pass on yet are due as soon as it can.
        if !self.outlet.is_writing() {
            self.flushed = now;
            self.is_unflushed = false;
        }

        self.outlet.flush()
    }

    /// How long to wait for packets: until the outlet must pass on its packets, the recording ends,
    /// or its progress is shown. While the outlet is writing, its last packets may be due as soon
    /// as the write is complete.
    fn pause(&self, progress: &Progress) -> Duration {
        if self.outlet.is_writing() {
            return ROOM_PAUSE;
        }
        let due = self.is_unflushed.then(|| self.flushed + self.flush_interval);
        let first = due.into_iter().chain(self.deadline).chain(progress.due()).min();
        let left =
            first.map_or(Duration::MAX, |first| first.saturating_duration_since(Instant::now()));
        left.min(service::longest_sleep()).max(ROOM_PAUSE)
    }

    /// Writes each interface's counts, and everything that is still in memory, unless the file
    /// cannot be written to any more. Returns the account of the recorded packets, and the outcome.
    fn finish(
        mut self,
        outcome: Result<(), Failure>,
        writing: &Writing,
        ledger: &Ledger,
        interfaces: &[usize],
    ) -> (Recorded, Result<(), Failure>) {
        let written = self.outlet.packets();
        let (whole, outcome) = match outcome {
            Err(failure) if safely_written(&failure).is_some() => (written, Err(failure)),
            outcome => {
                let ended = self.end_outlet(ledger, interfaces);
                let whole = match &ended {
                    Ok(whole) => *whole,
                    // The capture may have failed before: this error states what the file contains.
                    Err(error) => recording::safely_written(error).unwrap_or(written),
                };
                (whole, outcome.and(ended.map(drop).map_err(Failure::from)))
            }
        };
        let whole = outcome.as_ref().err().and_then(safely_written).unwrap_or(whole);
        let unread = self.outlet.unread();
        let in_file = recording::in_file(written, whole, unread);

        if outcome.is_ok() {
            eprintln!("{}", self.summary(&writing.names()));
        }

        let mut recorded = Recorded {
            to: writing.names(),
            surplus: self.surplus,
            writer: writing.discarded(),
            written,
            in_file,
            untimed: self.untimed,
            ..Recorded::default()
        };
        if unread > 0 || output::is_broken_pipe(&outcome) {
            recorded.reader_left(ledger.total.delivered);
        }

        (recorded, output::unless_broken_pipe(outcome))
    }

    fn end_outlet(&mut self, ledger: &Ledger, interfaces: &[usize]) -> Result<u64, WriteError> {
        let counts = recording::counts(self.started, ledger, interfaces);
        self.outlet.end(&counts, &recording::counts_of_any(self.started, ledger))
    }

    fn summary(&self, name: &str) -> String {
        let surplus = match self.surplus {
            0 => String::new(),
            surplus => {
                format!("; {} more arrived before the capture was stopped", grouped(surplus))
            }
        };
        let packets = grouped(self.outlet.packets());
        let extent = self.outlet.extent();
        format!("wrote {packets} packets, {extent}, to {name}{surplus}")
    }
}

/// Stops a capture that failed: earlier packets are still recorded.
fn stopped_by(error: CaptureError, capture: &Capture) -> Result<(), Failure> {
    capture.stop();
    Err(error.into())
}

/// Number of complete packets in a file that can no longer be written.
fn safely_written(failure: &Failure) -> Option<u64> {
    let Failure::Failed(error) = failure else { return None };
    recording::safely_written(error.downcast_ref()?)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let mut recorder = Recorder::new(stream.unwrap(), &capture, Timestamps::Hardware, &writing);

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
