//! The writer's thread: pages to files, files to the disk, and the budgets.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use wirecap_savefile::{FileSink, Format, WriteError};

use crate::compression::Compressor;
use crate::files::{free_bytes, free_name, part_of, sync_directory};
use crate::launch::Launch;
use crate::names::{Numbering, Pattern};
use crate::page::{PAGE_BYTES, Page};
use crate::store::{Room, Store};

/// When what was written must survive the loss of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// When the system gets round to it.
    None,
    /// When a file is complete.
    Close,
    /// That, and so much later at the latest.
    Every(Duration),
}

/// Sees the writer at work, on its thread.
pub trait Watch: Send {
    /// Does `work`, which may wait for the disk.
    fn around(&self, work: &mut dyn FnMut()) {
        work();
    }

    /// So many bytes were taken by the disk.
    fn accepted(&self, bytes: u64) {
        let _ = bytes;
    }
}

impl Watch for () {}

/// What a recording has come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Packets that files have whole, also those of files that a budget removed.
    pub packets: u64,
    /// Bytes of these files, compressed if they are.
    pub bytes: u64,
    /// Files.
    pub files: u64,
    /// Files that budgets removed, also those of earlier runs.
    pub removed: u64,
}

/// What both threads look at.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) packets: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) files: AtomicU64,
    pub(crate) removed: AtomicU64,
    /// Pages that wait.
    pub(crate) waiting: AtomicU64,
}

impl Shared {
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            files: self.files.load(Ordering::Relaxed),
            removed: self.removed.load(Ordering::Relaxed),
        }
    }
}

/// What the writer is told.
#[derive(Debug)]
pub(crate) enum Message {
    /// A file begins, at this time in seconds since the epoch.
    Begin(i64),
    Page(Page),
    /// The file is complete behind these blocks.
    End(Vec<u8>),
}

/// Where the files are.
#[derive(Debug)]
pub(crate) enum Place {
    /// One file, which is open already.
    Single(Option<File>, PathBuf),
    /// Many.
    Set { pattern: Pattern, next_sequence: u64 },
}

pub(crate) struct Writer {
    pub(crate) format: Format,
    /// What stands before a file's packets.
    pub(crate) head: Vec<u8>,
    pub(crate) place: Place,
    pub(crate) compressor: Compressor,
    pub(crate) store: Store<PathBuf>,
    pub(crate) durability: Durability,
    pub(crate) shared: Arc<Shared>,
    pub(crate) watch: Box<dyn Watch>,
    /// Who is told of complete files.
    pub(crate) complete: Option<Sender<PathBuf>>,
    pub(crate) pages: Sender<Page>,
    pub(crate) open: Option<OpenFile>,
}

/// The file that is being written.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
    /// What it is called now.
    path: PathBuf,
    /// What it will be called, if that is another name.
    complete_path: Option<PathBuf>,
    bytes: u64,
    /// Since when there is something that a loss of power would take away.
    dirty: Option<Instant>,
}

impl Writer {
    /// Works until the other side has ended.
    pub(crate) fn run(mut self, messages: &Receiver<Message>) -> Result<Summary, WriteError> {
        loop {
            let message = match self.sync_due() {
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => messages.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match message {
                Ok(Message::Begin(seconds)) => self.begin(seconds)?,
                Ok(Message::Page(mut page)) => {
                    self.write_page(&page)?;
                    page.clear();
                    self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                    // Gone if the recording is.
                    let _ = self.pages.send(page);
                }
                Ok(Message::End(tail)) => self.end(&tail)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(self.shared.summary()),
            }
            if self.sync_due().is_some_and(|due| Instant::now() >= due) {
                self.sync()?;
            }
        }
    }

    fn sync_due(&self) -> Option<Instant> {
        let Durability::Every(interval) = self.durability else { return None };
        Some(self.open.as_ref()?.dirty? + interval)
    }

    fn sync(&mut self) -> Result<(), WriteError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.dirty = None;
        let (file, mut outcome) = (&open.file, Ok(()));
        self.watch.around(&mut || outcome = file.sync_data());
        outcome.map_err(|source| self.failure(source))
    }

