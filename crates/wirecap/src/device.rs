//! The interfaces of this host, and the kernel's information about them.
//!
//! All answers come through netlink and ioctl, and therefore from the network namespace of the
//! calling thread; a `/sys` or `/proc` mount may belong to another one. Devices on a bus
//! (`liveness`) belong to no network namespace.

mod address;
mod auto;
mod counters;
mod drop_table;
pub(crate) mod events;
mod hardware_clock;
mod hooks;
pub(crate) mod interface_state;
mod link;
pub(crate) mod links;
mod listeners;
pub(crate) mod liveness;
mod mark;
mod netlink;
mod offload;
mod owner;
pub(crate) mod peer;
pub(crate) mod received;
mod settings;
mod sockets;
mod summary;
mod survey;
mod xdp;
mod xdp_since;

use std::fmt;
use std::io;
use std::net::Ipv4Addr;

use crate::filter::{Filter, FilterError, FilterRequest};
use crate::savefile::LinkType;
use crate::sys;
use crate::sys::ethtool::Ethtool;
use link::Link;
use netlink::Netlink;
use survey::Survey;

pub use address::{Address, Route, Routes, Scope};
pub use auto::{Choice, ChosenEngine, Reason, ReceiveMode};
pub use counters::{DeviceCounters, DropSource};
pub(crate) use hardware_clock::HardwareClock;
pub use hooks::{Hooks, guarded_hooks};
pub use mark::{Mark, dedicated_directory, marked_names, remove_mark};
pub use offload::Offloads;
pub use owner::XdpOwner;
pub use settings::{Channels, Feature, Pause, RxCoalescing, RxErrors, RxRing, Settings, Spreading};
pub(crate) use sockets::{AbstractName, CLAIMS, abstract_names};
pub use summary::DeviceSummary;
pub use xdp::{AttachedXdp, RxMetadata, XdpFeatures, XdpMode, XdpSupport, XskFeatures};
pub use xdp_since::{KernelVersion, XdpSince};

/// All interfaces in the network namespace of the calling thread, in the order of their indices.
///
/// # Errors
/// If the kernel does not answer.
pub fn devices() -> Result<Vec<Device>, DeviceError> {
    Survey::new()
        .and_then(|mut survey| survey.devices())
        .map_err(|source| DeviceError::Kernel { interface: None, source })
}

/// Types of link layers that libc does not name (`if_arp.h`).
const ARPHRD_IEEE802154_MONITOR: u16 = 805;
const ARPHRD_NETLINK: u16 = 824;
const ARPHRD_VSOCKMON: u16 = 826;

