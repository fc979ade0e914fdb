//! Experiments and their results.
//!
//! An experiment implements [`Experiment`]: a name, the conditions on which its result depends, and
//! a function that returns [`Findings`]. The [`runner`](crate::runner) runs a list of experiments
//! and stores finished results; the [`report`](crate::report) shows them, simulated and live ones
//! alike.
//!
//! ```
//! use wirecap_lab::experiment::{Claim, Experiment, Findings, Part, Run, RunError, Table};
//!
//! struct Doubling;
//!
//! impl Experiment for Doubling {
//!     fn id(&self) -> &'static str {
//!         "doubling"
//!     }
//!     fn title(&self) -> String {
//!         "Twice as much".to_owned()
//!     }
//!     fn part(&self) -> Part {
//!         Part::Simulated
//!     }
//!     fn run(&self, run: &Run<'_>) -> Result<Findings, RunError> {
//!         let mut table = Table::new("A number and its double.", &["number", "double"]);
//!         for number in 1..=3 {
//!             run.step(f64::from(number) / 3.0, "doubling")?; // an error when the user has had enough
//!             table.row([number.to_string(), (2 * number).to_string()]);
//!         }
//!         Ok(Findings {
//!             what: "Whether doubling works.".to_owned(),
//!             claims: vec![Claim::points("2 x 50 %", 100.0, &[100.0])],
//!             ..Findings::default()
//!         }
//!         .with_table("doubling", table))
//!     }
//! }
//! ```

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::chart::lines::Lines;
use crate::csv_text::csv;

/// A repeatable experiment.
pub trait Experiment: Sync {
    /// The name of its files: lower case and dashes.
    fn id(&self) -> &'static str;

    /// Its heading in the report.
    fn title(&self) -> String;

    /// Its part of the report.
    fn part(&self) -> Part;

    /// The user's settings on which its result depends in addition to effort, seed and version. A
    /// stored result is reused only if these are the same.
    fn parameters(&self) -> String {
        String::new()
    }

    /// Tries it.
    ///
    /// # Errors
    ///
    /// If it failed, or the user interrupted it.
    fn run(&self, run: &Run<'_>) -> Result<Findings, RunError>;
}

/// The parts of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The papers' experiments on models: depend only on version, effort and seed.
    Simulated,
    /// Measured on this machine.
    Live,
}

/// The effort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Minutes for the whole lab.
    Quick,
    /// An hour.
    Full,
}

impl Effort {
    /// `quick` in a hurry, else `full`.
    pub fn choose<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.choose("quick", "full"))
    }
}

/// An observer of an experiment, called from several threads.
pub trait Watch: Sync {
    /// `share` of the experiment, from 0 to 1, is done; `what` is the current step.
    fn progress(&self, share: f64, what: &str);

    /// Whether the user has interrupted the run.
    fn is_stopped(&self) -> bool;
}

/// Reports to no one.
#[derive(Debug, Clone, Copy)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn progress(&self, _share: f64, _what: &str) {}

    fn is_stopped(&self) -> bool {
        false
    }
}

/// The conditions of one run.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// The effort.
    pub effort: Effort,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Who follows it.
    pub watch: &'a dyn Watch,
}

impl Run<'_> {
    /// Reports the progress.
    ///
    /// # Errors
    ///
    /// If the user has interrupted the run.
    pub fn step(&self, share: f64, what: &str) -> Result<(), RunError> {
        if self.watch.is_stopped() {
            return Err(RunError::Stopped);
        }
        self.watch.progress(share, what);
        Ok(())
    }

    /// The observer of part number `index` of `count` equal parts of the experiment.
    pub(crate) fn part(&self, index: usize, count: usize) -> PartWatch<'_> {
        PartWatch {
            whole: self.watch,
            from: index as f64 / count as f64,
            share: 1.0 / count as f64,
        }
    }
}

/// The observer of a part of an experiment.
pub(crate) struct PartWatch<'a> {
    whole: &'a dyn Watch,
    from: f64,
    share: f64,
}

impl Watch for PartWatch<'_> {
    fn progress(&self, share: f64, what: &str) {
        self.whole.progress(self.from + self.share * share, what);
    }

    fn is_stopped(&self) -> bool {
        self.whole.is_stopped()
    }
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("effort", &self.effort)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// Why an experiment has no findings.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// The user had enough.
    Stopped,
    /// It failed.
    Failed(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped before it was finished"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl Error for RunError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Stopped => None,
            Self::Failed(error) => error.source(),
        }
    }
}

