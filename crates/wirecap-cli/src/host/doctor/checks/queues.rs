//! Receive queues: their number, their size, and the distribution of flows over them.

use wirecap::device::Channels;

use crate::host::doctor::finding::{Change, Diagnosis, Finding, Setting, Severity, hex, on_off};
use crate::host::doctor::host::{Host, Nic};

/// Deeper rings no longer fit the processors' caches, and the pool behind the ring keeps bursts.
const RING_ENOUGH: u32 = 4096;
/// No driver delays interrupts longer than this by default.
const COALESCING_MAX_MICROS: u32 = 1000;
/// A key by which both directions of a flow have the same Toeplitz hash: the same two bytes over
/// and over.
const SYMMETRIC_KEY: [u8; 2] = [0x6d, 0x5a];

pub(super) fn check(nic: &Nic, host: &Host, diagnosis: &mut Diagnosis) {
    queue_count(nic, host, diagnosis);
    ring_size(nic, diagnosis);
    coalescing(nic, diagnosis);
    pause(nic, diagnosis);
    if nic.rx_queues > 1 {
        spreading(nic, diagnosis);
        hash_fields(nic, diagnosis);
    }
}

/// A change that resets the link is safe only if the host does not use the link.
fn is_idle(nic: &Nic) -> bool {
    nic.host_traffic.is_none()
}

fn queue_count(nic: &Nic, host: &Host, diagnosis: &mut Diagnosis) {
    let Some(channels) = nic.settings.channels else {
        return diagnosis.cannot_see(
            Some(nic),
            "number of queues at most",
            "the driver does not report it (ethtool -l)",
        );
    };
    let processors = host.processors().len() as u32;
    let Channels { rx, rx_max, combined, combined_max } = channels;
    let interface = nic.name.clone();

    let (setting, now, most) = match combined_max {
        0 => (Setting::RxChannels { interface }, rx, rx_max),
        _ => (Setting::CombinedChannels { interface }, combined, combined_max),
    };
    let best = most.min(processors);
    let source = format!("ethtool -l {}", nic.name);
    let cores = "/sys/devices/system/cpu/online";

    if now < best {
        let finding = Finding::of_nic(
            nic,
            "queues",
            Severity::MayLose,
            format!("{now} of {most} receive queues in use, with {processors} CPUs"),
        );
        let finding = finding
            .seen(source, format!("{now} in use, {most} at most"))
            .seen(cores, host.text(cores).unwrap_or_default())
            .so("The kernel receives on one CPU per queue. The other CPUs cannot help when one is overloaded.");
        diagnosis.found(finding.change(setting, now.to_string(), &best.to_string(), is_idle(nic)));
    } else if now > processors && processors > 0 {
        let finding = Finding::of_nic(
            nic,
            "queues",
            Severity::Costs,
            format!("{now} receive queues for {processors} CPUs"),
        );
        let finding = finding
            .seen(source, format!("{now} in use"))
            .seen(cores, host.text(cores).unwrap_or_default())
            .so("Several queues interrupt the same CPU, each for fewer packets, and each needs a pool.");
        diagnosis.found(finding.change(
            setting,
            now.to_string(),
            &processors.to_string(),
            is_idle(nic),
        ));
    }
}

fn ring_size(nic: &Nic, diagnosis: &mut Diagnosis) {
    let Some(ring) = nic.settings.rx_ring else {
        return diagnosis.cannot_see(
            Some(nic),
            "size of receive rings",
            "the driver does not report it (ethtool -g)",
        );
    };
    let enough = ring.descriptors_max.min(RING_ENOUGH);
    if ring.descriptors >= enough {
        return;
    }

    let duration = match nic.ring_fill_micros() {
        Some(micros) => {
            format!(" At the link's speed the shortest frames fill one in {micros} µs.")
        }
        None => String::new(),
    };
    let title = format!(
        "receive rings of {} descriptors, {} at most",
        ring.descriptors, ring.descriptors_max
    );
    let finding = Finding::of_nic(nic, "ring-size", Severity::MayLose, title)
        .seen(
            format!("ethtool -g {}", nic.name),
            format!("RX {} of {}", ring.descriptors, ring.descriptors_max),
        )
        .so(format!(
            "The device drops packets while a ring is full, even if its pool has room.{duration}"
        ));

    let setting = Setting::RxRing { interface: nic.name.clone() };
    diagnosis.found(finding.change(
        setting,
        ring.descriptors.to_string(),
        &enough.to_string(),
        is_idle(nic),
    ));
}

