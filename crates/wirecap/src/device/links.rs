//! The interfaces of a network namespace, followed while they come and go.

use std::io;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::SPECIAL_LINKS;
use super::link::{self, Link};
use super::netlink::{Messages, Netlink};

/// The maximum length of a notification, which describes one interface.
const NEWS_BYTES: usize = 1 << 16;

/// An interface, as far as a capture of all interfaces must know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkState {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// An `ARPHRD_` number.
    pub(crate) link_type: u16,
    pub(crate) mtu: u32,
    pub(crate) up: bool,
    /// It is not of a virtual kind, and not the loopback interface.
    pub(crate) may_be_hardware: bool,
}

/// What the kernel reports about the interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkNews {
    /// It exists, and is as described.
    Present(LinkState),
    /// The interface of this index was removed, or moved to another network namespace.
    Gone(u32),
    /// The kernel dropped notifications.
    Overrun,
}

/// The notifications about interfaces of the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Links {
    notified: Netlink,
    asked: Netlink,
    /// For a notification, allocated once.
    buffer: Vec<u8>,
}

impl Links {
    /// Opens the notifications, and lists the interfaces of this moment.
    pub(crate) fn open() -> io::Result<(Self, Vec<LinkState>)> {
        // Subscribed first: an interface that appears in between is reported twice, and none is
        // missed.
        let notified = Netlink::notified(libc::RTMGRP_LINK as u32)?;
        let mut links =
            Self { notified, asked: Netlink::route()?, buffer: Vec::with_capacity(NEWS_BYTES) };
        let list = links.list()?;
        Ok((links, list))
    }

    /// All interfaces with packets of the known link types, in the order of their indices.
    pub(crate) fn list(&mut self) -> io::Result<Vec<LinkState>> {
        Ok(link::links(&mut self.asked)?.into_iter().filter_map(LinkState::of).collect())
    }

    /// Passes the notifications that have arrived to `tell`, in order.
    pub(crate) fn take(&mut self, mut tell: impl FnMut(LinkNews)) {
        loop {
            self.buffer.clear();
            match recv(
                self.notified.socket(),
                spare_capacity(&mut self.buffer),
                RecvFlags::DONTWAIT,
            ) {
                Ok(_) => news_in(&self.buffer).for_each(&mut tell),
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => tell(LinkNews::Overrun),
                Err(_) => break,
            }
        }
    }
}

impl LinkState {
    /// `None` for a monitor or a CAN bus, whose packets sockets of all interfaces reject.
    fn of(link: Link) -> Option<Self> {
        (!SPECIAL_LINKS.contains(&link.link_type)).then(|| Self {
            index: link.index,
            link_type: link.link_type,
            mtu: link.mtu,
            up: link.has_flag(libc::IFF_UP),
            may_be_hardware: link.kind.is_none() && !link.has_flag(libc::IFF_LOOPBACK),
            name: link.name,
        })
    }
}

fn news_in(datagram: &[u8]) -> impl Iterator<Item = LinkNews> {
    Messages(datagram).filter_map(|message| {
        let link = Link::parse_news(message.payload())?;
        match message.message_type() {
            libc::RTM_NEWLINK => LinkState::of(link).map(LinkNews::Present),
            libc::RTM_DELLINK => Some(LinkNews::Gone(link.index)),
            _ => None,
        }
    })
}
