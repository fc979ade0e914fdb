//! `wirecap-lab paper` and `wirecap-lab report`: lists of experiments that end in a page.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use wirecap_lab::experiment::{Basis, Effort, Experiment, Part, Verdict};
use wirecap_lab::live::process::CommandLine;
use wirecap_lab::machine::Machine;
use wirecap_lab::report::Report;
use wirecap_lab::runner::{Entry, Runner, write_whole};

use super::failure::Failure;
use super::terminal;
use super::watching::Watching;

/// Simulate the papers' tables and figures with the papers' parameters, and compare
///
/// The engine's own pools, rings and buddy groups run under a virtual clock, beside models of
/// PF_RING, DNA and netmap. Requires no privileges and no network. The same seed gives the same
/// page and the same data, byte for byte.
///
/// Writes DIR/paper.html, DIR/data/*/*.csv and DIR/results/*.json, from which an interrupted run
/// continues.
#[derive(Debug, Args)]
pub(crate) struct PaperArguments {
    #[command(flatten)]
    common: Common,

    /// Omit the longest bursts; two seeds
    #[arg(long)]
    quick: bool,
}

/// Run all experiments and write one page of results
///
/// Writes DIR/report.html (self-contained), DIR/data/*/*.csv and DIR/results/*.json, from which an
/// interrupted run continues. Results are reused only by the same program with the same effort and
/// seed. Missing tools are skipped and listed with the reason. Exit status 1: an experiment failed.
#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    #[command(flatten)]
    common: Common,

    /// Fewer points and repetitions: minutes (default)
    #[arg(long, conflicts_with = "full")]
    quick: bool,

    /// All points and repetitions: about an hour
    #[arg(long)]
    full: bool,
}

#[derive(Debug, Args)]
struct Common {
    /// Directory for the page, its data and intermediate results
    #[arg(short, long, value_name = "DIR", default_value = "wirecap-lab")]
    output: PathBuf,

    /// Seed of the random numbers
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Run only these experiments (see --list), separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,

    /// Repeat finished experiments
    #[arg(long)]
    again: bool,

    /// List the experiments and exit
    #[arg(long)]
    list: bool,
}

pub(crate) fn run_paper(arguments: &PaperArguments) -> Result<(), Failure> {
    let effort = if arguments.quick { Effort::Quick } else { Effort::Full };
    let PaperArguments { common, .. } = arguments;
    let Some(entries) = common.run(wirecap_lab::paper::experiments(), effort)? else {
        return Ok(());
    };
    let quick = if arguments.quick { " --quick" } else { "" };
    let about = format!(
        "wirecap {}: tables and figures of WireCAP (Wu and DeMar, IMC 2014) and of Fusco and Deri (IMC 2010), \
         simulated with the papers' parameters and compared with the values that the papers print. The same \
         seed gives the same page, byte for byte.",
        env!("CARGO_PKG_VERSION")
    );
    let report = Report {
        title: "The papers' experiments, simulated",
        about: &about,
        command: &format!("wirecap-lab paper{quick} --seed {}{}", common.seed, common.chosen()),
        machine: None,
        entries: &entries,
    };
    common.publish("paper.html", &report)
}

pub(crate) fn run_report(arguments: &ReportArguments) -> Result<(), Failure> {
    let effort = if arguments.full { Effort::Full } else { Effort::Quick };
    let common = &arguments.common;
    let this = CommandLine::this().map_err(Failure::Failed)?;
    let experiments = wirecap_lab::experiments(CommandLine::wirecap(), this);
    let Some(entries) = common.run(experiments, effort)? else { return Ok(()) };
    let machine = Machine::this();
    let report = Report {
        title: "The wirecap lab",
        about: "The tables and figures of the papers behind wirecap, simulated with the papers' parameters; and \
                measurements on this machine, on veth pairs. wirecap loses packets too: its losses are listed under 'What wirecap lost'.",
        command: &format!(
            "wirecap-lab report --{effort} --seed {}{}",
            common.seed,
            common.chosen()
        ),
        machine: Some(&machine),
        entries: &entries,
    };
    common.publish("report.html", &report)
}

