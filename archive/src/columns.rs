//! The columns of both tables, made from packets and from rows of indexes.
//!
//! A property that packets and rows of indexes share has the same name and value in both, because
//! both come from [`Flow`].

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, StringArray, TimestampNanosecondArray, UInt8Array, UInt16Array,
    UInt32Array, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use wirecap_index::{Flow, Headers, Index, Packet, Row};
use wirecap_savefile::{Direction, LinkType};

use crate::scan::Rows;
use crate::segment::Segment;

/// A time in nanoseconds since 1970, UTC.
fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
}

/// Name, type, and whether it may be null.
type Column = (&'static str, DataType, bool);

/// The columns that both tables have.
const OF_FLOW: [Column; 13] = {
    use DataType::{UInt8, UInt16, Utf8};
    [
        ("link_type", UInt16, false),
        ("vlan_type", UInt16, true),
        ("vlan", UInt16, true),
        ("inner_vlan_type", UInt16, true),
        ("inner_vlan", UInt16, true),
        ("ether_type", UInt16, true),
        ("src_addr", Utf8, true),
        ("dst_addr", Utf8, true),
        ("protocol", UInt8, true),
        ("next_header", UInt8, true),
        ("fragment", UInt8, true),
        ("src_port", UInt16, true),
        ("dst_port", UInt16, true),
    ]
};

fn schema(before: &[Column], after: &[Column]) -> SchemaRef {
    let columns = before.iter().chain(&OF_FLOW).chain(after);
    let field = |(name, data_type, is_nullable): &Column| {
        Field::new(*name, data_type.clone(), *is_nullable)
    };
    Arc::new(Schema::new(columns.map(field).collect::<Vec<_>>()))
}

/// Of the table `packets`.
pub(crate) fn of_packets() -> SchemaRef {
    use DataType::{Binary, UInt8, UInt32, UInt64, Utf8};
    let before = [
        ("time", time_type(), false),
        ("sensor", Utf8, true),
        ("segment", Utf8, false),
        ("number", UInt64, false),
        ("interface", UInt32, false),
        ("interface_name", Utf8, true),
        ("queue", UInt32, true),
        ("direction", Utf8, true),
        ("length", UInt32, false),
        ("captured", UInt32, false),
        ("src_mac", Utf8, true),
        ("dst_mac", Utf8, true),
    ];
    schema(&before, &[("tcp_flags", UInt8, true), ("data", Binary, false)])
}

/// Of the table `flows`.
pub(crate) fn of_flows() -> SchemaRef {
    use DataType::{UInt8, UInt32, UInt64, Utf8};
    let before = [
        ("sensor", Utf8, true),
        ("segment", Utf8, false),
        ("flow", UInt64, false),
        ("first", time_type(), false),
        ("last", time_type(), false),
        ("interface", UInt32, false),
        ("interface_name", Utf8, true),
    ];

    let after = [
        ("packets", UInt64, false),
        ("bytes", UInt64, false),
        ("captured_max", UInt32, false),
        ("wire_min", UInt32, false),
        ("wire_max", UInt32, false),
        ("tcp_flags", UInt8, true),
        ("tcp_flags_all", UInt8, true),
        ("first_packet", UInt64, false),
        ("last_packet", UInt64, false),
    ];
    schema(&before, &after)
}

/// Times in nanoseconds since 1970. Arrow's range ends in 2262; later times become its last.
pub(crate) fn times(nanos: impl Iterator<Item = u64>) -> ArrayRef {
    let nanos = nanos.map(|nanos| i64::try_from(nanos).unwrap_or(i64::MAX));
    Arc::new(TimestampNanosecondArray::from_iter_values(nanos).with_timezone("UTC"))
}

/// The same text in all of `count` rows.
pub(crate) fn repeated(text: Option<&str>, count: usize) -> ArrayRef {
    Arc::new(StringArray::from_iter(std::iter::repeat_n(text, count)))
}

/// A column of the flows' properties; `None` stands for a flow that is not known.
pub(crate) fn of_flow<'a>(
    name: &str,
    flows: impl Iterator<Item = Option<&'a Flow>>,
) -> Option<ArrayRef> {
    macro_rules! column {
        ($array:ty, $value:expr) => {
            Arc::new(flows.map(|flow| flow.and_then($value)).collect::<$array>()) as ArrayRef
        };
    }
    Some(match name {
        "link_type" => column!(UInt16Array, |flow| Some(flow.link_type.0)),
        "vlan_type" => column!(UInt16Array, |flow| flow.vlans[0].map(|vlan| vlan.tpid)),
        "vlan" => column!(UInt16Array, |flow| flow.vlans[0].map(|vlan| vlan.id)),
        "inner_vlan_type" => column!(UInt16Array, |flow| flow.vlans[1].map(|vlan| vlan.tpid)),
        "inner_vlan" => column!(UInt16Array, |flow| flow.vlans[1].map(|vlan| vlan.id)),
        "ether_type" => column!(UInt16Array, |flow| flow.ether_type),
        "src_addr" => column!(StringArray, |flow| flow.source.map(|address| address.to_string())),
        "dst_addr" => {
            column!(StringArray, |flow| flow.destination.map(|address| address.to_string()))
        }
        "protocol" => column!(UInt8Array, |flow| flow.protocol),
        "next_header" => column!(UInt8Array, |flow| flow.next_header),
        "fragment" => column!(UInt8Array, |flow| Some(flow.fragment as u8)),
        "src_port" => column!(UInt16Array, |flow| flow.ports.map(|(source, _)| source)),
        "dst_port" => column!(UInt16Array, |flow| flow.ports.map(|(_, destination)| destination)),
        _ => return None,
    })
}

