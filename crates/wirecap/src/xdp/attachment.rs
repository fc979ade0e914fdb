//! The attachments of a capture to an interface: its program, and the map of its sockets.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::bpf::{BpfError, Map, Program};
use crate::device::{Device, Rung};
use crate::error::{FilterChangeError, OpenError};
use crate::filter::{Filter, Unsupported};
use crate::names::RingName;
use crate::sieve::{Check, UserFilter};
use crate::steer::Steering;
use crate::sys::memory::populating_threads;
use crate::sys::promiscuous::Promiscuous;
use crate::sys::wait_for_running_programs;
use crate::sys::xdp::XdpSocket;
use crate::time::Timestamps;
use crate::umem::fill::Kernel;
use crate::umem::rx::Held;
use crate::umem::rx::{RxRing, StampSource};
use crate::xdp::blueprint::{Blueprint, Where};
use crate::xdp::claim::{Claim, Turn};
use crate::xdp::ladder::Ladder;
use crate::xdp::ladder::refusal_to_bind;
use crate::xdp::lesson::{Refusal, why_copy};
use crate::xdp::place::Place;
use crate::xdp::programs::{self, NO_SOCKET};
use crate::xdp::stamps::{NoStamps, ProgramStamps};
use crate::xdp::{
    PreparedQueue, Settings, SocketKernel, StarvationCount, inquiry, refused, register, seat, system,
};

/// The attachments of a capture to an interface: the program, and the map of its sockets. All are held by descriptors,
/// so the kernel removes them when the process ends for any reason.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// The keys in use.
    keys: Vec<u32>,
    blueprint: Blueprint,
    place: Place,
    settings: Settings,
    /// The filter of the attached program, if it filters.
    filter: Option<Filter>,
    pub(super) rung: Rung,
    pub(super) inquiry: Arc<OwnedFd>,
    /// Packets that found no socket before all rings were ready.
    unseated_before: u64,
    /// The final number of packets without a socket, once all packets go to the host.
    missed_in_all: Option<u64>,
    /// Queues whose rings were closed.
    closed: Vec<u32>,
    pub(super) stamps: Arc<dyn StampSource>,
    /// Source of the program's timestamps.
    pub(super) timestamps: Timestamps,
    rings: Vec<Arc<RxRing>>,
    filters: Where,
    check: Check,
    /// The attached program accepts all packets.
    takes_everything: bool,
    /// A program that accepts all packets, kept after it was replaced: a process that can no longer load programs
    /// can still attach it again.
    unfiltered: Option<Program>,
    promiscuous: Option<Promiscuous>,
    claims: Vec<Claim>,
}

impl Attachment {
    /// Attaches the program, without sockets yet: all packets pass to the host.
    pub(super) fn new(
        device: &Device,
        steering: &Steering,
        settings: &Settings,
        ladder: &mut Ladder<'_>,
    ) -> Result<Self, OpenError> {
        let turn = Claim::turn(device)?;
        let claims = steering.queues().iter().map(|&queue| Claim::queue(device, queue));
        let claims = claims.collect::<Result<Vec<_>, _>>()?;
        let blueprint =
            Blueprint::new(device, steering, settings).map_err(|source| refused(device, source))?;
        let promiscuous = settings
            .rings
            .promiscuous
            .then(|| Promiscuous::join(device.index))
            .transpose()
            .map_err(|source| system("set the interface to promiscuous mode", source))?;
        let filter = settings.rings.filter.as_ref();
        let filters = RefCell::new(Where::default());
        let is_bound = blueprint.clock.bound_to().is_some();
        let place = Place::take(ladder, steering.queues(), is_bound, |array| {
            let (program, place) = blueprint.load(array, filter)?;
            filters.replace(place);
            Ok(program)
        })?;
        let kept = claims.iter().try_for_each(|claim| claim.keep(place.array()));
        kept.map_err(|source| system("bind the socket that claims a receive queue", source))?;
        drop(turn);
        let filters = filters.into_inner();
        if ladder.rung == Rung::Generic {
            // It also sees packets outside of batches.
            blueprint.clock.read_for_each_packet().map_err(|source| refused(device, source))?;
        }
        let check = blueprint.check(filter, &filters).map_err(|source| unsupported(device, source))?;
        let stamps: Arc<dyn StampSource> = match &blueprint.stamp_failed {
            Some(map) => {
                let stamps = ProgramStamps::new(is_bound, map);
                Arc::new(stamps.map_err(|source| system("map the map of missing times", source))?)
            }
            None => Arc::new(NoStamps),
        };
        let keys = steering.queues().iter().zip(steering.rings_of_queues());
        let keys = keys.flat_map(|(&queue, rings)| (0..rings).map(move |part| steering.key(queue, part)));
        let timestamps = blueprint.timestamps();
        Ok(Self {
            keys: keys.collect(),
            blueprint,
            place,
            settings: settings.clone(),
            filter: settings.rings.filter.clone(),
            rung: ladder.rung,
            inquiry: inquiry()?,
            unseated_before: 0,
            missed_in_all: None,
            closed: Vec::new(),
            timestamps,
            stamps,
            rings: Vec::new(),
            takes_everything: takes_everything(filter, &filters),
            filters,
            check,
            unfiltered: None,
            promiscuous,
            claims,
        })
    }

