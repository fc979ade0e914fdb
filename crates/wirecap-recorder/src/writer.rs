//! The writer thread: writes pages to files, syncs files and enforces the budgets.
//!
//! A file of a set is created as `NAME.part` (mode 0600, locked), complete except for its packets,
//! and is renamed when it is complete; the file is synced before the rename and the directory after
//! it, unless syncs are turned off.
//!
//! A limit of time on what a power failure can lose is divided: packets reach the writer after a
//! fifth of that time at most (and after at most a second), packet sockets hold them for at most as
//! long, the writer syncs the file after half of that time, and the rest remains for the disk. The
//! first sync of a file also syncs its directory, because POSIX guarantees a durable name only
//! then. After a failed sync the packets since the last successful one count as lost: the kernel
//! may have dropped the data, and a second sync would not report it.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wirecap_savefile::{FileSink, Format, WriteError};

use crate::compression::{Compressor, Effort, Frame, FrameEnd};
use crate::compressors::{Compressed, Compressors};
use crate::direct::{Direct, write_cached};
use crate::files::{self, free_bytes, free_name, give_name, is_gone, part_of, sync_directory};
use crate::launch::Launch;
use crate::names::{Numbering, Pattern};
use crate::page::{PAGE_BYTES, Page};
use crate::rules::{Answer, RulesError};
use crate::store::{Room, Store, StoreRules};

/// If more pages than this wait, the writer does not wait for a slow disk; the page cache accepts
/// the pages.
const WAITING_MAX: u64 = 2;

/// When written data must survive a power failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Whenever the system writes it back.
    None,
    /// When a file is complete.
    Close,
    /// When a file is complete, and at most this long after a packet's arrival. The writer begins
    /// the sync within half of this time; the other half is for the time until a packet reaches the
    /// writer, and for the disk.
    Every(Duration),
}

/// Observes the writer. Called on its thread, and on the capture thread for pages of a file in
/// memory.
pub trait Watch: Send {
    /// Calls `work`, which may wait for the disk.
    fn around(&self, work: &mut dyn FnMut()) {
        work();
    }

    /// The disk has accepted this many bytes.
    fn accepted(&self, bytes: u64) {
        let _ = bytes;
    }

    /// A file is complete and has its final name.
    fn completed(&self, path: &Path) {
        let _ = path;
    }

    /// A file was removed, by a budget or because a new file takes its name.
    fn removed(&self, path: &Path) {
        let _ = path;
    }
}

impl Watch for () {}

/// The result of a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Whole packets in files, including files that a budget removed later.
    pub packets: u64,
    /// Bytes of these files, after compression.
    pub bytes: u64,
    /// Number of files begun.
    pub files: u64,
    /// Files removed by a budget or replaced by a new file of the same name, including files of
    /// earlier runs.
    pub removed: u64,
    /// Files that another process removed while they were written. Their packets are not counted.
    pub vanished: u64,
}

/// Counters shared by both threads.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) packets: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) files: AtomicU64,
    pub(crate) removed: AtomicU64,
    pub(crate) vanished: AtomicU64,
    /// Pages that the writer has not finished.
    pub(crate) waiting: AtomicU64,
    /// Messages that the writer's thread has not finished.
    pub(crate) messages: AtomicU64,
}

impl Shared {
    pub(crate) fn summary(&self) -> Summary {
        // First: a summary that counts a vanished file does not count its packets.
        let vanished = self.vanished.load(Ordering::Acquire);
        Summary {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            files: self.files.load(Ordering::Relaxed),
            removed: self.removed.load(Ordering::Relaxed),
            vanished,
        }
    }
}

/// Messages to the writer.
#[derive(Debug)]
pub(crate) enum Message {
    /// Begin a file, at this time in seconds since the epoch.
    Begin(i64),
    Page(Page),
    /// Complete the file with these bytes.
    End(Vec<u8>),
    /// Check whether these budgets are possible.
    Check(StoreRules, Answer),
    /// Change the budgets. No file is open.
    Rules(StoreRules, Answer),
}

/// The destination of the writer.
#[derive(Debug)]
pub(crate) enum Place {
    /// One file, which is already open.
    Single(Option<File>, PathBuf),
    /// A set of files.
    Set { pattern: Pattern, next_sequence: u64 },
}