/// A column of `flows`: the rows of a segment's index.
pub(crate) fn of_rows(name: &str, segment: &Segment, index: &Index, rows: &[Row]) -> ArrayRef {
    macro_rules! column {
        ($array:ty, $value:expr) => {
            Arc::new(rows.iter().map($value).collect::<$array>()) as ArrayRef
        };
    }
    match name {
        "sensor" => repeated(segment.sensor.as_deref(), rows.len()),
        "segment" => repeated(Some(&segment.name), rows.len()),
        "flow" => column!(UInt64Array, |row: &Row| Some(row.flow.number())),
        "first" => times(rows.iter().map(|row| row.first)),
        "last" => times(rows.iter().map(|row| row.last)),
        "interface" => column!(UInt32Array, |row: &Row| Some(row.interface)),
        "interface_name" => column!(StringArray, |row: &Row| index.interface_name(row.interface)),
        "packets" => column!(UInt64Array, |row: &Row| Some(row.packets)),
        "bytes" => column!(UInt64Array, |row: &Row| Some(row.bytes)),
        "captured_max" => column!(UInt32Array, |row: &Row| Some(row.captured_max)),
        "wire_min" => column!(UInt32Array, |row: &Row| Some(row.wire_min)),
        "wire_max" => column!(UInt32Array, |row: &Row| Some(row.wire_max)),
        "tcp_flags" => column!(UInt8Array, |row: &Row| row.tcp_flags.map(|(any, _)| any)),
        "tcp_flags_all" => column!(UInt8Array, |row: &Row| row.tcp_flags.map(|(_, all)| all)),
        "first_packet" => column!(UInt64Array, |row: &Row| Some(row.first_packet)),
        "last_packet" => column!(UInt64Array, |row: &Row| Some(row.last_packet)),
        name => of_flow(name, rows.iter().map(|row| Some(&row.flow)))
            .expect("the schema has no other column"),
    }
}

/// A packet without its bytes.
struct Line {
    nanos: u64,
    number: u64,
    interface: u32,
    interface_name: Option<Arc<str>>,
    queue: Option<u32>,
    direction: Option<Direction>,
    length: u32,
    captured: u32,
    macs: Option<([u8; 6], [u8; 6])>,
    headers: Headers,
}

/// Packets of one segment, which become a batch of the table `packets`.
pub(crate) struct Lines {
    schema: SchemaRef,
    lines: Vec<Line>,
    /// Their bytes, if the table's reader requests them.
    data: Option<(Vec<u8>, Vec<usize>)>,
    /// The most recent names of interfaces, by number.
    names: Vec<Option<Arc<str>>>,
}

