//! One program that uses `pcap_loop`, compiled once, with the system's libpcap and with the drop-in
//! in turn: the highest rate of 60-byte frames without loss, and the CPU time and the instructions
//! per packet.
//!
//! Run `cargo bench -p wirecap-pcap --bench pcap_loop` on an otherwise idle machine. Arguments
//! after `--` select parts: `rates`, `cost` (CPU time; `at=RATE` measures at one rate, `rounds=N`
//! sets the number of rounds), `polling` (the same of a program that waits on the descriptor),
//! `instructions` and `wakeups` (instructions per packet and per wake-up, on any machine),
//! `handlers` (handlers in threads). With `--check` it fails if a goal is missed, or void because
//! the machine was not quiet. `cargo test --bench pcap_loop` runs it with little load.

#[path = "../../tests/common/mod.rs"]
mod common;
mod handlers;

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Library, drop_in, finish, said};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use wirecap::bpf::Link;
use wirecap_testbed::{
    Bound, CpuTime, Disturbance, Figure, Generator, Goals, Load, Namespace, Traffic, VethPair,
    cpu_times, loss_lock, pass_program, privileged, skip,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The requested buffer size in bytes; what a buffer holds depends on the library.
const BUFFER_BYTES: &str = "67108864";
/// Longer than the timeout after which packets are handed over.
const CALM: Duration = Duration::from_millis(200);
/// The factor by which the rate grows while no packets are lost.
const STEP: f64 = 1.3;
/// A sender that reaches less than this share of the rate is at its own limit.
const SENDER_SHARE: f64 = 0.97;

/// More than any sender reaches: the sender then sends as fast as it can.
const TOP_RATE: f64 = 1e9;
/// The number of frames at the top rate, for each second of a run.
const TOP_FRAMES: f64 = 4e6;
/// The rate at which instructions are counted, in packets per second.
const COUNTED_RATE: f64 = 2e5;

/// The extent of the benchmark.
#[derive(Clone, Copy)]
struct Extent {
    seconds: f64,
    from: f64,
    /// Steps up, and then halvings of the last one.
    steps: usize,
    halvings: usize,
    /// The rates at which the cost is measured, in packets per second.
    steady: [f64; 5],
    /// Wake-ups are counted at this number of these rates: under callgrind a program cannot keep up
    /// with higher ones.
    waking_rates: usize,
    rounds: usize,
    /// Rounds of the cost measurement.
    cost_rounds: usize,
    /// Packets of the two runs whose difference gives the instructions per packet.
    counted: [u64; 2],
    /// Short runs have no goals.
    has_goals: bool,
}

const FULL: Extent = Extent {
    seconds: 2.0,
    from: 0.3e6,
    steps: 14,
    halvings: 3,
    steady: [1e3, 1e4, 1e5, 1e6, TOP_RATE],
    waking_rates: 3,
    rounds: 3,
    cost_rounds: 9,
    counted: [200_000, 600_000],
    has_goals: true,
};
const QUICK: Extent = Extent {
    seconds: 0.05,
    from: 1e4,
    steps: 1,
    halvings: 0,
    steady: [1e3, 2e3, 5e3, 1e4, TOP_RATE],
    waking_rates: 1,
    rounds: 1,
    cost_rounds: 1,
    counted: [1000, 2000],
    has_goals: false,
};

/// A library, and the engine that it uses.
struct Contender {
    name: &'static str,
    library: Library,
    engine: &'static str,
    /// The goal of the lossless rate, as a multiple of libpcap's.
    rate_min: Option<f64>,
    /// The goal of the CPU time per packet, as a multiple of libpcap's.
    cost_max: Option<f64>,
}

const CONTENDERS: [Contender; 3] = [
    Contender {
        name: "libpcap",
        library: Library::System,
        engine: "",
        rate_min: None,
        cost_max: None,
    },
    Contender {
        name: "drop-in, packet",
        library: Library::DropIn,
        engine: "packet",
        rate_min: None,
        cost_max: Some(1.2),
    },
    Contender {
        name: "drop-in, xdp",
        library: Library::DropIn,
        engine: "xdp",
        rate_min: Some(1.2),
        cost_max: Some(1.5),
    },
];

/// The results of a run.
#[derive(Clone, Copy)]
struct Run {
    sent: u64,
    got: u64,
    dropped: u64,
    per_second: f64,
    cpu_seconds: f64,
    /// How often the program slept.
    sleeps: f64,
    /// Set for runs under callgrind.
    instructions: Option<u64>,
    /// Whether the program waited for a CPU that others used.
    is_disturbed: bool,
}

struct Bench {
    program: PathBuf,
    extent: Extent,
    cpus: Vec<usize>,
    /// Costs are measured at this rate only.
    at: Option<f64>,
}

/// How the program reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Loop,
    /// It waits on the handle's descriptor, and dispatches without blocking.
    Polling,
}

