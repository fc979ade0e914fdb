//! The watcher: a thread that checks whether the interfaces of a capture have changed, and restores
//! capturing if they have.
//!
//! The kernel reports changes of interfaces, addresses and routes, but not of receive queues and
//! programs, so the watcher also checks at intervals. It is never on the packet path. A fork does
//! not copy it.
//!
//! It checks every interface every 150 ms, that of the libpcap drop-in every five seconds: whether
//! the interface exists and is up, whether the program is still attached, the number of receive
//! queues, and the MTU. For a virtual interface without messages it queries only the queues and the
//! program, and everything else once a second. A recorded gap is longer than its cause by at most
//! 250 ms (on a quiet machine by at most 204 ms in 120 random sequences).
//!
//! All tables indexed by receive queue are sized for the device's maximum. UMEMs are not allocated
//! in advance, because the kernel pins all pages of a UMEM when it is registered; a new queue gets
//! its own, and in a capture that forwards, packets from such a queue are copied.
//!
//! An interface that returns keeps its rings. With the engine `packet` a single socket is bound
//! again. The sockets of a fanout group are tied to the interface on which the group was created,
//! so new sockets with rings of the same size replace them, after their packets have been captured.
//! With `xdp` the new socket's rings are mapped at the addresses of the old ones, so no pointer
//! changes. The kernel does not report which cells it had taken from the fill ring when the
//! interface disappeared: they are the cells that are in no other place, which is known when all
//! outstanding chunks have been recycled. Until then they are not used.

pub(crate) mod comparison;
pub(crate) mod drops;
#[cfg(all(test, not(loom), not(miri)))]
mod history_tests;
mod liveness;
mod queues;
mod sides;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::time::Timespec;
use wirecap_units::error::causes;

use super::builder::CaptureBuilder;
use super::event::Event;
use super::target::{Target, Way};
use super::{Attached, Attachment, Failure, Running, Shared};
use crate::capture::all_watch::Named;
use crate::capture::own_thread::OwnThread;
use crate::capture::worker::ring_bell;
use crate::device::events::{Events, News};
use crate::device::interface_state::{Connection, InterfaceState, Scope};
use crate::device::liveness::Liveness;
use crate::device::{Device, DeviceError, Mark, Reason};
use crate::error::OpenError;
use crate::ledger::{Unseen, UnseenReason};
use crate::packet::{Direction, Spread};
use crate::sync::lock;
use crate::umem::ring::{OnPacketSocket, Ring};
use crate::xdp;
use comparison::Reset;
use liveness::{Life, LivenessWatch, Signs, Silence};
use queues::Queues;

/// A silence before a gap that is listed by itself.
const SILENCE: Duration = Duration::from_secs(1);
/// The time in which a device must show that it is alive when the capture ends.
const LAST_ANSWER: Duration = Duration::from_secs(1);
const LAST_ANSWER_PAUSE: Duration = Duration::from_millis(1);
/// How often the watcher reads the counters of the kernel or a device: rarely enough for drivers
/// that query their firmware, and often enough for 32-bit counters, which wrap after half a minute
/// at 100 Gbit/s.
const COUNT_PERIOD: Duration = Duration::from_secs(1);

/// A running watcher; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watcher {
    ending: Arc<Ending>,
    _thread: OwnThread,
}

#[derive(Debug)]
struct Ending {
    now: AtomicBool,
    bell: OwnedFd,
}

impl Watcher {
    /// Watches the interfaces of `shared`, in the network namespace of the calling thread, and
    /// checks once per `period` without a message from the kernel.
    pub(super) fn start(
        shared: &Arc<Shared>,
        events: Arc<Events>,
        period: Duration,
    ) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let ending = Arc::new(Ending { now: AtomicBool::new(false), bell });
        let told = Arc::clone(&ending);
        let shared = Arc::downgrade(shared);

        let watch = move || {
            let mut changes = Changes::default();
            while look_round(&events, &told, &shared, period, &mut changes) {}
        };
        Ok(Self { ending, _thread: OwnThread::start("wirecap-watcher", watch)? })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.ending.now.store(true, Ordering::Relaxed);
        ring_bell(&self.ending.bell);
    }
}

/// Waits for messages, and checks; `false` at the end. `changes`: the messages that the last check
/// read.
fn look_round(
    events: &Events,
    ending: &Ending,
    shared: &Weak<Shared>,
    period: Duration,
    changes: &mut Changes,
) -> bool {
    let descriptors = events.descriptors().chain([ending.bell.as_fd()]);
    let mut descriptors: Vec<PollFd<'_>> =
        descriptors.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)).collect();
    let longest =
        Timespec { tv_sec: period.as_secs() as i64, tv_nsec: period.subsec_nanos().into() };

    // A descriptor that cannot be polled may have messages.
    let has_news = poll(&mut descriptors, Some(&longest)).map_or(true, |ready| ready > 0);
    let shared = shared.upgrade().filter(|_| !ending.now.load(Ordering::Relaxed));
    let Some(shared) = shared else { return false };

    if has_news {
        events.take(|news| changes.add(news));
    }

    shared.look(changes)
}

/// The kernel's messages since the last look.
#[derive(Debug, Default)]
struct Changes {
    /// Interfaces that were down or gone, even briefly.
    interrupted: Vec<u32>,
    /// Interfaces whose rings got another size.
    resized: Vec<u32>,
    /// An address, a route or some interface changed.
    host: bool,
    overrun: bool,
}

