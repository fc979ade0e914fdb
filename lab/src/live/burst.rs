//! Loss by burst length, and the longest burst that wirecap keeps without loss: the paper's section
//! 3.1.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wirecap::{Capture, Engine, Timestamps, Worker, grouped};
use wirecap_testbed::{Generator, Load, SlowCore, Stamp, Traffic, loss_lock};

use super::bed::Bed;
use super::contender::Contender;
use super::rivals::Field;
use super::sweep::{Share, Sweep};
use super::trial::{self, KernelSender, Trial};
use super::{Lab, Outcome};
use crate::chart::lines::Axis;
use crate::experiment::{Claim, Findings, Run, RunError};

/// Memory of each contender, in MiB.
const RING_MIB: u32 = 16;
/// The bursts' rate, in packets per second.
const PER_SECOND: u64 = 500_000;
/// The consumer's time per packet: it processes a tenth of that rate.
const COST_NS: u64 = 20_000;
/// Frame lengths: near the capacity of a cell, and the shortest frame.
const LENGTHS: [u16; 2] = [1514, 60];

/// Loss against burst length.
pub(super) fn run(lab: &Lab, run: &Run<'_>) -> Result<Findings, RunError> {
    let bed = Bed::new()?;
    let field = Field::new(lab, RING_MIB);
    let cells = f64::from(field.cells());
    let shares: &[f64] = lab.choose(
        run,
        &[0.1][..],
        &[0.5, 1.0, 2.0, 4.0],
        &[0.25, 0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0, 8.0, 16.0],
    );
    let places: Vec<f64> = shares.iter().map(|share| (share * cells).round()).collect();
    let rounds = lab.choose(run, 1, 1, 2);
    let lengths: &[u16] = lab.choose(run, &LENGTHS, &LENGTHS[..1], &LENGTHS);
    let fits = absorbed_in_theory(cells, PER_SECOND as f64, 1e9 / COST_NS as f64);
    let what = format!(
        "One burst at {} to a consumer of {} (it waits {} µs per packet). When the burst ends, the consumer has processed \
         a part of it, and memory must hold the rest. By the paper's formula, R x M = {} cells keep a burst of up to \
         R x M x Pin / (Pin - Pp) = {} packets.",
        super::per_second(PER_SECOND as f64),
        super::per_second(1e9 / COST_NS as f64),
        COST_NS / 1000,
        grouped(cells as u64),
        grouped(fits as u64)
    );
    let mut findings = Findings { what, ..Findings::default() };
    findings.settings = vec![
        ("memory for packets".to_owned(), format!("{RING_MIB} MiB each")),
        ("rounds".to_owned(), rounds.to_string()),
    ];
    let paces: &[f64] = lab.choose(run, &[], &[4.0], &[1.5, 4.0, 50.0]);
    for (index, &pace) in paces.iter().enumerate() {
        run.step(0.1 * index as f64 / paces.len() as f64, "the longest burst without loss")?;
        findings.claims.push(absorbs(pace)?);
    }
    let part = 0.9 / lengths.len() as f64;
    for (index, &frame_bytes) in lengths.iter().enumerate() {
        let trial = |contender: &Contender, frames: f64| -> Outcome<Trial> {
            let generator = bed.generator(frame_bytes)?;
            let mut sender =
                KernelSender { generator, frames: frames as u64, per_second: Some(PER_SECOND) };
            trial::run(&bed, contender, &mut sender, &mut |_| Ok(()))
        };
        let from = 0.1 + part * index as f64;
        let contenders = field.handlers(&format!("--cost {COST_NS}"));
        let share = Share { from, to: from + part };
        let sweep = Sweep::run(run, share, &contenders, &places, rounds, trial)?;
        let chart = sweep.loss_chart(Axis::log("packets in the burst"), |frames, _| frames);
        let name = format!("burst-{frame_bytes}");
        let caption =
            format!("Loss of one burst of packets of {} bytes.", grouped(frame_bytes.into()));
        findings = findings.with_lines(&name, caption, &chart);
        sweep.account(&mut findings, &name, "packets in the burst");
    }
    let note = "A cell of AF_XDP holds one packet, whatever its length. The rings of AF_PACKET hold packets by their bytes: \
                short packets use less of the same memory.";
    findings.notes.push(note.to_owned());
    Ok(findings)
}

/// The longest burst without loss, by the paper: R x M x Pin / (Pin - Pp).
fn absorbed_in_theory(cells: f64, arriving: f64, processed: f64) -> f64 {
    cells * arriving / (arriving - processed)
}

/// R and M of the capture whose longest burst is determined.
const CHUNKS: u32 = 256;
const CHUNK_CELLS: u32 = 32;
/// Its worker's time per packet.
const WORKER_COST: Duration = Duration::from_micros(100);
/// Maximum difference between the measured and the computed burst.
const TOLERANCE: f64 = 0.02;

