//! What the user of a capture should know beside the numbers.

use std::fmt;

use crate::device::Reason;
use crate::numbers::grouped;

/// Something about a capture that is no error, and that its user should know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The engine `xdp` captures from an interface that the host uses: the host gets none of the packets
    /// captured.
    TakenFromHost {
        /// The interface's name.
        interface: String,
        /// What the host uses it for.
        reason: Reason,
    },
    /// The device takes VLAN tags out of received frames before the engine `xdp` sees them: packets are
    /// captured and filtered without their tags.
    TagsTakenOut {
        /// The interface's name.
        interface: String,
    },
    /// The device had no carrier when the capture began: nothing arrives before its link is up.
    NoCarrier {
        /// The interface's name.
        interface: String,
    },
    /// Packets longer than what the interface carries: this host merged them (GRO, LRO) or had not cut
    /// them yet (TSO, GSO) when they were captured.
    SuperPackets {
        /// The interface's name.
        interface: String,
        /// How many there were.
        packets: u64,
    },
    /// Packets whose receive queue the kernel does not know, so that no ring of a queue got them.
    QueueUnknown {
        /// The interface's name.
        interface: String,
        /// How many there were.
        packets: u64,
    },
    /// The kernel cannot run the filter, so every packet is captured first.
    FilteredInUserSpace {
        /// The interface's name.
        interface: String,
        /// Why.
        reason: String,
        /// The packets that do not match are lost to the host, which would have got them (engine `xdp`).
        taken: bool,
    },
    /// The kernel offered no way to wait until the last packets before the end were in their rings: they may be missing in
    /// the ledger.
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
            Self::TagsTakenOut { interface } => write!(
                f,
                "{interface} removes VLAN tags from received packets, which are captured and filtered without \
                 them; to keep the tags: ethtool -K {interface} rxvlan off"
            ),
            Self::NoCarrier { interface } => {
                write!(f, "{interface} has no carrier: nothing arrives until its link is up")
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
                "this kernel does not support membarrier (nohz_full), and no packet socket could be opened instead: packets \
                 of the last milliseconds may be missing in the ledger",
            ),
            Self::FilteredInUserSpace { interface, reason, taken } => {
                write!(
                    f,
                    "packets of {interface} are filtered in user space, so each uses a cell: {reason}"
                )?;
                let loss = "; the host does not receive non-matching packets either";
                f.write_str(if *taken { loss } else { "" })
            }
        }
    }
}