impl Changes {
    fn add(&mut self, news: News) {
        match news {
            News::Link { up: true, .. } | News::Host => {}
            News::Link { index, up: false } | News::Removed { index } => {
                self.interrupted.push(index);
            }
            News::Resized { index } => {
                self.resized.push(index);
                return;
            }
            News::Overrun => self.overrun = true,
        }

        #[cfg(sabotage)]
        if crate::sabotage::is("messages-about-the-host-ignored") {
            return;
        }

        self.host = true;
    }

    /// Reads the waiting messages, without those that the interface of this index was down.
    fn add_of_others(&mut self, events: &Events, index: u32) {
        #[cfg(sabotage)]
        if crate::sabotage::is("messages-before-the-return-are-interruptions") {
            return;
        }
        events.take(|news| match news {
            News::Link { index: own, .. } if own == index => self.add(News::Host),
            news => self.add(news),
        });
    }

    /// Why packets of an interface that is in order now may have passed unseen since the last look,
    /// if so.
    fn interruption(&self, index: u32, carrier: Carrier) -> Option<UnseenReason> {
        #[cfg(sabotage)]
        if crate::sabotage::is("resizing-ignored") && self.resized.contains(&index) {
            return None;
        }
        match carrier {
            _ if self.interrupted.contains(&index) => Some(UnseenReason::Down),
            Carrier::Flapped => Some(UnseenReason::NoCarrier),
            _ if self.resized.contains(&index) => Some(UnseenReason::Resized),
            _ if self.overrun => Some(UnseenReason::Unwatched),
            _ => None,
        }
    }
}

/// The state of a captured interface.
#[derive(Debug)]
pub(super) struct Watched {
    /// When everything was last found in order.
    well: SystemTime,
    /// The same, of the look before.
    well_before: SystemTime,
    /// When counters were last read.
    counted: Instant,
    connection: Connection,
    /// The unseen periods; the last one may be open.
    unseen: Vec<Unseen>,
    /// The last reported reason why it is not captured again.
    obstacle: Option<String>,
    /// The queue whose rings cannot be opened, and why.
    missed_queue: Option<(u32, String)>,
    /// Its name when the capture began.
    name: String,
    /// `auto` selected `xdp` for it, and the host may need it later.
    is_on_loan: bool,
    /// The last reported reason why the host, which needs it, has not got it back.
    not_handed_back: Option<String>,
    /// Its number of carrier losses at the last check; `None` if its device has not had a carrier.
    carrier_losses: Option<u32>,
    /// The signs of life of its device, if it is on a bus.
    liveness: Option<Liveness>,
    liveness_watch: LivenessWatch,
    queues: Queues,
    /// Packets counted up to the last check.
    packets: u64,
    /// The check before the one that found the last packet.
    last_packet: Option<SystemTime>,
    /// The last check.
    felt: SystemTime,
    /// When the capture began.
    began: SystemTime,
    /// Only packets show that its device is alive.
    shows_no_life: bool,
    /// Its program was attached again during the current gap.
    was_attached_anew: bool,
    /// It was told that frames were addressed to it.
    has_own_frames: bool,
}

/// The change of a device's carrier since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    /// It was present, or has never been; virtual interfaces without one reject their senders'
    /// packets.
    Steady,
    /// It was lost and is back.
    Flapped,
    /// It is lost.
    Gone,
}

impl Watched {
    pub(super) fn new(device: &Device, is_on_loan: bool) -> Self {
        let mut watched = Self {
            well: SystemTime::now(),
            well_before: SystemTime::now(),
            counted: Instant::now(),
            connection: Connection::default(),
            unseen: Vec::new(),
            obstacle: None,
            missed_queue: None,
            name: device.name.clone(),
            is_on_loan,
            not_handed_back: None,
            carrier_losses: None,
            liveness: None,
            liveness_watch: LivenessWatch::default(),
            queues: Queues::begin(SystemTime::now(), Instant::now()),
            packets: 0,
            last_packet: None,
            felt: SystemTime::now(),
            began: SystemTime::now(),
            shows_no_life: false,
            was_attached_anew: false,
            has_own_frames: false,
        };
        watched.begin_on(device);

        watched
    }

    /// Another device is captured from now on.
    fn begin_on(&mut self, device: &Device) {
        (self.liveness, self.liveness_watch) = (None, LivenessWatch::default());
        self.queues.begin_again();
        if !device.is_hardware() {
            return;
        }
        self.liveness = Some(Liveness::of(device));
        self.carrier_losses = None;
        if let Ok(Some(interface_state)) = device.look() {
            self.follow_carrier(&interface_state);
        }
    }

    /// The change of the carrier of a device on a bus.
    fn follow_carrier(&mut self, interface_state: &InterfaceState) -> Carrier {
        if self.liveness.is_none() {
            return Carrier::Steady;
        }

        let losses = interface_state.carrier_losses.unwrap_or(0);

        match (self.carrier_losses, interface_state.carrier) {
            (None, false) => Carrier::Steady,
            (Some(_), false) => Carrier::Gone,
            (before, true) => {
                self.carrier_losses = Some(losses);
                if before.is_some_and(|before| before != losses) {
                    Carrier::Flapped
                } else {
                    Carrier::Steady
                }
            }
        }
    }

