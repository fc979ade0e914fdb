//! The host's addresses and routes on an interface.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::netlink::{Attributes, Netlink, Payload, u32_at};

/// Missing from libc on some targets.
const RTA_VIA: u16 = 18;
const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;

/// An address that the host has on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Address {
    /// The address itself.
    pub ip: IpAddr,
    /// The prefix length of the network.
    pub prefix_len: u8,
    /// Its scope.
    pub scope: Scope,
}

/// The scope in which an address is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everywhere.
    Global,
    /// In the site (deprecated IPv6 addresses).
    Site,
    /// On this link only.
    Link,
    /// In this host only.
    Host,
    /// A scope number defined by the administrator.
    Other(u8),
}

impl From<u8> for Scope {
    fn from(number: u8) -> Self {
        match number {
            libc::RT_SCOPE_UNIVERSE => Self::Global,
            libc::RT_SCOPE_SITE => Self::Site,
            libc::RT_SCOPE_LINK => Self::Link,
            libc::RT_SCOPE_HOST => Self::Host,
            number => Self::Other(number),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Global => f.write_str("global"),
            Self::Site => f.write_str("site"),
            Self::Link => f.write_str("link"),
            Self::Host => f.write_str("host"),
            Self::Other(number) => write!(f, "{number}"),
        }
    }
}

impl fmt::Display for Address {
    /// `192.0.2.1/24`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_len)
    }
}

impl Address {
    const HEADER_BYTES: usize = 8;

    /// The index of its interface and the address in the payload of an `RTM_NEWADDR`.
    pub(super) fn parse(payload: &[u8]) -> Option<(u32, Self)> {
        let (header, attributes) = Attributes::after_header::<{ Self::HEADER_BYTES }>(payload)?;
        // On a point-to-point link IFA_ADDRESS is the other end's.
        let own =
            attributes.bytes(libc::IFA_LOCAL).or_else(|| attributes.bytes(libc::IFA_ADDRESS))?;
        let address =
            Self { ip: ip(header[0], own)?, prefix_len: header[1], scope: Scope::from(header[3]) };
        Some((u32_at(header, 4)?, address))
    }

    /// The mask of its network, if it is an IPv4 address.
    pub(super) fn netmask(&self) -> Option<Ipv4Addr> {
        let host_bits = 32_u32.checked_sub(self.prefix_len.into())?;
        self.ip.is_ipv4().then(|| Ipv4Addr::from_bits(u32::MAX.checked_shl(host_bits).unwrap_or(0)))
    }

    /// Whether it is an automatic IPv6 link-local address, which every interface gets when it is
    /// up.
    ///
    /// The kernel and network managers derive them from the hardware address or a hash. An address
    /// with only zeros in the first half of the interface identifier, such as `fe80::1`, was
    /// configured manually. IPv4 link-local addresses (169.254.0.0/16) are not automatic in this
    /// sense: a program or a user decided that the host communicates on this link.
    pub fn is_automatic(&self) -> bool {
        match self.ip {
            IpAddr::V4(_) => false,
            IpAddr::V6(ip) => ip.is_unicast_link_local() && ip.segments()[4..6] != [0, 0],
        }
    }
}

/// All addresses of the host with the indices of their interfaces.
pub(super) fn addresses(netlink: &mut Netlink) -> io::Result<Vec<(u32, Address)>> {
    let request = Payload::new(&[0; Address::HEADER_BYTES]);
    netlink.list(libc::RTM_GETADDR, &request, Address::parse)
}

/// A route of the host through an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// The first address of its destination network.
    pub destination: IpAddr,
    /// The prefix length of this network; 0 for a default route.
    pub prefix_len: u8,
    /// The router; none for directly connected networks.
    pub gateway: Option<IpAddr>,
}

impl Route {
    const HEADER_BYTES: usize = 12;

    /// Whether it is a default route.
    pub fn is_default(&self) -> bool {
        self.prefix_len == 0
    }

    /// Reads the payload of an `RTM_NEWROUTE`, if it is a route through this interface.
    pub(super) fn parse(payload: &[u8], index: u32) -> Option<Self> {
        let (header, attributes) = Attributes::after_header::<{ Self::HEADER_BYTES }>(payload)?;
        let family = header[0];
        let prefix_len = header[1];
        let kind = header[7];

        let destination = match attributes.bytes(libc::RTA_DST) {
            Some(bytes) => ip(family, bytes)?,
            None => unspecified(family)?,
        };
        let leads_somewhere = matches!(kind, libc::RTN_UNICAST | libc::RTN_LOCAL);
        if !leads_somewhere
            || is_link_local_network(destination)
            || !leads_through(attributes, index)
        {
            return None;
        }

        Some(Self { destination, prefix_len, gateway: gateway(family, attributes) })
    }

    /// Whether it exists because the host has this address.
    fn follows_from(&self, address: &Address) -> bool {
        self.destination == address.ip && matches!(self.prefix_len, 32 | 128)
    }
}

impl fmt::Display for Route {
    /// `default via 192.0.2.1`, `198.51.100.0/24`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_default() {
            f.write_str("default")?;
        } else {
            write!(f, "{}/{}", self.destination, self.prefix_len)?;
        }
        self.gateway.map_or(Ok(()), |gateway| write!(f, " via {gateway}"))
    }
}

