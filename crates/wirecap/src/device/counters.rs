//! What a device lost before any program or socket could see it.

use super::link::{self, LinkStatistics};
use super::netlink::Netlink;
use super::{Device, DeviceError};
use crate::sys::ethtool::Ethtool;
use std::io;

/// The device's own losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// Frames that the device dropped before any XDP program or socket saw them, since it was made;
    /// `None` if its driver does not report them. Per interface: no driver tells them per queue in the
    /// same words.
    pub dropped: Option<u64>,
    /// What they were computed from.
    pub source: DropSource,
}

/// What a device's losses were computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropSource {
    /// `rx_missed_errors`, and of `rx_fifo_errors` and `rx_over_errors` the larger: drivers use these two
    /// for one another, and some fill in both for the same frames.
    LinkStatistics,
    /// A veth's `rx_dropped` without its queues' `rx_queue_N_drops`, which the XDP sockets count: what
    /// remains overflowed the ring between the two ends.
    ///
    /// It also has the frames that went up the host's stack and that no protocol there wanted. Only on
    /// frames that an XDP program passes on, and exact only while no frame arrives between two readings.
    VethRing,
    /// The driver reports no such losses.
    NotReported,
}

impl Device {
    /// What the device has dropped by now before any program or socket saw it. Cheap enough for every
    /// second: one netlink request and, for veth, four ioctls.
    ///
    /// # Errors
    /// If the interface is gone, the kernel does not answer, or the calling thread is in another network
    /// namespace.
    pub fn counters(&self) -> Result<DeviceCounters, DeviceError> {
        let source = self.drop_source();
        let dropped = match source {
            DropSource::NotReported => None,
            DropSource::LinkStatistics => Some(hardware_drops(&self.statistics(&mut self.reconnect()?)?)),
            DropSource::VethRing => self.veth_drops()?,
        };
        Ok(DeviceCounters { dropped, source })
    }

    /// The kernel's documentation keeps `rx_missed_errors` for hardware; software leaves all three at
    /// zero, which would read as "nothing lost". Of virtual devices only those that add up the
    /// counters of hardware beneath them have something to say.
    fn drop_source(&self) -> DropSource {
        const SILENT_DRIVERS: [&str; 4] = ["virtio_net", "xen_netfront", "vif", "tun"];
        match (self.driver.as_deref(), self.kind.as_deref()) {
            (Some("veth"), _) | (_, Some("veth")) => DropSource::VethRing,
            (Some(driver), _) if SILENT_DRIVERS.contains(&driver) => DropSource::NotReported,
            (_, Some("bond" | "team")) => DropSource::LinkStatistics,
            (_, None) if self.has_parent || self.bus_info.is_some() => DropSource::LinkStatistics,
            _ => DropSource::NotReported,
        }
    }

    fn veth_drops(&self) -> Result<Option<u64>, DeviceError> {
        let mut netlink = self.reconnect()?;
        // The queues first: whatever arrives between the two readings then counts too early, not too late,
        // and the difference does not fall below the truth.
        let queues = match Ethtool::new(netlink.socket(), &self.name).and_then(|ethtool| ethtool.statistics())
        {
            Ok(statistics) => queue_drops(&statistics),
            Err(error) => return Err(self.kernel(error)),
        };
        let statistics = self.statistics(&mut netlink)?;
        Ok(queues.map(|queues| statistics.rx_dropped.saturating_sub(queues)))
    }

    fn statistics(&self, netlink: &mut Netlink) -> Result<LinkStatistics, DeviceError> {
        let gone = || io::Error::from_raw_os_error(libc::ENODEV);
        link::link_payload(netlink, self.index, true)
            .and_then(|payload| payload.as_deref().and_then(LinkStatistics::parse).ok_or_else(gone))
            .map_err(|error| self.kernel(error))
    }
}

fn hardware_drops(statistics: &LinkStatistics) -> u64 {
    statistics.rx_missed_errors + statistics.rx_fifo_errors.max(statistics.rx_over_errors)
}

/// The sum of `rx_queue_N_drops`; none if the driver has no such statistics (before Linux 5.5).
fn queue_drops(statistics: &[(String, u64)]) -> Option<u64> {
    let is_drops = |name: &str| {
        let queue = name.strip_prefix("rx_queue_").and_then(|rest| rest.strip_suffix("_drops"));
        queue.is_some_and(|queue| queue.bytes().all(|byte| byte.is_ascii_digit()))
    };
    statistics
        .iter()
        .filter(|(name, _)| is_drops(name))
        .map(|&(_, count)| count)
        .reduce(|sum, count| sum + count)
}
