//! Where drivers count the frames that their devices lost for lack of a descriptor or of room.
//!
//! The kernel has no rule that drivers follow: `rx_missed_errors`, `rx_fifo_errors` and
//! `rx_dropped` mean something else in each, and some count only in their own statistics
//! (`ethtool -S`). So there is a row for each driver whose source was read, and the losses of all
//! others are not reported. Sources are those of Linux 6.12 (Debian's 6.12.117), below
//! `drivers/net`.

use super::link::LinkStatistics;

/// A counter that includes a device's losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counter {
    /// The link's `rx_missed_errors`.
    Missed,
    /// The link's `rx_fifo_errors`.
    Fifo,
    /// The driver's own `rx_long_length_errors` (the register ROC): frames longer than the MTU
    /// permits, which the device discards before it counts them as received. The link's
    /// `rx_length_errors` has the runts (RUC) as well, of which QEMU's devices count those that
    /// they fill up and deliver: every ARP request, for instance.
    OverLong,
    /// The driver's own statistic of this name, blanks around it aside; the sum of all of this
    /// name.
    Own(&'static str),
    /// The same, if the driver has it: it was added later, or only some devices have it.
    OwnIfAny(&'static str),
}

use Counter::{Fifo, Missed, OverLong, Own, OwnIfAny};

/// The counters of a driver for its device's losses.
#[derive(Debug)]
pub(super) struct Row {
    driver: &'static str,
    /// Each frame is counted in one of these.
    counters: &'static [Counter],
}

/// The drivers whose source was read, each with the file and the function that fill the counters.
const ROWS: &[Row] = &[
    // MPC: no room in the packet buffer; QPRDC: no descriptor (82599 and later).
    // `rx_no_dma_resources` is in no link statistic.
    // ethernet/intel/ixgbe/ixgbe_main.c ixgbe_update_stats
    Row { driver: "ixgbe", counters: &[Missed, OwnIfAny("rx_no_dma_resources")] },
    // `rx_fifo_errors` is RQDPC (no descriptor) and MPC together, `rx_missed_errors` MPC once more.
    // ethernet/intel/igb/igb_main.c igb_update_stats, igb_ethtool.c
    Row { driver: "igb", counters: &[Fifo, OverLong] },
    // ethernet/intel/igc/igc_main.c igc_update_stats, igc_ethtool.c
    Row { driver: "igc", counters: &[Fifo, OverLong] },
    // ethernet/intel/e1000e/netdev.c e1000e_update_stats, ethtool.c
    Row { driver: "e1000e", counters: &[Missed, OverLong] },
    // ethernet/intel/e1000/e1000_main.c e1000_update_stats, e1000_ethtool.c
    Row { driver: "e1000", counters: &[Missed, OverLong] },
    // RDPC moved from `rx_dropped` to `rx_missed_errors` when other discards got the former name.
    // The link's `rx_dropped` has the host's own drops as well, the driver's statistic has not.
    // ethernet/intel/i40e/i40e_main.c i40e_update_vsi_stats, i40e_ethtool.c
    Row { driver: "i40e", counters: &[Own("rx_dropped"), OwnIfAny("rx_missed_errors")] },
    // GLV_RDPC: no descriptor; PRTRPB_RDPC: no room in the port's buffer. The link has the first
    // only, as `rx_dropped`. ethernet/intel/ice/ice_main.c ice_update_vsi_stats,
    // ice_update_pf_stats, ice_ethtool.c
    Row { driver: "ice", counters: &[Own("rx_dropped"), Own("rx_dropped.nic")] },
    // ethernet/intel/iavf/iavf_ethtool.c iavf_gstrings_stats
    Row { driver: "iavf", counters: &[Own("rx_discards")] },
    // No receive work request, and no room in the port's buffer; the link's `rx_missed_errors` is
    // the first. ethernet/mellanox/mlx5/core/en_stats.c qcnt, pport_2863
    Row { driver: "mlx5_core", counters: &[Own("rx_out_of_buffer"), OwnIfAny("rx_discards_phy")] },
    // ethernet/broadcom/bnxt/bnxt.c bnxt_get_ring_stats (rx_discard_pkts)
    Row { driver: "bnxt_en", counters: &[Missed] },
    // ethernet/broadcom/tg3.c tg3_get_nstats (rx_discards)
    Row { driver: "tg3", counters: &[Missed] },
    // No receive buffer; and no room in the port's packet buffer (BRB), which only a physical
    // function reports. ethernet/qlogic/qede/qede_main.c qede_get_stats64 (no_buff_discards),
    // qede_ethtool.c qede_stats_arr
    Row { driver: "qede", counters: &[Fifo, OwnIfAny("brb_discards"), OwnIfAny("brb_truncates")] },
    // One for each receive queue, all of one name: what found no buffer, and what the driver
    // dropped because the device had marked it as erroneous or there was no memory.
    // vmxnet3/vmxnet3_ethtool.c vmxnet3_rq_dev_stats (pktsRxOutOfBuf), vmxnet3_rq_driver_stats
    // (drop_total)
    Row { driver: "vmxnet3", counters: &[Own("pkts rx OOB"), OwnIfAny("drv dropped rx total")] },
];

impl Row {
    /// The row of a driver.
    pub(super) fn of(driver: &str) -> Option<&'static Self> {
        ROWS.iter().find(|row| row.driver == driver)
    }

    /// Whether the driver's own statistics must be read.
    pub(super) fn has_own(&self) -> bool {
        self.counters.iter().any(|counter| matches!(counter, OverLong | Own(_) | OwnIfAny(_)))
    }

    /// The device's losses; `None` if the driver does not have the statistics of the row, because
    /// it is another version.
    pub(super) fn dropped(&self, link: &LinkStatistics, own: &[(String, u64)]) -> Option<u64> {
        Self::sum(self.counters.iter(), link, own)
    }

    /// Those of frames that the device would have received if it had had room.
    pub(super) fn dropped_for_lack_of_room(
        &self,
        link: &LinkStatistics,
        own: &[(String, u64)],
    ) -> Option<u64> {
        Self::sum(self.counters.iter().filter(|counter| **counter != OverLong), link, own)
    }

    fn sum<'a>(
        counters: impl Iterator<Item = &'a Counter>,
        link: &LinkStatistics,
        own: &[(String, u64)],
    ) -> Option<u64> {
        let sum = |name: &str| {
            let named = own.iter().filter(|(own, _)| own.trim() == name).map(|(_, count)| *count);
            named.reduce(u64::wrapping_add)
        };
        let count = |counter: &Counter| match counter {
            Missed => Some(link.rx_missed_errors),
            Fifo => Some(link.rx_fifo_errors),
            OverLong => sum("rx_long_length_errors"),
            Own(name) => sum(name),
            OwnIfAny(name) => Some(sum(name).unwrap_or(0)),
        };
        counters.map(count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of `ethtool -S`, read as ethtool(2) gives it.
    fn parse(output: &str) -> Vec<(String, u64)> {
        let statistic = |line: &str| {
            let (name, value) = line.rsplit_once(':')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        };
        output.lines().filter_map(statistic).collect()
    }

    /// The losses of `driver` according to the record, and to `link`. Records have the names that
    /// the driver prints, in its order, cut short; ixgbe's counts are those of a public report.
    fn lost(driver: &str, record: &str, link: LinkStatistics) -> Option<u64> {
        Row::of(driver).expect("there is a row").dropped(&link, &parse(record))
    }

    const LINK: LinkStatistics = LinkStatistics {
        rx_packets: 1 << 20,
        rx_dropped: 1000,
        rx_length_errors: 50,
        rx_crc_errors: 0,
        rx_over_errors: 0,
        rx_fifo_errors: 30,
        rx_missed_errors: 7,
        tx_packets: 0,
        tx_errors: 0,
        tx_dropped: 0,
    };

    #[test]
    fn each_drivers_losses_are_read_from_its_counters() {
        let cases = [
            ("ixgbe", include_str!("records/ixgbe"), 7 + 1119),
            ("igb", include_str!("records/igb"), 30 + 2),
            ("igc", include_str!("records/igb"), 30 + 2),
            ("i40e", include_str!("records/i40e-6.12"), 12 + 4508),
            ("i40e", include_str!("records/i40e-6.1"), 4508),
            ("ice", include_str!("records/ice"), 2210 + 19),
            ("mlx5_core", include_str!("records/mlx5_core"), 1_043_502 + 88),
            ("vmxnet3", include_str!("records/vmxnet3"), 17 + 4 + 3),
            ("bnxt_en", "", 7),
            ("e1000e", include_str!("records/e1000e"), 7 + 50),
            ("e1000", include_str!("records/e1000e"), 7 + 50),
            ("qede", include_str!("records/qede"), 30 + 512 + 3),
            ("qede", "", 30),
        ];
        for (driver, record, expected) in cases {
            assert_eq!(lost(driver, record, LINK), Some(expected), "{driver}");
        }
    }

    #[test]
    fn over_long_frames_are_lost_and_were_not_counted_as_received() {
        let row = Row::of("e1000e").expect("there is a row");
        let own = parse(include_str!("records/e1000e"));
        let counts = [row.dropped(&LINK, &own), row.dropped_for_lack_of_room(&LINK, &own)];
        assert_eq!(counts, [Some(7 + 50), Some(7)]);
    }

    #[test]
    fn a_driver_without_the_statistics_of_its_row_reports_nothing() {
        assert_eq!(lost("ice", "     rx_bytes: 5\n", LINK), None);
        assert_eq!(lost("vmxnet3", "     rx_bytes: 5\n", LINK), None);
    }

    #[test]
    fn a_driver_that_was_not_read_has_no_row() {
        for driver in
            ["virtio_net", "ena", "gve", "hv_netvsc", "r8169", "mlx4_en", "bonding", "tun", ""]
        {
            assert!(Row::of(driver).is_none(), "{driver}");
        }
    }
}
