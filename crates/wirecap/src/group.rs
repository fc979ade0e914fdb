//! Buddy groups: which worker captures from which ring, and when.
//!
//! The paper's capture threads push chunks to the least busy buddy (section 3.2.2). Here workers
//! pull: a worker whose home rings are below the threshold takes a chunk from the buddy ring with
//! the largest backlog above it, serves each home ring once, and looks again. In the balanced case
//! offloading costs a look at one word that all workers share ([`pressure`]); it needs no thread of
//! the engine. This module only decides: it neither waits nor calls the kernel, so the simulator
//! runs it unchanged.
//!
//! Measured for 20 s (`tests/group/skew.rs`, `xdp`, two queues, 50 µs a packet): 99 of 100 packets
//! of the helper were delivered within 3.8 ms for M = 64 (bound: a wake-up and two chunks, 8.4 ms),
//! and within 12.4 ms for M = 256 (bound 27.6 ms).

pub(crate) mod guarantee;
#[cfg_attr(
    not(any(test, feature = "sim")),
    expect(unreachable_pub, dead_code, reason = "only the simulator compares policies")
)]
pub(crate) mod policy;
mod pressure;

use std::ops::Index;
use std::sync::Arc;
use std::time::Duration;

use crate::append_vec::AppendVec;
use crate::error::CaptureError;
use crate::ledger::Mode;
use crate::names::RingName;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, fence, lock, try_lock};
use crate::umem::chunk::Chunk;
use crate::umem::ring::{Help, Ring, RingSize};

pub(crate) use policy::{Next, Policy, Turn};
use pressure::Pressure;

/// The rings that one application reads, and their workers. Rings may be added while it runs.
#[derive(Debug)]
pub(crate) struct Group {
    /// Its rings. A ring and what belongs to it are one entry, so no thread finds one without the
    /// other.
    members: AppendVec<Member>,
    mode: Mode,
    policy: Policy,
    stuck_after: Duration,
    seats: Vec<Seat>,
    /// Whether rings of each part may be above T.
    pressures: Vec<Pressure>,
    /// Held while a ring is added.
    adding: Mutex<()>,
    /// Some rings need tending.
    tended: bool,
    /// The number of workers that are gone.
    gone: AtomicUsize,
    ending: AtomicBool,
}

/// The state of one worker that others can see.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Indices of its home rings in the group.
    home: AppendVec<usize>,
    /// Only workers of the same part are its buddies.
    part: usize,
    /// Twice the number of its requests for a chunk, plus [`IDLE`] if the last one found none;
    /// [`GONE`] when it makes no more. Only the worker itself counts: a clock reading per request
    /// would cost more than the rest of advanced mode.
    asked: AtomicU64,
    /// The value of `asked` that an idle buddy saw, and when.
    seen: Mutex<Seen>,
    /// It sleeps or is about to, and may be woken.
    asleep: AtomicBool,
    /// Chunks that it took from each ring of other workers. Only the worker itself counts.
    helped: Box<[AtomicU64]>,
}

const GONE: u64 = u64::MAX;
const IDLE: u64 = 1;
/// The increment of the count per request.
const ASKED_ONCE: u64 = 2;

impl Seat {
    /// Counts a request; returns the new count.
    #[inline]
    fn count_question(&self) -> u64 {
        let asked = (self.asked.load(Ordering::Relaxed) & !IDLE) + ASKED_ONCE;
        self.asked.store(asked, Ordering::Relaxed);
        asked
    }
}

/// A ring of the group, and the properties that a worker must know without accessing the ring.
#[derive(Debug)]
struct Member {
    ring: Arc<dyn Ring>,
    size: RingSize,
    /// Its home worker.
    home: usize,
    /// The largest backlog that is not above T; in basic mode no backlog is above T.
    limit: u32,
}

impl Member {
    fn new(home: usize, ring: Arc<dyn Ring>, mode: Mode) -> Self {
        let size = ring.size();
        let limit = match mode {
            Mode::Basic => u32::MAX,
            // A backlog never exceeds the whole pool.
            Mode::Advanced(threshold) if threshold >= 1.0 => size.capacity,
            Mode::Advanced(threshold) => (threshold * f64::from(size.usable)) as u32,
        };
        #[cfg(sabotage)]
        let limit = if crate::sabotage::is("threshold-of-zero") { 0 } else { limit };
        Self { ring, size, home, limit }
    }
}

