//! Direct I/O or the page cache, from small or huge pages of memory: writes of 1, 2 and 4 MiB with
//! a sync every 256 MiB, to a file on the disk of the target directory. The recorder makes direct
//! writes of 2 MiB from huge pages. CPU time is that of this process, and of the whole machine,
//! whose kernel threads write the page cache to the disk: run it on an idle machine.
//! `WIRECAP_DIRECT_MIB`: the size of a file in MiB, 2048 by default; `WIRECAP_DIRECT_ROUNDS`: the
//! number of rounds, 5 by default.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use memmap2::{Advice, MmapMut};
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};

const MIB: usize = 1 << 20;
const HUGE_PAGE_BYTES: usize = 2 << 20;
const MIB_A_SYNC: usize = 256;

/// One way to write a file.
#[derive(Debug, Clone, Copy)]
struct Way {
    name: &'static str,
    is_direct: bool,
    is_huge: bool,
    /// MiB in one write.
    mib: usize,
}

const WAYS: [Way; 5] = [
    Way { name: "page cache, 1 MiB", is_direct: false, is_huge: false, mib: 1 },
    Way { name: "direct, 1 MiB", is_direct: true, is_huge: false, mib: 1 },
    Way { name: "direct, 1 MiB on a huge page", is_direct: true, is_huge: true, mib: 1 },
    Way { name: "direct, 2 MiB on a huge page", is_direct: true, is_huge: true, mib: 2 },
    Way { name: "direct, 4 MiB on huge pages", is_direct: true, is_huge: true, mib: 4 },
];

impl Way {
    /// Present memory for one write.
    fn memory(self) -> io::Result<MmapMut> {
        let advice = if self.is_huge { Advice::HugePage } else { Advice::NoHugePage };
        let mut memory = MmapMut::map_anon((self.mib * MIB).next_multiple_of(HUGE_PAGE_BYTES))?;
        // Without huge pages, all ways use small ones.
        let _ = memory.advise(advice);
        memory.fill(0x5a);
        Ok(memory)
    }
}

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
    let fields: Vec<f64> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .flat_map(str::parse)
        .collect();
    // user, nice, system, irq, softirq
    [0, 1, 2, 5, 6].map(|field| fields[field]).iter().sum::<f64>() / 100.0
}

fn write(path: &Path, page: &[u8], mib: usize, is_direct: bool) -> io::Result<Cost> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    if is_direct {
        options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    }
    let mut file: File = options.open(path)?;
    let begun = Instant::now();
    let process = process_seconds();
    let machine = machine_seconds();
    let page_mib = page.len() / MIB;
    for written in (0..mib).step_by(page_mib).map(|before| before + page_mib) {
        file.write_all(page)?;
        if written % MIB_A_SYNC == 0 || written >= mib {
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
    let mib = setting("WIRECAP_DIRECT_MIB", 2048);
    let rounds = setting("WIRECAP_DIRECT_ROUNDS", 5);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("direct");
    let memory: Vec<MmapMut> = WAYS.iter().map(|way| way.memory()).collect::<io::Result<_>>()?;
    let mut costs: Vec<Vec<Cost>> = WAYS.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for ((way, memory), costs) in WAYS.iter().zip(&memory).zip(&mut costs) {
            costs.push(write(&path, &memory[..way.mib * MIB], mib, way.is_direct)?);
        }
    }
    println!("{mib} MiB, medians of {rounds} rounds in turns: MiB/s, and CPU time in ms/GiB");
    for (way, costs) in WAYS.iter().zip(&costs) {
        let per_gib = |of| median(costs, of) * 1000.0 * 1024.0 / mib as f64;
        println!(
            "{:<28}  {:>6.0} MiB/s  process {:>4.0}  machine {:>4.0}  ({})",
            way.name,
            mib as f64 / median(costs, |cost| cost.wall),
            per_gib(|cost: &Cost| cost.process),
            per_gib(|cost: &Cost| cost.machine),
            costs
                .iter()
                .map(|cost| format!("{:.0}", cost.process * 1000.0 * 1024.0 / mib as f64))
                .collect::<Vec<_>>()
                .join(" "),
        );
    }
    Ok(())
}
