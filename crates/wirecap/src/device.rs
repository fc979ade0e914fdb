//! What can be captured on this host, and what the kernel says about it.
//!
//! All answers come by netlink and ioctl, and so from the network namespace of the calling thread: a
//! `/sys` or `/proc` mount may belong to another one.

mod attached;
mod counters;
mod link;
mod netlink;

use std::fmt;
use std::io;

use crate::sys;
use crate::sys::ethtool::{Channels, Ethtool};
use link::Link;
use netlink::Netlink;

pub use counters::{DeviceCounters, DropSource};

/// A network interface, as it was when it was looked up.
///
/// A plain value without any open file: it may be cloned, sent to other threads and used after a fork.
/// The methods that ask the kernel again check that they are called in the same network namespace.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Device {
    /// Its name. May change while the interface is up.
    pub name: String,
    /// The number that the kernel knows it by. It survives renaming, and the kernel does not give it
    /// again to another interface by itself.
    pub index: u32,
    /// The hardware address, if it is one of six bytes.
    pub mac: Option<[u8; 6]>,
    /// The longest payload of a frame in bytes, without the link-layer header.
    pub mtu: u32,
    /// Somebody has set it up (`ip link set up`).
    pub up: bool,
    /// It is up and could carry frames.
    pub running: bool,
    /// The type of the link layer, an `ARPHRD_` number: 1 is Ethernet, 772 is loopback.
    pub link_type: u16,
    /// The driver, as in `ixgbe` or `veth`, if it has a name.
    pub driver: Option<String>,
    /// Where the hardware sits, as in `0000:03:00.0`.
    pub bus_info: Option<String>,
    /// The type of a virtual interface (`veth`, `bridge`, `macvlan`). Hardware has none.
    pub kind: Option<String>,
    /// The number of receive queues in use, at least 1.
    pub rx_queues: u32,
    /// The number of transmit queues in use, at least 1.
    pub tx_queues: u32,
    /// The speed of the link in Mbit/s, if the driver knows it. What a virtual one says means nothing.
    pub speed_mbps: Option<u32>,
    has_parent: bool,
    namespace: Option<u64>,
}

impl Device {
    /// Looks an interface up by its name, in the network namespace of the calling thread.
    ///
    /// An alternative name (`ip link property add altname`) of at most 15 bytes is taken as well;
    /// [`name`](Self::name) is then the proper one.
    ///
    /// # Errors
    /// If the name is not possible, no interface has it, or the kernel does not answer.
    pub fn find(name: &str) -> Result<Self, DeviceError> {
        check_name(name)?;
        let kernel = |source| DeviceError::Kernel { interface: name.to_owned(), source };
        let mut netlink = Netlink::route().map_err(kernel)?;
        match link::link_by_name(&mut netlink, name).map_err(kernel)? {
            Some(link) => Ok(Self::describe(&netlink, link)),
            None => {
                let existing = link::links(&mut netlink).map_err(kernel)?;
                Err(DeviceError::NoSuchDevice {
                    name: name.to_owned(),
                    existing: existing.into_iter().map(|link| link.name).collect(),
                })
            }
        }
    }

    /// Adds to what netlink says what the driver says; a driver that says nothing has one queue.
    fn describe(netlink: &Netlink, link: Link) -> Self {
        let ethtool = Ethtool::new(netlink.socket(), &link.name).ok();
        let ethtool = ethtool.as_ref();
        let driver = ethtool.and_then(|ethtool| ethtool.driver().ok());
        let channels = ethtool.map_or(Channels { rx: 1, tx: 1 }, queues);
        Self {
            up: link.has_flag(libc::IFF_UP),
            running: link.has_flag(libc::IFF_RUNNING),
            driver: driver.as_ref().map(|driver| driver.name.clone()).filter(|name| !name.is_empty()),
            bus_info: driver.map(|driver| driver.bus_info).filter(|place| !place.is_empty()),
            rx_queues: channels.rx,
            tx_queues: channels.tx,
            speed_mbps: ethtool.and_then(|ethtool| ethtool.speed_mbps().ok().flatten()),
            namespace: sys::netlink::namespace_cookie(netlink.socket()),
            name: link.name,
            index: link.index,
            mac: link.mac,
            mtu: link.mtu,
            link_type: link.link_type,
            kind: link.kind,
            has_parent: link.has_parent,
        }
    }

