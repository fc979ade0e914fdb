//! The `xdp` engine: AF_XDP sockets on the receive queues of an interface (take mode).

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::bpf::{BpfError, Link, Map, MapKind, Program, XdpMode};
use crate::chunk::{RingIdentity, RingName};
use crate::device::Device;
use crate::error::OpenError;
use crate::kernel_ring::{Consumer, Producer};
use crate::limits::locked_memory_rlimit;
use crate::pool::{Descriptor, Geometry, Pool};
use crate::program::{self, Plan};
use crate::refill::{Kernel, KernelDrops, Refill};
use crate::ring::{Ring, StampSource, UmemRing};
use crate::stamps::{NoStamps, ProgramStamps};
use crate::steer::Steering;
use crate::sys::promiscuous::Promiscuous;
use crate::sys::xdp::{BindMode, HEADROOM_BYTES, XdpSocket};

/// Bytes of an Ethernet header with two VLAN tags: what a frame is longer than the MTU.
const LINK_HEADER_BYTES: u32 = 14 + 2 * 4;
/// The cells to choose from, in bytes.
const CELL_BYTES: [u32; 2] = [2048, 4096];

/// The largest ring that the kernel makes.
const MAX_POOL_CELLS: u64 = 1 << 28;

/// A way in which AF_XDP receives packets, the fastest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rung {
    /// The device writes packets straight into the cells.
    ZeroCopy,
    /// The program runs in the driver; the kernel copies packets into the cells.
    NativeCopy,
    /// The program runs in the network stack, on any driver; the kernel copies packets into the cells.
    Generic,
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroCopy => "zero-copy",
            Self::NativeCopy => "native copy",
            Self::Generic => "generic",
        })
    }
}

/// How rings are to be opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) geometry: Geometry,
    pub(crate) timestamps: bool,
    pub(crate) promiscuous: bool,
    pub(crate) snap_len: u32,
    /// The interface's place in the capture.
    pub(crate) interface_index: usize,
    /// The place of the interface's first ring in the capture.
    pub(crate) first_ring_index: usize,
}

/// The rings of an interface, receiving.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) rings: Vec<Arc<dyn Ring>>,
    pub(crate) attachment: Attachment,
    pub(crate) rung: Rung,
    pub(crate) missed_rungs: Vec<(Rung, String)>,
    pub(crate) huge_pages: bool,
}

/// Bytes of the cells for the frames of `device`: the smallest that hold any of them, else the largest
/// there are, of which a long frame takes several.
///
/// # Errors
///
/// [`OpenError::BadParameter`] if a chunk of `chunk_cells` cells cannot hold the longest frame.
pub(crate) fn cell_bytes(device: &Device, chunk_cells: u32) -> Result<u32, OpenError> {
    let one_is_enough = |cell: &u32| cells_per_frame(device, *cell) == 1;
    let cell_bytes = CELL_BYTES.into_iter().find(one_is_enough).unwrap_or(CELL_BYTES[1]);
    let needed = cells_per_frame(device, cell_bytes);
    if needed > chunk_cells {
        return Err(OpenError::BadParameter {
            parameter: "M (cells per chunk)",
            value: chunk_cells.into(),
            allowed: format!("{needed} or more on {}, whose frames take up to {needed} cells", device.name),
        });
    }
    Ok(cell_bytes)
}

/// How many cells of this size the longest frame of `device` takes.
fn cells_per_frame(device: &Device, cell_bytes: u32) -> u32 {
    (device.mtu + LINK_HEADER_BYTES).div_ceil(cell_bytes - HEADROOM_BYTES)
}

/// The pool of a queue with so many rings, each of which is to hold R x M packets.
///
/// A ring of the kernel's has room for a power of two. Where several share a pool, it has as many cells as
/// they have room: a ring that nobody reads fills up, and takes none of what its neighbours may need.
fn pool_geometry(ring: Geometry, rings: u32) -> Geometry {
    if rings == 1 {
        return ring;
    }
    let cells = ring.cells().next_power_of_two() * rings;
    Geometry { chunks: cells.div_ceil(ring.chunk_cells), ..ring }
}

/// The largest geometry up to this one that makes shared pools of the sum of their rings' packets.
pub(crate) fn without_padding(ring: Geometry) -> Geometry {
    let fitting = (1 << ring.cells().ilog2()) / ring.chunk_cells;
    Geometry { chunks: fitting.max(1), ..ring }
}

