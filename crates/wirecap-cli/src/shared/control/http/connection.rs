//! A client of pages and metrics. It changes nothing.

use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use serde_json::Value;

use super::address::Listener;
use super::metrics;
use super::page;
use super::request::{HEAD_BYTES_MAX, Refusal, Request, Resource};
use super::response::Response;
use crate::shared::control::mailbox::{Job, Line, Mailbox, Task};
use crate::shared::control::server::{Client, Peer};
use crate::shared::events;
use crate::shared::history;

/// Bytes that are read at once.
const READ_BYTES: usize = 4 << 10;
/// Time limits for the head of a request from its first byte on, and for an idle connection.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Time limit for a client that does not read its answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The head of a request.
    Reading,
    /// It waits for an answer of the thread that has the capture.
    AwaitsStatus(Request),
    /// An answer is being written.
    Writing,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    peer: Peer,
    /// Bytes that were read and belong to no request yet.
    inbox: Vec<u8>,
    phase: Phase,
    /// Time at which this state began, or of the last read or write.
    since: Instant,
    /// The connection ends when it has read everything.
    closes: bool,
}

impl Client for Connection {
    type Listener = Listener;

    fn new(peer: Peer) -> Self {
        Self {
            peer,
            inbox: Vec::new(),
            phase: Phase::Reading,
            since: Instant::now(),
            closes: false,
        }
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn interest(&self) -> PollFlags {
        match self.phase {
            Phase::Reading => PollFlags::IN,
            Phase::AwaitsStatus(_) => PollFlags::empty(),
            Phase::Writing => PollFlags::OUT,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Reading if self.inbox.is_empty() => Some(self.since + SILENCE_MAX),
            Phase::Reading => Some(self.since + HEAD_PATIENCE),
            Phase::AwaitsStatus(_) => None,
            Phase::Writing => Some(self.since + ANSWER_PATIENCE),
        }
    }

    fn transfer(&mut self, found: PollFlags, interest: PollFlags) {
        let is_broken = found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        if found.contains(PollFlags::OUT) {
            self.write();
        } else if interest.contains(PollFlags::IN) && (is_broken || found.contains(PollFlags::IN)) {
            self.read();
        } else if is_broken {
            self.peer.is_gone = true;
        }
    }

    fn activity(&self) -> (bool, Instant) {
        (self.phase != Phase::Reading, self.since)
    }

    /// Processes complete requests, each after the previous answer was read.
    fn serve(&mut self, listener: &Listener, mailbox: &Mailbox) {
        while self.phase == Phase::Reading && !self.inbox.is_empty() && !self.peer.is_gone {
            let given = &self.inbox[..self.inbox.len().min(HEAD_BYTES_MAX)];
            match Request::parse(given, |host| listener.is_called(host)) {
                Ok(None) => return,
                Ok(Some((request, used))) => {
                    drop(self.inbox.drain(..used));
                    self.carry_out(request, mailbox);
                }
                Err(Refusal(status, reason)) => {
                    self.closes = true;
                    self.give(&Response::refusing(status, reason), false);
                    return;
                }
            }
        }
    }

    fn answer(&mut self, line: &Line) {
        self.answer_with_status(line);
    }

    /// It reads the remaining answer.
    fn end(&mut self, _line: &Line) {}

    fn write(&mut self) {
        if self.peer.write().is_some() {
            self.since = Instant::now();
        }
        if self.peer.unread.is_empty() && self.phase == Phase::Writing {
            self.peer.is_gone |= self.closes;
            self.phase = Phase::Reading;
        }
    }
}

impl Connection {
    fn read(&mut self) {
        let mut buffer = [0; READ_BYTES];
        match self.peer.read(&mut buffer) {
            Some(0) => self.peer.is_gone = true,
            Some(count) => {
                if self.inbox.is_empty() {
                    // The time limit of a head counts from its first byte.
                    self.since = Instant::now();
                }
                self.inbox.extend_from_slice(&buffer[..count]);
            }
            None => {}
        }
    }

    fn carry_out(&mut self, request: Request, mailbox: &Mailbox) {
        self.closes = request.closes;
        let response = match request.resource {
            Resource::Page => page::response(),
            Resource::History => Response::json(history::in_json()),
            Resource::Events => Response::json(events::in_json()),
            Resource::Status | Resource::Metrics { .. } => {
                self.phase = Phase::AwaitsStatus(request);
                if let Some(answer) = mailbox.ask(Job { client: self.peer.id, task: Task::Status })
                {
                    self.answer_with_status(&answer);
                }
                return;
            }
        };
        self.give(&response, request.head_only);
    }

    /// The thread that has the capture has answered.
    fn answer_with_status(&mut self, line: &Line) {
        let Phase::AwaitsStatus(request) = self.phase else { return };
        let response = match (request.resource, serde_json::from_str::<Value>(line)) {
            (_, Ok(status)) if status["ok"] != true => {
                self.closes = true;
                Response::refusing("503 Service Unavailable", "the capture is ending")
            }
            (Resource::Metrics { open }, Ok(status)) => metrics::response(&status, open),
            _ => Response::json(line.to_string()),
        };
        self.give(&response, request.head_only);
    }

    fn give(&mut self, response: &Response, head_only: bool) {
        response.write_to(&mut self.peer.unread, head_only, self.closes);
        (self.phase, self.since) = (Phase::Writing, Instant::now());
        // Most clients have room for all of it.
        self.write();
    }
}
