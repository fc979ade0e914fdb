//! An index as a Parquet file: version 1 of the schema, which `docs/index-format.md` describes.
//!
//! An index that cannot be read exactly as it was written is [`Damaged`], and none of its contents
//! are used: checksums cover everything that is read, and every number is checked against the
//! others.
//!
//! A search reads the footer, then Bloom filters. If these do not exclude all rows, it reads the
//! columns of addresses and ports, and then, of the other columns, the pages with rows that may
//! match.
//!
//! Bloom filters alone are not enough, because a filter such as `net 10.1.0.0/16 and not port 443`
//! contains no single value to look up: they exclude whole files first, then rows exclude pieces. A
//! checksum of the whole file would make each search read all indexes, and the page checksums that
//! Parquet defines do not cover Bloom filters. The crate `parquet` is used without Arrow, because
//! its low-level column writer compiles in a fraction of Arrow's time.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write as _};
use std::fs::File;
use std::net::IpAddr;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use parquet::basic::Compression;
use parquet::bloom_filter::Sbbf;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    KeyValue, PageIndexPolicy, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
    ParquetStatisticsPolicy, SortingColumn,
};
use parquet::file::properties::{
    EnabledStatistics, ReaderProperties, WriterProperties, WriterVersion,
};
use parquet::file::reader::RowGroupReader;
use parquet::file::serialized_reader::SerializedRowGroupReader;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, SchemaDescPtr, SchemaDescriptor};
use wirecap_savefile::{Format, LinkType};

use crate::blocks::{Blocks, Content, Damaged, NO_CHECKSUM, no_blocks, seal};
use crate::flow::{Ends, Flow, Fragment, Vlan};
use crate::identity::Identity;
use crate::row::{Index, Part, Row, Summary};
use crate::segment::Piece;

/// The schema's version.
pub const SCHEMA_VERSION: u32 = 1;

/// Rows of one row group.
const GROUP_ROWS: usize = 1 << 17;
/// Rows of one page, of which a search reads all if it needs one.
const PAGE_ROWS: usize = 1 << 10;
/// If at most this many rows are between two rows to be read, they are read, too.
const GAP_ROWS: usize = 16;
/// False-positive rate of the Bloom filters.
const FALSE_POSITIVES: f64 = 0.01;
/// The maximum number of layouts; an index with more has no list of them.
const LAYOUTS_MAX: usize = 64;

/// The columns, in the order of the constants below.
const SCHEMA: &str = "
message flows {
  required int64 flow (INTEGER(64,false));
  required int64 first (TIMESTAMP(NANOS,true));
  required int64 last (TIMESTAMP(NANOS,true));
  required int32 interface (INTEGER(32,false));
  optional binary interface_name (STRING);
  required int32 link_type (INTEGER(16,false));
  optional int32 vlan_type (INTEGER(16,false));
  optional int32 vlan (INTEGER(16,false));
  optional int32 inner_vlan_type (INTEGER(16,false));
  optional int32 inner_vlan (INTEGER(16,false));
  optional int32 ether_type (INTEGER(16,false));
  optional binary src_addr (STRING);
  optional binary dst_addr (STRING);
  optional int32 protocol (INTEGER(8,false));
  optional int32 next_header (INTEGER(8,false));
  required int32 fragment (INTEGER(8,false));
  optional int32 transport_offset (INTEGER(16,false));
  optional int32 src_port (INTEGER(16,false));
  optional int32 dst_port (INTEGER(16,false));
  required int64 packets (INTEGER(64,false));
  required int64 bytes (INTEGER(64,false));
  required int32 captured_max (INTEGER(32,false));
  required int32 wire_min (INTEGER(32,false));
  required int32 wire_max (INTEGER(32,false));
  optional int32 tcp_flags (INTEGER(8,false));
  optional int32 tcp_flags_all (INTEGER(8,false));
  required int64 first_packet (INTEGER(64,false));
  required int64 last_packet (INTEGER(64,false));
  required group pieces (LIST) {
    repeated group list {
      required group element {
        required int64 offset (INTEGER(64,false));
        required int32 packets (INTEGER(32,false));
        optional int32 tcp_flags (INTEGER(8,false));
        optional int32 tcp_flags_all (INTEGER(8,false));
      }
    }
  }
}";

const SRC_ADDR: usize = 11;
const DST_ADDR: usize = 12;
const SRC_PORT: usize = 17;
const DST_PORT: usize = 18;
/// The first column of parts.
const PIECES: usize = 28;

/// Columns in which few values occur twice. They have no dictionary, which a search would have to
/// read in addition.
const DISTINCT: [&str; 6] = ["flow", "first", "last", "bytes", "first_packet", "last_packet"];

mod key {
    pub(super) const SCHEMA: &str = "wirecap.schema";
    pub(super) const SEGMENT_BYTES: &str = "wirecap.segment_bytes";
    pub(super) const SEGMENT_FINGERPRINT: &str = "wirecap.segment_fingerprint";
    pub(super) const SEGMENT_MODIFIED: &str = "wirecap.segment_modified";
    pub(super) const FORMAT: &str = "wirecap.format";
    pub(super) const PACKETS: &str = "wirecap.packets";
    pub(super) const BYTES: &str = "wirecap.bytes";
    pub(super) const INTERFACES: &str = "wirecap.interfaces";
    pub(super) const LAYOUTS: &str = "wirecap.layouts";
    pub(super) const PIECES: &str = "wirecap.pieces";
    pub(super) const BLOCKS: &str = "wirecap.blocks";
    pub(super) const CHECKSUM: &str = "wirecap.checksum";
}

static COLUMNS: LazyLock<SchemaDescPtr> = LazyLock::new(|| {
    let schema = parse_message_type(SCHEMA).expect("the schema is well-formed");
    Arc::new(SchemaDescriptor::new(Arc::new(schema)))
});

