//! The files of a set in their directory: found again after a restart, completed, removed.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs};
use rustix::io::Errno;
use wirecap_savefile::{ReadError, Reader, is_planted};

use crate::compression::{Compression, whole_frames};
use crate::names::Pattern;

/// Ends the name of a file that is not complete.
const PART: &str = ".part";

/// The name of a file that is being written.
pub(crate) fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(PART);
    name.into()
}

/// The files that earlier runs left.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    /// The oldest first, with their sizes.
    pub(crate) files: Vec<(PathBuf, u64)>,
    /// The number that comes next.
    pub(crate) next_sequence: u64,
}

/// Looks for the files of a pattern. One that a process left behind incomplete is cut to its last whole packet and completed.
pub(crate) fn earlier(pattern: &Pattern) -> io::Result<Earlier> {
    let mut found: Vec<(Option<u64>, SystemTime, PathBuf, u64)> = Vec::new();
    for entry in fs::read_dir(pattern.directory())? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        let Some(sequence) = pattern.sequence_of(name.strip_suffix(PART).unwrap_or(&name)) else { continue };
        // Other users may put there what looks like ours: counted against budgets, or locked, it would end a recording.
        if !entry.file_type()?.is_file() || is_planted(&entry.path()).unwrap_or(true) {
            continue;
        }
        let mut path = entry.path();
        if name.ends_with(PART) {
            match salvage(&path)? {
                Some(salvaged) => path = salvaged,
                None => continue,
            }
        }
        let metadata = fs::symlink_metadata(&path)?;
        found.push((sequence, metadata.modified()?, path, metadata.len()));
    }
    // By number where all have one: that order a clock cannot change.
    match found.iter().all(|(sequence, ..)| sequence.is_some()) {
        true => found.sort_by_key(|(sequence, modified, ..)| (*sequence, *modified)),
        false => found.sort_by_key(|(_, modified, ..)| *modified),
    }
    let next_sequence = found.iter().filter_map(|(sequence, ..)| *sequence).max().map_or(0, |last| last + 1);
    let files = found.into_iter().map(|(_, _, path, bytes)| (path, bytes)).collect();
    Ok(Earlier { files, next_sequence })
}

/// Fails if another process writes files of this pattern in the directory, or if the directory cannot be read.
///
/// # Errors
///
/// [`io::ErrorKind::WouldBlock`] if another process does, and errors of the system.
pub fn refuse_busy(pattern: &Pattern) -> io::Result<()> {
    for entry in fs::read_dir(pattern.directory())? {
        let entry = entry?;
        let name = entry.file_name();
        let is_part = name.to_str().and_then(|name| name.strip_suffix(PART));
        let is_ours = is_part.is_some_and(|name| pattern.sequence_of(name).is_some())
            && entry.file_type()?.is_file()
            && !is_planted(&entry.path()).unwrap_or(true);
        if is_ours {
            refuse_locked(&File::open(entry.path())?, &entry.path())?;
        }
    }
    Ok(())
}

fn refuse_locked(file: &File, path: &Path) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let text = format!("another process is writing to {}", path.display());
            Err(io::Error::new(io::ErrorKind::WouldBlock, text))
        }
        _ => Ok(()),
    }
}

/// Renames an incomplete file that no process writes, after truncating its torn end, and removes an empty one. A file
/// that is no savefile keeps its name.
fn salvage(part: &Path) -> io::Result<Option<PathBuf>> {
    let file = File::options().read(true).write(true).open(part)?;
    refuse_locked(&file, part)?;
    let path = part.to_str().and_then(|part| part.strip_suffix(PART)).map(PathBuf::from);
    let Some(path) = path.filter(|path| !path.exists()) else { return Ok(Some(part.to_owned())) };
    if file.metadata()?.len() == 0 {
        fs::remove_file(part)?;
        return Ok(None);
    }
    let is_whole = match Compression::of(&path) {
        Compression::None => cut_to_whole_packets(&file, part)?,
        compression => cut_to_whole_frames(&file, compression)?,
    };
    if !is_whole {
        return Ok(Some(part.to_owned()));
    }
    file.sync_all()?;
    fs::rename(part, &path)?;
    Ok(Some(path))
}

