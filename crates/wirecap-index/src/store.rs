//! Index files in the directories of their segments: finds, validates and writes them.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use wirecap_savefile::ReadError;
use wirecap_units::size::human_bytes;

use crate::blocks::Damaged;
use crate::build::{Built, build};
use crate::identity::{Identity, modified};
use crate::row::Index;
use crate::table::{self, Table};

/// The extension of an index.
const EXTENSION: &str = ".flows.parquet";
/// Larger files are not read.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// How often a process tries to create the file of an index while others create, complete and
/// remove theirs.
const PART_ATTEMPTS: usize = 1000;

/// The name of a segment's index.
pub fn index_path(segment: &Path) -> PathBuf {
    let mut name = segment.as_os_str().to_owned();
    name.push(EXTENSION);
    name.into()
}

/// The reason why a segment has no valid index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Without {
    /// There is none.
    #[error("it has no index")]
    Missing,
    /// The storage does not deliver it.
    #[error("its index cannot be read: {0}")]
    Unreadable(String),
    /// Its checksums are wrong, or it contradicts itself.
    #[error("its index is damaged: {0}")]
    Damaged(String),
    /// The index is that of another segment, or the segment has changed since.
    #[error("the file was changed after its index was written")]
    Stale,
}

/// The index file of a segment, if it is valid as far as it was read.
pub(crate) fn open(segment: &Path) -> Result<Table, Without> {
    let unreadable = |error: io::Error| Without::Unreadable(error.to_string());
    let path = index_path(segment);
    let mut options = File::options();
    let file = options.read(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(&path);
    let file = match file {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Without::Missing),
        Err(error) => return Err(unreadable(error)),
        Ok(file) => file,
    };
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(Without::Damaged("it is not a regular file".to_owned()));
    }

    if metadata.len() > INDEX_BYTES_MAX {
        let bytes = human_bytes(metadata.len());
        let bytes_max = human_bytes(INDEX_BYTES_MAX);
        return Err(Without::Damaged(format!("it has {bytes}, more than {bytes_max}")));
    }

    let damaged = |error: Damaged| Without::Damaged(error.to_string());
    let table = Table::open_file(file, metadata.len()).map_err(damaged)?;
    let now = Identity::of(segment).map_err(unreadable)?;
    let then = table.summary.identity;

    // A copy may be newer than the time in its index; a changed segment is newer than its index.
    let is_later = now.modified != then.modified && now.modified > modified(&metadata);
    #[cfg(sabotage)]
    if crate::sabotage::is("index-of-a-modified-file") {
        return Ok(table);
    }

    match (now.bytes, now.fingerprint) == (then.bytes, then.fingerprint) && !is_later {
        true => Ok(table),
        false => Err(Without::Stale),
    }
}

/// Reads the whole index of a segment, and checks all of it.
///
/// # Errors
///
/// [`Without`].
pub fn load(segment: &Path) -> Result<Index, Without> {
    open(segment)?.index().map_err(|error| Without::Damaged(error.to_string()))
}

/// The result for a segment.
#[derive(Debug)]
pub enum Ensured {
    /// Its index exists and is valid.
    There,
    /// Its index was written, with this number of bytes.
    Written {
        /// Why there was none.
        because: Without,
        /// Bytes of the index.
        bytes: u64,
        /// Packets of the segment.
        packets: u64,
        /// Its rows.
        rows: usize,
    },
    /// The segment cannot be read to its end, and therefore has no index.
    Faulty(ReadError),
}

/// Why a segment has no index after [`ensure`].
#[derive(Debug, thiserror::Error)]
pub enum EnsureError {
    /// The segment was removed or replaced.
    #[error("it was removed before its index was written")]
    Vanished,
    /// The segment cannot be opened, or is not a savefile.
    #[error(transparent)]
    Segment(ReadError),
    /// The index cannot be written.
    #[error("cannot write its index")]
    Write(#[source] io::Error),
}

impl From<ReadError> for EnsureError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Open { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Self::Vanished
            }
            error => Self::Segment(error),
        }
    }
}

/// Errors of [`write()`].
impl From<io::Error> for EnsureError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Vanished,
            _ => Self::Write(error),
        }
    }
}

