//! `wirecap demo`: captures on a private test bed, where the number of sent packets is known.
//!
//! The sender's count comes from its interface's own counters, not from the engine.

mod picture;
mod sender;

use std::io::{self, Stdout};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use wirecap::{Capture, CaptureError, Chunk, Engine, Ledger, Worker, grouped};
use wirecap_send::{Namespace, Stamp, VethPair};

use crate::shared::failure::Failure;
use crate::shared::screen::Screen;
use crate::shared::signals::Interruption;
use crate::size;
use picture::Picture;
use sender::{Burst, SKEWED, Sender};

/// Send, capture and account for packets on a private test bed, in about 10 s
///
/// Creates two network namespaces joined by a veth pair; the kernel removes them when the process
/// ends. Nothing else on this machine is changed. Exit status 1: the counts of sender and ledger
/// differ.
#[derive(Debug, Args)]
pub(crate) struct Arguments {}

const QUEUES: u32 = 4;
const MTU: u32 = 1500;
/// M: cells per chunk.
const CHUNK: u32 = 256;
/// R in act 1, on four rings: 256 MiB in all; the busiest ring can be left alone for 0.1 s.
const CHUNKS_PER_RING: u32 = 128;
/// R in act 2, on one ring.
const CHUNKS: u32 = 256;
/// Capacity of the ring of act 2: R x M.
const POOL_PACKETS: u64 = CHUNK as u64 * CHUNKS as u64;

/// Time between two updates.
const GLANCE: Duration = Duration::from_millis(50);
/// Time between two drawings on a terminal.
const REDRAW: Duration = Duration::from_millis(200);
/// Time between two lines elsewhere.
const LINE: Duration = Duration::from_secs(1);
/// Maximum time for sent packets to appear in the ledger.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn run(_: &Arguments) -> Result<(), Failure> {
    let mut screen = Screen::on(io::stdout());
    let interruption = Interruption::watch()?;
    screen.line(&screen.bold("wirecap demo: send, capture and account for packets"))?;
    screen.line("")?;
    screen.line("> Building a test bed: two network namespaces connected by a veth pair")?;
    screen.line("  a0 to a1) with 4 queues. Nothing else on this machine is touched.")?;

    let near = Namespace::new()?;
    let far = Namespace::new()?;
    let pair = VethPair::new((&near, "a0"), (&far, "a1"), QUEUES, MTU)?;
    let stage = Stage { sender: Sender::on(&pair)?, screen, interruption };
    let mut screen = far.run_in(|| stage.play())??;

    drop((near, far, pair));
    screen.line("")?;
    screen.line("The test bed is removed. What to try next:")?;
    screen
        .line("  wirecap devices                           what can be captured on this machine")?;
    screen
        .line("  wirecap capture -i DEV -w packets.pcapng  record one of them; Ctrl-C ends it")?;

    Ok(())
}

/// The test bed of the demo.
struct Stage {
    sender: Sender,
    screen: Screen<Stdout>,
    interruption: Interruption,
}

impl Stage {
    fn play(mut self) -> Result<Screen<Stdout>, Failure> {
        self.everything_captured()?;
        self.consumer_away()?;
        Ok(self.screen)
    }

    /// Act 1: workers that keep up, on all rings.
    fn everything_captured(&mut self) -> Result<(), Failure> {
        let duration = Duration::from_secs(5);
        let burst = Burst { frames: 2_000_000, duration, per_second: 400_000, turns: &SKEWED };
        self.act("Act 1: a busy interface, and everything is captured")?;

        let capture = self.open("a1", CHUNKS_PER_RING)?;
        self.step("Sending packets of 60 bytes on a0 for 5 s, up to 400,000 a second. More than")?;
        self.more("half of them are for one queue, as a network card's hash may have it.")?;

        let (watched, misplaced) = thread::scope(|scope| {
            let workers: Vec<_> = capture
                .workers()
                .into_iter()
                .map(|worker| scope.spawn(|| consume(worker)))
                .collect();
            let watched =
                self.watch(burst, &capture, Picture::Rates).and_then(|()| self.settle(&capture));
            capture.stop();

            let counts =
                workers.into_iter().map(|worker| worker.join().expect("counting does not panic"));
            (watched, counts.sum::<Result<u64, CaptureError>>())
        });
        watched?;

        let misplaced = misplaced?;
        self.balance(&capture.close())?;

        self.claim("every packet came once, in the order of its ring", misplaced == 0)
    }

    /// Act 2: a worker that pauses for a while.
    fn consumer_away(&mut self) -> Result<(), Failure> {
        self.act("Act 2: a consumer that is away for a while, and a pool that waits for it")?;
        let capture = self.open("a1@0", CHUNKS)?;
        let mut worker = capture.workers().pop().expect("a new capture has its worker");

        let bursts = [
            (
                POOL_PACKETS,
                "The consumer sleeps while 65,536 packets arrive, as many as the pool holds.",
            ),
            (100_000, "It sleeps again while 100,000 packets arrive: too many by 34,464."),
            (10_000, "The capture goes on as if nothing had happened: 10,000 more packets."),
        ];
        let mut as_foretold = true;

        for (frames, text) in bursts {
            self.step(text)?;
            let count = self.sender.count()?;
            let before = capture.ledger();
            let burst = Burst { frames, duration: Duration::MAX, per_second: 50_000, turns: &[0] };
            self.watch(burst, &capture, Picture::FillLevel)?;
            while worker.next_chunk_timeout(GLANCE)?.is_some() {}
            self.settle(&capture)?;

            let arrived = self.sender.count()?.since(&count).tx_packets;
            let now = capture.ledger();
            let delivered = now.total.delivered - before.total.delivered;
            let lost = now.total.dropped.no_cell - before.total.dropped.no_cell;
            as_foretold &= lost == arrived.saturating_sub(POOL_PACKETS);

            let losses = match lost {
                0 => "none was lost".to_owned(),
                lost => format!("{} were lost: there was no free cell", grouped(lost)),
            };
            self.more(&format!("Awake again, it gets {} packets; {losses}.", grouped(delivered)))?;
        }

        self.balance(&capture.close())?;
        self.claim("exactly the packets beyond R x M were lost", as_foretold)
    }

