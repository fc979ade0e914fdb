//! Workers: the per-thread part of a capture.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use wirecap::{Chunk, Waker};

use crate::arguments::Room;
use crate::capture::Opened;
use crate::chunk::Held;
use crate::failure::{Failure, Status, call, quick};
use crate::names::lasting;
use crate::registry::{Handle, Kept, Registry, handle, try_lock};

/// A worker, shared by the threads that use its handle.
pub(crate) struct Worker {
    /// Locked while a thread waits for a chunk.
    engine: Mutex<wirecap::Worker>,
    waker: Waker,
    is_closed: AtomicBool,
    index: usize,
    ring_names: Vec<&'static CStr>,
}

static WORKERS: Registry<Arc<Worker>> = Registry::new();

impl Kept for Arc<Worker> {
    const KIND: usize = 3;
    const NAME: &'static str = "worker";

    fn registry() -> &'static Registry<Self> {
        &WORKERS
    }
}

/// The result of waiting for a chunk.
enum Asked {
    Chunk(Chunk),
    Nothing,
    Ended,
}

impl Worker {
    /// The engine's worker; an error if another thread uses it.
    fn alone(&self) -> Result<MutexGuard<'_, wirecap::Worker>, Failure> {
        try_lock(&self.engine).ok_or_else(|| {
            let text = format!(
                "worker {} is in use by another thread; use one worker per thread",
                self.index
            );
            Failure::new(Status::Busy, text)
        })
    }

    fn ask(&self, timeout_ns: i64) -> Result<Asked, Failure> {
        let mut engine = self.alone()?;
        let chunk = match timeout_ns {
            0 => engine.try_next_chunk(),
            ..0 => engine.next_chunk_timeout(Duration::MAX),
            1.. => engine.next_chunk_timeout(Duration::from_nanos(timeout_ns as u64)),
        };
        match chunk? {
            Some(chunk) => Ok(Asked::Chunk(chunk)),
            None if engine.is_finished() => Ok(Asked::Ended),
            None if self.is_closed.load(Ordering::SeqCst) => {
                Err(Failure::new(Status::Handle, "the worker was closed by another thread"))
            }
            None => Ok(Asked::Nothing),
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_worker_open(capture: Handle<Opened>, index: u32) -> Handle<Arc<Worker>> {
    handle(|| {
        let capture = capture.read()?;
        let engine = capture.take_worker(index)?;
        Handle::keep(Arc::new(Worker {
            waker: engine.waker(),
            index: engine.index(),
            engine: Mutex::new(engine),
            is_closed: AtomicBool::new(false),
            ring_names: capture.ring_names.clone(),
        }))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_next(
    worker: Handle<Arc<Worker>>,
    timeout_ns: i64,
    chunk: *mut Handle<Held>,
) -> c_int {
    call(|| {
        // SAFETY: the header requires null or space for a handle.
        let room = unsafe { Room::at(chunk, "chunk") }?;
        room.put(Handle::null());

        // Another thread may close the handle during the wait.
        let worker = Arc::clone(&*worker.read()?);
        match worker.ask(timeout_ns)? {
            Asked::Chunk(chunk) => {
                let known = worker.ring_names.get(chunk.ring_index()).copied();
                let ring_name = known.unwrap_or_else(|| lasting(&chunk.ring().to_string()));
                room.put(Handle::keep(Held { chunk, ring_name })?);
                Ok(Status::Ok)
            }
            Asked::Nothing => Ok(Status::None),
            Asked::Ended => Ok(Status::End),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_worker_fd(worker: Handle<Arc<Worker>>) -> c_int {
    quick(|| Ok(worker.read()?.alone()?.as_fd().as_raw_fd()))
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_worker_wake(worker: Handle<Arc<Worker>>) -> c_int {
    call(|| {
        worker.read()?.waker.wake();
        Ok(Status::Ok)
    })
}

#[unsafe(no_mangle)]
extern "C" fn wirecap_worker_close(worker: Handle<Arc<Worker>>) -> c_int {
    call(|| {
        let worker = worker.take()?;
        worker.is_closed.store(true, Ordering::SeqCst);
        worker.waker.wake();
        Ok(Status::Ok)
    })
}
