//! `wirecap forward` compared with other programs that forward frames from one interface to
//! another: between the same two veth pairs, with the same traffic in one direction, at the
//! sender's top rate.
//!
//! The kernel's receive path runs on the sender's CPU, the forwarding program on another one. The
//! cost of forwarding is the time of both, minus the time that the sender needs for frames that are
//! dropped on arrival.

mod contenders;

use std::thread;
use std::time::Duration;

use clap::Args;
use wirecap_testbed::{
    Bound, Counters, Figure, Generator, Goals, Inline, Load, RxQueueCounts, SetupError, Sizes,
    Traffic, drop_program, loss_lock, skip_on_this_machine,
};

use wirecap_lab::live::Outcome;
use wirecap_lab::live::bed::{self, Run};
use wirecap_lab::live::figures::Figures;
use wirecap_lab::live::process::allowed_cpus;
use wirecap_lab::live::receiver::Receiver;

use crate::Effort;

use contenders::{Contender, contenders};

/// The selected contenders and traffic.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Arguments {
    /// Measure only forwarders whose names contain TEXT; their rates are compared with that of the
    /// first one
    #[arg(long, value_name = "TEXT", default_value = "")]
    who: String,
    /// Measure only traffic whose name contains TEXT
    #[arg(long, value_name = "TEXT", default_value = "")]
    what: String,
}

