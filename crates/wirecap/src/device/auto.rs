//! The selection of `--engine auto` for an interface.
//!
//! The engine `xdp` takes frames from the host. It is selected only if the host does not use the interface.

use std::fmt;

use super::{Address, Device, Mac, Route, Upper};

/// Why an interface's traffic must not be taken from the host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It is the loopback interface.
    Loopback,
    /// The host has this address on it.
    Address(Address),
    /// The host sends through it.
    Route(Route),
    /// This interface is fed by it.
    Upper(Upper),
    /// It also receives frames for this hardware address: it is used by an interface that is not visible here, such as
    /// a container's macvlan in another network namespace.
    OtherMac(Mac),
    /// It is down: its future use is unknown.
    Down,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("it is the loopback interface"),
            Self::Address(address) => write!(f, "the host has address {address} on it"),
            Self::Route(route) => write!(f, "the host's route {route} uses it"),
            Self::Upper(upper) => write!(f, "{upper} is stacked on it"),
            Self::OtherMac(mac) => {
                write!(
                    f,
                    "it also receives frames for {mac}, perhaps of a macvlan in another network namespace"
                )
            }
            Self::Down => f.write_str("it is down"),
        }
    }
}

/// How the `xdp` engine receives frames; the best way first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rung {
    /// The device writes packets directly into the cells.
    ZeroCopy,
    /// The program runs in the driver; the kernel copies packets into the cells.
    NativeCopy,
    /// The program runs in the network stack, on any driver; the kernel copies packets into the cells,
    /// after it has allocated a socket buffer.
    Generic,
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroCopy => "zero-copy",
            Self::NativeCopy => "native copy",
            Self::Generic => "generic",
        })
    }
}

/// An engine that captures from interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChosenEngine {
    /// AF_XDP, with the expected rung; `None` if the kernel (before 6.3) does not report the driver's features, so only
    /// an attempt shows the rung.
    Xdp(Option<Rung>),
    /// AF_PACKET.
    Packet,
}

impl fmt::Display for ChosenEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xdp(Some(rung)) => write!(f, "xdp ({rung})"),
            Self::Xdp(None) => f.write_str("xdp"),
            Self::Packet => f.write_str("packet"),
        }
    }
}

/// The engine that `--engine auto` selects, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// The engine.
    pub engine: ChosenEngine,
    /// The reason, in words that may follow the engine and a colon.
    pub why: String,
}

impl Device {
    /// Why this interface's frames must not be taken from the host; `None` if it carries none of the host's traffic: it
    /// is up, and has only an automatic address, no route and no upper device.
    pub fn carries_host_traffic(&self) -> Option<Reason> {
        let loopback = || self.is_loopback().then_some(Reason::Loopback);
        let address = || self.addresses.iter().find(|address| !address.is_automatic());
        let route = || self.routes.default.first().or(self.routes.first.first());
        loopback()
            .or_else(|| address().copied().map(Reason::Address))
            .or_else(|| route().copied().map(Reason::Route))
            .or_else(|| self.uppers.first().cloned().map(Reason::Upper))
            .or_else(|| self.other_macs.first().copied().map(Reason::OtherMac))
            .or_else(|| (!self.up).then_some(Reason::Down))
    }

    /// The engine that `--engine auto` selects for this interface.
    pub fn choose_engine(&self) -> Choice {
        if let Some(reason) = self.carries_host_traffic() {
            return Choice { engine: ChosenEngine::Packet, why: reason.to_string() };
        }
        if self.packet_listeners > 0 {
            let (count, noun) = match self.packet_listeners {
                1 => ("a".to_owned(), "socket of another process receives"),
                count => (count.to_string(), "sockets of other processes receive"),
            };
            let why = format!("{count} packet {noun} on it, as a DHCP client's does");
            return Choice { engine: ChosenEngine::Packet, why };
        }
        if !self.is_ethernet() {
            let why = format!("its link layer (type {}) is not Ethernet", self.link_type);
            return Choice { engine: ChosenEngine::Packet, why };
        }
        let rung = self.xdp.map(|support| support.expected_rung());
        let driver = self.driver.as_deref().unwrap_or("its driver");
        let ability = match rung {
            Some(Rung::ZeroCopy) => format!("{driver} has zero-copy AF_XDP"),
            Some(Rung::NativeCopy) => format!("{driver} has native XDP without zero-copy"),
            Some(Rung::Generic) => format!("{driver} has no native XDP"),
            None => format!("this kernel does not report the XDP features of {driver}"),
        };
        Choice { engine: ChosenEngine::Xdp(rung), why: format!("the host does not use it; {ability}") }
    }
}
