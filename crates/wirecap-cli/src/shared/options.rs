//! The options of every capturing command.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use wirecap::{
    Capture, CaptureBuilder, Direction, Engine, Interface, Ledger, Pin, Reception, Spread, Warning,
    grouped,
};

use crate::shared::events::{self, Kind};
use crate::shared::failure::Failure;
use crate::shared::habits::{Habits, savefile};
use crate::shared::interfaces::Interfaces;
use crate::shared::output;
use crate::shared::progress;
use crate::shared::screen::announce;
use crate::shared::signals::stop_on_signals;
use crate::size;

/// `on` or `off`.
pub(crate) fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

/// Headings of the help for options that follow a group of others: clap would list them under the
/// heading of that group.
pub(crate) const ENGINE: &str = "Engine, buffers and workers";
pub(crate) const END_AND_OUTPUT: &str = "End and output";

/// Options of all commands that capture.
#[derive(Debug, Clone, Args)]
pub(crate) struct CaptureOptions {
    #[command(flatten)]
    pub(crate) interfaces: Interfaces,

    /// Read a savefile instead: pcapng or pcap, plain, gzip or Zstandard; - is stdin
    #[arg(short, long, value_name = "FILE", value_parser = savefile(), conflicts_with = "interfaces")]
    pub(crate) read: Option<PathBuf>,

    #[command(flatten)]
    engine: EngineOptions,

    /// xdp: drop non-matching packets instead of passing them to the host
    #[arg(long)]
    drop_rejected: bool,

    /// Direction of the packets
    ///
    /// [default: inout for --engine packet on a whole interface, otherwise in]
    #[arg(short = 'Q', long, value_enum)]
    direction: Option<DirectionName>,

    /// xdp: share buffers between rings; a quarter stays reserved for each
    ///
    /// A ring keeps a quarter of R x M packets at any rate, independent of the other rings. It also
    /// receives shared buffers. If more than a quarter of R x M packets arrive between two checks
    /// of the keeper thread (see --warm), packets may be lost although shared buffers are free.
    /// Requires one receive queue per ring.
    #[arg(long)]
    elastic: bool,

    /// End after this many packets
    #[arg(short, long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..), help_heading = END_AND_OUTPUT)]
    pub(crate) count: Option<u64>,

    /// End after this time: 10s, 500ms, 1h30m, 7d
    #[arg(long, value_name = "TIME", value_parser = size::duration, help_heading = END_AND_OUTPUT)]
    pub(crate) duration: Option<Duration>,

    /// Print the final ledger as one JSON object on standard output
    #[arg(long, help_heading = END_AND_OUTPUT)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) habits: Habits,
}

/// Options of all commands that open interfaces: by which engine, with which pools, by which
/// workers.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = ENGINE)]
pub(crate) struct EngineOptions {
    /// auto: AF_XDP on an interface that is dedicated to capturing (wirecap dedicate) and not in
    /// use, else AF_PACKET
    #[arg(long, value_enum, default_value_t = EngineName::Auto)]
    engine: EngineName,

    /// xdp: capture even if the host uses the interface; the host loses these packets
    #[arg(long)]
    take: bool,

    /// M: cells (packet buffers) per chunk
    #[arg(short = 'M', long = "chunk", value_name = "CELLS", default_value_t = wirecap::DEFAULT_CHUNK_CELLS)]
    chunk: u32,

    /// R: chunks per ring; each ring buffers R x M packets
    ///
    /// [default: by link speed, 64 MiB to 1 GiB for all rings together, at most an eighth of the
    /// memory]
    #[arg(short = 'R', long = "pool", value_name = "CHUNKS", conflicts_with = "buffer")]
    pool: Option<u32>,

    /// Buffer memory for all rings together, instead of R: 512M, 2G
    ///
    /// Units are powers of 1,024: 512M is 512 MiB.
    #[arg(long, value_name = "SIZE", value_parser = buffer_bytes)]
    buffer: Option<u64>,

    /// T: advanced mode; workers help rings that are fuller than T percent
    ///
    /// With the engine packet, T is a percentage of three quarters of the ring: above three
    /// quarters, the kernel may lose packets.
    #[arg(short = 'T', long, value_name = "PERCENT", value_parser = size::number, conflicts_with = "basic")]
    threshold: Option<f64>,

    /// Basic mode: each worker reads its own rings (default)
    #[arg(long)]
    basic: bool,

    /// Advanced mode: buddies take over the rings of a worker stalled this long
    #[arg(long, value_name = "TIME", value_parser = size::duration, default_value = "1s")]
    stuck_after: Duration,

