//! The events of a capture as lines, which are written to standard error and to the readers of the
//! control socket.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::shared::screen::{notice, replace_line};

/// Number of events that are kept for later or slow readers.
const KEPT: usize = 256;

/// The subject of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Packets begin or stop being lost, or waiting for the output.
    Loss,
    /// An interface went away, came back or changed.
    Interface,
    /// The filter was changed.
    Filter,
    /// A file was completed, or the next one was requested.
    Rotation,
    /// The end was requested or reached.
    End,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Interface => "interface",
            Self::Filter => "filter",
            Self::Rotation => "rotation",
            Self::End => "end",
        }
    }
}

/// The events of this process.
static LOG: Mutex<Log> = Mutex::new(Log { recent: VecDeque::new(), next: 0, bell: None });

fn kept() -> MutexGuard<'static, Log> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum number of lines that wait for standard error: a stopped terminal, or a pipe that is not
/// read, accepts none.
const UNPRINTED_MAX: usize = 256;
/// Maximum wait for standard error at the end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Messages to the thread that writes to standard error.
enum Order {
    Print(String),
    /// Replace the line that the terminal is at.
    Replace(String),
    /// Tell when everything before is written.
    Tell(SyncSender<()>),
}

/// The way to that thread, once something was said; `None` if it could not be started.
static PRINTER: OnceLock<Option<SyncSender<Order>>> = OnceLock::new();

fn start_printer() -> Option<SyncSender<Order>> {
    let (orders, inbox) = sync_channel(UNPRINTED_MAX);
    thread::Builder::new()
        .name("notices".to_owned())
        .spawn(move || inbox.iter().for_each(carry_out))
        .ok()?;
    Some(orders)
}

/// A line that replaces another one waits to be written.
static IS_REPLACING: AtomicBool = AtomicBool::new(false);

fn carry_out(order: Order) {
    match order {
        Order::Print(text) => notice(&text),
        Order::Replace(text) => replace_line(&text),
        // It may not wait any more.
        Order::Tell(written) => drop(written.try_send(())),
    }
    IS_REPLACING.store(false, Ordering::Relaxed);
}

/// Has that thread carry it out; leaves it out if too many orders wait already.
fn order(order: Order) {
    match PRINTER.get_or_init(start_printer) {
        Some(printer) => drop(printer.try_send(order)),
        None => carry_out(order),
    }
}

/// Writes the line to standard error, and keeps it for readers. Never waits for standard error.
pub(crate) fn say(kind: Kind, text: &str) {
    keep(kind, text);
    print(text.to_owned());
}

/// Keeps the line for readers, and writes it to standard error unless that is a terminal: a log
/// should have it, and a person has seen it, or sees it at the end.
pub(crate) fn log(kind: Kind, text: &str) {
    match io::stderr().is_terminal() {
        true => keep(kind, text),
        false => say(kind, text),
    }
}

/// Writes the lines to standard error on another thread; leaves them out if too many wait already.
pub(crate) fn print(text: String) {
    order(Order::Print(text));
}

/// Replaces the line that a terminal on standard error is at, on that thread too; leaves it out
/// while another one waits.
pub(crate) fn replace(text: String) {
    if !IS_REPLACING.swap(true, Ordering::Relaxed) {
        order(Order::Replace(text));
    }
}

/// Removes that line, and waits for it, but not for long.
pub(crate) fn erase() {
    order(Order::Replace(String::new()));
    flush();
}

/// Waits until everything that was said is on standard error, but not for long.
pub(crate) fn flush() {
    let Some(Some(printer)) = PRINTER.get() else { return };
    let (written, is_written) = sync_channel(1);
    if printer.try_send(Order::Tell(written)).is_ok() {
        let _a_terminal_that_was_stopped = is_written.recv_timeout(LAST_LINES);
    }
}

/// Keeps the line for readers only: standard error has it already, or has no use for it.
pub(crate) fn keep(kind: Kind, text: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line =
        json!({ "event": kind.name(), "unix_s": now.as_secs_f64(), "text": text }).to_string();
    kept().push(line.into());
}

/// From now on each event is also signalled by this eventfd.
pub(crate) fn ring(bell: OwnedFd) {
    kept().bell = Some(bell);
}

/// The number of the first event that is kept.
pub(crate) fn first() -> u64 {
    kept().first()
}

/// The events that are kept, as a JSON array.
pub(crate) fn in_json() -> String {
    let log = kept();
    let events: Vec<&str> = log.recent.iter().map(|event| &**event).collect();
    format!("[{}]", events.join(","))
}

/// The next event for a reader that has had all events before number `next`.
pub(crate) fn after(next: u64) -> Option<Next> {
    kept().after(next)
}

/// What a reader gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Next {
    /// The requested event, as a JSON object on one line.
    Event(Arc<str>),
    /// So many events are not kept any more.
    Missed(u64),
}

#[derive(Debug)]
struct Log {
    recent: VecDeque<Arc<str>>,
    /// The number of the next event.
    next: u64,
    bell: Option<OwnedFd>,
}

impl Log {
    fn first(&self) -> u64 {
        self.next - self.recent.len() as u64
    }

    fn push(&mut self, line: Arc<str>) {
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
        self.next += 1;
        if let Some(bell) = &self.bell {
            // It is full only if it has been rung and not been heard.
            let _ = rustix::io::write(bell.as_fd(), &1_u64.to_ne_bytes());
        }
    }

    fn after(&self, next: u64) -> Option<Next> {
        match next.checked_sub(self.first()) {
            None => Some(Next::Missed(self.first() - next)),
            Some(place) => self.recent.get(place as usize).cloned().map(Next::Event),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_gets_the_number_of_missed_events() {
        let mut log = Log { recent: VecDeque::new(), next: 0, bell: None };
        assert_eq!((log.first(), log.after(0)), (0, None));
        (0..KEPT + 3).for_each(|event| log.push(event.to_string().into()));
        assert_eq!(log.after(0), Some(Next::Missed(3)));
        assert_eq!(log.after(3), Some(Next::Event("3".into())));
        assert_eq!(log.after(KEPT as u64 + 2), Some(Next::Event((KEPT + 2).to_string().into())));
        assert_eq!(log.after(KEPT as u64 + 3), None);
    }
}
