//! Checks that the numbers and tables in the documents match the data.

use std::fs;
use std::path::Path;

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
        // Two tables have no data: the summary of questions, and the description of the instruction counts' paths.
        assert_eq!(tables, marked + 2, "{name} has a table without data");
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
