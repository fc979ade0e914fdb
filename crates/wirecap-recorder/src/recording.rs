//! The recording as the thread that captures sees it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use wirecap_savefile::{Format, Record, Timestamp, WriteError};

use crate::compression::{Compression, Compressor, FrameTable};
use crate::compressors::Compressors;
use crate::cut::{CutRules, Cutter};
use crate::files;
use crate::launch::Launch;
use crate::local_time;
use crate::names::Pattern;
use crate::page::{Batch, PAGE_BYTES, Page};
use crate::store::{Store, StoreRules};
use crate::writer::{Durability, Message, Place, Shared, Summary, Watch, Writer, announce};

/// Pages between the two threads.
const PAGES: usize = 16;

/// Those of them whose memory is there from the beginning. The last page that came back is the next one in use, so the others
/// are for pauses of the disk: each of the kernel's pages in them takes a page fault first.
const PAGES_PRESENT: usize = 4;

/// A page with so many bytes is written if the writer has nothing else to do: it and the one before, the packets that are copied
/// into it and the kernel's copy of it share the second-level cache of a processor.
const WORTH_WRITING_BYTES: usize = 256 << 10;

/// Of packets that are not copied. Gathering costs the kernel two entries of a list for each: with 768 bytes a packet takes 1.1 times
/// the processor time of one that is copied, with 1,514 bytes 0.91 (in memory) to 0.98 times (on a disk).
const IN_PLACE_BYTES_MIN: usize = 1024;

/// What is written to.
#[derive(Debug)]
pub enum Target {
    /// One file, which was created.
    File(File, PathBuf),
    /// A set of files.
    Set(Pattern),
}

/// How to record.
#[derive(Debug)]
pub struct Settings {
    /// The format of all files.
    pub format: Format,
    /// The beginning of a file without packets, written by a [`Writer`](wirecap_savefile::Writer).
    pub head: Vec<u8>,
    /// So many bytes are left at the end of a file for what [`finish`](Recording::finish) writes there.
    pub tail_bytes: u64,
    /// How files are compressed.
    pub compression: Compression,
    /// Threads that compress.
    pub compressors: usize,
    /// When a file ends.
    pub cut: CutRules,
    /// When files are removed.
    pub store: StoreRules,
    /// End after this many files.
    pub files_max: Option<u64>,
    /// End before all files together, before they are compressed, have more bytes.
    pub bytes_max: Option<u64>,
    /// When written data must survive a power failure.
    pub durability: Durability,
    /// Is told of each complete file.
    pub command: Option<Box<dyn Launch>>,
    /// Gets a line with the path of each complete file.
    pub line: Option<OwnedFd>,
}

