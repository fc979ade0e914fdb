//! The kernel's notifications about interfaces, addresses and routes.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::link::Link;
use super::netlink::{Messages, Netlink};

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
    /// The interface of this index, or information about it, changed; `up` is its state at that moment.
    Link { index: u32, up: bool },
    /// The interface of this index was removed.
    Removed { index: u32 },
    /// Some address, route or tc filter.
    Host,
    /// The kernel dropped notifications: interfaces may have gone down and come back.
    Overrun,
}

/// Notifications of the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Events {
    links: Netlink,
    /// On a separate socket, because a routing daemon may change more at once than the kernel can queue.
    host: Netlink,
}

impl Events {
    pub(crate) fn new() -> io::Result<Self> {
        let links = Netlink::notified(libc::RTMGRP_LINK as u32)?;
        Ok(Self { links, host: Netlink::notified(HOST_GROUPS)? })
    }

    /// Readable when there are notifications.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.links.socket(), self.host.socket()]
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
    }
}

fn link_news(datagram: &[u8]) -> impl Iterator<Item = News> {
    Messages(datagram).filter_map(|message| {
        let link = Link::parse_news(message.payload())?;
        match message.message_type() {
            libc::RTM_NEWLINK => Some(News::Link { index: link.index, up: link.has_flag(libc::IFF_UP) }),
            libc::RTM_DELLINK => Some(News::Removed { index: link.index }),
            _ => None,
        }
    })
}
