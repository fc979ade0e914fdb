//! What a savefile of packets that were found keeps of their segments besides the packets: blocks
//! that mean the same in any section, and the latest counters of interfaces.

use std::collections::{BTreeMap, BTreeSet};

use wirecap_savefile::{Block, Interface, Statistics};

/// The blocks of the segments.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    by_segment: BTreeMap<usize, OfSegment>,
    /// Blocks of segments with matching packets, before those packets.
    ready: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct OfSegment {
    /// Where the blocks begin that were read: a piece that others require may be read several
    /// times.
    seen: BTreeSet<u64>,
    waiting: Vec<Vec<u8>>,
    statistics: Vec<(Interface, Statistics)>,
    has_match: bool,
}

impl Kept {
    /// Takes a block that begins at this offset of the segment's decompressed contents.
    pub(crate) fn add(&mut self, segment: usize, offset: u64, block: &Block<'_>) {
        let of_segment = self.by_segment.entry(segment).or_default();
        if !of_segment.seen.insert(offset) {
            return;
        }
        if let Some((statistics, interface)) = block.statistics() {
            of_segment.statistics.push((interface.clone(), *statistics));
        }
        let blocks = if of_segment.has_match { &mut self.ready } else { &mut of_segment.waiting };
        blocks.extend(block.portable());
    }

    /// The segment has a matching packet.
    pub(crate) fn found_in(&mut self, segment: usize) {
        let of_segment = self.by_segment.entry(segment).or_default();
        of_segment.has_match = true;
        self.ready.append(&mut of_segment.waiting);
    }

    /// The segments with matching packets.
    pub(crate) fn matching(&self) -> Vec<usize> {
        self.by_segment
            .iter()
            .filter(|(_, kept)| kept.has_match)
            .map(|(segment, _)| *segment)
            .collect()
    }

    /// The blocks that are to be written before further packets.
    pub(crate) fn take_ready(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.ready)
    }

    /// The counters of interfaces of segments with matching packets, in the order of the segments.
    pub(crate) fn statistics(&self) -> impl Iterator<Item = &(Interface, Statistics)> {
        self.by_segment.values().filter(|kept| kept.has_match).flat_map(|kept| &kept.statistics)
    }
}
