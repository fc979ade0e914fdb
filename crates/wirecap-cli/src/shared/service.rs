//! Notifications to the service manager by the protocol of sd_notify(3), and priorities of lines in
//! its journal.
//!
//! The process connects to the service manager before it drops its privileges. `READY=1` is sent
//! when interfaces and file are open, `STATUS=` every five seconds. The thread that watches for
//! losses sends `WATCHDOG=1` as long as the recording thread makes progress or waits for the disk:
//! ending a capture because its disk stalls would lose the waiting packets. If `JOURNAL_STREAM`
//! identifies standard error as the journal, lines have the priorities of sd-daemon(3): 3 errors, 4
//! warnings and losses, 6 all else.

use std::borrow::Cow;
use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::fstat;
use rustix::time::{ClockId, clock_gettime};
use wirecap::{Ledger, grouped};

use crate::size;

/// The manager that started this process, if it expects notifications.
static MANAGER: OnceLock<Option<Manager>> = OnceLock::new();
/// The end was announced.
static IS_STOPPING: AtomicBool = AtomicBool::new(false);
/// Number of rounds of the recording thread; 0 if the command has none.
static ROUNDS: AtomicU64 = AtomicU64::new(0);

/// How long a thread of an idle capture sleeps: each wake-up takes some 70 us of processor time in
/// a virtual machine.
const IDLE: Duration = Duration::from_secs(1);
/// Time between two lines about the state.
const STATUS: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Manager {
    socket: UnixDatagram,
    /// Interval of the watchdog.
    watchdog: Option<Duration>,
}

/// Connects to the manager, which may not be permitted later.
pub(crate) fn begin() {
    MANAGER.get_or_init(|| {
        let address = env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty())?;
        let socket = connect(&address).inspect_err(|error| {
            eprintln!("warning: cannot notify the service manager: {}: {error}", address.display());
        });
        let own =
            |pid: OsString| pid.to_str().is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog = env::var("WATCHDOG_USEC").ok().and_then(|micros| micros.parse().ok());
        let watchdog = watchdog.filter(|_| env::var_os("WATCHDOG_PID").is_none_or(own));
        let watchdog = watchdog.filter(|micros| *micros > 0).map(Duration::from_micros);
        Some(Manager { socket: socket.ok()?, watchdog })
    });
}

fn connect(address: &OsString) -> io::Result<UnixDatagram> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    // A manager that does not read causes no delay.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn manager() -> Option<&'static Manager> {
    MANAGER.get()?.as_ref()
}

fn tell(message: &str) {
    if let Some(manager) = manager() {
        // A failed notification is no reason to stop.
        let _ = rustix::io::write(manager.socket.as_fd(), message.as_bytes());
    }
}

/// The service is ready.
pub(crate) fn ready() {
    tell("READY=1");
}

