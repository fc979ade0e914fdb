//! The baseline: a bare AF_XDP receive loop, modelled on the kernel's `xdpsock`. It peeks a batch,
//! reads each packet's header, puts each cell back on the fill ring, and publishes both rings once
//! per batch. It trusts the kernel and has no chunks, threads or accounts.
//!
//! It uses nothing of the engine except the loader of its XDP program. With several queues it has a
//! thread, cells and rings for each, like one process per queue.

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
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc,
    XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, netdevice, socket_with, sockopt};
use wirecap::bpf::asm::{Assembler, Helper, Reg, Size};
use wirecap::bpf::{
    Link, LoadOptions, Map, MapKind, Program, ProgramKind, XDP_PASS, XdpMode, xdp_md,
};

use super::handler::{Handler, Options};
use super::{Count, Dropped, Report, on_threads};
use crate::live::Outcome;

const CELL_BYTES: u32 = 2048;
/// The batch size of `xdpsock`.
const BATCH: u32 = 64;
const BUSY_RETRY_TIME: Duration = Duration::from_millis(500);

/// What to receive and how.
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    /// Interface whose queues are received, from 0 on
    #[arg(short, long)]
    interface: String,
    /// Number of queues
    #[arg(long, default_value_t = 1)]
    queues: u32,
    /// Number of each queue's cells, and of entries in each of its rings; a power of two
    #[arg(long, default_value_t = 131_072)]
    cells: u32,
    /// spin, poll, or microseconds to sleep when no packets wait
    #[arg(long, default_value = "100")]
    wait: Wait,
    /// End after this many packets
    #[arg(short, long, default_value_t = u64::MAX)]
    count: u64,
    #[command(flatten)]
    handler: Options,
}

/// The action when no packets wait.
#[derive(Debug, Clone, Copy)]
pub enum Wait {
    /// Look again at once.
    Spin,
    /// Be woken by the kernel.
    Poll,
    /// Look again after this time.
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

/// Receives until it is interrupted.
///
/// # Errors
///
/// When the kernel refuses.
pub fn run(arguments: &Arguments) -> Outcome<()> {
    let ifindex = netdevice::name_to_index(&socket_for_questions()?, &arguments.interface)?;
    let program = Arc::new(attach(ifindex, arguments.queues)?);
    let open = |queue| Receiver::open(ifindex, queue, arguments.cells, &program);
    let receivers = (0..arguments.queues).map(open).collect::<Outcome<Vec<Receiver>>>()?;
    let works = arguments.handler.is_something();
    let handler = Handler::new(&arguments.handler)?;
    let count =
        on_threads(receivers, &arguments.interface, &handler, |receiver, mut handler, stopped| {
            if works {
                receiver
                    .run(arguments, stopped, |data, wire_bytes| handler.packet(data, wire_bytes))
            } else {
                receiver.run(arguments, stopped, |_, _| ())
            }
        })?;

    Report::print(count, &handler)
}

/// One half of a ring, like libxdp's `xsk_ring_cons` and `xsk_ring_prod`.
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
    fn map(
        socket: &OwnedFd,
        page_offset: u64,
        at: &XdpRingOffset,
        capacity: u32,
    ) -> io::Result<Self> {
        assert!(capacity.is_power_of_two(), "the kernel refuses other rings");
        let bytes = at.desc as usize + capacity as usize * size_of::<T>();
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);

        // SAFETY: a fresh mapping at a place of the kernel's choosing, which stays until the
        // process ends.
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
    count: Count,
    socket: OwnedFd,
    _program: Arc<(Link, Map)>,
}

// SAFETY: rings and cells are mapped until the process ends, and belong to one receiver.
unsafe impl Send for Receiver {}

impl Receiver {
    fn open(ifindex: u32, queue: u32, cells: u32, program: &Arc<(Link, Map)>) -> Outcome<Self> {
        let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let memory = register_cells(&socket, cells)?;
        sockopt::set_xdp_rx_ring_size(&socket, cells)?;
        sockopt::set_xdp_umem_fill_ring_size(&socket, cells)?;
        sockopt::set_xdp_umem_completion_ring_size(&socket, 2)?;

        let offsets = sockopt::xdp_mmap_offsets(&socket)?;
        let rx = Ring::map(&socket, XDP_PGOFF_RX_RING, &offsets.rx, cells)?;
        let fill = Ring::map(&socket, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, cells)?;

        bind_patiently(&socket, ifindex, queue)?;
        let count = Count::default();
        let mut receiver = Self { rx, fill, memory, count, socket, _program: Arc::clone(program) };
        receiver.post_all(cells);
        program.1.update_fd(queue, &receiver.socket)?;

        Ok(receiver)
    }

