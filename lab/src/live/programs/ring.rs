//! AF_PACKET rings as in the kernel's packet_mmap documentation: TPACKET_V3, a thread for each,
//! joined by PACKET_FANOUT. Blocks are processed in place and returned in order.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use clap::{Args, ValueEnum};
use rustix::net::netdevice;

use super::handler::{Handler, Options};
use super::{Count, Dropped, Report, on_threads};
use crate::live::Outcome;

const BLOCK_BYTES: u32 = 256 * 1024;
/// One page per packet; TPACKET_V3 does not use this size, and the kernel only checks that it
/// divides a block.
const FRAME_BYTES: u32 = 2048;
/// Milliseconds after which a partly filled block is handed over.
const BLOCK_TIMEOUT_MS: u32 = 10;
const POLL_MS: i32 = 100;

/// What to receive and how.
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    /// Interface to receive from
    #[arg(short, long)]
    interface: String,
    /// Rings, each with a thread
    #[arg(long, default_value_t = 1)]
    threads: u16,
    /// Who gets a packet
    #[arg(long, value_enum, default_value_t = Fanout::Hash)]
    fanout: Fanout,
    /// Memory of each ring, in MiB
    #[arg(long, default_value_t = 16)]
    buffer: u32,
    #[command(flatten)]
    handler: Options,
}

/// How PACKET_FANOUT selects a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Fanout {
    /// By the flow
    Hash,
    /// In turn, regardless of the flow
    Lb,
    /// The first as long as it has room, then the next
    Rollover,
    /// By the flow, and to another one when its ring is full
    HashRollover,
    /// By the queue that received it
    Qm,
}

impl Fanout {
    /// `type | flags`.
    fn code(self) -> u32 {
        match self {
            Self::Hash => libc::PACKET_FANOUT_HASH,
            Self::Lb => libc::PACKET_FANOUT_LB,
            Self::Rollover => libc::PACKET_FANOUT_ROLLOVER,
            Self::HashRollover => libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_ROLLOVER,
            Self::Qm => libc::PACKET_FANOUT_QM,
        }
    }
}

/// Joins a packet socket to the group of this process.
pub(super) fn join_fanout(socket: &impl AsRawFd, fanout: Fanout) -> io::Result<()> {
    let group = std::process::id() & 0xffff;
    set_option(socket, libc::PACKET_FANOUT, &(fanout.code() << 16 | group))
}

