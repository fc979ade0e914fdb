//! Interfaces that are dedicated to capturing, for tests of `--engine auto`: marks in a directory
//! of this process, which it and the programs that it starts use in place of
//! `/etc/wirecap/dedicated`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, process};

use crate::{Inline, Interface, SetupError, VethPair, sys};

const PREFIX: &str = "wirecap-dedicated-";

/// The directory of the marks.
///
/// # Panics
///
/// If it cannot be created.
pub fn dedicated_directory() -> &'static Path {
    static DIRECTORY: OnceLock<(PathBuf, File)> = OnceLock::new();
    let (directory, _) = DIRECTORY.get_or_init(|| {
        remove_those_of_the_dead();
        let own = (0..1000).find_map(locked).expect("a directory for marks");
        sys::set_variable("WIRECAP_DEDICATED_DIR", &own.0);
        own
    });
    directory
}

/// A new directory of this process, which is its own while it has the lock. Process numbers would
/// not tell whose it is: a process in another namespace may have the same one.
fn locked(number: u32) -> Option<(PathBuf, File)> {
    let path = env::temp_dir().join(format!("{PREFIX}{}-{number}", process::id()));
    fs::DirBuilder::new().mode(0o755).create(&path).ok()?;
    let directory = File::open(&path).ok()?;
    // Another process may have taken it for one of a dead process, and removed it.
    (directory.try_lock().is_ok() && path.exists()).then_some((path, directory))
}

/// Removes the directories of processes that have ended: no process holds their locks.
fn remove_those_of_the_dead() {
    for entry in fs::read_dir(env::temp_dir()).into_iter().flatten().flatten() {
        let is_for_marks = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // Others' entries are not opened: opening a FIFO would wait for its writer.
        if is_for_marks
            && File::open(entry.path()).is_ok_and(|directory| directory.try_lock().is_ok())
        {
            let _another_process_may_have_removed_it = fs::remove_dir_all(entry.path());
        }
    }
}

/// The pair, both ends dedicated to capturing.
///
/// # Errors
///
/// As [`dedicate`].
pub fn dedicated(pair: VethPair) -> Result<VethPair, SetupError> {
    dedicate(&pair.sender)?;
    dedicate(&pair.receiver)?;
    Ok(pair)
}

impl Inline {
    /// The bed, both ports of the machine in the middle dedicated to capturing.
    ///
    /// # Errors
    ///
    /// As [`dedicate`].
    pub fn dedicated(self) -> Result<Self, SetupError> {
        dedicate(&self.left.port)?;
        dedicate(&self.right.port)?;
        Ok(self)
    }
}

/// Dedicates the interface to capturing, so that `--engine auto` may select `xdp`. Interfaces of
/// the same name in other namespaces keep their marks: a mark may have several addresses.
///
/// # Errors
///
/// [`SetupError`] if the mark cannot be written.
pub fn dedicate(interface: &Interface) -> Result<(), SetupError> {
    let [a, b, c, d, e, f] = interface.mac;
    let line = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}\n");
    let append = || -> io::Result<()> {
        let path = dedicated_directory().join(&interface.name);
        let mut file = OpenOptions::new().append(true).create(true).mode(0o644).open(path)?;
        file.write_all(line.as_bytes())
    };
    append().map_err(|source| SetupError::interface(&interface.name, "dedicate interface", source))
}
