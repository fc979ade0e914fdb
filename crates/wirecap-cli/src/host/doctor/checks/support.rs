//! The capabilities of the interface and its driver.

use wirecap::device::XdpSince;
use wirecap::grouped;

use crate::host::doctor::finding::{Diagnosis, Finding, Severity};
use crate::host::doctor::host::{Host, Nic};

pub(super) fn check(nic: &Nic, host: &Host, diagnosis: &mut Diagnosis) {
    link(nic, diagnosis);
    drops(nic, diagnosis);
    program(nic, diagnosis);
    xdp(nic, host, diagnosis);
    ports(nic, diagnosis);
    bus(nic, host, diagnosis);
    clock(nic, diagnosis);
}

fn link(nic: &Nic, diagnosis: &mut Diagnosis) {
    let source = format!("ip link show dev {}", nic.name);
    if !nic.up {
        let finding = Finding::of_nic(nic, "link", Severity::Loses, "the interface is down")
            .seen(source, "not UP")
            .so("Nothing is received.")
            .command(format!("ip link set dev {} up", nic.name));
        diagnosis.found(finding);
    } else if !nic.carrier {
        let finding =
            Finding::of_nic(nic, "link", Severity::Loses, "no carrier: no signal from the peer")
                .seen(source, "NO-CARRIER")
                .so("Nothing is received.")
                .command(format!("ethtool {}", nic.name))
                .advice("check the cable and the peer's port");
        diagnosis.found(finding);
    }
}

fn drops(nic: &Nic, diagnosis: &mut Diagnosis) {
    match nic.dropped {
        Some(0) => {}
        Some(dropped) => {
            let title = format!("the device has dropped {} packets", grouped(dropped));
            let finding = Finding::of_nic(nic, "device-drops", Severity::Loses, title)
                .seen(
                    format!("ethtool -S {}", nic.name),
                    format!("{dropped} since the interface was created"),
                )
                .so("No program on this host saw them: the device's rings or memory were full.")
                .advice("use larger rings, more queues and idle CPUs; see the other findings");
            diagnosis.found(finding.command(format!("wirecap count -i {}", nic.name)));
        }
        None => {
            let driver = nic.kind.as_deref().or(nic.driver.as_deref()).unwrap_or("this driver");
            let finding = Finding::of_nic(nic, "no-drop-counter", Severity::Note, "the device does not report its drops")
                .seen(format!("ethtool -S {}", nic.name), format!("no known drop counter of {driver}"))
                .so("The ledger's column `device` is `-`: drops in the device, or in the host of a virtual machine, are not counted.")
                .advice("compare with the sender's count, or with the switch's or the hypervisor's");
            diagnosis.found(finding);
        }
    }
}

fn program(nic: &Nic, diagnosis: &mut Diagnosis) {
    for program in nic.attached_xdp.iter().filter(|program| !program.ours) {
        let owner = program.owner.as_deref().unwrap_or("owner unknown");
        let switch = match program.mode.as_str() {
            "generic" => "xdpgeneric",
            "offloaded" => "xdpoffload",
            _ => "xdpdrv",
        };
        let finding = Finding::of_nic(nic, "xdp-program", Severity::MayLose, "another XDP program is attached")
            .seen(format!("ip link show dev {}", nic.name), format!("program {} ({}), {owner}", program.id, program.mode))
            .so("It runs before the capture and may drop, change or redirect packets, and the engine xdp cannot attach its own.")
            .command(format!("ip link set dev {} {switch} off", nic.name))
            .advice("if a process holds the program by a BPF link, end that process");
        diagnosis.found(finding);
    }
}

fn xdp(nic: &Nic, host: &Host, diagnosis: &mut Diagnosis) {
    if !nic.is_hardware() {
        return;
    }

    let Some(rung) = nic.rung.as_deref() else {
        if nic.engine == "xdp" {
            diagnosis.cannot_see(
                Some(nic),
                "XDP features of the driver",
                "the kernel (before 6.3) does not report it",
            );
        }
        return;
    };
    let driver = nic.driver.as_deref().unwrap_or("the driver");
    let since = XdpSince::of(driver);
    let kernel = host.kernel();
    let source = "the kernel's netdev family, and /proc/sys/kernel/osrelease";
    let value =
        format!("{rung} on Linux {}", kernel.map_or("?".to_owned(), |kernel| kernel.to_string()));
    let newer = |version| format!("boot Linux {version} or newer, whose {driver} supports it");

    match rung {
        "generic" => {
            let advice = match since {
                Some(since) if kernel.is_none_or(|kernel| kernel < since.native) => {
                    newer(since.native)
                }
                Some(_) => format!(
                    "{driver} has native XDP on this kernel, but does not offer it for this device: see dmesg"
                ),
                None => "another NIC: igb, igc, ixgbe, i40e, ice and mlx5_core have zero-copy"
                    .to_owned(),
            };
            let finding = Finding::of_nic(nic, "xdp", Severity::Costs, format!("{driver} has no native XDP here"))
                .seen(source, value)
                .so("The kernel allocates a socket buffer for each packet and copies it: several times the CPU time, and loss at lower rates.")
                .advice(advice);
            diagnosis.found(finding);
        }
        "native copy" => {
            let advice = match since.and_then(|since| since.zero_copy) {
                Some(version) if kernel.is_none_or(|kernel| kernel < version) => newer(version),
                Some(_) => format!(
                    "{driver} has it on this kernel, but not for this device or its options"
                ),
                None => "no release of this driver is known to support it".to_owned(),
            };
            let finding = Finding::of_nic(
                nic,
                "zero-copy",
                Severity::Costs,
                format!("{driver} copies each packet"),
            )
            .seen(source, value)
            .so("AF_XDP without zero-copy: the kernel copies each packet into its cell.")
            .advice(advice);
            diagnosis.found(finding);
        }
        _ => {}
    }
}