pub(crate) struct Writer {
    pub(crate) format: Format,
    /// The bytes of a file before its packets.
    pub(crate) head: Vec<u8>,
    pub(crate) place: Place,
    /// Compresses the bytes outside pages.
    pub(crate) compressor: Compressor,
    /// The threads that compress pages; `None` without compression.
    pub(crate) compressors: Option<Compressors>,
    /// The open file's head and end, if it is compressed.
    pub(crate) frame: Frame,
    pub(crate) store: Store<PathBuf>,
    pub(crate) durability: Durability,
    pub(crate) shared: Arc<Shared>,
    pub(crate) watch: Box<dyn Watch>,
    /// Receives the paths of complete files.
    pub(crate) complete: Option<Sender<PathBuf>>,
    pub(crate) pages: Sender<Page>,
    /// Writes whole pages by direct I/O, if the file system has it.
    pub(crate) direct: Option<Direct>,
    pub(crate) open: Option<OpenFile>,
}

/// The file that is being written.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
    /// Its current name.
    path: PathBuf,
    /// Its final name, if different.
    complete_path: Option<PathBuf>,
    /// Whether it is in memory (tmpfs), where a sync does nothing.
    is_in_memory: bool,
    /// Without the end of a compressed file.
    bytes: u64,
    /// The end of a compressed file.
    end: FrameEnd,
    /// Whether the file can have its end already, which the next page replaces.
    is_replaceable: bool,
    packets: u64,
    /// Packets that a power failure cannot remove, because they are synced.
    lasting_packets: u64,
    /// Whether its directory entry is synced.
    is_name_lasting: bool,
    /// The time since which the file has data that are not synced.
    dirty: Option<Instant>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Writer").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Writer {
    /// Runs until the recording drops its end of the channel.
    pub(crate) fn run(
        writer: &Mutex<Self>,
        messages: &Receiver<Message>,
    ) -> Result<Summary, WriteError> {
        loop {
            let message = Self::next_message(writer, messages);
            let mut writer = lock(writer);

            match message {
                Ok(message) => {
                    writer.carry_out(message)?;
                    writer.shared.messages.fetch_sub(1, Ordering::Release);
                }
                Err(RecvTimeoutError::Timeout) => {
                    writer.write_compressed()?;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    while writer.write_compressed()? {}
                    return Ok(writer.shared.summary());
                }
            }

            if writer.sync_due().is_some_and(|due| Instant::now() >= due) {
                writer.sync()?;
            }
        }
    }

    fn carry_out(&mut self, message: Message) -> Result<(), WriteError> {
        match message {
            Message::Begin(seconds) => self.begin(seconds),
            Message::Page(page) => self.take_page(page),
            Message::End(tail) => {
                while self.write_compressed()? {}
                self.end(&tail)
            }
            Message::Check(rules, answer) => {
                answer.give(self.check_rules(rules));
                Ok(())
            }
            Message::Rules(rules, answer) => {
                self.change_rules(rules)?;
                answer.give(Ok(()));
                Ok(())
            }
        }
    }

    /// Writes a page to a file in memory, unless a file would have to be removed first. Returns
    /// whether the page is written.
    pub(crate) fn write_at_once(&mut self, page: &Page) -> Result<bool, WriteError> {
        if !self.is_in_memory()
            || !self.has_room(page.len() as u64).map_err(|source| self.failure(source))?
        {
            return Ok(false);
        }
        self.append(page.bytes(), None, page.packets)?;
        Ok(true)
    }

    /// The open file.
    pub(crate) fn file(&self) -> Option<&File> {
        self.open.as_ref().map(|open| &open.file)
    }

    /// Whether the open file is in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_in_memory)
    }

    /// Whether the file system can keep as many free bytes as the rules require, and the directory
    /// can be read.
    pub(crate) fn check_rules(&self, rules: StoreRules) -> Result<(), RulesError> {
        let Place::Set { pattern, .. } = &self.place else { return Ok(()) };
        let directory = pattern.directory();
        let unreadable = |source| RulesError::Directory { directory: directory.to_owned(), source };
        let complete_bytes = files::complete_bytes(pattern).map_err(unreadable)?;
        let Some(keep_free) = rules.free_bytes else { return Ok(()) };
        let free_bytes = free_bytes(directory).map_err(unreadable)?;
        match keep_free.saturating_add(PAGE_BYTES as u64)
            > free_bytes.saturating_add(complete_bytes)
        {
            true => Err(RulesError::NoFreeBytes { keep_free, free_bytes, complete_bytes }),
            false => Ok(()),
        }
    }

    fn change_rules(&mut self, rules: StoreRules) -> Result<(), WriteError> {
        let Place::Set { pattern, .. } = &self.place else { return Ok(()) };
        let earlier = files::earlier(pattern).map_err(|source| self.failure(source))?;
        self.store = Store::new(rules, earlier.files);
        Ok(())
    }

    /// Returns the next message. Times out if a sync is due, or if the writer should wait for a
    /// page that is being compressed.
    fn next_message(
        writer: &Mutex<Self>,
        messages: &Receiver<Message>,
    ) -> Result<Message, RecvTimeoutError> {
        let due = {
            let writer = lock(writer);
            let compressors = writer.compressors.as_ref();
            if let Some(compressors) = compressors.filter(|compressors| !compressors.is_empty()) {
                // Give the compressors another page first.
                return match compressors.has_room().then(|| messages.try_recv()) {
                    Some(Ok(message)) => Ok(message),
                    Some(Err(TryRecvError::Disconnected)) => Err(RecvTimeoutError::Disconnected),
                    Some(Err(TryRecvError::Empty)) | None => Err(RecvTimeoutError::Timeout),
                };
            }
            writer.sync_due()
        };
        match due {
            None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => messages.recv_timeout(due.saturating_duration_since(Instant::now())),
        }
    }

    fn take_page(&mut self, mut page: Page) -> Result<(), WriteError> {
        match &mut self.compressors {
            Some(compressors) => {
                let end = self.frame.add(page.bytes());
                compressors.push(page, end);
            }
            None => {
                self.write_out(page.bytes(), None, page.packets)?;
                page.clear();
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                // Fails if the recording has ended.
                let _ = self.pages.send(page);
            }
        }
        Ok(())
    }

    /// Waits for the first page that is being compressed and writes it. Returns `false` if there is
    /// none.
    fn write_compressed(&mut self) -> Result<bool, WriteError> {
        let Some(compressors) = &mut self.compressors else { return Ok(false) };
        let compressed = compressors.pop().map_err(|source| self.failure(source))?;
        let Some(Compressed { output, packets, end }) = compressed else { return Ok(false) };
        self.write_out(&output, Some(end), packets).map(|()| true)
    }

    fn sync_due(&self) -> Option<Instant> {
        let Durability::Every(interval) = self.durability else { return None };
        Some(self.open.as_ref()?.dirty? + interval / 2)
    }

    fn sync(&mut self) -> Result<(), WriteError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.dirty = None;

        let directory = (!open.is_name_lasting).then(|| folder_of(&open.path));
        let file = &open.file;
        let mut outcome = Ok(());

        self.watch.around(&mut || {
            outcome = file.sync_data().and_then(|()| directory.map_or(Ok(()), sync_directory));
        });

        match outcome {
            Ok(()) => {
                (open.lasting_packets, open.is_name_lasting) = (open.packets, true);
                Ok(())
            }
            Err(source) => Err(self.lost_by_sync(source)),
        }
    }

    /// A failed sync may have lost any data since the previous one, and a second sync would not
    /// report it again.
    fn lost_by_sync(&mut self, source: io::Error) -> WriteError {
        let lost = self.open.as_ref().map_or(0, |open| open.packets - open.lasting_packets);
        self.shared.packets.fetch_sub(lost, Ordering::Relaxed);
        self.failure(source)
    }

    pub(crate) fn begin(&mut self, seconds: i64) -> Result<(), WriteError> {
        let open = match &mut self.place {
            Place::Single(file, path) => {
                let file = file.take().expect("a single file begins once");
                Ok(OpenFile::of(file, path.clone(), None))
            }
            Place::Set { pattern, next_sequence } => {
                let path = pattern.path(*next_sequence, seconds);
                *next_sequence += 1;
                let is_ring = matches!(pattern.numbering(), Numbering::Ring(_));
                self.make_room_for_file(is_ring.then_some(&path))
                    .and_then(|()| OpenFile::create(&path, is_ring))
            }
        };
        self.open = Some(open.map_err(|source| self.failure(source))?);
        self.shared.files.fetch_add(1, Ordering::Relaxed);

        let head = std::mem::take(&mut self.head);
        let before = self.frame.begin();
        let outcome = self.write(before, &head);

        self.head = head;
        outcome
    }

    /// Writes these bytes, which contain no packets, as one unit, after bytes that are not
    /// compressed.
    fn write(&mut self, before: &[u8], bytes: &[u8]) -> Result<(), WriteError> {
        let compressed =
            self.compressor.compress(bytes, Effort::Full).map_err(|source| self.failure(source))?;
        match compressed {
            Some(output) => {
                let end = self.frame.add(bytes);
                self.write_out(&[before, &output].concat(), Some(end), 0)
            }
            None => self.write_out(bytes, None, 0),
        }
    }

    /// Removes files until the budgets have room for these bytes, and appends them.
    fn write_out(
        &mut self,
        bytes: &[u8],
        end: Option<FrameEnd>,
        packets: u64,
    ) -> Result<(), WriteError> {
        self.make_room(bytes.len() as u64 + self.frame.end_bytes())
            .map_err(|source| self.failure(source))?;
        self.append(bytes, end, packets)
    }

    /// Writes these bytes as one unit, and counts their packets. `end` is the end of the file after
    /// them if they are compressed.
    fn append(
        &mut self,
        bytes: &[u8],
        end: Option<FrameEnd>,
        packets: u64,
    ) -> Result<(), WriteError> {
        let open = self.open.as_mut().expect("a file has begun");
        let mut written = 0;
        let mut outcome = Ok(());
        let waiting = self.shared.waiting.load(Ordering::Relaxed);

        self.watch.around(&mut || {
            outcome = match &mut self.direct {
                Some(direct) => {
                    let is_behind = waiting > WAITING_MAX;
                    direct.write_all(&mut open.file, open.bytes, bytes, is_behind, &mut written)
                }
                None => write_cached(&mut open.file, bytes, &mut written),
            };
        });

        self.watch.accepted(written as u64);

        if let Err(source) = outcome {
            let (whole, packets) = match end {
                Some(_) => (0, 0),
                None => self.format.whole_packets(bytes, written),
            };
            let is_cut = open.cut(open.bytes + whole as u64).and_then(|()| open.restore_end());
            open.bytes += whole as u64;
            self.shared.packets.fetch_add(packets, Ordering::Relaxed);
            self.shared.bytes.fetch_add(whole as u64, Ordering::Relaxed);
            return Err(match is_cut {
                Ok(()) => self.failure(source),
                Err(_) if written == whole => self.failure(source),
                Err(_) => WriteError::Torn {
                    sink: self.name(),
                    packets: self.shared.summary().packets,
                    source,
                },
            });
        }

        open.bytes += written as u64;
        open.packets += packets;

        if !open.is_in_memory {
            open.dirty.get_or_insert_with(Instant::now);
        }

        self.store.set_open_bytes(open.bytes);
        self.shared.packets.fetch_add(packets, Ordering::Relaxed);
        self.shared.bytes.fetch_add(written as u64, Ordering::Relaxed);

        let Some(end) = end else { return Ok(()) };
        let open = self.open.as_mut().expect("looked at above");
        open.end = end;

        open.restore_end().map_err(|source| self.failure(source))
    }

    fn end(&mut self, tail: &[u8]) -> Result<(), WriteError> {
        if self.open.is_none() {
            return Ok(());
        }
        if !tail.is_empty() {
            self.write(&[], tail)?;
        }

        let durability = self.durability;
        let open = self.open.as_mut().expect("looked at above");
        let end = open.end;
        let mut written = Ok(());
        let mut synced = Ok(());

        self.watch.around(&mut || {
            written = open.file.write_all(end.bytes());
            if written.is_ok() && durability != Durability::None {
                synced = open.file.sync_all();
            }
        });

        if let Err(source) = written {
            // A file that cannot be cut either ends early; the next recording completes it.
            let _uncut = open.cut(open.bytes);
            return Err(self.failure(source));
        }

        synced.map_err(|source| self.lost_by_sync(source))?;
        let mut open = self.open.take().expect("looked at above");
        open.bytes += end.bytes().len() as u64;
        self.store.set_open_bytes(open.bytes);
        self.shared.bytes.fetch_add(end.bytes().len() as u64, Ordering::Relaxed);

        if let Some(path) = open.complete_path.take() {
            match give_name(&open.file, &open.path, &path, self.is_ring()) {
                Ok(Some(path)) => open.path = path,
                Ok(None) => {
                    self.vanished(&open);
                    return Ok(());
                }
                Err(source) => {
                    if source.kind() == io::ErrorKind::NotFound {
                        // Another process removed the directory with its contents.
                        self.shared.packets.fetch_sub(open.packets, Ordering::Relaxed);
                    }
                    self.open = Some(open);
                    return Err(self.failure(source));
                }
            }
        } else if is_gone(&open.file, &open.path).map_err(|source| self.failure(source))? {
            self.vanished(&open);
            return Ok(());
        }

        if self.durability != Durability::None {
            sync_directory(folder_of(&open.path)).map_err(|source| self.failure(source))?;
        }

        self.store.complete(open.path.clone());
        self.watch.completed(&open.path);

        if let Some(complete) = &self.complete {
            // A failed announcer must not end the recording.
            let _ = complete.send(open.path);
        }

        Ok(())
    }

    /// Whether names repeat, and files replace earlier files of the same name.
    fn is_ring(&self) -> bool {
        matches!(&self.place, Place::Set { pattern, .. } if matches!(pattern.numbering(), Numbering::Ring(_)))
    }

    /// The file was removed by another process: its packets no longer count.
    fn vanished(&mut self, open: &OpenFile) {
        self.store.set_open_bytes(0);
        self.shared.packets.fetch_sub(open.packets, Ordering::Relaxed);
        self.shared.bytes.fetch_sub(open.bytes, Ordering::Relaxed);
        self.shared.vanished.fetch_add(1, Ordering::Release);
    }

    /// Removes the files that the budget does not allow in addition to a new one, and the file
    /// whose name the new one takes.
    fn make_room_for_file(&mut self, replaced: Option<&PathBuf>) -> io::Result<()> {
        while let Room::Remove(path) = self.store.room_for_file() {
            self.remove(&path)?;
        }

        let Some(replaced) = replaced else { return Ok(()) };

        // Also the incomplete file of a killed process.
        for replaced in [replaced.clone(), part_of(replaced)] {
            self.store.forget(|path| *path == replaced);
            // If the file cannot be removed, it keeps its name, and the new file gets another.
            if fs::symlink_metadata(&replaced).is_ok_and(|entry| !entry.is_dir()) {
                let _ = self.remove(&replaced);
            }
        }
        Ok(())
    }

    /// Whether this many more bytes fit the budgets without removing a file.
    fn has_room(&self, bytes: u64) -> io::Result<bool> {
        Ok(self.store.has_room_for(bytes + self.frame.end_bytes(), self.free_bytes()?))
    }

    /// The free bytes of the file system, if a budget needs them.
    fn free_bytes(&self) -> io::Result<u64> {
        match (&self.place, self.store.asks_for_free_bytes()) {
            (Place::Set { pattern, .. }, true) => free_bytes(pattern.directory()),
            _ => Ok(u64::MAX),
        }
    }

    /// Removes files until this many more bytes fit the budgets.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        loop {
            let free = self.free_bytes()?;
            match self.store.room_for(bytes, free) {
                Room::Enough => return Ok(()),
                Room::Remove(path) => self.remove(&path)?,
                Room::None => {
                    let text = "the budget has no room for more, and there is no complete file to remove: \
                                raise the budget, or free disk space";
                    return Err(io::Error::new(io::ErrorKind::StorageFull, text));
                }
            }
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            // Another process has removed or replaced the file: the same result.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::IsADirectory
                ) => {}
            outcome => outcome?,
        }
        self.shared.removed.fetch_add(1, Ordering::Relaxed);
        self.watch.removed(path);
        Ok(())
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

