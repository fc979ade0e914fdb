//! Captures: opening, queries, stopping, closing.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use wirecap::Capture;

use crate::arguments::{self, Room, Rooms};
use crate::failure::{self, Failure, Status, call, out_of_range, quick, text};
use crate::group::Group;
use crate::ledger::Books;
use crate::names::lasting;
use crate::registry::{Handle, Kept, Registry, handle};

/// An open capture.
pub(crate) struct Opened {
    // Declared first, so it is dropped before its workers: in basic mode no other worker takes over
    // the rings of a dropped worker.
    pub(crate) capture: Capture,
    workers: Mutex<Vec<Option<wirecap::Worker>>>,
    /// The names of the capture's rings.
    pub(crate) ring_names: Vec<&'static CStr>,
    /// Stops the capture when a byte is written to it.
    stop: OnceLock<StopPipe>,
}

/// A pipe whose write end a signal handler may use, and a thread that reads it and stops the
/// capture.
struct StopPipe {
    writer: PipeWriter,
    ended: Arc<AtomicBool>,
}

impl StopPipe {
    fn new(capture: &Capture) -> io::Result<Self> {
        let (mut reader, writer) = io::pipe()?;
        let stopper = capture.stopper();
        let ended = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ended);
        // Handlers may write several times, so the thread keeps the read end open.
        thread::Builder::new().name("wirecap-stop".to_owned()).spawn(move || {
            while reader.read_exact(&mut [0]).is_ok() && !told.load(Ordering::SeqCst) {
                stopper.stop();
            }
        })?;
        Ok(Self { writer, ended })
    }
}

impl Drop for StopPipe {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // A forked child may also have the write end open, so closing it is not sufficient.
        let _ = self.writer.write_all(&[0]);
    }
}

static CAPTURES: Registry<Opened> = Registry::new();

impl Kept for Opened {
    const KIND: usize = 2;
    const NAME: &'static str = "capture";

    fn registry() -> &'static Registry<Self> {
        &CAPTURES
    }
}

impl Opened {
    fn new(capture: Capture) -> Self {
        let workers = capture.workers().into_iter().map(Some).collect();
        let ring_names = capture.rings().iter().map(|name| lasting(&name.to_string())).collect();
        Self { capture, workers: Mutex::new(workers), ring_names, stop: OnceLock::new() }
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Option<wirecap::Worker>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the worker with this index; possible once per worker.
    pub(crate) fn take_worker(&self, index: u32) -> Result<wirecap::Worker, Failure> {
        let mut workers = self.workers();
        let count = workers.len();
        match workers.get_mut(index as usize) {
            None => Err(out_of_range("worker", index, count)),
            Some(worker) => worker.take().ok_or_else(|| {
                Failure::new(Status::Busy, format!("worker {index} was already opened"))
            }),
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_version_number() -> c_int {
    let number = |text: &str| text.parse::<c_int>().unwrap_or_default();
    let parts = [
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    ];
    let [major, minor, patch] = parts.map(number);
    major * 1_000_000 + minor * 1_000 + patch
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_status_text(status: c_int) -> *const c_char {
    failure::status_text(status).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_error() -> *const c_char {
    failure::last_text()
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_error_status() -> c_int {
    failure::last_status() as c_int
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_open(group: Handle<Group>) -> Handle<Opened> {
    handle(|| {
        // The group is not locked while the capture is opened.
        let builder = group.read()?.builder()?;
        Handle::keep(Opened::new(builder.open()?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_stop(capture: Handle<Opened>) -> c_int {
    call(|| {
        capture.read()?.capture.stop();
        Ok(Status::Ok)
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_stop_fd(capture: Handle<Opened>) -> c_int {
    failure::count(|| {
        let capture = capture.read()?;
        if capture.stop.get().is_none() {
            let failed = |error: io::Error| {
                Failure::new(Status::System, format!("cannot make a pipe and a thread: {error}"))
            };
            // If two threads call at the same time, one pipe is used.
            let _ = capture.stop.set(StopPipe::new(&capture.capture).map_err(failed)?);
        }
        let pipe = capture.stop.get().expect("it was just made");
        Ok(pipe.writer.as_raw_fd())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_close(capture: Handle<Opened>, ledger: *mut Handle<Books>) -> c_int {
    call(|| {
        // SAFETY: the header requires null or space for a handle.
        let room = unsafe { Room::at(ledger, "ledger") }.ok();
        room.iter().for_each(|room| room.put(Handle::null()));
        let Opened { capture, workers, .. } = capture.take()?;
        let last = capture.close();
        drop(workers);
        if let Some(room) = room {
            room.put(Handle::keep(Books::new(last))?);
        }
        Ok(Status::Ok)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_set_filter(
    capture: Handle<Opened>,
    expression: *const c_char,
) -> c_int {
    call(|| {
        // SAFETY: the header requires null or a string.
        let expression = unsafe { arguments::text(expression, "the filter") }?;
        capture.read()?.capture.set_filter(expression)?;
        Ok(Status::Ok)
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_ring_count(capture: Handle<Opened>) -> c_int {
    quick(|| Ok(capture.read()?.ring_names.len() as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_ring_name(capture: Handle<Opened>, ring: u32) -> *const c_char {
    text(|| {
        let capture = capture.read()?;
        let names = &capture.ring_names;
        let name =
            names.get(ring as usize).ok_or_else(|| out_of_range("ring", ring, names.len()))?;
        Ok(name.as_ptr())
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_worker_count(capture: Handle<Opened>) -> c_int {
    quick(|| Ok(capture.read()?.workers().len() as c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_backlogs(
    capture: Handle<Opened>,
    backlogs: *mut u32,
    count: usize,
) -> c_int {
    quick(|| {
        // SAFETY: the header requires null or space for this many values.
        let rooms = unsafe { Rooms::at(backlogs, count, "backlogs") }?;
        let capture = capture.read()?;
        rooms.fill(capture.capture.backlogs().into_iter());
        Ok(capture.ring_names.len() as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_ledger_read(capture: Handle<Opened>) -> Handle<Books> {
    handle(|| Handle::keep(Books::new(capture.read()?.capture.ledger())))
}
