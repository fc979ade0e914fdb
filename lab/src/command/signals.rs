//! Signals: Ctrl-C, SIGTERM and SIGHUP end a command cleanly, a second one ends the process at
//! once.

use std::io;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Signals that come within this time of the first one are the same request: timeout(1) and service
/// managers signal the process and its group.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// Whether a signal has arrived since this value was created.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interruption(Arc<AtomicBool>);

impl Interruption {
    /// Watches for signals.
    pub(crate) fn watch() -> io::Result<Self> {
        Self::watch_and(|| {})
    }

    /// Watches for signals, and calls a function at the first one.
    pub(crate) fn watch_and(answer: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let interruption = Self::default();
        let noticed = Arc::clone(&interruption.0);
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let mut arrivals = signals.forever();
            arrivals.next();

            let first = Instant::now();
            noticed.store(true, Ordering::Relaxed);
            answer();

            // The kernel removes the test bed.
            if arrivals.any(|_| first.elapsed() >= SAME_REQUEST) {
                eprintln!("wirecap-lab: interrupted twice");
                process::exit(1);
            }
        })?;

        Ok(interruption)
    }

    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
