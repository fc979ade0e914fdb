//! How many packets a device has received by its own count, to be compared with those that a
//! capture saw.
//!
//! The kernel has no rule whether `rx_packets` includes the packets that an XDP program took, so
//! only the counts of the drivers below are compared; the functions that count are named, below
//! `drivers/net`. The counts of veth, igb, e1000e, virtio_net and vmxnet3 were compared with a
//! sender's (`make nics CHECKS='"device count" "odd frames"'`), the others were only read.
//!
//! An engine that gets its packets after the host merged them (GRO, LRO) is not compared, nor is a
//! part of the queues by a driver that does not count by queue, nor `packet` with a filter in the
//! kernel. With `packet`, sent packets are seen as well: the sum of both counts must agree, and if
//! it does not, the received ones cannot be told apart. A veth counts with a program in the driver
//! all frames on which a program ran (`rx_queue_N_xdp_packets`), otherwise those that the host's
//! stack accepted (`rx_packets`); XDP frames to an end without NAPI vanish uncounted. virtio_net
//! counts by queue since Linux 6.10.

use std::io;

use super::link::LinkStatistics;
use super::offload::Offloads;
use super::{Device, DeviceError};
use crate::sys::ethtool::Ethtool;

/// Where a capture gets its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tap {
    /// From a program in the driver.
    Driver,
    /// From a program in the host's stack.
    Generic,
    /// From a packet socket.
    Socket,
}

/// What a device has received so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Received {
    /// Packets by receive queue, if the driver counts these.
    pub(crate) queues: Vec<(u32, u64)>,
    /// Packets of the whole interface.
    pub(crate) total: u64,
    /// Packets that the device itself counted, before it distributed them to its queues; of few
    /// devices known.
    pub(crate) on_wire: Option<u64>,
    /// Packets that the device dropped for lack of room, if reported.
    pub(crate) dropped: u64,
    /// Packets that this host sent, whether or not the device took them.
    pub(crate) sent: u64,
    /// Why the count differs from the packets that arrive where the capture gets them, if so.
    pub(crate) differs: Option<String>,
}

/// What a driver counts.
struct Row {
    driver: &'static str,
    /// What is before and after the number of a queue in the name of the driver's count of its
    /// packets.
    queue: Option<(&'static str, &'static str)>,
    /// The device's own count of good frames.
    on_wire: Option<&'static str>,
    /// The driver's count of frames that it drops, and of those that are not counted as received.
    then_dropped: Option<(&'static str, &'static str)>,
}

/// Drivers whose receive counts include packets that an XDP program takes, each with the function
/// that counts them.
///
/// None of them counts pause frames, nor frames that the device discards: runts, over-long frames,
/// wrong checksums.
const ROWS: &[Row] = &[
    // After each NAPI poll; `rx_packets` in ethtool's statistics is the device's register GPRC.
    // ethernet/intel/igb/igb_main.c igb_clean_rx_irq, igb_xsk.c igb_clean_rx_irq_zc
    Row {
        driver: "igb",
        queue: Some(("rx_queue_", "_packets")),
        on_wire: Some("rx_packets"),
        then_dropped: None,
    },
    // ethernet/intel/igc/igc_main.c igc_clean_rx_irq, igc_clean_rx_irq_zc
    Row {
        driver: "igc",
        queue: Some(("rx_queue_", "_packets")),
        on_wire: Some("rx_packets"),
        then_dropped: None,
    },
    // ethernet/intel/ixgbe/ixgbe_main.c ixgbe_clean_rx_irq, ixgbe_xsk.c ixgbe_clean_rx_irq_zc
    Row {
        driver: "ixgbe",
        queue: Some(("rx_queue_", "_packets")),
        on_wire: None,
        then_dropped: None,
    },
    // ethernet/intel/i40e/i40e_txrx.c i40e_clean_rx_irq, i40e_xsk.c i40e_clean_rx_irq_zc
    Row { driver: "i40e", queue: Some(("rx-", ".packets")), on_wire: None, then_dropped: None },
    // ethernet/intel/ice/ice_txrx.c ice_clean_rx_irq, ice_xsk.c ice_clean_rx_irq_zc
    Row {
        driver: "ice",
        queue: Some(("rx_queue_", "_packets")),
        on_wire: None,
        then_dropped: None,
    },
    // GPRC, read from the device each time; the driver has no queues and no XDP of its own.
    // ethernet/intel/e1000e/netdev.c e1000e_update_stats
    Row { driver: "e1000e", queue: None, on_wire: None, then_dropped: None },
    // Includes frames that it then drops: shorter than an Ethernet header (`rx_length_errors`), or
    // longer than a cell (`rx_drops`, which has what a program drops as well).
    // virtio_net.c virtnet_receive
    Row {
        driver: "virtio_net",
        queue: Some(("rx", "_packets")),
        on_wire: None,
        then_dropped: None,
    },
    // The device's counters of good frames; they restart from 0 with the device. The driver drops
    // good frames for lack of memory, and those that the device marks as erroneous.
    // vmxnet3/vmxnet3_ethtool.c vmxnet3_get_stats64, vmxnet3_drv.c vmxnet3_rq_rx_complete,
    // vmxnet3_rx_error
    Row {
        driver: "vmxnet3",
        queue: None,
        on_wire: None,
        then_dropped: Some(("drv dropped rx total", "err")),
    },
];

