//! The command line: the experiments, and the receivers that they start.

#[macro_use]
mod terminal;

mod cost;
mod failure;
mod page;
mod signals;
mod watching;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use wirecap_lab::live::programs::Program;

use failure::Failure;

/// Run the experiments of the papers behind wirecap, live and simulated, and report the results
#[derive(Debug, Parser)]
#[command(name = "wirecap-lab", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Cost(cost::Arguments),
    Paper(page::PaperArguments),
    Report(page::ReportArguments),
    /// Run one of the receivers that wirecap is compared with
    #[command(hide = true)]
    Program {
        #[command(subcommand)]
        program: Program,
    },
    #[command(hide = true)]
    ManPages(ManPagesArguments),
}

/// Write the manual pages
#[derive(Debug, Args)]
struct ManPagesArguments {
    /// Directory for the pages
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// The command, with the arguments of this process.
pub(crate) fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("wirecap-lab: {failure}");
            failure.exit_code()
        }
    }
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Cost(arguments) => cost::run(arguments),
        Command::Paper(arguments) => page::run_paper(arguments),
        Command::Report(arguments) => page::run_report(arguments),
        Command::Program { program } => program.run().map_err(Failure::Failed),
        Command::ManPages(arguments) => write_man_pages(arguments),
    }
}

fn write_man_pages(arguments: &ManPagesArguments) -> Result<(), Failure> {
    let directory = &arguments.directory;
    let written = fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    written.map_err(|error| {
        Failure::Failed(format!("cannot write to {}: {error}", directory.display()).into())
    })
}