    /// The interface is captured by the engine `packet` from now on. Nothing that was asked of its
    /// device counts any more: no socket wakes its driver, so it owes no answer.
    fn change_engine(&mut self) {
        self.is_on_loan = false;
        #[cfg(sabotage)]
        if crate::sabotage::is("hand-back-owes-an-answer") {
            return;
        }
        self.liveness_watch = LivenessWatch::default();
    }

    pub(super) fn unseen(&self) -> &[Unseen] {
        &self.unseen
    }

    /// Whether it is time to read the counters again.
    fn is_time_to_count(&mut self) -> bool {
        let is_time = self.counted.elapsed() >= COUNT_PERIOD;
        if is_time {
            self.counted = Instant::now();
        }
        is_time
    }

    fn gap(&mut self) -> Option<&mut Unseen> {
        self.unseen.last_mut().filter(|gap| gap.to.is_none())
    }

    /// The current gap.
    fn unseen_now(&self) -> Option<&Unseen> {
        self.unseen.last().filter(|gap| gap.to.is_none())
    }

    /// Packets have passed unseen since everything was last in order.
    fn lose(&mut self, reason: UnseenReason, obstacle: Option<String>, tell: &dyn Fn(Event)) {
        self.lose_since(self.well, reason, obstacle, tell);
    }

    /// Packets have passed unseen since `from`, which is detected only now.
    fn lose_since(
        &mut self,
        from: SystemTime,
        reason: UnseenReason,
        obstacle: Option<String>,
        tell: &dyn Fn(Event),
    ) {
        #[cfg(sabotage)]
        if crate::sabotage::is("unseen-forgotten") {
            let _ = (from, reason, obstacle, tell);
            return;
        }

        self.queues.pause();
        let from = self.last_known_before(from.min(self.well));

        let is_news = match self.gap() {
            Some(gap) => gap.reason != reason,
            None => {
                let interface = self.name.clone();
                self.unseen.push(Unseen { interface, from, to: None, reason });
                true
            }
        };
        if is_news && let Some(gap) = self.gap() {
            gap.reason = reason;
        }

        if is_news || (obstacle.is_some() && obstacle != self.obstacle) {
            let interface = self.name.clone();
            self.obstacle = obstacle.clone();
            tell(Event::Lost { interface, reason, obstacle });
        }
    }

    /// Where a gap begins that was found to begin at `from`. A device that shows no life without
    /// packets may have been dead since its last one; a longer silence is listed by itself.
    fn last_known_before(&mut self, from: SystemTime) -> SystemTime {
        let quiet_since = self.last_packet.unwrap_or(self.began);
        let is_first = self.unseen_now().is_none();
        let Ok(quiet) = from.duration_since(quiet_since) else { return from };

        if !is_first || !self.shows_no_life {
            return from;
        }
        if quiet < SILENCE {
            return quiet_since;
        }

        let interface = self.name.clone();
        let reason = UnseenReason::QuietOrDead;
        self.unseen.push(Unseen { interface, from: quiet_since, to: Some(from), reason });

        from
    }

    /// Notes that the rings have `packets` so far; false if there are new ones.
    fn is_idle(&mut self, packets: u64, now: SystemTime) -> bool {
        let is_idle = std::mem::replace(&mut self.packets, packets) == packets;
        let felt_before = std::mem::replace(&mut self.felt, now);
        if !is_idle {
            self.last_packet = Some(felt_before);
        }
        is_idle
    }

    /// A counter of the device was reset: what it counted since its last reading is unknown.
    pub(super) fn lose_count(&mut self, reset: Reset, now: SystemTime) {
        let interface = self.name.clone();
        let reason = UnseenReason::CountersReset;
        let from = reset.last_known.min(now);
        let to = Some(now);
        let gap = Unseen { interface, from, to, reason };
        // Before the current gap, which stays the last one.
        let place = self.unseen.len() - usize::from(self.unseen_now().is_some());
        self.unseen.insert(place, gap);
    }

    /// Everything was in order at `well`, as is found at `now`.
    fn find_well(&mut self, well: SystemTime, now: SystemTime, tell: &dyn Fn(Event)) {
        self.well_before = std::mem::replace(&mut self.well, well);
        self.obstacle = None;
        self.was_attached_anew = false;
        if let Some(gap) = self.gap() {
            gap.to = Some(now);
            let gap = gap.clone();
            tell(Event::Back(gap));
        }
    }
}

/// The state of an interface.
enum State {
    Well,
    /// No sign of a fault, but not yet confirmed.
    Unsure,
    Unwell(UnseenReason, Option<String>),
}

impl State {
    /// Returns this state if it is not in order, otherwise the state that `next` finds.
    fn and_then(self, next: impl FnOnce() -> Self) -> Self {
        match self {
            Self::Well => next(),
            other => other,
        }
    }
}