fn coalescing(nic: &Nic, diagnosis: &mut Diagnosis) {
    let Some(coalescing) = nic.settings.rx_coalescing else {
        return diagnosis.cannot_see(
            Some(nic),
            "interrupt coalescing",
            "the driver does not report it (ethtool -c)",
        );
    };
    if coalescing.adaptive {
        return;
    }

    let source = format!("ethtool -c {}", nic.name);
    let value = format!("rx-usecs {}, rx-frames {}", coalescing.usecs, coalescing.frames);
    let setting = Setting::RxUsecs { interface: nic.name.clone() };
    let fill = nic.ring_fill_micros();
    let half =
        fill.map_or(COALESCING_MAX_MICROS, |micros| u32::try_from(micros / 2).unwrap_or(u32::MAX));

    if coalescing.usecs > half.min(COALESCING_MAX_MICROS) {
        let duration = match fill {
            Some(fill) => {
                format!("; at the link's speed the shortest frames fill a ring in {fill} µs")
            }
            None => String::new(),
        };
        let title = format!("interrupts are delayed by {} µs", coalescing.usecs);
        let finding =
            Finding::of_nic(nic, "coalescing", Severity::MayLose, title).seen(source, value).so(format!(
                "The kernel sees packets that much later{duration}. The device drops packets that no longer fit the ring."
            ));

        let better = (half / 4).clamp(1, 50).to_string();
        diagnosis.found(finding.change(setting, coalescing.usecs.to_string(), &better, true));
    } else if coalescing.usecs == 0
        && coalescing.frames <= 1
        && nic.driver.as_deref() != Some("virtio_net")
    {
        // virtio reports 0 and 1 if its device does not support interrupt coalescing.
        let finding =
            Finding::of_nic(nic, "coalescing", Severity::Costs, "one interrupt per packet")
                .seen(source, value)
                .so("Under load a CPU spends its time on interrupts instead of packets.");
        diagnosis.found(finding.change(setting, "0", "20", true));
    }
}

fn pause(nic: &Nic, diagnosis: &mut Diagnosis) {
    let Some(pause) = nic.settings.pause else {
        return diagnosis.cannot_see(
            Some(nic),
            "pause frames",
            "the driver does not report it (ethtool -a)",
        );
    };
    if !pause.rx && !pause.tx {
        return;
    }

    let setting = Setting::Pause { interface: nic.name.clone() };
    let title = match pause.tx {
        true => "the device sends pause frames when it is overloaded",
        false => "the device obeys the peer's pause frames",
    };

    let consequence = match pause.tx {
        true => {
            "The switch or tap then drops the packets uncounted, and may slow down the source of a mirror port."
        }
        false => {
            "Packets that this host sends, with forward or replay, wait while the peer is overloaded."
        }
    };
    let severity = if pause.tx { Severity::MayLose } else { Severity::Note };

    let from = format!(
        "autoneg {} rx {} tx {}",
        on_off(pause.autonegotiate),
        on_off(pause.rx),
        on_off(pause.tx)
    );
    let finding = Finding::of_nic(nic, "pause", severity, title)
        .seen(format!("ethtool -a {}", nic.name), from.clone())
        .so(consequence);
    diagnosis.found(finding.change(setting, from, "autoneg off rx off tx off", is_idle(nic)));
}

fn spreading(nic: &Nic, diagnosis: &mut Diagnosis) {
    let Some(spreading) = &nic.settings.spreading else {
        return diagnosis.cannot_see(
            Some(nic),
            "key and table of the flow hash",
            "the driver does not report it (ethtool -x)",
        );
    };
    let source = format!("ethtool -x {}", nic.name);
    indirection(nic, &spreading.table, &source, diagnosis);

    let key = &spreading.key;
    if key.is_empty() {
        return diagnosis.cannot_see(
            Some(nic),
            "key of the flow hash",
            "the driver does not report it (ethtool -x)",
        );
    }

    let better: Vec<u8> = SYMMETRIC_KEY.into_iter().cycle().take(key.len()).collect();
    let setting = Setting::HashKey { interface: nic.name.clone() };

    if key.iter().all(|&byte| byte == 0) {
        let finding =
            Finding::of_nic(nic, "rss-key", Severity::MayLose, "the key of the flow hash is zero")
                .seen(source, "all bytes are 0")
                .so("Every packet has hash 0 and goes to the same receive queue.");
        diagnosis.found(finding.change(setting, hex(key), &hex(&better), true));
    } else if !is_symmetric(key) && !spreading.symmetric {
        let beginning = hex(&key[..key.len().min(8)]);
        let title = "the two directions of a connection go to different queues";
        let finding = Finding::of_nic(nic, "rss-symmetry", Severity::Note, title)
            .seen(source, format!("key {beginning}:..., not symmetric"))
            .so("A worker that tracks connections on its own queue sees only one direction of most of them.");
        diagnosis.found(finding.change(setting, hex(key), &hex(&better), true));
    }
}

