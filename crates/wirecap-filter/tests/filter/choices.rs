//! Choices from bytes, which come from a fuzzer or a seed.

/// Makes a sequence of choices determined by the bytes. After the last byte, it always makes the
/// first choice.
#[derive(Debug)]
pub(crate) struct Choices {
    bytes: std::vec::IntoIter<u8>,
}

impl Choices {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        Self { bytes: Vec::from(bytes).into_iter() }
    }

    /// `byte_count` bytes of the generator SplitMix64.
    pub(crate) fn from_seed(seed: u64, byte_count: usize) -> Self {
        let mut state = seed;
        let word = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)).to_le_bytes()
        };
        let bytes: Vec<u8> =
            std::iter::repeat_with(word).take(byte_count.div_ceil(8)).flatten().collect();
        Self { bytes: bytes.into_iter() }
    }

    pub(crate) fn is_used_up(&self) -> bool {
        self.bytes.len() == 0
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes.next().unwrap_or(0)
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// A number below `limit`, which must not be 0.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        if limit <= 256 { u32::from(self.byte()) % limit } else { self.word() % limit }
    }

    /// True with probability 1/n.
    pub(crate) fn once_in(&mut self, n: u32) -> bool {
        self.below(n) == n - 1
    }

    pub(crate) fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u32) as usize]
    }
}
