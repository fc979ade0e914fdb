//! The `wirecap` command: records, counts, forwards and sends packets.

#[cfg(sabotage)]
#[path = "../../wirecap-testbed/src/sabotage.rs"]
mod sabotage;
#[macro_use]
mod shared;

mod bare;
mod completions;
mod demo;
mod forward;
mod host;
mod lab;
mod losses;
mod man;
mod record;
mod search;
mod send;
mod usage;
mod watch;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

#[doc(hidden)]
pub use record::capture::record_waiting;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use host::{dedicate, devices, doctor};
use record::extcap::Step;
use record::{capture, config, extcap, privileges};
use search::{archive, find, index};
use send::{generate, replay};
use shared::failure::Failure;
use shared::{events, output, service, signals};
use watch::{ask, count, handle, profile, show, stats, top};
use wirecap_units::size;

/// Packet capture from multi-queue network interfaces, with a ledger of delivered and dropped
/// packets
#[derive(Debug, Parser)]
#[command(name = "wirecap", version, arg_required_else_help = true)]
#[command(after_help = "Examples:
  sudo wirecap -i eth1                                  show packets, with tcpdump's flags
  sudo wirecap capture -i eth1 -w trace.pcapng          record until Ctrl-C
  sudo wirecap capture -i eth1 -w dns.pcapng.zst udp and port 53
  sudo wirecap count -i eth1                            packets and bytes per ring, live
  sudo wirecap forward eth1 eth2                        a bump in the wire
  sudo wirecap dedicate eth1                            a SPAN or TAP port: auto selects xdp
  wirecap doctor eth1                                   find settings that lose packets

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
    Archive(archive::Arguments),
    Show(show::Arguments),
    Stats(stats::Arguments),
    Count(count::Arguments),
    Profile(profile::Arguments),
    Handle(handle::Arguments),
    Forward(forward::Arguments),
    Status(ask::StatusArguments),
    Stop(ask::StopArguments),
    Filter(ask::FilterArguments),
    Reload(ask::ReloadArguments),
    Rotate(ask::RotateArguments),
    Events(ask::EventsArguments),
    Top(top::Arguments),
    #[command(short_flag = 'D')]
    Devices(devices::Arguments),
    Dedicate(dedicate::Arguments),
    Release(dedicate::ReleaseArguments),
    Doctor(doctor::Arguments),
    Generate(generate::Arguments),
    Replay(replay::Arguments),
    Demo(demo::Arguments),
    #[command(hide = true)]
    Lab(lab::Arguments),
    #[command(hide = true)]
    Broker(privileges::Arguments),
    Extcap(extcap::Arguments),
    #[command(hide = true)]
    ManPages(man::Arguments),
    #[command(hide = true)]
    Completions(completions::Arguments),
}

/// Prints clap's output instead of running a command: help, the version, or an error.
fn said(text: &clap::Error, arguments: &[OsString]) -> ExitCode {
    let is_help = text.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if text.use_stderr() && !is_help {
        eprintln!("wirecap: {}", usage::explained(text, arguments));
        return ExitCode::from(text.exit_code() as u8);
    }

    let shown = text.print().and_then(|()| io::stdout().flush());
    let printed = if is_help { Ok(()) } else { output::printed(shown) };
    match printed {
        Ok(()) => ExitCode::from(text.exit_code() as u8),
        Err(failure) => {
            eprintln!("wirecap: {failure}");
            failure.exit_code()
        }
    }
}

/// Why arguments are no command.
#[derive(Debug)]
enum Unparsed {
    /// Help, or the usage error.
    Text(clap::Error),
    /// The configuration file cannot be read, or is invalid.
    File(Failure),
}

/// The command of these arguments and of the configuration file that they name.
fn parse(arguments: &[OsString]) -> Result<Cli, Unparsed> {
    let Some(file) = config::file_of(arguments) else {
        return Cli::try_parse_from(arguments).map_err(Unparsed::Text);
    };
    let command = Cli::command();
    let capture = command.find_subcommand("capture").expect("it is one of the commands");
    let arguments = config::with_file(arguments, &file, capture).map_err(Unparsed::File)?;
    // Later values take precedence: the command line.
    let command = command.mut_subcommand("capture", |capture| capture.args_override_self(true));
    let matches = command.try_get_matches_from(arguments).map_err(Unparsed::Text)?;
    Cli::from_arg_matches(&matches).map_err(Unparsed::Text)
}

/// The command, with the arguments of this process.
pub fn main() -> ExitCode {
    if let Err(error) = signals::survive() {
        eprintln!("wirecap: cannot handle signals: {error}");
        return ExitCode::FAILURE;
    }

    service::begin();
    let arguments = bare::with_command(std::env::args_os().collect());
    let command = match parse(&arguments) {
        Ok(cli) => cli.command,
        Err(Unparsed::Text(text)) => return said(&text, &arguments),
        Err(Unparsed::File(failure)) => {
            eprintln!("wirecap: {failure}");
            return failure.exit_code();
        }
    };
    let outcome = run(command);

    events::flush();

    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The ledger, the list of findings or another process has already reported it.
        Err(failure @ (Failure::Lossy | Failure::Findings | Failure::Told)) => failure.exit_code(),
        Err(failure) => {
            eprintln!("wirecap: {failure}");
            failure.exit_code()
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Capture(arguments) => capture::run(&arguments),
        Command::Find(arguments) => find::run(&arguments),
        Command::Index(arguments) => index::run(&arguments),
        Command::Archive(arguments) => archive::run(&arguments),
        Command::Show(arguments) => show::run(&arguments),
        Command::Stats(arguments) => stats::run(&arguments),
        Command::Count(arguments) => count::run(&arguments),
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Handle(arguments) => handle::run(&arguments),
        Command::Forward(arguments) => forward::run(&arguments),
        Command::Status(arguments) => ask::status(&arguments),
        Command::Stop(arguments) => ask::stop(&arguments),
        Command::Filter(arguments) => ask::filter(&arguments),
        Command::Reload(arguments) => ask::reload(&arguments),
        Command::Rotate(arguments) => ask::rotate(&arguments),
        Command::Events(arguments) => ask::events(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Dedicate(arguments) => dedicate::run(&arguments),
        Command::Release(arguments) => dedicate::release(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Replay(arguments) => replay::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Lab(arguments) => lab::run(&arguments),
        Command::Broker(_) => privileges::serve(),
        Command::Extcap(arguments) => match extcap::step(&arguments)? {
            Step::Print(text) => extcap::print(&text),
            Step::Run(words) => capture_for_wireshark(&words),
        },
        Command::ManPages(arguments) => man::run(&arguments, Cli::command()),
        Command::Completions(arguments) => completions::run(&arguments, Cli::command()),
    }
}

/// Captures with these arguments until Wireshark stops reading: unread packets are then no loss.
fn capture_for_wireshark(words: &[OsString]) -> Result<(), Failure> {
    let cli = Cli::try_parse_from(words)
        .map_err(|text| Failure::Usage(usage::explained(&text, words)))?;
    match run(cli.command) {
        Err(Failure::Lossy) if signals::end_asked_for() => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_the_man_pages_are_commands() {
        // The contents of a configuration file are tested with the service.
        let has_file = |words: &Vec<String>| words.iter().any(|word| word == "--config");
        for words in man::tests::commands().into_iter().filter(|words| !has_file(words)) {
            let words = bare::with_command(words.into_iter().map(OsString::from).collect());
            let parsed = Cli::try_parse_from(&words);
            assert!(parsed.is_ok(), "{words:?}: {}", parsed.unwrap_err());
        }
    }
}
