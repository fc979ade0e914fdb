//! Tables of the documents, made from the CSV files of `lab/results`.
//!
//! A page marks the place of a table, and names the data and how they are shown:
//!
//! ```text
//! <!-- data: rows benches/capture-rates.csv -->
//! ...
//! <!-- end of data -->
//! ```
//!
//! [`fill`] replaces the text between the two lines; `make performance` does so for the pages in
//! [`PAGES`], and a test fails if a page has another text there. The views are
//!
//! - `rows FILE`: the file as it is. Lines that begin with `#` state the origin of the data.
//! - `rows FILE N,N,...`: only the columns with these numbers, from 1 on.
//! - `curves FILE X,X,... percent|millions|plain`: a row for each curve of a chart's data, a column
//!   for each of these points: the median, and the range if the rounds differ.
//! - `papers FILE`: published results beside simulated ones. `{FILE;CELLS;COLUMN}` is the cell of
//!   other data in this column, in the row that begins with these cells; the difference in
//!   percentage points is computed.
//! - `skew FOLDER`: the packets lost in skewed loads of which every queue but the first gets 20 %.
//! - `components FILE HOW`: the costs of the parts of a capture that were measured in this way.
//!
//! [`pictures`] does the same for pictures.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use wirecap::grouped;

pub mod pictures;

/// The pages that have tables, from the root of the repository.
pub const PAGES: [&str; 2] = ["docs/performance.md", "docs/guide/scale.md"];

/// Where the data are, from the root of the repository.
const RESULTS: &str = "lab/results";
const BEGIN: &str = "<!-- data: ";
const END: &str = "<!-- end of data -->\n";

/// Why a page could not be filled.
#[derive(Debug)]
#[non_exhaustive]
pub enum PageError {
    /// The view of a marker is unknown, or its arguments are invalid.
    View {
        /// What the marker says.
        view: String,
    },
    /// A marker has no end.
    Open {
        /// What the marker says.
        view: String,
    },
    /// The data cannot be read.
    Data {
        /// The file.
        file: PathBuf,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl fmt::Display for PageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::View { view } => write!(f, "unknown view '{view}'"),
            Self::Open { view } => write!(f, "'{BEGIN}{view} -->' has no '{}'", END.trim_end()),
            Self::Data { file, .. } => write!(f, "cannot use {}", file.display()),
        }
    }
}

impl Error for PageError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Data { source, .. } => Some(&**source),
            Self::View { .. } | Self::Open { .. } => None,
        }
    }
}

/// The page with its tables filled from the data under `root`.
pub fn fill(page: &str, root: &Path) -> Result<String, PageError> {
    let results = root.join(RESULTS);
    let mut filled = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let open = || PageError::Open { view: after.lines().next().unwrap_or_default().to_owned() };
        let (view, after) = after.split_once(" -->\n").ok_or_else(open)?;
        let (_, after) = after.split_once(END).ok_or_else(open)?;
        let table = table_of(view, &results)?;
        filled += &format!("{before}{BEGIN}{view} -->\n\n{table}\n{END}");
        rest = after;
    }
    Ok(filled + rest)
}

fn table_of(view: &str, results: &Path) -> Result<String, PageError> {
    let words: Vec<&str> = view.split(' ').collect();
    match *words {
        ["rows", file] => {
            let data = Data::read(&results.join(file))?;
            Ok(table(&data.columns, &data.rows))
        }
        ["rows", file, numbers] => columns(&Data::read(&results.join(file))?, numbers),
        ["papers", file] => papers(&Data::read(&results.join(file))?, results),
        ["curves", file, points, form @ ("percent" | "millions" | "plain")] => {
            curves(&Data::read(&results.join(file))?, points, form)
        }
        ["skew", folder] => skew(&results.join(folder)),
        ["components", file, how] => components(&Data::read(&results.join(file))?, how),
        _ => Err(PageError::View { view: view.to_owned() }),
    }
}

