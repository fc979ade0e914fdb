//! Checks that the numbers and tables in the documents match the data.

use std::fs;
use std::ops::Range;
use std::path::Path;

use wirecap_lab::pages::pictures::PICTURES;
use wirecap_lab::pages::sums::{SUMS, sums};
use wirecap_lab::pages::{PAGES, fill, numbers};

#[test]
fn the_tables_of_the_pages_are_those_of_the_data() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for name in PAGES {
        let page = fs::read_to_string(root.join(name)).unwrap();
        let filled = fill(&page, &root).unwrap();
        let differs = page.lines().zip(filled.lines()).find(|(page, data)| page != data);
        assert!(page == filled, "{name} is not what the data say (make performance): {differs:#?}");
        let tables = page.lines().filter(|line| line.starts_with("|---")).count();
        let marked = page.matches("<!-- data: ").count();
        assert!(marked > 0, "{name} has no table of data");
        let without_data = match name {
            // The summary of questions, and the description of the instruction counts' paths.
            "docs/performance.md" => 2,
            // What runs where, and the model.
            _ => 5,
        };
        assert_eq!(tables, marked + without_data, "{name} has a table without data");
    }
}

#[test]
fn the_pictures_of_the_pages_are_those_of_the_data() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/performance.md")).unwrap();
    for picture in PICTURES {
        let committed = fs::read_to_string(root.join(picture.file)).unwrap();
        assert!(committed == picture.svg(&root).unwrap(), "{} is outdated (make performance)", picture.file);
        let name = picture.file.strip_prefix("docs/").unwrap();
        assert!(page.contains(&format!("]({name})")), "no page shows {name}");
    }
}

#[test]
fn every_number_in_the_text_of_the_pages_has_a_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let wrong = numbers::check(&root).unwrap();
    assert!(wrong.is_empty(), "docs/results/numbers.csv:\n{}", wrong.join("\n"));
}

#[test]
fn the_ledger_in_the_readme_is_the_one_in_the_guide() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let ledger = |page: &str| {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let begin = text.find("wrote 10,000,000 packets").unwrap();
        text[begin..].split("```").next().unwrap().to_owned()
    };
    assert_eq!(ledger("README.md"), ledger("docs/guide/record.md"));
}

#[test]
fn the_data_are_those_of_their_checksums() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let committed = fs::read_to_string(root.join(SUMS)).unwrap();
    let now = sums(&root).unwrap();
    let differs: Vec<_> = now.lines().filter(|line| !committed.lines().any(|other| other == *line)).collect();
    assert!(committed == now, "data were added, changed or removed (make performance): {differs:#?}");
}

/// What a number may be changed to: another last digit, one digit more, one less, and nothing.
fn changes(number: &str) -> [String; 4] {
    let (rest, last) = number.split_at(number.len() - 1);
    let other = if last == "9" { "8" } else { "9" };
    [format!("{rest}{other}"), format!("{number}1"), format!("1{number}"), String::new()]
}

#[test]
fn every_changed_number_of_a_page_is_found() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sources = numbers::Sources::read(&root).unwrap();
    for name in numbers::NUMBERED {
        let page = fs::read_to_string(root.join(name)).unwrap();
        let (mut in_text, mut in_tables) = (0, 0);
        for (place, number) in numbers::numbers(&page).into_iter().chain(numbers::ratios(&page)) {
            match part(&page, place) {
                Part::Marker => {}
                Part::Table => in_tables += 1,
                Part::Text => {
                    in_text += 1;
                    for other in changes(number) {
                        let found = is_found(&sources, name, &page, place..place + number.len(), &other);
                        let around: String = page[place..].chars().take(60).collect();
                        assert!(found, "{name}: {number} may become '{other}': {around}");
                    }
                }
            }
        }
        // Whatever is between the markers is replaced by the data, so that any change there is found.
        let scrambled: String = page
            .char_indices()
            .map(|(place, c)| if c.is_ascii_digit() && part(&page, place) == Part::Table { '0' } else { c })
            .collect();
        assert_eq!(fill(&scrambled, &root).unwrap(), page);
        println!("{name}: {in_text} numbers in the text, {in_tables} in tables");
        assert!(in_text > 0 && (in_tables > 0) == PAGES.contains(&name));
    }
}

/// Whether the check finds another text at this place.
fn is_found(sources: &numbers::Sources, name: &str, page: &str, range: Range<usize>, other: &str) -> bool {
    // The paragraph is enough, and faster, if all its numbers have their sources within it.
    let begin = page[..range.start].rfind("\n\n").unwrap_or(0);
    let end = page[range.end..].find("\n\n").map_or(page.len(), |end| range.end + end);
    let paragraph = &page[begin..end];
    let before = sources.unsourced(name, paragraph);
    let is_enough = !before.iter().any(|wrong| wrong.contains("has no source"));
    let (text, before, begin) =
        if is_enough { (paragraph, before, begin) } else { (page, sources.unsourced(name, page), 0) };
    let changed = format!("{}{other}{}", &text[..range.start - begin], &text[range.end - begin..]);
    sources.unsourced(name, &changed) != before
}

/// A part of a page.
#[derive(PartialEq)]
enum Part {
    Text,
    /// The line that names a table's data; it has its own test.
    Marker,
    Table,
}

fn part(page: &str, place: usize) -> Part {
    let before = &page[..place];
    let Some(begin) = before.rfind("<!-- data: ") else { return Part::Text };
    match before[begin..].contains("<!-- end of data -->") {
        true => Part::Text,
        false if before[begin..].contains('\n') => Part::Table,
        false => Part::Marker,
    }
}

#[test]
fn every_number_of_a_marker_matters() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for name in PAGES {
        let page = fs::read_to_string(root.join(name)).unwrap();
        for (begin, _) in page.match_indices("<!-- data: ") {
            let marker = page[begin..].lines().next().unwrap();
            for (place, number) in numbers::numbers(marker) {
                let place = begin + place;
                for other in changes(number) {
                    let changed = format!("{}{other}{}", &page[..place], &page[place + number.len()..]);
                    // Other data, or none with this name.
                    let same = fill(&changed, &root).is_ok_and(|filled| filled == changed);
                    assert!(!same, "{number} may become '{other}' in {marker}");
                }
            }
        }
    }
}
