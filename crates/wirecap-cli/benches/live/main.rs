//! Measures wirecap on a live veth pair, beside a bare loop and beside its rivals.
//!
//! `make bench` runs everything; `cargo bench -p wirecap-cli --bench live -- count` one part of it.
//! Without `--bench`, as `cargo test` starts it, or with `--quick`, every part runs tiny: only to see
//! that it still works. Needs root.

mod count;
mod filter;
mod footprint;
mod forward;
mod replay;
mod rivals;
mod stopped;
mod touch;

use clap::{Parser, Subcommand};

use wirecap_lab::live::process::CommandLine;
use wirecap_lab::live::{Outcome, programs};

#[derive(Debug, Parser)]
struct Cli {
    /// Given by cargo bench
    #[arg(long, global = true, hide = true)]
    bench: bool,
    /// Run tiny
    #[arg(long, global = true)]
    quick: bool,
    /// Repeat so many times instead of as often as a spread needs
    #[arg(long, global = true)]
    rounds: Option<usize>,
    /// What to measure [default: everything]
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Instructions per packet: wirecap count beside a bare loop, advanced beside basic mode
    Instructions,
    /// The rate that is sustained: wirecap count beside a bare loop
    Rates,
    /// The rate of advanced mode beside basic mode, under balanced load
    Modes,
    /// What a large pool costs, and what warm cells give back
    Warm,
    /// wirecap capture beside other programs that record
    Rivals,
    /// What a capture costs: memory of user and kernel, and the processor while nothing arrives
    Footprint,
    /// wirecap capture --engine packet beside tcpdump
    Packet,
    /// What a recorder costs beside others where nothing else does anything
    Stopped(stopped::Arguments),
    /// What a packet costs that a filter rejects
    Filter,
    /// wirecap forward beside others that forward
    Forward(forward::Arguments),
    /// wirecap replay beside tcpreplay: rate and timing
    Replay,
    /// A program that does nothing
    Hold(filter::Arguments),
    /// The bare AF_XDP receive loop
    Bare(programs::bare::Arguments),
    /// The bare loop's work done with the library
    Touch(touch::Arguments),
}

/// The nice value of all that takes part in a measurement.
const PRIORITY: i32 = -10;

/// How much is to be measured.
#[derive(Debug, Clone, Copy)]
struct Effort {
    quick: bool,
    rounds: Option<usize>,
}

impl Effort {
    /// How often to repeat what is usually repeated `full` times.
    fn rounds(self, full: usize) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { full })
    }

    fn choose<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// The wirecap command.
fn wirecap() -> CommandLine {
    CommandLine::new(env!("CARGO_BIN_EXE_wirecap"))
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
    // Sender and receivers alike go before whatever else the machine does.
    let _ = rustix::process::setpriority_process(None, PRIORITY);
    match cli.part {
        Some(Part::Instructions) => count::instructions(effort),
        Some(Part::Rates) => count::rates(effort),
        Some(Part::Modes) => count::rates_of_modes(effort),
        Some(Part::Warm) => count::warm(effort),
        Some(Part::Rivals) => rivals::run(effort),
        Some(Part::Footprint) => footprint::run(effort),
        Some(Part::Packet) => rivals::packet(effort),
        Some(Part::Stopped(arguments)) => stopped::run(effort, &arguments),
        Some(Part::Filter) => filter::run(effort),
        Some(Part::Forward(arguments)) => forward::run(effort, &arguments),
        Some(Part::Replay) => replay::run(effort),
        _ => {
            filter::run(effort)?;
            count::instructions(effort)?;
            count::rates(effort)?;
            footprint::run(effort)?;
            count::rates_of_modes(effort)?;
            count::warm(effort)?;
            rivals::run(effort)?;
            rivals::packet(effort)?;
            stopped::run(effort, &stopped::Arguments::default())?;
            forward::run(effort, &forward::Arguments::default())?;
            replay::run(effort)
        }
    }
}
