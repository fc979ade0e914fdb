//! Addresses and ports used by both expressions and packets.

use std::net::{Ipv4Addr, Ipv6Addr};

pub(crate) const ADDRESSES: [Ipv4Addr; 10] = [
    Ipv4Addr::new(10, 0, 0, 1),
    Ipv4Addr::new(10, 0, 0, 2),
    Ipv4Addr::new(10, 1, 2, 3),
    Ipv4Addr::new(131, 225, 2, 5),
    Ipv4Addr::new(131, 225, 2, 255),
    Ipv4Addr::new(172, 16, 200, 9),
    Ipv4Addr::new(192, 168, 1, 1),
    Ipv4Addr::new(192, 168, 130, 77),
    Ipv4Addr::new(224, 0, 0, 251),
    Ipv4Addr::new(255, 255, 255, 255),
];

pub(crate) const NETS: [&str; 6] = [
    "10.0.0.0/8",
    "10.0.0.0/30",
    "131.225.2.0/24",
    "192.168.0.0/16",
    "172.16.0.0/12",
    "192.168.130.64/26",
];

pub(crate) const ADDRESSES_6: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 1, 0, 0, 0, 2),
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0x21b, 0x21ff, 0xfe3c, 1),
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb),
    Ipv6Addr::LOCALHOST,
];

pub(crate) const NETS_6: [&str; 3] = ["2001:db8::/32", "fe80::/10", "2001:db8:ffff::/48"];

pub(crate) const PORTS: [u16; 12] =
    [22, 25, 53, 80, 123, 443, 1024, 5353, 8080, 33_434, 49_152, 65_535];

pub(crate) const MACS: [[u8; 6]; 5] = [
    [0x02, 0, 0, 0, 0, 1],
    [0x02, 0, 0, 0, 0, 2],
    [0xff; 6],
    [0x01, 0, 0x5e, 0, 0, 0xfb],
    [0x33, 0x33, 0, 0, 0, 1],
];

pub(crate) fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