/// The host's routes through an interface, except the routes of every interface that is up
/// (link-local and multicast routes of IPv6) and the routes to the host's own addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Routes {
    /// How many there are, in all tables.
    pub count: usize,
    /// The default ones among them.
    pub default: Vec<Route>,
    /// The other routes. Only the first few of each family are listed, because there may be a
    /// million.
    pub first: Vec<Route>,
}

impl Routes {
    const FIRST_MAX: usize = 16;

    fn add(&mut self, route: Route) {
        self.count += 1;
        let list = if route.is_default() { &mut self.default } else { &mut self.first };
        if list.len() < Self::FIRST_MAX {
            list.push(route);
        }
    }

    fn and(mut self, other: Self) -> Self {
        self.count += other.count;
        self.default.extend(other.default);
        self.first.extend(other.first);
        self
    }
}

/// The host's routes through the interface of this index, on which it has these addresses.
pub(super) fn routes(
    netlink: &mut Netlink,
    index: u32,
    addresses: &[Address],
) -> io::Result<Routes> {
    let v4 = family_routes(netlink, AF_INET, index, addresses)?;
    match family_routes(netlink, AF_INET6, index, addresses) {
        Ok(v6) => Ok(v4.and(v6)),
        Err(error) if is_unknown_family(&error) => Ok(v4),
        Err(error) => Err(error),
    }
}

fn family_routes(
    netlink: &mut Netlink,
    family: u8,
    index: u32,
    addresses: &[Address],
) -> io::Result<Routes> {
    let mut header = [0; Route::HEADER_BYTES];
    header[0] = family;

    let request = Payload::new(&header).with_u32(libc::RTA_OIF, index);
    netlink.dump(libc::RTM_GETROUTE, &request, |routes: &mut Routes, payload| {
        // A kernel without this family answers with the routes of all other families.
        let route = Route::parse(payload, index).filter(|_| payload[0] == family);
        if let Some(route) =
            route.filter(|route| !addresses.iter().any(|own| route.follows_from(own)))
        {
            routes.add(route);
        }
    })
}

fn is_unknown_family(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP))
}

/// Whether the route's next hop, or one of them, is on the interface of this index. Only kernels
/// that filter by interface return routes whose next hops are given by number.
fn leads_through(attributes: Attributes<'_>, index: u32) -> bool {
    match (attributes.u32(libc::RTA_OIF), attributes.bytes(libc::RTA_MULTIPATH)) {
        (Some(oif), _) => oif == index,
        (None, Some(hops)) => hop_indices(hops).any(|hop| hop == index),
        (None, None) => true,
    }
}

/// The interfaces of a multipath route's next hops (`struct rtnexthop`: length, flags, weight,
/// index).
fn hop_indices(mut hops: &[u8]) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let index = u32_at(hops, 4)?;
        let len = usize::from(u16::from_ne_bytes([hops[0], hops[1]])).max(8).next_multiple_of(4);
        hops = hops.get(len..).unwrap_or_default();
        Some(index)
    })
}

fn gateway(family: u8, attributes: Attributes<'_>) -> Option<IpAddr> {
    if let Some(bytes) = attributes.bytes(libc::RTA_GATEWAY) {
        return ip(family, bytes);
    }
    // A router of the other family: its family in two bytes, then the address.
    let (via, bytes) = attributes.bytes(RTA_VIA)?.split_first_chunk::<2>()?;
    ip(u8::try_from(u16::from_ne_bytes(*via)).ok()?, bytes)
}

/// The networks to which every IPv6 interface has routes as soon as it is up.
fn is_link_local_network(destination: IpAddr) -> bool {
    match destination {
        IpAddr::V4(_) => false,
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_multicast(),
    }
}

fn unspecified(family: u8) -> Option<IpAddr> {
    match family {
        AF_INET => Some(Ipv4Addr::UNSPECIFIED.into()),
        AF_INET6 => Some(Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    }
}

fn ip(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        AF_INET => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        AF_INET6 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ip: &str) -> Address {
        Address { ip: ip.parse().unwrap(), prefix_len: 64, scope: Scope::Link }
    }

    #[test]
    fn only_link_local_addresses_that_were_not_configured_are_automatic() {
        for automatic in ["fe80::fc:ff:fe00:1", "fe80::1234:5678:9abc:def0"] {
            assert!(address(automatic).is_automatic(), "{automatic}");
        }
        for chosen in
            ["fe80::1", "fe80::53:1", "2001:db8::1234:5678:9abc:def0", "169.254.1.1", "10.0.0.1"]
        {
            assert!(!address(chosen).is_automatic(), "{chosen}");
        }
    }

    #[test]
    fn a_million_routes_are_counted_and_few_are_kept() {
        let mut routes = Routes::default();
        for _ in 0..1_000_000 {
            routes.add(Route {
                destination: Ipv4Addr::LOCALHOST.into(),
                prefix_len: 24,
                gateway: None,
            });
        }
        assert_eq!((routes.count, routes.first.len()), (1_000_000, Routes::FIRST_MAX));
    }

    #[test]
    fn a_route_whose_next_hops_are_only_numbered_was_chosen_by_the_kernel() {
        let numbered = Payload::new(&[]).with_u32(30, 1);
        assert!(leads_through(Attributes::new(numbered.bytes()), 7));
        let other = Payload::new(&[]).with_u32(libc::RTA_OIF, 8);
        assert!(!leads_through(Attributes::new(other.bytes()), 7));
    }
}
