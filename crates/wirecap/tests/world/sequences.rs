//! Random sequences of interface events, while a sender records its packets with their times.

use std::env;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use wirecap::filter::FilterRequest;
use wirecap::{Answer, Capture, Chunk, Engine, Ledger, Unseen, Worker};
use wirecap_testbed::{
    Interface, PacketSender, Stamp, Traffic, VethPair, Watch, privileged, wait_until,
};

use crate::bed::{Bed, ip, keep_events, run, send_numbered};
use crate::programs::detach;

/// Number of sequences, unless `WIRECAP_SEQUENCES` sets it.
const SEQUENCES: u64 = 6;
/// Maximum excess of a gap over its event.
const LOOK_PERIOD: Duration = Duration::from_millis(250);
/// Time after which an event has taken effect.
const SETTLING: Duration = Duration::from_millis(50);
/// M, and R x M: room for all packets of the longest stall.
const CHUNK_CELLS: u32 = 32;
const POOL_CELLS: u32 = 2048;
/// Between two packets.
const PACE: Duration = Duration::from_micros(300);

/// Pseudorandom numbers, the same for the same seed (splitmix64).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }
}

/// Something that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    DownAndUp,
    Rename,
    Remove,
    MoreQueues,
    Mtu,
    Filter,
    Detach,
    Stall,
    Address,
}

impl Step {
    fn leaves_gaps(self) -> bool {
        match self {
            Self::DownAndUp | Self::Rename | Self::Remove | Self::MoreQueues | Self::Detach => true,
            Self::Mtu | Self::Filter | Self::Stall | Self::Address => false,
        }
    }
}

/// When something happened.
#[derive(Debug, Clone, Copy)]
struct Happened {
    step: Step,
    from: SystemTime,
    to: SystemTime,
}

impl Happened {
    /// Whether it took place between the beginning of the gap, or of an earlier gap that it
    /// continues, and its end.
    fn overlaps(&self, gap: &Unseen, begin: SystemTime) -> bool {
        self.to >= begin && gap.to.is_none_or(|to| self.from <= to)
    }
}

/// A packet that the kernel accepted, with its time.
#[derive(Debug, Clone, Copy)]
struct Sent {
    from: SystemTime,
    to: SystemTime,
}

/// Sends until it is stopped, on any interface named `a0`; returns the accepted packets, by number.
fn send_until(stop: &AtomicBool, bed: &Bed) -> Vec<Sent> {
    let traffic = Traffic { flows: 16, ..Traffic::to(&bed.pair.receiver) };
    let mut sent: Vec<Sent> = Vec::new();
    let mut sender: Option<PacketSender> = None;
    while !stop.load(Ordering::Relaxed) {
        let open = || PacketSender::direct(&Interface::find(&bed.sender, "a0").ok()?).ok();
        let Some(mut socket) = sender.take().or_else(open) else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        let frame = traffic.frame(Stamp { queue: 0, sequence: sent.len() as u64 });
        let from = SystemTime::now();
        // The number of a rejected packet is used again.
        if socket.send_now(&frame).is_ok() {
            sent.push(Sent { from, to: SystemTime::now() });
            sender = Some(socket);
        }
        thread::sleep(PACE);
    }
    sent
}

/// The commands to a reader, and the packets that it has seen.
#[derive(Debug, Default)]
struct Reading {
    stalled: AtomicBool,
    seen: Mutex<Vec<u64>>,
}

fn read(mut worker: Worker, reading: &Reading) {
    let mut sequences: Vec<Option<u64>> = Vec::new();
    let mut held: Option<(Chunk, Vec<Vec<u8>>)> = None;
    while !worker.is_finished() {
        if reading.stalled.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
            continue;
        }
        let chunk = match worker.next_chunk_timeout(Duration::from_millis(20)) {
            Ok(Some(chunk)) => chunk,
            Ok(None) => continue,
            Err(error) => panic!("the capture ended: {error}"),
        };
        sequences.resize(sequences.len().max(chunk.ring_index() + 1), None);
        let last = &mut sequences[chunk.ring_index()];
        assert!(
            last.is_none_or(|last| last < chunk.sequence()),
            "the sequence numbers of a ring go on"
        );
        *last = Some(chunk.sequence());
        let bytes: Vec<Vec<u8>> = chunk.iter().map(|packet| packet.data().to_vec()).collect();
        let numbers = bytes.iter().filter_map(|frame| Stamp::of(frame)).map(|stamp| stamp.sequence);
        reading.seen.lock().unwrap().extend(numbers);
        // One chunk is always held, whatever happens to the interface meanwhile.
        if let Some((held, bytes)) = held.replace((chunk, bytes)) {
            assert!(
                held.iter().map(|packet| packet.data().to_vec()).eq(bytes),
                "a chunk that was held has changed"
            );
        }
    }
}

