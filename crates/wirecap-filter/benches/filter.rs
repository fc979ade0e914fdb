//! The cost of a filter per packet in libpcap's interpreter, in wirecap's, and as machine code, in
//! ns.
//!
//! The filters are those of the WinPcap paper (Risso and Degioanni, 2001): only IP; one TCP port
//! among five; ten addresses and ten ports. Each is measured with one packet that it accepts and
//! one that it rejects, each after the maximum number of instructions. In each round, all forms of
//! a filter run in turn, so that other load affects all of them. The table lists the median of the
//! rounds, the minimum and the maximum. With `--check` the bench fails if a goal is missed, or void
//! because the machine was not quiet.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use wirecap_filter::LinkType;
use wirecap_filter::bpf::asm::{Assembler, Condition, Helper, Reg, Size};
use wirecap_filter::bpf::{LoadOptions, Map, MapKind, Program, ProgramKind, XDP_PASS};
use wirecap_filter::{CompiledFilter, Context, Filter, Interpreter, Libpcap, XdpTarget};
use wirecap_testbed::{Bound, Figure, Goals, Watch, skip};

const ROUNDS: usize = 31;
const PACKETS_PER_ROUND: u32 = 100_000;
const FRAME_BYTES: usize = 60;
const KERNEL_RUNS: u32 = 300_000;

/// The name of a filter's form, and the filter as a function.
type Form<'a> = (&'static str, &'a dyn Fn(&[u8]) -> u32);

struct Case {
    name: &'static str,
    expression: String,
    accepted: Vec<u8>,
    rejected: Vec<u8>,
    /// The goal: libpcap's time divided by the machine code's.
    ratio_min: f64,
}

/// A TCP segment from 10.0.0.1, port 1, to this host and port.
fn segment(host: u8, port: u16) -> Vec<u8> {
    let mut frame = vec![0; FRAME_BYTES];
    frame[12..14].copy_from_slice(&[8, 0]);
    (frame[14], frame[23]) = (0x45, 6);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 1, 1, host]);
    frame[34..38].copy_from_slice(&[0, 1, 0, 0]);
    frame[36..38].copy_from_slice(&port.to_be_bytes());
    frame
}

fn cases() -> [Case; 3] {
    let list = |items: Vec<String>| items.join(" or ");
    let ports =
        |count: u16| list((1..=count).map(|port| format!("tcp port {}", port * 1000)).collect());
    let hosts = list((1..=10).map(|host| format!("host 10.1.1.{host}")).collect());
    let arp = {
        let mut frame = segment(1, 1);
        frame[13] = 6;
        frame
    };
    [
        Case {
            name: "IP only",
            expression: "ip".to_owned(),
            accepted: segment(1, 1),
            rejected: arp,
            ratio_min: 1.0,
        },
        Case {
            name: "one port among 5",
            expression: ports(5),
            accepted: segment(1, 5000),
            rejected: segment(1, 2),
            ratio_min: 1.0,
        },
        Case {
            name: "10 addresses, 10 ports",
            expression: format!("({hosts}) and ({})", ports(10)),
            accepted: segment(10, 10_000),
            rejected: segment(10, 2),
            ratio_min: 5.0,
        },
    ]
}

/// Time per packet, in ns.
fn time(matches: &dyn Fn(&[u8]) -> u32, frame: &[u8], verdict: u32) -> f64 {
    let start = Instant::now();
    let mut wrong = 0;
    for _ in 0..PACKETS_PER_ROUND {
        wrong += u32::from(matches(black_box(frame)) != verdict);
    }
    let elapsed = start.elapsed();
    assert_eq!(wrong, 0, "wrong verdicts");
    elapsed.as_nanos() as f64 / f64::from(PACKETS_PER_ROUND)
}

/// Minimum, median and maximum.
fn spread(mut times: Vec<f64>) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    [times[0], times[times.len() / 2], times[times.len() - 1]]
}

fn measure(case: &Case, mut goals: Option<&mut Goals>) {
    let filter =
        Filter::compile(&case.expression, LinkType::ETHERNET, 0).expect("libpcap is needed");
    let context = Context::default();
    let libpcap =
        Libpcap::get().expect("it just compiled").prepare(&filter).expect("no extensions");
    let interpreter = Interpreter::new(&filter).expect("no extensions");
    let compiled = CompiledFilter::new(&filter).expect("no extensions");
    assert!(compiled.is_machine_code() || !cfg!(target_arch = "x86_64"));
    let wire_len = FRAME_BYTES as u32;
    let forms: [Form<'_>; 3] = [
        ("libpcap", &|frame| libpcap.matches(frame, wire_len)),
        ("interpreter", &|frame| interpreter.matches(frame, wire_len, &context)),
        ("machine code", &|frame| compiled.matches(frame, wire_len, &context)),
    ];
    for (packet, frame, verdict) in
        [("accepted", &case.accepted, 262_144), ("rejected", &case.rejected, 0)]
    {
        let watch = Watch::begin();
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            for (times, (_, matches)) in times.iter_mut().zip(forms) {
                times.push(time(matches, frame, verdict));
            }
        }
        let disturbance = watch.end();
        let times = times.map(spread);
        if let Some(goals) = goals.as_deref_mut() {
            let figure = Figure {
                value: times[0][1] / times[2][1],
                is_disturbed: disturbance.is_disturbed(),
            };
            let what = format!("{}, {packet}: libpcap's time / machine code's", case.name);
            goals.judge(&what, Bound::AtLeast(case.ratio_min), &[figure]);
        }
        for ((form, _), [least, median, most]) in forms.iter().zip(times) {
            println!(
                "{:<24} {:>3} insns  {packet}  {form:<12} {median:>7.2} ns/packet ({least:.2}-{most:.2})  {:>5.2} x libpcap",
                case.name,
                filter.program().len(),
                times[0][1] / median,
            );
        }
    }
}

