//! A capture in a savefile: its packets and metadata: program, interfaces, and their counts at the end.

pub(crate) mod indexer;
pub(crate) mod options;
pub(crate) mod outlet;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wirecap::savefile::{self, Record, Section, WriteError};
use wirecap::{Account, Capture, Chunk, Head, Interface, Ledger, Packet, Reception, Timestamp, Timestamps};
use wirecap_recorder::{Pattern, refuse_busy};

use crate::failure::Failure;
use crate::output;
use crate::signals;
use options::Rules;

/// The rules requested during the recording, until it applies them.
static RULES: Mutex<Option<Rules>> = Mutex::new(None);
static HAS_RULES: AtomicBool = AtomicBool::new(false);

/// Maximum wait until the recording applies changed rules, which it does at once unless the disk stalls.
const RULES_PATIENCE: Duration = Duration::from_secs(1);

fn rules() -> MutexGuard<'static, Option<Rules>> {
    RULES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Requests other rules for the files, and waits for a limited time until they apply.
pub(crate) fn change_rules(rules: Rules) {
    *self::rules() = Some(rules);
    HAS_RULES.store(true, Ordering::Release);
    signals::wake_for_request();
    let deadline = Instant::now() + RULES_PATIENCE;
    while HAS_RULES.load(Ordering::Acquire) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
    }
}

/// Calls `change` with the rules requested since the last call, if any.
pub(crate) fn with_changed_rules<E>(change: impl FnOnce(&Rules) -> Result<(), E>) -> Result<(), E> {
    if !HAS_RULES.load(Ordering::Relaxed) {
        return Ok(());
    }
    let outcome = rules().take().map_or(Ok(()), |rules| change(&rules));
    HAS_RULES.store(false, Ordering::Release);
    outcome
}

/// This program on this host.
pub(crate) fn section() -> Section {
    Section {
        application: Some(concat!("wirecap ", env!("CARGO_PKG_VERSION")).to_owned()),
        os: operating_system(),
        hardware: None,
        comment: None,
    }
}

/// An interface of a capture that was opened with these times.
pub(crate) fn interface(interface: &Interface, timestamps: Timestamps) -> savefile::Interface {
    savefile::Interface {
        name: Some(interface.device.name.clone()),
        hardware: interface.device.driver.clone(),
        os: operating_system(),
        link_type: interface.device.savefile_link_type(),
        snap_len: interface.snap_len,
        time_source: time_source(&interface.reception, timestamps).map(str::to_owned),
        filter: interface.filter.as_ref().map(ToString::to_string),
        ..savefile::Interface::default()
    }
}

/// Each interface's counts since `started`. `interfaces` has the number of rings of each interface.
pub(crate) fn counts(started: Timestamp, ledger: &Ledger, interfaces: &[usize]) -> Vec<savefile::Statistics> {
    let mut rings = ledger.rings.iter();
    let counts = interfaces.iter().enumerate().map(|(interface, &ring_count)| {
        let own: Vec<_> = rings.by_ref().take(ring_count).map(|ring| &ring.account).collect();
        let sum = |count: fn(&Account) -> u64| own.iter().copied().map(count).sum();
        savefile::Statistics {
            interface: interface as u32,
            start: Some(started),
            end: Some(now()),
            received: own.iter().map(|account| account.seen).sum(),
            dropped_by_interface: ledger.device_drops[interface],
            accepted_by_filter: Some(sum(|account| account.offered)),
            dropped_by_os: Some(sum(|account| account.dropped.total())),
            delivered: Some(sum(|account| account.delivered)),
        }
    });
    counts.collect()
}

/// Detects before an interface is opened that the files of a set cannot be written.
pub(crate) fn check(pattern: &Pattern) -> Result<(), Failure> {
    let directory = pattern.directory();
    output::check_directory(&directory.join("file"))?;
    refuse_busy(pattern).map_err(|error| output::cannot_write(directory, &error))
}

/// Packets that reached the file, of those `written`: at most the `whole` ones, without the last ones that the reader
/// of a pipe left `unread`.
pub(crate) fn in_file(written: u64, whole: u64, unread: u64) -> u64 {
    whole.min(written.saturating_sub(unread))
}

/// Number of complete packets in a file that can no longer be written.
pub(crate) fn safely_written(error: &WriteError) -> Option<u64> {
    match error {
        WriteError::BrokenPipe { packets }
        | WriteError::Sink { packets, .. }
        | WriteError::Torn { packets, .. } => Some(*packets),
        _ => None,
    }
}

pub(crate) fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix_nanos(since_epoch.as_nanos() as u64)
}

fn operating_system() -> Option<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(format!("Linux {}", release.trim()))
}

/// The clock of the packets' timestamps; none if they have none.
fn time_source(reception: &Reception, timestamps: Timestamps) -> Option<&'static str> {
    match reception {
        _ if timestamps == Timestamps::None => None,
        Reception::Xdp { timestamps: Timestamps::Batch, .. } => {
            Some("XDP program, CLOCK_TAI as UTC, read for the first packet of a batch and for every eighth")
        }
        Reception::Xdp { timestamps: Timestamps::Hardware, .. } => {
            Some("XDP program, raw NIC clock, for every packet")
        }
        Reception::Xdp { .. } => Some("XDP program, CLOCK_TAI as UTC, read for every packet"),
        _ => Some("packet socket, CLOCK_REALTIME"),
    }
}

/// The form in which a capture's packets go into savefiles.
#[derive(Debug)]
pub(crate) struct Form {
    /// Whether an interface has one receive queue, by the interface's index. A simulated capture has no interfaces.
    one_queue: Vec<bool>,
}

impl Form {
    /// The form for the packets of `capture`. The queue of an interface that had only one when it was opened is not recorded:
    /// it says nothing, and takes twelve bytes of each packet in pcapng.
    pub(crate) fn of(capture: &Capture) -> Self {
        let has_one = |interface: &Interface| interface.device.rx_queues <= 1;
        Self { one_queue: capture.interfaces().iter().map(has_one).collect() }
    }

    /// The record of a packet in `chunk`.
    #[inline]
    pub(crate) fn record<'a>(&self, chunk: &Chunk, packet: Packet<'a>) -> Record<'a> {
        Record {
            timestamp: packet.timestamp(),
            wire_len: packet.wire_len(),
            data: packet.data(),
            ..self.origin(chunk, packet.queue())
        }
    }

    /// The records of the packets in `chunk`, of a live ring, which all have the same queue.
    #[inline]
    pub(crate) fn records(&self, chunk: &Chunk) -> impl Fn(Head<'_>) -> Record<'_> + use<> {
        let origin = self.origin(chunk, chunk.get(0).and_then(|packet| packet.queue()));
        move |head| Record { timestamp: head.timestamp(), wire_len: head.wire_len, data: head.data, ..origin }
    }

    /// A record without a packet, from the interface of `chunk` and this queue of it.
    #[inline]
    fn origin(&self, chunk: &Chunk, queue: Option<u32>) -> Record<'static> {
        let interface = chunk.interface_index();
        let is_only = |queue: u32| queue == 0 && self.one_queue.get(interface) == Some(&true);
        let queue = queue.filter(|queue| !is_only(*queue));
        Record { interface: interface as u32, queue, ..Record::default() }
    }
}
