//! Buddy groups: handles of one process that share the load of an interface, if the settings request it.
//!
//! The first handle of the group opens a capture of all rings. Each handle gets a worker of this capture and
//! returns it on close, so a tool may also open a handle without reading from it. The other workers drain the
//! rings of a worker without a handle.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use wirecap::device::Device;
use wirecap::{Capture, Worker};

use crate::filter_slot::FilterSlot;
use crate::opening::{LiveError, open_capture};
use crate::request::{Name, Request};
use crate::settings::Settings;

/// T if the settings do not set it.
const THRESHOLD: f64 = 0.6;

/// The capture that handles of this process share.
#[derive(Debug)]
pub(crate) struct Group {
    terms: Terms,
    capture: Arc<Capture>,
    /// The workers by index; `None` if a handle has the worker.
    free: Mutex<Vec<Option<Worker>>>,
    /// Whether a handle has the worker with this index, for signal handlers.
    held: Box<[AtomicBool]>,
    /// The dropped packets of each ring when a handle last joined or left.
    dropped_before: Box<[AtomicU64]>,
    /// The dropped packets that the handles with each worker counted until then.
    settled: Box<[AtomicU64]>,
    filter: Arc<FilterSlot>,
}

/// Parameters that all handles of a group must have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Terms {
    interface_index: u32,
    snap_len: u32,
    promiscuous: bool,
}

/// A handle's membership in a group.
#[derive(Debug)]
pub(crate) struct Membership {
    group: Arc<Group>,
    /// The index of the handle's worker.
    worker: usize,
    /// The dropped packets that earlier handles with this worker counted.
    settled_before: u64,
    /// The highest number that `dropped` has found: it may find fewer while a handle joins or leaves.
    most_dropped: AtomicU64,
}

/// What a handle gets when it joins a group.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) membership: Membership,
    pub(crate) capture: Arc<Capture>,
    pub(crate) worker: Worker,
    pub(crate) filter: Arc<FilterSlot>,
}

/// The group of this process, as long as it has handles.
static GROUP: Mutex<Weak<Group>> = Mutex::new(Weak::new());

impl Group {
    /// Joins the group in the settings. `None` if the handle does not belong to it: its device or its terms
    /// differ, or its worker, or every worker, is taken.
    pub(crate) fn join(
        request: &Request,
        device: &Device,
        snap_len: u32,
        settings: &Settings,
    ) -> Result<Option<Joined>, LiveError> {
        let Some((name, all)) = requested(request, settings) else { return Ok(None) };
        let terms = Terms {
            interface_index: device.index,
            snap_len,
            promiscuous: request.promiscuous.is_some_and(|on| on != 0),
        };
        let mut current = GROUP.lock().unwrap_or_else(PoisonError::into_inner);
        let group = match current.upgrade() {
            Some(group) => group,
            None => {
                let group = Arc::new(Self::open(request, all, terms.clone(), settings)?);
                *current = Arc::downgrade(&group);
                group
            }
        };
        if group.terms != terms {
            return Ok(None);
        }
        Ok(group.take_worker(name).map(|worker| Joined {
            capture: Arc::clone(&group.capture),
            filter: Arc::clone(&group.filter),
            membership: Membership::begin(group, worker.index()),
            worker,
        }))
    }

