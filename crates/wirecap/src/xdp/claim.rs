//! What the captures on an interface agree on without talking to each other: which process has which
//! receive queue, and whose turn it is to change what is attached.
//!
//! A claim is a listening socket with a name of its own in the network namespace (`unix(7)`, abstract
//! names). The kernel frees it whatever way its holder ends, it is seen from every mount namespace, and
//! who connects to it learns which process has it. Nobody ever accepts such a connection; what was sent by
//! one stays until the socket is gone.

use std::fs;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, bind, connect, listen, sendmsg, socket_with,
};

use crate::device::Device;
use crate::error::OpenError;
use crate::names::{Holder, RingName};
use crate::sys::peer::listening_process;
use crate::xdp::system;

/// Part of all names: processes of other versions with other rules have other names.
const PROTOCOL: &str = "wirecap/1";
/// So many may ask who the holder is, until it cannot be asked any more; the kernel allows no more.
const BACKLOG: i32 = 4096;
/// How long to wait while one process has its turn: each takes some 50 ms.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(2);
/// How often to see whether it is still the same process's.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Something that one process at a time has.
#[derive(Debug)]
pub(super) struct Claim {
    name: String,
    _listening: OwnedFd,
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

    /// Holds `file` open until others see this claim no more, in whatever order the kernel closes the
    /// descriptors of a process that is killed: the file goes where nobody takes it out.
    pub(super) fn keep(&self, file: impl AsFd) -> io::Result<()> {
        let socket = unix_socket()?;
        connect(&socket, &address(&self.name))?;
        let files = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut message = SendAncillaryBuffer::new(&mut space);
        assert!(message.push(SendAncillaryMessage::ScmRights(&files)), "there is space for one");
        // A file cannot go without a byte.
        sendmsg(&socket, &[IoSlice::new(&[0])], &mut message, SendFlags::empty())?;
        Ok(())
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

fn names_beside(device: &Device, own: &[u32]) -> impl Iterator<Item = String> {
    (0..device.rx_queues).filter(|queue| !own.contains(queue)).map(|queue| queue_name(device, queue))
}

fn queue_name(device: &Device, queue: u32) -> String {
    format!("{PROTOCOL}/{}/queue/{queue}", device.index)
}

/// Takes the claim of this name, if nobody has it.
fn take(name: &str) -> Result<Option<Claim>, OpenError> {
    let failed = |errno: Errno| system("claim a receive queue by a socket", errno.into());
    let socket = unix_socket().map_err(failed)?;
    match bind(&socket, &address(name)) {
        Err(Errno::ADDRINUSE) => return Ok(None),
        bound => bound.map_err(failed)?,
    }
    listen(&socket, BACKLOG).map_err(failed)?;
    Ok(Some(Claim { name: name.to_owned(), _listening: socket }))
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn address(name: &str) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("the names are short")
}

/// Who has the claim of this name, if anybody has.
fn holder_of(name: &str) -> Option<Holder> {
    let pid = match process_listening_at(name) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return None,
        outcome => outcome.ok().flatten(),
    };
    let program = pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    Some(Holder { pid, program: program.map(|name| name.trim_end().to_owned()) })
}

fn process_listening_at(name: &str) -> io::Result<Option<u32>> {
    let socket = unix_socket()?;
    connect(&socket, &address(name))?;
    listening_process(&socket)
}
