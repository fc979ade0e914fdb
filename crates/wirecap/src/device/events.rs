//! The kernel's notifications about interfaces, addresses, routes, and the sizes of a device's
//! rings.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::link::Link;
use super::netlink::{Attributes, Messages, Netlink};
use super::xdp::{GENERIC_HEADER_BYTES, generic_group};
use crate::sys::option::set_option;

/// The family of ethtool, and its notifications.
const ETHTOOL: (&str, &str) = ("ethtool", "monitor");
const ETHTOOL_MSG_RINGS_NTF: u8 = 17;
const ETHTOOL_A_RINGS_HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;

/// The host's addresses and routes, of both families, and its tc filters.
const HOST_GROUPS: u32 = (libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV6_ROUTE
    | libc::RTMGRP_TC) as u32;
/// The maximum length of a notification, which describes one interface.
const NEWS_BYTES: usize = 1 << 16;

/// Something that changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// The interface of this index, or information about it, changed; `up` is its state at that
    /// moment.
    Link { index: u32, up: bool },
    /// The interface of this index was removed.
    Removed { index: u32 },
    /// The rings of the interface of this index have another size. A driver may drop the packets in
    /// the former ones, and count them nowhere: virtio_net does.
    Resized { index: u32 },
    /// Some address, route or tc filter.
    Host,
    /// The kernel dropped notifications: interfaces may have gone down and come back.
    Overrun,
}

/// Notifications of the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Events {
    links: Netlink,
    /// On a separate socket, because a routing daemon may change more at once than the kernel can
    /// queue.
    host: Netlink,
    /// Settings; none from a kernel before Linux 5.6.
    settings: Option<Netlink>,
}

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        let links = Netlink::notified(libc::RTMGRP_LINK as u32)?;
        Ok(Self { links, host: Netlink::notified(HOST_GROUPS)?, settings: settings().ok() })
    }

    /// Readable when there are notifications.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [&self.links, &self.host].into_iter().chain(&self.settings).map(Netlink::socket)
    }

    /// Passes the received messages to `tell`, in order.
    pub(crate) fn take(&self, mut tell: impl FnMut(News)) {
        let mut buffer = Vec::with_capacity(NEWS_BYTES);

        loop {
            buffer.clear();
            match recv(self.links.socket(), spare_capacity(&mut buffer), RecvFlags::DONTWAIT) {
                Ok(_) => link_news(&buffer).for_each(&mut tell),
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => tell(News::Overrun),
                Err(_) => break,
            }
        }

        let mut changed = false;

        loop {
            buffer.clear();
            match recv(self.host.socket(), spare_capacity(&mut buffer), RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::NOBUFS) => changed = true,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }

        if changed {
            tell(News::Host);
        }

        while let Some(settings) = &self.settings {
            buffer.clear();
            match recv(settings.socket(), spare_capacity(&mut buffer), RecvFlags::DONTWAIT) {
                Ok(_) => settings_news(&buffer).for_each(&mut tell),
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => tell(News::Overrun),
                Err(_) => break,
            }
        }
    }
}

/// A connection that receives the notifications of changed settings (`ethtool -G` and others).
fn settings() -> io::Result<Netlink> {
    let mut netlink = Netlink::generic()?;
    let group = generic_group(&mut netlink, ETHTOOL)?;
    set_option(&netlink.socket(), libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, &group)?;
    Ok(netlink)
}

fn settings_news(datagram: &[u8]) -> impl Iterator<Item = News> {
    Messages(datagram).filter_map(|message| {
        let (head, attributes) =
            Attributes::after_header::<GENERIC_HEADER_BYTES>(message.payload())?;
        let device = attributes.nested(ETHTOOL_A_RINGS_HEADER)?;
        let index = device.u32(ETHTOOL_A_HEADER_DEV_INDEX)?;
        (head[0] == ETHTOOL_MSG_RINGS_NTF).then_some(News::Resized { index })
    })
}

fn link_news(datagram: &[u8]) -> impl Iterator<Item = News> {
    Messages(datagram).filter_map(|message| {
        let link = Link::parse_news(message.payload())?;
        match message.message_type() {
            libc::RTM_NEWLINK => {
                Some(News::Link { index: link.index, up: link.has_flag(libc::IFF_UP) })
            }
            libc::RTM_DELLINK => Some(News::Removed { index: link.index }),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::netlink::Payload;

    /// A notification of this kind about the interface 7, as the kernel sends it.
    fn notification(kind: u8) -> Vec<u8> {
        let device = Payload::new(&[]).with_u32(ETHTOOL_A_HEADER_DEV_INDEX, 7);
        let nested = libc::NLA_F_NESTED as u16 | ETHTOOL_A_RINGS_HEADER;
        let payload = Payload::new(&[kind, 1, 0, 0]).with(nested, device.bytes());
        let length = (16 + payload.bytes().len()) as u32;
        let head = [&length.to_ne_bytes()[..], &[0x15, 0, 0, 0], &[0; 8]].concat();
        [head, payload.bytes().to_vec()].concat()
    }

    #[test]
    fn a_notification_of_changed_rings_names_the_interface() {
        // Of channels, and of rings.
        let datagram = [notification(19), notification(ETHTOOL_MSG_RINGS_NTF)].concat();
        assert_eq!(settings_news(&datagram).collect::<Vec<_>>(), [News::Resized { index: 7 }]);
    }

    #[test]
    fn the_notifications_of_settings_can_be_received() {
        // Since Linux 5.6; needs no privilege.
        assert_eq!(settings().err().map(|error| error.to_string()), None);
    }
}
