//! The recording, as the capture thread uses it.
//!
//! The capturing thread copies packets, although the kernel then reads the page on another
//! processor. With the copy in the writer thread, just before the write, a recorder took 1.52 times
//! the CPU time on `xdp` and 1.25 times on `packet` at 256 bytes (pcap in memory, medians of three
//! rounds, both builds alternating; 1.22 and 1.17 on a disk): both threads wait for the memory of
//! each packet. Long packets are copied as well. Gathering packets of 1,024 bytes and more from
//! their cells (`writev(2)`) saves one copy, but the kernel processes two more `iovec` entries for
//! each packet: in the bench `ways`, *gathered* takes longer than *copied* at every length.
//!
//! A file in memory (tmpfs(5)) has no disk that stalls. While the writer has nothing else to do,
//! the capturing thread writes the pages of such a file itself, once they hold 256 KiB. So the
//! bytes stay in the second-level cache of one processor. The writer still begins, completes and
//! removes files, because the kernel frees a large file page by page while the ring fills; it also
//! writes the pages that fill up meanwhile, and every page for which a file must be removed first.
//! A mutex protects the writer's state, and the capturing thread writes only if it gets the mutex
//! without waiting. A recording does this only if its first file is in memory. When the writer
//! fails, it drops its state, so a capturing thread that waits for a page gets the error.

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
use wirecap_units::clock;

use crate::compression::{Compression, Compressor, Frame};
use crate::compressors::Compressors;
use crate::cut::{CutRules, Cutter};
use crate::direct::Direct;
use crate::files;
use crate::launch::Launch;
use crate::names::Pattern;
use crate::page::{CACHED_BYTES, FRAME_BYTES, PAGE_BYTES, Page};
use crate::rules::{Answer, RulesError};
use crate::store::{Store, StoreRules};
use crate::writer::{Durability, Message, Place, Shared, Summary, Watch, Writer, announce};

/// Number of pages shared by the capture thread and the writer.
const PAGES: usize = 16;

/// Number of pages whose memory is allocated at the beginning: one is filled, one is written, and
/// two are enough for the next chunk. The most recently returned page is used next, so the other
/// pages are used only while the disk is slow; their first use takes page faults.
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
    /// The interfaces in the head that [`write_of`](Recording::write_of) names: for each number the
    /// interface's index in the file.
    pub sources: Vec<u32>,
    /// The number of interfaces in the head.
    pub interfaces: u32,
    /// Bytes reserved at the end of a file for each interface that is added to it.
    pub source_tail_bytes: u64,
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

/// Records packets to files. Dropping it without calling [`finish`](Self::finish) completes the
/// file, but ignores errors.
#[derive(Debug)]
pub struct Recording {
    format: Format,
    is_single: bool,
    is_compressed: bool,
    /// The writer, if the first file is in memory: the capture thread then writes most pages
    /// itself. This reference is weak, so that the writer is dropped when its thread ends; that
    /// closes the channel of returned pages.
    writer: Option<Weak<Mutex<Writer>>>,
    head_bytes: u64,
    tail_bytes: u64,
    sources: Sources,
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
    /// Begins a recording at `now`. When this returns, the first file exists and has everything but
    /// packets.
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
        let failed =
            |source: io::Error| WriteError::Sink { sink: name.clone(), packets: 0, source };
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
                let line = settings.line;
                let command = settings.command;
                let work = move || announce(&files, line, command);
                let thread = thread::Builder::new()
                    .name("announce".to_owned())
                    .spawn(work)
                    .map_err(failed)?;