/// Bytes of all pools of an interface.
///
/// # Errors
///
/// [`OpenError::BadParameter`] if a pool would have more cells than the kernel makes fill rings for.
pub(crate) fn pool_bytes(ring: Geometry, steering: &Steering) -> Result<u64, OpenError> {
    let most =
        u64::from(ring.cells().next_power_of_two()) * steering.rings_of_queues().max().map_or(0, u64::from);
    if most > MAX_POOL_CELLS {
        return Err(OpenError::BadParameter {
            parameter: "R x M x rings (cells per receive queue)",
            value: most,
            allowed: format!("up to {MAX_POOL_CELLS}"),
        });
    }
    Ok(steering.rings_of_queues().map(|rings| pool_geometry(ring, rings).pool_bytes() as u64).sum())
}

/// Opens the rings that `steering` says. Nothing on the interface is changed before all that needs no
/// change has succeeded, and a failure undoes everything.
pub(crate) fn open(device: &Device, steering: &Steering, settings: &Settings) -> Result<Opened, OpenError> {
    if !device.up {
        return Err(OpenError::InterfaceDown { interface: device.name.clone() });
    }
    let queues = steering.queues().iter().zip(steering.rings_of_queues());
    let queues = queues.map(|(&queue, rings)| PreparedQueue::new(device, queue, rings, settings.geometry));
    let queues = queues.collect::<Result<Vec<_>, _>>()?;
    let huge_pages = queues.iter().all(|queue| queue.pool.on_huge_pages());
    let mut ladder = Ladder::new(device, settings.geometry.cell_bytes);
    let attachment = Attachment::new(device, steering, settings, &mut ladder)?;
    let inquiry = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let inquiry = Arc::new(inquiry.map_err(|errno| system("open a socket", errno.into()))?);
    let mut rings: Vec<Arc<dyn Ring>> = Vec::new();
    let mut sockets = Vec::new();
    for queue in queues {
        queue.bind(&mut ladder)?;
        let kernel = |socket| SocketKernel { socket, ifindex: device.index, inquiry: Arc::clone(&inquiry) };
        let prepared = queue.rings.into_iter();
        let prepared: Vec<_> =
            prepared.map(|ring| (ring.name, ring.rx, Arc::new(kernel(ring.socket)))).collect();
        let refill = Refill::new(queue.pool, queue.fill, prepared[0].2.clone())
            .map_err(|broken| system("post the cells", io::Error::other(broken.to_string())))?;
        let refill = Arc::new(refill);
        for (name, rx, kernel) in prepared {
            sockets.push((steering.key(name.queue, name.part.unwrap_or(0)), Arc::clone(&kernel)));
            let identity = RingIdentity {
                name,
                index: settings.first_ring_index + rings.len(),
                interface_index: settings.interface_index,
                snap_len: settings.snap_len,
            };
            let (capacity, refill) = (settings.geometry.cells(), Arc::clone(&refill));
            let stamps = Arc::clone(&attachment.stamps);
            rings.push(Arc::new(UmemRing::new(identity, capacity, refill, rx, kernel, stamps)));
        }
    }
    for (key, kernel) in sockets {
        attachment.receive(key, &kernel.socket).map_err(|source| refused(device, source))?;
    }
    Ok(Opened { rings, attachment, rung: ladder.rung, missed_rungs: ladder.missed, huge_pages })
}

fn refused(device: &Device, source: BpfError) -> OpenError {
    OpenError::Program { interface: device.name.clone(), source }
}

/// The rings of a receive queue with their memory, not bound to it yet.
struct PreparedQueue {
    pool: Arc<Pool>,
    fill: Producer<u64>,
    /// The first one's socket has the pool and the fill ring.
    rings: Vec<PreparedRing>,
}

struct PreparedRing {
    name: RingName,
    socket: XdpSocket,
    rx: Consumer<Descriptor>,
}

impl PreparedQueue {
    fn new(device: &Device, queue: u32, rings: u32, ring: Geometry) -> Result<Self, OpenError> {
        let name = |part| RingName { part: Some(part), ..RingName::of_queue(&device.name, queue) };
        let names = match rings {
            1 => vec![RingName::of_queue(&device.name, queue)],
            _ => (0..rings).map(name).collect(),
        };
        let rings = names.into_iter().map(|name| PreparedRing::new(name, ring.cells().next_power_of_two()));
        let rings = rings.collect::<Result<Vec<_>, _>>()?;
        let pool = Pool::new(pool_geometry(ring, rings.len() as u32))
            .map_err(|source| system("map the memory of the pools", source))?;
        let fill = give_pool(&rings[0].socket, &pool)?;
        Ok(Self { pool: Arc::new(pool), fill, rings })
    }