/// A CSV file.
#[derive(Debug)]
struct Data {
    file: PathBuf,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Data {
    fn read(file: &Path) -> Result<Self, PageError> {
        let failed = |source: Box<dyn Error + Send + Sync>| PageError::Data {
            file: file.to_owned(),
            source,
        };
        let text = fs::read_to_string(file).map_err(|error| failed(error.into()))?;
        let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(text.as_bytes());
        let cells = |record: &csv::StringRecord| record.iter().map(str::to_owned).collect();
        let columns = reader.headers().map(cells).map_err(|error| failed(error.into()))?;
        let rows =
            reader.records().map(|record| record.as_ref().map(cells).map_err(ToString::to_string));
        let rows = rows.collect::<Result<_, _>>().map_err(|error| failed(error.into()))?;
        Ok(Self { file: file.to_owned(), columns, rows })
    }

    fn failed(&self, reason: &str) -> PageError {
        PageError::Data { file: self.file.clone(), source: reason.into() }
    }

    /// The cell of a row in the column of this name.
    fn cell<'a>(&'a self, row: &'a [String], column: &str) -> Result<&'a str, PageError> {
        let place = self.columns.iter().position(|name| name == column);
        let cell = place.and_then(|place| row.get(place));
        cell.map(String::as_str).ok_or_else(|| self.failed(&format!("it has no column '{column}'")))
    }

    fn number(&self, row: &[String], column: &str) -> Result<f64, PageError> {
        let cell = self.cell(row, column)?;
        cell.parse().map_err(|_| self.failed(&format!("'{cell}' is not a number")))
    }
}

/// A table in Markdown.
fn table(columns: &[String], rows: &[Vec<String>]) -> String {
    let cell = |text: &String| if text.is_empty() { " |".to_owned() } else { format!(" {text} |") };
    let line = |cells: &[String]| format!("|{}\n", cells.iter().map(cell).collect::<String>());
    let rule = format!("|{}\n", "---|".repeat(columns.len()));
    line(columns) + &rule + &rows.iter().map(|row| line(row)).collect::<String>()
}

/// The columns with these numbers, from 1 on.
fn columns(data: &Data, numbers: &str) -> Result<String, PageError> {
    let mut places = Vec::new();
    for number in numbers.split(',') {
        let place = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        let place = place.filter(|&place| place < data.columns.len());
        places.push(place.ok_or_else(|| data.failed(&format!("it has no column {number}")))?);
    }
    let chosen =
        |row: &[String]| places.iter().map(|&place| row[place].clone()).collect::<Vec<_>>();
    let rows: Vec<_> = data.rows.iter().map(|row| chosen(row)).collect();
    Ok(table(&chosen(&data.columns), &rows))
}

/// The distinct values of a column, in the order of their first appearance.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    names.filter(|name| seen.insert(*name)).collect()
}

/// A row for each curve of a chart's data, a column for each of the points.
fn curves(data: &Data, points: &str, form: &str) -> Result<String, PageError> {
    let axis = data.columns.get(1).ok_or_else(|| data.failed("it has no second column"))?;
    let points: Vec<&str> = points.split(',').collect();
    let names = distinct(data.rows.iter().filter_map(|row| row.first().map(String::as_str)));

    let shown = |row: &[String]| -> Result<String, PageError> {
        let number = |place: usize| -> Result<f64, PageError> {
            let cell = row.get(place).map(String::as_str).unwrap_or_default();
            cell.parse().map_err(|_| data.failed(&format!("'{cell}' is not a number")))
        };
        let [median, low, high] =
            [number(2)?, number(3)?, number(4)?].map(|value| written(value, form));
        let unit = if form == "percent" { " %" } else { "" };

        Ok(match (&*low, &*high) {
            ("none", "none") => "none".to_owned(),
            _ if low == high => format!("{median}{unit}"),
            _ => format!("{median}{} ({low} to {high})", if median == "none" { "" } else { unit }),
        })
    };
    let rows = names.iter().map(|name| {
        let cells = points.iter().map(|point| {
            let is_it = |row: &&Vec<String>| row[0] == *name && row[1] == *point;
            let row = data.rows.iter().find(is_it);
            shown(row.ok_or_else(|| data.failed(&format!("'{name}' has no point {point}")))?)
        });
        std::iter::once(Ok((*name).to_owned())).chain(cells).collect()
    });
    let rows = rows.collect::<Result<Vec<Vec<String>>, _>>()?;

    let heads = points.iter().map(|point| {
        point.parse().map_or_else(
            |_| (*point).to_owned(),
            |number: u64| format!("{axis} = {}", grouped(number)),
        )
    });
    let heads: Vec<String> = std::iter::once("contender".to_owned()).chain(heads).collect();
    Ok(table(&heads, &rows))
}

