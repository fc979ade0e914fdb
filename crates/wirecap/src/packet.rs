//! The `packet` engine: AF_PACKET sockets with TPACKET_V3 rings on any interface (tap mode).
//!
//! The host keeps its traffic; the rings get copies. The memory of a ring's R x M cells is divided
//! into R blocks of M cells each, which the kernel fills one after the other with packets of their
//! actual length, so there is room for more short packets than in cells. The differences to the
//! engine `xdp`:
//!
//! - A block is handed over when it is full, or a fixed time after it was opened, so a packet may
//!   wait that long.
//! - A block belongs to the chunks made of it until the last of them is dropped, and the kernel
//!   uses the blocks in turn: if the next block is still held, the kernel waits for it, and packets
//!   that arrive meanwhile are lost (`no_cell`), although other blocks are free. So a chunk can be
//!   held for as long as the ring takes to fill once.
//! - If rings share an interface or a queue, the kernel selects the ring of a flow. It treats the
//!   security parameter index of IPsec as ports. The index differs between the directions, so the
//!   two directions of an encrypted flow may arrive on two rings.
//! - A worker's descriptor stays readable while a chunk of the last block is held.
//!
//! A ring of which less than a quarter is free occasionally loses a packet that one CPU receives
//! while another CPU has closed a block and not yet opened the next. Since Linux 5.3 the kernel
//! first checks for room without the lock (`__tpacket_v3_has_room`: a quarter of the blocks ahead,
//! then the current block), and at that moment it finds none. If the ring never froze, blocks were
//! free, and the ledger counts the packet as *other*. This was observed when a timer closed the
//! block on a busy machine: 3 of 8,192 packets in 2 of some 70 runs that filled the ring, 2 of
//! 36,000 when T was 90 % of the ring. The engine `xdp` has no such race.
//!
//! Therefore T is a share of three quarters of the ring, the *usable* share: with T = 60 % buddies
//! help when the ring is 45 % full; T = 100 % still means that they never help. When T was a share
//! of the whole ring, a load at the edge of the guarantee kept a ring three quarters full, and 27
//! of 60 runs lost 1 or 2 of 27,000 packets. With the usable share none of 60 runs of the same load
//! lost any (`WIRECAP_SEED=23759`, `skew::random_splits` in `tests/group`).

#![allow(unsafe_code)]

mod blocks;
mod filtering;
pub(crate) mod frame;
mod frames;
pub(crate) mod reader;
pub(crate) mod ring;
pub(crate) mod roster;
mod steering;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::device::Device;
use crate::error::{FilterChangeError, OpenError};
use crate::filter::{ClassicInsn, Filter};
use crate::names::RingName;
use crate::packet::blocks::{Blocks, Labels};
use crate::packet::filtering::{Filtering, socket_insn};
use crate::packet::frames::Frames;
use crate::packet::ring::{PacketRing, Store, Traits};
use crate::packet::roster::Roster;
use crate::packet::steering::{Admitted, Selection};
use crate::savefile::LinkType;
use crate::sync::{Mutex, lock};
pub(crate) use crate::sys::packet::BlockShape;
use crate::sys::packet::{Fanout, FrameShape, PacketSocket};
use crate::sys::promiscuous::Promiscuous;
use crate::sys::wait_for_running_programs;
use crate::time::Timestamps;
use crate::umem::chunk::RingIdentity;
use crate::umem::pool::Geometry;
use crate::umem::ring::RingSettings;

pub use roster::{SeenInterface, SeenInterfaces};
pub use steering::Direction;

