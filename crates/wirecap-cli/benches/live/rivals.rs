//! `wirecap capture -w` beside tcpdump, dumpcap and netsniff-ng, and its engine `packet` beside tcpdump, which
//! stands on the same sockets: the highest rate at which each writes every packet into a file in memory.
//!
//! The rivals get the buffer memory that wirecap gets, the settings that their manuals recommend, and
//! an XDP program that passes everything, without which frames of the generator are lost to AF_PACKET.
//! A packet counts when it is in the file.

use std::time::Duration;
use wirecap_lab::live::Outcome;
use wirecap_lab::live::bed::{Bed, Run, calmest};
use wirecap_lab::live::contender::{Books, Contender, FILE};
use wirecap_lab::live::figures::Figures;
use wirecap_lab::live::process::CommandLine;
use wirecap_lab::live::trial::{self, KernelSender};

use crate::Effort;

/// Reads the clock for each packet, as the rivals do.
const BY_PACKET: &str = "--timestamp packet";
/// Buffer memory of each.
const BUFFER_MIB: u32 = 64;
/// Longer than the timeout after which the kernel hands out a part-filled block of a packet ring, which
/// is one second with tcpdump.
const CALM: Duration = Duration::from_millis(1200);
/// A sender that reaches less than this share of the rate is at its own limit.
const SENDER_SHARE: f64 = 0.98;

struct Extent {
    /// Of a run at the sender's highest rate.
    frames: u64,
    /// Of the other runs.
    seconds: f64,
    /// From which rate on the limit is sought, in packets per second.
    from: f64,
    /// Runs to find it.
    steps: usize,
}

const FULL: Extent = Extent { frames: 6_000_000, seconds: 2.0, from: 0.4e6, steps: 6 };
const QUICK: Extent = Extent { frames: 2_000, seconds: 0.1, from: 1e4, steps: 2 };

/// `arguments` end in the option that the file's name is the value of.
pub(crate) fn contender(
    name: &str,
    program: &str,
    arguments: &str,
    ready: &'static str,
    passing: bool,
) -> Contender {
    let is_ours = program == "wirecap";
    let command = if is_ours { crate::wirecap() } else { CommandLine::new(program) };
    let command = command.with(arguments).with(FILE);
    Contender { is_ours, passing, calm: CALM, ..Contender::new(name, command, ready, Books::File(|_| None)) }
}

pub(crate) fn tcpdump(mib: u32) -> Contender {
    let kib = mib * 1024;
    let arguments = format!("-i a1 -n -B {kib} --time-stamp-precision=nano -Z root -w");
    contender("tcpdump", "tcpdump", &arguments, "listening", true)
}

pub(crate) fn dumpcap_pcap(mib: u32) -> Contender {
    contender("dumpcap, pcap", "dumpcap", &format!("-i a1 -q -P -B {mib} -w"), "File:", true)
}

pub(crate) fn netsniff_ng(mib: u32) -> Contender {
    let arguments = format!("--in a1 --silent --ring-size {mib}MiB -T 0xa1b23c4d --notouch-irq --out");
    contender("netsniff-ng", "netsniff-ng", &arguments, "Running", true)
}

/// The engine `packet` and what has the same from the kernel.
fn on_packet_sockets() -> Vec<Contender> {
    let ours = |name, format| {
        let arguments = format!("capture -i a1 --engine packet --buffer {BUFFER_MIB}M --format {format} -w");
        contender(name, "wirecap", &arguments, "capturing", true)
    };
    vec![ours("packet engine, pcapng", "pcapng"), ours("packet engine, pcap", "pcap"), tcpdump(BUFFER_MIB)]
}

fn all() -> Vec<Contender> {
    let mib = BUFFER_MIB;
    let wirecap = |name, options: &str| {
        let arguments = format!("capture -i a1 --buffer {mib}M {options} -w");
        contender(name, "wirecap", &arguments, "capturing", false)
    };
    vec![
        wirecap("wirecap, pcapng", ""),
        wirecap("wirecap, pcap", "--format pcap"),
        wirecap("wirecap, pcapng, a clock read each", BY_PACKET),
        wirecap("wirecap, pcap, a clock read each", &format!("--format pcap {BY_PACKET}")),
        tcpdump(mib),
        contender("dumpcap, pcapng", "dumpcap", &format!("-i a1 -q -B {mib} -w"), "File:", true),
        dumpcap_pcap(mib),
        netsniff_ng(mib),
    ]
}

pub(crate) fn installed(contenders: Vec<Contender>) -> Vec<Contender> {
    let is_installed = |contender: &Contender| {
        let installed = contender.command.is_installed();
        if !installed {
            println!("  SKIP: {} is not installed", contender.name);
        }
        installed
    };
    contenders.into_iter().filter(is_installed).collect()
}

/// wirecap beside all of its rivals.
pub(crate) fn run(effort: Effort) -> Outcome<()> {
    compare(effort, all())
}

/// The engine `packet` beside tcpdump.
pub(crate) fn packet(effort: Effort) -> Outcome<()> {
    compare(effort, on_packet_sockets())
}