/// How a footer is read: the columns are those of the version, and their statistics are for other
/// engines.
static FOOTER: LazyLock<ParquetMetaDataOptions> = LazyLock::new(|| {
    ParquetMetaDataOptions::new()
        .with_schema(Arc::clone(&COLUMNS))
        .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_encoding_stats_policy(ParquetStatisticsPolicy::SkipAll)
        .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll)
});

/// Encodes the index as a file.
///
/// # Errors
///
/// If the Parquet library fails.
pub(crate) fn write(index: &Index) -> Result<Vec<u8>, ParquetError> {
    let sorting = [0, 1].map(|column_idx| SortingColumn {
        column_idx,
        descending: false,
        nulls_first: false,
    });
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_sorting_columns(Some(sorting.to_vec()))
        .set_created_by(concat!("wirecap ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(metadata(index)));

    // Maximum size of a filter; the library reduces it to the size that its values need.
    let values_max = index.rows.len().clamp(64, GROUP_ROWS) as u64;

    for name in ["flow", "src_addr", "dst_addr", "src_port", "dst_port"] {
        let column = ColumnPath::from(name);
        properties = properties
            .set_column_bloom_filter_enabled(column.clone(), true)
            .set_column_bloom_filter_fpp(column.clone(), FALSE_POSITIVES)
            .set_column_bloom_filter_max_ndv(column, values_max);
    }

    let is_source_distinct = is_distinct(index.rows.iter().map(|row| row.flow.source));
    let is_destination_distinct = is_distinct(index.rows.iter().map(|row| row.flow.destination));
    let addresses = [("src_addr", is_source_distinct), ("dst_addr", is_destination_distinct)];
    let addresses =
        addresses.into_iter().filter_map(|(name, is_distinct)| is_distinct.then_some(name));
    for name in DISTINCT.into_iter().chain(addresses) {
        properties = properties.set_column_dictionary_enabled(ColumnPath::from(name), false);
    }

    let properties = Arc::new(properties.build());
    let mut writer = SerializedFileWriter::new(Vec::new(), COLUMNS.root_schema_ptr(), properties)?;

    for rows in index.rows.chunks(GROUP_ROWS) {
        let mut group = writer.next_row_group()?;
        write_group(&mut group, rows, index)?;
        group.close()?;
    }

    let mut file = writer.into_inner()?;
    seal(&mut file)
        .ok_or_else(|| ParquetError::General("the footer has no checksums".to_owned()))?;

    Ok(file)
}

/// Whether more than a quarter of the values are distinct.
fn is_distinct(addresses: impl ExactSizeIterator<Item = Option<IpAddr>>) -> bool {
    let count = addresses.len();
    4 * addresses.collect::<HashSet<_>>().len() > count
}

fn metadata(index: &Index) -> Vec<KeyValue> {
    let Summary { identity, format, packets, wire_bytes, interfaces: named, pieces: parts } =
        &index.summary;
    let Identity { bytes, fingerprint, modified } = identity;
    let mut interfaces = String::new();

    for (name, link_type) in named {
        let name = name.as_deref().unwrap_or_default();
        let _ = writeln!(interfaces, "{} {name}", link_type.0);
    }

    let mut pieces = String::new();

    for piece in parts {
        let Piece {
            offset,
            bytes,
            begin,
            len,
            first_packet,
            packets,
            earliest,
            latest,
            has_context,
        } = piece;
        let context = u8::from(*has_context);
        let _ = writeln!(
            pieces,
            "{offset} {bytes} {begin} {len} {first_packet} {packets} {earliest} {latest} {context}"
        );
    }

    let pair = |key: &str, value: String| KeyValue::new(key.to_owned(), value);
    vec![
        pair(key::SCHEMA, SCHEMA_VERSION.to_string()),
        pair(key::SEGMENT_BYTES, bytes.to_string()),
        pair(key::SEGMENT_FINGERPRINT, format!("{fingerprint:016x}")),
        pair(key::SEGMENT_MODIFIED, modified.to_string()),
        pair(key::FORMAT, if *format == Format::Pcap { "pcap" } else { "pcapng" }.to_owned()),
        pair(key::PACKETS, packets.to_string()),
        pair(key::BYTES, wire_bytes.to_string()),
        pair(key::INTERFACES, interfaces),
        pair(key::LAYOUTS, layouts(&index.rows)),
        pair(key::PIECES, pieces),
        pair(key::BLOCKS, no_blocks()),
        pair(key::CHECKSUM, NO_CHECKSUM.to_owned()),
    ]
}

/// The layouts of all rows, one per line: numbers as in the columns; 4, 6 or 0 for the addresses; 1
/// if there are ports; the lengths. `-` means none.
fn layouts(rows: &[Row]) -> String {
    let mut distinct: Vec<Layout> = Vec::new();

    for row in rows {
        let flow = row.flow.layout();
        match distinct.iter().position(|layout| layout.flow == flow) {
            Some(place) => distinct[place].add(row),
            None if distinct.len() == LAYOUTS_MAX => return String::new(),
            None => {
                let mut layout = Layout { flow, captured_max: 0, wire_min: u32::MAX, wire_max: 0 };
                layout.add(row);
                distinct.push(layout);
            }
        }
    }

    let mut text = String::new();

    for Layout { flow, captured_max, wire_min, wire_max } in distinct {
        let optional =
            |number: Option<u16>| number.map_or("-".to_owned(), |number| number.to_string());
        let version = |address: Option<IpAddr>| match address {
            None => 0,
            Some(IpAddr::V4(_)) => 4,
            Some(IpAddr::V6(_)) => 6,
        };
        let _ = writeln!(
            text,
            "{} {} {} {} {} {} {} {} {} {} {} {captured_max} {wire_min} {wire_max}",
            flow.link_type.0,
            optional(flow.vlans[0].map(|vlan| vlan.tpid)),
            optional(flow.vlans[0].map(|vlan| vlan.id)),
            optional(flow.vlans[1].map(|vlan| vlan.tpid)),
            optional(flow.vlans[1].map(|vlan| vlan.id)),
            optional(flow.ether_type),
            version(flow.source),
            version(flow.destination),
            flow.fragment as u8,
            optional(flow.transport_offset),
            u8::from(flow.ports.is_some()),
        );
    }

    text
}

/// Rows whose packets have the same layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    pub(crate) flow: Flow,
    pub(crate) captured_max: u32,
    pub(crate) wire_min: u32,
    pub(crate) wire_max: u32,
}

impl Layout {
    fn add(&mut self, row: &Row) {
        self.captured_max = self.captured_max.max(row.captured_max);
        self.wire_min = self.wire_min.min(row.wire_min);
        self.wire_max = self.wire_max.max(row.wire_max);
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let mut number = || fields.next()?.parse::<u32>().ok();
        let link_type = LinkType(u16::try_from(number()?).ok()?);

        let mut optional = || match fields.next()? {
            "-" => Some(None),
            number => number.parse::<u16>().ok().map(Some),
        };
        let outer = (optional()?, optional()?);
        let inner = (optional()?, optional()?);
        let ether_type = optional()?;

        let address = |version: Option<u16>| match version? {
            0 => Some(None),
            4 => Some(Some(IpAddr::from([0; 4]))),
            6 => Some(Some(IpAddr::from([0; 16]))),
            _ => None,
        };
        let source = address(optional()?)?;
        let destination = address(optional()?)?;
        let fragment = fragment(optional()??.into())?;
        let transport_offset = optional()?;
        let ports = (optional()?? != 0).then_some((0, 0));
        let mut number = || fields.next()?.parse::<u32>().ok();
        let captured_max = number()?;
        let wire_min = number()?;
        let wire_max = number()?;
        let vlan = |(tpid, id): (Option<u16>, Option<u16>)| Some(Vlan { tpid: tpid?, id: id? });
        let vlans = [vlan(outer), vlan(inner)];

        let flow = Flow {
            link_type,
            vlans,
            ether_type,
            source,
            destination,
            fragment,
            transport_offset,
            ports,
            ..Flow::default()
        };
        (wire_min <= wire_max).then_some(Self { flow, captured_max, wire_min, wire_max })
    }
}

fn fragment(number: u32) -> Option<Fragment> {
    Some(match number {
        0 => Fragment::None,
        1 => Fragment::First,
        2 => Fragment::Later,
        _ => return None,
    })
}

fn text_of(address: Option<IpAddr>) -> Option<ByteArray> {
    address.map(|address| ByteArray::from(address.to_string().into_bytes()))
}

fn write_group(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    rows: &[Row],
    index: &Index,
) -> Result<(), ParquetError> {
    let mut columns = Columns { group };
    let vlan = |row: &Row, place: usize| row.flow.vlans[place];
    columns.longs(rows.iter().map(|row| row.flow.number()))?;
    columns.longs(rows.iter().map(|row| row.first))?;
    columns.longs(rows.iter().map(|row| row.last))?;
    columns.numbers(rows.iter().map(|row| row.interface))?;

    let Summary { interfaces, pieces, .. } = &index.summary;
    let names: Vec<Option<ByteArray>> = interfaces
        .iter()
        .map(|(name, _)| name.as_ref().map(|name| ByteArray::from(name.clone().into_bytes())))
        .collect();
    columns.texts(rows.iter().map(|row| names.get(row.interface as usize).cloned().flatten()))?;
    columns.numbers(rows.iter().map(|row| u32::from(row.flow.link_type.0)))?;
    columns.optional(rows.iter().map(|row| vlan(row, 0).map(|vlan| vlan.tpid.into())))?;
    columns.optional(rows.iter().map(|row| vlan(row, 0).map(|vlan| vlan.id.into())))?;
    columns.optional(rows.iter().map(|row| vlan(row, 1).map(|vlan| vlan.tpid.into())))?;
    columns.optional(rows.iter().map(|row| vlan(row, 1).map(|vlan| vlan.id.into())))?;
    columns.optional(rows.iter().map(|row| row.flow.ether_type.map(u32::from)))?;
    columns.texts(rows.iter().map(|row| text_of(row.flow.source)))?;
    columns.texts(rows.iter().map(|row| text_of(row.flow.destination)))?;
    columns.optional(rows.iter().map(|row| row.flow.protocol.map(u32::from)))?;
    columns.optional(rows.iter().map(|row| row.flow.next_header.map(u32::from)))?;
    columns.numbers(rows.iter().map(|row| row.flow.fragment as u32))?;
    columns.optional(rows.iter().map(|row| row.flow.transport_offset.map(u32::from)))?;
    columns.optional(rows.iter().map(|row| row.flow.ports.map(|(source, _)| source.into())))?;
    columns.optional(
        rows.iter().map(|row| row.flow.ports.map(|(_, destination)| destination.into())),
    )?;
    columns.longs(rows.iter().map(|row| row.packets))?;
    columns.longs(rows.iter().map(|row| row.bytes))?;
    columns.numbers(rows.iter().map(|row| row.captured_max))?;
    columns.numbers(rows.iter().map(|row| row.wire_min))?;
    columns.numbers(rows.iter().map(|row| row.wire_max))?;
    columns.optional(rows.iter().map(|row| row.tcp_flags.map(|(any, _)| any.into())))?;
    columns.optional(rows.iter().map(|row| row.tcp_flags.map(|(_, all)| all.into())))?;
    columns.longs(rows.iter().map(|row| row.first_packet))?;
    columns.longs(rows.iter().map(|row| row.last_packet))?;

    let parts = || rows.iter().flat_map(|row| row.parts.iter());
    let repetitions: Vec<i16> = rows
        .iter()
        .flat_map(|row| (0..row.parts.len()).map(|place| i16::from(place > 0)))
        .collect();
    let definitions = vec![1; repetitions.len()];
    let offsets: Vec<i64> =
        parts().map(|part| pieces[part.piece as usize].offset.cast_signed()).collect();
    columns.write::<Int64Type>(&offsets, Some(&definitions), Some(&repetitions))?;

    let packets: Vec<i32> = parts().map(|part| part.packets.cast_signed()).collect();
    columns.write::<Int32Type>(&packets, Some(&definitions), Some(&repetitions))?;

    let definitions: Vec<i16> =
        parts().map(|part| 1 + i16::from(part.tcp_flags.is_some())).collect();
    let (any, all): (Vec<i32>, Vec<i32>) = parts()
        .filter_map(|part| part.tcp_flags)
        .map(|(any, all)| (i32::from(any), i32::from(all)))
        .unzip();
    columns.write::<Int32Type>(&any, Some(&definitions), Some(&repetitions))?;

    columns.write::<Int32Type>(&all, Some(&definitions), Some(&repetitions))
}

/// Writes columns in order.
struct Columns<'a, 'b> {
    group: &'a mut SerializedRowGroupWriter<'b, Vec<u8>>,
}

impl Columns<'_, '_> {
    fn longs(&mut self, values: impl Iterator<Item = u64>) -> Result<(), ParquetError> {
        let values: Vec<i64> = values.map(u64::cast_signed).collect();
        self.write::<Int64Type>(&values, None, None)
    }

    fn numbers(&mut self, values: impl Iterator<Item = u32>) -> Result<(), ParquetError> {
        let values: Vec<i32> = values.map(u32::cast_signed).collect();
        self.write::<Int32Type>(&values, None, None)
    }

    fn optional(&mut self, values: impl Iterator<Item = Option<u32>>) -> Result<(), ParquetError> {
        let values: Vec<Option<u32>> = values.collect();
        let definitions: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
        let values: Vec<i32> = values.into_iter().flatten().map(u32::cast_signed).collect();
        self.write::<Int32Type>(&values, Some(&definitions), None)
    }

    fn texts(
        &mut self,
        values: impl Iterator<Item = Option<ByteArray>>,
    ) -> Result<(), ParquetError> {
        let values: Vec<Option<ByteArray>> = values.collect();
        let definitions: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
        let values: Vec<ByteArray> = values.into_iter().flatten().collect();
        self.write::<ByteArrayType>(&values, Some(&definitions), None)
    }

    fn write<T: DataType>(
        &mut self,
        values: &[T::T],
        definitions: Option<&[i16]>,
        repetitions: Option<&[i16]>,
    ) -> Result<(), ParquetError> {
        let mut column = self.group.next_column()?.expect("the schema has as many columns");
        column.typed::<T>().write_batch(values, definitions, repetitions)?;
        column.close()
    }
}

/// An index file whose rows have not been read yet.
pub struct Table {
    blocks: Arc<Blocks>,
    metadata: ParquetMetaData,
    pub(crate) summary: Summary,
    /// `None` if there were too many.
    pub(crate) layouts: Option<Vec<Layout>>,
}

impl Table {
    /// Reads the metadata of an index file, and checks the whole file.
    ///
    /// # Errors
    ///
    /// [`Damaged`] if the file is not a valid index.
    pub fn open(file: impl Into<Bytes>) -> Result<Self, Damaged> {
        Self::of(Content::InMemory(file.into()))?.checked()
    }

    /// Reads the metadata of an index file. The rest is checked when it is read.
    pub(crate) fn open_file(file: File, bytes: u64) -> Result<Self, Damaged> {
        Self::of(Content::OnDisk { file: Arc::new(file), bytes })
    }

    /// Reads the whole file and verifies its checksums, but not that its rows match each other.
    pub(crate) fn checked(self) -> Result<Self, Damaged> {
        Ok(Self { blocks: Arc::new(self.blocks.checked()?), ..self })
    }

    fn of(content: Content) -> Result<Self, Damaged> {
        let (footer, body) = content.footer()?;
        unpanicked(move || Self::of_footer(content, &footer, body))
    }

    /// The footer begins at `body`.
    fn of_footer(content: Content, footer: &[u8], body: u64) -> Result<Self, Damaged> {
        let damaged = |text: &str| Damaged(text.to_owned());
        let parquet = ParquetMetaDataReader::decode_metadata_with_options(footer, Some(&FOOTER))?;
        let metadata = parquet.file_metadata();

        let value = |key: &str| {
            let pairs = metadata.key_value_metadata().into_iter().flatten();
            let value = pairs.filter(|pair| pair.key == key).find_map(|pair| pair.value.as_deref());
            value.ok_or_else(|| Damaged(format!("it has no {key}")))
        };
        let number = |key: &str| {
            value(key)?.parse::<u64>().map_err(|_| Damaged(format!("its {key} is not a number")))
        };
        let version = number(key::SCHEMA)?;
        if version != u64::from(SCHEMA_VERSION) {
            return Err(Damaged(format!("its schema has version {version}, not {SCHEMA_VERSION}")));
        }

        let identity = Identity {
            bytes: number(key::SEGMENT_BYTES)?,
            fingerprint: u64::from_str_radix(value(key::SEGMENT_FINGERPRINT)?, 16)
                .map_err(|_| damaged("the segment's fingerprint is not a number"))?,
            modified: value(key::SEGMENT_MODIFIED)?
                .parse()
                .map_err(|_| damaged("the segment's time is not a number"))?,
        };
        let format = match value(key::FORMAT)? {
            "pcap" => Format::Pcap,
            "pcapng" => Format::Pcapng,
            _ => return Err(damaged("the segment's format is not known")),
        };

        let interfaces = value(key::INTERFACES)?.lines().map(interface).collect::<Option<_>>();
        let layouts = value(key::LAYOUTS)?;
        let layouts: Option<Vec<Layout>> = match layouts.is_empty() {
            true => None,
            false => Some(
                layouts
                    .lines()
                    .map(Layout::parse)
                    .collect::<Option<_>>()
                    .ok_or_else(|| damaged("its layouts are invalid"))?,
            ),
        };

        let pieces = pieces(value(key::PIECES)?);
        let summary = Summary {
            identity,
            format,
            packets: number(key::PACKETS)?,
            wire_bytes: number(key::BYTES)?,
            interfaces: interfaces.ok_or_else(|| damaged("its interfaces are invalid"))?,
            pieces: pieces.ok_or_else(|| damaged("its pieces are invalid"))?,
        };

        let blocks = Arc::new(Blocks::new(content, body, value(key::BLOCKS)?.to_owned()));
        let table = Self { blocks, metadata: parquet, summary, layouts };
        table.check_pieces()?;

        Ok(table)
    }

    /// Checks that the pieces fit the segment and each other.
    fn check_pieces(&self) -> Result<(), Damaged> {
        let mut offset = 0;
        let mut begin = 0;
        let mut packets = 0;

        for piece in &self.summary.pieces {
            let is_next = piece.offset >= offset
                && piece.begin == begin
                && (piece.packets == 0 || piece.first_packet == packets);
            let end = piece.offset.checked_add(piece.bytes);
            let expanded = begin.checked_add(piece.len);
            let (Some(end), Some(expanded), true) = (end, expanded, is_next) else {
                return Err(Damaged("its pieces are not consecutive".to_owned()));
            };
            (offset, begin) = (end, expanded);
            packets = packets.saturating_add(piece.packets);
        }

        if offset > self.summary.identity.bytes || packets != self.summary.packets {
            return Err(Damaged("its pieces do not match its segment".to_owned()));
        }

        Ok(())
    }

    /// Reads the whole index.
    ///
    /// # Errors
    ///
    /// [`Damaged`] if the file is not a valid index.
    pub fn index(self) -> Result<Index, Damaged> {
        let index = self.index_where(&[], &mut |_| Ok::<_, Damaged>(true))?;
        let packets = index.rows.iter().map(|row| row.packets).fold(0, u64::saturating_add);
        let bytes = index.rows.iter().map(|row| row.bytes).fold(0, u64::saturating_add);
        match (packets, bytes) == (index.summary.packets, index.summary.wire_bytes) {
            true => Ok(index),
            false => Err(Damaged("its rows do not match its segment".to_owned())),
        }
    }

    /// Reads the rows that meet one alternative of each condition, and for which `may_match`
    /// returns `true`; it gets rows without parts.
    pub(crate) fn index_where<E: From<Damaged>>(
        self,
        conditions: &[Vec<Wanted>],
        may_match: &mut dyn FnMut(&Row) -> Result<bool, E>,
    ) -> Result<Index, E> {
        // Without conditions all rows are read.
        let table = if conditions.is_empty() { self.checked()? } else { self };
        let rows = unpanicked(|| -> Result<Vec<Row>, E> {
            let count = table.metadata.file_metadata().num_rows();
            if u64::try_from(count).is_ok_and(|count| count > table.summary.packets) {
                return Err(Damaged("it has more rows than packets".to_owned()).into());
            }

            let mut groups = Vec::new();

            for group in 0..table.metadata.num_row_groups() {
                if table.may_have(group, conditions)? {
                    groups.push(group);
                }
            }

            let mut rows = Vec::new();
            if groups.is_empty() {
                return Ok(rows);
            }

            let metadata = table.metadata_with_pages()?;

            for group in groups {
                let group = table.group(&metadata, group)?;
                let ranges = select(&group, conditions)?;
                let mut kept = Vec::new();

                for (place, row) in
                    ranges.iter().cloned().flatten().zip(table.read_rows(&group, &ranges)?)
                {
                    if may_match(&row)? {
                        kept.push((place, row));
                    }
                }

                table.read_parts(&group, &mut kept)?;
                rows.extend(kept.into_iter().map(|(_, row)| row));
            }

            Ok(rows)
        })?;
        Ok(Index { summary: table.summary, rows })
    }

    /// The metadata with the offsets of pages.
    fn metadata_with_pages(&self) -> Result<ParquetMetaData, Damaged> {
        let mut reader = ParquetMetaDataReader::new_with_metadata(self.metadata.clone())
            .with_offset_index_policy(PageIndexPolicy::Required);
        reader.read_page_indexes(&*self.blocks)?;
        Ok(reader.finish()?)
    }

    fn group<'a>(
        &self,
        metadata: &'a ParquetMetaData,
        group: usize,
    ) -> Result<SerializedRowGroupReader<'a, Blocks>, Damaged> {
        let pages = metadata.offset_index().map(|groups| &*groups[group]);
        let properties = Arc::new(ReaderProperties::builder().build());
        Ok(SerializedRowGroupReader::new(
            Arc::clone(&self.blocks),
            metadata.row_group(group),
            pages,
            properties,
        )?)
    }

    /// Whether rows of a group may meet the conditions, by their Bloom filters.
    fn may_have(&self, group: usize, conditions: &[Vec<Wanted>]) -> Result<bool, Damaged> {
        let mut filters = Filters { table: self, group, read: BTreeMap::new() };
        for alternatives in conditions {
            let mut is_possible = false;
            for wanted in alternatives {
                is_possible = is_possible || filters.may_have(wanted)?;
            }
            if !is_possible {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads rows of a group, without their parts.
    fn read_rows(
        &self,
        group: &dyn RowGroupReader,
        ranges: &[Range<usize>],
    ) -> Result<Vec<Row>, Damaged> {
        let inconsistent = || Damaged("a row contradicts the others".to_owned());
        let mut input = Input { group, ranges, column: 0 };
        let flow_numbers = input.longs()?;
        let first = input.longs()?;
        let last = input.longs()?;
        let interface = input.numbers()?;

        input.skip();
        let link_type = input.numbers()?;
        let vlan_type =
            [(input.optional()?, input.optional()?), (input.optional()?, input.optional()?)];
        let ether_type = input.optional()?;
        let source = input.addresses()?;
        let destination = input.addresses()?;
        let protocol = input.optional()?;
        let next_header = input.optional()?;
        let fragments = input.numbers()?;
        let transport_offset = input.optional()?;
        let source_port = input.optional()?;
        let destination_port = input.optional()?;
        let packets = input.longs()?;
        let bytes = input.longs()?;
        let captured_max = input.numbers()?;
        let wire_min = input.numbers()?;
        let wire_max = input.numbers()?;
        let flags_any = input.optional()?;
        let flags_all = input.optional()?;
        let first_packet = input.longs()?;
        let last_packet = input.longs()?;
        let mut rows = Vec::with_capacity(flow_numbers.len());

        let word = |value: Option<u32>| match value {
            None => Some(None),
            Some(value) => u16::try_from(value).ok().map(Some),
        };
        let byte = |value: Option<u32>| match value {
            None => Some(None),
            Some(value) => u8::try_from(value).ok().map(Some),
        };

        for place in 0..flow_numbers.len() {
            let read = || -> Option<Row> {
                let mut vlans = [None; 2];
                for (vlan, (tpid, id)) in vlans.iter_mut().zip(&vlan_type) {
                    *vlan = match (word(tpid[place])?, word(id[place])?) {
                        (Some(tpid), Some(id)) => Some(Vlan { tpid, id }),
                        (None, None) => None,
                        _ => return None,
                    };
                }

                let flow = Flow {
                    link_type: LinkType(u16::try_from(link_type[place]).ok()?),
                    vlans,
                    ether_type: word(ether_type[place])?,
                    source: source[place],
                    destination: destination[place],
                    protocol: byte(protocol[place])?,
                    next_header: byte(next_header[place])?,
                    fragment: fragment(fragments[place])?,
                    transport_offset: word(transport_offset[place])?,
                    ports: word(source_port[place])?.zip(word(destination_port[place])?),
                };
                (flow.number() == flow_numbers[place]).then_some(())?;

                Some(Row {
                    flow,
                    interface: interface[place],
                    first: first[place],
                    last: last[place],
                    packets: packets[place],
                    bytes: bytes[place],
                    captured_max: captured_max[place],
                    wire_min: wire_min[place],
                    wire_max: wire_max[place],
                    tcp_flags: byte(flags_any[place])?.zip(byte(flags_all[place])?),
                    first_packet: first_packet[place],
                    last_packet: last_packet[place],
                    parts: Vec::new(),
                })
            };
            let row = read().ok_or_else(inconsistent)?;
            let is_sound = row.first <= row.last
                && row.wire_min <= row.wire_max
                && row.first_packet <= row.last_packet
                && row.last_packet < self.summary.packets
                && (row.interface as usize) < self.summary.interfaces.len();
            if !is_sound {
                return Err(inconsistent());
            }

            rows.push(row);
        }

        Ok(rows)
    }

    /// Reads the parts of rows, which are at these places of the group.
    fn read_parts(
        &self,
        group: &dyn RowGroupReader,
        found: &mut [(usize, Row)],
    ) -> Result<(), Damaged> {
        let inconsistent = || Damaged("a row contradicts the others".to_owned());
        let ranges = ranges(found.iter().map(|(place, _)| *place), 0);
        let mut input = Input { group, ranges: &ranges, column: PIECES };
        let (offsets, _, repetitions) = input.read::<Int64Type>()?;
        let (counts, _, count_repetitions) = input.read::<Int32Type>()?;
        let (any, any_definitions, any_repetitions) = input.read::<Int32Type>()?;
        let (all, all_definitions, all_repetitions) = input.read::<Int32Type>()?;
        let is_alike = [&count_repetitions, &any_repetitions, &all_repetitions]
            .iter()
            .all(|others| **others == repetitions)
            && [offsets.len(), counts.len()].iter().all(|len| *len == repetitions.len())
            && any_definitions == all_definitions
            && any_definitions.len() == repetitions.len();
        if !is_alike {
            return Err(inconsistent());
        }

        let mut rows = found.iter_mut().map(|(_, row)| row);
        let mut row = None;
        let mut flags = any.iter().zip(&all);

        for (place, repetition) in repetitions.iter().enumerate() {
            let tcp_flags = match any_definitions[place] {
                2 => {
                    let (any, all) = flags.next().ok_or_else(inconsistent)?;
                    let byte = |flags: i32| u8::try_from(flags).map_err(|_| inconsistent());
                    Some((byte(*any)?, byte(*all)?))
                }
                _ => None,
            };
            let piece = self.piece_at(offsets[place].cast_unsigned()).ok_or_else(inconsistent)?;

            if *repetition == 0 {
                row = rows.next();
            }

            let part = Part { piece, packets: counts[place].cast_unsigned(), tcp_flags };
            row.as_mut().ok_or_else(inconsistent)?.parts.push(part);
        }

        drop(rows);
        let counted = |row: &Row| row.parts.iter().map(|part| u64::from(part.packets)).sum::<u64>();
        match found.iter().all(|(_, row)| counted(row) == row.packets) {
            true => Ok(()),
            false => Err(inconsistent()),
        }
    }

    /// The number of the piece with packets that begins at this offset.
    fn piece_at(&self, offset: u64) -> Option<u32> {
        let pieces = &self.summary.pieces;
        let place = pieces.partition_point(|piece| piece.offset < offset);
        let same = pieces[place..].iter().take_while(|piece| piece.offset == offset);
        let ahead = same.enumerate().find(|(_, piece)| piece.packets > 0)?.0;
        u32::try_from(place + ahead).ok()
    }

    /// Size of the segment in bytes.
    pub fn segment_bytes(&self) -> u64 {
        self.summary.identity.bytes
    }

    /// The index without its rows.
    pub(crate) fn without_rows(self) -> Index {
        Index { summary: self.summary, rows: Vec::new() }
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("packets", &self.summary.packets).finish_non_exhaustive()
    }
}

/// Addresses and ports of rows that may match, as the columns have them.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wanted {
    pub(crate) source: Option<String>,
    pub(crate) destination: Option<String>,
    pub(crate) ports: (Option<u16>, Option<u16>),
    /// Whether the rows have no addresses.
    pub(crate) is_without_addresses: bool,
}

impl Wanted {
    pub(crate) fn of(ends: &Ends) -> Self {
        Self {
            source: ends.source.map(|address| address.to_string()),
            destination: ends.destination.map(|address| address.to_string()),
            ports: (ends.source_port, ends.destination_port),
            is_without_addresses: false,
        }
    }
}

/// The Bloom filters of a row group, each of which is read when it is needed.
struct Filters<'a> {
    table: &'a Table,
    group: usize,
    read: BTreeMap<usize, Option<Sbbf>>,
}

