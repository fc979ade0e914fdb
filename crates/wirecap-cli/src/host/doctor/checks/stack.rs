//! The kernel's network stack: its backlog and budget, compiled programs, polling.

use crate::host::doctor::finding::{Diagnosis, Finding, Setting, Severity};
use crate::host::doctor::host::{Host, Nic};

const SOFTNET: &str = "/proc/net/softnet_stat";
const BACKLOG: &str = "net.core.netdev_max_backlog";
/// A finding if a CPU had to stop with packets left more often than once in this many packets.
const PACKETS_PER_SQUEEZE: u64 = 10_000;

pub(super) fn check(host: &Host, diagnosis: &mut Diagnosis) {
    softnet(host, diagnosis);
    programs(host, diagnosis);
    busy_polling(host, diagnosis);
}

fn file_of(sysctl: &str) -> String {
    format!("/proc/sys/{}", sysctl.replace('.', "/"))
}

fn sysctl(name: &str) -> Setting {
    Setting::Sysctl { name: name.to_owned() }
}

/// One line of /proc/net/softnet_stat per CPU: packets received, dropped, and times squeezed.
fn softnet_counts(text: &str) -> Vec<[u64; 3]> {
    let count = |word: Option<&str>| word.and_then(|word| u64::from_str_radix(word, 16).ok());
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        Some([count(words.next())?, count(words.next())?, count(words.next())?])
    };
    text.lines().filter_map(line).collect()
}

fn softnet(host: &Host, diagnosis: &mut Diagnosis) {
    let Some(text) = diagnosis.text(host, "drops of the stack", SOFTNET) else { return };
    let counts = softnet_counts(text);
    let sum = |index: usize| counts.iter().map(|counts| counts[index]).sum::<u64>();
    let processed = sum(0);
    let dropped = sum(1);
    let squeezed = sum(2);

    if dropped > 0 {
        let backlog = host.text(&file_of(BACKLOG)).ok().and_then(|text| text.parse::<u64>().ok());
        let better = backlog.map_or(16_384, |backlog| (backlog * 4).max(16_384)).to_string();
        let title = format!("the stack has dropped {dropped} packets before any socket");
        let finding = Finding::of_host("softnet-drops", Severity::Loses, title)
            .seen(SOFTNET, format!("{dropped} dropped of {processed} (second column), since boot"))
            .so("A CPU's backlog (veth, tunnels, RPS) was full. The engine packet's ledger does not include these packets.");
        let from = backlog.map(|backlog| backlog.to_string()).unwrap_or_default();
        let is_known = backlog.is_some();
        diagnosis.found(finding.change(sysctl(BACKLOG), from, &better, is_known));
    }

    if squeezed * PACKETS_PER_SQUEEZE > processed {
        let finding = Finding::of_host(
            "softnet-squeezes",
            Severity::MayLose,
            "CPUs stop receiving before queues are empty",
        )
        .seen(SOFTNET, format!("{squeezed} times in {processed} packets (third column), since boot"))
        .so("The NAPI budget is too small, so packets wait in the device's rings for the next poll.");
        let mut finding = finding;

        for (name, better) in
            [("net.core.netdev_budget", 600), ("net.core.netdev_budget_usecs", 8000)]
        {
            let now = host.text(&file_of(name)).ok().and_then(|text| text.parse::<u64>().ok());
            let better = now.map_or(better, |now| (now * 2).max(better)).to_string();
            let from = now.map(|now| now.to_string()).unwrap_or_default();
            finding = finding.change(sysctl(name), from, &better, now.is_some());
        }
        diagnosis.found(finding);
    }
}

fn programs(host: &Host, diagnosis: &mut Diagnosis) {
    const JIT: &str = "net.core.bpf_jit_enable";
    const HARDEN: &str = "net.core.bpf_jit_harden";

    if diagnosis.number(host, "compilation of BPF programs", &file_of(JIT)) == Some(0) {
        let finding = Finding::of_host(
            "bpf-jit",
            Severity::MayLose,
            "BPF programs are interpreted",
        )
        .seen(file_of(JIT), "0")
        .so("Filters and the XDP program run for each packet and need several times the CPU time.")
        .change(sysctl(JIT), "0", "1", true);
        diagnosis.found(finding);
    }

    if diagnosis.number(host, "hardening of BPF programs", &file_of(HARDEN)) == Some(2) {
        let finding = Finding::of_host(
            "bpf-jit-harden",
            Severity::Costs,
            "root's programs are hardened like those of other users",
        )
        .seen(file_of(HARDEN), "2")
        .so("Constant blinding adds instructions per packet. The value 1 limits it to unprivileged users.")
        .command(sysctl(HARDEN).line("1"));
        diagnosis.found(finding);
    }
}