/// A value in the format of a view: losses are rounded up, never to 0.
fn written(value: f64, form: &str) -> String {
    match form {
        "percent" if value == 0.0 => "none".to_owned(),
        "percent" if value < 0.1 => format!("{:.2}", value.max(0.01)),
        "percent" => format!("{value:.1}"),
        "millions" => format!("{value:.2}"),
        _ => value.to_string(),
    }
}

/// The loads of the table on skew: file, and its head.
const LOADS: [(&str, &str); 5] = [
    ("live-skew/skew-2-queues-50-us-runs.csv", "2 queues, 50 µs a packet"),
    ("live-skew/skew-2-queues-10-us-runs.csv", "2 queues, 10 µs"),
    ("live-skew/skew-2-queues-2-us-runs.csv", "2 queues, 2 µs"),
    ("live-skew-queues/skew-4-queues-50-us-runs.csv", "4 queues, 50 µs"),
    ("live-skew-queues/skew-6-queues-50-us-runs.csv", "6 queues, 50 µs"),
];

/// The packets lost by each contender in each load, all rounds together.
fn skew(folder: &Path) -> Result<String, PageError> {
    let loads = LOADS.map(|(file, _)| Data::read(&folder.join(file)));
    let loads = loads.into_iter().collect::<Result<Vec<_>, _>>()?;
    let names = distinct(loads[0].rows.iter().map(|row| row[0].as_str()));

    let lost = |load: &Data, name: &str| -> Result<String, PageError> {
        let mut sent = 0.0;
        let mut delivered = 0.0;

        for row in &load.rows {
            if load.cell(row, "contender")? == name
                && load.number(row, "share of the others")? == 0.2
            {
                sent += load.number(row, "sent")?;
                delivered += load.number(row, "delivered")?;
            }
        }

        if sent == 0.0 {
            return Err(load.failed(&format!("'{name}' has no run at 20 %")));
        }

        let lost: f64 = sent - delivered;
        Ok(match lost / sent * 100.0 {
            _ if lost == 0.0 => "none".to_owned(),
            share if share < 0.1 => format!("{} packets", grouped(lost as u64)),
            share if share < 1.0 => format!("{share:.2} %"),
            share => format!("{share:.1} %"),
        })
    };
    let rows = names.iter().map(|name| {
        let cells = loads.iter().map(|load| lost(load, name));
        std::iter::once(Ok((*name).to_owned())).chain(cells).collect()
    });
    let rows = rows.collect::<Result<Vec<Vec<String>>, _>>()?;
    let heads = std::iter::once("contender").chain(LOADS.map(|(_, head)| head));

    Ok(table(&heads.map(str::to_owned).collect::<Vec<_>>(), &rows))
}

