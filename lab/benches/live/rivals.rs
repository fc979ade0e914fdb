//! The highest rate at which a recorder writes every packet to a file in memory:
//! `wirecap capture -w` compared with tcpdump, dumpcap and netsniff-ng, and its engine `packet`
//! compared with tcpdump, which uses the same kind of socket.
//!
//! The other recorders have as much buffer memory as wirecap, the settings that their manuals
//! recommend, and an XDP program that passes every packet, without which AF_PACKET loses frames of
//! the generator. Only packets in the file are counted.

use std::time::Duration;
use wirecap_lab::live::Outcome;
use wirecap_lab::live::bed::{Bed, Run};
use wirecap_lab::live::contender::{Books, Contender, FILE};
use wirecap_lab::live::figures::Figures;
use wirecap_lab::live::process::CommandLine;
use wirecap_lab::live::trial::{self, KernelSender};
use wirecap_testbed::{Bound, Figure, Goals, skip_on_this_machine};

use crate::Effort;

/// Option to read the clock for each packet, as the other recorders do.
const BY_PACKET: &str = "--timestamp packet";
/// Buffer memory of each recorder.
const BUFFER_MIB: u32 = 64;
/// Longer than the timeout after which the kernel delivers a partly filled block of a packet ring:
/// one second for tcpdump.
const CALM: Duration = Duration::from_millis(1200);
/// A rate is sustained only if the sender reaches at least this share of it.
const SENDER_SHARE: f64 = 0.98;

struct Extent {
    /// Number of frames in a run at the sender's top rate.
    frames: u64,
    /// Duration of the other runs.
    seconds: f64,
    /// Lower bound of the search, in packets per second.
    from: f64,
    /// Number of runs per search.
    steps: usize,
}

const FULL: Extent = Extent { frames: 6_000_000, seconds: 2.0, from: 0.4e6, steps: 6 };
const QUICK: Extent = Extent { frames: 2_000, seconds: 0.1, from: 1e4, steps: 2 };

/// `arguments` must end with the option whose value is the name of the output file.
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
    Contender {
        is_ours,
        passing,
        calm: CALM,
        ..Contender::new(name, command, ready, Books::File(|_| None))
    }
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
    let arguments =
        format!("--in a1 --silent --ring-size {mib}MiB -T 0xa1b23c4d --notouch-irq --out");
    contender("netsniff-ng", "netsniff-ng", &arguments, "Running", true)
}

/// The engine `packet`, and tcpdump, which uses the same kind of socket.
fn on_packet_sockets() -> Vec<Contender> {
    let ours = |name, format| {
        let arguments =
            format!("capture -i a1 --engine packet --buffer {BUFFER_MIB}M --format {format} -w");
        contender(name, "wirecap", &arguments, "capturing", true)
    };
    vec![
        ours("packet engine, pcapng", "pcapng"),
        ours("packet engine, pcap", "pcap"),
        tcpdump(BUFFER_MIB),
    ]
}

fn all() -> Vec<Contender> {
    let mib = BUFFER_MIB;
    let wirecap = |name, options: &str| {
        let arguments = format!("capture -i a1 --engine xdp --buffer {mib}M {options} -w");
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
            skip_on_this_machine(&format!("{} is not installed", contender.name));
        }
        installed
    };
    contenders.into_iter().filter(is_installed).collect()
}

/// Compares wirecap with all other recorders.
pub(crate) fn run(effort: Effort, goals: &mut Goals) -> Outcome<()> {
    let rounds = compare(effort, all())?;
    if effort.has_goals() {
        let each = |contender: &Contender| reads_each(contender);
        let default = |contender: &Contender| contender.is_ours && !reads_each(contender);
        let what = "lossless rate with a clock read for each packet / of the best rival";
        goals.judge(what, Bound::AtLeast(1.1), &rounds.ratios(each));
        let what = "lossless rate with the default timestamps / of the best rival";
        goals.judge(what, Bound::AtLeast(1.2), &rounds.ratios(default));
    }
    Ok(())
}

/// Compares the engine `packet` with tcpdump.
pub(crate) fn packet(effort: Effort, goals: &mut Goals) -> Outcome<()> {
    let rounds = compare(effort, on_packet_sockets())?;
    if effort.has_goals() {
        let ratios = rounds.ratios(|contender| contender.is_ours);
        goals.judge(
            "lossless rate of the engine packet / of tcpdump",
            Bound::AtLeast(0.95),
            &ratios,
        );
    }
    Ok(())
}

/// The highest lossless rates of all contenders in each round.
struct Rounds {
    contenders: Vec<Contender>,
    rates: Vec<Vec<Figure>>,
}