    fn act(&mut self, title: &str) -> io::Result<()> {
        self.screen.line("")?;
        self.screen.line(&self.screen.bold(title))
    }

    fn step(&mut self, text: &str) -> io::Result<()> {
        self.screen.line(&format!("> {text}"))
    }

    fn more(&mut self, text: &str) -> io::Result<()> {
        self.screen.line(&format!("  {text}"))
    }

    /// Opens a capture, reports it, and resets the sender's count.
    fn open(&mut self, device: &str, chunks: u32) -> Result<Capture, Failure> {
        let cpus = thread::available_parallelism().map_or(1, usize::from);

        // The cable is the demo's own: no mark is needed.
        let builder =
            Capture::on(device).engine(Engine::Xdp).chunk(CHUNK).pool(chunks).at_most_workers(cpus);
        let capture = builder.open()?;
        let geometry = capture.geometry();
        let rings = capture.rings().len();
        let ring = if rings == 1 { "1 ring" } else { "4 rings, each" };
        self.step(&format!(
            "Capturing on {device}: {ring} with a pool of R x M = {chunks} x {CHUNK} = {} cells",
            grouped(geometry.cells().into()),
        ))?;

        let memory = size::human_bytes((geometry.pool_bytes() * rings) as u64);
        self.more(&format!("(one packet each; {memory} in all).",))?;
        self.sender.restart_count()?;

        Ok(capture)
    }

    /// Sends the burst and shows how the capture processes it.
    fn watch(&mut self, burst: Burst, capture: &Capture, picture: Picture) -> Result<(), Failure> {
        let sender = &mut self.sender;
        let interruption = &self.interruption;
        let screen = &mut self.screen;
        let interval = if screen.is_terminal() { REDRAW } else { LINE };
        let begin = capture.ledger();

        thread::scope(|scope| {
            let sending = scope.spawn(move || sender.send(burst, interruption));
            let mut drawn = begin.clone();

            while !sending.is_finished() {
                thread::sleep(GLANCE);
                let now = capture.ledger();
                if now.duration - drawn.duration >= interval {
                    screen.redraw(&picture.lines(screen, capture, &drawn, &now))?;
                    drawn = now;
                }
            }

            sending.join().expect("the sender does not panic")?;

            // The picture of the whole burst stays on the screen.
            screen.redraw(&picture.lines(screen, capture, &begin, &capture.ledger()))?;
            screen.keep();

            match interruption.came() {
                true => Err(Failure::Failed("interrupted; the test bed is removed".into())),
                false => Ok(()),
            }
        })
    }

    /// Waits until the ledger has all packets that the interface has sent.
    fn settle(&mut self, capture: &Capture) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        while capture.ledger().total.offered < self.sender.count()?.tx_packets
            && Instant::now() < deadline
        {
            thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// Shows the sender's count and the ledger's.
    fn balance(&mut self, ledger: &Ledger) -> Result<(), Failure> {
        let count = self.sender.count()?;
        let total = &ledger.total;
        let mut rows = vec![
            ("sent, by the counters of a0 itself", count.tx_packets),
            ("offered to the capture, by wirecap's ledger", total.offered),
            ("    delivered", total.delivered),
            ("    dropped: no free cell", total.dropped.no_cell),
            ("    dropped for other reasons", total.dropped.total() - total.dropped.no_cell),
        ];

        if count.tx_dropped > 0 {
            rows.insert(1, ("    and lost in a0's own queue before", count.tx_dropped));
        }

        self.screen.line("")?;
        for (what, packets) in rows {
            self.more(&format!("{what:<50} {:>15}", grouped(packets)))?;
        }

        let balanced = count.tx_packets == total.offered
            && total.offered == total.delivered + total.dropped.total()
            && total.offered > 0;
        self.claim("the sender's count equals the ledger", balanced)
    }

    /// Reports whether a condition is true; if not, the demo has failed.
    fn claim(&mut self, what: &str, holds: bool) -> Result<(), Failure> {
        self.more(&format!("{what}: {}", self.screen.yes_or_no(holds)))?;
        if holds { Ok(()) } else { Err(Failure::Failed(format!("false: {what}").into())) }
    }
}

/// A worker's loop: reads each packet's number, and counts packets that are repeated, out of order,
/// or from another queue.
fn consume(mut worker: Worker) -> Result<u64, CaptureError> {
    let mut next = [0; QUEUES as usize];
    let mut misplaced = 0;
    while let Some(chunk) = worker.next_chunk()? {
        misplaced += misplaced_in(&chunk, &mut next[chunk.ring_index()]);
    }
    Ok(misplaced)
}

fn misplaced_in(chunk: &Chunk, next: &mut u64) -> u64 {
    let mut misplaced = 0;
    for packet in chunk {
        match Stamp::of(packet.data()) {
            Some(stamp)
                if u32::from(stamp.queue) == chunk.ring().queue && stamp.sequence >= *next =>
            {
                *next = stamp.sequence + 1;
            }
            _ => misplaced += 1,
        }
    }
    misplaced
}