/// Ends sender and readers.
struct Ending<'a>(&'a AtomicBool, &'a Capture);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.stop();
    }
}

/// One sequence, by its seed.
struct Sequence {
    random: Random,
    bed: Bed,
    engine: Engine,
    name: String,
    queues: u32,
    happened: Vec<Happened>,
}

impl Sequence {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let engine =
            [Engine::Xdp, Engine::Xdp, Engine::Packet, Engine::Auto][random.below(4) as usize];
        let bed = Bed::with_queues(2, 4);
        let name = "a1".to_owned();
        Self { random, bed, engine, name, queues: 2, happened: Vec::new() }
    }

    fn step(&mut self) -> Step {
        const EVERYWHERE: [Step; 8] = [
            Step::DownAndUp,
            Step::Rename,
            Step::Remove,
            Step::MoreQueues,
            Step::Mtu,
            Step::Filter,
            Step::Stall,
            Step::Address,
        ];
        let programs = if self.engine == Engine::Packet { 0 } else { 1 };
        match self.random.below(EVERYWHERE.len() as u64 + programs) as usize {
            step if step < EVERYWHERE.len() => EVERYWHERE[step],
            _ => Step::Detach,
        }
    }

    fn pause(&mut self, most_millis: u64) {
        thread::sleep(Duration::from_millis(self.random.below(most_millis)));
    }

    fn ip(&self, arguments: &[&str]) {
        ip(&self.bed.receiver, arguments);
    }

    fn act(&mut self, step: Step, capture: &Capture, reading: &Reading) {
        let from = SystemTime::now();
        let name = self.name.clone();
        match step {
            Step::DownAndUp => {
                self.ip(&["link", "set", &name, "down"]);
                self.pause(400);
                self.ip(&["link", "set", &name, "up"]);
            }
            Step::Rename => {
                self.name = if name == "a1" { "a1x".to_owned() } else { "a1".to_owned() };
                self.ip(&["link", "set", &name, "down"]);
                self.ip(&["link", "set", &name, "name", &self.name]);
                self.ip(&["link", "set", &self.name, "up"]);
            }
            Step::Remove => {
                self.ip(&["link", "delete", &name]);
                self.pause(600);
                let ends = ((&self.bed.sender, "a0"), (&self.bed.receiver, "a1"));
                self.bed.pair = VethPair::new(ends.0, ends.1, 4, 1500)
                    .and_then(wirecap_testbed::dedicated)
                    .unwrap();
                (self.name, self.queues) = ("a1".to_owned(), 4);
            }
            Step::MoreQueues if self.queues < 4 => {
                self.queues += 1;
                let count = self.queues.to_string();
                run(&self.bed.receiver, "ethtool", &["-L", &name, "rx", &count]);
                self.bed.set_sender_queues(self.queues);
            }
            Step::MoreQueues => return,
            Step::Mtu => {
                let mtu = (1400 + self.random.below(1600)).to_string();
                self.ip(&["link", "set", &name, "mtu", &mtu]);
            }
            Step::Filter => {
                let filter = ["", "udp", "ip", "udp dst port 9"][self.random.below(4) as usize];
                self.bed.at_receiver(|| capture.set_filter(FilterRequest::from(filter))).unwrap();
            }
            Step::Detach if detach(&self.bed, &name) => {}
            // It is not attached again yet.
            Step::Detach => return,
            Step::Stall => {
                reading.stalled.store(true, Ordering::Relaxed);
                self.pause(500);
                reading.stalled.store(false, Ordering::Relaxed);
            }
            Step::Address => {
                let address = format!("10.7.{}.1/24", self.random.below(200));
                self.ip(&["address", "replace", &address, "dev", &name]);
            }
        }
        self.happened.push(Happened { step, from, to: SystemTime::now() });
    }

    /// Sends as many packets to one of the queues as its pool has cells that chunks do not hold,
    /// while its reader is stalled: each packet must find a cell, regardless of earlier events.
    fn fill_a_pool(&mut self, sent: &mut Vec<Sent>, reading: &Reading) {
        let queue = self.random.below(self.queues.into()) as u32;
        reading.stalled.store(true, Ordering::Relaxed);
        // Longer than a reader waits for a chunk.
        thread::sleep(SETTLING);
        let numbers =
            sent.len() as u64..sent.len() as u64 + u64::from(POOL_CELLS - 2 * CHUNK_CELLS);
        let from = SystemTime::now();
        send_numbered(&self.bed.pair, queue, numbers.clone());
        sent.extend(numbers.map(|_| Sent { from, to: SystemTime::now() }));
        reading.stalled.store(false, Ordering::Relaxed);
    }

    fn run(mut self, seed: u64) {
        let builder = Capture::on("a1").engine(self.engine).reattach(true);
        let builder = builder.chunk(CHUNK_CELLS).pool(POOL_CELLS / CHUNK_CELLS);
        let builder = builder.direction(wirecap::Direction::In).promiscuous(true);
        // The rings of the engine packet are a group, or a single one.
        let is_single = self.engine == Engine::Packet && self.random.below(2) == 0;
        let builder = if is_single { builder.workers(1) } else { builder };
        let (builder, events) = keep_events(builder);
        let capture = self.bed.open(builder);
        let stop = AtomicBool::new(false);
        let reading = Reading::default();
        let watch = Watch::begin();
        let workers = capture.workers();
        let sending_bed = Bed {
            sender: self.bed.sender.clone(),
            receiver: self.bed.receiver.clone(),
            pair: self.bed.pair.clone(),
        };
        let (sent, ledger) = thread::scope(|scope| {
            let readers: Vec<_> =
                workers.into_iter().map(|worker| scope.spawn(|| read(worker, &reading))).collect();
            let sender = scope.spawn(|| send_until(&stop, &sending_bed));
            // Also if a step fails.
            let ending = Ending(&stop, &capture);
            for _ in 0..3 + self.random.below(4) {
                self.pause(200);
                let step = self.step();
                self.act(step, &capture, &reading);
            }
            let all_is_well = || {
                self.bed.at_receiver(|| capture.ledger()).unseen.iter().all(|gap| gap.to.is_some())
            };
            thread::sleep(LOOK_PERIOD + SETTLING);
            wait_until("all is well again", all_is_well);
            thread::sleep(SETTLING);
            stop.store(true, Ordering::Relaxed);
            std::mem::forget(ending);
            let mut sent = sender.join().unwrap();
            if self.engine == Engine::Xdp {
                self.fill_a_pool(&mut sent, &reading);
            }
            thread::sleep(SETTLING);
            self.bed.at_receiver(|| capture.stop());
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            (sent, self.bed.close(capture))
        });
        let seen = reading.seen.into_inner().unwrap();
        let story = || {
            let happened = &self.happened;
            let events = events.lock().unwrap();
            format!("seed {seed}, {:?}: {happened:#?}\n{events:#?}\n{ledger}", self.engine)
        };
        let disturbance = watch.end();
        println!("seed {seed}: {disturbance}");
        judge(&sent, seen, &ledger, &self.happened, disturbance.delay(), &story);
    }
}

