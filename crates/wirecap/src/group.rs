//! Buddy groups: which worker captures from which ring, and when.
//!
//! The paper's capture threads push chunks to the least busy buddy (section 3.2.2). Here workers pull: one whose
//! home rings are below the threshold takes a chunk from the buddy ring with the largest backlog above it, serves each
//! home ring once, and looks again. In the balanced case offloading costs a look at the buddies' backlogs per chunk, and
//! no thread of the engine's is needed. This module decides; it neither waits nor knows the kernel, so the simulator
//! runs it as it is.

pub(crate) mod guarantee;
#[cfg_attr(
    not(any(test, feature = "sim")),
    expect(unreachable_pub, dead_code, reason = "only the simulator compares policies")
)]
pub(crate) mod policy;

use std::sync::Arc;
use std::time::Duration;

use crate::error::CaptureError;
use crate::ledger::Mode;
use crate::names::RingName;
use crate::ring::{Help, Ring};
use crate::seats::Seats;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, fence, lock, try_lock};
use crate::umem::chunk::Chunk;

pub(crate) use policy::{Next, Policy, Turn};

/// The rings that one application reads, and the workers that read them. More rings may come while it runs.
#[derive(Debug)]
pub(crate) struct Group {
    rings: Seats<Arc<dyn Ring>>,
    mode: Mode,
    policy: Policy,
    stuck_after: Duration,
    seats: Vec<Seat>,
    /// The worker that each ring is a home ring of.
    home_of: Seats<usize>,
    /// Held by who adds a ring.
    adding: Mutex<()>,
    /// Some rings must be tended.
    tended: bool,
    /// How many workers are no more.
    gone: AtomicUsize,
    ending: AtomicBool,
}

/// What the others know of one worker.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Places of its home rings in the group.
    home: Seats<usize>,
    /// Only workers of the same part are its buddies.
    part: usize,
    /// Twice the number of times that it asked for a chunk, and [`IDLE`] if it got none the last time;
    /// [`GONE`] when it never will ask again. Only the worker itself counts on: a clock read for every
    /// question would cost more than all the rest of advanced mode.
    asked: AtomicU64,
    /// What a buddy saw of that that had nothing to do, and when.
    seen: Mutex<Seen>,
    /// It is about to sleep or sleeps, and may be woken.
    asleep: AtomicBool,
}

const GONE: u64 = u64::MAX;
const IDLE: u64 = 1;

/// A look at how far a worker has come with its questions.
#[derive(Debug, Clone, Copy)]
struct Seen {
    asked: u64,
    /// When a second look found it there, in nanoseconds of the group's clock. The first one reads no clock:
    /// mostly there is no second one.
    since: Option<u64>,
}

/// What a worker got when it asked.
#[derive(Debug)]
pub(crate) enum Asked {
    Chunk {
        chunk: Chunk,
        /// How many workers should be woken to help, if [so many sleep](Group::next_sleeper).
        calls: usize,
    },
    /// Nothing now.
    Nothing,
    /// Nothing now and nothing ever again: the capture was stopped, and its rings are empty.
    Ended,
}

impl Group {
    /// A group of `rings`, dealt out in turn to `workers` workers.
    pub(crate) fn new(rings: Vec<Arc<dyn Ring>>, workers: usize, mode: Mode, stuck_after: Duration) -> Self {
        let parts = vec![0; rings.len()];
        Self::in_parts(rings, parts, workers, mode, stuck_after)
    }

