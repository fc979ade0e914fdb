//! Checksums of the data in `docs/results`, so that a change of any number is detected, even if no page shows it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{PageError, RESULTS};

/// The file with the checksums, in the form of sha256sum(1), from the root of the repository.
pub const SUMS: &str = "docs/results/SHA256SUMS";

/// Files that are edited by hand, and the verdicts of `make long`.
const WRITTEN: [&str; 4] = ["README.md", "SHA256SUMS", "long.csv", "numbers.csv"];

/// The checksums of all data under `root`, by sha256sum(1).
///
/// # Errors
///
/// If a file cannot be read, or sha256sum cannot run.
pub fn sums(root: &Path) -> Result<String, PageError> {
    let results = root.join(RESULTS);
    let failed = |source: std::io::Error| PageError::Data { file: results.clone(), source: source.into() };
    let mut files: Vec<PathBuf> = Vec::new();
    let mut folders = vec![results.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(name) = path.strip_prefix(&results)
                && !WRITTEN.iter().any(|written| name == Path::new(written))
            {
                files.push(name.to_owned());
            }
        }
    }
    files.sort();
    let output = Command::new("sha256sum").args(&files).current_dir(&results).output().map_err(failed)?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(PageError::Data { file: results, source: reason.into() });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_or_removed_file_changes_the_sums() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join(RESULTS).join("run/data");
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("a.csv"), "x\n1\n").unwrap();
        fs::write(data.join("b.csv"), "x\n2\n").unwrap();
        fs::write(root.path().join(SUMS), "any").unwrap();
        let before = sums(root.path()).unwrap();
        let names: Vec<_> = before.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(names, ["run/data/a.csv", "run/data/b.csv"]);
        fs::write(data.join("a.csv"), "x\n3\n").unwrap();
        let changed = sums(root.path()).unwrap();
        assert_ne!(before, changed);
        fs::remove_file(data.join("b.csv")).unwrap();
        assert_eq!(sums(root.path()).unwrap().lines().count(), 1);
    }
}
