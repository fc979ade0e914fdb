//! The readings of a host: the texts of files, and the information of drivers and the engine about
//! each interface. A plain value, which can be written to a file and evaluated elsewhere.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wirecap::Cgroup;
use wirecap::device::{Feature, KernelVersion, Settings};

/// The version of the file format. A reader rejects other versions.
pub(crate) const FORMAT: u32 = 1;

/// All readings for the checks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) format: u32,
    /// The files below /proc, /sys and /etc that the checks need.
    pub(crate) files: BTreeMap<String, Reading>,
    /// The interfaces to be checked.
    pub(crate) nics: Vec<Nic>,
    /// The memory cgroups with a limit that this process is in.
    pub(crate) cgroups: Vec<Cgroup>,
    /// Where recordings go.
    pub(crate) disk: Option<Disk>,
}

/// The result of reading a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Reading {
    Text(String),
    Failed { error: String },
}

/// An interface.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Nic {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) driver: Option<String>,
    /// The type of a virtual interface.
    pub(crate) kind: Option<String>,
    /// Its place on a bus.
    pub(crate) bus_info: Option<String>,
    pub(crate) up: bool,
    pub(crate) carrier: bool,
    pub(crate) mtu: u32,
    /// Of a real link.
    pub(crate) speed_mbps: Option<u32>,
    pub(crate) rx_queues: u32,
    /// How the host uses it, if it does.
    pub(crate) host_traffic: Option<String>,
    /// The engine that auto selects: `xdp` or `packet`.
    pub(crate) engine: String,
    /// The rung of `xdp`: `zero-copy`, `native copy` or `generic`; `None` if the kernel does not
    /// report it.
    pub(crate) rung: Option<String>,
    pub(crate) attached_xdp: Vec<Program>,
    /// The bridge, bond or VLAN that gets its frames from it.
    pub(crate) uppers: Vec<Upper>,
    /// Of a bond or a bridge: its ports.
    pub(crate) ports: Vec<String>,
    /// Packets lost by the device since it was created; `None` if its driver does not report them.
    pub(crate) dropped: Option<u64>,
    /// Default packet memory of a capture.
    pub(crate) wanted_pool_bytes: u64,
    pub(crate) settings: Settings,
    /// Its own clock, if it has one.
    pub(crate) clock: Option<Clock>,
    /// Its interrupts.
    pub(crate) interrupts: Vec<Interrupt>,
}

/// An XDP program that is attached.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Program {
    pub(crate) id: u32,
    pub(crate) mode: String,
    pub(crate) owner: Option<String>,
    /// It is a capture's of wirecap.
    pub(crate) ours: bool,
}

/// An interface on another one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Upper {
    pub(crate) name: String,
    pub(crate) kind: Option<String>,
}

/// The clock of a device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Clock {
    /// `/dev/ptp0`.
    pub(crate) file: String,
    /// Its difference to the system's clock in nanoseconds, or why this is unknown.
    pub(crate) ahead_nanos: Result<i64, String>,
    /// The difference between TAI and UTC of the system's clock, in seconds.
    pub(crate) tai_ahead_seconds: i64,
}

/// An interrupt of a device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Interrupt {
    pub(crate) number: u32,
    /// Its name, such as `eth1-TxRx-0`.
    pub(crate) name: String,
}

/// The disk under a directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Disk {
    pub(crate) directory: String,
    /// Its folder in /sys/dev/block.
    pub(crate) folder: String,
    /// The target of this link, whose path contains the bus.
    pub(crate) place: String,
    /// Whether it is rotational, if the kernel reports it.
    pub(crate) rotational: Option<bool>,
    /// Bytes a second, if they were measured by writing.
    pub(crate) measured_bytes_per_second: Option<u64>,
}

impl Host {
    /// The text of a file, or why it could not be read.
    pub(crate) fn text(&self, path: &str) -> Result<&str, &str> {
        match self.files.get(path) {
            Some(Reading::Text(text)) => Ok(text.trim()),
            Some(Reading::Failed { error }) => Err(error),
            None => Err("not in this recording"),
        }
    }

