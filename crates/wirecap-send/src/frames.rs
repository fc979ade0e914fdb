//! The frames of a sender: UDP over IPv4, each frame with a unique number.

use std::net::Ipv4Addr;

use crate::{Interface, SetupError};

/// Lengths of the headers, in bytes.
const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
/// Where the stamp begins in a frame.
pub(crate) const STAMP_OFFSET: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
/// The first bytes of a stamp: "wcap".
pub(crate) const MAGIC: u32 = u32::from_be_bytes(*b"wcap");
/// The shortest Ethernet frame, without its checksum.
const FRAME_BYTES_MIN: usize = 60;
/// The longest frame of the in-kernel generator, which has one page for frame and overhead.
pub(crate) const GENERATED_BYTES_MAX: usize = 3408;
/// Flows that differ in the source port only; the next ones have the next source address.
pub(crate) const PORTS_PER_ADDRESS: u32 = 1 << 14;
const TTL: u8 = 64;
const PROTOCOL_UDP: u8 = 17;

/// The frames of one sender. Set the required fields, and take the others from [`Traffic::to`]:
///
/// ```
/// # use wirecap_send::{Interface, Sizes, Traffic};
/// # fn example(receiver: &Interface) -> Traffic {
/// Traffic { sizes: Sizes::imix(), flows: 64, ..Traffic::to(receiver) }
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// The lengths of the frames.
    pub sizes: Sizes,
    /// Number of flows on each queue, taken in turn. No flow is on two queues, as with RSS.
    pub flows: u32,
    /// Source Ethernet address.
    pub source_mac: [u8; 6],
    /// Destination Ethernet address.
    pub destination_mac: [u8; 6],
    /// Source address of the first 16,384 flows; the next ones follow in order.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Source port of the first flow, at most 49,152; the next ones follow in order.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

impl Traffic {
    /// One flow of 60-byte frames to the interface, between addresses reserved for benchmarks.
    pub fn to(receiver: &Interface) -> Self {
        Self {
            sizes: Sizes::fixed(FRAME_BYTES_MIN as u16),
            flows: 1,
            source_mac: [0x02, 0, 0, 0, 0, 0x01],
            destination_mac: receiver.mac,
            source: Ipv4Addr::new(198, 18, 0, 1),
            destination: Ipv4Addr::new(198, 19, 0, 1),
            source_port: 1024,
            destination_port: 9,
        }
    }

    /// The frame of this queue and number, for senders in user space; the in-kernel generator makes
    /// the same.
    pub fn frame(&self, stamp: Stamp) -> Vec<u8> {
        let frame_bytes = usize::from(self.sizes.frame_bytes(stamp.sequence));
        let (source, source_port) = self.source_of(self.flow(stamp));
        let mut frame = Vec::with_capacity(frame_bytes);
        frame.extend(self.destination_mac);
        frame.extend(self.source_mac);
        frame.extend(0x0800_u16.to_be_bytes());
        frame.extend(self.ipv4_header(source, frame_bytes - ETHERNET_BYTES));
        frame.extend(source_port.to_be_bytes());
        frame.extend(self.destination_port.to_be_bytes());
        frame.extend(((frame_bytes - ETHERNET_BYTES - IPV4_BYTES) as u16).to_be_bytes());
        frame.extend([0, 0]); // no UDP checksum, as IPv4 allows
        frame.extend(stamp.to_bytes());
        frame.resize(frame_bytes, 0);

        frame
    }

    /// The flow of a frame: numbered through all queues.
    fn flow(&self, stamp: Stamp) -> u32 {
        u32::from(stamp.queue).wrapping_mul(self.flows)
            + (stamp.sequence % u64::from(self.flows)) as u32
    }

    fn source_of(&self, flow: u32) -> (Ipv4Addr, u16) {
        let address = u32::from(self.source).wrapping_add(flow / PORTS_PER_ADDRESS);
        (address.into(), self.source_port + (flow % PORTS_PER_ADDRESS) as u16)
    }

    fn ipv4_header(&self, source: Ipv4Addr, total_bytes: usize) -> [u8; IPV4_BYTES] {
        let mut header = [0; IPV4_BYTES];
        header[0] = 0x45; // version 4, five words
        header[2..4].copy_from_slice(&(total_bytes as u16).to_be_bytes());
        header[8] = TTL;
        header[9] = PROTOCOL_UDP;
        header[12..16].copy_from_slice(&source.octets());
        header[16..20].copy_from_slice(&self.destination.octets());
        let checksum = !folded(word_sum(&header));
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    /// The part of the IPv4 header's checksum that is the same for all frames: the sum of its words
    /// without total length, checksum and source address.
    pub(crate) fn constant_word_sum(&self) -> u32 {
        let mut header = self.ipv4_header(Ipv4Addr::UNSPECIFIED, 0);
        header[10..12].fill(0);
        word_sum(&header)
    }

    /// Checks that such frames are possible and that the interface can carry them.
    ///
    /// # Errors
    ///
    /// [`SetupError::Traffic`] with the invalid value.
    pub fn check(&self, interface: &Interface) -> Result<(), SetupError> {
        self.check_up_to(interface.frame_bytes_max())
    }

    /// Checks that such frames of up to `frame_bytes_max` bytes are possible.
    pub(crate) fn check_up_to(&self, frame_bytes_max: usize) -> Result<(), SetupError> {
        let min = FRAME_BYTES_MIN as u64;
        let max = frame_bytes_max as u64;
        for &(frame_bytes, weight) in &self.sizes.shares {
            in_range("frame length in bytes", frame_bytes.into(), min, max)?;
            in_range("weight of a frame length", weight.into(), 1, 1 << 20)?;
        }
        in_range("number of frame lengths", self.sizes.shares.len() as u64, 1, 64)?;
        in_range("number of flows", self.flows.into(), 1, 1 << 24)?;
        let last_port = u64::from(u16::MAX) - u64::from(PORTS_PER_ADDRESS) + 1;
        in_range("first source port", self.source_port.into(), 0, last_port)
    }
}

/// Lengths of frames, without the Ethernet checksum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Lengths in bytes, each with its share of the frames.
    pub(crate) shares: Vec<(u16, u32)>,
}

