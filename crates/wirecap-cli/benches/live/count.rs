//! `wirecap count` beside the bare loop: instructions per packet, and the rate that each sustains.

use std::time::Duration;

use wirecap_testbed::{Generator, SendError};

use crate::bed::{Bed, CommandLine, Outcome, Receiver, first_cpu, send};
use crate::figures::Figures;
use wirecap_testbed::Load;

/// Cells that each has: R x M of the default geometry.
const CELLS: u32 = 131_072;

/// How much is measured.
struct Extent {
    /// Packets of the two runs whose difference is counted.
    counted: [u64; 2],
    counted_per_second: u64,
    rounds: usize,
    frames: u64,
}

const FULL: Extent =
    Extent { counted: [200_000, 1_000_000], counted_per_second: 200_000, rounds: 15, frames: 6_000_000 };
const QUICK: Extent =
    Extent { counted: [2_000, 6_000], counted_per_second: 50_000, rounds: 1, frames: 50_000 };

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

pub(crate) fn run(quick: bool) -> Outcome<()> {
    let extent = if quick { QUICK } else { FULL };
    let bed = Bed::new()?;
    let mut generator = bed.generator(60)?;
    instructions(&bed, &mut generator, &extent)?;
    rates(&bed, &mut generator, &extent)
}

/// User-space instructions per packet, without start and end of the program.
fn instructions(bed: &Bed, generator: &mut Generator, extent: &Extent) -> Outcome<()> {
    println!(
        "\ninstructions per packet (callgrind, {} packets per second of 60 bytes)",
        extent.counted_per_second
    );
    let mut baseline = None;
    for Contender { name, command } in contenders()? {
        // A loop that spins executes as many instructions as it has time for.
        if name.ends_with("spin") {
            continue;
        }
        let mut points = Vec::new();
        for packets in extent.counted {
            let Some(point) = count_instructions(bed, generator, &command, packets, extent)? else {
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
    extent: &Extent,
) -> Outcome<Option<(u64, u64)>> {
    let valgrind = CommandLine::new("valgrind").with("--tool=callgrind --callgrind-out-file=/dev/null");
    if !CommandLine::new("valgrind").is_installed() {
        return Ok(None);
    }
    let command = command.clone().with(&format!("-c {packets}")).under(valgrind);
    let receiver = bed.receive(&command, "capturing")?;
    let load = Load::endless(0).per_second(extent.counted_per_second).on_cpu(first_cpu()?);
    let run = generator.start(&[load])?;
    let finished = receiver.wait();
    stopped(run.stop())?;
    let finished = finished?;
    let collected = finished.errors.lines().find_map(|line| line.split("Collected :").nth(1));
    let instructions = collected.ok_or("callgrind collected nothing")?.trim().parse()?;
    let delivered = finished.ledger("/delivered")?;
    assert!(delivered >= packets, "{delivered} of {packets} packets");
    Ok(Some((instructions, delivered)))
}

fn stopped<T>(outcome: Result<T, SendError>) -> Outcome<()> {
    outcome?;
    Ok(())
}

/// What one contender did in one round at the top rate.
struct Round {
    delivered_per_second: f64,
    lost_share: f64,
}

/// Frames per second that each contender takes when the kernel sends as fast as it can, one after the
/// other in each round.
fn rates(bed: &Bed, generator: &mut Generator, extent: &Extent) -> Outcome<()> {
    println!("\nrate at the top of the in-kernel generator ({} frames of 60 bytes a run)", extent.frames);
    let contenders = contenders()?;
    let mut rounds: Vec<Vec<Round>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..extent.rounds {
        for (contender, rounds) in contenders.iter().zip(&mut rounds) {
            let receiver = bed.receive(&contender.command, "capturing")?;
            rounds.push(sustain(receiver, generator, extent.frames)?);
        }
    }
    let baseline = &rounds[0];
    for (contender, rounds) in contenders.iter().zip(&rounds) {
        let rate: Figures = rounds.iter().map(|round| round.delivered_per_second / 1e6).collect();
        let ratio = |(round, bare): (&Round, &Round)| round.delivered_per_second / bare.delivered_per_second;
        let ratio: Figures = rounds.iter().zip(baseline).map(ratio).collect();
        let lost: Figures = rounds.iter().map(|round| round.lost_share * 100.0).collect();
        println!("  {:<28} {rate:>18} M/s   {ratio:>18} of bare   {lost} % lost", contender.name);
    }
    Ok(())
}

fn sustain(receiver: Receiver, generator: &mut Generator, frames: u64) -> Outcome<Round> {
    let sent = send(generator, frames, 0)?;
    receiver.settle(Duration::from_millis(100))?;
    let delivered = receiver.stop()?.ledger("/delivered")?;
    assert!(delivered <= sent.frames, "more packets than were sent");
    Ok(Round {
        delivered_per_second: delivered as f64 / sent.duration.as_secs_f64(),
        lost_share: 1.0 - delivered as f64 / sent.frames as f64,
    })
}