fn compare(effort: Effort, contenders: Vec<Contender>) -> Outcome<()> {
    let extent = effort.choose(FULL, QUICK);
    println!(
        "\nhighest lossless rate of a capture to a file in memory (60 bytes, {BUFFER_MIB} MiB, runs of {} s)",
        extent.seconds
    );
    let bed = Bed::new()?;
    let contenders = installed(contenders);
    let mut limits: Vec<Figures> = contenders.iter().map(|_| Figures::default()).collect();
    for _ in 0..effort.rounds(3) {
        let mut searches: Vec<Search> = contenders.iter().map(|_| Search::new(&extent)).collect();
        // Step by step in turn, so that whatever disturbs the machine meets all alike.
        for _ in 0..extent.steps {
            for (contender, search) in contenders.iter().zip(&mut searches) {
                let Some(point) = search.point() else { continue };
                let (run, lost) = try_rate(&bed, contender, point)?;
                search.note(point, &run, lost);
            }
        }
        for (limits, search) in limits.iter_mut().zip(&searches) {
            limits.push(search.lossless / 1e6);
        }
    }
    report(&contenders, &limits);
    Ok(())
}

fn report(contenders: &[Contender], limits: &[Figures]) {
    for (contender, limits) in contenders.iter().zip(limits) {
        println!("  {:<34} {limits:>18} M packets/s", contender.name);
    }
    let best = |is_meant: &dyn Fn(&Contender) -> bool| {
        let meant = contenders.iter().zip(limits).filter(|(contender, _)| is_meant(contender));
        meant.map(|(_, limits)| limits.median()).fold(f64::NAN, f64::max)
    };
    let rival = best(&|contender| !contender.is_ours);
    let reads_each = |contender: &Contender| contender.command.to_string().contains(BY_PACKET);
    println!("  ours / best rival: {:.2}", best(&|contender| contender.is_ours) / rival);
    if contenders.iter().any(reads_each) {
        println!("  ours with a clock read for each packet / best rival: {:.2}", best(&reads_each) / rival);
    }
}

/// A search for the highest lossless rate: the sender's highest if nothing is lost at that, else by halving a
/// range of rates in logarithms.
struct Search<'a> {
    extent: &'a Extent,
    low: f64,
    /// None until the sender's highest rate was tried.
    high: Option<f64>,
    /// The highest rate that was sent without loss.
    lossless: f64,
}

/// What to send.
#[derive(Debug, Clone, Copy)]
struct Point {
    frames: u64,
    /// Packets per second; `None` for as many as the sender makes.
    per_second: Option<f64>,
}

impl<'a> Search<'a> {
    fn new(extent: &'a Extent) -> Self {
        Self { extent, low: extent.from, high: None, lossless: 0.0 }
    }

    /// What to try next, unless the limit is known.
    fn point(&self) -> Option<Point> {
        let Some(high) = self.high else {
            return Some(Point { frames: self.extent.frames, per_second: None });
        };
        let per_second = (self.low * high).sqrt();
        let frames = (per_second * self.extent.seconds) as u64;
        (self.lossless < high).then_some(Point { frames, per_second: Some(per_second) })
    }

    fn note(&mut self, point: Point, run: &Run, lost: u64) {
        let sent = run.per_second();
        if lost == 0 {
            self.lossless = self.lossless.max(sent);
        }
        // On a veth the kernel's receive path runs on the sender's CPU, and may be what sets the limit.
        let sustained = lost == 0 && sent >= SENDER_SHARE * point.per_second.unwrap_or(sent);
        match point.per_second {
            None => self.high = Some(sent),
            Some(per_second) if sustained => self.low = per_second,
            Some(per_second) => self.high = Some(per_second),
        }
    }
}

/// Whether a contender writes all packets at this rate.
fn try_rate(bed: &Bed, contender: &Contender, point: Point) -> Outcome<(Run, u64)> {
    let (run, recorded) = calmest(|| record(bed, contender, point))?;
    let lost = run.frames.checked_sub(recorded).ok_or("more packets in the file than were sent")?;
    if std::env::var_os("WIRECAP_BENCH_VERBOSE").is_some() {
        println!(
            "    {:<34} {:>9.0}/s, sent {:>9.0}/s, lost {lost}, {run:?}",
            contender.name,
            point.per_second.unwrap_or(f64::INFINITY),
            run.per_second()
        );
    }
    Ok((run, lost))
}

/// A run and the packets in the file.
fn record(bed: &Bed, contender: &Contender, point: Point) -> Outcome<(Run, u64)> {
    let per_second = point.per_second.map(|rate| rate as u64);
    let mut sender = KernelSender { generator: bed.generator(60)?, frames: point.frames, per_second };
    let trial = trial::run(bed, contender, &mut sender, &mut |_| Ok(()))?;
    let (frames, seconds, waited) = (trial.sent, trial.seconds, trial.waited);
    let run = Run {
        frames,
        seconds,
        busy: trial.receiver_seconds / seconds,
        waited,
        sender_seconds: trial.sender_seconds,
        softirq_seconds: trial.softirq_seconds,
    };
    Ok((run, trial.delivered))
}