impl From<Box<dyn Error + Send + Sync>> for RunError {
    fn from(error: Box<dyn Error + Send + Sync>) -> Self {
        Self::Failed(error)
    }
}

/// The results of an experiment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Findings {
    /// The description of the experiment, in a few sentences.
    pub what: String,
    /// What wirecap lost, in a sentence for the top of the report; may be empty.
    pub headline: String,
    /// The settings, as names and values.
    pub settings: Vec<(String, String)>,
    /// Comparisons of expected or published results with the results found.
    pub claims: Vec<Claim>,
    /// Pictures.
    pub figures: Vec<Figure>,
    /// Tables.
    pub tables: Vec<Table>,
    /// Remarks, one paragraph each.
    pub notes: Vec<String>,
    /// The commands that repeat this exactly, including those of rivals.
    pub commands: Vec<String>,
    /// The data of figures and tables.
    pub data: Vec<DataFile>,
}

impl Findings {
    /// With a chart of curves, whose numbers become the file `name`.csv. Curves that are 0
    /// everywhere are named in the caption; if all are, a sentence replaces the chart.
    #[must_use]
    pub fn with_lines(mut self, name: &str, caption: impl Into<String>, lines: &Lines) -> Self {
        let (shown, zero) = lines.without_zeros();
        let mut caption = caption.into();
        if !zero.is_empty() {
            caption += &format!(" 0 at every point: {}.", zero.join("; "));
        }
        if shown.curves.is_empty() {
            self.notes.push(caption);
        } else {
            self.figures.push(Figure { caption, svg: shown.svg() });
        }
        self.data.push(DataFile { name: format!("{name}.csv"), csv: lines.csv() });
        self
    }

    /// With a table, whose cells become the file `name`.csv.
    #[must_use]
    pub fn with_table(mut self, name: &str, table: Table) -> Self {
        self.data.push(DataFile { name: format!("{name}.csv"), csv: table.csv() });
        self.tables.push(table);
        self
    }
}

/// A picture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What it shows.
    pub caption: String,
    /// The picture: an `svg` element in the colours of [`chart`](crate::chart).
    pub svg: String,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// What it shows.
    pub caption: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The cells, row by row. Cells that begin with a digit are right-aligned.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(caption: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&name| name.to_owned()).collect();
        Self { caption: caption.into(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The cells as CSV, with a line of the columns' names.
    pub fn csv(&self) -> String {
        let rows = std::iter::once(&self.columns).chain(&self.rows);
        csv(rows.map(|row| row.iter().map(String::as_str).collect::<Vec<_>>()))
    }
}

/// Numbers for other programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataFile {
    /// The file's name.
    pub name: String,
    /// Its text.
    pub csv: String,
}

/// An expected result, compared with the result found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// Of what.
    pub quantity: String,
    /// The expected or published result.
    pub expected: String,
    /// What was found.
    pub found: String,
    /// The result minus the expected one, in percentage points, if both are shares.
    pub points: Option<f64>,
    /// What that means.
    pub verdict: Verdict,
    /// Whether it counts.
    pub basis: Basis,
    /// The likely reason of a difference, or the basis of the verdict.
    pub reason: String,
}

/// What a claim compares with. Only published results and goals count as evidence; the others are
/// shown, and count only if they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Basis {
    /// A published result, or a goal of a measurement.
    #[default]
    Result,
    /// A published number from which the model was built.
    Input,
    /// A bound that follows from other published numbers, without a simulation.
    Bound,
    /// A published statement without numbers, under a load that we chose so that it shows.
    OurLoad,
    /// Our own expectation, which no paper states.
    Ours,
}

/// What a comparison says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// As expected.
    Holds,
    /// Not as expected.
    Differs,
    /// An order that neither holds nor is reversed: some of the losses differ by no more than
    /// [`TIE_POINTS`].
    Tie,
    /// The published result contradicts the published parameters, so a model with these parameters
    /// can meet it only by chance.
    NotDerivable,
    /// No model produces this result, so there is nothing to compare.
    NotModelled,
}

/// Maximum difference of agreeing shares, in percentage points.
pub const AGREEMENT_POINTS: f64 = 5.0;