    /// Several groups in one: only rings of the same part are buddies. `parts` names the part of each ring, counted from
    /// 0; there are at least as many workers as parts. They are dealt out in turn to the parts that have more rings than
    /// workers, and those of a part share its rings in turn.
    pub(crate) fn in_parts(
        rings: Vec<Arc<dyn Ring>>,
        parts: Vec<usize>,
        workers: usize,
        mode: Mode,
        stuck_after: Duration,
    ) -> Self {
        let rings_of = |part| (0..rings.len()).filter(|ring| parts[*ring] == part).collect::<Vec<_>>();
        let part_count = parts.iter().max().map_or(0, |last| last + 1);
        let rings_of_parts: Vec<Vec<usize>> = (0..part_count).map(rings_of).collect();
        let shares = shares(&rings_of_parts.iter().map(Vec::len).collect::<Vec<_>>(), workers);
        let mut seats = Vec::new();
        for (part, (rings, share)) in rings_of_parts.iter().zip(shares).enumerate() {
            seats.extend((0..share).map(|worker| Seat {
                home: Seats::new(rings.iter().copied().skip(worker).step_by(share), 0),
                part,
                asked: AtomicU64::new(IDLE),
                seen: Mutex::new(Seen { asked: IDLE, since: None }),
                asleep: AtomicBool::new(false),
            }));
        }
        let mut home_of = vec![0; rings.len()];
        for (worker, seat) in seats.iter().enumerate() {
            seat.home.iter().for_each(|&ring| home_of[ring] = worker);
        }
        let tended = rings.iter().any(|ring| ring.unattended() < ring.capacity());
        Self {
            rings: Seats::new(rings, 0),
            mode,
            policy: Policy::default(),
            stuck_after,
            seats,
            home_of: Seats::new(home_of, 0),
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
        self.rings = self.rings.with_room(more);
        self.home_of = self.home_of.with_room(more);
        let seats = self.seats.into_iter();
        self.seats = seats.map(|seat| Seat { home: seat.home.with_room(more), ..seat }).collect();
        self
    }

    /// Adds `ring`, whose index is the number of rings that there are: it becomes a home ring of the worker of `part`
    /// with the fewest. Returns that worker; `None` if there is no room.
    pub(crate) fn add(&self, ring: Arc<dyn Ring>, part: usize) -> Option<usize> {
        let _adding = lock(&self.adding);
        assert_eq!(ring.identity().index, self.rings.len(), "rings are added in the order of their indices");
        let of_part = |worker: &usize| self.seats[*worker].part == part;
        let workers = (0..self.seats.len()).filter(of_part);
        let worker = workers.min_by_key(|worker| self.seats[*worker].home.len())?;
        // Who finds the ring anywhere finds its worker.
        let index = self.home_of.push(worker).ok()?;
        self.rings.push(ring).expect("there is room for as many rings as workers of theirs");
        self.seats[worker].home.push(index).expect("a worker has room for all rings");
        Some(worker)
    }

    pub(crate) fn rings(&self) -> &Seats<Arc<dyn Ring>> {
        &self.rings
    }

    /// The least number of packets that one of the rings can take while nobody tends it; `None` if none
    /// needs that.
    pub(crate) fn unattended(&self) -> Option<u32> {
        self.tended.then(|| self.rings.iter().map(|ring| ring.unattended()).min()).flatten()
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

    /// The most home rings that a worker has.
    pub(crate) fn home_rings(&self) -> usize {
        self.seats.iter().map(|seat| seat.home.len()).max().unwrap_or(0)
    }

    /// The home rings of `worker`.
    pub(crate) fn home(&self, worker: usize) -> impl Iterator<Item = &Arc<dyn Ring>> {
        self.seats[worker].home.iter().map(|&ring| &self.rings[ring])
    }

    /// The first home ring of each worker.
    pub(crate) fn first_rings(&self) -> Vec<RingName> {
        let first = |worker| self.home(worker).next().map(|ring| ring.identity().name.clone());
        (0..self.workers()).filter_map(first).collect()
    }

    /// The worker that `ring` is a home ring of.
    pub(crate) fn home_of(&self, ring: usize) -> usize {
        self.home_of[ring]
    }

    /// From now on, workers end when their rings are empty.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
    }

    /// The next chunk for `worker`. `turn` is where it goes on, `now` a clock that all workers share, in nanoseconds.
    pub(crate) fn ask(
        &self,
        worker: usize,
        turn: &mut Turn,
        now: impl Fn() -> u64,
    ) -> Result<Asked, CaptureError> {
        // Looked at first: what came in before the end is then still found below.
        let ending = self.ending.load(Ordering::Acquire);
        if self.mode == Mode::Basic {
            self.check_for_orphans()?;
        }
        let seat = &self.seats[worker];
        let asked = (seat.asked.load(Ordering::Relaxed) | IDLE) + 1;
        seat.asked.store(asked, Ordering::Relaxed);
        let mut urgent = self.urgent_ring(worker);
        for _ in 0..seat.home.len() {
            if let Some(ring) = urgent.take_if(|ring| turn.is_free() || ring.is_brimming(self.workers()))
                && let Some(asked) = self.relieve(worker, turn, &ring)?
            {
                return Ok(asked);
            }
            let ring = &self.rings[seat.home[turn.advance(seat.home.len())]];
            let chunk = ring.capture()?;
            turn.looked(self.policy.next, chunk.as_ref().map_or(0, Chunk::len));
            if let Some(chunk) = chunk {
                let calls = self.calls_after(worker, ring, &chunk);
                return Ok(Asked::Chunk { chunk, calls });
            }
        }
        turn.settle();
        if let Some(ring) = self.busiest_buddy(worker, now, ending)
            && let Some(asked) = self.relieve(worker, turn, &ring)?
        {
            return Ok(asked);
        }
        seat.asked.store(asked | IDLE, Ordering::Relaxed);
        if self.tended {
            // Whoever captures tends that ring; who has nothing to do looks after them all.
            self.rings.iter().for_each(|ring| ring.tend());
        }
        let over = ending || self.rings.iter().all(|ring| ring.is_exhausted());
        Ok(if over && self.is_drained(worker) { Asked::Ended } else { Asked::Nothing })
    }

    /// Whether `worker` may end. With offloading the group's last chunks are everybody's business.
    fn is_drained(&self, worker: usize) -> bool {
        match self.mode {
            Mode::Basic => self.home(worker).all(|ring| ring.backlog() == 0),
            Mode::Advanced(_) => {
                let mut rings = self.rings.iter().zip(self.home_of.iter());
                rings.all(|(ring, &home)| !self.are_buddies(worker, home) || ring.backlog() == 0)
            }
        }
    }

    /// The ring that `worker` should relieve: of its home rings above the threshold the one with the largest backlog;
    /// if there is none, of those of its buddies.
    fn urgent_ring(&self, worker: usize) -> Option<Candidate<'_>> {
        let Mode::Advanced(threshold) = self.mode else { return None };
        if self.policy.next == Next::HomeFirst {
            return None;
        }
        let above = |ring| Candidate::above(threshold, ring);
        let own = self.home(worker).filter_map(above).max_by(Candidate::by_share);
        if own.is_some() && self.policy.next != Next::Fullest {
            return own.map(|own| Candidate { is_own: true, ..own });
        }
        let buddies =
            (0..self.seats.len()).filter(|&other| other != worker && self.are_buddies(worker, other));
        let others = buddies.flat_map(|other| self.home(other)).filter_map(above);
        let own = own.map(|own| Candidate { is_own: true, ..own });
        others.chain(own).max_by(Candidate::by_share)
    }

