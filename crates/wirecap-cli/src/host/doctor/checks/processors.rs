//! Processors: their assignment, and their idle states.

use wirecap::interrupt_cpus;

use crate::host::doctor::finding::{Change, Diagnosis, Finding, Setting, Severity};
use crate::host::doctor::host::{Host, Nic, as_list, list};

/// The limit if no link speed determines how long a ring lasts.
const WAKE_UP_MAX_MICROS: u64 = 100;

const ONLINE: &str = "/sys/devices/system/cpu/online";
const ISOLATED: &str = "/sys/devices/system/cpu/isolated";

pub(super) fn check(host: &Host, diagnosis: &mut Diagnosis) {
    allowed(host, diagnosis);
    governor(host, diagnosis);
    idle(host, diagnosis);
    irqbalance(host, diagnosis);
    clock_source(host, diagnosis);
}

pub(super) fn check_nic(nic: &Nic, host: &Host, diagnosis: &mut Diagnosis) {
    if !nic.is_hardware() {
        return;
    }

    let interrupts = nic.rx_interrupts();
    if interrupts.is_empty() {
        return diagnosis.cannot_see(
            Some(nic),
            "interrupts",
            "none are listed for its device (/proc/irq)",
        );
    }

    let mut served: Vec<(u32, Vec<u32>)> = Vec::new();

    for interrupt in interrupts {
        let folder = format!("/proc/irq/{}", interrupt.number);
        let effective = host.text(&format!("{folder}/effective_affinity_list")).ok();
        let allowed = host.text(&format!("{folder}/smp_affinity_list"));

        match interrupt_cpus(effective, allowed.ok()) {
            Some(cpus) => served.push((interrupt.number, cpus)),
            None => {
                let why =
                    format!("{folder}/smp_affinity_list: {}", allowed.err().unwrap_or("empty"));
                return diagnosis.cannot_see(Some(nic), "CPUs of its interrupts", why);
            }
        }
    }

    affinity(nic, host, &served, diagnosis);
    numa(nic, host, &served, diagnosis);
    isolated(nic, host, &served, diagnosis);
}

/// The processors that should serve the interface: those of its node that are not isolated.
fn best_processors(nic: &Nic, host: &Host) -> Vec<u32> {
    let apart = host.text(ISOLATED).map(list).unwrap_or_default();
    let node = node_of(nic, host);
    let all = host.processors();
    let free = |processor: &u32| !apart.contains(processor);
    let near: Vec<u32> = all
        .iter()
        .copied()
        .filter(free)
        .filter(|at| node.is_none_or(|node| host.node_of(*at) == Some(node)))
        .collect();
    let near = if near.is_empty() { all.iter().copied().filter(free).collect() } else { near };
    if near.is_empty() { all } else { near }
}

fn node_of(nic: &Nic, host: &Host) -> Option<u32> {
    host.text(&nic.device_file("numa_node")?).ok()?.parse().ok()
}

/// The finding with a change of each interrupt to one of `processors` in turn.
fn spread(
    finding: Finding,
    host: &Host,
    served: &[(u32, Vec<u32>)],
    processors: &[u32],
) -> Finding {
    let mut finding = finding;
    for ((number, _), processor) in served.iter().zip(processors.iter().cycle()) {
        let path = format!("/proc/irq/{number}/smp_affinity_list");
        let from = host.text(&path).unwrap_or_default().to_owned();
        let is_safe = !from.is_empty();
        finding = finding.change(Setting::File { path }, from, &processor.to_string(), is_safe);
    }
    finding
}

fn affinity(nic: &Nic, host: &Host, served: &[(u32, Vec<u32>)], diagnosis: &mut Diagnosis) {
    let best = best_processors(nic, host);
    let mut busy: Vec<u32> =
        served.iter().flat_map(|(_, processors)| processors.iter().copied()).collect();
    busy.sort_unstable();
    busy.dedup();

    let wanted = served.len().min(best.len());
    if busy.len() * 2 > wanted || wanted < 2 {
        return;
    }

    let title = format!("{} interrupts of its queues on CPUs {}", served.len(), as_list(&busy));
    let finding = Finding::of_nic(nic, "interrupt-affinity", Severity::MayLose, title)
        .seen("/proc/irq/*/effective_affinity_list", affinity_text(served))
        .seen(ONLINE, host.text(ONLINE).unwrap_or_default())
        .so("The kernel receives the packets of all queues on these CPUs, while other CPUs are idle.");
    diagnosis.found(spread(finding, host, served, &best));
}

fn affinity_text(served: &[(u32, Vec<u32>)]) -> String {
    let each =
        |(number, processors): &(u32, Vec<u32>)| format!("{number}: {}", as_list(processors));
    served.iter().map(each).collect::<Vec<_>>().join(", ")
}

