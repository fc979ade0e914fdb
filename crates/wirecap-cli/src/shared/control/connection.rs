//! A client of the control socket: requests, answers and events are one line each.

use std::os::unix::net::UnixListener;
use std::time::Instant;

use rustix::event::PollFlags;
use serde_json::json;

use super::lines::{LINE_BYTES_MAX, Lines, TooLong};
use super::mailbox::{Job, Line, Mailbox, Task};
use super::request::Request;
use super::server::{Client, Peer};
use crate::shared::events::{self, Kind, Next};
use crate::shared::signals;

/// The maximum number of unread bytes after which a client gets no more events.
const UNREAD_MAX: usize = 64 << 10;
/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;

/// The state of a client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Waits for an answer of the thread that has the capture.
    AwaitsAnswer,
    /// The end of the capture.
    AwaitsEnd,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    peer: Peer,
    lines: Lines,
    phase: Phase,
    /// The next event for the client, if it follows events.
    next_event: Option<u64>,
    /// Time of its last message.
    heard: Instant,
    /// It says nothing more.
    has_ended: bool,
    /// No more requests are read from it, and it is closed when it has read everything.
    is_closing: bool,
}

impl Client for Connection {
    type Listener = UnixListener;

    fn new(peer: Peer) -> Self {
        Self {
            peer,
            lines: Lines::default(),
            phase: Phase::Idle,
            next_event: None,
            heard: Instant::now(),
            has_ended: false,
            is_closing: false,
        }
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }

    /// While an answer is pending nothing is read: further requests stay in the socket.
    fn interest(&self) -> PollFlags {
        let mut interest = PollFlags::empty();
        if !self.peer.unread.is_empty() {
            interest |= PollFlags::OUT;
        }
        if self.can_be_served() && !self.has_ended {
            interest |= PollFlags::IN;
        }
        interest
    }

    /// Whether lines that were read before may hold another request.
    fn has_more_to_do(&self) -> bool {
        self.can_be_served() && self.lines.has_line()
    }

    fn activity(&self) -> (bool, Instant) {
        (self.is_waiting(), self.heard)
    }

    fn transfer(&mut self, found: PollFlags, interest: PollFlags) {
        if found.contains(PollFlags::OUT) {
            self.write();
        }

        let is_broken = found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        if interest.contains(PollFlags::IN) && (is_broken || found.contains(PollFlags::IN)) {
            self.read();
        } else if is_broken {
            self.peer.is_gone = true;
        }

        let is_done = self.has_ended && !self.is_waiting() && !self.lines.has_line();
        if (is_done || self.is_closing) && self.peer.unread.is_empty() {
            self.peer.is_gone = true;
        }
    }

    /// Executes one request, if the client can take an answer, and sends it the events that it
    /// follows.
    fn serve(&mut self, _listener: &UnixListener, mailbox: &Mailbox) {
        self.put_events();
        if !self.can_be_served() {
            return;
        }

        match self.lines.next() {
            Ok(None) => {}
            Ok(Some(line)) if line.iter().all(u8::is_ascii_whitespace) => {}
            Ok(Some(line)) => match Request::parse(&line) {
                Ok(request) => self.carry_out(request, mailbox),
                Err(reason) => self.refuse(&reason),
            },
            Err(TooLong) => {
                self.refuse(&format!("a line is longer than {LINE_BYTES_MAX} bytes"));
                self.is_closing = true;
            }
        }
    }

    fn answer(&mut self, line: &Line) {
        self.put(line);
        self.phase = Phase::Idle;
    }

    fn end(&mut self, line: &Line) {
        self.put_events();
        if self.phase == Phase::AwaitsEnd {
            self.put(line);
        }
        self.is_closing = true;
    }

    fn write(&mut self) {
        let _count = self.peer.write();
    }
}

impl Connection {
    /// Whether the next request can be carried out.
    fn can_be_served(&self) -> bool {
        self.phase == Phase::Idle && self.peer.unread.is_empty() && !self.is_closing
    }

    fn is_waiting(&self) -> bool {
        self.phase != Phase::Idle || self.next_event.is_some()
    }

    fn read(&mut self) {
        let mut buffer = [0; READ_BYTES];
        match self.peer.read(&mut buffer) {
            Some(0) => self.has_ended = true,
            Some(count) => {
                self.lines.push(&buffer[..count]);
                self.heard = Instant::now();
            }
            None => {}
        }
    }

    /// Appends a line to the unread data.
    fn put(&mut self, line: &str) {
        self.peer.unread.extend_from_slice(line.as_bytes());
        self.peer.unread.push(b'\n');
    }

    fn refuse(&mut self, reason: &str) {
        self.put(&json!({ "ok": false, "error": reason }).to_string());
    }

    fn put_events(&mut self) {
        while let Some(number) = self.next_event
            && self.peer.unread.len() < UNREAD_MAX
            && let Some(next) = events::after(number)
        {
            match next {
                Next::Event(line) => {
                    self.put(&line);
                    self.next_event = Some(number + 1);
                }
                Next::Missed(count) => {
                    self.put(&json!({ "event": "missed", "count": count }).to_string());
                    self.next_event = Some(number + count);
                }
            }
        }
    }

    fn carry_out(&mut self, request: Request, mailbox: &Mailbox) {
        let task = match request {
            Request::Status => Task::Status,
            Request::Filter(expression) => Task::Filter(expression),
            Request::Reload { filter, rules } => Task::Reload(filter, rules),
            Request::Events => {
                self.next_event = Some(events::first());
                return self.put(r#"{"ok":true}"#);
            }
            Request::Rotate => {
                return match signals::ask_for_rotation() {
                    true => {
                        events::log(Kind::Rotation, "new file requested: control socket");
                        self.put(r#"{"ok":true}"#);
                    }
                    false => self.refuse("this capture does not write a set of files"),
                };
            }
            Request::Stop => {
                events::log(Kind::End, "ending: control socket");
                signals::ask_for_end();
                self.phase = Phase::AwaitsEnd;
                return;
            }
        };
        match mailbox.ask(Job { client: self.peer.id, task }) {
            Some(answer) => self.put(&answer),
            None => self.phase = Phase::AwaitsAnswer,
        }
    }
}
