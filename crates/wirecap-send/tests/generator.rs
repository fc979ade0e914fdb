//! Compares the generator's counts with the kernel's own counters: they agree exactly.

use std::num::NonZero;
use std::thread;
use std::time::{Duration, Instant};

use wirecap_filter::bpf::Link;
use wirecap_testbed::{
    Counters, Generator, Load, Namespace, PacketReceiver, SendError, Sent, Sizes, Snapshot, Stamp,
    Traffic, VethPair, drop_program, loss_lock, pass_program, privileged,
};

/// Two namespaces, a pair between them, and counters at both ends.
struct Bed {
    pair: VethPair,
    sender: Counters,
    receiver: Counters,
    _program: Option<Link>,
}

impl Bed {
    fn new(queue_count: u32) -> Self {
        let here = Namespace::new().expect("a namespace");
        let there = Namespace::new().expect("a namespace");
        let pair = VethPair::new((&here, "a0"), (&there, "a1"), queue_count, 1500).expect("a pair");
        let sender = Counters::of(&pair.sender);
        let receiver = Counters::of(&pair.receiver);
        Self {
            sender: sender.expect("counters"),
            receiver: receiver.expect("counters"),
            pair,
            _program: None,
        }
    }

    fn dropping(queue_count: u32) -> Self {
        let bed = Self::new(queue_count);
        Self { _program: Some(drop_program(&bed.pair.receiver).expect("a program")), ..bed }
    }

    fn generator(&self, change: impl FnOnce(&mut Traffic)) -> Generator {
        let mut traffic = Traffic::to(&self.pair.receiver);
        change(&mut traffic);
        Generator::new(&self.pair.sender, &traffic).expect("a generator")
    }

    /// Both ends' counters, after checking that they agree with the generator's counts.
    fn balanced(&mut self, sent: &[Sent]) -> (Snapshot, Snapshot) {
        let sender = self.sender.since_start().expect("counters");
        let receiver = self.receiver.since_start().expect("counters");
        for sent in sent {
            let out = sender.tx_queues[sent.queue as usize];
            let back = receiver.rx_queues[sent.queue as usize];
            assert_eq!(sent.frames, out.xdp_xmit + out.xdp_xmit_errors, "{sent:?} {sender:?}");
            assert_eq!(back.xdp_packets, out.xdp_xmit, "{sent:?} {receiver:?}");
        }
        let frames: u64 = sent.iter().map(|sent| sent.frames).sum();
        assert_eq!(frames, sender.handed_over_as_xdp());
        assert_eq!(frames, sender.handed_over());
        assert_eq!(frames, receiver.rx_packets + sender.tx_dropped);
        (sender, receiver)
    }
}

#[test]
fn every_frame_is_counted_at_top_rate() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::dropping(2);
    let sent = bed.generator(|_| ()).send(&[Load::new(0, 300_001)]).expect("sent");
    assert_eq!(sent[0].frames, 300_001);
    let (_, receiver) = bed.balanced(&sent);
    assert_eq!(receiver.rx_queues[0].xdp_drops, receiver.rx_queues[0].xdp_packets);
    assert_eq!(receiver.rx_queues[0].passed(), 0);
}

#[test]
fn every_frame_is_counted_when_paced_and_none_is_early() {
    if !privileged() {
        return;
    }
    for (per_second, frames) in [(1_000_000, 100_003), (70_000, 7_001), (2_000, 201)] {
        let mut bed = Bed::dropping(1);
        let mut generator = bed.generator(|_| ());
        let sent = generator.send(&[Load::new(0, frames).per_second(per_second)]).expect("sent");
        assert_eq!(sent[0].frames, frames);
        bed.balanced(&sent);
        // At most a millisecond of a stall may be caught up; no more frames can be early.
        let allowed = sent[0].duration + Duration::from_millis(2);
        let earliest = Duration::from_secs(1).mul_f64((frames - 1) as f64 / per_second as f64);
        assert!(allowed >= earliest, "{sent:?} at {per_second} per second");
    }
}

#[test]
fn a_mix_has_exactly_its_bytes() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::dropping(1);
    let sizes = Sizes::imix();
    let mut generator = bed.generator(|traffic| {
        traffic.sizes = sizes.clone();
        traffic.flows = 500;
    });
    // Paced, so that the ring never overflows and the bytes are those of all frames.
    let sent = generator.send(&[Load::new(0, 20_005).per_second(200_000)]).expect("sent");
    let (sender, receiver) = bed.balanced(&sent);
    assert_eq!(sender.tx_dropped, 0);
    let bytes: u64 = (0..20_005).map(|sequence| u64::from(sizes.frame_bytes(sequence))).sum();
    assert_eq!(receiver.rx_queues[0].xdp_bytes, bytes);
}

