//! Receive-side scaling: the selection of a NIC's queue for a flow.
//!
//! The NIC hashes addresses and ports with a key (Toeplitz; Microsoft's *RSS Hashing Types*), and
//! uses the last bits as an index of an indirection table, which contains the queues in turn.

use std::net::IpAddr;

use super::five_tuple::FiveTuple;

/// The receive queues that the standard traffic is made for.
pub const STANDARD_QUEUES: u32 = 6;

/// Entries of the indirection table, as in the 82599.
const TABLE_ENTRIES: u32 = 128;
/// The longest hash input: two IPv6 addresses and two ports.
const INPUT_BYTES_MAX: usize = 36;
const KEY_BYTES: usize = INPUT_BYTES_MAX + 4;

/// Microsoft's example, which many drivers use as default.
const STANDARD_KEY: [u8; KEY_BYTES] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// The key of a hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HashKey {
    /// The drivers' default: the two directions of a connection may use different queues.
    Standard,
    /// 6d5a repeated (Woo and Park, *Scalable TCP Session Monitoring with Symmetric Receive-side
    /// Scaling*, 2012): both directions use the same queue.
    Symmetric,
}

impl HashKey {
    fn bytes(self) -> [u8; KEY_BYTES] {
        match self {
            Self::Standard => STANDARD_KEY,
            Self::Symmetric => std::array::from_fn(|index| [0x6d, 0x5a][index % 2]),
        }
    }
}

/// A NIC's hash and indirection table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rss {
    /// For each byte of the input, the contribution of each of its values to the hash.
    parts: Box<[[u32; 256]; INPUT_BYTES_MAX]>,
    queue_count: u32,
}

impl Rss {
    /// Distributes over this many queues, with an indirection table of 128 entries that contains
    /// them in turn.
    ///
    /// # Panics
    ///
    /// If the number of queues is 0.
    pub fn new(key: HashKey, queue_count: u32) -> Self {
        assert!(queue_count > 0, "an interface has a receive queue");
        Self { parts: Box::new(parts(&key.bytes())), queue_count }
    }

    /// Number of queues.
    pub fn queue_count(&self) -> u32 {
        self.queue_count
    }

    /// The queue of this flow.
    pub fn queue_of(&self, flow: &FiveTuple) -> u32 {
        self.queue_of_hash(self.hash(flow))
    }

    /// The queue of packets with this hash. Packets other than IP have hash 0.
    pub fn queue_of_hash(&self, hash: u32) -> u32 {
        hash % TABLE_ENTRIES % self.queue_count
    }

    /// The hash of addresses and ports.
    pub fn hash(&self, flow: &FiveTuple) -> u32 {
        let ports = [flow.source_port, flow.destination_port].map(u16::to_be_bytes);
        self.hash_of(flow.source, flow.destination, ports.as_flattened())
    }

    /// The hash of addresses alone: for fragments, and for packets without ports.
    pub fn hash_of_addresses(&self, source: IpAddr, destination: IpAddr) -> u32 {
        self.hash_of(source, destination, &[])
    }

    fn hash_of(&self, source: IpAddr, destination: IpAddr, ports: &[u8]) -> u32 {
        let mut hash = 0;
        let mut place = 0;

        let mut add = |bytes: &[u8]| {
            for byte in bytes {
                hash ^= self.parts[place][usize::from(*byte)];
                place += 1;
            }
        };

        for address in [source, destination] {
            match address {
                IpAddr::V4(address) => add(&address.octets()),
                IpAddr::V6(address) => add(&address.octets()),
            }
        }

        add(ports);
        hash
    }
}

/// The hash is linear: the XOR of the contributions of all bytes.
fn parts(key: &[u8; KEY_BYTES]) -> [[u32; 256]; INPUT_BYTES_MAX] {
    std::array::from_fn(|place| {
        std::array::from_fn(|byte| {
            let bits = (0..8).filter(|bit| byte & (0x80 >> bit) != 0);
            bits.fold(0, |hash, bit| hash ^ window(key, place * 8 + bit))
        })
    })
}

/// The 32 bits of the key from this bit on.
fn window(key: &[u8; KEY_BYTES], bit: usize) -> u32 {
    let mut wide = [0; 8];
    let rest = &key[bit / 8..];
    let taken = rest.len().min(8);
    wide[..taken].copy_from_slice(&rest[..taken]);
    (u64::from_be_bytes(wide) << (bit % 8) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(
        source: &str,
        source_port: u16,
        destination: &str,
        destination_port: u16,
    ) -> FiveTuple {
        let source = source.parse().unwrap();
        let destination = destination.parse().unwrap();
        FiveTuple { protocol: 6, source, destination, source_port, destination_port }
    }

    /// Microsoft's verification suite: flow, hash of addresses, hash of addresses and ports.
    fn verified() -> [(FiveTuple, u32, u32); 5] {
        let v6 = (
            "3ffe:2501:200:1fff::7",
            "3ffe:2501:200:3::1",
            "3ffe:501:8::260:97ff:fe40:efab",
            "ff02::1",
        );
        [
            (tuple("66.9.149.187", 2794, "161.142.100.80", 1766), 0x323e_8fc2, 0x51cc_c178),
            (tuple("199.92.111.2", 14230, "65.69.140.83", 4739), 0xd718_262a, 0xc626_b0ea),
            (tuple("24.19.198.95", 12898, "12.22.207.184", 38024), 0xd2d0_a5de, 0x5c2b_394a),
            (tuple(v6.0, 2794, v6.1, 1766), 0x2cc1_8cd5, 0x4020_7d3d),
            (tuple(v6.2, 14230, v6.3, 4739), 0x0f0c_461c, 0xdde5_1bbf),
        ]
    }

    #[test]
    fn the_hash_is_that_of_the_verification_suite() {
        let rss = Rss::new(HashKey::Standard, 4);
        for (flow, of_addresses, of_all) in verified() {
            assert_eq!(
                rss.hash_of_addresses(flow.source, flow.destination),
                of_addresses,
                "{flow:?}"
            );
            assert_eq!(rss.hash(&flow), of_all, "{flow:?}");
        }
    }

    #[test]
    fn the_symmetric_key_knows_no_direction_and_the_standard_one_does() {
        let symmetric = Rss::new(HashKey::Symmetric, 8);
        let standard = Rss::new(HashKey::Standard, 8);
        for (flow, ..) in verified() {
            assert_eq!(symmetric.hash(&flow), symmetric.hash(&flow.reversed()));
            assert_ne!(standard.hash(&flow), standard.hash(&flow.reversed()));
        }
    }

    #[test]
    fn many_flows_are_spread_evenly() {
        let rss = Rss::new(HashKey::Symmetric, 4);
        let flows = super::super::Flows::anywhere(1);
        let mut counts = [0; 4];
        (0..10_000).for_each(|flow| counts[rss.queue_of(&flows.five_tuple(flow)) as usize] += 1);
        assert!(counts.iter().all(|count| (2_200..2_800).contains(count)), "{counts:?}");
    }
}
