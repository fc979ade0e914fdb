//! The attachment of a capture to an interface: its program, and the rings whose sockets get the
//! packets.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::bpf::BpfError;
use crate::device::{Device, DeviceSummary, ReceiveMode};
use crate::error::{FilterChangeError, OpenError};
use crate::filter::{Filter, Unsupported};
use crate::names::RingName;
use crate::sieve::{Check, UserFilter};
use crate::steer::Steering;
use crate::sys::memory::populating_threads;
use crate::sys::wait_for_running_programs;
use crate::sys::xdp::XdpSocket;
use crate::time::Timestamps;
use crate::umem::fill::Kernel;
use crate::umem::ring::Ring;
use crate::umem::rx::Held;
use crate::umem::rx::{RxRing, StampSource};
use crate::xdp::attach_lock;
use crate::xdp::hook::{self, AttachLock, Hook, OpenedHook, SocketRef};
use crate::xdp::mode_search::ModeSearch;
use crate::xdp::mode_search::refusal_to_bind;
use crate::xdp::plan::{HookPlan, Where};
use crate::xdp::reopen::{Refusal, why_copy};
use crate::xdp::stamps::{NoStamps, ProgramStamps};
use crate::xdp::{
    PreparedQueue, Seated, Settings, SocketKernel, StarvationCount, inquiry, refused, register,
    seat, system,
};

/// The attachment of a capture to an interface: its program, and the rings whose sockets get the
/// packets.
#[derive(Debug)]
pub(crate) struct Attachment {
    hook: Arc<dyn Hook>,
    device: Device,
    steering: Steering,
    settings: Settings,
    pub(super) receive_mode: ReceiveMode,
    pub(super) inquiry: Arc<OwnedFd>,
    /// The number of queues that the program's maps have room for.
    queues_max: u32,
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
}

impl Attachment {
    /// Attaches the program, without sockets yet: all packets pass to the host.
    pub(super) fn new(
        device: &Device,
        steering: &Steering,
        settings: &Settings,
        mode_search: &mut ModeSearch<'_>,
    ) -> Result<Self, OpenError> {
        let plan = HookPlan {
            device: DeviceSummary::from(device),
            steering: steering.clone(),
            whole: settings.whole,
            filter: settings.rings.filter.clone(),
            drop_rejected: settings.drop_rejected,
            timestamps: settings.rings.timestamps,
            promiscuous: settings.rings.promiscuous,
            counts_own: settings.counts_own,
        };
        let turn = attach_lock::wait(&plan.device)?;
        let OpenedHook { hook, state, stamp_failed } = hook::open(&plan, &turn)?;

        drop(turn);

        if let Some(reason) = state.not_native {
            mode_search.not_native(reason);
        }

        let filter = settings.rings.filter.as_ref();
        let check =
            check(filter, &state.filters, device).map_err(|source| unsupported(device, source))?;

        let stamps: Arc<dyn StampSource> = match &stamp_failed {
            Some(map) => {
                let stamps = ProgramStamps::new(state.is_bound, map);
                Arc::new(stamps.map_err(|source| system("map the map of missing times", source))?)
            }
            None => Arc::new(NoStamps),
        };
        Ok(Self {
            hook,
            device: device.clone(),
            steering: steering.clone(),
            settings: settings.clone(),
            receive_mode: mode_search.receive_mode,
            inquiry: inquiry()?,
            queues_max: state.queues_max,
            unseated_before: 0,
            missed_in_all: None,
            closed: Vec::new(),
            timestamps: state.timestamps,
            stamps,
            rings: Vec::new(),
            takes_everything: takes_everything(filter, &state.filters),
            filters: state.filters,
            check,
        })
    }

    /// The program, which also counts.
    pub(super) fn hook(&self) -> &Arc<dyn Hook> {
        &self.hook
    }

    /// The key of a ring in the socket map.
    pub(super) fn key_of(&self, ring: &RingName) -> u32 {
        self.steering.key(ring.queue, ring.part.unwrap_or(0))
    }