/// A network interface, as it was when it was looked up.
///
/// A plain value without open files: it may be cloned, sent to other threads and used after a fork.
/// The methods that query the kernel again check that they are called in the same network
/// namespace.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Device {
    /// Its name. May change while the interface is up.
    pub name: String,
    /// The kernel's interface index. It survives renaming, and the kernel does not reuse it by
    /// itself.
    pub index: u32,
    /// The hardware address, if it is one of six bytes.
    pub mac: Option<Mac>,
    /// The hardware address that the device came with, if the kernel reports it; hardware has one.
    pub permanent_mac: Option<Mac>,
    /// The longest payload of a frame in bytes, without the link-layer header.
    pub mtu: u32,
    /// It is administratively up (`ip link set up`).
    pub up: bool,
    /// It is up and could carry frames.
    pub running: bool,
    /// There is a signal from the peer.
    pub carrier: bool,
    /// The kernel's summary of these (RFC 2863).
    pub operational_state: OperationalState,
    /// The type of the link layer, an `ARPHRD_` number: 1 is Ethernet, 772 is loopback.
    pub link_type: u16,
    /// The driver, as in `ixgbe` or `veth`, if it has a name.
    pub driver: Option<String>,
    /// The address of the hardware, as in `0000:03:00.0`.
    pub bus_info: Option<String>,
    /// The type of a virtual interface (`veth`, `bridge`, `macvlan`). Hardware has none.
    pub kind: Option<String>,
    /// The number of receive queues in use, at least 1.
    pub rx_queues: u32,
    /// The number of transmit queues in use, at least 1.
    pub tx_queues: u32,
    /// The maximum number of receive queues (`ethtool -l`), at least those in use.
    pub rx_queues_max: u32,
    /// The speed of the link in Mbit/s, if the driver knows it. The value of a virtual interface
    /// has no meaning.
    pub speed_mbps: Option<u32>,
    /// The host's addresses on it.
    pub addresses: Vec<Address>,
    /// The host's routes through it.
    pub routes: Routes,
    /// The interfaces that get their frames from it: VLANs, macvlans, the bridge, bond or switch of
    /// which it is a port.
    pub uppers: Vec<Upper>,
    /// Of a bridge, bond or team: the interfaces that are its ports.
    pub ports: Vec<String>,
    /// Further hardware addresses for which it receives frames, besides its own and multicast ones.
    /// A macvlan on it adds its address, even one in another network namespace.
    pub other_macs: Vec<Mac>,
    /// The number of packet sockets of other processes that receive on it, such as those of DHCP
    /// clients.
    pub packet_listeners: usize,
    /// The driver's XDP features; `None` if the kernel does not report them (before Linux 6.3).
    pub xdp: Option<XdpSupport>,
    /// The XDP programs attached to it.
    pub attached_xdp: Vec<AttachedXdp>,
    /// One of them belongs to no capture of wirecap.
    pub has_foreign_xdp: bool,
    /// Whether the operator has dedicated it to capturing.
    pub mark: Mark,
    /// The host's hooks for its frames; `None` if they were not queried, because it is not
    /// dedicated.
    pub hooks: Option<Hooks>,
    /// The offloads of the device and its driver; `None` if the driver does not report them.
    pub offloads: Option<Offloads>,
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
        let kernel = |source| DeviceError::Kernel { interface: Some(name.to_owned()), source };
        let mut survey = Survey::new().map_err(kernel)?;
        let found = survey.find(name).map_err(kernel)?;
        found.ok_or_else(|| DeviceError::NoSuchDevice {
            name: name.to_owned(),
            existing: survey.names(),
        })
    }

    /// Like [`find`](Self::find), but queries only the interface itself, regardless of the number
    /// of interfaces, addresses and routes of the host: [`addresses`](Self::addresses),
    /// [`routes`](Self::routes), [`uppers`](Self::uppers) and [`other_macs`](Self::other_macs) stay
    /// empty and [`xdp`](Self::xdp) `None`. For a capture with the engine `packet`.
    ///
    /// # Errors As [`find`](Self::find).
    pub fn glance(name: &str) -> Result<Self, DeviceError> {
        check_name(name)?;
        let found = Survey::glance(name)
            .map_err(|source| DeviceError::Kernel { interface: Some(name.to_owned()), source })?;
        // The error lists the existing names.
        found.map_or_else(|| Self::find(name), Ok)
    }

    /// Stands for all interfaces of a link type, an `ARPHRD_` number: index 0, and no properties of
    /// its own. `speed_mbps` is that of the fastest.
    pub(crate) fn of_all(link_type: u16, mtu: u32) -> Self {
        Self {
            name: "any".to_owned(),
            index: 0,
            mac: None,
            permanent_mac: None,
            mtu,
            up: true,
            running: true,
            carrier: true,
            operational_state: OperationalState::Unknown,
            link_type,
            driver: None,
            bus_info: None,
            kind: Some("any".to_owned()),
            rx_queues: 1,
            tx_queues: 1,
            rx_queues_max: 1,
            speed_mbps: None,
            addresses: Vec::new(),
            routes: Routes::default(),
            uppers: Vec::new(),
            ports: Vec::new(),
            other_macs: Vec::new(),
            packet_listeners: 0,
            xdp: None,
            attached_xdp: Vec::new(),
            has_foreign_xdp: false,
            mark: Mark::Missing,
            hooks: None,
            offloads: None,
            namespace: None,
        }
    }

    /// Whether it stands for all interfaces, as in a capture of
    /// [`Source::any`](crate::Source::any).
    pub fn is_all(&self) -> bool {
        self.index == 0
    }

    /// Whether it is a loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.link_type == libc::ARPHRD_LOOPBACK
    }

    /// Whether its frames begin with an Ethernet header.
    pub fn is_ethernet(&self) -> bool {
        self.link_type == libc::ARPHRD_ETHER
    }

    /// Whether a default route of the host uses it.
    pub fn is_default_route(&self) -> bool {
        !self.routes.default.is_empty()
    }

    /// The link type of its packets, as libpcap has it.
    pub fn savefile_link_type(&self) -> LinkType {
        savefile_link_type(self.link_type)
    }

    /// The kind of an interface whose packets get a header, or another byte order, in a savefile,
    /// which wirecap does not write.
    pub(crate) fn unsupported_kind(&self) -> Option<&'static str> {
        match self.link_type {
            libc::ARPHRD_CAN => Some("a CAN bus"),
            ARPHRD_NETLINK => Some("a netlink monitor"),
            _ => None,
        }
    }

    /// The compiled filter of `request` for packets of this interface.
    pub(crate) fn compile(&self, request: &FilterRequest) -> Result<Filter, FilterError> {
        let netmask = self.addresses.iter().find_map(Address::netmask);
        request.compile_in(self.savefile_link_type(), netmask.unwrap_or(Ipv4Addr::UNSPECIFIED))
    }

    /// Whether the interface still exists and is up. Some microseconds.
    ///
    /// # Errors If the kernel does not answer, or the calling thread is in another network namespace.
    pub fn presence(&self) -> Result<Presence, DeviceError> {
        let mut netlink = self.reconnect()?;
        let payload = link::link_payload(&mut netlink, self.index, false)
            .map_err(|error| self.kernel(error))?;
        Ok(match payload.as_deref().and_then(Link::parse) {
            None => Presence::Gone,
            Some(link) if link.name != self.name => Presence::Renamed(link.name),
            Some(link) if link.has_flag(libc::IFF_UP) => Presence::Up,
            Some(_) => Presence::Down,
        })
    }

    /// Whether an interface of this index and name still exists, up or not. Some microseconds.
    ///
    /// # Errors As [`presence`](Self::presence).
    pub fn exists(&self) -> Result<bool, DeviceError> {
        Ok(matches!(self.presence()?, Presence::Up | Presence::Down))
    }

    /// Whether there is a signal from the peer now.
    ///
    /// # Errors As [`presence`](Self::presence).
    pub(crate) fn has_carrier_now(&self) -> Result<bool, DeviceError> {
        let mut netlink = self.reconnect()?;
        let payload = link::link_payload(&mut netlink, self.index, false)
            .map_err(|error| self.kernel(error))?;
        Ok(payload.as_deref().and_then(Link::parse).is_some_and(|link| link.carrier))
    }

    /// Whether it has a device on a bus, which may be a virtual machine's.
    pub(crate) fn is_hardware(&self) -> bool {
        self.kind.is_none() && self.bus_info.is_some()
    }

    /// The number of descriptors of each receive ring, if the driver reports it.
    pub(crate) fn rx_descriptors(&self) -> Option<u32> {
        let netlink = self.reconnect().ok()?;
        let ethtool = Ethtool::new(netlink.socket(), &self.name).ok()?;
        ethtool.rx_descriptors().ok().filter(|descriptors| *descriptors > 0)
    }

    /// Which packets the device currently timestamps.
    pub(crate) fn hardware_clock(&self) -> Result<HardwareClock, DeviceError> {
        let netlink = self.reconnect()?;
        let ethtool =
            Ethtool::new(netlink.socket(), &self.name).map_err(|error| self.kernel(error))?;
        HardwareClock::of(&ethtool).map_err(|error| self.kernel(error))
    }

    /// Queries the [hooks](Self::hooks) of the interface, also if it is not dedicated to capturing.
    ///
    /// # Errors
    ///
    /// If the kernel does not answer, or the calling thread is in another network namespace.
    pub fn look_for_hooks(&mut self) -> Result<(), DeviceError> {
        let mut netlink = self.reconnect()?;
        self.hooks = Some(Hooks::of(&mut netlink, self.index, &self.name));
        Ok(())
    }

    /// Whether something contradicts the mark of this interface that the kernel does not report: a
    /// tcx program, a netfilter hook, another process's packet socket, or that the mark is gone.
    pub(crate) fn has_silent_contradiction(&self) -> bool {
        let hooks = hooks::guarded(self.index, &self.name);
        #[cfg(sabotage)]
        let hooks = match crate::sabotage::is("tcx-not-watched") {
            true => sys::opener::GuardedHooks { tcx: Ok(false), ..hooks },
            false => hooks,
        };
        Mark::of(&self.name, self.lasting_mac()) != Mark::Dedicated
            || hooks.tcx == Ok(true)
            || hooks.netfilter == Ok(true)
            || listeners::packet_listeners().iter().any(|listener| listener.index == self.index)
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
        DeviceError::Kernel { interface: Some(self.name.clone()), source }
    }
}