/// The maximum number of interfaces that sockets of all interfaces leave to other sockets.
pub(crate) const EXCLUDED_MAX: usize = filtering::EXCLUDED_MAX;
/// Minimum bytes of a block: the longest packet that offloads make by default (64 KiB without
/// headers), because the kernel truncates a packet that is longer than a block.
const BLOCK_BYTES_MIN: u32 = 128 << 10;
/// Bytes of the longest packet that offloads make by default, with its headers.
const SUPER_PACKET_BYTES: u32 = (64 << 10) + 128;
/// Bytes of the cells that size the blocks.
pub(crate) const CELL_BYTES: u32 = 2048;
/// Bytes of an Ethernet header with two VLAN tags: the difference between a frame and the MTU.
const LINK_HEADER_BYTES: u32 = 14 + 2 * 4;
/// Default time after which an open block with packets is handed over. A lone packet then waits for
/// 10 ms on average, and an unread ring of 512 blocks lasts for 10 s of any low traffic. A shorter
/// time costs more wake-ups (from 4 ms on, the cost is too small to be measured; at 1 ms, 64 idle
/// rings used a third of a core) and fills the ring with emptier blocks.
pub(crate) const DEFAULT_RETIRE_AFTER: Duration = Duration::from_millis(20);
/// Maximum delay of the kernel in handing over a block: a tick of its coarsest clock, and some
/// scheduling delay.
pub(crate) const RETIREMENT_SLACK: Duration = Duration::from_millis(50);
/// Minimum bytes of a packet that the kernel keeps: enough to insert a VLAN tag.
const SNAP_BYTES_MIN: u32 = 64;
/// Maximum number of instructions of a socket's filter (`BPF_MAXINSNS`).
const SOCKET_INSNS_MAX: usize = 4096;
/// Maximum number of sockets in a group by default.
const GROUP_SOCKETS_MAX: usize = 256;

/// The settings for opening rings.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) rings: RingSettings,
    pub(crate) spread: Spread,
    pub(crate) direction: Direction,
    pub(crate) retire_after: Duration,
    /// Packets are handed over at once, with at least this many bytes of each.
    pub(crate) immediate: Option<u32>,
    pub(crate) shape: BlockShape,
    /// The sockets are bound to no interface.
    pub(crate) everything: Option<Everything>,
}

/// Sockets that are bound to no interface: they receive the packets of all interfaces of one link
/// type.
#[derive(Debug, Clone)]
pub(crate) struct Everything {
    pub(crate) roster: Arc<Roster>,
    /// The number of the first ring.
    pub(crate) first_number: usize,
    /// The indices of interfaces that other sockets capture.
    pub(crate) excluded: Vec<u32>,
}

/// The rings of an interface, receiving.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) rings: Vec<Arc<PacketRing>>,
    pub(crate) attachment: Attachment,
    pub(crate) unplaced: Option<Arc<Unplaced>>,
    pub(crate) shape: BlockShape,
}

/// How the packets of an interface are distributed over its rings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spread {
    /// By flow: both directions of a connection share a ring.
    Flows {
        /// How many rings there are.
        rings: u32,
    },
    /// By receive queue: a ring for each of these, in ascending order. A queue that is listed
    /// several times has as many rings, which share its packets by flow. Packets of other queues,
    /// and packets without a queue number from the driver, are not captured.
    ///
    /// On a veth, whose driver provides no queue number, XDP frames (from a redirect) count as
    /// packets of queue 0.
    Queues(Vec<u32>),
}

impl Spread {
    /// How many rings there are.
    pub fn rings(&self) -> usize {
        match self {
            Self::Flows { rings } => *rings as usize,
            Self::Queues(queues) => queues.len(),
        }
    }

    /// Whether several rings share the packets of a queue.
    pub fn shares_queues(&self) -> bool {
        match self {
            Self::Flows { .. } => false,
            Self::Queues(queues) => queues.windows(2).any(|pair| pair[0] == pair[1]),
        }
    }
}

/// The blocks of a ring of R x M cells: R blocks with the memory of M cells, in whole pages, and
/// large enough for every packet.
pub(crate) fn block_shape(geometry: Geometry) -> BlockShape {
    let bytes = (geometry.chunk_cells * CELL_BYTES).max(BLOCK_BYTES_MIN);
    let page_bytes = rustix::param::page_size() as u32;
    BlockShape { block_bytes: bytes.next_multiple_of(page_bytes), blocks: geometry.chunks }
}

/// The same memory in blocks of minimum size.
pub(crate) fn small_blocks(geometry: Geometry) -> BlockShape {
    let shape = block_shape(geometry);
    let block_bytes = BLOCK_BYTES_MIN.next_multiple_of(rustix::param::page_size() as u32);
    let blocks = shape.ring_bytes() / block_bytes as usize;
    BlockShape { block_bytes, blocks: blocks as u32 }
}

/// Requests the memory of a ring from the kernel.
fn make_store(socket: &PacketSocket, device: &Device, settings: &Settings) -> io::Result<Store> {
    let shape = settings.shape;
    match settings.immediate {
        None => {
            let mapping = socket.make_ring(shape, settings.retire_after)?;
            Ok(Store::Blocks(Arc::new(Blocks::new(mapping, shape))))
        }
        Some(kept) => {
            let shape = FrameShape::of(shape.ring_bytes(), kept.min(longest_packet(device)));
            Ok(Store::Frames(Arc::new(Frames::new(socket.make_frame_ring(shape)?, shape))))
        }
    }
}

