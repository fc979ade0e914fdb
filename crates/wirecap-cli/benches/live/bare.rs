//! The baseline: a bare AF_XDP receive loop, as a good C programmer writes it after the kernel's own
//! `xdpsock`. It peeks a batch, touches each packet's header, puts each cell back on the fill ring,
//! and publishes both rings once per batch. It trusts the kernel blindly and knows nothing of chunks,
//! threads or accounts.
//!
//! It takes nothing of the engine's but the loader of its XDP program.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpRingOffset,
    XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, netdevice, socket_with, sockopt};
use wirecap::bpf::asm::{Assembler, Helper, Reg, Size};
use wirecap::bpf::{Link, LoadOptions, Map, MapKind, Program, ProgramKind, XDP_PASS, XdpMode, xdp_md};

use crate::bed::Outcome;

const CELL_BYTES: u32 = 2048;
/// As many as `xdpsock` takes at once.
const BATCH: u32 = 64;
const BUSY_RETRY_TIME: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Interface whose queue 0 is received
    #[arg(short, long)]
    interface: String,
    /// Number of cells, and of entries in each ring; a power of two
    #[arg(long, default_value_t = 131_072)]
    cells: u32,
    /// spin, poll, or microseconds to sleep when nothing is there
    #[arg(long, default_value = "100")]
    wait: Wait,
    /// End after this many packets
    #[arg(short, long, default_value_t = u64::MAX)]
    count: u64,
}

/// What to do when nothing is there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    Spin,
    Poll,
    Sleep(Duration),
}

impl FromStr for Wait {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "spin" => Self::Spin,
            "poll" => Self::Poll,
            micros => Self::Sleep(Duration::from_micros(micros.parse()?)),
        })
    }
}

pub(crate) fn run(arguments: &Arguments) -> Outcome<()> {
    let stopped = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stopped))?;
    let mut receiver = Receiver::open(&arguments.interface, arguments.cells)?;
    eprintln!("capturing {}", arguments.interface);
    while receiver.packets < arguments.count {
        if receiver.receive() > 0 {
            continue;
        }
        if stopped.load(Ordering::Relaxed) {
            break;
        }
        match arguments.wait {
            Wait::Spin => std::hint::spin_loop(),
            Wait::Poll => receiver.poll(),
            Wait::Sleep(time) => thread::sleep(time),
        }
    }
    println!("{}", receiver.report()?);
    Ok(())
}

/// One half of a ring, as libxdp's `xsk_ring_cons` and `xsk_ring_prod`.
struct Ring<T> {
    producer: *const AtomicU32,
    consumer: *const AtomicU32,
    flags: *const AtomicU32,
    slots: *mut T,
    mask: u32,
    /// Our index.
    index: u32,
}

impl<T> Ring<T> {
    fn map(socket: &OwnedFd, page_offset: u64, at: &XdpRingOffset, capacity: u32) -> io::Result<Self> {
        assert!(capacity.is_power_of_two(), "the kernel refuses other rings");
        let bytes = at.desc as usize + capacity as usize * size_of::<T>();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a fresh mapping at a place of the kernel's choosing, which stays until the process ends.
        let base = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, socket, page_offset) }?;
        let place = |offset: u64| base.cast::<u8>().wrapping_add(offset as usize);
        Ok(Self {
            producer: place(at.producer).cast(),
            consumer: place(at.consumer).cast(),
            flags: place(at.flags.ok_or(Errno::OPNOTSUPP)?).cast(),
            slots: place(at.desc).cast(),
            mask: capacity - 1,
            index: 0,
        })
    }

    /// The slot `ahead` of our index.
    fn slot(&self, ahead: u32) -> *mut T {
        self.slots.wrapping_add((self.index.wrapping_add(ahead) & self.mask) as usize)
    }
}

struct Receiver {
    rx: Ring<XdpDesc>,
    fill: Ring<u64>,
    memory: *mut u8,
    packets: u64,
    bytes: u64,
    /// Packets whose header says IPv4: what touching the header is for.
    ipv4: u64,
    socket: OwnedFd,
    _program: (Link, Map),
}

impl Receiver {
    fn open(interface: &str, cells: u32) -> Outcome<Self> {
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let memory = register_cells(&socket, cells)?;
        sockopt::set_xdp_rx_ring_size(&socket, cells)?;
        sockopt::set_xdp_umem_fill_ring_size(&socket, cells)?;
        sockopt::set_xdp_umem_completion_ring_size(&socket, 2)?;
        let offsets = sockopt::xdp_mmap_offsets(&socket)?;
        let rx = Ring::map(&socket, XDP_PGOFF_RX_RING, &offsets.rx, cells)?;
        let fill = Ring::map(&socket, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, cells)?;
        let ifindex = netdevice::name_to_index(&socket_for_questions()?, interface)?;
        let program = attach(ifindex)?;
        bind_patiently(&socket, ifindex)?;
        let mut receiver =
            Self { rx, fill, memory, packets: 0, bytes: 0, ipv4: 0, socket, _program: program };
        receiver.post_all(cells);
        receiver._program.1.update_fd(0, &receiver.socket)?;
        Ok(receiver)
    }