fn numa(nic: &Nic, host: &Host, served: &[(u32, Vec<u32>)], diagnosis: &mut Diagnosis) {
    let nodes = host.matching("/sys/devices/system/node/node", "/cpulist").count();
    if nodes < 2 {
        return;
    }

    let Some(node) = node_of(nic, host) else {
        return diagnosis.cannot_see(
            Some(nic),
            "NUMA node",
            "the firmware does not report it (numa_node is -1 or missing)",
        );
    };
    let far = served
        .iter()
        .flat_map(|(_, processors)| processors)
        .filter_map(|processor| host.node_of(*processor));
    let Some(far) = far.filter(|far| *far != node).max() else { return };
    let path = format!("/sys/devices/system/node/node{node}/distance");
    let distances = host.text(&path).unwrap_or_default();
    let distance = distances.split_whitespace().nth(far as usize).unwrap_or("?");
    let title = format!("the device is at NUMA node {node}, interrupts are served at node {far}");
    let finding = Finding::of_nic(nic, "numa", Severity::MayLose, title)
        .seen(nic.device_file("numa_node").unwrap_or_default(), node.to_string())
        .seen("/proc/irq/*/effective_affinity_list", affinity_text(served))
        .seen(path, format!("{distances} (to node {far}: {distance})"))
        .so("Descriptors and packets cross the link between the nodes, and cells are in remote memory.");
    diagnosis.found(spread(finding, host, served, &best_processors(nic, host)));
}

fn isolated(nic: &Nic, host: &Host, served: &[(u32, Vec<u32>)], diagnosis: &mut Diagnosis) {
    let Ok(text) = host.text(ISOLATED) else { return };
    let apart = list(text);
    if apart.is_empty() {
        return;
    }

    let hit = |(_, processors): &&(u32, Vec<u32>)| {
        processors.iter().any(|processor| apart.contains(processor))
    };
    let hit: Vec<(u32, Vec<u32>)> = served.iter().filter(hit).cloned().collect();
    if hit.is_empty() {
        let title = format!("CPUs {text} are isolated: only pinned threads run there");
        let finding = Finding::of_nic(nic, "isolated", Severity::Note, title)
            .seen(ISOLATED, text)
            .so("Workers without --pin do not run there.")
            .command(format!("wirecap capture -i {} --pin {text} -w trace.pcapng", nic.name));
        return diagnosis.found(finding);
    }

    let finding = Finding::of_nic(
        nic,
        "isolated",
        Severity::Costs,
        format!("interrupts are served on isolated CPUs {text}"),
    );
    let finding = finding
        .seen(ISOLATED, text)
        .seen("/proc/irq/*/effective_affinity_list", affinity_text(&hit))
        .so("A worker pinned to such a CPU is interrupted, which isolation should prevent.");
    diagnosis.found(spread(finding, host, &hit, &best_processors(nic, host)));
}

fn allowed(host: &Host, diagnosis: &mut Diagnosis) {
    let Some(status) = diagnosis.text(host, "CPUs of this process", "/proc/self/status") else {
        return;
    };
    let Some(allowed) = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
    else {
        return;
    };
    let allowed = list(allowed.trim());
    let online = host.processors();
    let apart = host.text(ISOLATED).map(list).unwrap_or_default();

    // An isolated CPU is only in the lists of processes that are pinned to it.
    let usable: Vec<u32> =
        online.iter().copied().filter(|processor| !apart.contains(processor)).collect();
    if usable.iter().all(|processor| allowed.contains(processor)) {
        return;
    }

    let title =
        format!("processes started here use CPUs {} of {}", as_list(&allowed), as_list(&online));
    let finding = Finding::of_host("allowed-processors", Severity::MayLose, title)
        .seen("/proc/self/status", format!("Cpus_allowed_list {}", as_list(&allowed)))
        .seen(ONLINE, as_list(&online))
        .so("Workers and the writer share these CPUs. (Set by taskset, a cpuset cgroup or CPUAffinity of a service.)")
        .command(format!("taskset -pc {} $$", as_list(&online)));
    diagnosis.found(finding);
}

/// What the files of processors below /sys are between.
const CPU: &str = "/sys/devices/system/cpu/cpu";