    /// Whether a ring of `worker` or of one of its buddies is above the threshold.
    pub(crate) fn is_needed(&self, worker: usize) -> bool {
        let Mode::Advanced(threshold) = self.mode else { return false };
        let mut rings = self.rings.iter().zip(self.home_of.iter());
        rings.any(|(ring, &home)| {
            self.are_buddies(worker, home) && Candidate::above(threshold, ring).is_some()
        })
    }

    /// Takes a chunk from `ring`, which is above its limit, if it still is.
    fn relieve(
        &self,
        worker: usize,
        turn: &mut Turn,
        ring: &Candidate<'_>,
    ) -> Result<Option<Asked>, CaptureError> {
        let &Candidate { ring, limit, is_abandoned, is_own, .. } = ring;
        let chunk = if is_own {
            ring.capture()?
        } else {
            let most = ring.chunk_cells().div_ceil(self.policy.parts);
            ring.offload(Help { limit, most, abandoned: is_abandoned })?
        };
        let Some(chunk) = chunk else { return Ok(None) };
        turn.relieved(self.policy.next, self.seats[worker].home.len(), chunk.len());
        // A worker that is stuck or gone cannot call for help: each helper calls the next ones.
        let calls = self.calls(ring, ring.backlog().saturating_sub(limit));
        let calls = if calls == 0 { usize::from(self.is_needed(worker)) } else { calls };
        Ok(Some(Asked::Chunk { chunk, calls }))
    }