    pub(crate) fn begin(&mut self, seconds: i64) -> Result<(), WriteError> {
        let open = match &mut self.place {
            Place::Single(file, path) => {
                let file = file.take().expect("a single file begins once");
                Ok(OpenFile { file, path: path.clone(), complete_path: None, bytes: 0, dirty: None })
            }
            Place::Set { pattern, next_sequence } => {
                let path = pattern.path(*next_sequence, seconds);
                *next_sequence += 1;
                let is_ring = matches!(pattern.numbering(), Numbering::Ring(_));
                self.make_room_for_file(is_ring.then_some(&path))
                    .and_then(|()| OpenFile::create(if is_ring { path } else { free_name(&path) }))
            }
        };
        self.open = Some(open.map_err(|source| self.failure(source))?);
        self.shared.files.fetch_add(1, Ordering::Relaxed);
        self.compressor.begin();
        let head = std::mem::take(&mut self.head);
        let outcome = self.write(&head, 0);
        self.head = head;
        outcome
    }

    fn write_page(&mut self, page: &Page) -> Result<(), WriteError> {
        self.write(page.bytes(), page.packets)
    }

    /// Writes these bytes, which have so many packets, as one piece.
    fn write(&mut self, bytes: &[u8], packets: u64) -> Result<(), WriteError> {
        let in_haste = self.shared.waiting.load(Ordering::Relaxed) > 4;
        let compressed = self.compressor.compress(bytes, in_haste).map_err(|source| self.failure(source))?;
        let output = compressed.as_deref().unwrap_or(bytes);
        self.make_room(output.len() as u64 + self.compressor.end_bytes())
            .map_err(|source| self.failure(source))?;
        let open = self.open.as_mut().expect("a file has begun");
        let mut written = 0;
        let mut outcome = Ok(());
        self.watch.around(&mut || outcome = write_all(&mut open.file, output, &mut written));
        self.watch.accepted(written as u64);
        if let Err(source) = outcome {
            let (whole, packets) = match &compressed {
                Some(_) => (0, 0),
                None => self.format.whole_packets(bytes, written),
            };
            let is_cut = open.cut(open.bytes + whole as u64);
            open.bytes += whole as u64;
            self.shared.packets.fetch_add(packets, Ordering::Relaxed);
            self.shared.bytes.fetch_add(whole as u64, Ordering::Relaxed);
            return Err(match is_cut {
                Ok(()) => self.failure(source),
                Err(_) if written == whole => self.failure(source),
                Err(_) => {
                    WriteError::Torn { sink: self.name(), packets: self.shared.summary().packets, source }
                }
            });
        }
        open.bytes += written as u64;
        open.dirty.get_or_insert_with(Instant::now);
        self.store.set_open_bytes(open.bytes);
        self.shared.packets.fetch_add(packets, Ordering::Relaxed);
        self.shared.bytes.fetch_add(written as u64, Ordering::Relaxed);
        self.compressor.written(written, bytes.len()).map_err(|source| self.failure(source))
    }

