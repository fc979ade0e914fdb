//! Claims, by which the captures on an interface coordinate without talking to each other: which
//! process has which receive queue, and which process may change the attached programs.
//!
//! A claim is a listening socket with a unique name in the network namespace (`unix(7)`, abstract
//! names). The kernel frees it when its holder ends for any reason, it is visible from every mount
//! namespace, and a process that connects to it learns the holder's PID and user. No process ever
//! accepts such a connection; data sent on one stays until the socket is closed.
//!
//! Any user of the network namespace may bind such a name. So a name counts only if its holder
//! belongs to root or to the capture's own user. If another user has bound it, the claim uses a
//! name with an unpredictable number (`NAME#9E3779B97F4A7C15`), so other users cannot bind all
//! names. The kernel lists all names with their users (`sock_diag`). A claim binds its name first
//! and then looks for others: of two concurrent claims with different names, at least one sees the
//! other.
//!
//! If a user binds all names, or fills the queues of connections, each check takes as long as
//! reading the kernel's list of names. This is the only effect.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, bind, connect, listen, sendmsg, socket_with,
};
use rustix::process::geteuid;

use crate::device::{AbstractName, CLAIMS, DeviceSummary, abstract_names};
use crate::error::OpenError;
use crate::names::{Holder, RingName};
use crate::sys::peer::{Listener, listener};
use crate::xdp::system;

/// Part of all names: processes of other versions with other rules have other names.
const PROTOCOL: &str = CLAIMS;
/// The maximum number of processes that can query the holder; the kernel allows no more.
const BACKLOG: i32 = 4096;
/// A right that one process has at a time.
#[derive(Debug)]
pub(super) struct Claim {
    /// Connected to the claim's own socket before others could fill its queue: the message sent on
    /// it stays until the claim is gone.
    keeper: OwnedFd,
    name: String,
    _listening: OwnedFd,
}

impl Claim {
    /// The right to change the program attached to `device`, without waiting.
    pub(super) fn turn_now(device: &DeviceSummary) -> Result<Self, OpenError> {
        let name = format!("{PROTOCOL}/{}/turn", device.index);
        take(&name)?.ok_or_else(|| OpenError::Contended {
            interface: device.name.clone(),
            holder: holder_of(&name).unwrap_or_default(),
        })
    }

    /// Keeps `file` open until others no longer see this claim, regardless of the order in which
    /// the kernel closes the descriptors of a killed process: the file is sent to a socket from
    /// which no process receives it.
    pub(super) fn keep(&self, file: impl AsFd) -> io::Result<()> {
        let files = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut message = SendAncillaryBuffer::new(&mut space);
        assert!(message.push(SendAncillaryMessage::ScmRights(&files)), "there is space for one");
        // A descriptor can only be sent with at least one byte.
        sendmsg(&self.keeper, &[IoSlice::new(&[0])], &mut message, SendFlags::empty())?;
        Ok(())
    }

    /// Whether it is the right to capture from receive queue `queue` of `device`.
    pub(super) fn is_of_queue(&self, device: &DeviceSummary, queue: u32) -> bool {
        self.name.split('#').next() == Some(&*queue_name(device, queue))
    }

    /// The right to capture from receive queue `queue` of `device`.
    pub(super) fn queue(device: &DeviceSummary, queue: u32) -> Result<Self, OpenError> {
        let name = queue_name(device, queue);
        take(&name)?.ok_or_else(|| OpenError::QueueTaken {
            ring: RingName::of_queue(&device.name, queue),
            holder: holder_of(&name).unwrap_or_default(),
        })
    }
}

/// The process that captures from a queue of `device` that is not among `own`, if there is one.
pub(super) fn holder_beside(device: &DeviceSummary, own: &[u32]) -> Option<Holder> {
    let names = names_beside(device, own).ok()?;
    names.iter().find(|name| is_trusted(name.user)).map(holder_at)
}

/// Whether a process captures from a queue of `device` that is not among `own`. The caller must
/// have the turn.
pub(super) fn is_another_beside(device: &DeviceSummary, own: &[u32]) -> Result<bool, OpenError> {
    Ok(names_beside(device, own)?.iter().any(|name| is_trusted(name.user)))
}

/// Whether an untrusted user has the name of a queue of `device` that is not among `own`.
pub(super) fn is_stranger_beside(device: &DeviceSummary, own: &[u32]) -> Result<bool, OpenError> {
    Ok(names_beside(device, own)?.iter().any(|name| !is_trusted(name.user)))
}

/// The captured receive queues of `device`, each with its process.
pub(super) fn holders(device: &DeviceSummary) -> Vec<(u32, Holder)> {
    let names = names(&queues_name(device)).unwrap_or_default();
    let holder = |name: &AbstractName| Some((queue_of(device, name)?, holder_at(name)));
    let mut holders: Vec<_> =
        names.iter().filter(|name| is_trusted(name.user)).filter_map(holder).collect();
    holders.sort_by_key(|(queue, _)| *queue);
    holders
}