/// Maximum difference of shares that count as a tie, in percentage points.
pub const TIE_POINTS: f64 = 0.02;

impl Claim {
    fn new(
        quantity: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self {
            quantity: quantity.into(),
            expected: expected.into(),
            found: found.into(),
            points: None,
            verdict: Verdict::NotModelled,
            basis: Basis::Result,
            reason: String::new(),
        }
    }

    /// A share in percent that should be within [`AGREEMENT_POINTS`] in every run, by seed.
    pub fn points(quantity: impl Into<String>, expected: f64, found: &[f64]) -> Self {
        let farther = |a: &f64, b: &f64| (a - expected).abs().total_cmp(&(b - expected).abs());
        let farthest = found.iter().copied().max_by(farther).unwrap_or(f64::NAN) - expected;
        Self {
            points: Some(farthest),
            verdict: if farthest.abs() <= AGREEMENT_POINTS {
                Verdict::Holds
            } else {
                Verdict::Differs
            },
            ..Self::new(quantity, format!("{expected} %"), percents(found))
        }
    }

    /// A condition that is true or false, with the result found.
    pub fn holds(
        quantity: impl Into<String>,
        expected: impl Into<String>,
        holds: bool,
        found: impl Into<String>,
    ) -> Self {
        let verdict = if holds { Verdict::Holds } else { Verdict::Differs };
        Self { verdict, ..Self::new(quantity, expected, found) }
    }

    /// An order of losses in percent: each smaller than the one before, in every list of them. Two
    /// losses that differ by no more than [`TIE_POINTS`] are a tie. Two neighbours that both lose
    /// nothing show no order, unless they do so in all lists, which is also a tie.
    pub fn descending(
        quantity: impl Into<String>,
        expected: impl Into<String>,
        lists: &[Vec<f64>],
        found: impl Into<String>,
    ) -> Self {
        let pairs = |step: usize| {
            let pair = move |list: &Vec<f64>| Some((*list.get(step)?, *list.get(step + 1)?));
            lists.iter().filter_map(pair).filter(|(more, less)| more.max(*less) > TIE_POINTS)
        };
        let verdict_of = |step: usize| {
            let least = pairs(step).map(|(more, less)| more - less).min_by(f64::total_cmp);
            match least {
                Some(least) if least > TIE_POINTS => Verdict::Holds,
                Some(least) if least < -TIE_POINTS => Verdict::Differs,
                _ => Verdict::Tie,
            }
        };

        let steps = lists.iter().map(|list| list.len().saturating_sub(1)).max().unwrap_or(0);
        let verdicts: Vec<Verdict> = (0..steps.max(1)).map(verdict_of).collect();
        let worst =
            [Verdict::Differs, Verdict::Tie].into_iter().find(|verdict| verdicts.contains(verdict));
        let verdict = worst.unwrap_or(Verdict::Holds);
        Self { verdict, ..Self::new(quantity, expected, found) }
    }

    /// A published result that no model produces, for `reason`.
    pub fn not_modelled(
        quantity: impl Into<String>,
        expected: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self { reason: reason.into(), ..Self::new(quantity, expected, "-") }
    }

    /// With the reason of the difference.
    #[must_use]
    pub fn because(self, reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ..self }
    }

    /// Marks it as not derivable from the published parameters, for `reason`.
    #[must_use]
    pub fn not_derivable(self, reason: impl Into<String>) -> Self {
        Self { verdict: Verdict::NotDerivable, reason: reason.into(), ..self }
    }

    /// Shows it without counting it, unless it differs.
    #[must_use]
    pub fn only_shown(self, basis: Basis) -> Self {
        Self { basis, ..self }
    }

    /// Whether it counts as evidence: for, against, or undecided.
    pub fn counts(&self) -> bool {
        self.basis == Basis::Result || self.verdict == Verdict::Differs
    }
}

/// A share as shown in tables.
pub fn percent(share: f64) -> String {
    // Adding 0 avoids "-0.0".
    format!("{:.1} %", (share * 10.0).round() / 10.0 + 0.0)
}

