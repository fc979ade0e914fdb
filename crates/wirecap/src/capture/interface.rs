//! The interfaces of a capture, as its user sees them.

use std::time::Duration;

use super::Engine;
use crate::device::peer::PeerTags;
use crate::device::{Device, ReceiveMode};
use crate::filter::FilterRequest;
use crate::packet::{self, Direction, Spread};
use crate::time::Timestamps;
use crate::warning::Warning;

/// An interface of a capture.
#[derive(Debug)]
pub struct Interface {
    /// The kernel's information about it.
    pub device: Device,
    /// The receive queues that are captured.
    pub queues: Vec<u32>,
    /// The number of its rings.
    pub rings: usize,
    /// Bytes of memory for its rings' packets.
    pub pool_bytes: u64,
    /// How its packets are received.
    pub reception: Reception,
    /// Why this engine was chosen, with [`Engine::Auto`].
    pub why: Option<String>,
    /// Snap length.
    pub snap_len: u32,
    /// The filter when the capture was opened; all packets, if there is none.
    pub filter: Option<FilterRequest>,
    /// Engine `xdp` on a veth: how VLAN tags come from its other end.
    pub(super) peer_tags: Option<PeerTags>,
}

impl Interface {
    /// Its warnings, given the number of super-packets and of packets of unknown queues.
    /// `tags_matter`: its filter [depends on VLAN tags](crate::filter::Filter::depends_on_tags), or
    /// a former one did.
    pub(super) fn warnings(
        &self,
        super_packets: u64,
        unplaced: u64,
        tags_matter: bool,
    ) -> Vec<Warning> {
        let interface = self.device.name.clone();
        let mut warnings = Vec::new();

        if self.reception.engine() == Engine::Xdp {
            if let Some(reason) = self.device.carries_host_traffic() {
                warnings.push(Warning::TakenFromHost { interface: interface.clone(), reason });
            }
            if takes_out_tags(&self.device) {
                warnings.push(Warning::TagsTakenOut { interface: interface.clone(), tags_matter });
            }

            warnings.extend(self.tags_beside(tags_matter));
            if matches!(self.reception, Reception::Xdp { link_wait: None, .. }) {
                warnings.push(Warning::NoCarrier { interface: interface.clone() });
            }
        }

        if super_packets > 0 {
            warnings.push(Warning::SuperPackets {
                interface: interface.clone(),
                packets: super_packets,
            });
        }

        if unplaced > 0 {
            warnings.push(Warning::QueueUnknown { interface, packets: unplaced });
        }

        warnings
    }

    /// The warning that tags may travel beside the frames.
    fn tags_beside(&self, tags_matter: bool) -> Option<Warning> {
        let peer = match self.peer_tags.as_ref()? {
            PeerTags::InFrames => return None,
            PeerTags::Beside(peer) => Some(peer.clone()),
            PeerTags::Unknown => None,
        };
        Some(Warning::TagsBeside { interface: self.device.name.clone(), peer, tags_matter })
    }
}

/// Whether the device removes VLAN tags from received frames before XDP sees them. A veth does not,
/// whatever its settings; its other end decides.
fn takes_out_tags(device: &Device) -> bool {
    device.kind.as_deref() != Some("veth")
        && device.offloads.is_some_and(|offloads| offloads.rx_vlan)
}

/// How the packets of an interface are received.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reception {
    /// By the engine `xdp`.
    Xdp {
        /// The receive mode: how fast this way of receiving is.
        receive_mode: ReceiveMode,
        /// The faster receive modes that were tried, each with the reason why it failed.
        missed_receive_modes: Vec<(ReceiveMode, String)>,
        /// Whether the pools are on reserved huge pages.
        huge_pages: bool,
        /// The source of timestamps. The program reads the clock for every packet, even if batches
        /// were requested, if the kernel does not report where a batch ends.
        timestamps: Timestamps,
        /// The number of cells of each queue that are posted at a time: all, or the warm ones.
        posted: u32,
        /// How long the capture waited for the carrier, which many devices lose when a program is
        /// attached; `None` if there was still no carrier.
        link_wait: Option<Duration>,
    },
    /// By the engine `packet`.
    Packet {
        /// How the rings distribute the packets.
        spread: Spread,
        /// Which packets are captured.
        direction: Direction,
        /// Number of blocks of a ring: R, or more
        /// [small ones](crate::CaptureBuilder::small_blocks).
        blocks: u32,
        /// Bytes of each block: the memory of M cells, rounded up as the kernel requires, or of a
        /// small block.
        block_bytes: u32,
        /// Maximum time that a packet waits for others that are handed over together with it.
        retire_after: Duration,
    },
}

impl Reception {
    /// The engine.
    pub fn engine(&self) -> Engine {
        match self {
            Self::Xdp { .. } => Engine::Xdp,
            Self::Packet { .. } => Engine::Packet,
        }
    }

    /// Maximum time from a packet's timestamp until it can be captured. To order packets of several
    /// rings, wait this long for a ring without packets.
    pub fn delay(&self) -> Duration {
        match self {
            // The kernel stamps a batch of up to 64 packets before it publishes them together.
            Self::Xdp { .. } => Duration::from_millis(2),
            Self::Packet { retire_after, .. } => packet_delay(*retire_after),
        }
    }
}

/// As [`Reception::delay`], of the engine `packet`.
pub(super) fn packet_delay(retire_after: Duration) -> Duration {
    retire_after + packet::RETIREMENT_SLACK
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Offloads;

    #[test]
    fn hardware_removes_tags_and_a_veth_does_not() {
        let mut device = Device::find("lo").unwrap();
        let mut taken_out = |kind: Option<&str>, rx_vlan| {
            device.kind = kind.map(str::to_owned);
            device.offloads = Some(Offloads { rx_vlan, ..Offloads::default() });
            takes_out_tags(&device)
        };
        assert!(taken_out(None, true));
        assert!(!taken_out(None, false));
        assert!(!taken_out(Some("veth"), true));
        device.offloads = None;
        assert!(!takes_out_tags(&device));
    }
}