impl Sizes {
    /// All frames of one length, in bytes.
    pub fn fixed(frame_bytes: u16) -> Self {
        Self { shares: vec![(frame_bytes, 1)] }
    }

    /// The simple Internet mix: 40, 576 and 1500 bytes of IP in the proportion 7 : 4 : 1.
    pub fn imix() -> Self {
        Self::mix(&[(60, 7), (590, 4), (1514, 1)])
    }

    /// Lengths in bytes, each with its weight. Any sequence of frames as long as the sum of the
    /// weights has exactly these shares, evenly mixed.
    pub fn mix(shares: &[(u16, u32)]) -> Self {
        Self { shares: shares.to_vec() }
    }

    /// The length of the frame with this number, in bytes.
    ///
    /// # Panics
    ///
    /// If the sum of the weights is 0.
    pub fn frame_bytes(&self, sequence: u64) -> u16 {
        let total_weight = u64::from(self.total_weight());
        let mut place = sequence % total_weight * u64::from(self.stride()) % total_weight;
        for &(frame_bytes, weight) in &self.shares {
            match place.checked_sub(weight.into()) {
                None => return frame_bytes,
                Some(rest) => place = rest,
            }
        }
        unreachable!("a place is below the sum of the weights")
    }

    /// The longest frame of the mix, in bytes.
    pub fn frame_bytes_max(&self) -> u16 {
        self.shares.iter().map(|&(frame_bytes, _)| frame_bytes).max().unwrap_or(0)
    }

    /// The sum of the weights.
    pub(crate) fn total_weight(&self) -> u32 {
        self.shares.iter().map(|&(_, weight)| weight).sum()
    }

    /// The step from one frame's position in the mix to the next one's. It has no divisor in common
    /// with the total, so it visits every position; it is near the golden section of the total, so
    /// it mixes them evenly.
    pub(crate) fn stride(&self) -> u32 {
        let total = self.total_weight();
        let wanted = (f64::from(total) * 0.618) as u32;
        (wanted.max(1)..=total).find(|&stride| gcd(stride, total) == 1).unwrap_or(1)
    }
}

/// A frame's own number, which senders write into its payload.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp {
    /// The receive queue that the frame was sent to.
    pub queue: u16,
    /// Its number among that queue's frames, from 0.
    pub sequence: u64,
}

impl Stamp {
    /// The payload of a frame, after its UDP header.
    pub fn to_bytes(self) -> [u8; 14] {
        let mut bytes = [0; 14];
        bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.queue.to_be_bytes());
        bytes[6..].copy_from_slice(&self.sequence.to_be_bytes());
        bytes
    }

    /// Writes it into a frame of [`Traffic`], replacing the previous one.
    ///
    /// # Panics
    ///
    /// If the frame is too short for a stamp.
    pub fn write_to(self, frame: &mut [u8]) {
        let bytes = self.to_bytes();
        frame[STAMP_OFFSET..STAMP_OFFSET + bytes.len()].copy_from_slice(&bytes);
    }

    /// The stamp of a received frame, if it is a frame of [`Traffic`] (without a VLAN tag).
    pub fn of(frame: &[u8]) -> Option<Self> {
        let (magic, rest) = frame.get(STAMP_OFFSET..)?.split_first_chunk()?;
        let (queue, rest) = rest.split_first_chunk()?;
        let sequence = rest.first_chunk()?;
        (u32::from_be_bytes(*magic) == MAGIC).then(|| Self {
            queue: u16::from_be_bytes(*queue),
            sequence: u64::from_be_bytes(*sequence),
        })
    }
}

fn in_range(what: &'static str, given: u64, min: u64, max: u64) -> Result<(), SetupError> {
    if (min..=max).contains(&given) {
        Ok(())
    } else {
        Err(SetupError::Traffic { what, given, min, max })
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The sum of the 16-bit words in network order.
fn word_sum(header: &[u8]) -> u32 {
    header.as_chunks::<2>().0.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum()
}

/// A sum of words in one's complement arithmetic: overflow is added at the low end.
fn folded(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_of_a_mix_has_the_mixs_shares() {
        let sizes = Sizes::imix();
        for start in [0, 5, 1_000_000_007] {
            let count =
                |bytes| (start..start + 12).filter(|&n| sizes.frame_bytes(n) == bytes).count();
            assert_eq!([count(60), count(590), count(1514)], [7, 4, 1]);
        }
    }

    #[test]
    fn the_sizes_of_a_mix_are_mingled() {
        let sizes = Sizes::mix(&[(60, 50), (1514, 50)]);
        let changes =
            (0..100).filter(|&n| sizes.frame_bytes(n) != sizes.frame_bytes(n + 1)).count();
        assert!(changes > 60, "{changes}");
    }

    #[test]
    fn a_frame_without_a_stamp_has_none() {
        assert_eq!(Stamp::of(&[0; 20]), None);
        assert_eq!(Stamp::of(&[0; 60]), None);
    }

    #[test]
    fn the_checksum_is_that_of_a_known_header() {
        // The example of RFC 1071 in use everywhere: 45 00 00 73 ... c0 a8 00 c7.
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0x00,
            0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(!folded(word_sum(&header)), 0xb861);
    }
}
