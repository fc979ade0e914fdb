//! The costs as an experiment of the report.

use std::ops::ControlFlow;

use super::{CostError, Effort, Figures, Id, Report, measure};
use crate::experiment::{
    Claim, DataFile, Experiment, Figure, Findings, Part, Run, RunError, Table,
};

/// The maximum cost of the default timestamp per packet, in nanoseconds.
pub const BATCH_NS_MAX: f64 = 40.0;

/// The cost of a captured packet, measured on a private test bed. Requires root.
#[derive(Debug, Clone, Copy)]
pub struct Cost;

impl Experiment for Cost {
    fn id(&self) -> &'static str {
        "cost"
    }

    fn title(&self) -> String {
        "What a captured packet costs".to_owned()
    }

    fn part(&self) -> Part {
        Part::Live
    }

    fn run(&self, run: &Run<'_>) -> Result<Findings, RunError> {
        let effort = run.effort.choose(
            Effort { rounds: 3, frames: 1_000_000, repeats: 1, ..Effort::full() },
            Effort::full(),
        );
        let watch = run.watch;

        let measured = measure(&effort, &mut |progress| {
            watch.progress(progress.done as f64 / progress.steps as f64, progress.what);
            if watch.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match measured {
            Ok(report) => Ok(findings(&report)),
            Err(CostError::Interrupted) => Err(RunError::Stopped),
            Err(error) => Err(RunError::Failed(error.into())),
        }
    }
}

fn findings(report: &Report) -> Findings {
    let setting = |name: &str, value: String| (name.to_owned(), value);
    let findings = Findings {
        what: "The components of a capture were switched on one at a time, in turns within each round; what one costs \
               is the difference to the run without it in the same round."
            .to_owned(),
        settings: vec![
            setting("rounds", report.rounds.to_string()),
            setting("frames of a live run", report.frames.to_string()),
            setting("bytes of a frame", report.frame_bytes.to_string()),
            setting("R x M", report.cells.to_string()),
            setting("cycles per nanosecond", report.tsc_hz.map_or("-".into(), |hertz| format!("{:.3}", hertz / 1e9))),
        ],
        claims: report.component(Id::TimestampBatch).map(timestamp).into_iter().collect(),
        figures: vec![Figure {
            caption: "A packet's cost by step, beside that in WinPcap (its paper's Figures 6 and 9).".to_owned(),
            svg: report.picture(),
        }],
        notes: notes(report),
        commands: vec![format!("wirecap-lab cost --rounds {} --csv cost.csv --picture cost.svg", report.rounds)],
        data: vec![DataFile { name: "rounds.csv".to_owned(), csv: report.csv() }],
        ..Findings::default()
    };
    findings.with_table("components", components(report))
}

fn timestamp(batch: &super::Component) -> Claim {
    let holds = batch.ns.median() <= BATCH_NS_MAX;
    let expected = format!("at most {BATCH_NS_MAX:.0} ns");
    Claim::holds(
        "the default timestamp adds to a packet",
        expected,
        holds,
        format!("{} ns", batch.ns),
    )
}

fn components(report: &Report) -> Table {
    let columns = ["component", "of", "how", "ns, median", "least", "most", "cycles"];
    let mut table = Table::new("What each component costs a packet.", &columns);

    for component in &report.components {
        let number =
            |number: f64| if number.is_nan() { "-".to_owned() } else { format!("{number:.1}") };
        let ns = &component.ns;
        let cycles = component.cycles.as_ref().map_or(f64::NAN, Figures::median);
        let numbers = [ns.median(), ns.min(), ns.max(), cycles].map(number);
        let group = component.group.words().split(',').next().unwrap_or_default();
        let words = [group, component.how.words()].map(str::to_owned);
        table.row([component.name.clone()].into_iter().chain(words).chain(numbers));
    }
    table
}

fn notes(report: &Report) -> Vec<String> {
    let next = report.next.iter().map(|target| {
        let bar = &target.bar;
        let step = target.step.whole();
        let percent = target.share * 100.0;
        format!("To attack next on {bar}: {step}, {:.1} ns, {percent:.0} % of a packet.", target.ns)
    });
    let disturbed = (report.disturbed > 0).then(|| {
        let runs = report.books.len();
        format!(
            "In {} of {runs} live runs others had the sender's CPU for a while.",
            report.disturbed
        )
    });

    let moved = report.cpus_moved().then(|| {
        let min = report.cache_lines_ns.min();
        let max = report.cache_lines_ns.max();
        format!("A cache line took {min:.0} to {max:.0} ns from CPU to CPU: the CPUs moved, and runs are not alike.")
    });
    next.chain(disturbed).chain(moved).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::component::{self, Sample, Samples};
    use crate::cost::live::Setup;
    use crate::experiment::Verdict;

    #[test]
    fn a_timestamp_that_costs_too_much_differs() {
        let figures = |ns: f64| std::iter::once(ns).collect::<Figures>();
        let verdict = |ns| {
            let samples = Samples::from([
                (Sample::Run(Setup::BatchTimes), figures(100.0 + ns)),
                (Sample::Run(Setup::NoTimes), figures(100.0)),
            ]);
            let components = component::all(&samples, None);
            timestamp(
                components.iter().find(|component| component.id == Id::TimestampBatch).unwrap(),
            )
            .verdict
        };
        assert_eq!([verdict(39.0), verdict(41.0)], [Verdict::Holds, Verdict::Differs]);
    }
}
