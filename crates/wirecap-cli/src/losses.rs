//! Reports loss while it happens: when it begins, with ring, reason and fix, and when it ends.
//!
//! A thread of each capturing command reads the ledger once a second, because some drivers ask
//! their firmware for counters, and checks five times a second whether the output is slow. While no
//! packets arrive and none wait for the output, the check is also made once a second only: in a
//! virtual machine each wake-up of a thread costs about 70 µs of CPU time. A device's loss is
//! reported only after two successive readings show it, because a driver's counters are not read at
//! the same moment. The same loss is repeated at most every 10 s. A write that takes longer than a
//! second is reported, too, and a file or pipe on which the writer spends most of its time while
//! packets are lost.

use std::collections::{BTreeSet, HashMap};
use std::iter;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wirecap::{Capture, Ledger, LostLater, grouped};

use crate::host::advice::{Advisor, Question};
use crate::host::doctor::Bottleneck;
use crate::shared::control::Control;
use crate::shared::events::{self, Kind};
use crate::shared::history;
use crate::shared::lost::Lost;
use crate::shared::service::{self, Pulse};
use crate::shared::signals;
use crate::shared::sink::Writing;

/// Time between two checks of the output while packets arrive or wait for the output.
const LOOK: Duration = Duration::from_millis(200);
/// Time between two readings of the ledger, which reads devices' counters: some drivers query their
/// firmware for these.
const COUNT: Duration = Duration::from_secs(1);
/// Loss has ended if no packet was lost for this time.
const QUIET: Duration = Duration::from_secs(1);
/// The minimum time between two reports of the same loss.
const SAY_AGAIN: Duration = Duration::from_secs(10);
/// If nothing has arrived for this long after the start, a line names the usual causes, once.
const SILENCE: Duration = Duration::from_secs(5);
/// Maximum number of lines per check.
const LINES_MAX: usize = 8;
/// A write that takes longer has stalled.
const STALL: Duration = Duration::from_secs(1);
/// An output that accepts nothing for this long delays the capture.
const PAUSE: Duration = Duration::from_millis(10);

/// Runs `work` while another thread watches the capture: it reports losses, and answers SIGUSR1 and
/// the clients of the control socket with the ledger.
pub(crate) fn watched<T>(
    capture: &Capture,
    writing: Option<&Writing>,
    control: &Control,
    work: impl FnOnce() -> T,
) -> T {
    let done = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(capture, writing, control, &done));
        let _end = End(&done, watcher.thread().clone());
        work()
    });
    service::stopping();

    // Later lines on standard error follow the reports.
    events::flush();
    outcome
}

/// Ends the watcher, even if `work` panics.
struct End<'a>(&'a AtomicBool, thread::Thread);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// The ledger so far, with what the writer discarded.
fn ledger_so_far(capture: &Capture, writing: Option<&Writing>) -> Ledger {
    let mut ledger = capture.ledger();
    let discarded = writing.map_or(0, Writing::discarded);
    if discarded > 0 {
        let reason = "discarded for the writer".to_owned();
        ledger.lost_later.push(LostLater { packets: discarded, reason });
    }
    ledger
}

