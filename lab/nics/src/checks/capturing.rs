//! Capturing on an otherwise idle NIC.

use std::process::Command;
use std::thread;
use std::time::Duration;

use super::{Outcome, Verdict};
use crate::bed::Bed;
use crate::command::{Recording, Running, read, run, wirecap};

/// Lengths at which drivers split frames: around multiples of igb's buffer size, and the maximum at
/// an MTU of 1500.
const LENGTHS: &[u16] = &[60, 61, 1023, 1024, 1025, 1514];
/// The other MTUs.
const MTUS: &[u32] = &[1700, 1800, 3000, 3500, 9000];

/// The mode at an MTU of 1500, and the reason why no better one is used.
pub(super) fn receive_mode(bed: &Bed) -> Outcome {
    let recording = Recording::start(&bed.receiver.0, &[])?;
    let said = recording.end()?.said;
    let receive_mode = receive_mode_of(&said);
    if receive_mode != bed.kind.receive_mode
        || bed.kind.reason.is_some_and(|reason| !said.contains(reason))
    {
        return Err(format!(
            "expected {} because of {:?}: {said}",
            bed.kind.receive_mode, bed.kind.reason
        )
        .into());
    }
    Ok(Verdict::Holds(receive_mode.to_owned()))
}

/// The text in parentheses after "xdp engine".
fn receive_mode_of(said: &str) -> &str {
    said.split("xdp engine (").nth(1).and_then(|rest| rest.split(')').next()).unwrap_or("none")
}

pub(super) fn bytes(bed: &Bed) -> Outcome {
    let frames = bed.frames(LENGTHS, 16, 600)?;
    let recording = Recording::start(&bed.receiver.0, &[])?;
    bed.send(&frames)?;
    let counts = [bed.sender.counts(), bed.receiver.counts()].join("; ");
    recording.end()?.is_all_of(&frames).map_err(|error| format!("{error}; {counts}"))?;
    Ok(Verdict::ok())
}

pub(super) fn mtu(bed: &Bed) -> Outcome {
    let mut receive_modes = Vec::new();
    for &mtu in MTUS {
        bed.set_mtu(mtu)?;
        bed.wait_for_links()?;
        let longest = (mtu + 14) as u16;
        let lengths: Vec<u16> = [60, 1025, 1793, longest - 1, longest]
            .into_iter()
            .filter(|&length| length <= longest)
            .collect();
        let frames = bed.frames(&lengths, 16, 200)?;
        let recording = Recording::start(&bed.receiver.0, &[])?;
        bed.send(&frames)?;
        let recorded = recording.end()?;
        let compared = match mtu <= bed.kind.mtu_max {
            true => recorded.is_all_of(&frames),
            false => recorded.names_the_loss_of(&frames),
        };
        compared.map_err(|error| {
            let counts = [bed.sender.counts(), bed.receiver.counts()].join("; ");
            format!("MTU {mtu}: {error}; {counts}")
        })?;
        receive_modes.push(receive_mode_of(&recorded.said).to_owned());
    }
    receive_modes.dedup();
    let short = |receive_mode: &String| {
        receive_mode.split([' ', '-']).next().unwrap_or_default().to_owned()
    };
    Ok(Verdict::Holds(receive_modes.iter().map(short).collect::<Vec<_>>().join(",")))
}

pub(super) fn queues(bed: &Bed) -> Outcome {
    if bed.kind.queue_counts.is_empty() {
        return Ok(Verdict::Limit("QEMU's device receives on one queue"));
    }
    for &count in bed.kind.queue_counts {
        bed.receiver.set_queues(count)?;
        let frames = bed.frames(&[60, 200], 64, 640)?;
        let recording = Recording::start(&bed.receiver.0, &[])?;
        bed.send(&frames)?;
        let recorded = recording.end()?;
        recorded.is_all_of(&frames).map_err(|error| format!("{count} queues: {error}"))?;
        let used = recorded.rings().iter().filter(|&&packets| packets > 0).count();
        if bed.kind.has_rss && used < count.min(2) as usize {
            return Err(
                format!("{used} rings of {count} queues received: {}", recorded.said).into()
            );
        }
    }
    Ok(Verdict::Holds(
        bed.kind.queue_counts.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    ))
}

/// Attaching a program may change the number of queues: virtio-net adds one per CPU if it has
/// enough.
pub(super) fn queues_at_attach(bed: &Bed) -> Outcome {
    if bed.kind.queue_counts.is_empty() {
        return Ok(Verdict::Limit("QEMU's device receives on one queue"));
    }
    bed.receiver.set_queues(2)?;
    let frames = bed.frames(&[60], 64, 640)?;
    let recording = Recording::start(&bed.receiver.0, &[])?;
    let attached = bed.receiver.queues()?;
    bed.send(&frames)?;
    recording
        .end()?
        .is_all_of(&frames)
        .map_err(|error| format!("2 queues, {attached} with a program: {error}"))?;
    Ok(Verdict::Holds(format!("2 to {attached}")))
}

