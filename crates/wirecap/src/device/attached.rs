//! Which XDP program is on an interface.

use super::link::link_payload;
use super::netlink::Attributes;
use super::{Device, DeviceError};
use crate::bpf::XdpMode;

const LINK_HEADER_BYTES: usize = 16;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;

impl Device {
    /// The number of the XDP program that is attached to the interface now, and where it runs.
    ///
    /// # Errors
    /// As [`presence`](Self::presence).
    pub(crate) fn attached_program(&self) -> Result<Option<(u32, XdpMode)>, DeviceError> {
        let mut netlink = self.reconnect()?;
        let payload = link_payload(&mut netlink, self.index, false).map_err(|error| self.kernel(error))?;
        let attributes =
            payload.as_deref().and_then(Attributes::after_header::<LINK_HEADER_BYTES>).map(|(_, rest)| rest);
        Ok(attributes.and_then(|attributes| attributes.nested(libc::IFLA_XDP)).and_then(|xdp| {
            let native = xdp.u32(IFLA_XDP_DRV_PROG_ID).map(|id| (id, XdpMode::Native));
            native.or_else(|| xdp.u32(IFLA_XDP_SKB_PROG_ID).map(|id| (id, XdpMode::Generic)))
        }))
    }
}