/// Compares the sent packets with the ledger.
fn judge(
    sent: &[Sent],
    mut seen: Vec<u64>,
    ledger: &Ledger,
    happened: &[Happened],
    delay: Duration,
    story: &dyn Fn() -> String,
) {
    let total = &ledger.total;
    seen.sort_unstable();
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "a packet came twice: {}", story());
    assert_eq!(seen.len() as u64, total.delivered, "{}", story());
    let mut is_seen = vec![false; sent.len()];
    seen.iter().for_each(|number| is_seen[*number as usize] = true);
    let absent: Vec<&Sent> =
        sent.iter().zip(is_seen).filter(|(_, seen)| !seen).map(|(sent, _)| sent).collect();
    let in_a_gap = |packet: &&&Sent| {
        let is_in =
            |gap: &Unseen| packet.to >= gap.from && gap.to.is_none_or(|to| packet.from <= to);
        ledger.unseen.iter().any(is_in)
    };
    let outside: Vec<_> = absent.iter().filter(|packet| !in_a_gap(packet)).collect();
    // The ledger counts dropped packets, but not which packets these were.
    assert!(
        outside.len() as u64 <= total.dropped.total(),
        "{} packets from {:?} to {:?} are in no gap: {}",
        outside.len(),
        outside.first(),
        outside.last(),
        story()
    );
    // In a gap, packets are not counted.
    assert!(total.offered + total.filtered.unwrap_or(0) <= sent.len() as u64, "{}", story());
    if ledger.unseen.is_empty() {
        assert_eq!(total.offered + total.filtered.unwrap_or(0), sent.len() as u64, "{}", story());
    }
    let wanted = sent.len() as u64 - total.filtered.unwrap_or(0).min(sent.len() as u64);
    if total.delivered != wanted {
        assert_ne!(ledger.verdict(), "lossless: yes", "{}", story());
    }
    if ledger.unseen.is_empty() && total.dropped.total() == 0 {
        assert_eq!(ledger.judge().answer, Answer::Yes, "{}", story());
    }
    for gap in &ledger.unseen {
        let begin = begin_of(gap, &ledger.unseen);
        let excess = excess_of(gap, begin, happened)
            .unwrap_or_else(|| panic!("nothing caused {gap}: {}", story()));
        println!("{}: {excess:?} more than what happened", gap.reason);
        assert!(
            excess <= LOOK_PERIOD + delay,
            "{gap} is {excess:?} longer than what happened: {}",
            story()
        );
    }
}

