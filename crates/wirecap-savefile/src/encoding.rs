//! Encodes packets as bytes of a file, for programs that write files themselves.

use crate::{Format, Interface, PACKET_BYTES_MAX, Record, Statistics, WriteError, pcap, pcapng};

impl Format {
    /// The bytes that describe an interface before its first packet; none in a pcap file.
    pub fn description(self, interface: &Interface) -> Vec<u8> {
        match self {
            Self::Pcapng => pcapng::interface_description(interface),
            Self::Pcap => Vec::new(),
        }
    }

    /// The bytes of an interface's counters; none in a pcap file.
    pub fn statistics(self, statistics: &Statistics) -> Vec<u8> {
        match self {
            Self::Pcapng => pcapng::interface_statistics(statistics),
            Self::Pcap => Vec::new(),
        }
    }

    /// The number of bytes that [`encode`](Self::encode) fills for this packet.
    #[inline]
    pub fn encoded_len(self, record: &Record<'_>) -> usize {
        match self {
            Self::Pcapng => pcapng::enhanced_packet_len(record),
            Self::Pcap => pcap::packet_len(record),
        }
    }

    /// Encodes the packet into `slot`, which has [`encoded_len`](Self::encoded_len) bytes of any
    /// content.
    ///
    /// # Panics
    ///
    /// If the slot has another length.
    #[inline]
    pub fn encode(self, record: &Record<'_>, slot: &mut [u8]) {
        match self {
            Self::Pcapng => pcapng::enhanced_packet(slot, record),
            Self::Pcap => pcap::packet(slot, record),
        }
    }

    /// Whether a file of this format can hold the packet.
    ///
    /// # Errors
    ///
    /// [`WriteError::TooLong`], [`WriteError::TooLate`] or [`WriteError::TimeOutOfRange`].
    #[inline]
    pub fn check(self, record: &Record<'_>) -> Result<(), WriteError> {
        if record.data.len() > PACKET_BYTES_MAX as usize {
            return Err(WriteError::TooLong {
                bytes: record.data.len(),
                bytes_max: PACKET_BYTES_MAX as usize,
            });
        }

        if record.is_time_out_of_range {
            return Err(WriteError::TimeOutOfRange);
        }

        match self {
            Self::Pcap if !pcap::holds_time(record) => {
                Err(WriteError::TooLate { timestamp: record.timestamp.unwrap_or_default() })
            }
            _ => Ok(()),
        }
    }

    /// The number of bytes of the whole packets in the first `limit` bytes of `bytes`, which
    /// [`encode`](Self::encode) filled, and the number of these packets.
    pub fn whole_packets(self, bytes: &[u8], limit: usize) -> (usize, u64) {
        let mut boundary = 0;
        let mut packets = 0;

        while boundary < limit {
            let (len, is_packet) = match self {
                Self::Pcapng => pcapng::next_block(&bytes[boundary..]),
                Self::Pcap => (pcap::next_packet_len(&bytes[boundary..]), true),
            };
            if boundary + len > limit {
                break;
            }

            boundary += len;
            packets += u64::from(is_packet);
        }
        (boundary, packets)
    }
}
