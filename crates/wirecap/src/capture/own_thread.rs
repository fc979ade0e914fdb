//! A thread of a capture that has ended when the capture is closed.
//!
//! A library's code may be unmapped after the last call into it (dlclose), and leak checkers report
//! memory of threads at exit, so the owner joins the thread. It does not exist in a child process,
//! where joining would never return.

use std::cell::Cell;
use std::io;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use rustix::process::{Pid, getpid};

use crate::sys::signals;

thread_local! {
    /// The number of the current thread, if it is such a thread: `thread::current` would allocate
    /// in a thread of the application.
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// How many were started.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// A thread that does not get the process's signals. Dropping the value waits for the thread's end,
/// in the process that started it; before that, the owner must have told the thread to end.
#[derive(Debug)]
pub(super) struct OwnThread {
    handle: Option<JoinHandle<()>>,
    number: u64,
    process: Pid,
}

impl OwnThread {
    /// Starts a thread of this name.
    pub(super) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let builder = thread::Builder::new().name(name.to_owned());
        let number = STARTED.fetch_add(1, Ordering::Relaxed) + 1;
        let numbered = move || {
            NUMBER.set(number);
            work();
        };
        let handle = signals::blocked(|| builder.spawn(numbered))?;
        Ok(Self { handle: Some(handle), number, process: getpid() })
    }

    /// Wakes the thread if it is parked.
    pub(super) fn unpark(&self) {
        if let Some(handle) = &self.handle {
            handle.thread().unpark();
        }
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        // A listener that the thread calls may drop the capture.
        let is_own = NUMBER.get() == self.number;
        match (getpid() == self.process, is_own) {
            // The thread has already printed its panic message.
            (true, false) => drop(handle.join()),
            (true, true) => drop(handle),
            // Detaching would also access the thread's memory, which belongs to the other process.
            (false, _) => mem::forget(handle),
        }
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_has_ended_when_its_owner_is_dropped() {
        let ended = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ended);
        let (tell, wait) = mpsc::channel::<()>();
        let thread = OwnThread::start("test", move || {
            let _ = wait.recv();
            thread::sleep(Duration::from_millis(20));
            told.store(true, Ordering::Relaxed);
        });
        drop(tell);
        drop(thread.unwrap());
        assert!(ended.load(Ordering::Relaxed));
    }

    #[test]
    fn a_thread_that_drops_its_owner_does_not_wait_for_itself() {
        let (give, take) = mpsc::channel::<OwnThread>();
        let (tell, wait) = mpsc::channel();
        let thread = OwnThread::start("test", move || {
            drop(take.recv());
            tell.send(()).unwrap();
        });
        give.send(thread.unwrap()).unwrap();
        wait.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn in_another_process_nothing_is_waited_for() {
        let (tell, wait) = mpsc::channel::<()>();
        let mut thread = OwnThread::start("test", move || {
            let _ = wait.recv();
        })
        .unwrap();
        let here = thread.process;
        thread.process = Pid::INIT;
        drop(thread);
        assert_ne!(here, Pid::INIT);
        drop(tell);
    }
}
