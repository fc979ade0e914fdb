//! What tests on a shared machine agree on: who skips, and who waits.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use wirecap_filter::bpf::{Map, MapKind};

use crate::Namespace;

/// How long something may take on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(60);

/// The file that tests of loss lock, in the directory for temporary files.
const LOCK_NAME: &str = "wirecap-testbed.lock";

/// Whether this process may build a test bed: make namespaces and load programs. If not, says SKIP
/// and why on standard error.
///
/// # Panics
///
/// If it may not and the environment has `WIRECAP_NO_SKIP=1`: in that lane a skip is a failure.
pub fn privileged() -> bool {
    let lacking = Namespace::new().err().map(|error| error.to_string());
    let lacking = lacking.or_else(|| Map::create(MapKind::Array, "probe", 4, 1).err().map(|e| e.to_string()));
    lacking.iter().for_each(|lacking| skip(lacking));
    lacking.is_none()
}

/// Says on standard error that a test is skipped because of what is `lacking`.
///
/// # Panics
///
/// If the environment has `WIRECAP_NO_SKIP=1`: in that lane a skip is a failure.
#[track_caller]
pub fn skip(lacking: &str) {
    let may_skip = env::var_os("WIRECAP_NO_SKIP").is_none_or(|value| value != "1");
    assert!(may_skip, "WIRECAP_NO_SKIP=1, but: {lacking}");
    // Not by eprintln!, which the test harness keeps to itself when a test passes; and in one piece,
    // since tests run side by side.
    let _closed = io::stderr().write_all(format!("SKIP: {lacking}\n").as_bytes());
}

/// Waits until `is_so` says yes, for a minute at most: a test waits for what it needs, never for a time.
///
/// # Panics
///
/// When the minute is over.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The savefiles below the folder of traces, in order: that of `WIRECAP_TRACES`, or `shared/traces` beside the project's folder.
/// None, and a word about it on standard error, where there is no such folder: the traces are no part of the project.
///
/// # Panics
///
/// If a folder that can be opened cannot be read to its end.
pub fn traces() -> Vec<PathBuf> {
    let beside_project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let root = env::var_os("WIRECAP_TRACES").map_or(beside_project, PathBuf::from);
    let (mut found, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("the folder can be read").path();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some("pcap" | "pcapng" | "cap") => found.push(path),
                _ => {}
            }
        }
    }
    if found.is_empty() {
        eprintln!("SKIP: no traces in {}", root.display());
    }
    found.sort();
    found
}

/// Held while a test counts losses or measures rates: two of those at once disturb each other.
#[derive(Debug)]
#[must_use = "the lock ends when this is dropped"]
pub struct LossLock {
    _file: File,
}

/// Waits until no other process on this machine, and no other thread of this one, holds the lock.
/// The kernel takes it from a process that dies.
///
/// # Errors
///
/// The kernel's answer if the lock file cannot be opened.
pub fn loss_lock() -> io::Result<LossLock> {
    let file = open_lock_file(&env::temp_dir().join(LOCK_NAME))?;
    retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
    Ok(LossLock { _file: file })
}

/// Opens the file as it is, if there is one: in a sticky directory not even root may open another
/// user's file for writing.
fn open_lock_file(path: &Path) -> io::Result<File> {
    File::open(path).or_else(|_| OpenOptions::new().write(true).create(true).truncate(false).open(path))
}
