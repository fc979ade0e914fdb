//! The broker: reads requests, checks them against the terms, and calls the kernel.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path};
use std::process::{Child, Command, Stdio};

use nix::net::if_::{if_indextoname, if_nametoindex};
use rustix::process::geteuid;
use wirecap_filter::bpf::{Link, Map};
use wirecap_filter::opener::{Answer, Direct, MapRequest, ObjectKind, Opener, ProgramRequest, Request};

use crate::calls::forbidden;
use crate::channel::{receive, send};
use crate::message::{Ask, Kind, Outcome, Reply, Terms, decode, encode, path_of};
use crate::relocate;
use crate::sys::Shared;

/// Types of programs (`enum bpf_prog_type`): raw tracepoint and XDP.
const PROGRAM_TYPES: [u32; 2] = [17, 6];
/// Sockets for packets.
const FAMILIES: [i32; 2] = [libc::AF_PACKET, libc::AF_XDP];
/// Prefix of the names of wirecap's sockets.
const NAMES: &[u8] = b"wirecap/";
/// The tracepoint at the end of a batch of packets, for the clock of XDP programs.
const TRACEPOINT: &[u8] = b"napi_poll";
/// Prefix of the names of wirecap's maps.
const MAPS: &str = "wirecap_";
/// Maximum memory of a map.
const MAP_BYTES_MAX: u64 = 1 << 30;
/// Maximum length of the verifier's log.
const LOG_BYTES_MAX: u32 = 8 << 20;

/// Serves requests that arrive over `socket`, until the other side ends.
///
/// # Errors
///
/// If the socket fails, or the first message is not valid terms.
pub fn serve(socket: impl Into<OwnedFd>) -> io::Result<()> {
    let socket = UnixStream::from(socket.into());
    let Some((bytes, _)) = receive(&socket)? else { return Ok(()) };
    let terms: Terms = decode(&bytes)?;
    send(&socket, &encode(&Reply::from(Outcome::Done))?, &[])?;
    let mut server = Server::new(terms);
    while let Some((bytes, descriptors)) = receive(&socket)? {
        let (reply, opened) = server.answer(&bytes, &descriptors);
        let opened: Vec<BorrowedFd<'_>> = opened.iter().map(AsFd::as_fd).collect();
        send(&socket, &encode(&reply)?, &opened)?;
    }
    for socket in &server.terms.sockets {
        let _another_one_may_have_removed_it = remove_dead(socket);
    }
    server.running.iter_mut().for_each(|child| drop(child.wait()));
    Ok(())
}

/// Removes a socket that no process listens to. If processes create sockets in the directory only while they
/// hold `.lock`, this function's lock ensures that no process is between bind(2) and listen(2).
fn remove_dead(socket: &Path) -> io::Result<()> {
    let _turn = match File::open(socket.with_file_name(".lock")) {
        Ok(lock) => lock.lock().map(|()| Some(lock))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    match UnixStream::connect(socket) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(socket),
        _ => Ok(()),
    }
}

#[derive(Debug)]
struct Server {
    terms: Terms,
    /// The numbers of the interfaces at the beginning: one that is renamed keeps its number.
    ifindexes: Vec<u32>,
    /// Commands that are still running.
    running: Vec<Child>,
}

/// The reason why a request is not executed.
#[derive(Debug)]
enum Denial {
    /// The kernel's error, or the command's.
    Failed(io::Error),
    /// The terms do not allow it.
    Refused(String),
}

impl From<io::Error> for Denial {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T, Denial> {
    Err(Denial::Refused(why.into()))
}

/// For tests: the kernel request that a broker would make.
pub(crate) fn judge(terms: &Terms, bytes: &[u8], descriptors: usize) -> Result<Ask, String> {
    let ask: Ask = decode(bytes).map_err(|error| error.to_string())?;
    match Server::new(terms.clone()).check(&ask, descriptors) {
        Ok(()) => Ok(ask),
        Err(Denial::Refused(why)) => Err(why),
        Err(Denial::Failed(error)) => Err(error.to_string()),
    }
}

impl Server {
    fn new(terms: Terms) -> Self {
        let ifindexes =
            terms.interfaces.iter().filter_map(|name| if_nametoindex(name.as_str()).ok()).collect();
        Self { terms, ifindexes, running: Vec::new() }
    }