/// The `ARPHRD_` numbers of interfaces whose packets neither are Ethernet frames nor begin with an
/// IP header.
pub(crate) const SPECIAL_LINKS: [u16; 8] = [
    libc::ARPHRD_CAN,
    libc::ARPHRD_IEEE80211,
    libc::ARPHRD_IEEE80211_PRISM,
    libc::ARPHRD_IEEE80211_RADIOTAP,
    libc::ARPHRD_IEEE802154,
    ARPHRD_IEEE802154_MONITOR,
    ARPHRD_NETLINK,
    ARPHRD_VSOCKMON,
];

/// The link type of the packets of interfaces with this `ARPHRD_` number.
pub(crate) fn savefile_link_type(number: u16) -> LinkType {
    match number {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => LinkType::ETHERNET,
        libc::ARPHRD_IEEE80211 => LinkType(105),
        libc::ARPHRD_IEEE80211_PRISM => LinkType(119),
        libc::ARPHRD_IEEE80211_RADIOTAP => LinkType(127),
        libc::ARPHRD_IEEE802154 => LinkType(230),
        ARPHRD_IEEE802154_MONITOR => LinkType(195),
        ARPHRD_VSOCKMON => LinkType(271),
        _ => LinkType::RAW,
    }
}

/// The state of an interface compared with when it was looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It exists and is up.
    Up,
    /// It exists and is down.
    Down,
    /// It has a new name.
    Renamed(String),
    /// It was removed, or moved to another network namespace.
    Gone,
}

