//! AF_XDP sockets: creation, rings, counters (`networking/af_xdp.rst`).

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XdpRingOffset, XdpStatistics,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    sockopt,
};

use crate::kernel_ring::{Consumer, Producer, SharedRing};
use crate::sys::memory::{Mapping, Memory};
pub(crate) use crate::sys::opener::BindMode;
use crate::sys::opener::{Handle, Opened, opener};
use crate::sys::option::set_option;

const RX_RING: u64 = libc::XDP_PGOFF_RX_RING as u64;
const TX_RING: u64 = libc::XDP_PGOFF_TX_RING as u64;
const FILL_RING: u64 = libc::XDP_UMEM_PGOFF_FILL_RING;
const COMPLETION_RING: u64 = libc::XDP_UMEM_PGOFF_COMPLETION_RING;

/// `XDP_MAX_TX_SKB_BUDGET` (`linux/if_xdp.h`).
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;

/// Bytes that the kernel reserves before every frame in a cell (`XDP_PACKET_HEADROOM`): a frame may
/// be as long as a cell minus these.
pub(crate) const HEADROOM_BYTES: u32 = 256;

/// Time for which binding is retried: a queue stays busy for some milliseconds after its socket is
/// closed, until the kernel's RCU callbacks have run, which takes seconds on an overloaded machine.
const BUSY_RETRY_TIME: Duration = Duration::from_secs(10);
const BUSY_PAUSE: Duration = Duration::from_millis(5);
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(160);

/// The position of a packet in the pool: the kernel's `struct xdp_desc`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Descriptor {
    /// Bytes from the start of the pool to the packet.
    pub(crate) address: u64,
    /// Bytes of the packet in this cell.
    pub(crate) len: u32,
    /// The kernel's flags: [`CONTINUED`] or 0. In a chunk's list of packets, the values of the
    /// accessors below.
    pub(crate) options: u32,
}

const _: () = assert!(size_of::<Descriptor>() == 16);
const _: () = assert!(std::mem::offset_of!(Descriptor, len) == 8);
const _: () = assert!(std::mem::offset_of!(Descriptor, options) == 12);

/// Descriptor option `XDP_PKT_CONTD`: the packet continues in the next descriptor.
pub(crate) const CONTINUED: u32 = libc::XDP_PKT_CONTD;

impl Descriptor {
    /// Whether the packet continues in the next cell.
    pub(crate) fn is_continued(&self) -> bool {
        self.options & CONTINUED != 0
    }

    /// In a chunk: a packet of several cells, with the index of its chain in the chunk.
    pub(crate) fn of_chain(address: u64, len: u32, chain: usize) -> Self {
        Self { address, len, options: (chain as u32) << 1 | CONTINUED }
    }

    /// In a chunk: the index of the chain of a packet of several cells.
    pub(crate) fn chain(&self) -> usize {
        (self.options >> 1) as usize
    }

    /// In a chunk of the engine `packet`: a packet whose kernel header is this many bytes before
    /// it.
    #[inline]
    pub(crate) fn behind_header(address: u64, len: u32, distance: u32) -> Self {
        Self { address, len, options: distance }
    }

    /// In a chunk of the engine `packet`: the distance of the kernel's header before the packet.
    #[inline]
    pub(crate) fn header_distance(&self) -> u32 {
        self.options
    }
}

/// An AF_XDP socket.
#[derive(Debug)]
pub(crate) struct XdpSocket(Opened);

