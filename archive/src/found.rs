//! The packets that `find` finds on a cluster, as rows, and the savefile that is made of them. The
//! rows contain everything that `wirecap-index` returns with a packet, so the savefile is the same
//! as that of a search on one machine.
//!
//! Ballista sorts the rows by time, position of the segment in the archive and number of the packet
//! in it, as the search on one machine does. A partition consists of whole segments, because a
//! damaged segment is read up to the damage.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, RecordBatch, StringArray, UInt32Array,
    UInt64Array,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type, UInt64Type};
use datafusion::error::DataFusionError;
use prost::Message;
use wirecap_index::{Extract, Found, Packet};
use wirecap_savefile::{Direction, Interface, Record, Sink, Timestamp, WriteError};

use crate::failure::Failure;
use crate::message::InterfaceMessage;
use crate::scan::Rows;
use crate::segment::Segment;

/// The columns by which packets are ordered: time, then segment, then number in the segment.
pub(crate) const ORDER: [&str; 3] = ["nanos", "place", "number"];

pub(crate) fn schema() -> SchemaRef {
    let field = |name: &str, data_type, is_nullable| Field::new(name, data_type, is_nullable);
    Arc::new(Schema::new(vec![
        field(ORDER[0], DataType::UInt64, false),
        field(ORDER[1], DataType::UInt64, false),
        field(ORDER[2], DataType::UInt64, false),
        field("interface", DataType::Binary, false),
        field("queue", DataType::UInt32, true),
        field("is_inbound", DataType::Boolean, true),
        field("length", DataType::UInt32, false),
        field("data", DataType::Binary, false),
    ]))
}

/// For each segment of an archive: the lines that `find --list` prints if it may have matching
/// packets. For each fault: its segment and the reason.
pub(crate) fn schema_of_candidates() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("place", DataType::UInt64, false),
        Field::new("lines", DataType::Utf8, true),
        Field::new("segment", DataType::Utf8, true),
        Field::new("fault", DataType::Utf8, true),
    ]))
}

/// The rows of [`schema_of_candidates`].
pub(crate) fn candidates(
    segments: usize,
    lines: impl Iterator<Item = (usize, String)>,
    faults: &[(String, String)],
) -> Result<RecordBatch, DataFusionError> {
    let mut of_segments = vec![None; segments];
    for (place, lines) in lines {
        of_segments[place] = Some(lines);
    }

    // A fault has a separate row, because a segment that was scanned may be a candidate and have a
    // fault.
    let places = (0..segments as u64).chain(faults.iter().map(|_| u64::MAX));
    let none = || std::iter::repeat_n(None, segments);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from_iter_values(places)),
        Arc::new(
            of_segments.into_iter().chain(faults.iter().map(|_| None)).collect::<StringArray>(),
        ),
        Arc::new(
            none()
                .chain(faults.iter().map(|(segment, _)| Some(&**segment)))
                .collect::<StringArray>(),
        ),
        Arc::new(
            none().chain(faults.iter().map(|(_, reason)| Some(&**reason))).collect::<StringArray>(),
        ),
    ];

    Ok(RecordBatch::try_new(schema_of_candidates(), columns)?)
}

struct Row {
    nanos: u64,
    number: u64,
    interface: Arc<[u8]>,
    queue: Option<u32>,
    is_inbound: Option<bool>,
    length: u32,
}

/// Packets of one segment, which become a batch.
pub(crate) struct FoundRows {
    schema: SchemaRef,
    place: u64,
    rows: Vec<Row>,
    data: Vec<u8>,
    ends: Vec<usize>,
    /// The most recent interfaces by number, and their messages.
    interfaces: HashMap<u32, (Interface, Arc<[u8]>)>,
}

impl FoundRows {
    pub(crate) fn new(schema: SchemaRef, place: u64) -> Self {
        let rows = Vec::new();
        let data = Vec::new();
        let ends = Vec::new();
        let interfaces = HashMap::new();
        Self { schema, place, rows, data, ends, interfaces }
    }

    fn interface(&mut self, number: u32, interface: &Interface) -> Arc<[u8]> {
        match self.interfaces.get(&number) {
            Some((known, message)) if known == interface => Arc::clone(message),
            _ => {
                let message: Arc<[u8]> = InterfaceMessage::from(interface).encode_to_vec().into();
                self.interfaces.insert(number, (interface.clone(), Arc::clone(&message)));
                message
            }
        }
    }