impl Device {
    /// What it has received so far, for a capture that gets its packets from `tap`.
    ///
    /// # Errors
    ///
    /// As [`counters`](Self::counters).
    pub(crate) fn received_for(&self, tap: Tap) -> Result<Received, DeviceError> {
        let mut netlink = self.reconnect()?;
        let reading = self.link_now(&mut netlink).and_then(|(_, link)| {
            let ethtool = Ethtool::new(netlink.socket(), &self.name)?;
            let own = ethtool.statistics().unwrap_or_default();
            let offloads = match tap {
                Tap::Driver => Offloads::default(),
                Tap::Generic | Tap::Socket => Offloads::of(&ethtool).unwrap_or_default(),
            };
            Ok((link, own, offloads))
        });
        let (link, own, offloads) = reading.map_err(|error: io::Error| self.kernel(error))?;
        let kind = self.kind.as_deref();
        let driver = self.driver.as_deref();

        Ok(received(kind, driver, tap, &link, &own, &offloads))
    }
}

/// The count by these statistics of a virtual interface's kind, or of a driver.
fn received(
    kind: Option<&str>,
    driver: Option<&str>,
    tap: Tap,
    link: &LinkStatistics,
    own: &[(String, u64)],
    offloads: &Offloads,
) -> Received {
    let row = driver
        .filter(|_| kind.is_none())
        .and_then(|driver| ROWS.iter().find(|row| row.driver == driver));
    let named =
        |name: &str| own.iter().find(|(own, _)| own.trim() == name).map(|(_, count)| *count);
    let sum = |name: &str| -> u64 {
        own.iter().filter(|(own, _)| own.trim() == name).map(|(_, count)| *count).sum()
    };
    let merges = offloads.gro || offloads.gro_hardware || offloads.lro;
    let merges = (tap != Tap::Driver && merges)
        .then(|| "the host merges received packets (GRO, LRO)".to_owned());
    let total = link.rx_packets;
    let sent = link.sent();
    let all = Received { total, sent, differs: merges, ..Received::default() };

    match (kind, row) {
        // A frame is counted when the program has run on it; without one, when the host's stack has
        // accepted it. veth.c veth_xdp_rcv, veth_xmit
        (Some("veth"), _) if tap == Tap::Driver => {
            let queues = by_queue(own, "rx_queue_", "_xdp_packets");
            Received { total: queues.iter().map(|(_, count)| count).sum(), queues, ..all }
        }
        // Packets that a program takes before the stack are counted, and a packet socket does not
        // see them.
        (Some("veth"), _) => all,
        (_, Some(row)) => {
            let queues =
                row.queue.map(|(before, after)| by_queue(own, before, after)).unwrap_or_default();
            let on_wire = row.on_wire.and_then(named);
            let then_dropped = row
                .then_dropped
                .map_or(0, |(all, erroneous)| sum(all) - sum(erroneous).min(sum(all)));
            let total = total.saturating_sub(then_dropped);
            let dropped = super::drop_table::Row::of(row.driver)
                .and_then(|row| row.dropped_for_lack_of_room(link, own));
            Received { queues, total, on_wire, dropped: dropped.unwrap_or(0), ..all }
        }
        (_, None) => {
            let driver = driver.or(kind).unwrap_or("unnamed");
            let unknown = format!("it is not known which packets its driver ({driver}) counts");
            Received { differs: all.differs.clone().or(Some(unknown)), ..all }
        }
    }
}

