//! Encodes packets as bytes of a file, for programs that write files themselves.

use crate::{Format, PACKET_BYTES_MAX, Record, WriteError, pcap, pcapng};

impl Format {
    /// The number of bytes that [`encode`](Self::encode) fills for this packet.
    #[inline]
    pub fn encoded_len(self, record: &Record<'_>) -> usize {
        match self {
            Self::Pcapng => pcapng::enhanced_packet_len(record),
            Self::Pcap => pcap::packet_len(record),
        }
    }

    /// Encodes the packet into `slot`, which has [`encoded_len`](Self::encoded_len) bytes of any content.
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

    /// The number of bytes before a packet's data.
    pub fn header_len(self) -> usize {
        match self {
            Self::Pcapng => pcapng::ENHANCED_HEADER,
            Self::Pcap => pcap::PACKET_HEADER,
        }
    }

    /// Like [`encode`](Self::encode), without the packet's data, for writers that gather the data elsewhere.
    /// `slot` is shorter by the length of the data: its first [`header_len`](Self::header_len) bytes get the
    /// bytes before the data, the others the bytes after the data.
    ///
    /// # Panics
    ///
    /// If the slot has another length.
    #[inline]
    pub fn encode_around(self, record: &Record<'_>, slot: &mut [u8]) {
        match self {
            Self::Pcapng => pcapng::around_enhanced_packet(slot, record),
            Self::Pcap => {
                pcap::packet_header(slot.try_into().expect("as long as the header"), record);
            }
        }
    }

    /// Whether a file of this format can hold the packet.
    ///
    /// # Errors
    ///
    /// [`WriteError::TooLong`] or [`WriteError::TooLate`].
    #[inline]
    pub fn check(self, record: &Record<'_>) -> Result<(), WriteError> {
        if record.data.len() > PACKET_BYTES_MAX as usize {
            return Err(WriteError::TooLong {
                bytes: record.data.len(),
                bytes_max: PACKET_BYTES_MAX as usize,
            });
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
        let (mut boundary, mut packets) = (0, 0);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Direction, Timestamp};

    #[test]
    fn encode_around_writes_all_bytes_but_the_data() {
        for format in [Format::Pcapng, Format::Pcap] {
            for (len, has_options) in (0..9).flat_map(|len| [(len, false), (len, true)]) {
                let data: Vec<u8> = (1..=len).collect();
                let record = Record {
                    interface: 3,
                    timestamp: Some(Timestamp::from_unix_nanos(1_234_567_890)),
                    queue: has_options.then_some(7),
                    direction: has_options.then_some(Direction::Inbound),
                    wire_len: 1500,
                    data: &data,
                };
                let mut whole = vec![0xaa; format.encoded_len(&record)];
                format.encode(&record, &mut whole);
                let mut around = vec![0xbb; whole.len() - data.len()];
                format.encode_around(&record, &mut around);
                let (head, tail) = around.split_at(format.header_len());
                assert_eq!([head, &data, tail].concat(), whole, "{format:?}, {len} bytes");
            }
        }
    }
}