fn main() -> Outcome<()> {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    if !privileged() {
        return Ok(());
    }
    let _alone = loss_lock()?;
    let folder = tempfile::tempdir()?;
    let program = compile(folder.path())?;
    let affinity = sched_getaffinity(None)?;
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| affinity.is_set(*cpu)).collect();
    let only = |part| std::env::args().any(|argument| argument == part);
    let number = |name: &str| {
        std::env::args().find_map(|argument| argument.strip_prefix(name)?.parse::<f64>().ok())
    };
    let mut extent = if is_bench { FULL } else { QUICK };
    if let Some(rounds) = number("rounds=") {
        (extent.rounds, extent.cost_rounds) = (rounds as usize, rounds as usize);
    }
    let at = number("at=");
    let bench = Bench { program, extent, cpus, at };
    let is_checked = only("--check");
    let mut goals = Goals::of("pcap_loop");
    let parts = ["rates", "cost", "polling", "instructions", "wakeups", "handlers"];
    let all = !parts.into_iter().any(only);
    if all || only("rates") {
        bench.compare_rates(&mut goals)?;
    }
    if all || only("cost") {
        bench.compare_costs(Reading::Loop, &mut goals)?;
    }
    if all || only("polling") {
        println!("programs that poll the descriptor:");
        bench.compare_costs(Reading::Polling, &mut goals)?;
    }
    if all || only("instructions") {
        bench.count_instructions()?;
    }
    if all || only("wakeups") {
        bench.count_instructions_of_wakeups()?;
    }
    if all || only("handlers") {
        handlers::compare(folder.path(), bench.extent, bench.cpus[0] as u32)?;
    }
    if is_checked { goals.end() } else { Ok(()) }
}

impl Bench {
    /// Compares the lossless rates of all contenders, in turn, for several rounds.
    fn compare_rates(&self, goals: &mut Goals) -> Outcome<()> {
        goals.begin_part();
        let mut rates = [const { Vec::new() }; CONTENDERS.len()];
        for _ in 0..self.extent.rounds {
            for (rates, contender) in rates.iter_mut().zip(&CONTENDERS) {
                rates.push(self.lossless_rate(contender)?);
            }
        }
        for (contender, figures) in CONTENDERS.iter().zip(&rates) {
            if let Some(least) = contender.rate_min.filter(|_| self.extent.has_goals) {
                let what = format!("lossless rate of {} / of libpcap", contender.name);
                goals.judge(&what, Bound::AtLeast(least), &ratios(figures, &rates[0]));
            }
        }
        let rates =
            rates.map(|figures| median(figures.iter().map(|figure| figure.value).collect()));
        println!("{:18}{:>16}{:>9}", "", "lossless/s", "ratio");
        for (contender, rate) in CONTENDERS.iter().zip(rates) {
            println!("{:18}{rate:>16.0}{:>9.2}", contender.name, rate / rates[0]);
        }
        Ok(())
    }

    /// Compares the CPU time per packet of all contenders, in turn, for several rounds.
    fn compare_costs(&self, reading: Reading, goals: &mut Goals) -> Outcome<()> {
        goals.begin_part();
        // The goals are those of pcap_loop.
        let is_judged = matches!(reading, Reading::Loop);
        for steady in self.at.map_or_else(|| self.extent.steady.to_vec(), |rate| vec![rate]) {
            let mut costs = [const { Vec::new() }; CONTENDERS.len()];
            let mut sleeps = [const { Vec::new() }; CONTENDERS.len()];
            for _ in 0..self.extent.cost_rounds {
                for ((costs, sleeps), contender) in
                    costs.iter_mut().zip(&mut sleeps).zip(&CONTENDERS)
                {
                    let run = self.run_reading(contender, steady, None, reading)?;
                    let value = run.cpu_seconds / run.got as f64 * 1e9;
                    costs.push(Figure { value, is_disturbed: run.is_disturbed });
                    sleeps.push(run.sleeps * run.per_second / run.got as f64);
                }
            }
            let rate =
                if steady < TOP_RATE { format!("{steady:.0}/s") } else { "top rate".to_owned() };
            for (contender, figures) in CONTENDERS.iter().zip(&costs) {
                if let Some(most) =
                    contender.cost_max.filter(|_| self.extent.has_goals && is_judged)
                {
                    let what = format!("at {rate}: CPU time of {} / of libpcap", contender.name);
                    goals.judge(&what, Bound::AtMost(most), &ratios(figures, &costs[0]));
                }
            }
            let costs: [Vec<f64>; CONTENDERS.len()] =
                costs.map(|figures| figures.iter().map(|figure| figure.value).collect());
            let middle = costs.clone().map(median);
            let sleeps = sleeps.map(median);
            println!(
                "{:18}{:>16}{:>9}{:>10}  all",
                format!("at {rate}"),
                "CPU ns/packet",
                "ratio",
                "sleeps/s"
            );
            for (((contender, middle_one), mut all), sleeps) in
                CONTENDERS.iter().zip(middle).zip(costs).zip(sleeps)
            {
                all.sort_by(f64::total_cmp);
                let ratio = middle_one / middle[0];
                println!(
                    "{:18}{middle_one:>16.1}{ratio:>9.2}{sleeps:>10.0}  {all:.1?}",
                    contender.name
                );
            }
        }
        Ok(())
    }

