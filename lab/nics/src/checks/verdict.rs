//! What the command claims: the engine that `auto` selects, the device's counts, and the verdict on
//! a device that nobody knows to be dead.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{Outcome, Verdict};
use crate::bed::Bed;
use crate::command::{Recording, output_of, run, wirecap};

/// An address of the receiver, in a network for documentation (RFC 5737).
const ADDRESS: &str = "192.0.2.1/24";

/// Without a mark `auto` selects `packet`, with one `xdp`, until the host uses the NIC. One command
/// undoes what the other has changed.
pub(super) fn auto(bed: &Bed) -> Outcome {
    let nic = &bed.receiver.0;
    let before = settings(nic)?;
    let marks = Marks::new(nic)?;
    let frames = bed.frames(&[60, 1025], 16, 300)?;

    let recording = Recording::start_by(marks.command(), nic, &["--engine", "auto"])?;
    bed.send(&frames)?;
    let recorded = recording.end()?;
    recorded.is_all_of(&frames)?;
    if recorded.said.contains("xdp engine") {
        return Err(format!("xdp on a NIC that is not dedicated: {}", recorded.said).into());
    }

    output_of(marks.command().args(["dedicate", nic]))?;
    bed.wait_for_links()?;
    let outcome = hands_back(bed, &marks);
    // It has the address only if the check came so far.
    let _absent = run("ip", &["address", "del", ADDRESS, "dev", nic]);
    output_of(marks.command().args(["release", nic]))?;
    bed.wait_for_links()?;
    outcome?;

    let after = settings(nic)?;
    if after != before {
        return Err(format!("after the release: {after}; before: {before}").into());
    }
    Ok(Verdict::ok())
}

/// The host gets an address on a dedicated NIC while it is captured.
fn hands_back(bed: &Bed, marks: &Marks) -> Result<(), Box<dyn Error>> {
    let nic = &bed.receiver.0;
    let frames = bed.frames(&[60, 1025], 16, 600)?;
    let half = |part: u64| (part * 300..(part + 1) * 300).map(|number| frames.frame(number));

    let mut recording = Recording::start_by(marks.command(), nic, &["--engine", "auto"])?;
    bed.wait_for_links()?;
    bed.send_each(half(0))?;
    bed.rest()?;
    run("ip", &["address", "add", ADDRESS, "dev", nic])?;
    recording.wait_for("handed back to the host")?;
    bed.send_each(half(1))?;
    bed.rest()?;

    let recorded = recording.end()?;
    if !recorded.said.contains("xdp engine") {
        return Err(format!("not xdp on a dedicated NIC: {}", recorded.said).into());
    }
    recorded.is_all_of(&frames)
}

/// What `dedicate` may change.
fn settings(nic: &str) -> Result<String, Box<dyn Error>> {
    let pause = run("ethtool", &["-a", nic]).unwrap_or_default();
    let ipv6 = fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{nic}/disable_ipv6"))?;
    // vmxnet3 suspends LRO while it has a program, and resumes it when another feature is set.
    let offloads = run("ethtool", &["-k", nic])?.replace("off [requested on]", "on");
    Ok([offloads, pause, ipv6].concat())
}

/// A directory for the marks of dedicated NICs.
struct Marks(PathBuf);

impl Marks {
    fn new(nic: &str) -> Result<Self, Box<dyn Error>> {
        let directory = std::env::temp_dir().join(format!("dedicated-{nic}"));
        fs::create_dir_all(&directory)?;
        Ok(Self(directory))
    }

