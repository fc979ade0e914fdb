//! The selection of `--engine auto` for an interface.
//!
//! The engine `xdp` takes frames from the host, and no list of a host's uses is complete. So it is
//! selected only on an interface that the operator has dedicated to capturing, and only if nothing
//! visible contradicts that.
//!
//! The kernel shows tcx programs and netfilter hooks only to a process with CAP_NET_ADMIN; the
//! reason lists those that could not be queried. Kernels without `CONFIG_NETFILTER_NETLINK_HOOK`
//! list no hooks, so the chains and flow tables of nftables are searched instead. An automatic
//! link-local address is no contradiction.

use std::fmt;

use super::{Address, Device, Mac, Mark, Route, Upper};

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
    /// It also receives frames for this hardware address: it is used by an interface that is not
    /// visible here, such as a container's macvlan in another network namespace.
    OtherMac(Mac),
    /// A tc filter handles its frames (qdisc `clsact` or `ingress`).
    TcFilter,
    /// A tcx program handles its frames.
    Tcx,
    /// A netfilter hook handles its frames: a chain or flow table of nftables on a device.
    Netfilter,
    /// An XDP program that is not a capture's handles its frames.
    ForeignXdp,
    /// So many packet sockets of other processes receive on it.
    PacketSockets(usize),
    /// It is a bond or team: the kernel receives its frames on its ports.
    Controller(&'static str),
    /// Its link layer, an `ARPHRD_` number, is not Ethernet.
    NotEthernet(u16),
    /// The operator has not dedicated it to capturing.
    NotDedicated,
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
            Self::TcFilter => f.write_str("a tc filter handles its frames"),
            Self::Tcx => f.write_str("a tcx program handles its frames"),
            Self::Netfilter => f.write_str("a netfilter hook handles its frames"),
            Self::ForeignXdp => f.write_str("an XDP program of another program handles its frames"),
            Self::PacketSockets(1) => f.write_str(
                "a packet socket of another process receives on it, as a DHCP client's does",
            ),
            Self::PacketSockets(count) => {
                write!(
                    f,
                    "{count} packet sockets of other processes receive on it, as a DHCP client's does"
                )
            }
            Self::Controller(kind) => write!(f, "it is a {kind}, whose ports receive its frames"),
            Self::NotEthernet(link_type) => {
                write!(f, "its link layer (type {link_type}) is not Ethernet")
            }
            Self::NotDedicated => f.write_str("it is not dedicated to capturing"),
            Self::Down => f.write_str("it is down"),
        }
    }
}

/// How the `xdp` engine receives frames; the best way first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReceiveMode {
    /// The device writes packets directly into the cells.
    ZeroCopy,
    /// The program runs in the driver; the kernel copies packets into the cells.
    NativeCopy,
    /// The program runs in the network stack, on any driver; the kernel copies packets into the
    /// cells, after it has allocated a socket buffer.
    Generic,
}

impl fmt::Display for ReceiveMode {
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
    /// AF_XDP, with the expected receive mode; `None` if the kernel (before 6.3) does not report
    /// the driver's features, so only an attempt shows the receive mode.
    Xdp(Option<ReceiveMode>),
    /// AF_PACKET.
    Packet,
}

impl fmt::Display for ChosenEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xdp(Some(receive_mode)) => write!(f, "xdp ({receive_mode})"),
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

/// The kinds of interfaces whose frames the kernel receives on their ports: an AF_XDP socket on
/// such an interface gets none.
const CONTROLLERS: [&str; 2] = ["bond", "team"];

#[cfg(sabotage)]
fn is_ignored(reason: &Reason) -> bool {
    use crate::sabotage::is;
    match reason {
        Reason::Address(_) => is("auto-ignores-an-address"),
        Reason::Route(_) => is("auto-ignores-a-route"),
        Reason::Upper(_) => is("auto-ignores-an-upper-device"),
        Reason::TcFilter => is("auto-ignores-a-tc-filter"),
        Reason::Tcx => is("auto-ignores-tcx"),
        Reason::Netfilter => is("auto-ignores-netfilter"),
        Reason::ForeignXdp => is("auto-ignores-another-xdp-program"),
        Reason::Controller(_) => is("auto-ignores-a-bond"),
        Reason::OtherMac(_) => is("auto-ignores-another-hardware-address"),
        Reason::PacketSockets(_) => is("auto-ignores-packet-sockets"),
        Reason::NotEthernet(_) => is("auto-ignores-the-link-layer"),
        _ => false,
    }
}

