//! Selects a core for a worker, near the core that serves its queue's interrupt.
//!
//! Fusco and Deri (IMC 2010, section 6) found that binding each thread to the core that handles its
//! queue has a large effect, and left its automation as future work. A packet is in the cache of
//! the core that received it, and of the cores that share that core's last-level cache; but if the
//! kernel copies packets, the receiving core itself is busy. So a worker runs on a free sibling if
//! there is one, otherwise on that core.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::names::RingName;
use crate::numbers::parse_ranges;

/// The maximum number of CPUs of a Linux build (`CONFIG_NR_CPUS`).
const CPU_COUNT_MAX: u32 = 8192;

/// Where workers run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Pin {
    /// Each worker near the core that serves the interrupt of its first home ring, if that core is
    /// known.
    Auto,
    /// Not pinned: the scheduler selects the CPU.
    #[default]
    Off,
    /// Worker k on the k-th of these CPUs, modulo their number.
    List(Vec<u32>),
}

impl FromStr for Pin {
    type Err = BadPin;

    /// `auto`, `off`, or CPUs such as `0,2-3`.
    fn from_str(text: &str) -> Result<Self, BadPin> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            list => parse_ranges(list, CPU_COUNT_MAX).map(Self::List).ok_or(BadPin),
        }
    }
}

/// A text that does not describe the CPUs of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected auto, off, or CPUs such as 0,2-3")]
pub struct BadPin;

/// Where one worker runs, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The CPU; `None` if the worker is not pinned.
    pub cpu: Option<u32>,
    /// Why this one.
    pub reason: String,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cpu {
            Some(cpu) => write!(f, "on CPU {cpu}: {}", self.reason),
            None => write!(f, "not pinned: {}", self.reason),
        }
    }
}

/// Binds the calling thread to `cpu`.
pub(crate) fn bind_thread(cpu: u32) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    Ok(sched_setaffinity(None, &set)?)
}

/// Whether this process may run on `cpu`.
pub(crate) fn may_run_on(cpu: u32) -> bool {
    (cpu as usize) < CpuSet::MAX_CPU
        && sched_getaffinity(None).is_ok_and(|set| set.is_set(cpu as usize))
}

/// The machine's state in /proc and /sys.
#[derive(Debug)]
pub(crate) struct Machine {
    root: PathBuf,
}

impl Machine {
    pub(crate) fn this() -> Self {
        Self::at("/")
    }

    /// A machine whose /proc and /sys were recorded below `root`.
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Places workers by the first home ring of each.
    pub(crate) fn place(&self, pin: &Pin, first_rings: &[RingName]) -> Vec<Placement> {
        match pin {
            Pin::Off => first_rings.iter().map(|_| left_alone("pinning is off")).collect(),
            Pin::List(cpus) if cpus.is_empty() => {
                first_rings.iter().map(|_| left_alone("no CPU was named")).collect()
            }
            Pin::List(cpus) => {
                let chosen =
                    |&cpu: &u32| Placement { cpu: Some(cpu), reason: "as requested".to_owned() };
                cpus.iter().cycle().take(first_rings.len()).map(chosen).collect()
            }
            Pin::Auto => self.place_near_interrupts(first_rings),
        }
    }