/// The kinds of traffic: a name, the lengths of frames, and the number of frames per run.
fn traffics() -> [(&'static str, Sizes, u64); 4] {
    [
        ("60 bytes", Sizes::fixed(60), 4_000_000),
        ("512 bytes", Sizes::fixed(512), 3_000_000),
        ("1500 bytes", Sizes::fixed(1500), 2_000_000),
        ("IMIX", Sizes::imix(), 3_000_000),
    ]
}

/// The result of one run.
#[derive(Debug, Clone, Copy)]
struct Measured {
    /// Packets per second that arrived at the far end while the sender was sending.
    rate: f64,
    /// Processor time on both CPUs per packet that arrived, in nanoseconds.
    cost_ns: f64,
    is_disturbed: bool,
}

/// The results of the runs of one contender.
#[derive(Debug, Default)]
struct Results {
    rate: Figures,
    cost_ns: Figures,
    /// The first contender's rate divided by this one's, for each round.
    ratio: Figures,
    ratios: Vec<Figure>,
}

pub(crate) fn run(effort: Effort, arguments: &Arguments, goals: &mut Goals) -> Outcome<()> {
    println!("\nforwarding from one veth pair to another, at the sender's top rate, on two CPUs");
    let is_meant =
        |contender: &Contender| contender.name.contains(&arguments.who) && is_there(contender);
    let contenders: Vec<Contender> = contenders().into_iter().filter(is_meant).collect();
    let traffics = traffics();
    let traffics = effort.choose(&traffics[..], &traffics[3..]);
    for (name, sizes, frames) in traffics.iter().filter(|(name, ..)| name.contains(&arguments.what))
    {
        let frames = effort.choose(*frames, 20_000);
        let mut results: Vec<Results> = contenders.iter().map(|_| Results::default()).collect();
        for _ in 0..effort.rounds(9) {
            round(&contenders, sizes, frames, &mut results, effort)?;
        }
        println!("  {name}, {frames} frames per run");
        for (contender, results) in contenders.iter().zip(&results) {
            let Results { rate, cost_ns, ratio, ratios } = results;
            println!(
                "    {:<30} {rate:>18} M packets/s {cost_ns:>20.0} ns of CPU a packet, first / this {ratio:>16}",
                contender.name
            );
            if effort.has_goals() && contender.is_rival() && contenders[0].is_ours() {
                let what =
                    format!("{name}: rate of {} / of {}", contenders[0].name, contender.name);
                goals.judge(&what, Bound::AtLeast(0.9), ratios);
            }
        }
    }
    Ok(())
}

fn is_there(contender: &Contender) -> bool {
    let missing = contender.missing();
    if let Some(missing) = &missing {
        skip_on_this_machine(&format!("{}: {missing}", contender.name));
    }
    missing.is_none()
}

/// Runs all contenders in turn. The ratio of each is relative to the first one, by default wirecap.
fn round(
    contenders: &[Contender],
    sizes: &Sizes,
    frames: u64,
    results: &mut [Results],
    effort: Effort,
) -> Outcome<()> {
    let frame_ns = cost_of_sending(sizes, frames, effort)?;
    let mut ours = f64::NAN;
    let mut is_disturbed = false;
    for (index, (contender, results)) in contenders.iter().zip(results).enumerate() {
        let Some(measured) = measure(contender, sizes, frames, frame_ns, effort)? else {
            println!("  {} forwarded nothing while {frames} frames were sent", contender.name);
            continue;
        };
        if index == 0 {
            (ours, is_disturbed) = (measured.rate, measured.is_disturbed);
        }
        results.rate.push(measured.rate / 1e6);
        results.cost_ns.push(measured.cost_ns);
        results.ratio.push(ours / measured.rate);
        let is_disturbed = is_disturbed || measured.is_disturbed;
        results.ratios.push(Figure { value: ours / measured.rate, is_disturbed });
    }
    Ok(())
}

/// The sender's time per frame that is dropped on arrival, in nanoseconds.
fn cost_of_sending(sizes: &Sizes, frames: u64, effort: Effort) -> Outcome<f64> {
    let _alone = loss_lock()?;
    let bed = Inline::new(1, 1500)?;
    let _dropping = drop_program(&bed.left.port)?;
    let (run, _) =
        effort.calmest(|| Ok((send(&mut generator(&bed, sizes)?, frames, None)?, ())))?;
    Ok(1e9 / run.per_second())
}

fn measure(
    contender: &Contender,
    sizes: &Sizes,
    frames: u64,
    frame_ns: f64,
    effort: Effort,
) -> Outcome<Option<Measured>> {
    let once = || {
        let _alone = loss_lock()?;
        forward(contender, sizes, frames)
    };
    let (run, forwarded) = effort.calmest(once)?;
    // A quick run lasts about 20 ms; netsniff-ng may need longer to wake up.
    if forwarded == 0 && effort.quick && !contender.is_ours() {
        return Ok(None);
    }
    if forwarded == 0 {
        return Err(format!("{} forwarded nothing", contender.name).into());
    }
    let sender_seconds = run.seconds - run.frames as f64 * frame_ns / 1e9;
    let cost_ns = (sender_seconds + run.busy * run.seconds) * 1e9 / forwarded as f64;
    let rate = forwarded as f64 / run.seconds;
    Ok(Some(Measured { rate, cost_ns, is_disturbed: run.is_disturbed() }))
}

/// A run, and the number of frames that arrived during it.
fn forward(contender: &Contender, sizes: &Sizes, frames: u64) -> Outcome<(Run, u64)> {
    let bed = Inline::new(1, 1500)?;
    let _counting = drop_program(&bed.right.interface)?;
    let mut arrivals = Arrivals::at(&bed)?;
    let mut generator = generator(&bed, sizes)?;
    let forwarding = contender.start(&bed)?;
    // With the first frames, forwarders allocate memory and a bridge learns addresses.
    generator.send(&[Load::new(0, 100).per_second(1000)])?;
    arrivals.settle()?;
    let before = arrivals.count()?;
    let run = send(&mut generator, frames, forwarding.process())?;
    let forwarded = arrivals.count()? - before;
    arrivals.settle()?;
    let arrived = arrivals.count()?;
    // A bridge also sends a few frames itself.
    if arrived > frames + 110 {
        return Err(format!(
            "{}: {arrived} frames arrived, {frames} and 100 were sent",
            contender.name
        )
        .into());
    }
    forwarding.finish(frames + 100, arrived)?;
    Ok((run, forwarded))
}

fn generator(bed: &Inline, sizes: &Sizes) -> Outcome<Generator> {
    let traffic = Traffic { sizes: sizes.clone(), ..Traffic::to(&bed.right.interface) };
    Ok(Generator::new(&bed.left.interface, &traffic)?)
}

/// Sends from the first CPU at top rate.
fn send(generator: &mut Generator, frames: u64, process: Option<&Receiver>) -> Outcome<Run> {
    let cpu = *allowed_cpus()?.first().ok_or("no CPU")? as u32;
    let load = Load::new(0, frames).on_cpu(cpu);
    bed::send(generator, process, &[load])
}

/// Counts arrived frames: those that the XDP program at the far end has dropped.
struct Arrivals(Counters);

impl Arrivals {
    fn at(bed: &Inline) -> Result<Self, SetupError> {
        Counters::of(&bed.right.interface).map(Self)
    }

    fn count(&mut self) -> Result<u64, SetupError> {
        let count = |queue: &RxQueueCounts| queue.xdp_drops;
        Ok(self.0.since_start()?.rx_queues.iter().map(count).sum())
    }

    /// Waits until no more frames arrive.
    fn settle(&mut self) -> Result<(), SetupError> {
        let mut last = self.count()?;
        loop {
            thread::sleep(Duration::from_millis(100));
            let count = self.count()?;
            if count == last {
                return Ok(());
            }
            last = count;
        }
    }
}