    fn answer(&mut self, bytes: &[u8], descriptors: &[OwnedFd]) -> (Reply, Option<OwnedFd>) {
        let mut log = Vec::new();
        let outcome = decode::<Ask>(bytes)
            .map_err(|error| Denial::Refused(format!("an unknown request: {error}")))
            .and_then(|ask| self.check(&ask, descriptors.len()).map(|()| ask))
            .and_then(|ask| self.perform(ask, descriptors, &mut log));
        let (outcome, opened) = match outcome {
            Ok(Answer::Descriptor(descriptor)) => (Outcome::Descriptor, Some(descriptor)),
            Ok(Answer::Id(id)) => (Outcome::Id(id), None),
            Ok(Answer::Done) => (Outcome::Done, None),
            Err(Denial::Failed(error)) => match error.raw_os_error() {
                Some(number) => (Outcome::Errno(number), None),
                None => (Outcome::Refused(error.to_string()), None),
            },
            Err(Denial::Refused(why)) => (Outcome::Refused(why), None),
        };
        // A zero ends the verifier's log.
        log.truncate(log.iter().position(|byte| *byte == 0).unwrap_or(log.len()));
        (Reply { outcome, log }, opened)
    }

    /// Whether the terms allow the request. Checks the contents of the message; the kernel checks the
    /// descriptors.
    fn check(&self, ask: &Ask, descriptors: usize) -> Result<(), Denial> {
        let wanted = match ask {
            Ask::Umem { .. } | Ask::LinkUpdate => 2..=2,
            Ask::Tracepoint { .. } | Ask::XdpLink { .. } => 1..=1,
            Ask::Program { .. } => 0..=crate::message::DESCRIPTORS_MAX,
            _ => 0..=0,
        };
        if !wanted.contains(&descriptors) {
            return refuse(format!("{descriptors} descriptors came with the request"));
        }
        match ask {
            Ask::Socket { family } if !FAMILIES.contains(family) => {
                refuse(format!("a socket of family {family}"))
            }
            Ask::Map { key_bytes, value_bytes, max_entries, .. } => {
                let entry = u64::from(*key_bytes) + u64::from(*value_bytes);
                match entry.saturating_mul((*max_entries).into()) <= MAP_BYTES_MAX {
                    true => Ok(()),
                    false => refuse(format!(
                        "a map of {max_entries} entries of {entry} bytes, more than {MAP_BYTES_MAX} bytes"
                    )),
                }
            }
            Ask::Program { program_type, .. } if !PROGRAM_TYPES.contains(program_type) => {
                refuse(format!("a program of type {program_type}"))
            }
            Ask::Program { code, .. } if code.len() % 8 != 0 || code.is_empty() => {
                refuse(format!("a program of {} bytes", code.len()))
            }
            Ask::Program { log_bytes, .. } if *log_bytes > LOG_BYTES_MAX => {
                refuse(format!("a log of {log_bytes} bytes, more than {LOG_BYTES_MAX}"))
            }
            Ask::Program { code, .. } => forbidden(code).map_or(Ok(()), refuse),
            Ask::Tracepoint { name } if name != TRACEPOINT => {
                refuse(format!("the tracepoint {}", path_of(name).display()))
            }
            Ask::XdpLink { ifindex, .. } if !self.allows_interface(*ifindex) => {
                refuse(format!("a program on interface {ifindex}, which is not captured"))
            }
            Ask::Listen { name, .. } if !name.starts_with(NAMES) => {
                refuse(format!("a socket named {}", path_of(name).display()))
            }
            Ask::Run { path } => self.check_path(path_of(path)),
            _ => Ok(()),
        }
    }

    fn allows_interface(&self, ifindex: u32) -> bool {
        let is_named = || {
            let name = if_indextoname(ifindex).ok()?.into_string().ok()?;
            Some(self.terms.interfaces.contains(&name))
        };
        self.ifindexes.contains(&ifindex) || is_named() == Some(true)
    }

    /// With a descriptor of another program's map, the process that sends the requests could change the map's
    /// contents; with one of another interface's link, it could replace that interface's program. A
    /// descriptor of a program permits only reading.
    fn allows_object(&self, kind: Kind, id: u32) -> bool {
        match kind {
            Kind::Map => Map::by_id(id).is_ok_and(|map| map.name().starts_with(MAPS)),
            Kind::Link => Link::by_id(id)
                .and_then(|link| link.info())
                .is_ok_and(|info| self.allows_interface(info.ifindex)),
            Kind::Program => true,
        }
    }

