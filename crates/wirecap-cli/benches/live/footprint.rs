//! What a capture costs beside the packets: memory, and the processor while nothing arrives.

use std::fs;
use std::thread;
use std::time::Duration;

use wirecap_lab::live::Outcome;
use wirecap_lab::live::bed::{Bed, send};
use wirecap_lab::live::figures::Figures;
use wirecap_lab::live::process::CommandLine;
use wirecap_testbed::Load;

use crate::Effort;

/// R x M of the captures.
const CELLS: u64 = 131_072;
/// The kernel's functions that allocate for AF_XDP, as /proc/vmallocinfo names them.
const XDP_ALLOCATORS: [&str; 3] = ["xskq_create", "xp_create", "xdp_umem"];

pub(crate) fn run(effort: Effort) -> Outcome<()> {
    println!("\nwhat a capture of one ring costs ({CELLS} cells of 2 KiB)");
    memory(effort)?;
    idle(effort)
}

fn command(arguments: &str) -> CommandLine {
    crate::wirecap().with(arguments).with("-i a1 -M 256 -R 512 --json")
}

/// Memory after three times as many packets as the pool holds came at full rate.
fn memory(effort: Effort) -> Outcome<()> {
    let bed = Bed::new()?;
    let mut generator = bed.generator(60)?;
    let of_others = kernel_bytes()?;
    let receiver = bed.receive(&command("count"), "capturing")?;
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
        "  memory of the process {:.1} MiB, of which cells and rings {:.1}, the rest {:.1}",
        mib(peak_kib * 1024),
        mib(pool),
        mib(peak_kib * 1024) - mib(pool)
    );
    println!("  memory of the kernel for its sockets, as far as it is vmalloc: {:.1} MiB", mib(kernel));
    Ok(())
}

/// What the kernel has allocated page by page for AF_XDP sockets; its mappings of user memory are none of it.
fn kernel_bytes() -> Outcome<u64> {
    let table = fs::read_to_string("/proc/vmallocinfo")?;
    let of_xdp =
        |line: &&str| XDP_ALLOCATORS.iter().any(|name| line.contains(name)) && !line.contains("vmap");
    let bytes = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    Ok(table.lines().filter(of_xdp).filter_map(bytes).sum())
}

/// The share of a core that a capture takes while nothing arrives.
fn idle(effort: Effort) -> Outcome<()> {
    let time = Duration::from_secs_f64(effort.choose(10.0, 0.2));
    let bed = Bed::new()?;
    for (name, command) in [
        ("count, basic mode", command("count")),
        ("count, advanced mode", command("count -T 60")),
        ("capture", command("capture -w /dev/null")),
        ("count, engine packet", command("count --engine packet")),
    ] {
        let mut shares = Figures::default();
        for _ in 0..effort.rounds(3) {
            let receiver = bed.receive(&command, "capturing")?;
            // What it had to do before it waits.
            bed.generator(60)?.send(&[Load::new(0, 1000)])?;
            thread::sleep(effort.choose(Duration::from_secs(2), Duration::from_millis(200)));
            let before = receiver.cpu_time()?.ran;
            thread::sleep(time);
            let ran = receiver.cpu_time()?.ran - before;
            shares.push(ran.as_secs_f64() / time.as_secs_f64() * 100.0);
            receiver.stop()?;
        }
        println!("  idle, {name:<24} {shares:.3} % of a core");
    }
    Ok(())
}