    /// Counts user-space instructions from one sleep to the next at low rates, including those for
    /// packets that arrive in between.
    fn count_instructions_of_wakeups(&self) -> Outcome<()> {
        if Command::new("valgrind").arg("--version").output().is_err() {
            skip("valgrind is not installed");
            return Ok(());
        }
        for rate in &self.extent.steady[..self.extent.waking_rates] {
            let mut first = None;
            for contender in &CONTENDERS {
                // While packets arrive, the process wakes for nothing else.
                let [few, many] = [1.0, 3.0].map(|seconds| {
                    self.run(
                        contender,
                        *rate,
                        Some((rate * seconds * self.extent.seconds / 2.0) as u64),
                    )
                });
                let few = few?;
                let many = many?;
                let count = |run: &Run| run.instructions.ok_or("callgrind collected nothing");
                let slope =
                    (count(&many)? as f64 - count(&few)? as f64) / (many.sleeps - few.sleeps);
                let ratio = slope / *first.get_or_insert(slope);
                println!(
                    "{:18}{slope:>16.0} instructions per wake-up at {rate}/s{ratio:>9.2}",
                    contender.name
                );
            }
        }
        Ok(())
    }

    /// Counts user-space instructions per packet, without the start and the end of the program.
    fn count_instructions(&self) -> Outcome<()> {
        if Command::new("valgrind").arg("--version").output().is_err() {
            skip("valgrind is not installed");
            return Ok(());
        }
        let mut first = None;
        for contender in &CONTENDERS {
            let [few, many] =
                self.extent.counted.map(|packets| self.run(contender, COUNTED_RATE, Some(packets)));
            let few = few?;
            let many = many?;
            let count = |run: &Run| run.instructions.ok_or("callgrind collected nothing");
            let slope = (count(&many)? as f64 - count(&few)? as f64) / (many.got - few.got) as f64;
            let ratio = slope / *first.get_or_insert(slope);
            println!("{:18}{slope:>16.1} instructions per packet{ratio:>9.2}", contender.name);
        }
        Ok(())
    }

    /// The highest rate at which no packets are lost, in packets per second.
    fn lossless_rate(&self, contender: &Contender) -> Outcome<Figure> {
        let mut good = 0.0;
        let mut bad = self.extent.from;
        let mut is_disturbed = false;
        for _ in 0..self.extent.steps {
            let run = self.run(contender, bad, None)?;
            is_disturbed |= run.is_disturbed;
            if run.got < run.sent {
                break;
            }
            good = run.per_second;
            if run.per_second < bad * SENDER_SHARE {
                // The sender is at its limit, but the program is not.
                return Ok(Figure { value: good, is_disturbed });
            }
            bad *= STEP;
        }
        for _ in 0..self.extent.halvings {
            let middle = (good + bad) / 2.0;
            let run = self.run(contender, middle, None)?;
            is_disturbed |= run.is_disturbed;
            if run.got < run.sent { bad = middle } else { good = run.per_second }
        }
        Ok(Figure { value: good, is_disturbed })
    }

    /// Runs the program with a contender, and sends for some seconds at a rate, or sends `counted`
    /// packets while callgrind counts instructions. Asserts that every packet is accounted for.
    fn run(&self, contender: &Contender, rate: f64, counted: Option<u64>) -> Outcome<Run> {
        self.run_reading(contender, rate, counted, Reading::Loop)
    }