/// The rings of a group, in the order of their indices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rings<'a>(&'a AppendVec<Member>);

impl<'a> Rings<'a> {
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    /// The maximum number of rings.
    pub(crate) fn room(self) -> usize {
        self.0.room()
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = &'a Arc<dyn Ring>> {
        self.0.iter().map(|member| &member.ring)
    }
}

impl Index<usize> for Rings<'_> {
    type Output = Arc<dyn Ring>;

    fn index(&self, index: usize) -> &Arc<dyn Ring> {
        &self.0[index].ring
    }
}

/// The number of requests after which a worker looks at one ring of another worker, in turn.
/// Usually a ring above T is noted by its own worker, which looks after each chunk, or by workers
/// that are about to wait. But a worker that is stuck with a chunk does not look, and a worker that
/// always has packets at home does not wait.
pub(crate) const GLANCE_EVERY: u64 = 16;

/// A look at a worker's count of requests.
#[derive(Debug, Clone, Copy)]
struct Seen {
    asked: u64,
    /// When a second look found the same count, in nanoseconds of the group's clock. The first look
    /// reads no clock, because usually there is no second one.
    since: Option<u64>,
}

impl Group {
    /// A group of `rings`, assigned in turn to `workers` workers.
    pub(crate) fn new(
        rings: Vec<Arc<dyn Ring>>,
        workers: usize,
        mode: Mode,
        stuck_after: Duration,
    ) -> Self {
        let parts = vec![0; rings.len()];
        Self::in_parts(rings, parts, workers, mode, stuck_after)
    }

    /// Several groups in one: only rings of the same part are buddies. `parts` has the part of each
    /// ring, starting at 0; there are at least as many workers as parts. Workers are assigned in
    /// turn to the parts that have more rings than workers, and share the rings of a part in turn.
    pub(crate) fn in_parts(
        rings: Vec<Arc<dyn Ring>>,
        parts: Vec<usize>,
        workers: usize,
        mode: Mode,
        stuck_after: Duration,
    ) -> Self {
        let rings_of =
            |part| (0..rings.len()).filter(|ring| parts[*ring] == part).collect::<Vec<_>>();
        let part_count = parts.iter().max().map_or(0, |last| last + 1);
        let rings_of_parts: Vec<Vec<usize>> = (0..part_count).map(rings_of).collect();
        let shares = shares(&rings_of_parts.iter().map(Vec::len).collect::<Vec<_>>(), workers);
        let mut seats = Vec::new();
        let ring_count = rings.len();

        for (part, (rings, share)) in rings_of_parts.iter().zip(shares).enumerate() {
            seats.extend((0..share).map(|worker| Seat {
                home: AppendVec::new(rings.iter().copied().skip(worker).step_by(share), 0),
                part,
                asked: AtomicU64::new(IDLE),
                seen: Mutex::new(Seen { asked: IDLE, since: None }),
                asleep: AtomicBool::new(false),
                helped: counters(ring_count),
            }));
        }

        let tended = rings.iter().any(|ring| ring.unattended() < ring.size().capacity);
        let mut members: Vec<Member> =
            rings.into_iter().map(|ring| Member::new(0, ring, mode)).collect();
        for (worker, seat) in seats.iter().enumerate() {
            seat.home.iter().for_each(|&ring| members[ring].home = worker);
        }

        Self {
            members: AppendVec::new(members, 0),
            mode,
            policy: Policy::default(),
            stuck_after,
            seats,
            pressures: (0..part_count).map(|_| Pressure::default()).collect(),
            adding: Mutex::new(()),
            tended,
            gone: AtomicUsize::new(0),
            ending: AtomicBool::new(false),
        }
    }

    /// The same group with another policy.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// The same group with room for `more` rings.
    pub(crate) fn with_room(mut self, more: usize) -> Self {
        self.members = self.members.with_room(more);
        let seats = self.seats.into_iter();
        let room = self.members.room();
        let with_room =
            |seat: Seat| Seat { home: seat.home.with_room(more), helped: counters(room), ..seat };
        self.seats = seats.map(with_room).collect();
        self
    }

