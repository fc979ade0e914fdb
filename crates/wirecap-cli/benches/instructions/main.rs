//! Counts our instructions per packet where nothing disturbs them: one thread, rings in heap memory, the kernel's half
//! played by the simulator and not counted.
//!
//! `cargo bench -p wirecap-cli --bench instructions` prints a table of paths and numbers of rings beside the committed
//! baseline; `-- --check` fails where a path exceeds it, `-- --write` makes it anew. Each cell of the table is a process
//! of its own under callgrind, so that no path changes what another one finds in the heap. Without `--bench`, as
//! `cargo test` starts it, every path runs once without callgrind: only to see that its books balance.
//!
//! The counts depend on code generation: they are those of the profile `bench` (which is `release`) of one compiler, and
//! on the C library's `malloc` and `memcpy`, which chooses by the processor. On one machine they repeat to the
//! instruction, nearly. After a new compiler the baseline is made anew, from the same source as the old one.

mod baseline;
mod bed;
mod callgrind;
mod paths;

use std::error::Error;

use clap::{Parser, Subcommand};

use baseline::{Baseline, Cell};
use paths::{PATHS, Path};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The numbers of rings.
const RINGS: [usize; 4] = [1, 2, 4, 8];

#[derive(Debug, Parser)]
struct Cli {
    /// Given by cargo bench
    #[arg(long, global = true, hide = true)]
    bench: bool,
    /// Fail if a path exceeds its baseline by more than the tolerance, or advanced mode basic mode by more than its own
    #[arg(long)]
    check: bool,
    /// By how much a path may exceed its baseline, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5)]
    tolerance: f64,
    /// By how much advanced mode may exceed basic mode while nothing is offloaded, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    advanced: f64,
    /// Write what is counted to the baseline
    #[arg(long, conflicts_with = "check")]
    write: bool,
    /// Only paths whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One path, and say how many packets took it
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
        println!("SKIP: valgrind is not installed");
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
