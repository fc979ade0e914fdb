//! The thread that serves a control socket. It waits in one poll(2) for all clients and never for one of them: nothing that a
//! client does or leaves undone holds it up, and it holds a bounded number of bytes of each.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use super::desk::{ClientId, Desk, Job, Line, Stage, Task};
use super::lines::{LINE_BYTES_MAX, Lines, TooLong};
use super::request::Request;
use crate::events::{self, Kind, Next};
use crate::signals;

/// Connections at a time. One more ends the one that has said nothing for the longest time.
const CLIENTS_MAX: usize = 64;
/// Connections that are taken in one turn.
const ACCEPTED_MAX: usize = 16;
/// No more events are put behind so many bytes that a client has not read.
const UNREAD_MAX: usize = 64 << 10;
/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;
/// How long clients may take to read the last line.
const LAST_LINE: Duration = Duration::from_secs(1);
/// How long not to take connections when this process can open no more files.
const NO_FILES: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

pub(super) struct Server {
    listener: UnixListener,
    desk: Desk,
    clients: Vec<Client>,
    /// How many clients there have been.
    seen: ClientId,
    /// Counts what clients said, to know which of them has said nothing for the longest time.
    turn: u64,
    /// accept(2) has failed: it is tried again after a while.
    out_of_files: bool,
    buffer: Vec<u8>,
}

impl Server {
    pub(super) fn new(listener: UnixListener, desk: Desk) -> Self {
        let buffer = vec![0; READ_BYTES];
        Self { listener, desk, clients: Vec::new(), seen: 0, turn: 0, out_of_files: false, buffer }
    }

    /// Serves until the desk says that the end has come.
    pub(super) fn run(mut self) {
        loop {
            self.wait();
            let (answers, stage) = self.desk.take_answers();
            for (client, line) in answers {
                // It may have gone.
                if let Some(client) = self.clients.iter_mut().find(|known| known.id == client) {
                    client.put(&line);
                    client.phase = Phase::Idle;
                }
            }
            if let Stage::Ended(line) = stage {
                return self.end(&line);
            }
            self.accept();
            self.serve();
        }
    }

    /// Waits until there is something to do, and reads and writes what can be read and written.
    fn wait(&mut self) {
        let interests: Vec<PollFlags> = self.clients.iter().map(Client::interest).collect();
        let listening = if self.out_of_files { PollFlags::empty() } else { PollFlags::IN };
        let bell = self.desk.bell();
        let mut fds = vec![
            PollFd::from_borrowed_fd(bell, PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), listening),
        ];
        let clients = self.clients.iter().zip(&interests);
        fds.extend(
            clients.map(|(client, interest)| PollFd::from_borrowed_fd(client.stream.as_fd(), *interest)),
        );
        let timeout = match () {
            () if self.clients.iter().any(Client::has_more_to_do) => Some(Timespec::default()),
            () if self.out_of_files => Some(NO_FILES),
            () => None,
        };
        let outcome = poll(&mut fds, timeout.as_ref());
        let found: Vec<PollFlags> = fds[2..].iter().map(PollFd::revents).collect();
        drop(fds);
        if outcome.is_err() {
            // A signal: all is looked at again.
            return;
        }
        self.turn += 1;
        for ((client, found), interest) in self.clients.iter_mut().zip(found).zip(interests) {
            client.transfer(found, interest, &mut self.buffer, self.turn);
        }
        self.clients.retain(|client| !client.is_gone);
    }

    fn accept(&mut self) {
        self.out_of_files = false;
        for _ in 0..ACCEPTED_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    // One that cannot be made not to block could stop this thread.
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.clients.len() == CLIENTS_MAX {
                        self.remove_most_idle();
                    }
                    self.seen += 1;
                    self.clients.push(Client::new(self.seen, stream, self.turn));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    self.remove_most_idle();
                    self.out_of_files = true;
                    return;
                }
            }
        }
    }

    /// Ends the connection that has said nothing for the longest time, rather one that waits for nothing.
    fn remove_most_idle(&mut self) {
        let rank = |client: &Client| (client.is_waiting(), client.heard);
        let most_idle = (0..self.clients.len()).min_by_key(|&index| rank(&self.clients[index]));
        if let Some(index) = most_idle {
            self.clients.swap_remove(index);
        }
    }

    /// Carries out one request of each client that can take an answer, and hands out events.
    fn serve(&mut self) {
        for client in &mut self.clients {
            client.put_events();
            if !client.can_be_served() {
                continue;
            }
            match client.lines.next() {
                Ok(None) => {}
                Ok(Some(line)) if line.iter().all(u8::is_ascii_whitespace) => {}
                Ok(Some(line)) => match Request::parse(&line) {
                    Ok(request) => client.carry_out(request, &self.desk),
                    Err(reason) => client.refuse(&reason),
                },
                Err(TooLong) => {
                    client.refuse(&format!("a line is longer than {LINE_BYTES_MAX} bytes"));
                    client.is_closing = true;
                }
            }
        }
    }

    /// Gives all clients what they wait for, and the time to read it.
    fn end(mut self, line: &Line) {
        for client in &mut self.clients {
            client.put_events();
            if client.phase == Phase::AwaitsEnd {
                client.put(line);
            }
            client.is_closing = true;
        }
        let deadline = Instant::now() + LAST_LINE;
        loop {
            for client in &mut self.clients {
                client.write();
            }
            self.clients.retain(|client| !client.is_gone && !client.unread.is_empty());
            let left = deadline.saturating_duration_since(Instant::now());
            let (false, Ok(timeout)) = (left.is_zero() || self.clients.is_empty(), left.try_into()) else {
                return;
            };
            let poll_fd = |client| PollFd::from_borrowed_fd(Client::stream(client).as_fd(), PollFlags::OUT);
            let mut fds: Vec<_> = self.clients.iter().map(poll_fd).collect();
            let _ = poll(&mut fds, Some(&timeout));
        }
    }
}