    /// Adds `ring`, whose index is the current number of rings: it becomes a home ring of the
    /// worker of `part` with the fewest. Returns that worker; `None` if there is no room.
    pub(crate) fn add(&self, ring: Arc<dyn Ring>, part: usize) -> Option<usize> {
        let _adding = lock(&self.adding);
        assert_eq!(
            ring.identity().index,
            self.members.len(),
            "rings are added in the order of their indices"
        );
        let of_part = |worker: &usize| self.seats[*worker].part == part;
        let workers = (0..self.seats.len()).filter(of_part);
        let worker = workers.min_by_key(|worker| self.seats[*worker].home.len())?;
        let index = self.members.push(Member::new(worker, ring, self.mode)).ok()?;
        self.seats[worker].home.push(index).expect("a worker has room for all rings");
        Some(worker)
    }

    pub(crate) fn rings(&self) -> Rings<'_> {
        Rings(&self.members)
    }

    /// The smallest number of packets that one of the rings can take without being tended; `None`
    /// if no ring needs tending.
    pub(crate) fn unattended(&self) -> Option<u32> {
        self.tended.then(|| self.rings().iter().map(|ring| ring.unattended()).min()).flatten()
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn stuck_after(&self) -> Duration {
        self.stuck_after
    }

    pub(crate) fn workers(&self) -> usize {
        self.seats.len()
    }

    /// The maximum number of home rings of a worker.
    pub(crate) fn home_rings(&self) -> usize {
        self.seats.iter().map(|seat| seat.home.len()).max().unwrap_or(0)
    }

    /// The home rings of `worker`.
    pub(crate) fn home(&self, worker: usize) -> impl Iterator<Item = &Arc<dyn Ring>> {
        self.seats[worker].home.iter().map(|&ring| &self.members[ring].ring)
    }

    /// The first home ring of each worker.
    pub(crate) fn first_rings(&self) -> Vec<RingName> {
        let first = |worker| self.home(worker).next().map(|ring| ring.identity().name.clone());
        (0..self.workers()).filter_map(first).collect()
    }

    /// The home worker of `ring`.
    pub(crate) fn home_of(&self, ring: usize) -> usize {
        self.members[ring].home
    }

    /// The largest backlog of `ring` that wakes no buddy; none in basic mode.
    pub(crate) fn limit_of(&self, ring: usize) -> Option<u32> {
        (self.mode != Mode::Basic).then(|| self.members[ring].limit)
    }

    /// The workers other than the home worker that took chunks from `ring`, each with their number.
    pub(crate) fn helpers_of(&self, ring: usize) -> Vec<(usize, u64)> {
        let chunks = |seat: &Seat| seat.helped[ring].load(Ordering::Relaxed);
        let counts = self.seats.iter().map(chunks).enumerate();
        counts.filter(|(_, chunks)| *chunks > 0).collect()
    }

    /// From now on, workers end when their rings are empty.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// The next chunk for `worker`; `None` if no packets wait. `turn` is where it continues, with
    /// its other state; `now` is a clock that all workers share, in nanoseconds.
    #[inline]
    pub(crate) fn ask(
        &self,
        worker: usize,
        turn: &mut Turn,
        now: impl Fn() -> u64,
    ) -> Result<Option<Chunk>, CaptureError> {
        turn.calls = 0;

        // Read first: packets that arrived before the end are then still found below.
        let ending = self.ending.load(Ordering::Acquire);
        let seat = &self.seats[worker];

        let mut urgent = match self.mode {
            Mode::Basic => {
                self.check_for_orphans()?;
                None
            }
            Mode::Advanced(_) => {
                let asked = seat.count_question();
                let may_be_pressed = self.pressures[seat.part].is_noted()
                    || self.glances_at_a_pressed_ring(worker, asked);
                if may_be_pressed { self.urgent_ring(worker) } else { None }
            }
        };
        let homes = seat.home.len();
        for _ in 0..homes {
            if let Some(ring) =
                urgent.take_if(|ring| turn.is_free() || ring.is_brimming(self.workers()))
                && let Some(chunk) = self.relieve(worker, turn, &ring)?
            {
                return Ok(Some(chunk));
            }

            let place = seat.home[turn.advance(homes)];
            let captured = self.members[place].ring.capture();
            match &captured {
                Ok(None) => {
                    turn.looked(self.policy.next, 0);
                    continue;
                }
                Ok(Some(chunk)) => {
                    turn.looked(self.policy.next, chunk.len());
                    turn.calls = self.calls_after(worker, place, chunk);
                }
                Err(_) => {}
            }

            // Returned unchanged: a chunk is some ten words.
            return captured;
        }

        self.ask_buddies(worker, turn, urgent.as_ref(), now, ending)
    }

    /// The next chunk for `worker`, whose home rings are empty. `urgent` is a ring above the
    /// threshold, if known.
    #[cold]
    fn ask_buddies(
        &self,
        worker: usize,
        turn: &mut Turn,
        urgent: Option<&Candidate<'_>>,
        now: impl Fn() -> u64,
        ending: bool,
    ) -> Result<Option<Chunk>, CaptureError> {
        turn.settle();

        if let Some(ring) = urgent
            && let Some(chunk) = self.relieve(worker, turn, ring)?
        {
            return Ok(Some(chunk));
        }

        if let Some(ring) = self.busiest_buddy(worker, now, ending)
            && let Some(chunk) = self.relieve(worker, turn, &ring)?
        {
            return Ok(Some(chunk));
        }

        self.seats[worker].asked.fetch_or(IDLE, Ordering::Relaxed);
        if self.tended {
            // A worker that captures tends that ring; an idle one tends all.
            self.rings().iter().for_each(|ring| ring.tend());
        }

        let over = ending || self.rings().iter().all(|ring| ring.is_exhausted());
        turn.has_ended = over && self.is_drained(worker);

        Ok(None)
    }

    /// Whether `worker` may end. With offloading every worker may take the group's last chunks.
    fn is_drained(&self, worker: usize) -> bool {
        match self.mode {
            Mode::Basic => self.home(worker).all(|ring| ring.is_empty()),
            Mode::Advanced(_) => {
                let is_drained = |member: &Member| {
                    !self.are_buddies(worker, member.home) || member.ring.is_empty()
                };
                self.members.iter().all(is_drained)
            }
        }
    }

    /// The ring that `worker` should relieve: the one of its home rings above the threshold with
    /// the largest backlog; if there is none, of its buddies' rings.
    #[cold]
    fn urgent_ring(&self, worker: usize) -> Option<Candidate<'_>> {
        #[cfg(sabotage)]
        if crate::sabotage::is("home-rings-first") {
            return None;
        }
        if self.policy.next == Next::HomeFirst {
            return None;
        }

        let pressure = self.pressure_of(worker);
        let look = pressure.look();
        let mut own = None;
        let mut others = None;

        for &Member { ref ring, size, home, limit } in self.members.iter() {
            if !self.are_buddies(worker, home) {
                continue;
            }

            let backlog = ring.backlog();
            if backlog > limit {
                let is_own = home == worker;
                let urgent = Candidate { ring, size, limit, is_abandoned: false, is_own, backlog };
                urgent.replace_if_fuller(if is_own { &mut own } else { &mut others });
            }
        }

        match (own, others) {
            (Some(own), Some(others)) if self.policy.next == Next::Fullest => {
                Some(if own.by_share(&others).is_lt() { others } else { own })
            }
            (None, None) => {
                pressure.settle(look);
                None
            }
            (own, others) => own.or(others),
        }
    }

    /// Whether a ring of `worker` or of a buddy is above the threshold. If so, it is noted.
    pub(crate) fn is_needed(&self, worker: usize) -> bool {
        if self.mode == Mode::Basic {
            return false;
        }
        let is_pressed = |member: &Member| {
            self.are_buddies(worker, member.home) && member.ring.backlog() > member.limit
        };
        let is_needed = self.members.iter().any(is_pressed);
        if is_needed {
            self.pressure_of(worker).note();
        }
        is_needed
    }

    /// Occasionally looks at one ring of a buddy of `worker`, depending on its number of requests.
    #[inline]
    fn glances_at_a_pressed_ring(&self, worker: usize, asked: u64) -> bool {
        (asked / ASKED_ONCE).is_multiple_of(GLANCE_EVERY)
            && self.glance(worker, asked / ASKED_ONCE / GLANCE_EVERY)
    }

    #[cold]
    fn glance(&self, worker: usize, turn: u64) -> bool {
        let index = (turn % self.members.len() as u64) as usize;
        let member = &self.members[index];
        let is_pressed = member.home != worker
            && self.are_buddies(worker, member.home)
            && member.ring.backlog() > member.limit;
        if is_pressed {
            self.pressure_of(worker).note();
        }
        is_pressed
    }

    fn pressure_of(&self, worker: usize) -> &Pressure {
        &self.pressures[self.seats[worker].part]
    }

    /// Indices of the home rings of `worker` in the group.
    fn home_places(&self, worker: usize) -> impl Iterator<Item = usize> {
        self.seats[worker].home.iter().copied()
    }

    /// Takes a chunk from `ring`, which is above its limit, if it still is.
    #[cold]
    fn relieve(
        &self,
        worker: usize,
        turn: &mut Turn,
        candidate: &Candidate<'_>,
    ) -> Result<Option<Chunk>, CaptureError> {
        let &Candidate { ring, size, limit, is_abandoned, is_own, .. } = candidate;
        #[cfg(sabotage)]
        if !is_own && !is_abandoned && limit > 0 {
            let is_too_early = || {
                crate::sabotage::is("help-when-brimming") && !candidate.is_brimming(self.workers())
            };
            if crate::sabotage::is("no-helping") || is_too_early() {
                return Ok(None);
            }
        }

        let chunk = if is_own {
            ring.capture()?
        } else {
            let most = size.chunk_cells.div_ceil(self.policy.parts);
            ring.offload(Help { limit, most, abandoned: is_abandoned })?
        };
        let Some(chunk) = chunk else { return Ok(None) };

        if !is_own {
            let helped = &self.seats[worker].helped[ring.identity().index];
            helped.store(helped.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }

        turn.relieved(self.policy.next, self.seats[worker].home.len(), chunk.len());

        // A stuck or gone worker cannot wake others: each helper wakes the next ones.
        let left = chunk.left_behind().unwrap_or_else(|| ring.backlog()).saturating_sub(limit);
        if left > 0 && !is_abandoned {
            self.pressure_of(worker).note();
        }

        turn.calls =
            if left > 0 { self.calls(size, left) } else { usize::from(self.is_needed(worker)) };
        Ok(Some(chunk))
    }

    /// The ring with the largest backlog above the threshold, if any. Packets in the rings of
    /// workers that are stuck, gone or ending are taken whatever the threshold.
    fn busiest_buddy(
        &self,
        worker: usize,
        now: impl Fn() -> u64,
        ending: bool,
    ) -> Option<Candidate<'_>> {
        if self.mode == Mode::Basic {
            return None;
        }

        let now = &now;
        let is_other = |&other: &usize| other != worker && self.are_buddies(worker, other);
        let others = (0..self.seats.len()).filter(is_other);
        let candidates = others.flat_map(|other| {
            let is_abandoned = self.is_away(other, now);
            self.home_places(other).map(move |place| {
                let &Member { ref ring, size, limit, .. } = &self.members[place];
                let limit = if ending || is_abandoned { 0 } else { limit };
                let backlog = ring.backlog();
                Candidate { ring, size, limit, is_abandoned, is_own: false, backlog }
            })
        });

        candidates.filter(|buddy| buddy.backlog > buddy.limit).max_by(Candidate::by_share)
    }

    /// Whether `worker` is gone, or has made no request for too long although it has packets. The
    /// time counts from the second look of idle buddies.
    fn is_away(&self, worker: usize, now: impl Fn() -> u64) -> bool {
        let seat = &self.seats[worker];
        let asked = seat.asked.load(Ordering::Acquire);

        #[cfg(sabotage)]
        if crate::sabotage::is("gone-worker-not-replaced") {
            return false;
        }
        if asked == GONE {
            return true;
        }

        // If another buddy is looking right now, it will decide.
        let Some(mut seen) = try_lock(&seat.seen) else { return false };
        let rests = asked & IDLE != 0 && self.home(worker).all(|ring| ring.is_empty());
        if rests || asked != seen.asked {
            *seen = Seen { asked, since: None };
            return false;
        }

        #[cfg(sabotage)]
        if crate::sabotage::is("stuck-worker-not-replaced") {
            return false;
        }
        #[cfg(sabotage)]
        if crate::sabotage::is("stuck-at-once") {
            return true;
        }

        let now = now();
        now.saturating_sub(*seen.since.get_or_insert(now)) > self.stuck_after.as_nanos() as u64
    }

    /// Whether `worker` would find no packets now, and must not end.
    pub(crate) fn is_quiet(&self, worker: usize, now: impl Fn() -> u64) -> bool {
        !self.ending.load(Ordering::Acquire)
            && self.home(worker).all(|ring| ring.is_empty())
            && self.busiest_buddy(worker, now, false).is_none()
    }

    /// The number of workers that should help `worker`, which just captured `chunk` from the ring
    /// at `place`, with its home rings.
    #[inline]
    fn calls_after(&self, worker: usize, place: usize, chunk: &Chunk) -> usize {
        if self.mode == Mode::Basic {
            return 0;
        }
        let left = chunk.left_behind().unwrap_or_else(|| self.members[place].ring.backlog());
        let is_alone = self.seats[worker].home.len() == 1;
        // With a single ring there is nothing else to check.
        if is_alone && left <= self.members[place].limit {
            0
        } else {
            self.calls_of(worker, place, left)
        }
    }

    /// The same if there may be something to help with, which is noted: `left` packets remained
    /// after the chunk.
    #[inline(never)]
    fn calls_of(&self, worker: usize, captured: usize, left: u32) -> usize {
        let mut calls = 0;
        for place in self.home_places(worker) {
            let &Member { ref ring, size, limit, .. } = &self.members[place];
            let backlog = if place == captured { left } else { ring.backlog() };
            if backlog > limit {
                self.pressure_of(worker).note();
                calls = self.calls(size, backlog - limit).max(calls);
            }
        }
        calls
    }

    /// The number of workers that should help with a ring of this size, from which this many packets
    /// should be taken: one per chunk.
    fn calls(&self, size: RingSize, packets: u32) -> usize {
        (packets.div_ceil(size.chunk_cells) as usize).min(self.policy.calls_max)
    }

    /// Whether two workers are of the same part, or the same worker.
    fn are_buddies(&self, worker: usize, other: usize) -> bool {
        #[cfg(sabotage)]
        if crate::sabotage::is("every-worker-is-a-buddy") {
            return true;
        }
        self.seats[worker].part == self.seats[other].part
    }

    /// A sleeping buddy of `worker`, to be woken by the caller. Each is returned once.
    pub(crate) fn next_sleeper(&self, worker: usize) -> Option<usize> {
        // We saw a backlog and look for sleepers; a sleeper announces itself and looks for a
        // backlog. A full fence between the two steps on both sides ensures that one of us sees the
        // other.
        fence(Ordering::SeqCst);
        #[cfg(sabotage)]
        if crate::sabotage::is("no-buddy-woken") {
            return None;
        }

        let asleep = |&other: &usize| {
            let is_other = other != worker && self.are_buddies(worker, other);
            is_other && self.seats[other].asleep.swap(false, Ordering::Relaxed)
        };
        (0..self.seats.len()).find(asleep)
    }

    /// Sets whether `worker` can be woken to help. Before it sleeps it must check once more whether
    /// all [is quiet](Self::is_quiet): a worker that needed help before did not see it asleep.
    pub(crate) fn set_asleep(&self, worker: usize, asleep: bool) {
        self.seats[worker].asleep.store(asleep, Ordering::Relaxed);
        // The other half of the fence in `next_sleeper`.
        fence(Ordering::SeqCst);
    }

    /// `worker` is gone: its buddies serve its rings.
    pub(crate) fn leave(&self, worker: usize) {
        self.seats[worker].asked.store(GONE, Ordering::Release);
        self.gone.fetch_add(1, Ordering::Release);
    }

    /// In basic mode, no other worker may take the packets of a worker that is gone. Returns an
    /// error, because the ring would fill up unnoticed.
    fn check_for_orphans(&self) -> Result<(), CaptureError> {
        // In this order: a worker that left because the capture ended causes no error.
        if self.gone.load(Ordering::Acquire) == 0 || self.ending.load(Ordering::Acquire) {
            return Ok(());
        }
        #[cfg(sabotage)]
        if crate::sabotage::is("orphan-unnoticed") {
            return Ok(());
        }

        let gone = |seat: &&Seat| seat.asked.load(Ordering::Acquire) == GONE;
        match self.seats.iter().find(gone).and_then(|seat| seat.home.first()) {
            Some(&ring) => Err(CaptureError::Orphaned {
                ring: self.members[ring].ring.identity().name.clone(),
            }),
            None => Ok(()),
        }
    }
}

