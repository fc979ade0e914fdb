//! Memory, and the process's limits on it.

use crate::host::doctor::finding::{Diagnosis, Finding, Setting, Severity};
use crate::host::doctor::host::{Host, Nic};

const LIMITS: &str = "/proc/self/limits";
const STATUS: &str = "/proc/self/status";
/// A process with it has no limit on locked memory.
const CAP_IPC_LOCK: u32 = 14;
/// Descriptors of a ring, with its file, and of the rest of a capture.
const FILES_PER_RING: u64 = 6;
const FILES_BESIDE: u64 = 32;
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

pub(super) fn check(host: &Host, diagnosis: &mut Diagnosis) {
    locked(host, diagnosis);
    files(host, diagnosis);
    huge_pages(host, diagnosis);
    cgroups(host, diagnosis);
    apparmor(host, diagnosis);
}

/// Default memory of a capture of all interfaces, on a machine with sufficient memory.
fn pool_bytes(host: &Host) -> u64 {
    let wanted: u64 = host.nics.iter().map(|nic| nic.wanted_pool_bytes).sum();
    wanted.min(host.memory_bytes("MemTotal").unwrap_or(u64::MAX) / 8)
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// The soft limit of this name; `None` if there is none.
fn limit(limits: &str, name: &str) -> Option<u64> {
    let rest = limits.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

fn has_capability(status: &str, number: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    effective.is_some_and(|set| set >> number & 1 == 1)
}

fn locked(host: &Host, diagnosis: &mut Diagnosis) {
    let Some(limits) = diagnosis.text(host, "limit on locked memory", LIMITS) else { return };
    let Some(status) = diagnosis.text(host, "privileges", STATUS) else { return };
    let Some(most) = limit(limits, "Max locked memory") else { return };
    let pools = pool_bytes(host);
    let is_needed = host.nics.iter().any(|nic| nic.engine == "xdp");
    if !is_needed || has_capability(status, CAP_IPC_LOCK) || most >= pools {
        return;
    }

    let title = format!("{} of locked memory are allowed, pools need {}", mib(most), mib(pools));
    let finding = Finding::of_host("locked-memory", Severity::MayLose, title)
        .seen(LIMITS, format!("Max locked memory {most}"))
        .seen(STATUS, "CapEff without CAP_IPC_LOCK")
        .so("The engine xdp cannot open its pools as this user, or only small ones.")
        .command("prlimit --pid $$ --memlock=unlimited")
        .advice("for the shell that starts the capture; LimitMEMLOCK=infinity in a service; or grant CAP_IPC_LOCK");
    diagnosis.found(finding);
}

fn files(host: &Host, diagnosis: &mut Diagnosis) {
    let Some(limits) = diagnosis.text(host, "limit on open files", LIMITS) else { return };
    let Some(most) = limit(limits, "Max open files") else { return };
    let rings: u64 = host.nics.iter().map(|nic| u64::from(nic.rx_queues)).sum();
    let needed = rings * FILES_PER_RING + FILES_BESIDE;
    if most >= needed {
        return;
    }

    let finding =
        Finding::of_host("open-files", Severity::MayLose, format!("{most} open files are allowed"))
            .seen(LIMITS, format!("Max open files {most}"))
            .so(format!(
                "A capture of all rings ({rings}) has up to {needed}: it cannot be opened."
            ))
            .command("prlimit --pid $$ --nofile=4096:")
            .advice("for the shell that starts the capture; LimitNOFILE=4096 in a service");
    diagnosis.found(finding);
}

fn huge_pages(host: &Host, diagnosis: &mut Diagnosis) {
    let Some(enabled) = diagnosis.text(host, "huge pages", HUGE_PAGES) else { return };
    let pools = pool_bytes(host);

    let free = diagnosis.text(host, "huge pages", "/proc/meminfo").and_then(|meminfo| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Free:"))?;
        line.trim().parse::<u64>().ok()
    });
    let free = free.unwrap_or(0) << 21;
    if !enabled.contains("[never]") || free >= pools {
        return;
    }

    let finding =
        Finding::of_host("huge-pages", Severity::Costs, "pools are made of pages of 4 KiB")
            .seen(HUGE_PAGES, enabled)
            .seen("/proc/meminfo", format!("free huge pages: {}", mib(free)))
            .so(format!(
                "Opening a capture takes several times longer: {} are {} pages.",
                mib(pools),
                pools >> 12
            ))
            .change(Setting::File { path: HUGE_PAGES.to_owned() }, "never", "madvise", true);
    diagnosis.found(finding);
}

fn cgroups(host: &Host, diagnosis: &mut Diagnosis) {
    let wanted: u64 = host.nics.iter().map(|nic: &Nic| nic.wanted_pool_bytes).sum();
    let Some(cgroup) = host.cgroups.iter().min_by_key(|cgroup| cgroup.limit_bytes) else { return };
    if cgroup.limit_bytes / 8 >= pool_bytes(host) {
        return;
    }

    let file = cgroup.file.display().to_string();

    // Version 1 writes no limit as -1.
    let unlimited = if file.ends_with("memory.max") { "max" } else { "-1" };
    let title = format!("a memory cgroup allows {}", mib(cgroup.limit_bytes));
    let finding = Finding::of_host("memory-cgroup", Severity::MayLose, title)
        .seen(file.clone(), cgroup.limit_bytes.to_string())
        .so(format!(
            "Pools get an eighth of it, {}, instead of {} for these links, so they keep shorter bursts.",
            mib(cgroup.limit_bytes / 8),
            mib(wanted)
        ))
        .change(Setting::File { path: file }, cgroup.limit_bytes.to_string(), unlimited, false);
    diagnosis.found(finding);
}

/// Whether a confined tcpdump can load the libpcap drop-in.
fn apparmor(host: &Host, diagnosis: &mut Diagnosis) {
    const ABSTRACTION: &str = "/etc/apparmor.d/abstractions/wirecap-pcap";
    const PROFILE: &str = "/etc/apparmor.d/usr.bin.tcpdump";
    const LOCAL: &str = "/etc/apparmor.d/local/usr.bin.tcpdump";
    const LOADED: &str = "/sys/kernel/security/apparmor/profiles";

    let (Ok(_), Ok(_)) = (host.text(ABSTRACTION), host.text(PROFILE)) else { return };
    let Some(loaded) = diagnosis.text(host, "AppArmor's profiles", LOADED) else { return };
    let confined =
        loaded.lines().find(|line| line.contains("tcpdump") && line.ends_with("(enforce)"));
    let includes =
        |text: &str| text.lines().any(|line| line.trim() == "include <abstractions/wirecap-pcap>");
    let Some(confined) = confined.filter(|_| !host.text(LOCAL).is_ok_and(includes)) else { return };
    let finding = Finding::of_host(
        "apparmor",
        Severity::Costs,
        "AppArmor keeps tcpdump from the libpcap drop-in",
    )
    .seen(LOADED, confined)
    .seen(LOCAL, "without include <abstractions/wirecap-pcap>")
    .so("tcpdump uses the system's libpcap, with its losses, although the drop-in is installed.")
    .command(format!("echo 'include <abstractions/wirecap-pcap>' >> {LOCAL}"))
    .command(format!("apparmor_parser -r {PROFILE}"));
    diagnosis.found(finding);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_found_by_their_names() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max open files            1024                 524288               files     \n\
                      Max locked memory         unlimited            unlimited            bytes     \n";
        assert_eq!(limit(limits, "Max open files"), Some(1024));
        assert_eq!(limit(limits, "Max locked memory"), None);
    }

    #[test]
    fn capabilities_are_bits() {
        assert!(has_capability("CapEff:\t0000000000004000\n", CAP_IPC_LOCK));
        assert!(!has_capability("CapEff:\t0000000000003000\n", CAP_IPC_LOCK));
    }
}
