//! The thread that serves the clients of a socket. It waits in one poll(2) for all clients and
//! never for one of them: no client can delay it, and a client uses a bounded number of bytes.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use rustix::net::{SocketFlags, accept_with};

use super::mailbox::{ClientId, Line, Mailbox, Stage};

/// Maximum number of connections. A further one closes the one that has been silent longest.
const CLIENTS_MAX: usize = 64;
/// Maximum number of connections accepted at a time.
const ACCEPTED_MAX: usize = 16;
/// How long clients may take to read their data at the end.
const LAST_ANSWER: Duration = Duration::from_secs(1);
/// How long to accept no connections when this process can open no more files.
const NO_FILES: Duration = Duration::from_millis(50);

/// A connection.
pub(super) trait Client {
    /// What it came from.
    type Listener: AsFd;

    fn new(peer: Peer) -> Self;

    fn peer(&self) -> &Peer;

    /// What to wait for.
    fn interest(&self) -> PollFlags;

    /// Whether it can be served without waiting.
    fn has_more_to_do(&self) -> bool {
        false
    }

    /// When it has taken too long.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Whether it waits for an answer, and the time of its last message.
    fn activity(&self) -> (bool, Instant);

    /// Reads and writes as far as `found` of its `interest` permits.
    fn transfer(&mut self, found: PollFlags, interest: PollFlags);

    /// Executes its requests.
    fn serve(&mut self, listener: &Self::Listener, mailbox: &Mailbox);

    /// Passes it the answer of the thread that has the capture.
    fn answer(&mut self, line: &Line);

    /// Gives it the last line, if it waits for that. Nothing is read any more.
    fn end(&mut self, line: &Line);

    /// Writes as much as it accepts.
    fn write(&mut self);
}

/// The other end of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: ClientId,
    /// It does not block.
    socket: OwnedFd,
    /// Data that it has not read yet.
    pub(super) unread: Vec<u8>,
    pub(super) is_gone: bool,
}

impl Peer {
    fn new(id: ClientId, socket: OwnedFd) -> Self {
        Self { id, socket, unread: Vec::new(), is_gone: false }
    }

    /// Reads the received bytes, up to the buffer's length: empty if the peer has finished sending,
    /// `None` if nothing was received.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let outcome = read(&self.socket, buffer);
        self.unless_gone(outcome)
    }

    /// Writes as much unread data as it accepts: `None` if it accepts nothing.
    pub(super) fn write(&mut self) -> Option<usize> {
        let outcome = write(&self.socket, &self.unread);
        let count = self.unless_gone(outcome)?;
        self.unread.drain(..count);
        Some(count)
    }

    fn unless_gone(&mut self, outcome: Result<usize, Errno>) -> Option<usize> {
        self.is_gone |=
            outcome.is_err_and(|error| !matches!(error, Errno::WOULDBLOCK | Errno::INTR));
        outcome.ok()
    }
}

pub(super) struct Server<C: Client> {
    listener: C::Listener,
    mailbox: Mailbox,
    clients: Vec<C>,
    /// Total number of clients.
    seen: ClientId,
    /// accept(2) has failed: it is tried again after a while.
    out_of_files: bool,
}

impl<C: Client> Server<C> {
    pub(super) fn new(listener: C::Listener, mailbox: Mailbox) -> Self {
        Self { listener, mailbox, clients: Vec::new(), seen: 0, out_of_files: false }
    }

    /// Serves until the capture has ended.
    pub(super) fn run(mut self) {
        loop {
            self.wait();
            let (answers, stage) = self.mailbox.take_answers();
            for (client, line) in answers {
                // It may have gone.
                if let Some(client) =
                    self.clients.iter_mut().find(|known| known.peer().id == client)
                {
                    client.answer(&line);
                }
            }

            if let Stage::Ended(line) = stage {
                return self.end(&line);
            }

            self.accept();
            for client in &mut self.clients {
                client.serve(&self.listener, &self.mailbox);
            }

            let now = Instant::now();
            let is_late = |client: &C| client.deadline().is_some_and(|end| end <= now);
            self.clients.retain(|client| !client.peer().is_gone && !is_late(client));
        }
    }

