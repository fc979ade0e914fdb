//! Ctrl-C, SIGTERM and SIGHUP end a command cleanly; a second one ends the process at once.

use std::io;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use wirecap::Stopper;

/// Stops the capture of `stopper` at the first signal.
pub(crate) fn stop_on_signals(stopper: Stopper) -> io::Result<()> {
    on_signal(move || stopper.stop())
}

/// Whether a signal came, from now on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interruption(Arc<AtomicBool>);

impl Interruption {
    /// Watches for signals.
    pub(crate) fn watch() -> io::Result<Self> {
        Self::watch_and(|| {})
    }

    /// Watches for signals, and does this at the first.
    pub(crate) fn watch_and(answer: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let interruption = Self::default();
        let noticed = interruption.clone();
        on_signal(move || {
            noticed.0.store(true, Ordering::Relaxed);
            answer();
        })?;
        Ok(interruption)
    }

    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs `end` at the first signal. The kernel undoes what a process that ends at once leaves behind.
fn on_signal(end: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut received = signals.forever();
        if received.next().is_some() {
            end();
        }
        if received.next().is_some() {
            eprintln!("wirecap: second signal: ended at once, with nothing more said");
            process::exit(1);
        }
    })?;
    Ok(())
}
