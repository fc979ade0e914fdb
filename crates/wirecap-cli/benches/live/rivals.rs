//! `wirecap capture -w` beside tcpdump, dumpcap and netsniff-ng, and its engine `packet` beside tcpdump, which
//! stands on the same sockets: the highest rate at which each writes every packet into a file in memory.
//!
//! The rivals get the buffer memory that wirecap gets, the settings that their manuals recommend, and
//! an XDP program that passes everything, without which frames of the generator are lost to AF_PACKET.
//! A packet counts when it is in the file.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use wirecap::bpf::Link;
use wirecap::savefile;
use wirecap_testbed::{Generator, loss_lock, pass_program};

use crate::Effort;
use crate::bed::{Bed, CommandLine, Outcome, Run, calmest, send};
use crate::figures::Figures;

/// Buffer memory of each.
const BUFFER_MIB: u32 = 64;
/// Longer than the timeout after which the kernel hands out a part-filled block of a packet ring, which
/// is one second with tcpdump.
const CALM: Duration = Duration::from_millis(1200);
/// A sender that reaches less than this share of the rate is at its own limit.
const SENDER_SHARE: f64 = 0.98;

struct Extent {
    seconds: f64,
    /// Between which rates the limit is sought, in packets per second.
    from: f64,
    to: f64,
    /// Halvings of that range.
    steps: usize,
}

const FULL: Extent = Extent { seconds: 2.0, from: 0.4e6, to: 4.0e6, steps: 6 };
const QUICK: Extent = Extent { seconds: 0.1, from: 1e4, to: 2e4, steps: 1 };

struct Contender {
    name: &'static str,
    command: CommandLine,
    /// What it says when it captures.
    ready: &'static str,
    file: PathBuf,
    is_ours: bool,
    /// On AF_PACKET, which needs a program that passes.
    passing: bool,
}

impl Contender {
    /// `arguments` end in the option that the file's name is the value of.
    fn new(name: &'static str, program: &str, arguments: &str, ready: &'static str, passing: bool) -> Self {
        let file = PathBuf::from("/dev/shm").join(format!("wirecap-bench-{}", std::process::id()));
        let is_ours = program == "wirecap";
        let command = if is_ours { CommandLine::wirecap() } else { CommandLine::new(program) };
        let command = command.with(arguments).with(&file.display().to_string());
        Self { name, command, ready, file, is_ours, passing }
    }
}

fn tcpdump() -> Contender {
    let kib = BUFFER_MIB * 1024;
    let arguments = format!("-i a1 -n -B {kib} --time-stamp-precision=nano -Z root -w");
    Contender::new("tcpdump", "tcpdump", &arguments, "listening", true)
}

/// The engine `packet` and who has the same from the kernel.
fn on_packet_sockets() -> Vec<Contender> {
    let ours = |name, format| {
        let arguments = format!("capture -i a1 --engine packet --buffer {BUFFER_MIB}M --format {format} -w");
        Contender::new(name, "wirecap", &arguments, "capturing", true)
    };
    vec![ours("packet engine, pcapng", "pcapng"), ours("packet engine, pcap", "pcap"), tcpdump()]
}

fn everybody() -> Vec<Contender> {
    let contender = Contender::new;
    let mib = BUFFER_MIB;
    vec![
        contender(
            "wirecap, pcapng",
            "wirecap",
            &format!("capture -i a1 --buffer {mib}M -w"),
            "capturing",
            false,
        ),
        contender(
            "wirecap, pcap",
            "wirecap",
            &format!("capture -i a1 --buffer {mib}M --format pcap -w"),
            "capturing",
            false,
        ),
        tcpdump(),
        contender("dumpcap, pcapng", "dumpcap", &format!("-i a1 -q -B {mib} -w"), "File:", true),
        contender("dumpcap, pcap", "dumpcap", &format!("-i a1 -q -P -B {mib} -w"), "File:", true),
        contender(
            "netsniff-ng",
            "netsniff-ng",
            &format!("--in a1 --silent --ring-size {mib}MiB -T 0xa1b23c4d --notouch-irq --out"),
            "Running",
            true,
        ),
    ]
}

