//! `wirecap replay` compared with tcpreplay: the rate at which each sends a savefile, and the
//! accuracy of its timing.
//!
//! All senders send the same file on the same interface. The peer drops all frames (rate) or
//! records them with a timestamp per packet (timing). Each sender reports its rate; the interface's
//! counters confirm that all frames were sent. tcpreplay runs with `--preload-pcap`, as its manual
//! recommends.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use wirecap::Timestamp;
use wirecap::savefile::{FileSink, Format, Interface, Reader, Record, Section, Writer};
use wirecap_lab::live::Outcome;
use wirecap_lab::live::bed::Bed;
use wirecap_lab::live::figures::Figures;
use wirecap_lab::live::process::CommandLine;
use wirecap_testbed::{
    Bound, Counters, Figure, Goals, Sizes, Stamp, Traffic, Watch, drop_program,
    skip_on_this_machine,
};

use crate::Effort;

/// Number of frames in a file.
const FILE_FRAMES: u64 = 100_000;
/// Frames per second according to the timestamps in the file.
const RECORDED_RATE: u64 = 50_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sender {
    Wirecap,
    ViaXdp,
    Tcpreplay,
}

impl Sender {
    const ALL: [Self; 3] = [Self::Wirecap, Self::ViaXdp, Self::Tcpreplay];

    fn name(self) -> &'static str {
        match self {
            Self::Wirecap => "wirecap replay",
            Self::ViaXdp => "... --via xdp",
            Self::Tcpreplay => "tcpreplay",
        }
    }

    fn command(self, path: &Path, pace: Pace) -> CommandLine {
        let file = path.display();
        match (self, pace) {
            (Self::Wirecap, Pace::Top(rounds)) => {
                crate::wirecap().with(&format!("replay {file} -i a0 --top --loop {rounds} --json"))
            }
            (Self::ViaXdp, Pace::Top(_)) => Self::Wirecap.command(path, pace).with("--via xdp"),
            (Self::Wirecap | Self::ViaXdp, Pace::Recorded) => {
                crate::wirecap().with(&format!("replay {file} -i a0 --json"))
            }
            (Self::Tcpreplay, Pace::Top(rounds)) => CommandLine::new("tcpreplay")
                .with(&format!("--quiet --topspeed --preload-pcap --loop {rounds} -i a0 {file}")),
            (Self::Tcpreplay, Pace::Recorded) => {
                CommandLine::new("tcpreplay").with(&format!("--quiet --preload-pcap -i a0 {file}"))
            }
        }
    }

    /// The rate that the sender reports in `output`, in frames per second.
    fn rate(self, output: &str) -> Outcome<f64> {
        let rate = match self {
            Self::Wirecap | Self::ViaXdp => {
                serde_json::from_str::<serde_json::Value>(output)?["frames_per_s"].as_f64()
            }
            // Rated: 73163326.1 Bps, 585.30 Mbps, 1219388.76 pps
            Self::Tcpreplay => output
                .split_once(" pps")
                .and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok()),
        };
        Ok(rate.ok_or_else(|| format!("{} reported no rate: {output}", self.name()))?)
    }
}

#[derive(Clone, Copy)]
enum Pace {
    Top(u64),
    Recorded,
}

/// A savefile in memory, removed on drop.
struct Savefile(PathBuf);

impl Savefile {
    /// Writes `frames` frames of these lengths, with evenly spaced timestamps.
    fn new(bed: &Bed, name: &str, sizes: Sizes, frames: u64) -> Outcome<Self> {
        let file = Self(
            PathBuf::from("/dev/shm").join(format!("wirecap-bench-{}-{name}", std::process::id())),
        );
        let traffic = Traffic { sizes, flows: 256, ..Traffic::to(&bed.pair.receiver) };
        let mut writer =
            Writer::new(FileSink::replace(&file.0)?, Format::Pcap, &Section::default());
        let interface = writer.add_interface(&Interface::default())?;
        for sequence in 0..frames {
            let data = &traffic.frame(Stamp { queue: 0, sequence });
            let timestamp = Some(Timestamp::from_unix_nanos(due_ns(sequence)));
            let wire_len = data.len() as u32;
            writer.write(&Record { interface, timestamp, wire_len, data, ..Record::default() })?;
        }
        writer.finish()?;
        Ok(file)
    }
}

