//! Buddy groups: which worker captures from which ring, and when.
//!
//! The paper's capture threads push chunks to the least busy buddy (section 3.2.2). Here workers pull:
//! one with nothing in its home rings takes a chunk from the buddy ring with the largest backlog above
//! the threshold. In the balanced case nobody pays for offloading, and no thread of the engine's is
//! needed. This module decides; it neither waits nor knows the kernel, so the simulator runs it as it is.

use std::sync::Arc;
use std::time::Duration;

use crate::error::CaptureError;
use crate::ledger::Mode;
use crate::names::RingName;
use crate::ring::Ring;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, fence, try_lock};
use crate::umem::chunk::Chunk;

/// The rings that one application reads, and the workers that read them.
#[derive(Debug)]
pub(crate) struct Group {
    rings: Vec<Arc<dyn Ring>>,
    mode: Mode,
    stuck_after: Duration,
    seats: Vec<Seat>,
    /// The worker that each ring is a home ring of.
    home_of: Vec<usize>,
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
    home: Vec<usize>,
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
        /// The worker to wake, since its help is wanted.
        wake: Option<usize>,
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
                home: rings.iter().copied().skip(worker).step_by(share).collect(),
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
            rings,
            mode,
            stuck_after,
            seats,
            home_of,
            tended,
            gone: AtomicUsize::new(0),
            ending: AtomicBool::new(false),
        }
    }

    pub(crate) fn rings(&self) -> &[Arc<dyn Ring>] {
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

    pub(crate) fn workers(&self) -> usize {
        self.seats.len()
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

    /// The next chunk for `worker`. `turn` is where it goes on among its home rings, `now` a clock that all
    /// workers share, in nanoseconds.
    pub(crate) fn ask(
        &self,
        worker: usize,
        turn: &mut usize,
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
        for _ in 0..seat.home.len() {
            let ring = &self.rings[seat.home[*turn % seat.home.len()]];
            *turn = (*turn + 1) % seat.home.len();
            if let Some(chunk) = ring.capture()? {
                let wake =
                    self.is_above_threshold(ring, &chunk).then(|| self.sleeping_buddy(worker)).flatten();
                return Ok(Asked::Chunk { chunk, wake });
            }
        }
        if let Some(buddy) = self.busiest_buddy(worker, now, ending)
            && let Some(chunk) = buddy.ring.offload(buddy.limit, buddy.is_abandoned)?
        {
            // Who is stuck or gone cannot call for help: each helper calls the next one.
            let wake = (buddy.ring.backlog() > buddy.limit).then(|| self.sleeping_buddy(worker)).flatten();
            return Ok(Asked::Chunk { chunk, wake });
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
                let mut rings = self.rings.iter().zip(&self.home_of);
                rings.all(|(ring, &home)| !self.are_buddies(worker, home) || ring.backlog() == 0)
            }
        }
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
                Candidate { ring, limit, is_abandoned, backlog: ring.backlog() }
            })
        });
        candidates.filter(|buddy| buddy.backlog > buddy.limit).max_by(|a, b| a.share().total_cmp(&b.share()))
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

    /// Whether `worker` would find nothing now.
    pub(crate) fn is_quiet(&self, worker: usize, now: impl Fn() -> u64) -> bool {
        self.home(worker).all(|ring| ring.backlog() == 0) && self.busiest_buddy(worker, now, false).is_none()
    }

    /// Whether more than the threshold waits in `ring`, from which `chunk` was just captured.
    fn is_above_threshold(&self, ring: &Arc<dyn Ring>, chunk: &Chunk) -> bool {
        let Mode::Advanced(threshold) = self.mode else { return false };
        let backlog = chunk.left_behind().unwrap_or_else(|| ring.backlog());
        // Mostly nothing is left, and the threshold is not looked up.
        backlog > 0 && backlog > cells_at(threshold, ring)
    }

    /// Whether two workers are of the same part, also if they are the same.
    fn are_buddies(&self, worker: usize, other: usize) -> bool {
        self.seats[worker].part == self.seats[other].part
    }

    fn sleeping_buddy(&self, worker: usize) -> Option<usize> {
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
        // The other half of the fence in `sleeping_buddy`.
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

/// A buddy's ring that may need help.
struct Candidate<'a> {
    ring: &'a Arc<dyn Ring>,
    /// The backlog down to which it may be drained.
    limit: u32,
    /// Its worker is stuck or gone.
    is_abandoned: bool,
    backlog: u32,
}

impl Candidate<'_> {
    /// The backlog as a share of the pool.
    fn share(&self) -> f64 {
        f64::from(self.backlog) / f64::from(self.ring.capacity())
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

        fn offload(&self, _limit: u32, _abandoned: bool) -> Result<Option<Chunk>, CaptureError> {
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
                move || match group.ask(0, &mut 0, || 0).unwrap() {
                    Asked::Chunk { wake, .. } => Some(wake),
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
