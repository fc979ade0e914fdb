//! Numbers in the text of the documents, each with its source: `docs/results/numbers.csv`.
//!
//! A row of that file has a page, a phrase of the page, which occurs there once, and the source of the phrase's numbers. Every
//! number outside the generated tables must be in such a phrase on the pages in [`NUMBERED`]; of other pages only the listed phrases
//! are checked. A ratio in words ([`ratios`]: *twice*, *three times*, *a quarter*) counts as a number that no data can have, so
//! a measured ratio must be written in digits. A source is one or more of these, separated by ` & `:
//!
//! - `setting`, `example`, `paper`, `kernel`: a parameter of the measurement or of the software, a number of an example, of a
//!   paper, of the kernel. There is nothing to compare it with.
//! - `printed`: a bench printed it, and its raw data were not kept. The row itself is the record.
//! - `cell FILE;ROWS;COLUMN`: each number of the phrase is in one of these cells, rounded to the digits of the phrase. `ROWS` are
//!   beginnings of rows, separated by `|`, or `*`; `COLUMN` is a name, or `*`; `NAME#2` is the second number of each cell.
//!   `FILE` may have one `*`, for any part of a path, be `view` and the view of a table, or several of these with ` + ` between.
//! - `range`, `min`, `max`, `median`, `sum`, `count` of the same: these results are in the phrase. `over X` counts the numbers that
//!   exceed X.
//! - `share FILE;ROWS / ROWS;COLUMN`: the first sum in percent of the second.
//! - `rates FILE;CONTENDER / CONTENDER`: the least and the greatest ratio of packets received per second, round by round.
//! - `sent FILE;CONTENDER,LOAD|... / CONTENDER|...`: the same of packets sent per second, under these loads.
//! - `in FILE`: the file has these numbers, written in the same way.
//! - `percent` before any of these: 100 times the result.
//! - `text PHRASE`: another row of the file has this phrase, and these numbers.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::Path;

use super::{BEGIN, Data, END, PageError, RESULTS, table_of};

/// The pages on which every number has a source, from the root of the repository.
pub const NUMBERED: [&str; 2] = ["README.md", "docs/performance.md"];

const SOURCES: &str = "numbers.csv";

/// The errors in the numbers of the pages under `root`: numbers without a source, and numbers that differ from
/// it.
pub fn check(root: &Path) -> Result<Vec<String>, PageError> {
    let results = root.join(RESULTS);
    let sources = Sources::read(root)?;
    let of_rows = sources.0.rows.iter().filter_map(|row| sources.0.cell(row, "page").ok());
    let pages: BTreeSet<&str> = NUMBERED.into_iter().chain(of_rows).collect();
    let mut wrong = Vec::new();
    for page in pages {
        let path = root.join(page);
        let text = fs::read_to_string(&path)
            .map_err(|error| PageError::Data { file: path.clone(), source: error.into() })?;
        wrong.extend(sources.unsourced(page, &text));
    }
    for row in &sources.0.rows {
        let [page, phrase, source] = ["page", "phrase", "source"].map(|column| sources.0.cell(row, column));
        let (page, phrase) = (page?, phrase?);
        for reason in compare(phrase, source?, &sources.0, &results)? {
            wrong.push(format!("{page}: '{phrase}': {reason}"));
        }
    }
    Ok(wrong)
}

/// The phrases with numbers, and their sources.
#[derive(Debug)]
pub struct Sources(Data);

impl Sources {
    /// Those of the pages under `root`.
    pub fn read(root: &Path) -> Result<Self, PageError> {
        Data::read(&root.join(RESULTS).join(SOURCES)).map(Self)
    }

    /// The numbers in the text of a page that are in no phrase, and the phrases that are not there exactly once.
    pub fn unsourced(&self, page: &str, text: &str) -> Vec<String> {
        let text = prose(text);
        let (mut wrong, mut covered) = (Vec::new(), Vec::new());
        let of_page = self.0.rows.iter().filter(|row| self.0.cell(row, "page").is_ok_and(|of| of == page));
        for phrase in of_page.filter_map(|row| self.0.cell(row, "phrase").ok()) {
            let places: Vec<_> = text.match_indices(phrase).map(|(place, _)| place).collect();
            match *places {
                [place] => covered.push(place..place + phrase.len()),
                _ => wrong.push(format!("{page}: '{phrase}' occurs {} times", places.len())),
            }
        }
        for (place, number) in numbers(&text).into_iter().chain(ratios(&text)) {
            let is_in = |range: &Range<usize>| range.start <= place && place + number.len() <= range.end;
            if NUMBERED.contains(&page) && !covered.iter().any(is_in) {
                let before: String = text[..place].chars().rev().take(60).collect();
                let before: String = before.chars().rev().collect();
                let after: String = text[place..].chars().take(60).collect();
                wrong.push(format!("{page}: {number} has no source: ...{before}{after}..."));
            }
        }
        wrong
    }
}

