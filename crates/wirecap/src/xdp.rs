//! The `xdp` engine: AF_XDP sockets on the receive queues of an interface (take mode).

mod attach_lock;
mod attachment;
mod claim;
mod clock;
#[cfg(all(test, not(loom), not(miri)))]
mod device_clock_tests;
pub(crate) mod hook;
mod link;
mod mode_search;
mod place;
pub(crate) mod plan;
mod program_plan;
mod programs;
mod reopen;
mod shared_umem;
mod sizes;
mod stamps;
mod tx;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use rustix::net::netdevice;

use crate::bpf::BpfError;
use crate::device::{Device, DeviceCounters, DeviceSummary, ReceiveMode};
use crate::error::OpenError;
use crate::kernel_ring::{Consumer, Producer};
use crate::limits::locked_memory_rlimit;
use crate::names::{Holder, RingName};
use crate::steer::Steering;
use crate::sys::memory::populating_threads;
use crate::sys::netlink::netlink_socket;
use crate::sys::opener::Inquiry;
use crate::sys::xdp::{Descriptor, XdpSocket};
use crate::time::Timestamps;
use crate::umem::chunk::RingIdentity;
use crate::umem::fill::{FillRing, Kernel, KernelDrops};
use crate::umem::pool::Pool;
use crate::umem::ring::{Posting, RingSettings};
use crate::umem::rx::RxRing;
use crate::umem::supply::Supply;
use hook::Hook;
use mode_search::{ModeSearch, refusal_to_bind};
use sizes::pool_geometry;
use tx::{COMPLETION_SLOTS, TxSocket};

pub(crate) use attach_lock::wait as wait_for_turn;
pub(crate) use attachment::Attachment;
pub(crate) use hook::AttachLock;
pub(crate) use reopen::{Refusal, Reopen, why_copy};
pub(crate) use shared_umem::SharedUmem;
pub use sizes::CellFit;
pub(crate) use sizes::{cell_bytes, check_pools, longest_frame, pool_bytes};
pub(crate) use tx::{PortClaims, PreparedTx, open_port};

/// The settings for opening rings.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) rings: RingSettings,
    /// Number of posted cells of each queue, if not all.
    pub(crate) warm: Option<u32>,
    /// The UMEM that the rings share, if the pool is elastic or the capture forwards.
    pub(crate) shared_umem: Option<Arc<SharedUmem>>,
    /// Non-matching packets are dropped instead of passed to the host.
    pub(crate) drop_rejected: bool,
    /// Why packets must be copied, if known beforehand.
    pub(crate) copy_because: Option<String>,
    /// The whole interface is captured, including queues that are added later.
    pub(crate) whole: bool,
    /// Frames for the interface's own hardware address are counted.
    pub(crate) counts_own: bool,
}

/// The rings of an interface, receiving.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) rings: Vec<Arc<RxRing>>,
    /// The fill rings of the queues, in the order of the queues.
    pub(crate) fill_rings: Vec<Arc<FillRing>>,
    /// The tx rings of the queues, if the capture forwards.
    pub(crate) tx: Vec<PreparedTx>,
    pub(crate) attachment: Attachment,
    pub(crate) receive_mode: ReceiveMode,
    pub(crate) missed_receive_modes: Vec<(ReceiveMode, String)>,
    pub(crate) huge_pages: bool,
    /// The time until the device had a carrier again; `None` if it has none.
    pub(crate) link_wait: Option<Duration>,
    /// Source of the program's timestamps.
    pub(crate) timestamps: Timestamps,
    /// How many cells of each queue are posted at a time.
    pub(crate) posted: u32,
    /// The device's counters before the first packet arrived; read after the program was attached,
    /// which changes the meaning of a veth's counters.
    pub(crate) counters_at_start: Option<DeviceCounters>,
}

