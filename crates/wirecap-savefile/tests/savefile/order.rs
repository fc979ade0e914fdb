//! Parts of savefiles of either byte order.

/// The byte order of a generated file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    Little,
    Big,
}

pub(crate) use Order::{Big, Little};

impl Order {
    pub(crate) fn u16(self, number: u16) -> Vec<u8> {
        match self {
            Little => number.to_le_bytes().to_vec(),
            Big => number.to_be_bytes().to_vec(),
        }
    }

    pub(crate) fn u32(self, number: u32) -> Vec<u8> {
        match self {
            Little => number.to_le_bytes().to_vec(),
            Big => number.to_be_bytes().to_vec(),
        }
    }

    pub(crate) fn u64(self, number: u64) -> Vec<u8> {
        match self {
            Little => number.to_le_bytes().to_vec(),
            Big => number.to_be_bytes().to_vec(),
        }
    }

    pub(crate) fn words(self, words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| self.u32(*word)).collect()
    }

    pub(crate) fn block(self, block_type: u32, body: &[u8]) -> Vec<u8> {
        let len = self.u32(body.len() as u32 + 12);
        [&self.u32(block_type), &len, body, &len].concat()
    }

    pub(crate) fn option(self, code: u16, value: &[u8]) -> Vec<u8> {
        let padding = vec![0; value.len().next_multiple_of(4) - value.len()];
        [&self.u16(code), &self.u16(value.len() as u16), value, &padding].concat()
    }

    pub(crate) fn section(self) -> Vec<u8> {
        let version = [self.u16(1), self.u16(0)].concat();
        self.block(0x0a0d_0d0a, &[self.u32(0x1a2b_3c4d), version, vec![0xff; 8]].concat())
    }

    pub(crate) fn interface(self, link_type: u16, snap_len: u32, options: &[u8]) -> Vec<u8> {
        self.block(1, &[&self.u16(link_type), &[0, 0][..], &self.u32(snap_len), options].concat())
    }

    /// An enhanced packet of four bytes, `ticks` after the epoch, on interface 0.
    pub(crate) fn enhanced(self, ticks: u64, data: [u8; 4]) -> Vec<u8> {
        let words = [0, (ticks >> 32) as u32, ticks as u32, 4, 60];
        self.block(6, &[self.words(&words), data.to_vec()].concat())
    }

    pub(crate) fn pcap(self, magic: u32, minor: u16, packets: &[u8]) -> Vec<u8> {
        let version = [self.u16(2), self.u16(minor)].concat();
        [&self.u32(magic), &version, &self.words(&[0, 0, 65_535, 1]), packets].concat()
    }
}
