//! `wirecap count` beside the bare loop: instructions per packet, and the rate that each sustains.

use std::thread;
use std::time::Duration;

use wirecap_testbed::{Generator, Load, loss_lock};

use crate::Effort;
use crate::bed::{Bed, CommandLine, Outcome, Run, calmest, first_cpu, send};
use crate::figures::Figures;

/// Cells that each has: R x M of the default geometry.
const CELLS: u32 = 131_072;

/// A program that receives all there is.
struct Contender {
    name: &'static str,
    command: CommandLine,
}

fn contenders() -> Outcome<Vec<Contender>> {
    let bare = |wait| -> Outcome<_> {
        Ok(CommandLine::this()?.with(&format!("bare -i a1 --cells {CELLS} --wait {wait}")))
    };
    Ok(vec![
        Contender { name: "bare, sleep 100 us", command: bare("100")? },
        Contender { name: "bare, spin", command: bare("spin")? },
        Contender {
            name: "wirecap count",
            command: CommandLine::wirecap().with("count -i a1 -R 512 --json"),
        },
        Contender {
            name: "library, touching headers",
            command: CommandLine::this()?.with("touch -i a1 -R 512"),
        },
    ])
}

/// User-space instructions per packet, without start and end of the program.
pub(crate) fn instructions(effort: Effort) -> Outcome<()> {
    let bed = Bed::new()?;
    let mut generator = bed.generator(60)?;
    // Of two runs, of which the difference counts.
    let runs = effort.choose([200_000, 1_000_000], [2_000, 6_000]);
    let per_second = effort.choose(200_000, 50_000);
    println!("\ninstructions per packet (callgrind, {per_second} packets of 60 bytes a second)");
    let mut baseline = None;
    for Contender { name, command } in contenders()? {
        // A loop that spins executes as many instructions as it has time for.
        if name.ends_with("spin") {
            continue;
        }
        let mut points = Vec::new();
        for packets in runs {
            let Some(point) = count_instructions(&bed, &mut generator, &command, packets, per_second)? else {
                println!("  SKIP: valgrind is not installed");
                return Ok(());
            };
            points.push(point);
        }
        let slope = (points[1].0 - points[0].0) as f64 / (points[1].1 - points[0].1) as f64;
        let ratio = slope / *baseline.get_or_insert(slope);
        println!("  {name:<28} {slope:>7.2}   {ratio:.2} of bare");
    }
    Ok(())
}

/// Instructions and packets of a run until so many packets have come.
fn count_instructions(
    bed: &Bed,
    generator: &mut Generator,
    command: &CommandLine,
    packets: u64,
    per_second: u64,
) -> Outcome<Option<(u64, u64)>> {
    let valgrind = CommandLine::new("valgrind").with("--tool=callgrind --callgrind-out-file=/dev/null");
    if !CommandLine::new("valgrind").is_installed() {
        return Ok(None);
    }
    let command = command.clone().with(&format!("-c {packets}")).under(valgrind);
    let receiver = bed.receive(&command, "capturing")?;
    let load = Load::endless(0).per_second(per_second).on_cpu(first_cpu()?);
    let run = generator.start(&[load])?;
    let finished = receiver.wait();
    run.stop()?;
    let finished = finished?;
    let collected = finished.errors.lines().find_map(|line| line.split("Collected :").nth(1));
    let instructions = collected.ok_or("callgrind collected nothing")?.trim().parse()?;
    let delivered = finished.ledger("/delivered")?;
    assert!(delivered >= packets, "{delivered} of {packets} packets");
    Ok(Some((instructions, delivered)))
}

/// Frames per second that each contender takes when the kernel sends as fast as it can, one after the
/// other in each round.
pub(crate) fn rates(effort: Effort) -> Outcome<()> {
    let bed = Bed::new()?;
    let mut generator = bed.generator(60)?;
    let frames = effort.choose(6_000_000, 50_000);
    println!("\nrate at the top of the in-kernel generator ({frames} frames of 60 bytes a run)");
    let contenders = contenders()?;
    let mut rounds: Vec<Vec<Round>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..effort.rounds(15) {
        for (contender, rounds) in contenders.iter().zip(&mut rounds) {
            rounds.push(sustain(&bed, &mut generator, contender, frames)?);
        }
    }
    let baseline = &rounds[0];
    for (contender, rounds) in contenders.iter().zip(&rounds) {
        let figures = |figure: fn(&Round) -> f64| rounds.iter().map(figure).collect::<Figures>();
        let rate = figures(|round| round.per_second / 1e6);
        let lost = figures(|round| round.lost * 100.0);
        let busy = figures(|round| round.run.busy * 100.0);
        let ratios = rounds.iter().zip(baseline).map(|(round, bare)| round.per_second / bare.per_second);
        let ratio: Figures = ratios.collect();
        let disturbed = rounds.iter().filter(|round| round.run.is_disturbed()).count();
        println!("  {:<28} {rate:>18} M/s {ratio:>18} of bare", contender.name);
        println!("  {:<28} {lost:.1} % lost, {busy:.0} % of a core, {disturbed} runs disturbed", "");
        if contender.name == "wirecap count" {
            let lossless = rounds.iter().filter(|round| round.lost == 0.0).map(|round| round.per_second);
            at_two_thirds(&bed, &mut generator, contender, effort, lossless.fold(f64::NAN, f64::max))?;
        }
    }
    Ok(())
}

/// What is lost at two thirds of a rate.
fn at_two_thirds(
    bed: &Bed,
    generator: &mut Generator,
    contender: &Contender,
    effort: Effort,
    highest: f64,
) -> Outcome<()> {
    let frames = effort.choose(10_000_000, 50_000);
    let per_second = if highest.is_nan() { 100_000 } else { (highest * 2.0 / 3.0) as u64 };
    let lost = (0..effort.rounds(3)).map(|_| -> Outcome<u64> {
        let _alone = loss_lock()?;
        let receiver = bed.receive(&contender.command, "capturing")?;
        let run = send(generator, &receiver, frames, Some(per_second))?;
        thread::sleep(Duration::from_millis(200));
        Ok(run.frames - receiver.stop()?.ledger("/delivered")?)
    });
    let lost = lost.collect::<Outcome<Vec<u64>>>()?;
    println!(
        "  {:<28} at {:.2} M/s, two thirds of the highest lossless rate, lost {lost:?} of {frames}",
        "",
        per_second as f64 / 1e6
    );
    Ok(())
}

/// What one contender did in one round.
struct Round {
    run: Run,
    /// Packets delivered.
    per_second: f64,
    /// The share of packets that was not.
    lost: f64,
}

fn sustain(bed: &Bed, generator: &mut Generator, contender: &Contender, frames: u64) -> Outcome<Round> {
    let (run, delivered) = calmest(|| {
        let _alone = loss_lock()?;
        let receiver = bed.receive(&contender.command, "capturing")?;
        let run = send(generator, &receiver, frames, None)?;
        // A full pool is emptied in a fraction of this.
        thread::sleep(Duration::from_millis(200));
        Ok((run, receiver.stop()?.ledger("/delivered")?))
    })?;
    let lost = run.frames.checked_sub(delivered).ok_or("more packets than were sent")?;
    Ok(Round { run, per_second: delivered as f64 / run.seconds, lost: lost as f64 / run.frames as f64 })
}
