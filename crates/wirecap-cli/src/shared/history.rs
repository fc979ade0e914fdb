//! The history of the last minutes: a few numbers per second, for pages that are opened later.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use wirecap::Ledger;

/// Number of kept samples: one per second, for five minutes.
const KEPT: usize = 300;

/// The names of a sample's numbers, in their order.
const FIELDS: [&str; 10] = [
    "unix_s",
    "delivered",
    "bytes",
    "waiting",
    "no_cell",
    "ring_full",
    "device",
    "no_ring",
    "other",
    "later",
];

type Sample = [f64; FIELDS.len()];

static SAMPLES: Mutex<VecDeque<Sample>> = Mutex::new(VecDeque::new());

fn samples() -> MutexGuard<'static, VecDeque<Sample>> {
    SAMPLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a sample, which the caller does once a second. `waiting` packets are in the rings.
pub(crate) fn note(ledger: &Ledger, waiting: u64) {
    let total = &ledger.total;
    let dropped = &total.dropped;
    let later: u64 = ledger.lost_later.iter().map(|lost| lost.packets).sum();
    let not_sent: u64 = ledger.ports.iter().map(|port| port.account.dropped.total()).sum();
    let counts = [
        total.delivered,
        total.bytes,
        waiting,
        dropped.no_cell,
        dropped.ring_full,
        dropped.device.unwrap_or(0),
        dropped.no_ring,
        dropped.other,
        later + not_sent,
    ];

    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut sample = [now; FIELDS.len()];
    sample[1..].iter_mut().zip(counts).for_each(|(place, count)| *place = count as f64);

    let mut samples = samples();
    if samples.len() == KEPT {
        samples.pop_front();
    }

    samples.push_back(sample);
}

/// All samples, the oldest first.
pub(crate) fn in_json() -> String {
    json!({ "fields": FIELDS, "samples": *samples() }).to_string()
}