fn ports(nic: &Nic, diagnosis: &mut Diagnosis) {
    if !nic.ports.is_empty() {
        let kind = nic.kind.as_deref().unwrap_or("bond");
        let each: Vec<String> = nic.ports.iter().map(|port| format!("-i {port}")).collect();
        let finding = Finding::of_nic(nic, "ports", Severity::Costs, format!("a {kind} of {}", nic.ports.join(", ")))
            .seen(format!("ip link show master {}", nic.name), nic.ports.join(", "))
            .so("It has no receive queues or drop counters, and packets are captured after their port has processed them. Capture on the ports instead: they have queues and count their drops.")
            .command(format!("wirecap capture {} -w trace.pcapng", each.join(" ")));
        diagnosis.found(finding);
    }

    let is_port =
        |kind: Option<&str>| matches!(kind, Some("bridge" | "bond" | "team" | "openvswitch"));
    for upper in nic.uppers.iter().filter(|upper| is_port(upper.kind.as_deref())) {
        let kind = upper.kind.as_deref().unwrap_or("bridge");
        let title = format!("the interface is a port of the {kind} {}", upper.name);
        let finding = Finding::of_nic(nic, "port", Severity::Note, title)
            .seen(format!("ip link show dev {}", nic.name), format!("master {}", upper.name))
            .so("--engine auto selects packet, because xdp would take the frames from the {kind}. A dedicated capture interface is faster.")
            .command(format!("ip link set dev {} nomaster", nic.name));
        diagnosis.found(finding);
    }
}

/// Mbit/s of a PCI Express link: `8.0 GT/s PCIe` and the number of its lanes.
fn bus_mbps(speed: &str, lanes: &str) -> Option<u64> {
    let transfers: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let lanes: f64 = lanes.parse().ok()?;
    // Up to 5 GT/s eight of ten bits are data, above 128 of 130.
    let share = if transfers <= 5.0 { 0.8 } else { 128.0 / 130.0 };
    Some((transfers * share * lanes * 1000.0) as u64)
}

fn bus(nic: &Nic, host: &Host, diagnosis: &mut Diagnosis) {
    let (Some(speed), Some(width)) =
        (nic.device_file("current_link_speed"), nic.device_file("current_link_width"))
    else {
        return;
    };
    let (Ok(transfers), Ok(lanes)) = (host.text(&speed), host.text(&width)) else {
        if nic.is_hardware() {
            diagnosis.cannot_see(Some(nic), "speed of its bus", format!("{speed} cannot be read"));
        }
        return;
    };
    let (Some(bus), Some(link)) = (bus_mbps(transfers, lanes), nic.speed_mbps) else { return };

    if bus < u64::from(link) {
        let title = format!("the bus carries {bus} Mbit/s, the link {link}");
        let finding = Finding::of_nic(nic, "bus", Severity::MayLose, title)
            .seen(speed, transfers)
            .seen(width, lanes)
            .so("The device drops packets that it cannot transfer in time.")
            .command(format!("lspci -vv -s {}", nic.bus_info.as_deref().unwrap_or_default()))
            .advice("move the card to a slot with more lanes or of a newer generation");
        diagnosis.found(finding);
    }
}

/// Hardware timestamps with a larger error than this are wrong, not just imprecise.
const CLOCK_TOLERANCE_NANOS: u64 = 1_000_000;

fn clock(nic: &Nic, diagnosis: &mut Diagnosis) {
    let Some(clock) = &nic.clock else { return };
    let ahead = match &clock.ahead_nanos {
        Ok(ahead) => *ahead,
        Err(error) => {
            return diagnosis.cannot_see(
                Some(nic),
                "offset of its clock",
                format!("{}: {error}", clock.file),
            );
        }
    };

    // Such clocks tell UTC or TAI.
    let from_tai = ahead - clock.tai_ahead_seconds * 1_000_000_000;
    let offset = if from_tai.unsigned_abs() < ahead.unsigned_abs() { from_tai } else { ahead };
    if offset.unsigned_abs() > CLOCK_TOLERANCE_NANOS {
        let title = format!("the device's clock is off by {}", duration(offset.unsigned_abs()));
        let direction = if offset > 0 { "ahead of" } else { "behind" };
        let finding = Finding::of_nic(nic, "device-clock", Severity::Alters, title)
            .seen(
                &clock.file,
                format!("{} {direction} the system's clock", duration(offset.unsigned_abs())),
            )
            .so("Hardware timestamps are wrong by that much and do not match other interfaces.")
            .command(format!("phc_ctl {} set", nic.name))
            .advice("phc2sys(8) keeps it synchronised");
        diagnosis.found(finding);
    }
}

fn duration(nanos: u64) -> String {
    match nanos {
        0..10_000_000_000 => format!("{} ms", nanos / 1_000_000),
        _ => format!("{} s", grouped(nanos / 1_000_000_000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_carries_its_lanes_without_their_coding() {
        assert_eq!(bus_mbps("5.0 GT/s PCIe", "8"), Some(32_000));
        assert_eq!(bus_mbps("2.5 GT/s PCIe", "1"), Some(2_000));
        assert_eq!(bus_mbps("8.0 GT/s PCIe", "4"), Some(31_507));
        assert_eq!(bus_mbps("Unknown", "0"), None);
    }
}
