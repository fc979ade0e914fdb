//! `wirecap doctor`: finds settings of this host that lose or alter packets, and fixes them.
//!
//! Reading and evaluation are separate: a [`Host`] holds the readings, which `--record` writes and
//! `--from` evaluates without this host.

mod causes;
mod checks;
pub(crate) mod finding;
pub(crate) mod fix;
mod host;
mod read;
mod report;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use wirecap::device::Device;

use crate::shared::failure::Failure;
use crate::shared::output;
pub(crate) use causes::{Bottleneck, Cause};
use finding::{Change, Diagnosis};
use fix::Journal;
use host::Host;
use read::Scope;
pub(crate) use report::wrapped;

/// Find settings of this host that lose or alter packets, and fix them
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 no findings, 1 failed, 2 wrong usage, 3 findings.\n\
    Nothing is changed without --fix. Settings that cannot be read are listed; their state is unknown.")]
pub(crate) struct Arguments {
    /// Interfaces to check, besides the host itself [default: all that are up]
    #[arg(value_name = "DEV")]
    interfaces: Vec<String>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Directory of recordings, whose disk's speed is compared with the links'
    #[arg(long, value_name = "DIR", default_value = ".", conflicts_with = "from")]
    directory: PathBuf,
    /// Measure the disk of --directory by writing 256 MiB to an unnamed file
    #[arg(long, conflicts_with = "from")]
    write_test: bool,
    /// Save the readings to a file, for --from on another machine
    ///
    /// It contains names, drivers and settings of the interfaces, and only those addresses that
    /// rule out --engine xdp.
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    record: Option<PathBuf>,
    /// Check a file written by --record instead of this host
    #[arg(long, value_name = "FILE", conflicts_with = "interfaces")]
    from: Option<PathBuf>,
    /// Apply reversible fixes that do not interrupt the host's traffic; asks first
    #[arg(long, conflicts_with = "from")]
    fix: bool,
    /// With --fix: do not ask
    #[arg(long, requires = "fix")]
    yes: bool,
    /// Revert the changes of --fix, except settings that were changed again since
    #[arg(long, conflicts_with_all = ["from", "fix", "record", "write_test", "interfaces"])]
    undo: bool,
    /// File in which --fix records its changes
    #[arg(long, value_name = "FILE", default_value = fix::JOURNAL)]
    journal: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.undo {
        return undo(arguments);
    }

    let host = match &arguments.from {
        Some(path) => recorded(path)?,
        None => read::host(&Scope {
            interfaces: &arguments.interfaces,
            directory: &arguments.directory,
            write_test: arguments.write_test,
        })?,
    };
    if let Some(path) = &arguments.record {
        record(&host, path)?;
    }

    let diagnosis = checks::diagnose(&host);
    if arguments.fix {
        return fix(&diagnosis, arguments);
    }

    show(&diagnosis, arguments.json)?;

    match diagnosis.findings.is_empty() {
        true => Ok(()),
        false => Err(Failure::Findings),
    }
}

/// Makes the possible fixes, and lists the others.
fn fix(diagnosis: &Diagnosis, arguments: &Arguments) -> Result<(), Failure> {
    if arguments.json && !arguments.yes {
        return Err(Failure::Usage(
            "--fix asks for confirmation, which --json prevents: add --yes".to_owned(),
        ));
    }

    let mut journal = Journal::open(&arguments.journal)?;
    let (made, failures) =
        fix::fix(&diagnosis.findings, &mut journal, arguments.yes, !arguments.json)?;
    let mut after = read::interfaces(&arguments.interfaces)?;
    after.disk = read::disk(&arguments.directory, false)?;

    let left = checks::diagnose(&after);

    match arguments.json {
        true => {
            let changed: Vec<_> = made.iter().map(changed_in_json).collect();
            output::print(
                json!({ "changed": changed, "findings": left.findings, "unseen": left.unseen }),
            )?;
        }
        false => {
            let taken_back =
                if made.is_empty() { "" } else { "; `wirecap doctor --undo` reverts them" };
            let left = report::count_words(&left.findings);
            output::print(format_args!(
                "{} made{taken_back}.\nLeft: {left}.",
                fix::changes(made.len())
            ))?;
        }
    }

    match (failures, left.findings.is_empty()) {
        (0, true) => Ok(()),
        (0, false) => Err(Failure::Findings),
        _ => Err(Failure::Failed(format!("{} failed", fix::changes(failures)).into())),
    }
}

fn undo(arguments: &Arguments) -> Result<(), Failure> {
    let undone = Journal::open(&arguments.journal)?.undo()?;
    if arguments.json {
        return output::print(
            json!({ "changed": undone.iter().map(changed_in_json).collect::<Vec<_>>() }),
        );
    }
    for change in &undone {
        output::print(change.setting.line(&change.to))?;
    }
    output::print(format_args!("{} reverted.", fix::changes(undone.len())))
}

fn changed_in_json(change: &Change) -> serde_json::Value {
    json!({ "command": change.setting.line(&change.to), "from": change.from, "to": change.to })
}

/// The findings about an interface, in short.
#[derive(Debug)]
pub(crate) struct Brief {
    pub(crate) count: usize,
    /// The worst finding's title and how bad it is.
    pub(crate) worst: String,
}

/// The findings about each interface itself, by its name; those without any are left out, and the
/// loopback, which has no wire.
pub(crate) fn briefs(devices: &[Device]) -> BTreeMap<String, Brief> {
    let mut briefs: BTreeMap<String, Brief> = BTreeMap::new();
    for finding in checks::diagnose(&read::known(devices)).findings {
        let Some(interface) = finding.interface else { continue };
        // The worst comes first.
        let worst = || Brief {
            count: 0,
            worst: format!("{} ({})", finding.title, finding.severity.words()),
        };
        briefs.entry(interface).or_insert_with(worst).count += 1;
    }
    briefs
}

/// The possible causes on this host of packet loss on these interfaces, the worst first.
pub(crate) fn causes(interfaces: &[String]) -> Result<Vec<Cause>, Failure> {
    Ok(causes::causes(checks::diagnose(&read::interfaces(interfaces)?)))
}

fn show(diagnosis: &Diagnosis, in_json: bool) -> Result<(), Failure> {
    match in_json {
        true => output::print(json!(diagnosis)),
        false => output::printed(write!(io::stdout(), "{}", report::text(diagnosis))),
    }
}

fn recorded(path: &Path) -> Result<Host, Failure> {
    let failed = |text: String| Failure::Failed(format!("{}: {text}", path.display()).into());
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let value: serde_json::Value = serde_json::from_reader(io::BufReader::new(file))
        .map_err(|error| failed(error.to_string()))?;

    match value["format"].as_u64() {
        Some(format) if format == u64::from(host::FORMAT) => {}
        Some(format) => {
            return Err(failed(format!(
                "it has format {format}; this version supports {}",
                host::FORMAT
            )));
        }
        None => return Err(failed("it was not written by `wirecap doctor --record`".to_owned())),
    }

    serde_json::from_value(value).map_err(|error| failed(error.to_string()))
}

fn record(host: &Host, path: &Path) -> Result<(), Failure> {
    output::check(path, false)?;
    let mut file = File::create_new(path).map_err(|error| output::cannot_write(path, &error))?;
    let text = serde_json::to_string_pretty(host).expect("a host is plain data");
    writeln!(file, "{text}").map_err(|error| output::cannot_write(path, &error))
}