    fn bind(&self, ladder: &mut Ladder<'_>) -> Result<(), OpenError> {
        let (first, others) = self.rings.split_first().expect("every queue has a ring");
        ladder.bind(&first.socket, &first.name)?;
        let beside = |ring: &PreparedRing| {
            let bound = ring.socket.bind_beside(&first.socket, ladder.device.index, ring.name.queue);
            bound.map_err(|source| refusal_to_bind(&ring.name, source))
        };
        others.iter().try_for_each(beside)
    }
}

impl PreparedRing {
    fn new(name: RingName, slots: u32) -> Result<Self, OpenError> {
        let socket = XdpSocket::new().map_err(|source| system("open an AF_XDP socket", source))?;
        let rx = socket.make_rx_ring(slots);
        let rx = rx.map_err(|source| system("make the rx ring of an AF_XDP socket", source))?;
        Ok(Self { name, socket, rx })
    }
}

/// Registers `pool` with `socket`, and makes a fill ring for all of its cells.
fn give_pool(socket: &XdpSocket, pool: &Pool) -> Result<Producer<u64>, OpenError> {
    let geometry = pool.geometry();
    let registered = socket.register_umem(pool.memory(), geometry.pool_bytes(), geometry.cell_bytes);
    registered.map_err(|source| match (source.raw_os_error(), locked_memory_rlimit()) {
        // The limit counts all of the user's locked memory, also that of other processes.
        (Some(libc::ENOBUFS), Some(limit_bytes)) => {
            OpenError::PoolTooLarge { needed_bytes: geometry.pool_bytes() as u64, limit_bytes }
        }
        _ => system("register the pool with the kernel", source),
    })?;
    socket
        .make_fill_ring(geometry.cells().next_power_of_two())
        .map_err(|source| system("make the fill ring of an AF_XDP socket", source))
}

fn system(action: &str, source: io::Error) -> OpenError {
    OpenError::System { action: action.to_owned(), source }
}

/// How far down the ladder the interface's queues had to go.
struct Ladder<'a> {
    device: &'a Device,
    /// The longest frames do not fit a cell.
    has_long_frames: bool,
    rung: Rung,
    missed: Vec<(Rung, String)>,
}

impl<'a> Ladder<'a> {
    fn new(device: &'a Device, cell_bytes: u32) -> Self {
        let has_long_frames = cells_per_frame(device, cell_bytes) > 1;
        Self { device, has_long_frames, rung: Rung::ZeroCopy, missed: Vec::new() }
    }

    fn miss(&mut self, rung: Rung, reason: String) {
        if self.missed.iter().all(|(missed, _)| *missed != rung) {
            self.missed.push((rung, reason));
        }
    }

    /// Attaches `program` in the driver if that is possible, else in the network stack.
    fn attach(&mut self, program: &Program) -> Result<Link, BpfError> {
        match Link::attach_xdp(program, self.device.index, XdpMode::Native) {
            Err(error) if is_refusal_by_driver(&error) => {
                let reason = match error.errno() {
                    Some(libc::EOPNOTSUPP) => "the driver has no native XDP".to_owned(),
                    _ => format!("the driver has no native XDP at an MTU of {}", self.device.mtu),
                };
                self.miss(Rung::ZeroCopy, reason.clone());
                self.miss(Rung::NativeCopy, reason);
                self.rung = Rung::Generic;
                Link::attach_xdp(program, self.device.index, XdpMode::Generic)
            }
            outcome => outcome,
        }
    }

    /// Binds with zero-copy if that is possible, else with a copy.
    fn bind(&mut self, socket: &XdpSocket, ring: &RingName) -> Result<(), OpenError> {
        if self.rung == Rung::ZeroCopy {
            // A driver that can receive fragments may be slower when it is asked to.
            let mode = BindMode { zero_copy: true, fragments: self.has_long_frames };
            match socket.bind(self.device.index, ring.queue, mode) {
                Err(error) if is_refusal_of_zero_copy(&error) => {
                    self.miss(Rung::ZeroCopy, zero_copy_reason(&error, ring));
                    self.rung = Rung::NativeCopy;
                }
                outcome => return outcome.map_err(|source| refusal_to_bind(ring, source)),
            }
        }
        self.bind_with_copy(socket, ring)
    }

    /// Binds for fragments, which costs nothing here: packets that the host has joined to longer ones
    /// than the MTU come whole. Before Linux 6.6 there are none.
    fn bind_with_copy(&self, socket: &XdpSocket, ring: &RingName) -> Result<(), OpenError> {
        let bind = |fragments| {
            let mode = BindMode { zero_copy: false, fragments };
            socket.bind(self.device.index, ring.queue, mode)
        };
        match bind(true) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => match bind(false) {
                Ok(()) if self.has_long_frames => Err(OpenError::MtuTooLarge {
                    interface: self.device.name.clone(),
                    mtu: self.device.mtu,
                    max_mtu: CELL_BYTES[1] - HEADROOM_BYTES - LINK_HEADER_BYTES,
                }),
                outcome => outcome.map_err(|source| refusal_to_bind(ring, source)),
            },
            outcome => outcome.map_err(|source| refusal_to_bind(ring, source)),
        }
    }
}

