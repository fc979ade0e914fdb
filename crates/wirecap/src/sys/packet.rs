//! AF_PACKET sockets with a receive ring of TPACKET_V3, or of TPACKET_V2
//! (`networking/packet_mmap.rst`).

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use libc::sock_filter;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::sys::memory::Mapping;
use crate::sys::opener::{Opened, opener};
use crate::sys::option::{get_option, set_option};

/// Instructions of classic BPF, which the kernel runs on a socket's packets: the result is the
/// number of bytes of the packet that the socket gets, 0 for none.
pub(crate) type SocketFilter = [sock_filter];

/// The blocks of a receive ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockShape {
    /// Bytes of a block, a multiple of the page size.
    pub(crate) block_bytes: u32,
    /// How many blocks there are.
    pub(crate) blocks: u32,
}

impl BlockShape {
    pub(crate) fn ring_bytes(self) -> usize {
        self.block_bytes as usize * self.blocks as usize
    }
}

/// The frames of a receive ring that has one for each packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameShape {
    pub(crate) block_bytes: u32,
    pub(crate) blocks: u32,
    /// Bytes of a frame; no frame crosses the end of a block.
    pub(crate) frame_bytes: u32,
}

impl FrameShape {
    /// Maximum bytes before a packet, with link-layer headers of up to 32 bytes.
    pub(crate) const HEADROOM: usize = 128;
    /// Additional bytes before a packet, for a header of TPACKET_V3.
    const RESERVED: c_int = 16;
    /// Maximum bytes of a block, unless a frame has more: the kernel allocates contiguous memory.
    const BLOCK_BYTES_MAX: u32 = 1 << 20;
    const FRAMES_MIN: u32 = 2;

    /// At least two frames for packets of up to `longest` bytes, in about `ring_bytes`.
    pub(crate) fn of(ring_bytes: usize, longest: u32) -> Self {
        let frame_bytes = (longest + Self::HEADROOM as u32).next_multiple_of(16);
        let one = frame_bytes.next_power_of_two().max(rustix::param::page_size() as u32);
        // Several in a block, so that little of it is unused.
        let block_bytes = (one * 8).min(Self::BLOCK_BYTES_MAX).max(one);
        let fitting = u32::try_from(ring_bytes).unwrap_or(u32::MAX).max(1);
        let block_bytes = block_bytes.min(1 << fitting.ilog2()).max(one);
        let per_block = block_bytes / frame_bytes;
        let blocks = (fitting / block_bytes).max(Self::FRAMES_MIN.div_ceil(per_block));
        Self { block_bytes, blocks, frame_bytes }
    }

    fn per_block(self) -> u32 {
        self.block_bytes / self.frame_bytes
    }

    /// How many frames there are.
    pub(crate) fn frames(self) -> u32 {
        self.per_block() * self.blocks
    }

    pub(crate) fn ring_bytes(self) -> usize {
        self.block_bytes as usize * self.blocks as usize
    }

    /// The offset of frame `number` in the order of filling.
    pub(crate) fn start(self, number: u64) -> usize {
        let index = (number % u64::from(self.frames())) as u32;
        let block = index / self.per_block();
        let frame = index % self.per_block();
        block as usize * self.block_bytes as usize + frame as usize * self.frame_bytes as usize
    }

    /// The index of the frame that contains `place`.
    pub(crate) fn number_at(self, place: usize) -> u64 {
        let block = place / self.block_bytes as usize;
        let rest = place % self.block_bytes as usize;
        block as u64 * u64::from(self.per_block()) + (rest / self.frame_bytes as usize) as u64
    }
}

/// How the packets of an interface are distributed over the sockets of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fanout {
    /// By a hash of the flow that both directions share.
    Hash,
    /// By a program, which gives the number of the socket in the order of joining.
    Program,
}

/// A group of sockets that share an interface's packets, as the kernel numbers and describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FanoutGroup(c_int);

/// Statistics of the packets that passed a socket's filter, since the last query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PacketCounts {
    /// All of them, dropped or not.
    pub(crate) packets: u32,
    /// Packets for which no block was free.
    pub(crate) drops: u32,
    /// Number of times that the kernel waited for a block that had not been returned.
    pub(crate) freezes: u32,
}

/// An AF_PACKET socket.
#[derive(Debug)]
pub(crate) struct PacketSocket(Opened);

