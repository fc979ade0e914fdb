//! Changes that a device and its driver make to frames before a capture sees them.

use std::io;

use crate::sys::ethtool::Ethtool;

/// The offloads of an interface that make a capture differ from the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offloads {
    /// Received TCP segments are merged by the stack (`ethtool -K DEV gro off`). XDP sees them
    /// before.
    pub gro: bool,
    /// The hardware merges them by the stack's rules (`rx-gro-hw off`).
    pub gro_hardware: bool,
    /// The hardware or the driver merges them irreversibly (`lro off`).
    pub lro: bool,
    /// The hardware segments sent TCP data: a capture of sent packets contains unsegmented ones
    /// (`tso off`).
    pub tso: bool,
    /// The stack segments them, after a capture has seen them (`gso off`).
    pub gso: bool,
    /// The hardware removes VLAN tags of received frames (`rxvlan off`).
    pub rx_vlan: bool,
    /// The hardware inserts VLAN tags into sent frames (`txvlan off tx-vlan-stag-hw-insert off`).
    /// On a veth they travel beside the frames.
    pub tx_vlan: bool,
    /// The hardware fills in checksums of sent frames, after a capture has seen them (`tx off`). On
    /// a virtual device they are never filled in.
    pub tx_checksum: bool,
}

impl Offloads {
    pub(super) fn of(ethtool: &Ethtool<'_>) -> io::Result<Self> {
        ethtool.active_features().map(|names| Self::from_active(&names))
    }

    /// From the kernel's names of the features that are on.
    fn from_active(names: &[String]) -> Self {
        let any = |test: fn(&str) -> bool| names.iter().any(|name| test(name));
        Self {
            gro: any(|name| name == "rx-gro"),
            gro_hardware: any(|name| name == "rx-gro-hw"),
            lro: any(|name| name == "rx-lro"),
            tso: any(|name| name.starts_with("tx-tcp") && name.ends_with("segmentation")),
            gso: any(|name| name == "tx-generic-segmentation"),
            rx_vlan: any(|name| matches!(name, "rx-vlan-hw-parse" | "rx-vlan-stag-hw-parse")),
            tx_vlan: any(|name| matches!(name, "tx-vlan-hw-insert" | "tx-vlan-stag-hw-insert")),
            tx_checksum: any(|name| name.starts_with("tx-checksum-ip")),
        }
    }
}
