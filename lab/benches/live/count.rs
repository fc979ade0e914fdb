//! Instructions per packet and sustained rate: `wirecap count` compared with the bare loop,
//! advanced mode with basic mode, large pools with small ones.

use std::thread;
use std::time::Duration;

use wirecap_lab::live::Outcome;
use wirecap_lab::live::bed::{Bed, Run, send};
use wirecap_lab::live::figures::Figures;
use wirecap_lab::live::process::CommandLine;
use wirecap_testbed::{Bound, Figure, Generator, Goals, loss_lock, skip};

use crate::Effort;

/// Cells of the bare loop: as many as R x M of the others.
const CELLS: u32 = 131_072;

const COUNT: &str = "wirecap count";

/// A program that receives every packet.
struct Contender {
    name: &'static str,
    command: CommandLine,
}

impl Contender {
    fn is_ours(&self) -> bool {
        self.name.starts_with("wirecap")
    }

    /// The bare loop has no chunks.
    fn has_chunks(&self) -> bool {
        !self.name.starts_with("bare")
    }
}

fn contenders() -> Outcome<Vec<Contender>> {
    let bare = |wait| -> Outcome<_> {
        Ok(CommandLine::this()?.with(&format!("bare -i a1 --cells {CELLS} --wait {wait}")))
    };
    Ok(vec![
        Contender { name: "bare, sleep 100 us", command: bare("100")? },
        Contender { name: "bare, spin", command: bare("spin")? },
        Contender {
            name: COUNT,
            command: crate::wirecap().with("count -i a1 --engine xdp -R 512 --json"),
        },
        Contender {
            name: "library, touching headers",
            command: CommandLine::this()?.with("touch -i a1 -R 512"),
        },
    ])
}

/// The settings of an instruction count.
struct Counting {
    /// Packets in each of two runs. The result is computed from the difference of the runs.
    runs: [u64; 2],
    per_second: u64,
}

impl Counting {
    fn new(effort: Effort) -> Self {
        Self {
            runs: effort.choose([200_000, 1_000_000], [2_000, 6_000]),
            per_second: effort.choose(200_000, 50_000),
        }
    }

    /// User-space instructions per packet, excluding start and end of the program. `None` if
    /// valgrind is missing.
    fn count(
        &self,
        bed: &Bed,
        generator: &mut Generator,
        contender: &Contender,
    ) -> Outcome<Option<f64>> {
        let mut points = Vec::new();
        for packets in self.runs {
            let Some(point) =
                count_instructions(bed, generator, contender, packets, self.per_second)?
            else {
                skip("valgrind is not installed");
                return Ok(None);
            };
            points.push(point);
        }
        Ok(Some((points[1].0 - points[0].0) as f64 / (points[1].1 - points[0].1) as f64))
    }
}

pub(crate) fn instructions(effort: Effort, goals: &mut Goals) -> Outcome<()> {
    let bed = Bed::new()?;
    let mut generator = bed.generator(60)?;
    let counting = Counting::new(effort);
    println!(
        "\ninstructions per packet (callgrind, {} packets/s of 60 bytes)",
        counting.per_second
    );
    let mut baseline = None;
    for contender in contenders()? {
        // The instructions of a spinning loop depend on the duration of the run, not on the
        // packets.
        if contender.name.ends_with("spin") {
            continue;
        }
        let Some(slope) = counting.count(&bed, &mut generator, &contender)? else { return Ok(()) };
        let ratio = slope / *baseline.get_or_insert(slope);
        println!("  {:<28} {slope:>7.2}   {ratio:.2} of bare", contender.name);
        if effort.has_goals() && contender.name == COUNT {
            goals.judge_exact(
                "instructions of wirecap count / of a bare loop",
                Bound::AtMost(1.3),
                &[ratio],
            );
        }
    }
    instructions_of_modes(effort)
}

/// Basic and advanced mode, on two rings with one worker each.
fn modes() -> [Contender; 2] {
    let count = |name, mode: &str| Contender {
        name,
        command: crate::wirecap()
            .with("count -i a1 --engine xdp -R 512 --workers 2 --json")
            .with(mode),
    };
    [count("basic mode", "--basic"), count("advanced mode, T = 60 %", "-T 60")]
}

/// The cost of advanced mode under balanced load, when no chunks are offloaded. Without a goal,
/// since idle workers add wake-ups: the bench `instructions` limits the cost per packet.
fn instructions_of_modes(effort: Effort) -> Outcome<()> {
    let bed = Bed::with_queues(2)?;
    let mut generator = bed.generator(60)?;
    let counting = Counting::new(effort);
    println!(
        "\ninstructions per packet, two equally loaded rings ({} packets/s)",
        counting.per_second
    );
    let modes = modes();
    let mut slopes = [Figures::default(), Figures::default()];
    let mut ratios = Vec::new();
    for _ in 0..effort.rounds(5) {
        let mut round = [0.0; 2];
        for (slope, mode) in round.iter_mut().zip(&modes) {
            let Some(count) = counting.count(&bed, &mut generator, mode)? else { return Ok(()) };
            *slope = count;
        }
        slopes.iter_mut().zip(round).for_each(|(slopes, slope)| slopes.push(slope));
        ratios.push(round[1] / round[0]);
    }
    for (mode, slopes) in modes.iter().zip(&slopes) {
        println!("  {:<28} {slopes:>20}", mode.name);
    }
    println!(
        "  advanced / basic             {:>20.3}",
        ratios.iter().copied().collect::<Figures>()
    );
    Ok(())
}

