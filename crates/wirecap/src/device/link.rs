//! Interfaces as rtnetlink reports them.

use std::io;

use super::Mac;
use super::netlink::{Attributes, Netlink, Payload, u32_at, u64_at};
use super::xdp::{self, AttachedXdp};

const HEADER_BYTES: usize = 16;
/// Missing from libc on some targets.
const IFLA_PERM_ADDRESS: u16 = 54;

/// One interface, as `RTM_NEWLINK` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) flags: u32,
    pub(super) link_type: u16,
    pub(super) mac: Option<Mac>,
    /// The address of the hardware, which `ip link set address` does not change.
    pub(super) permanent_mac: Option<Mac>,
    pub(super) mtu: u32,
    pub(super) operational_state: u8,
    pub(super) carrier: bool,
    /// Number of carrier losses.
    pub(super) carrier_losses: Option<u32>,
    /// The type of a virtual interface (`veth`, `bridge`); hardware has none.
    pub(super) kind: Option<String>,
    /// The interface below this one, or a veth's peer, if it is in this namespace.
    pub(super) lower: Option<u32>,
    /// The bridge, bond or switch that this interface is a port of.
    pub(super) controller: Option<u32>,
    pub(super) attached_xdp: Vec<AttachedXdp>,
}

impl Link {
    /// Reads the payload of an `RTM_NEWLINK`.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let (header, attributes) = Attributes::after_header::<HEADER_BYTES>(payload)?;
        let elsewhere = attributes.bytes(libc::IFLA_LINK_NETNSID).is_some();

        Some(Self {
            index: u32_at(header, 4)?,
            name: attributes.text(libc::IFLA_IFNAME)?,
            flags: u32_at(header, 8)?,
            link_type: u16::from_ne_bytes([header[2], header[3]]),
            mac: attributes.bytes(libc::IFLA_ADDRESS).and_then(Mac::from_bytes),
            permanent_mac: attributes.bytes(IFLA_PERM_ADDRESS).and_then(Mac::from_bytes),
            mtu: attributes.u32(libc::IFLA_MTU).unwrap_or(0),
            operational_state: attributes.u8(libc::IFLA_OPERSTATE).unwrap_or(0),
            carrier: attributes.u8(libc::IFLA_CARRIER) == Some(1),
            carrier_losses: attributes.u32(libc::IFLA_CARRIER_DOWN_COUNT),
            kind: attributes
                .nested(libc::IFLA_LINKINFO)
                .and_then(|info| info.text(libc::IFLA_INFO_KIND)),
            lower: attributes.u32(libc::IFLA_LINK).filter(|&index| index != 0 && !elsewhere),
            controller: attributes.u32(libc::IFLA_MASTER),
            attached_xdp: attributes.nested(libc::IFLA_XDP).map(xdp::attached).unwrap_or_default(),
        })
    }

    /// Reads the payload of a notification. `None` for those of a bridge, which reports its ports
    /// with the same messages: a port that leaves the bridge still exists.
    pub(super) fn parse_news(payload: &[u8]) -> Option<Self> {
        let is_of_link = payload.first() == Some(&(libc::AF_UNSPEC as u8));
        #[cfg(sabotage)]
        let is_of_link = is_of_link || crate::sabotage::is("port-that-leaves-a-bridge-is-removed");
        Self::parse(payload).filter(|_| is_of_link)
    }

    pub(super) fn has_flag(&self, flag: libc::c_int) -> bool {
        self.flags & flag as u32 != 0
    }

    /// Whether the other interface is an upper device of this one: a VLAN or a macvlan, but not a
    /// veth's peer.
    pub(super) fn carries(&self, other: &Link) -> bool {
        let is_pair = matches!(other.kind.as_deref(), Some("veth" | "vxcan" | "netkit"));
        other.lower == Some(self.index) && other.index != self.index && !is_pair
    }
}

/// Counters of an interface, most of them for frames lost on reception
/// (`struct rtnl_link_stats64`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkStatistics {
    pub(super) rx_packets: u64,
    pub(super) rx_dropped: u64,
    pub(super) rx_length_errors: u64,
    pub(super) rx_crc_errors: u64,
    pub(super) rx_over_errors: u64,
    pub(super) rx_fifo_errors: u64,
    pub(super) rx_missed_errors: u64,
    pub(super) tx_packets: u64,
    pub(super) tx_errors: u64,
    pub(super) tx_dropped: u64,
}

impl LinkStatistics {
    /// Reads the statistics in the payload of an `RTM_NEWLINK`.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let (_, attributes) = Attributes::after_header::<HEADER_BYTES>(payload)?;
        let counters = attributes.bytes(libc::IFLA_STATS64)?;
        let counter = |index: usize| u64_at(counters, 8 * index);

        Some(Self {
            rx_packets: counter(0)?,
            rx_dropped: counter(6)?,
            rx_length_errors: counter(10)?,
            rx_crc_errors: counter(12)?,
            rx_over_errors: counter(11)?,
            rx_fifo_errors: counter(14)?,
            rx_missed_errors: counter(15)?,
            tx_packets: counter(1)?,
            tx_errors: counter(5)?,
            tx_dropped: counter(7)?,
        })
    }

    /// Packets that the host handed to the device to be sent, as far as they are counted.
    pub(super) fn sent(&self) -> u64 {
        self.tx_packets.wrapping_add(self.tx_errors).wrapping_add(self.tx_dropped)
    }
}

