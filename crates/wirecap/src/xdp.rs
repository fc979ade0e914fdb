//! The `xdp` engine: AF_XDP sockets on the receive queues of an interface (take mode).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::bpf::{BpfError, Link, Map, MapKind, Program, XdpMode};
use crate::chunk::{RingIdentity, RingName};
use crate::device::{Device, DeviceCounters, Rung};
use crate::error::{FilterChangeError, OpenError};
use crate::filter::Filter;
use crate::kernel_ring::{Consumer, Producer};
use crate::limits::locked_memory_rlimit;
use crate::pool::{Descriptor, Geometry, Pool};
use crate::program::{self, Plan};
use crate::refill::{Kernel, KernelDrops};
use crate::ring::{Ring, StampSource, UmemRing};
use crate::sieve::{Check, UserFilter};
use crate::stamps::{NoStamps, ProgramStamps};
use crate::sys::promiscuous::Promiscuous;
use crate::sys::wait_for_running_programs;
use crate::sys::xdp::{BindMode, HEADROOM_BYTES, XdpSocket};

/// Bytes of an Ethernet header with two VLAN tags: what a frame is longer than the MTU.
const LINK_HEADER_BYTES: u32 = 14 + 2 * 4;
/// The cells to choose from, in bytes.
const CELL_BYTES: [u32; 2] = [2048, 4096];

/// How rings are to be opened.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) geometry: Geometry,
    pub(crate) timestamps: bool,
    pub(crate) promiscuous: bool,
    pub(crate) snap_len: u32,
    /// Which packets are wanted; all, if there is none.
    pub(crate) filter: Option<Filter>,
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
    /// What the device had counted before the first packet came; not before the program was attached,
    /// which changes what a veth counts.
    pub(crate) counters_at_start: Option<DeviceCounters>,
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

/// Opens a ring on each of `queues`. Nothing on the interface is changed before all that needs no
/// change has succeeded, and a failure undoes everything.
pub(crate) fn open(device: &Device, queues: &[u32], settings: &Settings) -> Result<Opened, OpenError> {
    if !device.up {
        return Err(OpenError::InterfaceDown { interface: device.name.clone() });
    }
    let mut ladder = Ladder::new(device, settings.geometry.cell_bytes);
    let pools = queues.iter().map(|_| Pool::new(settings.geometry)).collect::<Result<Vec<_>, _>>();
    let pools = pools.map_err(|source| system("map the memory of the pools", source))?;
    let prepared = pools.into_iter().map(Prepared::new).collect::<Result<Vec<_>, _>>()?;
    let huge_pages = prepared.iter().all(|ring| ring.pool.on_huge_pages());
    let mut attachment = Attachment::new(device, queues, settings, &mut ladder)?;
    let inquiry = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let inquiry = Arc::new(inquiry.map_err(|errno| system("open a socket", errno.into()))?);
    let mut rings = Vec::new();
    let mut kernels = Vec::new();
    for (index, (&queue, prepared)) in queues.iter().zip(prepared).enumerate() {
        let name = RingName { interface: device.name.clone(), queue };
        ladder.bind(&prepared.socket, &name)?;
        let kernel = Arc::new(SocketKernel {
            socket: prepared.socket,
            ifindex: device.index,
            inquiry: Arc::clone(&inquiry),
        });
        let identity = RingIdentity {
            name,
            index: settings.first_ring_index + index,
            interface_index: settings.interface_index,
            snap_len: settings.snap_len,
            link_type: device.savefile_link_type(),
        };
        let (rx, fill, stamps) = (prepared.rx, prepared.fill, Arc::clone(&attachment.stamps));
        let ring = UmemRing::new(identity, prepared.pool, rx, fill, kernel.clone(), stamps)
            .map_err(|broken| system("post the cells", io::Error::other(broken.to_string())))?;
        rings.push(Arc::new(ring));
        kernels.push(kernel);
    }
    let counters_at_start = device.counters().ok();
    attachment.rings.clone_from(&rings);
    if let Some(filter) = &settings.filter {
        attachment.set_filter(filter)?;
    }
    for (&queue, kernel) in queues.iter().zip(&kernels) {
        attachment.receive(queue, &kernel.socket).map_err(|source| refused(device, source))?;
    }
    Ok(Opened {
        rings: rings.into_iter().map(|ring| ring as Arc<dyn Ring>).collect(),
        attachment,
        rung: ladder.rung,
        missed_rungs: ladder.missed,
        huge_pages,
        counters_at_start,
    })
}