/// Opens the rings of `steering`. All steps that do not change the interface come first, and a
/// failure undoes all changes.
///
/// A [`Reopen`] as error means that another attempt with this knowledge may succeed.
pub(crate) fn open(
    device: &Device,
    steering: &Steering,
    settings: &Settings,
) -> Result<Opened, Refusal> {
    if !device.up {
        return Err(OpenError::InterfaceDown { interface: device.name.clone() }.into());
    }

    let queues = prepare(device, steering, settings)?;
    let huge_pages = queues.iter().all(|queue| queue.pool.on_huge_pages());
    let mut mode_search = ModeSearch::new(device, settings.rings.geometry.cell_bytes);

    if let Some(reason) = &settings.copy_because {
        mode_search.copy_because(reason);
    }

    let mut attachment = Attachment::new(device, steering, settings, &mut mode_search)?;
    let rx_queues = Device::find(&device.name).map_err(OpenError::from)?.rx_queues;
    if rx_queues != device.rx_queues {
        return Err(
            Reopen::Queues { ifindex: device.index, own: device.rx_queues, rx_queues }.into()
        );
    }

    let mut rings = Vec::new();
    let mut sockets = Vec::new();
    let mut fill_rings = Vec::new();
    let mut tx = Vec::new();

    for queue in queues {
        let seated = seat(
            queue,
            &mut mode_search,
            &attachment,
            settings,
            settings.rings.first_ring_index + rings.len(),
        )?;
        rings.extend(seated.rings);
        sockets.extend(seated.sockets);
        fill_rings.push(seated.fill_ring);
        tx.extend(seated.tx);
    }

    attachment.receive_mode = mode_search.receive_mode;
    let link_wait = link::await_carrier(device)?;
    attachment.settle(&rings);

    let counters_at_start = device.counters().ok();

    for (key, kernel) in sockets {
        kernel.starving.begin(&kernel.socket, mode_search.receive_mode);
        let received = attachment.receive(key, &kernel.socket);
        received.map_err(|source| refused(&DeviceSummary::from(device), source))?;
    }

    attachment.begin();
    Ok(Opened {
        posted: rings.iter().map(|ring| ring.unattended()).min().unwrap_or(0),
        rings,
        fill_rings,
        tx,
        timestamps: attachment.timestamps,
        attachment,
        receive_mode: mode_search.receive_mode,
        missed_receive_modes: mode_search.missed,
        huge_pages,
        link_wait,
        counters_at_start,
    })
}

/// Prepares the rings of all queues, several at a time: the kernel clears and pins their pools
/// meanwhile, which takes most of the time of opening.
fn prepare(
    device: &Device,
    steering: &Steering,
    settings: &Settings,
) -> Result<Vec<PreparedQueue>, OpenError> {
    let queues: Vec<_> =
        steering.queues().iter().copied().zip(steering.rings_of_queues()).collect();
    let processors = populating_threads();

    // Rings that share a pool take their cells in turn.
    let at_a_time =
        if settings.shared_umem.is_some() { 1 } else { processors.min(queues.len()).max(1) };
    let threads = processors / at_a_time;

    let prepare = |queues: &[(u32, u32)]| -> Result<Vec<_>, OpenError> {
        let queues = queues.iter();
        queues
            .map(|&(queue, rings)| PreparedQueue::new(device, queue, rings, settings, threads))
            .collect()
    };
    let mut parts = queues.chunks(queues.len().div_ceil(at_a_time).max(1));
    let own = parts.next().unwrap_or_default();

    thread::scope(|scope| {
        let prepare = &prepare;
        let others: Vec<_> = parts
            .map(|part| {
                (part, thread::Builder::new().spawn_scoped(scope, move || prepare(part)).ok())
            })
            .collect();

        let mut prepared = prepare(own)?;

        for (part, thread) in others {
            prepared.extend(match thread {
                Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // No more threads are available.
                None => prepare(part),
            }?);
        }

        Ok(prepared)
    })
}

/// A socket in the interface's network namespace, for queries about the interface.
fn inquiry() -> Result<Arc<OwnedFd>, OpenError> {
    let socket = netlink_socket(Inquiry::Route { groups: 0 });
    socket.map(Arc::new).map_err(|source| system("open a socket", source))
}

/// The rings of a queue, bound to it, that get no packets yet.
struct Seated {
    rings: Vec<Arc<RxRing>>,
    /// Their keys in the socket map.
    sockets: Vec<(u32, Arc<SocketKernel>)>,
    fill_ring: Arc<FillRing>,
    tx: Option<PreparedTx>,
}

