//! A whole capture under a virtual clock: packets arrive, workers work, sleep, are woken, and
//! sometimes get stuck. They share load by the real group over the real rings, or, for comparison,
//! by pushing chunks as in the paper.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::capture::waiting::{LONGEST_SLEEP, LOOK_ROUND, LOOK_ROUND_FOR_BUDDIES, Wait};
use crate::forward::Port;
use crate::ledger::Ledger;
use crate::sim::arrivals::Times;
use crate::sim::audit::{Audit, BrokenPromise};
use crate::sim::delays::Delays;
use crate::sim::push::Push;
use crate::sim::{Answer, Arrivals, Random, SimCapture, SimSettings, SimWorker};
use crate::time::Timestamp;
use crate::umem::chunk::Chunk;

/// The configuration of a simulated capture.
#[derive(Debug, Clone, PartialEq)]
pub struct SimulationConfig {
    /// The rings, pools and workers.
    pub settings: SimSettings,
    /// How chunks get to other workers than their ring's own.
    pub sharing: Sharing,
    /// The arrivals of each ring.
    pub arrivals: Vec<Arrivals>,
    /// The processing time of each worker.
    pub service: Vec<Service>,
    /// Time from a wake-up, or the end of a sleep, to the worker's first instruction.
    pub wake_latency: Duration,
    /// Whether a keeper posts cells to rings of which not all cells are posted; a forked child
    /// process has none.
    pub keeper: bool,
    /// Faults of workers.
    pub mishaps: Vec<Mishap>,
    /// Time at which the capture is stopped; packets that arrived earlier are still processed.
    pub duration: Duration,
    /// Interval at which the backlogs are recorded in [`Outcome::samples`]; zero: never.
    pub sample_every: Duration,
    /// The seed of all random numbers.
    pub seed: u64,
}

impl Default for SimulationConfig {
    /// One ring and one worker, as in [`SimSettings::default`], and one second without packets.
    fn default() -> Self {
        Self {
            settings: SimSettings::default(),
            sharing: Sharing::Pull,
            arrivals: vec![Arrivals::Silence],
            service: vec![Service::at_rate(1e6)],
            wake_latency: Duration::from_micros(10),
            keeper: true,
            mishaps: Vec::new(),
            duration: Duration::from_secs(1),
            sample_every: Duration::ZERO,
            seed: 0,
        }
    }
}

/// How workers get chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// As in wirecap: a worker takes chunks from its own rings and from buddies' rings above T.
    Pull,
    /// As in the paper (section 3.2.2): a capture thread for each ring moves every chunk into the
    /// queue of the ring's worker, or, if that is longer than T x R chunks, into the queue of the
    /// least busy worker. The capture threads cost no time here.
    Push,
}

/// The processing time of a worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Service {
    /// Nanoseconds for each packet.
    pub nanos_per_packet: f64,
    /// Additional nanoseconds for each chunk.
    pub nanos_per_chunk: f64,
}

impl Service {
    /// A worker that processes `rate` packets per second.
    pub fn at_rate(rate: f64) -> Self {
        Self { nanos_per_packet: 1e9 / rate, nanos_per_chunk: 0.0 }
    }

    fn nanos(&self, packets: usize) -> u64 {
        (packets as f64).mul_add(self.nanos_per_packet, self.nanos_per_chunk) as u64
    }
}

/// A fault of a worker, with the first chunk that it gets at or after a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    /// It gets stuck in a packet of that chunk.
    Stuck {
        /// The worker.
        worker: usize,
        /// From when on.
        at: Duration,
        /// Duration.
        lasting: Duration,
    },
    /// It panics or returns, and drops that chunk.
    Leaves {
        /// The worker.
        worker: usize,
        /// From when on.
        at: Duration,
    },
}

/// The results of a simulated capture.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The account of every packet.
    pub ledger: Ledger,
    /// The work of each worker.
    pub workers: Vec<WorkerOutcome>,
    /// The maximum number of packets that waited in each ring, and with [`Sharing::Push`] in the
    /// queues.
    pub max_backlogs: Vec<u32>,
    /// Number of chunks processed by a worker other than their ring's own.
    pub offloaded_chunks: u64,
    /// Time from a packet's arrival to its delivery in a chunk: the 99th percentile of each ring,
    /// accurate to an eighth.
    pub waits_p99: Vec<Duration>,
    /// Maximum time from a packet's arrival until its chunk was processed.
    pub longest_delay: Duration,
    /// Time at which the last worker ended.
    pub ended_at: Duration,
    /// The backlogs over time, if requested.
    pub samples: Vec<Sample>,
    /// The first violated guarantees; must be empty.
    pub broken_promises: Vec<BrokenPromise>,
}