    /// The ring with the largest backlog above the threshold, if there is one. What was
    /// left in the rings of workers that are stuck, gone or ending is taken whatever the threshold.
    fn busiest_buddy(&self, worker: usize, now: impl Fn() -> u64, ending: bool) -> Option<Candidate<'_>> {
        let Mode::Advanced(threshold) = self.mode else { return None };
        let now = &now;
        let is_other = |&other: &usize| other != worker && self.are_buddies(worker, other);
        let others = (0..self.seats.len()).filter(is_other);
        let candidates = others.flat_map(|other| {
            let is_abandoned = self.is_away(other, now);
            self.home(other).map(move |ring| {
                let limit = if ending || is_abandoned { 0 } else { cells_at(threshold, ring) };
                Candidate { ring, limit, is_abandoned, is_own: false, backlog: ring.backlog() }
            })
        });
        candidates.filter(|buddy| buddy.backlog > buddy.limit).max_by(Candidate::by_share)
    }

    /// Whether `worker` is gone, or has not asked for too long although there is work for it. Its time counts
    /// from the second look of buddies that have nothing to do.
    fn is_away(&self, worker: usize, now: impl Fn() -> u64) -> bool {
        let seat = &self.seats[worker];
        let asked = seat.asked.load(Ordering::Acquire);
        if asked == GONE {
            return true;
        }
        // If another buddy is looking right now, it will say.
        let Some(mut seen) = try_lock(&seat.seen) else { return false };
        let rests = asked & IDLE != 0 && self.home(worker).all(|ring| ring.backlog() == 0);
        if rests || asked != seen.asked {
            *seen = Seen { asked, since: None };
            return false;
        }
        let now = now();
        now.saturating_sub(*seen.since.get_or_insert(now)) > self.stuck_after.as_nanos() as u64
    }

    /// Whether `worker` would find nothing now, and is not to end.
    pub(crate) fn is_quiet(&self, worker: usize, now: impl Fn() -> u64) -> bool {
        !self.ending.load(Ordering::Acquire)
            && self.home(worker).all(|ring| ring.backlog() == 0)
            && self.busiest_buddy(worker, now, false).is_none()
    }

    /// How many workers should help `worker`, which just captured `chunk` from `ring`, with its home rings.
    fn calls_after(&self, worker: usize, ring: &Arc<dyn Ring>, chunk: &Chunk) -> usize {
        let Mode::Advanced(threshold) = self.mode else { return 0 };
        let calls = |ring: &Arc<dyn Ring>, backlog: u32| {
            // Mostly nothing is left, and the threshold is not looked up.
            if backlog == 0 { 0 } else { self.calls(ring, backlog.saturating_sub(cells_at(threshold, ring))) }
        };
        let others = self.home(worker).filter(|other| !Arc::ptr_eq(other, ring));
        let left = chunk.left_behind().unwrap_or_else(|| ring.backlog());
        others.map(|other| calls(other, other.backlog())).fold(calls(ring, left), usize::max)
    }

    /// How many workers should help with `ring`, from which so many packets should be taken: one with each chunk.
    fn calls(&self, ring: &Arc<dyn Ring>, packets: u32) -> usize {
        (packets.div_ceil(ring.chunk_cells()) as usize).min(self.policy.calls_max)
    }

    /// Whether two workers are of the same part, also if they are the same.
    fn are_buddies(&self, worker: usize, other: usize) -> bool {
        self.seats[worker].part == self.seats[other].part
    }

    /// A sleeping buddy of `worker`, to be woken by the caller. Each is given once.
    pub(crate) fn next_sleeper(&self, worker: usize) -> Option<usize> {
        // We saw a backlog, and look for sleepers; a sleeper says so, and looks for a backlog. With a
        // full fence between the two in both places, one of us sees the other.
        fence(Ordering::SeqCst);
        let asleep = |&other: &usize| {
            let is_other = other != worker && self.are_buddies(worker, other);
            is_other && self.seats[other].asleep.swap(false, Ordering::Relaxed)
        };
        (0..self.seats.len()).find(asleep)
    }

    /// Whether `worker` would be woken if its help were wanted. Before it sleeps it must ask once more
    /// whether all [is quiet](Self::is_quiet): who wanted help before did not see it asleep.
    pub(crate) fn set_asleep(&self, worker: usize, asleep: bool) {
        self.seats[worker].asleep.store(asleep, Ordering::Relaxed);
        // The other half of the fence in `next_sleeper`.
        fence(Ordering::SeqCst);
    }

    /// `worker` is no more: its buddies serve its rings.
    pub(crate) fn leave(&self, worker: usize) {
        self.seats[worker].asked.store(GONE, Ordering::Release);
        self.gone.fetch_add(1, Ordering::Release);
    }

    /// In basic mode nobody else may take the packets of a worker that is gone: an error, not a ring
    /// that silently fills up.
    fn check_for_orphans(&self) -> Result<(), CaptureError> {
        // In this order: a worker that left because of the end is not missed.
        if self.gone.load(Ordering::Acquire) == 0 || self.ending.load(Ordering::Acquire) {
            return Ok(());
        }
        let gone = |seat: &&Seat| seat.asked.load(Ordering::Acquire) == GONE;
        match self.seats.iter().find(gone).and_then(|seat| seat.home.first()) {
            Some(&ring) => Err(CaptureError::Orphaned { ring: self.rings[ring].identity().name.clone() }),
            None => Ok(()),
        }
    }
}