/// A reload begins; [`ready`] ends it.
pub(crate) fn reloading() {
    let now = clock_gettime(ClockId::Monotonic);
    let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
    tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

/// The end begins.
pub(crate) fn stopping() {
    if !IS_STOPPING.swap(true, Ordering::Relaxed) {
        tell("STOPPING=1");
    }
}

/// The maximum sleep of a thread of an idle capture. A message to the watchdog needs both the
/// recording thread and the thread that sends it, so both must wake up often enough.
pub(crate) fn longest_sleep() -> Duration {
    manager().and_then(|manager| manager.watchdog).map_or(IDLE, |interval| IDLE.min(interval / 8))
}

/// The recording thread is alive: it reports at least once per [`longest_sleep`], unless it waits
/// for the output.
pub(crate) fn came_round() {
    ROUNDS.store(ROUNDS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Sends the state and the watchdog's message to the manager at intervals.
#[derive(Debug)]
pub(crate) struct Pulse {
    told: Option<Instant>,
    status: Option<(Instant, u64)>,
    rounds: u64,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Self { told: None, status: None, rounds: 0 }
    }

    /// Call at least once per [`longest_sleep`]. `is_writing`: the recording thread waits for the
    /// output, which is no reason to end the service.
    pub(crate) fn look(&mut self, is_writing: bool, now: Instant, ledger: impl FnOnce() -> Ledger) {
        let Some(manager) = manager() else { return };
        if let Some(interval) = manager.watchdog
            && self.told.is_none_or(|told| now - told >= interval / 4)
            && self.is_alive(ROUNDS.load(Ordering::Relaxed), is_writing)
        {
            tell("WATCHDOG=1");
            self.told = Some(now);
        }

        if self.status.is_none_or(|(at, _)| now - at >= STATUS) {
            let ledger = ledger();
            let rate = self.status.map_or(0.0, |(at, delivered)| {
                (ledger.total.delivered - delivered) as f64 / (now - at).as_secs_f64()
            });
            let delivered = grouped(ledger.total.delivered);
            let lost = grouped(ledger.total.dropped.total());
            let rate = size::human_rate(rate);
            tell(&format!("STATUS={delivered} packets, {rate}packets/s, {lost} lost"));
            self.status = Some((now, ledger.total.delivered));
        }
    }
}

impl Pulse {
    /// Whether the recording thread has made progress since the last check, or has a reason not to;
    /// `rounds` is 0 in a command without one.
    fn is_alive(&mut self, rounds: u64, is_writing: bool) -> bool {
        let before = std::mem::replace(&mut self.rounds, rounds);
        rounds != before || rounds == 0 || is_writing
    }
}

/// The lines for standard error: with the priorities of sd-daemon(3) if standard error is the
/// journal.
pub(crate) fn marked(text: &str) -> Cow<'_, str> {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    match IS_JOURNAL.get_or_init(is_journal) {
        true => Cow::Owned(with_priorities(text)),
        false => Cow::Borrowed(text),
    }
}

/// Whether standard error is the stream that JOURNAL_STREAM names.
fn is_journal() -> bool {
    let Ok(stream) = env::var("JOURNAL_STREAM") else { return false };
    let Ok(status) = fstat(io::stderr()) else { return false };
    stream == format!("{}:{}", status.st_dev, status.st_ino)
}

/// Errors are `<3>`, warnings `<4>`, and all else `<6>`. Lines that belong to the previous line
/// have its priority.
fn with_priorities(text: &str) -> String {
    let mut priority = 6;
    let mut marked = String::new();

    for line in text.split('\n') {
        if !line.starts_with(' ') {
            priority = match line {
                line if line.starts_with("wirecap: ") || line.starts_with("error: ") => 3,
                line if line.starts_with("warning: ") => 4,
                line if line.starts_with("lossless: no") => 4,
                _ => 6,
            };
        }
        marked += &format!("<{priority}>{line}\n");
    }

    marked.pop();
    marked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_thread_is_alive_only_while_it_waits_for_the_disk() {
        let mut pulse = Pulse::new();
        let looks =
            [(0, false), (0, false), (3, false), (3, false), (3, true), (4, false), (4, false)];
        let alive = looks.map(|(rounds, is_writing)| pulse.is_alive(rounds, is_writing));
        assert_eq!(alive, [true, true, true, false, true, true, false]);
    }

    #[test]
    fn each_line_has_its_syslog_priority() {
        assert_eq!(
            with_priorities(
                "capturing eth0: 1 ring\n  not zero-copy: no\nwarning: slow\n  still slow"
            ),
            "<6>capturing eth0: 1 ring\n<6>  not zero-copy: no\n<4>warning: slow\n<4>  still slow"
        );
        assert_eq!(with_priorities("wirecap: cannot"), "<3>wirecap: cannot");
        assert_eq!(with_priorities("lossless: yes"), "<6>lossless: yes");
        assert_eq!(
            with_priorities("lossless: not known (a gap)"),
            "<4>lossless: not known (a gap)"
        );
    }
}