/// The work of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkerOutcome {
    /// Chunks it processed.
    pub chunks: u64,
    /// Packets in them.
    pub packets: u64,
    /// Chunks of these that came from other workers' rings.
    pub offloaded_chunks: u64,
    /// Packets in those.
    pub offloaded_packets: u64,
    /// Time for which it was busy.
    pub busy: Duration,
}

/// The backlogs at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The time.
    pub at: Duration,
    /// Number of packets that wait in each ring, and with [`Sharing::Push`] in the queues.
    pub backlogs: Vec<u32>,
}

/// A simulation that is ready to run. The same configuration always has the same outcome.
#[derive(Debug)]
pub struct Simulation {
    config: SimulationConfig,
    capture: SimCapture,
    arrivals: Vec<Times>,
    next_number: Vec<u64>,
    sharing: Mechanism,
    /// The port that sends all processed packets, if the capture forwards.
    port: Option<Port>,
    workers: Vec<Actor>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Number of planned events so far. Events at the same time take place in the order in which
    /// they were planned.
    planned: u64,
    now: u64,
    ending: bool,
    /// Maximum time for which a worker may poll while a ring of its group is above T.
    longest_poll: Duration,
    /// The waiting times of each ring's packets.
    waits: Vec<Delays>,
    audit: Audit,
    outcome: Outcome,
    /// The change that a deliberately broken engine makes to a recycled chunk.
    #[cfg(test)]
    pub(super) sabotage: Option<fn(&mut Chunk)>,
}

#[derive(Debug)]
enum Mechanism {
    Pull,
    Push(Push),
}

/// A simulated worker.
#[derive(Debug)]
struct Actor {
    /// None if it is gone.
    worker: Option<SimWorker>,
    service: Service,
    doing: Doing,
    /// The number of its valid planned event; earlier ones are cancelled.
    turn: u64,
    /// The time of that event.
    turn_at: u64,
    asked_at: u64,
    /// It was woken and has not yet looked at its rings.
    bell: bool,
    outcome: WorkerOutcome,
}

#[derive(Debug)]
enum Doing {
    Processing(Chunk, u64),
    /// It is about to look at its rings.
    Starting,
    /// It sleeps since that time until its next turn, and cannot be woken.
    Sleeping(u64),
    /// It began at that time.
    Polling(u64),
    Ended,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A worker has finished its current action, if this is its latest turn.
    Turn {
        worker: usize,
        turn: u64,
    },
    /// A packet arrives. Only the paper's capture threads need this event; the real rings are
    /// filled up to the time of the next event when that takes place.
    Arrival {
        ring: usize,
    },
    /// The capture threads take partly filled chunks.
    Flush,
    /// The keeper looks at the rings.
    Keep,
    Sample,
    Stop,
}

/// Interval at which the paper's capture threads take partly filled chunks.
const FLUSH_EVERY: Duration = Duration::from_millis(1);

impl Simulation {
    /// Prepares a run.
    ///
    /// # Panics
    /// If the number of arrivals is not the number of rings, or the number of services not that of
    /// workers, if a mishap names a worker that does not exist, or if the settings are invalid
    /// ([`SimCapture::new`]).
    pub fn new(config: SimulationConfig) -> Self {
        let capture = SimCapture::new(&config.settings);
        Self::of(config, capture)
    }

