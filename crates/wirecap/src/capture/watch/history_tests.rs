//! Random histories of devices: whenever the sender's count and the file differ, the verdict is not
//! a plain "yes".
//!
//! The device, its counters and the rings' kernel are simulated. Rings, comparison, drop counts,
//! gaps and verdict are those of a live capture.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::comparison::{BothSides, Comparison, Proof, Seen};
use super::drops::DropCount;
use super::tests::{interface_state, watched};
use super::*;
use crate::device::received::Received;
use crate::device::{DeviceCounters, DropSource};
use crate::ledger::{Answer, Counted, Ledger};
use crate::sim::{
    Answer as Given, QueueState, Random, SimCapture, SimDevice, SimSettings, SimWorker,
};
use crate::time::Timestamp;
use crate::umem::pool::Geometry;
use crate::umem::ring::Counters;
use crate::umem::rx::RxRing;

/// Packets that reached the ring: at least and at most.
fn received(ring: &RxRing) -> (u64, u64) {
    ring.received().expect("an rx ring counts what its filter rejects")
}

const LOOK: Duration = Duration::from_millis(150);
/// Time between two batches that the driver counts.
const BATCH: Duration = Duration::from_millis(2);
const STEP: Duration = Duration::from_micros(500);
/// A queue that is silent for this long is silent for a second at the watcher's looks.
const SILENCE_NOTICED: Duration = Duration::from_millis(1500);

/// What a device counts, and what is known of its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Model {
    /// A veth: counts by queue; cannot die unnoticed.
    Virtual,
    /// A NIC whose driver counts by queue.
    Queues,
    /// The same, and the device counts before its queues do.
    QueuesAndWire,
    /// A NIC with one queue, counted by the device.
    Total,
    /// A bond: its driver counts in an unknown way, and an XDP socket on it gets nothing.
    Bond,
}

#[derive(Debug, Clone, Copy)]
enum Incident {
    QueueSilent(usize),
    QueueBypassed(usize),
    Heal,
    /// Longer than a silence that is noticed.
    Wait,
    Die,
    LoseCarrier,
    RegainCarrier,
    ResetCounters,
    DropAtDevice(u64),
    AddQueue,
    /// Nothing is taken out of the rings for a while.
    Stall,
    /// The sender pauses.
    Quiet,
    Resume,
}

/// A sender, a device, a capture and its watcher, in simulated time.
struct World {
    model: Model,
    settings: SimSettings,
    random: Random,
    device: SimDevice,
    capture: SimCapture,
    workers: Vec<SimWorker>,
    /// The same moment of both clocks.
    epoch: (SystemTime, Instant),
    now: SystemTime,
    next_burst: SystemTime,
    next_batch: SystemTime,
    burst_period: Duration,
    is_sending: bool,
    is_stalled: bool,
    sent: u64,
    in_file: u64,
    /// When packets came that did not reach a ring.
    lost: Vec<SystemTime>,
    has_carrier: bool,
    carrier_losses: u32,
    watched: Watched,
    drops: DropCount,
    comparison: Comparison,
    counted: SystemTime,
    compared: SystemTime,
}

impl World {
    fn new(model: Model, mut random: Random) -> Self {
        let rings = if matches!(model, Model::Total | Model::Bond) {
            1
        } else {
            random.between(2, 4) as usize
        };
        Self::with_queues(model, rings, random)
    }

    fn with_queues(model: Model, rings: usize, mut random: Random) -> Self {
        let settings = SimSettings {
            rings,
            rings_later: 3,
            workers: rings,
            geometry: Geometry { chunk_cells: 16, chunks: 32, cell_bytes: 32 },
            ..SimSettings::default()
        };
        let capture = SimCapture::new(&settings);
        let device =
            SimDevice::new((0..rings).map(|ring| Arc::clone(capture.kernel(ring))).collect());
        let workers = (0..rings).map(|index| capture.worker(index)).collect();
        let now = SystemTime::now();
        let mut watched = watched(model != Model::Virtual);
        watched.shows_no_life = model != Model::Virtual;
        (watched.well, watched.began, watched.felt) = (now, now, now);

        let mut world = Self {
            model,
            settings,
            burst_period: Duration::from_millis(random.between(2, 20)),
            random,
            device,
            capture,
            workers,
            epoch: (now, Instant::now()),
            now,
            next_burst: now,
            next_batch: now,
            is_sending: true,
            is_stalled: false,
            sent: 0,
            in_file: 0,
            lost: Vec::new(),
            has_carrier: true,
            carrier_losses: 0,
            watched,
            drops: DropCount::default(),
            comparison: Comparison::default(),
            counted: now,
            compared: now,
        };
        if model == Model::Bond {
            world.device.set_queue(0, QueueState::Bypassed);
        }

        world
    }

