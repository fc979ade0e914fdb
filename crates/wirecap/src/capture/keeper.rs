//! The keeper: a thread that replenishes fill rings on which not all cells are posted.
//!
//! Workers that capture and idle workers replenish the rings as well; the keeper covers the time in
//! which all of them are busy with packets. Only a capture with warm cells or an elastic pool has
//! one. A fork does not copy it; a ring of the child then keeps as many packets as cells are posted
//! until a worker asks for a chunk.
//!
//! It looks at all rings every K/2 x 67 ns (the time in which K/2 packets arrive at the line rate
//! of 10 Gbit/s), but not more often than every 0.5 ms and at least every 10 ms. With K = 16,384
//! the interval is 0.55 ms, and the keeper may be late by the same time again.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use crate::capture::Shared;
use crate::capture::own_thread::OwnThread;
use crate::capture::waiting::PACKET_TIME;

/// A wake-up costs some microseconds, so a keeper uses less than 2 % of a core.
const SHORTEST_PERIOD: Duration = Duration::from_micros(500);
const LONGEST_PERIOD: Duration = Duration::from_millis(10);

/// The interval at which a keeper looks at rings that can take `unattended` packets without it: the
/// time in which half of these arrive at the line rate of 10 Gbit/s.
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
    /// Replenishes the rings of `shared` as long as it exists.
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
