//! Packets that a device lost before any program or socket saw them.
//!
//! A veth has a ring of 256 frames. XDP frames (from a redirect or the in-kernel generator) that
//! were lost there are counted as errors of the peer (`tx_queue_N_xdp_xmit_errors`,
//! `rx_queue_N_xdp_tx_errors`) if the peer is in the same network namespace. Otherwise the engine
//! uses this end's `rx_dropped` less its queues' `rx_queue_N_drops`, which are read before and
//! after it until both readings agree, eight times at most. That difference also includes packets
//! that the host's stack received and discarded. With a filter or with `packet` the stack receives
//! packets, so the difference is not reported. If the sending host's stack hands a frame to a veth
//! whose ring is full, the frame counts as the sender's `tx_dropped` and was never sent; the
//! receiving end has no counter for it.

use std::io;

use super::drop_table::Row;
use super::link::{self, Link, LinkStatistics};
use super::netlink::Netlink;
use super::xdp::XdpMode;
use super::{Device, DeviceError};
use crate::sys::ethtool::Ethtool;

/// The device's own losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// Frames that the device dropped before any XDP program or socket saw them, since it was
    /// created; `None` if its driver does not report them. For the whole interface, not for a
    /// queue.
    pub dropped: Option<u64>,
    /// The source of the number.
    pub source: DropSource,
}

/// The source of a device's losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropSource {
    /// The counters in which the driver is known to count them, of the link's statistics and its
    /// own.
    Driver,
    /// The errors of a veth's peer when it passed XDP frames on: this end's ring was full. Exact,
    /// but available only while this end has a program in the driver and the peer is in the same
    /// network namespace.
    VethPeer,
    /// A veth's `rx_dropped` without its queues' `rx_queue_N_drops`, which the XDP sockets count.
    /// The rest is the overflow of the ring and, without a program in the driver, of the backlog.
    ///
    /// It counts too much if no capture takes the packets that a program passes on: the stack adds
    /// frames of unknown protocols.
    VethReceiver,
    /// The driver reports no such losses.
    NotReported,
}

impl DeviceCounters {
    /// The number of frames that the device dropped since `earlier`; `None` if it does not report
    /// them, or if the two counts have different sources and cannot be compared. 0 if the counter
    /// went backwards because it was reset.
    pub fn dropped_since(&self, earlier: &Self) -> Option<u64> {
        let comparable = self.source == earlier.source;
        self.dropped
            .zip(earlier.dropped)
            .filter(|_| comparable)
            .map(|(now, then)| now.saturating_sub(then))
    }

    /// Whether the counter was reset since `earlier`. A veth's own count is an estimate, and may
    /// shrink by itself.
    pub(crate) fn went_back_since(&self, earlier: &Self) -> bool {
        let comparable = self.source == earlier.source && self.source != DropSource::VethReceiver;
        comparable && self.dropped.zip(earlier.dropped).is_some_and(|(now, then)| now < then)
    }
}

impl Device {
    /// The device's total drops before any program or socket saw the packets. Cheap enough to read
    /// every second: a fraction of a millisecond.
    ///
    /// A veth's [source](DropSource) changes with its programs: to count the loss of a capture,
    /// read first after its program was attached, and last before it is detached.
    ///
    /// # Errors
    ///
    /// If the interface is gone, the kernel does not answer, or the calling thread is in another
    /// network namespace.
    pub fn counters(&self) -> Result<DeviceCounters, DeviceError> {
        self.counters_from(true)
    }

    /// As [`counters`](Self::counters). Unless `receiver_too`, a
    /// [veth's own count](DropSource::VethReceiver) is not read and is unknown: it takes four of
    /// the five queries to the kernel.
    pub(crate) fn counters_from(&self, receiver_too: bool) -> Result<DeviceCounters, DeviceError> {
        let mut netlink = self.reconnect()?;
        let counters = match reporter(self.kind.as_deref(), self.driver.as_deref()) {
            Reporter::None => Ok(DeviceCounters { dropped: None, source: DropSource::NotReported }),
            Reporter::Driver(row) => self.driver_counters(&mut netlink, row),
            Reporter::Veth => self.veth_counters(&mut netlink, receiver_too),
        };
        counters.map_err(|error| self.kernel(error))
    }

    /// The sum of the packets that the driver and, if it reports them, the device have received so
    /// far.
    pub(crate) fn received(&self) -> Result<u64, DeviceError> {
        let mut netlink = self.reconnect()?;
        let own =
            Ethtool::new(netlink.socket(), &self.name).and_then(|ethtool| ethtool.statistics());
        let own = own.unwrap_or_default().into_iter().find(|(name, _)| name.trim() == "rx_packets");
        let (_, statistics) = self.link_now(&mut netlink).map_err(|error| self.kernel(error))?;
        Ok(statistics.rx_packets.wrapping_add(own.map_or(0, |(_, count)| count)))
    }

    fn driver_counters(&self, netlink: &mut Netlink, row: &Row) -> io::Result<DeviceCounters> {
        let own = match row.has_own() {
            true => Ethtool::new(netlink.socket(), &self.name)?.statistics()?,
            false => Vec::new(),
        };
        let (_, statistics) = self.link_now(netlink)?;
        let dropped = row.dropped(&statistics, &own);
        let source = if dropped.is_some() { DropSource::Driver } else { DropSource::NotReported };
        Ok(DeviceCounters { dropped, source })
    }

