//! Capturing while links fail, devices are reset and drivers go, with traffic all the while.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use wirecap_testbed::PacketSender;

use super::{Outcome, Verdict};
use crate::bed::{Bed, Nic};
use crate::command::{Recorded, Recording, run, wirecap};
use crate::kind::kind;
use crate::monitor;

/// How often each thing happens, unless it is said.
const TIMES: usize = 3;
pub(crate) static EVENTS: OnceLock<usize> = OnceLock::new();
/// How long a device that was started anew may take until it captures.
const RETURN_TIMEOUT: Duration = Duration::from_secs(40);
/// What passes between two of them, and after the last one.
const CALM: Duration = Duration::from_millis(1500);
const GAP: Duration = Duration::from_millis(300);

/// The first frame goes out as soon as the command says that it captures: nothing is lost then, although drivers drop
/// their link when a program comes.
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

/// A killed capture leaves the interface as it was, and the next one captures.
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

/// What a capture changes on an interface while it runs: its program, promiscuous mode.
fn left_behind(nic: &Nic) -> Result<(bool, bool), Box<dyn Error>> {
    let shown = run("ip", &["-d", "link", "show", "dev", &nic.0])?;
    Ok((shown.contains("xdp"), shown.contains("promiscuity 0")))
}

pub(super) fn flap(bed: &Bed) -> Outcome {
    with_traffic(bed, |nic| {
        nic.set_up(false)?;
        thread::sleep(GAP);
        nic.set_up(true)
    })
}

pub(super) fn set_link(bed: &Bed) -> Outcome {
    with_traffic(bed, |nic| {
        monitor::execute(&format!("set_link {} off", nic.0))?;
        thread::sleep(GAP);
        Ok(monitor::execute(&format!("set_link {} on", nic.0))?)
    })
}

pub(super) fn reset(bed: &Bed) -> Outcome {
    let device = bed.receiver.pci_device()?;
    let methods = fs::read_to_string(device.join("reset_method")).unwrap_or_default();
    if !methods.contains("flr") {
        return Ok(Verdict::Limit("the device has no function-level reset"));
    }
    if !bed.kind.survives_reset {
        // It waits for an answer to a command, holding the lock of all interfaces (RTNL): the machine is lost.
        return Ok(Verdict::Limit("virtio_net waits for ever for a device that was reset"));
    }
    fs::write(device.join("reset_method"), "flr")?;
    let reset = || fs::write(device.join("reset"), "1");
    let outcome = with_traffic(bed, |_| Ok(reset()?)).and_then(|verdict| {
        returns(bed, reset)?;
        Ok(verdict)
    });
    fs::write(device.join("reset_method"), "default")?;
    // A driver that does not know of the reset begins anew when it is bound again.
    bind_again(&bed.receiver)?;
    outcome
}

/// After a reset the capture says what is wrong, and captures again when the driver has started the device again.
fn returns(bed: &Bed, reset: impl Fn() -> std::io::Result<()>) -> Result<(), Box<dyn Error>> {
    bind_again(&bed.receiver)?;
    bed.receiver.set_up(true)?;
    bed.wait_for_links()?;
    let recording = Recording::start(&bed.receiver.0, &[])?;
    bed.sender.wait_for_link()?;
    let frames = bed.frames(&[60, 1025], 16, 200)?;
    bed.send(&frames)?;
    reset()?;
    let says = |words: &str| -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + RETURN_TIMEOUT;
        while !recording.said().contains(words) {
            if Instant::now() > deadline {
                return Err(format!("does not say {words:?}: {}", recording.said()).into());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    };
    says("sends no interrupts")?;
    bed.receiver.set_up(false)?;
    bed.receiver.set_up(true)?;
    says("captured again")?;
    bed.send(&frames)?;
    let expected = 2 * frames.count();
    let recorded = recording.end()?;
    if recorded.count("/delivered") != expected || recorded.claims_lossless() {
        return Err(format!("{expected} packets were to be delivered, with a gap: {}", recorded.said).into());
    }
    Ok(())
}

pub(super) fn rebind(bed: &Bed) -> Outcome {
    with_traffic(bed, |nic| {
        bind_again(nic)?;
        nic.set_up(true)
    })
}

/// Takes the driver from the device, and gives it back.
fn bind_again(nic: &Nic) -> Result<(), Box<dyn Error>> {
    // Of a virtio device that is the one behind the one on the PCI bus.
    let device = fs::canonicalize(Path::new("/sys/class/net").join(&nic.0).join("device"))?;
    let driver = fs::canonicalize(device.join("driver"))?;
    let name = device.file_name().and_then(|name| name.to_str()).ok_or("a device without a name")?;
    let address = nic.attribute("address")?;
    fs::write(driver.join("unbind"), name)?;
    thread::sleep(GAP);
    fs::write(driver.join("bind"), name)?;
    rename(&address, &nic.0)
}

/// Gives the interface with this Ethernet address its name again.
fn rename(address: &str, name: &str) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir("/sys/class/net")? {
        let found = Nic(entry?.file_name().to_string_lossy().into_owned());
        if found.0 != name && found.attribute("address").is_ok_and(|found| found == address) {
            run("ip", &["link", "set", &found.0, "name", name])?;
        }
    }
    Ok(())
}