impl PacketSocket {
    /// A socket that receives nothing yet.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(match opener() {
            Some(opener) => opener.packet_socket()?.into(),
            None => Opened::own(open_packet_socket()?),
        }))
    }

    /// The socket, for other uses. It stays open as long as a reference exists.
    pub(crate) fn share(&self) -> Arc<OwnedFd> {
        self.0.share()
    }

    /// Creates the receive ring and maps it. The kernel hands a block over when it is full, or
    /// `retire_after` (whole milliseconds, at least 1) after it was opened, unless it is empty.
    pub(crate) fn make_ring(
        &self,
        shape: BlockShape,
        retire_after: Duration,
    ) -> io::Result<Mapping> {
        self.set(libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as c_int))?;

        // Frames have no fixed size in this version; the kernel only requires that the numbers
        // agree.
        let frame_bytes = rustix::param::page_size() as u32;
        let request = libc::tpacket_req3 {
            tp_block_size: shape.block_bytes,
            tp_block_nr: shape.blocks,
            tp_frame_size: frame_bytes,
            tp_frame_nr: shape.block_bytes / frame_bytes * shape.blocks,
            tp_retire_blk_tov: retire_after.as_millis().clamp(1, 1 << 30) as u32,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        self.set(libc::PACKET_RX_RING, &request)?;

        Mapping::of(self, shape.ring_bytes(), 0)
    }

    /// Creates a receive ring whose packets are handed over one by one, at once, and maps it.
    pub(crate) fn make_frame_ring(&self, shape: FrameShape) -> io::Result<Mapping> {
        self.set(libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as c_int))?;
        self.set(libc::PACKET_RESERVE, &FrameShape::RESERVED)?;
        let request = libc::tpacket_req {
            tp_block_size: shape.block_bytes,
            tp_block_nr: shape.blocks,
            tp_frame_size: shape.frame_bytes,
            tp_frame_nr: shape.frames(),
        };
        self.set(libc::PACKET_RX_RING, &request)?;
        Mapping::of(self, shape.ring_bytes(), 0)
    }

    /// Ignores packets that this host sends.
    pub(crate) fn ignore_outgoing(&self) -> io::Result<()> {
        self.set(libc::PACKET_IGNORE_OUTGOING, &c_int::from(true))
    }

    /// Runs `program` on every packet from now on.
    pub(crate) fn attach_filter(&self, program: &SocketFilter) -> io::Result<()> {
        set_option(self, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &described(program))
    }

    /// Receives the packets of interface `ifindex` from now on.
    pub(crate) fn bind(&self, ifindex: u32) -> io::Result<()> {
        match self.0.elsewhere() {
            Some((opener, socket)) => opener.bind_packet(socket, ifindex),
            None => bind_packet_socket(self, ifindex),
        }
    }

    /// Creates a group with a unique number and this socket as its first member. The socket must be
    /// bound.
    pub(crate) fn found_group(
        &self,
        fanout: Fanout,
        ignore_outgoing: bool,
    ) -> io::Result<FanoutGroup> {
        let kind = match fanout {
            Fanout::Hash => libc::PACKET_FANOUT_HASH,
            Fanout::Program => libc::PACKET_FANOUT_CBPF,
        };
        let outgoing = if ignore_outgoing { libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING } else { 0 };
        let request = (kind | outgoing | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16;
        self.set(libc::PACKET_FANOUT, &request)?;

        // The answer has the form that the next members use to join.
        get_option(self, libc::SOL_PACKET, libc::PACKET_FANOUT).map(FanoutGroup)
    }

    /// Becomes the next member of `group`. The socket must be bound to the same interface.
    pub(crate) fn join(&self, group: FanoutGroup) -> io::Result<()> {
        self.set(libc::PACKET_FANOUT, &group.0)
    }

    /// Sets the program that distributes the packets of this socket's group.
    pub(crate) fn steer(&self, program: &SocketFilter) -> io::Result<()> {
        self.set(libc::PACKET_FANOUT_DATA, &described(program))
    }

    /// Sets the smallest receive buffer that the kernel allows.
    pub(crate) fn keep_little(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_recv_buffer_size(self, 0)?)
    }

    /// The statistics since the last call: the kernel restarts them at 0.
    pub(crate) fn take_counts(&self) -> io::Result<PacketCounts> {
        let counts: libc::tpacket_stats_v3 =
            get_option(self, libc::SOL_PACKET, libc::PACKET_STATISTICS)?;
        Ok(PacketCounts {
            packets: counts.tp_packets,
            drops: counts.tp_drops,
            freezes: counts.tp_freeze_q_cnt,
        })
    }

    /// Clears the error that the interface was down, which would make the socket readable forever.
    pub(crate) fn clear_error(&self) {
        let _ = sockopt::socket_error(self);
    }

    fn set<T>(&self, option: c_int, value: &T) -> io::Result<()> {
        set_option(self, libc::SOL_PACKET, option, value)
    }
}

