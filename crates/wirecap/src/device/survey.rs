//! Combines the information of netlink, ethtool and the `netdev` family about interfaces.

use std::io;

use super::address::{self, Address, Routes};
use super::hooks::Hooks;
use super::link::{self, Link};
use super::listeners::{PacketListener, packet_listeners};
use super::netlink::Netlink;
use super::offload::Offloads;
use super::xdp::Netdev;
use super::{Device, Mac, Mark, OperationalState, Upper, sockets};
use crate::sys;
use crate::sys::ethtool::{Channels, Ethtool};

/// The interfaces and addresses of a network namespace at one time.
pub(super) struct Survey {
    netlink: Netlink,
    netdev: Option<Netdev>,
    links: Vec<Link>,
    addresses: Vec<(u32, Address)>,
    listeners: Vec<PacketListener>,
}

/// The host's use of an interface.
#[derive(Debug, Default)]
struct Surroundings {
    addresses: Vec<Address>,
    routes: Routes,
    other_macs: Vec<Mac>,
}

impl Survey {
    /// Of the calling thread's namespace.
    pub(super) fn new() -> io::Result<Self> {
        let mut netlink = Netlink::route()?;
        let links = link::links(&mut netlink)?;
        let addresses = address::addresses(&mut netlink)?;
        let netdev = Netdev::connect()?;
        let listeners = packet_listeners();
        Ok(Self { netlink, netdev, links, addresses, listeners })
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.links.iter().map(|link| link.name.clone()).collect()
    }

    /// The interface of this name or alternative name, if there is one.
    pub(super) fn find(&mut self, name: &str) -> io::Result<Option<Device>> {
        match link::link_by_name(&mut self.netlink, name)? {
            Some(link) => link::found(self.describe(link)),
            None => Ok(None),
        }
    }

    /// All interfaces, in the order of their indices.
    pub(super) fn devices(&mut self) -> io::Result<Vec<Device>> {
        let links = self.links.clone();
        links.into_iter().filter_map(|link| link::found(self.describe(link)).transpose()).collect()
    }

    /// The interface of this name or alternative name only, without its addresses, routes and upper
    /// devices, whose lookup takes many times longer on a router.
    pub(super) fn glance(name: &str) -> io::Result<Option<Device>> {
        let mut survey = Self {
            netlink: Netlink::route()?,
            netdev: None,
            links: Vec::new(),
            addresses: Vec::new(),
            listeners: Vec::new(),
        };
        let Some(link) = link::link_by_name(&mut survey.netlink, name)? else { return Ok(None) };
        link::found(survey.describe_with(link, Surroundings::default()))
    }

    /// Gathers all information about an interface. Values that a driver does not report stay
    /// unknown.
    fn describe(&mut self, link: Link) -> io::Result<Device> {
        let addresses = self.addresses_on(link.index);
        let routes = address::routes(&mut self.netlink, link.index, &addresses)?;
        let other_macs = link::other_macs(&mut self.netlink, &link)?;
        let mark = Mark::of(&link.name, link.permanent_mac.or(link.mac));
        let hooks =
            (mark == Mark::Dedicated).then(|| Hooks::of(&mut self.netlink, link.index, &link.name));
        let has_foreign_xdp = !link.attached_xdp.is_empty() && !sockets::has_capture(link.index);
        let mut device =
            self.describe_with(link, Surroundings { addresses, routes, other_macs })?;
        (device.mark, device.hooks, device.has_foreign_xdp) = (mark, hooks, has_foreign_xdp);
        Ok(device)
    }

    fn describe_with(&mut self, link: Link, surroundings: Surroundings) -> io::Result<Device> {
        let Surroundings { addresses, routes, other_macs } = surroundings;
        let xdp = self.netdev.as_mut().and_then(|netdev| netdev.xdp_support(link.index));
        let ethtool = Ethtool::new(self.netlink.socket(), &link.name)?;
        let driver = ethtool.driver().ok();
        let queues = queues(&ethtool, self.netdev.as_mut(), &link);

        Ok(Device {
            up: link.has_flag(libc::IFF_UP),
            running: link.has_flag(libc::IFF_RUNNING),
            operational_state: OperationalState::from(link.operational_state),
            driver: driver
                .as_ref()
                .map(|driver| driver.name.clone())
                .filter(|name| !name.is_empty()),
            bus_info: driver
                .map(|driver| driver.bus_info)
                .filter(|place| !matches!(place.as_str(), "" | "N/A")),
            rx_queues: queues.rx,
            tx_queues: queues.tx,
            rx_queues_max: queues.rx_max,
            speed_mbps: ethtool.speed_mbps().ok().flatten(),
            offloads: Offloads::of(&ethtool).ok(),
            namespace: sys::netlink::namespace_cookie(self.netlink.socket()),
            uppers: self.uppers(&link),
            ports: self.ports(&link),
            has_foreign_xdp: false,
            mark: Mark::Missing,
            hooks: None,
            permanent_mac: link.permanent_mac,
            packet_listeners: self
                .listeners
                .iter()
                .filter(|listener| listener.index == link.index)
                .count(),
            addresses,
            routes,
            other_macs,
            xdp,
            attached_xdp: link.attached_xdp,
            name: link.name,
            index: link.index,
            mac: link.mac,
            mtu: link.mtu,
            carrier: link.carrier,
            link_type: link.link_type,
            kind: link.kind,
        })
    }

    fn addresses_on(&self, index: u32) -> Vec<Address> {
        self.addresses.iter().filter(|&&(on, _)| on == index).map(|&(_, address)| address).collect()
    }

    /// The master of the interface, and its upper devices.
    fn uppers(&self, link: &Link) -> Vec<Upper> {
        let is_upper = |other: &&Link| link.controller == Some(other.index) || link.carries(other);
        let upper = |other: &Link| Upper { name: other.name.clone(), kind: other.kind.clone() };
        self.links.iter().filter(is_upper).map(upper).collect()
    }

    fn ports(&self, link: &Link) -> Vec<String> {
        let ports = self.links.iter().filter(|other| other.controller == Some(link.index));
        ports.map(|port| port.name.clone()).collect()
    }
}

/// The queues in use, from the first source that knows: the driver's channels, its rings, the
/// stack.
fn queues(ethtool: &Ethtool<'_>, netdev: Option<&mut Netdev>, link: &Link) -> Channels {
    let rings = || ethtool.rx_rings().ok().map(|rx| Channels { rx, tx: 1, rx_max: rx });
    let stack = || {
        netdev.and_then(|netdev| netdev.queues(link.index)).map(|(rx, tx)| Channels {
            rx,
            tx,
            rx_max: rx,
        })
    };
    let found = ethtool.channels().ok().or_else(rings).or_else(stack);
    let Channels { rx, tx, rx_max } = found.unwrap_or(Channels { rx: 1, tx: 1, rx_max: 1 });
    Channels { rx: rx.max(1), tx: tx.max(1), rx_max: rx_max.max(1) }
}
