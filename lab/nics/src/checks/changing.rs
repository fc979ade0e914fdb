//! Capturing while the NIC's settings change.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::under_traffic::with_traffic_that_may_go_on;
use super::{Outcome, Verdict};
use crate::bed::Bed;
use crate::command::{Recording, run};

/// The forms of `ethtool -X`: all on one queue, weights, equal.
pub(super) fn weights(bed: &Bed) -> Outcome {
    if bed.kind.queue_counts.is_empty() {
        return Ok(Verdict::Limit("QEMU's device receives on one queue"));
    }
    bed.receiver.set_queues(4)?;
    let nic = &bed.receiver.0;
    let recording = Recording::start(nic, &[])?;
    let queues = bed.receiver.queues()? as usize;
    let mut one = vec!["0"; queues];
    one[1] = "1";
    let mut shares = vec!["0"; queues];
    (shares[0], shares[2]) = ("3", "1");
    let frames = bed.frames(&[60, 1025], 64, 960)?;
    let third = |part: u64| (part * 320..(part + 1) * 320).map(|number| frames.frame(number));
    let commands = [
        ["weight"].into_iter().chain(one).collect(),
        ["weight"].into_iter().chain(shares).collect(),
        vec!["equal", "4"],
    ];
    for (part, command) in commands.into_iter().enumerate() {
        if let Err(error) = run("ethtool", &[&["-X", nic], &command[..]].concat()) {
            if part == 0 && error.to_string().contains("not supported") {
                return Ok(Verdict::Limit("the driver has no table of queues that can be set"));
            }
            return Err(error);
        }
        bed.send_each(third(part as u64))?;
        bed.rest()?;
    }
    let recorded = recording.end()?;
    run("ethtool", &["-X", nic, "default"])?;
    recorded.is_all_of(&frames)?;
    if recorded.rings()[1] < 320 {
        return Err(format!("weights were not followed: {:?}", recorded.rings()).into());
    }
    Ok(Verdict::ok())
}

/// `ethtool -G` before a capture.
pub(super) fn ring_sizes(bed: &Bed) -> Outcome {
    let nic = &bed.receiver.0;
    let shown = run("ethtool", &["-g", nic])?;
    let before = shown
        .rsplit("RX:")
        .next()
        .and_then(|rest| rest.split_whitespace().next())
        .unwrap_or("256")
        .to_owned();
    let mut outcome = Ok(Verdict::ok());
    for size in ["128", "512"] {
        if run("ethtool", &["-G", nic, "rx", size]).is_err() {
            return Ok(Verdict::Limit("the driver does not change the ring's size"));
        }
        outcome = outcome.and_then(|_| with_descriptors(bed, size));
    }
    run("ethtool", &["-G", nic, "rx", &before])?;
    bed.wait_for_links()?;
    outcome
}

fn with_descriptors(bed: &Bed, size: &str) -> Outcome {
    bed.wait_for_links()?;
    let frames = bed.frames(&[60, 1025, 1514], 16, 600)?;
    let recording = Recording::start(&bed.receiver.0, &[])?;
    bed.send(&frames)?;
    recording.end()?.is_all_of(&frames).map_err(|error| {
        let counts = [bed.sender.counts(), bed.receiver.counts()].join("; ");
        format!("{size} descriptors: {error}; {counts}")
    })?;
    Ok(Verdict::ok())
}

/// `ethtool -G` while packets arrive. Some drivers begin to count at 0 again, and lose packets.
pub(super) fn resized(bed: &Bed) -> Outcome {
    let nic = &bed.receiver.0;
    let resize = |size| run("ethtool", &["-G", nic, "rx", size]);
    if resize("512").is_err() {
        return Ok(Verdict::Limit("the driver does not change the ring's size"));
    }
    bed.wait_for_links()?;
    let outcome = with_traffic_that_may_go_on(bed, |_| {
        // A driver may refuse it while its queues have AF_XDP sockets.
        for size in ["128", "512"] {
            let _refused = resize(size);
        }
        Ok(())
    });
    resize("256")?;
    bed.wait_for_links()?;
    outcome
}

/// `ethtool -C` while packets arrive.
pub(super) fn coalescing(bed: &Bed) -> Outcome {
    let nic = &bed.receiver.0;
    let frames = bed.frames(&[60, 1025], 16, 800)?;
    let recording = Recording::start(nic, &[])?;
    let ended = AtomicBool::new(false);
    let changes = thread::scope(|scope| {
        let changer = scope.spawn(|| {
            let mut changes = 0;
            while !ended.load(Relaxed) {
                for usecs in ["3", "100"] {
                    changes += u32::from(run("ethtool", &["-C", nic, "rx-usecs", usecs]).is_ok());
                    thread::sleep(Duration::from_millis(100));
                }
            }
            changes
        });
        let sent = bed.send(&frames).map_err(|error| error.to_string());
        ended.store(true, Relaxed);
        let changes = changer.join().expect("a thread that runs ethtool");
        sent.map(|()| changes)
    })?;
    recording.end()?.is_all_of(&frames)?;
    match changes {
        0 => Ok(Verdict::Limit("the driver has no coalescing that can be set")),
        _ => Ok(Verdict::ok()),
    }
}

/// Interrupts are moved to another CPU, and `--pin auto` follows.
pub(super) fn interrupts(bed: &Bed) -> Outcome {
    let nic = &bed.receiver.0;
    let folder = bed.receiver.pci_device()?.join("msi_irqs");
    let interrupts = || -> std::io::Result<Vec<String>> {
        fs::read_dir(&folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    };
    let mut moved = Vec::new();
    for cpu in ["1", "2"] {
        let numbers = interrupts()?;
        let mut set = 0;
        for number in &numbers {
            set +=
                u32::from(fs::write(format!("/proc/irq/{number}/smp_affinity_list"), cpu).is_ok());
        }
        if set == 0 {
            return Ok(Verdict::Limit("no interrupt of the device can be moved"));
        }
        let frames = bed.frames(&[60], 16, 200)?;
        let recording = Recording::start(nic, &["--pin", "auto"])?;
        bed.send(&frames)?;
        let recorded = recording.end()?;
        recorded.is_all_of(&frames)?;
        moved.push(recorded.said);
    }
    let places =
        |said: &str| said.split("; ").filter(|line| line.contains("worker")).collect::<String>();
    if places(&moved[0]) == places(&moved[1]) {
        return Err(format!("--pin auto says the same for CPUs 1 and 2: {}", moved[0]).into());
    }
    Ok(Verdict::ok())
}