/// The range of shares, as shown in tables: one number if they are equal.
pub fn percents(shares: &[f64]) -> String {
    let lowest = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = shares.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let low = percent(lowest);
    let high = percent(highest);
    if low == high { high } else { format!("{} to {high}", low.trim_end_matches(" %")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_becomes_csv_with_commas_quoted() {
        let mut table = Table::new("", &["engine", "lost"]);
        table.row(["B-(256,500)".to_owned(), "0.0 %".to_owned()]);
        assert_eq!(table.csv(), "engine,lost\n\"B-(256,500)\",0.0 %\n");
    }

    #[test]
    fn a_chart_without_anything_to_see_becomes_a_sentence() {
        use crate::chart::lines::{Axis, Curve};

        let chart = |last: f64| Lines {
            x: Axis::linear("x"),
            y: Axis::percent("lost", 100.0),
            curves: vec![Curve::new("a", [(1.0, 0.0)]), Curve::new("b", [(1.0, last)])],
        };
        let nothing = Findings::default().with_lines("n", "Loss.", &chart(0.0));
        assert_eq!((nothing.figures.len(), nothing.data.len()), (0, 1));
        assert_eq!(nothing.notes, ["Loss. 0 at every point: a; b."]);

        let something = Findings::default().with_lines("n", "Loss.", &chart(5.0));
        assert_eq!(something.figures[0].caption, "Loss. 0 at every point: a.");
        assert!(something.notes.is_empty() && something.data[0].csv.contains("a,1,0,"));
    }

    #[test]
    fn shares_agree_within_five_points() {
        let verdict = |found: &[f64]| Claim::points("", 71.0, found).verdict;
        assert_eq!(verdict(&[74.1]), Verdict::Holds);
        assert_eq!(verdict(&[65.9]), Verdict::Differs);
        assert_eq!(
            Claim::points("", 15.0, &[80.0]).not_derivable("").verdict,
            Verdict::NotDerivable
        );
        // The seed with the largest difference decides.
        let claim = Claim::points("", 71.0, &[74.1, 65.9, 71.0]);
        assert_eq!((claim.verdict, &*claim.found), (Verdict::Differs, "65.9 to 74.1 %"));
        assert!(claim.points.is_some_and(|points| (points + 5.1).abs() < 1e-9), "{claim:?}");
        assert_eq!(Claim::points("", 71.0, &[71.01, 71.0]).found, "71.0 %");
    }

    #[test]
    fn an_order_by_two_hundredths_of_a_point_is_a_tie() {
        let verdict = |lists: &[&[f64]]| {
            let lists: Vec<_> = lists.iter().map(|list| list.to_vec()).collect();
            Claim::descending("", "", &lists, "").verdict
        };
        assert_eq!(verdict(&[&[8.0, 7.0, 6.9]]), Verdict::Holds);
        assert_eq!(verdict(&[&[8.0, 7.0, 7.0]]), Verdict::Tie);
        assert_eq!(verdict(&[&[8.0, 7.0, 7.01, 6.0]]), Verdict::Tie);
        assert_eq!(verdict(&[&[8.0, 7.0, 6.99, 6.0]]), Verdict::Tie);
        assert_eq!(verdict(&[&[7.01, 7.0]]), Verdict::Tie);
        assert_eq!(verdict(&[&[8.0, 7.0, 7.03]]), Verdict::Differs);
        assert_eq!(verdict(&[&[7.0, 8.0]]), Verdict::Differs);

        // Two engines without loss are equal; the order shows where they lose.
        assert_eq!(verdict(&[&[8.0, 7.0], &[0.0, 0.01]]), Verdict::Holds);

        // A tie in one list is a tie.
        assert_eq!(verdict(&[&[8.0, 7.0], &[7.01, 7.0]]), Verdict::Tie);
        assert_eq!(verdict(&[&[8.0, 7.0], &[7.0, 7.01]]), Verdict::Tie);
        assert_eq!(verdict(&[&[8.0, 7.0], &[0.0, 1.0]]), Verdict::Differs);
        assert_eq!(verdict(&[&[0.0, 0.0], &[0.0, 0.0]]), Verdict::Tie);
        assert_eq!(verdict(&[]), Verdict::Tie);
    }

    #[test]
    fn inputs_bounds_our_loads_and_our_expectations_count_only_if_they_differ() {
        for basis in [Basis::Input, Basis::Bound, Basis::OurLoad, Basis::Ours] {
            assert!(!Claim::holds("", "", true, "").only_shown(basis).counts());
            assert!(Claim::holds("", "", false, "").only_shown(basis).counts());
        }
        assert!(Claim::holds("", "", true, "").counts());
    }
}
