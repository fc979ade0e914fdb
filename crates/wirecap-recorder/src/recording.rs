//! The recording, as the capture thread uses it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use wirecap_savefile::{Format, Record, Timestamp, WriteError};

use crate::compression::{Compression, Compressor, FrameTable};
use crate::compressors::Compressors;
use crate::cut::{CutRules, Cutter};
use crate::direct::Direct;
use crate::files;
use crate::launch::Launch;
use crate::local_time;
use crate::names::Pattern;
use crate::page::{CACHED_BYTES, FRAME_BYTES, PAGE_BYTES, Page};
use crate::store::{Store, StoreRules};
use crate::writer::{Durability, Message, Place, Shared, Summary, Watch, Writer, announce};

/// Number of pages shared by the capture thread and the writer.
const PAGES: usize = 16;

/// Number of pages whose memory is allocated at the beginning: one is filled, one is written, and two are enough
/// for the next chunk. The most recently returned page is used next, so the other pages are used only while the
/// disk is slow; their first use takes page faults.
const PAGES_PRESENT: usize = 4;

/// The destination of a recording.
#[derive(Debug)]
pub enum Target {
    /// One file, already created.
    File(File, PathBuf),
    /// A set of files.
    Set(Pattern),
}

/// The settings of a recording.
#[derive(Debug)]
pub struct Settings {
    /// The format of all files.
    pub format: Format,
    /// The bytes of a file before its packets, produced by a [`Writer`](wirecap_savefile::Writer).
    pub head: Vec<u8>,
    /// Bytes reserved at the end of a file for the `tail` of [`finish`](Recording::finish).
    pub tail_bytes: u64,
    /// How files are compressed.
    pub compression: Compression,
    /// Number of compressor threads.
    pub compressors: usize,
    /// When a file ends. A single file ends by them only if `files_max` is 1.
    pub cut: CutRules,
    /// When files are removed.
    pub store: StoreRules,
    /// The recording ends after this many files.
    pub files_max: Option<u64>,
    /// The recording ends before the total size of all files, before compression, exceeds this.
    pub bytes_max: Option<u64>,
    /// When written data must survive a power failure.
    pub durability: Durability,
    /// Called for each complete file.
    pub command: Option<Box<dyn Launch>>,
    /// Gets a line with the path of each complete file.
    pub line: Option<OwnedFd>,
}

