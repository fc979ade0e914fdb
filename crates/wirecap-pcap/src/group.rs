//! Buddy groups: handles of one process that share the load of an interface, if the settings
//! request it.
//!
//! The first handle of the group opens a capture of all rings. Each handle gets a worker of this
//! capture and returns it on close, so a tool may also open a handle without reading from it. The
//! other workers drain the rings of a worker without a handle.

mod shares;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use wirecap::device::Device;
use wirecap::{Capture, Worker};

use crate::filter_slot::FilterSlot;
use crate::opening::{LiveError, open_capture};
use crate::request::{Name, Request};
use crate::settings::Settings;
pub(crate) use shares::Counts;
use shares::{Rings, SharedCounts, Shares};

/// T if the settings do not set it.
const THRESHOLD: f64 = 0.6;

/// The capture that handles of this process share.
#[derive(Debug)]
pub(crate) struct Group {
    terms: Terms,
    capture: Arc<Capture>,
    /// The workers by index; `None` if a handle has the worker.
    free: Mutex<Vec<Option<Worker>>>,
    shares: Shares,
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
    /// The packets that earlier handles with this worker counted.
    before: Counts,
    /// The highest numbers that `counts` has found: it finds none while a handle joins or leaves.
    most: SharedCounts,
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
    /// Joins the group in the settings. `None` if the handle does not belong to it: its device or
    /// its terms differ, or its worker, or every worker, is taken.
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

    fn open(
        request: &Request,
        all: &str,
        terms: Terms,
        settings: &Settings,
    ) -> Result<Self, LiveError> {
        let mut builder =
            request.builder(all, settings).advanced(settings.threshold.unwrap_or(THRESHOLD));
        if let Some(workers) = settings.workers {
            builder = builder.workers(workers);
        }

        let capture = open_capture(builder, request, settings)?;
        let free: Vec<_> = capture.workers().into_iter().map(Some).collect();

        Ok(Self {
            terms,
            shares: Shares::new(capture.most_rings(), free.len()),
            capture: Arc::new(capture),
            free: Mutex::new(free),
            filter: Arc::default(),
        })
    }

    /// The worker of the ring that `name` specifies, otherwise the first free worker. `None` if it
    /// is taken.
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
        let before = group.shares.join(&*group.capture, worker);
        Self { group, worker, before, most: SharedCounts::default() }
    }

    /// Leaves the group, which keeps the worker for the next handle.
    pub(crate) fn leave(self, worker: Worker) {
        self.group.shares.leave(&*self.group.capture, self.worker);
        self.group.free.lock().unwrap_or_else(PoisonError::into_inner)[self.worker] = Some(worker);
    }

    /// The packets of the rings that this handle counts, whichever handle reads them: the sum over
    /// all handles, open and closed, is the number of packets of the group. A signal handler may
    /// call it.
    pub(crate) fn counts(&self) -> Counts {
        let counts = self.group.shares.counts(&*self.group.capture, self.worker);
        self.most.raise(counts.map_or_else(Counts::default, |counts| counts.since(self.before)))
    }

    /// Whether no other handle is in the group.
    pub(crate) fn is_alone(&self) -> bool {
        let free = self.group.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.iter().filter(|worker| worker.is_none()).count() <= 1
    }
}

impl Rings for Capture {
    fn ring_count(&self) -> usize {
        self.ring_count()
    }

    fn home(&self, ring: usize) -> usize {
        self.home_worker(ring)
    }

    fn counts(&self, ring: usize) -> Counts {
        let tally = self.tally(ring);
        Counts { arrived: tally.arrived, dropped: tally.dropped }
    }
}

/// The name of the handle and of the group in the settings, if the handle belongs to this group.
pub(crate) fn requested<'a>(
    request: &'a Request,
    settings: &'a Settings,
) -> Option<(&'a Name, &'a str)> {
    let all = settings.group.as_deref()?;
    Some((request.device.as_ref().filter(|name| belongs(name, all))?, all))
}

/// Whether a handle with this name belongs to the group `all`: it names one receive queue of the
/// interface, or the whole interface if the group is the whole interface.
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