/// Instructions and packets of a run that ends after `packets` packets, exactly as many as are
/// sent: none wait at the end of the capture, when buddies take chunks regardless of the threshold.
fn count_instructions(
    bed: &Bed,
    generator: &mut Generator,
    contender: &Contender,
    packets: u64,
    per_second: u64,
) -> Outcome<Option<(u64, u64)>> {
    let valgrind =
        CommandLine::new("valgrind").with("--tool=callgrind --callgrind-out-file=/dev/null");
    if !CommandLine::new("valgrind").is_installed() {
        return Ok(None);
    }
    let command = contender.command.clone().with(&format!("-c {packets}")).under(valgrind);
    let receiver = bed.receive(&command, "capturing")?;
    generator.send(&bed.loads(packets, Some(per_second))?)?;
    let finished = receiver.wait()?;
    let collected = finished.errors.lines().find_map(|line| line.split("Collected :").nth(1));
    let instructions = collected.ok_or("callgrind collected nothing")?.trim().parse()?;
    let delivered = finished.ledger("/delivered")?;
    assert_eq!(delivered, packets);
    if contender.has_chunks() {
        let offloaded = finished.ledger("/offloaded_chunks")?;
        assert_eq!(offloaded, 0, "all loads here are balanced");
    }
    Ok(Some((instructions, delivered)))
}

/// Packets per second that each contender receives from the in-kernel generator at its top rate. In
/// each round, the contenders run in turn.
pub(crate) fn rates(effort: Effort, goals: &mut Goals) -> Outcome<()> {
    let frames = effort.choose(6_000_000, 50_000);
    println!(
        "\nrate received at the in-kernel generator's top rate ({frames} frames of 60 bytes per run)"
    );
    let bed = Bed::new()?;
    let contenders = contenders()?;
    let rounds = compare(&bed, &contenders, "bare", frames, effort, 15)?;
    for (contender, ours) in
        contenders.iter().zip(&rounds).filter(|(contender, _)| contender.is_ours())
    {
        if effort.has_goals() {
            let what = format!("rate of {} / of a bare loop", contender.name);
            goals.judge(&what, Bound::AtLeast(0.95), &ratios(ours, &rounds[0]));
        }
        let lossless = ours.iter().filter(|round| round.lost == 0.0).map(|round| round.per_second);
        at_two_thirds(&bed, contender, effort, lossless.fold(f64::NAN, f64::max), goals)?;
    }
    Ok(())
}

/// Sustained rate of advanced and basic mode under balanced load.
pub(crate) fn rates_of_modes(effort: Effort) -> Outcome<()> {
    let frames = effort.choose(6_000_000, 50_000);
    println!(
        "\nmodes, two equally loaded rings ({frames} frames of 60 bytes per run, at top rate)"
    );
    compare(&Bed::with_queues(2)?, &modes(), "basic", frames, effort, 15).map(drop)
}

/// Sustained rate of the library with small and large pools, with and without warm cells, at the
/// generator's top rate. The receiver touches each header.
pub(crate) fn warm(effort: Effort, goals: &mut Goals) -> Outcome<()> {
    let frames = effort.choose(6_000_000, 50_000);
    println!("\npools and warm cells ({frames} frames of 60 bytes per run, at top rate)");
    let touch = |name, arguments: &str| -> Outcome<_> {
        Ok(Contender { name, command: CommandLine::this()?.with("touch -i a1").with(arguments) })
    };
    let contenders = [
        touch("R x M = 2,048", "-R 8")?,
        touch("262,144, warm off", "-R 1024")?,
        touch("262,144, warm 2,048", "-R 1024 --warm 2048")?,
        touch(WARM, "-R 1024 --warm 4096")?,
        touch("262,144, warm 16,384", "-R 1024 --warm 16384")?,
        touch("262,144, warm 65,536", "-R 1024 --warm 65536")?,
    ];
    let rounds = compare(&Bed::new()?, &contenders, "2,048", frames, effort, 9)?;
    let warm = contenders.iter().zip(&rounds).find(|(contender, _)| contender.name == WARM);
    if let Some((_, warm)) = warm.filter(|_| effort.has_goals()) {
        let what = "rate with 262,144 cells, 4,096 of them warm / with 2,048 cells";
        goals.judge(what, Bound::AtLeast(0.9), &ratios(warm, &rounds[0]));
    }
    Ok(())
}

const WARM: &str = "262,144, warm 4,096";