    /// Counts by queue of rejected packets, and of packets without a socket.
    pub(super) fn counts(&self) -> &Arc<Map> {
        &self.blueprint.counts
    }

    /// The key of a ring in the socket map.
    pub(super) fn key_of(&self, ring: &RingName) -> u32 {
        self.blueprint.steering.key(ring.queue, ring.part.unwrap_or(0))
    }

    /// All rings have sockets now: packets without a socket count as missed from now on.
    pub(super) fn begin(&mut self) {
        self.unseated_before = self.unseated();
    }

    fn unseated(&self) -> u64 {
        let counts = |queue| self.blueprint.counts.lookup_sums(queue).map_or(0, |sums| sums[NO_SOCKET]);
        (0..self.blueprint.queues_max).map(counts).sum()
    }

    /// The next receive queue without a ring, of `rx_queues` queues.
    pub(crate) fn next_queue(&mut self, rx_queues: u32) -> Option<u32> {
        self.closed.retain(|queue| *queue < rx_queues);
        let has_ring = |queue: &u32| self.rings.iter().any(|ring| ring.identity().name.queue == *queue);
        let mut queues = 0..rx_queues.min(self.blueprint.queues_max);
        queues.find(|queue| !has_ring(queue) && !self.closed.contains(queue))
    }

    /// Whether the program still gets packets.
    pub(crate) fn is_in_place(&self) -> bool {
        self.place.is_taken()
    }

    /// Attaches the program again after it was detached or replaced.
    pub(crate) fn attach_again(&mut self) -> Result<(), OpenError> {
        let device = self.blueprint.device.clone();
        let _turn = Claim::turn_now(&device)?;
        if self.place.retake() {
            return Ok(());
        }
        let mut ladder = Ladder::at(&device, self.settings.rings.geometry.cell_bytes, self.rung);
        self.take_place(&mut ladder)
    }

    /// Attaches the program again to a driver that no longer runs it although it is attached.
    pub(crate) fn attach_anew(&mut self) -> Result<(), OpenError> {
        let device = self.blueprint.device.clone();
        let _turn = Claim::turn_now(&device)?;
        let mut ladder = Ladder::at(&device, self.settings.rings.geometry.cell_bytes, self.rung);
        self.place.attach_anew(&mut ladder).map_err(|source| refused(&device, source))
    }

    /// Whether all queues of its interface have rings, and its program gets every packet.
    pub(crate) fn has_all(&self) -> bool {
        self.closed.is_empty() && self.missed_in_all.is_none()
    }

    /// Whether the device writes into the cells itself.
    pub(crate) fn is_zero_copy(&self) -> bool {
        self.rung == Rung::ZeroCopy
    }

    /// Takes a place on the ladder's interface again, for the current program.
    fn take_place(&mut self, ladder: &mut Ladder<'_>) -> Result<(), OpenError> {
        let is_bound = self.blueprint.clock.bound_to().is_some();
        let queues = self.blueprint.steering.queues().to_vec();
        let program =
            |array: &Map| self.blueprint.load(array, self.filter.as_ref()).map(|(program, _)| program);
        // The slots may be in the next place's array as well.
        self.place.leave();
        let place = Place::take(ladder, &queues, is_bound, program)?;
        let kept = self.claims.iter().try_for_each(|claim| claim.keep(place.array()));
        kept.map_err(|source| system("bind the socket that claims a receive queue", source))?;
        self.place = place;
        Ok(())
    }

    /// Whether its rings can continue on another interface: not if they share their cells with others.
    pub(crate) fn can_move(&self) -> bool {
        self.settings.commons.is_none()
    }