impl Shared {
    /// Checks all interfaces; `false` if none is left. Leaves the messages in `changes` that it
    /// read itself.
    fn look(&self, changes: &mut Changes) -> bool {
        let (changes, late) = (std::mem::take(changes), changes);
        let mut running = lock(&self.running);
        if running.end.is_some() {
            return false;
        }

        let Running { interfaces, builder, .. } = &mut *running;
        let named: Vec<Named> = interfaces.iter().filter_map(Attached::named).collect();

        // First: an interface that has returned must be excluded before it is captured by its own
        // sockets.
        interfaces.iter_mut().for_each(|attached| attached.look_at_all(self, builder, &named));

        for attached in interfaces.iter_mut().filter(|attached| attached.all.is_none()) {
            if let Err(failure) = attached.look(self, builder, &changes, late) {
                self.fail(attached.index, failure);
            }
        }

        if let Some(exchange) = self.exchange() {
            running.ports.iter_mut().enumerate().for_each(|(index, port)| {
                if let Ok(Some(interface_state)) = port.look()
                    && port.mtu != interface_state.mtu
                {
                    port.mtu = interface_state.mtu;
                    exchange.set_longest(index, xdp::longest_frame(port));
                }
            });
        }

        true
    }
}

impl Attached {
    /// The interface, if it is one that the capture names.
    fn named(&self) -> Option<Named> {
        let name = self.watched.name.clone();
        let index = self.target.device.index;
        self.all.is_none().then_some(Named { name, index })
    }

    /// Checks the interfaces that it stands for, if these are all.
    fn look_at_all(&mut self, shared: &Shared, builder: &CaptureBuilder, named: &[Named]) {
        let (Some(all), Some(Attachment::All(attachment))) = (&mut self.all, &mut self.attachment)
        else {
            return;
        };
        all.look(attachment, (&self.target, self.geometry, self.index), shared, builder, named);
        if self.watched.is_time_to_count() {
            self.count(shared);
        }
    }

    /// The last look, before receiving ends.
    pub(super) fn look_at_end(&mut self, shared: &Shared) {
        if let (Some(all), Some(Attachment::All(attachment))) = (&mut self.all, &self.attachment) {
            return all.look_at_end(attachment);
        }

        let Some(events) = shared.events.as_deref() else { return };
        let mut changes = Changes::default();
        events.take(|news| changes.add(news));

        // The thread that ends a capture may be in another network namespace, where its interfaces
        // are unknown.
        let interface_state = self.target.device.look().ok();
        let index = self.target.device.index;
        let is_detached = matches!(&self.attachment, Some(Attachment::Xdp(attachment)) if !attachment.is_in_place());

        let carrier = match &interface_state {
            Some(Some(interface_state)) => self.watched.follow_carrier(interface_state),
            _ => Carrier::Steady,
        };
        let reason = match interface_state {
            Some(None) => UnseenReason::Removed,
            Some(Some(InterfaceState { up: false, .. })) => UnseenReason::Down,
            _ if is_detached => UnseenReason::Detached,
            _ if changes.interrupted.contains(&index) => UnseenReason::Down,
            _ if carrier != Carrier::Steady => UnseenReason::NoCarrier,
            _ if changes.resized.contains(&index) => UnseenReason::Resized,
            _ if changes.overrun => UnseenReason::Unwatched,
            _ => match self.last_silence(shared) {
                Some(silent) => {
                    let from = SystemTime::now() - silent;
                    return self.watched.lose_since(from, UnseenReason::Silent, None, &|_| ());
                }
                None => return,
            },
        };
        self.watched.lose(reason, None, &|_| ());
    }

    /// `late` gets messages that it reads itself.
    fn look(
        &mut self,
        shared: &Shared,
        builder: &CaptureBuilder,
        changes: &Changes,
        late: &mut Changes,
    ) -> Result<(), Failure> {
        let tell = |event: Event| builder.tell(&event);
        let now = SystemTime::now();
        let index = self.target.device.index;
        let scope = self.scope(changes);
        let interface_state =
            match self.target.device.look_again(&mut self.watched.connection, scope) {
                Ok(interface_state) => interface_state,
                Err(error) => {
                    self.watched.lose(UnseenReason::Unwatched, Some(error.to_string()), &tell);
                    return Ok(());
                }
            };
        let state = match interface_state {
            None => self.return_after_removal(shared, builder, late, &tell)?,
            Some(interface_state) => {
                self.follow_name(&interface_state, &tell);
                let carrier = self.watched.follow_carrier(&interface_state);
                let interrupted = changes.interruption(index, carrier);

                if let Some(reason) = interrupted.filter(|_| interface_state.up) {
                    // The driver was resizing while the last look waited for the kernel's lock.
                    let from = match reason {
                        UnseenReason::Resized => self.watched.well_before,
                        _ => self.watched.well,
                    };
                    self.watched.lose_since(from, reason, None, &tell);
                }

                match interface_state.up {
                    false => State::Unwell(UnseenReason::Down, None),
                    true => self.keep_program(builder)?,
                }
                .and_then(|| {
                    let rx_queues =
                        interface_state.rx_queues.unwrap_or(self.target.device.rx_queues);
                    self.seat_new_queues(shared, builder, rx_queues, &tell)
                })
                .and_then(|| match carrier {
                    Carrier::Gone => self.without_carrier(),
                    _ => self.feel_pulse(shared, builder, &tell),
                })
            }
        };

        match state {
            State::Unwell(reason, obstacle) => self.watched.lose(reason, obstacle, &tell),
            State::Well => self.watched.find_well(now, SystemTime::now(), &tell),
            State::Unsure => {}
        }

        if self.watched.is_time_to_count() {
            self.count(shared);
            self.notice_own_frames(builder);
        }

        let is_doubtful = || {
            changes.host
                || self.watched.not_handed_back.is_some()
                || self.target.device.has_silent_contradiction()
        };
        if self.watched.is_on_loan && is_doubtful() {
            self.mind_host(shared, builder);
        }

        Ok(())
    }