fn governor(host: &Host, diagnosis: &mut Diagnosis) {
    const GOVERNOR: &str = "/cpufreq/scaling_governor";
    let governors: Vec<(&str, &str)> = host.matching(CPU, GOVERNOR).collect();
    if governors.is_empty() {
        let why =
            format!("{CPU}*{GOVERNOR} is not there, as in a virtual machine, whose host decides");
        return diagnosis.cannot_see(None, "frequency governor", why);
    }

    let slow: Vec<(&str, &str)> =
        governors.into_iter().filter(|(_, name)| *name != "performance").collect();
    let Some((_, name)) = slow.first() else { return };
    let title = format!("{} CPUs have the frequency governor {name}", slow.len());

    let change = |(processor, name): &(&str, &str)| Change {
        setting: Setting::File { path: format!("{CPU}{processor}{GOVERNOR}") },
        from: (*name).to_owned(),
        to: "performance".to_owned(),
    };
    let finding = Finding::of_host("governor", Severity::MayLose, title)
        .seen(format!("{CPU}*{GOVERNOR}"), *name)
        .so("A burst starts at a low CPU frequency, and rings fill before the frequency rises.")
        .changes(format!("echo performance | tee {CPU}*{GOVERNOR}"), slow.iter().map(change));
    diagnosis.found(finding);
}

fn idle(host: &Host, diagnosis: &mut Diagnosis) {
    let mut states: Vec<(&str, u64)> = Vec::new();

    for (place, latency) in host.matching(CPU, "/latency") {
        if let (Some((_, state)), Ok(latency)) = (place.split_once("/cpuidle/"), latency.parse()) {
            let known = states.iter().any(|(known, _)| *known == state);
            if !known {
                states.push((state, latency));
            }
        }
    }

    if states.is_empty() {
        let why = format!(
            "{CPU}*/cpuidle/state* is not there, as in a virtual machine, whose host decides"
        );
        return diagnosis.cannot_see(None, "idle states", why);
    }

    let fill = host.nics.iter().filter_map(Nic::ring_fill_micros).min();
    let most = fill.map_or(WAKE_UP_MAX_MICROS, |micros| micros / 2);
    for (state, latency) in states.into_iter().filter(|(_, latency)| *latency > most) {
        let disable = format!("/cpuidle/{state}/disable");
        let enabled: Vec<&str> = host
            .matching(CPU, &disable)
            .filter(|(_, text)| *text == "0")
            .map(|(processor, _)| processor)
            .collect();
        let Some(first) = enabled.first() else { continue };
        let name = host.text(&format!("{CPU}{first}/cpuidle/{state}/name")).unwrap_or(state);

        let duration = match fill {
            Some(fill) => {
                format!("; at the link's speed the shortest frames fill a ring in {fill} µs")
            }
            None => String::new(),
        };
        let change = |processor: &&str| Change {
            setting: Setting::File { path: format!("{CPU}{processor}{disable}") },
            from: "0".to_owned(),
            to: "1".to_owned(),
        };
        let finding = Finding::of_host(
            "idle-states",
            Severity::MayLose,
            format!("CPUs sleep so deeply that they need {latency} µs to wake"),
        )
        .seen(format!("{CPU}{first}/cpuidle/{state}/latency"), format!("{latency} ({name})"))
        .so(format!("The first packets after a pause wait until a CPU wakes{duration}."))
        .changes(format!("echo 1 | tee {CPU}*{disable}"), enabled.iter().map(change));
        diagnosis.found(finding);
    }
}

fn irqbalance(host: &Host, diagnosis: &mut Diagnosis) {
    let running = host.matching("/proc/", "/comm").find(|(_, name)| *name == "irqbalance");
    // It is for hardware's interrupts only.
    let Some((pid, name)) = running.filter(|_| host.nics.iter().any(Nic::is_hardware)) else {
        return;
    };
    let finding = Finding::of_host("irqbalance", Severity::Costs, "irqbalance moves interrupts during the capture")
        .seen(format!("/proc/{pid}/comm"), name)
        .so("A queue's packets suddenly arrive on another CPU, perhaps a worker's, and changes to interrupt settings do not last.")
        .command("systemctl stop irqbalance")
        .advice("or ban the interrupts of these interfaces: IRQBALANCE_BANNED_CPULIST, --banirq");
    diagnosis.found(finding);
}

fn clock_source(host: &Host, diagnosis: &mut Diagnosis) {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    const AVAILABLE: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

    let Some(source) = diagnosis.text(host, "clock source", SOURCE) else { return };
    if !matches!(source, "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies" | "pit") {
        return;
    }

    let finding = Finding::of_host(
        "clock-source",
        Severity::MayLose,
        format!("the clock source is {source}"),
    )
    .seen(SOURCE, source)
    .so("Each clock reading is a system call of a microsecond or more, once per packet.");
    let available = host.text(AVAILABLE).unwrap_or_default();
    let finding = match available
        .split_whitespace()
        .find(|name| matches!(*name, "tsc" | "kvm-clock" | "arch_sys_counter"))
    {
        Some(better) => {
            finding.change(Setting::File { path: SOURCE.to_owned() }, source, better, true)
        }
        None => finding
            .seen(AVAILABLE, available)
            .command("dmesg --level=warn,err,info | grep -i -e tsc -e clocksource")
            .advice("the kernel found the CPUs' own counter unstable; its log has the reason"),
    };
    diagnosis.found(finding);
}