/// All interfaces, in the order of their indices.
pub(super) fn links(netlink: &mut Netlink) -> io::Result<Vec<Link>> {
    let request = Payload::new(&[0; HEADER_BYTES]).with_u32(libc::IFLA_EXT_MASK, SKIP_STATISTICS);
    let mut links = netlink.list(libc::RTM_GETLINK, &request, Link::parse)?;
    links.sort_by_key(|link| link.index);
    Ok(links)
}

const SKIP_STATISTICS: u32 = libc::RTEXT_FILTER_SKIP_STATS as u32;

/// The interface of this name or alternative name, if there is one.
pub(super) fn link_by_name(netlink: &mut Netlink, name: &str) -> io::Result<Option<Link>> {
    let request = Payload::new(&[0; HEADER_BYTES])
        .with_text(libc::IFLA_IFNAME, name)
        .with_u32(libc::IFLA_EXT_MASK, SKIP_STATISTICS);
    found(netlink.get(libc::RTM_GETLINK, &request))
        .map(|payload| payload.as_deref().and_then(Link::parse))
}

/// The payload of the `RTM_NEWLINK` of the interface of this index, with or without its statistics.
pub(super) fn link_payload(
    netlink: &mut Netlink,
    index: u32,
    statistics: bool,
) -> io::Result<Option<Vec<u8>>> {
    let mut header = [0; HEADER_BYTES];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    let mask = if statistics { 0 } else { SKIP_STATISTICS };
    let request = Payload::new(&header).with_u32(libc::IFLA_EXT_MASK, mask);
    found(netlink.get(libc::RTM_GETLINK, &request))
}

/// "No such interface" is a valid answer: it may have been removed between two queries.
pub(super) fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The further hardware addresses for which an Ethernet interface receives, in addition to its own
/// and multicast.
pub(super) fn other_macs(netlink: &mut Netlink, link: &Link) -> io::Result<Vec<Mac>> {
    const NEIGHBOUR_HEADER_BYTES: usize = 12;
    const NTF_SELF: u8 = 2;

    if link.link_type != libc::ARPHRD_ETHER {
        return Ok(Vec::new());
    }

    let mut header = [0; NEIGHBOUR_HEADER_BYTES];
    header[0] = libc::AF_BRIDGE as u8;

    let request = Payload::new(&header).with_u32(libc::NDA_IFINDEX, link.index);
    let other_mac = |payload: &[u8]| {
        let (header, attributes) = Attributes::after_header::<NEIGHBOUR_HEADER_BYTES>(payload)?;
        let is_own_table = u32_at(header, 4) == Some(link.index) && header[10] & NTF_SELF != 0;
        let mac = attributes.bytes(libc::NDA_LLADDR).and_then(Mac::from_bytes)?;
        (is_own_table && !mac.is_multicast() && Some(mac) != link.mac).then_some(mac)
    };
    match netlink.list(libc::RTM_GETNEIGH, &request, other_mac) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
        macs => macs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: &str, more: impl FnOnce(Payload) -> Payload) -> Link {
        let mut header = [0; HEADER_BYTES];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        let info = Payload::new(&[]).with_text(libc::IFLA_INFO_KIND, kind);
        let payload = Payload::new(&header).with_text(libc::IFLA_IFNAME, name);
        Link::parse(more(payload.with(libc::IFLA_LINKINFO, info.bytes())).bytes()).unwrap()
    }

    fn on(lower: u32) -> impl FnOnce(Payload) -> Payload {
        move |payload| payload.with_u32(libc::IFLA_LINK, lower)
    }

    #[test]
    fn a_vlan_is_an_upper_device_of_its_interface() {
        let eth0 = link(2, "eth0", "", |payload| payload);
        let vlan = link(5, "eth0.7", "vlan", on(2));
        assert!(eth0.carries(&vlan) && !vlan.carries(&eth0));
    }

    #[test]
    fn the_ends_of_a_pair_are_not_upper_devices_of_each_other() {
        for kind in ["veth", "netkit", "vxcan"] {
            let a = link(2, "a", kind, on(3));
            let b = link(3, "b", kind, on(2));
            assert!(!a.carries(&b) && !b.carries(&a), "{kind}");
        }
    }

    #[test]
    fn an_index_of_another_namespace_is_not_ours() {
        let elsewhere = |payload: Payload| on(2)(payload).with_u32(libc::IFLA_LINK_NETNSID, 0);
        assert_eq!(link(5, "vlan7", "vlan", elsewhere).lower, None);
    }

    #[test]
    fn a_bond_is_known_by_its_ports() {
        let port = link(2, "eth0", "", |payload| payload.with_u32(libc::IFLA_MASTER, 9));
        assert_eq!(port.controller, Some(9));
    }

    #[test]
    fn statistics_are_taken_from_their_places() {
        let counters: Vec<u8> = (0..25_u64).flat_map(u64::to_ne_bytes).collect();
        let payload = Payload::new(&[0; HEADER_BYTES]).with(libc::IFLA_STATS64, &counters);
        let statistics = LinkStatistics::parse(payload.bytes()).unwrap();

        let expected = LinkStatistics {
            rx_packets: 0,
            rx_dropped: 6,
            rx_length_errors: 10,
            rx_crc_errors: 12,
            rx_over_errors: 11,
            rx_fifo_errors: 14,
            rx_missed_errors: 15,
            tx_packets: 1,
            tx_errors: 5,
            tx_dropped: 7,
        };
        assert_eq!(statistics, expected);
    }
}