    /// What the next look must query. The kernel reports changes of virtual interfaces, except of
    /// their queues and programs. A device on a bus is always queried, since its carrier may also
    /// change for only a moment.
    fn scope(&self, changes: &Changes) -> Scope {
        let watched = &self.watched;
        let is_told = watched.liveness.is_none() && !changes.host && watched.unseen_now().is_none();
        match &self.attachment {
            _ if !is_told => Scope::All,
            Some(Attachment::Xdp(_)) => Scope::Queues,
            _ => Scope::Nothing,
        }
    }

    /// Accumulates counters of few bits, even if they are not read; and stores the device's drops,
    /// which a removed device no longer reports.
    fn count(&mut self, shared: &Shared) {
        let sockets =
            shared.rings_of(self.index).filter_map(|(_, ring)| ring.abilities().packet_socket);
        sockets.for_each(OnPacketSocket::keep_count);
        if let Some(unplaced) = &self.unplaced {
            unplaced.count();
        }
        // The drops are not read if a ledger has just read them.
        if self.watched.gap().is_none() && self.drops_read.elapsed() >= COUNT_PERIOD {
            let _stored = self.device_drops();
        }
        self.compare(shared);
    }

    /// Tells once that frames are addressed to a dedicated interface itself.
    fn notice_own_frames(&mut self, builder: &CaptureBuilder) {
        if self.watched.is_on_loan && !self.watched.has_own_frames && self.own_frames() > 0 {
            self.watched.has_own_frames = true;
            builder.tell(&Event::OwnFrames { interface: self.watched.name.clone() });
        }
    }

    /// Returns the interface to the host if something contradicts its mark, or the mark is gone.
    /// What prevents it is told once; each look tries again.
    fn mind_host(&mut self, shared: &Shared, builder: &CaptureBuilder) {
        let before = self.watched.not_handed_back.take();
        let Ok(device) = Device::find(&self.target.device.name) else { return };
        let not_dedicated = (device.mark != Mark::Dedicated).then_some(Reason::NotDedicated);
        let reason = device.contradictions().into_iter().next().or(not_dedicated);
        let Some(reason) = reason else { return };

        if device.index != self.target.device.index {
            return;
        }

        if let Err(error) = self.hand_back(shared, builder, &device, &reason) {
            let interface = self.watched.name.clone();
            let reason = reason.to_string();
            let obstacle = causes(&error);
            if before.as_ref() != Some(&obstacle) {
                let obstacle = obstacle.clone();
                builder.tell(&Event::NotHandedBack { interface, reason, obstacle });
            }
            self.watched.not_handed_back = Some(obstacle);
        }
    }

    /// The state of a device without a carrier. A device that restarts has no carrier for a time,
    /// and remains silent.
    fn without_carrier(&mut self) -> State {
        self.watched.liveness_watch.forgive();
        let reason = self
            .watched
            .gap()
            .map(|gap| gap.reason)
            .filter(|reason| *reason == UnseenReason::Silent);
        State::Unwell(reason.unwrap_or(UnseenReason::NoCarrier), None)
    }

    /// Whether the device, if it is on a bus, still delivers its packets.
    fn feel_pulse(
        &mut self,
        shared: &Shared,
        builder: &CaptureBuilder,
        tell: &dyn Fn(Event),
    ) -> State {
        if self.watched.liveness.is_none() {
            return State::Well;
        }

        let now = Instant::now();
        let by_queue = self.packets_by_queue(shared);
        let packets = by_queue.values().sum::<u64>() + self.missed();
        let is_idle = self.watched.is_idle(packets, SystemTime::now());

        // The rings of the engine `packet` are no queues of the device.
        if matches!(self.attachment, Some(Attachment::Xdp(_))) {
            self.watched.queues.look(&by_queue, SystemTime::now(), now);
        }

        let Some(liveness) = &self.watched.liveness else { return State::Well };
        let asks = is_idle && self.can_ask();
        let interrupts = asks.then(|| liveness.interrupts()).flatten();
        let was_reset = liveness.was_reset();
        let mut life =
            self.watched.liveness_watch.feel(Signs { packets, interrupts, was_reset }, now);

        if asks {
            self.ask(shared);
            self.watched.liveness_watch.ask(now);
        }

        if life == Life::Alive && self.counts_all() {
            life = self.compare_pulse(packets, now);
        }

        match life {
            Life::Alive => State::Well,
            Life::Doubtful => State::Unsure,
            Life::Silent(silent, how) => {
                let from = SystemTime::now() - silent;
                let obstacle = Some(how.advice().to_owned());
                self.watched.lose_since(from, UnseenReason::Silent, obstacle.clone(), tell);
                if how == Silence::Bypass {
                    self.attach_anew(builder);
                }
                State::Unwell(UnseenReason::Silent, obstacle)
            }
        }
    }

    /// Whether the packets that the device counts reach the rings. In a gap this is checked at each
    /// look, so that the gap ends when packets arrive and not before.
    fn compare_pulse(&mut self, packets: u64, now: Instant) -> Life {
        let known = self.watched.liveness_watch.bypass(packets, now);
        let resumes = self.watched.gap().is_some() && known == Life::Alive;
        if !resumes && self.watched.counted.elapsed() < COUNT_PERIOD {
            return known;
        }
        let Ok(received) = self.target.device.received() else { return known };
        match resumes {
            true => self.watched.liveness_watch.resume(received, packets, now),
            false => self.watched.liveness_watch.compare(received, packets, now),
        }
    }

