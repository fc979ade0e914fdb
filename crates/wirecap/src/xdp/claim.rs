//! What the captures on an interface agree on without talking to each other: which process has which
//! receive queue, and whose turn it is to change what is attached.
//!
//! A claim is a listening socket with a name of its own in the network namespace (`unix(7)`, abstract
//! names). The kernel frees it whatever way its holder ends, it is seen from every mount namespace, and
//! a process that connects to it learns which process has it, and for which user. No process ever accepts such a
//! connection; what was sent by one stays until the socket is gone.
//!
//! Any user of the network namespace may take such a name. So a name counts only if its holder acts for root or for our own
//! user; if a stranger has it the claim has the next name (`NAME#1`, `NAME#2`, ...). A claim that found a name free
//! may have come after a stranger let go of it, while an earlier claim has a later name: so it looks at those, too.

use std::fs;
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

use crate::device::{Device, owner_of_abstract_name};
use crate::error::OpenError;
use crate::names::{Holder, RingName};
use crate::sys::peer::listener;
use crate::xdp::system;

/// Part of all names: processes of other versions with other rules have other names.
const PROTOCOL: &str = "wirecap/1";
/// So many may ask who the holder is, until it cannot be asked any more; the kernel allows no more.
const BACKLOG: u32 = 4096;
/// How long to wait while one process has its turn: each takes some 50 ms.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(2);
/// How often to see whether it is still the same process's.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How many names of a claim strangers may have. Each costs them a socket, and us some microseconds.
const NAMES_MAX: u32 = 1 << 16;
/// How many names behind its own a claim looks at.
const NAMES_AHEAD: u32 = 64;

/// Something that one process at a time has.
#[derive(Debug)]
pub(super) struct Claim {
    /// Connected to the claim's own socket before others could have filled its queue: what is sent by it stays until the
    /// claim is gone.
    keeper: OwnedFd,
    name: String,
    _listening: OwnedFd,
}

/// The right to change what is attached to an interface.
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
    /// The right to change what is attached to `device`.
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
            thread::sleep(PAUSE);
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

    /// Holds `file` open until others see this claim no more, in whatever order the kernel closes the
    /// descriptors of a process that is killed: the file goes where no process takes it out.
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
        self.name == queue_name(device, queue)
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

/// Who captures from a queue of `device` that is not among `own`, if anybody does.
pub(super) fn holder_beside(device: &Device, own: &[u32]) -> Option<Holder> {
    names_beside(device, own).find_map(|name| holder_of(&name))
}

/// Whether anybody captures from a queue of `device` that is not among `own`. To be asked by whose turn it is:
/// it claims each queue for a moment.
pub(super) fn is_anybody_beside(device: &Device, own: &[u32]) -> Result<bool, OpenError> {
    for name in names_beside(device, own) {
        if take(&name)?.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a user who does not count has the name of a queue of `device` that is not among `own`.
pub(super) fn is_stranger_beside(device: &Device, own: &[u32]) -> Result<bool, OpenError> {
    let failed = |error| system("claim a receive queue by a socket", error);
    for name in names_beside(device, own) {
        if listen_at(&name).map_err(failed)?.is_none() && trusted_at(&name).is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The receive queues of `device` that are captured, each with the process that does.
pub(super) fn holders(device: &Device) -> Vec<(u32, Holder)> {
    let holder = |queue| Some((queue, holder_of(&queue_name(device, queue))?));
    (0..device.rx_queues).filter_map(holder).collect()
}

fn names_beside(device: &Device, own: &[u32]) -> impl Iterator<Item = String> {
    (0..device.rx_queues_max).filter(|queue| !own.contains(queue)).map(|queue| queue_name(device, queue))
}

fn queue_name(device: &Device, queue: u32) -> String {
    format!("{PROTOCOL}/{}/queue/{queue}", device.index)
}

/// Takes the claim of this name, if no process has it that counts.
fn take(name: &str) -> Result<Option<Claim>, OpenError> {
    let failed = |error| system("claim a receive queue by a socket", error);
    for number in 0..NAMES_MAX {
        let claim = match listen_at(&numbered(name, number)).map_err(failed)? {
            Some(claim) => claim,
            None if trusted_at(&numbered(name, number)).is_some() => return Ok(None),
            None => continue,
        };
        // A stranger may have let go of this name after an earlier claim had to take a later one.
        let is_earlier = |number| trusted_at(&numbered(name, number)).is_some();
        let taken = (number + 1..number + NAMES_AHEAD).any(is_earlier);
        return Ok((!taken).then_some(claim));
    }
    Err(system("claim a receive queue by a socket", Errno::ADDRINUSE.into()))
}

fn numbered(name: &str, number: u32) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}#{number}") }
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

/// The process that has the name, if one has it that counts.
fn trusted_at(name: &str) -> Option<Holder> {
    let is_trusted = |uid| uid == 0 || uid == geteuid().as_raw();
    let socket = unix_socket().ok()?;
    let listening =
        connect(&socket, &address(name)).map_err(io::Error::from).and_then(|()| listener(&socket));
    match listening {
        Ok(listener) => is_trusted(listener.uid).then(|| process(listener.pid)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => None,
        // Its queue is full, which is a stranger's doing, but perhaps not with the stranger's own socket.
        Err(_) => {
            let owner = owner_of_abstract_name(name.as_bytes()).ok().flatten();
            owner.is_none_or(is_trusted).then(Holder::default)
        }
    }
}

/// The process that has the claim of this name, whatever number its name has.
fn holder_of(name: &str) -> Option<Holder> {
    (0..NAMES_AHEAD).find_map(|number| trusted_at(&numbered(name, number)))
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn address(name: &str) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("the names are short")
}

/// The process of this number, where it is to be seen.
fn process(pid: Option<u32>) -> Holder {
    let program = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    Holder { pid, program: program.map(|name| name.trim_end().to_owned()) }
}