    /// Waits until there is something to do, and reads and writes what can be read and written.
    fn wait(&mut self) {
        let interests: Vec<PollFlags> = self.clients.iter().map(Client::interest).collect();
        let listening = if self.out_of_files { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.mailbox.bell(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), listening),
        ];

        let clients = self.clients.iter().zip(&interests);
        fds.extend(clients.map(|(client, interest)| {
            PollFd::from_borrowed_fd(client.peer().socket.as_fd(), *interest)
        }));

        let pause = self.pause();
        let timeout = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let outcome = poll(&mut fds, timeout.as_ref());
        let found: Vec<PollFlags> = fds[2..].iter().map(PollFd::revents).collect();

        drop(fds);
        if outcome.is_err() {
            // A signal: check everything again.
            return;
        }

        for ((client, found), interest) in self.clients.iter_mut().zip(found).zip(interests) {
            client.transfer(found, interest);
        }

        self.clients.retain(|client| !client.peer().is_gone);
    }

    /// How long at most to wait.
    fn pause(&self) -> Option<Duration> {
        if self.clients.iter().any(Client::has_more_to_do) {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let deadlines = self.clients.iter().filter_map(Client::deadline);
        let pauses = deadlines.map(|end| end.saturating_duration_since(now));
        pauses.chain(self.out_of_files.then_some(NO_FILES)).min()
    }

    fn accept(&mut self) {
        self.out_of_files = false;
        for _ in 0..ACCEPTED_MAX {
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    if self.clients.len() == CLIENTS_MAX {
                        self.remove_most_idle();
                    }
                    self.seen += 1;
                    self.clients.push(C::new(Peer::new(self.seen, socket)));
                }
                Err(Errno::WOULDBLOCK) => return,
                Err(error) if is_of_one_connection(error) => {}
                Err(_) => {
                    self.remove_most_idle();
                    self.out_of_files = true;
                    return;
                }
            }
        }
    }

    /// Closes the connection that has been silent longest, preferably one that does not wait for an
    /// answer.
    fn remove_most_idle(&mut self) {
        let most_idle = (0..self.clients.len()).min_by_key(|&index| self.clients[index].activity());
        if let Some(index) = most_idle {
            self.clients.swap_remove(index);
        }
    }

    /// Sends all clients their last answer, and gives them time to read it.
    fn end(mut self, line: &Line) {
        self.clients.iter_mut().for_each(|client| client.end(line));
        let deadline = Instant::now() + LAST_ANSWER;

        loop {
            self.clients.iter_mut().for_each(Client::write);
            self.clients
                .retain(|client| !client.peer().is_gone && !client.peer().unread.is_empty());

            let left = deadline.saturating_duration_since(Instant::now());
            let (false, Ok(timeout)) = (left.is_zero() || self.clients.is_empty(), left.try_into())
            else {
                return;
            };

            let sockets = self.clients.iter().map(|client| &client.peer().socket);
            let mut fds: Vec<_> = sockets
                .map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT))
                .collect();
            let _ = poll(&mut fds, Some(&timeout));
        }
    }
}

/// Whether accept(2) failed because of a connection that has gone again: the next one may be taken
/// at once. After all other errors, such as too many open files, the same connection would fail
/// again.
fn is_of_one_connection(error: Errno) -> bool {
    matches!(
        error,
        Errno::INTR
            | Errno::CONNABORTED
            | Errno::PERM
            | Errno::PROTO
            | Errno::NOPROTOOPT
            | Errno::OPNOTSUPP
            | Errno::NETDOWN
            | Errno::NETUNREACH
            | Errno::HOSTDOWN
            | Errno::HOSTUNREACH
            | Errno::NONET
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_of_one_connection_is_followed_by_the_next_at_once() {
        for error in [Errno::CONNABORTED, Errno::INTR, Errno::PROTO, Errno::HOSTUNREACH] {
            assert!(is_of_one_connection(error), "{error}");
        }
        for error in
            [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::INVAL, Errno::BADF]
        {
            assert!(!is_of_one_connection(error), "{error}");
        }
    }
}