/// The beginning of the gap, or of the gap during which it began: an interface that returns with
/// more queues is captured again on those that it had, and a second gap lasts until the others have
/// rings.
fn begin_of(gap: &Unseen, gaps: &[Unseen]) -> SystemTime {
    let began_in =
        |earlier: &&Unseen| earlier.from <= gap.from && earlier.to.is_some_and(|to| gap.from <= to);
    gaps.iter().filter(began_in).map(|earlier| earlier.from).min().unwrap_or(gap.from)
}

/// The excess of a gap over its event; `None` if there was no event that causes gaps.
fn excess_of(gap: &Unseen, begin: SystemTime, happened: &[Happened]) -> Option<Duration> {
    let to = gap.to?;
    let causes: Vec<_> = happened.iter().filter(|happened| happened.overlaps(gap, begin)).collect();
    if !causes.iter().any(|cause| cause.step.leaves_gaps()) {
        return None;
    }
    // Several events may share a gap.
    let causes = causes.iter().filter(|cause| cause.step.leaves_gaps());
    let first = causes.clone().map(|cause| cause.from).min()?;
    let last = causes.map(|cause| cause.to).max()?;
    let before = first.duration_since(gap.from).unwrap_or_default();
    Some(before + to.duration_since(last).unwrap_or_default())
}

/// Runs in part in `make test`; `WIRECAP_SEQUENCES=200` runs all, `WIRECAP_SEQUENCE=N` one of them.
#[test]
fn each_packet_is_counted_or_in_a_gap_in_random_sequences_of_events() {
    if !privileged() {
        return;
    }
    let number =
        |name| env::var(name).ok().map(|text: String| text.parse::<u64>().expect("a number"));
    let seeds = match number("WIRECAP_SEQUENCE") {
        Some(first) => first..first + number("WIRECAP_SEQUENCES").unwrap_or(1),
        None => 0..number("WIRECAP_SEQUENCES").unwrap_or(SEQUENCES),
    };
    for seed in seeds {
        eprintln!("sequence {seed} (WIRECAP_SEQUENCE={seed})");
        Sequence::new(seed).run(seed);
    }
}
