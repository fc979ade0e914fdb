//! The fixed costs of a capture: memory, and CPU time while no packets arrive.

use std::fs;
use std::thread;
use std::time::Duration;

use wirecap_lab::live::Outcome;
use wirecap_lab::live::bed::{Bed, send};
use wirecap_lab::live::figures::Figures;
use wirecap_lab::live::process::CommandLine;
use wirecap_testbed::{Bound, Figure, Goals, Load, Watch};

use crate::Effort;

/// R x M of the captures.
const CELLS: u64 = 131_072;
/// The kernel's functions that allocate for AF_XDP, as /proc/vmallocinfo names them.
const XDP_ALLOCATORS: [&str; 3] = ["xskq_create", "xp_create", "xdp_umem"];

pub(crate) fn run(effort: Effort, goals: &mut Goals) -> Outcome<()> {
    println!("\nfixed costs of a capture of one ring ({CELLS} cells of 2 KiB)");
    memory(effort)?;
    idle(effort, goals)
}

fn command(arguments: &str) -> CommandLine {
    crate::wirecap().with(arguments).with("-i a1 -M 256 -R 512 --json")
}

/// Prints the peak memory of a capture that received three times as many packets as its pool holds,
/// at top rate.
fn memory(effort: Effort) -> Outcome<()> {
    let bed = Bed::new()?;
    let mut generator = bed.generator(60)?;
    let of_others = kernel_bytes()?;
    let receiver = bed.receive(&command("count --engine xdp"), "capturing")?;
    send(&mut generator, &receiver, &bed.loads(effort.choose(3 * CELLS, 10_000), None)?)?;
    thread::sleep(Duration::from_millis(200));
    let status = fs::read_to_string(format!("/proc/{}/status", receiver.id()))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let peak_kib: u64 = peak.split_whitespace().next().unwrap_or_default().parse()?;
    let kernel = kernel_bytes()?.saturating_sub(of_others);
    receiver.stop()?;
    let pool = CELLS * (2048 + 24);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "  peak memory of the process {:.1} MiB: cells and rings {:.1}, other {:.1}",
        mib(peak_kib * 1024),
        mib(pool),
        mib(peak_kib * 1024) - mib(pool)
    );
    println!("  kernel memory of its sockets allocated by vmalloc: {:.1} MiB", mib(kernel));
    Ok(())
}

/// Memory that the kernel has allocated by vmalloc for AF_XDP sockets, excluding its mappings of
/// user memory.
fn kernel_bytes() -> Outcome<u64> {
    let table = fs::read_to_string("/proc/vmallocinfo")?;
    let of_xdp = |line: &&str| {
        XDP_ALLOCATORS.iter().any(|name| line.contains(name)) && !line.contains("vmap")
    };
    let bytes = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    Ok(table.lines().filter(of_xdp).filter_map(bytes).sum())
}

/// Prints the share of a core that a capture uses while no packets arrive.
fn idle(effort: Effort, goals: &mut Goals) -> Outcome<()> {
    let time = Duration::from_secs_f64(effort.choose(10.0, 0.2));
    let bed = Bed::new()?;
    // A wake-up takes some 70 us in a virtual machine. In advanced mode an idle worker looks at its
    // buddies' rings every 20 ms.
    for (name, command, most) in [
        ("count, basic mode", command("count --engine xdp"), 0.15),
        ("count, advanced mode", command("count --engine xdp -T 60"), 0.5),
        ("capture", command("capture --engine xdp -w /dev/null"), 0.15),
        ("count, engine packet", command("count --engine packet"), 0.1),
    ] {
        let mut shares: Vec<Figure> = Vec::new();
        for _ in 0..effort.rounds(3) {
            let receiver = bed.receive(&command, "capturing")?;
            // The first packets precede the measurement, so that it excludes one-time work.
            bed.generator(60)?.send(&[Load::new(0, 1000)])?;
            thread::sleep(effort.choose(Duration::from_secs(2), Duration::from_millis(200)));
            let watch = Watch::begin();
            let before = receiver.cpu_time()?.ran;
            thread::sleep(time);
            let ran = receiver.cpu_time()?.ran - before;
            let value = ran.as_secs_f64() / time.as_secs_f64() * 100.0;
            shares.push(Figure { value, is_disturbed: watch.end().is_disturbed() });
            receiver.stop()?;
        }
        println!(
            "  idle, {name:<24} {:.3} % of a core",
            shares.iter().map(|share| share.value).collect::<Figures>()
        );
        if effort.has_goals() {
            goals.judge(
                &format!("{name}: percent of a core while idle"),
                Bound::Below(most),
                &shares,
            );
        }
    }
    Ok(())
}
