//! Two NICs of one kind, connected by a cable.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use wirecap_testbed::{Interface, Namespace, PacketSender, Traffic};

use crate::command::run;
use crate::frames::Frames;
use crate::kind::Kind;

/// The initial MTU.
const MTU: u32 = 1500;
/// Maximum time for a link to come up.
const LINK_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of frames in flight. QEMU's igb drops a frame whose queue has no free descriptor
/// as long as another queue has one, without counting it; the smallest ring has 128 descriptors,
/// and RSS may send all flows to one queue.
const ON_THE_WAY_MAX: u64 = 64;
/// Frames that have not arrived after this time are lost, or arrive without being counted.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Counters that have not changed for this time are considered stable.
const REST: Duration = Duration::from_millis(800);
const REST_TIMEOUT: Duration = Duration::from_secs(60);

/// Two NICs with links up, at the beginning of a check.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) kind: &'static Kind,
    pub(crate) sender: Nic,
    pub(crate) receiver: Nic,
}

impl Bed {
    /// The NICs of this kind, reset to their state at boot.
    ///
    /// # Errors
    ///
    /// If they cannot be reset.
    pub(crate) fn new(kind: &'static Kind) -> Result<Self, Box<dyn Error>> {
        let bed = Self {
            kind,
            sender: Nic(format!("{}0", kind.name)),
            receiver: Nic(format!("{}1", kind.name)),
        };
        bed.set_mtu(MTU)?;
        for nic in [&bed.sender, &bed.receiver] {
            nic.set_up(true)?;
        }
        if let Some(&most) = kind.queue_counts.last() {
            bed.receiver.set_queues(most)?;
        }
        bed.wait_for_links()?;
        Ok(bed)
    }

    /// Sets the MTU of both NICs.
    ///
    /// # Errors
    ///
    /// If the driver refuses.
    pub(crate) fn set_mtu(&self, mtu: u32) -> Result<(), Box<dyn Error>> {
        for nic in [&self.sender, &self.receiver] {
            if nic.attribute("mtu")?.parse() != Ok(mtu) {
                run("ip", &["link", "set", &nic.0, "mtu", &mtu.to_string()])?;
            }
        }
        Ok(())
    }

    /// Waits until both NICs have a carrier.
    ///
    /// # Errors
    ///
    /// If one has no carrier after the timeout.
    pub(crate) fn wait_for_links(&self) -> Result<(), Box<dyn Error>> {
        self.sender.wait_for_link()?;
        self.receiver.wait_for_link()
    }

    /// Frames from the sender to the receiver.
    ///
    /// # Errors
    ///
    /// If an interface is missing.
    pub(crate) fn frames(
        &self,
        lengths: &[u16],
        flows: u32,
        count: u64,
    ) -> Result<Frames, Box<dyn Error>> {
        let receiver = self.receiver.interface()?;
        Ok(Frames::new(Traffic::to(&receiver), lengths, flows, count))
    }

    /// Sends the frames, and waits until the receiver's counters are stable.
    ///
    /// # Errors
    ///
    /// If sending fails.
    pub(crate) fn send(&self, frames: &Frames) -> Result<(), Box<dyn Error>> {
        self.send_each(frames.iter())?;
        self.rest()
    }

    /// Sends the frames, limiting the number in flight by the receiver's counter.
    ///
    /// # Errors
    ///
    /// As for [`send`](Self::send).
    pub(crate) fn send_each(
        &self,
        frames: impl Iterator<Item = Vec<u8>>,
    ) -> Result<(), Box<dyn Error>> {
        let mut sender = PacketSender::on(&self.sender.interface()?)?;
        let begin = self.receiver.received()?;
        for (number, frame) in (0..).zip(frames) {
            if number % ON_THE_WAY_MAX == 0 {
                self.wait_for_arrival(begin + number)?;
            }
            sender.send(&frame)?;
        }
        Ok(())
    }