fn refusal_to_bind(ring: &RingName, source: io::Error) -> OpenError {
    OpenError::Bind { ring: ring.clone(), source }
}

/// Drivers that have no XDP, or not at this MTU, have several ways to say so.
fn is_refusal_by_driver(error: &BpfError) -> bool {
    matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::ERANGE | libc::EINVAL))
}

fn is_refusal_of_zero_copy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
}

fn zero_copy_reason(error: &io::Error, ring: &RingName) -> String {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "the driver has no zero-copy AF_XDP".to_owned(),
        _ => format!("the driver refused zero-copy on {ring}: {error}"),
    }
}

/// What a capture has put on an interface: the program, and the map of its sockets. All of it is held
/// by descriptors, so the kernel removes it whatever way the process ends.
#[derive(Debug)]
pub(crate) struct Attachment {
    link: Link,
    sockets: Map,
    stamps: Arc<dyn StampSource>,
    /// The keys in use.
    keys: Vec<u32>,
    _promiscuous: Option<Promiscuous>,
}

impl Attachment {
    /// Attaches the program, without sockets yet: everything passes.
    fn new(
        device: &Device,
        steering: &Steering,
        settings: &Settings,
        ladder: &mut Ladder<'_>,
    ) -> Result<Self, OpenError> {
        let failed = |source| refused(device, source);
        let sockets = Map::create(MapKind::Xskmap, "wirecap_sockets", 4, steering.keys(device.rx_queues));
        let sockets = sockets.map_err(failed)?;
        let stamp_failed = settings
            .timestamps
            .then(|| Map::create(MapKind::Array, "wirecap_nostamp", 4, 1))
            .transpose()
            .map_err(failed)?;
        let program = program::load(&Plan {
            sockets: &sockets,
            steering,
            rx_queues: device.rx_queues,
            stamp_failed: stamp_failed.as_ref(),
        })
        .map_err(failed)?;
        let stamps: Arc<dyn StampSource> = match stamp_failed {
            Some(map) => Arc::new(ProgramStamps::new(map)),
            None => Arc::new(NoStamps),
        };
        let promiscuous = settings
            .promiscuous
            .then(|| Promiscuous::join(device.index))
            .transpose()
            .map_err(|source| system("set the interface to promiscuous mode", source))?;
        let link = ladder.attach(&program).map_err(failed)?;
        let keys = steering.queues().iter().zip(steering.rings_of_queues());
        let keys = keys.flat_map(|(&queue, rings)| (0..rings).map(move |part| steering.key(queue, part)));
        let keys = keys.collect();
        Ok(Self { link, sockets, stamps, keys, _promiscuous: promiscuous })
    }

    /// From now on the packets of the ring with this key go to `socket`.
    fn receive(&self, key: u32, socket: &XdpSocket) -> Result<(), BpfError> {
        self.sockets.update_fd(key, socket)
    }

    /// Lets packets pass to the host again. When it returns, the last packet is in its ring.
    pub(crate) fn detach(self) {
        for &key in &self.keys {
            // Fails only where the socket is gone already.
            let _ = self.sockets.delete(key);
        }
        drop(self.link);
        wait_for_running_programs();
    }
}

/// Waits until every program that runs in the receive path at this moment has ended.
fn wait_for_running_programs() {
    // A global membarrier waits for an RCU grace period, and packets are received inside RCU read-side
    // sections, from the program's start until they are published on the socket's ring.
    if rustix::thread::membarrier(rustix::thread::MembarrierCommand::Global).is_err() {
        thread::sleep(Duration::from_millis(50));
    }
}

/// The kernel's side of a ring on a real interface.
#[derive(Debug)]
struct SocketKernel {
    socket: XdpSocket,
    ifindex: u32,
    /// A socket in the interface's network namespace that answers questions about it; AF_XDP sockets
    /// do not.
    inquiry: Arc<OwnedFd>,
}

impl Kernel for SocketKernel {
    fn wake(&self) {
        self.socket.wake();
    }

    fn drops(&self) -> io::Result<KernelDrops> {
        let statistics = self.socket.statistics()?;
        Ok(KernelDrops {
            no_cell: statistics.rx_dropped,
            ring_full: statistics.rx_ring_full.unwrap_or_default(),
        })
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn is_gone(&self) -> bool {
        netdevice::index_to_name(&*self.inquiry, self.ifindex).is_err()
    }
}
