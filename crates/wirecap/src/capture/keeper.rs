//! The keeper: a thread that looks after fill rings which have not all their cells posted.
//!
//! Workers that capture and workers with nothing to do top the rings up as well; the keeper is for the
//! time when all of them are busy elsewhere. Only a capture with warm cells or an elastic pool has one: a
//! fork does not take it along, and then a ring holds out for its posted cells until a worker asks.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use crate::capture::Shared;
use crate::capture::own_thread::OwnThread;
use crate::capture::waiting::PACKET_TIME;

/// A wake-up costs some microseconds, so that a keeper takes less than 2 % of a core.
const SHORTEST_PERIOD: Duration = Duration::from_micros(500);
const LONGEST_PERIOD: Duration = Duration::from_millis(10);

/// How often a keeper looks at rings that can take `unattended` packets by themselves: the time in which half
/// of these come at the line rate of 10 Gbit/s.
pub(crate) fn period(unattended: u32) -> Duration {
    (PACKET_TIME * (unattended / 2)).clamp(SHORTEST_PERIOD, LONGEST_PERIOD)
}

/// A running keeper; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    ending: Arc<AtomicBool>,
    thread: OwnThread,
}

impl Keeper {
    /// Looks after the rings of `shared` as long as it exists.
    pub(super) fn start(shared: &Arc<Shared>, period: Duration) -> io::Result<Self> {
        let shared: Weak<Shared> = Arc::downgrade(shared);
        let ending = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ending);
        let keep = move || {
            while !told.load(Ordering::Relaxed) {
                let Some(shared) = shared.upgrade() else { return };
                if let Some(ports) = shared.exchange() {
                    ports.collect();
                }
                shared.group.rings().iter().for_each(|ring| ring.tend());
                drop(shared);
                thread::park_timeout(period);
            }
        };
        Ok(Self { ending, thread: OwnThread::start("wirecap-keeper", keep)? })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }
}
