//! The settings of a device that its driver reports through ethtool.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::link::{self, LinkStatistics};
use super::{Device, DeviceError};
use crate::sys::ethtool::Ethtool;

/// The settings of a device. Values that its driver does not report are `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Settings {
    /// Its queues (`ethtool -l`).
    pub channels: Option<Channels>,
    /// Its receive rings (`ethtool -g`).
    pub rx_ring: Option<RxRing>,
    /// When it interrupts for received packets (`ethtool -c`).
    pub rx_coalescing: Option<RxCoalescing>,
    /// Its use of pause frames (`ethtool -a`).
    pub pause: Option<Pause>,
    /// How it distributes flows over receive queues (`ethtool -x`).
    pub spreading: Option<Spreading>,
    /// The parts of a packet that are hashed, by flow type (`ethtool -n DEV rx-flow-hash tcp4`), as
    /// the letters of ethtool(8): `sdfn` is both addresses and both ports.
    pub hash_fields: BTreeMap<String, String>,
    /// Its offloads by the kernel's names (`ethtool -k`).
    pub features: BTreeMap<String, Feature>,
    /// The number of its hardware clock, `/dev/ptpN` (`ethtool -T`).
    pub clock: Option<u32>,
    /// Frames that it rejected (`ip -s -s link`).
    pub rx_errors: Option<RxErrors>,
}

/// The queues of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channels {
    /// Queues that only receive, in use.
    pub rx: u32,
    /// The most of them.
    pub rx_max: u32,
    /// Queues that receive and send, in use.
    pub combined: u32,
    /// The most of them.
    pub combined_max: u32,
}

/// The receive rings of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RxRing {
    /// Descriptors of each.
    pub descriptors: u32,
    /// The maximum size.
    pub descriptors_max: u32,
}

/// When a device interrupts for received packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RxCoalescing {
    /// At most this many microseconds after a packet.
    pub usecs: u32,
    /// After at most this many packets; 0 if they are not counted.
    pub frames: u32,
    /// The driver adapts both to the load.
    pub adaptive: bool,
}

/// A device's use of pause frames (IEEE 802.3x).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Negotiated with the other end.
    pub autonegotiate: bool,
    /// It stops sending when it receives one.
    pub rx: bool,
    /// It sends one when its buffers fill.
    pub tx: bool,
}

/// How a device distributes flows over its receive queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spreading {
    /// The indirection table: the queue of each hash, modulo the length.
    pub table: Vec<u32>,
    /// The key of the hash.
    pub key: Vec<u8>,
    /// Both directions of a flow have the same hash with any key (since Linux 6.8).
    pub symmetric: bool,
}

/// An offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// It is on.
    pub active: bool,
    /// It can be switched.
    pub changeable: bool,
}

/// Frames that a device rejected since it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RxErrors {
    /// Of an invalid length: longer than its MTU, or shorter than the minimum.
    pub length: u64,
    /// With a wrong check sequence.
    pub crc: u64,
}

/// Flow types by ethtool's names and the kernel's numbers (`linux/ethtool.h`).
const FLOW_TYPES: [(&str, u32); 4] = [("tcp4", 1), ("udp4", 2), ("tcp6", 5), ("udp6", 6)];
/// The parts of a packet by ethtool's letters and the kernel's bits (`RXH_`).
const HASHED_PARTS: [(char, u32); 7] =
    [('m', 1), ('v', 2), ('t', 3), ('s', 4), ('d', 5), ('f', 6), ('n', 7)];

impl Device {
    /// Reads the device's settings from the driver, without privileges.
    ///
    /// # Errors If the interface is gone, the kernel does not answer, or the calling thread is in another network
    /// namespace.
    pub fn settings(&self) -> Result<Settings, DeviceError> {
        let mut netlink = self.reconnect()?;
        let link = link::link_payload(&mut netlink, self.index, true)
            .map_err(|error| self.kernel(error))?;
        let ethtool =
            Ethtool::new(netlink.socket(), &self.name).map_err(|error| self.kernel(error))?;
        let statistics = link.as_deref().and_then(LinkStatistics::parse);
        Ok(Settings {
            rx_errors: statistics
                .map(|link| RxErrors { length: link.rx_length_errors, crc: link.rx_crc_errors }),
            ..Settings::of(&ethtool)
        })
    }
}

impl Settings {
    fn of(ethtool: &Ethtool<'_>) -> Self {
        let channels = ethtool.channel_kinds().ok().map(|kinds| Channels {
            rx: kinds.rx,
            rx_max: kinds.rx_max,
            combined: kinds.combined,
            combined_max: kinds.combined_max,
        });
        let rx_ring = ethtool.rx_ring().ok().filter(|ring| ring.descriptors_max > 0);

        let hashed = |(name, number): (&str, u32)| {
            let parts = ethtool.hashed_parts(number).ok()?;
            Some((name.to_owned(), letters(parts)))
        };
        let features = ethtool.features().unwrap_or_default().into_iter();
        Self {
            channels,
            rx_ring: rx_ring.map(|ring| RxRing {
                descriptors: ring.descriptors,
                descriptors_max: ring.descriptors_max,
            }),
            rx_coalescing: ethtool.rx_coalescing().ok().map(|coalescing| RxCoalescing {
                usecs: coalescing.usecs,
                frames: coalescing.frames,
                adaptive: coalescing.is_adaptive,
            }),
            pause: ethtool.pause().ok().map(|pause| Pause {
                autonegotiate: pause.is_negotiated,
                rx: pause.rx,
                tx: pause.tx,
            }),
            spreading: ethtool.spreading().ok().map(|spreading| Spreading {
                table: spreading.table,
                key: spreading.key,
                symmetric: spreading.is_symmetric,
            }),
            hash_fields: FLOW_TYPES.into_iter().filter_map(hashed).collect(),
            features: features
                .map(|feature| {
                    let state =
                        Feature { active: feature.is_active, changeable: feature.is_changeable };
                    (feature.name, state)
                })
                .collect(),
            clock: ethtool.clock_index().ok().flatten(),
            rx_errors: None,
        }
    }
}

fn letters(parts: u64) -> String {
    HASHED_PARTS
        .into_iter()
        .filter(|(_, bit)| parts >> bit & 1 == 1)
        .map(|(letter, _)| letter)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_packet_have_ethtools_letters() {
        assert_eq!(letters(0b1111_0000), "sdfn");
        assert_eq!(letters(0b0011_0000), "sd");
        assert_eq!(letters(0), "");
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel for an interface")]
    fn the_loopback_interface_has_offloads_and_no_rings() {
        let settings = Device::find("lo").unwrap().settings().unwrap();
        assert!(settings.features["tx-generic-segmentation"].changeable, "{settings:?}");
        assert!(settings.features.contains_key("rx-gro") && !settings.features.contains_key(""));
        assert_eq!((settings.rx_ring, settings.pause, settings.clock), (None, None, None));
        assert_eq!(settings.rx_errors, Some(RxErrors { length: 0, crc: 0 }));
    }
}
