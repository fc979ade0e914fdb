//! Signals: Ctrl-C, SIGTERM and SIGHUP (unless a recording has several files) end a command
//! cleanly, a second one ends the process at once or skips work that can be done later, SIGUSR1
//! prints statistics, and no other signal that users of tcpdump send ends a command.

use std::io::{self, Read};
use std::iter;
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use wirecap::Stopper;

use crate::shared::events::{self, Kind};
use crate::shared::service;

/// Signals that come within this time of the first one are the same request: timeout(1) and service
/// managers signal the process and its group.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// Set by the first signal that ends a command.
static ENDING: AtomicBool = AtomicBool::new(false);

/// SIGHUP requests the next file instead of the end.
static HANGUP_ROTATES: AtomicBool = AtomicBool::new(false);

/// Set by SIGHUP if it requests the next file.
static ROTATION: AtomicBool = AtomicBool::new(false);

/// Set by SIGUSR1.
static STATISTICS: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on SIGUSR1 asks for statistics, SIGUSR2 does nothing, and a file that has reached the
/// limit on its size (SIGXFSZ) is an error of the write instead of the end of the process.
pub(crate) fn survive() -> io::Result<()> {
    flag::register(SIGUSR1, Arc::clone(STATISTICS.get_or_init(Arc::default)))?;
    for signal in [SIGUSR2, SIGXFSZ] {
        flag::register(signal, Arc::default())?;
    }
    Ok(())
}

/// Functions that wake the threads that answer requests.
static SLEEPERS: Mutex<Vec<Box<dyn Fn() + Send>>> = Mutex::new(Vec::new());

/// From now on, each request by a signal or by the control socket calls `wake`, so the thread that
/// answers requests does not have to check often.
pub(crate) fn wake_on_requests(wake: impl Fn() + Send + 'static) {
    SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(wake));
}

/// Wakes the threads that answer requests.
pub(crate) fn wake_for_request() {
    SLEEPERS.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|wake| wake());
}

/// Whether SIGUSR1 has arrived since the last call.
pub(crate) fn statistics_asked_for() -> bool {
    STATISTICS.get().is_some_and(|asked| asked.swap(false, Ordering::Relaxed))
}

/// From now on SIGHUP requests the next file, and does not end the command.
pub(crate) fn rotate_on_hangup() {
    HANGUP_ROTATES.store(true, Ordering::Relaxed);
}

/// Whether the command writes a set of files.
pub(crate) fn is_rotating() -> bool {
    HANGUP_ROTATES.load(Ordering::Relaxed)
}

/// Whether the next file was requested since the last call.
pub(crate) fn rotation_asked_for() -> bool {
    ROTATION.load(Ordering::Relaxed) && ROTATION.swap(false, Ordering::Relaxed)
}

/// Whether a signal that ends the command has arrived.
pub(crate) fn end_asked_for() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// Stops the capture of `stopper` at the first signal, and logs the signal as an event.
pub(crate) fn stop_on_signals(stopper: Stopper) -> io::Result<()> {
    let report = |signal| events::log(Kind::End, &format!("ending: {}", name(signal)));
    on_signal(report, "interrupted twice: statistics and buffered packets lost", move || {
        stopper.stop();
    })
}

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
        let noticed = interruption.clone();
        on_signal(drop, "interrupted twice", move || {
            noticed.0.store(true, Ordering::Relaxed);
            answer();
        })?;
        Ok(interruption)
    }

    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Requests the next file, like SIGHUP; false if that would end the command.
pub(crate) fn ask_for_rotation() -> bool {
    let rotates = HANGUP_ROTATES.load(Ordering::Relaxed);
    if rotates {
        ROTATION.store(true, Ordering::Relaxed);
        wake_for_request();
    }
    rotates
}

/// Requests the end, like a first signal. A second request, or a later signal, has no further
/// effect.
pub(crate) fn ask_for_end() {
    service::stopping();
    ENDING.store(true, Ordering::Relaxed);
    let end = END.lock().unwrap_or_else(PoisonError::into_inner).take();
    end.into_iter().for_each(|end| drop(thread::spawn(end)));
}

/// The action at the first signal.
type End = Box<dyn FnOnce() + Send>;

/// Removed by the first request for the end.
static END: Mutex<Option<End>> = Mutex::new(None);

/// The two ends of the pipe through which signals arrive, if it was made before the signals are
/// watched for.
static PIPE: Mutex<Option<(UnixStream, UnixStream)>> = Mutex::new(None);