/// Bytes of the longest packet that can arrive from `device`: packets merged by offloads are longer
/// than any frame.
fn longest_packet(device: &Device) -> u32 {
    let frame = device.mtu + LINK_HEADER_BYTES;
    let joins =
        device.offloads.is_none_or(|on| on.gro || on.gro_hardware || on.lro || on.tso || on.gso);
    if joins { frame.max(SUPER_PACKET_BYTES) } else { frame }
}

/// Opens the rings of `device`, with the sockets of `standby` as long as there are any. Needs
/// CAP_NET_RAW for the others and nothing else.
pub(crate) fn open(
    device: &Device,
    settings: &Settings,
    standby: &mut Vec<PacketSocket>,
) -> Result<Opened, OpenError> {
    if !device.up {
        return Err(OpenError::InterfaceDown { interface: device.name.clone() });
    }

    let plan = Plan::new(device, settings)?;
    let failed = |action| {
        move |source| OpenError::PacketSocket { interface: device.name.clone(), action, source }
    };
    let shape = settings.shape;

    let traits = Traits {
        ifindex: device.index,
        geometry: settings.rings.geometry,
        labels: Labels {
            timestamps: settings.rings.timestamps != Timestamps::None,
            by_queue: matches!(settings.spread, Spread::Queues(_)),
            numbered: settings.everything.is_some(),
        },
        longest_frame: device.mtu.saturating_add(LINK_HEADER_BYTES),
        roster: settings.everything.as_ref().map(|everything| Arc::clone(&everything.roster)),
    };
    let mut rings = Vec::new();
    for place in 0..plan.spread.rings() {
        let socket = match standby.pop() {
            Some(socket) => Ok(socket),
            None => PacketSocket::new(),
        };
        let socket = socket
            .and_then(|socket| plan.deafen(socket))
            .map_err(failed("open a packet socket on"))?;
        let store =
            make_store(&socket, device, settings).map_err(failed("make a receive ring on"))?;

        let identity = RingIdentity {
            name: plan.name_of(&device.name, place),
            index: settings.rings.first_ring_index + place,
            interface_index: settings.rings.interface_index,
            snap_len: settings.rings.snap_len,
            link_type: device.savefile_link_type(),
            order: OnceLock::new(),
        };
        let selection = plan.selection(place);
        rings.push(Arc::new(PacketRing::new(identity, traits.clone(), selection, store, socket)));
    }

    let unplaced = plan.socket_for_others().map_err(failed("open a packet socket on"))?;
    let bound = plan.bind(rings.len() + unplaced.iter().len(), |bind| {
        rings.iter().try_for_each(|ring| ring.with_socket(&mut *bind))?;
        unplaced.iter().try_for_each(bind)
    });
    bound.map_err(failed("bind a packet socket to"))?;

    let promiscuous = settings
        .rings
        .promiscuous
        .then(|| Promiscuous::join(device.index))
        .transpose()
        .map_err(failed("set promiscuous mode on"))?;
    let unplaced = unplaced
        .map(|socket| Unplaced::new(socket, plan.marks_tell()).map(Arc::new))
        .transpose()
        .map_err(failed("count the packets without a queue on"))?;

    // Until here every socket rejected every packet: while the group was incomplete, packets would
    // have gone to the wrong ring, or to several.
    let mut filtering = Filtering::none(settings.rings.snap_len);

    match &settings.rings.filter {
        Some(filter) => {
            let deaf = Filtering::deaf();
            filtering = Filtering::replace(&deaf, filter, &rings, device, settings.rings.snap_len)?;
        }
        None => filtering.begin(&rings).map_err(failed("attach a socket filter on"))?,
    }

    Ok(Opened {
        rings: rings.clone(),
        attachment: Attachment {
            rings,
            unplaced: unplaced.clone(),
            device: device.clone(),
            settings: settings.clone(),
            filtering,
            promiscuous,
        },
        unplaced,
        shape,
    })
}