/// The text of a page without its generated tables, in one line.
fn prose(page: &str) -> String {
    let mut kept = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        kept += before;
        rest = after.split_once(END).map_or("", |(_, after)| after);
    }
    (kept + rest).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The numbers of a text with their signs, each with its position. Digits of a name (`eth1`, `eth1@0`) are not numbers, and
/// the hyphen of a range (`1-3`) is not a sign.
pub fn numbers(text: &str) -> Vec<(usize, &str)> {
    let bytes = text.as_bytes();
    let is_digit = |place: usize| bytes.get(place).is_some_and(u8::is_ascii_digit);
    let is_name = |place: usize| {
        let before = text[..place].chars().next_back();
        before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '@')
    };
    let mut found = Vec::new();
    let mut place = 0;
    while place < bytes.len() {
        if !is_digit(place) {
            place += 1;
            continue;
        }
        let begin = place;
        while is_digit(place) || (matches!(bytes.get(place), Some(b',' | b'.')) && is_digit(place + 1)) {
            place += 1;
        }
        if !is_name(begin) {
            let before = text[..begin].strip_suffix('-');
            let is_negative = before.is_some_and(|before| before.is_empty() || before.ends_with([' ', '(']));
            let begin = begin - usize::from(is_negative);
            found.push((begin, &text[begin..place]));
        }
    }
    found
}

/// The ratios of a text that are written in words, each with its position.
pub fn ratios(text: &str) -> Vec<(usize, &str)> {
    const ALONE: [&str; 16] = [
        "half", "halves", "halved", "third", "thirds", "quarter", "quarters", "fifth", "tenth", "twice",
        "thrice", "double", "doubled", "doubles", "triple", "tenfold",
    ];
    const COUNTS: [&str; 11] =
        ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "hundred"];
    let is_letter = |c: char| c.is_alphabetic();
    let mut words = Vec::new();
    let mut begin = 0;
    while let Some(start) = text[begin..].find(is_letter).map(|at| begin + at) {
        let end = text[start..].find(|c| !is_letter(c)).map_or(text.len(), |at| start + at);
        words.push((start, &text[start..end]));
        begin = end;
    }
    let is_one_of = |word: &str, list: &[&str]| list.iter().any(|other| word.eq_ignore_ascii_case(other));
    let is_ratio = |index: usize| {
        let (place, word) = words[index];
        let next = words.get(index + 1).filter(|(at, _)| text[place + word.len()..*at] == *" ");
        is_one_of(word, &ALONE)
            || (is_one_of(word, &COUNTS) && next.is_some_and(|(_, next)| is_one_of(next, &["times"])))
    };
    (0..words.len()).filter(|&index| is_ratio(index)).map(|index| words[index]).collect()
}

/// The value of a written number, and half of its last digit. None for dates, addresses and versions.
fn value(number: &str) -> Option<(f64, f64)> {
    let decimals = number.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let value = number.replace(',', "").parse().ok()?;
    Some((value, 0.5 * 10f64.powi(-i32::try_from(decimals).ok()?)))
}

fn values(text: &str) -> Vec<f64> {
    numbers(text).into_iter().filter_map(|(_, number)| Some(value(number)?.0)).collect()
}

