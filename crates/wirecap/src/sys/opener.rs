//! The privileged operations on sockets and memory: carried out by this process, or by another one
//! that has kept the privileges that this one has dropped.
//!
//! A process that parses packets should have no privileges. So whatever needs one is a request with
//! plain parameters, and an [`Opener`] answers it with a descriptor. The program on an interface
//! has a trait of its own, [`Hook`](crate::xdp::hook::Hook).

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};

/// Another process, which opens sockets and makes memory for this one.
pub trait Opener: Send + Sync + fmt::Debug {
    /// Whether it has this privilege.
    fn has(&self, privilege: Privilege) -> bool;

    /// Opens a netlink socket, as [`netlink_socket`](crate::privileged::open_netlink_socket).
    ///
    /// # Errors
    ///
    /// The kernel's, here and below: or why the other process refuses.
    fn netlink_socket(&self, inquiry: Inquiry) -> io::Result<OwnedFd>;

    /// Makes a file in memory of this length, as [`pool_file`](crate::privileged::pool_file).
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn pool_file(&self, bytes: u64) -> io::Result<(OwnedFd, Pages, Handle)>;

    /// Opens an AF_XDP socket that is bound to nothing.
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn xdp_socket(&self) -> io::Result<(OwnedFd, Handle)>;

    /// Registers the first `bytes` of a pool's file as the UMEM of a socket.
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn register_umem(
        &self,
        socket: &Handle,
        file: &Handle,
        bytes: u64,
        cell_bytes: u32,
    ) -> io::Result<()>;

    /// Binds an AF_XDP socket to a receive queue.
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn bind_xdp(&self, socket: &Handle, ifindex: u32, queue: u32, mode: BindMode)
    -> io::Result<()>;

    /// Binds an AF_XDP socket to a receive queue; it shares the UMEM of `first`.
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn bind_xdp_beside(
        &self,
        socket: &Handle,
        first: &Handle,
        ifindex: u32,
        queue: u32,
    ) -> io::Result<()>;

    /// Opens a packet socket that is bound to nothing and receives nothing.
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn packet_socket(&self) -> io::Result<(OwnedFd, Handle)>;

    /// Binds a packet socket to an interface, whose packets it receives from now on.
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn bind_packet(&self, socket: &Handle, ifindex: u32) -> io::Result<()>;

    /// Keeps an interface in promiscuous mode until the handle is dropped.
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn promiscuous(&self, ifindex: u32) -> io::Result<Handle>;

    /// Keeps another interface in promiscuous mode until the same handle is dropped.
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn promiscuous_also(&self, holder: &Handle, ifindex: u32) -> io::Result<()>;

    /// Which of the host's hooks an interface has that only a privileged process can see, as
    /// [`guarded_hooks`](crate::privileged::guarded_hooks).
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn guarded_hooks(&self, ifindex: u32) -> io::Result<GuardedHooks>;
}

/// Hooks of the host on the path of an interface's frames that only a privileged process can see:
/// whether there are any, or why that is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardedHooks {
    /// Programs of tcx.
    pub tcx: Result<bool, String>,
    /// Chains and flow tables of netfilter (`nft list hooks netdev device DEV`).
    pub netfilter: Result<bool, String>,
}

/// A privilege that is checked before a request, so that the error can name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// Packet sockets: CAP_NET_RAW.
    PacketSockets,
    /// Locked memory beyond the limit (`RLIMIT_MEMLOCK`): CAP_IPC_LOCK.
    LockedMemory,
}

impl Privilege {
    /// Whether the calling thread has it.
    pub fn is_own(self) -> bool {
        let needed = match self {
            Self::PacketSockets => CapabilitySet::NET_RAW,
            Self::LockedMemory => CapabilitySet::IPC_LOCK,
        };
        capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
    }
}

/// An object that the other process holds for this one, until the handle is dropped.
#[derive(Debug)]
pub struct Handle {
    /// The number by which the other process knows it.
    pub number: u32,
    /// Tells the other process when it is dropped.
    pub release: Box<dyn Release>,
}

/// What a [`Handle`] drops.
pub trait Release: Any + Send + Sync + fmt::Debug {}
impl<T: Any + Send + Sync + fmt::Debug> Release for T {}

/// A question to the kernel that needs a netlink socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inquiry {
    /// Interfaces, addresses and routes; notifications of these groups (`RTMGRP_LINK` and so on; 0
    /// for none).
    Route {
        /// A set of bits.
        groups: u32,
    },
    /// The generic families.
    Generic,
    /// The lists of sockets.
    Sockets,
}

/// The kind of pages of a pool's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pages {
    /// Reserved huge pages (`vm.nr_hugepages`).
    Huge,
    /// Transparent huge pages, if the kernel finds some, of a separate tmpfs that is mounted
    /// nowhere: the administrator's setting for shared memory (`shmem_enabled`, `never` by default)
    /// applies to the kernel's own tmpfs.
    Transparent,
    /// Ordinary pages; transparent huge pages were requested.
    Ordinary,
    /// The process's heap, to which no kernel writes: for the simulated kernel.
    Heap,
}

/// The receive mode of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindMode {
    /// The device writes into the cells itself; otherwise the kernel copies from the driver's
    /// buffers.
    pub zero_copy: bool,
    /// Packets longer than a cell arrive in several cells; otherwise they are dropped.
    pub fragments: bool,
}

static OPENER: OnceLock<Arc<dyn Opener>> = OnceLock::new();

/// Sends all later requests of this process to `opener`. Works once.
///
/// # Errors
///
/// Returns `opener` if there is one already.
pub fn set_opener(opener: Arc<dyn Opener>) -> Result<(), Arc<dyn Opener>> {
    OPENER.set(opener)
}

/// The other process; none if this one opens everything itself.
pub(crate) fn opener() -> Option<&'static dyn Opener> {
    OPENER.get().map(|opener| &**opener)
}

/// Whether requests are carried out with this privilege.
pub(crate) fn has(privilege: Privilege) -> bool {
    opener().map_or_else(|| privilege.is_own(), |opener| opener.has(privilege))
}

/// A descriptor, and the handle of the same object in the other process, if that has opened it.
#[derive(Debug)]
pub(crate) struct Opened {
    descriptor: Arc<OwnedFd>,
    handle: Option<Handle>,
}

impl Opened {
    pub(crate) fn own(descriptor: OwnedFd) -> Self {
        Self { descriptor: Arc::new(descriptor), handle: None }
    }

    /// The other process and its handle of the object, if that has opened it.
    pub(crate) fn elsewhere(&self) -> Option<(&'static dyn Opener, &Handle)> {
        opener().zip(self.handle.as_ref())
    }

    /// The descriptor, for other uses. It stays open as long as a reference exists.
    pub(crate) fn share(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.descriptor)
    }

    pub(crate) fn handle(&self) -> Option<&Handle> {
        self.handle.as_ref()
    }
}

impl From<(OwnedFd, Handle)> for Opened {
    fn from((descriptor, handle): (OwnedFd, Handle)) -> Self {
        Self { descriptor: Arc::new(descriptor), handle: Some(handle) }
    }
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