    /// Continues on `device`, which replaces its interface: its rings keep their contents.
    pub(crate) fn move_to(&mut self, device: &Device) -> Result<(), OpenError> {
        let _turn = Claim::turn_now(device)?;
        let missed = self.missed();
        let queues = self.blueprint.steering.queues().iter().copied();
        let queues: Vec<u32> = queues.filter(|queue| *queue < device.rx_queues).collect();
        // An earlier attempt may have claimed queues already.
        self.claims.retain(|claim| queues.iter().any(|&queue| claim.is_of_queue(device, queue)));
        for &queue in &queues {
            if !self.claims.iter().any(|claim| claim.is_of_queue(device, queue)) {
                self.claims.push(Claim::queue(device, queue)?);
            }
        }
        if self.promiscuous.is_some() {
            let joined = Promiscuous::join(device.index);
            self.promiscuous =
                Some(joined.map_err(|source| system("set the interface to promiscuous mode", source))?);
        }
        self.blueprint.move_to(device).map_err(|source| refused(device, source))?;
        let mut ladder = Ladder::new(device, self.settings.rings.geometry.cell_bytes);
        if let Some(reason) = &self.settings.copy_because {
            ladder.copy_because(reason);
        }
        self.take_place(&mut ladder)?;
        // As when the capture was opened: attaching the program may have added receive queues.
        let own = device.attached_xdp.is_empty().then_some(device.rx_queues);
        if let Some(reason) = why_copy(&Device::find(&device.name)?, own) {
            ladder.copy_because(&reason);
        }
        let mut sockets = Vec::new();
        for queue in queues {
            sockets.extend(self.move_queue(queue, &mut ladder)?);
        }
        self.rung = ladder.rung;
        for (key, kernel) in sockets {
            kernel.starving.begin(&kernel.socket, ladder.rung);
            self.receive(key, &kernel.socket).map_err(|source| refused(device, source))?;
        }
        self.rings.iter().for_each(|ring| ring.learn_rung());
        self.unseated_before = self.unseated().saturating_sub(missed);
        Ok(())
    }

    /// Binds new sockets to `queue` of the ladder's interface; their rings are mapped at the addresses of the
    /// old ones.
    fn move_queue(
        &self,
        queue: u32,
        ladder: &mut Ladder<'_>,
    ) -> Result<Vec<(u32, Arc<SocketKernel>)>, OpenError> {
        let rings: Vec<_> = self.rings.iter().filter(|ring| ring.identity().name.queue == queue).collect();
        let fill_ring = rings[0].fill_ring();
        let failed = |source| system("make the rings of an AF_XDP socket again", source);
        let slots = self.settings.rings.geometry.cells().next_power_of_two();
        let mut kernels = Vec::new();
        for ring in &rings {
            let name = &ring.identity().name;
            let socket = XdpSocket::new().map_err(|source| system("open an AF_XDP socket", source))?;
            let counts = name.part.unwrap_or(0) == 0;
            let filtered = counts.then(|| (Arc::clone(self.counts()), queue));
            let (ifindex, inquiry) = (ladder.device.index, Arc::clone(&self.inquiry));
            let starving = StarvationCount::default();
            let kernel = Arc::new(SocketKernel { socket, ifindex, inquiry, filtered, starving });
            let remake = |rx: &mut _| kernel.socket.make_rx_ring_at(slots, rx);
            ring.move_to(Arc::clone(&kernel) as Arc<dyn Kernel>, remake).map_err(failed)?;
            kernels.push(kernel);
        }
        let first = Arc::clone(&kernels[0]);
        register(&first.socket, fill_ring.pool())?;
        {
            // Packets taken out of the rings meanwhile would not be counted.
            let held: Vec<_> = rings.iter().map(|ring| ring.hold()).collect();
            let waiting: Vec<u64> = held.iter().flat_map(Held::waiting).collect();
            let taken = held.iter().map(Held::taken).sum();
            let posted = fill_ring.posted().next_power_of_two();
            let remake = |fill: &mut _| first.socket.make_fill_ring_at(posted, fill);
            let kernel = Arc::clone(&first) as Arc<dyn Kernel>;
            fill_ring.move_to(kernel, &waiting, taken, remake).map_err(failed)?;
        }
        ladder.bind(&first.socket, &rings[0].identity().name)?;
        if ladder.rung == Rung::ZeroCopy {
            fill_ring.know_descriptors(ladder.device.rx_descriptors());
        }
        for (ring, kernel) in rings.iter().zip(&kernels).skip(1) {
            let bound = kernel.socket.bind_beside(&first.socket, ladder.device.index, queue);
            bound.map_err(|source| refusal_to_bind(&ring.identity().name, source))?;
        }
        let keyed =
            rings.iter().zip(kernels).map(|(ring, kernel)| (self.key_of(&ring.identity().name), kernel));
        Ok(keyed.collect())
    }