/// How many of `workers` workers each part gets that has so many rings: one at least, and no more than rings while others
/// have fewer workers than rings.
fn shares(rings: &[usize], workers: usize) -> Vec<usize> {
    let mut shares = vec![1; rings.len()];
    for _ in rings.len()..workers {
        let neediest = (0..rings.len()).max_by_key(|&part| rings[part].saturating_sub(shares[part]));
        if let Some(part) = neediest {
            shares[part] += 1;
        }
    }
    shares
}

/// The largest backlog that does not exceed `threshold`, a share of the ring's pool.
fn cells_at(threshold: f64, ring: &Arc<dyn Ring>) -> u32 {
    (threshold * f64::from(ring.capacity())) as u32
}

/// A ring that may need help.
struct Candidate<'a> {
    ring: &'a Arc<dyn Ring>,
    /// The backlog down to which it may be drained.
    limit: u32,
    /// Its worker is stuck or gone.
    is_abandoned: bool,
    /// It is a home ring of the worker that asks.
    is_own: bool,
    backlog: u32,
}

impl<'a> Candidate<'a> {
    /// `ring`, if more than `threshold` waits in it.
    fn above(threshold: f64, ring: &'a Arc<dyn Ring>) -> Option<Self> {
        let (backlog, limit) = (ring.backlog(), cells_at(threshold, ring));
        (backlog > limit).then_some(Self { ring, limit, is_abandoned: false, is_own: false, backlog })
    }

    /// The backlog as a share of the pool.
    fn share(&self) -> f64 {
        f64::from(self.backlog) / f64::from(self.ring.capacity())
    }

    fn by_share(&self, other: &Self) -> std::cmp::Ordering {
        self.share().total_cmp(&other.share())
    }

    /// Whether its pool is as good as used up: there is no more room than for the chunks that `workers` may hold. With
    /// settings that meet the [guarantee](Guarantee) and a load of no more than 0.9 of what the group can do, this
    /// does not happen.
    fn is_brimming(&self, workers: usize) -> bool {
        let held = (workers as u32).saturating_mul(self.ring.chunk_cells());
        self.backlog >= self.ring.capacity().saturating_sub(held)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

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
    use std::os::fd::BorrowedFd;

    use loom::thread;

    use super::*;
    use crate::ledger::Account;
    use crate::names::RingName;
    use crate::sync::{AtomicU32, model};
    use crate::umem::chunk::RingIdentity;

    /// A ring that is only a count of the packets that wait in it.
    #[derive(Debug)]
    struct Count {
        identity: Arc<RingIdentity>,
        waiting: AtomicU32,
    }

    impl Ring for Count {
        fn identity(&self) -> &Arc<RingIdentity> {
            &self.identity
        }

        fn capacity(&self) -> u32 {
            4
        }

        fn backlog(&self) -> u32 {
            self.waiting.load(Ordering::Relaxed)
        }

        fn capture(&self) -> Result<Option<Chunk>, CaptureError> {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return Ok(None);
            }
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            Ok(Some(Chunk::hollow(&self.identity)))
        }

        fn chunk_cells(&self) -> u32 {
            1
        }

        fn offload(&self, _help: Help) -> Result<Option<Chunk>, CaptureError> {
            self.capture()
        }

        fn watch(&self, _watch: &mut dyn FnMut(BorrowedFd<'_>)) {}

        fn is_gone(&self) -> bool {
            false
        }

        fn account(&self) -> Account {
            Account::default()
        }

        fn close(&self) {}
    }

    fn ring(index: usize) -> Arc<Count> {
        let name = RingName::of_queue("model", index as u32);
        let identity = RingIdentity {
            name,
            index,
            interface_index: 0,
            snap_len: 0,
            link_type: crate::savefile::LinkType::ETHERNET,
            order: Default::default(),
        };
        Arc::new(Count { identity: Arc::new(identity), waiting: AtomicU32::new(0) })
    }

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
                move || match group.ask(0, &mut Turn::default(), || 0).unwrap() {
                    Asked::Chunk { calls, .. } => Some((calls > 0).then(|| group.next_sleeper(0)).flatten()),
                    _ => None,
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
