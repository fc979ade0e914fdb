//! Writes the tables and pictures of the documents from the data in `lab/results`.
//! `make performance` runs it.

use std::error::Error;
use std::fs;
use std::path::Path;

use wirecap_lab::pages::pictures::PICTURES;
use wirecap_lab::pages::{PAGES, fill};

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for name in PAGES {
        let path = root.join(name);
        let page = fs::read_to_string(&path)?;
        let filled = fill(&page, &root)?;
        if filled != page {
            fs::write(&path, filled)?;
            println!("{name} was rewritten");
        }
    }
    for picture in PICTURES {
        fs::write(root.join(picture.file), picture.svg(&root)?)?;
    }
    Ok(())
}