    fn begin(&mut self) {
        self.look_at_carrier();
        self.drops = DropCount::begin(Some(self.drop_counters()));
        let name = self.watched.name.clone();
        self.comparison = Comparison::begin(&name, self);
        (self.sent, self.in_file) = (0, 0);
        self.lost.clear();
        // Packets in the rings at this moment are not in the sender's count of the history.
        self.drain();
        self.in_file = 0;
    }

    fn drop_counters(&self) -> DeviceCounters {
        DeviceCounters { dropped: Some(self.device.counts().dropped), source: DropSource::Driver }
    }

    /// Lets time pass: the sender sends, the driver counts, the workers take packets.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = end.min(self.now + STEP);

            while self.is_sending && self.next_burst <= self.now {
                for _ in 0..self.random.between(1, 8) {
                    let queue = self.random.below(self.device.queues() as u64) as usize;
                    if self.device.receive(queue, &[1, 2, 3], Timestamp::default()).is_none() {
                        self.lost.push(self.now);
                    }
                    self.sent += 1;
                }
                self.next_burst += self.burst_period;
            }

            if !self.is_sending {
                self.next_burst = self.now;
            }

            while self.next_batch <= self.now {
                self.device.count();
                self.next_batch += BATCH;
            }

            if !self.is_stalled {
                self.drain();
            }
        }
    }

    fn drain(&mut self) {
        for worker in &mut self.workers {
            while let Ok(Given::Chunk { chunk, .. }) = worker.ask(Duration::ZERO) {
                self.in_file += chunk.len() as u64;
            }
        }
    }

    fn look_at_carrier(&mut self) -> Carrier {
        self.watched.follow_carrier(&interface_state(self.has_carrier, self.carrier_losses))
    }

    /// The watcher's look, as `Attached::look` does it.
    fn look(&mut self) {
        let now = self.now;
        let carrier = self.look_at_carrier();
        if carrier == Carrier::Flapped {
            self.watched.lose(UnseenReason::NoCarrier, None, &|_| ());
        }

        let rings = self.capture.rings().len();
        if self.device.queues() > rings {
            self.watched.lose(UnseenReason::Queues, None, &|_| ());
            let home = self.capture.seat_ring(&self.settings);
            assert!(home < self.workers.len());
            self.device.seat(Arc::clone(self.capture.kernel(rings)));
        }

        if carrier == Carrier::Gone {
            self.watched.lose(UnseenReason::NoCarrier, None, &|_| ());
        } else {
            let packets = self.packets();
            self.watched.is_idle(packets, now);
            self.look_at_queues();
            self.watched.find_well(now, now, &|_| ());
        }

        if self.since(self.counted) >= COUNT_PERIOD {
            self.counted = now;
            self.read_drops();
        }

        if self.since(self.compared) >= Duration::from_secs(5)
            && self.watched.unseen_now().is_none()
        {
            self.compared = now;
            let mut comparison = std::mem::take(&mut self.comparison);
            let reset = comparison.look(self);
            self.comparison = comparison;
            self.note(reset);
        }
    }

    /// As for a device on a bus.
    fn look_at_queues(&mut self) {
        if self.model == Model::Virtual {
            return;
        }
        let packets = self.capture.rings().iter().map(|ring| received(ring).1);
        let packets = (0..).zip(packets).collect();
        let at = self.epoch.1 + self.since(self.epoch.0);
        self.watched.queues.look(&packets, self.now, at);
    }

    fn read_drops(&mut self) -> Option<u64> {
        let (drops, reset) = self.drops.read(Some(self.drop_counters()), self.now);
        self.note(reset);
        drops
    }

    fn note(&mut self, reset: Option<Reset>) {
        if let Some(reset) = reset {
            self.watched.lose_count(reset, self.now);
        }
    }

    fn since(&self, time: SystemTime) -> Duration {
        self.now.duration_since(time).unwrap_or_default()
    }

    fn packets(&self) -> u64 {
        self.capture.rings().iter().map(|ring| received(ring).1).sum()
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.pass(LOOK);
            self.look();
        }
    }

    fn happen(&mut self, incident: Incident) {
        match incident {
            Incident::QueueSilent(queue) => self.device.set_queue(queue, QueueState::Silent),
            Incident::QueueBypassed(queue) => self.device.set_queue(queue, QueueState::Bypassed),
            Incident::Heal => {
                (0..self.device.queues())
                    .for_each(|queue| self.device.set_queue(queue, QueueState::Works));
            }
            Incident::Wait => self.run(SILENCE_NOTICED),
            Incident::Die => self.device.die(),
            Incident::LoseCarrier => {
                (self.has_carrier, self.carrier_losses) = (false, self.carrier_losses + 1);
                self.device.set_carrier(false);
            }
            Incident::RegainCarrier => {
                self.has_carrier = true;
                self.device.set_carrier(true);
                self.device.restart();
            }
            Incident::ResetCounters => self.device.reset_counters(),
            Incident::DropAtDevice(packets) => {
                (0..packets).for_each(|_| self.device.drop_packet());
                self.sent += packets;
            }
            Incident::AddQueue => self.device.add_queue(),
            Incident::Stall => self.is_stalled = true,
            Incident::Quiet => self.is_sending = false,
            Incident::Resume => (self.is_sending, self.is_stalled) = (true, false),
        }
    }

    /// What may happen to this device, each with what may follow.
    fn incidents(&mut self) -> Vec<Vec<Incident>> {
        use Incident::*;
        let queue = self.random.below(self.device.queues() as u64) as usize;
        let drops = self.random.between(1, 50);
        let mut all = vec![vec![DropAtDevice(drops)], vec![Stall, Resume], vec![Quiet, Resume]];

        if self.model != Model::Bond {
            all.extend([vec![QueueBypassed(queue)], vec![QueueBypassed(queue), Heal]]);
        }

        if self.model != Model::Virtual {
            all.extend([
                vec![ResetCounters],
                vec![DropAtDevice(drops), ResetCounters],
                vec![LoseCarrier, RegainCarrier],
                vec![LoseCarrier],
            ]);
        }

        if !matches!(self.model, Model::Virtual | Model::Bond) {
            all.extend([
                vec![Die],
                vec![Die, LoseCarrier, RegainCarrier],
                vec![QueueSilent(queue)],
            ]);
        }

        match self.model {
            Model::QueuesAndWire => all.push(vec![QueueSilent(queue), Heal]),
            // Nothing shows a shorter silence of one queue. The first wait is for a queue that is
            // silent already.
            Model::Queues => all.push(vec![Wait, QueueSilent(queue), Wait, Heal]),
            _ => {}
        }

        if matches!(self.model, Model::Virtual | Model::Queues) {
            all.push(vec![AddQueue]);
        }

        all
    }

    /// The end of the capture: the ledger, the sender's count and the packets in the file.
    fn end(mut self) -> (Ledger, u64, u64, Vec<SystemTime>) {
        let carrier = self.look_at_carrier();
        if carrier != Carrier::Steady {
            self.watched.lose(UnseenReason::NoCarrier, None, &|_| ());
        }

        let proof = match self.watched.unseen_now() {
            Some(_) => Proof::Gap,
            None if self.model == Model::Virtual || self.watched.carrier_losses.is_none() => {
                Proof::Alive
            }
            None => Proof::Packets,
        };
        let mut comparison = std::mem::take(&mut self.comparison);
        let reset = comparison.end(&mut self, proof);
        self.note(reset);

        let drops = self.read_drops();
        self.is_stalled = false;
        self.drain();

        let rings = self.capture.ledger(Duration::from_secs(1)).rings;
        let ledger = Ledger::of("xdp", String::new(), Duration::from_secs(1), rings, vec![drops]);
        let unseen = self.watched.unseen().to_vec();
        let ledger = ledger.with_gaps(0, unseen);
        let counted = comparison.counted().to_vec();
        let quiet_since = comparison.may_be_dead_since().into_iter().collect();

        (Ledger { counted, quiet_since, ..ledger }, self.sent, self.in_file, self.lost)
    }
}

