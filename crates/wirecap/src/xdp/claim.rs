//! What the captures on an interface agree on without talking to each other: which process has which
//! receive queue, and whose turn it is to change what is attached.
//!
//! A claim is a listening socket with a name of its own in the network namespace (`unix(7)`, abstract
//! names). The kernel frees it whatever way its holder ends, it is seen from every mount namespace, and
//! a process that connects to it learns which process has it, and for which user. No process ever accepts such a
//! connection; what was sent by one stays until the socket is gone.
//!
//! Any user of the network namespace may take such a name. So a name counts only if its holder acts for root or for our own
//! user; if a stranger has it the claim has another, whose number no process can guess (`NAME#9E3779B97F4A7C15`), so that
//! strangers cannot take all. The kernel tells which names there are, and whose (`sock_diag`). A claim takes its name first and
//! looks at the others then: of two claims at the same time, under different names, one at least sees the other.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, sendmsg, socket_with,
};
use rustix::process::geteuid;
use wirecap_filter::opener::{self, Answer, Request};

use crate::device::{AbstractName, Device, abstract_names};
use crate::error::OpenError;
use crate::names::{Holder, RingName};
use crate::sys::peer::{Listener, listener};
use crate::xdp::system;

/// Part of all names: processes of other versions with other rules have other names.
const PROTOCOL: &str = "wirecap/1";
/// The maximum number of processes that can query the holder; the kernel allows no more.
const BACKLOG: u32 = 4096;
/// How long to wait while one process has its turn: each takes some 50 ms.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(2);
/// That, at most: where strangers have names two claims may see each other, and must not meet again and again.
const PAUSE_MAX: Duration = Duration::from_millis(8);
/// How often to see whether it is still the same process's.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Something that one process at a time has.
#[derive(Debug)]
pub(super) struct Claim {
    /// Connected to the claim's own socket before others could fill its queue: the message sent on it stays until the
    /// claim is gone.
    keeper: OwnedFd,
    name: String,
    _listening: OwnedFd,
}

/// The right to change the program attached to an interface.
#[derive(Debug)]
pub(crate) struct Turn {
    _claim: Claim,
}

impl Turn {
    /// Waits for it. No lock may be held meanwhile that ending a capture needs.
    pub(crate) fn wait(device: &Device) -> Result<Self, OpenError> {
        Ok(Self { _claim: Claim::turn(device)? })
    }
}

impl Claim {
    /// The right to change the program attached to `device`.
    pub(super) fn turn(device: &Device) -> Result<Self, OpenError> {
        let name = format!("{PROTOCOL}/{}/turn", device.index);
        let mut holder = None;
        let mut since = Instant::now();
        let mut looked = since;
        loop {
            if let Some(claim) = take(&name)? {
                return Ok(claim);
            }
            let now = Instant::now();
            if now - looked >= LOOK_INTERVAL {
                looked = now;
                let current = holder_of(&name);
                if current != holder {
                    (holder, since) = (current, now);
                }
            }
            if now - since >= PATIENCE {
                let holder = holder.unwrap_or_default();
                return Err(OpenError::Contended { interface: device.name.clone(), holder });
            }
            thread::sleep(PAUSE + (PAUSE_MAX - PAUSE).mul_f64(random() as f64 / u64::MAX as f64));
        }
    }

    /// As [`turn`](Self::turn), if no other process has it now: for who tries again later, and holds a lock.
    pub(super) fn turn_now(device: &Device) -> Result<Self, OpenError> {
        let name = format!("{PROTOCOL}/{}/turn", device.index);
        take(&name)?.ok_or_else(|| OpenError::Contended {
            interface: device.name.clone(),
            holder: holder_of(&name).unwrap_or_default(),
        })
    }

    /// Holds `file` open until others no longer see this claim, in whatever order the kernel closes the descriptors of
    /// a killed process: the file is sent to a socket from which no process receives it.
    pub(super) fn keep(&self, file: impl AsFd) -> io::Result<()> {
        let files = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut message = SendAncillaryBuffer::new(&mut space);
        assert!(message.push(SendAncillaryMessage::ScmRights(&files)), "there is space for one");
        // A file cannot go without a byte.
        sendmsg(&self.keeper, &[IoSlice::new(&[0])], &mut message, SendFlags::empty())?;
        Ok(())
    }

    /// Whether it is the right to capture from receive queue `queue` of `device`.
    pub(super) fn is_of_queue(&self, device: &Device, queue: u32) -> bool {
        self.name.split('#').next() == Some(&*queue_name(device, queue))
    }

    /// The right to capture from receive queue `queue` of `device`.
    pub(super) fn queue(device: &Device, queue: u32) -> Result<Self, OpenError> {
        let name = queue_name(device, queue);
        take(&name)?.ok_or_else(|| OpenError::QueueTaken {
            ring: RingName::of_queue(&device.name, queue),
            holder: holder_of(&name).unwrap_or_default(),
        })
    }
}

