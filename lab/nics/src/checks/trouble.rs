//! Capturing while links fail, devices are reset and drivers are unbound, under continuous traffic.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::under_traffic::{with_traffic, with_traffic_until};
use super::{Outcome, Verdict};
use crate::bed::{Bed, Nic};
use crate::command::{Recording, run};
use crate::kind::kind;
use crate::monitor;

/// Time for which a link is down or a device has no driver.
const GAP: Duration = Duration::from_millis(300);
/// Part of the capture's message about a device that was reset.
const SILENT: &str = "sends no interrupts";

/// The first frame is sent as soon as the command reports that it is capturing: no frame may be
/// lost, although drivers drop their link when a program is attached.
pub(super) fn at_once(bed: &Bed) -> Outcome {
    let frames = bed.frames(&[60, 1000], 16, 400)?;
    let recording = Recording::start(&bed.receiver.0, &[])?;
    let had_carrier = bed.receiver.has_carrier();
    bed.sender.wait_for_link()?;
    bed.send(&frames)?;
    let counts = [bed.sender.counts(), bed.receiver.counts()].join("; ");
    recording.end()?.is_all_of(&frames).map_err(|error| match had_carrier {
        true => format!("{error}; {counts}"),
        false => format!("it says \"capturing\" without a carrier; {error}; {counts}"),
    })?;
    Ok(Verdict::ok())
}

/// After a capture was killed, the interface has its previous settings, and the next capture works.
pub(super) fn killed(bed: &Bed) -> Outcome {
    let nic = &bed.receiver;
    let before = left_behind(nic)?;
    let recording = Recording::start(&nic.0, &[])?;
    bed.send(&bed.frames(&[60], 16, 100)?)?;
    recording.kill()?;
    let frames = bed.frames(&[60, 1025], 16, 300)?;
    let recording = Recording::start(&nic.0, &[])?;
    bed.send(&frames)?;
    recording.end()?.is_all_of(&frames)?;
    bed.wait_for_links()?;
    let after = left_behind(nic)?;
    if after != before {
        return Err(format!("it was {before:?}, and is {after:?}").into());
    }
    Ok(Verdict::ok())
}

/// The settings that a capture changes while it runs: the XDP program and promiscuous mode.
fn left_behind(nic: &Nic) -> Result<(bool, bool), Box<dyn Error>> {
    let shown = run("ip", &["-d", "link", "show", "dev", &nic.0])?;
    Ok((shown.contains("xdp"), shown.contains("promiscuity 0")))
}

pub(super) fn flap(bed: &Bed) -> Outcome {
    with_traffic(bed, |scene| {
        scene.nic.set_up(false)?;
        thread::sleep(GAP);
        scene.nic.set_up(true)
    })
}

pub(super) fn set_link(bed: &Bed) -> Outcome {
    with_traffic(bed, |scene| {
        monitor::execute(&format!("set_link {} off", scene.nic.0))?;
        thread::sleep(GAP);
        Ok(monitor::execute(&format!("set_link {} on", scene.nic.0))?)
    })
}

pub(super) fn reset(bed: &Bed) -> Outcome {
    let device = bed.receiver.pci_device()?;
    let methods = fs::read_to_string(device.join("reset_method")).unwrap_or_default();
    if !methods.contains("flr") {
        return Ok(Verdict::Limit("the device has no function-level reset"));
    }
    if !bed.kind.survives_reset {
        // The driver waits for an answer to a command while it holds the RTNL lock, so the whole
        // machine hangs.
        return Ok(Verdict::Limit("virtio_net waits for ever for a device that was reset"));
    }
    fs::write(device.join("reset_method"), "flr")?;
    let outcome = with_traffic(bed, |scene| {
        let told = scene.times(SILENT);
        fs::write(device.join("reset"), "1")?;
        // The capture does not resume by itself; it reports what to do.
        scene.wait_for_more(SILENT, told)?;
        scene.nic.set_up(false)?;
        scene.nic.set_up(true)
    });
    fs::write(device.join("reset_method"), "default")?;
    outcome
}

pub(super) fn rebind(bed: &Bed) -> Outcome {
    with_traffic(bed, |scene| {
        bind_again(scene.nic)?;
        // Queues that attaching a program has added make virtio_net hang: the driver never releases
        // the interface (Linux 7.3: their entries in /sys/class/net/NAME/queues hold a reference).
        if let Some(&most) = bed.kind.queue_counts.last() {
            run("ethtool", &["-L", &scene.nic.0, "combined", &most.to_string()])?;
        }
        scene.nic.set_up(true)
    })
}

/// Unbinds the driver from the device, and binds it again.
fn bind_again(nic: &Nic) -> Result<(), Box<dyn Error>> {
    // For virtio, this is the virtio device below the PCI device.
    let device = fs::canonicalize(Path::new("/sys/class/net").join(&nic.0).join("device"))?;
    let driver = fs::canonicalize(device.join("driver"))?;
    let name =
        device.file_name().and_then(|name| name.to_str()).ok_or("a device without a name")?;
    let address = nic.attribute("address")?;
    fs::write(driver.join("unbind"), name)?;
    thread::sleep(GAP);
    fs::write(driver.join("bind"), name)?;
    rename(&address, &nic.0)
}

/// Renames the interface with this Ethernet address to its previous name.
pub(super) fn rename(address: &str, name: &str) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir("/sys/class/net")? {
        let found = Nic(entry?.file_name().to_string_lossy().into_owned());
        if found.0 != name && found.attribute("address").is_ok_and(|found| found == address) {
            run("ip", &["link", "set", &found.0, "name", name])?;
        }
    }
    Ok(())
}

pub(super) fn device_del_igb() -> Outcome {
    device_del("igb")
}

pub(super) fn device_del_virtio() -> Outcome {
    device_del("virtio")
}

/// The device is removed, and the capture reports it. No further check can run on these NICs.
fn device_del(name: &'static str) -> Outcome {
    with_traffic_until(&Bed::new(kind(name))?, |scene| {
        monitor::execute(&format!("device_del {}", scene.nic.0))?;
        scene.wait_for_more("it was removed", 0)
    })
}