/// A thread that panicked with the lock has ended the recording; [`Recording`](crate::Recording)
/// reports it.
fn lock(writer: &Mutex<Writer>) -> MutexGuard<'_, Writer> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenFile {
    /// Creates a file that will be named `path`. If that name is in use, a number is added, unless
    /// the file replaces the existing one.
    fn create(path: &Path, replaces: bool) -> io::Result<Self> {
        let mut complete_path = if replaces { path.to_owned() } else { free_name(path) };
        loop {
            let part = part_of(&complete_path);
            match FileSink::create_new(&part) {
                // Another process may have created this name in the meantime, for instance a pipe
                // without a reader.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    complete_path = free_name(path);
                }
                created => return Ok(Self::of(created?.into_file(), part, Some(complete_path))),
            }
        }
    }

    fn of(file: File, path: PathBuf, complete_path: Option<PathBuf>) -> Self {
        Self {
            is_in_memory: files::is_in_memory(&file),
            is_replaceable: files::is_replaceable(&file),
            file,
            path,
            complete_path,
            bytes: 0,
            end: FrameEnd::default(),
            packets: 0,
            lasting_packets: 0,
            is_name_lasting: false,
            dirty: None,
        }
    }

    /// Writes the end of a compressed file, so that it is complete, and returns to where the next
    /// page belongs.
    fn restore_end(&mut self) -> io::Result<()> {
        #[cfg(sabotage)]
        if crate::sabotage::is("no-end-while-writing") {
            return Ok(());
        }
        if self.is_replaceable && !self.end.bytes().is_empty() {
            self.file.write_all_at(self.end.bytes(), self.bytes)?;
        }
        Ok(())
    }

    /// Truncates the file to this length.
    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.file.seek(SeekFrom::Start(bytes)).map(drop)
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Announces complete files, by a line on `line` and by `command`. It runs in a separate thread,
/// since a pipe may be full and a command may take long to start.
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