/// Writes the index of a segment if it has no valid one; `progress` as for [`build`].
///
/// # Errors
///
/// [`EnsureError`].
pub fn ensure(
    segment: &Path,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Ensured, EnsureError> {
    let because = match load(segment) {
        Ok(_) => return Ok(Ensured::There),
        Err(because) => because,
    };
    let Built { index, fault } = build(segment, progress)?;
    if let Some(fault) = fault {
        return Ok(Ensured::Faulty(fault));
    }

    let bytes = write(segment, &index)?;
    Ok(Ensured::Written { because, bytes, packets: index.packets(), rows: index.rows.len() })
}

/// Writes or replaces the index of a segment; returns its size in bytes.
///
/// # Errors
///
/// If it cannot be written; [`io::ErrorKind::NotFound`] if the segment was removed or replaced.
pub fn write(segment: &Path, index: &Index) -> io::Result<u64> {
    let bytes = table::write(index).map_err(io::Error::other)?;
    let path = index_path(segment);
    let mut part = path.as_os_str().to_owned();
    part.push(".part");

    let part = PathBuf::from(part);
    let mode = fs::metadata(segment)?.permissions().mode() & 0o666;

    // Locked until it is closed, when it has its name or is gone.
    let mut file = create_part(&part, mode)?;
    let written = file.write_all(&bytes).and_then(|()| {
        match Identity::of(segment)? == index.summary.identity {
            true => fs::rename(&part, &path),
            false => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the segment was replaced while its index was written",
            )),
        }
    });
    if let Err(error) = written {
        let _gone = fs::remove_file(&part);
        return Err(error);
    }

    // If the segment was removed during the write, its index is removed, too.
    if fs::symlink_metadata(segment).is_err() {
        remove(segment)?;
    }

    Ok(bytes.len() as u64)
}

/// Creates the file of an index that is not complete, and locks it. Waits while another process
/// writes the same index. An existing file that is not locked is left from a process that was
/// killed.
///
/// A process removes or renames such a file only while it holds the lock and the file has this
/// name.
fn create_part(path: &Path, mode: u32) -> io::Result<File> {
    let options = |flags: OFlags| {
        let mut options = File::options();
        options.custom_flags((OFlags::NOFOLLOW | flags).bits().cast_signed());
        options
    };

    for _ in 0..PART_ATTEMPTS {
        let created = options(OFlags::empty()).write(true).create_new(true).mode(mode).open(path);
        let is_new = created.is_ok();

        let opened = match created {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                options(OFlags::NONBLOCK).read(true).open(path)
            }
            created => Ok(created?),
        };
        let is_named = match &opened {
            Ok(file) => {
                // On a file system without locks, this fails, and the file is not locked.
                let _unlocked = file.lock();
                is_name_of(path, file)
            }
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };

        match opened {
            _ if !is_named => {}
            Ok(file) if is_new => return Ok(file),
            _ => remove_file(path)?,
        }
    }
    Err(io::Error::new(io::ErrorKind::WouldBlock, "other processes are writing it"))
}

fn is_name_of(path: &Path, file: &File) -> bool {
    let inode = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let named = fs::symlink_metadata(path).map(inode);
    let opened = file.metadata().map(inode);
    matches!((named, opened), (Ok(named), Ok(opened)) if named == opened)
}

/// Removes the index of a segment, if there is one.
///
/// # Errors
///
/// If it exists and cannot be removed.
pub fn remove(segment: &Path) -> io::Result<()> {
    remove_file(&index_path(segment))
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// The segments at `place`: a file, or the savefiles of a directory in the order of their names,
/// with those that are being written, and with files that cannot be opened, which may be savefiles.
///
/// # Errors
///
/// If it does not exist or cannot be read.
pub fn segments(place: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(place)?.is_dir() {
        return Ok(vec![place.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(place)? {
        let path = entry?.path();
        if may_be_savefile(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a file begins like a savefile, compressed or not. A file that cannot be opened may be
/// one: the reader of the segments reports it.
fn may_be_savefile(path: &Path) -> bool {
    let is_index = |path: &Path| {
        path.as_os_str()
            .to_str()
            .is_some_and(|name| name.trim_end_matches(".part").ends_with(EXTENSION))
    };
    if is_index(path) || !fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return false;
    }

    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return error.kind() != io::ErrorKind::NotFound,
    };
    let mut head = [0; 4];
    let read = file.read_exact(&mut head);
    let (head, swapped) = (u32::from_le_bytes(head), u32::from_be_bytes(head));

    let is_known = |magic: u32| {
        matches!(magic, 0x0a0d_0d0a | 0xa1b2_c3d4 | 0xa1b2_3c4d | 0xa1b2_cd34 | 0xfd2f_b528)
            || magic & 0xffff == 0x8b1f
    };
    read.is_ok() && (is_known(head) || matches!(swapped, 0xa1b2_c3d4 | 0xa1b2_3c4d | 0xa1b2_cd34))
}
