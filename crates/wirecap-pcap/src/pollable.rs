//! The descriptor that programs wait on: readable while there are packets that they have not read.
//!
//! For a whole interface on `packet` it is the packet socket itself, so it is readable until the
//! block is returned, and edge-triggered polling works as with libpcap. Otherwise it is an epoll
//! instance with an eventfd that is readable while packets are in hand.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use wirecap::{Waker, Worker};

use crate::socket;

/// The descriptor on which a program may wait.
#[derive(Debug)]
pub(crate) enum Pollable {
    /// The packet socket of the only ring, as in libpcap: the kernel knows which blocks were not
    /// returned.
    Socket(Single),
    /// An epoll instance with the worker's descriptor and a bell.
    Several(Several),
}

/// The socket of the only ring. Polling it wakes a thread once per block, so sleeping instead would
/// gain nothing.
#[derive(Debug)]
pub(crate) struct Single {
    /// The descriptors of the two fields below, which are behind two or more pointers.
    descriptors: [RawFd; 2],
    socket: Arc<OwnedFd>,
    /// Wakes the reader when a read is interrupted.
    waker: Waker,
}

/// A descriptor for several rings, or for a ring whose cells are released before the program has
/// read the packets.
#[derive(Debug)]
pub(crate) struct Several {
    epoll: OwnedFd,
    /// An eventfd that is readable while packets are in hand.
    bell: OwnedFd,
    rings: AtomicBool,
    in_hand: AtomicBool,
    /// Whether the program has the descriptor.
    wanted: AtomicBool,
}

impl Pollable {
    /// The socket of the only ring.
    pub(crate) fn single(socket: Arc<OwnedFd>, waker: Waker) -> Self {
        let descriptors = [socket.as_raw_fd(), waker.as_fd().as_raw_fd()];
        Self::Socket(Single { descriptors, socket, waker })
    }

    /// A descriptor for this worker.
    pub(crate) fn several(worker: &Worker) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        for descriptor in [worker.as_fd(), bell.as_fd()] {
            epoll::add(&epoll, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        let [rings, in_hand, wanted] = [const { AtomicBool::new(false) }; 3];
        Ok(Self::Several(Several { epoll, bell, rings, in_hand, wanted }))
    }

    /// The descriptor, for the program.
    pub(crate) fn descriptor(&self) -> RawFd {
        match self {
            Self::Socket(single) => single.socket.as_raw_fd(),
            Self::Several(several) => {
                several.wanted.store(true, Ordering::SeqCst);
                several.tell(several.in_hand.load(Ordering::SeqCst));
                several.epoll.as_raw_fd()
            }
        }
    }

    /// Whether the program has the descriptor, if it is not a socket.
    pub(crate) fn is_wanted(&self) -> bool {
        matches!(self, Self::Several(several) if several.wanted.load(Ordering::Relaxed))
    }

    /// Sets whether packets are in hand that the program has not read.
    #[inline]
    pub(crate) fn tell(&self, in_hand: bool) {
        if let Self::Several(several) = self {
            several.tell(in_hand);
        }
    }
}

impl Single {
    /// Waits until a block is ready, the read is interrupted, or `longest` has passed. Returns
    /// whether the socket reports an error. The thread may be cancelled during the wait.
    pub(crate) fn wait(&self, longest: Option<Duration>) -> bool {
        // The caller checks for packets in any case, even if a signal interrupted the wait.
        let [socket, bell] = socket::wait(self.descriptors, longest);
        if bell != 0 {
            let _ = rustix::io::read(&self.waker, &mut [0u8; 8]);
        }
        socket & libc::POLLERR != 0
    }
}

impl Several {
    fn tell(&self, in_hand: bool) {
        self.in_hand.store(in_hand, Ordering::SeqCst);
        if !self.wanted.load(Ordering::SeqCst)
            || self.rings.swap(in_hand, Ordering::SeqCst) == in_hand
        {
            return;
        }
        // These calls cannot fail: the count is 0 or 1.
        if in_hand {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        } else {
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        }
    }
}