fn set_option<T>(socket: &impl AsRawFd, name: i32, value: &T) -> io::Result<()> {
    let bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `bytes` bytes of `value`.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            name,
            ptr::from_ref(value).cast(),
            bytes,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives until it is interrupted.
///
/// # Errors
///
/// When the kernel refuses.
pub fn run(arguments: &Arguments) -> Outcome<()> {
    let handler = Handler::new(&arguments.handler)?;
    let open = |_| Ring::open(&arguments.interface, arguments.buffer);
    let rings = (0..arguments.threads).map(open).collect::<Outcome<Vec<Ring>>>()?;
    if arguments.threads > 1 {
        rings.iter().try_for_each(|ring| join_fanout(&ring.socket, arguments.fanout))?;
    }
    let count = on_threads(rings, &arguments.interface, &handler, |ring, handler, stopped| {
        ring.receive(handler, stopped)
    })?;
    Report::print(count, &handler)
}

struct Ring {
    socket: OwnedFd,
    blocks: *mut u8,
    block_count: u32,
}

// SAFETY: the mapping belongs to the process, and each ring is used by one thread at a time.
unsafe impl Send for Ring {}

impl Ring {
    fn open(interface: &str, buffer_mib: u32) -> Outcome<Self> {
        // Bound last, so that no packets arrive before the ring exists. SAFETY: no memory is
        // involved.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error().into());
        }

        // SAFETY: a new descriptor from the kernel.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        set_option(&socket, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as i32))?;

        let block_count = (buffer_mib * 1024 * 1024 / BLOCK_BYTES).max(2);
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK_BYTES,
            tp_block_nr: block_count,
            tp_frame_size: FRAME_BYTES,
            tp_frame_nr: BLOCK_BYTES / FRAME_BYTES * block_count,
            tp_retire_blk_tov: BLOCK_TIMEOUT_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set_option(&socket, libc::PACKET_RX_RING, &request)?;

        let bytes = BLOCK_BYTES as usize * block_count as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;

        // SAFETY: a fresh mapping at a place of the kernel's choosing, which stays until the
        // process ends.
        let blocks = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                0,
            )
        };
        if blocks == libc::MAP_FAILED {
            return Err(io::Error::last_os_error().into());
        }

        bind(&socket, netdevice::name_to_index(&socket, interface)?)?;
        Ok(Self { socket, blocks: blocks.cast(), block_count })
    }

    fn receive(self, mut handler: Handler, stopped: &AtomicBool) -> Outcome<Count> {
        let mut count = Count::default();
        for index in (0..self.block_count).cycle() {
            let block = self.blocks.wrapping_add(index as usize * BLOCK_BYTES as usize);
            if !self.wait_for(block, stopped) {
                break;
            }
            handle_block(block, &mut handler, &mut count);
            status_of(block).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        count.dropped = Dropped { no_cell: self.drops()?, ring_full: 0 };
        Ok(count)
    }

    /// Waits until the kernel has handed over the block; false if the program must stop.
    fn wait_for(&self, block: *mut u8, stopped: &AtomicBool) -> bool {
        while status_of(block).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            if stopped.load(Ordering::Relaxed) {
                return false;
            }
            let mut polled =
                [libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
            // SAFETY: one descriptor is given and counted.
            unsafe { libc::poll(polled.as_mut_ptr(), 1, POLL_MS) };
        }
        true
    }

    fn drops(&self) -> io::Result<u64> {
        let mut statistics =
            libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        let mut bytes = size_of_val(&statistics) as libc::socklen_t;

        // SAFETY: the kernel writes at most `bytes` bytes into `statistics`.
        let status = unsafe {
            let place = ptr::from_mut(&mut statistics).cast();
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                place,
                &mut bytes,
            )
        };
        if status == 0 { Ok(statistics.tp_drops.into()) } else { Err(io::Error::last_os_error()) }
    }
}

fn bind(socket: &OwnedFd, ifindex: u32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: ifindex as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let bytes = size_of_val(&address) as libc::socklen_t;

    // SAFETY: the kernel reads `bytes` bytes of `address`.
    let status = unsafe { libc::bind(socket.as_raw_fd(), ptr::from_ref(&address).cast(), bytes) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The status word of the block.
fn status_of<'a>(block: *mut u8) -> &'a AtomicU32 {
    const OFFSET: usize = std::mem::offset_of!(libc::tpacket_block_desc, hdr);
    // SAFETY: the block is mapped until the process ends, and both sides treat the word as atomic.
    // It is the first of the header.
    unsafe { &*block.wrapping_add(OFFSET).cast::<AtomicU32>() }
}

fn handle_block(block: *mut u8, handler: &mut Handler, count: &mut Count) {
    // SAFETY: the kernel has handed the block over, and it is trusted to have written its own
    // structures.
    unsafe {
        let header = &(*block.cast::<libc::tpacket_block_desc>()).hdr.bh1;
        let mut at = block.add(header.offset_to_first_pkt as usize);

        for _ in 0..header.num_pkts {
            let packet = &*at.cast::<libc::tpacket3_hdr>();
            let data = std::slice::from_raw_parts(
                at.add(packet.tp_mac.into()),
                packet.tp_snaplen as usize,
            );
            count.packet(data, packet.tp_len);
            handler.packet(data, packet.tp_len);
            at = at.add(packet.tp_next_offset as usize);
        }
    }
    fence(Ordering::Release);
}