/// The differences between the phrase and its source.
fn compare(phrase: &str, source: &str, sources: &Data, results: &Path) -> Result<Vec<String>, PageError> {
    let written: Vec<_> = numbers(phrase).into_iter().map(|(_, number)| number).collect();
    let mut wrong = Vec::new();
    let in_words = ratios(phrase);
    if written.is_empty() && in_words.is_empty() {
        wrong.push("it has no number".to_owned());
    }
    let is = |number: &str, result: f64| {
        value(number).is_some_and(|(value, half)| (value - result).abs() <= half * (1.0 + 1e-9) + 1e-12)
    };
    let mut results_of_all = Vec::new();
    let mut free = false;
    for item in source.split(" & ") {
        if let Some(file) = item.strip_prefix("in ") {
            let file = results.join(file);
            let text = fs::read_to_string(&file)
                .map_err(|error| PageError::Data { file: file.clone(), source: error.into() })?;
            let there: BTreeSet<&str> = numbers(&text).into_iter().map(|(_, number)| number).collect();
            let found = written.iter().filter(|number| there.contains(**number));
            results_of_all.extend(found.filter_map(|number| Some(value(number)?.0)));
            continue;
        }
        if matches!(item, "setting" | "example" | "paper" | "kernel" | "printed") {
            free = true;
            continue;
        }
        let (found, is_complete) = evaluate(item, sources, results)?;
        if found.is_empty() {
            wrong.push(format!("'{item}' has no number"));
        }
        if is_complete {
            let missing = found.iter().filter(|result| !written.iter().any(|number| is(number, **result)));
            wrong.extend(missing.map(|result| format!("'{item}' is {result}")));
        }
        results_of_all.extend(found);
    }
    if !free {
        wrong.extend(
            in_words.iter().map(|(_, word)| format!("'{word}' cannot be compared: write it in digits")),
        );
        let missing =
            written.iter().filter(|number| !results_of_all.iter().any(|result| is(number, *result)));
        wrong.extend(missing.map(|number| format!("{number} is not in '{source}'")));
    }
    Ok(wrong)
}

/// The results of a source, and whether all of them must be in the phrase.
fn evaluate(item: &str, sources: &Data, results: &Path) -> Result<(Vec<f64>, bool), PageError> {
    let unknown = || sources.failed(&format!("unknown source '{item}'"));
    let (operation, rest) = item.split_once(' ').ok_or_else(unknown)?;
    let parts: Vec<&str> = rest.split(';').collect();
    let selected = |operand: &str| -> Result<Vec<f64>, PageError> {
        let parts: Vec<&str> = operand.split(';').collect();
        let [file, rows, column] = *parts else { return Err(unknown()) };
        Ok(select(file, rows, column, results)?.concat())
    };
    let least = |values: &[f64]| values.iter().copied().reduce(f64::min);
    let greatest = |values: &[f64]| values.iter().copied().reduce(f64::max);
    Ok(match operation {
        "cell" => (selected(rest)?, false),
        "text" => {
            let column = |row: &Vec<String>| sources.cell(row, "phrase").is_ok_and(|phrase| phrase == rest);
            if !sources.rows.iter().any(column) {
                return Err(sources.failed(&format!("it has no phrase '{rest}'")));
            }
            (values(rest), false)
        }
        "range" => {
            let found = selected(rest)?;
            (least(&found).into_iter().chain(greatest(&found)).collect(), true)
        }
        "min" => (least(&selected(rest)?).into_iter().collect(), true),
        "max" => (greatest(&selected(rest)?).into_iter().collect(), true),
        "sum" => (vec![selected(rest)?.iter().sum()], true),
        "count" => (vec![selected(rest)?.len() as f64], true),
        "median" => {
            let mut found = selected(rest)?;
            found.sort_by(f64::total_cmp);
            (found.get(found.len() / 2).copied().into_iter().collect(), true)
        }
        "over" => {
            let (bound, rest) = rest.split_once(' ').ok_or_else(unknown)?;
            let bound: f64 = bound.parse().map_err(|_| unknown())?;
            (vec![selected(rest)?.into_iter().filter(|value| *value > bound).count() as f64], true)
        }
        "share" => {
            let [file, rows, column] = *parts else { return Err(unknown()) };
            let (some, all) = rows.split_once(" / ").ok_or_else(unknown)?;
            let sum = |rows| -> Result<f64, PageError> {
                Ok(select(file, rows, column, results)?.concat().iter().sum())
            };
            (vec![sum(some)? / sum(all)? * 100.0], true)
        }
        "rates" | "sent" => {
            let [file, contenders] = *parts else { return Err(unknown()) };
            let count = if operation == "sent" { "sent" } else { "delivered" };
            let ratios = rates(&Data::read(&results.join(file))?, contenders, count).ok_or_else(unknown)?;
            (least(&ratios).into_iter().chain(greatest(&ratios)).collect(), true)
        }
        "percent" => {
            let (found, is_complete) = evaluate(rest, sources, results)?;
            (found.into_iter().map(|value| value * 100.0).collect(), is_complete)
        }
        _ => return Err(unknown()),
    })
}

