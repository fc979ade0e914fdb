//! Counts wirecap's instructions per packet without a kernel: one thread, rings in heap memory. The
//! simulator is the kernel's half of the rings; its instructions are not counted.
//!
//! `cargo bench -p wirecap-cli --bench instructions` prints a table of paths and numbers of rings,
//! compared with the committed baseline. `-- --check` fails if a path exceeds the baseline;
//! `-- --write` writes a new baseline. callgrind counts each cell of the table in a separate
//! process, so that no path affects the heap of another. Without `--bench`, as under
//! `cargo test --bench instructions`, every path runs once without callgrind, to check that its
//! ledger balances.
//!
//! The counts depend on the compiler, its profile `bench` (the same as `release`), the C library's
//! `malloc`, and its `memcpy`, which is selected by CPU model. On one machine they repeat to within
//! 0.01 %. After an update of the compiler, write a new baseline from the same source as the old
//! one.

mod baseline;
mod bed;
mod callgrind;
mod paths;

use std::error::Error;

use clap::{Parser, Subcommand};

use baseline::{Baseline, Cell};
use paths::{PATHS, Path};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Numbers of rings to count.
const RINGS: [usize; 4] = [1, 2, 4, 8];

#[derive(Debug, Parser)]
struct Cli {
    /// Passed by cargo bench
    #[arg(long, global = true, hide = true)]
    bench: bool,
    /// Fail if a path exceeds its baseline by more than --tolerance, or advanced mode exceeds basic
    /// mode by more than --advanced
    #[arg(long)]
    check: bool,
    /// Maximum excess of a path over its baseline, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5)]
    tolerance: f64,
    /// Maximum excess of advanced mode over basic mode while no chunk is offloaded, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    advanced: f64,
    /// Write the counts to the baseline
    #[arg(long, conflicts_with = "check")]
    write: bool,
    /// Count only paths whose names contain TEXT
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one path and print its number of packets
    Run { path: String, rings: usize },
}

fn main() -> Outcome<()> {
    let cli = Cli::parse();
    if let Some(Command::Run { path, rings }) = &cli.command {
        println!("packets {}", Path::named(path)?.run(*rings)?);
        return Ok(());
    }
    let cells: Vec<(&Path, usize)> = PATHS
        .iter()
        .filter(|path| path.name.contains(&cli.only))
        .flat_map(|path| RINGS.map(|rings| (path, rings)))
        .filter(|(path, rings)| *rings >= path.fewest_rings)
        .collect();
    if !cli.bench {
        for (path, rings) in cells {
            let packets = path.run(rings)?;
            println!("{}, rings {rings}: {packets} packets", path.name);
        }
        return Ok(());
    }
    if !callgrind::is_installed() {
        if cli.check || cli.write {
            return Err("valgrind is not installed".into());
        }
        wirecap_testbed::skip("valgrind is not installed");
        return Ok(());
    }
    let counted = callgrind::count_all(&cells)?;
    if cli.write {
        return Baseline::replace(&counted, cli.only.is_empty());
    }
    let baseline = Baseline::committed()?;
    print!("{}", baseline.table(&counted));
    let excesses = baseline.excesses(&counted, cli.tolerance / 100.0, cli.advanced / 100.0);
    excesses.iter().for_each(|excess| println!("{excess}"));
    match cli.check && !excesses.is_empty() {
        true => Err(format!("{} excesses", excesses.len()).into()),
        false => Ok(()),
    }
}
