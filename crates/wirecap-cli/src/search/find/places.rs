//! The places to search: directories, files and patterns, before the words of a filter.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use wirecap::device::Device;
use wirecap_index::segments;

use crate::shared::failure::Failure;

/// The segments at the places in the first words, and the filter in the other words.
pub(crate) fn places_and_filter(words: &[String]) -> Result<(Vec<PathBuf>, String), Failure> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut count = 0;

    for word in words {
        let named = named(word)?;
        if named.is_empty() {
            break;
        }

        count += 1;

        for place in named {
            let segments = segments_below(&place).map_err(|error| {
                Failure::Failed(format!("cannot read {}: {error}", place.display()).into())
            })?;
            found.extend(segments);
        }
    }

    match words.get(count) {
        Some(word) if count == 0 && Device::find(word).is_ok() => {
            Err(Failure::Usage(format!("{word} is an interface, not a file: write -i before it")))
        }
        Some(word) if count == 0 || is_path(word) => {
            Err(Failure::Usage(format!("{word}: no such file or directory")))
        }
        _ => {
            // A file that is named twice is read once.
            let mut seen = std::collections::HashSet::new();
            found.retain(|path| seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
            Ok((found, words[count..].join(" ")))
        }
    }
}

/// The segments at a place, of a directory also those in the directories below it.
fn segments_below(place: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = segments(place)?;
    if !place.is_dir() {
        return Ok(found);
    }

    let mut directories = Vec::new();

    for entry in fs::read_dir(place)? {
        let entry = entry?;
        // Not those behind symbolic links, which may lead in circles.
        if entry.file_type()?.is_dir() {
            directories.push(entry.path());
        }
    }

    directories.sort();

    for directory in directories {
        match segments_below(&directory) {
            Ok(segments) => found.extend(segments),
            // The reader of the segments reports it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found.push(directory),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }

    Ok(found)
}

/// The places in the first words, for a message.
pub(super) fn names(words: &[String]) -> String {
    let names = words.iter().take_while(|word| named(word).is_ok_and(|places| !places.is_empty()));
    names.map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// The files or directories that a word names; none if it names none.
fn named(word: &str) -> Result<Vec<PathBuf>, Failure> {
    if Path::new(word).exists() {
        return Ok(vec![word.into()]);
    }
    if !word.contains(['*', '?']) || word.contains(char::is_whitespace) {
        return Ok(Vec::new());
    }
    let Ok(paths) = glob::glob(word) else { return Ok(Vec::new()) };
    let paths = paths.filter_map(Result::ok).filter(|path| !is_index(path));
    Ok(paths.collect())
}

fn is_index(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "parquet")
}

/// Whether a word can only be a path.
fn is_path(word: &str) -> bool {
    const EXTENSIONS: [&str; 6] = [".pcap", ".pcapng", ".cap", ".gz", ".zst", ".part"];
    ["/", "./", "../"].iter().any(|start| word.starts_with(start))
        || word.ends_with('/')
        || EXTENSIONS.iter().any(|extension| word.ends_with(extension))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_begins_where_the_files_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        for name in ["a.pcapng", "b.pcapng"] {
            fs::write(path(name), [0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0]).unwrap();
        }

        fs::write(path("notes.txt"), "not packets").unwrap();
        fs::write(path("a.pcapng.flows.parquet"), "PAR1").unwrap();
        fs::create_dir_all(folder.path().join("2026/11")).unwrap();
        std::os::unix::fs::symlink(folder.path(), path("2026/again")).unwrap();
        fs::write(path("2026/11/c.pcapng"), [0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0]).unwrap();

        let below = path("2026/11/c.pcapng").into();
        let both = vec![PathBuf::from(path("a.pcapng")), path("b.pcapng").into()];
        let of = |words: &[&str]| {
            places_and_filter(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        let directory = path("");
        let all = [both, vec![below]].concat();
        assert_eq!(
            of(&[&directory, "udp", "port 53"]).unwrap(),
            (all.clone(), "udp port 53".to_owned())
        );
        assert_eq!(of(&[&path("*.pcapng"), &directory]).unwrap(), (all, String::new()));

        for missing in [
            &["udp"][..],
            &["/no/such/folder", "udp"],
            &[&directory, "./missing", "udp"],
            &[&directory, "gone.pcap"],
        ] {
            assert!(of(missing).unwrap_err().to_string().contains("no such file"), "{missing:?}");
        }
    }
}
