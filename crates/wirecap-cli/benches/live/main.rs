//! Measures wirecap on a live veth pair, beside a bare loop and beside its rivals.
//!
//! `make bench` runs everything; `cargo bench -p wirecap-cli --bench live -- count` one part of it.
//! Without `--bench`, as `cargo test` starts it, or with `--quick`, every part runs tiny: only to see
//! that it still works. Needs root.

mod bare;
mod bed;
mod count;
mod figures;
mod touch;

use clap::{Parser, Subcommand};

use bed::Outcome;

#[derive(Debug, Parser)]
struct Cli {
    /// Given by cargo bench
    #[arg(long, global = true, hide = true)]
    bench: bool,
    /// Run tiny
    #[arg(long, global = true)]
    quick: bool,
    /// What to measure [default: everything]
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// wirecap count beside the bare loop
    Count,
    /// The bare AF_XDP receive loop
    Bare(bare::Arguments),
    /// The bare loop's work done with the library
    Touch(touch::Arguments),
}

fn main() -> Outcome<()> {
    let cli = Cli::parse();
    let quick = cli.quick || !cli.bench;
    match cli.part {
        Some(Part::Bare(arguments)) => return bare::run(&arguments),
        Some(Part::Touch(arguments)) => return touch::run(&arguments),
        _ => {}
    }
    if !wirecap_testbed::privileged() {
        return Ok(());
    }
    let _alone = wirecap_testbed::loss_lock()?;
    match cli.part {
        Some(Part::Count) => count::run(quick),
        _ => count::run(quick),
    }
}
