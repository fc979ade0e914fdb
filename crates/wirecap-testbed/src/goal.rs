//! Goals of benches: thresholds for the median of a figure over several rounds.
//!
//! A result counts only if the machine was quiet: disturbed rounds are left out, and if they are
//! half of the rounds or more, or if the host used too much of the processors' time for others, the
//! goal is void. A void goal is neither met nor missed, and nothing is repeated until it is met.

use std::env;
use std::error::Error;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::disturbance::{STEAL_SHARE_MAX, stolen};

/// The threshold of a goal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// The median must be at least this.
    AtLeast(f64),
    /// The median must be at most this.
    AtMost(f64),
    /// The median must be below this.
    Below(f64),
}

impl Bound {
    fn admits(self, median: f64) -> bool {
        match self {
            Self::AtLeast(bound) => median >= bound,
            Self::AtMost(bound) => median <= bound,
            Self::Below(bound) => median < bound,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, "at least {bound}"),
            Self::AtMost(bound) => write!(f, "at most {bound}"),
            Self::Below(bound) => write!(f, "below {bound}"),
        }
    }
}

/// A figure of one round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Its value.
    pub value: f64,
    /// Whether the round was disturbed: it is left out.
    pub is_disturbed: bool,
}

/// The result of a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The median is within the bound.
    Met,
    /// It is not.
    Missed,
    /// The machine was not quiet, or there is no figure.
    Void,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::Void => "VOID",
        })
    }
}

/// The environment variable that names a file to which each judged goal is appended as a row of
/// CSV.
const RECORD: &str = "WIRECAP_GOALS";

/// The columns of that file.
const COLUMNS: &str = "bench,goal,threshold,median and range,result\n";

/// The goals of a bench, judged one after the other.
#[derive(Debug)]
pub struct Goals {
    bench: &'static str,
    begun: Instant,
    stolen: Duration,
    verdicts: Vec<(String, Verdict)>,
}

impl Goals {
    /// Starts with no judged goal of this bench.
    #[must_use]
    pub fn of(bench: &'static str) -> Self {
        Self { bench, begun: Instant::now(), stolen: stolen(), verdicts: Vec::new() }
    }

    /// A part of the bench begins: the host's use of the processors counts from now on.
    pub fn begin_part(&mut self) {
        (self.begun, self.stolen) = (Instant::now(), stolen());
    }

    /// Compares the median of the undisturbed rounds with the bound, and prints the result.
    pub fn judge(&mut self, what: &str, bound: Bound, rounds: &[Figure]) {
        let stolen = stolen().saturating_sub(self.stolen).as_secs_f64();
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let share = stolen / self.begun.elapsed().as_secs_f64() / cpus as f64;
        self.judged(what, bound, rounds, share);
    }

    /// The same for figures that do not depend on other load, such as counts.
    pub fn judge_exact(&mut self, what: &str, bound: Bound, figures: &[f64]) {
        let rounds: Vec<Figure> =
            figures.iter().map(|value| Figure { value: *value, is_disturbed: false }).collect();
        self.judged(what, bound, &rounds, 0.0);
    }

    fn judged(&mut self, what: &str, bound: Bound, rounds: &[Figure], stolen_share: f64) {
        let (verdict, reason) = verdict(bound, rounds, stolen_share);
        println!("  goal: {what}: {reason}, {bound}: {verdict}");
        self.verdicts.push((what.to_owned(), verdict));
        if let Some(path) = env::var_os(RECORD) {
            let row = format!("{},\"{what}\",{bound},\"{reason}\",{verdict}\n", self.bench);
            if let Err(error) = append(Path::new(&path), &row) {
                eprintln!("{}: {error}", path.display());
            }
        }
    }

    /// Prints the number of goals by result.
    ///
    /// # Errors
    ///
    /// If a goal is missed or void, or there is none.
    pub fn end(self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let of = |wanted| {
            let names = self.verdicts.iter().filter(|(_, verdict)| *verdict == wanted);
            names.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
        };
        let met = of(Verdict::Met);
        let missed = of(Verdict::Missed);
        let void = of(Verdict::Void);
        println!(
            "\n{} goals: {} met, {} missed, {} void",
            self.verdicts.len(),
            met.len(),
            missed.len(),
            void.len()
        );

        match (&*met, &*missed, &*void) {
            ([], [], []) => Err("the selected parts have no goals".into()),
            (_, [], []) => Ok(()),
            (_, [], void) => Err(format!("the machine was not quiet: {}", void.join("; ")).into()),
            (_, missed, _) => Err(format!("missed: {}", missed.join("; ")).into()),
        }
    }
}

/// Appends a row to a CSV file; a new file first gets its header row.
fn append(path: &Path, row: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    if file.metadata()?.len() == 0 {
        file.write_all(COLUMNS.as_bytes())?;
    }
    file.write_all(row.as_bytes())
}