    fn open(request: &Request, all: &str, terms: Terms, settings: &Settings) -> Result<Self, LiveError> {
        let mut builder = request.builder(all, settings).advanced(settings.threshold.unwrap_or(THRESHOLD));
        if let Some(workers) = settings.workers {
            builder = builder.workers(workers);
        }
        let capture = open_capture(builder, request, settings)?;
        let free: Vec<_> = capture.workers().into_iter().map(Some).collect();
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            terms,
            held: free.iter().map(|_| AtomicBool::new(false)).collect(),
            dropped_before: zeros(capture.most_rings()),
            settled: zeros(free.len()),
            capture: Arc::new(capture),
            free: Mutex::new(free),
            filter: Arc::default(),
        })
    }

    /// The worker whose handle counts the packets of the worker `home`: itself, or the first one that has a handle if
    /// `home` has none.
    fn counter(&self, home: usize) -> Option<usize> {
        let is_held = |worker: &AtomicBool| worker.load(Ordering::Relaxed);
        if is_held(&self.held[home]) { Some(home) } else { self.held.iter().position(is_held) }
    }

    /// Each ring that a handle counts, with the worker of this handle and all dropped packets of the ring.
    fn counted_rings(&self) -> impl Iterator<Item = (usize, usize, u64)> {
        (0..self.capture.ring_count()).filter_map(|ring| {
            let counter = self.counter(self.capture.home_worker(ring))?;
            Some((ring, counter, self.capture.tally(ring).dropped))
        })
    }

    /// Assigns the packets dropped so far to the handles that count them, before others do.
    fn settle(&self) {
        for (ring, counter, dropped) in self.counted_rings() {
            let before = self.dropped_before[ring].fetch_max(dropped, Ordering::Relaxed);
            // Release pairs with the acquire in `dropped`: a thread that sees the sum sees that `dropped_before` has grown.
            self.settled[counter].fetch_add(dropped.saturating_sub(before), Ordering::Release);
        }
    }

    /// The worker of the ring that `name` specifies, otherwise the first free worker. `None` if it is taken.
    fn take_worker(&self, name: &Name) -> Option<Worker> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(queue) = &name.queues else { return free.iter_mut().find_map(Option::take) };
        let queue: u32 = queue.parse().ok()?;
        let ring = self.capture.rings().iter().position(|ring| ring.queue == queue)?;
        // Rings are assigned to workers in turn.
        let workers = free.len();
        free[ring % workers].take()
    }
}

impl Membership {
    fn begin(group: Arc<Group>, worker: usize) -> Self {
        group.settle();
        // From the store on, a handle that leaves may settle this one's drops.
        let settled_before = group.settled[worker].load(Ordering::Relaxed);
        group.held[worker].store(true, Ordering::Release);
        Self { group, worker, settled_before, most_dropped: AtomicU64::new(0) }
    }

    /// Leaves the group, which keeps the worker for the next handle.
    pub(crate) fn leave(self, worker: Worker) {
        self.group.settle();
        self.group.held[self.worker].store(false, Ordering::Relaxed);
        self.group.free.lock().unwrap_or_else(PoisonError::into_inner)[self.worker] = Some(worker);
    }

    /// Whether this handle counts the packets of the worker `home`: it has this worker, or no handle has it and this
    /// handle is the first one. A signal handler may call it.
    pub(crate) fn counts_of(&self, home: usize) -> bool {
        self.group.counter(home) == Some(self.worker)
    }

    /// The packets dropped while this handle counted their ring. The sum over all handles, open and closed, is the number
    /// of packets that the group dropped. A signal handler may call it.
    pub(crate) fn dropped(&self) -> u64 {
        let group = &self.group;
        let own = group.counted_rings().filter(|&(_, counter, _)| counter == self.worker);
        let since = |(ring, _, dropped): (usize, usize, u64)| {
            dropped.saturating_sub(group.dropped_before[ring].load(Ordering::Relaxed))
        };
        let settled = group.settled[self.worker].load(Ordering::Acquire) - self.settled_before;
        let dropped = settled + own.map(since).sum::<u64>();
        dropped.max(self.most_dropped.fetch_max(dropped, Ordering::Relaxed))
    }

    /// Whether no other handle is in the group.
    pub(crate) fn is_alone(&self) -> bool {
        let free = self.group.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.iter().filter(|worker| worker.is_none()).count() <= 1
    }
}

/// The name of the handle and of the group in the settings, if the handle belongs to this group.
pub(crate) fn requested<'a>(request: &'a Request, settings: &'a Settings) -> Option<(&'a Name, &'a str)> {
    let all = settings.group.as_deref()?;
    Some((request.device.as_ref().filter(|name| belongs(name, all))?, all))
}

/// Whether a handle with this name belongs to the group `all`: it names one receive queue of the interface,
/// or the whole interface if the group is the whole interface.
fn belongs(name: &Name, all: &str) -> bool {
    let all = Name::parse(all);
    let is_one = |queues: &str| queues.parse::<u32>().is_ok();
    name.interface == all.interface
        && match &name.queues {
            Some(queues) => is_one(queues),
            None => all.queues.is_none(),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_queues_and_whole_interfaces_belong_to_groups() {
        let belongs = |name: &str, all: &str| belongs(&Name::parse(name), all);
        assert!(belongs("eth0@2", "eth0@0-3"));
        assert!(belongs("eth0@2", "eth0"));
        assert!(belongs("eth0", "eth0"));
        assert!(!belongs("eth0", "eth0@0-3"));
        assert!(!belongs("eth0@0-1", "eth0@0-3"));
        assert!(!belongs("eth1@0", "eth0@0-3"));
    }
}
