//! The thread that serves pages and metrics. As that of the control socket it waits in one poll(2) for all clients and never for
//! one of them, and holds a bounded number of bytes of each. It changes nothing.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use serde_json::Value;

use super::address::Listener;
use super::metrics;
use super::page;
use super::request::{HEAD_BYTES_MAX, Refusal, Request, Resource};
use super::response::Response;
use crate::control::desk::{ClientId, Desk, Job, Line, Stage, Task};
use crate::events;
use crate::history;

/// Connections at a time. One more ends the one that has said nothing for the longest time.
const CLIENTS_MAX: usize = 64;
/// Connections that are taken in one turn.
const ACCEPTED_MAX: usize = 16;
/// Bytes that are read at once.
const READ_BYTES: usize = 4 << 10;
/// How long a client may take for the head of a request, once it has begun, and how long a connection may be silent.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How long a client may take nothing of its answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// How long clients may take to read what they were given before the end.
const LAST_ANSWER: Duration = Duration::from_secs(1);
/// How long not to take connections when this process can open no more files.
const NO_FILES: Duration = Duration::from_millis(50);

pub(crate) struct Server {
    listener: Listener,
    desk: Desk,
    clients: Vec<Client>,
    /// How many clients there have been.
    seen: ClientId,
    /// When accept(2) failed, to be tried again after a while.
    out_of_files: bool,
}

impl Server {
    pub(crate) fn new(listener: Listener, desk: Desk) -> Self {
        Self { listener, desk, clients: Vec::new(), seen: 0, out_of_files: false }
    }

    /// Serves until the desk says that the end has come.
    pub(crate) fn run(mut self) {
        loop {
            self.wait();
            let (answers, stage) = self.desk.take_answers();
            for (client, line) in answers {
                // It may have gone.
                if let Some(client) = self.clients.iter_mut().find(|known| known.id == client) {
                    client.answer_with_status(&line);
                }
            }
            if let Stage::Ended(_) = stage {
                return self.end();
            }
            self.accept();
            for client in &mut self.clients {
                client.serve(&self.listener, &self.desk);
            }
            let now = Instant::now();
            self.clients.retain(|client| !client.is_gone && client.deadline().is_none_or(|end| now < end));
        }
    }

    /// Waits until there is something to do, and reads and writes what can be read and written.
    fn wait(&mut self) {
        let interests: Vec<PollFlags> = self.clients.iter().map(Client::interest).collect();
        let listening = if self.out_of_files { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.desk.bell(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.socket(), listening),
        ];
        let clients = self.clients.iter().zip(&interests);
        fds.extend(
            clients.map(|(client, interest)| PollFd::from_borrowed_fd(client.socket.as_fd(), *interest)),
        );
        let now = Instant::now();
        let deadlines =
            self.clients.iter().filter_map(Client::deadline).map(|end| end.saturating_duration_since(now));
        let pause = deadlines.chain(self.out_of_files.then_some(NO_FILES)).min();
        let timeout = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let outcome = poll(&mut fds, timeout.as_ref());
        let found: Vec<PollFlags> = fds[2..].iter().map(PollFd::revents).collect();
        drop(fds);
        if outcome.is_err() {
            // A signal: all is looked at again.
            return;
        }
        for ((client, found), interest) in self.clients.iter_mut().zip(found).zip(interests) {
            client.transfer(found, interest);
        }
        self.clients.retain(|client| !client.is_gone);
    }

    fn accept(&mut self) {
        self.out_of_files = false;
        for _ in 0..ACCEPTED_MAX {
            match accept_with(self.listener.socket(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    if self.clients.len() == CLIENTS_MAX {
                        self.remove_most_idle();
                    }
                    self.seen += 1;
                    self.clients.push(Client::new(self.seen, socket));
                }
                Err(Errno::WOULDBLOCK) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    self.remove_most_idle();
                    self.out_of_files = true;
                    return;
                }
                // Of a connection that has gone again.
                Err(_) => {}
            }
        }
    }

    /// Ends the connection that has been silent for the longest time, rather one that waits for no answer.
    fn remove_most_idle(&mut self) {
        let rank = |client: &Client| (client.phase != Phase::Reading, client.since);
        let most_idle = (0..self.clients.len()).min_by_key(|&index| rank(&self.clients[index]));
        if let Some(index) = most_idle {
            self.clients.swap_remove(index);
        }
    }

    /// Gives clients the time to read what they have been given.
    fn end(mut self) {
        let deadline = Instant::now() + LAST_ANSWER;
        loop {
            self.clients.iter_mut().for_each(Client::write);
            self.clients.retain(|client| !client.is_gone && !client.unread.is_empty());
            let left = deadline.saturating_duration_since(Instant::now());
            let (false, Ok(timeout)) = (left.is_zero() || self.clients.is_empty(), left.try_into()) else {
                return;
            };
            let sockets = self.clients.iter().map(|client| client.socket.as_fd());
            let mut fds: Vec<_> =
                sockets.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::OUT)).collect();
            let _ = poll(&mut fds, Some(&timeout));
        }
    }
}

