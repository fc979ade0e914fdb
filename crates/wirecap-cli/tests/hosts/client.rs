//! A client that asks a host again and again, by ping and by TCP, and the server that answers.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send,
    socket_with,
};
use wirecap_testbed::{Namespace, uninterrupted};

use crate::host::{patience, sysctl};

/// Everything that a test sends contains this, then one of the kinds, then a number.
pub(crate) const MARK: &[u8; 12] = b"wirecap-host";
pub(crate) const PING: u8 = b'p';
pub(crate) const REQUEST: u8 = b'r';
pub(crate) const BURST: u8 = b'b';

const TCP_PORT: u16 = 7000;
/// In seconds: a request that is not answered by then was lost. An answer takes a millisecond; a
/// busy machine may delay it.
const ANSWER_TIMEOUT_S: u64 = 3;
/// The client gives up after this many requests without an answer.
const UNANSWERED_MAX: usize = 2;
/// Time between requests.
const INTERVAL: Duration = Duration::from_millis(10);

pub(crate) fn marked(kind: u8, number: u32) -> Vec<u8> {
    [MARK, &[kind][..], &number.to_be_bytes()].concat()
}

/// Answers TCP requests in a namespace, until it is dropped.
pub(crate) struct Server {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(namespace: &Namespace, address: IpAddr) -> Self {
        let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let listener = namespace.run_in(|| TcpListener::bind((any, TCP_PORT))).unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((connection, _)) => drop(echo(&connection)),
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Self { end, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn echo(mut connection: &TcpStream) -> io::Result<()> {
    connection.set_nonblocking(false)?;
    connection.set_read_timeout(Some(patience(ANSWER_TIMEOUT_S)))?;
    let mut request = marked(REQUEST, 0);
    uninterrupted(|| connection.read_exact(&mut request))?;
    connection.write_all(&request)
}

/// Requests of one kind, one after the other.
struct Caller {
    /// Number of the next request; all before it have ended.
    next: AtomicU32,
    unanswered: Mutex<Vec<u32>>,
    end: AtomicBool,
}

impl Caller {
    fn run(&self, mut ask: impl FnMut(u32) -> io::Result<()>) {
        while !self.end.load(Ordering::Relaxed) && !self.has_given_up() {
            let number = self.next.load(Ordering::Relaxed);
            if ask(number).is_err() {
                self.unanswered.lock().unwrap().push(number);
            }
            self.next.store(number + 1, Ordering::Release);
            thread::sleep(INTERVAL);
        }
    }

    fn has_given_up(&self) -> bool {
        self.unanswered.lock().unwrap().len() >= UNANSWERED_MAX
    }
}

/// Asks all the time, until it is stopped or gives up.
pub(crate) struct Client {
    callers: [Arc<Caller>; 2],
    threads: Vec<JoinHandle<()>>,
}

impl Client {
    pub(crate) fn start(namespace: &Namespace, server: IpAddr) -> Self {
        let caller = || Caller { next: 0.into(), unanswered: Mutex::default(), end: false.into() };
        let callers = [Arc::new(caller()), Arc::new(caller())];
        let pinging = Arc::clone(&callers[0]);
        let requesting = Arc::clone(&callers[1]);
        let here = namespace.clone();
        let there = namespace.clone();
        let threads = vec![
            thread::spawn(move || {
                let socket = here.run_in(|| ping_socket(server)).unwrap().unwrap();
                pinging.run(|number| ping(&socket, server, number));
            }),
            thread::spawn(move || {
                there.enter().unwrap();
                requesting.run(|number| request(server, number));
            }),
        ];
        Self { callers, threads }
    }

    /// The numbers of the next ping and the next TCP request.
    pub(crate) fn next(&self) -> [u32; 2] {
        self.callers.each_ref().map(|caller| caller.next.load(Ordering::Acquire))
    }

    /// Waits until this many more pings and TCP requests have ended, or the client gives up.
    pub(crate) fn wait_for(&self, count: u32) {
        let first = self.next();
        let deadline = Instant::now() + patience(30);
        for (caller, first) in self.callers.iter().zip(first) {
            while caller.next.load(Ordering::Acquire) < first + count && !caller.has_given_up() {
                assert!(Instant::now() < deadline, "the client is stuck");
                thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Whether it asks no more, because too many requests were not answered.
    pub(crate) fn has_given_up(&self) -> bool {
        self.callers.iter().any(|caller| caller.has_given_up())
    }

    /// Stops, and returns a sentence for each kind of request of which one was not answered.
    pub(crate) fn finish(mut self) -> Vec<String> {
        self.stop();
        let kinds = ["pings", "TCP requests"].iter().zip(&self.callers);
        let failures = kinds.map(|(kind, caller)| {
            let unanswered = caller.unanswered.lock().unwrap();
            let next = caller.next.load(Ordering::Acquire);
            (!unanswered.is_empty())
                .then(|| format!("{kind} {unanswered:?} of {next} were not answered"))
        });
        failures.flatten().collect()
    }

    fn stop(&mut self) {
        self.callers.iter().for_each(|caller| caller.end.store(true, Ordering::Relaxed));
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether the server answers a ping within this time.
pub(crate) fn reaches(namespace: &Namespace, server: IpAddr, patience: Duration) -> bool {
    // Permits ping sockets (icmp(7)), here and for the client.
    sysctl(namespace, "net/ipv4/ping_group_range", "0 0");
    let socket = namespace.run_in(|| ping_socket(server)).unwrap().unwrap();
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(200))).unwrap();
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if ping(&socket, server, u32::MAX).is_ok() {
            return true;
        }
        thread::sleep(INTERVAL);
    }
    false
}

/// A socket that sends ICMP echo requests and receives the replies to them.
fn ping_socket(server: IpAddr) -> io::Result<OwnedFd> {
    let (family, protocol) = match server {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(protocol))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience(ANSWER_TIMEOUT_S)))?;
    connect(&socket, &SocketAddr::new(server, 0))?;
    Ok(socket)
}

fn ping(socket: &OwnedFd, server: IpAddr, number: u32) -> io::Result<()> {
    let kind = if server.is_ipv4() { 8 } else { 128 };
    let sequence = (number as u16).to_be_bytes();
    let header = [kind, 0, 0, 0, 0, 0, sequence[0], sequence[1]];
    let wanted = marked(PING, number);
    send(socket, &[&header[..], &wanted].concat(), SendFlags::empty())?;
    let mut answer = [0; 256];
    loop {
        let (bytes, _) = uninterrupted(|| Ok(recv(socket, &mut answer, RecvFlags::empty())?))?;
        // A late answer to an earlier request is none to this one.
        if answer[..bytes].ends_with(&wanted) {
            return Ok(());
        }
    }
}

fn request(server: IpAddr, number: u32) -> io::Result<()> {
    let mut connection =
        TcpStream::connect_timeout(&SocketAddr::new(server, TCP_PORT), patience(ANSWER_TIMEOUT_S))?;
    connection.set_read_timeout(Some(patience(ANSWER_TIMEOUT_S)))?;
    let request = marked(REQUEST, number);
    connection.write_all(&request)?;
    let mut answer = vec![0; request.len()];
    uninterrupted(|| connection.read_exact(&mut answer))?;
    if answer == request { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