fn counters(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// How many of `workers` workers each part with this many rings gets: at least one, and no more
/// than rings while other parts have fewer workers than rings.
fn shares(rings: &[usize], workers: usize) -> Vec<usize> {
    let mut shares = vec![1; rings.len()];
    for _ in rings.len()..workers {
        let neediest =
            (0..rings.len()).max_by_key(|&part| rings[part].saturating_sub(shares[part]));
        if let Some(part) = neediest {
            shares[part] += 1;
        }
    }
    shares
}

/// A ring that may need help.
struct Candidate<'a> {
    ring: &'a Arc<dyn Ring>,
    size: RingSize,
    /// The backlog down to which it may be drained.
    limit: u32,
    /// Its worker is stuck or gone.
    is_abandoned: bool,
    /// It is a home ring of the asking worker.
    is_own: bool,
    backlog: u32,
}

impl Candidate<'_> {
    /// The backlog as a share of the pool.
    fn share(&self) -> f64 {
        f64::from(self.backlog) / f64::from(self.size.capacity)
    }

    /// Replaces the ring in `fullest` if there is none or it is less full.
    fn replace_if_fuller(self, fullest: &mut Option<Self>) {
        if fullest.as_ref().is_none_or(|before| before.by_share(&self).is_le()) {
            *fullest = Some(self);
        }
    }

    fn by_share(&self, other: &Self) -> std::cmp::Ordering {
        self.share().total_cmp(&other.share())
    }

    /// Whether its pool is practically used up: the remaining room is only that of the chunks that
    /// `workers` may hold. This does not happen with settings that meet the [guarantee](Guarantee)
    /// and a load of at most 0.9 of the group's capacity.
    fn is_brimming(&self, workers: usize) -> bool {
        let held = (workers as u32).saturating_mul(self.size.chunk_cells);
        self.backlog >= self.size.usable.saturating_sub(held)
    }
}

