//! The table of checks and NICs.

use std::collections::BTreeMap;
use std::fmt;

use crate::checks::{ALL, ROUTES, Verdict};
use crate::kind::KINDS;

/// The result of each check on each NIC. Two runs with the same results print the same.
#[derive(Debug, Default)]
pub(crate) struct Table {
    cells: BTreeMap<(String, String), Result<Verdict, String>>,
}

impl Table {
    pub(crate) fn enter(&mut self, check: &str, column: &str, outcome: Result<Verdict, String>) {
        self.cells.insert((check.to_owned(), column.to_owned()), outcome);
    }

    /// The checks with a result, in listed order.
    fn checks(&self) -> Vec<&'static str> {
        let mut checks: Vec<&str> = Vec::new();
        for name in ALL.iter().map(|check| check.name).chain(ROUTES.iter().map(|route| route.name))
        {
            if !checks.contains(&name) && self.cells.keys().any(|(check, _)| check == name) {
                checks.push(name);
            }
        }
        checks
    }

    /// The kinds of NICs with a result, in listed order.
    fn columns(&self) -> Vec<&'static str> {
        let names = KINDS.iter().map(|kind| kind.name);
        names.filter(|name| self.cells.keys().any(|(_, column)| column == name)).collect()
    }

    pub(crate) fn failures(&self) -> usize {
        self.cells.values().filter(|outcome| outcome.is_err()).count()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checks = self.checks();
        let columns = self.columns();
        let width = checks.iter().map(|check| check.len()).max().unwrap_or(0);
        write!(f, "{:width$}", "")?;
        columns.iter().try_for_each(|column| write!(f, "  {column:>12}"))?;
        writeln!(f)?;
        let mut notes = Vec::new();
        for check in checks {
            write!(f, "{check:width$}")?;
            for column in &columns {
                let cell = match self.cells.get(&(check.to_owned(), (*column).to_owned())) {
                    None => String::new(),
                    Some(Ok(Verdict::Holds(short))) => short.clone(),
                    Some(Ok(Verdict::Limit(reason))) => {
                        notes.push(format!("{check}, {column}: {reason}"));
                        "-".to_owned()
                    }
                    Some(Err(reason)) => {
                        // The complete reason was printed when the check failed.
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
