//! Makes the index of a segment: reads it once, from its beginning to its end.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use wirecap_filter::Sketch;
use wirecap_savefile::{Format, Interface, LinkType, Part, ReadError, Reader, Record, Timestamp};

use crate::flow::{Flow, Headers};
use crate::identity::Identity;
use crate::row::{Index, Row, SLICE_NANOS, Summary};
use crate::segment::{Compression, FrameLog, Frames, Piece, complete_name};

/// Minimum number of bytes of a piece of an uncompressed file.
const PLAIN_PIECE_BYTES: u64 = 128 << 10;
/// The maximum number of rows of a segment. Later flows share rows of unknown flow, so memory is
/// bounded for any segment.
const ROWS_MAX: usize = 1 << 18;

/// A new index. If the segment could not be read to its end, the index covers the part before the
/// error.
#[derive(Debug)]
pub struct Built {
    /// The index.
    pub index: Index,
    /// The error of the segment, after the end of the last piece.
    pub fault: Option<ReadError>,
}

/// Reads the segment at `path`. `progress` gets the number of bytes read, and returns `false` to
/// stop.
///
/// # Errors
///
/// If it cannot be opened or is not a savefile; [`io::ErrorKind::Interrupted`] if it was stopped.
pub fn build(path: &Path, progress: &mut dyn FnMut(u64) -> bool) -> Result<Built, ReadError> {
    let failed = |source: io::Error| ReadError::Open { path: path.to_owned(), source };
    let identity = Identity::of(path).map_err(failed)?;
    let (source, compression, log) = Frames::open(path).map_err(failed)?;
    let mut reader = Reader::from_start(source)?;
    let mut builder = Builder::new(compression, log);

    if reader.offset() > 0 {
        builder.pieces.block(0, true); // the header of a pcap file
    }

    let is_plain = compression == Compression::None;
    let mut blocks = 0_u64;

    let fault = loop {
        let start = reader.offset();
        for interface in reader.interfaces().iter().skip(builder.link_types.len()) {
            builder.link_types.push(interface.link_type);
            builder.names.push(name(interface));
        }
        match reader.next_part() {
            Ok(Some(Part::Packet(record))) => builder.add_packet(&record, start),
            Ok(Some(Part::Block(block))) => {
                let is_context = gives_meaning(block) || is_plain && is_statistics(block);
                builder.pieces.block(start, is_context);
            }
            Ok(None) => break None,
            Err(fault) => break Some(fault),
        }
        blocks += 1;
        if blocks.is_multiple_of(4096) && !progress(builder.pieces.offset()) {
            return Err(failed(io::ErrorKind::Interrupted.into()));
        }
    };
    let end = reader.offset();
    let format = reader.format();

    // It may have grown.
    let bytes = |path: &Path| Some(path.metadata().ok()?.len());
    let file_bytes = bytes(path).or_else(|| bytes(complete_name(path)?)).unwrap_or(identity.bytes);
    let end = End { offset: end, is_whole: fault.is_none(), file_bytes };

    Ok(Built { index: builder.finish(identity, format, end), fault })
}

/// Whether packets after a block of pcapng cannot be read or understood without it: the header of a
/// section, an interface, names, secrets, or contents of an organization. Copies of packets after
/// it have it, too.
fn gives_meaning(block: &[u8]) -> bool {
    const TYPES: [u32; 6] = [0x0a0d_0d0a, 1, 4, 10, 0x0bad, 0x4000_0bad];
    block.first_chunk().is_some_and(|block_type| {
        TYPES.contains(&u32::from_le_bytes(*block_type))
            || TYPES.contains(&u32::from_be_bytes(*block_type))
    })
}

/// Whether a block has the counters of an interface, which copies have, too. In an uncompressed
/// file it is a small piece; in a compressed one it is read only with the packets beside it,
/// because it ends each file of a recording.
fn is_statistics(block: &[u8]) -> bool {
    matches!(block, [5, 0, 0, 0, ..] | [0, 0, 0, 5, ..])
}

/// An interface's name as the index has it: one line, not empty.
fn name(interface: &Interface) -> Option<String> {
    let name = interface.name.as_ref()?.replace(char::is_control, " ");
    (!name.is_empty()).then_some(name)
}

/// The key of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    flow: Flow,
    interface: u32,
    slice: u64,
}

struct Builder {
    link_types: Vec<LinkType>,
    names: Vec<Option<String>>,
    pieces: Pieces,
    rows: HashMap<Key, usize>,
    /// Each row with the sketches against which its packets are checked.
    done: Vec<(Row, Sketch)>,
    packets: u64,
    wire_bytes: u64,
}

impl Builder {
    fn new(compression: Compression, log: Arc<FrameLog>) -> Self {
        Self {
            link_types: Vec::new(),
            names: Vec::new(),
            pieces: Pieces::new(compression, log),
            rows: HashMap::new(),
            done: Vec::new(),
            packets: 0,
            wire_bytes: 0,
        }
    }

    fn add_packet(&mut self, record: &Record<'_>, start: u64) {
        let nanos = record.timestamp.map_or(0, Timestamp::unix_nanos);
        let piece = self.pieces.packet(start, nanos, self.packets);
        let link_type = self.link_types.get(record.interface as usize).copied().unwrap_or_default();
        let headers = Headers::of(link_type, record.data);
        let slice = nanos / SLICE_NANOS;
        let mut key = Key { flow: headers.flow, interface: record.interface, slice };
        let mut place = self.place(key);

        // The row guarantees that every packet agrees with its columns. The filter runs on these
        // columns, not on packets.
        if place.is_none_or(|place| !self.done[place].1.agrees_with(record.data)) {
            key.flow = Flow::unknown(link_type);
            place = self.place(key);
        }

        let place = place.unwrap_or_else(|| self.add(key));
        let (row, _) = &mut self.done[place];
        let tcp_flags = headers.tcp_flags.filter(|_| key.flow == headers.flow);
        row.add(record, nanos, tcp_flags, self.packets, piece);
        self.packets += 1;
        self.wire_bytes += u64::from(record.wire_len);
    }

