//! Savefiles as a [`Source`] of frames: as recorded, or repeatedly with other addresses.

mod headers;
mod rewrite;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::{Path, PathBuf};

use wirecap_savefile::Timestamp;
use wirecap_savefile::{LinkType, PACKET_BYTES_MAX, ReadError, Reader};

use crate::play::{Batch, Schedule, Source};
use crate::traffic::Rss;
pub use headers::queue_of;
use rewrite::Rewriter;

/// The shortest frame: an Ethernet header.
const FRAME_BYTES_MIN: usize = 14;
/// A VLAN tag, which does not count towards the maximum length of a frame.
const TAG_BYTES: usize = 4;
/// Raw IP also has these link types: those of BSD, and those for one IP version each.
const RAW_IP: [LinkType; 5] =
    [LinkType::RAW, LinkType(12), LinkType(14), LinkType(228), LinkType(229)];

/// The processing of a recording's packets.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of rounds; `None`: unlimited.
    pub rounds: Option<u64>,
    /// Ends after this many frames.
    pub frames_max: u64,
    /// When frames are due.
    pub schedule: Schedule,
    /// Changes the IP addresses in every round but the first.
    pub rewrite: bool,
    /// The queues over which flows are distributed; `None`: queue 0.
    pub spread: Option<Rss>,
    /// The destination address of all frames, instead of those recorded.
    pub destination_mac: Option<[u8; 6]>,
    /// Source and destination address of packets that were recorded without an Ethernet header.
    pub own_mac: [u8; 6],
    /// The longest frame that the interface accepts, in bytes, without a VLAN tag.
    pub frame_bytes_max: usize,
    /// The treatment of packets that the capture truncated.
    pub cut: Cut,
    /// Maximum bytes of the packets of a recording that is read into memory first.
    pub preload_bytes_max: usize,
}

/// The treatment of packets of which the recording has only the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// They are padded with zeros to their length on the wire.
    Pad,
    /// They are sent with the recorded bytes only.
    Keep,
    /// They are not sent.
    Skip,
}

/// Packets that were not sent, by reason, all rounds together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Skipped {
    /// Longer than the interface's frames.
    pub too_long: u64,
    /// Shorter than an Ethernet header.
    pub too_short: u64,
    /// Neither Ethernet nor IP without a header.
    pub link_type: u64,
    /// Truncated, and therefore skipped.
    pub cut: u64,
}

impl Skipped {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.too_long + self.too_short + self.link_type + self.cut
    }
}

/// Counts of read packets, over all rounds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Reading {
    /// Packets read: as many as frames and skipped ones.
    pub packets: u64,
    /// Frames made of them.
    pub frames: u64,
    /// Number of padded packets among them.
    pub padded: u64,
    /// Packets not sent.
    pub skipped: Skipped,
    /// Number of complete rounds.
    pub rounds: u64,
}

/// A savefile that is read one or more times.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    input: Input,
    /// The packet read last, or all of them.
    data: Vec<u8>,
    settings: Settings,
    rewriter: Rewriter,
    reading: Reading,
    /// Number of frames made before this round.
    frames_before: u64,
    has_ended: bool,
    error: Option<ReadError>,
}

/// Where packets come from.
#[derive(Debug)]
enum Input {
    File(Box<Reader>),
    Memory {
        packets: Vec<Packet>,
        next: usize,
        /// Why the file has no more packets.
        error: Option<ReadError>,
    },
}

/// A packet read, but for its data.
#[derive(Clone, Debug)]
struct Packet {
    link_type: LinkType,
    wire_len: usize,
    recorded_ns: Option<u64>,
    /// The position of its data.
    data: Range<usize>,
}

impl Recording {
    /// Opens the savefile.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if it cannot be opened or is not a savefile.
    pub fn open(path: &Path, settings: Settings) -> Result<Self, ReadError> {
        Self::new(Reader::open(path)?, path, settings)
    }

    /// The savefile at `path`, which `reader` has just opened. It is only opened again for another
    /// round.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if it is too large to be read into memory and cannot be opened again.
    pub fn new(reader: Reader, path: &Path, settings: Settings) -> Result<Self, ReadError> {
        let mut recording = Self {
            path: path.to_owned(),
            input: Input::File(Box::new(reader)),
            data: Vec::new(),
            settings,
            rewriter: Rewriter::of_round(0),
            reading: Reading::default(),
            frames_before: 0,
            has_ended: false,
            error: None,
        };
        if recording.settings.preload_bytes_max > 0 {
            recording.preload()?;
        }

        Ok(recording)
    }

