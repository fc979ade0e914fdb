//! The cost of scraping: `wirecap count` with and without ten scrapes of its metrics per second, in
//! alternation. At a moderate rate, which both sustain, the bench counts lost packets. At the
//! generator's top rate, it compares the rates. Without packets, it measures the CPU time of a
//! scrape.
//!
//! Its goals: a scraped capture loses no packet at the moderate rate, and scraping costs less than
//! 1 % of the top rate.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use wirecap::grouped;
use wirecap_lab::live::Outcome;
use wirecap_lab::live::bed::{Bed, Run, send};
use wirecap_lab::live::figures::Figures;
use wirecap_lab::live::receiver::Receiver;
use wirecap_testbed::{Bound, Figure, Goals, loss_lock};

use crate::Effort;

/// Interval between scrapes.
const INTERVAL: Duration = Duration::from_millis(100);
/// A rate that captures sustain with and without scraping, in packets per second.
const MODERATE: u64 = 400_000;
/// Scraping must cost less than this share of the top rate.
const SHARE_MAX: f64 = 0.01;

/// A run, the number of lost packets, and the number of scrapes during it.
struct Round {
    run: Run,
    lost: u64,
    scrapes: u64,
}

impl Round {
    fn per_second(&self) -> f64 {
        (self.run.frames - self.lost) as f64 / self.run.seconds
    }
}

pub(crate) fn run(effort: Effort, goals: &mut Goals) -> Outcome<()> {
    println!("\nscraping every {INTERVAL:?} (wirecap count, frames of 60 bytes)");
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("http");
    let bed = Bed::new()?;
    let moderate =
        turns(&bed, &socket, effort.choose(2_000_000, 20_000), Some(MODERATE), effort, 5)?;
    print(&format!("at {} packets/s", grouped(MODERATE)), &moderate);
    let top = turns(&bed, &socket, effort.choose(6_000_000, 50_000), None, effort, 15)?;
    print("as fast as possible", &top);
    idle(&bed, &socket, effort)?;
    if effort.has_goals() {
        let lost: u64 = moderate.iter().map(|[_, scraped]| scraped.lost).sum();
        goals.judge_exact("packets lost while scraped", Bound::AtMost(0.0), &[lost as f64]);
        let cost = |[not, scraped]: &[Round; 2]| Figure {
            value: 1.0 - scraped.per_second() / not.per_second(),
            is_disturbed: not.run.is_disturbed() || scraped.run.is_disturbed(),
        };
        let costs: Vec<Figure> = top.iter().map(cost).collect();
        goals.judge("share of the top rate that scraping costs", Bound::Below(SHARE_MAX), &costs);
    }
    Ok(())
}

fn turns(
    bed: &Bed,
    socket: &Path,
    frames: u64,
    per_second: Option<u64>,
    effort: Effort,
    rounds: usize,
) -> Outcome<Vec<[Round; 2]>> {
    let round = |is_scraped: bool| -> Outcome<Round> {
        let mut generator = bed.generator(60)?;
        let (run, (lost, scrapes)) = effort.calmest(|| {
            let _alone = loss_lock()?;
            let receiver = capture(bed, socket)?;
            let loads = bed.loads(frames, per_second)?;
            let (run, scrapes) =
                scraping(is_scraped.then_some(socket), || send(&mut generator, &receiver, &loads))?;
            // More than enough time to empty a full pool.
            thread::sleep(Duration::from_millis(200));
            let delivered = receiver.stop()?.ledger("/delivered")?;
            let lost = run.frames.checked_sub(delivered).ok_or("more packets than were sent")?;
            Ok((run, (lost, scrapes)))
        })?;
        Ok(Round { run, lost, scrapes })
    };
    (0..effort.rounds(rounds)).map(|_| Ok([round(false)?, round(true)?])).collect()
}

