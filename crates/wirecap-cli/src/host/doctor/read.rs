//! Reads a host: exactly the values that the checks need. Nothing is changed or written, except by
//! the disk test that the user requests.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{major, minor};
use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};
use wirecap::device::{self, ChosenEngine, Device};
use wirecap::{Cgroup, wanted_pool_bytes};

use super::host::{Clock, Disk, FORMAT, Host, Interrupt, Nic, Program, Reading, Upper};
use crate::shared::failure::Failure;

/// Of the whole host.
const FILES: &[&str] = &[
    "/proc/meminfo",
    "/proc/net/softnet_stat",
    "/proc/self/limits",
    "/proc/self/status",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/net/core/bpf_jit_enable",
    "/proc/sys/net/core/bpf_jit_harden",
    "/proc/sys/net/core/busy_poll",
    "/proc/sys/net/core/busy_read",
    "/proc/sys/net/core/netdev_budget",
    "/proc/sys/net/core/netdev_budget_usecs",
    "/proc/sys/net/core/netdev_max_backlog",
    "/sys/devices/system/clocksource/clocksource0/available_clocksource",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "/sys/devices/system/cpu/isolated",
    "/sys/devices/system/cpu/online",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/security/apparmor/profiles",
    "/etc/apparmor.d/abstractions/wirecap-pcap",
    "/etc/apparmor.d/local/usr.bin.tcpdump",
    "/etc/apparmor.d/usr.bin.tcpdump",
];
/// Of a device on a bus.
const DEVICE_FILES: &[&str] = &["current_link_speed", "current_link_width", "numa_node"];
/// Of an interface, in /sys/class/net.
const INTERFACE_FILES: &[&str] = &["ifindex", "napi_defer_hard_irqs", "threaded"];
/// Maximum bytes of a file: no check needs more.
const TEXT_BYTES_MAX: u64 = 1 << 18;
/// What `--write-test` writes.
const WRITE_TEST_BYTES: usize = 256 << 20;

/// The values to be read.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    /// The interfaces; all that are up and not the loopback where none is named.
    pub(crate) interfaces: &'a [String],
    /// Where recordings go.
    pub(crate) directory: &'a Path,
    /// Whether to measure the disk by writing to it.
    pub(crate) write_test: bool,
}

/// Reads everything.
pub(crate) fn host(scope: &Scope<'_>) -> Result<Host, Failure> {
    let mut host = interfaces(scope.interfaces)?;
    host.disk = disk(scope.directory, scope.write_test)?;
    Ok(host)
}

/// Reads everything but the disk.
pub(crate) fn interfaces(names: &[String]) -> Result<Host, Failure> {
    let all = device::devices()?;
    let devices: Vec<Device> = match names {
        [] => all.iter().filter(|device| device.up && !device.is_loopback()).cloned().collect(),
        names => names.iter().map(|name| Device::find(name)).collect::<Result<_, _>>()?,
    };
    let mut files = Files::of_the_host();
    let nics =
        devices.iter().map(|device| nic(device, &all, &mut files)).collect::<Result<_, _>>()?;
    Ok(files.with(nics))
}

/// The same for interfaces that were already looked up; removed ones are skipped.
pub(crate) fn known(devices: &[Device]) -> Host {
    let mut files = Files::of_the_host();
    let examined = devices.iter().filter(|device| !device.is_loopback());
    let nics = examined.filter_map(|device| nic(device, devices, &mut files).ok()).collect();
    files.with(nics)
}

/// Texts by the paths of their files.
#[derive(Debug, Default)]
struct Files(BTreeMap<String, Reading>);

impl Files {
    /// Those that are not of an interface.
    fn of_the_host() -> Self {
        let mut files = Self::default();
        FILES.iter().for_each(|path| files.read(path));
        processors(&mut files);
        processes(&mut files);
        files
    }

    /// The host with these interfaces.
    fn with(self, nics: Vec<Nic>) -> Host {
        Host { format: FORMAT, files: self.0, nics, cgroups: Cgroup::all(), disk: None }
    }

