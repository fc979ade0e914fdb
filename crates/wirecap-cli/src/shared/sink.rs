//! The output of a savefile, and the time it takes: a disk, or the reader of a pipe.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::io::{Errno, ioctl_fionread};
use rustix::pipe::fcntl_getpipe_size;
use wirecap::savefile::{FileSink, Sink, StreamSink, refuse_planted};

use crate::shared::failure::Failure;
use crate::shared::output;
use crate::shared::signals;

/// Time between two looks whether a process reads a named pipe.
const READER_PAUSE: Duration = Duration::from_millis(20);
/// Maximum bytes that a writer collects before it writes them.
const HELD_BACK_BYTES: u64 = 2 << 20;

/// The time that writing takes, readable by another thread.
#[derive(Debug, Clone)]
pub(crate) struct Writing(Arc<State>);

#[derive(Debug)]
struct State {
    name: String,
    epoch: Instant,
    /// The begin of the current write, in nanoseconds since the epoch; 0 if there is none.
    since: AtomicU64,
    /// Nanoseconds that all finished writes took.
    total: AtomicU64,
    /// Bytes that were taken.
    accepted: AtomicU64,
    /// Number of packets that wait in the pools for it.
    waiting: AtomicU64,
    /// Number of packets discarded because it did not keep up.
    discarded: AtomicU64,
    /// Files that are complete; of these, how many got an index, or are to get one.
    completed: AtomicU64,
    indexed: AtomicU64,
    to_index: AtomicU64,
    /// The first and the last complete file.
    ends: Mutex<Option<(PathBuf, PathBuf)>>,
}