/// Binds the rings of `queue`, of which the first one is the capture's ring `first_ring_index`.
fn seat(
    queue: PreparedQueue,
    mode_search: &mut ModeSearch<'_>,
    attachment: &Attachment,
    settings: &Settings,
    first_ring_index: usize,
) -> Result<Seated, Refusal> {
    let device = mode_search.device;
    let kernel = |socket, filtered| SocketKernel {
        socket,
        ifindex: device.index,
        inquiry: Arc::clone(&attachment.inquiry),
        filtered,
        starving: StarvationCount::default(),
    };

    let prepared = queue.rings.into_iter();
    let prepared: Vec<_> = prepared
        .map(|ring| {
            // A queue's rejected packets belong to no ring; if there are several, the first one
            // reports them.
            let counts = ring.name.part.unwrap_or(0) == 0;
            let filtered = counts.then(|| (Arc::clone(attachment.hook()), ring.name.queue));
            (ring.name, ring.rx, Arc::new(kernel(ring.socket, filtered)))
        })
        .collect();
    let first = Arc::clone(&prepared[0].2);

    // Before the queue is bound: a zero-copy driver takes cells while the queue is being bound. If
    // it finds none, it may sleep (virtio_net), retry later, and count each unsuccessful request.
    let fill_ring = FillRing::new(
        queue.pool,
        queue.addresses,
        queue.supply,
        queue.fill,
        Arc::clone(&first) as _,
    )
    .map_err(|broken| system("post the cells", io::Error::other(broken.to_string())))?;
    let fill_ring = Arc::new(fill_ring);
    bind(&prepared, mode_search, settings.shared_umem.as_deref())?;

    if mode_search.receive_mode == ReceiveMode::ZeroCopy {
        fill_ring.know_descriptors(device.rx_descriptors());
    }

    let sender = settings.shared_umem.as_deref().filter(|shared_umem| shared_umem.forwards());
    let sender =
        sender.map(|_| TxSocket::beside(&first.socket, &prepared[0].0, device)).transpose()?;

    if let Some(shared_umem) = &settings.shared_umem {
        shared_umem.first.get_or_init(|| (Arc::clone(&first), mode_search.receive_mode));
    }

    let tx = sender.map(|socket| PreparedTx::new(socket, queue.completions));
    let mut rings = Vec::new();
    let mut sockets = Vec::new();

    for (name, rx, kernel) in prepared {
        kernel.starving.begin(&kernel.socket, mode_search.receive_mode);
        sockets.push((attachment.key_of(&name), Arc::clone(&kernel)));

        let identity = RingIdentity {
            name,
            index: first_ring_index + rings.len(),
            interface_index: settings.rings.interface_index,
            snap_len: settings.rings.snap_len,
            link_type: device.savefile_link_type(),
            order: OnceLock::new(),
        };
        let capacity = settings.rings.geometry.cells();
        let fill_ring = Arc::clone(&fill_ring);
        let stamps = Arc::clone(&attachment.stamps);
        rings.push(Arc::new(RxRing::new(identity, capacity, fill_ring, rx, kernel, stamps)));
    }

    Ok(Seated { rings, sockets, fill_ring, tx })
}

/// The receive queues of `device` that this or another process captures with the engine `xdp`, each
/// with the process.
pub fn holders(device: &Device) -> Vec<(u32, Holder)> {
    claim::holders(&DeviceSummary::from(device))
}

fn refused(device: &DeviceSummary, source: BpfError) -> OpenError {
    if let BpfError::InterfaceBusy { .. } = source {
        let attached = device.attached_now().ok().and_then(|programs| programs.into_iter().next());
        let interface = device.name.clone();
        let owner = attached.and_then(|program| program.owner()).map(Box::new);
        return OpenError::OtherProgram { interface, owner, source };
    }
    OpenError::Program { interface: device.name.clone(), source }
}

/// The rings of a receive queue with their memory, not bound to it yet.
struct PreparedQueue {
    pool: Arc<Pool>,
    /// Its cells of the pool.
    addresses: Vec<u64>,
    supply: Supply,
    fill: Producer<u64>,
    completions: Consumer<u64>,
    /// The first one's socket has the fill ring, and the pool unless that is shared with other
    /// queues.
    rings: Vec<PreparedRing>,
}

struct PreparedRing {
    name: RingName,
    socket: XdpSocket,
    rx: Consumer<Descriptor>,
}

impl PreparedQueue {
    /// Prepares the rings of `queue`; this number of threads clear its pool.
    fn new(
        device: &Device,
        queue: u32,
        rings: u32,
        settings: &Settings,
        threads: usize,
    ) -> Result<Self, OpenError> {
        let name = |part| RingName { part: Some(part), ..RingName::of_queue(&device.name, queue) };
        let names = match rings {
            1 => vec![RingName::of_queue(&device.name, queue)],
            _ => (0..rings).map(name).collect(),
        };

        let shared_umem = settings.shared_umem.as_deref();
        let geometry = settings.rings.geometry;
        let slots =
            shared_umem.map_or_else(|| geometry.cells().next_power_of_two(), SharedUmem::rx_slots);
        let prepared = names.into_iter().map(|name| PreparedRing::new(name, slots));
        let prepared = prepared.collect::<Result<Vec<_>, _>>()?;
        let socket = &prepared[0].socket;

        let (pool, addresses, supply, registers) = match shared_umem {
            Some(shared_umem) => {
                let (own, supply, is_first) = shared_umem.share();
                (Arc::clone(&shared_umem.pool), own, supply, is_first)
            }
            None => {
                let pool = Pool::new(pool_geometry(geometry, rings), threads)
                    .map_err(|source| system("map the memory of the pools", source))?;
                let supply = Supply::of(pool.geometry().cells(), settings.warm);
                let addresses = pool.cell_addresses().collect();
                (Arc::new(pool), addresses, supply, true)
            }
        };
        if registers {
            register(socket, &pool)?;
        }

        let completions =
            if shared_umem.is_some_and(SharedUmem::forwards) { COMPLETION_SLOTS } else { 1 };
        let rings =
            socket.make_fill_and_completion_rings(supply.posted.next_power_of_two(), completions);
        let (fill, completions) =
            rings.map_err(|source| system("make the fill ring of an AF_XDP socket", source))?;

        Ok(Self { pool, addresses, supply, fill, completions, rings: prepared })
    }
}