    /// Makes the driver run the program on added queues: a veth runs it only on the queues that existed when it
    /// was attached.
    pub(crate) fn run_on_new_queues(&mut self) -> Result<(), OpenError> {
        let device = self.blueprint.device.clone();
        let failed = |source| refused(&device, source);
        let _turn = Claim::turn_now(&device)?;
        let (program, _) = self.blueprint.load(self.place.array(), self.filter.as_ref()).map_err(failed)?;
        self.place.exchange_anew(program).map_err(failed)
    }

    /// Prepares [`let_pass`](Self::let_pass), and changes nothing: whatever can fail early fails here.
    pub(crate) fn prepare_to_pass(&self) -> Result<Pass, OpenError> {
        let device = &self.blueprint.device;
        let turn = Claim::turn_now(device)?;
        let program = programs::load_pass(self.place.array()).map_err(|source| refused(device, source))?;
        Ok(Pass { program, _turn: turn })
    }

    /// Passes all packets to the host from now on, until it is detached: a driver whose program is removed may lose
    /// packets.
    pub(crate) fn let_pass(&mut self, pass: Pass) -> Result<(), OpenError> {
        let missed = self.missed();
        let exchanged = self.place.exchange(pass.program);
        exchanged.map_err(|source| refused(&self.blueprint.device, source))?;
        self.missed_in_all = Some(missed);
        wait_for_running_programs();
        Ok(())
    }

    /// Packets of `queue` go to the host from now on.
    pub(crate) fn close_queue(&mut self, queue: u32) {
        let keys = self.rings.iter().filter(|ring| ring.identity().name.queue == queue);
        let keys: Vec<u32> = keys.map(|ring| self.key_of(&ring.identity().name)).collect();
        keys.iter().for_each(|key| _ = self.blueprint.sockets.delete(*key));
        self.keys.retain(|key| !keys.contains(key));
        self.rings.retain(|ring| ring.identity().name.queue != queue);
        self.closed.push(queue);
        wait_for_running_programs();
        self.place.give_up(queue);
        // From here on another capture may have the queue.
        let device = &self.blueprint.device;
        self.claims.retain(|claim| !claim.is_of_queue(device, queue));
    }

    /// Matching packets that went to the host because their queue had no ring.
    pub(crate) fn missed(&self) -> u64 {
        self.missed_in_all.unwrap_or_else(|| self.unseated().saturating_sub(self.unseated_before))
    }

    /// Opens rings on `queue`, an added receive queue; the first one is the capture's ring `first_ring_index`. After
    /// the return they get their packets.
    pub(crate) fn open_queue(
        &mut self,
        queue: u32,
        first_ring_index: usize,
    ) -> Result<Vec<Arc<RxRing>>, OpenError> {
        let device = self.blueprint.device.clone();
        let failed = |source| refused(&device, source);
        let mut steering = self.blueprint.steering.clone();
        if !steering.queues().contains(&queue) {
            steering.add(queue);
        }
        let place = steering.queues().iter().position(|other| *other == queue).unwrap_or(0);
        let rings = steering.rings_of_queues().nth(place).unwrap_or(1);
        let _turn = Claim::turn_now(&device)?;
        let claim = Claim::queue(&device, queue)?;
        let kept = claim.keep(self.place.array());
        kept.map_err(|source| system("bind the socket that claims a receive queue", source))?;
        let mut settings = self.settings.clone();
        // The cells of a forwarding capture were assigned when it was opened: this queue has a separate pool, and
        // packets forwarded from it are copied.
        settings.commons = settings.commons.filter(|commons| !commons.forwards());
        let prepared = PreparedQueue::new(&device, queue, rings, &settings, populating_threads())?;
        let mut ladder = Ladder::at(&device, settings.rings.geometry.cell_bytes, self.rung);
        let seated =
            seat(prepared, &mut ladder, self, &settings, first_ring_index).map_err(Refusal::into_error)?;
        seated.rings.iter().for_each(|ring| ring.settle(self.check.clone()));
        self.place.add(queue).map_err(failed)?;
        for (key, kernel) in &seated.sockets {
            kernel.starving.begin(&kernel.socket, ladder.rung);
            self.receive(*key, &kernel.socket).map_err(failed)?;
            self.keys.push(*key);
        }
        self.blueprint.steering = steering;
        self.claims.push(claim);
        self.rings.extend(seated.rings.iter().cloned());
        Ok(seated.rings)
    }