impl Filters<'_> {
    /// Whether a row may have these values; `true` is not certain.
    fn may_have(&mut self, wanted: &Wanted) -> Result<bool, Damaged> {
        Ok(self.may_have_address(SRC_ADDR, wanted.source.as_deref())?
            && self.may_have_address(DST_ADDR, wanted.destination.as_deref())?
            && self.may_have_port(SRC_PORT, wanted.ports.0)?
            && self.may_have_port(DST_PORT, wanted.ports.1)?)
    }

    fn may_have_address(&mut self, column: usize, address: Option<&str>) -> Result<bool, Damaged> {
        let Some(address) = address else { return Ok(true) };
        Ok(self.filter(column)?.is_none_or(|filter| filter.check(address)))
    }

    fn may_have_port(&mut self, column: usize, port: Option<u16>) -> Result<bool, Damaged> {
        let Some(port) = port else { return Ok(true) };
        Ok(self.filter(column)?.is_none_or(|filter| filter.check(&i32::from(port))))
    }

    fn filter(&mut self, column: usize) -> Result<Option<&Sbbf>, Damaged> {
        let filter = match self.read.entry(column) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let column = self.table.metadata.row_group(self.group).column(column);
                entry.insert(Sbbf::read_from_column_chunk(column, &*self.table.blocks)?)
            }
        };
        Ok(filter.as_ref())
    }
}