impl Drop for Savefile {
    fn drop(&mut self) {
        // The file is missing if it could not be created.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn due_ns(sequence: u64) -> u64 {
    sequence * 1_000_000_000 / RECORDED_RATE
}

fn senders() -> Vec<Sender> {
    let is_there = |sender: &Sender| {
        let there = sender.command(Path::new(""), Pace::Recorded).is_installed()
            || *sender == Sender::Wirecap;
        if !there {
            skip_on_this_machine(&format!("{} is not installed", sender.name()));
        }
        there
    };
    Sender::ALL.into_iter().filter(is_there).collect()
}

pub(crate) fn run(effort: Effort, goals: &mut Goals) -> Outcome<()> {
    let senders = senders();
    rates(effort, &senders, goals)?;
    // `--via` is not used at the recorded rate: both commands of wirecap are the same.
    let apart: Vec<Sender> =
        senders.into_iter().filter(|sender| *sender != Sender::ViaXdp).collect();
    timing(effort, &apart, goals)
}

fn rates(effort: Effort, senders: &[Sender], goals: &mut Goals) -> Outcome<()> {
    let bed = Bed::new()?;
    let _dropping = drop_program(&bed.pair.receiver)?;
    let mut counters = Counters::of(&bed.pair.sender)?;
    let (frames, rounds) = effort.choose((FILE_FRAMES, 20), (1_000, 2));
    println!("\nreplay as fast as possible, {} frames from a file of {frames}", frames * rounds);
    let kinds = [
        ("60", Sizes::fixed(60)),
        ("512", Sizes::fixed(512)),
        ("1514", Sizes::fixed(1514)),
        ("imix", Sizes::imix()),
    ];
    for (name, sizes) in kinds {
        let file = Savefile::new(&bed, name, sizes, frames)?;
        let mut rates = vec![Figures::default(); senders.len()];
        let mut ratios: Vec<Vec<Figure>> = vec![Vec::new(); senders.len() - 1];
        for _ in 0..effort.rounds(5) {
            let mut of_round = Vec::new();
            let watch = Watch::begin();
            for (sender, rates) in senders.iter().zip(&mut rates) {
                counters.restart()?;
                let output = bed.run_near(&sender.command(&file.0, Pace::Top(rounds)))?;
                await_counted(&mut counters, frames * rounds)?;
                let rate = sender.rate(&output)?;
                rates.push(rate / 1e6);
                of_round.push(rate);
            }
            let is_disturbed = watch.end().is_disturbed();
            if let Some((theirs, ours)) = of_round.split_last() {
                let ratio = |ours: &f64| Figure { value: ours / theirs, is_disturbed };
                ratios.iter_mut().zip(ours).for_each(|(ratios, ours)| ratios.push(ratio(ours)));
            }
        }
        for (index, (sender, rates)) in senders.iter().zip(&rates).enumerate() {
            print!("  {name:>4} bytes  {:14} {rates:>18} million frames/s", sender.name());
            match ratios.get(index) {
                Some(ratios) if senders.contains(&Sender::Tcpreplay) => {
                    let ratios: Figures = ratios.iter().map(|ratio| ratio.value).collect();
                    println!(", {ratios} of tcpreplay's");
                }
                _ => println!(),
            }
        }
        if effort.has_goals() {
            let is_compared = senders.contains(&Sender::Tcpreplay);
            let rounds = ratios.first().filter(|_| is_compared).map_or(&[][..], |ratios| ratios);
            let what = format!("{name} bytes: top rate of wirecap replay / of tcpreplay");
            goals.judge(&what, Bound::AtLeast(2.0), rounds);
        }
    }
    Ok(())
}

/// Waits until the interface has counted this many frames, sent or lost at the peer's ring.
fn await_counted(counters: &mut Counters, frames: u64) -> Outcome<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let counted = counters.since_start()?.handed_over();
        if counted == frames {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("the interface has counted {counted} frames, not {frames}").into());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn timing(effort: Effort, senders: &[Sender], goals: &mut Goals) -> Outcome<()> {
    let bed = Bed::new()?;
    let frames = effort.choose(FILE_FRAMES, 1_000);
    println!(
        "\nreplay as recorded, {frames} frames at {RECORDED_RATE} frames/s: delay of the frames, in µs"
    );
    let file = Savefile::new(&bed, "timing", Sizes::fixed(60), frames)?;
    let copy = Savefile(file.0.with_extension("copy"));
    let mut late: Vec<[Figures; 3]> = vec![Default::default(); senders.len()];
    let mut medians = Vec::new();
    for _ in 0..effort.rounds(5) {
        for (sender, late) in senders.iter().zip(&mut late) {
            let command = format!(
                "capture -i a1 --engine xdp --timestamp packet --format pcap --json --force -w {}",
                copy.0.display()
            );
            let receiver = bed.receive(&crate::wirecap().with(&command), "capturing")?;
            let watch = Watch::begin();
            bed.run_near(&sender.command(&file.0, Pace::Recorded))?;
            let is_disturbed = watch.end().is_disturbed();
            thread::sleep(Duration::from_millis(100));
            let delivered = receiver.stop()?.ledger("/delivered")?;
            if delivered != frames {
                return Err(format!(
                    "{delivered} of {frames} frames arrived from {}",
                    sender.name()
                )
                .into());
            }
            let arrived = lateness_us(&copy.0)?;
            let at = |share: f64| arrived[((arrived.len() - 1) as f64 * share) as usize];
            late.iter_mut().zip([0.5, 0.99, 1.0]).for_each(|(late, share)| late.push(at(share)));
            if *sender == Sender::Wirecap {
                medians.push(Figure { value: at(0.5), is_disturbed });
            }
        }
    }
    for (sender, [median, most, max]) in senders.iter().zip(&late) {
        println!(
            "  {:14} median {median:.1}, 99th percentile {most:.1}, maximum {max:.1}",
            sender.name()
        );
    }
    if effort.has_goals() {
        goals.judge("median delay of replayed frames in us", Bound::Below(50.0), &medians);
    }
    Ok(())
}

/// The delay of each frame after its due time, minus the smallest such delay, in microseconds,
/// ascending.
fn lateness_us(copy: &Path) -> Outcome<Vec<f64>> {
    let mut reader = Reader::open(copy)?;
    let mut delays = Vec::new();
    while let Some(record) = reader.next_record()? {
        let stamp = Stamp::of(record.data).ok_or("a foreign frame")?;
        let arrived_ns = record.timestamp.ok_or("a frame without a time")?.unix_nanos();
        delays.push(arrived_ns as i64 - due_ns(stamp.sequence) as i64);
    }
    let promptest = *delays.iter().min().ok_or("no frame arrived")?;
    let mut late: Vec<f64> =
        delays.into_iter().map(|delay| (delay - promptest) as f64 / 1e3).collect();
    late.sort_by(f64::total_cmp);
    Ok(late)
}
