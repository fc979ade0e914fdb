//! The flow of a packet as a number: the hash of [`steer`](crate::steer) in plain Rust, which is
//! also the reference for tests of the program's hash.

use crate::steer::{MIX, SPREAD};

/// A hash of the flow of an Ethernet frame, the same for both directions: of the addresses and, for
/// unfragmented TCP, UDP and SCTP, the ports, after up to two VLAN tags. Frames other than IP are
/// hashed by their MAC addresses.
///
/// The engine `xdp` distributes the packets of a queue over several rings by this hash. All 32 bits
/// are good, the upper ones best: `(u64::from(hash) * n) >> 32` is a number below n.
pub fn flow_hash(frame: &[u8]) -> u32 {
    let (a, b) = endpoints(frame);
    let sum = a.min(b).wrapping_mul(SPREAD).wrapping_add(a.max(b));
    ((sum ^ (sum >> 32)).wrapping_mul(MIX) >> 32) as u32
}

fn endpoints(frame: &[u8]) -> (u64, u64) {
    let Some((header, mut rest)) = frame.split_first_chunk::<14>() else { return (0, 0) };
    let macs = (mac(&header[..6]), mac(&header[6..12]));
    let mut ethertype = [header[12], header[13]];

    for _ in 0..2 {
        if [[0x81, 0], [0x88, 0xa8], [0x91, 0]].contains(&ethertype) {
            let Some((tag, behind)) = rest.split_first_chunk::<4>() else { return macs };
            (ethertype, rest) = ([tag[2], tag[3]], behind);
        }
    }

    let addresses = match ethertype {
        [0x08, 0x00] => ipv4(rest),
        [0x86, 0xdd] => ipv6(rest),
        _ => None,
    };
    addresses.unwrap_or(macs)
}

/// The bytes at `at`, which must exist.
fn bytes<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    *data[at..].first_chunk().expect("the caller knows that they are there")
}

fn mac(address: &[u8]) -> u64 {
    u64::from(u32::from_ne_bytes(bytes(address, 0))) << 16 | u64::from(half(&address[4..]))
}

fn half(data: &[u8]) -> u16 {
    u16::from_ne_bytes(bytes(data, 0))
}

fn ipv4(packet: &[u8]) -> Option<(u64, u64)> {
    let header: &[u8; 20] = packet.first_chunk()?;
    if header[0] >> 4 != 4 || header[0] & 15 < 5 {
        return None;
    }
    let address = |at: usize| u64::from(u32::from_ne_bytes(bytes(header, at))) << 16;
    let addresses = (address(12), address(16));
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let ports = packet.get(usize::from(header[0] & 15) * 4..).filter(|_| !is_fragment);
    Some(ports.map_or(addresses, |ports| with_ports(addresses, header[9], ports)))
}

fn ipv6(packet: &[u8]) -> Option<(u64, u64)> {
    let (header, mut rest) = packet.split_first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }

    let double = |at: usize| u64::from_ne_bytes(bytes(header, at));
    let address = |at: usize| double(at).wrapping_add(double(at + 8).wrapping_mul(SPREAD));
    let addresses = (address(8), address(24));
    let mut protocol = header[6];

    for _ in 0..6 {
        let Some(begin) = rest.first_chunk::<8>() else { break };
        let len = match protocol {
            0 | 43 | 60 => (usize::from(begin[1]) + 1) * 8,
            51 => (usize::from(begin[1]) + 2) * 4,
            44 if u16::from_be_bytes([begin[2], begin[3]]) & 0xfff9 != 0 => return Some(addresses),
            44 => 8,
            _ => break,
        };
        protocol = begin[0];
        rest = rest.get(len..).unwrap_or(&[]);
    }

    Some(with_ports(addresses, protocol, rest))
}

fn with_ports((a, b): (u64, u64), protocol: u8, ports: &[u8]) -> (u64, u64) {
    if ![6, 17, 132].contains(&protocol) || ports.len() < 4 {
        return (a, b);
    }
    (a.wrapping_add(half(ports).into()), b.wrapping_add(half(&ports[2..]).into()))
}