/// A hardware address of six bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for Mac {
    /// `02:00:00:00:00:01`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The operational state of an interface, by RFC 2863.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationalState {
    /// The driver does not report it; most virtual interfaces.
    Unknown,
    /// The hardware is missing.
    NotPresent,
    /// It cannot carry frames.
    Down,
    /// The interface below it is down.
    LowerLayerDown,
    /// It is being tested.
    Testing,
    /// It waits for an external event, such as authentication.
    Dormant,
    /// It carries frames.
    Up,
}

impl From<u8> for OperationalState {
    fn from(number: u8) -> Self {
        match number {
            1 => Self::NotPresent,
            2 => Self::Down,
            3 => Self::LowerLayerDown,
            4 => Self::Testing,
            5 => Self::Dormant,
            6 => Self::Up,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for OperationalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::NotPresent => "not present",
            Self::Down => "down",
            Self::LowerLayerDown => "lower layer down",
            Self::Testing => "testing",
            Self::Dormant => "dormant",
            Self::Up => "up",
        })
    }
}

/// An interface that gets its frames from another one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Upper {
    /// Its name.
    pub name: String,
    /// Its type: `vlan`, `macvlan`, `bridge`, `bond`, `openvswitch`.
    pub kind: Option<String>,
}

impl fmt::Display for Upper {
    /// `bridge br0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Some(kind) => write!(f, "{kind} {}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Why an interface could not be looked up or queried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No interface has this name in this network namespace.
    #[error("no interface {name} in this network namespace; there are: {}", first_of(existing))]
    NoSuchDevice {
        /// The requested name.
        name: String,
        /// The existing names.
        existing: Vec<String>,
    },
    /// No interface can have this name.
    #[error("{name:?} cannot be an interface: {reason}")]
    InvalidName {
        /// The requested name.
        name: String,
        /// The fault of the name.
        reason: &'static str,
    },
    /// The calling thread is not in the network namespace where the interface was looked up.
    #[error(
        "{name} is not in the network namespace of the calling thread; call from a thread in its namespace"
    )]
    OtherNamespace {
        /// The interface.
        name: String,
    },
    /// The kernel did not answer a query.
    #[error(
        "the kernel did not {}",
        match interface {
            Some(name) => format!("report interface {name}"),
            None => "list the interfaces".to_owned(),
        }
    )]
    Kernel {
        /// The interface of the query, if it was about one.
        interface: Option<String>,
        /// Its error.
        source: io::Error,
    },
}

/// The first of these names: a host may have hundreds.
fn first_of(names: &[String]) -> String {
    const NAMED_MAX: usize = 12;
    let named = names[..names.len().min(NAMED_MAX)].join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
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