/// Does something to the receiving NIC several times while it captures and frames keep coming.
///
/// What is lost may be lost, but the ledger must not say that nothing is: it has as many packets as were sent, or it does
/// not claim to be lossless.
fn with_traffic(bed: &Bed, event: impl Fn(&Nic) -> Result<(), Box<dyn Error>>) -> Outcome {
    let recording = Recording::start(&bed.receiver.0, &[])?;
    let frames = bed.frames(&[60, 1025], 16, u64::MAX)?;
    let mut sender = PacketSender::on(&bed.sender.interface()?)?;
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let happened = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Relaxed) {
                sender.send(&frames.frame(number)).map_err(|error| error.to_string())?;
                number += 1;
                sent.store(number, Relaxed);
                thread::sleep(Duration::from_millis(4));
            }
            Ok::<_, String>(())
        });
        let happened = (0..EVENTS.get().copied().unwrap_or(TIMES)).try_for_each(|_| {
            thread::sleep(CALM);
            event(&bed.receiver).map_err(|error| error.to_string())
        });
        thread::sleep(CALM);
        stop.store(true, Relaxed);
        happened.and(sending.join().expect("a sender"))
    });
    // The interface may be gone, and with it the capture.
    let _rested = bed.rest();
    let ended = recording.end();
    happened?;
    judge(ended, sent.load(Relaxed))
}

fn judge(ended: Result<Recorded, Box<dyn Error>>, sent: u64) -> Outcome {
    let recorded = match ended {
        Ok(recorded) => recorded,
        // It said that the interface is gone, and failed: no claim at all.
        Err(error) if error.to_string().contains("is gone") => return Ok(Verdict::Holds("gone".to_owned())),
        Err(error) => return Err(error),
    };
    let delivered = recorded.count("/delivered");
    if delivered != recorded.frames.len() as u64 {
        return Err(format!(
            "{delivered} delivered, {} in the file: {}",
            recorded.frames.len(),
            recorded.said
        )
        .into());
    }
    let accounted = recorded.count("/offered");
    match (accounted == sent, recorded.claims_lossless()) {
        (false, true) => Err(format!("{accounted} of {sent} are in the ledger: {}", recorded.said).into()),
        (true, _) => Ok(Verdict::Holds("all".to_owned())),
        (false, false) => Ok(Verdict::Holds(format!("-{}", sent.saturating_sub(accounted)))),
    }
}

pub(super) fn device_del_igb() -> Outcome {
    device_del("igb")
}

pub(super) fn device_del_virtio() -> Outcome {
    device_del("virtio")
}

/// The device is pulled out: the capture says so, and ends. Nothing comes after this check on such NICs.
fn device_del(name: &'static str) -> Outcome {
    let bed = Bed::new(kind(name))?;
    let recording = Recording::start(&bed.receiver.0, &[])?;
    let frames = bed.frames(&[60, 1025], 16, 200)?;
    bed.send(&frames)?;
    monitor::execute(&format!("device_del {}", bed.receiver.0))?;
    let folder = Path::new("/sys/class/net").join(&bed.receiver.0);
    for _ in 0..200 {
        if !folder.exists() {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    if folder.exists() {
        return Err(format!("{} is still there", bed.receiver.0).into());
    }
    thread::sleep(CALM);
    match recording.end() {
        Ok(recorded) => {
            Err(format!("{} captured to its end, and says: {}", wirecap().display(), recorded.said).into())
        }
        Err(error) if error.to_string().contains("gone") => Ok(Verdict::ok()),
        Err(error) => Err(error),
    }
}
