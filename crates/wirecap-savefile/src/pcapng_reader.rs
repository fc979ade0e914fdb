//! Reads pcapng: sections of either byte order, interfaces, all three types of packet blocks, and
//! statistics.

use crate::contents::{BLOCK_BYTES_MAX, Contents, Packet, Step, data_bytes_max};
use crate::element::{number_of_interface, push_option};
use crate::fields::{ByteOrder, Fields};
use crate::pcapng::{
    BYTE_ORDER_MAGIC, ENHANCED_PACKET, FILTER_IS_TEXT, INTERFACE_DESCRIPTION, INTERFACE_STATISTICS,
    OBSOLETE_PACKET, SECTION_HEADER, SIMPLE_PACKET, TIME_SOURCE_NONE, TIME_SOURCE_PREFIX, option,
    padded,
};
use crate::window::Window;
use crate::{Direction, Interface, LinkType, ReadError, Section, Statistics, Timestamp};

/// Type, length and, in a section header, the byte-order magic: the minimum length of a block.
const BLOCK_HEAD: usize = 12;
/// Offset of a block's body, after its type and length.
const BODY_START: usize = 8;
const TRAILING_LENGTH: usize = 4;

/// Each interface takes memory, even if it takes few bytes in the file.
const INTERFACES_MAX: usize = 65_536;
/// Maximum length of an interface's text; longer texts are truncated.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Maximum total length of the texts of all interfaces; further texts are omitted.
const TEXTS_BYTES_MAX: usize = 16 << 20;

pub(crate) struct PcapngReader {
    order: ByteOrder,
    /// Index of the section's first interface among those of the file.
    section_start: usize,
    /// One entry for each interface of the file.
    clocks: Vec<Clock>,
    texts: Texts,
}

impl Default for PcapngReader {
    fn default() -> Self {
        Self {
            order: ByteOrder::Little,
            section_start: 0,
            clocks: Vec::new(),
            texts: Texts::default(),
        }
    }
}

/// Limits the texts of interfaces: a small compressed file may contain gigabytes of them.
struct Texts {
    left_bytes: usize,
}

impl Default for Texts {
    fn default() -> Self {
        Self { left_bytes: TEXTS_BYTES_MAX }
    }
}

impl Texts {
    /// Returns the text, truncated if it is too long, or `None` if the limit is reached.
    fn take(&mut self, value: Fields<'_>) -> Option<String> {
        if self.left_bytes == 0 {
            return None;
        }
        let mut text = text(value);
        let mut len = text.len().min(TEXT_BYTES_MAX).min(self.left_bytes);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        text.truncate(len);
        text.shrink_to_fit();
        self.left_bytes -= len;
        Some(text)
    }

    /// Whether another option of this length may be kept.
    fn take_option(&mut self, value: &[u8]) -> bool {
        let is_kept = value.len() <= TEXT_BYTES_MAX.min(self.left_bytes);
        if is_kept {
            self.left_bytes -= value.len();
        }
        is_kept
    }
}

/// Why a block is invalid.
type Problem = String;

/// A decoded packet block: the packet, with its interface number in the section and the range of
/// its data in the block, and its time in ticks of the interface.
type BlockPacket = (Packet, Option<u64>);

impl PcapngReader {
    /// The byte order of the current section.
    pub(crate) fn order(&self) -> ByteOrder {
        self.order
    }

    /// Whether a file that begins with `magic` is pcapng.
    pub(crate) fn is_magic(magic: [u8; 4]) -> bool {
        u32::from_le_bytes(magic) == SECTION_HEADER // The same in both byte orders.
    }

    /// Index of the interface that a block of statistics belongs to.
    pub(crate) fn statistics_of(&self, block: &[u8], contents: &Contents) -> Option<usize> {
        let [block_type, _, interface] = Fields::new(block, 0, self.order).words()?;
        let interface = (block_type == INTERFACE_STATISTICS).then_some(interface)?;
        self.interface_index(interface, contents).ok()
    }

    /// Reads the next block.
    #[inline]
    pub(crate) fn step(
        &mut self,
        window: &mut Window,
        contents: &mut Contents,
    ) -> Result<Step, ReadError> {
        let offset = window.offset();
        let malformed = |problem| ReadError::Malformed { offset, problem };
        let Some(head) = window.need(BLOCK_HEAD, "block")? else { return Ok(Step::End) };
        let (block_type, block_len) = self.block_head(head).map_err(malformed)?;
        let block = window.need(block_len, block_name(block_type))?.expect("its head is there");
        let body = self.body(block).map_err(malformed)?;

        let packet = match block_type {
            ENHANCED_PACKET => enhanced_packet(body),
            SIMPLE_PACKET => simple_packet(body, self.section_interfaces(contents)),
            OBSOLETE_PACKET => obsolete_packet(body),
            _ => {
                self.other_block(block_type, body, contents).map_err(malformed)?;
                return Ok(Step::Other(window.consume(block_len)));
            }
        };
        let (mut packet, ticks) = packet.ok_or_else(|| malformed(too_short(block_type)))?;
        self.complete(&mut packet, ticks, contents).map_err(malformed)?;
        packet.block = window.consume(block_len);

        let block_start = packet.block.start;
        packet.data = block_start + packet.data.start..block_start + packet.data.end;

        Ok(Step::Packet(packet))
    }

