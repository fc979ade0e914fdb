//! `wirecap doctor`: what on this host loses or falsifies packets, and what fixes it.
//!
//! Reading is apart from judging: a [`Host`] is what was read, which `--record` writes and `--from` judges without this host.

mod causes;
mod checks;
mod finding;
mod fix;
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

use crate::failure::Failure;
use crate::output;
pub(crate) use causes::{Bottleneck, Cause};
use finding::{Change, Diagnosis};
use fix::Journal;
use host::Host;
use read::Scope;

/// List what on this host will lose or falsify packets, worst first, with evidence and the command that fixes it
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 nothing was found, 1 failed, 2 wrong usage, 3 there are findings.\n\
    Nothing is changed without --fix. What could not be read is listed, and is not known to be good.")]
pub(crate) struct Arguments {
    /// Interfaces to examine, besides the host itself [default: all that are up]
    #[arg(value_name = "DEV")]
    interfaces: Vec<String>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    /// Where recordings go: the disk whose speed is compared with the links'
    #[arg(long, value_name = "DIR", default_value = ".", conflicts_with = "from")]
    directory: PathBuf,
    /// Measure that disk by writing 256 MiB to a file without a name; without this option nothing is written
    #[arg(long, conflicts_with = "from")]
    write_test: bool,
    /// Write what was read to a file, to be judged elsewhere; it contains the names, drivers and settings of the interfaces
    /// and no addresses but those that keep an interface from --engine xdp
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    record: Option<PathBuf>,
    /// Judge what --record wrote, in place of this host
    #[arg(long, value_name = "FILE", conflicts_with = "interfaces")]
    from: Option<PathBuf>,
    /// Fix what can be fixed and taken back without interrupting the host's own traffic, after asking for each finding
    #[arg(long, conflicts_with = "from")]
    fix: bool,
    /// With --fix: do not ask
    #[arg(long, requires = "fix")]
    yes: bool,
    /// Take back what --fix has changed, as far as nothing else has changed it since
    #[arg(long, conflicts_with_all = ["from", "fix", "record", "write_test", "interfaces"])]
    undo: bool,
    /// Where --fix remembers what it changed
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

/// Fixes what can be, and says what is left.
fn fix(diagnosis: &Diagnosis, arguments: &Arguments) -> Result<(), Failure> {
    if arguments.json && !arguments.yes {
        return Err(Failure::Usage("--fix asks, which --json cannot show: add --yes".to_owned()));
    }
    let mut journal = Journal::open(&arguments.journal)?;
    let (made, failures) = fix::fix(&diagnosis.findings, &mut journal, arguments.yes, !arguments.json)?;
    let mut after = read::interfaces(&arguments.interfaces)?;
    after.disk = read::disk(&arguments.directory, false)?;
    let left = checks::diagnose(&after);
    match arguments.json {
        true => {
            let changed: Vec<_> = made.iter().map(changed_in_json).collect();
            output::print(json!({ "changed": changed, "findings": left.findings, "unseen": left.unseen }))?;
        }
        false => {
            let taken_back = if made.is_empty() { "" } else { "; `wirecap doctor --undo` takes them back" };
            let left = report::count_words(&left.findings);
            output::print(format_args!("{} made{taken_back}.\nLeft: {left}.", fix::changes(made.len())))?;
        }
    }
    match (failures, left.findings.is_empty()) {
        (0, true) => Ok(()),
        (0, false) => Err(Failure::Findings),
        _ => Err(Failure::Failed(format!("{} could not be made", fix::changes(failures)).into())),
    }
}

fn undo(arguments: &Arguments) -> Result<(), Failure> {
    let undone = Journal::open(&arguments.journal)?.undo()?;
    if arguments.json {
        return output::print(json!({ "changed": undone.iter().map(changed_in_json).collect::<Vec<_>>() }));
    }
    for change in &undone {
        output::print(change.setting.line(&change.to))?;
    }
    output::print(format_args!("{} taken back.", fix::changes(undone.len())))
}

fn changed_in_json(change: &Change) -> serde_json::Value {
    json!({ "command": change.setting.line(&change.to), "from": change.from, "to": change.to })
}

/// What is wrong with an interface, in short.
#[derive(Debug)]
pub(crate) struct Brief {
    pub(crate) count: usize,
    /// The worst finding's title and how bad it is.
    pub(crate) worst: String,
}

/// The findings about each interface itself, by its name; those without any are left out, and the loopback, which has no wire.
pub(crate) fn briefs(devices: &[Device]) -> BTreeMap<String, Brief> {
    let mut briefs: BTreeMap<String, Brief> = BTreeMap::new();
    for finding in checks::diagnose(&read::known(devices)).findings {
        let Some(interface) = finding.interface else { continue };
        // The worst comes first.
        let worst = || Brief { count: 0, worst: format!("{} ({})", finding.title, finding.severity.words()) };
        briefs.entry(interface).or_insert_with(worst).count += 1;
    }
    briefs
}

/// What on this host may be why packets of these interfaces are lost, the worst first.
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
    let value: serde_json::Value =
        serde_json::from_reader(io::BufReader::new(file)).map_err(|error| failed(error.to_string()))?;
    match value["format"].as_u64() {
        Some(format) if format == u64::from(host::FORMAT) => {}
        Some(format) => {
            return Err(failed(format!("it has the form {format}; this wirecap reads {}", host::FORMAT)));
        }
        None => return Err(failed("it is not a host that `wirecap doctor --record` wrote".to_owned())),
    }
    serde_json::from_value(value).map_err(|error| failed(error.to_string()))
}

fn record(host: &Host, path: &Path) -> Result<(), Failure> {
    output::check(path, false)?;
    let mut file = File::create_new(path).map_err(|error| output::cannot_write(path, &error))?;
    let text = serde_json::to_string_pretty(host).expect("a host is plain data");
    writeln!(file, "{text}").map_err(|error| output::cannot_write(path, &error))
}