/// The rows of a group that may meet the conditions, and a few rows between them.
fn select(
    group: &dyn RowGroupReader,
    conditions: &[Vec<Wanted>],
) -> Result<Vec<Range<usize>>, Damaged> {
    let wanted = || conditions.iter().flatten();
    let all = 0..group.metadata().num_rows() as usize;
    let mut ranges: Vec<Range<usize>> = std::iter::once(all).collect();

    // Of most connections one port is rare, and numbers are read faster than addresses.
    if wanted().any(|wanted| wanted.ports != (None, None)) {
        let column = |column: usize| Input { group, ranges: &ranges, column }.optional();
        let sources = column(SRC_PORT)?;
        let destinations = column(DST_PORT)?;
        let is = |wanted: Option<u16>, port: Option<u32>| {
            wanted.is_none() || port == wanted.map(u32::from)
        };

        ranges = narrow(&ranges, conditions, |Wanted { ports, .. }, place| {
            is(ports.0, sources[place]) && is(ports.1, destinations[place])
        });
    }

    let is_about_addresses = |wanted: &Wanted| {
        wanted.source.is_some() || wanted.destination.is_some() || wanted.is_without_addresses
    };
    if wanted().any(is_about_addresses) {
        let column = |column: usize| Input { group, ranges: &ranges, column }.texts();
        let sources = column(SRC_ADDR)?;
        let destinations = column(DST_ADDR)?;

        let is = |wanted: &Option<String>, address: &Option<ByteArray>| {
            wanted.is_none()
                || wanted.as_ref().map(String::as_bytes) == address.as_ref().map(ByteArray::data)
        };
        ranges = narrow(&ranges, conditions, |wanted, place| {
            let source = &sources[place];
            let destination = &destinations[place];
            match wanted.is_without_addresses {
                true => source.is_none() && destination.is_none(),
                false => is(&wanted.source, source) && is(&wanted.destination, destination),
            }
        });
    }

    Ok(ranges)
}

