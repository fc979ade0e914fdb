//! Direct I/O or the page cache: the recorder's writes of 1 MiB with a sync every 256 MiB, to a file on the
//! disk of the target directory. CPU time is that of this process, and of the whole machine, whose kernel
//! threads write the page cache to the disk: run it on an idle machine. `WIRECAP_DIRECT_MIB`: the size of a
//! file in MiB, 2048 by default; `WIRECAP_DIRECT_ROUNDS`: the number of rounds, 5 by default.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};

const PAGE_BYTES: usize = 1 << 20;
/// The alignment that direct I/O requires at most.
const ALIGNMENT: usize = 4096;
const PAGES_A_SYNC: usize = 256;

/// The duration of a file, and CPU times, in seconds.
#[derive(Debug, Clone, Copy)]
struct Cost {
    wall: f64,
    process: f64,
    machine: f64,
}

fn process_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Time for which processors of this machine were busy. The kernel counts hundredths of a second.
fn machine_seconds() -> f64 {
    let text = fs::read_to_string("/proc/stat").expect("procfs is mounted");
    let fields: Vec<f64> =
        text.lines().next().unwrap_or_default().split_whitespace().skip(1).flat_map(str::parse).collect();
    // user, nice, system, irq, softirq
    [0, 1, 2, 5, 6].map(|field| fields[field]).iter().sum::<f64>() / 100.0
}

fn write(path: &Path, page: &[u8], pages: usize, is_direct: bool) -> io::Result<Cost> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    if is_direct {
        options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    }
    let mut file: File = options.open(path)?;
    let (begun, process, machine) = (Instant::now(), process_seconds(), machine_seconds());
    for number in 1..=pages {
        file.write_all(page)?;
        if number % PAGES_A_SYNC == 0 || number == pages {
            file.sync_data()?;
        }
    }
    let cost = Cost {
        wall: begun.elapsed().as_secs_f64(),
        process: process_seconds() - process,
        machine: machine_seconds() - machine,
    };
    drop(file);
    fs::remove_file(path)?;
    Ok(cost)
}

fn setting(name: &str, usual: usize) -> usize {
    env::var(name).map_or(usual, |text| text.parse().expect("it is a number"))
}

fn median(costs: &[Cost], of: fn(&Cost) -> f64) -> f64 {
    let mut values: Vec<f64> = costs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> io::Result<()> {
    let (pages, rounds) = (setting("WIRECAP_DIRECT_MIB", 2048), setting("WIRECAP_DIRECT_ROUNDS", 5));
    let memory = vec![0x5a; PAGE_BYTES + ALIGNMENT];
    let page = &memory[memory.as_ptr().align_offset(ALIGNMENT)..][..PAGE_BYTES];
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("direct");
    let ways = [("page cache", false), ("direct I/O", true)];
    let mut costs: [Vec<Cost>; 2] = Default::default();
    for _ in 0..rounds {
        for ((_, is_direct), costs) in ways.iter().zip(&mut costs) {
            costs.push(write(&path, page, pages, *is_direct)?);
        }
    }
    println!("{pages} MiB, medians of {rounds} rounds in turns: MiB/s, and CPU time in ms/GiB");
    for ((name, _), costs) in ways.iter().zip(&costs) {
        let per_gib = |of| median(costs, of) * 1000.0 * 1024.0 / pages as f64;
        println!(
            "{name:<10}  {:>6.0} MiB/s  process {:>4.0}  machine {:>4.0}  ({})",
            pages as f64 / median(costs, |cost| cost.wall),
            per_gib(|cost: &Cost| cost.process),
            per_gib(|cost: &Cost| cost.machine),
            costs
                .iter()
                .map(|cost| format!("{:.0}", cost.process * 1000.0 * 1024.0 / pages as f64))
                .collect::<Vec<_>>()
                .join(" "),
        );
    }
    Ok(())
}