#[test]
fn each_cpu_sends_to_the_queue_of_its_number() {
    if !privileged() {
        return;
    }
    let cpu_count = thread::available_parallelism().map_or(1, NonZero::get) as u32;
    let mut bed = Bed::dropping(cpu_count);
    let loads: Vec<_> =
        (0..cpu_count).map(|queue| Load::new(queue, 50_000 + u64::from(queue))).collect();
    let sent = bed.generator(|traffic| traffic.flows = 100).send(&loads).expect("sent");
    assert!(
        sent.iter().zip(&loads).all(|(sent, load)| *load == Load::new(sent.queue, sent.frames))
    );
    bed.balanced(&sent);
}

#[test]
fn a_run_stops_within_fifty_milliseconds_and_still_balances() {
    if !privileged() {
        return;
    }
    let _alone = loss_lock().expect("the lock");
    for load in
        [Load::endless(0), Load::endless(0).per_second(100_000), Load::endless(0).per_second(100)]
    {
        // Other work on the machine may delay the sending thread, but not in every attempt.
        let stops_in_time = (0..10).any(|_| {
            let (sent, time_to_stop) = run_for_100_ms(&load);
            sent.frames > 5 && time_to_stop < Duration::from_millis(50)
        });
        assert!(stops_in_time, "{load:?}");
    }
}

/// The number of frames that a run sends in 100 ms, and the time it then takes to stop.
fn run_for_100_ms(load: &Load) -> (Sent, Duration) {
    let mut bed = Bed::dropping(1);
    let mut generator = bed.generator(|_| ());
    let run = generator.start(std::slice::from_ref(load)).expect("a run");
    let stopper = run.stopper();
    let stopping = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        stopper.stop();
        Instant::now()
    });
    let sent = run.wait().expect("sent");
    let time_to_stop = stopping.join().expect("the stopping thread").elapsed();
    bed.balanced(&sent);
    (sent[0], time_to_stop)
}

#[test]
fn frames_arrive_in_order_with_their_own_numbers_from_load_to_load() {
    if !privileged() {
        return;
    }
    let mut bed = Bed::new(1);
    let _passing = pass_program(&bed.pair.receiver).expect("a program");
    let mut judge = PacketReceiver::on(&bed.pair.receiver).expect("a receiver");
    let traffic = Traffic { flows: 30, sizes: Sizes::imix(), ..Traffic::to(&bed.pair.receiver) };
    let mut generator = Generator::new(&bed.pair.sender, &traffic).expect("a generator");
    let mut sent = generator.send(&[Load::new(0, 700).per_second(50_000)]).expect("sent");
    sent[0].frames +=
        generator.send(&[Load::new(0, 300).per_second(1_000)]).expect("sent")[0].frames;

    for sequence in 0..1000 {
        let frame = judge.receive(Duration::from_secs(60)).expect("it is up").expect("a frame");
        assert_eq!(frame, traffic.frame(Stamp { queue: 0, sequence }), "frame {sequence}");
    }
    assert_eq!(judge.receive(Duration::ZERO).expect("it is up"), None, "nothing else speaks");
    let (_, receiver) = bed.balanced(&sent);
    assert_eq!(receiver.rx_queues[0].passed(), 1000);
}

#[test]
fn a_queue_that_no_cpu_reaches_is_an_error() {
    if !privileged() {
        return;
    }
    let bed = Bed::dropping(64);
    let mut generator = bed.generator(|_| ());
    let error = generator.send(&[Load::new(63, 1)]).expect_err("no such CPU");
    assert!(matches!(error, SendError::OutOfReach { queue: 63, queue_count: 64 }), "{error}");
    let error = generator.send(&[Load::new(1, 1).on_cpu(0)]).expect_err("the wrong CPU");
    assert!(matches!(error, SendError::OutOfReach { queue: 1, .. }), "{error}");
}

#[test]
fn two_loads_at_once_do_not_share_a_queue() {
    if !privileged() {
        return;
    }
    let bed = Bed::dropping(1);
    let error = bed.generator(|_| ()).send(&[Load::new(0, 1), Load::new(0, 1)]).expect_err("twice");
    assert!(matches!(error, SendError::Twice { .. }), "{error}");
}