    /// Waits until the receiver has counted this many packets in total, or its counter has not
    /// changed for a time.
    fn wait_for_arrival(&self, packets: u64) -> Result<(), Box<dyn Error>> {
        let mut last = self.receiver.received()?;
        let mut since = Instant::now();
        while last < packets && since.elapsed() < ARRIVAL_TIMEOUT {
            thread::sleep(Duration::from_millis(1));
            let now = self.receiver.received()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// Waits until the counters of both are stable.
    ///
    /// # Errors
    ///
    /// If they do not become stable, or one NIC is missing.
    pub(crate) fn rest(&self) -> Result<(), Box<dyn Error>> {
        let counters = || {
            Ok::<_, Box<dyn Error>>((self.sender.counter("tx_packets")?, self.receiver.received()?))
        };
        let mut last = counters()?;
        let mut since = Instant::now();
        let started = Instant::now();
        while since.elapsed() < REST {
            thread::sleep(Duration::from_millis(100));
            let now = counters()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
            if started.elapsed() > REST_TIMEOUT {
                return Err("the counters do not come to rest".into());
            }
        }
        Ok(())
    }
}

/// A NIC by its interface name.
#[derive(Debug, Clone)]
pub(crate) struct Nic(pub(crate) String);

impl Nic {
    pub(crate) fn interface(&self) -> Result<Interface, Box<dyn Error>> {
        Ok(Interface::find(&Namespace::current()?, &self.0)?)
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from("/sys/class/net").join(&self.0)
    }

    /// A file of its directory in /sys/class/net.
    pub(crate) fn attribute(&self, name: &str) -> Result<String, Box<dyn Error>> {
        let text = fs::read_to_string(self.folder().join(name))
            .map_err(|error| format!("{} of {}: {error}", name, self.0))?;
        Ok(text.trim().to_owned())
    }

    pub(crate) fn counter(&self, name: &str) -> Result<u64, Box<dyn Error>> {
        Ok(self.attribute(&format!("statistics/{name}"))?.parse()?)
    }

    /// Number of packets that it has received.
    pub(crate) fn received(&self) -> Result<u64, Box<dyn Error>> {
        self.counter("rx_packets")
    }

    /// Number of frames that the device or its driver has discarded.
    pub(crate) fn discarded(&self) -> Result<u64, Box<dyn Error>> {
        Ok(self.counter("rx_errors")? + self.counter("rx_dropped")?)
    }

    pub(crate) fn set_up(&self, up: bool) -> Result<(), Box<dyn Error>> {
        run("ip", &["link", "set", &self.0, if up { "up" } else { "down" }]).map(drop)
    }

    /// Sets the number of queues, like `ethtool -L`.
    pub(crate) fn set_queues(&self, count: u32) -> Result<(), Box<dyn Error>> {
        if self.queues()? != count {
            run("ethtool", &["-L", &self.0, "combined", &count.to_string()])?;
            self.wait_for_link()?;
        }
        Ok(())
    }

    /// The number of queues.
    pub(crate) fn queues(&self) -> Result<u32, Box<dyn Error>> {
        let shown = run("ethtool", &["-l", &self.0])?;
        let current =
            shown.rsplit("Combined:").next().and_then(|rest| rest.split_whitespace().next());
        Ok(current.unwrap_or_default().parse()?)
    }

    pub(crate) fn has_carrier(&self) -> bool {
        self.attribute("carrier").is_ok_and(|carrier| carrier == "1")
    }

    pub(crate) fn wait_for_link(&self) -> Result<(), Box<dyn Error>> {
        let deadline = Instant::now() + LINK_TIMEOUT;
        while !self.has_carrier() || self.attribute("operstate")? != "up" {
            if Instant::now() > deadline {
                return Err(format!("{} has no carrier", self.0).into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The interface's device in /sys/bus/pci, or that device's parent.
    pub(crate) fn pci_device(&self) -> Result<PathBuf, Box<dyn Error>> {
        let device = fs::canonicalize(self.folder().join("device"))?;
        let is_pci =
            |path: &std::path::Path| path.join("vendor").exists() && path.join("irq").exists();
        Ok(if is_pci(&device) { device } else { device.parent().ok_or("no parent")?.to_owned() })
    }

    /// All nonzero counters of kernel and driver, for the report of a failure.
    pub(crate) fn counts(&self) -> String {
        let folder = self.folder().join("statistics");
        let names = [
            "rx_packets",
            "tx_packets",
            "rx_dropped",
            "tx_dropped",
            "rx_errors",
            "rx_missed_errors",
            "rx_fifo_errors",
        ];
        let kernel = names
            .iter()
            .filter_map(|name| Some((*name, fs::read_to_string(folder.join(name)).ok()?)));
        let kernel = kernel.filter(|(_, count)| count.trim() != "0");
        let kernel =
            kernel.map(|(name, count)| format!("{name} {}", count.trim())).collect::<Vec<_>>();
        let driver = run("ethtool", &["-S", &self.0]).unwrap_or_default();
        let is_telling =
            |line: &&str| line.contains("drop") || line.contains("xdp") || line.contains("err");
        let driver =
            driver.lines().map(str::trim).filter(is_telling).filter(|line| !line.ends_with(" 0"));
        format!("{}: {}; {}", self.0, kernel.join(", "), driver.collect::<Vec<_>>().join(", "))
    }
}
