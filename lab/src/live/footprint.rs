//! The processor time per packet, in user space and in the kernel, and the memory of a capture.

use std::fs;
use std::thread;
use std::time::Duration;

use wirecap_testbed::{Generator, Load, Snapshot, drop_program, loss_lock};

use super::bed::{self, Bed};
use super::contender::Contender;
use super::figures::Figures;
use super::receiver::Receiver;
use super::rivals::Field;
use super::sweep::{Share, Sweep};
use super::trial::{self, Sender, Trial};
use super::{Lab, Outcome};
use crate::chart::bars::{Bar, Bars, Group, Part as BarPart};
use crate::chart::rounded;
use crate::experiment::{Figure, Findings, Run, RunError, Table, percent};

/// Memory of each contender, in MiB.
const RING_MIB: u32 = 64;
/// Packets of a burst, which fit into every contender's memory.
const BURST_FRAMES: u64 = 16_384;
/// Time between two bursts.
const PAUSE: Duration = Duration::from_millis(60);

/// Bursts at the sender's highest rate with pauses between them, so that no contender loses
/// packets, and the sender's processor time is the cost of its frames: it never waits for a frame's
/// time.
#[derive(Debug)]
struct BurstSender {
    generator: Generator,
    bursts: u64,
    /// Busy time of all CPUs during the bursts, in seconds, as counted by the kernel.
    all_cpus_seconds: f64,
}

impl Sender for BurstSender {
    fn send(&mut self, _bed: &Bed) -> Outcome<(u64, f64)> {
        let all_before = all_cpus_seconds()?;
        let mut frames = 0;
        let mut seconds = 0.0;
        for _ in 0..self.bursts {
            let sent = self.generator.send(&[Load::new(0, BURST_FRAMES)])?;
            frames += sent.iter().map(|sent| sent.frames).sum::<u64>();
            seconds += sent.iter().map(|sent| sent.duration.as_secs_f64()).sum::<f64>();
            thread::sleep(PAUSE);
        }
        self.all_cpus_seconds = all_cpus_seconds()? - all_before;
        Ok((frames, seconds))
    }

    fn counted(&self, counters: &Snapshot) -> (u64, u64) {
        let lost = counters.tx_queues.iter().map(|queue| queue.xdp_xmit_errors).sum();
        (counters.handed_over_as_xdp(), lost)
    }
}

/// Busy time of all CPUs, in seconds.
fn all_cpus_seconds() -> Outcome<f64> {
    const TICKS: f64 = 100.0; // USER_HZ, which is 100 everywhere.
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().ok_or("/proc/stat is empty")?;
    let ticks: Vec<f64> =
        line.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq; steal is not included.
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|&index| ticks.get(index)).sum::<f64>();
    Ok(busy / TICKS)
}

/// What one run cost.
#[derive(Debug, Clone, Copy)]
struct Cost {
    contender: usize,
    process_ns: f64,
    kernel_ns: f64,
    all_cpus_ns: f64,
    peak_mib: f64,
    kernel_mib: f64,
}

/// CPU and memory.
pub(super) fn run(lab: &Lab, run: &Run<'_>) -> Result<Findings, RunError> {
    let bed = Bed::new()?;
    let field = Field::new(lab, RING_MIB);
    let bursts = lab.choose(run, 1, 10, 40);
    let rounds = lab.choose(run, 1, 1, 5);
    let sender = || -> Outcome<BurstSender> {
        let generator = bed.generator(60)?;
        Ok(BurstSender { generator, bursts, all_cpus_seconds: 0.0 })
    };
    run.step(0.0, "frames that are dropped at once")?;
    let dropped = dropped_at_once(&bed, &mut sender()?)?;
    let contenders: Vec<Contender> =
        field.recorders().into_iter().chain(field.counters()).collect();
    let mut costs: Vec<Cost> = Vec::new();
    let sweep = Sweep::run(run, Share::WHOLE, &contenders, &[60.0], rounds, |contender, _| {
        let mut sender = sender()?;
        let mut memory = (0.0, 0.0);
        let kernel_before = kernel_mib();
        let trial = trial::run(&bed, contender, &mut sender, &mut |receiver| {
            memory = (peak_mib(receiver)?, (kernel_mib() - kernel_before).max(0.0));
            Ok(())
        })?;
        let packets = trial.sent as f64;
        let own = 1e9 * (trial.sender_seconds + trial.softirq_seconds) / packets;
        costs.push(Cost {
            contender: contenders
                .iter()
                .position(|other| other.name == contender.name)
                .unwrap_or_default(),
            process_ns: 1e9 * trial.receiver_seconds / packets,
            kernel_ns: own - dropped.own_ns,
            all_cpus_ns: 1e9 * sender.all_cpus_seconds / packets - dropped.all_cpus_ns,
            peak_mib: memory.0,
            kernel_mib: memory.1,
        });
        Ok(trial)
    })?;
    let what = format!(
        "{bursts} bursts of {} frames of 60 bytes, as fast as the sender makes them, with pauses in which \
         every contender catches up. The process's own processor time per packet; the kernel's receive path, which on a \
         veth runs on the sender's time and in softirq threads, less what the same frames cost when a program drops \
         them at once ({:.0} ns with making them); and, as a check, the busy time of all CPUs by \
         the kernel's account, also less that, with whatever else the machine did.",
        wirecap::grouped(BURST_FRAMES),
        dropped.own_ns
    );
    let mut findings = Findings { what, ..Findings::default() };
    findings.settings = vec![
        ("memory for packets".to_owned(), format!("{RING_MIB} MiB each")),
        ("rounds".to_owned(), rounds.to_string()),
    ];
    findings = findings.with_table("footprint", table(&sweep, &costs));
    let pictures = [
        ("Processor time of a packet.", "ns a packet", processor as Parts),
        ("Memory of a capture.", "MiB", memory as Parts),
    ];
    for (caption, axis, parts) in pictures {
        let svg = bars(&sweep, &costs, axis, parts).svg();
        findings.figures.push(Figure { caption: caption.to_owned(), svg });
    }
    let note = "DPDK polls without a pause and uses a full CPU at any load. The bare AF_XDP loop polls \
                every 100 µs, also in the pauses.";
    findings.notes.push(note.to_owned());
    let note = "Peak memory counts everything that the process has mapped and touched: cells, and the rings of \
                AF_PACKET, which are the kernel's and are mapped. Kernel memory is what vmalloc gave meanwhile.";
    findings.notes.push(note.to_owned());
    sweep.account(&mut findings, "footprint", "bytes");
    Ok(findings)
}