fn capture(bed: &Bed, socket: &Path) -> Outcome<Receiver> {
    let path = socket.to_str().ok_or("a path of ASCII")?;
    bed.receive(
        &crate::wirecap().with(&format!("count -i a1 --engine xdp -R 512 --json --http {path}")),
        "capturing",
    )
}

/// Calls `work`. If there is a socket, another thread scrapes it during the call. Also returns the
/// number of scrapes.
fn scraping<T>(socket: Option<&Path>, work: impl FnOnce() -> Outcome<T>) -> Outcome<(T, u64)> {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let scraper: Option<ScopedJoinHandle<'_, io::Result<u64>>> =
            socket.map(|socket| scope.spawn(|| scrape_until(socket, &is_done)));
        let outcome = work();
        is_done.store(true, Ordering::Relaxed);
        let scrapes = scraper.map(|scraper| scraper.join().map_err(|_| "the scraper panicked"));
        Ok((outcome?, scrapes.transpose()?.transpose()?.unwrap_or_default()))
    })
}

fn scrape_until(socket: &Path, is_done: &AtomicBool) -> io::Result<u64> {
    let begun = Instant::now();
    let mut scrapes = 0;
    while !is_done.load(Ordering::Relaxed) {
        scrape(socket)?;
        scrapes += 1;
        thread::sleep((INTERVAL * scrapes as u32).saturating_sub(begun.elapsed()));
    }
    Ok(scrapes)
}

/// Reads all metrics once.
fn scrape(socket: &Path) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.starts_with("HTTP/1.1 200 ")
        && answer.contains("wirecap_ring_packets_delivered_total")
    {
        true => Ok(()),
        false => Err(io::Error::other(format!("not metrics: {answer:.100}"))),
    }
}

/// Prints the rounds.
fn print(name: &str, rounds: &[[Round; 2]]) {
    let figures = |place: usize, figure: fn(&Round) -> f64| -> Figures {
        rounds.iter().map(|round| figure(&round[place])).collect()
    };
    for (place, kind) in ["not scraped", "scraped"].into_iter().enumerate() {
        let rate = figures(place, |round| round.per_second() / 1e6);
        let busy = figures(place, |round| round.run.busy * 100.0);
        let lost: u64 = rounds.iter().map(|round| round[place].lost).sum();
        let scrapes: u64 = rounds.iter().map(|round| round[place].scrapes).sum();
        let disturbed = rounds.iter().filter(|round| round[place].run.is_disturbed()).count();
        println!(
            "  {name}, {kind:<12} {rate:>18} M/s, {busy:.1} % of a core, {lost} lost, {scrapes} scrapes, {disturbed} runs \
             disturbed"
        );
    }
    let ratio: Figures =
        rounds.iter().map(|[not, scraped]| scraped.per_second() / not.per_second()).collect();
    println!("  {name}, scraped / not scraped {ratio:.3}");
}

/// Prints the CPU time that a scrape costs the capture while no packets arrive.
fn idle(bed: &Bed, socket: &Path, effort: Effort) -> Outcome<()> {
    let time = Duration::from_secs_f64(effort.choose(5.0, 0.3));
    let mut micros = Figures::default();
    for _ in 0..effort.rounds(3) {
        let receiver = capture(bed, socket)?;
        thread::sleep(time / 5);
        let mut ran = [Duration::ZERO; 2];
        let mut scrapes = 0;
        for (place, socket) in [None, Some(socket)].into_iter().enumerate() {
            let before = receiver.cpu_time()?.ran;
            ((), scrapes) = scraping(socket, || {
                thread::sleep(time);
                Ok(())
            })?;
            ran[place] = receiver.cpu_time()?.ran - before;
        }
        receiver.stop()?;
        micros.push(ran[1].saturating_sub(ran[0]).as_secs_f64() * 1e6 / scrapes as f64);
    }
    println!("  a scrape of an idle capture: {micros:.0} us of its CPU time");
    Ok(())
}
