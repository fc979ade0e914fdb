//! Where a writer's bytes go: a file that can be cut back to a packet boundary, or a stream that cannot.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Takes a savefile's bytes in order.
pub trait Sink {
    /// Appends some of `bytes` and says how many, as [`io::Write::write`] does.
    ///
    /// # Errors
    ///
    /// Whatever the system says; nothing of `bytes` has been appended then.
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Removes the last `byte_count` bytes again; `Ok(false)` where what was appended has gone for good.
    ///
    /// # Errors
    ///
    /// Whatever the system says; the bytes are still there then.
    fn take_back(&mut self, byte_count: usize) -> io::Result<bool>;

    /// Passes on what the sink itself may have gathered.
    ///
    /// # Errors
    ///
    /// Whatever the system says; another flush goes on where this one stopped.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// What to call it in an error message: a path.
    fn name(&self) -> String;
}

/// A file that a [`Writer`](crate::Writer) creates.
#[derive(Debug)]
pub struct FileSink {
    file: File,
    path: PathBuf,
    /// The bytes that a regular file has; a device or a named pipe has no length.
    len: Option<u64>,
}

impl FileSink {
    /// Creates the file, or empties it where there is one.
    ///
    /// # Errors
    ///
    /// Whatever the system says of opening it.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref().to_owned();
        let file = File::create(&path)?;
        let len = file.metadata()?.is_file().then_some(0);
        Ok(Self { file, path, len })
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

/// Anything that can be written to: a pipe, a compressor, standard output.
///
/// Standard output is best opened as a [`File`] of its own: [`io::Stdout`] looks for ends of lines.
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