    fn veth_counters(
        &self,
        netlink: &mut Netlink,
        receiver_too: bool,
    ) -> io::Result<DeviceCounters> {
        let (link, _) = self.link_now(netlink)?;
        if link.attached_xdp.iter().any(|program| program.mode == XdpMode::Native)
            && let Some(errors) = peer_errors(netlink, &link)?
        {
            return Ok(DeviceCounters { dropped: Some(errors), source: DropSource::VethPeer });
        }

        let source = DropSource::VethReceiver;
        if !receiver_too {
            return Ok(DeviceCounters { dropped: None, source });
        }

        let netlink = std::cell::RefCell::new(netlink);
        let by_sockets = || {
            let statistics = Ethtool::new(netlink.borrow().socket(), &self.name)?.statistics()?;
            Ok(queue_sum(&statistics, "rx_queue_", "_drops"))
        };

        let all = || Ok(self.link_now(&mut netlink.borrow_mut())?.1.rx_dropped);
        Ok(DeviceCounters { dropped: without_the_sockets(all, by_sockets)?, source })
    }

    pub(super) fn link_now(&self, netlink: &mut Netlink) -> io::Result<(Link, LinkStatistics)> {
        let payload = link::link_payload(netlink, self.index, true)?;
        let parse = |payload: Vec<u8>| Link::parse(&payload).zip(LinkStatistics::parse(&payload));
        payload.and_then(parse).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }
}

/// All drops, minus those that sockets count. The sockets' counts are read before and after the
/// others: if they have not changed, the difference is exact. While sockets drop packets all the
/// time, the difference is too large by the drops between two readings, but never too small.
fn without_the_sockets(
    mut all: impl FnMut() -> io::Result<u64>,
    mut by_sockets: impl FnMut() -> io::Result<Option<u64>>,
) -> io::Result<Option<u64>> {
    let Some(mut before) = by_sockets()? else { return Ok(None) };
    let mut least = u64::MAX;

    for _ in 0..READINGS_MAX {
        let rest = all()?.saturating_sub(before);
        let Some(after) = by_sockets()? else { return Ok(None) };
        if after == before {
            return Ok(Some(rest));
        }
        // Each reading is exact or too large, so the least one is the best.
        least = least.min(rest);
        before = after;
    }
    Ok(Some(least))
}

/// Maximum number of readings of counters that change between readings.
const READINGS_MAX: usize = 8;

/// The counters that show a device's losses.
#[derive(Clone, Copy, Debug)]
enum Reporter {
    Driver(&'static Row),
    Veth,
    None,
}

/// A bond adds up counters of drivers that mean different things by them, and other virtual
/// interfaces have none that grow: 0 would read as "nothing lost".
fn reporter(kind: Option<&str>, driver: Option<&str>) -> Reporter {
    match kind {
        Some("veth") => Reporter::Veth,
        Some(_) => Reporter::None,
        None => driver.and_then(Row::of).map_or(Reporter::None, Reporter::Driver),
    }
}

/// Frames that a veth's peer could not pass on, of frames redirected to it (`xdp_xmit`) and of
/// frames that it returned (`xdp_tx`); `None` if the peer is in another namespace.
fn peer_errors(netlink: &mut Netlink, link: &Link) -> io::Result<Option<u64>> {
    let Some(peer) = link.lower else { return Ok(None) };
    let payload = link::link_payload(netlink, peer, false)?;
    let Some(peer) = payload.as_deref().and_then(Link::parse) else { return Ok(None) };
    let statistics = Ethtool::new(netlink.socket(), &peer.name)?.statistics()?;
    let redirected = queue_sum(&statistics, "tx_queue_", "_xdp_xmit_errors");
    let sent_back = queue_sum(&statistics, "rx_queue_", "_xdp_tx_errors");
    Ok(redirected.zip(sent_back).map(|(redirected, sent_back)| redirected + sent_back))
}

/// The sum over the queues of a driver's statistic: those named with a number between `before` and
/// `after`. `None` if the driver has no such statistic (veth has one since Linux 5.5).
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
    fn only_drivers_that_are_known_report_losses() {
        assert!(matches!(reporter(None, Some("ixgbe")), Reporter::Driver(_)));
        assert!(matches!(reporter(Some("veth"), Some("veth")), Reporter::Veth));
        for (kind, driver) in [
            (Some("bond"), Some("bonding")),
            (None, Some("virtio_net")),
            (None, Some("tun")),
            (None, None),
        ] {
            assert!(matches!(reporter(kind, driver), Reporter::None), "{driver:?}");
        }
    }

    #[test]
    fn only_the_named_statistic_of_numbered_queues_is_added_up() {
        let statistics =
            [("rx_queue_0_drops", 1), ("rx_queue_0_xdp_drops", 10), ("rx_queue_12_drops", 100)];
        let statistics = statistics.map(|(name, count)| (name.to_owned(), count));
        assert_eq!(queue_sum(&statistics, "rx_queue_", "_drops"), Some(101));
        assert_eq!(queue_sum(&statistics, "tx_queue_", "_drops"), None);
    }

    #[test]
    fn drops_of_sockets_between_two_readings_are_not_the_device_s() {
        use std::cell::Cell;

        // The device dropped 7; sockets drop one packet at each of the first readings.
        let of = |readings: u64| {
            let clock = Cell::new(0);
            let sockets = |now: u64| now.min(readings);
            let tick = || clock.replace(clock.get() + 1);
            let all = || Ok(7 + sockets(tick()));
            let by_sockets = || Ok(Some(sockets(tick())));
            without_the_sockets(all, by_sockets).unwrap().unwrap()
        };
        assert_eq!([0, 1, 2, 5, 9].map(of), [7; 5]);

        // They never stop: too large, by those between two readings.
        assert_eq!(of(u64::MAX), 8);
        assert_eq!(without_the_sockets(|| Ok(1), || Ok(None)).unwrap(), None);
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
