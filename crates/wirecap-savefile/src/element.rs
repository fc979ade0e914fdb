//! What a copy of some packets of a pcapng file keeps besides the packets: their options, and
//! blocks that mean the same in any section. Both are converted to little-endian, the byte order of
//! written files.

use crate::fields::{ByteOrder, Fields};
use crate::pcapng::{
    CUSTOM, CUSTOM_NOT_COPIED, DECRYPTION_SECRETS, JOURNAL, NAME_RESOLUTION, option, padded,
};
use crate::{Interface, Record, Statistics};

/// A packet or another block.
#[derive(Debug, Clone, Copy)]
pub enum Element<'a> {
    /// A packet, its interface, and its options.
    Packet(Record<'a>, &'a Interface, PacketOptions<'a>),
    /// A pcapng block that is not a packet.
    Block(Block<'a>),
}

/// The options of a packet's block, as they are in the file. They include direction and queue.
#[derive(Debug, Clone, Copy)]
pub struct PacketOptions<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
}

impl<'a> PacketOptions<'a> {
    pub(crate) fn new(bytes: &'a [u8], order: ByteOrder) -> Self {
        Self { bytes, order }
    }

    /// The options for [`Writer::write_with_options`](crate::Writer::write_with_options), up to the
    /// first invalid one.
    pub fn to_little_endian(&self) -> Vec<u8> {
        options(self.bytes, self.order, number_of_packet)
    }
}

/// A pcapng block that is not a packet.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
    /// The counters of a block of statistics, and their interface.
    statistics: Option<(&'a Statistics, &'a Interface)>,
}

impl<'a> Block<'a> {
    pub(crate) fn new(
        bytes: &'a [u8],
        order: ByteOrder,
        statistics: Option<(&'a Statistics, &'a Interface)>,
    ) -> Self {
        Self { bytes, order, statistics }
    }

    /// The counters of a block of statistics, and their interface.
    pub fn statistics(&self) -> Option<(&'a Statistics, &'a Interface)> {
        self.statistics
    }

    /// The whole block, for [`Writer::write_block`](crate::Writer::write_block), if it means the
    /// same in any section: name resolution, decryption secrets, a journal entry, or a custom
    /// block. `None` for other blocks, and for an invalid one of another byte order.
    pub fn portable(&self) -> Option<Vec<u8>> {
        let mut body = Fields::new(self.bytes.get(..self.bytes.len() - 4)?, 0, self.order);
        let [block_type, _] = body.words()?;
        let is_portable = matches!(
            block_type,
            NAME_RESOLUTION | DECRYPTION_SECRETS | JOURNAL | CUSTOM | CUSTOM_NOT_COPIED
        );
        if !is_portable || self.order == ByteOrder::Little {
            return is_portable.then(|| self.bytes.to_vec());
        }

        let body = match block_type {
            NAME_RESOLUTION => name_resolution(body)?,
            DECRYPTION_SECRETS => secrets(body)?,
            // The number of the organization; only it knows what follows.
            CUSTOM | CUSTOM_NOT_COPIED => [&body.u32()?.to_le_bytes(), body.rest()].concat(),
            _ => body.rest().to_vec(),
        };
        let len = (body.len() as u32 + 12).to_le_bytes();
        Some([&block_type.to_le_bytes(), &len, &body[..], &len].concat())
    }
}

/// Records of names up to the one of type 0, then options.
fn name_resolution(mut body: Fields<'_>) -> Option<Vec<u8>> {
    let mut converted = Vec::new();

    loop {
        let record_type = body.u16()?;
        let len = body.u16()?;
        converted.extend(record_type.to_le_bytes());
        converted.extend(len.to_le_bytes());
        if record_type == 0 {
            break;
        }
        converted.extend_from_slice(body.bytes(padded(len.into()))?);
    }

    converted.extend(ended(options(body.rest(), body.order(), |_| 0)));
    Some(converted)
}

fn secrets(mut body: Fields<'_>) -> Option<Vec<u8>> {
    let [secrets_type, len] = body.words()?;
    let mut converted = [secrets_type.to_le_bytes(), len.to_le_bytes()].concat();
    converted.extend_from_slice(body.bytes(padded(len as usize))?);
    converted.extend(ended(options(body.rest(), body.order(), |_| 0)));
    Some(converted)
}

/// Options with their end, if there are any.
fn ended(mut options: Vec<u8>) -> Vec<u8> {
    if !options.is_empty() {
        options.extend([0; 4]);
    }
    options
}

/// Bytes of the number that a packet's option begins with: the flags, the number of lost packets,
/// the packet's identifier, the queue.
fn number_of_packet(code: u16) -> usize {
    match code {
        option::EPB_FLAGS | option::EPB_QUEUE => 4,
        option::EPB_DROP_COUNT | option::EPB_PACKET_ID => 8,
        _ => number_of_custom(code),
    }
}

/// The same for an interface: its speeds and its time zone.
pub(crate) fn number_of_interface(code: u16) -> usize {
    match code {
        option::IF_SPEED | option::IF_TXSPEED | option::IF_RXSPEED => 8,
        option::IF_TZONE => 4,
        _ => number_of_custom(code),
    }
}