    /// Attaches the program again for a driver that does not run it, once per gap: vmxnet3 no
    /// longer runs it after it was set down and up. With zero-copy a driver that is restarted may
    /// lose its cells.
    fn attach_anew(&mut self, builder: &CaptureBuilder) {
        let Some(Attachment::Xdp(attachment)) = &mut self.attachment else { return };
        let may = builder.attaches_again && !attachment.is_zero_copy();
        if may && !std::mem::replace(&mut self.watched.was_attached_anew, true) {
            // Arriving packets show whether it has helped.
            let _ = attachment.attach_anew();
            self.watched.liveness_watch.forgive();
        }
    }

    /// Packets that reached the rings so far, before the filter, and the times that a ring had no
    /// cell for them.
    fn packets_seen(&self, shared: &Shared) -> u64 {
        self.packets_by_queue(shared).values().sum::<u64>() + self.missed()
    }

    /// The same by the number in the rings' names, without those that had no ring.
    fn packets_by_queue(&self, shared: &Shared) -> BTreeMap<u32, u64> {
        let mut packets = BTreeMap::new();
        for (_, ring) in shared.rings_of(self.index) {
            let account = ring.account();
            let seen = account.offered
                + account.filtered.unwrap_or(0)
                + account.starved
                + u64::from(ring.backlog());
            *packets.entry(ring.identity().name.queue).or_default() += seen;
        }
        packets
    }

    /// Packets that had no ring.
    fn missed(&self) -> u64 {
        self.attachment.as_ref().map_or(0, Attachment::missed)
    }

    /// Whether all packets that the device counts should reach the rings, and are counted there.
    fn counts_all(&self) -> bool {
        self.target.whole
            && matches!(&self.attachment, Some(Attachment::Xdp(attachment)) if attachment.has_all())
    }

    /// Whether the device answers when its sockets are woken.
    fn can_ask(&self) -> bool {
        let answers = self.watched.liveness.as_ref().is_some_and(Liveness::answers);
        answers
            && matches!(&self.attachment, Some(Attachment::Xdp(attachment)) if attachment.is_zero_copy())
    }