/// Those rows of the ranges for which `has` is true for one alternative of each condition, and a
/// few rows between them. `has` gets the position of a row among the rows of the ranges.
fn narrow(
    rows: &[Range<usize>],
    conditions: &[Vec<Wanted>],
    has: impl Fn(&Wanted, usize) -> bool,
) -> Vec<Range<usize>> {
    let is_met = |place: usize| {
        conditions.iter().all(|wanted| wanted.iter().any(|wanted| has(wanted, place)))
    };
    let met = rows.iter().cloned().flatten().enumerate().filter(|(place, _)| is_met(*place));
    ranges(met.map(|(_, row)| row), GAP_ROWS)
}

/// The ranges of these places, without gaps of up to `gap` places.
fn ranges(places: impl Iterator<Item = usize>, gap: usize) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for place in places {
        match ranges.last_mut() {
            Some(range) if place <= range.end + gap => range.end = place + 1,
            _ => ranges.push(place..place + 1),
        }
    }
    ranges
}

/// Calls `read`; a panic of the Parquet library becomes an error.
fn unpanicked<T, E: From<Damaged>>(read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(Damaged("it cannot be read".to_owned()).into()))
}

fn interface(line: &str) -> Option<(Option<String>, LinkType)> {
    let (link_type, name) = line.split_once(' ')?;
    Some(((!name.is_empty()).then(|| name.to_owned()), LinkType(link_type.parse().ok()?)))
}

