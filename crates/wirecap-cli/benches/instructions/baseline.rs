//! The committed baseline, and the table that compares new counts with it.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use crate::paths::{ADVANCED, BASIC};
use crate::{Outcome, PATHS, RINGS};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions/baseline.csv");
const HEAD: &str = "path,rings,instructions";

/// One cell of the table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cell {
    pub(crate) path: String,
    pub(crate) rings: usize,
    /// Instructions per packet.
    pub(crate) instructions: f64,
}

/// The committed counts.
#[derive(Debug)]
pub(crate) struct Baseline {
    cells: Vec<Cell>,
    /// The tools with which it was counted.
    tools: String,
}

impl Baseline {
    pub(crate) fn committed() -> Outcome<Self> {
        Self::parse(&fs::read_to_string(FILE)?)
    }

    fn parse(text: &str) -> Outcome<Self> {
        let (comments, rows): (Vec<_>, Vec<_>) =
            text.lines().partition(|line| line.starts_with('#'));
        let tools = comments.first().map_or("", |line| line.trim_start_matches("# ")).to_owned();
        let cell = |row: &&str| -> Outcome<Cell> {
            let [path, rings, instructions] = row.split(',').collect::<Vec<_>>()[..] else {
                return Err(format!("not three columns: {row}").into());
            };
            Ok(Cell {
                path: path.to_owned(),
                rings: rings.parse()?,
                instructions: instructions.parse()?,
            })
        };
        let cells =
            rows.iter().skip_while(|row| **row == HEAD).map(cell).collect::<Outcome<_>>()?;
        Ok(Self { cells, tools })
    }

    /// Writes the file. Cells that were not counted keep their old values, or are removed if
    /// `alone`.
    ///
    /// # Errors
    ///
    /// If the old values were counted with other tools, or the file cannot be written.
    pub(crate) fn replace(counted: &[Cell], alone: bool) -> Outcome<()> {
        let before = match alone {
            true => Vec::new(),
            false => match Self::committed()? {
                committed if committed.tools == tools() => committed.cells,
                _ => {
                    return Err(
                        "the other paths were counted with other tools: write all, without --only"
                            .into(),
                    );
                }
            },
        };
        let mut text = format!("# {}\n{HEAD}\n", tools());
        for path in PATHS {
            for rings in RINGS {
                let cell =
                    find(counted, path.name, rings).or_else(|| find(&before, path.name, rings));
                if let Some(cell) = cell {
                    writeln!(text, "{},{rings},{:.4}", cell.path, cell.instructions)?;
                }
            }
        }
        Ok(fs::write(FILE, text)?)
    }

    /// A table of the instructions per packet and their difference from the baseline.
    pub(crate) fn table(&self, counted: &[Cell]) -> String {
        let mut table = format!("baseline: {}\nhere:     {}\n", self.tools, tools());
        let _ = write!(table, "\n{:<18}", "per packet");
        RINGS.iter().for_each(|rings| _ = write!(table, "{:>20}", format!("rings: {rings}")));
        for path in PATHS.iter().filter(|path| counted.iter().any(|cell| cell.path == path.name)) {
            let _ = write!(table, "\n{:<18}", path.name);
            for rings in RINGS {
                let cell = find(counted, path.name, rings);
                let text =
                    cell.map_or("-".to_owned(), |cell| match find(&self.cells, path.name, rings) {
                        Some(before) => {
                            format!(
                                "{:.3} {:+.2} %",
                                cell.instructions,
                                excess(cell, before) * 100.0
                            )
                        }
                        None => format!("{:.3}  new", cell.instructions),
                    });
                let _ = write!(table, "{text:>20}");
            }
        }
        table + "\n"
    }

    /// Lists the cells that exceed the baseline by more than the share `tolerance`, and those of
    /// advanced mode that exceed basic mode by more than `advanced`.
    pub(crate) fn excesses(&self, counted: &[Cell], tolerance: f64, advanced: f64) -> Vec<String> {
        let over_baseline = |cell: &Cell| match find(&self.cells, &cell.path, cell.rings) {
            None => Some(format!("{}, rings {}: no baseline", cell.path, cell.rings)),
            Some(before) if excess(cell, before) > tolerance => Some(format!(
                "{}, rings {}: {:.3} instructions per packet, {:.2} % more than {:.3}",
                cell.path,
                cell.rings,
                cell.instructions,
                excess(cell, before) * 100.0,
                before.instructions
            )),
            Some(_) => None,
        };
        let over_basic = |rings: usize| {
            let cell = find(counted, ADVANCED, rings)?;
            let basic = find(counted, BASIC, rings)?;
            let excess = excess(cell, basic);
            (excess > advanced).then(|| {
                format!("{ADVANCED}, rings {rings}: {:.2} % more than {BASIC}", excess * 100.0)
            })
        };
        let over_baseline = counted.iter().filter_map(over_baseline);
        over_baseline.chain(RINGS.into_iter().filter_map(over_basic)).collect()
    }
}

fn find<'a>(cells: &'a [Cell], path: &str, rings: usize) -> Option<&'a Cell> {
    cells.iter().find(|cell| cell.path == path && cell.rings == rings)
}

/// The excess of `cell` over `before`, as a share of `before`.
fn excess(cell: &Cell, before: &Cell) -> f64 {
    cell.instructions / before.instructions - 1.0
}

/// The tools that the counts depend on, in addition to the source.
fn tools() -> String {
    let version = |program: &str| {
        let output = Command::new(program).arg("--version").output().ok();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        text.and_then(|text| Some(text.lines().next()?.to_owned()))
            .unwrap_or_else(|| format!("no {program}"))
    };
    let profile = if cfg!(debug_assertions) { "debug" } else { "bench" };
    let tools =
        [&version("rustc"), std::env::consts::ARCH, profile, &version("ldd"), &version("valgrind")];
    tools.map(|tool| tool.replace(',', "")).join("; ")
}