impl Common {
    /// Runs the selected experiments; lists them if requested.
    fn run(
        &self,
        mut experiments: Vec<Box<dyn Experiment>>,
        effort: Effort,
    ) -> Result<Option<Vec<Entry>>, Failure> {
        if self.list {
            let mut out = io::stdout().lock();
            let mut lines =
                experiments.iter().map(|experiment| (experiment.id(), experiment.title()));
            terminal::printed(lines.try_for_each(|(id, title)| writeln!(out, "{id:<20} {title}")))?;
            return Ok(None);
        }

        let is_known =
            |name: &&String| experiments.iter().any(|experiment| experiment.id() == name.as_str());
        if let Some(unknown) = self.only.iter().find(|name| !is_known(name)) {
            return Err(Failure::Usage(format!(
                "unknown experiment {unknown} (--only); --list shows all"
            )));
        }

        experiments.retain(|experiment| {
            self.only.is_empty() || self.only.iter().any(|name| name == experiment.id())
        });
        let runner =
            Runner { directory: self.output.clone(), effort, seed: self.seed, again: self.again };
        Ok(Some(runner.run(&experiments, &Watching::begin()?)?))
    }

    /// The part of the command line that selects the experiments.
    fn chosen(&self) -> String {
        if self.only.is_empty() {
            String::new()
        } else {
            format!(" --only {}", self.only.join(","))
        }
    }

    fn publish(&self, name: &str, report: &Report<'_>) -> Result<(), Failure> {
        let path = self.output.join(name);
        write_whole(&path, report.html().as_bytes())?;
        terminal::printed(summarise(report.entries, &path))?;

        let failed: Vec<&str> = report
            .entries
            .iter()
            .filter(|entry| entry.outcome.is_err())
            .map(|entry| entry.id.as_str())
            .collect();
        if failed.is_empty() {
            return Ok(());
        }

        let not_done = failed.len();
        let all = report.entries.len();
        let message = format!("{not_done} of {all} experiments failed: {}", failed.join(", "));

        Err(Failure::Failed(message.into()))
    }
}

/// Expected and actual results, on the terminal.
fn summarise(entries: &[Entry], page: &Path) -> io::Result<()> {
    let mut out = io::stdout().lock();

    for entry in entries {
        let findings = match &entry.outcome {
            Ok(findings) => findings,
            Err(reason) => {
                writeln!(out, "{}\n  not done: {reason}", entry.title)?;
                continue;
            }
        };
        if !findings.claims.is_empty() {
            writeln!(out, "{}", entry.title)?;
        }

        for claim in &findings.claims {
            let mark = match (claim.verdict, claim.basis) {
                (Verdict::Differs, _) => "DIFFERS",
                (Verdict::NotModelled, _) => "-      ",
                (_, Basis::Input) => "input  ",
                (_, Basis::Bound) => "bound  ",
                (_, Basis::OurLoad | Basis::Ours) => "ours   ",
                (Verdict::Holds, Basis::Result) => "holds  ",
                (Verdict::Tie, Basis::Result) => "tie    ",
                (Verdict::NotDerivable, Basis::Result) => "open   ",
            };
            let (expected, found) = if entry.part == Part::Simulated {
                ("paper", "simulated")
            } else {
                ("expected", "measured")
            };
            writeln!(
                out,
                "  {mark} {}: {expected} {}, {found} {}",
                claim.quantity, claim.expected, claim.found
            )?;
        }
    }

    let claims =
        || entries.iter().flat_map(|entry| &entry.outcome).flat_map(|findings| &findings.claims);
    if claims().any(|claim| claim.verdict == Verdict::NotDerivable) {
        writeln!(out, "open: contradicts the parameters published with it")?;
    }
    if claims().any(|claim| claim.verdict == Verdict::NotModelled) {
        writeln!(out, "-: not modelled")?;
    }

    if claims().any(|claim| !claim.counts()) {
        writeln!(
            out,
            "input, bound, ours: inputs of the models, bounds, our own loads or expectations; only shown"
        )?;
    }

    writeln!(out, "wrote {}", page.display())
}
