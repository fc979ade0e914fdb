//! Where a writer's bytes go: a file that can be cut back to a packet boundary, or a stream that cannot.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::shared::refuse_planted;

/// For the owner only.
const PRIVATE: u32 = 0o600;

/// Takes a savefile's bytes in order.
pub trait Sink {
    /// Appends some of `bytes` and says how many, as [`io::Write::write`] does.
    ///
    /// # Errors
    ///
    /// Whatever the system says; nothing of `bytes` has been appended then.
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Removes the last `byte_count` bytes again; `Ok(false)` if they cannot be removed from this sink.
    ///
    /// # Errors
    ///
    /// The system's error; the bytes are still there then.
    fn take_back(&mut self, byte_count: usize) -> io::Result<bool>;

    /// Passes on bytes that the sink has buffered.
    ///
    /// # Errors
    ///
    /// The system's error; another flush continues where this one stopped.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Writes what ends the file, after the last bytes.
    ///
    /// # Errors
    ///
    /// Whatever the system says.
    fn end(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// What to call it in an error message: a path.
    fn name(&self) -> String;
}

/// A file that a [`Writer`](crate::Writer) creates.
///
/// Packets are other people's letters: the file is created with mode 0600, no symbolic link is followed to a regular
/// file but those of this process's own descriptors (`/dev/stdout`), and a file that another sink has open is refused. Pipes, terminals and other devices are opened as they are,
/// but nothing is that another user may have put into a directory for all ([`is_planted`](crate::is_planted)).
#[derive(Debug)]
pub struct FileSink {
    file: File,
    path: PathBuf,
    /// The bytes that a regular file has; a device or a named pipe has no length.
    len: Option<u64>,
}

impl FileSink {
    /// Creates the file. A regular file that exists is refused with [`io::ErrorKind::AlreadyExists`].
    ///
    /// # Errors
    ///
    /// Whatever the system says of opening it; [`io::ErrorKind::WouldBlock`] if another sink has it open.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::open(path.as_ref(), false)
    }

    /// Creates the file, or empties the regular file that exists.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create), except that an existing file is no error.
    pub fn replace(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::open(path.as_ref(), true)
    }

    /// Whether [`create`](Self::create), or [`replace`](Self::replace) if `replaces`, would reject the existing file.
    /// Nothing is changed, and a pipe or a device is not opened.
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
        // Exclusive creation follows no symbolic link, and no file can be put there in between.
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
            // Only now: what another sink writes must not be lost.
            file.set_len(0)?;
            if !names_descriptor(path) {
                file.set_permissions(Permissions::from_mode(PRIVATE))?;
            }
        }
        Ok(Self { file, path: path.to_owned(), len: is_regular.then_some(0) })
    }

    /// Creates the file; fails with [`io::ErrorKind::AlreadyExists`] if `path` exists, even as a pipe or a link.
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
        // A link may lead to a pipe or a device, as /dev/stdout does. The opened file decides, not the current target
        // of the path.
        let is_entry = (entry.dev(), entry.ino()) == (target.dev(), target.ino());
        if target.is_file() && !is_entry && !names_descriptor(path) {
            return refused("it is a symbolic link to a file, which is not followed");
        }
        Ok(file)
    }

    /// The file's path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, for instance to synchronise it with its disk.
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

/// Whether `path` names a descriptor of this process, as /dev/stdout does: other users cannot create such a link, and
/// its target was opened by the process or its parent.
fn names_descriptor(path: &Path) -> bool {
    let folders = ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd"];
    let streams = ["/dev/stdout", "/dev/stderr"];
    path.parent().is_some_and(|parent| folders.iter().any(|folder| parent == Path::new(folder)))
        || streams.iter().any(|stream| path == Path::new(stream))
}

/// Held until the file is closed. A file system without locks has none.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::new(io::ErrorKind::WouldBlock, "another process is writing to it"))
        }
        _ => Ok(()),
    }
}

/// Anything that can be written to: a pipe, a compressor, standard output.
///
/// Open standard output as a separate [`File`]: [`io::Stdout`] searches for ends of lines.
#[derive(Debug)]
pub struct StreamSink<W> {
    stream: W,
    name: String,
}

impl<W: Write> StreamSink<W> {
    /// Writes to `stream`, which error messages call `name`.
    pub fn new(stream: W, name: impl Into<String>) -> Self {
        Self { stream, name: name.into() }
    }

    /// The stream itself.
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