fn watch(capture: &Capture, writing: Option<&Writing>, control: &Control, done: &AtomicBool) {
    let names: Vec<String> =
        capture.interfaces().iter().map(|interface| interface.device.name.clone()).collect();
    let mut losses = Losses::default();
    let mut advisor = Advisor::new(&names);
    let mut slowness = writing.map(Slowness::of);
    let mut backlog = Backlog::default();

    let account = |known: &[Lost]| {
        let ledger = ledger_so_far(capture, writing);
        let lost = up_to_date(known, &ledger, &names, SystemTime::now());
        (ledger, lost)
    };
    let mut agent = control.agent(capture, writing, Box::new(account));
    let mut pulse = Pulse::new();
    let this_thread = thread::current();
    signals::wake_on_requests(move || this_thread.unpark());

    let mut next = Instant::now() + LOOK;
    let mut next_count = Instant::now() + COUNT;
    let mut delivered = None;
    let mut has_traffic = true;

    // A savefile has no interfaces.
    let mut hint_at = (!names.is_empty()).then(|| Instant::now() + SILENCE);

    while !done.load(Ordering::Acquire) {
        thread::park_timeout(next.saturating_duration_since(Instant::now()));
        if let Some(agent) = &mut agent {
            agent.do_jobs();
        }

        let now = Instant::now();
        if signals::statistics_asked_for() {
            events::print(format!("so far: {}", ledger_so_far(capture, writing)));
        }
        if now < next && !done.load(Ordering::Acquire) {
            continue;
        }

        let is_writing = writing.is_some_and(|writing| writing.blocked_for() > PAUSE);
        pulse.look(is_writing, now, || ledger_so_far(capture, writing));

        let is_turn = now >= next_count || done.load(Ordering::Acquire);

        // Read before the output is looked at: otherwise the output may begin to stall in between,
        // and the loss that this causes would get another reason.
        let ledger = is_turn.then(|| ledger_so_far(capture, writing));
        let is_slow = slowness.as_mut().is_some_and(|slowness| slowness.look(Instant::now()));
        let waiting =
            writing.and_then(|writing| backlog.look(writing.name(), writing.waiting(), now));
        waiting.iter().for_each(|line| events::say(Kind::Loss, line));

        if let Some(ledger) = ledger {
            next_count = now + COUNT;
            let before = delivered.replace(ledger.total.delivered);
            has_traffic = before != delivered;

            if ledger.total.delivered > 0 || done.load(Ordering::Acquire) {
                hint_at = None;
            }

            if hint_at.is_some_and(|at| now >= at) {
                hint_at = None;
                events::print(silence(&names));
            }

            let slow = writing.filter(|_| is_slow).map(Writing::name);
            let writer = writing.map(|writing| (writing.name(), writing.discarded()));
            let lines = losses.look(&ledger, &names, writer, slow, now);
            lines.iter().for_each(|line| events::say(Kind::Loss, line));
            advisor.ask(losses.questions(&names, slow.is_some()));

            if let Some(agent) = &mut agent {
                agent.losses = losses.so_far();
            }

            history::note(&ledger, capture.backlogs().into_iter().map(u64::from).sum());
        }

        advisor.lines().iter().for_each(|line| events::say(Kind::Loss, line));
        let is_busy =
            has_traffic || writing.is_some_and(|writing| writing.waiting() > 0) || is_writing;
        next = now + if is_busy { LOOK } else { service::longest_sleep() };
        next = hint_at.map_or(next, |at| next.min(at.max(now + LOOK)));
    }
}

/// The line about interfaces from which nothing has arrived.
fn silence(names: &[String]) -> String {
    // Each once: several of its queues may be named. Without a name, doctor looks at all
    // interfaces.
    let devices: BTreeSet<&str> =
        names.iter().map(String::as_str).filter(|name| *name != "any").collect();
    let doctor: Vec<&str> = iter::once("wirecap doctor").chain(devices).collect();
    format!(
        "no packets for {} s: is the link up, does the filter match? {} shows more",
        SILENCE.as_secs(),
        doctor.join(" ")
    )
}

/// Detects that packets wait in the pools for the output.
#[derive(Debug, Default)]
struct Backlog {
    /// Time of the last report, and whether the end was reported.
    said: Option<(Instant, bool)>,
    /// Since when nothing waits.
    empty: Option<Instant>,
    /// Packets also waited at the last check. At a single check they may wait for a sync, or for
    /// the cells that the writer has.
    waited: bool,
}

impl Backlog {
    /// The line to report while `packets` wait for `name`.
    fn look(&mut self, name: &str, packets: u64, now: Instant) -> Option<String> {
        let waited = mem::replace(&mut self.waited, packets > 0);

        if packets == 0 {
            let (said, is_over) = self.said?;
            let empty = *self.empty.get_or_insert(now);
            if is_over || now - empty < QUIET {
                return None;
            }
            self.said = Some((said, true));
            return Some(format!("no more packets wait for {name}"));
        }

        self.empty = None;
        if !waited || self.said.is_some_and(|(said, is_over)| !is_over || now - said < SAY_AGAIN) {
            return None;
        }

        self.said = Some((now, false));
        let count = grouped(packets);
        Some(format!("warning: {count} packets wait for {name}, which is slower than the traffic"))
    }
}

