//! The `wirecap` command: records, counts, forwards and sends packets, and the lab.

#[macro_use]
mod output;

mod advice;
mod ask;
mod capture;
mod closed;
mod control;
mod count;
mod demo;
mod devices;
mod doctor;
mod events;
mod failure;
mod filter;
mod find;
mod forward;
mod generate;
mod handle;
mod history;
mod index;
mod interfaces;
mod lab;
mod losses;
mod lost;
mod man;
mod merge;
mod options;
mod privileges;
mod profile;
mod progress;
mod recording;
mod replay;
mod screen;
mod sending;
mod show;
mod signals;
mod sink;
mod size;
mod threads;
mod top;
mod weight;

use std::io::{self, Write};
use std::process::ExitCode;

#[doc(hidden)]
pub use capture::record_waiting;

use clap::{CommandFactory, Parser, Subcommand};

use failure::Failure;

/// Lossless packet capture from multi-queue network interfaces, with an account of every packet
#[derive(Debug, Parser)]
#[command(name = "wirecap", version, arg_required_else_help = true)]
#[command(after_help = "Examples:
  sudo wirecap capture -i eth1 -w trace.pcapng          record until Ctrl-C
  sudo wirecap capture -i eth1 -w dns.pcapng.zst udp and port 53
  sudo wirecap count -i eth1                            packets and bytes per ring, live
  sudo wirecap forward eth1 eth2                        a zero-copy bump in the wire
  wirecap doctor eth1                                   what on this host loses packets

Exit status: 0 done, 1 failed, 2 wrong usage, 3 done but packets were lost (\"lossless: no\").")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Capture(Box<capture::Arguments>),
    Find(find::Arguments),
    Index(index::Arguments),
    Show(show::Arguments),
    Count(count::Arguments),
    Profile(profile::Arguments),
    Handle(handle::Arguments),
    Forward(forward::Arguments),
    Status(ask::StatusArguments),
    Stop(ask::StopArguments),
    Filter(ask::FilterArguments),
    Rotate(ask::RotateArguments),
    Events(ask::EventsArguments),
    Top(top::Arguments),
    Devices(devices::Arguments),
    Doctor(doctor::Arguments),
    Generate(generate::Arguments),
    Replay(replay::Arguments),
    Demo(demo::Arguments),
    Lab(lab::Arguments),
    #[command(hide = true)]
    Broker(privileges::Arguments),
    #[command(hide = true)]
    ManPages(man::Arguments),
}

/// Shows what clap has to say instead of running a command: help, the version, or an error.
fn said(text: &clap::Error) -> ExitCode {
    let shown = text.print().and_then(|()| io::stdout().flush());
    let printed = if text.use_stderr() { Ok(()) } else { output::printed(shown) };
    match printed {
        Ok(()) => ExitCode::from(text.exit_code() as u8),
        Err(failure) => {
            eprintln!("wirecap: {failure}");
            failure.exit_code()
        }
    }
}

/// The command, with the arguments of this process.
pub fn main() -> ExitCode {
    if let Err(error) = signals::survive() {
        eprintln!("wirecap: cannot handle signals: {error}");
        return ExitCode::FAILURE;
    }
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(text) => return said(&text),
    };
    let outcome = match command {
        Command::Capture(arguments) => capture::run(&arguments),
        Command::Find(arguments) => find::run(&arguments),
        Command::Index(arguments) => index::run(&arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::Count(arguments) => count::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Handle(arguments) => handle::run(&arguments),
        Command::Forward(arguments) => forward::run(&arguments),
        Command::Status(arguments) => ask::status(&arguments),
        Command::Stop(arguments) => ask::stop(&arguments),
        Command::Filter(arguments) => ask::filter(&arguments),
        Command::Rotate(arguments) => ask::rotate(&arguments),
        Command::Events(arguments) => ask::events(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Lab(arguments) => lab::run(&arguments),
        Command::Broker(_) => privileges::serve(),
        Command::ManPages(arguments) => man::run(&arguments, Cli::command()),
    };
    events::flush();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The ledger, or the list of findings, has said it.
        Err(failure @ (Failure::Lossy | Failure::Findings)) => failure.exit_code(),
        Err(failure) => {
            eprintln!("wirecap: {failure}");
            failure.exit_code()
        }
    }
}