    /// The row of a flow; `None` if the index has too many rows.
    fn place(&mut self, key: Key) -> Option<usize> {
        match self.rows.get(&key) {
            Some(place) => Some(*place),
            None if self.done.len() >= ROWS_MAX => None,
            None => Some(self.add(key)),
        }
    }

    fn add(&mut self, key: Key) -> usize {
        let sketch = key.flow.sketch(u32::MAX, 0..=u32::MAX, None);
        self.done.push((Row::new(key.flow, key.interface), sketch));
        self.rows.insert(key, self.done.len() - 1);
        self.done.len() - 1
    }

    fn finish(self, identity: Identity, format: Format, end: End) -> Index {
        // A row is empty if its only packet did not agree with it.
        let mut rows: Vec<Row> =
            self.done.into_iter().map(|(row, _)| row).filter(|row| row.packets > 0).collect();
        rows.sort_by_cached_key(|row| (row.flow.number(), row.first, row.first_packet));

        let summary = Summary {
            identity,
            format,
            packets: self.packets,
            wire_bytes: self.wire_bytes,
            interfaces: self.names.into_iter().zip(self.link_types).collect(),
            pieces: self.pieces.finish(end),
        };
        Index { summary, rows }
    }
}

/// Where reading has ended.
struct End {
    /// Offset in the decompressed file.
    offset: u64,
    /// Whether that is the file's end.
    is_whole: bool,
    file_bytes: u64,
}

/// Cuts the segment into pieces while it is read.
struct Pieces {
    compression: Compression,
    log: Arc<FrameLog>,
    /// Frames that end before the current block.
    passed: usize,
    /// The frame that the open piece begins with.
    first_frame: usize,
    done: Vec<Piece>,
    open: Piece,
    is_begun: bool,
}

const NOTHING: Piece = Piece {
    offset: 0,
    bytes: 0,
    begin: 0,
    len: 0,
    first_packet: 0,
    packets: 0,
    earliest: u64::MAX,
    latest: 0,
    has_context: false,
};

impl Pieces {
    fn new(compression: Compression, log: Arc<FrameLog>) -> Self {
        let done = Vec::new();
        let open = NOTHING;
        Self { compression, log, passed: 0, first_frame: 0, done, open, is_begun: false }
    }

    /// Number of bytes of the segment read.
    fn offset(&self) -> u64 {
        match self.compression {
            Compression::None => self.open.begin,
            _ if self.log.len() == 0 => 0,
            _ => self.log.get(self.log.len() - 1).offset,
        }
    }

    /// Called where a packet begins. Returns the number of its piece.
    fn packet(&mut self, start: u64, nanos: u64, number: u64) -> u32 {
        self.block(start, false);
        if self.open.packets == 0 {
            self.open.first_packet = number;
        }
        self.open.packets += 1;
        self.open.earliest = self.open.earliest.min(nanos);
        self.open.latest = self.open.latest.max(nanos);
        self.done.len() as u32
    }

    /// Called where a block begins.
    fn block(&mut self, start: u64, is_context: bool) {
        if self.compression == Compression::None {
            let is_long = start - self.open.begin >= PLAIN_PIECE_BYTES;
            if self.is_begun && (is_long || self.open.has_context != is_context) {
                self.cut(start);
            }
        } else {
            // All frames that end here are complete, because bytes of this block were read.
            while self.passed < self.log.len() {
                let frame = self.log.get(self.passed);
                if frame.end > start {
                    break;
                }
                self.passed += 1;
                if frame.end == start {
                    self.cut(start);
                }
            }
        }

        self.open.has_context |= is_context;
        self.is_begun = true;
    }

    /// Ends the open piece before `start`, where the next one begins.
    fn cut(&mut self, start: u64) {
        let mut piece = self.open;
        piece.len = start - piece.begin;

        match self.compression {
            Compression::None => (piece.offset, piece.bytes) = (piece.begin, piece.len),
            _ if self.first_frame < self.passed => {
                let first = self.log.get(self.first_frame);
                let last = self.log.get(self.passed - 1);
                (piece.offset, piece.bytes) =
                    (first.offset, last.offset + last.bytes - first.offset);
            }
            _ => return,
        }

        if piece.packets == 0 {
            (piece.earliest, piece.latest) = (0, 0);
        }
        if self.is_begun {
            self.done.push(piece);
        }

        self.first_frame = self.passed;
        self.is_begun = false;
        self.open = Piece { begin: start, ..NOTHING };
    }

    /// The last piece ends at `end`, which is inside a frame if the rest of the file could not be
    /// read.
    fn finish(mut self, end: End) -> Vec<Piece> {
        let End { offset: end, is_whole, file_bytes } = end;

        if self.compression == Compression::None || is_whole {
            self.passed = self.log.len();
            if self.is_begun {
                self.cut(end);
            }
        } else if self.is_begun {
            let frames = self.log.len();
            let offset = match self.first_frame {
                first if first < frames => self.log.get(first).offset,
                _ if frames > 0 => self.log.get(frames - 1).offset + self.log.get(frames - 1).bytes,
                _ => 0,
            };
            let bytes = file_bytes.saturating_sub(offset);
            let len = end - self.open.begin;
            self.done.push(Piece { offset, bytes, len, ..self.open });
        }
        self.done
    }
}
