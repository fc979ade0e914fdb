//! The documents have the numbers of the data.

use std::fs;
use std::path::Path;

use wirecap_lab::pages::{PAGES, fill};

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
        // The only other table is the summary of questions.
        assert_eq!(tables, marked + 1, "{name} has a table without data");
    }
}