/// The cost of frames that no socket receives, in nanoseconds.
struct Dropped {
    own_ns: f64,
    all_cpus_ns: f64,
}

fn dropped_at_once(bed: &Bed, sender: &mut BurstSender) -> Outcome<Dropped> {
    let _alone = loss_lock()?;
    let _dropping = drop_program(&bed.pair.receiver)?;
    let run = bed::watch(None, || sender.send(bed))?;
    let packets = run.frames as f64;
    Ok(Dropped {
        own_ns: 1e9 * (run.sender_seconds + run.softirq_seconds) / packets,
        all_cpus_ns: 1e9 * sender.all_cpus_seconds / packets,
    })
}

/// The peak memory of the process, in MiB.
fn peak_mib(receiver: &Receiver) -> Outcome<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", receiver.id()))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(peak.split_whitespace().next().unwrap_or_default().parse::<f64>()? / 1024.0)
}

/// Memory that the kernel has allocated page by page, in MiB, without mappings of other memory. 0
/// if it does not report it.
fn kernel_mib() -> f64 {
    let table = fs::read_to_string("/proc/vmallocinfo").unwrap_or_default();
    let is_memory = |line: &&str| line.contains(" pages=") && line.contains("vmalloc");
    let pages = |line: &str| line.split_once(" pages=")?.1.split(' ').next()?.parse::<f64>().ok();
    table.lines().filter(is_memory).filter_map(pages).sum::<f64>() * 4096.0 / f64::from(1 << 20)
}

/// The shares of the process and of the kernel.
type Parts = fn(&Cost) -> [f64; 2];

fn processor(cost: &Cost) -> [f64; 2] {
    [cost.process_ns, cost.kernel_ns]
}

fn memory(cost: &Cost) -> [f64; 2] {
    [cost.peak_mib, cost.kernel_mib]
}

/// A bar of medians for each contender, except those that poll without a pause: they use a full
/// CPU, which is not the cost of packets.
fn bars(sweep: &Sweep, costs: &[Cost], axis: &str, parts: Parts) -> Bars {
    let bar = |(index, contender): (usize, &Contender)| {
        let mine: Vec<[f64; 2]> =
            costs.iter().filter(|cost| cost.contender == index).map(parts).collect();
        let medians =
            [0, 1].map(|part| mine.iter().map(|parts| parts[part]).collect::<Figures>().median());
        let part = |series: usize| BarPart { series, value: medians[series], hollow: false };
        let label = rounded(medians.iter().sum());
        let says_nothing = mine.is_empty() || (contender.spins && axis.starts_with("ns"));

        (!says_nothing).then(|| Bar {
            name: contender.name.clone(),
            label,
            parts: vec![part(0), part(1)],
        })
    };
    let bars = sweep.contenders.iter().enumerate().filter_map(bar).collect();
    Bars {
        axis: axis.to_owned(),
        series: vec!["the process".to_owned(), "the kernel".to_owned()],
        groups: vec![Group { name: String::new(), bars }],
        notes: Vec::new(),
    }
}

fn table(sweep: &Sweep, costs: &[Cost]) -> Table {
    let columns = [
        "contender",
        "process, ns a packet",
        "kernel, ns a packet",
        "all CPUs, ns a packet",
        "peak memory, MiB",
        "kernel memory, MiB",
        "lost",
    ];
    let mut table = Table::new("Medians, and between what the rounds were.", &columns);

    for (index, contender) in sweep.contenders.iter().enumerate() {
        let of = |figure: fn(&Cost) -> f64| {
            let mine = costs.iter().filter(|cost| cost.contender == index);
            mine.map(figure).collect::<Figures>()
        };
        let trials = sweep.at(index, 60.0);
        if trials.is_empty() {
            continue;
        }

        let lost = trials.iter().map(Trial::lost_percent).fold(0.0, f64::max);
        table.row([
            contender.name.clone(),
            format!("{:.1}", of(|cost| cost.process_ns)),
            format!("{:.0}", of(|cost| cost.kernel_ns)),
            format!("{:.0}", of(|cost| cost.all_cpus_ns)),
            format!("{:.1}", of(|cost| cost.peak_mib)),
            format!("{:.1}", of(|cost| cost.kernel_mib)),
            percent(lost),
        ]);
    }
    table
}