    /// A block's type and length. A section header sets the byte order for itself and the blocks
    /// after it.
    fn block_head(&mut self, head: &[u8]) -> Result<(u32, usize), Problem> {
        let magic = head.first_chunk();
        let order = head.last_chunk();
        if magic.copied().is_some_and(Self::is_magic) {
            self.order = order
                .and_then(|order| ByteOrder::of_magic(*order, BYTE_ORDER_MAGIC))
                .ok_or("the section header has no byte-order magic")?;
        }
        let mut fields = Fields::new(head, 0, self.order);
        let [block_type, block_len] = fields.words().expect("a block's head has 12 bytes");
        if block_len % 4 != 0 || !(BLOCK_HEAD as u32..=BLOCK_BYTES_MAX).contains(&block_len) {
            return Err(format!(
                "a block of type {block_type:#x} has length {block_len}: \
                 expected a multiple of 4 from {BLOCK_HEAD} to {BLOCK_BYTES_MAX}"
            ));
        }
        Ok((block_type, block_len as usize))
    }

    /// The fields of a block after its type and length.
    fn body<'a>(&self, block: &'a [u8]) -> Result<Fields<'a>, Problem> {
        let (block, trailer) = block.split_at(block.len() - TRAILING_LENGTH);
        let trailing_len =
            Fields::new(trailer, 0, self.order).u32().expect("the trailer has 4 bytes");
        let block_len = block.len() + TRAILING_LENGTH;
        if trailing_len as usize != block_len {
            return Err(format!(
                "a block has length {block_len} at its head and {trailing_len} at its end"
            ));
        }
        Ok(Fields::new(block, BODY_START, self.order))
    }

    /// Processes a block that is not a packet.
    fn other_block(
        &mut self,
        block_type: u32,
        body: Fields<'_>,
        contents: &mut Contents,
    ) -> Result<(), Problem> {
        let cut_short = || too_short(block_type);

        match block_type {
            SECTION_HEADER => {
                contents.section = section(body).ok_or_else(cut_short)??;
                self.section_start = contents.interfaces.len();
            }
            INTERFACE_DESCRIPTION if contents.interfaces.len() == INTERFACES_MAX => {
                return Err(format!("the file has more than {INTERFACES_MAX} interfaces"));
            }
            INTERFACE_DESCRIPTION => {
                let (interface, clock) = interface(body, &mut self.texts).ok_or_else(cut_short)?;
                contents.add_interface(interface);
                self.clocks.push(clock);
            }
            INTERFACE_STATISTICS => self.statistics(body, contents).ok_or_else(cut_short)??,
            _ => {} // Name resolution, secrets and unknown blocks.
        }
        Ok(())
    }

    /// Converts a packet's interface number to an index in the file, and its ticks to a time.
    #[inline]
    fn complete(
        &self,
        packet: &mut Packet,
        ticks: Option<u64>,
        contents: &Contents,
    ) -> Result<(), Problem> {
        let index = self.interface_index(packet.interface, contents)?;
        let len = packet.data.len();
        let len_max = data_bytes_max(contents.interfaces[index].link_type);
        #[cfg(sabotage)]
        let len_max =
            if crate::sabotage::is("pcapng-packet-of-any-length") { u32::MAX } else { len_max };
        if len > len_max as usize {
            return Err(format!("a packet has {len} bytes; the maximum is {len_max}"));
        }

        packet.interface = index as u32;
        packet.timestamp = ticks.and_then(|ticks| self.clocks[index].timestamp(ticks));
        packet.is_time_out_of_range = ticks.is_some() && packet.timestamp.is_none();

        Ok(())
    }

    /// Converts an interface number of the section to an index in the file.
    fn interface_index(&self, interface: u32, contents: &Contents) -> Result<usize, Problem> {
        let interface_count = self.section_interfaces(contents).len();
        if interface as usize >= interface_count {
            return Err(format!(
                "a block belongs to interface {interface}, but its section has {interface_count} so far"
            ));
        }
        Ok(self.section_start + interface as usize)
    }

    fn section_interfaces<'a>(&self, contents: &'a Contents) -> &'a [Interface] {
        &contents.interfaces[self.section_start..]
    }

    fn statistics(
        &self,
        mut body: Fields<'_>,
        contents: &mut Contents,
    ) -> Option<Result<(), Problem>> {
        let index = match self.interface_index(body.u32()?, contents) {
            Ok(index) => index,
            Err(problem) => return Some(Err(problem)),
        };
        let written_at = ticks(&mut body)?;
        let mut statistics = Statistics { interface: index as u32, ..Statistics::default() };
        let time = |mut value| self.clocks[index].timestamp(ticks(&mut value)?);

        let _ = for_each_option(body, |code, mut value| match code {
            option::ISB_STARTTIME => statistics.start = time(value),
            option::ISB_ENDTIME => statistics.end = time(value),
            option::ISB_IFRECV => statistics.received = value.u64(),
            option::ISB_IFDROP => statistics.dropped_by_interface = value.u64(),
            option::ISB_FILTERACCEPT => statistics.accepted_by_filter = value.u64(),
            option::ISB_OSDROP => statistics.dropped_by_os = value.u64(),
            option::ISB_USRDELIV => statistics.delivered = value.u64(),
            _ => {}
        });
        if statistics.end.is_none() && written_at > 0 {
            statistics.end = self.clocks[index].timestamp(written_at);
        }

        contents.statistics[index] = Some(statistics);
        Some(Ok(()))
    }
}