/// Detects an output that does not keep up.
#[derive(Debug)]
struct Slowness<'a> {
    writing: &'a Writing,
    looked: Instant,
    total: Duration,
    /// The time since which it has accepted nothing, if that was reported.
    stalled: Option<Instant>,
}

impl<'a> Slowness<'a> {
    fn of(writing: &'a Writing) -> Self {
        Self { writing, looked: Instant::now(), total: writing.total(), stalled: None }
    }

    /// Whether writing took most of the time since the last look, or is stalled now. A stall is
    /// reported.
    fn look(&mut self, now: Instant) -> bool {
        let blocked = self.writing.blocked_for();
        let total = self.writing.total();
        let name = self.writing.name();

        match self.stalled {
            None if blocked >= STALL => {
                self.stalled = now.checked_sub(blocked);
                let line = format!("warning: {name} accepts no data: packets wait in the pools");
                events::say(Kind::Loss, &line);
            }
            Some(since) if blocked < STALL => {
                self.stalled = None;
                let seconds = (now - since).as_secs_f64();
                events::say(
                    Kind::Loss,
                    &format!("{name} accepts data again, after {seconds:.1} s"),
                );
            }
            _ => {}
        }

        let share =
            (total.saturating_sub(self.total)).as_secs_f64() / (now - self.looked).as_secs_f64();
        (self.looked, self.total) = (now, total);

        share > 0.5 || blocked >= PAUSE
    }
}

/// Why packets are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reason {
    NoCell,
    RingFull,
    Device,
    NoRing,
    Port(&'static str),
    Writer,
}

impl Reason {
    fn words(self) -> &'static str {
        match self {
            Self::NoCell => "no free cell",
            Self::RingFull => "ring full",
            Self::Device => "dropped by the device",
            Self::NoRing => "from receive queues without a ring",
            Self::Port(words) => words,
            Self::Writer => "the writer's queue is full, and so is the pool",
        }
    }

    /// The advice. `slow` is an output that does not keep up.
    fn advice(self, place: &str, slow: Option<&str>) -> String {
        match (self, slow) {
            (Self::NoCell | Self::RingFull, Some(slow)) => {
                format!("{slow} is slower than the traffic; a larger pool (--buffer) bridges longer pauses")
            }
            (Self::NoCell | Self::RingFull, None) => {
                "packets arrive faster than they are processed; a larger pool (--buffer) holds longer bursts; a filter or \
                 more workers reduce the load"
                    .to_owned()
            }
            (Self::Device, _) => format!(
                "larger rings (ethtool -G {place} rx N) or more receive queues (ethtool -L {place} combined N) give it room"
            ),
            (Self::NoRing, _) => "a new queue gets a ring when the capture detects it".to_owned(),
            (Self::Writer, _) => {
                "it is slower than the traffic; a larger pool (--buffer) bridges longer pauses".to_owned()
            }
            (Self::Port(_), _) => format!("{place} sends more slowly than packets arrive"),
        }
    }
}

/// One place where packets are lost, and why.
type Key = (String, Reason);

/// The losses at one place up to the last look.
#[derive(Debug, Default)]
struct Loss {
    lost: u64,
    /// The ongoing loss: its beginning, the number of packets lost before it, and the time of the
    /// last loss.
    episode: Option<Episode>,
    /// Time of the last report of its beginning.
    said: Option<Instant>,
    /// The time of the last loss, to the precision of the checks.
    last: Option<SystemTime>,
}

#[derive(Debug, Clone, Copy)]
struct Episode {
    began: Instant,
    lost_before: u64,
    grew: Instant,
    was_said: bool,
}

/// Detects the beginning and the end of losses.
#[derive(Debug, Default)]
struct Losses {
    by_key: HashMap<Key, Loss>,
    /// The losses whose beginning was reported at the last check.
    begun: Vec<Key>,
    /// The devices' drops at the last look.
    device_drops: Vec<Option<u64>>,
}

