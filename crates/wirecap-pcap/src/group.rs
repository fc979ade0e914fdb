//! Buddy groups: handles of one process that share the load of an interface, if the settings request it.
//!
//! The first handle of the group opens a capture of all rings. Each handle gets a worker of this capture and
//! returns it on close, so a tool may also open a handle without reading from it. The other workers drain the
//! rings of a worker without a handle.

use std::sync::atomic::{AtomicBool, Ordering};
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
        let Some(all) = settings.group.as_deref() else { return Ok(None) };
        let Some(name) = request.device.as_ref().filter(|name| belongs(name, all)) else { return Ok(None) };
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
        let worker = group.take_worker(name);
        if let Some(worker) = &worker {
            group.held[worker.index()].store(true, Ordering::Relaxed);
        }
        Ok(worker.map(|worker| Joined {
            capture: Arc::clone(&group.capture),
            worker,
            filter: Arc::clone(&group.filter),
            membership: Membership { group },
        }))
    }

    fn open(request: &Request, all: &str, terms: Terms, settings: &Settings) -> Result<Self, LiveError> {
        let mut builder = request.builder(all, settings).advanced(settings.threshold.unwrap_or(THRESHOLD));
        if let Some(workers) = settings.workers {
            builder = builder.workers(workers);
        }
        let capture = open_capture(builder, request, settings)?;
        let free: Vec<_> = capture.workers().into_iter().map(Some).collect();
        let held = free.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Self { terms, capture: Arc::new(capture), free: Mutex::new(free), held, filter: Arc::default() })
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
    /// Leaves the group, which keeps the worker for the next handle.
    pub(crate) fn leave(self, worker: Worker) {
        let index = worker.index();
        self.group.held[index].store(false, Ordering::Relaxed);
        self.group.free.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(worker);
    }

    /// Whether the counters of the worker `home` belong to the handle with the worker `own`: it is its own worker, or
    /// has no handle, and `own` is the first one that has. A signal handler may call it.
    pub(crate) fn counts_of(&self, home: usize, own: usize) -> bool {
        let is_held = |worker: &AtomicBool| worker.load(Ordering::Relaxed);
        let held = &self.group.held;
        home == own || !is_held(&held[home]) && held.iter().position(is_held) == Some(own)
    }

    /// Whether no other handle is in the group.
    pub(crate) fn is_alone(&self) -> bool {
        let free = self.group.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.iter().filter(|worker| worker.is_none()).count() <= 1
    }
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
