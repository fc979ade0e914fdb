//! Captures: opening, stopping, closing, and queries.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use wirecap::Capture;

use crate::failure::{self, Failure, Status, call, out_of_range, quick, text};
use crate::given::{self, Room, Rooms};
use crate::group::Group;
use crate::ledger::Books;
use crate::names::lasting;
use crate::registry::{Handle, Kept, Registry, handle};

/// A running capture.
pub(crate) struct Opened {
    // Closed before its workers go: in basic mode no other worker takes over the rings of one that is gone.
    pub(crate) capture: Capture,
    workers: Mutex<Vec<Option<wirecap::Worker>>>,
    /// The names of its rings.
    pub(crate) ring_names: Vec<&'static CStr>,
    /// Stops it when something is written there.
    stop: OnceLock<StopPipe>,
}

/// The end of a pipe that a signal handler may write to, and a thread at the other one that stops the capture.
struct StopPipe {
    writer: PipeWriter,
    ended: Arc<AtomicBool>,
}

impl StopPipe {
    fn new(capture: &Capture) -> io::Result<Self> {
        let (mut reader, writer) = io::pipe()?;
        let (stopper, ended) = (capture.stopper(), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&ended);
        // Handlers may write several times: a writer never finds the other end closed.
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
        // A child of a fork may have the pipe as well, so that its end is not seen.
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

    /// The worker of this number, which is handed out once.
    pub(crate) fn take_worker(&self, index: u32) -> Result<wirecap::Worker, Failure> {
        let mut workers = self.workers();
        let count = workers.len();
        match workers.get_mut(index as usize) {
            None => Err(out_of_range("worker", index, count)),
            Some(worker) => worker
                .take()
                .ok_or_else(|| Failure::new(Status::Busy, format!("worker {index} was already handed out"))),
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
    let parts =
        [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
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
        // The group is free for others while the kernel is asked.
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
            // Of two threads that ask at a time one is heard.
            let _ = capture.stop.set(StopPipe::new(&capture.capture).map_err(failed)?);
        }
        let pipe = capture.stop.get().expect("it was just made");
        Ok(pipe.writer.as_raw_fd())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_close(capture: Handle<Opened>, ledger: *mut Handle<Books>) -> c_int {
    call(|| {
        // SAFETY: the header says that there is room for a handle, or it is null.
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
unsafe extern "C" fn wirecap_set_filter(capture: Handle<Opened>, expression: *const c_char) -> c_int {
    call(|| {
        // SAFETY: the header says that it is a string or null.
        let expression = unsafe { given::text(expression, "the filter") }?;
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
        let name = names.get(ring as usize).ok_or_else(|| out_of_range("ring", ring, names.len()))?;
        Ok(name.as_ptr())
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_worker_count(capture: Handle<Opened>) -> c_int {
    quick(|| Ok(capture.read()?.workers().len() as c_int))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_backlogs(capture: Handle<Opened>, backlogs: *mut u32, count: usize) -> c_int {
    quick(|| {
        // SAFETY: the header says that there is room for so many, or it is null.
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