    /// All rings have sockets now: packets without a socket count as missed from now on.
    pub(super) fn begin(&mut self) {
        self.unseated_before = self.hook.unseated();
    }

    /// The next receive queue without a ring, of `rx_queues` queues.
    pub(crate) fn next_queue(&mut self, rx_queues: u32) -> Option<u32> {
        self.closed.retain(|queue| *queue < rx_queues);
        let has_ring =
            |queue: &u32| self.rings.iter().any(|ring| ring.identity().name.queue == *queue);
        let mut queues = 0..rx_queues.min(self.queues_max);
        queues.find(|queue| !has_ring(queue) && !self.closed.contains(queue))
    }

    /// Whether the program still gets packets.
    pub(crate) fn is_in_place(&self) -> bool {
        self.hook.is_in_place()
    }

    /// Attaches the program again after it was detached or replaced.
    pub(crate) fn attach_again(&mut self) -> Result<(), OpenError> {
        self.hook.attach_again()
    }

    /// Attaches the program again to a driver that no longer runs it although it is attached.
    pub(crate) fn attach_anew(&mut self) -> Result<(), OpenError> {
        self.hook.attach_anew()
    }

    /// Whether all queues of its interface have rings, and its program gets every packet.
    pub(crate) fn has_all(&self) -> bool {
        self.closed.is_empty() && self.missed_in_all.is_none()
    }

    /// How its packets get into the cells.
    pub(crate) fn receive_mode(&self) -> ReceiveMode {
        self.receive_mode
    }

    /// Whether the device writes into the cells itself.
    pub(crate) fn is_zero_copy(&self) -> bool {
        self.receive_mode == ReceiveMode::ZeroCopy
    }

    /// Whether its rings can continue on another interface: not if they share their cells with
    /// others.
    pub(crate) fn can_move(&self) -> bool {
        self.settings.shared_umem.is_none()
    }

    /// Continues on `device`, which replaces its interface: its rings keep their contents.
    pub(crate) fn move_to(&mut self, device: &Device) -> Result<(), OpenError> {
        let missed = self.missed();
        let queues = self.steering.queues().iter().copied();
        let queues: Vec<u32> = queues.filter(|queue| *queue < device.rx_queues).collect();
        let state = self.hook.move_to(&DeviceSummary::from(device))?;

        self.device = device.clone();
        let mut mode_search = ModeSearch::new(device, self.settings.rings.geometry.cell_bytes);

        if let Some(reason) = &self.settings.copy_because {
            mode_search.copy_because(reason);
        }
        if let Some(reason) = state.not_native {
            mode_search.not_native(reason);
        }

        // As when the capture was opened: attaching the program may have added receive queues.
        let own = device.attached_xdp.is_empty().then_some(device.rx_queues);
        if let Some(reason) = why_copy(&Device::find(&device.name)?, own) {
            mode_search.copy_because(&reason);
        }

        let mut sockets = Vec::new();
        for queue in queues {
            sockets.extend(self.move_queue(queue, &mut mode_search)?);
        }

        self.receive_mode = mode_search.receive_mode;

        for (key, kernel) in sockets {
            kernel.starving.begin(&kernel.socket, mode_search.receive_mode);
            let received = self.receive(key, &kernel.socket);
            received.map_err(|source| refused(&DeviceSummary::from(device), source))?;
        }

        self.rings.iter().for_each(|ring| ring.learn_rung());
        self.unseated_before = self.hook.unseated().saturating_sub(missed);

        Ok(())
    }