/// Opens a packet socket without a protocol: no packet arrives before it is bound. CAP_NET_RAW.
///
/// # Errors
///
/// The kernel's.
pub fn open_packet_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?)
}

/// Binds a packet socket to interface `ifindex`: it receives all packets from now on.
///
/// # Errors
///
/// The kernel's.
pub fn bind_packet_socket(socket: &impl AsFd, ifindex: u32) -> io::Result<()> {
    bind_for(socket, ifindex, libc::ETH_P_ALL as u16)
}

/// Receives the packets of this protocol on the interface; none for 0.
fn bind_for(socket: &impl AsFd, ifindex: u32, protocol: u16) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: ifindex.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let bytes = size_of_val(&address) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();

    // SAFETY: the pointer and the length describe `address`, which the kernel only reads.
    let outcome = unsafe { libc::bind(fd, (&raw const address).cast(), bytes) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Maximum number of packets that one call hands over.
const MESSAGES_MAX: usize = 64;

/// An AF_PACKET socket that sends on one interface and receives nothing.
#[derive(Debug)]
pub(crate) struct PacketSender(PacketSocket);

impl PacketSender {
    /// A socket that sends on interface `ifindex`, past its queueing discipline.
    pub(crate) fn new(ifindex: u32) -> io::Result<Self> {
        let socket = PacketSocket::new()?;
        bind_for(&socket, ifindex, 0)?;
        socket.set(libc::PACKET_QDISC_BYPASS, &c_int::from(true))?;
        Ok(Self(socket))
    }

    /// Sends consecutive packets in `bytes` with the lengths `lens`, as many as one call accepts.
    /// Returns the number of sent packets.
    ///
    /// # Errors
    ///
    /// Why the first one was not sent.
    pub(crate) fn send(&self, bytes: &[u8], lens: &[u32]) -> Result<usize, Errno> {
        let mut parts = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; MESSAGES_MAX];

        // SAFETY: a message without name, parts and control data is all zeros.
        let mut messages: [libc::mmsghdr; MESSAGES_MAX] = unsafe { std::mem::zeroed() };
        let mut rest = bytes;
        let count = lens.len().min(MESSAGES_MAX);

        for ((message, part), &len) in messages.iter_mut().zip(&mut parts).zip(&lens[..count]) {
            let (packet, behind) = rest.split_at(len as usize);
            // The kernel only reads it.
            *part =
                libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            rest = behind;
        }

        let fd = self.0.as_fd().as_raw_fd();
        let flags = libc::MSG_DONTWAIT;

        // SAFETY: `count` messages were filled in, each with one part in `bytes`; all of it lives
        // until the call returns.
        let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count as u32, flags as _) };
        usize::try_from(sent)
            .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

/// The form in which the kernel takes a program. It only reads it, and only during the call.
fn described(program: &SocketFilter) -> libc::sock_fprog {
    libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_consecutive_in_blocks() {
        for (bytes, longest) in
            [(16 << 20, 65_600), (2 << 20, 1522), (1 << 18, 65_600), (4096, 262_144), (1 << 30, 60)]
        {
            let shape = FrameShape::of(bytes, longest);
            assert!(shape.frames() >= 2 && shape.frame_bytes >= longest + 100, "{shape:?}");
            assert!(
                shape.block_bytes.is_power_of_two() && shape.ring_bytes() <= bytes.max(1 << 20),
                "{shape:?}"
            );

            let used = u64::from(shape.frames()) * u64::from(shape.frame_bytes);
            assert!(used * 2 >= shape.ring_bytes() as u64, "{shape:?}");

            let mut end = 0;

            for number in 0..u64::from(shape.frames().min(5000)) {
                let start = shape.start(number);
                assert!(start >= end, "{shape:?}");
                end = start + shape.frame_bytes as usize;
                assert_eq!(
                    start / shape.block_bytes as usize,
                    (end - 1) / shape.block_bytes as usize
                );
                assert_eq!(
                    (shape.number_at(start), shape.number_at(end - 1)),
                    (number, number),
                    "{shape:?}"
                );
            }

            assert_eq!(shape.start(u64::from(shape.frames())), 0);
        }
    }
}