    /// The `wirecap` command with these marks.
    fn command(&self) -> Command {
        let mut command = Command::new(wirecap());
        command.env("WIRECAP_DEDICATED_DIR", &self.0 as &Path);
        command
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

/// The device's count of received packets can be compared with the capture's, and is that of the
/// frames sent.
pub(super) fn device_count(bed: &Bed) -> Outcome {
    let nic = &bed.receiver.0;
    // Merged by GRO, the packets that a generic program sees are not those that the device counts.
    run("ethtool", &["-K", nic, "gro", "off"])?;
    let frames = bed.frames(&[60, 1025], 64, 640)?;
    let recording = Recording::start(nic, &[])?;
    bed.send(&frames)?;
    let recorded = recording.end()?;
    run("ethtool", &["-K", nic, "gro", "on"])?;
    recorded.is_all_of(&frames)?;

    let counted = recorded.ledger["counted"].as_array().cloned().unwrap_or_default();
    let not_compared: Vec<&Value> =
        counted.iter().filter(|place| !place["not_compared"].is_null()).collect();
    let device: u64 = counted.iter().filter_map(|place| place["device"].as_u64()).sum();
    if !not_compared.is_empty() || device != frames.count() {
        let said = &recorded.said;
        return Err(format!("counted {device}, not compared: {not_compared:?}; {said}").into());
    }
    Ok(Verdict::ok())
}

/// What reaches a NIC beside ordinary frames, all numbered and of the experimental ethertype,
/// except pause frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Odd {
    /// 30 bytes, shorter than Ethernet permits. Most senders fill it up.
    Runt,
    /// A pause frame (IEEE 802.3x), which a MAC may keep.
    Pause,
    /// Longer than the receiver's MTU permits.
    OverLong,
}

impl Odd {
    const ALL: [Self; 3] = [Self::Runt, Self::Pause, Self::OverLong];
    /// How many of each are sent.
    const COUNT: u16 = 50;

    fn name(self) -> &'static str {
        match self {
            Self::Runt => "runts",
            Self::Pause => "pause frames",
            Self::OverLong => "over-long frames",
        }
    }

    /// One of them, for the NIC with this address.
    fn frame(self, address: [u8; 6], number: u16) -> Vec<u8> {
        let (to, ethertype, length) = match self {
            Self::Runt => (address, [0x88, 0xb5], 30),
            Self::Pause => ([0x01, 0x80, 0xc2, 0, 0, 0x01], [0x88, 0x08], 60),
            Self::OverLong => (address, [0x88, 0xb6], 2000),
        };
        let mut frame = [&to[..], &[0x02, 0, 0, 0, 0, 0x07], &ethertype].concat();
        // Of a pause frame: opcode 1, and no time.
        frame.extend(if self == Self::Pause { [0, 1, 0, 0] } else { [0; 4] });
        frame.extend(number.to_be_bytes());
        frame.resize(length, 0);
        frame
    }

    /// Whether it is one of them.
    fn is(self, frame: &[u8]) -> bool {
        frame.get(12..14) == Some(&self.frame([0; 6], 0)[12..14])
    }
}

/// Runts, pause frames and over-long frames: what of them the device counts, and the capture sees,
/// is printed. If they are missing and a counter shows it, the verdict is "no" or "not known"; if
/// none is missing, nothing is doubted.
pub(super) fn odd_frames(bed: &Bed) -> Outcome {
    let nic = &bed.receiver.0;
    run("ethtool", &["-K", nic, "gro", "off"])?;
    run("ip", &["link", "set", &bed.sender.0, "mtu", "3000"])?;
    bed.wait_for_links()?;
    let mut wrong = Vec::new();
    for engine in ["xdp", "packet"] {
        for odd in Odd::ALL {
            if let Err(error) = receives(bed, odd, engine) {
                wrong.push(format!("{engine}, {}: {error}", odd.name()));
            }
        }
    }
    run("ethtool", &["-K", nic, "gro", "on"])?;
    match wrong.is_empty() {
        true => Ok(Verdict::ok()),
        false => Err(wrong.join("; ").into()),
    }
}

