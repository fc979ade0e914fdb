//! Which findings explain the loss of a running capture, by the place where packets are lost.

use super::finding::{Diagnosis, Finding};

/// The missing resource that lost a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bottleneck {
    /// A free cell, or room in a ring: packets arrived faster than workers took them.
    Pool,
    /// Room in the device.
    Device,
}

/// The checks whose findings slow workers down, or load one worker with the work of several.
const OF_POOL: [&str; 17] = [
    "queues",
    "indirection",
    "rss-key",
    "interrupt-affinity",
    "allowed-processors",
    "governor",
    "idle-states",
    "numa",
    "packet-steering",
    "memory-cgroup",
    "clock-source",
    "bpf-jit",
    "deferred-interrupts",
    "threaded-napi",
    "zero-copy",
    "xdp",
    "huge-pages",
];

/// The checks whose findings keep the kernel from taking packets out of the device in time.
const OF_DEVICE: [&str; 15] = [
    "ring-size",
    "device-drops",
    "crc-errors",
    "link",
    "long-frames",
    "queues",
    "indirection",
    "interrupt-affinity",
    "coalescing",
    "softnet-squeezes",
    "governor",
    "idle-states",
    "bus",
    "deferred-interrupts",
    "packet-steering",
];

/// The host settings that can explain packet loss on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cause {
    check: &'static str,
    /// `None` if it is about the host.
    interface: Option<String>,
    /// `receive rings of 256 descriptors, 4096 at most; fix: ethtool -G eth1 rx 4096`.
    pub(crate) text: String,
}

impl Cause {
    fn of(finding: Finding) -> Self {
        let Finding { check, interface, title, commands, advice, .. } = finding;
        let fix = commands.into_iter().next().or(advice);
        let text = match fix {
            Some(fix) => format!("{title}; fix: {fix}"),
            None => title,
        };
        Self { check, interface, text }
    }

    /// Whether it explains such a loss on this interface.
    pub(crate) fn explains(&self, bottleneck: Bottleneck, interface: &str) -> bool {
        let checks = match bottleneck {
            Bottleneck::Pool => &OF_POOL[..],
            Bottleneck::Device => &OF_DEVICE[..],
        };
        checks.contains(&self.check) && self.interface.as_ref().is_none_or(|own| own == interface)
    }
}

/// All causes of loss that were found, the worst first.
pub(super) fn causes(diagnosis: Diagnosis) -> Vec<Cause> {
    diagnosis.findings.into_iter().map(Cause::of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{checks, host::Host};
    use super::*;

    #[test]
    fn a_short_ring_explains_device_drops_and_an_unused_queue_missing_cells() {
        let mut host: serde_json::Value =
            serde_json::from_str(include_str!("../../../tests/doctor/good-host.json")).unwrap();
        let name = host["nics"][0]["name"].as_str().unwrap().to_owned();
        let settings = &mut host["nics"][0]["settings"];
        settings["rx_ring"] = json!({ "descriptors": 256, "descriptors_max": 4096 });
        settings["channels"]["combined"] = 1.into();

        let host: Host = serde_json::from_value(host).unwrap();
        let causes = causes(checks::diagnose(&host));

        let of = |bottleneck, interface: &str| {
            let mut explaining =
                causes.iter().filter(|cause| cause.explains(bottleneck, interface));
            explaining.next().map(|cause| cause.text.clone())
        };
        let device = of(Bottleneck::Device, &name).unwrap();
        assert!(device.contains("fix: ethtool -"), "{device}");

        let pool = of(Bottleneck::Pool, &name).unwrap();
        assert!(
            pool.contains("receive queues in use") && pool.contains("; fix: ethtool -L"),
            "{pool}"
        );

        let elsewhere = causes.iter().filter(|cause| cause.explains(Bottleneck::Pool, "another0"));
        assert!(elsewhere.into_iter().all(|cause| cause.interface.is_none()), "{causes:?}");

        let ring_size = causes.iter().find(|cause| cause.check == "ring-size").unwrap();
        assert!(
            ring_size.explains(Bottleneck::Device, &name)
                && !ring_size.explains(Bottleneck::Pool, &name)
        );
        assert!(
            ring_size.text.ends_with(&format!("fix: ethtool -G {name} rx 4096")),
            "{}",
            ring_size.text
        );
    }
}
