//! Other addresses for each round, so that a short recording becomes many different flows.
//!
//! Within a round the change of addresses is one to one: different flows stay different, and the
//! two directions of a connection still match. Checksums are updated incrementally (RFC 1624), so
//! correct ones stay correct and wrong ones stay wrong. Addresses in payloads and in ARP are
//! unchanged.

use super::headers::{Fragment, Headers, Version, protocol, word};

/// A multiplier that permutes the numbers below 2^24, derived from the golden ratio.
const SPREAD: u32 = 0x9e_3779;

/// The change of addresses in one round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rewriter {
    /// Exclusive-or on an address's last 24 bits.
    mask: u32,
}

impl Rewriter {
    /// The change of a round; round 0 changes nothing. After 2^24 rounds the changes repeat.
    pub(super) fn of_round(round: u64) -> Self {
        Self { mask: (round as u32).wrapping_mul(SPREAD) & 0xff_ffff }
    }

    /// Changes the addresses of a frame and updates its checksums.
    pub(super) fn rewrite(self, frame: &mut [u8]) {
        if self.mask == 0 {
            return;
        }

        let Some(headers) = Headers::of(frame) else { return };
        let (start, end) = headers.addresses();
        let middle = start.midpoint(end);
        let of_source = self.change(&mut frame[start..middle]);
        let of_destination = self.change(&mut frame[middle..end]);

        if headers.version == Version::V4 {
            update(frame, headers.network + 10, of_source + of_destination);
        }
        if headers.fragment == Fragment::Later {
            return;
        }

        let of_pseudo_header =
            if headers.is_routed { of_source } else { of_source + of_destination };
        let Some(offset) = checksum_offset(&headers) else { return };
        let is_udp = matches!(headers.protocol, protocol::UDP);

        match word(frame, headers.transport + offset) {
            // UDP without checksum.
            Some(0) if is_udp => {}
            Some(_) => {
                update(frame, headers.transport + offset, of_pseudo_header);
                if is_udp && word(frame, headers.transport + offset) == Some(0) {
                    frame[headers.transport + offset..][..2].fill(0xff);
                }
            }
            None => {}
        }
    }

    /// Changes an address, if it is a unicast address, and returns the resulting difference of a
    /// checksum.
    fn change(self, address: &mut [u8]) -> u32 {
        if !is_of_a_host(address) {
            return 0;
        }

        let words = address.len() / 2;
        let sum = |address: &[u8], invert: u16| -> u32 {
            (words - 2..words)
                .map(|at| u32::from(word(address, at * 2).expect("an address") ^ invert))
                .sum()
        };
        let before = sum(address, 0xffff);
        for (byte, mask) in address.iter_mut().rev().zip(self.mask.to_le_bytes()) {
            *byte ^= mask;
        }

        before + sum(address, 0)
    }
}

/// Whether it is neither multicast, nor broadcast, nor loopback.
fn is_of_a_host(address: &[u8]) -> bool {
    match address {
        [first, _, _, _] => !matches!(first, 0 | 127 | 224..),
        _ => address[0] != 0xff && address[..8] != [0; 8],
    }
}

/// The offset of the protocol's checksum that covers the addresses.
fn checksum_offset(headers: &Headers) -> Option<usize> {
    match (headers.version, headers.protocol) {
        (_, protocol::TCP) => Some(16),
        (_, protocol::UDP | protocol::UDP_LITE | protocol::DCCP) => Some(6),
        (Version::V6, protocol::ICMPV6) => Some(2),
        _ => None,
    }
}

/// Adds a difference to a checksum: equation 3 of RFC 1624.
fn update(frame: &mut [u8], offset: usize, difference: u32) {
    let Some(checksum) = word(frame, offset) else { return };
    let mut sum = u32::from(!checksum) + difference;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[offset..][..2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}