/// The costs of the parts of a capture that were measured in this way: the median, and the range of
/// the rounds.
fn components(data: &Data, how: &str) -> Result<String, PageError> {
    let mut rows = Vec::new();
    for row in &data.rows {
        let cell = |column| data.cell(row, column);
        if cell("how")? == how {
            let ns = format!("{} ({} to {})", cell("ns, median")?, cell("least")?, cell("most")?);
            rows.push(vec![cell("component")?.to_owned(), cell("of")?.to_owned(), ns]);
        }
    }
    if rows.is_empty() {
        return Err(data.failed(&format!("it has no component '{how}'")));
    }
    Ok(table(&["component", "of", "ns per packet"].map(str::to_owned), &rows))
}

/// A published result, the simulated one, the difference, and a note.
fn papers(data: &Data, results: &Path) -> Result<String, PageError> {
    let percent = |text: &str| text.strip_suffix(" %")?.parse::<f64>().ok();

    // A share, or a range of shares, of which the one that differs most is compared.
    let farthest = |text: &str, paper: f64| {
        let ends = text.strip_suffix(" %")?.split(" to ").map(|end| end.parse::<f64>().ok());
        let differences = ends.map(|end| Some(end? - paper)).collect::<Option<Vec<f64>>>()?;
        differences.into_iter().max_by(|a, b| a.abs().total_cmp(&b.abs()))
    };
    let rows = data.rows.iter().map(|row| {
        let cell = |column| data.cell(row, column).and_then(|text| resolved(text, data, results));
        let [what, paper, simulated, note] =
            [cell("what")?, cell("paper")?, cell("simulated")?, cell("note")?];
        let points = match percent(&paper).and_then(|paper| farthest(&simulated, paper)) {
            Some(points) => match format!("{points:+.1}") {
                zero if zero == "+0.0" || zero == "-0.0" => "0.0".to_owned(),
                points => points,
            },
            None => String::new(),
        };

        Ok(vec![what, paper, simulated, points, note])
    });
    let rows = rows.collect::<Result<Vec<_>, _>>()?;

    Ok(table(&["what", "paper", "simulated", "points", "note"].map(str::to_owned), &rows))
}