/// A driver's statistics with a queue's number between `before` and `after`.
fn by_queue(own: &[(String, u64)], before: &str, after: &str) -> Vec<(u32, u64)> {
    let queue = |(name, count): &(String, u64)| {
        let number = name.trim().strip_prefix(before)?.strip_suffix(after)?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        Some((number.parse().ok().filter(|_| is_number)?, *count))
    };
    own.iter().filter_map(queue).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(counts: &[(&str, u64)]) -> Vec<(String, u64)> {
        counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    fn link(rx_packets: u64) -> LinkStatistics {
        LinkStatistics { rx_packets, tx_packets: 5, tx_dropped: 1, ..LinkStatistics::default() }
    }

    #[test]
    fn a_veth_counts_by_queue_what_its_program_saw() {
        let own = own(&[
            ("rx_queue_0_xdp_packets", 7),
            ("rx_queue_0_drops", 2),
            ("rx_queue_1_xdp_packets", 4),
        ]);
        let of =
            |tap| received(Some("veth"), Some("veth"), tap, &link(11), &own, &Offloads::default());
        let seen = of(Tap::Driver);
        assert_eq!((seen.queues, seen.total, seen.differs), (vec![(0, 7), (1, 4)], 11, None));
        let seen = of(Tap::Socket);
        assert_eq!((seen.queues, seen.total, seen.sent), (vec![], 11, 6));
    }

    #[test]
    fn merged_packets_are_not_compared_where_the_stack_gives_them() {
        let offloads = Offloads { gro: true, ..Offloads::default() };
        let of =
            |tap| received(None, Some("igb"), tap, &link(11), &[], &offloads).differs.is_some();
        assert!(of(Tap::Socket) && of(Tap::Generic) && !of(Tap::Driver));
    }

    #[test]
    fn a_driver_counts_each_queue_under_its_own_names() {
        for (driver, name) in
            [("igb", "rx_queue_3_packets"), ("i40e", "rx-3.packets"), ("virtio_net", "rx3_packets")]
        {
            let own = own(&[(name, 9), ("rx_packets", 40), ("rx_queue_3_bytes", 1)]);
            let seen =
                received(None, Some(driver), Tap::Driver, &link(11), &own, &Offloads::default());
            assert_eq!((seen.queues, seen.total), (vec![(3, 9)], 11), "{driver}");
            assert_eq!(seen.on_wire, (driver == "igb").then_some(40));
        }
    }

    #[test]
    fn frames_that_a_driver_drops_after_the_device_counted_them_are_not_received() {
        let own = own(&[("  drv dropped rx total", 2), ("  drv dropped rx total", 1)]);
        let seen =
            received(None, Some("vmxnet3"), Tap::Driver, &link(11), &own, &Offloads::default());
        assert_eq!(seen.total, 8, "of two queues");
        let own = [own, vec![("     err".to_owned(), 2)]].concat();
        let seen =
            received(None, Some("vmxnet3"), Tap::Driver, &link(11), &own, &Offloads::default());
        assert_eq!(seen.total, 10, "the device does not count erroneous frames as received");
    }

    #[test]
    fn a_driver_that_was_not_read_counts_in_an_unknown_way() {
        for (kind, driver) in [(Some("bond"), "bonding"), (None, "mlx5_core"), (None, "tun")] {
            let seen =
                received(kind, Some(driver), Tap::Driver, &link(11), &[], &Offloads::default());
            assert!(seen.differs.unwrap().contains(driver));
            assert_eq!(seen.total, 11);
        }
    }
}
