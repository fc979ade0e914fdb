//! What a device lost before any program or socket could see it.

use std::io;

use super::link::{self, Link, LinkStatistics};
use super::netlink::Netlink;
use super::xdp::XdpMode;
use super::{Device, DeviceError};
use crate::sys::ethtool::Ethtool;

/// The device's own losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// Frames that the device dropped before any XDP program or socket saw them, since it was made;
    /// `None` if its driver does not report them. Of the whole interface, not of a queue.
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
    /// The errors that a veth's other end had in passing XDP frames on: this end's ring was full. Exact, but
    /// to be had only while this end has a program in the driver and the other one is in the same
    /// network namespace.
    VethPeer,
    /// A veth's `rx_dropped` without its queues' `rx_queue_N_drops`, which the XDP sockets count. What
    /// remains are the ring's overflow and, without a program in the driver, the backlog's.
    ///
    /// It counts too much where nobody captures what a program passes on: the stack adds frames of
    /// protocols that it does not know.
    VethReceiver,
    /// The driver reports no such losses.
    NotReported,
}

impl DeviceCounters {
    /// How many frames the device dropped since it was asked `earlier`; `None` if it does not report them,
    /// or if the two counts come from different sources and cannot be compared.
    pub fn dropped_since(&self, earlier: &Self) -> Option<u64> {
        let comparable = self.source == earlier.source;
        self.dropped.zip(earlier.dropped).filter(|_| comparable).map(|(now, then)| now.saturating_sub(then))
    }
}

impl Device {
    /// What the device has dropped by now before any program or socket saw it. Cheap enough for every
    /// second: a fraction of a millisecond.
    ///
    /// A veth's [source](DropSource) changes with its programs: to count what a capture lost, ask first when
    /// its program is attached, and last before it is detached.
    ///
    /// # Errors
    /// If the interface is gone, the kernel does not answer, or the calling thread is in another network
    /// namespace.
    pub fn counters(&self) -> Result<DeviceCounters, DeviceError> {
        let mut netlink = self.reconnect()?;
        let is_hardware = self.has_parent || self.bus_info.is_some();
        let counters = match reporter(self.kind.as_deref(), self.driver.as_deref(), is_hardware) {
            Reporter::Nobody => Ok(DeviceCounters { dropped: None, source: DropSource::NotReported }),
            Reporter::Hardware => self.hardware_counters(&mut netlink),
            Reporter::Veth => self.veth_counters(&mut netlink),
        };
        counters.map_err(|error| self.kernel(error))
    }

    fn hardware_counters(&self, netlink: &mut Netlink) -> io::Result<DeviceCounters> {
        let (_, statistics) = self.link_now(netlink)?;
        Ok(DeviceCounters { dropped: Some(hardware_drops(&statistics)), source: DropSource::LinkStatistics })
    }

    fn veth_counters(&self, netlink: &mut Netlink) -> io::Result<DeviceCounters> {
        // The queues first: whatever arrives between the two readings is then counted too early, not too late,
        // and the difference does not fall below the truth.
        let queues = Ethtool::new(netlink.socket(), &self.name)?.statistics()?;
        let (link, statistics) = self.link_now(netlink)?;
        if link.attached_xdp.iter().any(|program| program.mode == XdpMode::Native)
            && let Some(errors) = peer_errors(netlink, &link)?
        {
            return Ok(DeviceCounters { dropped: Some(errors), source: DropSource::VethPeer });
        }
        let dropped = queue_sum(&queues, "rx_queue_", "_drops")
            .map(|counted_by_sockets| statistics.rx_dropped.saturating_sub(counted_by_sockets));
        Ok(DeviceCounters { dropped, source: DropSource::VethReceiver })
    }

    fn link_now(&self, netlink: &mut Netlink) -> io::Result<(Link, LinkStatistics)> {
        let payload = link::link_payload(netlink, self.index, true)?;
        let parse = |payload: Vec<u8>| Link::parse(&payload).zip(LinkStatistics::parse(&payload));
        payload.and_then(parse).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }
}

/// Who knows what a device has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reporter {
    Hardware,
    Veth,
    Nobody,
}

/// Drivers of hardware, mostly of the virtual kind, that leave `rx_missed_errors` and its neighbours at zero
/// whatever they lose.
const SILENT_DRIVERS: [&str; 6] = ["virtio_net", "vif", "hv_netvsc", "vmxnet3", "gve", "enic"];

