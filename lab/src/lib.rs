//! The lab: repeatable experiments on capture engines.
//!
//! An [`experiment`] measures or simulates and returns findings, of which [`chart`] draws pictures;
//! the [`runner`] runs a list of experiments and stores finished results; the [`report`] is a page
//! of all findings. The program `wirecap-lab` prints the progress on the terminal.

pub mod chart;
pub mod cost;
mod csv_text;
pub mod experiment;
pub mod live;
pub mod machine;
pub mod pages;
pub mod paper;
pub mod report;
pub mod runner;

use experiment::Experiment;
use live::Lab;
use live::process::CommandLine;

/// All experiments, in the order of the report. Experiments that are added here are run and
/// reported. The live ones run the command `wirecap`, and the receivers of the program `lab`.
pub fn experiments(wirecap: CommandLine, lab: CommandLine) -> Vec<Box<dyn Experiment>> {
    let live = Lab { wirecap, lab, tiny: false };
    let mut experiments = paper::experiments();
    experiments.extend(live.experiments());
    experiments.push(Box::new(cost::Cost));
    experiments
}
