//! `wirecap doctor`: a recorded good host in which single values are replaced by bad ones; real
//! faults on interfaces and processes; and every command that it prints, executed where it can do
//! no harm.
//!
//! The machine is not changed: commands run in separate network and mount namespaces, where files
//! of the record are mounted over the machine's files in /proc and /sys.

mod common;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::Finished;
use serde_json::{Value, json};
use wirecap_testbed::{Interface, Namespace, VethPair, privileged};

const GOOD_HOST: &str = include_str!("doctor/good-host.json");
const WIRECAP: &str = env!("CARGO_BIN_EXE_wirecap");

fn good_host() -> Value {
    serde_json::from_str(GOOD_HOST).unwrap()
}

/// A fault: the check that reports it, its severity, and the change of a good host that causes it.
struct Fault {
    check: &'static str,
    severity: &'static str,
    spoil: Vec<Spoil>,
}

/// A bad value in place of a good one.
enum Spoil {
    /// The contents of a file.
    File(String, &'static str),
    /// A value of the interface, by a JSON pointer.
    Nic(&'static str, Value),
    /// A value of the host, by a JSON pointer.
    Host(&'static str, Value),
}

fn file(path: impl Into<String>, text: &'static str) -> Spoil {
    Spoil::File(path.into(), text)
}

fn fault(
    check: &'static str,
    severity: &'static str,
    spoil: impl IntoIterator<Item = Spoil>,
) -> Fault {
    Fault { check, severity, spoil: spoil.into_iter().collect() }
}

fn nic(
    check: &'static str,
    severity: &'static str,
    pointer: &'static str,
    value: impl Into<Value>,
) -> Fault {
    fault(check, severity, [Spoil::Nic(pointer, value.into())])
}

fn host(check: &'static str, severity: &'static str, path: &str, text: &'static str) -> Fault {
    fault(check, severity, [file(path, text)])
}

fn interrupts(processors: [&'static str; 4]) -> Vec<Spoil> {
    let paths = (41..).flat_map(|number| {
        ["smp", "effective"].map(|kind| format!("/proc/irq/{number}/{kind}_affinity_list"))
    });
    paths
        .zip(processors.into_iter().flat_map(|list| [list, list]))
        .map(|(path, list)| file(path, list))
        .collect()
}

fn faults() -> Vec<Fault> {
    let on = || json!({ "active": true, "changeable": true });
    let cpu = "/sys/devices/system/cpu/cpu";
    let core = "/proc/sys/net/core/";
    vec![
        nic("link", "loses", "/up", false),
        nic("link", "loses", "/carrier", false),
        nic("device-drops", "loses", "/dropped", 1119),
        nic("no-drop-counter", "note", "/dropped", Value::Null),
        nic("long-frames", "loses", "/settings/rx_errors/length", 12),
        nic("crc-errors", "loses", "/settings/rx_errors/crc", 3),
        nic("gro", "note", "/settings/features/rx-gro", on()),
        fault(
            "gro",
            "alters",
            [
                Spoil::Nic("/settings/features/rx-gro", on()),
                Spoil::Nic("/engine", "packet".into()),
                Spoil::Nic("/rung", Value::Null),
            ],
        ),
        nic("lro", "alters", "/settings/features/rx-lro", on()),
        nic("gro-hardware", "alters", "/settings/features/rx-gro-hw", on()),
        nic("segmentation", "alters", "/host_traffic", "the host has address 192.0.2.1/24 on it"),
        nic("vlan-offload", "alters", "/settings/features/rx-vlan-hw-parse", on()),
        nic("device-clock", "alters", "/clock/ahead_nanos", json!({ "Ok": -3_000_000_000_i64 })),
        nic("queues", "may-lose", "/settings/channels/combined_max", 8),
        fault(
            "queues",
            "costs",
            [
                file("/sys/devices/system/cpu/online", "0-1"),
                file("/sys/devices/system/node/node0/cpulist", "0-1"),
                file("/sys/devices/system/node/node1/cpulist", ""),
            ]
            .into_iter()
            .chain(interrupts(["0", "1", "0", "1"])),
        ),
        nic("ring-size", "may-lose", "/settings/rx_ring/descriptors", 512).with([
            file(format!("{cpu}0/cpuidle/state3/latency"), "10"),
            Spoil::Nic("/settings/rx_coalescing/usecs", 4.into()),
        ]),
        nic("coalescing", "may-lose", "/settings/rx_coalescing/usecs", 250),
        nic("coalescing", "costs", "/settings/rx_coalescing/usecs", 0),
        nic("pause", "may-lose", "/settings/pause/tx", true),
        nic("pause", "note", "/settings/pause/rx", true),
        nic(
            "indirection",
            "may-lose",
            "/settings/spreading/table",
            json!([0, 1, 0, 1, 0, 1, 0, 1]),
        ),
        nic("rss-key", "may-lose", "/settings/spreading/key", json!(vec![0; 40])),
        nic("rss-symmetry", "note", "/settings/spreading/key", json!((0..40).collect::<Vec<u8>>())),
        nic("hash-fields", "costs", "/settings/hash_fields/udp4", "sd"),
        nic("hash-fields", "may-lose", "/settings/hash_fields/tcp6", ""),
        nic("mtu", "costs", "/mtu", 9000),
        nic("xdp", "costs", "/rung", "generic"),
        fault(
            "zero-copy",
            "costs",
            [Spoil::Nic("/rung", "native copy".into()), Spoil::Nic("/driver", "igb".into())],
        ),
        nic(
            "xdp-program",
            "may-lose",
            "/attached_xdp",
            json!([{ "id": 7, "mode": "native", "owner": null, "ours": false }]),
        ),
        nic("port", "note", "/uppers", json!([{ "name": "br0", "kind": "bridge" }])),
        nic("ports", "costs", "/ports", json!(["eth1", "eth2"])),
        host("bus", "may-lose", "/sys/bus/pci/devices/0000:03:00.0/current_link_width", "2\n"),
        fault("interrupt-affinity", "may-lose", interrupts(["0", "0", "0", "0"])),
        fault("numa", "may-lose", interrupts(["4", "5", "6", "7"])),
        host("isolated", "costs", "/sys/devices/system/cpu/isolated", "2-3\n"),
        host("isolated", "note", "/sys/devices/system/cpu/isolated", "6-7\n"),
        host(
            "allowed-processors",
            "may-lose",
            "/proc/self/status",
            "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t0\n",
        ),
        host("governor", "may-lose", &format!("{cpu}3/cpufreq/scaling_governor"), "powersave\n"),
        host("idle-states", "may-lose", &format!("{cpu}0/cpuidle/state3/latency"), "890\n"),
        host("irqbalance", "costs", "/proc/812/comm", "irqbalance\n"),
        host(
            "clock-source",
            "may-lose",
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            "hpet\n",
        ),
        fault(
            "clock-source",
            "may-lose",
            [
                file("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"),
                file(
                    "/sys/devices/system/clocksource/clocksource0/available_clocksource",
                    "hpet acpi_pm\n",
                ),
            ],
        ),
        host(
            "softnet-drops",
            "loses",
            "/proc/net/softnet_stat",
            "19535937 0000000c 00000000 00000000\n",
        ),
        host(
            "softnet-squeezes",
            "may-lose",
            "/proc/net/softnet_stat",
            "00010000 00000000 00000100 00000000\n",
        ),
        host("bpf-jit", "may-lose", &format!("{core}bpf_jit_enable"), "0\n"),
        host("bpf-jit-harden", "costs", &format!("{core}bpf_jit_harden"), "2\n"),
        host("busy-poll", "costs", &format!("{core}busy_poll"), "50\n"),
        host("busy-poll", "costs", &format!("{core}busy_read"), "50\n"),
        host("deferred-interrupts", "may-lose", "/sys/class/net/eth1/napi_defer_hard_irqs", "2\n"),
        host("threaded-napi", "costs", "/sys/class/net/eth1/threaded", "1\n"),
        fault(
            "packet-steering",
            "may-lose",
            [
                file("/sys/class/net/eth1/queues/rx-1/rps_cpus", "0e\n"),
                Spoil::Nic("/engine", "packet".into()),
                Spoil::Nic("/rung", Value::Null),
            ],
        ),
        host(
            "locked-memory",
            "may-lose",
            "/proc/self/status",
            "CapEff:\t0000000000000000\nCpus_allowed_list:\t0-7\n",
        ),
        host(
            "open-files",
            "may-lose",
            "/proc/self/limits",
            "Max open files            50                   50      files     \n",
        ),
        host(
            "huge-pages",
            "costs",
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "always madvise [never]\n",
        ),
        fault(
            "memory-cgroup",
            "may-lose",
            [Spoil::Host(
                "/cgroups",
                json!([{ "file": "/sys/fs/cgroup/capture/memory.max", "limit_bytes": 1 << 30, "used_bytes": 0 }]),
            )],
        ),
        host("apparmor", "costs", "/etc/apparmor.d/local/usr.bin.tcpdump", "# nothing\n"),
        fault("disk", "may-lose", [Spoil::Host("/disk/rotational", true.into())]),
        fault(
            "disk",
            "may-lose",
            [Spoil::Host("/disk/measured_bytes_per_second", 300_000_000.into())],
        ),
    ]
}

impl Fault {
    fn with(mut self, more: impl IntoIterator<Item = Spoil>) -> Self {
        self.spoil.extend(more);
        self
    }

    fn planted(&self) -> Value {
        let mut host = good_host();
        for spoil in &self.spoil {
            match spoil {
                Spoil::File(path, text) => host["files"][path] = (*text).into(),
                Spoil::Nic(pointer, value) => put(&mut host["nics"][0], pointer, value.clone()),
                Spoil::Host(pointer, value) => put(&mut host, pointer, value.clone()),
            }
        }
        host
    }
}

fn put(value: &mut Value, pointer: &str, new: Value) {
    *value.pointer_mut(pointer).unwrap_or_else(|| panic!("the record has no {pointer}")) = new;
}

/// Runs `doctor` on a record.
fn judge(host: &Value, arguments: &[&str]) -> Finished {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host.json");
    fs::write(&path, host.to_string()).unwrap();
    let mut command = Command::new(WIRECAP);
    command.args(["doctor", "--from"]).arg(&path).args(arguments).stdin(Stdio::null());
    command.output().unwrap().into()
}

fn findings(output: &Finished) -> Vec<Value> {
    let output: Value =
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:#?}"));
    output["findings"].as_array().unwrap().clone()
}

fn checks(findings: &[Value]) -> Vec<&str> {
    findings.iter().map(|finding| finding["check"].as_str().unwrap()).collect()
}

#[test]
fn nothing_is_found_on_a_good_host() {
    let output = judge(&good_host(), &["--json"]);
    assert_eq!(output.status, Some(0), "{output:#?}");
    let output: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(output, json!({ "findings": [], "unseen": [] }));
    assert_eq!(judge(&good_host(), &[]).stdout, "No findings.\n");
}

#[test]
fn each_planted_fault_is_found_and_nothing_else() {
    let faults = faults();
    for fault in &faults {
        let output = judge(&fault.planted(), &["--json"]);
        let found = findings(&output);
        assert_eq!((output.status, checks(&found)), (Some(3), vec![fault.check]), "{output:#?}");
        let finding = &found[0];
        assert_eq!(finding["severity"], fault.severity, "{finding:#}");
        let text = |key: &str| finding[key].as_str().unwrap_or_default().to_owned();
        assert!(!text("title").is_empty() && !text("consequence").is_empty(), "{finding:#}");
        for evidence in finding["evidence"].as_array().unwrap() {
            assert!(!evidence["source"].as_str().unwrap().is_empty(), "{finding:#}");
        }
        assert!(!finding["evidence"].as_array().unwrap().is_empty(), "{finding:#}");
        assert!(
            !finding["commands"].as_array().unwrap().is_empty() || !text("advice").is_empty(),
            "{finding:#}"
        );
        let shown = judge(&fault.planted(), &[]).stdout;
        let fix_lines = |line: &&str| line.contains("fix  ") || line.starts_with("           ");
        let wide = shown
            .lines()
            .filter(|line| !fix_lines(line) && !line.contains('[') && line.chars().count() > 79);
        assert_eq!(wide.count(), 0, "{shown}");
    }
    let kinds: BTreeSet<&str> = faults.iter().map(|fault| fault.check).collect();
    assert!(kinds.len() >= 40, "{} kinds of faults", kinds.len());
}

#[test]
fn unreadable_values_are_listed_as_unknown() {
    let mut host = good_host();
    host["files"]["/proc/sys/net/core/bpf_jit_harden"] =
        json!({ "error": "Permission denied (os error 13)" });
    host["files"].as_object_mut().unwrap().remove("/proc/net/softnet_stat");
    host["nics"][0]["settings"]["pause"] = Value::Null;
    let output = judge(&host, &["--json"]);
    assert_eq!(output.status, Some(0), "{output:#?}");
    let shown: Value = serde_json::from_str(&output.stdout).unwrap();
    let unseen: Vec<&str> = shown["unseen"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["what"].as_str().unwrap())
        .collect();
    assert_eq!(unseen, ["pause frames", "drops of the stack", "hardening of BPF programs"]);
    let text = judge(&host, &[]).stdout;
    assert!(text.contains("Not checked, state unknown:\n- eth1: pause frames:"), "{text}");
    assert!(text.ends_with("No findings in the checks that could be made.\n"), "{text}");
}

#[test]
fn findings_are_ordered_by_severity() {
    let mut host = good_host();
    for fault in faults().iter().filter(|fault| {
        ["device-drops", "gro-hardware", "bpf-jit", "busy-poll"].contains(&fault.check)
    }) {
        for spoil in &fault.spoil {
            match spoil {
                Spoil::File(path, text) => host["files"][path] = (*text).into(),
                Spoil::Nic(pointer, value) => put(&mut host["nics"][0], pointer, value.clone()),
                Spoil::Host(pointer, value) => put(&mut host, pointer, value.clone()),
            }
        }
    }
    let found = findings(&judge(&host, &["--json"]));
    assert_eq!(
        checks(&found),
        ["device-drops", "gro-hardware", "bpf-jit", "busy-poll", "busy-poll"]
    );
}

#[test]
fn an_invalid_record_is_rejected() {
    judge(&json!({}), &[]).refused(1, &["host.json", "--record"]);
    let mut other = good_host();
    other["format"] = 2.into();
    judge(&other, &[]).refused(1, &["format 2"]);
    judge(&good_host(), &["eth1"]).refused(2, &["--from"]);
    judge(&good_host(), &["--fix"]).refused(2, &["--fix"]);
}

/// Namespaces for commands, with a veth named eth1, and files of a record mounted over those of the
/// machine.
struct World {
    namespace: Namespace,
    folder: tempfile::TempDir,
    pair: VethPair,
}

/// Directories that are mounted over the machine's. /etc is a copy.
const LAID_OVER: &[&str] = &[
    "/proc/irq",
    "/proc/sys/net/core",
    "/sys/devices/system/cpu",
    "/sys/devices/system/clocksource",
    "/sys/kernel/mm/transparent_hugepage",
    "/sys/fs/cgroup",
];

impl World {
    fn new(host: &Value) -> Self {
        let namespace = Namespace::new().unwrap();
        let pair = VethPair::new((&namespace, "a0"), (&namespace, "eth1"), 4, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let world = Self { namespace, folder, pair };
        world.lay(host);
        // The C library and per-CPU maps of the kernel need this file.
        let possible = "/sys/devices/system/cpu/possible";
        fs::copy(possible, world.path(possible)).unwrap();
        world
    }

    /// Writes the files of a record that are mounted over the machine's.
    fn lay(&self, host: &Value) {
        let texts = host["files"]
            .as_object()
            .unwrap()
            .iter()
            .filter_map(|(path, text)| Some((path, text.as_str()?)));
        let cgroup = ("/sys/fs/cgroup/capture/memory.max".to_owned(), "1073741824\n");
        for (path, text) in texts.chain([(&cgroup.0, cgroup.1)]) {
            if LAID_OVER.iter().any(|over| path.starts_with(over))
                || path.starts_with("/etc/apparmor.d/")
            {
                let path = self.path(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
        }
    }

    fn interface(&self) -> &Interface {
        &self.pair.receiver
    }

    /// Runs a script in the namespaces.
    fn run(&self, script: &str) -> Finished {
        let root = self.folder.path().display();
        let lay = |over: &&str| format!("mount --bind {root}{over} {over}\n");
        let laid: String = LAID_OVER
            .iter()
            .filter(|over| self.folder.path().join(&over[1..]).exists())
            .map(lay)
            .collect();
        let etc = match script.contains("/etc/") {
            true => format!(
                "cp -an /etc/. {root}/etc/ 2>/dev/null || :\nmount --bind {root}/etc /etc\n"
            ),
            false => String::new(),
        };
        let bin = Path::new(WIRECAP).parent().unwrap().display();
        let script = format!(
            "set -e\nmount -t sysfs sysfs /sys\nmount -t tmpfs tmpfs /run\n{laid}{etc}cd {root}\nexport PATH={bin}:$PATH:/usr/sbin:/sbin\nset +e\n{script}\n"
        );
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .stdin(Stdio::null());
        self.namespace.run_in(|| command.output()).unwrap().unwrap().into()
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(&path[1..])
    }
}

/// Whether a command's tool is not installed, which the test then reports.
fn is_missing(command: &str) -> bool {
    let word = command.split_whitespace().next().unwrap();
    let tools = ["phc_ctl", "lspci", "systemctl", "apparmor_parser"];
    let found = Command::new("sh")
        .args(["-c", &format!("PATH=$PATH:/usr/sbin:/sbin command -v {word}")])
        .output()
        .unwrap();
    tools.contains(&word) && !found.status.success()
}

/// Error messages of correct commands that a veth, this namespace or these privileges do not allow.
const CANNOT_HERE: &[&str] = &[
    "not supported",
    "Cannot get",
    "exceeds maximum",
    "Operation not permitted",
    "no master",
    "no ptp",
    "does not have a PHC",
    // A kernel without AppArmor.
    "unable to find a suitable fs",
    "not been booted with systemd",
    "one that this process may run on",
];

/// Error messages of incorrect commands.
const MISTYPED: &[&str] =
    &["bit name not found", "bad command line", "unknown parameter", "unrecognized", "sage:"];

/// Whether a command is correct but not possible here.
fn is_refused(said: &str) -> bool {
    let any = |list: &[&str]| list.iter().any(|words| said.contains(words));
    any(CANNOT_HERE) && !any(MISTYPED)
}

/// The files that a command line writes, each with its text: `echo 1 > FILE`, `echo 1 | tee FILE*`,
/// `sysctl -w NAME=1`.
fn written(world: &World, line: &str) -> Vec<(PathBuf, String)> {
    if let Some((name, value)) =
        line.strip_prefix("sysctl -w ").and_then(|rest| rest.split_once('='))
    {
        return vec![(
            world.path(&format!("/proc/sys/{}", name.replace('.', "/"))),
            value.to_owned(),
        )];
    }
    let Some(rest) = line.strip_prefix("echo ") else { return Vec::new() };
    match (rest.split_once(" | tee "), rest.split_once(" > ")) {
        (Some((value, glob)), _) => {
            let (before, after) = glob.split_once('*').unwrap();
            let parent = world.path(before).parent().unwrap().to_owned();
            let prefix = before.rsplit('/').next().unwrap().to_owned();
            let numbers =
                fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().path()).filter(|path| {
                    path.file_name()
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .strip_prefix(&prefix)
                        .is_some_and(|rest| rest.parse::<u32>().is_ok())
                });
            numbers.map(|path| (path.join(&after[1..]), value.to_owned())).collect()
        }
        (None, Some((value, path))) => vec![(world.path(path), value.to_owned())],
        _ => Vec::new(),
    }
}

#[test]
fn every_printed_command_is_executed() {
    if !privileged() {
        return;
    }
    let mut seen = BTreeSet::new();
    let mut done = 0;
    let mut refused = BTreeSet::new();
    let mut missing = BTreeSet::new();
    let mut wrong = BTreeSet::new();
    let world = World::new(&good_host());
    let prepare = "ip link add eth2 type veth peer name b0; ip link set eth2 up";
    assert_eq!(world.run(prepare).status, Some(0));
    for fault in faults() {
        let planted = fault.planted();
        world.lay(&planted);
        let found = findings(&judge(&planted, &["--json"]));
        for command in found[0]["commands"].as_array().unwrap() {
            let line = command.as_str().unwrap().to_owned();
            if !seen.insert(line.clone()) {
                continue;
            }
            if is_missing(&line) {
                missing.insert(line);
                continue;
            }
            // Without a time limit, a capture would not end.
            let script = match line.starts_with("wirecap ") {
                true => format!("rm -f trace.pcapng; {line} --duration 200ms"),
                // Without GRO a veth has no NAPI, and other lines turn GRO off.
                false if line.contains("/threaded") => format!("ethtool -K eth1 gro on; {line}"),
                false => line.clone(),
            };
            let output = world.run(&script);
            let said = format!("{}{}", output.stdout, output.stderr);
            for (path, value) in
                written(&world, &line).into_iter().filter(|(path, _)| path.exists())
            {
                assert_eq!(
                    fs::read_to_string(&path).unwrap().trim(),
                    value,
                    "{}: {line}: {said}",
                    path.display()
                );
            }
            match output.status {
                Some(0) => done += 1,
                // The log of this machine has no match for grep.
                Some(1) if line.starts_with("dmesg ") && said.is_empty() => done += 1,
                Some(_) => {
                    let set = if is_refused(&said) { &mut refused } else { &mut wrong };
                    set.insert(format!("{line}: {}", said.trim()));
                }
                status => {
                    wrong.insert(format!("{line}: {status:?}: {said}"));
                }
            }
        }
    }
    eprintln!(
        "{} commands: {done} done; for a veth or here not possible: {refused:#?}; not installed: {missing:#?}",
        seen.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Where no test may be skipped, every command was executed.
    assert!(missing.is_empty() || env::var_os("WIRECAP_NO_SKIP").is_none(), "{missing:?}");
    assert!(
        done >= 25 && done + refused.len() + missing.len() == seen.len(),
        "{done} of {}",
        seen.len()
    );
}

#[test]
fn a_mistyped_command_is_detected() {
    if !privileged() {
        return;
    }
    let world = World::new(&good_host());
    for line in [
        "ethtool -G eth1 rxx 4096",
        "ethtool -K eth1 groo off",
        "ip link set dev eth1 mtuu 9000",
        "ethtool -N eth1 rx-flow-hash udp4 xx",
    ] {
        let output = world.run(line);
        let said = format!("{}{}", output.stdout, output.stderr);
        assert!(output.status != Some(0) && !is_refused(&said), "{line}: {said}");
    }
}

/// The settings changed by the faults below.
fn state(world: &World) -> String {
    world
        .run(
            "ethtool -k eth1 | grep -E '^(generic-receive|generic-seg|\ttx-tcp)'; ethtool -l eth1 | tail -n 5; \
             cat /sys/class/net/eth1/napi_defer_hard_irqs /sys/class/net/eth1/queues/rx-*/rps_cpus; \
             cat /proc/sys/net/core/*; cat /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        )
        .stdout
}

#[test]
fn planted_faults_are_found_fixed_and_restored() {
    if !privileged() {
        return;
    }
    let world = World::new(&good_host());
    for (path, text) in [
        ("/proc/sys/net/core/bpf_jit_enable", "0\n"),
        ("/proc/sys/net/core/busy_read", "50\n"),
        ("/sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave\n"),
    ] {
        fs::write(world.path(path), text).unwrap();
    }
    world.interface().add_address("192.0.2.1/24").unwrap();
    let plant = "ethtool -K eth1 gro on && ethtool -L eth1 rx 1 && echo 2 > /sys/class/net/eth1/napi_defer_hard_irqs && \
                 echo 2 > /sys/class/net/eth1/queues/rx-0/rps_cpus";
    assert_eq!(world.run(plant).status, Some(0));
    let before = state(&world);

    let doctor = |options: &str| world.run(&format!("wirecap doctor {options}"));
    let found = findings(&doctor("eth1 --json"));
    let planted = [
        "gro",
        "segmentation",
        "queues",
        "deferred-interrupts",
        "packet-steering",
        "bpf-jit",
        "governor",
        "busy-poll",
    ];
    for check in planted {
        assert!(checks(&found).contains(&check), "{check}: {:?}", checks(&found));
    }
    assert_eq!(state(&world), before, "looking changes nothing");

    // Without consent, nothing is changed.
    let asked = doctor("eth1 --fix --journal journal.json </dev/null");
    assert!(asked.status == Some(3) && asked.stderr.contains("Run this?"), "{asked:#?}");
    assert_eq!(state(&world), before, "{asked:#?}");

    let fixed = doctor("eth1 --fix --yes --json --journal journal.json");
    let left = findings(&fixed);
    assert_eq!(fixed.status, Some(3), "{fixed:#?}");
    // The fix for the queues is for the user to run: it resets the link on many devices.
    for check in planted.iter().filter(|check| **check != "queues") {
        assert!(!checks(&left).contains(check), "{check}: {fixed:#?}");
    }
    assert!(checks(&left).contains(&"queues"), "{fixed:#?}");
    assert_ne!(state(&world), before);

    let undone = doctor("--undo --journal journal.json");
    assert_eq!(undone.status, Some(0), "{undone:#?}");
    assert_eq!(state(&world), before, "{undone:#?}");
    let again = doctor("--undo --journal journal.json");
    assert_eq!((again.status, again.stdout.as_str()), (Some(0), "0 changes reverted.\n"));
}

#[test]
fn one_answer_fixes_one_finding() {
    if !privileged() {
        return;
    }
    let world = World::new(&good_host());
    for name in ["busy_poll", "busy_read"] {
        fs::write(world.path(&format!("/proc/sys/net/core/{name}")), "50\n").unwrap();
    }
    let output = world.run("printf 'n\\ny\\n' | wirecap doctor eth1 --fix --journal journal.json");
    assert!(output.stdout.contains("1 change made"), "{output:#?}");
    let value =
        |name: &str| fs::read_to_string(world.path(&format!("/proc/sys/net/core/{name}"))).unwrap();
    assert_eq!(
        (value("busy_poll").lines().next(), value("busy_read").lines().next()),
        (Some("50"), Some("0"))
    );
}

#[test]
fn limits_of_the_process_are_reported() {
    if !privileged() {
        return;
    }
    let world = World::new(&good_host());
    fs::remove_dir_all(world.path("/sys/devices/system/cpu")).unwrap();
    let run = |before: &str| {
        let output = world.run(&format!("{before} wirecap doctor eth1 --json"));
        checks(&findings(&output)).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let good = run("");
    let newly = |before: &str| {
        run(before).into_iter().filter(|check| !good.contains(check)).collect::<Vec<_>>()
    };
    assert_eq!(newly("prlimit --nofile=40"), ["open-files"]);
    assert_eq!(
        newly("prlimit --memlock=65536 setpriv --bounding-set=-all --inh-caps=-all"),
        ["locked-memory"]
    );
    if std::thread::available_parallelism().unwrap().get() > 1 {
        assert_eq!(newly("taskset -c 0"), ["allowed-processors"]);
    }
}

#[test]
fn a_record_has_the_same_findings_as_its_host() {
    if !privileged() {
        return;
    }
    let world = World::new(&good_host());
    let output = world.run(
        "wirecap doctor eth1 --json --record host.json; wirecap doctor --from host.json --json",
    );
    let (live, recorded) = output.stdout.trim().split_once('\n').unwrap();
    assert_eq!(live, recorded, "{output:#?}");
    let again = world.run("wirecap doctor eth1 --record host.json");
    again.refused(1, &["host.json"]);
}

#[test]
fn doctor_lists_unreadable_checks_to_unprivileged_users() {
    if !privileged() {
        return;
    }
    let world = World::new(&good_host());
    let output = world
        .run("setpriv --reuid=65534 --regid=65534 --clear-groups wirecap doctor eth1 --directory / --json");
    let shown: Value =
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:#?}"));
    assert!(output.status == Some(0) || output.status == Some(3), "{output:#?}");
    assert!(!shown["unseen"].as_array().unwrap().is_empty());
}