impl Rounds {
    /// The best of the selected contenders divided by the best rival, in each round.
    fn ratios(&self, is_meant: impl Fn(&Contender) -> bool) -> Vec<Figure> {
        let ratio = |rates: &Vec<Figure>| {
            let best = |is_meant: &dyn Fn(&Contender) -> bool| {
                let meant =
                    self.contenders.iter().zip(rates).filter(|(contender, _)| is_meant(contender));
                meant.map(|(_, rate)| rate.value).fold(f64::NAN, f64::max)
            };
            Figure {
                value: best(&is_meant) / best(&|contender| !contender.is_ours),
                is_disturbed: rates.iter().any(|rate| rate.is_disturbed),
            }
        };
        self.rates.iter().map(ratio).collect()
    }
}

fn reads_each(contender: &Contender) -> bool {
    contender.command.to_string().contains(BY_PACKET)
}

fn compare(effort: Effort, contenders: Vec<Contender>) -> Outcome<Rounds> {
    let extent = effort.choose(FULL, QUICK);
    println!(
        "\nhighest lossless rate of a capture to a file in memory (60 bytes, {BUFFER_MIB} MiB, runs of {} s)",
        extent.seconds
    );
    let bed = Bed::new()?;
    let contenders = installed(contenders);
    let mut limits: Vec<Figures> = contenders.iter().map(|_| Figures::default()).collect();
    let mut rates = Vec::new();
    for _ in 0..effort.rounds(3) {
        let mut searches: Vec<Search> = contenders.iter().map(|_| Search::new(&extent)).collect();
        // The contenders take each step in turn, so that other load on the machine affects all of
        // them equally.
        for _ in 0..extent.steps {
            for (contender, search) in contenders.iter().zip(&mut searches) {
                let Some(point) = search.point() else { continue };
                let (run, lost) = try_rate(&bed, contender, point, effort)?;
                search.note(point, &run, lost);
            }
        }
        for (limits, search) in limits.iter_mut().zip(&searches) {
            limits.push(search.lossless / 1e6);
        }
        let rate = |search: &Search<'_>| Figure {
            value: search.lossless,
            is_disturbed: search.is_disturbed,
        };
        rates.push(searches.iter().map(rate).collect());
    }
    report(&contenders, &limits);
    Ok(Rounds { contenders, rates })
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
    println!("  ours / best rival: {:.2}", best(&|contender| contender.is_ours) / rival);
    if contenders.iter().any(reads_each) {
        println!(
            "  ours with a clock read for each packet / best rival: {:.2}",
            best(&reads_each) / rival
        );
    }
}

/// A search for the highest lossless rate: first at the sender's top rate; if packets are lost, by
/// bisecting a range of rates on a logarithmic scale.
struct Search<'a> {
    extent: &'a Extent,
    low: f64,
    /// `None` until the sender's top rate has been tried.
    high: Option<f64>,
    /// The highest rate without loss so far.
    lossless: f64,
    /// Whether one of its runs was disturbed.
    is_disturbed: bool,
}

/// The load of a run.
#[derive(Debug, Clone, Copy)]
struct Point {
    frames: u64,
    /// Packets per second; `None` for the sender's top rate.
    per_second: Option<f64>,
}

impl<'a> Search<'a> {
    fn new(extent: &'a Extent) -> Self {
        Self { extent, low: extent.from, high: None, lossless: 0.0, is_disturbed: false }
    }

    /// The next load to try; `None` if the limit is known.
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
        self.is_disturbed |= run.is_disturbed();
        if lost == 0 {
            self.lossless = self.lossless.max(sent);
        }
        // On a veth the kernel's receive path runs on the sender's CPU, and may slow down the
        // sender.
        let sustained = lost == 0 && sent >= SENDER_SHARE * point.per_second.unwrap_or(sent);
        match point.per_second {
            None => self.high = Some(sent),
            Some(per_second) if sustained => self.low = per_second,
            Some(per_second) => self.high = Some(per_second),
        }
    }
}

/// A run with this load, and the number of packets that are missing in the file.
fn try_rate(bed: &Bed, contender: &Contender, point: Point, effort: Effort) -> Outcome<(Run, u64)> {
    let (run, recorded) = effort.calmest(|| record(bed, contender, point))?;
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

/// A run with this load, and the number of packets in the file.
fn record(bed: &Bed, contender: &Contender, point: Point) -> Outcome<(Run, u64)> {
    let per_second = point.per_second.map(|rate| rate as u64);
    let mut sender =
        KernelSender { generator: bed.generator(60)?, frames: point.frames, per_second };
    let trial = trial::run(bed, contender, &mut sender, &mut |_| Ok(()))?;
    let frames = trial.sent;
    let seconds = trial.seconds;
    let waited = trial.waited;
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
