//! The lab: experiments on capture engines, each of which anyone can run again.
//!
//! An [`experiment`] measures or simulates and gives findings, of which [`chart`] draws pictures; the
//! [`runner`] runs a list of them and keeps what is finished; the [`report`] is a page of all that was found.
//! What they say on a terminal is the `wirecap lab` command's business.

pub mod chart;
pub mod cost;
mod csv_text;
pub mod experiment;
pub mod live;
pub mod machine;
pub mod pages;
pub mod paper;
pub mod play;
pub mod recording;
pub mod report;
pub mod runner;
pub mod traffic;

use experiment::Experiment;
use live::Lab;
use live::process::CommandLine;

/// All experiments, in the order of the report. One that is added here is run and reported. The live ones run
/// `wirecap`, the command.
pub fn experiments(wirecap: CommandLine) -> Vec<Box<dyn Experiment>> {
    let live = Lab { wirecap, tiny: false };
    let mut experiments = paper::experiments();
    experiments.extend(live.experiments());
    experiments.push(Box::new(cost::Cost));
    experiments
}
