//! The XDP features of an interface, as the kernel's `netdev` family reports them (since Linux
//! 6.3).

use std::fmt;
use std::io;

use bitflags::bitflags;

use super::auto::ReceiveMode;
use super::netlink::{Attributes, Netlink, Payload};

const CONTROL_FAMILY: u16 = libc::GENL_ID_CTRL as u16;
const CONTROL_GET_FAMILY: u8 = libc::CTRL_CMD_GETFAMILY as u8;
const CONTROL_FAMILY_ID: u16 = libc::CTRL_ATTR_FAMILY_ID as u16;
const CONTROL_FAMILY_NAME: u16 = libc::CTRL_ATTR_FAMILY_NAME as u16;
const CONTROL_GROUPS: u16 = libc::CTRL_ATTR_MCAST_GROUPS as u16;
const CONTROL_GROUP_NAME: u16 = libc::CTRL_ATTR_MCAST_GRP_NAME as u16;
const CONTROL_GROUP_ID: u16 = libc::CTRL_ATTR_MCAST_GRP_ID as u16;

const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_CMD_QUEUE_GET: u8 = 10;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
const NETDEV_A_QUEUE_IFINDEX: u16 = 2;
const NETDEV_A_QUEUE_TYPE: u16 = 3;
const QUEUE_TYPE_RX: u32 = 0;

const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const IFLA_XDP_HW_PROG_ID: u16 = 7;

pub(super) const GENERIC_HEADER_BYTES: usize = 4;

bitflags! {
    /// The driver's XDP features.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct XdpFeatures: u64 {
        /// Programs run in the driver and may return XDP_ABORTED, XDP_DROP, XDP_PASS and XDP_TX.
        const BASIC = 1;
        /// Programs may redirect, which AF_XDP requires.
        const REDIRECT = 1 << 1;
        /// Frames can be redirected to this device. A veth reports this only while its peer has a
        /// program or GRO.
        const NDO_XMIT = 1 << 2;
        /// AF_XDP without a copy.
        const XSK_ZEROCOPY = 1 << 3;
        /// Programs can run in the hardware.
        const HW_OFFLOAD = 1 << 4;
        /// Frames longer than one buffer can be received.
        const RX_SG = 1 << 5;
        /// Frames longer than one buffer can be redirected to this device.
        const NDO_XMIT_SG = 1 << 6;
    }

    /// The metadata about a frame that the driver provides to a program.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RxMetadata: u64 {
        /// The hardware's time of arrival.
        const TIMESTAMP = 1;
        /// The hardware's flow hash.
        const HASH = 1 << 1;
        /// The VLAN tag that the hardware removed.
        const VLAN_TAG = 1 << 2;
    }

    /// The driver's features for frames sent by AF_XDP.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct XskFeatures: u64 {
        /// Report the transmission time of a frame.
        const TX_TIMESTAMP = 1;
        /// Fill in checksums.
        const TX_CHECKSUM = 1 << 1;
        /// Send a frame at a given time.
        const TX_LAUNCH_TIME_FIFO = 1 << 2;
    }
}

/// The XDP support of an interface's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct XdpSupport {
    /// Its XDP features; empty if it has no native XDP (every interface has generic XDP).
    pub features: XdpFeatures,
    /// The maximum number of buffers per frame in zero-copy mode, if it supports this mode.
    pub zero_copy_segments_max: Option<u32>,
    /// The metadata about received frames that it provides to a program.
    pub rx_metadata: RxMetadata,
    /// Its features for frames that AF_XDP sends.
    pub xsk: XskFeatures,
}

impl XdpSupport {
    /// Whether AF_XDP sockets can be served by a program in the driver.
    pub fn is_native(&self) -> bool {
        self.features.contains(XdpFeatures::BASIC | XdpFeatures::REDIRECT)
    }