/// The VLAN tag of a packet: with the driver's offload, the capture reports it; without, it is in
/// the recorded bytes.
pub(super) fn vlan(bed: &Bed) -> Outcome {
    let frames = bed.frames(&[60, 1000], 4, 100)?;
    let tagged: Vec<Vec<u8>> = frames
        .iter()
        .map(|frame| [&frame[..12], &[0x81, 0x00, 0x20, 0x64][..], &frame[12..]].concat())
        .collect();
    for offload in ["off", "on"] {
        if run("ethtool", &["-K", &bed.receiver.0, "rxvlan", offload]).is_err() {
            continue;
        }
        bed.wait_for_links()?;
        let recording = Recording::start(&bed.receiver.0, &[])?;
        bed.send_each(tagged.iter().cloned())?;
        bed.rest()?;
        let recorded = recording.end()?;
        recorded.books(frames.count()).map_err(|error| format!("rxvlan {offload}: {error}"))?;
        let is_as_sent = |frame: &Vec<u8>| tagged.contains(frame);
        let untagged: Vec<_> = frames.iter().collect();
        let warned = recorded.said.contains("removes VLAN tags");
        let is_told = |frame: &Vec<u8>| warned && untagged.contains(frame);
        if !recorded.frames.iter().all(|frame| is_as_sent(frame) || is_told(frame)) {
            return Err(format!("rxvlan {offload}: tags are missing; {}", recorded.said).into());
        }
    }
    Ok(Verdict::ok())
}

pub(super) fn two_processes(bed: &Bed) -> Outcome {
    if bed.kind.queue_counts.is_empty() {
        return Ok(Verdict::Limit("QEMU's device receives on one queue"));
    }
    bed.receiver.set_queues(2)?;
    let nic = &bed.receiver.0;
    let before = Recording::start(&format!("{nic}@0"), &[])?;
    let queues = bed.receiver.queues()?;
    let behind = Recording::start(&format!("{nic}@1-{}", queues - 1), &[])?;
    let frames = bed.frames(&[60, 1025], 64, 640)?;
    bed.send(&frames)?;
    let behind = behind.end()?;
    let before = before.end()?;
    let all = before.frames.iter().chain(&behind.frames).map(Vec::as_slice);
    frames.compare(all).map_err(|error| format!("{error}; {}; {}", before.said, behind.said))?;
    before.books(before.frames.len() as u64)?;
    behind.books(behind.frames.len() as u64)?;
    Ok(Verdict::ok())
}

pub(super) fn tcpdump(bed: &Bed) -> Outcome {
    // Without this option tcpdump would change to a user that this system does not have.
    drop_in(bed, "xdp", "tcpdump", &["-n", "-U", "--immediate-mode", "-Z", "root"], "listening on")
}

pub(super) fn dumpcap(bed: &Bed) -> Outcome {
    // dumpcap first drops all capabilities except CAP_NET_ADMIN and CAP_NET_RAW, with which no
    // program can be loaded.
    drop_in(bed, "packet", "dumpcap", &["-q", "-F", "pcap"], "File:")
}

/// A program that uses the drop-in.
fn drop_in(bed: &Bed, engine: &str, program: &str, options: &[&str], ready: &str) -> Outcome {
    let libraries = wirecap().with_file_name("pcap");
    if !libraries.join("libpcap.so.0.8").exists() {
        return Err(format!("the drop-in is not in {} (make pcap)", libraries.display()).into());
    }
    let frames = bed.frames(LENGTHS, 16, 300)?;
    let file = std::env::temp_dir().join(format!("{program}-{}.pcap", bed.kind.name));
    let mut command = Command::new(program);
    command.args(options).args(["-i", &bed.receiver.0, "-w"]).arg(&file);
    command
        .env("LD_LIBRARY_PATH", &libraries)
        .env("WIRECAP_ENGINE", engine)
        .env("WIRECAP_TAKE", "1");
    let mut running = Running::start(&mut command)?;
    running.wait_for(ready)?;
    bed.send(&frames)?;
    thread::sleep(Duration::from_secs(1));
    let ended = running.interrupt()?;
    let recorded = read(&file)?;
    std::fs::remove_file(&file)?;
    frames
        .compare(recorded.iter().map(|(_, frame)| frame.as_slice()))
        .map_err(|error| format!("{error}; {} {}", ended.stderr, ended.stdout))?;
    Ok(Verdict::ok())
}