/// The numbers of each selected cell.
fn select(file: &str, rows: &str, column: &str, results: &Path) -> Result<Vec<Vec<f64>>, PageError> {
    let (column, ordinal) = match column.rsplit_once('#') {
        Some((column, ordinal)) => (column, ordinal.parse::<usize>().ok()),
        None => (column, None),
    };
    let mut found = Vec::new();
    for data in read(file, results)? {
        for row in &data.rows {
            let line = row.join(",");
            let begins = |begin: &str| line == begin || line.starts_with(&format!("{begin},"));
            if rows != "*" && !rows.split('|').any(begins) {
                continue;
            }
            let cells = match column {
                "*" => row.iter().map(String::as_str).collect(),
                column => vec![data.cell(row, column)?],
            };
            found.extend(cells.into_iter().map(|cell| match ordinal {
                Some(ordinal) => values(cell).into_iter().skip(ordinal.saturating_sub(1)).take(1).collect(),
                None => values(cell),
            }));
        }
    }
    Ok(found)
}

/// The files with this name: one, those that a `*` matches, or the table of a view.
fn read(file: &str, results: &Path) -> Result<Vec<Data>, PageError> {
    if file.contains(" + ") {
        let files = file.split(" + ").map(|file| read(file, results));
        return Ok(files.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect());
    }
    if let Some(view) = file.strip_prefix("view ") {
        let table = table_of(view, results)?;
        let mut lines = table.lines().map(|line| {
            let cells = line.trim_matches('|').split('|');
            cells.map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
        });
        let columns = lines.next().unwrap_or_default();
        return Ok(vec![Data { file: results.join(view), columns, rows: lines.skip(1).collect() }]);
    }
    let Some((before, after)) = file.split_once('*') else {
        return Ok(vec![Data::read(&results.join(file))?]);
    };
    let root = results.join(before);
    let failed = |source: std::io::Error| PageError::Data { file: root.clone(), source: source.into() };
    let mut folders = vec![root.clone()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(after) {
                files.push(path);
            }
        }
    }
    files.sort();
    files.iter().map(|file| Data::read(file)).collect()
}