impl XdpSocket {
    /// A socket without memory, rings or queue.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(match opener() {
            Some(opener) => opener.xdp_socket()?.into(),
            None => Opened::own(open_xdp_socket()?),
        }))
    }

    /// Registers `bytes` of `memory` as this socket's UMEM; the kernel pins the pages.
    pub(crate) fn register_umem(
        &self,
        memory: &Memory,
        bytes: usize,
        cell_bytes: u32,
    ) -> io::Result<()> {
        assert!(bytes <= memory.bytes(), "the UMEM is larger than its memory");
        if let (Some((opener, socket)), Some(file)) = (self.0.elsewhere(), memory.handle()) {
            return opener.register_umem(socket, file, bytes as u64, cell_bytes);
        }
        let address = memory.base().as_ptr() as u64;
        // SAFETY: the memory belongs to a pool, whose cells the kernel owns while they are posted,
        // and which stays mapped until the socket has been closed.
        unsafe { register_umem(self, address, bytes as u64, cell_bytes) }
    }

    /// Creates the rx ring, with room for `capacity` entries (a power of two), and maps our half of
    /// it.
    pub(crate) fn make_rx_ring(&self, capacity: u32) -> io::Result<Consumer<Descriptor>> {
        sockopt::set_xdp_rx_ring_size(self, capacity)?;
        let offsets = sockopt::xdp_mmap_offsets(self)?;
        // SAFETY: the only consumer on this ring: this function succeeds once per socket, because
        // the kernel refuses to size a ring twice.
        Ok(Consumer::new(unsafe { self.map_ring(RX_RING, &offsets.rx, capacity) }?))
    }

    /// Creates an rx ring of the same size and maps it in place of `ring`, whose socket gets no
    /// packets any more: holders of its address see the new ring from then on.
    pub(crate) fn make_rx_ring_at(
        &self,
        capacity: u32,
        ring: &mut Consumer<Descriptor>,
    ) -> io::Result<()> {
        sockopt::set_xdp_rx_ring_size(self, capacity)?;
        let offsets = sockopt::xdp_mmap_offsets(self)?;
        // SAFETY: the only consumer on this ring is the one of the previous ring.
        unsafe { self.map_ring_at::<Descriptor>(RX_RING, &offsets.rx, capacity, ring.owner()) }?;
        ring.restart();
        Ok(())
    }

    /// Creates a fill ring in place of another in the same way, and a completion ring that is never
    /// read, because the kernel requires both.
    pub(crate) fn make_fill_ring_at(
        &self,
        capacity: u32,
        fill: &mut Producer<u64>,
    ) -> io::Result<()> {
        sockopt::set_xdp_umem_fill_ring_size(self, capacity)?;
        sockopt::set_xdp_umem_completion_ring_size(self, 1)?;
        let offsets = sockopt::xdp_mmap_offsets(self)?;
        // SAFETY: the only producer on this ring is the one of the previous ring.
        unsafe { self.map_ring_at::<u64>(FILL_RING, &offsets.fr, capacity, fill.owner()) }?;
        fill.restart();
        Ok(())
    }

    /// # Safety
    ///
    /// At most one half may be on each ring. `before` must be the mapping of a ring of the same
    /// kind.
    unsafe fn map_ring_at<T: Copy>(
        &self,
        page_offset: u64,
        offsets: &XdpRingOffset,
        capacity: u32,
        before: Option<&Mapping>,
    ) -> io::Result<()> {
        let bytes = offsets.desc as usize + capacity as usize * size_of::<T>();
        let before = before.ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel puts the parts of all rings of a kind at the same offsets, and the
        // number of slots fits the length of the mapping, which is checked.
        unsafe { Mapping::of(self, bytes, page_offset)?.take_place_of(before) }
    }

    /// Creates the tx ring, in the same way.
    pub(crate) fn make_tx_ring(&self, capacity: u32) -> io::Result<Producer<Descriptor>> {
        sockopt::set_xdp_tx_ring_size(self, capacity)?;
        let offsets = sockopt::xdp_mmap_offsets(self)?;
        // SAFETY: the only producer on this ring, for the same reason.
        Ok(Producer::new(unsafe { self.map_ring(TX_RING, &offsets.tx, capacity) }?))
    }

    /// Creates the fill ring of this socket's UMEM and the completion ring in the same way. The
    /// kernel requires both, even if no packets are sent.
    pub(crate) fn make_fill_and_completion_rings(
        &self,
        fill_capacity: u32,
        completion_capacity: u32,
    ) -> io::Result<(Producer<u64>, Consumer<u64>)> {
        sockopt::set_xdp_umem_fill_ring_size(self, fill_capacity)?;
        sockopt::set_xdp_umem_completion_ring_size(self, completion_capacity)?;

        let offsets = sockopt::xdp_mmap_offsets(self)?;

        // SAFETY: the only producer and the only consumer, for the same reason.
        let (fill, completion) = unsafe {
            (
                self.map_ring(FILL_RING, &offsets.fr, fill_capacity)?,
                self.map_ring(COMPLETION_RING, &offsets.cr, completion_capacity)?,
            )
        };
        Ok((Producer::new(fill), Consumer::new(completion)))
    }

    /// # Safety
    ///
    /// At most one half may be made of each ring.
    unsafe fn map_ring<T: Copy>(
        &self,
        page_offset: u64,
        offsets: &XdpRingOffset,
        capacity: u32,
    ) -> io::Result<SharedRing<T>> {
        let bytes = offsets.desc as usize + capacity as usize * size_of::<T>();
        let mapping = Arc::new(Mapping::of(self, bytes, page_offset)?);
        let flags = offsets.flags.ok_or(Errno::OPNOTSUPP)?;

        // SAFETY: `Mapping::at` checked each offset, the kernel's ABI defines the types at them,
        // and the caller guarantees that there is only one half.
        Ok(unsafe {
            SharedRing::from_parts(
                mapping.at(offsets.producer as usize, 1),
                mapping.at(offsets.consumer as usize, 1),
                mapping.at(flags as usize, 1),
                mapping.at(offsets.desc as usize, capacity as usize),
                capacity,
                mapping.clone(),
            )
        })
    }

    /// Binds to receive queue `queue` of interface `ifindex`, waiting a while for a queue that is
    /// still busy from its last user.
    pub(crate) fn bind(&self, ifindex: u32, queue: u32, mode: BindMode) -> io::Result<()> {
        patiently(|| match self.0.elsewhere() {
            Some((opener, socket)) => opener.bind_xdp(socket, ifindex, queue, mode),
            None => bind_xdp_socket(self, ifindex, queue, mode),
        })
    }

    /// Binds to receive queue `queue` of interface `ifindex`, shares the cells of `first`, which is
    /// bound, and uses its receive mode. On the queue of `first` it also shares the fill ring; on
    /// other queues it must have a separate one, and waits for the queue as [`bind`](Self::bind)
    /// does.
    pub(crate) fn bind_beside(&self, first: &Self, ifindex: u32, queue: u32) -> io::Result<()> {
        patiently(|| match (self.0.elsewhere(), first.handle()) {
            (Some((opener, socket)), Some(first)) => {
                opener.bind_xdp_beside(socket, first, ifindex, queue)
            }
            _ => bind_xdp_socket_beside(self, first, ifindex, queue),
        })
    }

    /// Its handle in the process that has opened it, if that is another one.
    pub(crate) fn handle(&self) -> Option<&Handle> {
        self.0.handle()
    }

    /// The socket's counters since it was created.
    pub(crate) fn statistics(&self) -> io::Result<XdpStatistics> {
        Ok(sockopt::xdp_statistics(self)?)
    }

    /// In copy mode a [`kick`](Self::kick) then sends up to `frames`, at most the size of the tx
    /// ring. Kernels before 6.17 reject this.
    pub(crate) fn set_frames_per_kick(&self, frames: u32) -> io::Result<()> {
        set_option(self, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &frames)
    }

    /// Makes the kernel send the frames on the tx ring: in copy mode up to 32, unless set
    /// otherwise.
    pub(crate) fn kick(&self) -> Result<(), Errno> {
        send(self, &[], SendFlags::DONTWAIT).map(drop)
    }

    /// Wakes a sleeping driver, which then looks at the fill ring.
    pub(crate) fn wake(&self) {
        // The result (usually EAGAIN) has no meaning for the ring, whose state the next look shows.
        let _ = recv(self, &mut [0u8; 0], RecvFlags::DONTWAIT);
    }
}