/// How the sockets of an interface share its packets.
#[derive(Debug)]
struct Plan<'a> {
    ifindex: u32,
    spread: &'a Spread,
    direction: Direction,
    ignore_outgoing: bool,
    /// The interface has one receive queue: every packet belongs to it, even if the driver provides
    /// no queue number.
    one_queue: bool,
    /// The driver's mark of packets of queue 0.
    first_mark: u32,
    /// The number of the first ring, if it is not that of a queue.
    first_number: usize,
    admitted: Option<Admitted>,
}

impl<'a> Plan<'a> {
    fn new(device: &Device, settings: &'a Settings) -> Result<Self, OpenError> {
        let rings = settings.spread.rings();
        if rings >= GROUP_SOCKETS_MAX {
            return Err(OpenError::BadParameter {
                parameter: "number of rings on one interface",
                value: rings as u64,
                allowed: format!("1 to {}", GROUP_SOCKETS_MAX - 1),
            });
        }

        // Sent packets have no receive queue. On the loopback interface the host receives the
        // packets that it sends, and each is captured once.
        let received_only = matches!(settings.spread, Spread::Queues(_))
            || device.link_type == libc::ARPHRD_LOOPBACK;
        Ok(Self {
            ifindex: device.index,
            spread: &settings.spread,
            direction: settings.direction,
            ignore_outgoing: match settings.direction {
                Direction::In => true,
                Direction::Out => false,
                Direction::InOut => received_only,
            },
            one_queue: device.rx_queues == 1,
            // A veth end leaves the sender's mark, which is the number of the queue itself.
            first_mark: if device.driver.as_deref() == Some("veth") { 0 } else { 1 },
            first_number: settings
                .everything
                .as_ref()
                .map_or(0, |everything| everything.first_number),
            admitted: settings.everything.as_ref().map(|everything| Admitted {
                ethernet: device.savefile_link_type() == LinkType::ETHERNET,
                excluded: everything.excluded.clone(),
            }),
        })
    }

    /// Makes the socket reject every packet, also when it is bound.
    fn deafen(&self, socket: PacketSocket) -> io::Result<PacketSocket> {
        socket.attach_filter(&steering::nothing())?;
        if self.ignore_outgoing {
            socket.ignore_outgoing()?;
        }
        Ok(socket)
    }

    /// The name of the ring at `place`: with its receive queue if it has one, otherwise a number.
    fn name_of(&self, interface: &str, place: usize) -> RingName {
        let Spread::Queues(queues) = self.spread else {
            return RingName::of_queue(interface, (self.first_number + place) as u32);
        };
        let siblings = self.siblings(queues, place);
        let part = (siblings.len() > 1).then(|| (place - siblings.start) as u32);
        RingName { part, ..RingName::of_queue(interface, queues[place]) }
    }

    /// The places of the rings that the queue of the one at `place` has.
    fn siblings(&self, queues: &[u32], place: usize) -> Range<usize> {
        let queue = queues[place];
        queues.partition_point(|&other| other < queue)
            ..queues.partition_point(|&other| other <= queue)
    }

    /// The packets that the ring at `place` receives.
    fn selection(&self, place: usize) -> Selection {
        let queue_mark = match self.spread {
            Spread::Queues(queues) if self.goes_by_marks() => Some(self.mark(queues[place])),
            _ => None,
        };
        Selection { direction: self.direction, queue_mark, admitted: self.admitted.clone() }
    }

    /// The driver's mark of packets of `queue`.
    fn mark(&self, queue: u32) -> u32 {
        queue + self.first_mark
    }

    /// Whether the mark of a packet shows that its queue is unknown.
    fn marks_tell(&self) -> bool {
        self.first_mark > steering::NO_QUEUE
    }

    /// Whether packets must be distinguished by queue.
    fn goes_by_marks(&self) -> bool {
        matches!(self.spread, Spread::Queues(_)) && !self.one_queue
    }

    /// Whether one group has all sockets and a program that maps queues to sockets.
    ///
    /// If a queue has several rings, a program cannot be used, because it has no access to the
    /// symmetric hash of a flow. Then the rings of each queue are a group by that hash. Each group
    /// gets every packet of the interface, and its sockets' filters reject packets of other queues.
    fn has_program(&self) -> bool {
        self.goes_by_marks() && !self.spread.shares_queues()
    }

    /// The sockets in the same group as the one at `place`.
    fn group_at(&self, place: usize, sockets: usize) -> Range<usize> {
        match self.spread {
            Spread::Queues(queues) if self.spread.shares_queues() => match place {
                place if place < queues.len() => self.siblings(queues, place),
                alone => alone..alone + 1,
            },
            _ => 0..sockets,
        }
    }