    /// The files whose paths have this beginning and end, each with the part between and its text.
    pub(crate) fn matching<'a>(
        &'a self,
        before: &'a str,
        after: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let range = self
            .files
            .range(before.to_owned()..)
            .take_while(move |(path, _)| path.starts_with(before));
        range.filter_map(move |(path, reading)| match reading {
            Reading::Text(text) => Some((path[before.len()..].strip_suffix(after)?, text.trim())),
            Reading::Failed { .. } => None,
        })
    }

    pub(crate) fn kernel(&self) -> Option<KernelVersion> {
        self.text("/proc/sys/kernel/osrelease").ok().and_then(KernelVersion::parse)
    }

    /// The processors that are online.
    pub(crate) fn processors(&self) -> Vec<u32> {
        self.text("/sys/devices/system/cpu/online").map(list).unwrap_or_default()
    }

    /// The NUMA node of a processor.
    pub(crate) fn node_of(&self, processor: u32) -> Option<u32> {
        let mut nodes = self.matching("/sys/devices/system/node/node", "/cpulist");
        nodes.find(|(_, processors)| list(processors).contains(&processor))?.0.parse().ok()
    }

    /// Bytes of a line of /proc/meminfo.
    pub(crate) fn memory_bytes(&self, key: &str) -> Option<u64> {
        let meminfo = self.text("/proc/meminfo").ok()?;
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    }
}

impl Nic {
    /// A device on a bus, which may be a virtual machine's.
    pub(crate) fn is_hardware(&self) -> bool {
        self.kind.is_none() && self.bus_info.is_some()
    }

    /// Whether auto captures from it by a program in the driver, before the stack does anything to
    /// a packet.
    pub(crate) fn is_native_xdp(&self) -> bool {
        self.engine == "xdp" && self.rung.as_deref().is_some_and(|rung| rung != "generic")
    }

    pub(crate) fn feature(&self, name: &str) -> Option<Feature> {
        self.settings.features.get(name).copied()
    }

    /// The time in which the shortest frames at the link's speed fill a receive ring, in
    /// microseconds.
    pub(crate) fn ring_fill_micros(&self) -> Option<u64> {
        /// Bytes of the shortest frame on the wire: 64 with its check sequence, a preamble of 8, a
        /// gap of 12.
        const SHORTEST_FRAME_BITS: u64 = 84 * 8;
        let ring = self.settings.rx_ring?;
        let speed = u64::from(self.speed_mbps?);
        Some(u64::from(ring.descriptors) * SHORTEST_FRAME_BITS / speed.max(1))
    }

    /// A file of the interface's in /sys, which is that of the process's mount.
    pub(crate) fn file(&self, name: &str) -> String {
        format!("/sys/class/net/{}/{name}", self.name)
    }

    /// A file of its device's.
    pub(crate) fn device_file(&self, name: &str) -> Option<String> {
        self.bus_info.as_ref().map(|place| format!("/sys/bus/pci/devices/{place}/{name}"))
    }

    /// The interrupts that received packets cause.
    pub(crate) fn rx_interrupts(&self) -> Vec<&Interrupt> {
        let is_rx = |interrupt: &&Interrupt| {
            let name = interrupt.name.to_lowercase();
            ["rx", "input", "comp"].iter().any(|word| name.contains(word))
        };
        self.interrupts.iter().filter(is_rx).collect()
    }
}

/// The numbers of a list such as `0-3,8`.
pub(crate) fn list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// The shortest list of these numbers, which are in order.
pub(crate) fn as_list(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let range = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read_and_written() {
        assert_eq!(list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(list(""), [0; 0]);
        for text in ["0-3,8", "5", "", "1,3,5-6"] {
            assert_eq!(as_list(&list(text)), text);
        }
    }
}
