//! The cost of a packet that a filter rejects, compared with the same packet and a bare XDP
//! program: XDP_PASS, or XDP_DROP for `--drop-rejected`. One packet in 128 matches. The CPU time of
//! the capturing process is also reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use rustix::net::netdevice;
use rustix::net::{AddressFamily, SocketType, socket};
use wirecap::bpf::asm::{Assembler, Reg};
use wirecap::bpf::{Link, LoadOptions, Program, ProgramKind, XDP_DROP, XDP_PASS, XdpMode};
use wirecap_lab::live::Outcome;
use wirecap_lab::live::bed::{Bed, Run, send};
use wirecap_lab::live::figures::Figures;
use wirecap_lab::live::process::CommandLine;
use wirecap_testbed::{Bound, Figure, Generator, Goals, loss_lock};

use crate::Effort;

/// A bare XDP program, attached until this process is interrupted.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Interface to attach it to
    #[arg(short, long)]
    interface: String,
    /// Drop every packet (XDP_DROP) instead of passing it (XDP_PASS)
    #[arg(long)]
    drop: bool,
}

pub(crate) fn hold(arguments: &Arguments) -> Outcome<()> {
    let stopped = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stopped))?;
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    let ifindex = netdevice::name_to_index(&socket, &arguments.interface)?;
    let mut asm = Assembler::new();
    asm.mov(Reg::R0, if arguments.drop { XDP_DROP } else { XDP_PASS }).exit();
    let options = LoadOptions { fragments: true, ..LoadOptions::default() };
    let program = Program::load(ProgramKind::Xdp, "bench", &asm.finish()?, options)?;
    let _link = Link::attach_xdp(&program, ifindex, XdpMode::Native)?;
    eprintln!("capturing {}", arguments.interface);
    while !stopped.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(10));
    }
    println!("{{}}");
    Ok(())
}

/// Matches one packet in 128.
const FEW: &str = "udp and ether[55] & 127 = 5";

/// The longest filter of the WinPcap paper, with ten addresses and ten ports. The packets have the
/// last address, but none of the ports. The filter also accepts packets that match [`FEW`].
fn longest() -> String {
    let hosts: Vec<String> = (1..10).map(|host| format!("host 10.1.1.{host}")).collect();
    let ports: Vec<String> = (1..=10).map(|port| format!("udp port {}", port * 1000)).collect();
    format!("(({} or host 198.18.0.1) and ({})) or ({FEW})", hosts.join(" or "), ports.join(" or "))
}

struct Contender {
    name: &'static str,
    command: CommandLine,
    /// Index of the contender with which its cost is compared.
    baseline: usize,
    /// The maximum of the ratio, if there is a goal.
    ratio_max: Option<f64>,
}

fn contenders() -> Outcome<Vec<Contender>> {
    let count =
        |more: &str| crate::wirecap().with("count -i a1 -R 64 --engine xdp --json").with(more);
    let new = |name, command, baseline, ratio_max| Contender { name, command, baseline, ratio_max };
    Ok(vec![
        new("bare XDP_PASS", CommandLine::this()?.with("hold -i a1"), 0, None),
        new("a short filter", count(FEW), 0, Some(1.05)),
        new("the longest filter", count(&longest()), 0, Some(1.15)),
        new("bare XDP_DROP", CommandLine::this()?.with("hold -i a1 --drop"), 3, None),
        new("a short filter, dropping", count("--drop-rejected").with(FEW), 3, None),
        new("the longest filter, dropping", count("--drop-rejected").with(&longest()), 3, None),
    ])
}

pub(crate) fn run(effort: Effort, goals: &mut Goals) -> Outcome<()> {
    let bed = Bed::new()?;
    let mut generator = bed.generator(60)?;
    let frames = effort.choose(4_000_000, 50_000);
    println!("\ncost of a rejected packet ({frames} frames of 60 bytes per run, at top rate)");
    let contenders = contenders()?;
    let mut rounds: Vec<Vec<Run>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..effort.rounds(15) {
        for (contender, rounds) in contenders.iter().zip(&mut rounds) {
            rounds.push(measure(&bed, &mut generator, contender, frames, effort)?);
        }
    }
    for (contender, runs) in contenders.iter().zip(&rounds) {
        let nanos = |run: &Run| 1e9 / run.per_second();
        let cost: Figures = runs.iter().map(nanos).collect();
        let baseline = &rounds[contender.baseline];
        let ratio: Figures =
            runs.iter().zip(baseline).map(|(run, bare)| nanos(run) / nanos(bare)).collect();
        let busy: Figures = runs.iter().map(|run| run.busy * 100.0).collect();
        let disturbed = runs.iter().filter(|run| run.is_disturbed()).count();
        println!("  {:<28} {cost:>22.1} ns a packet {ratio:>18} of bare", contender.name);
        println!("  {:<28} {busy:.1} % of a core for the receiver, {disturbed} runs disturbed", "");
        if let Some(most) = contender.ratio_max.filter(|_| effort.has_goals()) {
            let figure = |(run, bare): (&Run, &Run)| Figure {
                value: nanos(run) / nanos(bare),
                is_disturbed: run.is_disturbed() || bare.is_disturbed(),
            };
            let figures: Vec<Figure> = runs.iter().zip(baseline).map(figure).collect();
            let what =
                format!("cost of a packet that {} rejects / of a bare XDP_PASS", contender.name);
            goals.judge(&what, Bound::AtMost(most), &figures);
        }
    }
    Ok(())
}

fn measure(
    bed: &Bed,
    generator: &mut Generator,
    contender: &Contender,
    frames: u64,
    effort: Effort,
) -> Outcome<Run> {
    let (run, finished) = effort.calmest(|| {
        let _alone = loss_lock()?;
        let receiver = bed.receive(&contender.command, "capturing")?;
        let run = send(generator, &receiver, &bed.loads(frames, None)?)?;
        thread::sleep(Duration::from_millis(200));
        Ok((run, receiver.stop()?))
    })?;
    if contender.name.starts_with("bare") {
        return Ok(run);
    }
    let delivered = finished.ledger("/delivered")?;
    let seen = finished.ledger("/seen")?;
    let few = run.frames / 128;
    if seen != run.frames || delivered.abs_diff(few) > few / 10 + 1 {
        let name = contender.name;
        let sent = run.frames;
        return Err(format!("{name}: {sent} were sent, {seen} seen, {delivered} delivered").into());
    }
    Ok(run)
}
