//! Whether the disk is as fast as the links.

use crate::host::doctor::finding::{Diagnosis, Finding, Severity};
use crate::host::doctor::host::{Disk, Host};

/// Maximum sustained sequential write rate of a kind of disk, in bytes per second.
const ROTATING: u64 = 200_000_000;
const SATA: u64 = 550_000_000;
const NVME: u64 = 2_000_000_000;

/// A disk's write rate in bytes per second, and its source.
fn speed(disk: &Disk) -> Option<(u64, &'static str)> {
    if let Some(measured) = disk.measured_bytes_per_second {
        return Some((measured, "measured by writing"));
    }
    match disk.rotational? {
        true => Some((ROTATING, "estimated: a rotating disk")),
        false if disk.place.contains("/nvme") => Some((NVME, "estimated: NVMe")),
        false if disk.place.contains("/ata") => Some((SATA, "estimated: SATA")),
        // The hardware behind a virtual machine's disk, or a RAID, is not visible.
        false => None,
    }
}

pub(super) fn check(host: &Host, diagnosis: &mut Diagnosis) {
    let links: u64 = host.nics.iter().filter_map(|nic| nic.speed_mbps).map(u64::from).sum();
    if links == 0 {
        return;
    }

    let Some(disk) = &host.disk else {
        return diagnosis.cannot_see(
            None,
            "speed of the disk",
            "the directory is on no block device",
        );
    };
    let Some((disk_speed, how)) = speed(disk) else {
        let why = format!("{} does not report it; --write-test measures it", disk.folder);
        return diagnosis.cannot_see(None, "speed of the disk", why);
    };

    let link_speed = links * 1_000_000 / 8;
    if disk_speed >= link_speed {
        return;
    }

    let megabytes = |bytes: u64| bytes / 1_000_000;
    let title = format!(
        "the disk writes {} MB/s, the links carry {} MB/s",
        megabytes(disk_speed),
        megabytes(link_speed)
    );

    let names: Vec<String> = host.nics.iter().map(|nic| format!("-i {}", nic.name)).collect();
    let finding = Finding::of_host("disk", Severity::MayLose, title)
        .seen(format!("{}/queue/rotational", disk.folder), format!("{how}; {}", disk.directory))
        .so("At the links' full speed the disk keeps up only until memory is full. Reduce the snap length, filter, or record on several disks.")
        .command(format!("wirecap capture {} -s 128 -w trace.pcapng", names.join(" ")))
        .advice("`wirecap doctor --write-test` measures the disk by writing 256 MiB");
    diagnosis.found(finding);
}