    /// xdp: keep K buffers posted per ring; add more under load
    ///
    /// Fewer buffers in circulation stay in the CPU's cache and are filled faster. With off, all R
    /// x M buffers are posted, and a ring keeps R x M packets at any rate, even if this process
    /// reads nothing. With K it keeps K packets at any rate, and R x M if no more than K arrive
    /// between two checks of the keeper thread. Its interval is K/2 x 67 ns, at least 0.5 ms.
    #[arg(long, value_name = "K|off", value_parser = parse_warm, default_value = "off")]
    warm: Warm,

    /// CPUs of the workers: auto (near their queue's interrupt), off, or 0,2-3
    #[arg(long, value_name = "auto|off|CPUS", default_value = "off")]
    pin: Pin,

    /// Fail if the XDP program is detached or replaced, instead of reattaching it
    #[arg(long)]
    no_attach_again: bool,

    /// Do not put the interface into promiscuous mode
    #[arg(short = 'p', long)]
    no_promiscuous_mode: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EngineName {
    Auto,
    Xdp,
    Packet,
}

impl From<EngineName> for Engine {
    fn from(name: EngineName) -> Self {
        match name {
            EngineName::Auto => Self::Auto,
            EngineName::Xdp => Self::Xdp,
            EngineName::Packet => Self::Packet,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DirectionName {
    In,
    Out,
    #[value(name = "inout")]
    InOut,
}

impl From<DirectionName> for Direction {
    fn from(name: DirectionName) -> Self {
        match name {
            DirectionName::In => Self::In,
            DirectionName::Out => Self::Out,
            DirectionName::InOut => Self::InOut,
        }
    }
}

/// The size of the buffers. A small number is one of another unit.
fn buffer_bytes(text: &str) -> Result<u64, String> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    match size::bytes(text)? {
        bytes if is_number && bytes < 65_536 => {
            Err(format!("{bytes} bytes are too few; with a unit: {text}M"))
        }
        bytes => Ok(bytes),
    }
}

/// The number of posted cells, if not all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Warm(Option<u32>);

impl CaptureOptions {
    /// The sources: `eth0@0-3`; empty for a savefile.
    pub(crate) fn sources(&self) -> Vec<String> {
        self.interfaces.sources.iter().map(|source| source.device().to_owned()).collect()
    }

    /// The first option given that has no effect on recordings.
    pub(crate) fn live_flag(&self) -> Option<&'static str> {
        let given = [
            (self.duration.is_some(), "--duration"),
            (self.interfaces.snap_len != wirecap::DEFAULT_SNAP_LEN, "-s"),
            (self.direction.is_some(), "-Q"),
            (self.engine.engine != EngineName::Auto, "--engine"),
            (self.engine.take, "--take"),
        ];
        given.into_iter().find_map(|(is_given, flag)| is_given.then_some(flag))
    }

    /// Reports options that have no effect on a capture with one worker.
    pub(crate) fn warn_of_one_worker(&self) {
        if self.engine.threshold.is_some() {
            announce(
                "-T has no effect here: capture has one worker, whose rings no other worker can take over",
            );
        }
    }

    /// The capture these options describe.
    fn builder(&self) -> CaptureBuilder {
        let source = match (&self.read, self.interfaces.sources.split_first()) {
            (Some(file), _) => Capture::file(file),
            (None, Some((first, others))) => {
                others.iter().cloned().fold(Capture::on(first.clone()), CaptureBuilder::and)
            }
            (None, None) => unreachable!("clap requires a file or an interface"),
        };
        let builder = self
            .engine
            .on(source)
            .drop_rejected(self.drop_rejected)
            .snap_len(self.interfaces.snap_len);
        let builder = match self.direction {
            Some(direction) => builder.direction(direction.into()),
            None => builder,
        };
        if self.elastic { builder.elastic() } else { builder }
    }

    /// Opens the capture, with the changes of `adjust`, prepares Ctrl-C to stop it, and describes
    /// it on standard error.
    pub(crate) fn open(
        &self,
        adjust: impl FnOnce(CaptureBuilder) -> CaptureBuilder,
    ) -> Result<Capture, Failure> {
        let builder = adjust(self.builder());
        let capture = progress::while_waiting(&self.opening(), || builder.open())?;
        self.habits.check(&capture)?;
        stop_on_signals(capture.stopper())?;
        self.engine.describe(&capture, "capturing");

        if let Some(file) = &self.read {
            eprintln!("reading {}", file.display());
        }

        warn(&capture.ledger().warnings);
        Ok(capture)
    }

    /// The reason of a slow start.
    fn opening(&self) -> String {
        match &self.read {
            Some(file) => format!("opening {}", file.display()),
            None => format!("opening {}", self.sources().join(", ")),
        }
    }

    /// Prints the final ledger: for people on standard error, for programs on standard output.
    pub(crate) fn report(&self, ledger: &Ledger) -> Result<(), Failure> {
        show(ledger);
        self.report_json(ledger)
    }

    /// As [`report`](Self::report), with [`show_briefly`].
    pub(crate) fn report_briefly(
        &self,
        ledger: &Ledger,
        is_verbose: bool,
        hint: &str,
    ) -> Result<(), Failure> {
        match is_verbose {
            true => show(ledger),
            false => show_briefly(ledger, hint),
        }
        self.report_json(ledger)
    }

    fn report_json(&self, ledger: &Ledger) -> Result<(), Failure> {
        if self.json {
            output::print(in_json(ledger)?)?;
        }
        Ok(())
    }
}

impl EngineOptions {
    /// With these options.
    pub(crate) fn on(&self, builder: CaptureBuilder) -> CaptureBuilder {
        let builder = builder
            .engine(self.engine.into())
            .take(self.take)
            .chunk(self.chunk)
            .promiscuous(!self.no_promiscuous_mode)
            .stuck_after(self.stuck_after)
            .attach_again(!self.no_attach_again)
            .on_event(|event| events::say(Kind::Interface, &event.to_string()))
            .pin(self.pin.clone());
        let builder = self.warm.0.into_iter().fold(builder, CaptureBuilder::warm);
        let builder = match self.threshold {
            Some(percent) => builder.advanced(percent / 100.0),
            None => builder.basic(),
        };

        match (self.pool, self.buffer) {
            (Some(chunks), _) => builder.pool(chunks),
            (None, Some(bytes)) => builder.buffer(bytes),
            (None, None) => builder,
        }
    }

