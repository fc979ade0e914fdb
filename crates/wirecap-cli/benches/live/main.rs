//! Measures wirecap on a live veth pair, in comparison with a bare AF_XDP loop and with other programs.
//!
//! `make bench` runs all parts; `cargo bench -p wirecap-cli --bench live -- rates` runs one of them. Without `--bench`,
//! as under `cargo test`, or with `--quick`, every part runs briefly, to check that it works. Requires root.

mod count;
mod filter;
mod footprint;
mod forward;
mod replay;
mod rivals;
mod scraped;
mod stopped;
mod touch;

use clap::{Parser, Subcommand};

use wirecap_lab::live::process::CommandLine;
use wirecap_lab::live::{Outcome, programs};

#[derive(Debug, Parser)]
struct Cli {
    /// Passed by cargo bench
    #[arg(long, global = true, hide = true)]
    bench: bool,
    /// Run briefly, to check that the bench works
    #[arg(long, global = true)]
    quick: bool,
    /// Number of rounds [default: depends on the part]
    #[arg(long, global = true)]
    rounds: Option<usize>,
    /// Part to run [default: all]
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Instructions per packet: wirecap count compared with a bare loop, advanced mode with basic mode
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
    /// Highest lossless rate: wirecap capture --engine packet compared with tcpdump
    Packet,
    /// CPU time of recorders for packets that already wait in their buffers
    Stopped(stopped::Arguments),
    /// Cost of reading the metrics ten times per second
    Scraped(scraped::Arguments),
    /// Cost of a packet that a filter rejects
    Filter,
    /// wirecap forward compared with other forwarders
    Forward(forward::Arguments),
    /// wirecap replay compared with tcpreplay: rate and timing
    Replay,
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
    // Senders and receivers have priority over other processes.
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
        Some(Part::Scraped(arguments)) => scraped::run(effort, &arguments),
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
            scraped::run(effort, &scraped::Arguments::default())?;
            forward::run(effort, &forward::Arguments::default())?;
            replay::run(effort)
        }
    }
}
