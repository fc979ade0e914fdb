//! Measures wirecap on a live veth pair, in comparison with a bare AF_XDP loop and with other
//! programs. Each part prints whether its goals are met; with `--check` the bench fails if a goal
//! is missed, or void because the machine was not quiet.
//!
//! `make bench` runs all parts; in the folder `lab`, `cargo bench --bench live -- rates` runs one
//! of them. Without `--bench`, as under `cargo test --bench live`, or with `--quick`, every part
//! runs briefly, to check that it works. Requires root.

mod count;
mod filter;
mod footprint;
mod forward;
mod opening;
mod replay;
mod rivals;
mod scraped;
mod stopped;
mod times;
mod touch;

use clap::{Parser, Subcommand};

use wirecap_lab::live::bed::{self, Run};
use wirecap_lab::live::process::CommandLine;
use wirecap_lab::live::{Outcome, programs};
use wirecap_testbed::Goals;

#[derive(Debug, Parser)]
struct Cli {
    /// Passed by cargo bench
    #[arg(long, global = true, hide = true)]
    bench: bool,
    /// Run briefly, to check that the bench works
    #[arg(long, global = true)]
    quick: bool,
    /// Fail if a goal is missed, or void because the machine was not quiet
    #[arg(long, global = true)]
    check: bool,
    /// Number of rounds [default: depends on the part]
    #[arg(long, global = true)]
    rounds: Option<usize>,
    /// Part to run [default: all]
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Instructions per packet: wirecap count compared with a bare loop, advanced mode with basic
    /// mode
    Instructions,
    /// Sustained rate: wirecap count compared with a bare loop
    Rates,
    /// Sustained rate under balanced load: advanced mode compared with basic mode
    Modes,
    /// Sustained rate with small and large pools, with and without --warm
    Warm,
    /// Highest lossless rate: wirecap capture compared with other recorders
    Rivals,
    /// Memory of process and kernel, and CPU time while no packets arrive
    Footprint,
    /// Time until a command captures
    Opening,
    /// Highest lossless rate: wirecap capture --engine packet compared with tcpdump
    Packet,
    /// CPU time of recorders for packets that already wait in their buffers
    Stopped(stopped::Arguments),
    /// Cost of reading the metrics ten times per second
    Scraped,
    /// Cost of a packet that a filter rejects
    Filter,
    /// wirecap forward compared with other forwarders
    Forward(forward::Arguments),
    /// wirecap replay compared with tcpreplay: rate and timing
    Replay,
    /// Errors of the times in a recording
    Times,
    /// Attach an XDP program that passes or drops every packet
    Hold(filter::Arguments),
    /// The bare AF_XDP receive loop
    Bare(programs::bare::Arguments),
    /// The work of the bare loop, done with the library
    Touch(touch::Arguments),
}

/// Nice value of senders and receivers.
const PRIORITY: i32 = -10;

/// The extent of a measurement.
#[derive(Debug, Clone, Copy)]
struct Effort {
    quick: bool,
    rounds: Option<usize>,
}

impl Effort {
    /// Number of rounds: `--rounds` if specified, otherwise `full`, or one in a quick run.
    fn rounds(self, full: usize) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { full })
    }

    /// Quick runs are too short for goals.
    fn has_goals(self) -> bool {
        !self.quick
    }

    fn choose<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Repeats a measurement while it is disturbed, except in a quick run, whose figures are not
    /// used.
    fn calmest<T>(self, mut measure: impl FnMut() -> Outcome<(Run, T)>) -> Outcome<(Run, T)> {
        if self.quick { measure() } else { bed::calmest(measure) }
    }
}

/// The wirecap command.
fn wirecap() -> CommandLine {
    CommandLine::wirecap()
}

fn main() -> Outcome<()> {
    let cli = Cli::parse();
    let effort = Effort { quick: cli.quick || !cli.bench, rounds: cli.rounds };
    match cli.part {
        Some(Part::Bare(arguments)) => return programs::bare::run(&arguments),
        Some(Part::Touch(arguments)) => return touch::run(&arguments),
        Some(Part::Hold(arguments)) => return filter::hold(&arguments),
        _ => {}
    }
    if !wirecap_testbed::privileged() {
        return Ok(());
    }
    if !wirecap().is_installed() {
        return Err("the command wirecap is not built: run make build".into());
    }
    // Senders and receivers have priority over other processes.
    let _ = rustix::process::setpriority_process(None, PRIORITY);
    if cli.check && !effort.has_goals() {
        return Err("--check requires a full run: cargo bench, without --quick".into());
    }
    let mut goals = Goals::of("live");
    run(cli.part, effort, &mut goals)?;
    if cli.check { goals.end() } else { Ok(()) }
}

/// Runs a part, or all of them.
fn run(part: Option<Part>, effort: Effort, goals: &mut Goals) -> Outcome<()> {
    goals.begin_part();
    match part {
        Some(Part::Instructions) => count::instructions(effort, goals),
        Some(Part::Rates) => count::rates(effort, goals),
        Some(Part::Modes) => count::rates_of_modes(effort),
        Some(Part::Warm) => count::warm(effort, goals),
        Some(Part::Rivals) => rivals::run(effort, goals),
        Some(Part::Footprint) => footprint::run(effort, goals),
        Some(Part::Opening) => opening::run(effort, goals),
        Some(Part::Packet) => rivals::packet(effort, goals),
        Some(Part::Stopped(arguments)) => stopped::run(effort, &arguments, goals),
        Some(Part::Scraped) => scraped::run(effort, goals),
        Some(Part::Filter) => filter::run(effort, goals),
        Some(Part::Forward(arguments)) => forward::run(effort, &arguments, goals),
        Some(Part::Replay) => replay::run(effort, goals),
        Some(Part::Times) => times::run(effort, goals),
        Some(Part::Bare(_) | Part::Touch(_) | Part::Hold(_)) => Ok(()),
        None => all().into_iter().try_for_each(|part| run(Some(part), effort, goals)),
    }
}

fn all() -> [Part; 14] {
    [
        Part::Filter,
        Part::Instructions,
        Part::Rates,
        Part::Footprint,
        Part::Opening,
        Part::Modes,
        Part::Warm,
        Part::Rivals,
        Part::Packet,
        Part::Stopped(stopped::Arguments::default()),
        Part::Scraped,
        Part::Forward(forward::Arguments::default()),
        Part::Replay,
        Part::Times,
    ]
}