    /// Makes the driver check each queue. Polling an AF_XDP socket in zero-copy mode wakes its
    /// driver.
    fn ask(&self, shared: &Shared) {
        for (_, ring) in shared.rings_of(self.index) {
            ring.watch(&mut |socket| {
                let mut socket = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
                let _ = poll(&mut socket, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            });
        }
    }

    /// How long the device has been silent when the capture ends, if it is.
    fn last_silence(&mut self, shared: &Shared) -> Option<Duration> {
        let liveness = self.watched.liveness.as_ref()?;
        let before = (self.packets_seen(shared), liveness.interrupts());
        let is_to_answer = self.can_ask() && self.watched.liveness_watch.is_to_answer(before.1);
        let is_seen = self.watched.unseen_now().is_none();
        let missing = if is_seen { self.missing(before.0) } else { None };
        let asks = is_to_answer && is_seen;
        let deadline = Instant::now() + LAST_ANSWER;

        if asks {
            self.ask(shared);
        }

        let mut has_packets = false;
        let mut has_answer = false;
        while ((asks && !has_answer) || missing.is_some())
            && !has_packets
            && Instant::now() < deadline
        {
            thread::sleep(LAST_ANSWER_PAUSE);
            has_packets = self.packets_seen(shared) != before.0;
            has_answer = liveness.interrupts() != before.1;
        }

        let is_silent = (asks && !has_packets && !has_answer) || liveness.was_reset();
        let silence = is_silent.then(|| self.watched.liveness_watch.silence(Instant::now()));
        silence.max(missing.filter(|_| !has_packets))
    }

    /// For how long the device has counted packets of which the rings have none beyond these.
    fn missing(&self, packets: u64) -> Option<Duration> {
        let received = self.counts_all().then(|| self.target.device.received().ok()).flatten()?;
        self.watched.liveness_watch.missing(received, packets, Instant::now())
    }

    fn follow_name(&mut self, interface_state: &InterfaceState, tell: &dyn Fn(Event)) {
        if self.target.device.name != interface_state.name {
            self.target.device.name.clone_from(&interface_state.name);
            tell(Event::Renamed {
                interface: self.watched.name.clone(),
                name: interface_state.name.clone(),
            });
        }
    }

    /// Attaches the program again if it was detached or replaced.
    fn keep_program(&mut self, builder: &CaptureBuilder) -> Result<State, Failure> {
        let Some(Attachment::Xdp(attachment)) = &mut self.attachment else {
            return Ok(State::Well);
        };
        if attachment.is_in_place() {
            return Ok(State::Well);
        }

        if !builder.attaches_again {
            self.watched.lose(UnseenReason::Detached, None, &|event| builder.tell(&event));
            return Err(Failure::Detached(self.watched.name.clone()));
        }

        Ok(match attachment.attach_again() {
            Ok(()) => {
                // The period without it is over, and no other event reports it.
                self.watched.lose(UnseenReason::Detached, None, &|event| builder.tell(&event));
                State::Well
            }
            Err(error) => State::Unwell(UnseenReason::Detached, Some(causes(&error))),
        })
    }

    /// Captures again from an interface that was removed and has returned under its name.
    fn return_after_removal(
        &mut self,
        shared: &Shared,
        builder: &CaptureBuilder,
        late: &mut Changes,
        tell: &dyn Fn(Event),
    ) -> Result<State, Failure> {
        let removed = |obstacle| Ok(State::Unwell(UnseenReason::Removed, obstacle));
        let can_return = self.attachment.as_ref().is_some_and(Attachment::can_move);

        // The gap ends now, not when the interface returned: later gaps have another reason.
        self.watched.lose(UnseenReason::Removed, None, tell);
        if !builder.reattach || !can_return {
            return Err(Failure::Gone(self.watched.name.clone()));
        }

        let find = || match Device::find(&self.watched.name) {
            Ok(device) => Ok(Some(device).filter(|device| device.up)),
            Err(DeviceError::NoSuchDevice { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let device = match find() {
            Ok(Some(device)) => device,
            Ok(None) => return removed(None),
            Err(obstacle) => return removed(Some(obstacle)),
        };

        // It was created down. Messages about that would look like an interruption after its
        // return; those that were sent before it is found up a second time are about the gap that
        // ends now.
        if let Some(events) = shared.events.as_deref() {
            late.add_of_others(events, device.index);
        }

        let device = match find() {
            Ok(Some(again)) if again.index == device.index => again,
            _ => return removed(None),
        };
        let Some(attachment) = &mut self.attachment else { return removed(None) };
        shared.forget_rings_of(self.index);

        let moved = attachment.move_to(&device);
        shared.watch_rings_of(self.index);

        match moved {
            Ok(()) => {
                self.begin_counting(&device);
                self.watched.begin_on(&device);

                // There may be more queues than rings.
                let rx_queues = device.rx_queues.min(self.target.device.rx_queues);
                self.target.device = device;
                self.target.device.rx_queues = rx_queues;
                self.begin_comparison(shared);

                Ok(State::Well)
            }
            Err(error) => removed(Some(causes(&error))),
        }
    }

    /// Opens rings on added receive queues, if the whole interface is captured; returns whether
    /// there were any.
    fn seat_new_queues(
        &mut self,
        shared: &Shared,
        builder: &CaptureBuilder,
        rx_queues: u32,
        tell: &dyn Fn(Event),
    ) -> State {
        let Some(Attachment::Xdp(attachment)) = &mut self.attachment else { return State::Well };

        if !self.target.whole {
            // They were not requested, but may now receive flows that arrived on others before.
            let reason = "it is not one of the named queues";

            for queue in self.target.device.rx_queues..rx_queues {
                let interface = self.watched.name.clone();
                let reason = reason.to_owned();
                tell(Event::QueueMissed { interface, queue, reason });
            }

            self.target.device.rx_queues = rx_queues;
            return State::Well;
        }

        if rx_queues == self.target.device.rx_queues && self.watched.missed_queue.is_none() {
            return State::Well;
        }

        let have_appeared = rx_queues > self.target.device.rx_queues;
        if have_appeared {
            self.watched.lose(UnseenReason::Queues, None, tell);
        }

        while let Some(queue) = attachment.next_queue(rx_queues) {
            let seated =
                attachment.open_queue(queue, shared.group.rings().len()).and_then(|rings| {
                    let name = rings[0].identity().name.clone();
                    rings
                        .into_iter()
                        .try_for_each(|ring| shared.add_ring(ring, builder.group_per_interface))?;
                    Ok(name)
                });
            match seated {
                Ok(ring) => {
                    self.watched.missed_queue = None;
                    tell(Event::QueueAppeared { ring });
                }
                Err(error) => {
                    let interface = self.watched.name.clone();
                    let reason = causes(&error);
                    let missed = Some((queue, reason.clone()));
                    if self.watched.missed_queue != missed {
                        self.watched.missed_queue = missed;
                        tell(Event::QueueMissed { interface, queue, reason });
                    }
                    break;
                }
            }
        }

        if have_appeared && let Err(error) = attachment.run_on_new_queues() {
            return State::Unwell(UnseenReason::Queues, Some(causes(&error)));
        }

        self.target.device.rx_queues = rx_queues;
        State::Well
    }

    /// With `auto`: returns the interface to the host, which has begun to use it, and continues
    /// with the engine `packet`. If that fails, the capture continues as before.
    fn hand_back(
        &mut self,
        shared: &Shared,
        builder: &CaptureBuilder,
        device: &Device,
        reason: &Reason,
    ) -> Result<(), OpenError> {
        let Some(Attachment::Xdp(before)) = &mut self.attachment else { return Ok(()) };
        let turn = before.prepare_to_pass()?;
        let filter = self.target.compile_filter()?;
        let first = shared.group.rings().len();
        let index = self.index;

        let way = Way::Packet {
            spread: Spread::Flows { rings: self.rings_on_return },
            direction: Direction::In,
        };
        let target = Target { device: device.clone(), way, ..self.target.clone() };

        // Before the first packet can arrive that takes so long.
        shared.allow_delay(builder.packet_delay());
        let settings = builder.ring_settings(&target, filter, self.geometry, (index, first));
        let opened = builder.open_packet(&target, settings, &mut self.standby)?;

        // Packets that pass wait in the new rings until workers find them.
        before.let_pass(&turn)?;
        if let Some(Attachment::Xdp(before)) = self.attachment.replace(opened.attachment) {
            self.former = Some(before);
        }

        self.target.way = target.way;
        self.watched.change_engine();
        self.was_handed_back = true;
        self.comparison.give_up(&self.watched.name, "the engine changed");
        opened
            .rings
            .into_iter()
            .try_for_each(|ring| shared.add_ring(ring, builder.group_per_interface))?;

        let interface = self.watched.name.clone();
        let reason = reason.to_string();
        builder.tell(&Event::HandedBack { interface, reason });

        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn watched(on_bus: bool) -> Watched {
        Watched {
            well: SystemTime::now(),
            well_before: SystemTime::now(),
            counted: Instant::now(),
            connection: Connection::default(),
            unseen: Vec::new(),
            obstacle: None,
            missed_queue: None,
            name: "eth7".to_owned(),
            is_on_loan: false,
            not_handed_back: None,
            carrier_losses: None,
            liveness: on_bus.then(Liveness::default),
            liveness_watch: LivenessWatch::default(),
            queues: Queues::default(),
            packets: 0,
            last_packet: None,
            felt: SystemTime::now(),
            began: SystemTime::now(),
            shows_no_life: false,
            was_attached_anew: false,
            has_own_frames: false,
        }
    }

    pub(crate) fn interface_state(carrier: bool, losses: u32) -> InterfaceState {
        let carrier_losses = Some(losses);
        let name = "eth7".to_owned();
        let attached_xdp = Vec::new();
        InterfaceState {
            name,
            up: true,
            carrier,
            carrier_losses,
            mtu: 1500,
            attached_xdp,
            rx_queues: None,
        }
    }

    #[test]
    fn a_carrier_loss_between_two_checks_is_detected() {
        let mut watched = watched(true);
        let looks = [
            (true, 4),
            (true, 4),
            (true, 5),
            (true, 5),
            (false, 6),
            (false, 6),
            (true, 6),
            (true, 6),
        ];
        let found = looks
            .map(|(carrier, losses)| watched.follow_carrier(&interface_state(carrier, losses)));

        use Carrier::{Flapped, Gone, Steady};
        assert_eq!(found, [Steady, Steady, Flapped, Steady, Gone, Gone, Flapped, Steady]);
    }

    #[test]
    fn an_interface_whose_rings_were_resized_may_have_lost_packets() {
        let mut changes = Changes::default();
        changes.add(News::Resized { index: 7 });
        assert_eq!(changes.interruption(7, Carrier::Steady), Some(UnseenReason::Resized));
        assert_eq!(changes.interruption(8, Carrier::Steady), None);
        assert!(!changes.host, "it says nothing about the host");
        // A driver that restarts its device loses more.
        changes.add(News::Link { index: 7, up: false });
        assert_eq!(changes.interruption(7, Carrier::Steady), Some(UnseenReason::Down));
    }

    #[test]
    fn a_device_that_has_had_no_carrier_yet_misses_nothing() {
        let mut watched = watched(true);
        let looks = [(false, 1), (false, 1), (true, 1), (true, 1), (false, 2)];
        let found = looks
            .map(|(carrier, losses)| watched.follow_carrier(&interface_state(carrier, losses)));
        use Carrier::{Gone, Steady};
        assert_eq!(found, [Steady, Steady, Steady, Steady, Gone]);
    }

    #[test]
    fn the_carrier_of_a_virtual_interface_is_ignored() {
        let mut watched = watched(false);
        let looks = [(true, 1), (false, 2), (true, 3)];
        let found = looks
            .map(|(carrier, losses)| watched.follow_carrier(&interface_state(carrier, losses)));
        assert_eq!(found, [Carrier::Steady; 3]);
    }

    #[test]
    fn a_device_that_was_asked_owes_no_answer_after_a_hand_back() {
        let mut watched = watched(true);
        let began = Instant::now();
        let signs = |packets| Signs { packets, interrupts: Some(5), was_reset: false };

        // It delivered packets, and was asked when it was idle.
        [0, 3, 3]
            .into_iter()
            .for_each(|packets| _ = watched.liveness_watch.feel(signs(packets), began));
        watched.liveness_watch.ask(began);

        let later = began + Duration::from_secs(9);
        assert!(matches!(watched.liveness_watch.clone().feel(signs(3), later), Life::Silent(..)));
        watched.change_engine();
        assert_eq!(
            watched.liveness_watch.feel(signs(3), later),
            Life::Alive,
            "a link that is quiet after a hand-back"
        );
    }

    #[test]
    fn a_silence_that_is_found_late_is_a_gap_from_its_beginning() {
        let mut watched = watched(true);
        let told = std::cell::RefCell::new(Vec::new());
        let tell = |event| told.borrow_mut().push(event);
        let well = watched.well;
        let from = well - Duration::from_secs(2);
        watched.lose_since(from, UnseenReason::Silent, None, &tell);
        watched.lose_since(well, UnseenReason::Silent, None, &tell);
        assert_eq!(watched.unseen().len(), 1);
        assert_eq!((watched.unseen()[0].from, watched.unseen()[0].to), (from, None));
        watched.find_well(SystemTime::now(), SystemTime::now(), &tell);
        assert!(watched.unseen()[0].to.is_some() && watched.unseen_now().is_none());
        assert_eq!(told.borrow().len(), 2, "{:?}", told.borrow());
    }
}
