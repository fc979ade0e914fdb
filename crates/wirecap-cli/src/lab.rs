//! `wirecap lab`: the experiments.

mod cost;
mod page;
mod watching;

use clap::Subcommand;
use wirecap_lab::live::programs::Program;

use crate::failure::Failure;

/// Run the papers' experiments, live and simulated, and report the results
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    Cost(cost::Arguments),
    Paper(page::PaperArguments),
    Report(page::ReportArguments),
    /// Run one of the receivers that wirecap is compared with
    #[command(hide = true)]
    Program {
        #[command(subcommand)]
        program: Program,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.experiment {
        Experiment::Cost(arguments) => cost::run(arguments),
        Experiment::Paper(arguments) => page::run_paper(arguments),
        Experiment::Report(arguments) => page::run_report(arguments),
        Experiment::Program { program } => program.run().map_err(Failure::Failed),
    }
}