fn mac_text(mac: [u8; 6]) -> String {
    let [a, b, c, d, e, f] = mac;
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

impl Lines {
    pub(crate) fn new(schema: SchemaRef) -> Self {
        let data = schema.column_with_name("data").map(|_| (Vec::new(), Vec::new()));
        Self { schema, lines: Vec::new(), data, names: Vec::new() }
    }

    /// The name as indexes have it: one line, not empty.
    fn name(&mut self, number: u32, name: &str) -> Option<Arc<str>> {
        if name.is_empty() {
            return None;
        }

        let place = number as usize;
        if self.names.len() <= place {
            self.names.resize(place + 1, None);
        }
        if let Some(known) = self.names[place].as_ref().filter(|known| ***known == *name) {
            return Some(Arc::clone(known));
        }

        let text: Arc<str> = name.replace(char::is_control, " ").into();
        self.names[place] = Some(Arc::clone(&text));

        Some(text)
    }

    fn column(&self, name: &str, segment: &Segment) -> ArrayRef {
        macro_rules! column {
            ($array:ty, $value:expr) => {
                Arc::new(self.lines.iter().map($value).collect::<$array>()) as ArrayRef
            };
        }
        match name {
            "time" => times(self.lines.iter().map(|line| line.nanos)),
            "sensor" => repeated(segment.sensor.as_deref(), self.len()),
            "segment" => repeated(Some(&segment.name), self.len()),
            "number" => column!(UInt64Array, |line: &Line| Some(line.number)),
            "interface" => column!(UInt32Array, |line: &Line| Some(line.interface)),
            "interface_name" => column!(StringArray, |line: &Line| line.interface_name.as_deref()),
            "queue" => column!(UInt32Array, |line: &Line| line.queue),
            "direction" => {
                column!(StringArray, |line: &Line| line.direction.map(
                    |direction| match direction {
                        Direction::Inbound => "in",
                        Direction::Outbound => "out",
                    }
                ))
            }
            "length" => column!(UInt32Array, |line: &Line| Some(line.length)),
            "captured" => column!(UInt32Array, |line: &Line| Some(line.captured)),
            "src_mac" => {
                column!(StringArray, |line: &Line| line.macs.map(|(source, _)| mac_text(source)))
            }
            "dst_mac" => {
                column!(StringArray, |line: &Line| line
                    .macs
                    .map(|(_, destination)| mac_text(destination)))
            }
            "tcp_flags" => column!(UInt8Array, |line: &Line| line.headers.tcp_flags),
            "data" => {
                let (bytes, ends) = self.data.as_ref().expect("the schema has the column");
                let starts = std::iter::once(0).chain(ends.iter().copied());
                Arc::new(BinaryArray::from_iter_values(
                    starts.zip(ends).map(|(start, end)| &bytes[start..*end]),
                ))
            }
            name => of_flow(name, self.lines.iter().map(|line| Some(&line.headers.flow)))
                .expect("the schema has no other column"),
        }
    }
}

impl Rows for Lines {
    fn push(&mut self, packet: &Packet<'_>) {
        let record = &packet.record;
        let interface = packet.interface;
        let macs = (interface.link_type == LinkType::ETHERNET)
            .then(|| Some((*record.data.get(6..)?.first_chunk()?, *record.data.first_chunk()?)))
            .flatten();
        let interface_name =
            interface.name.as_deref().and_then(|name| self.name(record.interface, name));

        self.lines.push(Line {
            nanos: packet.nanos,
            number: packet.number,
            interface: record.interface,
            interface_name,
            queue: record.queue,
            direction: record.direction,
            length: record.wire_len,
            captured: record.data.len() as u32,
            macs,
            headers: Headers::of(interface.link_type, record.data),
        });

        if let Some((bytes, ends)) = &mut self.data {
            bytes.extend_from_slice(record.data);
            ends.push(bytes.len());
        }
    }

    fn len(&self) -> usize {
        self.lines.len()
    }

    fn data_bytes(&self) -> usize {
        self.data.as_ref().map_or(0, |(bytes, _)| bytes.len())
    }

    fn take(&mut self, segment: &Segment) -> Vec<ArrayRef> {
        let columns =
            self.schema.fields().iter().map(|field| self.column(field.name(), segment)).collect();
        self.lines.clear();
        if let Some((bytes, ends)) = &mut self.data {
            bytes.clear();
            ends.clear();
        }
        columns
    }
}
