//! DPDK's testpmd on the same device: it receives as many packets as wirecap.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use wirecap_testbed::PacketSender;

use super::trouble::rename;
use super::{Outcome, Verdict};
use crate::bed::{Bed, Nic};
use crate::command::{Recording, Running, run};
use crate::kind::kind;

/// Fewer than the descriptors of testpmd's ring, so pauses of its thread lose none.
const PACKETS: u64 = 640;
/// Huge pages of 2 MiB for testpmd.
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";
const HUGE_PAGE_COUNT: &str = "96";
/// A driver that lets a process access the device. The kernel's documentation:
/// driver-api/uio-howto.
const UIO_DRIVER: &str = "uio_pci_generic";
/// Time between the end of sending and the end of testpmd.
const LINGERING: Duration = Duration::from_secs(2);

pub(super) fn testpmd_on_igb() -> Outcome {
    let bed = Bed::new(kind("igb"))?;
    let frames = bed.frames(&[60, 200, 1514], 16, PACKETS)?;
    let recording = Recording::start(&bed.receiver.0, &[])?;
    bed.send(&frames)?;
    recording.end()?.is_all_of(&frames)?;

    let device = Lent::new(&bed.receiver)?;
    let mut command = Command::new("sh");
    // The statistics are on standard output; of a running program, the checks read standard error.
    let arguments = "-l 0,1 -n 1 --in-memory --no-telemetry -- --forward-mode=rxonly --total-num-mbufs=8192 --stats-period=1";
    command.args(["-c", &format!("exec dpdk-testpmd -a {} {arguments} >&2", device.name)]);
    let mut testpmd = Running::start(&mut command)?;
    testpmd.wait_for("Port statistics")?;
    bed.sender.wait_for_link()?;
    let mut sender = PacketSender::on(&bed.sender.interface()?)?;
    for frame in frames.iter() {
        sender.send(&frame)?;
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(LINGERING);
    let said = testpmd.interrupt()?.stderr;
    let received = said.rsplit("Forward statistics for port 0").next().and_then(|rest| {
        rest.split("RX-packets:").nth(1)?.split_whitespace().next()?.parse::<u64>().ok()
    });
    match received {
        Some(PACKETS) => Ok(Verdict::Holds(format!("{PACKETS} packets"))),
        _ => {
            Err(format!("wirecap received {PACKETS} packets, testpmd {received:?}: {said}").into())
        }
    }
}

/// A PCI device whose interface is gone because a process accesses the device; returned to its
/// driver on drop.
#[derive(Debug)]
struct Lent {
    nic: Nic,
    /// The interface's Ethernet address, by which it is found again.
    address: String,
    folder: PathBuf,
    /// Domain, bus, device and function.
    name: String,
    driver: PathBuf,
}

impl Lent {
    fn new(nic: &Nic) -> Result<Self, Box<dyn Error>> {
        run("modprobe", &[UIO_DRIVER])?;
        fs::write(HUGE_PAGES, HUGE_PAGE_COUNT)?;
        let folder = nic.pci_device()?;
        let name =
            folder.file_name().and_then(|name| name.to_str()).ok_or("a device without a name")?;
        let lent = Self {
            nic: nic.clone(),
            address: nic.attribute("address")?,
            name: name.to_owned(),
            driver: fs::canonicalize(folder.join("driver"))?,
            folder,
        };
        nic.set_up(false)?;
        lent.give(UIO_DRIVER)?;
        Ok(lent)
    }

    /// Binds the device to this driver only; to its own if the name is empty.
    fn give(&self, driver: &str) -> Result<(), Box<dyn Error>> {
        fs::write(self.folder.join("driver/unbind"), &self.name)?;
        fs::write(self.folder.join("driver_override"), format!("{driver}\n"))?;
        fs::write("/sys/bus/pci/drivers_probe", &self.name)?;
        let bound = fs::canonicalize(self.folder.join("driver"))?;
        let wanted = if driver.is_empty() { self.driver.as_path() } else { Path::new(driver) };
        if bound.file_name() != wanted.file_name() {
            return Err(format!("{} is bound to {}", self.name, bound.display()).into());
        }
        Ok(())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let returned = self.give("").and_then(|()| rename(&self.address, &self.nic.0));
        if let Err(error) = returned.and_then(|()| Ok(fs::write(HUGE_PAGES, "0")?)) {
            eprintln!("{} is not returned to its driver: {error}", self.nic.0);
        }
    }
}
