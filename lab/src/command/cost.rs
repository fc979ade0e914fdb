//! `wirecap-lab cost`: the cost of a captured packet, component by component.

mod table;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::Args;
use wirecap_lab::cost::{CostError, Effort, Progress, Report, measure};

use super::failure::Failure;
use super::signals::Interruption;
use super::terminal::{self, LiveLine};

/// Measure the cost of a captured packet by component, in nanoseconds and cycles
///
/// Components: driver, copy, dispatch, timestamps, filters by kind and execution method, hand-over,
/// recycle, offloading and savefiles, as in the WinPcap paper. They are enabled one at a time, in
/// alternation within each round. The cost of a component is the difference to the run without it
/// in the same round; it may be negative if it is below the noise. The command runs in a private
/// test bed, two network namespaces joined by a veth pair, which the kernel removes when the
/// process ends. It requires root and two idle CPUs. Exit status 1: the counts of a run do not
/// balance.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Number of rounds [default: 11, a minute or two]
    #[arg(long, value_name = "N")]
    rounds: Option<NonZeroUsize>,

    /// Short test run: a few seconds, without meaningful results
    #[arg(long)]
    quick: bool,

    /// Print the results as one JSON object instead of the table
    #[arg(long)]
    json: bool,

    /// Write the measurements of each round as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Draw the engines' costs as stacked bars beside the WinPcap paper's, as SVG
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let interruption = Interruption::watch()?;
    let effort = if arguments.quick { Effort::quick() } else { Effort::full() };
    let rounds = arguments.rounds.map_or(effort.rounds, NonZeroUsize::get);
    let effort = Effort { rounds, ..effort };

    // Checked before the measurement: a wrong path is reported at once.
    let csv = arguments.csv.as_deref().map(Output::at).transpose()?;
    let picture = arguments.picture.as_deref().map(Output::at).transpose()?;
    let report = measured(&effort, &interruption).map_err(failure)?;

    // If one of them cannot be written, the others contain the results.
    let csv = csv.map(|csv| csv.write(report.csv().as_bytes()));
    let picture = picture.map(|picture| picture.write(report.picture().as_bytes()));

    if arguments.json {
        terminal::print(serde_json::to_string(&report)?)?;
    } else {
        terminal::printed(table::write(&report, &mut io::stdout().lock()))?;
    }

    csv.transpose()?;
    picture.transpose()?;

    Ok(())
}

/// A file that is known to be writable, and unchanged until it is written.
#[derive(Debug)]
struct Output<'a> {
    path: &'a Path,
    file: File,
    /// It was not there before.
    is_new: bool,
    is_written: bool,
}

impl<'a> Output<'a> {
    fn at(path: &'a Path) -> Result<Self, Failure> {
        let is_new = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| cannot_write(path, &error))?;
        Ok(Self { path, file, is_new, is_written: false })
    }

    fn write(mut self, content: &[u8]) -> Result<(), Failure> {
        self.is_written = true;
        // Pipes and devices have no length.
        let _ = self.file.set_len(0);
        self.file.write_all(content).map_err(|error| cannot_write(self.path, &error))
    }
}

impl Drop for Output<'_> {
    fn drop(&mut self) {
        if self.is_new && !self.is_written {
            let _ = fs::remove_file(self.path);
        }
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot write to {}: {error}", path.display()).into())
}

fn failure(error: CostError) -> Failure {
    Failure::Failed(error.into())
}

fn measured(effort: &Effort, interruption: &Interruption) -> Result<Report, CostError> {
    let mut line = Line { line: LiveLine::new(), round: 0 };
    measure(effort, &mut |progress| {
        line.show(&progress, effort.rounds);
        if interruption.came() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}

/// Shows the progress on standard error: a line that replaces itself on a terminal, otherwise one
/// line per round.
struct Line {
    line: LiveLine,
    round: usize,
}

impl Line {
    fn show(&mut self, progress: &Progress, rounds: usize) {
        let percent = (100.0 * progress.done as f64 / progress.steps.max(1) as f64) as u32;
        let Progress { round, what, .. } = progress;
        if self.line.is_visible() {
            self.line.show(&format!("round {round} of {rounds}, {percent} %: {what}"));
        } else if self.round < *round {
            eprintln!("wirecap-lab cost: round {round} of {rounds}");
        }
        self.round = *round;
    }
}
