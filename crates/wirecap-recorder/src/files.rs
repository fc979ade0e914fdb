//! The files of a set in their directory: found again after a restart, completed, removed.

use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::statvfs;
use wirecap_savefile::{ReadError, Reader};

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
        if !entry.file_type()?.is_file() {
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

/// Refuses a pattern that another process writes files of.
pub(crate) fn refuse_busy(pattern: &Pattern) -> io::Result<()> {
    for entry in fs::read_dir(pattern.directory())? {
        let entry = entry?;
        let name = entry.file_name();
        let is_part = name.to_str().and_then(|name| name.strip_suffix(PART));
        if is_part.is_some_and(|name| pattern.sequence_of(name).is_some()) && entry.file_type()?.is_file() {
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

/// Gives an incomplete file that no process writes its name, without what is torn at its end, and removes one that has nothing.
/// One that is no savefile keeps the name that says so.
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

/// A name that no file bears: the path, or the path with a number.
pub(crate) fn free_name(path: &Path) -> PathBuf {
    let is_free =
        |path: &PathBuf| fs::symlink_metadata(path).is_err() && fs::symlink_metadata(part_of(path)).is_err();
    let numbered = (1_u64..).map(|number| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!("-{number}"));
        PathBuf::from(name)
    });
    std::iter::once(path.to_owned()).chain(numbered).find(is_free).expect("there are names enough")
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