impl Losses {
    /// All that was lost so far, the latest first.
    fn so_far(&self) -> Vec<Lost> {
        let lost = |((place, reason), loss): (&Key, &Loss)| {
            let last = loss.last?.duration_since(UNIX_EPOCH).unwrap_or_default();
            let place = place.clone();
            let reason = reason.words();
            let packets = loss.lost;
            Some(Lost { place, reason, packets, last_unix_s: last.as_secs_f64() })
        };
        let mut all: Vec<Lost> = self.by_key.iter().filter_map(lost).collect();
        sort(&mut all);
        all
    }

    /// The questions to doctor about the losses that have just begun: none if the output `is_slow`,
    /// which explains them.
    fn questions(&mut self, names: &[String], is_slow: bool) -> Vec<Question> {
        let question = |(place, reason): Key| {
            let interface = names.iter().find(|name| {
                place
                    .strip_prefix(&***name)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('@'))
            })?;
            let bottleneck = match reason {
                Reason::NoCell | Reason::RingFull if !is_slow => Bottleneck::Pool,
                Reason::Device => Bottleneck::Device,
                _ => return None,
            };

            Some(Question {
                place,
                reason: reason.words(),
                bottleneck,
                interface: interface.clone(),
            })
        };
        let begun = std::mem::take(&mut self.begun);
        let mut questions: Vec<Question> = begun.into_iter().filter_map(question).collect();

        // Rings of one interface have the same causes.
        questions.dedup_by(|a, b| (&a.interface, a.reason) == (&b.interface, b.reason));
        questions
    }

    /// The lines to report about `ledger`, and about the `writer` that discarded packets. `names`
    /// are those of the interfaces.
    fn look(
        &mut self,
        ledger: &Ledger,
        names: &[String],
        writer: Option<(&str, u64)>,
        slow: Option<&str>,
        now: Instant,
    ) -> Vec<String> {
        let mut confirmed = counts(ledger, names);
        for ((place, reason), lost) in &mut confirmed {
            // A driver's counters are read one after the other while packets arrive, so a drop that
            // only one check shows may be no drop. A drop is therefore reported one check later.
            if *reason == Reason::Device {
                let index = names.iter().position(|name| name == place);
                let before =
                    index.and_then(|index| self.device_drops.get(index).copied().flatten());
                *lost = (*lost).min(before.unwrap_or(0));
            }
        }

        self.device_drops.clone_from(&ledger.device_drops);
        let of_writer =
            writer.map(|(name, discarded)| ((name.to_owned(), Reason::Writer), discarded));
        let mut begun = Vec::new();

        let mut lines: Vec<String> = confirmed
            .into_iter()
            .chain(of_writer)
            .filter_map(|(key, lost)| {
                let loss = self.by_key.entry(key.clone()).or_default();
                let was_said = loss.is_said();
                let line = loss.look(&key, lost, slow, now);
                if loss.is_said() && !was_said {
                    begun.push(key);
                }
                line
            })
            .collect();
        if lines.len() > LINES_MAX {
            let more = lines.len() - (LINES_MAX - 1);
            lines.truncate(LINES_MAX - 1);
            lines.push(format!("and {more} more rings; the ledger lists all"));
        }

        self.begun = begun;
        lines
    }
}

impl Loss {
    /// Whether the ongoing loss was reported.
    fn is_said(&self) -> bool {
        self.episode.is_some_and(|episode| episode.was_said)
    }