    fn end(&mut self, tail: &[u8]) -> Result<(), WriteError> {
        if self.open.is_none() {
            return Ok(());
        }
        if !tail.is_empty() {
            self.write(tail, 0)?;
        }
        let end = self.compressor.end();
        let mut open = self.open.take().expect("looked at above");
        let (durability, mut outcome) = (self.durability, Ok(()));
        self.watch.around(&mut || {
            outcome = open.file.write_all(&end).and_then(|()| match durability {
                Durability::None => Ok(()),
                Durability::Close | Durability::Every(_) => open.file.sync_all(),
            });
        });
        let failed = |source| WriteError::Sink {
            sink: open.path.display().to_string(),
            packets: self.shared.summary().packets,
            source,
        };
        outcome.map_err(failed)?;
        open.bytes += end.len() as u64;
        self.store.set_open_bytes(open.bytes);
        self.shared.bytes.fetch_add(end.len() as u64, Ordering::Relaxed);
        if let Some(path) = open.complete_path.take() {
            fs::rename(&open.path, &path).map_err(|source| self.failure(source))?;
            open.path = path;
        }
        if self.durability != Durability::None {
            let directory = open.path.parent().filter(|parent| !parent.as_os_str().is_empty());
            sync_directory(directory.unwrap_or(Path::new("."))).map_err(|source| self.failure(source))?;
        }
        self.store.complete(open.path.clone());
        if let Some(complete) = &self.complete {
            // A command that cannot be run any more must not end the recording.
            let _ = complete.send(open.path);
        }
        Ok(())
    }

    /// Removes what the budget of files does not allow beside one more, and the file whose name that one takes.
    fn make_room_for_file(&mut self, replaced: Option<&PathBuf>) -> io::Result<()> {
        while let Room::Remove(path) = self.store.room_for_file() {
            self.remove(&path)?;
        }
        if let Some(replaced) = replaced.filter(|path| fs::symlink_metadata(path).is_ok()) {
            self.store.forget(|path| path == replaced);
            self.remove(replaced)?;
        }
        Ok(())
    }

    /// Removes what the budgets of bytes do not allow beside so many more.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        loop {
            let free = match (&self.place, self.store.asks_for_free_bytes()) {
                (Place::Set { pattern, .. }, true) => free_bytes(pattern.directory())?,
                _ => u64::MAX,
            };
            match self.store.room_for(bytes, free) {
                Room::Enough => return Ok(()),
                Room::Remove(path) => self.remove(&path)?,
                Room::None => {
                    let text = "the budget has no room for more, and there is no complete file to remove";
                    return Err(io::Error::new(io::ErrorKind::StorageFull, text));
                }
            }
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.shared.removed.fetch_add(1, Ordering::Relaxed);
        match fs::remove_file(path) {
            // By someone else: as well.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    fn name(&self) -> String {
        match (&self.open, &self.place) {
            (Some(open), _) => open.path.display().to_string(),
            (None, Place::Single(_, path)) => path.display().to_string(),
            (None, Place::Set { pattern, .. }) => pattern.directory().display().to_string(),
        }
    }

    fn failure(&self, source: io::Error) -> WriteError {
        WriteError::Sink { sink: self.name(), packets: self.shared.summary().packets, source }
    }
}

impl OpenFile {
    fn create(complete_path: PathBuf) -> io::Result<Self> {
        let path = part_of(&complete_path);
        let file = FileSink::create(&path)?.into_file();
        Ok(Self { file, path, complete_path: Some(complete_path), bytes: 0, dirty: None })
    }

    /// Takes what is behind this place out of the file again.
    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.file.seek(SeekFrom::Start(bytes)).map(drop)
    }
}

fn write_all(file: &mut File, bytes: &[u8], written: &mut usize) -> io::Result<()> {
    while *written < bytes.len() {
        match file.write(&bytes[*written..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => *written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Tells of complete files, on a thread of its own, since a pipe may be full and a command may take long to start: a line on
/// `line`, and `command`.
pub(crate) fn announce(
    files: &Receiver<PathBuf>,
    line: Option<OwnedFd>,
    mut command: Option<Box<dyn Launch>>,
) {
    let mut line = line.map(File::from);
    for path in files {
        if let Some(out) = &mut line {
            let text = [path.as_os_str().as_encoded_bytes(), b"\n"].concat();
            if out.write_all(&text).is_err() {
                line = None;
            }
        }
        if let Some(command) = &mut command {
            command.launch(&path);
        }
    }
    if let Some(mut command) = command {
        command.finish();
    }
}

const _: () = assert!(PAGE_BYTES < u32::MAX as usize);