    fn place_near_interrupts(&self, first_rings: &[RingName]) -> Vec<Placement> {
        let interrupt_cpus: Vec<Option<u32>> =
            first_rings.iter().map(|ring| self.interrupt_cpu(ring)).collect();

        // No worker is placed on a CPU that receives another queue's packets.
        let mut taken: BTreeSet<u32> = interrupt_cpus.iter().copied().flatten().collect();
        let mut beside_interrupts = BTreeSet::new();

        let place = |(ring, interrupt_cpu): (&RingName, &Option<u32>)| {
            let Some(interrupt_cpu) = *interrupt_cpu else {
                return left_alone(&format!("{ring} has no interrupt bound to a single CPU"));
            };
            let siblings = self.cache_siblings(interrupt_cpu);
            let (cpu, reason) = match siblings.iter().find(|cpu| !taken.contains(cpu)) {
                Some(&sibling) => (
                    sibling,
                    format!("it shares a cache with CPU {interrupt_cpu}, which receives {ring}"),
                ),
                None if beside_interrupts.insert(interrupt_cpu) => (
                    interrupt_cpu,
                    format!("it receives {ring}, and no CPU that shares its cache is free"),
                ),
                // One of several rings whose packets this CPU receives.
                None => {
                    return left_alone(&format!(
                        "no CPU that shares a cache with that of {ring} is free"
                    ));
                }
            };
            taken.insert(cpu);
            Placement { cpu: Some(cpu), reason }
        };
        first_rings.iter().zip(&interrupt_cpus).map(place).collect()
    }

    /// The CPU that serves the ring's interrupt, if it is a single one.
    fn interrupt_cpu(&self, ring: &RingName) -> Option<u32> {
        let interrupt = self.interrupt_of(ring)?;
        let folder = self.path(&format!("proc/irq/{interrupt}"));
        let read = |file| fs::read_to_string(folder.join(file)).ok();
        let cpus = interrupt_cpus(
            read("effective_affinity_list").as_deref(),
            read("smp_affinity_list").as_deref(),
        );
        match cpus?[..] {
            [cpu] => Some(cpu),
            _ => None,
        }
    }

    /// The number of the ring's interrupt. Its name contains the interface's, or it is in the
    /// device's list of interrupts: `eth0-TxRx-3`, `eth0-rx-3`, `i40e-eth0-TxRx-3`,
    /// `mlx5_comp3@pci:...`, `virtio0-input.3`.
    fn interrupt_of(&self, ring: &RingName) -> Option<u32> {
        let table = fs::read_to_string(self.path("proc/interrupts")).ok()?;
        let of_device = self.device_interrupts(&ring.interface);

        let named_after_it = |action: &str| {
            action
                .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .any(|word| word == ring.interface)
        };
        table.lines().skip(1).find_map(|line| {
            let (number, rest) = line.trim_start().split_once(':')?;
            let number: u32 = number.parse().ok()?;
            let action = rest.split_whitespace().last()?;
            let is_its = named_after_it(action) || of_device.contains(&number);
            (is_its && receive_queue(action) == Some(ring.queue)).then_some(number)
        })
    }