    /// Describes on standard error the opened capture and its purpose, `capturing`.
    pub(crate) fn describe(&self, capture: &Capture, purpose: &str) {
        capture
            .interfaces()
            .iter()
            .for_each(|interface| eprintln!("{}", opened(capture, interface, purpose)));
        if self.pin != Pin::Off {
            capture.placements().iter().enumerate().for_each(|(worker, placement)| {
                eprintln!("  worker {worker} {placement}");
            });
        }
    }
}

/// The ledger with its verdict as a JSON object.
pub(crate) fn in_json(ledger: &Ledger) -> Result<serde_json::Value, Failure> {
    let mut json = serde_json::to_value(ledger)?;
    let verdict = ledger.judge();
    json["lossless"] = ledger.is_lossless().into();
    json["verdict"] = serde_json::json!({
        "answer": verdict.word(),
        "unknown": verdict.unknown,
        "unchecked": verdict.unchecked,
    });
    Ok(json)
}

/// Whether the ledger says more than that nothing was lost: losses, gaps, a worker that was stuck.
fn needs_table(ledger: &Ledger) -> bool {
    let recorded = ledger.recorded.as_ref();
    ledger.judge().is_alarm()
        || !ledger.unseen.is_empty()
        || ledger.rings.iter().any(|ring| ring.account.abandoned_chunks > 0)
        || recorded.is_some_and(|recorded| recorded.unread > 0 || recorded.untimed > 0)
}

/// Prints the final ledger, with warnings that were not printed at the beginning.
pub(crate) fn show(ledger: &Ledger) {
    show_warnings(ledger, || eprintln!("{ledger}"));
}

/// Prints the final ledger, but only its verdict if nothing was lost and the table has nothing to
/// add; to a terminal with `hint`.
pub(crate) fn show_briefly(ledger: &Ledger, hint: &str) {
    if needs_table(ledger) {
        return show(ledger);
    }
    let verdict = ledger.verdict();
    // A verdict with a remark fills the line.
    let has_room = io::stderr().is_terminal() && !verdict.contains('(');
    let hint = if has_room { hint } else { "" };
    show_warnings(ledger, || eprintln!("{verdict}{hint}"));
}

/// Calls `show` between the warnings that were not printed at the beginning.
fn show_warnings(ledger: &Ledger, show: impl FnOnce()) {
    // No fault of the capture, so the verdict stays last.
    warn(ledger.warnings.iter().filter(|warning| matches!(warning, Warning::OwnFrames { .. })));
    show();

    // The others were printed when the capture was opened.
    let is_news = |warning: &&Warning| {
        matches!(
            warning,
            Warning::SuperPackets { .. }
                | Warning::QueueUnknown { .. }
                | Warning::LastPacketsUncertain
        )
    };
    warn(ledger.warnings.iter().filter(is_news));
}

/// `off`, or a number.
fn parse_warm(text: &str) -> Result<Warm, String> {
    match text {
        "off" => Ok(Warm(None)),
        cells => cells
            .parse()
            .map(|cells| Warm(Some(cells)))
            .map_err(|_| "expected off or a number of cells".to_owned()),
    }
}

pub(crate) fn warn<'a>(warnings: impl IntoIterator<Item = &'a Warning>) {
    warnings.into_iter().for_each(|warning| eprintln!("warning: {warning}"));
}

/// Shorter link losses are not reported.
const LINK_WAIT_WORTH_TELLING: Duration = Duration::from_millis(100);

/// The width of a terminal for which the lines at the beginning are made.
const LINE_WIDTH: usize = 80;

/// One line of at most 80 columns, if it can be: with the reason for the engine, if need be without
/// the memory and the rings. A reason that does not fit has a line of its own.
fn in_one_line(begin: &str, rings: &str, memory: &str, rest: &str, why: Option<&str>) -> String {
    let whole = format!("{begin}, {rings}, {memory}{rest}");
    let Some(why) = why else { return whole };
    let without_memory = format!("{begin}, {rings}{rest}: {why}");
    let lines = [format!("{whole}: {why}"), without_memory, format!("{begin}{rest}: {why}")];
    let fitting = lines.into_iter().find(|line| line.chars().count() <= LINE_WIDTH);
    fitting.unwrap_or_else(|| format!("{whole}\n  {why}"))
}

/// `capturing eth0: xdp engine (native copy), 4 rings of 131,072 packets, 1.0 GiB`,
/// and below it a line for each receive mode of the search that was missed.
fn opened(capture: &Capture, interface: &Interface, purpose: &str) -> String {
    let rings = size::count_of(interface.rings as u64, "ring", "rings");
    let geometry = capture.geometry();
    let memory = size::human_bytes(interface.pool_bytes);

    let snap_len = match interface.snap_len {
        wirecap::DEFAULT_SNAP_LEN => String::new(),
        bytes => format!(", {bytes} bytes kept of each packet"),
    };
    let now = capture.seen_interfaces().filter(|_| interface.device.is_all()).map(|seen| {
        let up = seen.list().iter().filter(|seen| seen.up).count() as u64;
        format!(" ({} now)", size::count_of(up, "interface", "interfaces"))
    });
    let begin = format!("{purpose} {}{}:", interface.device.name, now.unwrap_or_default());
    let why = interface.why.as_ref().map(ToString::to_string);

    match &interface.reception {
        Reception::Xdp {
            receive_mode,
            missed_receive_modes,
            huge_pages,
            posted,
            link_wait,
            ..
        } => {
            let cells = grouped(geometry.cells().into());
            let pages = if *huge_pages { " on huge pages" } else { "" };

            let posted = match posted {
                posted if *posted < geometry.cells() => {
                    format!(" ({} posted)", grouped((*posted).into()))
                }
                _ => String::new(),
            };
            let begin = format!("{begin} xdp engine ({receive_mode})");
            let rings = format!("{rings} of {cells} packets{posted}");
            let mut text =
                in_one_line(&begin, &rings, &format!("{memory}{pages}"), &snap_len, why.as_deref());
            for (receive_mode, reason) in missed_receive_modes {
                text += &format!("\n  not {receive_mode}: {reason}");
            }

            if let Some(wait) = link_wait.filter(|wait| *wait >= LINK_WAIT_WORTH_TELLING) {
                let seconds = wait.as_secs_f64();
                text += &format!(
                    "\n  its link was down for {seconds:.1} s while the program was attached"
                );
            }

            text
        }
        Reception::Packet { spread, direction, .. } => {
            let spread = match spread {
                Spread::Flows { rings: 1 } => "",
                Spread::Flows { .. } => " by flow",
                spread if spread.shares_queues() => " by queue and flow",
                Spread::Queues(_) => " by queue",
            };
            let direction = match direction {
                Direction::In => ", received only",
                Direction::Out => ", sent only",
                Direction::InOut => "",
            };
            let begin = format!("{begin} packet engine{direction}");

            in_one_line(&begin, &format!("{rings}{spread}"), &memory, &snap_len, why.as_deref())
        }
        _ => format!("{begin} {rings}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_at_the_beginning_fits_a_terminal() {
        let begin = "capturing eth1: packet engine";
        let of = |why| in_one_line(begin, "1 ring", "64.0 MiB", "", why);
        assert_eq!(of(None), "capturing eth1: packet engine, 1 ring, 64.0 MiB");
        assert_eq!(
            of(Some("it is in use")),
            "capturing eth1: packet engine, 1 ring, 64.0 MiB: it is in use"
        );
        assert_eq!(
            of(Some("the host has address 192.0.2.1/24 on it")),
            "capturing eth1: packet engine, 1 ring: the host has address 192.0.2.1/24 on it"
        );
        assert_eq!(
            of(Some("the host has address 2001:db8:1234:5678::1 on it")),
            "capturing eth1: packet engine: the host has address 2001:db8:1234:5678::1 on it"
        );
        assert_eq!(
            of(Some("the host has address 2001:db8:1234:5678::1/64 on it")),
            "capturing eth1: packet engine, 1 ring, 64.0 MiB\n  the host has address 2001:db8:1234:5678::1/64 on it"
        );
    }
}