/// The kernel's documentation keeps `rx_missed_errors` for hardware; in software it and its neighbours stay
/// at zero, which would read as "nothing lost". Of virtual interfaces only those have something to say that
/// add up the counters of hardware beneath them.
fn reporter(kind: Option<&str>, driver: Option<&str>, is_hardware: bool) -> Reporter {
    let is_silent = driver.is_some_and(|driver| SILENT_DRIVERS.contains(&driver));
    match kind {
        Some("veth") => Reporter::Veth,
        Some("bond" | "team") => Reporter::Hardware,
        None if is_hardware && !is_silent => Reporter::Hardware,
        _ => Reporter::Nobody,
    }
}

fn hardware_drops(statistics: &LinkStatistics) -> u64 {
    statistics.rx_missed_errors + statistics.rx_fifo_errors.max(statistics.rx_over_errors)
}

/// What a veth's other end could not hand over, of frames redirected to it (`xdp_xmit`) and of those that
/// it sent back itself (`xdp_tx`); `None` if that end is in another namespace.
fn peer_errors(netlink: &mut Netlink, link: &Link) -> io::Result<Option<u64>> {
    let Some(peer) = link.lower else { return Ok(None) };
    let payload = link::link_payload(netlink, peer, false)?;
    let Some(peer) = payload.as_deref().and_then(Link::parse) else { return Ok(None) };
    let statistics = Ethtool::new(netlink.socket(), &peer.name)?.statistics()?;
    let redirected = queue_sum(&statistics, "tx_queue_", "_xdp_xmit_errors");
    let sent_back = queue_sum(&statistics, "rx_queue_", "_xdp_tx_errors");
    Ok(redirected.zip(sent_back).map(|(redirected, sent_back)| redirected + sent_back))
}

/// The sum over the queues of a driver's statistic: those named with a number between `before` and `after`.
/// None if it has no such statistic (a veth's came with Linux 5.5).
fn queue_sum(statistics: &[(String, u64)], before: &str, after: &str) -> Option<u64> {
    let is_queue = |name: &str| {
        let number = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    statistics
        .iter()
        .filter(|(name, _)| is_queue(name))
        .map(|&(_, count)| count)
        .reduce(|sum, count| sum + count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifo_and_over_errors_are_the_same_frames() {
        let statistics =
            LinkStatistics { rx_dropped: 9, rx_over_errors: 5, rx_fifo_errors: 5, rx_missed_errors: 2 };
        assert_eq!(hardware_drops(&statistics), 7);
    }

    #[test]
    fn only_hardware_and_what_adds_it_up_report_losses() {
        assert_eq!(reporter(None, Some("ixgbe"), true), Reporter::Hardware);
        assert_eq!(reporter(Some("bond"), Some("bonding"), false), Reporter::Hardware);
        assert_eq!(reporter(Some("veth"), Some("veth"), false), Reporter::Veth);
        assert_eq!(reporter(None, Some("virtio_net"), true), Reporter::Nobody);
        assert_eq!(reporter(Some("tun"), Some("tun"), true), Reporter::Nobody);
        assert_eq!(reporter(Some("macvlan"), None, false), Reporter::Nobody);
        assert_eq!(reporter(None, None, false), Reporter::Nobody);
    }

    #[test]
    fn only_the_named_statistic_of_numbered_queues_is_added_up() {
        let statistics = [("rx_queue_0_drops", 1), ("rx_queue_0_xdp_drops", 10), ("rx_queue_12_drops", 100)];
        let statistics = statistics.map(|(name, count)| (name.to_owned(), count));
        assert_eq!(queue_sum(&statistics, "rx_queue_", "_drops"), Some(101));
        assert_eq!(queue_sum(&statistics, "tx_queue_", "_drops"), None);
    }

    #[test]
    fn counts_of_different_sources_are_not_compared() {
        let at = |dropped, source| DeviceCounters { dropped, source };
        let earlier = at(Some(5), DropSource::VethPeer);
        assert_eq!(at(Some(8), DropSource::VethPeer).dropped_since(&earlier), Some(3));
        assert_eq!(at(Some(8), DropSource::VethReceiver).dropped_since(&earlier), None);
        assert_eq!(at(None, DropSource::VethPeer).dropped_since(&earlier), None);
    }
}
