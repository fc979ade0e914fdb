//! Warnings: what the user of a capture should know besides the numbers.

use std::fmt;

use wirecap_units::size::grouped;

use crate::device::Reason;

/// A condition that is not an error, but that the user of the capture should know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The engine `xdp` captures from an interface that the host uses: the host does not get
    /// captured packets.
    TakenFromHost {
        /// The interface's name.
        interface: String,
        /// How the host uses it.
        reason: Reason,
    },
    /// The device removes VLAN tags from received frames before the engine `xdp` sees them: packets
    /// are captured and filtered without their tags.
    TagsTakenOut {
        /// The interface's name.
        interface: String,
        /// Whether the filter [depends on tags](crate::filter::Filter::depends_on_tags), so that
        /// packets may have been missed.
        tags_matter: bool,
    },
    /// Engine `xdp` on a veth: the other end may hand over VLAN tags beside the frames, where XDP
    /// programs do not see them. Packets of its VLANs are captured and filtered without their tags.
    TagsBeside {
        /// The interface's name.
        interface: String,
        /// The other end, if it is in this network namespace.
        peer: Option<String>,
        /// Whether the filter [depends on tags](crate::filter::Filter::depends_on_tags), so that
        /// packets may have been missed.
        tags_matter: bool,
    },
    /// The device had no carrier when the capture began: no packets arrive until its link is up.
    NoCarrier {
        /// The interface's name.
        interface: String,
    },
    /// Packets longer than the MTU: this host merged them (GRO, LRO) or had not segmented them yet
    /// (TSO, GSO) when they were captured.
    SuperPackets {
        /// The interface's name.
        interface: String,
        /// Their number.
        packets: u64,
    },
    /// Frames for the hardware address of an interface that [`Engine::Auto`](crate::Engine::Auto)
    /// captures with `xdp`: a sign that the host may use it, or mirrored or spoofed.
    OwnFrames {
        /// The interface's name.
        interface: String,
        /// Their number.
        frames: u64,
    },
    /// Packets whose receive queue the kernel does not know, so they belong to no queue's ring.
    QueueUnknown {
        /// The interface's name.
        interface: String,
        /// Their number.
        packets: u64,
    },
    /// The kernel cannot run the filter, so non-matching packets use cells as well.
    FilteredInUserSpace {
        /// The interface's name.
        interface: String,
        /// Why.
        reason: String,
        /// The host does not receive non-matching packets (engine `xdp`).
        taken: bool,
    },
    /// The kernel offered no way to wait until the last packets were in their rings: the ledger may
    /// lack some.
    LastPacketsUncertain,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TakenFromHost { interface, reason } => write!(
                f,
                "the host does not receive the packets captured from {interface} while the capture runs, but \
                 {reason}"
            ),
            Self::TagsTakenOut { interface, .. } => write!(
                f,
                "{interface} removes VLAN tags from received packets, which are captured and filtered without \
                 them; to keep the tags: ethtool -K {interface} rxvlan off"
            ),
            Self::TagsBeside { interface, peer, .. } => {
                let (end, peer) = match peer {
                    Some(peer) => (peer.clone(), peer.as_str()),
                    None => (format!("the other end of {interface}"), "PEER"),
                };
                write!(
                    f,
                    "{end} may send VLAN tags beside the frames, and packets of {interface} are then captured and \
                     filtered without them; to keep the tags, at that end: ethtool -K {peer} txvlan off \
                     tx-vlan-stag-hw-insert off"
                )
            }
            Self::OwnFrames { interface, frames } => {
                let frames = grouped(*frames);
                write!(
                    f,
                    "{frames} captured frames were addressed to {interface} itself: if they were for this host, it did not \
                     receive them; use the port for capturing only, or run: wirecap release {interface}"
                )
            }
            Self::NoCarrier { interface } => {
                write!(f, "{interface} has no carrier: no packets arrive until its link is up")
            }
            Self::SuperPackets { interface, packets } => {
                let packets = grouped(*packets);
                write!(
                    f,
                    "{packets} packets of {interface} are longer than the MTU: this host merges received segments \
                     or offloads segmentation to the device; to see packets as they are on the wire: \
                     ethtool -K {interface} gro off lro off tso off gso off"
                )
            }
            Self::QueueUnknown { interface, packets } => {
                let packets = grouped(*packets);
                write!(
                    f,
                    "{packets} packets of {interface} were skipped because its driver does not report their \
                     receive queue; capture the whole {interface}"
                )
            }
            Self::LastPacketsUncertain => f.write_str(
                "this kernel does not support membarrier (nohz_full), and no packet socket could be opened instead: the ledger may lack packets of the last milliseconds",
            ),
            Self::FilteredInUserSpace { interface, reason, taken } => {
                write!(
                    f,
                    "packets of {interface} are filtered in user space, so non-matching ones use cells too: {reason}"
                )?;
                let loss = "; the host does not receive non-matching packets either";
                f.write_str(if *taken { loss } else { "" })
            }
        }
    }
}