/// Records packets to files. Dropping it without calling [`finish`](Self::finish) completes the file, but
/// ignores errors.
#[derive(Debug)]
pub struct Recording {
    format: Format,
    is_single: bool,
    is_compressed: bool,
    /// The writer, if the first file is in memory: the capture thread then writes most pages itself. This
    /// reference is weak, so that the writer is dropped when its thread ends; that closes the channel of
    /// returned pages.
    writer: Option<Weak<Mutex<Writer>>>,
    head_bytes: u64,
    tail_bytes: u64,
    cutter: Cutter,
    files_max: u64,
    bytes_max: u64,
    is_open: bool,
    is_over: bool,
    files: u64,
    /// Number of accepted packets, and their bytes with the heads of the files.
    packets: u64,
    bytes: u64,
    /// Bytes of the open file before the current page.
    file_bytes: u64,
    page: Option<Page>,
    spare: Vec<Page>,
    pages: Receiver<Page>,
    /// `None` when the recording has ended.
    messages: Option<Sender<Message>>,
    thread: Option<JoinHandle<Result<Summary, WriteError>>>,
    announcer: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl Recording {
    /// Begins a recording at `now`. When this returns, the first file exists and has everything but packets.
    ///
    /// # Errors
    ///
    /// If the file cannot be created or written to, or the directory cannot be read.
    pub fn begin(
        settings: Settings,
        target: Target,
        now: Timestamp,
        watch: Box<dyn Watch>,
    ) -> Result<Self, WriteError> {
        let name = match &target {
            Target::File(_, path) => path.display().to_string(),
            Target::Set(pattern) => pattern.directory().display().to_string(),
        };
        let failed = |source: io::Error| WriteError::Sink { sink: name.clone(), packets: 0, source };
        let is_single = matches!(target, Target::File(..));
        let (place, earlier) = match target {
            Target::File(file, path) => (Place::Single(Some(file), path), Vec::new()),
            Target::Set(pattern) => {
                let earlier = files::earlier(&pattern).map_err(failed)?;
                (Place::Set { pattern, next_sequence: earlier.next_sequence }, earlier.files)
            }
        };
        let shared = Arc::new(Shared::default());
        let (messages, inbox) = mpsc::channel();
        let (returned, pages) = mpsc::channel();
        let (complete, announcer) = match (&settings.line, &settings.command) {
            (None, None) => (None, None),
            _ => {
                let (complete, files) = mpsc::channel();
                let (line, command) = (settings.line, settings.command);
                let work = move || announce(&files, line, command);
                let thread =
                    thread::Builder::new().name("announce".to_owned()).spawn(work).map_err(failed)?;
                (Some(complete), Some(thread))
            }
        };
        let compressors = match settings.compression {
            Compression::None => None,
            compression => {
                let (waiting, returned) = (Arc::clone(&shared), returned.clone());
                let give_back = move |mut page: Page| {
                    page.clear();
                    waiting.waiting.fetch_sub(1, Ordering::Relaxed);
                    // Fails if the recording has ended.
                    let _ = returned.send(page);
                };
                let count = settings.compressors.max(1);
                Some(Compressors::start(compression, count, give_back).map_err(failed)?)
            }
        };
        let is_compressed = settings.compression != Compression::None;
        let page_bytes = page_bytes(is_compressed);
        let spare = (0..PAGES).map(|page| Page::new(page_bytes, page >= PAGES - PAGES_PRESENT));
        let mut spare = spare.collect::<io::Result<Vec<_>>>().map_err(failed)?;
        let mut writer = Writer {
            format: settings.format,
            head: settings.head,
            place,
            compressor: Compressor::new(settings.compression).map_err(failed)?,
            compressors,
            table: FrameTable::new(settings.compression),
            store: Store::new(settings.store, earlier),
            durability: settings.durability,
            shared: Arc::clone(&shared),
            watch,
            complete,
            pages: returned,
            direct: None,
            open: None,
        };
        let head_bytes = writer.head.len() as u64;
        writer.begin(now.unix_seconds().cast_signed())?;
        let is_direct = !is_compressed && writer.file().is_some_and(Direct::is_possible);
        writer.direct = is_direct.then(Direct::default);
        if is_direct {
            spare.iter_mut().for_each(Page::bypass_caches);
        }
        let is_written_here = !is_compressed && writer.is_in_memory();
        let writer = Arc::new(Mutex::new(writer));
        let written_here = is_written_here.then(|| Arc::downgrade(&writer));
        let work = move || Writer::run(&writer, &inbox);
        let thread = thread::Builder::new().name("writer".to_owned()).spawn(work).map_err(failed)?;
        let mut recording = Self {
            format: settings.format,
            is_single,
            is_compressed,
            writer: written_here,
            head_bytes,
            tail_bytes: settings.tail_bytes,
            cutter: Cutter::new(settings.cut, local_time::utc_offset),
            files_max: settings.files_max.unwrap_or(u64::MAX),
            bytes_max: settings.bytes_max.unwrap_or(u64::MAX),
            is_open: false,
            is_over: false,
            files: 0,
            packets: 0,
            bytes: 0,
            file_bytes: 0,
            page: None,
            spare,
            pages,
            messages: Some(messages),
            thread: Some(thread),
            announcer,
            shared,
        };
        recording.opened(now.unix_nanos());
        Ok(recording)
    }

    /// Whether the recording accepts this many bytes of packets without waiting for the disk. If `all` is
    /// false and the file is not compressed, only the memory allocated at the beginning counts; this is for
    /// callers whose packets can wait in the capture's buffers.
    pub fn has_room(&mut self, bytes: usize, all: bool) -> bool {
        self.spare.extend(self.pages.try_iter());
        // Compressors return pages out of order.
        let held_back = if all || self.is_compressed { 0 } else { PAGES - PAGES_PRESENT };
        // The end of a page is unused if the next packet does not fit.
        self.spare.len() >= (bytes.div_ceil(page_bytes(self.is_compressed) / 2) + held_back).min(PAGES - 2)
    }

    /// Sleeps for `pause`, so that the writer can return pages. The sleep does not end when a page is
    /// returned: the writer would have to wake this thread for each page, which costs 10 to 20 ns for a
    /// packet of 768 bytes.
    ///
    /// # Errors
    ///
    /// If the writer has ended because earlier packets could not be written.
    pub fn wait_for_room(&mut self, pause: Duration) -> Result<(), WriteError> {
        thread::sleep(pause);
        match self.pages.try_recv() {
            Ok(page) => self.spare.push(page),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(self.why_it_ended()),
        }
        Ok(())
    }

    /// Records a packet; `now` is its time if it has none. Returns `false` if the recording has ended by its
    /// rules; the packet is then not recorded.
    ///
    /// # Errors
    ///
    /// If the packet does not fit the format, or earlier packets cannot be written.
    #[inline]
    pub fn write(&mut self, record: &Record<'_>, now: Timestamp) -> Result<bool, WriteError> {
        let len = self.format.encoded_len(record);
        if !self.admits(record, len, now)? {
            return Ok(false);
        }
        let slot = match self.page.as_mut().and_then(|page| page.reserve(len)) {
            Some(slot) => slot,
            None => {
                self.change_page(len)?;
                let page = self.page.as_mut().expect("change_page begins a page");
                page.reserve(len).expect("a page has room for the longest packet")
            }
        };
        self.format.encode(record, slot);
        Ok(true)
    }

    /// Whether the recording accepts a packet that takes this many bytes in the file. An accepted packet is
    /// counted, and a file for it is open.
    #[inline]
    fn admits(&mut self, record: &Record<'_>, len: usize, now: Timestamp) -> Result<bool, WriteError> {
        self.format.check(record)?;
        let nanos = record.timestamp.unwrap_or(now).unix_nanos();
        let is_turn =
            !self.is_open || self.cutter.is_cut_before(nanos, len as u64) || self.bytes_max != u64::MAX;
        if is_turn && !self.turn(nanos, len as u64)? {
            return Ok(false);
        }
        self.cutter.add(len as u64);
        self.packets += 1;
        self.bytes += len as u64;
        Ok(true)
    }

    /// Begins the next file if the rules require it. Returns `false` if the recording is over.
    #[cold]
    fn turn(&mut self, nanos: u64, len: u64) -> Result<bool, WriteError> {
        let tail_bytes = if self.is_open { self.tail_bytes } else { self.head_bytes + self.tail_bytes };
        if self.is_over || self.packets > 0 && self.bytes + len + tail_bytes > self.bytes_max {
            self.is_over = true;
            return Ok(false);
        }
        let is_cut = self.is_open && self.cutter.is_cut_before(nanos, len);
        if is_cut {
            self.rotate()?;
        }
        if (is_cut || !self.is_open) && self.files >= self.files_max {
            self.is_over = true;
            return Ok(false);
        }
        if !self.is_open {
            self.send(Message::Begin((nanos / 1_000_000_000).cast_signed()))?;
            self.opened(nanos);
        }
        Ok(true)
    }

    /// Ends the current file; the next packet begins another. Without effect in a recording of a single file.
    ///
    /// # Errors
    ///
    /// If earlier packets cannot be written.
    pub fn rotate(&mut self) -> Result<(), WriteError> {
        if self.is_open && !self.is_single {
            self.flush()?;
            self.send(Message::End(Vec::new()))?;
            self.is_open = false;
        }
        Ok(())
    }

    /// Applies other rules from the next file on; that file begins with the next packet. The new budgets
    /// count the files that are then in the directory. Without effect in a recording of a single file.
    ///
    /// # Errors
    ///
    /// If earlier packets cannot be written.
    pub fn change_rules(&mut self, cut: CutRules, store: StoreRules) -> Result<(), WriteError> {
        if self.is_single {
            return Ok(());
        }
        self.rotate()?;
        self.cutter.set_rules(cut);
        self.send(Message::Rules(store))
    }

    /// Ends the current file if it has packets and its period is over.
    ///
    /// # Errors
    ///
    /// If earlier packets cannot be written.
    pub fn look_at_clock(&mut self, now: Timestamp) -> Result<(), WriteError> {
        match self.is_open && self.cutter.packets() > 0 && self.cutter.is_over(now.unix_nanos()) {
            true => self.rotate(),
            false => Ok(()),
        }
    }

    /// Reports a failed writer. While no packets arrive, no other call would notice it.
    ///
    /// # Errors
    ///
    /// The error that ended the writer.
    pub fn check(&mut self) -> Result<(), WriteError> {
        match self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            true => Err(self.why_it_ended()),
            false => Ok(()),
        }
    }