    /// Receives until it must stop, and passes each packet to `each`.
    fn run(
        mut self,
        arguments: &Arguments,
        stopped: &AtomicBool,
        mut each: impl FnMut(&[u8], u32),
    ) -> Outcome<Count> {
        while self.count.delivered < arguments.count {
            if self.receive(&mut each) > 0 {
                continue;
            }
            if stopped.load(Ordering::Relaxed) {
                break;
            }

            match arguments.wait {
                Wait::Spin => std::hint::spin_loop(),
                Wait::Poll => self.poll(),
                Wait::Sleep(time) => thread::sleep(time),
            }
        }

        let lost = sockopt::xdp_statistics(&self.socket)?;
        self.count.dropped =
            Dropped { no_cell: lost.rx_dropped, ring_full: lost.rx_ring_full.unwrap_or(0) };

        Ok(self.count)
    }

    fn post_all(&mut self, cells: u32) {
        for cell in 0..cells {
            // SAFETY: the ring has as many slots as there are cells, and is empty.
            unsafe { self.fill.slot(cell).write(u64::from(cell) * u64::from(CELL_BYTES)) };
        }
        self.fill.index = cells;
        // SAFETY: the ring stays mapped.
        unsafe { &*self.fill.producer }.store(cells, Ordering::Release);
    }

    /// Receives up to a batch and returns the number of packets.
    #[inline]
    fn receive(&mut self, each: &mut impl FnMut(&[u8], u32)) -> u32 {
        // SAFETY: the ring stays mapped.
        let produced = unsafe { &*self.rx.producer }.load(Ordering::Acquire);
        let count = produced.wrapping_sub(self.rx.index).min(BATCH);
        if count == 0 {
            return 0;
        }

        for ahead in 0..count {
            // SAFETY: the kernel is trusted to have filled the slot with a packet of our memory.
            // There are as many slots for cells as cells, so each that was received has one.
            unsafe {
                let XdpDesc { addr, len, .. } = *self.rx.slot(ahead);
                let packet = self.memory.add(addr as usize);
                let ethertype = packet.add(12).cast::<u16>().read_unaligned();
                self.count.ipv4 += u64::from(ethertype == 0x0800_u16.to_be());
                self.count.bytes += u64::from(len);
                each(std::slice::from_raw_parts(packet, len as usize), len);
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

        self.count.delivered += u64::from(count);
        count
    }

    #[cold]
    fn wake(&self) {
        let _ = rustix::net::recv(&self.socket, &mut [0u8; 0], rustix::net::RecvFlags::DONTWAIT);
    }

    /// Waits for packets, or for a time.
    fn poll(&self) {
        let mut descriptors =
            [libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        // SAFETY: one descriptor is given and counted.
        unsafe { libc::poll(descriptors.as_mut_ptr(), 1, 100) };
    }
}

/// Maps the cells, on huge pages if available, and registers them with the kernel.
fn register_cells(socket: &OwnedFd, cells: u32) -> io::Result<*mut u8> {
    let bytes = cells as usize * CELL_BYTES as usize;
    let protection = ProtFlags::READ | ProtFlags::WRITE;

    // SAFETY: a fresh mapping at a place of the kernel's choosing, which stays until the process
    // ends.
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
fn attach(ifindex: u32, queues: u32) -> Outcome<(Link, Map)> {
    let sockets = Map::create(MapKind::Xskmap, "bare_sockets", 4, queues)?;
    let mut program = Assembler::new();
    program.load(Size::Word, Reg::R2, Reg::R1, xdp_md::RX_QUEUE_INDEX);
    program.load_map_fd(Reg::R1, &sockets);
    program.mov(Reg::R3, XDP_PASS);
    program.call(Helper::RedirectMap);
    program.exit();
    let program =
        Program::load(ProgramKind::Xdp, "bare", &program.finish()?, LoadOptions::default())?;
    Ok((Link::attach_xdp(&program, ifindex, XdpMode::Native)?, sockets))
}

/// Binds to a queue, which stays busy for some milliseconds after its last user.
fn bind_patiently(socket: &OwnedFd, ifindex: u32, queue: u32) -> io::Result<()> {
    let flags = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    let deadline = Instant::now() + BUSY_RETRY_TIME;
    loop {
        match bind(socket.as_fd(), &SocketAddrXdp::new(flags, ifindex, queue)) {
            Err(Errno::BUSY) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            outcome => return Ok(outcome?),
        }
    }
}