/// What an XDP program does with a rejected packet before it passes it.
#[derive(Clone, Copy)]
enum Rejection {
    /// Nothing.
    Plain,
    /// Counts it in a per-CPU value, as a capture does.
    PerCpu,
    /// Counts it in one value for all CPUs.
    Atomic,
}

/// A program that passes every packet, after running `filter` if there is one.
fn program(filter: Option<(&Filter, Rejection)>) -> Program {
    let mut asm = Assembler::new();
    asm.mov(Reg::R6, Reg::R1);
    let pass = asm.label();
    let counts = [MapKind::PercpuArray, MapKind::Array]
        .map(|kind| Map::create(kind, "bench", 8, 1).expect("a map"));
    if let Some((filter, rejection)) = filter {
        let reject = asm.label();
        let target = XdpTarget { context: Reg::R6, reject, multi_buffer: true, address: None };
        filter.emit_xdp(&mut asm, &target).expect("short filters");
        asm.jump(pass).bind(reject);
        count(&mut asm, rejection, &counts);
    }
    asm.bind(pass).mov(Reg::R0, XDP_PASS).exit();
    let options = LoadOptions { fragments: true, ..LoadOptions::default() };
    let code = asm.finish().expect("labels are bound");
    Program::load(ProgramKind::Xdp, "bench", &code, options).expect("the verifier takes it")
}

fn count(asm: &mut Assembler, rejection: Rejection, [per_cpu, shared]: &[Map; 2]) {
    match rejection {
        Rejection::Plain => {}
        Rejection::PerCpu => {
            let none = asm.label();
            // The first number of the other map is still 0, the queue of a test run.
            asm.load_map_value(Reg::R2, shared, 0);
            asm.load_map_fd(Reg::R1, per_cpu).call(Helper::MapLookup);
            asm.jump_if(Reg::R0, Condition::Eq, 0, none);
            asm.load(Size::Double, Reg::R1, Reg::R0, 0).add(Reg::R1, 1).store(
                Size::Double,
                Reg::R0,
                0,
                Reg::R1,
            );
            asm.bind(none);
        }
        Rejection::Atomic => {
            asm.load_map_value(Reg::R1, shared, 0).mov(Reg::R2, 1);
            asm.atomic_add(Size::Double, Reg::R1, 0, Reg::R2);
        }
    }
}

/// The cost of a rejected packet in the kernel: nanoseconds of a test run, minus those of a bare
/// XDP_PASS.
fn measure_in_kernel(case: &Case) {
    let filter =
        Filter::compile(&case.expression, LinkType::ETHERNET, 0).expect("libpcap is needed");
    let run = |program: &Program| {
        let run = program.test_run(&case.rejected, KERNEL_RUNS).expect("a test run");
        assert_eq!(run.verdict, XDP_PASS.cast_unsigned());
        // The kernel's measurement excludes other processes, but it is rounded to whole
        // nanoseconds.
        f64::from(run.duration_ns)
    };
    let forms = [
        ("uncounted", Rejection::Plain),
        ("per CPU", Rejection::PerCpu),
        ("atomic", Rejection::Atomic),
    ];
    let bare = program(None);
    let programs = forms.map(|(name, rejection)| (name, program(Some((&filter, rejection)))));
    let mut times = [const { Vec::new() }; 3];
    let mut bare_times = Vec::new();
    for _ in 0..ROUNDS {
        let without = run(&bare);
        bare_times.push(without);
        for (times, (_, program)) in times.iter_mut().zip(&programs) {
            times.push(run(program) - without);
        }
    }
    let [least, median, most] = spread(bare_times);
    println!(
        "{:<24} XDP_PASS alone            {median:>5.0} ns/run ({least:.0}-{most:.0})",
        case.name
    );
    for ((name, _), times) in programs.iter().zip(times) {
        let [least, median, most] = spread(times);
        println!(
            "{:<24} rejected, {name:<14} +{median:>5.0} ns/run ({least:.0}-{most:.0})",
            case.name
        );
    }
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let has = |argument: &str| std::env::args().any(|other| other == argument);
    // `cargo test --bench filter` runs a debug build, which has no goals.
    let mut goals = has("--bench").then(|| Goals::of("filter"));
    cases().iter().for_each(|case| measure(case, goals.as_mut()));
    match Map::create(MapKind::Array, "probe", 4, 1) {
        Ok(_) => cases().iter().for_each(measure_in_kernel),
        Err(error) => skip(&format!("what a rejected packet costs in the kernel: {error}")),
    }
    goals.filter(|_| has("--check")).map_or(Ok(()), Goals::end)
}