impl BothSides for World {
    fn received(&mut self) -> Option<Received> {
        let counts = self.device.counts();
        let total = counts.queues.iter().sum();
        let numbered = || {
            counts.queues.iter().enumerate().map(|(queue, count)| (queue as u32, *count)).collect()
        };
        let has_queues = !matches!(self.model, Model::Total | Model::Bond);

        Some(Received {
            queues: if has_queues { numbered() } else { Vec::new() },
            total,
            on_wire: (self.model == Model::QueuesAndWire).then_some(counts.on_wire),
            dropped: counts.dropped,
            sent: 0,
            differs: (self.model == Model::Bond).then(|| "it is a bond".to_owned()),
        })
    }

    fn seen(&mut self) -> Result<Seen, String> {
        let mut seen = Seen::new();
        for (queue, ring) in self.capture.rings().iter().enumerate() {
            let (least, most) = received(ring);
            for place in [None, Some(queue as u32)] {
                let sum = seen.entry(place).or_default();
                *sum = (sum.0 + least, sum.1 + most);
            }
        }
        Ok(seen)
    }

    fn without_ring(&mut self) -> u64 {
        0
    }

    fn last_packet(&mut self) -> Option<SystemTime> {
        self.watched.last_packet
    }

    fn silent_queue_since(&mut self) -> Option<SystemTime> {
        self.watched.queues.silent_since()
    }