/// The ratios of packets per second, by this count, of contenders under the same load in the same round. A name on the
/// left may be followed by one load.
fn rates(data: &Data, contenders: &str, count: &str) -> Option<Vec<f64>> {
    let (ours, theirs) = contenders.split_once(" / ")?;
    let rate = |row: &[String]| Some(data.number(row, count).ok()? / data.number(row, "seconds").ok()?);
    let is_ours = |row: &Vec<String>| {
        let with_load = format!("{},{}", row[0], row.get(1).map_or("", String::as_str));
        ours.split('|').any(|name| row[0] == name || with_load == name)
    };
    let mut ratios = Vec::new();
    for row in data.rows.iter().filter(|row| is_ours(row)) {
        for name in theirs.split('|') {
            let same = |other: &&Vec<String>| other[0] == name && other[1..3] == row[1..3];
            ratios.push(rate(row)? / rate(data.rows.iter().find(same)?)?);
        }
    }
    Some(ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The errors of a page with this text, these sources, and one file of data.
    fn wrong(text: &str, sources: &str) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        let results = root.path().join(RESULTS);
        fs::create_dir_all(&results).unwrap();
        fs::write(root.path().join(NUMBERED[0]), text).unwrap();
        fs::write(root.path().join(NUMBERED[1]), "").unwrap();
        fs::write(root.path().join("OTHER.md"), "3 of 4").unwrap();
        fs::write(results.join(SOURCES), format!("# where from\npage,phrase,source\n{sources}")).unwrap();
        let data = "who,load,round,rate,delivered,seconds,sent\nwe,9,1,\"5.12 (1.45, 7)\",300,1,300\n\
                    we,9,2,\"4.00 (1.67, 8)\",100,1,200\nthey,9,1,1,150,1,200\nthey,9,2,2,400,2,500\n";
        fs::write(results.join("a.csv"), data).unwrap();
        check(root.path()).unwrap()
    }

    #[test]
    fn a_number_without_a_source_is_found() {
        assert_eq!(wrong("no number, eth0@1 and x86", ""), Vec::<String>::new());
        assert_eq!(wrong("5 packets", ""), ["README.md: 5 has no source: ...5 packets..."]);
        assert_eq!(wrong("5 packets", "README.md,5 packets,setting\n"), Vec::<String>::new());
        assert_eq!(wrong("", "OTHER.md,5 of,setting\n").len(), 1, "of other pages the phrases are checked");
        let twice = wrong("5 packets, 5 packets", "README.md,5 packets,setting\n");
        assert_eq!(twice[0], "README.md: '5 packets' occurs 2 times");
        let longer = wrong("5 packets", "README.md,5 packet,setting\n");
        assert_eq!(longer, Vec::<String>::new());
        let longer = wrong("rate 51", "README.md,rate 5,setting\n");
        assert_eq!(longer, ["README.md: 51 has no source: ...rate 51..."], "a phrase has part of it");
        assert_eq!(wrong("from -5 to", "README.md,5 to,setting\n").len(), 1, "a sign belongs to its number");
        assert_eq!(wrong("1-5 (-5)", "README.md,1-5 (-5),setting\n"), Vec::<String>::new());
        assert_eq!(
            numbers("1-5 (-6) -7.5").iter().map(|(_, number)| *number).collect::<Vec<_>>(),
            ["1", "5", "-6", "-7.5"]
        );
        let table = "a\n<!-- data: rows a.csv -->\n\n| 7 |\n\n<!-- end of data -->\nb\n";
        assert_eq!(wrong(table, ""), Vec::<String>::new(), "tables have their own test");
    }

    #[test]
    fn a_number_that_differs_from_its_cell_is_found() {
        let right = |text: &str, source: &str| {
            assert_eq!(
                wrong(text, &format!("README.md,{text},{source}\n")),
                Vec::<String>::new(),
                "{source}"
            );
        };
        right("5.1 million", "\"cell a.csv;we,9,1;rate\"");
        right("1.45 to 1.67", "range a.csv;we;rate#2");
        right("9.1 in all", "sum a.csv;we;rate#1");
        right("2 rounds", "count a.csv;we;round");
        right("1 of them", "over 4.5 a.csv;we;rate#1");
        right("0.50 to 2.00 times", "rates a.csv;we / they");
        right("0.80 to 1.50 times", "\"sent a.csv;we,9 / they\"");
        right("200 %", "\"share a.csv;we,9,1 / they,9,1;delivered\"");
        right("512 %", "percent max a.csv;we;rate#1");
        right("2 views", "\"cell view rows a.csv;they,9,2;rate\"");
        right("2 files", "count *a.csv;they;round");
        right("4 files", "count a.csv + a.csv;they;round");
        right("1.45 in all", "in a.csv");
        let differs = |text: &str, source: &str| {
            let wrong = wrong(text, &format!("README.md,{text},{source}\n"));
            assert!(!wrong.is_empty(), "{text}: {source}");
        };
        differs("5.2 million", "\"cell a.csv;we,9,1;rate\"");
        differs("1.45 to 1.68", "range a.csv;we;rate#2");
        differs("1.45", "range a.csv;we;rate#2");
        differs("3 rounds", "count a.csv;we;round");
        differs("5.1 million", "cell a.csv;other;rate");
        differs("1.46", "in a.csv");
        differs("10.1.2.3", "cell a.csv;we;rate");
    }

    #[test]
    fn a_ratio_in_words_needs_a_source_and_cannot_be_a_measured_one() {
        let words = |text| ratios(text).into_iter().map(|(_, word)| word).collect::<Vec<_>>();
        assert_eq!(
            words("Twice as fast, three times, two thirds, a quarter"),
            ["Twice", "three", "thirds", "quarter"]
        );
        assert_eq!(words("three rounds at times, halfway, the four cells, sometimes"), Vec::<&str>::new());
        let row = |source: &str| format!("README.md,twice as fast,{source}\n");
        assert_eq!(wrong("it is twice as fast", "").len(), 1);
        assert_eq!(wrong("it is twice as fast", &row("setting")), Vec::<String>::new());
        let measured = wrong("it is twice as fast", &row("cell a.csv;we;rate"));
        assert_eq!(measured, ["README.md: 'twice as fast': 'twice' cannot be compared: write it in digits"]);
    }

    #[test]
    fn a_phrase_may_repeat_the_numbers_of_another_one() {
        let sources = "README.md,266.4 MiB of memory,printed\nREADME.md,266 MiB,text 266.4 MiB of memory\n";
        assert_eq!(wrong("266 MiB: 266.4 MiB of memory", sources), Vec::<String>::new());
        let differs = wrong("267 MiB: 266.4 MiB of memory", &sources.replace("266 MiB", "267 MiB"));
        assert_eq!(differs.len(), 1, "{differs:?}");
    }
}
