//! Checks that the tables and pictures in the documents match the data.

use std::fs;
use std::path::Path;

use wirecap_lab::pages::pictures::PICTURES;
use wirecap_lab::pages::{PAGES, fill};

#[test]
fn the_tables_of_the_pages_are_those_of_the_data() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for name in PAGES {
        let page = fs::read_to_string(root.join(name)).unwrap();
        let filled = fill(&page, &root).unwrap();
        let differs = page.lines().zip(filled.lines()).find(|(page, data)| page != data);
        assert!(page == filled, "{name} is not what the data say (make performance): {differs:#?}");
        let tables = page.lines().filter(|line| line.starts_with("|---")).count();
        let marked = page.matches("<!-- data: ").count();
        assert!(marked > 0, "{name} has no table of data");
        let without_data = match name {
            // The summary, and the goals that are missed.
            "docs/performance.md" => 2,
            // What runs where, and the model.
            _ => 5,
        };
        assert_eq!(tables, marked + without_data, "{name} has a table without data");
    }
}

#[test]
fn the_pictures_of_the_pages_are_those_of_the_data() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/performance.md")).unwrap();
    for picture in PICTURES {
        let committed = fs::read_to_string(root.join(picture.file)).unwrap();
        assert!(
            committed == picture.svg(&root).unwrap(),
            "{} is outdated (make performance)",
            picture.file
        );
        let name = picture.file.strip_prefix("docs/").unwrap();
        assert!(page.contains(&format!("]({name})")), "no page shows {name}");
    }
}

#[test]
fn the_ledger_in_the_readme_is_the_one_in_the_guide() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let ledger = |page: &str| {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let begin = text.find("wrote 10,000,000 packets").unwrap();
        text[begin..].split("```").next().unwrap().to_owned()
    };
    assert_eq!(ledger("README.md"), ledger("docs/guide/record.md"));
}