    fn read(&mut self, path: &str) {
        let reading = match text_of(Path::new(path)) {
            Ok(text) => Reading::Text(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Reading::Failed { error: "not there".to_owned() }
            }
            Err(error) => Reading::Failed { error: error.to_string() },
        };
        self.0.insert(path.to_owned(), reading);
    }

    /// The files `name` in the folders in `parent` whose names are `prefix` and a number.
    fn read_numbered(&mut self, parent: &str, prefix: &str, names: &[&str]) -> Vec<String> {
        let folders: Vec<String> = numbered(parent, prefix)
            .into_iter()
            .map(|number| format!("{parent}/{prefix}{number}"))
            .collect();
        for folder in &folders {
            for name in names {
                self.read(&format!("{folder}/{name}"));
            }
        }
        folders
    }
}

fn text_of(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(TEXT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The numbers in the names in a folder that are `prefix` and a number, in order.
fn numbered(parent: &str, prefix: &str) -> Vec<u32> {
    let names = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = names
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

fn processors(files: &mut Files) {
    const CPU: &str = "/sys/devices/system/cpu";
    for number in numbered(CPU, "cpu") {
        let folder = format!("{CPU}/cpu{number}");
        // Where there is none at all, one line says so.
        let governor = format!("{folder}/cpufreq/scaling_governor");
        if Path::new(&governor).exists() {
            files.read(&governor);
        }
        files.read_numbered(&format!("{folder}/cpuidle"), "state", &["name", "latency", "disable"]);
    }
    files.read_numbered("/sys/devices/system/node", "node", &["cpulist", "distance"]);
}

/// The programs that checks need.
fn processes(files: &mut Files) {
    for pid in numbered("/proc", "") {
        let path = format!("/proc/{pid}/comm");
        if text_of(Path::new(&path)).is_ok_and(|name| name.trim_end() == "irqbalance") {
            files.read(&path);
        }
    }
}

fn nic(device: &Device, all: &[Device], files: &mut Files) -> Result<Nic, Failure> {
    let settings = device.settings()?;
    let choice = device.choose_engine();
    let (engine, rung) = match choice.engine {
        ChosenEngine::Xdp(rung) => ("xdp", rung.map(|rung| rung.to_string())),
        ChosenEngine::Packet => ("packet", None),
    };

    let is_held = !wirecap::holders(device).is_empty();
    let program = |program: &device::AttachedXdp| Program {
        id: program.program_id,
        mode: program.mode.to_string(),
        owner: program.owner().map(|owner| owner.to_string()),
        ours: is_held,
    };

    let mut nic = Nic {
        name: device.name.clone(),
        index: device.index,
        driver: device.driver.clone(),
        kind: device.kind.clone(),
        bus_info: device.bus_info.clone(),
        up: device.up,
        carrier: device.carrier,
        mtu: device.mtu,
        speed_mbps: device.speed_mbps.filter(|_| device.kind.is_none()),
        rx_queues: device.rx_queues,
        host_traffic: device
            .carries_host_traffic()
            .filter(|reason| *reason != device::Reason::Down)
            .map(|reason| reason.to_string()),
        engine: engine.to_owned(),
        rung,
        attached_xdp: device.attached_xdp.iter().map(program).collect(),
        uppers: device
            .uppers
            .iter()
            .map(|upper| Upper { name: upper.name.clone(), kind: upper.kind.clone() })
            .collect(),
        ports: ports(device, all),
        dropped: device.counters().ok().and_then(|counters| counters.dropped),
        wanted_pool_bytes: wanted_pool_bytes(device),
        clock: settings.clock.map(clock),
        settings,
        interrupts: Vec::new(),
    };

    for name in INTERFACE_FILES {
        files.read(&nic.file(name));
    }

    files.read_numbered(&nic.file("queues"), "rx-", &["rps_cpus"]);

    if nic.is_hardware() {
        for path in DEVICE_FILES.iter().filter_map(|name| nic.device_file(name)) {
            files.read(&path);
        }
        nic.interrupts = nic
            .device_file("msi_irqs")
            .map(|folder| interrupts(&folder, files))
            .unwrap_or_default();
    }

    Ok(nic)
}

/// The ports of a bond or a bridge.
fn ports(device: &Device, all: &[Device]) -> Vec<String> {
    if !matches!(device.kind.as_deref(), Some("bond" | "bridge" | "team")) {
        return Vec::new();
    }
    let is_port = |other: &&Device| other.uppers.iter().any(|upper| upper.name == device.name);
    all.iter().filter(is_port).map(|port| port.name.clone()).collect()
}

/// The interrupts in a device's `msi_irqs`, by the names that /proc/irq has for them.
fn interrupts(folder: &str, files: &mut Files) -> Vec<Interrupt> {
    let mut interrupts = Vec::new();

    for number in numbered(folder, "") {
        let place = format!("/proc/irq/{number}");
        files.read(&format!("{place}/smp_affinity_list"));
        files.read(&format!("{place}/effective_affinity_list"));

        let entries = fs::read_dir(&place).into_iter().flatten().flatten();
        let action = entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.file_name());
        interrupts.extend(
            action.map(|name| Interrupt { number, name: name.to_string_lossy().into_owned() }),
        );
    }
    interrupts
}

/// The difference between a device's clock and the system's.
fn clock(number: u32) -> Clock {
    let file = format!("/dev/ptp{number}");
    let tai_ahead_seconds = clock_gettime_dynamic(DynamicClockId::Tai)
        .map_or(0, |tai| (tai.tv_sec - clock_gettime(ClockId::Realtime).tv_sec).max(0));
    Clock { ahead_nanos: ahead(&file).map_err(|error| error.to_string()), tai_ahead_seconds, file }
}

fn ahead(file: &str) -> io::Result<i64> {
    let file = File::open(file)?;
    let nanos = |time: rustix::time::Timespec| time.tv_sec * 1_000_000_000 + time.tv_nsec;
    let before = nanos(clock_gettime(ClockId::Realtime));
    let device = nanos(clock_gettime_dynamic(DynamicClockId::Dynamic(file.as_fd()))?);
    let after = nanos(clock_gettime(ClockId::Realtime));
    Ok(device - (before + (after - before) / 2))
}

/// The disk of a directory; `None` if it is not on a disk, but in memory or on the network.
pub(crate) fn disk(directory: &Path, write_test: bool) -> Result<Option<Disk>, Failure> {
    let failed =
        |error: io::Error| Failure::Failed(format!("{}: {error}", directory.display()).into());
    let number = fs::metadata(directory).map_err(failed)?.dev();
    let measured = if write_test { Some(write_speed(directory).map_err(failed)?) } else { None };
    let folder = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    let Ok(place) = fs::canonicalize(&folder) else { return Ok(None) };

    // A partition has no queue; its parent folder is the disk's.
    let queue = [place.join("queue/rotational"), place.join("../queue/rotational")];
    let rotational =
        queue.iter().find_map(|path| text_of(path).ok()).map(|text| text.trim() == "1");

    Ok(Some(Disk {
        directory: directory.display().to_string(),
        folder,
        place: place.display().to_string(),
        rotational,
        measured_bytes_per_second: measured,
    }))
}

/// Writes an unnamed file and syncs it. Returns bytes per second.
fn write_speed(directory: &Path) -> io::Result<u64> {
    let flags =
        rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(directory, flags, rustix::fs::Mode::RUSR)?);
    let block = vec![0xa5_u8; 1 << 20];
    let start = Instant::now();
    for _ in 0..WRITE_TEST_BYTES / block.len() {
        file.write_all(&block)?;
    }
    file.sync_data()?;
    Ok((WRITE_TEST_BYTES as f64 / start.elapsed().as_secs_f64()) as u64)
}