    /// Makes user space filter on `rings` the packets that the program does not.
    pub(super) fn settle(&mut self, rings: &[Arc<RxRing>]) {
        self.rings = rings.to_vec();
        self.rings.iter().for_each(|ring| ring.settle(self.check.clone()));
    }

    /// From now on captures the packets that match `filter`.
    pub(crate) fn set_filter(&mut self, filter: &Filter, _turn: &Turn) -> Result<(), FilterChangeError> {
        let device = &self.blueprint.device;
        let failed = |source| FilterChangeError::Program { interface: device.name.clone(), source };
        let (program, filters) = self.blueprint.load(self.place.array(), Some(filter)).map_err(failed)?;
        let check = self.blueprint.check(Some(filter), &filters);
        let check = check.map_err(|source| unsupported(device, source))?;
        // Waiting packets may have been passed for user space to filter.
        if let Ok(filter) = UserFilter::new(filter, device) {
            self.rings.iter().for_each(|ring| ring.begin_change(filter.clone()));
        }
        let exchanged = self.place.exchange(program).map_err(failed);
        if exchanged.is_ok() {
            self.takes_everything = takes_everything(Some(filter), &filters);
            (self.filters, self.check) = (filters, check);
            self.filter = Some(filter.clone());
        }
        wait_for_running_programs();
        self.rings.iter().for_each(|ring| ring.settle(self.check.clone()));
        exchanged
    }

    /// From now on the program uses `filter`, regardless of `set_filter`.
    pub(crate) fn run_in_kernel(&mut self, filter: &Filter, _turn: &Turn) -> io::Result<()> {
        let everything = filter.matches_everything();
        if everything && self.takes_everything {
            return Ok(());
        }
        let load = |filter| self.blueprint.load(self.place.array(), filter).map_err(io::Error::other);
        let unfiltered = match self.unfiltered.take() {
            Some(program) => program,
            None => load(None)?.0,
        };
        let unfiltered = self.unfiltered.insert(unfiltered);
        let program = match everything {
            true => unfiltered.try_clone().map_err(io::Error::other)?,
            false => match load(Some(filter))? {
                (program, Where::Program) => program,
                (_, Where::UserSpace(reason)) => {
                    return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
                }
            },
        };
        self.place.exchange(program).map_err(io::Error::other)?;
        self.takes_everything = everything;
        self.filter = (!everything).then(|| filter.clone());
        wait_for_running_programs();
        Ok(())
    }

    /// Why user space filters every packet, if it does.
    pub(crate) fn filters_in_user_space(&self) -> Option<&str> {
        match &self.filters {
            Where::Program => None,
            Where::UserSpace(reason) => Some(reason),
        }
    }

    /// From now on the packets of the ring with this key go to `socket`.
    pub(super) fn receive(&self, key: u32, socket: &XdpSocket) -> Result<(), BpfError> {
        self.blueprint.sockets.update_fd(key, socket)
    }

    /// Lets packets pass to the host again. When it returns, the last packet is in its ring; false if that is not certain.
    pub(crate) fn detach(self) -> bool {
        drop(self);
        wait_for_running_programs()
    }

    /// Closes its descriptors, without effect on another process with the same descriptors.
    pub(crate) fn leave_to_others(mut self) {
        self.keys.clear();
        self.place.leave_to_others();
    }
}

/// A program that passes all packets to the host, and the right to attach it.
#[derive(Debug)]
pub(crate) struct Pass {
    program: Program,
    _turn: Claim,
}

/// Whether a program loaded for `filter` accepts all packets; `filters` is the place where it runs.
fn takes_everything(filter: Option<&Filter>, filters: &Where) -> bool {
    *filters != Where::Program || filter.is_none_or(Filter::matches_everything)
}

fn unsupported(device: &Device, source: Unsupported) -> FilterChangeError {
    FilterChangeError::Unsupported { interface: device.name.clone(), source }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        for &key in &self.keys {
            // Fails only if the socket is already gone.
            let _ = self.blueprint.sockets.delete(key);
        }
        // Before other captures may claim the queues and use their slots.
        self.place.leave();
    }
}
