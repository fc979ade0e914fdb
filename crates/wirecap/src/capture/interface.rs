//! The interfaces of a capture, as its user sees them.

use std::time::Duration;

use super::Engine;
use crate::device::{Device, Rung};
use crate::filter::FilterRequest;
use crate::packet::{self, Direction, Spread};
use crate::time::Timestamps;
use crate::warning::Warning;

/// An interface of a capture.
#[derive(Debug)]
pub struct Interface {
    /// What the kernel says of it.
    pub device: Device,
    /// The receive queues that are captured.
    pub queues: Vec<u32>,
    /// How many rings its packets come in.
    pub rings: usize,
    /// Bytes of memory that its rings' packets have.
    pub pool_bytes: u64,
    /// How its packets are received.
    pub reception: Reception,
    /// Why this engine was chosen, with [`Engine::Auto`].
    pub why: Option<String>,
    /// Bytes kept of each packet.
    pub snap_len: u32,
    /// Which packets were wanted when the capture was opened; all, if there is none.
    pub filter: Option<FilterRequest>,
}

impl Interface {
    /// What should be known of it, after so many super-packets and packets of unknown queues.
    pub(super) fn warnings(&self, super_packets: u64, unplaced: u64) -> Vec<Warning> {
        let interface = self.device.name.clone();
        let mut warnings = Vec::new();
        if self.reception.engine() == Engine::Xdp {
            if let Some(reason) = self.device.carries_host_traffic() {
                warnings.push(Warning::TakenFromHost { interface: interface.clone(), reason });
            }
            if takes_out_tags(&self.device) {
                warnings.push(Warning::TagsTakenOut { interface: interface.clone() });
            }
            if matches!(self.reception, Reception::Xdp { link_wait: None, .. }) {
                warnings.push(Warning::NoCarrier { interface: interface.clone() });
            }
        }
        if super_packets > 0 {
            warnings.push(Warning::SuperPackets { interface: interface.clone(), packets: super_packets });
        }
        if unplaced > 0 {
            warnings.push(Warning::QueueUnknown { interface, packets: unplaced });
        }
        warnings
    }
}

/// Whether VLAN tags are taken out of received frames before XDP sees them. A veth has nothing that could do it,
/// whatever it says.
fn takes_out_tags(device: &Device) -> bool {
    device.kind.as_deref() != Some("veth") && device.offloads.is_some_and(|offloads| offloads.rx_vlan)
}

/// How the packets of an interface are received.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reception {
    /// By the engine `xdp`.
    Xdp {
        /// How fast a way it is.
        rung: Rung,
        /// The better ways that were tried, each with the reason why it was not to be had.
        missed_rungs: Vec<(Rung, String)>,
        /// Whether the pools lie on reserved huge pages.
        huge_pages: bool,
        /// Whose times the program looks up: every packet's also where those of each batch were asked for,
        /// if the kernel does not tell where a batch ends.
        timestamps: Timestamps,
        /// How many cells of each queue are posted at a time, as far as there are so many: all, or those that
        /// are kept warm.
        posted: u32,
        /// For how long the capture waited until the device had a carrier again, since many lose it as a program is
        /// attached; `None` if it had none in the end.
        link_wait: Option<Duration>,
    },
    /// By the engine `packet`.
    Packet {
        /// What the rings share the packets by.
        spread: Spread,
        /// Which packets are captured.
        direction: Direction,
        /// Bytes of each of a ring's R blocks: the memory of M cells, rounded up to what the kernel requires.
        block_bytes: u32,
        /// How long a packet may wait for others to be handed over with it.
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

    /// How long after it was stamped a packet may be captured at the latest, if it is not lost. To put
    /// packets of several rings in order, wait that long for a ring that has none.
    pub fn delay(&self) -> Duration {
        match self {
            // The kernel stamps a batch of up to 64 packets before it publishes them together.
            Self::Xdp { .. } => Duration::from_millis(2),
            Self::Packet { retire_after, .. } => *retire_after + packet::RETIREMENT_SLACK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Offloads;

    #[test]
    fn hardware_takes_tags_out_and_a_veth_does_not() {
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