    /// Reads all packets into memory, unless they are too large.
    fn preload(&mut self) -> Result<(), ReadError> {
        let Input::File(reader) = &mut self.input else { return Ok(()) };
        let mut packets = Vec::new();

        let error = loop {
            match read_packet(reader, &mut self.data) {
                Ok(Some(packet)) => packets.push(packet),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
            if self.data.len() > self.settings.preload_bytes_max {
                self.data = Vec::new();
                self.input = Input::File(Box::new(Reader::open(&self.path)?));
                return Ok(());
            }
        };
        self.input = Input::Memory { packets, next: 0, error };

        Ok(())
    }

    /// The counts so far.
    pub fn reading(&self) -> Reading {
        self.reading
    }

    /// Why reading ended before the end.
    pub fn into_error(self) -> Option<ReadError> {
        self.error
    }

    /// Reads the next packet, and adds a frame to the batch unless the packet is skipped. Returns
    /// whether there may be more.
    fn read(&mut self, batch: &mut Batch) -> Result<bool, ReadError> {
        if self.reading.frames >= self.settings.frames_max {
            return Ok(false);
        }
        let Some(packet) = self.next_packet()? else { return self.begin_round() };
        self.reading.packets += 1;
        self.make_frame(&packet, batch);
        Ok(true)
    }

    fn next_packet(&mut self) -> Result<Option<Packet>, ReadError> {
        match &mut self.input {
            Input::File(reader) => {
                self.data.clear();
                read_packet(reader, &mut self.data)
            }
            Input::Memory { packets, next, error } => match (packets.get(*next), error.take()) {
                (None, Some(error)) => Err(error),
                (packet, none_yet) => {
                    *next += 1;
                    *error = none_yet;
                    Ok(packet.cloned())
                }
            },
        }
    }

    fn make_frame(&mut self, packet: &Packet, batch: &mut Batch) {
        let settings = &mut self.settings;
        let skipped = &mut self.reading.skipped;
        let data = &self.data[packet.data.clone()];
        let Some(header) = header_before(packet.link_type, data, settings) else {
            skipped.link_type += 1;
            return;
        };

        let missing_bytes = packet.wire_len.saturating_sub(data.len());
        let padding_bytes = match settings.cut {
            Cut::Pad => missing_bytes,
            Cut::Keep => 0,
            Cut::Skip if missing_bytes == 0 => 0,
            Cut::Skip => {
                skipped.cut += 1;
                return;
            }
        };
        let frame_bytes = header.as_slice().len() + data.len() + padding_bytes;

        if frame_bytes > settings.frame_bytes_max + tag_bytes(data) {
            skipped.too_long += 1;
            return;
        }

        if frame_bytes < FRAME_BYTES_MIN {
            skipped.too_short += 1;
            return;
        }

        self.reading.frames += 1;
        self.reading.padded += u64::from(padding_bytes > 0);

        let due_ns = settings.schedule.due_ns(packet.recorded_ns, frame_bytes);
        let rewriter = self.rewriter;
        let settings = &self.settings;
        let pieces = [header.as_slice(), data, &ZEROS[..padding_bytes]];
        batch.push_pieces(&pieces, due_ns, |frame| {
            if let Some(mac) = settings.destination_mac {
                frame[..6].copy_from_slice(&mac);
            }
            rewriter.rewrite(frame);
            settings.spread.as_ref().map_or(0, |rss| queue_of(rss, frame))
        });
    }

    /// Returns to the beginning if another round is required.
    fn begin_round(&mut self) -> Result<bool, ReadError> {
        self.reading.rounds += 1;
        let nothing_there = self.reading.frames == self.frames_before;
        if nothing_there || self.settings.rounds.is_some_and(|rounds| self.reading.rounds >= rounds)
        {
            return Ok(false);
        }

        match &mut self.input {
            Input::File(reader) => **reader = Reader::open(&self.path)?,
            Input::Memory { next, .. } => *next = 0,
        }

        self.frames_before = self.reading.frames;
        self.settings.schedule.next_round();

        if self.settings.rewrite {
            self.rewriter = Rewriter::of_round(self.reading.rounds);
        }

        Ok(true)
    }
}

impl Source for Recording {
    fn fill(&mut self, batch: &mut Batch) {
        while !self.has_ended && !batch.is_full() {
            let read = self.read(batch);
            self.has_ended = !matches!(read, Ok(true));
            self.error = read.err();
        }
    }
}

/// Reads the next packet, and appends its data to `data`.
fn read_packet(reader: &mut Reader, data: &mut Vec<u8>) -> Result<Option<Packet>, ReadError> {
    let Some((record, interface)) = reader.next_with_interface()? else { return Ok(None) };
    let start = data.len();
    data.extend_from_slice(record.data);
    let link_type = interface.link_type;
    let wire_len = record.wire_len as usize;
    let recorded_ns = record.timestamp.map(Timestamp::unix_nanos);
    Ok(Some(Packet { link_type, wire_len, recorded_ns, data: start..data.len() }))
}

/// The maximum number of bytes of an interface's frame.
static ZEROS: [u8; PACKET_BYTES_MAX as usize] = [0; PACKET_BYTES_MAX as usize];

/// The header that makes a packet of this link type an Ethernet frame; empty if it is one. `None`
/// if it cannot be made one.
fn header_before(link_type: LinkType, data: &[u8], settings: &Settings) -> Option<Header> {
    if link_type == LinkType::ETHERNET {
        return Some(Header::None);
    }
    let ether_type = match data.first()? >> 4 {
        4 => [0x08, 0x00],
        6 => [0x86, 0xdd],
        _ => return None,
    };
    let [a, b, c, d, e, f] = settings.own_mac;
    let header = [a, b, c, d, e, f, a, b, c, d, e, f, ether_type[0], ether_type[1]];
    RAW_IP.contains(&link_type).then_some(Header::Ethernet(header))
}

enum Header {
    None,
    Ethernet([u8; FRAME_BYTES_MIN]),
}

impl Header {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Ethernet(header) => header,
        }
    }
}

/// Additional bytes allowed for a frame that begins like this.
fn tag_bytes(frame: &[u8]) -> usize {
    if matches!(frame.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8])) { TAG_BYTES } else { 0 }
}