fn refused(device: &Device, source: BpfError) -> OpenError {
    OpenError::Program { interface: device.name.clone(), source }
}

/// A socket with its memory and rings, not bound to a queue yet.
struct Prepared {
    pool: Arc<Pool>,
    socket: XdpSocket,
    rx: Consumer<Descriptor>,
    fill: Producer<u64>,
}

impl Prepared {
    fn new(pool: Pool) -> Result<Self, OpenError> {
        let geometry = pool.geometry();
        let socket = XdpSocket::new().map_err(|source| system("open an AF_XDP socket", source))?;
        socket.register_umem(pool.memory(), geometry.pool_bytes(), geometry.cell_bytes).map_err(
            |source| {
                match (source.raw_os_error(), locked_memory_rlimit()) {
                    // The limit counts all of the user's locked memory, also that of other processes.
                    (Some(libc::ENOBUFS), Some(limit_bytes)) => {
                        OpenError::PoolTooLarge { needed_bytes: geometry.pool_bytes() as u64, limit_bytes }
                    }
                    _ => system("register the pool with the kernel", source),
                }
            },
        )?;
        let (rx, fill) = socket
            .make_rings(geometry.cells().next_power_of_two())
            .map_err(|source| system("make the rings of an AF_XDP socket", source))?;
        Ok(Self { pool: Arc::new(pool), socket, rx, fill })
    }
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
    queues: Vec<u32>,
    rings: Vec<Arc<UmemRing>>,
    device: Device,
    _promiscuous: Option<Promiscuous>,
}

impl Attachment {
    /// Attaches the program, without sockets yet: everything passes.
    fn new(
        device: &Device,
        queues: &[u32],
        settings: &Settings,
        ladder: &mut Ladder<'_>,
    ) -> Result<Self, OpenError> {
        let failed = |source| refused(device, source);
        let sockets = Map::create(MapKind::Xskmap, "wirecap_sockets", 4, device.rx_queues).map_err(failed)?;
        let stamp_failed = settings
            .timestamps
            .then(|| Map::create(MapKind::Array, "wirecap_nostamp", 4, 1))
            .transpose()
            .map_err(failed)?;
        let program = program::load(&Plan {
            sockets: &sockets,
            queues: (queues.len() < device.rx_queues as usize).then_some(queues),
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
        Ok(Self {
            link,
            sockets,
            stamps,
            queues: queues.to_vec(),
            rings: Vec::new(),
            device: device.clone(),
            _promiscuous: promiscuous,
        })
    }

    /// From now on the packets that `filter` wants are captured.
    pub(crate) fn set_filter(&mut self, filter: &Filter) -> Result<(), FilterChangeError> {
        let unsupported =
            |source| FilterChangeError::Unsupported { interface: self.device.name.clone(), source };
        let filter = UserFilter::new(filter, &self.device).map_err(unsupported)?;
        for ring in &self.rings {
            ring.begin_change(filter.clone());
            ring.settle(Check::Everything(filter.clone()));
        }
        Ok(())
    }

    /// Why user space decides on every packet, if it does.
    pub(crate) fn filters_in_user_space(&self) -> Option<&str> {
        None
    }

    /// From now on the packets of `queue` go to `socket`.
    fn receive(&self, queue: u32, socket: &XdpSocket) -> Result<(), BpfError> {
        self.sockets.update_fd(queue, socket)
    }

    /// Lets packets pass to the host again. When it returns, the last packet is in its ring.
    pub(crate) fn detach(self) {
        for &queue in &self.queues {
            // Fails only where the socket is gone already.
            let _ = self.sockets.delete(queue);
        }
        drop(self.link);
        wait_for_running_programs();
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
