//! An index in memory: its rows and pieces.

use wirecap_filter::Sketch;
use wirecap_savefile::{Format, LinkType, Record};

use crate::flow::Flow;
use crate::identity::Identity;
use crate::segment::Piece;

/// Maximum duration of a row's packets, from one multiple of it to the next.
pub const SLICE_NANOS: u64 = 60_000_000_000;

/// The contents of an index besides the rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) identity: Identity,
    pub(crate) format: Format,
    pub(crate) packets: u64,
    pub(crate) wire_bytes: u64,
    /// The names and link types of the interfaces.
    pub(crate) interfaces: Vec<(Option<String>, LinkType)>,
    pub(crate) pieces: Vec<Piece>,
}

impl Summary {
    /// The earliest and the latest time of a packet, in nanoseconds since the epoch; none if there
    /// are no packets.
    pub(crate) fn times(&self) -> Option<(u64, u64)> {
        let with_packets = || self.pieces.iter().filter(|piece| piece.packets > 0);
        let earliest = with_packets().map(|piece| piece.earliest).min()?;
        Some((earliest, with_packets().map(|piece| piece.latest).max()?))
    }
}

/// The flows of a segment, and the positions of their packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    pub(crate) summary: Summary,
    /// Sorted by the number of the flow, then by time.
    pub(crate) rows: Vec<Row>,
}

impl Index {
    /// Packets of the segment.
    pub fn packets(&self) -> u64 {
        self.summary.packets
    }

    /// Bytes of the packets, on the wire.
    pub fn wire_bytes(&self) -> u64 {
        self.summary.wire_bytes
    }

    /// Flows and time slices.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The name of the segment's interface with this number, if the segment contains it.
    pub fn interface_name(&self, number: u32) -> Option<&str> {
        self.summary.interfaces.get(number as usize)?.0.as_deref()
    }

    /// The parts in which the segment is read.
    pub fn pieces(&self) -> &[Piece] {
        &self.summary.pieces
    }

    /// The earliest and the latest time of its packets, in nanoseconds since the epoch; none if
    /// there are no packets.
    pub fn times(&self) -> Option<(u64, u64)> {
        self.summary.times()
    }
}

/// The packets of one flow, in one direction, on one interface, in one slice of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Their common properties.
    pub flow: Flow,
    /// The number of their interface in the segment.
    pub interface: u32,
    /// The earliest time, in nanoseconds since the epoch; 0 of packets without times.
    pub first: u64,
    /// The latest time.
    pub last: u64,
    /// How many.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// The maximum number of captured bytes of one of these packets.
    pub captured_max: u32,
    /// The length of the shortest packet on the wire.
    pub wire_min: u32,
    /// The length of the longest.
    pub wire_max: u32,
    /// TCP flags that at least one packet has, and those that all packets have.
    pub tcp_flags: Option<(u8, u8)>,
    /// The number of the first packet in the segment, from 0.
    pub first_packet: u64,
    /// The number of the last.
    pub last_packet: u64,
    /// The positions of the packets, by piece.
    pub parts: Vec<Part>,
}

/// The packets of a row that are in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The number of the piece.
    pub piece: u32,
    /// How many they are.
    pub packets: u32,
    /// The TCP flags of these packets, as in [`Row::tcp_flags`].
    pub tcp_flags: Option<(u8, u8)>,
}

/// The flags that at least one packet has, and those that all packets have, after one more packet.
/// `None` if the flags of a packet are not known.
fn with_flags(flags: Option<(u8, u8)>, is_first: bool, more: Option<u8>) -> Option<(u8, u8)> {
    match (flags, more) {
        (None, Some(more)) if is_first => Some((more, more)),
        (Some((any, all)), Some(more)) => Some((any | more, all & more)),
        _ => None,
    }
}

impl Row {
    pub(crate) fn new(flow: Flow, interface: u32) -> Self {
        Self {
            flow,
            interface,
            first: u64::MAX,
            last: 0,
            packets: 0,
            bytes: 0,
            captured_max: 0,
            wire_min: u32::MAX,
            wire_max: 0,
            tcp_flags: None,
            first_packet: 0,
            last_packet: 0,
            parts: Vec::new(),
        }
    }

    pub(crate) fn add(
        &mut self,
        record: &Record<'_>,
        nanos: u64,
        tcp_flags: Option<u8>,
        number: u64,
        piece: u32,
    ) {
        self.tcp_flags = with_flags(self.tcp_flags, self.packets == 0, tcp_flags);
        if self.packets == 0 {
            self.first_packet = number;
        }

        self.last_packet = number;
        self.packets += 1;
        self.bytes += u64::from(record.wire_len);
        self.first = self.first.min(nanos);
        self.last = self.last.max(nanos);
        self.captured_max = self.captured_max.max(record.data.len() as u32);
        self.wire_min = self.wire_min.min(record.wire_len);
        self.wire_max = self.wire_max.max(record.wire_len);

        match self.parts.last_mut() {
            Some(part) if part.piece == piece => {
                part.packets += 1;
                part.tcp_flags = with_flags(part.tcp_flags, false, tcp_flags);
            }
            _ => {
                self.parts.push(Part {
                    piece,
                    packets: 1,
                    tcp_flags: with_flags(None, true, tcp_flags),
                });
            }
        }
    }

    /// The knowledge about its packets: each matches one of these sketches.
    pub fn sketches(&self) -> Vec<Sketch> {
        self.sketches_with(self.tcp_flags)
    }

    /// The same for those packets that have these flags.
    pub(crate) fn sketches_with(&self, tcp_flags: Option<(u8, u8)>) -> Vec<Sketch> {
        let sketch = self.flow.sketch(self.captured_max, self.wire_min..=self.wire_max, tcp_flags);
        let Some(place) = self.flow.later_fragment() else { return vec![sketch] };

        // The offset of a later fragment is not 0: one of its bits is the lowest that is set.
        let of_lowest = |bit: u32| {
            let known = (2_u16 << bit) - 1;
            let set = 1_u16 << bit;
            let mut sketch = sketch.clone();

            for (index, (known, set)) in
                known.to_be_bytes().into_iter().zip(set.to_be_bytes()).enumerate()
            {
                sketch.know_bits(place + index, known, set);
            }

            sketch
        };
        (0..13).map(of_lowest).collect()
    }
}