    pub(super) fn of(mut config: SimulationConfig, capture: SimCapture) -> Self {
        // Recordings are long: they are moved, not cloned.
        let arrivals = std::mem::take(&mut config.arrivals);
        let settings = &config.settings;
        assert_eq!(arrivals.len(), settings.rings, "arrivals and rings");
        assert_eq!(config.service.len(), settings.workers, "services and workers");

        let exists = |mishap: &Mishap| mishap.worker() < settings.workers;
        assert!(config.mishaps.iter().all(exists), "a mishap of no worker");

        let mut random = Random::new(config.seed);
        let times =
            |arrivals: Arrivals| arrivals.times(Random::new(random.bits()), config.duration);
        let arrivals = arrivals.into_iter().map(times).collect();

        let actor = |(index, service): (usize, &Service)| Actor {
            worker: Some(capture.worker(index)),
            service: *service,
            doing: Doing::Starting,
            turn: 0,
            turn_at: 0,
            asked_at: 0,
            bell: false,
            outcome: WorkerOutcome::default(),
        };
        let workers = config.service.iter().enumerate().map(actor).collect();

        let sharing = match config.sharing {
            Sharing::Pull => Mechanism::Pull,
            Sharing::Push => Mechanism::Push(Push::new(settings)),
        };
        let mut audit = Audit::new(settings);

        if config.mishaps.is_empty() {
            audit.expect_notes_within(longest_chunk(&config) + LONGEST_SLEEP + config.wake_latency);
        }

        Self {
            arrivals,
            next_number: vec![0; settings.rings],
            sharing,
            port: capture.port(),
            workers,
            events: BinaryHeap::new(),
            planned: 0,
            now: 0,
            ending: false,
            longest_poll: longest_poll(&config),
            waits: vec![Delays::default(); settings.rings],
            audit,
            outcome: Outcome {
                ledger: capture.ledger(Duration::ZERO),
                workers: Vec::new(),
                max_backlogs: vec![0; settings.rings],
                offloaded_chunks: 0,
                waits_p99: Vec::new(),
                longest_delay: Duration::ZERO,
                ended_at: Duration::ZERO,
                samples: Vec::new(),
                broken_promises: Vec::new(),
            },
            capture,
            config,
            #[cfg(test)]
            sabotage: None,
        }
    }

    /// A deliberately broken engine, whose workers rest without looking at their buddies.
    #[cfg(test)]
    pub(super) fn with_resting_workers(mut self) -> Self {
        let workers = self.workers.iter_mut().filter_map(|actor| actor.worker.as_mut());
        workers.for_each(|worker| worker.waiting.is_heedless = true);
        self
    }

    /// Runs to the end.
    pub fn run(mut self) -> Outcome {
        for worker in 0..self.workers.len() {
            self.plan_turn(worker, 0);
        }

        self.plan(self.config.duration, Event::Stop);
        if self.config.keeper {
            self.plan_keeper();
        }
        if !self.config.sample_every.is_zero() {
            self.plan(Duration::ZERO, Event::Sample);
        }

        if self.is_push() {
            self.plan(FLUSH_EVERY, Event::Flush);
            (0..self.arrivals.len()).for_each(|ring| self.plan_arrival(ring));
        }

        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if self.is_over() {
                break;
            }
            if !self.is_push() {
                self.receive_until(at);
            }

            self.now = at;
            self.check_work();

            let is_arrival = matches!(event, Event::Arrival { .. });
            self.play(event);

            // Arrivals are very frequent, so violations that they cause are checked at the next
            // turn.
            if !is_arrival {
                self.audit.check_cells(&self.capture);
            }

            self.check_work();
        }