    /// The same with a program that reads in this way.
    fn run_reading(
        &self,
        contender: &Contender,
        rate: f64,
        counted: Option<u64>,
        reading: Reading,
    ) -> Outcome<Run> {
        let there = Namespace::new()?;
        let here = Namespace::new()?;
        let pair = VethPair::new((&there, "a0"), (&here, "a1"), 1, 1500)?;
        let _passing: Option<Link> =
            (contender.engine != "xdp").then(|| pass_program(&pair.receiver)).transpose()?;
        let mut generator = Generator::new(&pair.sender, &Traffic::to(&pair.receiver))?;
        let mut command =
            Command::new(if counted.is_some() { "valgrind".as_ref() } else { &*self.program });
        if counted.is_some() {
            command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(&self.program);
        }
        command.args(["a1", BUFFER_BYTES]).args((reading == Reading::Polling).then_some("poll"));
        command.env_remove("LD_LIBRARY_PATH");
        if contender.library == Library::DropIn {
            command.env("LD_LIBRARY_PATH", drop_in()).env("WIRECAP_ENGINE", contender.engine);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let receiving_cpu = self.cpus[self.cpus.len() - 1];
        let mut child = here.run_in(|| -> Outcome<_> {
            let mut set = CpuSet::new();
            set.set(receiving_cpu);
            sched_setaffinity(None, &set)?;
            Ok(command.spawn()?)
        })??;
        let mut output = BufReader::with_capacity(1, child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        output.read_line(&mut line)?;
        child.stdout = Some(output.into_inner());
        if line != "ready\n" {
            return Err(said(&finish(child)).into());
        }
        let frames = counted.unwrap_or((rate.min(TOP_FRAMES) * self.extent.seconds) as u64);
        let load = Load::new(0, frames).on_cpu(self.cpus[0] as u32).per_second(rate as u64);
        let of_program =
            || cpu_times(&child.id().to_string()).map(|times| times.into_values().sum::<CpuTime>());
        let begun = Instant::now();
        let before = of_program()?;
        let sent = generator.send(&[load])?;
        let waiting = Disturbance {
            duration: begun.elapsed(),
            waited: of_program()?.waited.saturating_sub(before.waited),
            thread: String::new(),
            stolen: Duration::ZERO,
            foreign: Duration::ZERO,
            cpus: 1,
            longest_gap: Duration::ZERO,
        };
        // Under callgrind a program is slow.
        std::thread::sleep(CALM * if counted.is_some() { 10 } else { 1 });
        let pid = Pid::from_raw(child.id() as i32).ok_or("no such process")?;
        kill_process(pid, Signal::INT)?;
        let output = finish(child);
        let said = said(&output);
        let numbers = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<f64> =
            numbers.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let &[got, received, dropped, cpu_seconds, _, sleeps] = &numbers[..] else {
            return Err(said.into());
        };
        let sent_frames: u64 = sent.iter().map(|sent| sent.frames).sum();
        assert_eq!(got + dropped, sent_frames as f64, "unaccounted packets: {said}");
        assert_eq!(received, sent_frames as f64, "{said}");
        let seconds = sent.iter().map(|sent| sent.duration.as_secs_f64()).fold(0.0, f64::max);
        let run = Run {
            sent: sent_frames,
            got: got as u64,
            dropped: dropped as u64,
            per_second: sent_frames as f64 / seconds,
            cpu_seconds,
            sleeps,
            is_disturbed: waiting.is_disturbed(),
            instructions: said
                .lines()
                .find_map(|line| line.split("Collected :").nth(1)?.trim().parse().ok()),
        };
        let Run { got, per_second, dropped, .. } = run;
        println!(
            "  {:18}{per_second:>12.0} per second: {got} packets, {dropped} dropped",
            contender.name
        );
        Ok(run)
    }
}

/// The ratios in each round.
fn ratios(figures: &[Figure], baseline: &[Figure]) -> Vec<Figure> {
    let ratio = |(ours, theirs): (&Figure, &Figure)| Figure {
        value: ours.value / theirs.value,
        is_disturbed: ours.is_disturbed || theirs.is_disturbed,
    };
    figures.iter().zip(baseline).map(ratio).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compile(folder: &Path) -> Outcome<PathBuf> {
    let program = folder.join("pcap_loop");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/pcap_loop/pcap_loop.c");
    let output =
        Command::new("gcc").args(["-O2", "-o"]).arg(&program).arg(source).arg("-lpcap").output()?;
    if output.status.success() { Ok(program) } else { Err(said(&output).into()) }
}