    fn post_all(&mut self, cells: u32) {
        for cell in 0..cells {
            // SAFETY: the ring has as many slots as there are cells, and nothing is on it yet.
            unsafe { self.fill.slot(cell).write(u64::from(cell) * u64::from(CELL_BYTES)) };
        }
        self.fill.index = cells;
        // SAFETY: the ring stays mapped.
        unsafe { &*self.fill.producer }.store(cells, Ordering::Release);
    }

    /// Receives up to a batch and says how many packets it was.
    #[inline]
    fn receive(&mut self) -> u32 {
        // SAFETY: the ring stays mapped.
        let produced = unsafe { &*self.rx.producer }.load(Ordering::Acquire);
        let count = produced.wrapping_sub(self.rx.index).min(BATCH);
        if count == 0 {
            return 0;
        }
        for ahead in 0..count {
            // SAFETY: the kernel is trusted to have filled the slot with a packet of our memory. There
            // are as many slots for cells as cells, so each that was received has one.
            unsafe {
                let XdpDesc { addr, len, .. } = *self.rx.slot(ahead);
                let ethertype = self.memory.add(addr as usize + 12).cast::<u16>().read_unaligned();
                self.ipv4 += u64::from(ethertype == 0x0800_u16.to_be());
                self.bytes += u64::from(len);
                self.fill.slot(ahead).write(addr & !u64::from(CELL_BYTES - 1));
            }
        }
        self.fill.index = self.fill.index.wrapping_add(count);
        self.rx.index = self.rx.index.wrapping_add(count);
        // SAFETY: the rings stay mapped.
        unsafe {
            (*self.fill.producer).store(self.fill.index, Ordering::Release);
            (*self.rx.consumer).store(self.rx.index, Ordering::Release);
            if (*self.fill.flags).load(Ordering::Relaxed) != 0 {
                self.wake();
            }
        }
        self.packets += u64::from(count);
        count
    }

    #[cold]
    fn wake(&self) {
        let _ = rustix::net::recv(&self.socket, &mut [0u8; 0], rustix::net::RecvFlags::DONTWAIT);
    }

    /// Waits for packets, or a while.
    fn poll(&self) {
        let mut descriptors =
            [libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        // SAFETY: one descriptor is given and counted.
        unsafe { libc::poll(descriptors.as_mut_ptr(), 1, 100) };
    }

    /// In the words of the ledger.
    fn report(&self) -> Outcome<serde_json::Value> {
        let lost = sockopt::xdp_statistics(&self.socket)?;
        Ok(serde_json::json!({
            "delivered": self.packets,
            "bytes": self.bytes,
            "ipv4": self.ipv4,
            "dropped": { "no_cell": lost.rx_dropped, "ring_full": lost.rx_ring_full },
        }))
    }
}

/// Maps the cells, on huge pages where they are to be had, and gives them to the kernel.
fn register_cells(socket: &OwnedFd, cells: u32) -> io::Result<*mut u8> {
    let bytes = cells as usize * CELL_BYTES as usize;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at a place of the kernel's choosing, which stays until the process ends.
    let memory = unsafe {
        let memory = mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)?;
        let _ = madvise(memory, bytes, Advice::LinuxHugepage);
        memory
    };
    let registration = XdpUmemReg {
        addr: memory as u64,
        len: bytes as u64,
        chunk_size: CELL_BYTES,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(socket, registration)?;
    Ok(memory.cast())
}

fn socket_for_questions() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// Attaches the shortest program that redirects to a socket.
fn attach(ifindex: u32) -> Outcome<(Link, Map)> {
    let sockets = Map::create(MapKind::Xskmap, "bare_sockets", 4, 1)?;
    let mut program = Assembler::new();
    program.load(Size::Word, Reg::R2, Reg::R1, xdp_md::RX_QUEUE_INDEX);
    program.load_map_fd(Reg::R1, &sockets);
    program.mov(Reg::R3, XDP_PASS);
    program.call(Helper::RedirectMap);
    program.exit();
    let program = Program::load(ProgramKind::Xdp, "bare", &program.finish()?, LoadOptions::default())?;
    Ok((Link::attach_xdp(&program, ifindex, XdpMode::Native)?, sockets))
}

/// Binds to queue 0, which stays busy for some milliseconds after its last user.
fn bind_patiently(socket: &OwnedFd, ifindex: u32) -> io::Result<()> {
    let flags = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    let deadline = Instant::now() + BUSY_RETRY_TIME;
    loop {
        match bind(socket.as_fd(), &SocketAddrXdp::new(flags, ifindex, 0)) {
            Err(Errno::BUSY) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            outcome => return Ok(outcome?),
        }
    }
}
