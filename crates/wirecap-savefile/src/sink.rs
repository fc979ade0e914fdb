//! Destinations of a writer: a file, which can be truncated to a packet boundary, or a stream,
//! which cannot.
//!
//! A file is created with mode 0600 and locked; symbolic links to regular files are not followed.
//! In a directory that several users can write to, only files, pipes and links of the process's own
//! user, root and the directory's owner are opened. No regular file with several hard links is
//! opened, because truncating it would change the file under its other names too.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::shared::refuse_planted;

/// Read and write for the owner only.
const PRIVATE: u32 = 0o600;

/// Accepts the bytes of a savefile in order.
pub trait Sink {
    /// Appends some of `bytes` and returns their number, like [`io::Write::write`].
    ///
    /// # Errors
    ///
    /// The system's error; none of `bytes` has been appended then.
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Removes the last `byte_count` bytes; `Ok(false)` if this sink cannot remove bytes.
    ///
    /// # Errors
    ///
    /// The system's error; the bytes are still there then.
    fn take_back(&mut self, byte_count: usize) -> io::Result<bool>;

    /// Replaces bytes that were appended, from this offset on; `Ok(false)` if this sink cannot
    /// replace bytes, which a call without bytes asks.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn rewrite(&mut self, _offset: u64, _bytes: &[u8]) -> io::Result<bool> {
        Ok(false)
    }

    /// Passes on bytes that the sink has buffered.
    ///
    /// # Errors
    ///
    /// The system's error; another flush continues where this one stopped.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Writes the bytes that end the file, after all others.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn end(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// The name for error messages: a path.
    fn name(&self) -> String;
}

/// A file that a [`Writer`](crate::Writer) creates.
///
/// Captured packets are confidential: the file is created with mode 0600. Rejected are a symbolic
/// link to a regular file, unless it names a descriptor of this process (`/dev/stdout`); a file
/// that another sink has open; and an entry of a shared directory that another user may have
/// created ([`is_planted`](crate::is_planted)). Pipes, terminals and other devices are opened, also
/// through a link.
#[derive(Debug)]
pub struct FileSink {
    file: File,
    path: PathBuf,
    /// The length of a regular file; `None` for a device or a named pipe.
    len: Option<u64>,
}

impl FileSink {
    /// Creates the file. A regular file that exists is refused with
    /// [`io::ErrorKind::AlreadyExists`].
    ///
    /// # Errors
    ///
    /// The system's error; [`io::ErrorKind::WouldBlock`] if another sink has the file open.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::open(path.as_ref(), false)
    }

    /// Creates the file, or truncates an existing regular file to zero length.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create), except that an existing file is no error.
    pub fn replace(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::open(path.as_ref(), true)
    }

    /// Whether [`create`](Self::create), or [`replace`](Self::replace) if `replaces`, would reject
    /// the existing file. Nothing is changed, and a pipe or a device is not opened.
    ///
    /// # Errors
    ///
    /// Why it would reject the file.
    pub fn check(path: impl AsRef<Path>, replaces: bool) -> io::Result<()> {
        let path = path.as_ref();
        match path.metadata() {
            Ok(metadata) if metadata.is_file() => lock(&Self::open_existing(path, replaces)?),
            _ => Ok(()),
        }
    }

    fn open(path: &Path, replaces: bool) -> io::Result<Self> {
        // Exclusive creation does not follow symbolic links, and leaves no time for another process
        // to create the file.
        let created = File::options().write(true).create_new(true).mode(PRIVATE).open(path);
        let file = match created {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Self::open_existing(path, replaces)?
            }
            created => created?,
        };
        let is_regular = file.metadata()?.is_file();

        if is_regular {
            lock(&file)?;
            // Truncate only after locking: the data of another sink must not be lost.
            file.set_len(0)?;
            if !names_descriptor(path) {
                file.set_permissions(Permissions::from_mode(PRIVATE))?;
            }
        }

        Ok(Self { file, path: path.to_owned(), len: is_regular.then_some(0) })
    }

    /// Creates the file; fails with [`io::ErrorKind::AlreadyExists`] if `path` exists, including as
    /// a pipe or a link.
    ///
    /// # Errors
    ///
    /// Errors of the system.
    pub fn create_new(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let file = File::options().write(true).create_new(true).mode(PRIVATE).open(path)?;
        lock(&file)?;
        Ok(Self { file, path: path.to_owned(), len: Some(0) })
    }

    /// Opens the existing file without changing it.
    fn open_existing(path: &Path, replaces: bool) -> io::Result<File> {
        let entry = fs::symlink_metadata(path)?;
        if entry.is_file() && !replaces {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the file exists"));
        }

        let refused = |text: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, text));

        if !names_descriptor(path) {
            refuse_planted(path)?;
            if entry.is_file() && entry.nlink() > 1 {
                return refused("it has other hard links, which would be truncated too");
            }
        }

        let file = File::options().write(true).open(path)?;
        let target = file.metadata()?;

        // A link may lead to a pipe or a device, as /dev/stdout does. The check uses the opened
        // file: the link may change its target at any time.
        let is_entry = (entry.dev(), entry.ino()) == (target.dev(), target.ino());
        if target.is_file() && !is_entry && !names_descriptor(path) {
            return refused("it is a symbolic link to a file, which is not followed");
        }

        Ok(file)
    }

    /// The path as passed to the constructor.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open file, for instance to sync it.
    pub fn into_file(self) -> File {
        self.file
    }
}

impl Sink for FileSink {
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.len = self.len.map(|len| len + count as u64);
        Ok(count)
    }

    fn rewrite(&mut self, offset: u64, bytes: &[u8]) -> io::Result<bool> {
        if self.len.is_none() {
            return Ok(false);
        }
        self.file.write_all_at(bytes, offset)?;
        Ok(true)
    }

    fn take_back(&mut self, byte_count: usize) -> io::Result<bool> {
        let Some(len) = self.len else { return Ok(false) };
        let shorter = len - byte_count as u64;
        self.file.set_len(shorter)?;
        self.file.seek(SeekFrom::Start(shorter))?;
        self.len = Some(shorter);
        Ok(true)
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// Whether `path` names a descriptor of this process, like /dev/stdout. Other users cannot create
/// such a link, and the process or its parent opened the target.
fn names_descriptor(path: &Path) -> bool {
    let folders = ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"];
    let streams = ["/dev/stdout", "/dev/stderr"];
    path.parent().is_some_and(|parent| folders.iter().any(|folder| parent == Path::new(folder)))
        || streams.iter().any(|stream| path == Path::new(stream))
}

/// Locks the file until it is closed. On a file system without locks it does nothing.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(io::ErrorKind::WouldBlock, "another process is writing to it"))
        }
        _ => Ok(()),
    }
}

/// A sink for any writer: a pipe, a compressor, standard output.
///
/// For standard output, open a separate [`File`]: [`io::Stdout`] is line-buffered.
#[derive(Debug)]
pub struct StreamSink<W> {
    stream: W,
    name: String,
}

impl<W: Write> StreamSink<W> {
    /// Writes to `stream`; error messages call it `name`.
    pub fn new(stream: W, name: impl Into<String>) -> Self {
        Self { stream, name: name.into() }
    }

    /// Returns the stream.
    pub fn into_inner(self) -> W {
        self.stream
    }
}

impl<W: Write> Sink for StreamSink<W> {
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn take_back(&mut self, _byte_count: usize) -> io::Result<bool> {
        Ok(false)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}