/// The ratios of the rates in each round.
fn ratios(rounds: &[Round], baseline: &[Round]) -> Vec<Figure> {
    let ratio = |(round, bare): (&Round, &Round)| Figure {
        value: round.per_second / bare.per_second,
        is_disturbed: round.run.is_disturbed() || bare.run.is_disturbed(),
    };
    rounds.iter().zip(baseline).map(ratio).collect()
}

/// Runs the contenders in turn, and prints each one's results and the ratio of its rate to that of
/// the first one.
fn compare(
    bed: &Bed,
    contenders: &[Contender],
    first: &str,
    frames: u64,
    effort: Effort,
    rounds: usize,
) -> Outcome<Vec<Vec<Round>>> {
    let mut generator = bed.generator(60)?;
    let mut results: Vec<Vec<Round>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..effort.rounds(rounds) {
        for (contender, results) in contenders.iter().zip(&mut results) {
            results.push(sustain(bed, &mut generator, contender, frames, effort)?);
        }
    }
    let baseline = &results[0];
    for (contender, rounds) in contenders.iter().zip(&results) {
        let figures = |figure: fn(&Round) -> f64| rounds.iter().map(figure).collect::<Figures>();
        let rate = figures(|round| round.per_second / 1e6);
        let lost = figures(|round| round.lost * 100.0);
        let busy = figures(|round| round.run.busy * 100.0);
        let ratios =
            rounds.iter().zip(baseline).map(|(round, bare)| round.per_second / bare.per_second);
        let ratio: Figures = ratios.collect();
        let disturbed = rounds.iter().filter(|round| round.run.is_disturbed()).count();
        println!("  {:<28} {rate:>18} M/s {ratio:>18} of {first}", contender.name);
        println!(
            "  {:<28} {lost:.1} % lost, {busy:.0} % of a core, {disturbed} runs disturbed",
            ""
        );
    }
    Ok(results)
}

/// Measures the loss at two thirds of the rate `highest`.
fn at_two_thirds(
    bed: &Bed,
    contender: &Contender,
    effort: Effort,
    highest: f64,
    goals: &mut Goals,
) -> Outcome<()> {
    let mut generator = bed.generator(60)?;
    let frames = effort.choose(10_000_000, 50_000);
    if highest.is_nan() {
        println!("  {}: no run was lossless", contender.name);
        if effort.has_goals() {
            goals.judge(&format!("lossless runs of {}", contender.name), Bound::AtLeast(1.0), &[]);
        }
        return Ok(());
    }
    let per_second = (highest * 2.0 / 3.0) as u64;
    let lost = (0..effort.rounds(3)).map(|_| -> Outcome<(u64, bool)> {
        let _alone = loss_lock()?;
        let receiver = bed.receive(&contender.command, "capturing")?;
        let run = send(&mut generator, &receiver, &bed.loads(frames, Some(per_second))?)?;
        thread::sleep(Duration::from_millis(200));
        let delivered = receiver.stop()?.ledger("/delivered")?;
        let lost = run.frames.checked_sub(delivered).ok_or("more packets than were sent")?;
        Ok((lost, run.is_disturbed()))
    });
    let runs = lost.collect::<Outcome<Vec<_>>>()?;
    let lost: Vec<u64> = runs.iter().map(|(lost, _)| *lost).collect();
    println!(
        "  {}: at {:.2} M/s, two thirds of its highest lossless rate, lost {lost:?} of {frames}",
        contender.name,
        per_second as f64 / 1e6
    );
    if effort.has_goals() {
        let disturbed = runs.iter().filter(|(_, is_disturbed)| *is_disturbed).count();
        // Of the undisturbed runs, none may lose a packet.
        let lost: u64 =
            runs.iter().filter(|(_, is_disturbed)| !is_disturbed).map(|(lost, _)| lost).sum();
        let figure = Figure { value: lost as f64, is_disturbed: disturbed * 2 >= runs.len() };
        let what = format!(
            "packets lost by {} at two thirds of its highest lossless rate",
            contender.name
        );
        goals.judge(&what, Bound::AtMost(0.0), &[figure]);
    }
    Ok(())
}

/// The result of one contender in one round.
struct Round {
    run: Run,
    /// Packets delivered per second.
    per_second: f64,
    /// The share of packets that were not delivered.
    lost: f64,
}

fn sustain(
    bed: &Bed,
    generator: &mut Generator,
    contender: &Contender,
    frames: u64,
    effort: Effort,
) -> Outcome<Round> {
    let (run, delivered) = effort.calmest(|| {
        let _alone = loss_lock()?;
        let receiver = bed.receive(&contender.command, "capturing")?;
        let run = send(generator, &receiver, &bed.loads(frames, None)?)?;
        // More than enough time to empty a full pool.
        thread::sleep(Duration::from_millis(200));
        Ok((run, receiver.stop()?.ledger("/delivered")?))
    })?;
    let lost = run.frames.checked_sub(delivered).ok_or("more packets than were sent")?;
    Ok(Round {
        run,
        per_second: delivered as f64 / run.seconds,
        lost: lost as f64 / run.frames as f64,
    })
}