/// The pieces in the metadata; a search reads them of each index.
fn pieces(text: &str) -> Option<Vec<Piece>> {
    let lines = text.as_bytes().split(|byte| *byte == b'\n');
    lines.filter(|line| !line.is_empty()).map(piece).collect()
}

fn piece(line: &[u8]) -> Option<Piece> {
    let number = |digits: &[u8]| {
        digits.iter().try_fold(0_u64, |number, digit| {
            let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
            number.checked_mul(10)?.checked_add(digit.into())
        })
    };
    let mut fields = line.split(|byte| *byte == b' ').map(number);
    let mut next = || fields.next().flatten();

    let piece = Piece {
        offset: next()?,
        bytes: next()?,
        begin: next()?,
        len: next()?,
        first_packet: next()?,
        packets: next()?,
        earliest: next()?,
        latest: next()?,
        has_context: next()? != 0,
    };
    fields.next().is_none().then_some(piece)
}

/// Reads these rows of columns in order.
struct Input<'a> {
    group: &'a dyn RowGroupReader,
    ranges: &'a [Range<usize>],
    column: usize,
}

/// The values, definition levels and repetition levels of a column.
type Levels<T> = (Vec<T>, Vec<i16>, Vec<i16>);

impl Input<'_> {
    fn skip(&mut self) {
        self.column += 1;
    }

    fn read<T: DataType>(&mut self) -> Result<Levels<T::T>, Damaged> {
        let too_few = || Damaged("a column has too few values".to_owned());
        let mut reader = get_typed_column_reader::<T>(self.group.get_column_reader(self.column)?);
        self.column += 1;

        let mut values = Vec::new();
        let mut definitions = Vec::new();
        let mut repetitions = Vec::new();
        let mut place = 0;

        for range in self.ranges {
            place += reader.skip_records(range.start - place)?;
            if place != range.start {
                return Err(too_few());
            }

            while place < range.end {
                let left = range.end - place;
                let (records, ..) = reader.read_records(
                    left,
                    Some(&mut definitions),
                    Some(&mut repetitions),
                    &mut values,
                )?;
                if records == 0 {
                    return Err(too_few());
                }

                place += records;
            }
        }

        Ok((values, definitions, repetitions))
    }

    fn longs(&mut self) -> Result<Vec<u64>, Damaged> {
        let (values, ..) = self.read::<Int64Type>()?;
        self.all(values.into_iter().map(i64::cast_unsigned).collect())
    }

    fn numbers(&mut self) -> Result<Vec<u32>, Damaged> {
        let (values, ..) = self.read::<Int32Type>()?;
        self.all(values.into_iter().map(i32::cast_unsigned).collect())
    }

    fn optional(&mut self) -> Result<Vec<Option<u32>>, Damaged> {
        let (values, definitions, _) = self.read::<Int32Type>()?;
        let mut values = values.into_iter().map(i32::cast_unsigned);
        let values =
            definitions.iter().map(|level| (*level > 0).then(|| values.next()).flatten()).collect();
        self.all(values)
    }

    fn texts(&mut self) -> Result<Vec<Option<ByteArray>>, Damaged> {
        let (values, definitions, _) = self.read::<ByteArrayType>()?;
        let mut values = values.into_iter();
        let values =
            definitions.iter().map(|level| (*level > 0).then(|| values.next()).flatten()).collect();
        self.all(values)
    }

    fn addresses(&mut self) -> Result<Vec<Option<IpAddr>>, Damaged> {
        let address = |text: ByteArray| -> Result<IpAddr, Damaged> {
            let text = text.as_utf8()?;
            text.parse().map_err(|_| Damaged(format!("{text:?} is not an address")))
        };
        self.texts()?.into_iter().map(|text| text.map(address).transpose()).collect()
    }

    /// Checks that there is one value per row.
    fn all<T>(&self, values: Vec<T>) -> Result<Vec<T>, Damaged> {
        match values.len() == self.ranges.iter().map(Range::len).sum::<usize>() {
            true => Ok(values),
            false => Err(Damaged("a column has too few values".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_all_columns() {
        let page = include_str!("../../../docs/index-format.md");
        for field in COLUMNS.root_schema().get_fields() {
            assert!(page.contains(&format!("`{}`", field.name())), "no column `{}`", field.name());
        }

        for key in [
            key::SCHEMA,
            key::SEGMENT_BYTES,
            key::SEGMENT_FINGERPRINT,
            key::SEGMENT_MODIFIED,
            key::FORMAT,
            key::PACKETS,
            key::BYTES,
            key::INTERFACES,
            key::LAYOUTS,
            key::PIECES,
            key::BLOCKS,
            key::CHECKSUM,
        ] {
            assert!(page.contains(&format!("`{key}`")), "no key `{key}`");
        }
        assert!(page.contains(&format!("version {SCHEMA_VERSION}")));
    }
}
