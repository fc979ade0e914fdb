//! A short look at an interface that is being captured.

use std::time::{Duration, Instant};

use super::link::{self, Link};
use super::netlink::Netlink;
use super::xdp::AttachedXdp;
use super::{Device, DeviceError};
use crate::sys::ethtool::Ethtool;

/// The properties of an interface that may change while it is captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InterfaceState {
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) carrier: bool,
    /// Number of carrier losses; `None` if the kernel does not report it.
    pub(crate) carrier_losses: Option<u32>,
    pub(crate) mtu: u32,
    pub(crate) attached_xdp: Vec<AttachedXdp>,
    /// The receive queues in use; `None` if the driver does not report them.
    pub(crate) rx_queues: Option<u32>,
}

/// A connection to the kernel in the network namespace of one device, and the kernel's last answer;
/// none before the first look.
#[derive(Debug, Default)]
pub(crate) struct Connection(Option<(Netlink, Last)>);

#[derive(Debug)]
struct Last {
    /// When everything was last queried.
    whole: Instant,
    interface_state: Option<InterfaceState>,
}

/// What a look queries from the kernel; the other values are those of the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Everything.
    All,
    /// The receive queues, whose changes the kernel does not report.
    Queues,
    /// Nothing.
    Nothing,
}

/// Interval at which everything is queried, even if the kernel has reported no change.
const WHOLE_PERIOD: Duration = Duration::from_secs(1);

impl Device {
    /// Looks at the interface; `None` if it is gone. Takes some microseconds.
    pub(crate) fn look(&self) -> Result<Option<InterfaceState>, DeviceError> {
        self.look_over(&mut self.reconnect()?)
    }

    /// As [`look`](Self::look), over a connection that is kept between looks, unless an error
    /// occurred. Opening one takes a third of the time of a look. The first look queries
    /// everything.
    pub(crate) fn look_again(
        &self,
        kept: &mut Connection,
        scope: Scope,
    ) -> Result<Option<InterfaceState>, DeviceError> {
        if scope != Scope::All
            && let Some((netlink, last)) = &mut kept.0
            && let Some(interface_state) = &mut last.interface_state
            && last.whole.elapsed() < WHOLE_PERIOD
        {
            if scope == Scope::Queues {
                interface_state.rx_queues = rx_queues(netlink, &interface_state.name);
            }
            return Ok(Some(interface_state.clone()));
        }

        let mut netlink = match kept.0.take() {
            Some((netlink, _)) => netlink,
            None => self.reconnect()?,
        };
        let interface_state = self.look_over(&mut netlink)?;
        kept.0 = Some((
            netlink,
            Last { whole: Instant::now(), interface_state: interface_state.clone() },
        ));

        Ok(interface_state)
    }

    fn look_over(&self, netlink: &mut Netlink) -> Result<Option<InterfaceState>, DeviceError> {
        let payload = link::link_payload(netlink, self.index, false);
        let payload = payload.map_err(|error| self.kernel(error))?;
        let Some(link) = payload.as_deref().and_then(Link::parse) else { return Ok(None) };
        Ok(Some(InterfaceState {
            up: link.has_flag(libc::IFF_UP),
            carrier: link.carrier,
            carrier_losses: link.carrier_losses,
            mtu: link.mtu,
            rx_queues: rx_queues(netlink, &link.name),
            name: link.name,
            attached_xdp: link.attached_xdp,
        }))
    }
}

/// The receive queues in use of the interface called `name`; `None` if its driver does not report
/// them.
fn rx_queues(netlink: &Netlink, name: &str) -> Option<u32> {
    let channels = Ethtool::new(netlink.socket(), name).and_then(|ethtool| ethtool.channels());
    channels.ok().map(|channels| channels.rx.max(1))
}