/// The text with names of cells replaced by the cells of other data.
fn resolved(text: &str, data: &Data, results: &Path) -> Result<String, PageError> {
    let Some((before, rest)) = text.split_once('{') else { return Ok(text.to_owned()) };
    let name =
        rest.split_once('}').map(|(name, after)| (name.split(';').collect::<Vec<_>>(), after));
    let Some(([file, cells, column], after)) =
        name.as_ref().map(|(name, after)| (name.as_slice(), after))
    else {
        return Err(data.failed(&format!("'{text}' does not name a cell")));
    };
    let other = Data::read(&results.join(file))?;
    let found = other
        .rows
        .iter()
        .find(|row| row.join(",") == *cells || row.join(",").starts_with(&format!("{cells},")));
    let row = found.ok_or_else(|| other.failed(&format!("it has no row '{cells}'")))?;

    Ok(format!("{before}{}{}", other.cell(row, column)?, resolved(after, data, results)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with one file of data.
    fn root(name: &str, text: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join(RESULTS)).unwrap();
        fs::write(root.path().join(RESULTS).join(name), text).unwrap();
        root
    }

    fn page(view: &str) -> String {
        format!("before\n{BEGIN}{view} -->\nold\n{END}after\n")
    }

    #[test]
    fn rows_replace_the_text_between_the_markers_and_stay_when_filled_again() {
        let root = root("a.csv", "# where it comes from\nwho,\"x, y\",\nwe,\"1,000\",\n");
        let filled = fill(&page("rows a.csv"), root.path()).unwrap();
        let expected = "before\n<!-- data: rows a.csv -->\n\n| who | x, y | |\n|---|---|---|\n| we | 1,000 | |\n\n\
                        <!-- end of data -->\nafter\n";
        assert_eq!(filled, expected);
        assert_eq!(fill(&filled, root.path()).unwrap(), expected);
        assert_eq!(fill("no table\n", root.path()).unwrap(), "no table\n");
    }

    #[test]
    fn curves_show_the_median_and_the_range_if_there_is_one() {
        let text = "curve,bytes,packets lost,low,high\n\
                    we,60,0,0,0\nwe,1514,52.71,51.29,56.41\nthey,60,0,0,1.97\nthey,1514,3,3,3\n";
        let root = root("a.csv", text);
        let filled = fill(&page("curves a.csv 60,1514 percent"), root.path()).unwrap();
        assert!(filled.contains("| contender | bytes = 60 | bytes = 1,514 |\n"), "{filled}");
        assert!(filled.contains("| we | none | 52.7 % (51.3 to 56.4) |\n"), "{filled}");
        assert!(filled.contains("| they | none (none to 2.0) | 3.0 % |\n"), "{filled}");
    }

    #[test]
    fn papers_are_compared_with_the_cells_of_other_data() {
        let root = root("a.csv", "a,b,lost\n0,\"x,y\",48.1 %\n0,z,9.3 %\n0,seeds,9.0 to 9.9 %\n");
        let rows = "what,paper,simulated,note\nq,46.5 %,\"{a.csv;0,x,y;lost}\",\nr,none,none,\"as {a.csv;0,z;lost}, so\"\n\
                    s,9.6 %,\"{a.csv;0,seeds;lost}\",\n";
        fs::write(root.path().join(RESULTS).join("b.csv"), rows).unwrap();
        let filled = fill(&page("papers b.csv"), root.path()).unwrap();
        assert!(
            filled.contains(
                "| q | 46.5 % | 48.1 % | +1.6 | |\n| r | none | none | | as 9.3 %, so |\n"
            ),
            "{filled}"
        );
        // Of several seeds the farthest counts.
        assert!(filled.contains("| s | 9.6 % | 9.0 to 9.9 % | -0.6 | |\n"), "{filled}");
        let wrong = "what,paper,simulated,note\nq,1 %,{a.csv;1;lost},\n";
        fs::write(root.path().join(RESULTS).join("b.csv"), wrong).unwrap();
        assert!(fill(&page("papers b.csv"), root.path()).is_err());
    }

    #[test]
    fn rows_may_have_only_some_columns() {
        let root = root("a.csv", "who,rate,lost\nwe,5,none\nthey,4,1 %\n");
        let filled = fill(&page("rows a.csv 1,3"), root.path()).unwrap();
        assert!(
            filled.contains("| who | lost |\n|---|---|\n| we | none |\n| they | 1 % |\n"),
            "{filled}"
        );
    }

    #[test]
    fn components_are_those_that_were_measured_in_one_way() {
        let text = "component,of,how,\"ns, median\",least,most\na,xdp,live,2.0,-1.0,3.5\nb,filters,loop,1.0,1.0,1.0\n";
        let root = root("a.csv", text);
        let filled = fill(&page("components a.csv live"), root.path()).unwrap();
        assert!(filled.contains("| component | of | ns per packet |\n"), "{filled}");
        assert!(filled.contains("| a | xdp | 2.0 (-1.0 to 3.5) |\n\n"), "{filled}");
        assert!(fill(&page("components a.csv burst"), root.path()).is_err());
    }

    #[test]
    fn a_table_that_cannot_be_filled_is_an_error_that_names_it() {
        let root = root("a.csv", "curve,x,y,low,high\nwe,1,2,2,2\n");
        let error = |page: &str| match fill(page, root.path()).unwrap_err() {
            PageError::Data { source, .. } => source.to_string(),
            error => error.to_string(),
        };
        assert_eq!(error(&page("pie a.csv")), "unknown view 'pie a.csv'");
        assert_eq!(error(&page("curves a.csv 2 plain")), "'we' has no point 2");
        assert_eq!(error(&page("rows a.csv 1,6")), "it has no column 6");
        assert_eq!(error(&page("rows a.csv 0")), "it has no column 0");
        assert!(error(&page("rows b.csv")).contains("No such file"));
        assert!(error("<!-- data: rows a.csv -->\n").contains("has no '<!-- end of data -->'"));
    }
}