                (Some(complete), Some(thread))
            }
        };
        let compressors = match settings.compression {
            Compression::None => None,
            compression => {
                let waiting = Arc::clone(&shared);
                let returned = returned.clone();

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
            frame: Frame::new(settings.compression),
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

        // Otherwise all earlier files would be removed before the recording fails.
        writer.check_rules(settings.store).map_err(|error| failed(io::Error::other(error)))?;
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
        let thread =
            thread::Builder::new().name("writer".to_owned()).spawn(work).map_err(failed)?;

        let mut recording = Self {
            format: settings.format,
            is_single,
            is_compressed,
            writer: written_here,
            head_bytes,
            tail_bytes: settings.tail_bytes,
            sources: Sources::new(
                settings.sources,
                settings.interfaces,
                settings.source_tail_bytes,
            ),
            cutter: Cutter::new(settings.cut, clock::utc_offset),
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

    /// Whether the recording accepts this many bytes of packets without waiting for the disk. If
    /// `all` is false and the file is not compressed, only the memory allocated at the beginning
    /// counts; this is for callers whose packets can wait in the capture's buffers.
    pub fn has_room(&mut self, bytes: usize, all: bool) -> bool {
        self.spare.extend(self.pages.try_iter());
        // Compressors return pages out of order.
        let held_back = if all || self.is_compressed { 0 } else { PAGES - PAGES_PRESENT };
        // The end of a page is unused if the next packet does not fit.
        self.spare.len()
            >= (bytes.div_ceil(page_bytes(self.is_compressed) / 2) + held_back).min(PAGES - 2)
    }

    /// Sleeps for `pause`, so that the writer can return pages. The sleep does not end when a page
    /// is returned: the writer would have to wake this thread for each page, which costs 10 to 20
    /// ns for a packet of 768 bytes.
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

    /// Records a packet; `now` is its time if it has none. Returns `false` if the recording has
    /// ended by its rules; the packet is then not recorded.
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

    /// As [`write`](Self::write), for a packet of an interface that the head need not have: its
    /// index in `record` is ignored. `source` is the caller's number of the interface, and
    /// `describe` gives the bytes of its description, which the file gets before its first packet.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_of(
        &mut self,
        source: usize,
        describe: &dyn Fn() -> Vec<u8>,
        record: &Record<'_>,
        now: Timestamp,
    ) -> Result<bool, WriteError> {
        let known = self.sources.index_of(source);
        let len = self.format.encoded_len(record);
        let nanos = record.timestamp.unwrap_or(now).unix_nanos();
        let begins_file = !self.is_open || self.cutter.is_cut_before(nanos, len as u64);

        let description = match known {
            Some(_) if !begins_file => Vec::new(),
            _ => describe(),
        };
        let reserved = if description.is_empty() { 0 } else { self.sources.tail_bytes };
        let admitted_bytes = len + description.len() + reserved as usize;
        if !self.admits(record, admitted_bytes, now)? {
            return Ok(false);
        }

        // The file that has begun may have the interface in its head.
        let known = self.sources.index_of(source);
        let record =
            Record { interface: known.unwrap_or_else(|| self.sources.add(source)), ..*record };
        let description = if known.is_some() { &[][..] } else { &description[..] };
        let taken = description.len() + len;
        self.bytes -= (admitted_bytes - taken) as u64;

        let slot = match self.page.as_mut().and_then(|page| page.reserve(taken)) {
            Some(slot) => slot,
            None => {
                self.change_page(taken)?;
                let page = self.page.as_mut().expect("change_page begins a page");
                page.reserve(taken)
                    .expect("a page has room for the longest packet and a description")
            }
        };
        let (before, packet) = slot.split_at_mut(description.len());
        before.copy_from_slice(description);
        self.format.encode(&record, packet);

        Ok(true)
    }

    /// The interfaces in the current file that [`write_of`](Self::write_of) names: the caller's
    /// number of each, and its index in the file.
    pub fn sources(&self) -> Vec<(usize, u32)> {
        self.sources.list()
    }

    /// Whether the recording accepts a packet that takes this many bytes in the file. An accepted
    /// packet is counted, and a file for it is open.
    #[inline]
    fn admits(
        &mut self,
        record: &Record<'_>,
        len: usize,
        now: Timestamp,
    ) -> Result<bool, WriteError> {
        self.format.check(record)?;
        let nanos = record.timestamp.unwrap_or(now).unix_nanos();
        let is_turn = !self.is_open
            || self.cutter.is_cut_before(nanos, len as u64)
            || self.bytes_max != u64::MAX;
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
        let tail_bytes = match self.is_open {
            true => self.tail_bytes + self.sources.reserved_bytes(),
            false => self.head_bytes + self.tail_bytes,
        };
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

    /// Ends the current file; the next packet begins another. Without effect in a recording of a
    /// single file.
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

    /// Asks whether the recording can obey other rules from now on. Changes nothing. The answer
    /// comes from the writer, so only when the disk has taken the packets before.
    ///
    /// # Errors
    ///
    /// If earlier packets cannot be written.
    pub fn check_rules(
        &mut self,
        cut: CutRules,
        store: StoreRules,
        answer: Answer,
    ) -> Result<(), WriteError> {
        let open_bytes = if self.is_open { self.open_bytes() } else { 0 };
        let next_bytes = cut.bytes.unwrap_or(0);
        if let Some(keep_bytes) = store.bytes
            && open_bytes.saturating_add(next_bytes) > keep_bytes
            && !self.is_single
        {
            answer.give(Err(RulesError::NoRoom { keep_bytes, open_bytes, next_bytes }));
            return Ok(());
        }

        self.send(Message::Check(store, answer))
    }

    /// Applies other rules from the next file on; that file begins with the next packet. The new
    /// budgets count the files that are then in the directory. Without effect in a recording of a
    /// single file. The answer comes when the writer has the new budgets.
    ///
    /// # Errors
    ///
    /// If earlier packets cannot be written.
    pub fn change_rules(
        &mut self,
        cut: CutRules,
        store: StoreRules,
        answer: Answer,
    ) -> Result<(), WriteError> {
        if !self.is_single {
            self.rotate()?;
            self.cutter.set_rules(cut);
        }
        self.send(Message::Rules(store, answer))
    }

    /// The size of the open file when it is complete, before compression.
    fn open_bytes(&self) -> u64 {
        self.file_bytes
            + self.page.as_ref().map_or(0, Page::len) as u64
            + self.tail_bytes
            + self.sources.reserved_bytes()
    }

    /// Ends the current file if it has packets and its period is over.
    ///
    /// # Errors
    ///
    /// If earlier packets cannot be written.
    pub fn look_at_clock(&mut self, now: Timestamp) -> Result<(), WriteError> {
        match self.is_open && self.cutter.packets() > 0 && self.cutter.has_ended(now.unix_nanos()) {
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
        let ended = self
            .flush()
            .and_then(|()| if self.is_open { self.send(Message::End(tail)) } else { Ok(()) });
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
        self.sources.begin_file();
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
        let room = if self.writes_at_once() {
            CACHED_BYTES.max(len)
        } else {
            page_bytes(self.is_compressed)
        };
        page.start_at(self.file_bytes, room);
        self.page = Some(page);

        Ok(())
    }

    /// Whether the capture thread writes pages itself if the file is in memory, so that the bytes
    /// do not move to the cache of another processor. It does so if the writer's thread has
    /// finished all earlier messages.
    fn writes_at_once(&self) -> bool {
        self.writer.is_some() && self.shared.messages.load(Ordering::Acquire) == 0
    }

    /// Writes a page in this thread. Returns `false` if the writer's thread must write it: because
    /// the file is not in memory, because a file must be removed first, because that thread is
    /// busy, or because it has failed.
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

/// The interfaces that the current file has, by the caller's numbers.
#[derive(Debug)]
struct Sources {
    /// Those in the head.
    in_head: Vec<u32>,
    next_in_head: u32,
    /// The index in the file of each number.
    indices: Vec<Option<u32>>,
    next: u32,
    /// Bytes at the end of the file for each interface that is not in the head.
    tail_bytes: u64,
}

impl Sources {
    fn new(in_head: Vec<u32>, interfaces: u32, tail_bytes: u64) -> Self {
        let mut sources = Self {
            in_head,
            next_in_head: interfaces,
            indices: Vec::new(),
            next: interfaces,
            tail_bytes,
        };
        sources.begin_file();
        sources
    }

    /// A file has the interfaces in its head, and then those of its packets.
    fn begin_file(&mut self) {
        self.indices.clear();
        self.indices.extend(self.in_head.iter().copied().map(Some));
        self.next = self.next_in_head;
    }

    fn index_of(&self, source: usize) -> Option<u32> {
        self.indices.get(source).copied().flatten()
    }

    fn add(&mut self, source: usize) -> u32 {
        let len = self.indices.len().max(source + 1);
        self.indices.resize(len, None);
        let index = self.next;
        self.indices[source] = Some(index);
        self.next += 1;
        index
    }

    fn list(&self) -> Vec<(usize, u32)> {
        let numbered = self.indices.iter().enumerate();
        numbered.filter_map(|(source, index)| Some((source, (*index)?))).collect()
    }

    fn reserved_bytes(&self) -> u64 {
        u64::from(self.next - self.next_in_head) * self.tail_bytes
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
