//! Frames in which every byte is determined by the frame's number, so that a receiver can verify
//! them.

use std::net::Ipv4Addr;

use wirecap_testbed::{Sizes, Stamp, Traffic};

/// Offset of the bytes after all headers: Ethernet, IPv4, UDP and the stamp.
const FILLING_OFFSET: usize = 14 + 20 + 8 + 14;

/// Numbered frames of alternating lengths.
#[derive(Debug, Clone)]
pub(crate) struct Frames {
    lengths: Vec<u16>,
    flows: u32,
    count: u64,
    traffic: Traffic,
}

impl Frames {
    /// `count` frames of these lengths in turn, in this many flows. Each flow has its own source
    /// address: igb's hash ignores the ports of UDP packets.
    pub(crate) fn new(traffic: Traffic, lengths: &[u16], flows: u32, count: u64) -> Self {
        Self { lengths: lengths.to_vec(), flows, count, traffic }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The frame with this number.
    pub(crate) fn frame(&self, number: u64) -> Vec<u8> {
        let length = self.lengths[(number % self.lengths.len() as u64) as usize];
        let source = self.source((number % u64::from(self.flows)) as u32);
        let traffic = Traffic { sizes: Sizes::fixed(length), source, ..self.traffic.clone() };
        let mut frame = traffic.frame(Stamp { queue: 0, sequence: number });
        let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for byte in frame.iter_mut().skip(FILLING_OFFSET) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
        frame
    }

    /// The source address of a flow, in the test network of RFC 2544 (198.18.0.0/15). RSS uses a
    /// random key; with it, the hashes of addresses that differ in few bits may all select the same
    /// queue.
    fn source(&self, flow: u32) -> Ipv4Addr {
        let network = u32::from(self.traffic.source) & 0xfffe_0000;
        (network | (flow.wrapping_mul(0x9e37_79b1) >> 15)).into()
    }

    /// Whether `frame` is one of these frames, byte for byte.
    pub(crate) fn has(&self, frame: &[u8]) -> bool {
        Stamp::of(frame)
            .is_some_and(|stamp| stamp.sequence < self.count && self.frame(stamp.sequence) == frame)
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        (0..self.count).map(|number| self.frame(number))
    }

    /// Compares received frames with the sent ones, byte for byte: every frame once, in any order.
    ///
    /// # Errors
    ///
    /// A description of the difference.
    pub(crate) fn compare<'a>(
        &self,
        received: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), String> {
        let mut times = vec![0_u32; self.count as usize];
        let mut total = 0_u64;
        let mut others = Vec::new();
        for frame in received {
            total += 1;
            let number =
                Stamp::of(frame).map(|stamp| stamp.sequence).filter(|&number| number < self.count);
            match number.filter(|&number| self.frame(number) == frame) {
                Some(number) => times[number as usize] += 1,
                None => others.push(match number {
                    Some(number) => {
                        let sent = self.frame(number);
                        let at = sent.iter().zip(frame).position(|(sent, received)| sent != received);
                        format!(
                            "frame {number} of {} bytes came with {} bytes, first difference at {at:?}",
                            sent.len(),
                            frame.len()
                        )
                    }
                    None => format!(
                        "{} bytes of no frame sent: {:02x?}",
                        frame.len(),
                        &frame[..frame.len().min(20)]
                    ),
                }),
            }
        }
        let absent = || {
            (0..).zip(&times).filter(|&(_, &times)| times == 0).map(|(number, _): (u64, _)| number)
        };
        let missing = absent().count();
        let twice = times.iter().filter(|&&times| times > 1).count();
        if missing + twice + others.len() == 0 {
            return Ok(());
        }
        let first = others.first().map(|other| format!(" ({other})")).unwrap_or_default();
        let named: Vec<_> = absent().take(8).collect();
        Err(format!(
            "{total} frames for {} sent: {missing} missing {named:?}, {twice} more than once, {} altered{first}",
            self.count,
            others.len()
        ))
    }
}
