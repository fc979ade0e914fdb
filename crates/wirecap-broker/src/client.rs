//! The broker as the capturing process sees it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};

use wirecap_filter::opener::{Answer, Direct, ObjectKind, Opener, Privilege, ProgramRequest, Request};

use crate::channel::{receive, send};
use crate::message::{Ask, Kind, Outcome, Reply, Terms, decode, encode};
use crate::relocate;

/// The process that executes privileged requests. It ends when this value and all its clones are gone.
#[derive(Debug, Clone)]
pub struct Broker {
    connection: Arc<Mutex<Connection>>,
    privileges: Vec<Privilege>,
}

#[derive(Debug)]
struct Connection {
    /// `None` only while the value is dropped.
    socket: Option<UnixStream>,
    process: Child,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The broker ends when it reads the end of the requests.
        drop(self.socket.take());
        let _ended = self.process.wait();
    }
}

impl Broker {
    /// Starts `command`, which must call [`serve`](crate::serve) with its standard input, and sends it the terms.
    ///
    /// # Errors
    ///
    /// If the command cannot be started or rejects the terms.
    pub fn start(mut command: Command, terms: &Terms) -> io::Result<Self> {
        let (socket, other_end) = UnixStream::pair()?;
        let process = command.stdin(OwnedFd::from(other_end)).spawn()?;
        // The command has the other end as well, which would keep the socket open.
        drop(command);
        let connection = Arc::new(Mutex::new(Connection { socket: Some(socket), process }));
        let mut privileges = vec![Privilege::PacketSockets, Privilege::LockedMemory];
        privileges.retain(|privilege| Direct.has(*privilege));
        let broker = Self { connection, privileges };
        broker.exchange(&encode(terms)?, &[])?;
        Ok(broker)
    }

    /// Runs the command of the [`Terms`] with `path` after its arguments, and does not wait for its end.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or the path is not in the directory of the terms.
    pub fn run(&self, path: &Path) -> io::Result<()> {
        let path = path.as_os_str().as_bytes().to_vec();
        self.ask(&Ask::Run { path }, &[]).map(drop)
    }

    fn ask(&self, ask: &Ask, descriptors: &[BorrowedFd<'_>]) -> io::Result<(Answer, Vec<u8>)> {
        self.exchange(&encode(ask)?, descriptors)
    }

    fn exchange(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<(Answer, Vec<u8>)> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = || io::Error::other("the privileged process has ended");
        let socket = connection.socket.as_ref().ok_or_else(gone)?;
        send(socket, bytes, descriptors).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => gone(),
            _ => error,
        })?;
        let (bytes, mut descriptors) = receive(socket)?.ok_or_else(gone)?;
        let reply: Reply = decode(&bytes)?;
        let answer = match reply.outcome {
            Outcome::Descriptor => Answer::Descriptor(descriptors.pop().ok_or(io::ErrorKind::InvalidData)?),
            Outcome::Id(id) => Answer::Id(id),
            Outcome::Done => Answer::Done,
            Outcome::Errno(number) if reply.log.is_empty() => {
                return Err(io::Error::from_raw_os_error(number));
            }
            // The error includes the verifier's log.
            Outcome::Errno(number) => return Err(VerifierError { number, log: reply.log }.into()),
            Outcome::Refused(why) => {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!("the privileged process rejected the request: {why}"),
                ));
            }
        };
        Ok((answer, reply.log))
    }

    fn program(&self, request: ProgramRequest<'_>) -> io::Result<Answer> {
        let (code, maps) = relocate::by_place(request.code);
        let ask = Ask::Program {
            program_type: request.program_type,
            name: request.name,
            code,
            license: request.license.to_bytes().to_vec(),
            flags: request.flags,
            ifindex: request.ifindex,
            expected_attach_type: request.expected_attach_type,
            log_bytes: request.log.len().try_into().unwrap_or(u32::MAX),
        };
        let outcome = self.ask(&ask, &relocate::borrowed(&maps));
        let mut show = |written: &[u8]| {
            let bytes = written.len().min(request.log.len());
            request.log[..bytes].copy_from_slice(&written[..bytes]);
        };
        match outcome {
            Ok((answer, log)) => {
                show(&log);
                Ok(answer)
            }
            Err(error) => match error.downcast::<VerifierError>() {
                Ok(VerifierError { number, log }) => {
                    show(&log);
                    Err(io::Error::from_raw_os_error(number))
                }
                Err(error) => Err(error),
            },
        }
    }
}

impl Opener for Broker {
    fn open(&self, request: Request<'_>) -> io::Result<Answer> {
        let (ask, descriptors) = match request {
            Request::Socket { family } => (Ask::Socket { family }, vec![]),
            Request::Umem(umem) => {
                let memory = umem.memory().ok_or_else(|| {
                    io::Error::new(
                        io::ErrorKind::Unsupported,
                        "another process cannot share the memory of the pool; check the limit on file sizes (ulimit -f)",
                    )
                })?;
                let (bytes, cell_bytes) = umem.sizes();
                (Ask::Umem { bytes, cell_bytes }, vec![umem.socket(), memory])
            }
            Request::Map(map) => {
                let ask = Ask::Map {
                    map_type: map.map_type,
                    name: map.name,
                    key_bytes: map.key_bytes,
                    value_bytes: map.value_bytes,
                    max_entries: map.max_entries,
                    flags: map.flags,
                };
                (ask, vec![])
            }
            Request::Program(program) => return self.program(program),
            Request::Tracepoint { program, name } => {
                (Ask::Tracepoint { name: name.to_bytes().to_vec() }, vec![program])
            }
            Request::XdpLink { program, ifindex, flags } => (Ask::XdpLink { ifindex, flags }, vec![program]),
            Request::LinkUpdate { link, program } => (Ask::LinkUpdate, vec![link, program]),
            Request::ById { kind, id } => (Ask::ById { kind: kind.into(), id }, vec![]),
            Request::NextId { kind, id } => (Ask::NextId { kind: kind.into(), id }, vec![]),
            Request::Listen { name, backlog } => (Ask::Listen { name: name.to_vec(), backlog }, vec![]),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        self.ask(&ask, &descriptors).map(|(answer, _)| answer)
    }

    /// The broker has the privileges that this process had when it started the broker.
    fn has(&self, privilege: Privilege) -> bool {
        self.privileges.contains(&privilege)
    }
}

impl From<ObjectKind> for Kind {
    fn from(kind: ObjectKind) -> Self {
        match kind {
            ObjectKind::Map => Self::Map,
            ObjectKind::Program => Self::Program,
            ObjectKind::Link => Self::Link,
        }
    }
}

/// The kernel's error, with the verifier's log.
#[derive(Debug)]
struct VerifierError {
    number: i32,
    log: Vec<u8>,
}

impl std::fmt::Display for VerifierError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", io::Error::from_raw_os_error(self.number))
    }
}

impl std::error::Error for VerifierError {}

impl From<VerifierError> for io::Error {
    fn from(error: VerifierError) -> Self {
        Self::other(error)
    }
}