/// The name of a block type, for errors about truncated files.
fn block_name(block_type: u32) -> &'static str {
    match block_type {
        ENHANCED_PACKET | SIMPLE_PACKET | OBSOLETE_PACKET => "packet",
        _ => "block",
    }
}

fn too_short(block_type: u32) -> Problem {
    format!("a block of type {block_type:#x} is too short for its contents")
}

/// Reads a time: two words, the upper one first in all blocks.
fn ticks(fields: &mut Fields<'_>) -> Option<u64> {
    fields.words().map(ticks_of_words)
}

fn ticks_of_words([high, low]: [u32; 2]) -> u64 {
    (u64::from(high) << 32) + u64::from(low)
}

fn enhanced_packet(mut body: Fields<'_>) -> Option<BlockPacket> {
    let interface = body.u32()?;
    timed_packet(interface, body)
}

fn obsolete_packet(mut body: Fields<'_>) -> Option<BlockPacket> {
    let interface = body.u16()?;
    let _dropped_before = body.u16()?;
    // The options have the same codes as those of enhanced packets, but this block has none for a
    // queue.
    timed_packet(interface.into(), body)
        .map(|(packet, ticks)| (Packet { queue: None, ..packet }, ticks))
}

/// The common part of enhanced and obsolete packets.
#[inline]
fn timed_packet(interface: u32, mut body: Fields<'_>) -> Option<BlockPacket> {
    let [high, low, captured_len, wire_len] = body.words()?;
    let place = body.place(padded(captured_len as usize))?;
    let data = place.start..place.start + captured_len as usize;
    let mut packet = Packet { interface, wire_len, data, ..Packet::default() };
    // Like libpcap, which ignores all options of packets, the reader ignores those after an invalid
    // one.
    let _ = for_each_option(body, |code, mut value| match code {
        option::EPB_FLAGS => packet.direction = value.u32().and_then(flags_direction),
        option::EPB_QUEUE => packet.queue = value.u32(),
        _ => {}
    });
    Some((packet, Some(ticks_of_words([high, low]))))
}

/// This block has no captured length; it follows from the interface's `snap_len`.
fn simple_packet(mut body: Fields<'_>, interfaces: &[Interface]) -> Option<BlockPacket> {
    let wire_len = body.u32()?;
    let snap_len = interfaces.first().map_or(0, |interface| interface.snap_len);
    let captured_len = if snap_len == 0 { wire_len } else { wire_len.min(snap_len) };
    let data = body.place(captured_len as usize)?;
    Some((Packet { wire_len, data, ..Packet::default() }, None))
}

fn flags_direction(flags: u32) -> Option<Direction> {
    match flags & 3 {
        1 => Some(Direction::Inbound),
        2 => Some(Direction::Outbound),
        _ => None,
    }
}

fn section(mut body: Fields<'_>) -> Option<Result<Section, Problem>> {
    let _byte_order_magic = body.u32()?;
    let major = body.u16()?;
    let minor = body.u16()?;

    // Like libpcap: some programs wrote 1.2 for 1.0.
    if !matches!((major, minor), (1, 0 | 2)) {
        return Some(Err(format!("the section has pcapng version {major}.{minor}, not 1.0")));
    }

    let _section_len = body.u64()?; // Often unknown, and not needed.
    let mut section = Section::default();

    let _ = for_each_option(body, |code, value| match code {
        option::COMMENT => section.comment = Some(text(value)),
        option::SHB_HARDWARE => section.hardware = Some(text(value)),
        option::SHB_OS => section.os = Some(text(value)),
        option::SHB_USERAPPL => section.application = Some(text(value)),
        _ => {}
    });
    Some(Ok(section))
}