#[cfg(test)]
mod count {
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::ledger::Account;
    use crate::names::RingName;
    use crate::savefile::LinkType;
    use crate::sync::AtomicU32;
    use crate::umem::chunk::RingIdentity;
    use crate::umem::ring::Counters;

    /// A test ring that consists only of a count of its waiting packets.
    #[derive(Debug)]
    pub(super) struct Count {
        identity: Arc<RingIdentity>,
        pub(super) waiting: AtomicU32,
    }

    impl Ring for Count {
        fn identity(&self) -> &Arc<RingIdentity> {
            &self.identity
        }

        fn size(&self) -> RingSize {
            RingSize { capacity: 4, usable: 4, chunk_cells: 1 }
        }

        fn capture(&self) -> Result<Option<Chunk>, CaptureError> {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return Ok(None);
            }
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            Ok(Some(Chunk::hollow(&self.identity)))
        }

        fn offload(&self, _help: Help) -> Result<Option<Chunk>, CaptureError> {
            self.capture()
        }

        fn watch(&self, _watch: &mut dyn FnMut(BorrowedFd<'_>)) {}

        fn is_gone(&self) -> bool {
            false
        }

        fn close(&self) {}
    }

    impl Counters for Count {
        fn backlog(&self) -> u32 {
            self.waiting.load(Ordering::Relaxed)
        }

        fn account(&self) -> Account {
            Account::default()
        }
    }

    pub(super) fn ring(index: usize) -> Arc<Count> {
        let name = RingName::of_queue("model", index as u32);
        let identity = RingIdentity {
            name,
            index,
            interface_index: 0,
            snap_len: 0,
            link_type: LinkType::ETHERNET,
            order: Default::default(),
        };
        Arc::new(Count { identity: Arc::new(identity), waiting: AtomicU32::new(0) })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::count::ring;
    use super::*;

    /// Workers look at all rings while the watcher adds the rings of new receive queues.
    #[test]
    fn workers_find_complete_rings_while_rings_are_added() {
        // Miri takes a third of a second for a round.
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 1000 };
        const RINGS: usize = 10;

        for _ in 0..ROUNDS {
            let rings: Vec<Arc<dyn Ring>> = vec![ring(0), ring(1)];
            let group = Group::new(rings, 2, Mode::Advanced(0.5), Duration::from_secs(1))
                .with_room(RINGS - 2);
            let begin = std::sync::Barrier::new(2);

            std::thread::scope(|scope| {
                scope.spawn(|| {
                    begin.wait();
                    while group.rings().len() < RINGS {
                        assert!(!group.is_needed(0) && group.is_drained(0), "all rings are empty");
                        let last = group.rings().len() - 1;
                        assert_eq!(
                            (group.home_of(last), group.limit_of(last)),
                            (last % 2, Some(2))
                        );
                    }
                });

                begin.wait();
                (2..RINGS).for_each(|index| assert_eq!(group.add(ring(index), 0), Some(index % 2)));
            });
        }
    }

    #[test]
    fn offloading_stays_inside_the_group() {
        for parts in [[0, 0], [0, 1]] {
            let busy = ring(0);
            let rings: Vec<Arc<dyn Ring>> = vec![busy.clone(), ring(1)];
            let is_one_group = parts[0] == parts[1];

            let group = Group::in_parts(
                rings,
                parts.to_vec(),
                2,
                Mode::Advanced(0.5),
                Duration::from_millis(1),
            );
            busy.waiting.store(4, Ordering::Relaxed);

            // Above T, then also of a worker that is stuck, and at last of a capture that was
            // stopped.
            let mut now = 0;

            for stops in [false, false, true] {
                if stops {
                    group.end();
                }

                let chunk = group.ask(1, &mut Turn::default(), || now).unwrap();
                assert_eq!(
                    chunk.is_some(),
                    is_one_group,
                    "a chunk left the group: {parts:?}, {stops}"
                );
                now += Duration::from_secs(60).as_nanos() as u64;
            }

            assert_eq!(group.next_sleeper(0), None);
            group.set_asleep(1, true);
            assert_eq!(group.next_sleeper(0), is_one_group.then_some(1), "who is woken: {parts:?}");
        }
    }

    #[test]
    fn workers_are_dealt_out_to_parts_by_their_rings() {
        assert_eq!(shares(&[4], 2), [2]);
        assert_eq!(shares(&[2, 2], 4), [2, 2]);
        assert_eq!(shares(&[2, 2], 2), [1, 1]);
        assert_eq!(shares(&[1, 4], 5), [1, 4]);
        assert_eq!(shares(&[1, 4], 3), [1, 2]);
    }
}

#[cfg(all(test, loom))]
mod model {
    use loom::thread;

    use super::count::ring;
    use super::*;
    use crate::sync::model;

    /// The kernel fills a ring, its worker sees it above T, and a buddy goes to sleep: the buddy
    /// either sees the backlog before it sleeps, or it is woken.
    #[test]
    fn no_wake_up_is_lost() {
        model(|| {
            let busy = ring(0);
            let rings: Vec<Arc<dyn Ring>> = vec![busy.clone(), ring(1)];
            let group = Arc::new(Group::new(rings, 2, Mode::Advanced(0.5), Duration::from_secs(1)));
            let kernel = thread::spawn(move || busy.waiting.store(4, Ordering::Release));

            let worker = thread::spawn({
                let group = Arc::clone(&group);
                move || {
                    let mut turn = Turn::default();
                    let chunk = group.ask(0, &mut turn, || 0).unwrap();
                    chunk.map(|_| (turn.calls > 0).then(|| group.next_sleeper(0)).flatten())
                }
            });
            group.set_asleep(1, true);

            let sleeps = group.is_quiet(1, || 0);
            kernel.join().unwrap();

            if let Some(wake) = worker.join().unwrap() {
                assert!(!sleeps || wake == Some(1), "sleeps beside a ring above T");
            }
        });
    }
}
