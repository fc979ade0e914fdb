//! Changes that devices and drivers make to frames before a capture sees them, and frames that they
//! reject.

use wirecap::CellFit;

use crate::host::doctor::finding::{Change, Diagnosis, Finding, Setting, Severity};
use crate::host::doctor::host::{Host, Nic};

/// The usual MTU of networks with long frames.
const LONG_MTU: u32 = 9000;

pub(super) fn check(nic: &Nic, _host: &Host, diagnosis: &mut Diagnosis) {
    if nic.settings.features.is_empty() {
        diagnosis.cannot_see(Some(nic), "offloads", "the driver does not report them (ethtool -k)");
    }
    merging(nic, diagnosis);
    cutting(nic, diagnosis);
    vlan(nic, diagnosis);
    errors(nic, diagnosis);
    cells(nic, diagnosis);
}

fn feature_off(nic: &Nic, name: &str, finding: Finding) -> Finding {
    let finding = finding.seen(format!("ethtool -k {}", nic.name), format!("{name} on"));
    match nic.feature(name) {
        Some(feature) if feature.changeable => {
            let setting = Setting::Feature { interface: nic.name.clone(), name: name.to_owned() };
            finding.change(setting, "on", "off", true)
        }
        _ => finding.advice("the driver cannot disable it; capture on another interface"),
    }
}

fn merging(nic: &Nic, diagnosis: &mut Diagnosis) {
    let merged = |feature| nic.feature(feature).is_some_and(|feature| feature.active);
    if merged("rx-gro") && nic.is_native_xdp() {
        let finding = Finding::of_nic(nic, "gro", Severity::Note, "GRO merges TCP segments for --engine packet")
            .so("--engine auto is not affected here. The engine packet and programs on the libpcap drop-in see packets of up to 64 KiB that were never on the wire.");
        diagnosis.found(feature_off(nic, "rx-gro", finding));
    } else if merged("rx-gro") {
        let finding = Finding::of_nic(nic, "gro", Severity::Alters, "GRO merges received TCP segments")
            .so("Captured packets of up to 64 KiB were never on the wire: their number, lengths and times are wrong.");
        diagnosis.found(feature_off(nic, "rx-gro", finding));
    }

    for (name, check, words) in
        [("rx-lro", "lro", "LRO"), ("rx-gro-hw", "gro-hardware", "GRO in hardware")]
    {
        if merged(name) {
            let finding = Finding::of_nic(
                nic,
                check,
                Severity::Alters,
                format!("the device merges received TCP segments ({words})"),
            );
            let finding = finding.so(
                "Captured packets differ from those on the wire with any engine, and drivers reject XDP programs while this is on.",
            );
            diagnosis.found(feature_off(nic, name, finding));
        }
    }
}

/// Packets that the host sends are captured before they are segmented; this matters only if the
/// host sends.
fn cutting(nic: &Nic, diagnosis: &mut Diagnosis) {
    if nic.host_traffic.is_none() {
        return;
    }

    let is_cut = |name: &str| name == "tx-generic-segmentation" || name.starts_with("tx-tcp");
    let active: Vec<&String> = nic
        .settings
        .features
        .iter()
        .filter(|(name, feature)| is_cut(name) && feature.active && feature.changeable)
        .map(|(name, _)| name)
        .collect();
    if active.is_empty() {
        return;
    }

    let change = |name: &&String| Change {
        setting: Setting::Feature { interface: nic.name.clone(), name: (**name).clone() },
        from: "on".to_owned(),
        to: "off".to_owned(),
    };
    let names: Vec<&str> = active.iter().map(|name| name.as_str()).collect();
    let title = "sent TCP data is captured before segmentation (TSO, GSO)";
    let finding = Finding::of_nic(nic, "segmentation", Severity::Alters, title)
        .seen(format!("ethtool -k {}", nic.name), format!("on: {}", names.join(", ")))
        .so("Packets that this host sends are captured with up to 64 KiB, before they are segmented. Received packets are not affected.")
        .changes(format!("ethtool -K {} tso off gso off", nic.name), active.iter().map(change));
    diagnosis.found(finding);
}