    fn column(&self, name: &str) -> ArrayRef {
        macro_rules! column {
            ($array:ty, $value:expr) => {
                Arc::new(self.rows.iter().map($value).collect::<$array>()) as ArrayRef
            };
        }
        match name {
            "nanos" => column!(UInt64Array, |row: &Row| Some(row.nanos)),
            "place" => column!(UInt64Array, |_: &Row| Some(self.place)),
            "number" => column!(UInt64Array, |row: &Row| Some(row.number)),
            "interface" => {
                Arc::new(BinaryArray::from_iter_values(self.rows.iter().map(|row| &*row.interface)))
            }
            "queue" => column!(UInt32Array, |row: &Row| row.queue),
            "is_inbound" => column!(BooleanArray, |row: &Row| row.is_inbound),
            "length" => column!(UInt32Array, |row: &Row| Some(row.length)),
            "data" => {
                let starts = std::iter::once(0).chain(self.ends.iter().copied());
                let packets = starts.zip(&self.ends).map(|(start, end)| &self.data[start..*end]);
                Arc::new(BinaryArray::from_iter_values(packets))
            }
            _ => unreachable!("the schema has no other column"),
        }
    }
}

impl Rows for FoundRows {
    fn push(&mut self, packet: &Packet<'_>) {
        let record = &packet.record;
        let interface = self.interface(record.interface, packet.interface);
        self.rows.push(Row {
            nanos: packet.nanos,
            number: packet.number,
            interface,
            queue: record.queue,
            is_inbound: record.direction.map(|direction| direction == Direction::Inbound),
            length: record.wire_len,
        });
        self.data.extend_from_slice(record.data);
        self.ends.push(self.data.len());
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn data_bytes(&self) -> usize {
        self.data.len()
    }

    fn take(&mut self, _: &Segment) -> Vec<ArrayRef> {
        let columns = self.schema.fields().iter().map(|field| self.column(field.name())).collect();
        self.rows.clear();
        self.data.clear();
        self.ends.clear();
        columns
    }
}

/// A savefile of the rows, which arrive in order.
pub(crate) struct Savefile<S: Sink> {
    extract: Extract<S>,
    /// The interfaces that have packets so far, by message, with their numbers.
    interfaces: HashMap<Vec<u8>, (u32, Interface)>,
    pub(crate) packets: u64,
}

impl<S: Sink> Savefile<S> {
    pub(crate) fn new(extract: Extract<S>) -> Self {
        Self { extract, interfaces: HashMap::new(), packets: 0 }
    }

    /// Appends packets; returns `false` if the reader closed the pipe.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<bool, Failure> {
        let column = |name: &str| {
            batch
                .column_by_name(name)
                .ok_or_else(|| Failure::Failed(format!("no column {name}").into()))
        };
        let interfaces = column("interface")?.as_binary::<i32>();
        let data = column("data")?.as_binary::<i32>();
        let nanos = column("nanos")?.as_primitive::<UInt64Type>();
        let lengths = column("length")?.as_primitive::<UInt32Type>();
        let queues = column("queue")?.as_primitive::<UInt32Type>();
        let inbound = column("is_inbound")?.as_boolean();

        for row in 0..batch.num_rows() {
            let message = interfaces.value(row);
            if !self.interfaces.contains_key(message) {
                let decoded = InterfaceMessage::decode(message)
                    .map_err(|error| Failure::Failed(error.into()))?;
                let number = self.interfaces.len() as u32;
                self.interfaces.insert(message.to_vec(), (number, Interface::try_from(decoded)?));
            }

            let (number, interface) = &self.interfaces[message];
            let is_inbound = inbound.is_valid(row).then(|| inbound.value(row));
            let direction = is_inbound.map(|is_inbound| match is_inbound {
                true => Direction::Inbound,
                false => Direction::Outbound,
            });

            let record = Record {
                interface: *number,
                timestamp: Some(Timestamp::from_unix_nanos(nanos.value(row))),
                queue: queues.is_valid(row).then(|| queues.value(row)),
                direction,
                wire_len: lengths.value(row),
                data: data.value(row),
                ..Record::default()
            };
            match self.extract.write(&Found { record, interface }) {
                Err(WriteError::BrokenPipe { .. }) => return Ok(false),
                written => written?,
            }

            self.packets += 1;
        }

        Ok(true)
    }

    pub(crate) fn end(self) -> Result<(), Failure> {
        match self.extract.end() {
            Err(WriteError::BrokenPipe { .. }) => Ok(()),
            ended => Ok(ended?),
        }
    }
}