/// A custom option begins with the number of the organization.
fn number_of_custom(code: u16) -> usize {
    if matches!(code, 2988 | 2989 | 19_372 | 19_373) { 4 } else { 0 }
}

/// The options in `bytes` up to the end or the first invalid one, in little-endian order, without
/// the end. `number_bytes` returns how many bytes of the value with this code are a number.
fn options(bytes: &[u8], order: ByteOrder, number_bytes: impl Fn(u16) -> usize) -> Vec<u8> {
    let mut fields = Fields::new(bytes, 0, order);
    let mut converted = Vec::new();
    while let (Some(code), Some(len)) = (fields.u16(), fields.u16()) {
        if code == option::END {
            break;
        }
        let Some(value) = fields.bytes(padded(len.into())) else { break };
        push_option(&mut converted, code, &value[..len.into()], order, number_bytes(code));
    }
    converted
}

/// Appends an option in little-endian order, whose value begins with a number of `number_bytes` in
/// `order`.
pub(crate) fn push_option(
    into: &mut Vec<u8>,
    code: u16,
    value: &[u8],
    order: ByteOrder,
    number_bytes: usize,
) {
    into.extend(code.to_le_bytes());
    into.extend((value.len() as u16).to_le_bytes());

    let start = into.len();
    into.extend_from_slice(value);

    if order == ByteOrder::Big
        && let Some(number) = into.get_mut(start..start + number_bytes)
    {
        number.reverse();
    }

    into.resize(padded(into.len()), 0);
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::order::{Big, Little, Order};
    use crate::{Format, Reader, Section, StreamSink, Writer};

    /// A section with everything that a copy keeps.
    fn section(order: Order) -> Vec<u8> {
        let interface = [
            order.option(2, b"eth0"),
            order.option(8, &order.u64(1_000_000_000)),
            order.option(1, b"uplink"),
            order.option(0, &[]),
        ];
        let names = [
            order.u16(1),
            order.u16(7),
            b"\x0a\0\0\x01a\0\0\0".to_vec(),
            order.u16(0),
            order.u16(0),
            order.option(1, b"a comment"),
            order.option(0, &[]),
        ];

        let options = [
            order.option(1, b"suspicious"),
            order.option(2, &order.u32(0x0001_0002)),
            order.option(4, &order.u64(3)),
            order.option(2989, &[order.u32(32_473), b"custom".to_vec()].concat()),
            order.option(0, &[]),
        ];
        let packet = [order.words(&[0, 0, 5, 4, 60]), b"data".to_vec(), options.concat()].concat();
        [
            order.section(),
            order.interface(1, 100, &interface.concat()),
            order.block(4, &names.concat()),
            order.block(10, &[order.words(&[0x544c_534b, 4]), b"keys".to_vec()].concat()),
            order.block(0x0bad, &[order.u32(32_473), b"what".to_vec()].concat()),
            order.block(9, b"A=b\n"),
            order.block(6, &packet),
            order.block(5, &order.words(&[0, 0, 6])),
        ]
        .concat()
    }

    /// Copies all elements, one by one.
    fn copy(file: Vec<u8>) -> Vec<u8> {
        let mut reader = Reader::from_start(Cursor::new(file)).unwrap();
        let mut writer =
            Writer::new(StreamSink::new(Vec::new(), "memory"), Format::Pcapng, &Section::default());
        let mut statistics = None;

        while let Some(element) = reader.next_element().unwrap() {
            match element {
                Element::Packet(record, interface, options) => {
                    writer.add_interface(interface).unwrap();
                    writer.write_with_options(&record, &options.to_little_endian()).unwrap();
                }
                Element::Block(block) => {
                    block
                        .portable()
                        .into_iter()
                        .for_each(|block| writer.write_block(&block).unwrap());
                    statistics = block.statistics().map(|(counts, _)| *counts).or(statistics);
                }
            }
        }

        writer.statistics(&statistics.unwrap()).unwrap();
        writer.finish().unwrap().into_inner()
    }

    #[test]
    fn what_a_copy_keeps_is_the_same_from_either_byte_order() {
        let copies = [Little, Big].map(|order| copy(section(order)));
        assert_eq!(copies[0], copies[1]);
        let kept: [&[u8]; 6] = [b"a comment", b"keys", b"what", b"A=b\n", b"suspicious", b"uplink"];
        for text in kept {
            assert!(copies[0].windows(text.len()).any(|window| window == text), "{text:?}");
        }
        // The copy of a copy has the same elements.
        assert_eq!(copy(copies[0].clone()), copies[0]);
    }

    #[test]
    fn blocks_that_are_cut_are_not_converted() {
        for order in [Little, Big] {
            for (block_type, body) in [
                (4, [order.u16(1), order.u16(100)].concat()),
                (10, order.words(&[1, 100])),
                (0x0bad, Vec::new()),
            ] {
                let block = order.block(block_type, &body);
                let byte_order = match order {
                    Little => ByteOrder::Little,
                    Big => ByteOrder::Big,
                };
                let portable = Block::new(&block, byte_order, None).portable();
                assert_eq!(portable.is_some(), matches!(order, Little), "{block_type}");
            }
        }
    }
}