fn receives(bed: &Bed, odd: Odd, engine: &str) -> Result<(), Box<dyn Error>> {
    let nic = &bed.receiver;
    let address = nic.interface()?.mac;
    let counts = || Ok::<_, Box<dyn Error>>([nic.received()?, nic.discarded()?]);

    let recording =
        Recording::start_by(Command::new(wirecap()), &nic.0, &["--engine", engine, "--take"])?;
    bed.wait_for_links()?;
    bed.rest()?;
    let before = counts()?;
    bed.send_each((0..Odd::COUNT).map(|number| odd.frame(address, number)))?;
    bed.rest()?;
    let after = counts()?;
    let recorded = recording.end()?;

    let [received, discarded] = [0, 1].map(|index| after[index] - before[index]);
    let lengths: Vec<usize> =
        recorded.frames.iter().filter(|frame| odd.is(frame)).map(Vec::len).collect();
    let device = recorded.count("/dropped/device");
    println!(
        "{:>8} {engine}: {} {} sent, {received} counted as received, {discarded} as discarded, {} captured of {:?} bytes, \
         {device} device",
        bed.kind.name,
        Odd::COUNT,
        odd.name(),
        lengths.len(),
        lengths.first(),
    );
    let is_missing = lengths.len() < usize::from(Odd::COUNT);
    // Nothing shows that frames are missing which no counter has.
    if is_missing && discarded > 0 && recorded.knows_no_loss() {
        return Err(format!("frames are missing; {}", recorded.said).into());
    }
    if !is_missing && !recorded.knows_no_loss() {
        return Err(format!("all frames came; {}", recorded.said).into());
    }
    Ok(())
}

/// The device is reset without its driver while the engine `packet` captures, which does not notice
/// it.
pub(super) fn reset_unnoticed(bed: &Bed) -> Outcome {
    let device = bed.receiver.pci_device()?;
    let methods = fs::read_to_string(device.join("reset_method")).unwrap_or_default();
    if !methods.contains("flr") || !bed.kind.survives_reset {
        return Ok(Verdict::Limit(
            "the device cannot be reset without its driver, or not be used again",
        ));
    }
    let nic = &bed.receiver;
    let frames = bed.frames(&[60, 1025], 16, 600)?;
    let half = |part: u64| (part * 300..(part + 1) * 300).map(|number| frames.frame(number));

    let recording = Recording::start_by(Command::new(wirecap()), &nic.0, &["--engine", "packet"])?;
    bed.send_each(half(0))?;
    bed.rest()?;
    fs::write(device.join("reset_method"), "flr")?;
    fs::write(device.join("reset"), "1")?;
    bed.send_each(half(1))?;
    let recorded = recording.end()?;

    fs::write(device.join("reset_method"), "default")?;
    nic.set_up(false)?;
    nic.set_up(true)?;
    bed.wait_for_links()?;
    if (recorded.frames.len() as u64) < frames.count() && recorded.claims_lossless() {
        let came = recorded.frames.len();
        let sent = frames.count();
        return Err(format!("{came} of {sent} frames came; {}", recorded.said).into());
    }
    Ok(Verdict::ok())
}

/// `generate` says that it has sent what the device counted.
pub(super) fn generate(bed: &Bed) -> Outcome {
    let nic = &bed.sender;
    let to = bed.receiver.attribute("address")?;
    bed.rest()?;
    let before = nic.counter("tx_packets")?;
    let options =
        ["generate", "-i", &nic.0, "--to-mac", &to, "--count", "500", "--rate", "5k", "--json"];
    let output = Command::new(wirecap()).args(options).output()?;
    // A driver that sends none of the frames is an error.
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let claimed = if output.status.success() { said["frames"].as_u64() } else { Some(0) };
    bed.wait_for_links()?;
    bed.rest()?;
    let counted = nic.counter("tx_packets")? - before;
    if claimed != Some(counted) {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let what = format!("it claims {claimed:?} frames, and the device sent {counted}");
        return Err(format!("{what}: {said} {stderr}").into());
    }
    match counted {
        0 => Ok(Verdict::Limit("the driver sends no frame for generate, which says so")),
        _ => Ok(Verdict::ok()),
    }
}