    /// Passes all packets to the writer, or writes them if the file is in memory.
    ///
    /// # Errors
    ///
    /// If earlier packets cannot be written.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        match self.page.take() {
            Some(page) if page.is_empty() => self.spare.push(page),
            Some(mut page) => {
                page.complete();
                self.file_bytes += page.len() as u64;
                if self.write_at_once(&page)? {
                    page.clear();
                    self.spare.push(page);
                } else {
                    self.shared.waiting.fetch_add(1, Ordering::Relaxed);
                    self.send(Message::Page(page))?;
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Completes the last file with `tail`, and waits until everything is written.
    ///
    /// # Errors
    ///
    /// If packets cannot be written.
    pub fn finish(mut self, tail: Vec<u8>) -> Result<Summary, WriteError> {
        self.end(tail)
    }

    fn end(&mut self, tail: Vec<u8>) -> Result<Summary, WriteError> {
        let ended =
            self.flush().and_then(|()| if self.is_open { self.send(Message::End(tail)) } else { Ok(()) });
        self.is_open = false;
        let outcome = self.join();
        if let Some(announcer) = self.announcer.take() {
            let _said_what_it_could = announcer.join();
        }
        ended.and(outcome)
    }

    /// Number of accepted packets.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Total size of the files before compression, including packets not yet written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the writer has written so far.
    pub fn summary(&self) -> Summary {
        self.shared.summary()
    }

    /// The fraction of the pages that are waiting for the writer.
    pub fn backlog(&self) -> f64 {
        self.shared.waiting.load(Ordering::Relaxed) as f64 / PAGES as f64
    }

    fn opened(&mut self, nanos: u64) {
        self.cutter.open(nanos, self.head_bytes, self.tail_bytes);
        self.is_open = true;
        self.files += 1;
        self.bytes += self.head_bytes;
        self.file_bytes = self.head_bytes;
    }

    /// Begins another page, for a packet that takes `len` bytes in the file.
    #[cold]
    fn change_page(&mut self, len: usize) -> Result<(), WriteError> {
        self.flush()?;
        self.spare.extend(self.pages.try_iter());
        let mut page = match self.spare.pop() {
            Some(page) => page,
            None => match self.pages.recv() {
                Ok(page) => page,
                Err(_) => return Err(self.why_it_ended()),
            },
        };
        let room = if self.writes_at_once() { CACHED_BYTES.max(len) } else { page_bytes(self.is_compressed) };
        page.start_at(self.file_bytes, room);
        self.page = Some(page);
        Ok(())
    }

    /// Whether the capture thread writes pages itself if the file is in memory, so that the bytes do not move
    /// to the cache of another processor. It does so if the writer's thread has finished all earlier
    /// messages.
    fn writes_at_once(&self) -> bool {
        self.writer.is_some() && self.shared.messages.load(Ordering::Acquire) == 0
    }

    /// Writes a page in this thread. Returns `false` if the writer's thread must write it: because the file
    /// is not in memory, because a file must be removed first, because that thread is busy, or because it has
    /// failed.
    fn write_at_once(&mut self, page: &Page) -> Result<bool, WriteError> {
        if !self.writes_at_once() {
            return Ok(false);
        }
        let Some(writer) = self.writer.as_ref().and_then(Weak::upgrade) else { return Ok(false) };
        // Between messages the thread holds the lock for a moment only.
        let outcome = writer.try_lock().map_or(Ok(false), |mut writer| writer.write_at_once(page));
        drop(writer);
        if outcome.is_err() {
            self.join()?;
        }
        outcome
    }

    fn send(&mut self, message: Message) -> Result<(), WriteError> {
        self.shared.messages.fetch_add(1, Ordering::Relaxed);
        let sent = self.messages.as_ref().is_some_and(|messages| messages.send(message).is_ok());
        if sent { Ok(()) } else { Err(self.why_it_ended()) }
    }

    #[cold]
    fn why_it_ended(&mut self) -> WriteError {
        let ended = || io::Error::other("the writer has ended already");
        match self.join() {
            Err(error) => error,
            Ok(summary) => {
                WriteError::Sink { sink: String::new(), packets: summary.packets, source: ended() }
            }
        }
    }

    /// Ends the writer, and returns its result.
    fn join(&mut self) -> Result<Summary, WriteError> {
        drop((self.messages.take(), self.writer.take()));
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(self.shared.summary()),
            Some(Ok(outcome)) => outcome,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

/// Maximum number of bytes of a page.
fn page_bytes(is_compressed: bool) -> usize {
    if is_compressed { FRAME_BYTES } else { PAGE_BYTES }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.thread.is_some() && !thread::panicking() {
            let _unseen = self.end(Vec::new());
        }
    }
}