    /// Whether zero-copy is possible.
    pub fn is_zero_copy(&self) -> bool {
        self.is_native() && self.features.contains(XdpFeatures::XSK_ZEROCOPY)
    }

    pub(super) fn expected_rung(&self) -> ReceiveMode {
        match self {
            _ if self.is_zero_copy() => ReceiveMode::ZeroCopy,
            _ if self.is_native() => ReceiveMode::NativeCopy,
            _ => ReceiveMode::Generic,
        }
    }

    /// Reads the payload of an answer to `dev-get`.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let (_, attributes) = Attributes::after_header::<GENERIC_HEADER_BYTES>(payload)?;
        let bits = |kind| attributes.u64(kind).unwrap_or(0);
        Some(Self {
            features: XdpFeatures::from_bits_retain(attributes.u64(NETDEV_A_DEV_XDP_FEATURES)?),
            zero_copy_segments_max: attributes.u32(NETDEV_A_DEV_XDP_ZC_MAX_SEGS),
            rx_metadata: RxMetadata::from_bits_retain(bits(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES)),
            xsk: XskFeatures::from_bits_retain(bits(NETDEV_A_DEV_XSK_FEATURES)),
        })
    }
}

/// Where an attached XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// In the stack, after the driver has allocated a socket buffer.
    Generic,
    /// In the hardware.
    Offloaded,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Offloaded => "offloaded",
        })
    }
}

/// An XDP program that is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttachedXdp {
    /// The kernel's number of the program.
    pub program_id: u32,
    /// Where it runs.
    pub mode: XdpMode,
}

/// The programs in an interface's `IFLA_XDP` attribute: at most one of each mode.
pub(super) fn attached(xdp: Attributes<'_>) -> Vec<AttachedXdp> {
    [
        (IFLA_XDP_DRV_PROG_ID, XdpMode::Native),
        (IFLA_XDP_SKB_PROG_ID, XdpMode::Generic),
        (IFLA_XDP_HW_PROG_ID, XdpMode::Offloaded),
    ]
    .into_iter()
    .filter_map(|(kind, mode)| Some(AttachedXdp { program_id: xdp.u32(kind)?, mode }))
    .collect()
}

/// The kernel's `netdev` family.
pub(super) struct Netdev {
    netlink: Netlink,
    family: u16,
}

impl Netdev {
    /// Connects to it; `None` if this kernel has none.
    pub(super) fn connect() -> io::Result<Option<Self>> {
        let mut netlink = Netlink::generic()?;
        let request = command(CONTROL_GET_FAMILY).with_text(CONTROL_FAMILY_NAME, "netdev");
        let answer = match netlink.get(CONTROL_FAMILY, &request) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            answer => answer?,
        };
        let family = Attributes::after_header::<GENERIC_HEADER_BYTES>(&answer)
            .and_then(|(_, attributes)| attributes.u16(CONTROL_FAMILY_ID));
        Ok(family.map(|family| Self { netlink, family }))
    }

    /// The features of the interface's driver, if the kernel reports them.
    pub(super) fn xdp_support(&mut self, ifindex: u32) -> Option<XdpSupport> {
        let request = command(NETDEV_CMD_DEV_GET).with_u32(NETDEV_A_DEV_IFINDEX, ifindex);
        self.netlink.get(self.family, &request).ok().and_then(|payload| XdpSupport::parse(&payload))
    }

    /// The numbers of receive and of transmit queues in use (since Linux 6.8, only while it is up).
    pub(super) fn queues(&mut self, ifindex: u32) -> Option<(u32, u32)> {
        let request = command(NETDEV_CMD_QUEUE_GET).with_u32(NETDEV_A_QUEUE_IFINDEX, ifindex);
        let count = |counts: &mut (u32, u32), payload: &[u8]| match Attributes::after_header::<
            GENERIC_HEADER_BYTES,
        >(payload)
        .and_then(|(_, attributes)| attributes.u32(NETDEV_A_QUEUE_TYPE))
        {
            Some(QUEUE_TYPE_RX) => counts.0 += 1,
            Some(_) => counts.1 += 1,
            None => {}
        };
        self.netlink.dump(self.family, &request, count).ok().filter(|&(rx, _)| rx > 0)
    }
}