impl Device {
    /// Whether the host visibly uses this interface: it has an address that is not automatic, a
    /// route or an upper device, or is down, so that its use is unknown. `None` is no proof that
    /// the host does not use it.
    pub fn carries_host_traffic(&self) -> Option<Reason> {
        self.uses().next().or_else(|| (!self.up).then_some(Reason::Down))
    }

    /// Everything visible that contradicts a [mark](Self::mark), in the order of importance. Hooks
    /// are looked for on dedicated interfaces only, unless [`look_for_hooks`](Self::look_for_hooks)
    /// was called.
    pub fn contradictions(&self) -> Vec<Reason> {
        let controller = self.is_controller().map(Reason::Controller);
        let link_layer = !self.is_ethernet() && !self.is_loopback();
        let hooks = self.hooks.clone().unwrap_or_default();
        let sockets = self.packet_listeners;
        let others = [
            controller,
            link_layer.then_some(Reason::NotEthernet(self.link_type)),
            hooks.tc.then_some(Reason::TcFilter),
            hooks.tcx.then_some(Reason::Tcx),
            hooks.netfilter.then_some(Reason::Netfilter),
            self.has_foreign_xdp.then_some(Reason::ForeignXdp),
            (sockets > 0).then_some(Reason::PacketSockets(sockets)),
        ];
        let found = self.uses().chain(others.into_iter().flatten());
        #[cfg(sabotage)]
        let found = found.filter(|reason| !is_ignored(reason));

        found.collect()
    }

    /// The visible uses of this interface by the host's stack.
    fn uses(&self) -> impl Iterator<Item = Reason> {
        let address = self.addresses.iter().find(|address| !address.is_automatic());
        let route = self.routes.default.first().or(self.routes.first.first());
        [
            self.is_loopback().then_some(Reason::Loopback),
            address.copied().map(Reason::Address),
            route.copied().map(Reason::Route),
            self.uppers.first().cloned().map(Reason::Upper),
            self.other_macs.first().copied().map(Reason::OtherMac),
        ]
        .into_iter()
        .flatten()
    }

    /// The kind of this interface, if the kernel receives its frames on its ports.
    pub fn is_controller(&self) -> Option<&'static str> {
        CONTROLLERS.into_iter().find(|kind| self.kind.as_deref() == Some(kind))
    }

    /// The engine that `--engine auto` selects for this interface: `xdp` if the operator has
    /// dedicated it to capturing and nothing visible contradicts that, otherwise `packet`.
    pub fn choose_engine(&self) -> Choice {
        #[cfg(sabotage)]
        if crate::sabotage::is("auto-ignores-the-mark") && self.mark != Mark::Dedicated {
            let why = String::new();
            return Choice { engine: ChosenEngine::Xdp(None), why };
        }

        let packet = |why| Choice { engine: ChosenEngine::Packet, why };
        let contradiction = self.contradictions().into_iter().next();
        match (&self.mark, contradiction) {
            (Mark::Dedicated, None) => {}
            (Mark::Dedicated, Some(reason)) => {
                return packet(format!("it is dedicated, but {reason}"));
            }
            (_, Some(reason)) => return packet(reason.to_string()),
            (mark, None) => return packet(self.why_not_dedicated(mark)),
        }

        let receive_mode = self.xdp.map(|support| support.expected_rung());
        let driver = self.driver.as_deref().unwrap_or("its driver");

        let ability = match receive_mode {
            Some(ReceiveMode::ZeroCopy) => format!("{driver} has zero-copy AF_XDP"),
            Some(ReceiveMode::NativeCopy) => format!("{driver} has native XDP without zero-copy"),
            Some(ReceiveMode::Generic) => format!("{driver} has no native XDP"),
            None => format!("this kernel does not report the XDP features of {driver}"),
        };
        let unknown = self.hooks.as_ref().map(|hooks| hooks.unknown.as_slice()).unwrap_or_default();
        let unknown = match unknown {
            [] => String::new(),
            unknown => format!("; not known: {}", unknown.join(", ")),
        };

        Choice {
            engine: ChosenEngine::Xdp(receive_mode),
            why: format!("dedicated; {ability}{unknown}"),
        }
    }

    /// The mark's fault, and the command that dedicates the interface.
    fn why_not_dedicated(&self, mark: &Mark) -> String {
        let name = &self.name;
        match mark {
            Mark::OtherAddress(address) => {
                format!(
                    "not dedicated: its mark is of another device ({address}); wirecap dedicate {name}"
                )
            }
            Mark::Ignored(why) => format!("not dedicated: {why}"),
            Mark::Missing | Mark::Dedicated => format!("not dedicated: wirecap dedicate {name}"),
        }
    }
}