/// Whether exchanging the addresses and the ports does not change the hash: the key repeats every
/// 16 bits.
fn is_symmetric(key: &[u8]) -> bool {
    key.windows(3).all(|bytes| bytes[0] == bytes[2])
}

fn indirection(nic: &Nic, table: &[u32], source: &str, diagnosis: &mut Diagnosis) {
    let mut entries = vec![0_u32; nic.rx_queues as usize];

    for &queue in table {
        match entries.get_mut(queue as usize) {
            Some(count) => *count += 1,
            None => return,
        }
    }

    let least = entries.iter().min().copied().unwrap_or(0);
    let most = entries.iter().max().copied().unwrap_or(0);

    // The length of a table is often not a multiple of the number of queues, so some queues have
    // one entry more.
    if table.is_empty() || most - least <= 1.max(table.len() as u32 / nic.rx_queues / 4) {
        return;
    }

    let without = entries.iter().filter(|count| **count == 0).count();
    let title = match without {
        0 => "the device spreads flows unevenly over its queues".to_owned(),
        _ => format!("{without} of {} receive queues get no flows", nic.rx_queues),
    };

    let counts: Vec<String> = entries.iter().map(ToString::to_string).collect();
    let finding = Finding::of_nic(nic, "indirection", Severity::MayLose, title)
        .seen(source, format!("entries of the table by queue: {}", counts.join(" ")))
        .so("Some queues are overloaded while others are idle.")
        .command(format!("ethtool -X {} equal {}", nic.name, nic.rx_queues));
    diagnosis.found(finding);
}

fn hash_fields(nic: &Nic, diagnosis: &mut Diagnosis) {
    if nic.settings.hash_fields.is_empty() {
        let why = "the driver does not report them (ethtool -n)";
        return diagnosis.cannot_see(Some(nic), "fields of the flow hash", why);
    }

    let poor = |(_, fields): &(&String, &String)| {
        !['s', 'd', 'f', 'n'].iter().all(|part| fields.contains(*part))
    };
    let poor: Vec<_> = nic.settings.hash_fields.iter().filter(poor).collect();
    if poor.is_empty() {
        return;
    }

    let names: Vec<&str> = poor.iter().map(|(flow_type, _)| flow_type.as_str()).collect();
    let severity = match poor.iter().any(|(_, fields)| fields.is_empty()) {
        true => Severity::MayLose,
        false => Severity::Costs,
    };

    let title = format!("the flow hash ignores ports: {}", names.join(", "));
    let mut finding = Finding::of_nic(nic, "hash-fields", severity, title)
        .so("All flows between two hosts go to one receive queue. (With ports, fragments go to other queues than complete packets.)");

    for (flow_type, fields) in poor {
        let shown = if fields.is_empty() { "nothing" } else { fields };
        let setting =
            Setting::HashFields { interface: nic.name.clone(), flow_type: flow_type.clone() };
        finding = finding.seen(format!("ethtool -n {} rx-flow-hash {flow_type}", nic.name), shown);
        finding.commands.push(setting.line("sdfn"));
        if !fields.is_empty() {
            finding.changes.push(Change { setting, from: fields.clone(), to: "sdfn".to_owned() });
        }
    }

    diagnosis.found(finding);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_symmetric_if_two_bytes_repeat() {
        assert!(is_symmetric(&[0x6d, 0x5a, 0x6d, 0x5a, 0x6d]));
        assert!(!is_symmetric(&[0x6d, 0x5a, 0x56, 0xda]));
    }
}