    fn look(
        &mut self,
        (place, reason): &Key,
        lost: u64,
        slow: Option<&str>,
        now: Instant,
    ) -> Option<String> {
        let before = std::mem::replace(&mut self.lost, lost);
        let words = reason.words();

        if lost > before {
            self.last = Some(SystemTime::now());
            let episode = self.episode.get_or_insert(Episode {
                began: now,
                lost_before: before,
                grew: now,
                was_said: false,
            });
            episode.grew = now;

            if episode.was_said || self.said.is_some_and(|said| now - said < SAY_AGAIN) {
                return None;
            }

            (episode.was_said, self.said) = (true, Some(now));
            let count = grouped(lost - episode.lost_before);
            let advice = reason.advice(place, slow);
            return Some(format!(
                "warning: {place} is losing packets: {count} so far ({words}): {advice}"
            ));
        }

        let episode = self.episode.filter(|episode| now - episode.grew >= QUIET)?;
        self.episode = None;

        let count = grouped(lost.saturating_sub(episode.lost_before));

        // A loss that only one check found lasted less than the time between two checks.
        let duration = match episode.grew - episode.began {
            Duration::ZERO => "less than a second".to_owned(),
            duration => format!("{:.1} s", duration.as_secs_f64()),
        };
        let line =
            || format!("{place} has stopped losing packets: {count} lost in {duration} ({words})");
        episode.was_said.then(line)
    }
}

/// The losses of the last check with the counts of `ledger`, so that both agree in one status; the
/// latest loss first.
fn up_to_date(known: &[Lost], ledger: &Ledger, names: &[String], now: SystemTime) -> Vec<Lost> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let counted = counts(ledger, names).into_iter().filter(|(_, packets)| *packets > 0);
    let mut all: Vec<Lost> = counted
        .map(|((place, reason), packets)| {
            let before =
                known.iter().find(|lost| lost.place == place && lost.reason == reason.words());
            let last =
                before.filter(|lost| lost.packets >= packets).map_or(now, |lost| lost.last_unix_s);
            Lost { place, reason: reason.words(), packets, last_unix_s: last }
        })
        .collect();

    // The ledger has no separate reason for these losses.
    all.extend(known.iter().filter(|lost| lost.reason == Reason::Writer.words()).cloned());
    sort(&mut all);

    all
}

/// The latest first.
fn sort(losses: &mut [Lost]) {
    losses.sort_by(|a, b| {
        b.last_unix_s.total_cmp(&a.last_unix_s).then_with(|| a.place.cmp(&b.place))
    });
}

