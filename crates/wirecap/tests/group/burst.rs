//! Bursts on the test bed: the formula of the paper's section 3.1 with the rates of the run.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wirecap::{Capture, Timestamps, Worker};
use wirecap_testbed::{Generator, Load, SlowCore, Stamp, Traffic, loss_lock, privileged};

use crate::bed::{Bed, COST, WORKER_RATE};

/// R x M.
const CELLS: u64 = 256 * 32;

/// Observations of a capture that overflowed. Times are in nanoseconds of Unix time.
#[derive(Default)]
struct Seen {
    /// Numbers and times of arrival of the packets that were delivered.
    arrivals: Vec<(u64, u64)>,
    /// Numbers of processed packets, with the times.
    processed: Vec<(u64, u64)>,
}

fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Works a fixed time on each packet, until the end.
fn work(mut worker: Worker) -> Seen {
    let mut seen = Seen::default();
    let mut processed = 0;
    let mut core = SlowCore::default();
    while let Some(chunk) = worker.next_chunk().unwrap() {
        seen.arrivals.extend(chunk.iter().map(|packet| {
            (Stamp::of(packet.data()).unwrap().sequence, packet.timestamp().unwrap().unix_nanos())
        }));
        core.work(COST * chunk.len() as u32);
        processed += chunk.len() as u64;
        drop(chunk);
        seen.processed.push((unix_nanos(), processed));
    }
    seen
}

impl Seen {
    /// The longest lossless burst at the sender's rate, measured and computed as R x M x Pin /
    /// (Pin - Pp). The rates are those up to the first loss: on a machine with other work, neither
    /// sender nor worker has exactly its nominal rate. So the test shows that no packet is lost
    /// before every cell of the pool is in use, and that a cell is available again as soon as its
    /// packet was processed.
    fn burst(&self) -> (f64, f64) {
        let in_sequence =
            self.arrivals.iter().zip(0..).take_while(|((sequence, _), next)| sequence == next);
        let (packets, filled_at) =
            in_sequence.map(|((_, at), next)| (next + 1, *at)).last().unwrap();
        let seconds = (filled_at - self.arrivals[0].1) as f64 / 1e9;
        let processed = self.processed.iter().take_while(|(at, _)| *at <= filled_at).last();
        let per_second = |packets: u64| packets as f64 / seconds;
        let pin = per_second(packets);
        let pp = per_second(processed.map_or(0, |(_, packets)| *packets));
        (packets as f64, CELLS as f64 * pin / (pin - pp))
    }
}

#[test]
fn the_largest_lossless_burst_is_that_of_the_papers_formula() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    for pace in [1.5, 4.0, 50.0] {
        let bed = Bed::new(1);
        let capture =
            bed.open(Capture::on("a1").chunk(32).pool(256).timestamps(Timestamps::Packet));
        let worker = capture.workers().pop().unwrap();
        let worker = thread::spawn(move || work(worker));
        let mut generator =
            Generator::new(&bed.pair.sender, &Traffic::to(&bed.pair.receiver)).unwrap();
        let load = Load::endless(0).per_second((pace * WORKER_RATE) as u64);
        let run = generator.start(&[load]).unwrap();
        let begin = Instant::now();
        let ledger = || bed.receiver.run_in(|| capture.ledger()).unwrap();
        while ledger().total.dropped.no_cell == 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "nothing is lost: {}", ledger());
            thread::sleep(Duration::from_millis(20));
        }
        let sent = run.stop().unwrap()[0].frames;
        bed.receiver.run_in(|| capture.stop()).unwrap();
        let (burst, expected) = worker.join().unwrap().burst();
        let ledger = bed.receiver.run_in(|| capture.close()).unwrap();
        assert_eq!(ledger.total.offered, sent, "{ledger}");
        assert_eq!(ledger.total.dropped.total(), ledger.total.dropped.no_cell, "{ledger}");
        assert!(
            (burst / expected - 1.0).abs() < 0.02,
            "{burst} instead of {expected} at {pace}: {ledger}"
        );
    }
}