    /// The interrupts of the interface's device; those of a virtio device are its parent's.
    fn device_interrupts(&self, interface: &str) -> BTreeSet<u32> {
        let device = self.path(&format!("sys/class/net/{interface}/device"));
        let folders = [device.join("msi_irqs"), device.join("../msi_irqs")];
        let entries =
            folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// The other CPUs that share the last-level cache and the NUMA node of `cpu`.
    fn cache_siblings(&self, cpu: u32) -> Vec<u32> {
        let caches = self.path(&format!("sys/devices/system/cpu/cpu{cpu}/cache"));
        let read = |index: u32, file: &str| {
            fs::read_to_string(caches.join(format!("index{index}/{file}"))).ok()
        };
        let last_level = (0..8).filter_map(|index| {
            let level: u32 = read(index, "level")?.trim().parse().ok()?;
            Some((level, parse_cpu_list(&read(index, "shared_cpu_list")?)?))
        });
        let sharing =
            last_level.max_by_key(|(level, _)| *level).map(|(_, cpus)| cpus).unwrap_or_default();
        let node = self.node_of(cpu);
        sharing.into_iter().filter(|&other| other != cpu && self.node_of(other) == node).collect()
    }

    fn node_of(&self, cpu: u32) -> Option<u32> {
        let folder = self.path(&format!("sys/devices/system/cpu/cpu{cpu}"));
        let entries = fs::read_dir(folder).ok()?.flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
            .next()
    }

    fn path(&self, below: &str) -> PathBuf {
        Path::new(&self.root).join(below)
    }
}

fn left_alone(reason: &str) -> Placement {
    Placement { cpu: None, reason: reason.to_owned() }
}

/// The CPUs that serve an interrupt, from its files `effective_affinity_list` and
/// `smp_affinity_list` in /proc/irq (see the kernel's core-api/irq/irq-affinity.rst); `None` if
/// neither names a CPU.
///
/// The interrupt controller selects one of the allowed CPUs. After these were changed, the first
/// file still names the former CPU, because the interrupt moves when it is next raised.
pub fn interrupt_cpus(effective: Option<&str>, allowed: Option<&str>) -> Option<Vec<u32>> {
    let allowed = allowed.and_then(parse_cpu_list);
    let is_allowed = |cpu: &u32| allowed.as_ref().is_none_or(|allowed| allowed.contains(cpu));
    let effective = effective.and_then(parse_cpu_list).filter(|cpus| cpus.iter().all(is_allowed));
    effective.or_else(|| allowed.clone())
}

/// The receive queue in an interrupt's name; none for interrupts of transmit queues and others.
fn receive_queue(action: &str) -> Option<u32> {
    let name = action.split_once('@').map_or(action, |(name, _)| name);
    let digits = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (kind, queue) = name.split_at(digits);
    let kind = kind.to_ascii_lowercase();
    let receives = ["txrx-", "rx-", "input.", "comp", "-"].iter().any(|word| kind.ends_with(word));
    let sends_only = kind.ends_with("-tx-") || kind.ends_with("output.");
    (receives && !sends_only).then(|| queue.parse().ok()).flatten()
}

/// `0-3,8`, as the kernel writes lists of CPUs.
fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    parse_ranges(text.trim(), CPU_COUNT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recorded machine: eight CPUs in two NUMA nodes, each with one last-level cache.
    struct Recorded {
        folder: tempfile::TempDir,
    }

    impl Recorded {
        fn new(interrupts: &str) -> Self {
            let recorded = Self { folder: tempfile::tempdir().unwrap() };
            let heading = "            CPU0       CPU1\n";
            recorded.write("proc/interrupts", &format!("{heading}{interrupts}"));

            for cpu in 0..8 {
                let (node, shared) = if cpu < 4 { (0, "0-3") } else { (1, "4-7") };
                let place = format!("sys/devices/system/cpu/cpu{cpu}");
                recorded.write(&format!("{place}/cache/index0/level"), "1\n");
                recorded
                    .write(&format!("{place}/cache/index0/shared_cpu_list"), &format!("{cpu}\n"));
                recorded.write(&format!("{place}/cache/index3/level"), "3\n");
                recorded.write(
                    &format!("{place}/cache/index3/shared_cpu_list"),
                    &format!("{shared}\n"),
                );
                recorded.write(&format!("{place}/node{node}/cpulist"), shared);
            }

            recorded
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn interrupt_on(&self, interrupt: u32, cpus: &str) {
            self.write(&format!("proc/irq/{interrupt}/effective_affinity_list"), cpus);
        }

        fn place(&self, queues: std::ops::Range<u32>) -> Vec<Placement> {
            let ring = |queue| RingName::of_queue("eth0", queue);
            let rings: Vec<RingName> = queues.map(ring).collect();
            Machine::at(self.folder.path()).place(&Pin::Auto, &rings)
        }
    }

    const IXGBE: &str = "\
 40:        1        2   PCI-MSI 1-edge      eth0-TxRx-0
 41:        1        2   PCI-MSI 2-edge      eth0-TxRx-1
 42:        1        2   PCI-MSI 3-edge      eth0
 43:        1        2   PCI-MSI 4-edge      eth01-TxRx-0
NMI:        0        0   Non-maskable interrupts
";

    #[test]
    fn a_worker_is_placed_near_the_core_that_receives_its_queue() {
        let machine = Recorded::new(IXGBE);
        machine.interrupt_on(40, "0\n");
        machine.interrupt_on(41, "5\n");
        let cpus: Vec<Option<u32>> =
            machine.place(0..2).iter().map(|placement| placement.cpu).collect();
        assert_eq!(cpus, [Some(1), Some(4)]);
    }

    #[test]
    fn an_interrupt_that_will_move_counts_where_it_will_be() {
        let machine = Recorded::new(IXGBE);
        machine.interrupt_on(40, "0\n");
        machine.write("proc/irq/40/smp_affinity_list", "5\n");
        assert_eq!(machine.place(0..1)[0].cpu, Some(4));
        machine.write("proc/irq/40/smp_affinity_list", "5-6\n");
        assert_eq!(machine.place(0..1)[0].cpu, None, "one of two");
        machine.write("proc/irq/40/smp_affinity_list", "0-6\n");
        assert_eq!(machine.place(0..1)[0].cpu, Some(1), "it stays");
    }

    #[test]
    fn workers_do_not_share_a_core_and_stay_with_their_queue_where_none_is_free() {
        let interrupts: String = (0..4)
            .map(|queue| format!(" 4{queue}:   1  PCI-MSI  mlx5_comp{queue}@pci:0000:3b:00.0\n"))
            .collect();
        let machine = Recorded::new(&interrupts);
        (0..4).for_each(|queue| {
            machine.interrupt_on(40 + queue, &queue.to_string());
            machine.write(&format!("sys/class/net/eth0/device/msi_irqs/4{queue}"), "msix");
        });
        let placements = machine.place(0..4);
        let cpus: Vec<Option<u32>> = placements.iter().map(|placement| placement.cpu).collect();
        assert_eq!(cpus, [Some(0), Some(1), Some(2), Some(3)]);
        assert!(placements[0].to_string().contains("no CPU that shares its cache is free"));
    }

    #[test]
    fn workers_of_one_queue_are_not_all_placed_on_its_core() {
        let machine = Recorded::new(IXGBE);
        machine.interrupt_on(40, "0\n");
        let ring = |part| RingName { part: Some(part), ..RingName::of_queue("eth0", 0) };
        let rings: Vec<RingName> = (0..6).map(ring).collect();
        let placements = Machine::at(machine.folder.path()).place(&Pin::Auto, &rings);
        let cpus: Vec<Option<u32>> = placements.iter().map(|placement| placement.cpu).collect();
        assert_eq!(cpus, [Some(1), Some(2), Some(3), Some(0), None, None]);
    }

    #[test]
    fn a_worker_of_a_queue_without_its_own_interrupt_is_not_pinned() {
        let machine = Recorded::new(IXGBE);
        machine.interrupt_on(40, "0-7\n");
        for placement in machine.place(0..3) {
            assert_eq!(placement.cpu, None, "{placement}");
        }
    }

    #[test]
    fn interrupts_name_their_receive_queues() {
        let queues = [
            ("eth0-TxRx-12", Some(12)),
            ("i40e-eth0-TxRx-3", Some(3)),
            ("eth0-rx-2", Some(2)),
            ("eth0-tx-2", None),
            ("virtio1-input.7", Some(7)),
            ("virtio1-output.7", None),
            ("mlx5_comp5@pci:0000:3b:00.0", Some(5)),
            ("ens5-4", Some(4)),
            ("eth0", None),
        ];
        for (action, queue) in queues {
            assert_eq!(receive_queue(action), queue, "{action}");
        }
    }

    #[test]
    fn a_list_is_dealt_out_in_turn() {
        let ring = |queue| RingName::of_queue("eth0", queue);
        let placements =
            Machine::this().place(&Pin::List(vec![3, 1]), &[ring(0), ring(1), ring(2)]);
        assert_eq!(
            placements.iter().map(|placement| placement.cpu).collect::<Vec<_>>(),
            [Some(3), Some(1), Some(3)]
        );
    }
}