/// Opens an AF_XDP socket without memory, rings or queue. CAP_NET_RAW.
///
/// # Errors
///
/// The kernel's.
pub fn open_xdp_socket() -> io::Result<OwnedFd> {
    let family = AddressFamily::from_raw(libc::AF_XDP as u16);
    Ok(socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None)?)
}

/// Registers `bytes` of memory from `address` on as the UMEM of a socket. CAP_IPC_LOCK, unless
/// `RLIMIT_MEMLOCK` is high enough.
///
/// # Errors
///
/// The kernel's.
///
/// # Safety
///
/// From now on the kernel may write to the memory at any time: this process must not use it for
/// anything else until the socket and all others that share its UMEM are closed.
pub unsafe fn register_umem(
    socket: &impl AsFd,
    address: u64,
    bytes: u64,
    cell_bytes: u32,
) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: address,
        len: bytes,
        chunk_size: cell_bytes,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
}

/// Binds an AF_XDP socket to receive queue `queue` of interface `ifindex`.
///
/// # Errors
///
/// The kernel's; EBUSY also if the queue's last user has ended just now.
pub fn bind_xdp_socket(
    socket: &impl AsFd,
    ifindex: u32,
    queue: u32,
    mode: BindMode,
) -> io::Result<()> {
    let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    flags.set(SocketAddrXdpFlags::XDP_ZEROCOPY, mode.zero_copy);
    flags.set(SocketAddrXdpFlags::XDP_COPY, !mode.zero_copy);
    flags.set(SocketAddrXdpFlags::XDP_USE_SG, mode.fragments);
    Ok(bind(socket, &SocketAddrXdp::new(flags, ifindex, queue))?)
}

/// Binds an AF_XDP socket that shares the cells of `first`, which is bound.
///
/// # Errors
///
/// As [`bind_xdp_socket`].
pub fn bind_xdp_socket_beside(
    socket: &impl AsFd,
    first: &impl AsFd,
    ifindex: u32,
    queue: u32,
) -> io::Result<()> {
    let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, ifindex, queue);
    Ok(bind(socket, &SocketAddrXdpWithSharedUmem { addr: address, shared_umem_fd: first.as_fd() })?)
}

/// Retries to bind until the queue is no longer busy, or until the time limit.
fn patiently(bind: impl Fn() -> io::Result<()>) -> io::Result<()> {
    let deadline = Instant::now() + BUSY_RETRY_TIME;
    let mut pause = BUSY_PAUSE;

    loop {
        match bind() {
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline =>
            {
                thread::sleep(pause);
            }
            outcome => return outcome,
        }
        // In each attempt the kernel creates a table of all cells, under the lock that it also
        // needs for releasing the previous socket.
        pause = (pause * 2).min(BUSY_PAUSE_MAX);
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