    /// Whether the interface is still there, and up. Some microseconds.
    ///
    /// # Errors
    /// If the kernel does not answer, or the calling thread is in another network namespace.
    pub fn presence(&self) -> Result<Presence, DeviceError> {
        let mut netlink = self.reconnect()?;
        let payload =
            link::link_payload(&mut netlink, self.index, false).map_err(|error| self.kernel(error))?;
        Ok(match payload.as_deref().and_then(Link::parse) {
            None => Presence::Gone,
            Some(link) if link.name != self.name => Presence::Renamed(link.name),
            Some(link) if link.has_flag(libc::IFF_UP) => Presence::Up,
            Some(_) => Presence::Down,
        })
    }

    /// Whether there is still an interface of this index and name, up or not. Some microseconds.
    ///
    /// # Errors
    /// As [`presence`](Self::presence).
    pub fn exists(&self) -> Result<bool, DeviceError> {
        Ok(matches!(self.presence()?, Presence::Up | Presence::Down))
    }

    /// A connection to the kernel in the namespace in which the interface was found.
    fn reconnect(&self) -> Result<Netlink, DeviceError> {
        let netlink = Netlink::route().map_err(|error| self.kernel(error))?;
        if sys::netlink::namespace_cookie(netlink.socket()) != self.namespace {
            return Err(DeviceError::OtherNamespace { name: self.name.clone() });
        }
        Ok(netlink)
    }

    fn kernel(&self, source: io::Error) -> DeviceError {
        DeviceError::Kernel { interface: self.name.clone(), source }
    }
}

/// The queues in use, from the first request that the driver knows.
fn queues(ethtool: &Ethtool<'_>) -> Channels {
    let rings = || ethtool.rx_rings().map(|rx| Channels { rx, tx: 1 });
    let Channels { rx, tx } = ethtool.channels().or_else(|_| rings()).unwrap_or(Channels { rx: 1, tx: 1 });
    Channels { rx: rx.max(1), tx: tx.max(1) }
}

/// Whether an interface is still what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is there and up.
    Up,
    /// It is there and down.
    Down,
    /// It has this name now. Only an interface that is down can be renamed on kernels before 6.2.
    Renamed(String),
    /// It was removed, or moved to another network namespace.
    Gone,
}

/// Why an interface could not be looked up or asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeviceError {
    /// No interface has this name in this network namespace.
    NoSuchDevice {
        /// The name asked for.
        name: String,
        /// The names that there are.
        existing: Vec<String>,
    },
    /// No interface can have this name.
    InvalidName {
        /// The name asked for.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The calling thread is not in the network namespace where the interface was looked up.
    OtherNamespace {
        /// The interface.
        name: String,
    },
    /// The kernel did not answer a question.
    Kernel {
        /// The interface that it was about.
        interface: String,
        /// Its error.
        source: io::Error,
    },
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchDevice { name, existing } => {
                write!(f, "no interface {name} in this network namespace; there are: {}", existing.join(", "))
            }
            Self::InvalidName { name, reason } => write!(f, "{name:?} cannot be an interface: {reason}"),
            Self::OtherNamespace { name } => {
                write!(
                    f,
                    "{name} is in another network namespace than the calling thread; ask from a thread in it"
                )
            }
            Self::Kernel { interface, .. } => {
                write!(f, "the kernel does not tell about interface {interface}")
            }
        }
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Kernel { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The kernel's own rule for names.
fn check_name(name: &str) -> Result<(), DeviceError> {
    let is_odd = |c: char| c.is_whitespace() || matches!(c, '/' | ':' | '\0');
    let reason = match name {
        "" => "the name is empty",
        "." | ".." => "this name is reserved",
        _ if name.len() >= sys::ethtool::NAME_BYTES => "a name has at most 15 bytes",
        _ if name.contains(is_odd) => "a name has no blanks, slashes or colons",
        _ => return Ok(()),
    };
    Err(DeviceError::InvalidName { name: name.to_owned(), reason })
}