/// The number of lost packets by place and reason.
fn counts(ledger: &Ledger, names: &[String]) -> Vec<(Key, u64)> {
    let mut counts = Vec::new();

    for ring in &ledger.rings {
        let dropped = &ring.account.dropped;
        counts.push(((ring.name.clone(), Reason::NoCell), dropped.no_cell));
        counts.push(((ring.name.clone(), Reason::RingFull), dropped.ring_full));
    }

    for (name, dropped) in names.iter().zip(&ledger.device_drops) {
        counts.push(((name.clone(), Reason::Device), dropped.unwrap_or(0)));
    }

    counts.push((("the capture".to_owned(), Reason::NoRing), ledger.total.dropped.no_ring));

    for port in &ledger.ports {
        let dropped = &port.account.dropped;
        let reasons = [
            (dropped.ring_full, "tx ring full"),
            (dropped.refused, "refused by the device"),
            (dropped.bad_length, "bad length"),
            (dropped.no_cell, "no free cell for a copy"),
        ];
        counts.extend(
            reasons.map(|(count, words)| {
                ((format!("port {}", port.name), Reason::Port(words)), count)
            }),
        );
    }

    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: fn() -> Key = || ("a1@0".to_owned(), Reason::NoCell);

    /// The reports of looks half a second apart, with these counts.
    fn said(counts: &[u64], slow: Option<&str>) -> Vec<Option<String>> {
        let mut loss = Loss::default();
        let start = Instant::now();
        let times = (0..).map(|look| start + look * Duration::from_millis(500));
        counts.iter().zip(times).map(|(&count, now)| loss.look(&KEY(), count, slow, now)).collect()
    }

    #[test]
    fn loss_is_reported_when_it_begins_and_when_it_ends() {
        let said = said(&[0, 5, 9, 9, 9, 9], None);
        let begins = said[1].as_deref().unwrap();
        assert!(begins.contains("a1@0 is losing packets: 5 so far (no free cell)"), "{begins}");
        assert!(begins.contains("--buffer"), "{begins}");
        assert_eq!(
            said[4].as_deref(),
            Some("a1@0 has stopped losing packets: 9 lost in 0.5 s (no free cell)")
        );
        assert!([0, 2, 3, 5].iter().all(|&look| said[look].is_none()), "{said:?}");
    }

    #[test]
    fn recurring_loss_is_reported_at_most_every_ten_seconds() {
        // A packet every other second: each ends before the next.
        let counts: Vec<u64> = (0..200).map(|look| look / 4).collect();
        let said: Vec<String> = said(&counts, None).into_iter().flatten().collect();
        let begins = said.iter().filter(|line| line.contains("is losing")).count();
        assert!((9..=11).contains(&begins) && said.len() <= 2 * begins, "{said:?}");
    }

    #[test]
    fn a_backlog_is_reported_when_it_begins_and_when_it_ends() {
        let mut backlog = Backlog::default();
        let start = Instant::now();

        // 40 waited at one look only.
        let waiting = [0, 40, 0, 70, 90, 0, 50, 0, 0, 0, 0, 0, 0, 0];
        let times = (0..).map(|look| start + look * LOOK);
        let said: Vec<Option<String>> = waiting
            .iter()
            .zip(times)
            .map(|(&packets, now)| backlog.look("x", packets, now))
            .collect();
        assert!(said[4].as_deref().unwrap().contains("90 packets wait for x"), "{said:?}");
        assert_eq!(said[12].as_deref(), Some("no more packets wait for x"));
        assert_eq!(said.iter().flatten().count(), 2, "{said:?}");
    }

    #[test]
    fn a_loss_at_one_look_has_no_duration() {
        let said = said(&[0, 5, 5, 5, 5], None);
        assert_eq!(
            said[3].as_deref(),
            Some("a1@0 has stopped losing packets: 5 lost in less than a second (no free cell)")
        );
    }

    /// A ledger of one interface, whose ring and device dropped these numbers of packets.
    fn ledger(no_cell: u64, device: u64) -> Ledger {
        let mut account = wirecap::Account::default();
        account.dropped.no_cell = no_cell;

        let ring = wirecap::RingLedger { name: "a1@0".to_owned(), account: account.clone() };
        Ledger {
            engine: "xdp",
            mode: String::new(),
            total: account,
            duration: Duration::ZERO,
            rings: vec![ring],
            interfaces: Vec::new(),
            ports: Vec::new(),
            recorded: None,
            lost_later: Vec::new(),
            device_drops: vec![Some(device)],
            unseen: Vec::new(),
            counted: Vec::new(),
            quiet_since: Vec::new(),
            starved_wrong: false,
            unreadable: None,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn a_device_s_drop_is_reported_if_it_is_there_at_two_looks() {
        let mut losses = Losses::default();
        let start = Instant::now();
        let names = ["a1".to_owned()];

        let mut look = |seconds, device| {
            losses.look(
                &ledger(0, device),
                &names,
                None,
                None,
                start + Duration::from_secs(seconds),
            )
        };
        assert!(
            [(0, 0), (1, 1), (2, 0), (3, 7)]
                .iter()
                .all(|&(at, device)| look(at, device).is_empty())
        );
        assert!(look(4, 9)[0].contains("a1 is losing packets: 7 so far (dropped by the device)"));
    }

    #[test]
    fn the_losses_of_a_status_have_the_counts_of_its_ledger() {
        let names = ["a1".to_owned()];
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let begun = up_to_date(&[], &ledger(5, 0), &names, at(10));
        let lost = |packets, last_unix_s| {
            vec![Lost { place: "a1@0".to_owned(), reason: "no free cell", packets, last_unix_s }]
        };
        assert_eq!(begun, lost(5, 10.0));
        assert_eq!(up_to_date(&begun, &ledger(5, 0), &names, at(11)), lost(5, 10.0));
        assert_eq!(up_to_date(&begun, &ledger(9, 0), &names, at(12)), lost(9, 12.0));
        assert_eq!(up_to_date(&lost(3, 9.0), &ledger(0, 0), &names, at(13)), []);
    }

    #[test]
    fn a_slow_receiver_is_named() {
        let said = said(&[0, 5], Some("standard output"));
        assert!(
            said[1].as_deref().unwrap().contains("standard output is slower than the traffic"),
            "{said:?}"
        );
    }
}