impl Writing {
    /// Nothing is written yet to what error messages call `name`.
    pub(crate) fn to(name: impl Into<String>) -> Self {
        let [since, total, accepted, waiting, discarded, completed, indexed, to_index] =
            [(); 8].map(|()| AtomicU64::new(0));
        let name = name.into();
        let epoch = Instant::now();

        Self(Arc::new(State {
            name,
            epoch,
            since,
            total,
            accepted,
            waiting,
            discarded,
            completed,
            indexed,
            to_index,
            ends: Mutex::default(),
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// Duration of the current write.
    pub(crate) fn blocked_for(&self) -> Duration {
        match self.0.since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_nanos(self.now().saturating_sub(since)),
        }
    }

    /// Total time of all writes so far.
    pub(crate) fn total(&self) -> Duration {
        Duration::from_nanos(self.0.total.load(Ordering::Relaxed)) + self.blocked_for()
    }

    /// How many bytes were taken.
    pub(crate) fn accepted_bytes(&self) -> u64 {
        self.0.accepted.load(Ordering::Relaxed)
    }

    /// Number of packets that wait in the pools for it.
    pub(crate) fn waiting(&self) -> u64 {
        self.0.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn set_waiting(&self, packets: usize) {
        self.0.waiting.store(packets as u64, Ordering::Relaxed);
    }

    /// How many packets were discarded because it did not keep up.
    pub(crate) fn discarded(&self) -> u64 {
        self.0.discarded.load(Ordering::Relaxed)
    }

    /// Counts packets discarded because the output did not keep up.
    pub(crate) fn discard(&self, packets: u64) {
        self.0.discarded.fetch_add(packets, Ordering::Relaxed);
    }

    /// How many files are complete, how many of them have their index, and how many wait for it.
    pub(crate) fn files(&self) -> [u64; 3] {
        let State { completed, indexed, to_index, .. } = &*self.0;
        [completed, indexed, to_index].map(|count| count.load(Ordering::Relaxed))
    }

    /// The names of the complete files: of one, or of the first and the last one. Without any, the
    /// name of the output.
    pub(crate) fn names(&self) -> String {
        let ends = self.0.ends.lock().unwrap_or_else(PoisonError::into_inner);
        match &*ends {
            None => self.0.name.clone(),
            Some((first, last)) if first == last => first.display().to_string(),
            Some((first, last)) => format!("{} ... {}", first.display(), last.display()),
        }
    }

    /// Records that another file is complete; `waits_for_index`: whether it will be indexed.
    pub(crate) fn complete_file(&self, path: &Path, waits_for_index: bool) {
        let mut ends = self.0.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let first = ends.take().map_or_else(|| path.to_owned(), |(first, _)| first);
        *ends = Some((first, path.to_owned()));
        drop(ends);
        self.0.completed.fetch_add(1, Ordering::Relaxed);
        self.0.to_index.fetch_add(waits_for_index.into(), Ordering::Relaxed);
    }

    /// Records that a file no longer waits for its index, because it has one or for another reason.
    pub(crate) fn leave_index(&self, has_index: bool) {
        self.0.to_index.fetch_sub(1, Ordering::Relaxed);
        self.0.indexed.fetch_add(has_index.into(), Ordering::Relaxed);
    }

    /// Records the time of `write`.
    pub(crate) fn time<T>(&self, write: impl FnOnce() -> T) -> T {
        let begin = self.now();
        self.0.since.store(begin, Ordering::Relaxed);
        let outcome = write();
        self.0.since.store(0, Ordering::Relaxed);
        self.0.total.fetch_add(self.now() - begin, Ordering::Relaxed);
        outcome
    }

    /// Counts accepted bytes.
    pub(crate) fn accept(&self, bytes: u64) {
        self.0.accepted.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Never 0.
    fn now(&self) -> u64 {
        self.0.epoch.elapsed().as_nanos() as u64 + 1
    }
}

/// A sink whose writes are timed.
#[derive(Debug)]
pub(crate) struct TimedSink<S> {
    sink: S,
    writing: Writing,
}

impl<S: Sink> TimedSink<S> {
    pub(crate) fn new(sink: S, writing: &Writing) -> Self {
        Self { sink, writing: writing.clone() }
    }
}

impl<S: Sink> Sink for TimedSink<S> {
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let accepted = self.writing.time(|| self.sink.append(bytes))?;
        self.writing.accept(accepted as u64);
        Ok(accepted)
    }

    fn take_back(&mut self, byte_count: usize) -> io::Result<bool> {
        self.sink.take_back(byte_count)
    }

    fn rewrite(&mut self, offset: u64, bytes: &[u8]) -> io::Result<bool> {
        self.sink.rewrite(offset, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writing.time(|| self.sink.flush())
    }

    fn end(&mut self) -> io::Result<()> {
        self.writing.time(|| self.sink.end())
    }

    fn name(&self) -> String {
        self.sink.name()
    }
}

/// The output of a savefile.
#[derive(Debug)]
pub(crate) struct Output<S> {
    pub(crate) sink: S,
    /// If that is a pipe.
    pub(crate) pipe: Option<PipeEnd>,
}

/// Whether that is neither a pipe nor a terminal nor another device.
pub(crate) fn is_regular_file(file: impl AsFd) -> bool {
    fstat(file).is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::RegularFile)
}

/// The write end of a pipe, and the positions of the last packets: a pipe whose reader has ended
/// reports how many bytes were never read.
#[derive(Debug)]
pub(crate) struct PipeEnd {
    pipe: OwnedFd,
    /// Bytes that it has room for.
    capacity: u64,
    /// The places in the stream at which packets end that may not be read yet.
    ends: VecDeque<u64>,
}

impl PipeEnd {
    /// For `file`, if that is a pipe.
    pub(crate) fn of(file: impl AsFd) -> Option<Self> {
        let status = fstat(&file).ok()?;
        if FileType::from_raw_mode(status.st_mode) != FileType::Fifo {
            return None;
        }
        let pipe = file.as_fd().try_clone_to_owned().ok()?;
        let capacity = fcntl_getpipe_size(&pipe).ok()? as u64;
        Some(Self { pipe, capacity, ends: VecDeque::new() })
    }

    /// Records that a packet ends at this position, which may not have been written yet.
    pub(crate) fn packet_ends_at(&mut self, place: u64) {
        // The writer's buffer holds back as much again.
        let certainly_read = place.saturating_sub(self.capacity + HELD_BACK_BYTES);
        while self.ends.front().is_some_and(|end| *end < certainly_read) {
            self.ends.pop_front();
        }
        self.ends.push_back(place);
    }

    /// Number of packets that the reader did not read, if the pipe accepted `accepted_bytes` of the
    /// stream; 0 while there is a reader.
    pub(crate) fn packets_unread(&self, accepted_bytes: u64) -> u64 {
        let mut look = [PollFd::new(&self.pipe, PollFlags::empty())];
        let is_broken = poll(&mut look, Some(&Timespec::default())).is_ok()
            && look[0].revents().contains(PollFlags::ERR);
        if !is_broken {
            return 0;
        }
        let read_bytes = accepted_bytes.saturating_sub(ioctl_fionread(&self.pipe).unwrap_or(0));
        self.ends.iter().filter(|end| **end > read_bytes).count() as u64
    }
}

/// Standard output for a savefile, if nothing else is printed there.
pub(crate) fn standard_output(json: bool) -> Result<Output<StreamSink<File>>, Failure> {
    if json {
        let message = "--json prints on standard output, which -w - uses; write to a file instead";
        return Err(Failure::Usage(message.to_owned()));
    }
    output::check_open()?;
    output::refuse_terminal()?;
    // The bare descriptor: the standard library's own buffering would cut the blocks at line ends.
    let sink =
        StreamSink::new(File::from(io::stdout().as_fd().try_clone_to_owned()?), "standard output");
    Ok(Output { sink, pipe: PipeEnd::of(io::stdout()) })
}

/// Creates a savefile; one that exists is emptied if `replaces`, else refused. A named pipe is
/// opened once a process reads it; until then a signal, or `deadline`, ends the wait.
pub(crate) fn create(
    path: &Path,
    deadline: Option<Instant>,
    replaces: bool,
) -> Result<Output<FileSink>, Failure> {
    if is_terminal(path) {
        let message =
            format!("{} is a terminal: use wirecap show, or write to a file", path.display());
        return Err(Failure::Usage(message));
    }

    let failed = |error| output::cannot_write(path, &error);

    // Held until the sink is open: without a reader that open(2) would wait where no signal ends
    // it.
    let pipe =
        refuse_planted(path).and_then(|()| wait_for_reader(path, deadline)).map_err(failed)?;
    let create = if replaces { FileSink::replace } else { FileSink::create };
    let sink = create(path).map_err(failed)?;

    Ok(Output { sink, pipe: pipe.and_then(PipeEnd::of) })
}

fn is_terminal(path: &Path) -> bool {
    let is_device = path.metadata().is_ok_and(|metadata| metadata.file_type().is_char_device());
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    is_device
        && OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(path)
            .is_ok_and(|file| file.is_terminal())
}

/// Waits until a process reads the named pipe at `path`, if that is one.
fn wait_for_reader(path: &Path, deadline: Option<Instant>) -> io::Result<Option<std::fs::File>> {
    if !path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        return Ok(None);
    }

    let mut said = false;

    loop {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        match OpenOptions::new().write(true).custom_flags(flags).open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {}
            opened => return opened.map(Some),
        }

        if signals::end_asked_for() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(io::Error::other("no process opened the named pipe for reading"));
        }
        if !std::mem::replace(&mut said, true) {
            eprintln!("waiting for a reader of {}", path.display());
        }

        thread::sleep(READER_PAUSE);
    }
}