    /// A socket for packets that belong to no ring: the program must assign them to a socket, and
    /// packets without a known queue are counted there.
    fn socket_for_others(&self) -> io::Result<Option<PacketSocket>> {
        let is_needed = self.has_program() || self.goes_by_marks() && self.marks_tell();
        is_needed.then(|| PacketSocket::new().and_then(|socket| self.deafen(socket))).transpose()
    }

    /// Binds the sockets returned by `each` in the order of the rings, the one for other packets
    /// last: this is the order of the groups, also after the interface was down.
    fn bind(
        &self,
        sockets: usize,
        each: impl FnOnce(&mut dyn FnMut(&PacketSocket) -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        let fanout = if self.has_program() { Fanout::Program } else { Fanout::Hash };
        let mut places = 0..;
        let mut group = None;

        each(&mut |socket: &PacketSocket| {
            socket.bind(self.ifindex)?;
            let place = places.next().expect("there is no end of them");
            let members = self.group_at(place, sockets);

            match group {
                _ if members.len() == 1 => Ok(()),
                Some(group) if place > members.start => socket.join(group),
                _ => {
                    group = Some(socket.found_group(fanout, self.ignore_outgoing)?);
                    match self.spread {
                        Spread::Queues(queues) if self.has_program() => {
                            let marks: Vec<u32> =
                                queues.iter().map(|&queue| self.mark(queue)).collect();
                            socket.steer(&steering::place_of_mark(&marks))
                        }
                        _ => Ok(()),
                    }
                }
            }
        })
    }
}

/// Receives the packets of an interface with several queues that belong to no ring, and counts
/// packets whose queue is unknown.
#[derive(Debug)]
pub(crate) struct Unplaced {
    socket: Mutex<Option<PacketSocket>>,
    count: AtomicU64,
}

impl Unplaced {
    /// Counts with `socket`, which has rejected every packet so far, if `marks_tell`.
    fn new(socket: PacketSocket, marks_tell: bool) -> io::Result<Self> {
        if marks_tell {
            socket.keep_little()?;
            socket.attach_filter(&steering::without_queue())?;
        }
        Ok(Self { socket: Mutex::new(Some(socket)), count: AtomicU64::new(0) })
    }

    /// Number of such packets so far.
    pub(crate) fn count(&self) -> u64 {
        let socket = lock(&self.socket);
        let counts =
            socket.as_ref().and_then(|socket| socket.take_counts().ok()).unwrap_or_default();
        let new = u64::from(counts.packets);
        self.count.fetch_add(new, Ordering::Relaxed) + new
    }

    /// From now on counts with `socket`, which has rejected every packet so far.
    fn exchange(&self, socket: PacketSocket, marks_tell: bool) -> io::Result<()> {
        let other = Self::new(socket, marks_tell)?;
        self.count();
        std::mem::swap(&mut *lock(&self.socket), &mut *lock(&other.socket));
        Ok(())
    }

    fn end(&self) {
        self.count();
        *lock(&self.socket) = None;
    }
}

/// The sockets that receive on an interface. The kernel closes them when the process ends.
#[derive(Debug)]
pub(crate) struct Attachment {
    rings: Vec<Arc<PacketRing>>,
    unplaced: Option<Arc<Unplaced>>,
    device: Device,
    settings: Settings,
    filtering: Filtering,
    promiscuous: Option<Promiscuous>,
}

impl Attachment {
    /// From now on captures the packets that match `filter`.
    pub(crate) fn set_filter(&mut self, filter: &Filter) -> Result<(), FilterChangeError> {
        self.filtering = Filtering::replace(
            &self.filtering,
            filter,
            &self.rings,
            &self.device,
            self.settings.rings.snap_len,
        )?;
        Ok(())
    }

    /// From now on receives no packets of these interfaces, which other sockets capture. The
    /// sockets must be bound to no interface.
    pub(crate) fn exclude(&mut self, excluded: &[u32]) -> io::Result<()> {
        let Some(everything) = &mut self.settings.everything else { return Ok(()) };
        if everything.excluded == excluded {
            return Ok(());
        }
        everything.excluded = excluded.to_vec();
        let plan = Plan::new(&self.device, &self.settings).map_err(io::Error::other)?;
        self.rings.iter().enumerate().for_each(|(place, ring)| ring.select(plan.selection(place)));
        self.filtering.begin(&self.rings)
    }