/// The verdict, and the figures that lead to it. If it is void, these are the figures of all
/// rounds, disturbed or not.
fn verdict(bound: Bound, rounds: &[Figure], stolen_share: f64) -> (Verdict, String) {
    let calm: Vec<f64> =
        rounds.iter().filter(|figure| !figure.is_disturbed).map(|figure| figure.value).collect();
    let count = rounds.len();
    let disturbed = rounds.len() - calm.len();

    let void = if stolen_share > STEAL_SHARE_MAX {
        Some(format!("the host used {:.1} % of the processors", stolen_share * 100.0))
    } else if disturbed * 2 >= count {
        Some(format!("{disturbed} of {count} rounds were disturbed"))
    } else {
        None
    };
    if let Some(cause) = void {
        let all = Spread::of(rounds.iter().map(|figure| figure.value).collect());
        return (Verdict::Void, all.map_or(cause.clone(), |all| format!("{all}, but {cause}")));
    }

    match Spread::of(calm) {
        None => (Verdict::Void, "no figure".to_owned()),
        Some(spread) => {
            let verdict = if bound.admits(spread.median) { Verdict::Met } else { Verdict::Missed };
            (verdict, format!("{spread}, {disturbed} of {count} rounds disturbed"))
        }
    }
}

/// The median and the range of some figures.
#[derive(Debug, Clone, Copy)]
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    /// `None` without figures.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| !value.is_nan());
        values.sort_by(f64::total_cmp);
        let least = *values.first()?;
        let most = *values.last()?;
        let median = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { least, median, most })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ({:.3}..{:.3})", self.median, self.least, self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(values: &[f64], disturbed: usize) -> Vec<Figure> {
        let figure = |(place, value): (usize, &f64)| Figure {
            value: *value,
            is_disturbed: place < disturbed,
        };
        values.iter().enumerate().map(figure).collect()
    }

    fn of(bound: Bound, rounds: &[Figure], stolen: f64) -> Verdict {
        verdict(bound, rounds, stolen).0
    }

    #[test]
    fn a_goal_is_judged_by_the_median_of_undisturbed_rounds() {
        let values = [9.0, 1.0, 3.0, 2.0];
        assert_eq!(of(Bound::AtLeast(2.0), &rounds(&values, 1), 0.0), Verdict::Met);
        assert_eq!(of(Bound::AtLeast(2.01), &rounds(&values, 1), 0.0), Verdict::Missed);
        assert_eq!(of(Bound::AtMost(2.0), &rounds(&values, 1), 0.0), Verdict::Met);
        assert_eq!(of(Bound::Below(2.0), &rounds(&values, 1), 0.0), Verdict::Missed);
        assert_eq!(
            of(Bound::AtLeast(2.5), &rounds(&values, 0), 0.0),
            Verdict::Met,
            "the mean of two"
        );
        assert_eq!(of(Bound::AtLeast(2.51), &rounds(&values, 0), 0.0), Verdict::Missed);

        let (_, reason) = verdict(Bound::AtLeast(2.0), &rounds(&values, 1), 0.0);
        assert_eq!(reason, "2.000 (1.000..3.000), 1 of 4 rounds disturbed");
    }

    #[test]
    fn a_goal_is_void_if_half_of_the_rounds_were_disturbed() {
        let met = Bound::AtLeast(0.0);
        assert_eq!(of(met, &rounds(&[1.0; 5], 2), 0.0), Verdict::Met);
        assert_eq!(of(met, &rounds(&[1.0; 4], 2), 0.0), Verdict::Void);
        assert_eq!(of(met, &[], 0.0), Verdict::Void);
        assert_eq!(of(met, &rounds(&[f64::NAN], 0), 0.0), Verdict::Void);
        assert_eq!(of(met, &rounds(&[1.0], 0), STEAL_SHARE_MAX), Verdict::Met);
        assert_eq!(of(met, &rounds(&[1.0], 0), STEAL_SHARE_MAX + 0.001), Verdict::Void);
        // A void goal also has its figures.
        let (_, reason) = verdict(met, &rounds(&[1.0, 2.0, 6.0], 2), 0.0);
        assert_eq!(reason, "2.000 (1.000..6.000), but 2 of 3 rounds were disturbed");
        assert_eq!(verdict(met, &[], 0.5).1, "the host used 50.0 % of the processors");
    }

    #[test]
    fn a_goals_file_has_one_header_row() {
        let path = env::temp_dir().join(format!("wirecap-goals-{}", std::process::id()));
        ["one\n", "other\n"].iter().for_each(|row| append(&path, row).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, format!("{COLUMNS}one\nother\n"));
    }

    #[test]
    fn missed_and_void_goals_are_errors() {
        let mut goals = Goals::of("a bench");
        goals.judge_exact("a count", Bound::AtMost(0.0), &[0.0]);
        goals.end().unwrap();
        assert!(Goals::of("a bench").end().is_err(), "nothing was compared");
        let mut goals = Goals::of("a bench");
        goals.judge_exact("one", Bound::AtMost(0.0), &[1.0]);
        goals.judge("other", Bound::AtMost(0.0), &[]);
        assert_eq!(goals.end().unwrap_err().to_string(), "missed: one");
        let mut goals = Goals::of("a bench");
        goals.judge("other", Bound::AtMost(0.0), &[]);
        assert_eq!(goals.end().unwrap_err().to_string(), "the machine was not quiet: other");
    }
}