    fn check_path(&self, path: &Path) -> Result<(), Denial> {
        if self.terms.command.is_none() {
            return refuse("a command, but the recording has none");
        }
        let within = path.strip_prefix(&self.terms.directory);
        let is_plain =
            |rest: &Path| rest.components().all(|component| matches!(component, Component::Normal(_)));
        match within {
            Ok(rest) if is_plain(rest) => Ok(()),
            _ => refuse(format!(
                "the command for {}, which is outside the recording's directory",
                path.display()
            )),
        }
    }

    /// Executes a checked request.
    fn perform(&mut self, ask: Ask, descriptors: &[OwnedFd], log: &mut Vec<u8>) -> Result<Answer, Denial> {
        let cannot = |_| Denial::Refused("a text with a zero byte".to_owned());
        let answer = match ask {
            Ask::Socket { family } => Direct.open(Request::Socket { family }),
            Ask::Umem { bytes, cell_bytes } => {
                let memory = Shared::map(&descriptors[1], bytes)?;
                Direct.open(Request::Umem(memory.as_umem(descriptors[0].as_fd(), cell_bytes)))
            }
            Ask::Map { map_type, name, key_bytes, value_bytes, max_entries, flags } => {
                let request = MapRequest { map_type, name, key_bytes, value_bytes, max_entries, flags };
                Direct.open(Request::Map(request))
            }
            Ask::Program {
                program_type,
                name,
                code,
                license,
                flags,
                ifindex,
                expected_attach_type,
                log_bytes,
            } => {
                let Some(code) = relocate::by_descriptor(code, descriptors) else {
                    return refuse("a program with a map that was not sent with it");
                };
                let license = CString::new(license).map_err(cannot)?;
                log.resize(log_bytes as usize, 0);
                Direct.open(Request::Program(ProgramRequest {
                    program_type,
                    name,
                    code: &code,
                    license: &license,
                    flags,
                    ifindex,
                    expected_attach_type,
                    log,
                }))
            }
            Ask::Tracepoint { name } => {
                let name = CString::new(name).map_err(cannot)?;
                Direct.open(Request::Tracepoint { program: descriptors[0].as_fd(), name: &name })
            }
            Ask::XdpLink { ifindex, flags } => {
                Direct.open(Request::XdpLink { program: descriptors[0].as_fd(), ifindex, flags })
            }
            Ask::LinkUpdate => {
                let (link, program) = (descriptors[0].as_fd(), descriptors[1].as_fd());
                Direct.open(Request::LinkUpdate { link, program })
            }
            Ask::ById { kind, id } if !self.allows_object(kind, id) => {
                // The answer is that of an object that is gone; a process that reads all objects must expect
                // it.
                Err(io::Error::from_raw_os_error(libc::ENOENT))
            }
            Ask::ById { kind, id } => Direct.open(Request::ById { kind: kind.into(), id }),
            Ask::NextId { kind, id } => Direct.open(Request::NextId { kind: kind.into(), id }),
            Ask::Listen { name, backlog } => Direct.open(Request::Listen { name: &name, backlog }),
            Ask::Run { path } => return self.run(path_of(&path)).map(|()| Answer::Done),
        };
        Ok(answer?)
    }

    /// Runs the command as the user of the recording, without waiting for its end.
    fn run(&mut self, path: &Path) -> Result<(), Denial> {
        self.running.retain_mut(|child| child.try_wait().is_ok_and(|status| status.is_none()));
        let command = self.terms.command.as_deref().and_then(<[String]>::split_first);
        let Some((program, arguments)) = command else { return refuse("an empty command") };
        let mut command = Command::new(program);
        command.args(arguments).arg(path).stdin(Stdio::null());
        let user = &self.terms.user;
        // `uid` drops root's other groups as well.
        if geteuid().is_root() {
            command.uid(user.uid).gid(user.gid);
        }
        self.running.push(command.spawn()?);
        Ok(())
    }
}

impl From<Kind> for ObjectKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Map => Self::Map,
            Kind::Program => Self::Program,
            Kind::Link => Self::Link,
        }
    }
}