    /// Binds new sockets to `queue` of the search's interface; their rings are mapped at the
    /// addresses of the old ones.
    fn move_queue(
        &self,
        queue: u32,
        mode_search: &mut ModeSearch<'_>,
    ) -> Result<Vec<(u32, Arc<SocketKernel>)>, OpenError> {
        let rings: Vec<_> =
            self.rings.iter().filter(|ring| ring.identity().name.queue == queue).collect();
        let fill_ring = rings[0].fill_ring();
        let failed = |source| system("make the rings of an AF_XDP socket again", source);
        let slots = self.settings.rings.geometry.cells().next_power_of_two();
        let mut kernels = Vec::new();

        for ring in &rings {
            let name = &ring.identity().name;
            let socket =
                XdpSocket::new().map_err(|source| system("open an AF_XDP socket", source))?;
            let counts = name.part.unwrap_or(0) == 0;
            let filtered = counts.then(|| (Arc::clone(&self.hook), queue));
            let ifindex = mode_search.device.index;
            let inquiry = Arc::clone(&self.inquiry);
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

        mode_search.bind(&first.socket, &rings[0].identity().name)?;
        if mode_search.receive_mode == ReceiveMode::ZeroCopy {
            fill_ring.know_descriptors(mode_search.device.rx_descriptors());
        }

        for (ring, kernel) in rings.iter().zip(&kernels).skip(1) {
            let bound = kernel.socket.bind_beside(&first.socket, mode_search.device.index, queue);
            bound.map_err(|source| refusal_to_bind(&ring.identity().name, source))?;
        }

        let keyed = rings
            .iter()
            .zip(kernels)
            .map(|(ring, kernel)| (self.key_of(&ring.identity().name), kernel));
        Ok(keyed.collect())
    }

    /// Makes the driver run the program on added queues: a veth runs it only on the queues that
    /// existed when it was attached.
    pub(crate) fn run_on_new_queues(&mut self) -> Result<(), OpenError> {
        self.hook.run_on_new_queues()
    }

    /// Prepares [`let_pass`](Self::let_pass), and changes nothing: whatever can fail early fails
    /// here.
    pub(crate) fn prepare_to_pass(&self) -> Result<AttachLock, OpenError> {
        self.hook.prepare_to_pass()
    }

    /// Passes all packets to the host from now on, until it is detached: a driver whose program is
    /// removed may lose packets.
    pub(crate) fn let_pass(&mut self, turn: &AttachLock) -> Result<(), OpenError> {
        let missed = self.missed();
        self.hook
            .exchange(turn)
            .map_err(|source| refused(&DeviceSummary::from(&self.device), source))?;
        self.missed_in_all = Some(missed);
        wait_for_running_programs();
        Ok(())
    }

    /// Packets of `queue` go to the host from now on.
    pub(crate) fn close_queue(&mut self, queue: u32) {
        let keys = self.rings.iter().filter(|ring| ring.identity().name.queue == queue);
        let keys: Vec<u32> = keys.map(|ring| self.key_of(&ring.identity().name)).collect();
        self.rings.retain(|ring| ring.identity().name.queue != queue);
        self.closed.push(queue);
        self.hook.close_queue(queue, &keys);
    }

    /// Matching packets that went to the host because their queue had no ring.
    pub(crate) fn missed(&self) -> u64 {
        self.missed_in_all
            .unwrap_or_else(|| self.hook.unseated().saturating_sub(self.unseated_before))
    }

    /// Captured frames for the interface's own hardware address, if they are counted.
    pub(crate) fn own_frames(&self) -> u64 {
        self.hook.own()
    }

    /// Opens rings on `queue`, an added receive queue; the first one is the capture's ring
    /// `first_ring_index`. After the return they get their packets.
    pub(crate) fn open_queue(
        &mut self,
        queue: u32,
        first_ring_index: usize,
    ) -> Result<Vec<Arc<RxRing>>, OpenError> {
        let device = self.device.clone();
        let failed = |source| refused(&DeviceSummary::from(&device), source);
        let mut steering = self.steering.clone();
        if !steering.queues().contains(&queue) {
            steering.add(queue);
        }

        let place = steering.queues().iter().position(|other| *other == queue).unwrap_or(0);
        let rings = steering.rings_of_queues().nth(place).unwrap_or(1);
        self.hook.claim_queue(queue)?;

        let opened = self.open_claimed(&device, queue, rings, first_ring_index);
        let seated = opened.inspect_err(|_| self.hook.close_queue(queue, &[]))?;
        seated.rings.iter().for_each(|ring| ring.settle(self.check.clone()));
        self.hook.add_queue(queue).map_err(failed)?;

        for (key, kernel) in &seated.sockets {
            kernel.starving.begin(&kernel.socket, self.receive_mode);
            self.receive(*key, &kernel.socket).map_err(failed)?;
        }

        self.steering = steering;
        self.rings.extend(seated.rings.iter().cloned());

        Ok(seated.rings)
    }

    /// Binds the rings of a queue that was claimed.
    fn open_claimed(
        &self,
        device: &Device,
        queue: u32,
        rings: u32,
        first_ring_index: usize,
    ) -> Result<Seated, OpenError> {
        let mut settings = self.settings.clone();

        // The cells of a forwarding capture were assigned when it was opened: this queue has a
        // separate pool, and packets forwarded from it are copied.
        settings.shared_umem = settings.shared_umem.filter(|shared_umem| !shared_umem.forwards());
        let prepared = PreparedQueue::new(device, queue, rings, &settings, populating_threads())?;
        let mut mode_search =
            ModeSearch::at(device, settings.rings.geometry.cell_bytes, self.receive_mode);

        seat(prepared, &mut mode_search, self, &settings, first_ring_index)
            .map_err(Refusal::into_error)
    }

    /// Makes user space filter on `rings` the packets that the program does not.
    pub(super) fn settle(&mut self, rings: &[Arc<RxRing>]) {
        self.rings = rings.to_vec();
        self.rings.iter().for_each(|ring| ring.settle(self.check.clone()));
    }

    /// From now on captures the packets that match `filter`.
    pub(crate) fn set_filter(
        &mut self,
        filter: &Filter,
        turn: &AttachLock,
    ) -> Result<(), FilterChangeError> {
        let device = &self.device;
        let failed = |source| FilterChangeError::Program { interface: device.name.clone(), source };
        let filters = self.hook.prepare(Some(filter)).map_err(failed)?;
        let check =
            check(Some(filter), &filters, device).map_err(|source| unsupported(device, source))?;

        // Waiting packets may have been passed for user space to filter.
        if let Ok(filter) = UserFilter::new(filter, device) {
            self.rings.iter().for_each(|ring| ring.begin_change(filter.clone()));
        }

        let exchanged = self.hook.exchange(turn).map_err(failed);
        if exchanged.is_ok() {
            self.takes_everything = takes_everything(Some(filter), &filters);
            (self.filters, self.check) = (filters, check);
        }

        wait_for_running_programs();
        self.rings.iter().for_each(|ring| ring.settle(self.check.clone()));

        exchanged
    }

    /// From now on the program uses `filter`, regardless of `set_filter`.
    pub(crate) fn run_in_kernel(&mut self, filter: &Filter, turn: &AttachLock) -> io::Result<()> {
        let everything = filter.matches_everything();
        if everything && self.takes_everything {
            return Ok(());
        }

        self.hook.keep_unfiltered().map_err(io::Error::other)?;
        let wanted = (!everything).then_some(filter);
        if let Where::UserSpace(reason) = self.hook.prepare(wanted).map_err(io::Error::other)? {
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }

        self.hook.exchange(turn).map_err(io::Error::other)?;
        self.takes_everything = everything;
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
        self.hook.receive(key, SocketRef { descriptor: socket.as_fd(), handle: socket.handle() })
    }

    /// Lets packets pass to the host again. When it returns, the last packet is in its ring; false
    /// if that is not certain.
    pub(crate) fn detach(self) -> bool {
        drop(self);
        wait_for_running_programs()
    }

    /// Closes its descriptors, without effect on another process with the same descriptors.
    pub(crate) fn leave_to_others(self) {
        self.hook.leave_to_others();
    }
}

/// The part of `filter` that user space applies; `place` is where the filter runs.
fn check(filter: Option<&Filter>, place: &Where, device: &Device) -> Result<Check, Unsupported> {
    match (filter, place) {
        (Some(filter), Where::UserSpace(_)) => {
            UserFilter::new(filter, device).map(Check::Everything)
        }
        _ => Ok(Check::Nothing),
    }
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
        // Rings that outlive the attachment have the hook as well, for its counts.
        self.hook.leave();
    }
}