    fn pause(&mut self, time: Duration) {
        self.pass(time);
    }

    fn now(&mut self) -> SystemTime {
        self.now
    }
}

const MODELS: [Model; 5] =
    [Model::Virtual, Model::Queues, Model::QueuesAndWire, Model::Total, Model::Bond];

fn histories() -> u64 {
    std::env::var("WIRECAP_HISTORIES").ok().and_then(|count| count.parse().ok()).unwrap_or(200)
}

fn seeds(count: u64) -> Vec<u64> {
    let seed = std::env::var("WIRECAP_SEED").ok().and_then(|seed| seed.parse().ok());
    seed.map_or_else(|| (0..count).collect(), |seed| vec![seed])
}

/// A history with some incidents; `Err` describes a broken promise.
fn try_history(seed: u64) -> Result<(Answer, bool), String> {
    let mut random = Random::new(seed);
    let model = MODELS[random.below(MODELS.len() as u64) as usize];
    let mut world = World::new(model, random.clone());
    let is_late = model != Model::Virtual && random.once_in(6);

    if is_late {
        world.has_carrier = false;
        world.device.set_carrier(false);
        world.is_sending = false;
    }

    world.begin();

    if is_late {
        world.run(Duration::from_millis(600));
        (world.has_carrier, world.is_sending) = (true, true);
        world.device.set_carrier(true);
    }

    let mut told = Vec::new();

    for _ in 0..random.between(0, 3) {
        world.run(Duration::from_millis(random.between(100, 7000)));
        let mut choices = world.incidents();
        let chosen = random.take(&mut choices).unwrap_or_default();
        for incident in chosen {
            told.push(incident);
            world.happen(incident);
            world.run(Duration::from_millis(random.between(50, 2500)));
        }
    }

    world.pass(Duration::from_millis(random.below(150)));
    let (ledger, sent, in_file, lost_at) = world.end();
    let verdict = ledger.judge();
    let about =
        format!("seed {seed}, {model:?}, {told:?}: {sent} sent, {in_file} in the file\n{ledger}");
    let text = ledger.to_string();

    if sent != in_file && verdict.to_string() == "lossless: yes" {
        return Err(format!("a false yes: {about}"));
    }

    let lost = sent.saturating_sub(in_file);
    let names = text.contains("eth7") || text.contains(" UTC");
    if lost > verdict.lost()
        && !(names && verdict.answer != Answer::Yes || !verdict.unchecked.is_empty())
    {
        return Err(format!("no place and no time: {about}"));
    }

    let outside = lost_at.iter().filter(|at| !is_named(&ledger, **at)).count() as u64;
    let missing: u64 = ledger.counted.iter().map(Counted::missing).sum();

    // After a reset, what was missing before is not known, nor what a queue lost that failed alone
    // and works again. A batch may not be counted yet.
    let leaves_no_trace = |incident: &Incident| {
        matches!(incident, Incident::ResetCounters | Incident::QueueSilent(_))
    };
    let is_unknown = told.iter().any(leaves_no_trace);
    if outside > missing + 64 && verdict.unchecked.is_empty() && !is_unknown {
        return Err(format!("{outside} lost packets at no named time: {about}"));
    }

    Ok((verdict.answer, sent != in_file))
}