        self.finish()
    }

    /// Checks that no worker waits that must not wait.
    fn check_work(&mut self) {
        if self.is_push() {
            return;
        }
        for (worker, actor) in self.workers.iter().enumerate() {
            match actor.doing {
                Doing::Sleeping(since) => {
                    self.audit.waits(
                        worker,
                        since,
                        LONGEST_SLEEP + self.config.wake_latency,
                        self.now,
                    );
                }
                Doing::Polling(since) => {
                    self.audit.waits(worker, since, self.longest_poll, self.now);
                }
                _ => {}
            }
        }
    }

    fn is_push(&self) -> bool {
        matches!(self.sharing, Mechanism::Push(_))
    }

    fn is_over(&self) -> bool {
        self.ending && self.workers.iter().all(|actor| matches!(actor.doing, Doing::Ended))
    }

    fn play(&mut self, event: Event) {
        match event {
            Event::Turn { worker, turn } => {
                if self.workers[worker].turn == turn {
                    self.take_attach_lock(worker);
                }
            }
            Event::Arrival { ring } => {
                self.receive(ring, self.now);
                self.push_chunks(ring, self.config.settings.geometry.chunk_cells);
                self.plan_arrival(ring);
            }
            Event::Flush => {
                (0..self.config.settings.rings).for_each(|ring| self.push_chunks(ring, 1));
                self.plan(self.clock() + FLUSH_EVERY, Event::Flush);
            }
            Event::Keep => {
                self.capture.tend();
                self.plan_keeper();
            }
            Event::Sample => {
                self.sample();
                self.plan(self.clock() + self.config.sample_every, Event::Sample);
            }
            Event::Stop => {
                self.ending = true;
                self.capture.end();
                (0..self.workers.len()).for_each(|worker| self.wake(worker));
            }
        }
    }

    fn clock(&self) -> Duration {
        Duration::from_nanos(self.now)
    }

    fn plan(&mut self, at: Duration, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((at.as_nanos() as u64, self.planned, event)));
    }

    /// Plans the next turn of `worker`, which replaces its planned one.
    fn plan_turn(&mut self, worker: usize, at: u64) {
        let actor = &mut self.workers[worker];
        actor.turn += 1;
        actor.turn_at = at;
        let turn = actor.turn;
        self.plan(Duration::from_nanos(at), Event::Turn { worker, turn });
    }

    fn plan_keeper(&mut self) {
        if let Some(period) = self.capture.keeper_period() {
            self.plan(self.clock() + period, Event::Keep);
        }
    }

    fn plan_arrival(&mut self, ring: usize) {
        if let Some(time) = self.arrivals[ring].peek() {
            self.plan(Duration::from_nanos(time), Event::Arrival { ring });
        }
    }

    /// Lets all packets arrive that are due up to `at`, ring by ring: between two events the rings
    /// are independent of each other.
    fn receive_until(&mut self, at: u64) {
        for ring in 0..self.arrivals.len() {
            while let Some(time) = self.arrivals[ring].peek().filter(|time| *time <= at) {
                self.receive(ring, time);
            }
        }
    }

    fn receive(&mut self, ring: usize, time: u64) {
        self.arrivals[ring].advance();
        let number = self.next_number[ring];
        self.next_number[ring] += 1;
        self.capture.kernel(ring).receive(&number.to_ne_bytes(), Timestamp::from_unix_nanos(time));
        let waiting = self.waiting(ring);
        self.audit.received(ring, waiting, time);
        let largest = &mut self.outcome.max_backlogs[ring];
        *largest = waiting.max(*largest);
    }

    /// Number of packets of `ring` that wait for a worker.
    fn waiting(&self, ring: usize) -> u32 {
        let queued = match &self.sharing {
            Mechanism::Pull => 0,
            Mechanism::Push(push) => push.waiting(ring),
        };
        self.capture.backlog(ring) + queued
    }

    fn sample(&mut self) {
        let backlogs = (0..self.config.settings.rings).map(|ring| self.waiting(ring)).collect();
        self.outcome.samples.push(Sample { at: self.clock(), backlogs });
    }

    /// Runs the paper's capture thread of `ring` while at least `packets` packets wait.
    fn push_chunks(&mut self, ring: usize, packets: u32) {
        let Mechanism::Push(push) = &mut self.sharing else { return };
        let mut woken = Vec::new();
        while self.capture.backlog(ring) >= packets {
            let Some(chunk) = self.capture.take_chunk(ring) else { break };
            self.audit.captured(&chunk);
            let home = self.capture.home_of(ring);
            woken.push(push.place(chunk, home));
        }
        woken.into_iter().for_each(|worker| self.wake(worker));
    }

    /// Wakes `worker`: at once if it polls, otherwise when it polls next.
    fn wake(&mut self, worker: usize) {
        let actor = &mut self.workers[worker];
        actor.bell = true;
        let soon = self.now + self.config.wake_latency.as_nanos() as u64;
        if matches!(actor.doing, Doing::Polling(_)) && soon < actor.turn_at {
            self.plan_turn(worker, soon);
        }
    }

    /// `worker` has finished its current action.
    fn take_attach_lock(&mut self, worker: usize) {
        let actor = &mut self.workers[worker];
        let done = std::mem::replace(&mut actor.doing, Doing::Starting);
        match done {
            Doing::Processing(chunk, since) => {
                self.complete(worker, chunk, since);
                if let Some(wait) = self.rest(worker) {
                    return self.wait(worker, wait);
                }
            }
            Doing::Polling(_) => actor.bell = false,
            Doing::Starting | Doing::Sleeping(_) => {}
            Doing::Ended => {
                actor.doing = Doing::Ended;
                return;
            }
        }

        self.ask(worker);
    }

    fn complete(&mut self, worker: usize, chunk: Chunk, since: u64) {
        let outcome = &mut self.workers[worker].outcome;
        outcome.chunks += 1;
        outcome.packets += chunk.len() as u64;
        outcome.busy += Duration::from_nanos(self.now - since);

        if self.capture.home_of(chunk.ring_index()) != worker {
            outcome.offloaded_chunks += 1;
            outcome.offloaded_packets += chunk.len() as u64;
        }

        if let Some(arrived) = chunk.iter().next().and_then(|packet| packet.timestamp()) {
            let delay = Duration::from_nanos(self.now.saturating_sub(arrived.unix_nanos()));
            self.outcome.longest_delay = self.outcome.longest_delay.max(delay);
        }

        self.recycle(chunk);
    }

    fn recycle(&mut self, mut chunk: Chunk) {
        self.audit.recycled(&chunk);
        #[cfg(test)]
        if let Some(sabotage) = self.sabotage {
            sabotage(&mut chunk);
        }

        if let Some(port) = &mut self.port {
            chunk.drain().for_each(|packet| port.send(packet));
            port.flush();
        }

        drop(chunk);

        if self.port.is_some() {
            let queues = 0..self.config.settings.rings;
            self.audit
                .sent(queues.map(|queue| self.capture.transmitter(queue).take_sent().len()).sum());
        }
    }

    fn ask(&mut self, worker: usize) {
        match self.answer(worker) {
            Answer::Chunk { chunk, wake } => {
                wake.into_iter().for_each(|buddy| self.wake(buddy));
                self.begin(worker, chunk);
            }
            Answer::Nothing => {
                let wait = self.idle(worker);
                self.wait(worker, wait);
            }
            Answer::Ended => {
                self.workers[worker].doing = Doing::Ended;
                self.outcome.ended_at = self.clock();
            }
        }
    }

    fn answer(&mut self, index: usize) -> Answer {
        let now = self.clock();

        if let Mechanism::Push(push) = &mut self.sharing {
            let empty = |ring| self.capture.backlog(ring) == 0;
            return push
                .next_chunk(index, self.ending && (0..self.config.settings.rings).all(empty));
        }

        self.audit.note_backlogs(&self.capture);
        let actor = &mut self.workers[index];
        let worker = actor.worker.as_mut().expect("only workers that are there take turns");

        // No ring breaks here, so a worker of a basic capture is gone, which ends the others.
        let Ok(answer) = worker.ask(now) else { return Answer::Ended };
        actor.asked_at = self.now;

        if let Answer::Chunk { chunk, .. } = &answer {
            self.audit.captured(chunk);
            let home = self.capture.home_of(chunk.ring_index());
            let away = self.ending || self.is_away(home);

            if home != index {
                self.audit.offloaded(chunk, away, now);
            }

            let homes =
                (0..self.config.settings.rings).filter(|ring| self.capture.home_of(*ring) == index);
            self.audit.served(index, chunk, homes.count(), away, &self.capture, self.now);
        }

        answer
    }

    fn is_away(&self, worker: usize) -> bool {
        let actor = &self.workers[worker];
        let stuck_after = self.config.settings.stuck_after.as_nanos() as u64;
        actor.worker.is_none() || self.now - actor.asked_at > stuck_after
    }

    fn begin(&mut self, worker: usize, chunk: Chunk) {
        let waits = &mut self.waits[chunk.ring_index()];
        let arrived = chunk.iter().filter_map(|packet| packet.timestamp());
        arrived.for_each(|arrived| waits.add(self.now.saturating_sub(arrived.unix_nanos())));

        let actor = &mut self.workers[worker];
        let mut time = actor.service.nanos(chunk.len());
        let due = |mishap: &Mishap| {
            mishap.worker() == worker && mishap.at() <= Duration::from_nanos(self.now)
        };

        if let Some(place) = self.config.mishaps.iter().position(due) {
            match self.config.mishaps.swap_remove(place) {
                Mishap::Stuck { lasting, .. } => time += lasting.as_nanos() as u64,
                Mishap::Leaves { .. } => return self.leave(worker, chunk),
            }
        }

        actor.doing = Doing::Processing(chunk, self.now);
        self.plan_turn(worker, self.now + time);
    }

    fn leave(&mut self, worker: usize, chunk: Chunk) {
        self.recycle(chunk);
        self.workers[worker].worker = None;
        self.workers[worker].doing = Doing::Ended;
        if let Mechanism::Push(push) = &mut self.sharing {
            push.abandon(worker);
        }
        // As when a worker is dropped.
        (0..self.workers.len()).for_each(|other| self.wake(other));
    }

    /// Lets `worker` rest before it requests the next chunk.
    fn rest(&mut self, worker: usize) -> Option<Wait> {
        let now = self.clock();
        match self.sharing {
            Mechanism::Pull => {
                self.workers[worker].worker.as_mut().and_then(|worker| worker.begin(now))
            }
            Mechanism::Push(_) => None,
        }
    }

    /// Lets `worker` wait after it got no chunk. The paper's workers wait for their queues.
    fn idle(&mut self, worker: usize) -> Wait {
        let now = self.clock();
        match (&self.sharing, &mut self.workers[worker].worker) {
            (Mechanism::Pull, Some(worker)) => worker.idle(now),
            _ => Wait::Poll(LOOK_ROUND),
        }
    }

    fn wait(&mut self, worker: usize, wait: Wait) {
        let latency = self.config.wake_latency.as_nanos() as u64;
        let bell = self.workers[worker].bell;

        let (doing, until) = match wait {
            Wait::Yield => (Doing::Starting, self.now + latency),
            Wait::Sleep(time) => {
                (Doing::Sleeping(self.now), self.now + time.as_nanos() as u64 + latency)
            }
            Wait::Poll(_) if bell || self.ending => (Doing::Polling(self.now), self.now + latency),
            Wait::Poll(longest) => {
                (Doing::Polling(self.now), self.poll_until(worker, longest) + latency)
            }
        };
        self.workers[worker].doing = doing;
        self.plan_turn(worker, until);
    }

    /// Time at which a worker that polls from now on wakes if no buddy calls it: when the next
    /// packet arrives in a home ring, or when it must look at its buddies.
    fn poll_until(&self, worker: usize, longest: Duration) -> u64 {
        let round = self.now + longest.as_nanos() as u64;
        if self.is_push() {
            return round;
        }
        let home = (0..self.arrivals.len()).filter(|ring| self.capture.home_of(*ring) == worker);
        home.filter_map(|ring| self.arrivals[ring].peek()).fold(round, u64::min)
    }

    fn finish(mut self) -> Outcome {
        if let Mechanism::Push(push) = &mut self.sharing {
            push.discard().for_each(|chunk| self.audit.recycled(&chunk));
        }

        self.workers.iter_mut().for_each(|actor| actor.worker = None);
        self.audit.check_cells(&self.capture);
        self.capture.close();

        let mut outcome = self.outcome;
        outcome.ledger = self.capture.ledger(self.config.duration.max(outcome.ended_at));
        outcome.waits_p99 = self.waits.iter().map(|waits| waits.quantile(0.99)).collect();
        outcome.workers = self.workers.iter().map(|actor| actor.outcome).collect();
        outcome.offloaded_chunks =
            outcome.workers.iter().map(|worker| worker.offloaded_chunks).sum();
        outcome.broken_promises =
            self.audit.conclude(&self.capture, &outcome.ledger, &self.next_number);

        outcome
    }
}

/// Maximum time for which a worker holds a chunk.
fn longest_chunk(config: &SimulationConfig) -> Duration {
    let longest = |service: &Service| service.nanos(config.settings.geometry.chunk_cells as usize);
    Duration::from_nanos(config.service.iter().map(longest).max().unwrap_or(0))
}

/// Maximum time for which a worker may poll while a ring of its group is above T. The ring's own
/// worker finishes its chunk or its rest, then it calls a buddy, which calls the next. If that
/// worker is stuck or gone, the bound is the interval at which waiting workers look at their
/// buddies.
fn longest_poll(config: &SimulationConfig) -> Duration {
    let called = longest_chunk(config)
        + LONGEST_SLEEP
        + config.wake_latency * (config.settings.workers as u32 + 1);
    let looks = LOOK_ROUND_FOR_BUDDIES + config.wake_latency;
    if config.mishaps.is_empty() { called.min(looks) } else { looks }
}

impl Mishap {
    fn worker(&self) -> usize {
        match self {
            Self::Stuck { worker, .. } | Self::Leaves { worker, .. } => *worker,
        }
    }

    fn at(&self) -> Duration {
        match self {
            Self::Stuck { at, .. } | Self::Leaves { at, .. } => *at,
        }
    }
}
