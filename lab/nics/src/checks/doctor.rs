//! `wirecap doctor` on a NIC with bad settings: it reports each of them, and the commands that it
//! prints fix them.

use std::error::Error;
use std::process::Command;

use serde_json::Value;

use super::{Outcome, Verdict};
use crate::bed::{Bed, Nic};
use crate::command::{Running, run, wirecap};

/// The name of a check of `doctor`, and a command that makes the setting bad.
const FAULTS: &[(&str, &str)] = &[
    ("link", "ip link set NIC down"),
    ("mtu", "ip link set NIC mtu 9000"),
    ("ring-size", "ethtool -G NIC rx 128"),
    ("coalescing", "ethtool -C NIC rx-usecs 2000"),
    ("pause", "ethtool -A NIC autoneg off rx on tx on"),
    ("gro", "ethtool -K NIC gro on"),
    ("lro", "ethtool -K NIC lro on"),
    ("gro-hardware", "ethtool -K NIC rx-gro-hw on"),
    ("vlan-offload", "ethtool -K NIC rxvlan on"),
    ("queues", "ethtool -L NIC combined 1"),
    ("indirection", "ethtool -X NIC weight 1"),
    ("rss-symmetry", "ethtool -X NIC hkey $(seq -s : 10 49)"),
    ("hash-fields", "ethtool -N NIC rx-flow-hash udp4 sd"),
    ("deferred-interrupts", "echo 2 > /sys/class/net/NIC/napi_defer_hard_irqs"),
    ("threaded-napi", "echo 1 > /sys/class/net/NIC/threaded"),
];

/// `doctor` reports each fault that the driver allows, and no longer after the commands that it
/// prints. The NIC keeps the new settings.
pub(super) fn finds_and_fixes(bed: &Bed) -> Outcome {
    let nic = &bed.receiver;
    let mut found = 0;
    for (check, plant) in FAULTS {
        if shell(&plant.replace("NIC", &nic.0)).is_err() {
            continue;
        }
        // Many changes take the link down for seconds.
        if *check != "link" {
            nic.wait_for_link()?;
        }
        let fault = finding(nic, check)?.ok_or_else(|| format!("{plant}: {check} is not found"))?;
        for command in fault["commands"].as_array().into_iter().flatten().filter_map(Value::as_str)
        {
            shell(command).map_err(|error| format!("{check}: {error}"))?;
            nic.wait_for_link()?;
        }
        if let Some(fault) = finding(nic, check)? {
            return Err(format!("the commands do not fix it: {fault}").into());
        }
        found += 1;
    }
    Ok(Verdict::Holds(format!("{found} faults")))
}

fn shell(line: &str) -> Result<String, Box<dyn Error>> {
    run("sh", &["-c", line])
}

/// The finding of this check for the interface.
fn finding(nic: &Nic, check: &str) -> Result<Option<Value>, Box<dyn Error>> {
    let doctor =
        Running::start(Command::new(wirecap()).args(["doctor", "--json", &nic.0]))?.end()?;
    let mut diagnosis: Value = serde_json::from_str(&doctor.stdout)?;
    let Value::Array(findings) = diagnosis["findings"].take() else {
        return Err(format!("no findings: {}", doctor.stdout).into());
    };
    let is_it =
        |finding: &Value| finding["check"] == check && finding["interface"] == nic.0.as_str();
    Ok(findings.into_iter().find(is_it))
}
