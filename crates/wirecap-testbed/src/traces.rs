//! The savefiles that stand for the recordings of other programs. A file of its own, because the
//! tests of crates on which this one depends include it as a module.

#![allow(unreachable_pub, dead_code)] // Not each of them uses both functions, and none exports them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The savefiles of the repository (`traces/make.py` writes them), and then those in the folder
/// `$WIRECAP_TRACES`, or in `shared/traces` next to the project's folder if there is one.
///
/// # Panics
///
/// If a folder cannot be read.
pub fn traces() -> Vec<PathBuf> {
    let mut found = own_traces();
    found.extend(third_party_traces());
    found
}

/// The savefiles of the repository: of many link types and formats, some of them damaged.
///
/// # Panics
///
/// If their folder cannot be read.
pub fn own_traces() -> Vec<PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../wirecap-testbed/traces"));
    let found = savefiles(folder);
    assert!(!found.is_empty(), "no traces in {}", folder.display());
    found
}

/// Recordings of real traffic, if this machine has them.
fn third_party_traces() -> Vec<PathBuf> {
    if let Some(folder) = env::var_os("WIRECAP_TRACES") {
        return savefiles(Path::new(&folder));
    }
    let beside_project = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces"));
    if beside_project.is_dir() { savefiles(beside_project) } else { Vec::new() }
}

/// The savefiles in a folder and its subfolders, in order.
fn savefiles(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("the folder can be read").path();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some("pcap" | "pcapng" | "cap") => found.push(path),
                _ => {}
            }
        }
    }

    found.sort();
    found
}