/// Makes the pipe through which signals arrive, which a process without privileges cannot make.
pub(crate) fn make_pipe() -> io::Result<()> {
    *PIPE.lock().unwrap_or_else(PoisonError::into_inner) = Some(UnixStream::pair()?);
    Ok(())
}

/// Waits for the next signals.
fn next_signals(
    delivery: &mut SignalDelivery<UnixStream, SignalOnly>,
) -> impl Iterator<Item = i32> {
    // A byte announces signals. It may be that of signals that were already returned.
    let _interrupted = delivery.get_read().read(&mut [0]);
    delivery.pending()
}

/// Runs `report` and `end` at the first signal, and ends the process with `message` at a second
/// one; the kernel cleans up.
fn on_signal(
    report: fn(i32),
    message: &'static str,
    end: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let pipe = PIPE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (read, write) = pipe.map_or_else(UnixStream::pair, Ok)?;
    let signals = [SIGINT, SIGTERM, SIGHUP, SIGUSR1];
    let mut delivery = SignalDelivery::with_pipe(read, write, SignalOnly, signals)?;

    *END.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(end));
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let mut requests = Requests::default();
        for signal in
            iter::from_fn(|| Some(next_signals(&mut delivery).collect::<Vec<_>>())).flatten()
        {
            if signal == SIGUSR1 {
                wake_for_request();
                continue;
            }

            if signal == SIGHUP && HANGUP_ROTATES.load(Ordering::Relaxed) {
                events::log(Kind::Rotation, "new file requested: SIGHUP");
                ask_for_rotation();
                continue;
            }

            match requests.signal_at(Instant::now(), OPTIONAL.load(Ordering::Relaxed)) {
                // In a separate thread: the next signal is timed on arrival, not after this work.
                Request::First => {
                    report(signal);
                    ask_for_end();
                }
                Request::Second => {
                    eprintln!("wirecap: {message}");
                    process::exit(1);
                }
                Request::Skip => SKIPPED.store(true, Ordering::Relaxed),
                Request::Same => {}
            }
        }
    })?;

    Ok(())
}

/// The name of a signal that ends a command.
fn name(signal: i32) -> &'static str {
    match signal {
        SIGINT => "SIGINT",
        SIGTERM => "SIGTERM",
        _ => "SIGHUP",
    }
}

/// Work that can be done later is in progress.
static OPTIONAL: AtomicBool = AtomicBool::new(false);

/// Set by a signal that arrives during this work, after the one that ends the command.
static SKIPPED: AtomicBool = AtomicBool::new(false);

/// Does work after the end of a capture that can be done later: a further signal skips it, instead
/// of ending the process without the ledger. `work` calls its argument to check for that signal.
pub(crate) fn optional<T>(work: impl FnOnce(&dyn Fn() -> bool) -> T) -> T {
    OPTIONAL.store(true, Ordering::Relaxed);
    let outcome = work(&|| SKIPPED.load(Ordering::Relaxed));
    OPTIONAL.store(false, Ordering::Relaxed);
    outcome
}

/// The signals that count as one request.
#[derive(Debug, Default)]
struct Requests {
    first: Option<Instant>,
    skipped: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    First,
    /// The first one again.
    Same,
    /// Skips optional work.
    Skip,
    Second,
}

impl Requests {
    fn signal_at(&mut self, now: Instant, is_optional: bool) -> Request {
        match (self.first, self.skipped) {
            (None, _) => {
                self.first = Some(now);
                Request::First
            }
            (Some(last), None) | (_, Some(last)) if now - last < SAME_REQUEST => Request::Same,
            (_, None) if is_optional => {
                self.skipped = Some(now);
                Request::Skip
            }
            _ => Request::Second,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_within_a_second_are_one_request() {
        let mut requests = Requests::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(requests.signal_at(at(0), false), Request::First);
        assert_eq!(requests.signal_at(at(0), false), Request::Same);
        assert_eq!(requests.signal_at(at(999), false), Request::Same);
        assert_eq!(requests.signal_at(at(1000), false), Request::Second);
    }

    #[test]
    fn a_second_request_skips_optional_work_and_a_third_one_ends_the_process() {
        let mut requests = Requests::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(requests.signal_at(at(0), false), Request::First);
        assert_eq!(requests.signal_at(at(999), true), Request::Same);
        assert_eq!(requests.signal_at(at(2000), true), Request::Skip);
        assert_eq!(requests.signal_at(at(2000), true), Request::Same);
        assert_eq!(requests.signal_at(at(3000), true), Request::Second);
    }
}