fn interface(mut body: Fields<'_>, texts: &mut Texts) -> Option<(Interface, Clock)> {
    let link_type = LinkType(body.u16()?);
    let _reserved = body.u16()?;
    let mut interface = Interface { link_type, snap_len: body.u32()?, ..Interface::default() };
    let mut clock = Clock::default();

    for_each_option(body, |code, mut value| match code {
        option::COMMENT if value.rest().starts_with(TIME_SOURCE_PREFIX.as_bytes()) => {
            interface.time_source =
                interface.time_source.take().or_else(|| time_source(value, texts));
        }
        option::IF_NAME => interface.name = texts.take(value),
        option::IF_DESCRIPTION => interface.description = texts.take(value),
        option::IF_FILTER if value.u8() == Some(FILTER_IS_TEXT) => {
            interface.filter = texts.take(value);
        }
        option::IF_OS => interface.os = texts.take(value),
        option::IF_HARDWARE => interface.hardware = texts.take(value),
        option::IF_FCSLEN => interface.fcs_len = value.u8(),
        option::IF_TSRESOL => clock.unit = value.u8().map_or(clock.unit, Unit::of_tsresol),
        option::IF_TSOFFSET => clock.offset_s = value.u64().map_or(0, u64::cast_signed),
        // A compiled filter has instructions in the byte order of the section; no program reads it.
        option::IF_FILTER => {}
        _ if texts.take_option(value.rest()) => {
            let others = &mut interface.other_options;
            push_option(others, code, value.rest(), value.order(), number_of_interface(code));
        }
        _ => {}
    })?;

    Some((interface, clock))
}

/// The clock named by a comment of wirecap.
fn time_source(comment: Fields<'_>, texts: &mut Texts) -> Option<String> {
    if !comment.rest().starts_with(TIME_SOURCE_PREFIX.as_bytes()) {
        return None;
    }
    let comment = texts.take(comment)?;
    let name = comment.strip_prefix(TIME_SOURCE_PREFIX)?;
    (name != TIME_SOURCE_NONE).then(|| name.to_owned())
}

/// A text should be UTF-8 without a terminating zero, but some programs write neither correctly.
fn text(value: Fields<'_>) -> String {
    String::from_utf8_lossy(value.rest()).trim_end_matches('\0').to_owned()
}

/// Calls `each` with the code and value of every option; `None` if an option exceeds its block.
#[inline]
fn for_each_option<'a>(
    mut options: Fields<'a>,
    mut each: impl FnMut(u16, Fields<'a>),
) -> Option<()> {
    while !options.is_empty() {
        let code = options.u16()?;
        let len = usize::from(options.u16()?);
        if code == option::END {
            break;
        }
        let mut value = options.part(padded(len))?;
        each(code, value.part(len)?);
    }
    Some(())
}

/// Converts an interface's ticks to nanoseconds since the epoch.
#[derive(Debug, Clone, Copy)]
struct Clock {
    unit: Unit,
    offset_s: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// A tick is this many nanoseconds.
    Nanoseconds(u64),
    /// A nanosecond is this many ticks.
    NanosecondOver(u64),
    /// A second is two to the power of this number of ticks.
    SecondOverPowerOf2(u8),
}

impl Default for Clock {
    fn default() -> Self {
        Self { unit: Unit::of_tsresol(6), offset_s: 0 } // Microseconds, the default.
    }
}

impl Unit {
    /// The option's upper bit selects the base, the other bits are the negative exponent.
    fn of_tsresol(tsresol: u8) -> Self {
        let power = tsresol & 0x7f;
        match power {
            _ if tsresol != power => Self::SecondOverPowerOf2(power),
            0..=9 => Self::Nanoseconds(10_u64.pow(9 - u32::from(power))),
            // With ticks smaller than 10^-28 s, even the largest number of ticks is less than a
            // nanosecond.
            _ => 10_u64
                .checked_pow(u32::from(power) - 9)
                .map_or(Self::Nanoseconds(0), Self::NanosecondOver),
        }
    }

    fn nanos(self, ticks: u64) -> u128 {
        match self {
            Self::Nanoseconds(count) => u128::from(ticks) * u128::from(count),
            Self::NanosecondOver(divisor) => u128::from(ticks / divisor),
            Self::SecondOverPowerOf2(power) => (u128::from(ticks) * 1_000_000_000) >> power,
        }
    }
}

impl Clock {
    /// `None` for times before 1970 or after 2554, which [`Timestamp`] cannot represent.
    #[inline]
    fn timestamp(&self, ticks: u64) -> Option<Timestamp> {
        let nanos =
            self.unit.nanos(ticks).cast_signed() + i128::from(self.offset_s) * 1_000_000_000;
        u64::try_from(nanos).ok().map(Timestamp::from_unix_nanos)
    }
}