/// The number of the notifications with the second name, of the generic family with the first.
pub(super) fn generic_group(
    netlink: &mut Netlink,
    (family, group): (&str, &str),
) -> io::Result<u32> {
    let request = command(CONTROL_GET_FAMILY).with_text(CONTROL_FAMILY_NAME, family);
    let answer = netlink.get(CONTROL_FAMILY, &request)?;
    let groups = Attributes::after_header::<GENERIC_HEADER_BYTES>(&answer)
        .and_then(|(_, attributes)| attributes.nested(CONTROL_GROUPS));
    let mut groups =
        groups.into_iter().flat_map(Attributes::iter).map(|(_, group)| Attributes::new(group));
    let found = groups.find(|found| found.text(CONTROL_GROUP_NAME).as_deref() == Some(group));

    found
        .and_then(|found| found.u32(CONTROL_GROUP_ID))
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The head of a request to a generic family: the command and the family's version.
fn command(command: u8) -> Payload {
    Payload::new(&[command, 1, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of a driver with zero-copy.
    fn zero_copy_answer() -> Payload {
        let all_features_and_one_to_come = 0xff_u64;
        command(NETDEV_CMD_DEV_GET)
            .with_u32(NETDEV_A_DEV_IFINDEX, 4)
            .with(NETDEV_A_DEV_XDP_FEATURES, &all_features_and_one_to_come.to_ne_bytes())
            .with(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES, &3_u64.to_ne_bytes())
            .with(NETDEV_A_DEV_XSK_FEATURES, &2_u64.to_ne_bytes())
            .with_u32(NETDEV_A_DEV_XDP_ZC_MAX_SEGS, 8)
    }

    #[test]
    fn a_zero_copy_driver_is_understood() {
        let support = XdpSupport::parse(zero_copy_answer().bytes()).unwrap();
        assert!(support.is_zero_copy() && support.is_native());
        assert_eq!(support.features & XdpFeatures::all(), XdpFeatures::all());
        assert_eq!(support.zero_copy_segments_max, Some(8));
        assert_eq!(support.rx_metadata, RxMetadata::TIMESTAMP | RxMetadata::HASH);
        assert_eq!(support.xsk, XskFeatures::TX_CHECKSUM);
        assert_eq!(support.expected_rung(), ReceiveMode::ZeroCopy);
    }

    #[test]
    fn an_older_kernel_reports_fewer_features() {
        let answer =
            command(NETDEV_CMD_DEV_GET).with(NETDEV_A_DEV_XDP_FEATURES, &1_u64.to_ne_bytes());
        let support = XdpSupport::parse(answer.bytes()).unwrap();
        assert_eq!(support.zero_copy_segments_max, None);
        assert_eq!(
            support.expected_rung(),
            ReceiveMode::Generic,
            "without redirection no AF_XDP in the driver"
        );
    }

    #[test]
    fn a_missing_report_is_not_an_empty_one() {
        assert_eq!(XdpSupport::parse(command(NETDEV_CMD_DEV_GET).bytes()), None);
        assert_eq!(XdpSupport::parse(&[]), None);
    }

    #[test]
    fn a_program_in_the_hardware_is_listed() {
        let nested =
            Payload::new(&[]).with_u32(IFLA_XDP_HW_PROG_ID, 7).with_u32(IFLA_XDP_DRV_PROG_ID, 5);
        let programs = attached(Attributes::new(nested.bytes()));
        let of = |program_id, mode| AttachedXdp { program_id, mode };
        assert_eq!(programs, [of(5, XdpMode::Native), of(7, XdpMode::Offloaded)]);
    }
}