/// Whether the file is a savefile; one that is has whole packets only from now on.
fn cut_to_whole_packets(file: &File, path: &Path) -> io::Result<bool> {
    let Ok(mut reader) = Reader::open(path) else { return Ok(false) };
    loop {
        match reader.next_record() {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(true),
            Err(ReadError::Truncated { .. } | ReadError::Malformed { .. }) => {
                file.set_len(reader.offset())?;
                return Ok(true);
            }
            Err(_) => return Ok(false),
        }
    }
}

/// The same for one that is compressed, whose frames have whole packets.
fn cut_to_whole_frames(file: &File, compression: Compression) -> io::Result<bool> {
    let Some((bytes, end)) = whole_frames(file, compression)? else { return Ok(false) };
    file.set_len(bytes)?;
    let mut file = file;
    file.seek(SeekFrom::Start(bytes))?;
    file.write_all(&end)?;
    Ok(true)
}

/// Numbers that are tried before others that no user can foresee.
const NUMBERS_TRIED: u64 = 16;

/// A name that no file bears: the path, or the path with a number.
pub(crate) fn free_name(path: &Path) -> PathBuf {
    let is_free =
        |path: &PathBuf| fs::symlink_metadata(path).is_err() && fs::symlink_metadata(part_of(path)).is_err();
    let with = |suffix: String| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let numbered = (1..=NUMBERS_TRIED).map(|number| with(format!("-{number}")));
    let unforeseen = std::iter::repeat_with(|| {
        // The hash of nothing, with a random key.
        with(format!("-{:016x}", RandomState::new().build_hasher().finish()))
    });
    std::iter::once(path.to_owned())
        .chain(numbered)
        .chain(unforeseen)
        .find(is_free)
        .expect("there are names enough")
}

/// Gives `file`, which is being written as `part`, the name `path`, which it takes from another file if it `replaces` that; else, if
/// something else has the name, another one. `None` if the file is there no longer: another process has removed it.
pub(crate) fn give_name(
    file: &File,
    part: &Path,
    path: &Path,
    replaces: bool,
) -> io::Result<Option<PathBuf>> {
    let own = file.metadata()?;
    let mut name = path.to_owned();
    loop {
        match fs::symlink_metadata(part) {
            Ok(entry) if (entry.dev(), entry.ino()) == (own.dev(), own.ino()) => {}
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // A directory that is gone has no room for the next file either.
            _ => return fs::metadata(directory_of(part)).map(|_| None),
        }
        let renamed = match replaces && name == path {
            true => fs::rename(part, &name),
            false => rename_to_new(part, &name),
        };
        match renamed {
            Ok(()) => return Ok(Some(name)),
            Err(error) if fs::symlink_metadata(&name).is_err() => {
                if error.kind() != io::ErrorKind::NotFound {
                    return Err(error);
                }
            }
            // Something has the name, and keeps it.
            Err(_) => name = free_name(path),
        }
    }
}

/// Whether the file opened as `path` has lost all its names. A file that never had one exists as long as it is open.
pub(crate) fn is_gone(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    // By a name of the process's own descriptors it is found.
    let is_found =
        || fs::metadata(path).is_ok_and(|entry| (entry.dev(), entry.ino()) == (own.dev(), own.ino()));
    Ok(own.is_file() && own.nlink() == 0 && !is_found())
}

/// As rename(2), but nothing is replaced.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system cannot.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if fs::symlink_metadata(to).is_err() => {
            fs::rename(from, to)
        }
        outcome => Ok(outcome?),
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Bytes that a process without privileges may still write where `path` is.
pub(crate) fn free_bytes(directory: &Path) -> io::Result<u64> {
    let status = statvfs(directory)?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

/// Makes the names in a directory last, if it is one whose names do: those of /proc and /dev/fd are made by the kernel.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory)?.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        outcome => outcome,
    }
}