/// What a client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    /// An answer of the thread that knows the capture.
    AwaitsAnswer,
    /// The end of the capture.
    AwaitsEnd,
}

/// A connection.
#[derive(Debug)]
struct Client {
    id: ClientId,
    stream: UnixStream,
    lines: Lines,
    /// What it has not read yet.
    unread: Vec<u8>,
    phase: Phase,
    /// The next event that it gets, if it has asked for them.
    next_event: Option<u64>,
    /// When it said something the last time.
    heard: u64,
    /// It says nothing more.
    has_ended: bool,
    /// It is not listened to any more, and closed when it has read everything.
    is_closing: bool,
    is_gone: bool,
}

impl Client {
    fn new(id: ClientId, stream: UnixStream, heard: u64) -> Self {
        Self {
            id,
            stream,
            lines: Lines::default(),
            unread: Vec::new(),
            phase: Phase::Idle,
            next_event: None,
            heard,
            has_ended: false,
            is_closing: false,
            is_gone: false,
        }
    }

    fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// What to wait for. While an answer is under way nothing is read: what a client sends stays in its socket.
    fn interest(&self) -> PollFlags {
        let mut interest = PollFlags::empty();
        if !self.unread.is_empty() {
            interest |= PollFlags::OUT;
        }
        if self.can_be_served() && !self.has_ended {
            interest |= PollFlags::IN;
        }
        interest
    }

    /// Whether the next request can be carried out.
    fn can_be_served(&self) -> bool {
        self.phase == Phase::Idle && self.unread.is_empty() && !self.is_closing
    }

    /// Whether lines that were read before may hold another request.
    fn has_more_to_do(&self) -> bool {
        self.can_be_served() && self.lines.has_line()
    }

    fn is_waiting(&self) -> bool {
        self.phase != Phase::Idle || self.next_event.is_some()
    }

    fn transfer(&mut self, found: PollFlags, interest: PollFlags, buffer: &mut [u8], turn: u64) {
        if found.contains(PollFlags::OUT) {
            self.write();
        }
        let is_broken = found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        if interest.contains(PollFlags::IN) && (is_broken || found.contains(PollFlags::IN)) {
            self.read(buffer, turn);
        } else if is_broken {
            self.is_gone = true;
        }
        let is_done = self.has_ended && !self.is_waiting() && !self.lines.has_line();
        if (is_done || self.is_closing) && self.unread.is_empty() {
            self.is_gone = true;
        }
    }

    fn read(&mut self, buffer: &mut [u8], turn: u64) {
        match self.stream.read(buffer) {
            Ok(0) => self.has_ended = true,
            Ok(count) => {
                self.lines.push(&buffer[..count]);
                self.heard = turn;
            }
            Err(error) if is_transient(&error) => {}
            Err(_) => self.is_gone = true,
        }
    }

    fn write(&mut self) {
        match self.stream.write(&self.unread) {
            Ok(count) => drop(self.unread.drain(..count)),
            Err(error) if is_transient(&error) => {}
            Err(_) => self.is_gone = true,
        }
    }

    /// Puts a line behind what it has not read yet.
    fn put(&mut self, line: &str) {
        self.unread.extend_from_slice(line.as_bytes());
        self.unread.push(b'\n');
    }

    fn refuse(&mut self, reason: &str) {
        self.put(&json!({ "ok": false, "error": reason }).to_string());
    }

    fn put_events(&mut self) {
        while let Some(number) = self.next_event
            && self.unread.len() < UNREAD_MAX
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

    fn carry_out(&mut self, request: Request, desk: &Desk) {
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
        match desk.ask(Job { client: self.id, task }) {
            Some(answer) => self.put(&answer),
            None => self.phase = Phase::AwaitsAnswer,
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