/// Observations of a capture that overflowed. Times are in nanoseconds of Unix time.
#[derive(Debug, Default)]
struct Seen {
    /// Numbers and times of arrival of the packets that were delivered.
    arrivals: Vec<(u64, u64)>,
    /// Numbers of processed packets, with the times.
    processed: Vec<(u64, u64)>,
}

fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// Works a fixed time on each packet, until the end.
fn work(mut worker: Worker) -> Outcome<Seen> {
    let mut seen = Seen::default();
    let mut processed = 0;
    let mut core = SlowCore::default();

    while let Some(chunk) = worker.next_chunk()? {
        for packet in &chunk {
            let number = Stamp::of(packet.data()).ok_or("a foreign packet")?.sequence;
            let arrival = packet.timestamp().ok_or("a packet without a time")?;
            seen.arrivals.push((number, arrival.unix_nanos()));
        }

        core.work(WORKER_COST * chunk.len() as u32);
        processed += chunk.len() as u64;
        drop(chunk);
        seen.processed.push((unix_nanos(), processed));
    }

    Ok(seen)
}

impl Seen {
    /// The longest lossless burst at the sender's rate, measured up to the first loss, and computed
    /// with the rates of this run: on a machine with other work, neither sender nor worker has
    /// exactly its nominal rate.
    fn burst(&self) -> Option<(f64, f64)> {
        let in_sequence =
            self.arrivals.iter().zip(0..).take_while(|((sequence, _), next)| sequence == next);
        let (packets, filled_at) = in_sequence.map(|((_, at), next)| (next + 1, *at)).last()?;
        let seconds = (filled_at - self.arrivals[0].1) as f64 / 1e9;
        let processed = self.processed.iter().take_while(|(at, _)| *at <= filled_at).last();
        let arriving = packets as f64 / seconds;
        let processed = processed.map_or(0, |(_, packets)| *packets) as f64 / seconds;
        let cells = f64::from(CHUNKS) * f64::from(CHUNK_CELLS);
        Some((packets as f64, absorbed_in_theory(cells, arriving, processed)))
    }
}

/// Overloads a capture at `pace` times its worker's rate and returns the number of packets received
/// before the first loss.
fn absorbs(pace: f64) -> Outcome<Claim> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let _alone = loss_lock()?;
    let bed = Bed::new()?;
    let receiver = &bed.pair.receiver;
    let builder = Capture::on(&receiver.name)
        .engine(Engine::Xdp)
        .chunk(CHUNK_CELLS)
        .pool(CHUNKS)
        .timestamps(Timestamps::Packet);
    let capture = receiver.namespace.run_in(|| builder.open())??;
    let worker = capture.workers().pop().ok_or("a new capture has its worker")?;
    let worker = thread::spawn(move || work(worker));
    let mut generator = Generator::new(&bed.pair.sender, &Traffic::to(receiver))?;
    let per_second = pace / WORKER_COST.as_secs_f64();
    let sending = generator.start(&[Load::endless(0).per_second(per_second as u64)])?;
    let begin = Instant::now();

    while receiver.namespace.run_in(|| capture.ledger())?.total.dropped.no_cell == 0
        && begin.elapsed() < PATIENCE
    {
        thread::sleep(Duration::from_millis(20));
    }

    let sent: u64 = sending.stop()?.iter().map(|sent| sent.frames).sum();
    receiver.namespace.run_in(|| capture.stop())?;

    let seen = worker.join().map_err(|_| "the worker panicked")??;
    let ledger = receiver.namespace.run_in(|| capture.close())?;
    if ledger.total.offered != sent {
        return Err(format!("{sent} frames were sent: {ledger}").into());
    }

    let (burst, expected) = seen.burst().ok_or("nothing arrived")?;
    let quantity =
        format!("longest burst without loss at {pace} times the consumer's rate, in packets");
    let within = (burst / expected - 1.0).abs() < TOLERANCE;
    let expected = format!("{} within 2 %", grouped(expected as u64));

    Ok(Claim::holds(quantity, expected, within, grouped(burst as u64))
        .because("R x M x Pin / (Pin - Pp), with the rates of the run up to the first loss"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_ends_where_the_first_number_is_missing() {
        // 10 packets at 1,000 a second, of which 4 were processed before the last; then one is
        // missing.
        let arrivals = (0..10).map(|n| (n, n * 1_000_000)).chain([(11, 11_000_000)]).collect();
        let seen = Seen { arrivals, processed: vec![(8_000_000, 4), (10_000_000, 8)] };
        let (burst, expected) = seen.burst().unwrap();
        let cells = f64::from(CHUNKS * CHUNK_CELLS);
        assert_eq!(burst, 10.0);
        assert!((expected - cells * 10.0 / 6.0).abs() < 1.0, "{expected}");
    }
}