/// The names that processes have of queues of `device` that are not among `own`.
fn names_beside(device: &DeviceSummary, own: &[u32]) -> Result<Vec<AbstractName>, OpenError> {
    let mut names = names(&queues_name(device))?;
    names.retain(|name| queue_of(device, name).is_some_and(|queue| !own.contains(&queue)));
    Ok(names)
}

fn queues_name(device: &DeviceSummary) -> String {
    format!("{PROTOCOL}/{}/queue/", device.index)
}

fn queue_name(device: &DeviceSummary, queue: u32) -> String {
    format!("{}{queue}", queues_name(device))
}

/// The queue in this name.
fn queue_of(device: &DeviceSummary, name: &AbstractName) -> Option<u32> {
    let number = name.name.strip_prefix(&queues_name(device))?;
    number.split('#').next()?.parse().ok()
}

/// The names with this beginning that any process has, each with its user.
fn names(prefix: &str) -> Result<Vec<AbstractName>, OpenError> {
    let named = abstract_names(prefix).or_else(|_| names_by_connecting(prefix));
    named.map_err(|error| system("list the sockets that claim receive queues", error))
}

/// As [`names`], for kernels without `sock_diag` for such sockets: queries the holder of each name.
fn names_by_connecting(prefix: &str) -> io::Result<Vec<AbstractName>> {
    let table = fs::read_to_string("/proc/thread-self/net/unix")?;
    let names = table.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    let mut names: Vec<&str> = names.filter(|name| name.starts_with(prefix)).collect();

    // Connections to a socket also have its name.
    names.sort_unstable();
    names.dedup();

    let named = |name: &str| match listener_at(name) {
        // If the queue of a socket is full, another user has filled it, but the socket may belong
        // to this user.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => None,
        listener => {
            let user = listener.map_or(geteuid().as_raw(), |listener| listener.uid);
            Some(AbstractName { name: name.to_owned(), user })
        }
    };
    Ok(names.into_iter().filter_map(named).collect())
}

/// The existing names of this claim, each with its user.
fn names_of(name: &str) -> Result<Vec<AbstractName>, OpenError> {
    let mut names = names(name)?;
    names.retain(|other| {
        other.name[name.len()..].is_empty() || other.name[name.len()..].starts_with('#')
    });
    Ok(names)
}

/// Takes the claim with this name, if no trusted process has it.
fn take(name: &str) -> Result<Option<Claim>, OpenError> {
    let failed = |error| system("bind the socket that claims a receive queue", error);
    let others =
        || names_of(name).map(|names| names.into_iter().filter(|other| is_trusted(other.user)));

    let claim = match listen_at(name).map_err(failed)? {
        Some(claim) => claim,
        None if others()?.next().is_some() => return Ok(None),
        None => match listen_at(&format!("{name}#{:016X}", random())).map_err(failed)? {
            Some(claim) => claim,
            None => return Ok(None),
        },
    };
    let is_taken = others()?.any(|other| other.name != claim.name);
    Ok((!is_taken).then_some(claim))
}

/// A number that no other process can predict.
pub(super) fn random() -> u64 {
    // Keys are random, and differ by one from one call to the next; the hash of an empty input does
    // not reveal them.
    RandomState::new().build_hasher().finish()
}

/// The users whose claims count: root and the capture's own user.
pub(super) fn is_trusted(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

/// Takes the name, if no process has it.
fn listen_at(name: &str) -> io::Result<Option<Claim>> {
    let socket = unix_socket()?;
    match bind(&socket, &address(name)) {
        Err(Errno::ADDRINUSE) => return Ok(None),
        bound => bound?,
    }
    listen(&socket, BACKLOG)?;
    let keeper = unix_socket()?;
    connect(&keeper, &address(name))?;
    Ok(Some(Claim { keeper, name: name.to_owned(), _listening: socket }))
}

/// The process that listens at the name.
fn listener_at(name: &str) -> io::Result<Listener> {
    let socket = unix_socket()?;
    connect(&socket, &address(name))?;
    listener(&socket)
}

/// The process that has the name; none if other users block queries.
fn holder_at(name: &AbstractName) -> Holder {
    listener_at(&name.name).map(|listener| process(listener.pid)).unwrap_or_default()
}

/// The process that has the claim of this name, whatever number its name has.
fn holder_of(name: &str) -> Option<Holder> {
    names_of(name).ok()?.iter().find(|name| is_trusted(name.user)).map(holder_at)
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn address(name: &str) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("the names are short")
}

/// The process with this PID, if visible.
fn process(pid: Option<u32>) -> Holder {
    let program = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    Holder { pid, program: program.map(|name| name.trim_end().to_owned()) }
}
