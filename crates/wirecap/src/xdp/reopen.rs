//! Facts that are known only after the first program was attached or the first socket bound, after
//! which opening restarts.

use std::io;

use crate::device::{Device, XdpMode};
use crate::error::OpenError;

/// Why rings were not opened.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// They cannot be.
    Error(OpenError),
    /// They can be opened if this is known in advance.
    Reopen(Reopen),
}

/// What an attempt taught.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reopen {
    /// With a program attached the interface has another number of receive queues: virtio-net adds
    /// one for each CPU to send on, and receives on all of them.
    Queues { ifindex: u32, own: u32, rx_queues: u32 },
    /// All rings that share cells must receive with a copy, for this reason.
    Copy { reason: String },
}

impl Refusal {
    /// The error, if no further attempt follows.
    pub(crate) fn into_error(self) -> OpenError {
        let reason = match self {
            Self::Error(error) => return error,
            Self::Reopen(Reopen::Copy { reason }) => reason,
            Self::Reopen(Reopen::Queues { rx_queues, .. }) => {
                format!("the number of receive queues is now {rx_queues}")
            }
        };
        OpenError::System {
            action: "open rings as the others are".to_owned(),
            source: io::Error::other(reason),
        }
    }
}

impl From<OpenError> for Refusal {
    fn from(error: OpenError) -> Self {
        Self::Error(error)
    }
}

impl From<Reopen> for Refusal {
    fn from(reopen: Reopen) -> Self {
        Self::Reopen(reopen)
    }
}

/// Why zero-copy on `device`, which has `own` receive queues without a program, is not safe, if
/// known.
///
/// virtio_net removes the queues that it added for a program together with the program, and does
/// not release zero-copy memory on a removed queue (Linux 7.3: `virtnet_xsk_pool_disable` returns
/// EINVAL). With the next program the kernel uses freed memory. A killed process may release the
/// program before the sockets.
pub(crate) fn why_copy(device: &Device, own: Option<u32>) -> Option<String> {
    let name = &device.name;
    let all = device.rx_queues;
    let is_native = device.attached_xdp.iter().any(|attached| attached.mode == XdpMode::Native);
    let is_virtio = device.driver.as_deref() == Some("virtio_net");

    match own {
        Some(own) if own < all => Some(format!(
            "{name} has {own} receive queues, and {all} while a program is attached; the added queues do not release zero-copy memory safely; run ethtool -L {name} combined {all} to make them permanent"
        )),
        None if is_virtio && is_native => Some(format!(
            "{name} already has a program, which may have added receive queues; added queues do not release zero-copy memory safely"
        )),
        _ => None,
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::device::AttachedXdp;

    #[test]
    fn queues_added_by_a_program_exclude_zero_copy() {
        let mut device = Device::find("lo").unwrap();
        (device.rx_queues, device.driver) = (8, Some("virtio_net".to_owned()));
        assert_eq!(why_copy(&device, None), None);
        assert_eq!(why_copy(&device, Some(8)), None);
        assert!(why_copy(&device, Some(4)).unwrap().contains("ethtool -L lo combined 8"));
        device.attached_xdp = vec![AttachedXdp { program_id: 1, mode: XdpMode::Native }];
        assert!(why_copy(&device, None).is_some());
        device.driver = Some("igb".to_owned());
        assert_eq!(why_copy(&device, None), None);
    }
}
