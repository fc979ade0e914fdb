//! The properties of an interface on which the program of a capture depends.

use serde::{Deserialize, Serialize};

use super::link::{self, Link};
use super::netlink::Netlink;
use super::xdp::AttachedXdp;
use super::{Device, DeviceError};
use crate::sys;

/// The properties of an interface on which the program of a capture depends: plain data, for
/// another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSummary {
    /// Its index in the network namespace.
    pub index: u32,
    /// Its name, for messages.
    pub name: String,
    /// Its Ethernet address.
    pub mac: Option<[u8; 6]>,
    /// For messages.
    pub mtu: u32,
    /// The receive queues in use.
    pub rx_queues: u32,
    /// The most receive queues that it can have.
    pub rx_queues_max: u32,
    /// The driver receives packets outside of batches (NAPI polls).
    pub is_without_batches: bool,
    /// The number of the network namespace in which it was found.
    pub(super) namespace: Option<u64>,
}

/// Its driver also runs the XDP program in the system call of the process that writes a packet,
/// where no batch ends (`drivers/net/tun.c`, `tun_build_skb`).
const DRIVER_WITHOUT_BATCHES: &str = "tun";

impl From<&Device> for DeviceSummary {
    fn from(device: &Device) -> Self {
        Self {
            index: device.index,
            name: device.name.clone(),
            mac: device.mac.map(|mac| mac.0),
            mtu: device.mtu,
            rx_queues: device.rx_queues,
            rx_queues_max: device.rx_queues_max,
            is_without_batches: device.driver.as_deref() == Some(DRIVER_WITHOUT_BATCHES),
            namespace: device.namespace,
        }
    }
}

impl DeviceSummary {
    /// The XDP programs that are currently attached to it.
    ///
    /// # Errors
    ///
    /// If the kernel does not answer, or the calling thread is in another network namespace.
    pub(crate) fn attached_now(&self) -> Result<Vec<AttachedXdp>, DeviceError> {
        let kernel = |source| DeviceError::Kernel { interface: Some(self.name.clone()), source };
        let mut netlink = Netlink::route().map_err(kernel)?;
        if sys::netlink::namespace_cookie(netlink.socket()) != self.namespace {
            return Err(DeviceError::OtherNamespace { name: self.name.clone() });
        }
        let payload = link::link_payload(&mut netlink, self.index, false).map_err(kernel)?;
        Ok(payload
            .as_deref()
            .and_then(Link::parse)
            .map(|link| link.attached_xdp)
            .unwrap_or_default())
    }
}