fn installed(contenders: Vec<Contender>) -> Vec<Contender> {
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
    compare(effort, everybody())
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
    let mut generator = bed.generator(60)?;
    let contenders = installed(contenders);
    let mut limits: Vec<Figures> = contenders.iter().map(|_| Figures::default()).collect();
    for _ in 0..effort.rounds(3) {
        let mut searches: Vec<Search> = contenders.iter().map(|_| Search::new(&extent)).collect();
        // Step by step in turn, so that whatever disturbs the machine meets all alike.
        for _ in 0..extent.steps {
            for (contender, search) in contenders.iter().zip(&mut searches) {
                let point = search.point();
                let (run, lost) = try_rate(&bed, &mut generator, contender, point, extent.seconds)?;
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
        println!("  {:<22} {limits:>18} M packets/s", contender.name);
    }
    let best = |ours| {
        let of_kind = contenders.iter().zip(limits).filter(|(contender, _)| contender.is_ours == ours);
        of_kind.map(|(_, limits)| limits.median()).fold(f64::NAN, f64::max)
    };
    println!("  ours / best rival: {:.2}", best(true) / best(false));
}

/// A search for the highest lossless rate, by halving a range of rates in logarithms.
struct Search {
    low: f64,
    high: f64,
    /// The highest rate that was sent without loss. It may be less than what was asked for: on a veth
    /// the kernel's receive path runs on the sender's CPU, and may be what sets the limit.
    lossless: f64,
}

impl Search {
    fn new(extent: &Extent) -> Self {
        Self { low: extent.from, high: extent.to, lossless: 0.0 }
    }

    fn point(&self) -> f64 {
        (self.low * self.high).sqrt()
    }

    fn note(&mut self, point: f64, run: &Run, lost: u64) {
        if lost == 0 {
            self.lossless = self.lossless.max(run.per_second());
        }
        let sustained = lost == 0 && run.per_second() >= SENDER_SHARE * point;
        *(if sustained { &mut self.low } else { &mut self.high }) = point;
    }
}

/// Whether a contender writes all packets at this rate.
fn try_rate(
    bed: &Bed,
    generator: &mut Generator,
    contender: &Contender,
    per_second: f64,
    seconds: f64,
) -> Outcome<(Run, u64)> {
    let (run, recorded) = calmest(|| record(bed, generator, contender, per_second, seconds))?;
    let lost = run.frames.checked_sub(recorded).ok_or("more packets in the file than were sent")?;
    if std::env::var_os("WIRECAP_BENCH_VERBOSE").is_some() {
        println!(
            "    {:<22} {per_second:>9.0}/s, sent {:>9.0}/s, lost {lost}, {run:?}",
            contender.name,
            run.per_second()
        );
    }
    Ok((run, lost))
}

/// A run and the packets in the file.
fn record(
    bed: &Bed,
    generator: &mut Generator,
    contender: &Contender,
    per_second: f64,
    seconds: f64,
) -> Outcome<(Run, u64)> {
    let _alone = loss_lock()?;
    let passing: Option<Link> = contender.passing.then(|| pass_program(&bed.pair.receiver)).transpose()?;
    let receiver = bed.receive(&contender.command, contender.ready)?;
    let run = send(generator, &receiver, (per_second * seconds) as u64, Some(per_second as u64))?;
    receiver.settle(CALM)?;
    receiver.stop()?;
    drop(passing);
    let recorded = packets_in(&contender.file)?;
    fs::remove_file(&contender.file)?;
    Ok((run, recorded))
}

fn packets_in(file: &PathBuf) -> Outcome<u64> {
    let mut reader = savefile::Reader::open(file)?;
    let mut packets = 0;
    while let Some(_packet) = reader.next_record()? {
        packets += 1;
    }
    Ok(packets)
}
