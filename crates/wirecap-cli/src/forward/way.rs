//! A worker's loop: takes chunks, and forwards their packets.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wirecap::{Capture, CaptureError, Chunk, Port, Timestamp, Worker};
use wirecap_send::SlowCore;

use super::checksums::ChecksumWatch;
use super::latency::Latency;
use super::mirror::Mirror;
use super::rewrite::Changes;
use crate::shared::app_cost::AppCost;

/// Maximum wait for packets if there is no other work.
const PATIENCE: Duration = Duration::from_millis(200);
/// The same while packets may wait to be sent.
const OUTBOUND_PATIENCE: Duration = Duration::from_millis(2);

/// A direction, from one interface to another: the state shared by all workers.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) changes: Changes,
    /// Packets that had no room for the changes and were dropped.
    pub(crate) no_room: AtomicU64,
    /// The warning about checksums left to hardware was printed.
    warned: AtomicBool,
}

impl Way {
    pub(crate) fn new(from: &str, to: &str, changes: Changes) -> Self {
        Self {
            from: from.to_owned(),
            to: to.to_owned(),
            changes,
            no_room: AtomicU64::new(0),
            warned: AtomicBool::new(false),
        }
    }

    pub(crate) fn no_room(&self) -> u64 {
        self.no_room.load(Ordering::Relaxed)
    }

    fn warn_of_checksums(&self) {
        if self.warned.swap(true, Ordering::Relaxed) {
            return;
        }
        eprintln!(
            "warning: packets from {} have checksums that were left to hardware and never computed; receivers drop \
             them; on the sending host, run: ethtool -K INTERFACE tx off",
            self.from
        );
    }
}

/// The processing of packets in all directions.
#[derive(Debug)]
pub(crate) struct Treatment {
    pub(crate) mirror: Option<Mirror>,
    pub(crate) weight: Option<AppCost>,
    pub(crate) latency: bool,
}

/// One worker's share of a direction.
#[derive(Debug)]
struct Lane<'a> {
    way: &'a Way,
    port: Port,
    checksums: ChecksumWatch,
    latency: Latency,
}

/// Runs one worker for all directions, which are in the order of the capture's interfaces. Returns
/// the times of packets in each direction.
pub(crate) fn forward(
    mut worker: Worker,
    capture: &Capture,
    ways: &[Way],
    treatment: &Treatment,
) -> Result<Vec<Latency>, CaptureError> {
    let port = |way: &Way| capture.port(&way.to).expect("the capture was opened with this port");
    let lane = |way| Lane {
        way,
        port: port(way),
        checksums: ChecksumWatch::default(),
        latency: Latency::new(),
    };
    let mut lanes: Vec<Lane<'_>> = ways.iter().map(lane).collect();
    let mut core = SlowCore::default();
    let mut arrivals = Vec::new();
    let mut patience = PATIENCE;

    while !worker.is_finished() {
        match worker.next_chunk_timeout(patience).inspect_err(|_| capture.stop())? {
            Some(chunk) => {
                lanes[chunk.interface_index()].pass_on(chunk, treatment, &mut core, &mut arrivals);
                patience = OUTBOUND_PATIENCE;
            }
            None => {
                // The device may now have room for packets that did not fit before.
                lanes.iter_mut().for_each(|lane| lane.port.flush());
                let outbound = lanes.iter().any(|lane| lane.port.account().waiting > 0);
                patience = if outbound { OUTBOUND_PATIENCE } else { PATIENCE };
            }
        }
    }

    Ok(lanes.into_iter().map(|lane| lane.latency).collect())
}

impl Lane<'_> {
    fn pass_on(
        &mut self,
        mut chunk: Chunk,
        treatment: &Treatment,
        core: &mut SlowCore,
        arrivals: &mut Vec<u64>,
    ) {
        if let Some(mirror) = &treatment.mirror {
            mirror.record(&chunk);
        }
        if let Some(weight) = &treatment.weight {
            weight.process(core, &chunk);
        }
        if chunk.get(0).is_some_and(|first| self.checksums.is_certain_with(first.data())) {
            self.way.warn_of_checksums();
        }

        if treatment.latency {
            arrivals.clear();
            arrivals.extend(
                chunk.iter().flat_map(|packet| packet.timestamp()).map(Timestamp::unix_nanos),
            );
        }

        if self.way.changes.is_empty() {
            self.port.send_all(chunk.drain());
        } else {
            self.change(&mut chunk);
        }

        self.port.flush();

        if treatment.latency {
            let now = unix_nanos();
            arrivals.iter().for_each(|arrival| self.latency.note(now.saturating_sub(*arrival)));
        }
    }

    fn change(&mut self, chunk: &mut Chunk) {
        let mut no_room = 0;
        for mut packet in chunk.drain() {
            match self.way.changes.make(&mut packet) {
                Ok(()) => self.port.send(packet),
                Err(_) => no_room += 1,
            }
        }
        if no_room > 0 {
            self.way.no_room.fetch_add(no_room, Ordering::Relaxed);
        }
    }
}

fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}
