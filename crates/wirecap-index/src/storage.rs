//! The storage of segments and their indexes: the disk, or a store that a caller implements.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::segment::{Source, complete_name};
use crate::store::{self, Without};
use crate::table::Table;

/// A store of segments and their indexes.
pub trait Storage: Debug + Send + Sync {
    /// The index of a segment, if it is valid.
    ///
    /// # Errors
    ///
    /// [`Without`].
    fn table(&self, segment: &Path) -> Result<Table, Without>;

    /// Opens a segment.
    ///
    /// # Errors
    ///
    /// If it cannot be opened; [`io::ErrorKind::NotFound`] if it was removed.
    fn open(&self, segment: &Path) -> io::Result<Arc<dyn Source>>;

    /// Whether the names of segments are file names. If so, a segment without an index is read as a
    /// file.
    fn has_files(&self) -> bool;
}

/// Segments that are files, with their indexes in the same directory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk;

impl Storage for Disk {
    fn table(&self, segment: &Path) -> Result<Table, Without> {
        store::open(segment)
    }

    /// An incomplete segment may have been renamed when it was completed.
    fn open(&self, segment: &Path) -> io::Result<Arc<dyn Source>> {
        let file = match File::open(segment) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match complete_name(segment) {
                Some(name) => File::open(name)?,
                None => return Err(error),
            },
            opened => opened?,
        };
        Ok(Arc::new(OnDisk(Arc::new(file))))
    }

    fn has_files(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct OnDisk(Arc<File>);

impl Source for OnDisk {
    fn read_range(&self, offset: u64, bytes: u64) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(FileRange { file: Arc::clone(&self.0), at: offset }.take(bytes)))
    }
}

struct FileRange {
    file: Arc<File>,
    at: u64,
}

impl Read for FileRange {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(into, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