/// What a connection is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The head of a request.
    Reading,
    /// The thread that knows the capture has been asked.
    AwaitsStatus(Request),
    /// An answer is being written.
    Writing,
}

#[derive(Debug)]
struct Client {
    id: ClientId,
    socket: OwnedFd,
    /// What was read and belongs to no request yet.
    inbox: Vec<u8>,
    /// What it has not read yet.
    unread: Vec<u8>,
    phase: Phase,
    /// Since when it is at that, or when it read or wrote the last time.
    since: Instant,
    /// The connection ends when it has read everything.
    closes: bool,
    is_gone: bool,
}

impl Client {
    fn new(id: ClientId, socket: OwnedFd) -> Self {
        Self {
            id,
            socket,
            inbox: Vec::new(),
            unread: Vec::new(),
            phase: Phase::Reading,
            since: Instant::now(),
            closes: false,
            is_gone: false,
        }
    }

    fn interest(&self) -> PollFlags {
        match self.phase {
            Phase::Reading => PollFlags::IN,
            Phase::AwaitsStatus(_) => PollFlags::empty(),
            Phase::Writing => PollFlags::OUT,
        }
    }

    /// When it has taken too long.
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
            self.is_gone = true;
        }
    }

    fn read(&mut self) {
        let mut buffer = [0; READ_BYTES];
        match rustix::io::read(&self.socket, &mut buffer) {
            Ok(0) => self.is_gone = true,
            Ok(count) => {
                if self.inbox.is_empty() {
                    // A head takes so long from its first byte on, however slowly the others come.
                    self.since = Instant::now();
                }
                self.inbox.extend_from_slice(&buffer[..count]);
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(_) => self.is_gone = true,
        }
    }

    fn write(&mut self) {
        match rustix::io::write(&self.socket, &self.unread) {
            Ok(count) => {
                drop(self.unread.drain(..count));
                self.since = Instant::now();
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(_) => self.is_gone = true,
        }
        if self.unread.is_empty() && self.phase == Phase::Writing {
            self.is_gone |= self.closes;
            self.phase = Phase::Reading;
        }
    }

    /// Takes up the requests that are all there, each once the answer before was taken.
    fn serve(&mut self, listener: &Listener, desk: &Desk) {
        while self.phase == Phase::Reading && !self.inbox.is_empty() && !self.is_gone {
            let given = &self.inbox[..self.inbox.len().min(HEAD_BYTES_MAX)];
            match Request::parse(given, |host| listener.is_called(host)) {
                Ok(None) => return,
                Ok(Some((request, used))) => {
                    drop(self.inbox.drain(..used));
                    self.carry_out(request, desk);
                }
                Err(Refusal(status, reason)) => {
                    self.closes = true;
                    self.give(&Response::refusing(status, reason), false);
                    return;
                }
            }
        }
    }

    fn carry_out(&mut self, request: Request, desk: &Desk) {
        self.closes = request.closes;
        let response = match request.resource {
            Resource::Page => page::response(),
            Resource::History => Response::json(history::in_json()),
            Resource::Events => Response::json(events::in_json()),
            Resource::Status | Resource::Metrics { .. } => {
                self.phase = Phase::AwaitsStatus(request);
                if let Some(answer) = desk.ask(Job { client: self.id, task: Task::Status }) {
                    self.answer_with_status(&answer);
                }
                return;
            }
        };
        self.give(&response, request.head_only);
    }

    /// The thread that knows the capture has answered.
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
        response.write_to(&mut self.unread, head_only, self.closes);
        (self.phase, self.since) = (Phase::Writing, Instant::now());
        // Most clients have room for all of it.
        self.write();
    }
}