fn busy_polling(host: &Host, diagnosis: &mut Diagnosis) {
    for name in ["net.core.busy_poll", "net.core.busy_read"] {
        if let Some(micros @ 1..) = diagnosis.number(host, "busy polling", &file_of(name)) {
            let finding = Finding::of_host(
                "busy-poll",
                Severity::Costs,
                "sockets of all programs poll the devices",
            )
            .seen(file_of(name), format!("{micros} µs"))
            .so("Each read and poll of any program first polls the device, on a CPU that workers need.")
            .change(sysctl(name), micros.to_string(), "0", true);
            diagnosis.found(finding);
        }
    }
}

pub(super) fn check_nic(nic: &Nic, host: &Host, diagnosis: &mut Diagnosis) {
    // The mount at /sys may belong to another namespace.
    let index = nic.file("ifindex");
    match host.text(&index) {
        Ok(text) if text == nic.index.to_string() => {}
        Ok(_) => {
            let why =
                "/sys shows another network namespace; mount it anew, as `ip netns exec` does";
            return diagnosis.cannot_see(Some(nic), "NAPI and RPS", why);
        }
        Err(error) => {
            return diagnosis.cannot_see(Some(nic), "NAPI and RPS", format!("{index}: {error}"));
        }
    }

    napi(nic, host, diagnosis);
    steering(nic, host, diagnosis);
}

fn napi(nic: &Nic, host: &Host, diagnosis: &mut Diagnosis) {
    let defer = nic.file("napi_defer_hard_irqs");
    if let Some(rounds @ 1..) = diagnosis.number(host, "deferred interrupts", &defer) {
        let finding = Finding::of_nic(nic, "deferred-interrupts", Severity::MayLose, "interrupts are deferred between packets")
            .seen(&defer, rounds.to_string())
            .so("The kernel polls the rings by a timer instead (gro_flush_timeout). Rings fill between two polls.")
            .change(Setting::File { path: defer.clone() }, rounds.to_string(), "0", true);
        diagnosis.found(finding);
    }

    let threaded = nic.file("threaded");
    if diagnosis.number(host, "threaded receiving", &threaded) == Some(1) {
        let finding = Finding::of_nic(
            nic,
            "threaded-napi",
            Severity::Costs,
            "a kernel thread receives (threaded NAPI)",
        )
        .seen(&threaded, "1")
        .so("It competes with workers for CPUs, and packets wait in the ring until it runs.")
        .change(Setting::File { path: threaded.clone() }, "1", "0", true);
        diagnosis.found(finding);
    }
}

fn steering(nic: &Nic, host: &Host, diagnosis: &mut Diagnosis) {
    // XDP comes before it.
    if nic.is_native_xdp() {
        return;
    }

    let queues = nic.file("queues/rx-");
    let is_set = |(_, text): &(&str, &str)| text.chars().any(|digit| !matches!(digit, '0' | ','));
    let set: Vec<(String, String)> = host
        .matching(&queues, "/rps_cpus")
        .filter(is_set)
        .map(|(queue, text)| (queue.to_owned(), text.to_owned()))
        .collect();
    let Some((first, text)) = set.first() else { return };
    let path = |queue: &str| format!("{queues}{queue}/rps_cpus");
    let mut finding = Finding::of_nic(nic, "packet-steering", Severity::MayLose, "received packets are handed to other CPUs (RPS)")
        .seen(path(first), text)
        .so("They wait in another CPU's backlog. Packets beyond net.core.netdev_max_backlog are dropped, and no ledger counts them.");
    for (queue, text) in &set {
        finding = finding.change(Setting::File { path: path(queue) }, text, "0", true);
    }

    diagnosis.found(finding);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stacks_counts_are_hexadecimal() {
        let text = "19535937 00000000 0000029c 00000000\n049382c2 0000000a 00000177 00000000\n";
        assert_eq!(softnet_counts(text), [[0x1953_5937, 0, 0x29c], [0x0493_82c2, 10, 0x177]]);
    }
}
