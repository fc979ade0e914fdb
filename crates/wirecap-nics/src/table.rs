//! The table of checks and NICs.

use std::collections::BTreeMap;
use std::fmt;

use crate::checks::Verdict;

/// What each check found on each NIC.
#[derive(Debug, Default)]
pub(crate) struct Table {
    checks: Vec<String>,
    columns: Vec<String>,
    cells: BTreeMap<(String, String), Result<Verdict, String>>,
}

impl Table {
    pub(crate) fn enter(&mut self, check: &str, column: &str, outcome: Result<Verdict, String>) {
        for (names, name) in [(&mut self.checks, check), (&mut self.columns, column)] {
            if names.iter().all(|known| known != name) {
                names.push(name.to_owned());
            }
        }
        self.cells.insert((check.to_owned(), column.to_owned()), outcome);
    }

    pub(crate) fn failures(&self) -> usize {
        self.cells.values().filter(|outcome| outcome.is_err()).count()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.checks.iter().map(String::len).max().unwrap_or(0);
        write!(f, "{:width$}", "")?;
        self.columns.iter().try_for_each(|column| write!(f, "  {column:>12}"))?;
        writeln!(f)?;
        let mut notes = Vec::new();
        for check in &self.checks {
            write!(f, "{check:width$}")?;
            for column in &self.columns {
                let cell = match self.cells.get(&(check.clone(), column.clone())) {
                    None => String::new(),
                    Some(Ok(Verdict::Holds(short))) => short.clone(),
                    Some(Ok(Verdict::Limit(reason))) => {
                        notes.push(format!("{check}, {column}: {reason}"));
                        "-".to_owned()
                    }
                    Some(Err(reason)) => {
                        // The whole of it was said when it happened.
                        notes.push(format!("FAILED {check}, {column}: {reason:.200}"));
                        "FAILED".to_owned()
                    }
                };
                write!(f, "  {cell:>12}")?;
            }
            writeln!(f)?;
        }
        notes.iter().try_for_each(|note| writeln!(f, "{note}"))?;
        match self.failures() {
            0 => write!(f, "{} checks hold", self.cells.len()),
            failures => write!(f, "{failures} of {} checks FAILED", self.cells.len()),
        }
    }
}