/// Records packets. Dropped without [`finish`](Self::finish), it completes the file, and no error is seen.
#[derive(Debug)]
pub struct Recording {
    format: Format,
    is_compressed: bool,
    head_bytes: u64,
    tail_bytes: u64,
    cutter: Cutter,
    files_max: u64,
    bytes_max: u64,
    is_open: bool,
    is_over: bool,
    files: u64,
    /// Packets and bytes that were taken.
    packets: u64,
    bytes: u64,
    page: Option<Page>,
    spare: Vec<Page>,
    pages: Receiver<Page>,
    /// `None` when it is over.
    messages: Option<Sender<Message>>,
    thread: Option<JoinHandle<Result<Summary, WriteError>>>,
    announcer: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

impl Recording {
    /// Begins a recording at `now`: the first file is there when this returns, with all but packets.
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
                    // Gone if the recording is.
                    let _ = returned.send(page);
                };
                let count = settings.compressors.max(1);
                Some(Compressors::start(compression, count, give_back).map_err(failed)?)
            }
        };
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
            open: None,
        };
        let head_bytes = writer.head.len() as u64;
        writer.begin(now.unix_seconds().cast_signed())?;
        let work = move || writer.run(&inbox);
        let thread = thread::Builder::new().name("writer".to_owned()).spawn(work).map_err(failed)?;
        let mut recording = Self {
            format: settings.format,
            is_compressed: settings.compression != Compression::None,
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
            page: None,
            spare: (0..PAGES).map(|page| Page::new(page >= PAGES - PAGES_PRESENT)).collect(),
            pages,
            messages: Some(messages),
            thread: Some(thread),
            announcer,
            shared,
        };
        recording.opened(now.unix_nanos());
        Ok(recording)
    }

    /// Whether [`write_in_place`](Self::write_in_place) copies every packet, as [`write`](Self::write) does: it will be compressed.
    pub fn copies_all(&self) -> bool {
        self.is_compressed
    }

    /// Whether it accepts this many bytes of packets without waiting for the disk. Unless `all`, it keeps to the memory that is
    /// present from the beginning: for packets that may as well wait where they are.
    pub fn has_room(&mut self, bytes: usize, all: bool) -> bool {
        self.spare.extend(self.pages.try_iter());
        // Compressors take pages out of order.
        let held_back = if all || self.is_compressed { 0 } else { PAGES - PAGES_PRESENT };
        // Pages are left partly empty where the next packet is too long for the rest.
        self.spare.len() > (bytes.div_ceil(PAGE_BYTES / 2) + held_back).min(PAGES - 2)
    }

    /// Waits until the writer is done with a page, for at most `longest`.
    ///
    /// # Errors
    ///
    /// If the writer has ended, since earlier packets cannot be written.
    pub fn wait_for_room(&mut self, longest: Duration) -> Result<(), WriteError> {
        match self.pages.recv_timeout(longest) {
            Ok(page) => self.spare.push(page),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(self.why_it_ended()),
        }
        Ok(())
    }

    /// Takes a packet; `now` is its time if it has none. `false`: the recording has ended by its rules, and the packet
    /// is not in it.
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
                self.change_page()?;
                let page = self.page.as_mut().expect("it was changed for one");
                page.reserve(len).expect("a page has room for the longest packet")
            }
        };
        self.format.encode(record, slot);
        Ok(true)
    }

    /// As [`write`](Self::write), for a packet whose data are those at a place of `batch`. If they are long they are not copied:
    /// the writer takes them from there, and keeps the batch until it has.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    #[inline]
    pub fn write_in_place<B: Batch + 'static>(
        &mut self,
        record: &Record<'_>,
        place: (&Arc<B>, usize),
        now: Timestamp,
    ) -> Result<bool, WriteError> {
        let data_len = record.data.len();
        if data_len < IN_PLACE_BYTES_MIN || self.copies_all() {
            return self.write(record, now);
        }
        let len = self.format.encoded_len(record);
        if !self.admits(record, len, now)? {
            return Ok(false);
        }
        if !self.page.as_ref().is_some_and(|page| page.has_room(len)) {
            self.change_page()?;
        }
        let page = self.page.as_mut().expect("it was changed if there was none");
        let header_len = self.format.header_len();
        let slot = page.reserve_around(len - data_len, header_len, place, data_len);
        let slot = slot.expect("a page has room for the longest packet");
        self.format.encode_around(record, slot);
        Ok(true)
    }

    /// Whether a packet of this many bytes in the file belongs to the recording; if so it is counted, and a file is
    /// open.
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

    /// Begins another file if that must be; `false` if the recording is over.
    #[cold]
    fn turn(&mut self, nanos: u64, len: u64) -> Result<bool, WriteError> {
        let tail_bytes = if self.is_open { self.tail_bytes } else { self.head_bytes + self.tail_bytes };
        if self.is_over || self.packets > 0 && self.bytes + len + tail_bytes > self.bytes_max {
            self.is_over = true;
            return Ok(false);
        }
        if self.is_open && self.cutter.is_cut_before(nanos, len) {
            self.rotate()?;
        }
        if !self.is_open {
            if self.files >= self.files_max {
                self.is_over = true;
                return Ok(false);
            }
            self.send(Message::Begin((nanos / 1_000_000_000).cast_signed()))?;
            self.opened(nanos);
        }
        Ok(true)
    }

    /// Ends the current file; the next packet begins another.
    ///
    /// # Errors
    ///
    /// If earlier packets cannot be written.
    pub fn rotate(&mut self) -> Result<(), WriteError> {
        if self.is_open {
            self.flush()?;
            self.send(Message::End(Vec::new()))?;
            self.is_open = false;
        }
        Ok(())
    }

    /// Applies other rules from the next file on, which begins with the next packet. Budgets then count the files in
    /// the directory. A recording of a single file has no rules.
    ///
    /// # Errors
    ///
    /// If earlier packets cannot be written.
    pub fn change_rules(&mut self, cut: CutRules, store: StoreRules) -> Result<(), WriteError> {
        self.rotate()?;
        self.cutter.set_rules(cut);
        self.send(Message::Rules(store))
    }

    /// Ends the current file if it has packets and its period is over: no later packet belongs to it.
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

    /// Whether the writer is still there: one that failed while no packet came would not be noticed else.
    ///
    /// # Errors
    ///
    /// Why it ended.
    pub fn check(&mut self) -> Result<(), WriteError> {
        match self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            true => Err(self.why_it_ended()),
            false => Ok(()),
        }
    }

    /// Hands the packets to the writer if it has nothing to do and they are worth a write. What will be compressed is handed on in
    /// whole pages.
    ///
    /// # Errors
    ///
    /// If earlier packets cannot be written.
    pub fn hand_on(&mut self) -> Result<(), WriteError> {
        let is_worth_writing = self.page.as_ref().is_some_and(|page| page.len() >= WORTH_WRITING_BYTES);
        if is_worth_writing && !self.is_compressed && self.shared.waiting.load(Ordering::Relaxed) == 0 {
            return self.flush();
        }
        Ok(())
    }

    /// Hands all packets to the writer.
    ///
    /// # Errors
    ///
    /// If earlier packets cannot be written.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        match self.page.take() {
            Some(page) if page.is_empty() => self.spare.push(page),
            Some(page) => {
                self.shared.waiting.fetch_add(1, Ordering::Relaxed);
                self.send(Message::Page(page))?;
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
        drop(self.messages.take());
        let outcome = self.join();
        if let Some(announcer) = self.announcer.take() {
            let _said_what_it_could = announcer.join();
        }
        ended.and(outcome)
    }

    /// Packets that were taken.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Bytes that files have or will have, before they are compressed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The state of the writing so far.
    pub fn summary(&self) -> Summary {
        self.shared.summary()
    }

    /// The share of the room between the two threads that is taken.
    pub fn backlog(&self) -> f64 {
        self.shared.waiting.load(Ordering::Relaxed) as f64 / PAGES as f64
    }

    fn opened(&mut self, nanos: u64) {
        self.cutter.open(nanos, self.head_bytes, self.tail_bytes);
        self.is_open = true;
        self.files += 1;
        self.bytes += self.head_bytes;
    }

    #[cold]
    fn change_page(&mut self) -> Result<(), WriteError> {
        self.flush()?;
        self.spare.extend(self.pages.try_iter());
        self.page = match self.spare.pop() {
            Some(page) => Some(page),
            None => match self.pages.recv() {
                Ok(page) => Some(page),
                Err(_) => return Err(self.why_it_ended()),
            },
        };
        Ok(())
    }

    fn send(&mut self, message: Message) -> Result<(), WriteError> {
        let sent = self.messages.as_ref().is_some_and(|messages| messages.send(message).is_ok());
        if sent { Ok(()) } else { Err(self.why_it_ended()) }
    }

    #[cold]
    fn why_it_ended(&mut self) -> WriteError {
        drop(self.messages.take());
        let ended = || io::Error::other("the writer has ended already");
        match self.join() {
            Err(error) => error,
            Ok(summary) => {
                WriteError::Sink { sink: String::new(), packets: summary.packets, source: ended() }
            }
        }
    }

    fn join(&mut self) -> Result<Summary, WriteError> {
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(self.shared.summary()),
            Some(Ok(outcome)) => outcome,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if self.thread.is_some() && !thread::panicking() {
            let _unseen = self.end(Vec::new());
        }
    }
}