/// Whether a packet at this time came in a period that the ledger lists, or after the last time
/// that is known.
fn is_named(ledger: &Ledger, at: SystemTime) -> bool {
    let is_in = |unseen: &Unseen| unseen.from <= at && unseen.to.is_none_or(|to| at <= to);
    ledger.unseen.iter().any(is_in) || ledger.quiet_since.iter().any(|since| *since <= at)
}

#[test]
fn whenever_packets_are_missing_the_verdict_is_no_plain_yes() {
    let mut answers = Vec::new();
    for seed in seeds(histories()) {
        answers.push(try_history(seed).unwrap_or_else(|broken| panic!("{broken}")));
    }

    if answers.len() >= 200 {
        let count = |test: fn(&(Answer, bool)) -> bool| {
            answers.iter().filter(|answer| test(answer)).count()
        };
        let missing = count(|(_, differs)| *differs);

        let kinds = [
            count(|(answer, _)| *answer == Answer::Yes),
            count(|(answer, _)| matches!(answer, Answer::Until(_))),
            count(|(answer, _)| *answer == Answer::NotKnown),
            count(|(answer, _)| *answer == Answer::No),
        ];
        assert!(missing > answers.len() / 4, "{missing} with missing packets, verdicts {kinds:?}");
        assert!(kinds.iter().all(|kind| *kind >= 5), "{kinds:?}");
    }
}

#[test]
fn a_healthy_busy_history_is_lossless() {
    for seed in seeds(20) {
        let mut random = Random::new(seed);
        let model = MODELS[random.below(4) as usize];
        let mut world = World::new(model, random.clone());
        world.begin();
        world.run(Duration::from_millis(random.between(1000, 20_000)));
        let (ledger, sent, in_file, _) = world.end();
        assert_eq!(sent, in_file, "seed {seed}, {model:?}\n{ledger}");
        assert_eq!(ledger.verdict(), "lossless: yes", "seed {seed}, {model:?}\n{ledger}");
    }
}

#[test]
fn five_of_eight_queues_that_were_silent_for_a_while_are_no_plain_yes() {
    for seed in seeds(5) {
        let mut world = World::with_queues(Model::Queues, 8, Random::new(seed));
        world.begin();
        world.run(Duration::from_secs(3));
        (0..5).for_each(|queue| world.happen(Incident::QueueSilent(queue)));
        world.run(SILENCE_NOTICED);
        world.happen(Incident::Heal);
        world.run(Duration::from_secs(3));

        let (ledger, sent, in_file, lost) = world.end();
        assert!(sent > in_file, "seed {seed}: {sent} sent\n{ledger}");
        assert!(
            ledger.verdict().starts_with("lossless until "),
            "silent queues, seed {seed}\n{ledger}"
        );
        assert!(lost.iter().all(|at| is_named(&ledger, *at)), "seed {seed}\n{ledger}");
    }
}