fn vlan(nic: &Nic, diagnosis: &mut Diagnosis) {
    // A veth passes tags outside of the frame; XDP frames contain them. The engine `packet` puts
    // them back.
    if nic.engine != "xdp" || !nic.is_hardware() {
        return;
    }
    for name in ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"] {
        if nic.feature(name).is_some_and(|feature| feature.active) {
            let finding = Finding::of_nic(
                nic,
                "vlan-offload",
                Severity::Alters,
                "the device removes VLAN tags from received frames",
            );
            let finding = finding.so(
                "The engine xdp captures them without their tags, and filters such as `vlan 5` do not match.",
            );
            diagnosis.found(feature_off(nic, name, finding));
        }
    }
}

fn errors(nic: &Nic, diagnosis: &mut Diagnosis) {
    let Some(errors) = nic.settings.rx_errors else {
        return diagnosis.cannot_see(
            Some(nic),
            "refused frames",
            "the kernel does not report them (ip -s -s link)",
        );
    };
    let source = format!("ip -s -s link show dev {}", nic.name);

    if errors.length > 0 {
        let title = format!("the device rejected {} frames for their length", errors.length);
        let finding = Finding::of_nic(nic, "long-frames", Severity::Loses, title)
            .seen(source.clone(), format!("rx length errors {}, MTU {}", errors.length, nic.mtu))
            .so("Frames longer than the MTU are not captured. (Counted since the interface was created.)");
        let finding = match nic.mtu < LONG_MTU {
            true => {
                let setting = Setting::Mtu { interface: nic.name.clone() };
                finding.change(
                    setting,
                    nic.mtu.to_string(),
                    &LONG_MTU.to_string(),
                    nic.host_traffic.is_none(),
                )
            }
            false => finding.advice("raise the MTU further, if the device supports it"),
        };
        diagnosis.found(finding);
    }

    if errors.crc > 0 {
        let title =
            format!("the device rejected {} frames with a wrong checksum (FCS)", errors.crc);
        let finding = Finding::of_nic(nic, "crc-errors", Severity::Loses, title)
            .seen(source, format!("rx crc errors {}", errors.crc))
            .so("They are not captured. The cable, the transceiver or the tap is faulty. (Counted since the interface was created.)")
            .command(format!("ethtool -m {}", nic.name))
            .advice("check the received power, and replace the cable or the transceiver");
        diagnosis.found(finding);
    }
}

fn cells(nic: &Nic, diagnosis: &mut Diagnosis) {
    if nic.engine != "xdp" {
        return;
    }

    let is_zero_copy = nic.rung.as_deref() == Some("zero-copy");
    let fit = CellFit::new(nic.driver.as_deref(), nic.mtu, is_zero_copy);
    let source = format!("ip link show dev {}", nic.name);
    let setting = Setting::Mtu { interface: nic.name.clone() };
    let better = fit.one_buffer_mtu.to_string();

    if is_zero_copy && fit.buffers_per_frame > 1 {
        let title = format!("no zero-copy with an MTU of {}", nic.mtu);
        let driver = nic.driver.as_deref().unwrap_or("the driver");
        let finding = Finding::of_nic(nic, "mtu", Severity::Costs, title).seen(source, format!("mtu {}", nic.mtu)).so(format!(
            "{driver} sizes its buffers in steps of {} bytes, so the longest frame needs {} buffers of a {}-byte cell. wirecap copies instead. An MTU of {better} is enough if no frame is longer.",
            fit.buffer_step_bytes, fit.buffers_per_frame, fit.cell_bytes
        ));
        diagnosis.found(finding.change(setting, nic.mtu.to_string(), &better, false));
    } else if fit.cells_per_frame > 1 {
        let title = format!(
            "the longest frame needs {} cells with an MTU of {}",
            fit.cells_per_frame, nic.mtu
        );
        let finding = Finding::of_nic(nic, "mtu", Severity::Costs, title).seen(source, format!("mtu {}", nic.mtu)).so(format!(
            "A cell has {} bytes. Long frames need several cells, which drivers without multi-buffer XDP reject: the capture then uses generic XDP. An MTU of {better} is enough if no frame is longer.",
            fit.cell_bytes
        ));
        diagnosis.found(finding.change(setting, nic.mtu.to_string(), &better, false));
    }
}
