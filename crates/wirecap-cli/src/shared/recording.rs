//! A capture in a savefile: its packets and metadata: program, interfaces, and their counts at the
//! end.
//!
//! pcapng files contain the filter, the name of the clock and, at the end, each interface's counts.
//! They contain each packet's receive queue if the interface had more than one when the capture was
//! opened: otherwise it is always queue 0, and its option would take twelve bytes of each packet. A
//! capture of all interfaces describes the interfaces that are up at the beginning in the head of
//! each file; another interface gets its description before its first packet, in each file of a set
//! again. In such a file the counts at the end have delivered packets only.

pub(crate) mod indexer;
pub(crate) mod options;
pub(crate) mod outlet;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use wirecap::savefile::{self, Record, Section, WriteError};
use wirecap::{
    Account, Capture, Chunk, Head, Interface, Ledger, Packet, Reception, SeenInterface,
    SeenInterfaces, Timestamp, Timestamps,
};
use wirecap_recorder::{Answer, Pattern, refuse_busy};

use crate::shared::failure::Failure;
use crate::shared::output;
use crate::shared::signals;
use options::Rules;
use outlet::Described;

/// The request about rules that the recording has not taken yet. One thread makes requests, one at
/// a time.
static REQUEST: Mutex<Option<RulesRequest>> = Mutex::new(None);
static HAS_REQUEST: AtomicBool = AtomicBool::new(false);

/// A request about the rules for files, in two steps: another thread can change the filter between
/// them, so that both change or neither.
#[derive(Debug)]
pub(crate) struct RulesRequest {
    pub(crate) step: RulesStep,
    pub(crate) rules: Rules,
    pub(crate) answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RulesStep {
    /// Whether the recording can obey the rules. Changes nothing.
    Check,
    /// From now on it obeys them.
    Apply,
}

fn request() -> MutexGuard<'static, Option<RulesRequest>> {
    REQUEST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes a request to the recording. Replaces a request that the recording has not taken: its
/// answer is dropped.
pub(crate) fn request_rules(request: RulesRequest) {
    let mut place = self::request();
    *place = Some(request);
    HAS_REQUEST.store(true, Ordering::Release);
    drop(place);
    signals::wake_for_request();
}

/// Calls `obey` with the request that was made since the last call, if any.
pub(crate) fn with_request<E>(obey: impl FnOnce(RulesRequest) -> Result<(), E>) -> Result<(), E> {
    if !HAS_REQUEST.load(Ordering::Relaxed) {
        return Ok(());
    }
    let mut place = request();
    let request = place.take();
    HAS_REQUEST.store(false, Ordering::Release);
    drop(place);
    request.map_or(Ok(()), obey)
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

/// The interfaces of `capture` that a file describes before its first packet.
pub(crate) fn described(capture: &Capture, timestamps: Timestamps) -> Described {
    let named = capture
        .named_interfaces()
        .map(|interface| self::interface(interface, timestamps))
        .collect();
    let any = AnyForm::of(capture, timestamps);
    let of_any = any.map_or_else(Vec::new, |any| {
        any.seen.list().iter().map(|seen| any.describe(seen)).collect()
    });
    Described { named, of_any }
}

/// The counts since `started` of all interfaces that were not named. What the rings lost is not
/// known by interface.
pub(crate) fn counts_of_any(started: Timestamp, ledger: &Ledger) -> Vec<savefile::Statistics> {
    let counts = ledger.interfaces.iter().map(|interface| savefile::Statistics {
        start: Some(started),
        end: Some(now()),
        delivered: Some(interface.delivered),
        ..savefile::Statistics::default()
    });
    counts.collect()
}

/// The counts since `started` of each interface that was named. `interfaces` has the number of
/// rings of each.
pub(crate) fn counts(
    started: Timestamp,
    ledger: &Ledger,
    interfaces: &[usize],
) -> Vec<savefile::Statistics> {
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

/// Packets that reached the file, of those `written`: at most the `whole` ones, without the last
/// ones that the reader of a pipe left `unread`.
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
        Reception::Xdp { timestamps: Timestamps::Batch, .. } => Some(
            "XDP program, CLOCK_TAI as UTC, read for the first packet of a batch and for every eighth",
        ),
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
    /// Whether an interface has one receive queue, by the interface's index. A simulated capture
    /// has no interfaces.
    one_queue: Vec<bool>,
    /// The form of packets of all interfaces, if these are captured.
    any: Option<AnyForm>,
}

/// The form of packets of interfaces that the capture does not name.
#[derive(Debug)]
struct AnyForm {
    seen: SeenInterfaces,
    /// What all of their descriptions have in common.
    common: savefile::Interface,
}

impl AnyForm {
    fn of(capture: &Capture, timestamps: Timestamps) -> Option<Self> {
        let all = capture.interfaces().iter().find(|interface| interface.device.is_all())?;
        Some(Self { seen: capture.seen_interfaces()?, common: interface(all, timestamps) })
    }

    fn describe(&self, seen: &SeenInterface) -> savefile::Interface {
        savefile::Interface {
            name: Some(seen.name.clone()),
            link_type: seen.link_type,
            ..self.common.clone()
        }
    }
}

impl Form {
    /// The form for the packets of `capture`. The queue of an interface that had only one when it
    /// was opened is not recorded: it says nothing, and takes twelve bytes of each packet in
    /// pcapng.
    pub(crate) fn of(capture: &Capture, timestamps: Timestamps) -> Self {
        let has_one = |interface: &Interface| interface.device.rx_queues <= 1;
        let any = AnyForm::of(capture, timestamps);
        Self { one_queue: capture.interfaces().iter().map(has_one).collect(), any }
    }

    /// Whether some packets are of interfaces that the capture does not name.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.any.is_some()
    }

    /// The description of the interface with this number: see [`Packet::seen_interface`].
    pub(crate) fn describe(&self, number: usize) -> savefile::Interface {
        let described =
            self.any.as_ref().and_then(|any| Some(any.describe(&any.seen.get(number)?)));
        described.unwrap_or_default()
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
        move |head| Record {
            timestamp: head.timestamp(),
            wire_len: head.wire_len,
            data: head.data,
            ..origin
        }
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