/// Binds the rings of a queue.
fn bind(
    rings: &[(RingName, Consumer<Descriptor>, Arc<SocketKernel>)],
    mode_search: &mut ModeSearch<'_>,
    shared_umem: Option<&SharedUmem>,
) -> Result<(), Refusal> {
    let ((name, _, first), others) = rings.split_first().expect("every queue has a ring");
    match shared_umem.and_then(|shared_umem| shared_umem.first.get()) {
        Some((kernel, receive_mode)) => {
            mode_search.bind_sharing(&first.socket, (&kernel.socket, *receive_mode), name)?;
        }
        None => {
            if let Some(reason) =
                shared_umem.and_then(|shared_umem| shared_umem.copy_because.as_deref())
            {
                mode_search.copy_because(reason);
            }
            mode_search.bind(&first.socket, name)?;
        }
    }

    let beside = |(name, _, kernel): &(RingName, _, Arc<SocketKernel>)| {
        let bound = kernel.socket.bind_beside(&first.socket, mode_search.device.index, name.queue);
        bound.map_err(|source| refusal_to_bind(name, source))
    };
    Ok(others.iter().try_for_each(beside)?)
}

impl PreparedRing {
    fn new(name: RingName, slots: u32) -> Result<Self, OpenError> {
        let socket = XdpSocket::new().map_err(|source| system("open an AF_XDP socket", source))?;
        let rx = socket.make_rx_ring(slots);
        let rx = rx.map_err(|source| system("make the rx ring of an AF_XDP socket", source))?;
        Ok(Self { name, socket, rx })
    }
}

/// Registers `pool` with `socket`.
fn register(socket: &XdpSocket, pool: &Pool) -> Result<(), OpenError> {
    let geometry = pool.geometry();
    let registered =
        socket.register_umem(pool.memory(), geometry.pool_bytes(), geometry.cell_bytes);
    registered.map_err(|source| match (source.raw_os_error(), locked_memory_rlimit()) {
        // The limit counts all of the user's locked memory, also that of other processes.
        (Some(libc::ENOBUFS), Some(limit_bytes)) => {
            OpenError::PoolTooLarge { needed_bytes: geometry.pool_bytes() as u64, limit_bytes }
        }
        _ => system("register the pool with the kernel", source),
    })
}

fn system(action: &str, source: io::Error) -> OpenError {
    OpenError::System { action: action.to_owned(), source }
}

/// The kernel's side of a ring on a real interface.
#[derive(Debug)]
struct SocketKernel {
    socket: XdpSocket,
    ifindex: u32,
    /// A socket in the interface's network namespace that answers questions about it; AF_XDP
    /// sockets do not.
    inquiry: Arc<OwnedFd>,
    /// The program, which counts rejected packets, and the queue, if this ring reports them.
    filtered: Option<(Arc<dyn Hook>, u32)>,
    starving: StarvationCount,
}

/// Number of times that a zero-copy driver found its queue's fill ring empty since packets could
/// arrive. All sockets on a queue show the whole count.
#[derive(Debug, Default)]
struct StarvationCount {
    /// Not used if packets are copied: then each empty fill ring is a dropped packet and counted as
    /// one.
    is_zero_copy: AtomicBool,
    at_start: AtomicU64,
}

impl StarvationCount {
    /// Counts from now on.
    fn begin(&self, socket: &XdpSocket, receive_mode: ReceiveMode) {
        let statistics = socket.statistics().ok();
        let so_far = statistics
            .and_then(|statistics| statistics.rx_fill_ring_empty_descs)
            .unwrap_or_default();
        self.at_start.store(so_far, Ordering::Relaxed);
        self.is_zero_copy.store(receive_mode == ReceiveMode::ZeroCopy, Ordering::Relaxed);
    }

    fn since_start(&self, now: u64) -> u64 {
        let since = now.saturating_sub(self.at_start.load(Ordering::Relaxed));
        if self.is_zero_copy.load(Ordering::Relaxed) { since } else { 0 }
    }
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
            starved: self
                .starving
                .since_start(statistics.rx_fill_ring_empty_descs.unwrap_or_default()),
        })
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn is_gone(&self) -> bool {
        netdevice::index_to_name(&*self.inquiry, self.ifindex).is_err()
    }

    fn is_zero_copy(&self) -> bool {
        self.starving.is_zero_copy.load(Ordering::Relaxed)
    }

    fn filtered(&self) -> u64 {
        self.filtered.as_ref().map_or(0, |(hook, queue)| hook.filtered(*queue))
    }
}