/// Who captures from a queue of `device` that is not among `own`, if any process does.
pub(super) fn holder_beside(device: &Device, own: &[u32]) -> Option<Holder> {
    let names = names_beside(device, own).ok()?;
    names.iter().find(|name| is_trusted(name.user)).map(holder_at)
}

/// Whether a process captures from a queue of `device` that is not among `own`. To be asked by whose turn it is.
pub(super) fn is_another_beside(device: &Device, own: &[u32]) -> Result<bool, OpenError> {
    Ok(names_beside(device, own)?.iter().any(|name| is_trusted(name.user)))
}

/// Whether an untrusted user has the name of a queue of `device` that is not among `own`.
pub(super) fn is_stranger_beside(device: &Device, own: &[u32]) -> Result<bool, OpenError> {
    Ok(names_beside(device, own)?.iter().any(|name| !is_trusted(name.user)))
}

/// The receive queues of `device` that are captured, each with the process that does.
pub(super) fn holders(device: &Device) -> Vec<(u32, Holder)> {
    let names = names(&queues_name(device)).unwrap_or_default();
    let holder = |name: &AbstractName| Some((queue_of(device, name)?, holder_at(name)));
    let mut holders: Vec<_> = names.iter().filter(|name| is_trusted(name.user)).filter_map(holder).collect();
    holders.sort_by_key(|(queue, _)| *queue);
    holders
}

/// The names that processes have of queues of `device` that are not among `own`.
fn names_beside(device: &Device, own: &[u32]) -> Result<Vec<AbstractName>, OpenError> {
    let mut names = names(&queues_name(device))?;
    names.retain(|name| queue_of(device, name).is_some_and(|queue| !own.contains(&queue)));
    Ok(names)
}

fn queues_name(device: &Device) -> String {
    format!("{PROTOCOL}/{}/queue/", device.index)
}

fn queue_name(device: &Device, queue: u32) -> String {
    format!("{}{queue}", queues_name(device))
}

/// Which queue's name that is.
fn queue_of(device: &Device, name: &AbstractName) -> Option<u32> {
    let number = name.name.strip_prefix(&queues_name(device))?;
    number.split('#').next()?.parse().ok()
}

/// The names with this beginning that any process has, each with its user.
fn names(prefix: &str) -> Result<Vec<AbstractName>, OpenError> {
    let named = abstract_names(prefix).or_else(|_| names_by_connecting(prefix));
    named.map_err(|error| system("list the sockets that claim receive queues", error))
}

/// As [`names`], where the kernel has no `sock_diag` for such sockets: each name's holder is asked.
fn names_by_connecting(prefix: &str) -> io::Result<Vec<AbstractName>> {
    let table = fs::read_to_string("/proc/thread-self/net/unix")?;
    let names = table.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    let mut names: Vec<&str> = names.filter(|name| name.starts_with(prefix)).collect();
    // Connections to a socket bear its name as well.
    names.sort_unstable();
    names.dedup();
    let named = |name: &str| match listener_at(name) {
        // One whose queue is full is a stranger's doing, but perhaps not the stranger's own.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => None,
        listener => {
            let user = listener.map_or(geteuid().as_raw(), |listener| listener.uid);
            Some(AbstractName { name: name.to_owned(), user })
        }
    };
    Ok(names.into_iter().filter_map(named).collect())
}

/// The names that there are of this claim, each with its user.
fn names_of(name: &str) -> Result<Vec<AbstractName>, OpenError> {
    let mut names = names(name)?;
    names.retain(|other| other.name[name.len()..].is_empty() || other.name[name.len()..].starts_with('#'));
    Ok(names)
}

/// Takes the claim of this name, if no process has it that counts.
fn take(name: &str) -> Result<Option<Claim>, OpenError> {
    let failed = |error| system("bind the socket that claims a receive queue", error);
    let others = || names_of(name).map(|names| names.into_iter().filter(|other| is_trusted(other.user)));
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

/// What no other process can guess.
fn random() -> u64 {
    // Keys are random, and differ by one from one call to the next; the hash of nothing tells none of them.
    RandomState::new().build_hasher().finish()
}

/// Whose claims count: those of root and of our own user.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

/// Takes the name, if no process has it.
fn listen_at(name: &str) -> io::Result<Option<Claim>> {
    // By the opener: others trust the claim for the user that it was made by.
    let request = Request::Listen { name: name.as_bytes(), backlog: BACKLOG };
    let socket = match opener::open(request).and_then(Answer::descriptor) {
        Err(error) if error.raw_os_error() == Some(Errno::ADDRINUSE.raw_os_error()) => return Ok(None),
        listening => listening?,
    };
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

/// The process that has the name; none where strangers keep all others from asking.
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

/// The process of this number, if visible.
fn process(pid: Option<u32>) -> Holder {
    let program = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    Holder { pid, program: program.map(|name| name.trim_end().to_owned()) }
}