    /// Whether its rings can continue on another interface: not in immediate mode within a group.
    pub(crate) fn can_move(&self) -> bool {
        !self.is_group() || self.settings.immediate.is_none()
    }

    fn is_group(&self) -> bool {
        self.rings.len() > 1 || self.unplaced.is_some()
    }

    /// Continues on `device`, which replaces the interface.
    pub(crate) fn move_to(&mut self, device: &Device) -> Result<(), OpenError> {
        let failed = |action| {
            move |source| OpenError::PacketSocket { interface: device.name.clone(), action, source }
        };
        let joined =
            self.promiscuous.is_some().then(|| Promiscuous::join(device.index)).transpose();
        let promiscuous = joined.map_err(failed("set promiscuous mode on"))?;

        if self.is_group() {
            self.move_group_to(device)?;
        } else {
            for ring in &self.rings {
                ring.move_to(device.index).map_err(failed("bind a packet socket to"))?;
            }
        }

        self.promiscuous = promiscuous;
        self.device = device.clone();

        Ok(())
    }

    /// As [`move_to`](Self::move_to), with other sockets, because sockets of a group are tied to
    /// the interface on which they joined it.
    fn move_group_to(&self, device: &Device) -> Result<(), OpenError> {
        let failed = |action| {
            move |source| OpenError::PacketSocket { interface: device.name.clone(), action, source }
        };
        let plan = Plan::new(device, &self.settings)?;
        let mut sockets = Vec::new();

        for _ in &self.rings {
            let socket = PacketSocket::new().and_then(|socket| plan.deafen(socket));
            let socket = socket.map_err(failed("open a packet socket on"))?;
            let store = make_store(&socket, device, &self.settings);
            sockets.push((socket, store.map_err(failed("make a receive ring on"))?));
        }

        let unplaced = plan.socket_for_others().map_err(failed("open a packet socket on"))?;
        let bound = plan.bind(sockets.len() + unplaced.iter().len(), |bind| {
            sockets.iter().try_for_each(|(socket, _)| bind(socket))?;
            unplaced.iter().try_for_each(bind)
        });
        bound.map_err(failed("bind a packet socket to"))?;

        if let (Some(counter), Some(socket)) = (&self.unplaced, unplaced) {
            let exchanged = counter.exchange(socket, plan.marks_tell());
            exchanged.map_err(failed("count the packets without a queue on"))?;
        }

        self.rings.iter().for_each(|ring| _ = ring.silence());
        wait_for_running_programs();
        for (place, (ring, (socket, store))) in self.rings.iter().zip(sockets).enumerate() {
            // SAFETY: the interface of the former socket is gone, and the kernel no longer
            // processes packets of it.
            unsafe { ring.exchange(device.index, plan.selection(place), socket, store) };
        }

        self.filtering.begin(&self.rings).map_err(failed("attach a socket filter on"))
    }

    /// From now on the sockets run `program`, regardless of `set_filter`.
    pub(crate) fn run_in_kernel(&self, program: &[ClassicInsn]) -> io::Result<()> {
        if program.len() > SOCKET_INSNS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let program: Vec<_> = program.iter().copied().map(socket_insn).collect();
        self.rings.iter().try_for_each(|ring| ring.listen(&program, true))
    }

    /// Why user space filters every packet, if it does.
    pub(crate) fn filters_in_user_space(&self) -> Option<&str> {
        self.filtering.in_user_space.as_deref()
    }

    /// Stops receiving. On return, every received packet can be captured; false if that is not
    /// certain.
    pub(crate) fn detach(self) -> bool {
        #[cfg(sabotage)]
        if crate::sabotage::is("promiscuous-mode-outlives-the-capture") {
            std::mem::forget(Promiscuous::join(self.device.index));
        }
        if let Some(unplaced) = &self.unplaced {
            unplaced.end();
        }

        let silent: Vec<bool> = self.rings.iter().map(|ring| ring.silence().is_ok()).collect();
        let waited = wait_for_running_programs();
        for (ring, _) in self.rings.iter().zip(silent).filter(|(_, silent)| *silent) {
            // SAFETY: the filter that rejects every packet is attached, and earlier receive calls
            // have ended: no packet is written any more. If the kernel had no memory for that
            // filter, the last block stays with the kernel and is counted at the close.
            unsafe { ring.end() };
        }

        waited
    }
}
