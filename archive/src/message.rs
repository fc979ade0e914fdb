//! Messages between the processes of a cluster about tables and scans, as Protocol Buffers.
//!
//! Both ends must be of the same version: [`decode`] rejects messages of other versions.
//!
//! They begin with a byte which no message of Ballista begins with, and with the version of
//! wirecap.

use std::ffi::OsString;
use std::net::{AddrParseError, IpAddr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, LargeBinaryArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::error::DataFusionError;
use prost::{Enumeration, Message, Oneof};
use wirecap_filter::FilterRequest;
use wirecap_index::{Between, End, Ends, Piece, Planned};
use wirecap_savefile::{Interface, LinkType};

use crate::scan::Job;
use crate::search::Wanted;
use crate::segment::Segment;

/// The first bytes of a message. No message of Ballista or DataFusion begins with them: fields have
/// no number 0.
const MAGIC: &[u8] = b"\0wirecap";
/// The version of the messages below. Increment it with each change.
const FORMAT: u32 = 4;
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(uint32, tag = "1")]
    format: u32,
    #[prost(string, tag = "2")]
    version: String,
    #[prost(oneof = "Content", tags = "3, 4")]
    content: Option<Content>,
}

/// A part of a plan.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Content {
    /// A table of a logical plan.
    #[prost(message, tag = "3")]
    Table(TableMessage),
    /// A scan of a physical plan.
    #[prost(message, tag = "4")]
    Scan(ScanMessage),
}

/// Which table, in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum KindMessage {
    Flows = 0,
    Packets = 1,
    Found = 2,
    Candidates = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TableMessage {
    #[prost(enumeration = "KindMessage", tag = "1")]
    pub(crate) kind: i32,
    #[prost(string, tag = "2")]
    pub(crate) archive: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) wanted: Option<WantedMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ScanMessage {
    #[prost(message, optional, tag = "1")]
    pub(crate) table: Option<TableMessage>,
    /// The columns that are read.
    #[prost(string, repeated, tag = "2")]
    pub(crate) columns: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) details: String,
    #[prost(message, repeated, tag = "4")]
    pub(crate) faults: Vec<FaultMessage>,
}

/// A segment that could not be read when the query was planned.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FaultMessage {
    #[prost(string, tag = "1")]
    pub(crate) segment: String,
    #[prost(string, tag = "2")]
    pub(crate) reason: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WantedMessage {
    #[prost(string, optional, tag = "1")]
    filter: Option<String>,
    /// Two, or none.
    #[prost(message, repeated, tag = "2")]
    between: Vec<EndMessage>,
    #[prost(uint64, optional, tag = "3")]
    from: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    to: Option<u64>,
    #[prost(message, repeated, tag = "5")]
    conditions: Vec<ConditionMessage>,
}

/// A condition of a query: matching flows have at least one of these ends.
#[derive(Clone, PartialEq, Message)]
struct ConditionMessage {
    #[prost(message, repeated, tag = "1")]
    ends: Vec<EndsMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct EndsMessage {
    #[prost(string, optional, tag = "1")]
    source: Option<String>,
    #[prost(string, optional, tag = "2")]
    destination: Option<String>,
    #[prost(uint32, optional, tag = "3")]
    source_port: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    destination_port: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct EndMessage {
    #[prost(string, tag = "1")]
    address: String,
    #[prost(uint32, optional, tag = "2")]
    port: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct JobMessage {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint64, tag = "3")]
    place: u64,
    #[prost(bool, tag = "4")]
    is_faulty: bool,
    #[prost(message, repeated, tag = "5")]
    context: Vec<PieceMessage>,
    #[prost(message, repeated, tag = "6")]
    selected: Vec<PieceMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct PieceMessage {
    #[prost(uint64, tag = "1")]
    offset: u64,
    #[prost(uint64, tag = "2")]
    bytes: u64,
    #[prost(uint64, tag = "3")]
    begin: u64,
    #[prost(uint64, tag = "4")]
    len: u64,
    #[prost(uint64, tag = "5")]
    first_packet: u64,
    #[prost(uint64, tag = "6")]
    packets: u64,
    #[prost(fixed64, tag = "7")]
    earliest: u64,
    #[prost(fixed64, tag = "8")]
    latest: u64,
    #[prost(bool, tag = "9")]
    has_context: bool,
    /// The maximum number of matches; by default all packets.
    #[prost(uint64, optional, tag = "10")]
    matches_max: Option<u64>,
}

/// A savefile's interface.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InterfaceMessage {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    description: Option<String>,
    #[prost(string, optional, tag = "3")]
    filter: Option<String>,
    #[prost(string, optional, tag = "4")]
    hardware: Option<String>,
    #[prost(string, optional, tag = "5")]
    os: Option<String>,
    #[prost(uint32, tag = "6")]
    link_type: u32,
    #[prost(uint32, tag = "7")]
    snap_len: u32,
    #[prost(uint32, optional, tag = "8")]
    fcs_len: Option<u32>,
    #[prost(string, optional, tag = "9")]
    time_source: Option<String>,
    #[prost(bytes = "vec", tag = "10")]
    other_options: Vec<u8>,
}

/// Appends the content with this process's version.
pub(crate) fn encode(content: Content, buffer: &mut Vec<u8>) {
    buffer.extend_from_slice(MAGIC);
    let envelope = Envelope { format: FORMAT, version: VERSION.to_owned(), content: Some(content) };
    envelope.encode(buffer).expect("a vector has room");
}

/// The content; `None` if this is a message of another program. `receiver` names this process.
pub(crate) fn decode(buffer: &[u8], receiver: &str) -> Result<Option<Content>> {
    let Some(envelope) = buffer.strip_prefix(MAGIC) else { return Ok(None) };
    let envelope = Envelope::decode(envelope).map_err(|error| invalid(&error))?;
    if (envelope.format, &*envelope.version) != (FORMAT, VERSION) {
        let Envelope { format, version, .. } = envelope;
        return plan_err!(
            "{receiver} is wirecap-archive {VERSION} (messages {FORMAT}) and received a plan of wirecap-archive {version} \
             (messages {format}): install the same version on clients, scheduler and executors"
        );
    }
    Ok(envelope.content)
}

fn invalid(error: &dyn std::fmt::Display) -> DataFusionError {
    DataFusionError::Execution(format!("invalid message of wirecap-archive: {error}"))
}

/// The contents of an optional message, which is there in all messages of this version.
pub(crate) fn required<T>(message: Option<T>) -> Result<T> {
    message.ok_or_else(|| invalid(&"a part is missing"))
}

impl TryFrom<&Wanted> for WantedMessage {
    type Error = DataFusionError;

    fn try_from(wanted: &Wanted) -> Result<Self> {
        let filter = match &wanted.filter {
            None => None,
            Some(FilterRequest::Expression(expression)) => Some(expression.clone()),
            Some(FilterRequest::Program(_)) => {
                return exec_err!("BPF programs are not sent to a cluster");
            }
        };
        let end = |End { address, port }: End| EndMessage {
            address: address.to_string(),
            port: port.map(u32::from),
        };
        let between = wanted.between.map(|Between(a, b)| vec![end(a), end(b)]).unwrap_or_default();
        let condition = |ends: &Vec<Ends>| ConditionMessage {
            ends: ends.iter().map(EndsMessage::from).collect(),
        };
        let conditions = wanted.ends.iter().map(condition).collect();

        Ok(Self { filter, between, from: wanted.from, to: wanted.to, conditions })
    }
}

impl From<&Ends> for EndsMessage {
    fn from(ends: &Ends) -> Self {
        let Ends { source, destination, source_port, destination_port } = *ends;
        let [source, destination] =
            [source, destination].map(|address| address.map(|address| address.to_string()));
        let [source_port, destination_port] =
            [source_port, destination_port].map(|port| port.map(u32::from));
        Self { source, destination, source_port, destination_port }
    }
}

fn address(text: &str) -> Result<IpAddr> {
    text.parse().map_err(|error: AddrParseError| invalid(&error))
}

fn port(number: u32) -> Result<u16> {
    u16::try_from(number).map_err(|error| invalid(&error))
}

impl TryFrom<&EndsMessage> for Ends {
    type Error = DataFusionError;

    fn try_from(message: &EndsMessage) -> Result<Self> {
        Ok(Self {
            source: message.source.as_deref().map(address).transpose()?,
            destination: message.destination.as_deref().map(address).transpose()?,
            source_port: message.source_port.map(port).transpose()?,
            destination_port: message.destination_port.map(port).transpose()?,
        })
    }
}

impl TryFrom<WantedMessage> for Wanted {
    type Error = DataFusionError;

    fn try_from(message: WantedMessage) -> Result<Self> {
        let end = |end: &EndMessage| -> Result<End> {
            Ok(End { address: address(&end.address)?, port: end.port.map(port).transpose()? })
        };
        let between = match &message.between[..] {
            [] => None,
            [a, b] => Some(Between(end(a)?, end(b)?)),
            _ => return Err(invalid(&"a flow has two ends")),
        };

        let filter = message.filter.map(FilterRequest::from);
        let condition = |condition: &ConditionMessage| {
            condition.ends.iter().map(Ends::try_from).collect::<Result<_>>()
        };
        let ends = message.conditions.iter().map(condition).collect::<Result<_>>()?;

        Ok(Self { filter, between, from: message.from, to: message.to, ends })
    }
}

impl From<&Piece> for PieceMessage {
    fn from(piece: &Piece) -> Self {
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
        } = *piece;
        let matches_max = None;
        Self {
            offset,
            bytes,
            begin,
            len,
            first_packet,
            packets,
            earliest,
            latest,
            has_context,
            matches_max,
        }
    }
}

impl From<&PieceMessage> for Piece {
    fn from(message: &PieceMessage) -> Self {
        let PieceMessage {
            offset,
            bytes,
            begin,
            len,
            first_packet,
            packets,
            earliest,
            latest,
            has_context,
            ..
        } = *message;
        Self { offset, bytes, begin, len, first_packet, packets, earliest, latest, has_context }
    }
}

impl From<&Interface> for InterfaceMessage {
    fn from(interface: &Interface) -> Self {
        let Interface {
            name,
            description,
            filter,
            hardware,
            os,
            link_type,
            snap_len,
            fcs_len,
            time_source,
            other_options,
        } = interface.clone();
        Self {
            name,
            description,
            filter,
            hardware,
            os,
            link_type: u32::from(link_type.0),
            snap_len,
            fcs_len: fcs_len.map(u32::from),
            time_source,
            other_options,
        }
    }
}

impl TryFrom<InterfaceMessage> for Interface {
    type Error = DataFusionError;

    fn try_from(message: InterfaceMessage) -> Result<Self> {
        let InterfaceMessage {
            name,
            description,
            filter,
            hardware,
            os,
            link_type,
            snap_len,
            fcs_len,
            time_source,
            other_options,
        } = message;
        let link_type = LinkType(u16::try_from(link_type).map_err(|error| invalid(&error))?);
        let fcs_len = fcs_len.map(u8::try_from).transpose().map_err(|error| invalid(&error))?;

        Ok(Self {
            name,
            description,
            filter,
            hardware,
            os,
            link_type,
            snap_len,
            fcs_len,
            time_source,
            other_options,
        })
    }
}

/// The schema of the jobs, which are the input of a scan: a message per row.
pub(crate) fn schema_of_jobs() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("job", DataType::LargeBinary, false)]))
}

/// Jobs as the rows of a batch.
pub(crate) fn encode_jobs(jobs: &[Job]) -> Result<RecordBatch> {
    let messages = jobs.iter().map(|job| {
        let Planned { path, context, selected, matches_max, is_faulty, .. } = &job.planned;
        let of_selected = |piece: &Piece| PieceMessage {
            matches_max: matches_max.get(&piece.offset).copied(),
            ..PieceMessage::from(piece)
        };

        let message = JobMessage {
            path: path.as_os_str().as_bytes().to_vec(),
            name: job.segment.name.clone(),
            place: job.place,
            is_faulty: *is_faulty,
            context: context.iter().map(PieceMessage::from).collect(),
            selected: selected.iter().map(of_selected).collect(),
        };
        message.encode_to_vec()
    });
    let column: ArrayRef = Arc::new(LargeBinaryArray::from_iter_values(messages));
    Ok(RecordBatch::try_new(schema_of_jobs(), vec![column])?)
}

/// The jobs in the rows of a batch.
pub(crate) fn decode_jobs(batch: &RecordBatch) -> Result<Vec<Job>> {
    let column = batch.column(0).as_binary::<i64>();
    let mut jobs = Vec::with_capacity(column.len());

    for message in column.iter().flatten() {
        let message = JobMessage::decode(message).map_err(|error| invalid(&error))?;
        let JobMessage { path, name, place, is_faulty, context, selected } = message;
        let path = PathBuf::from(OsString::from_vec(path));

        let planned = Planned {
            path: path.clone(),
            without: None,
            bytes: 0,
            packets: 0,
            times: None,
            pieces: selected.len(),
            selected: selected.iter().map(Piece::from).collect(),
            matches_max: selected
                .iter()
                .filter_map(|piece| Some((piece.offset, piece.matches_max?)))
                .collect(),
            context: context.iter().map(Piece::from).collect(),
            is_faulty,
        };
        jobs.push(Job { segment: Segment::new(path, name), planned, place });
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> Vec<Vec<Ends>> {
        let source = Some("10.0.0.1".parse().unwrap());
        let of = Ends { source, destination_port: Some(443), ..Ends::default() };
        vec![
            vec![of, Ends { destination: source, source_port: Some(443), ..Ends::default() }],
            Vec::new(),
        ]
    }

    fn table() -> Content {
        let wanted = Wanted {
            filter: Some("tcp port 80".into()),
            between: Some(Between::parse("[fe80::1].53:[fe80::2]").unwrap()),
            from: Some(1),
            to: Some(u64::MAX),
            ends: ends(),
        };
        Content::Table(TableMessage {
            kind: KindMessage::Found as i32,
            archive: "/data".into(),
            wanted: Some(WantedMessage::try_from(&wanted).unwrap()),
        })
    }

    #[test]
    fn a_message_is_decoded_as_it_was_encoded() {
        let mut buffer = Vec::new();
        encode(table(), &mut buffer);
        let Some(Content::Table(decoded)) = decode(&buffer, "the scheduler").unwrap() else {
            panic!("not a table")
        };
        assert_eq!(Content::Table(decoded.clone()), table());
        let wanted = Wanted::try_from(decoded.wanted.unwrap()).unwrap();
        assert_eq!(wanted.between, Some(Between::parse("[fe80::1].53:[fe80::2]").unwrap()));
        assert_eq!((wanted.from, wanted.to, wanted.ends), (Some(1), Some(u64::MAX), ends()));
        assert_eq!(decode(b"\x0a\x00", "the scheduler").unwrap(), None, "a message of Ballista");
    }

    #[test]
    fn a_message_of_another_version_is_rejected_with_both_versions() {
        for (format, version) in [(FORMAT + 1, VERSION), (FORMAT, "9.9.9")] {
            let mut buffer = MAGIC.to_vec();
            let envelope = Envelope { format, version: version.into(), content: Some(table()) };
            envelope.encode(&mut buffer).unwrap();
            let error = decode(&buffer, "executor lab:50051").unwrap_err().to_string();
            let both = [VERSION.to_owned(), format!("{version} (messages {format})")];
            assert!(both.iter().all(|text| error.contains(text)), "{error}");
            assert!(error.contains("executor lab:50051 is"), "{error}");
        }
    }

    #[test]
    fn damaged_messages_are_errors() {
        let mut buffer = Vec::new();
        encode(table(), &mut buffer);

        for length in MAGIC.len() + 1..buffer.len() {
            // A message that ends between two fields is valid, and lacks the later ones.
            if let Ok(Some(Content::Table(table))) = decode(&buffer[..length], "the scheduler") {
                let _wanted = table.wanted.map(Wanted::try_from);
            }
        }

        let ends = vec![EndMessage { address: "10.0.0.1".into(), port: Some(70_000) }; 2];
        assert!(
            Wanted::try_from(WantedMessage { between: ends, ..WantedMessage::default() }).is_err()
        );

        let ends = vec![EndsMessage { source: Some("10.0.0".into()), ..EndsMessage::default() }];
        let conditions = vec![ConditionMessage { ends }];
        assert!(
            Wanted::try_from(WantedMessage { conditions, ..WantedMessage::default() }).is_err()
        );

        let column: ArrayRef = Arc::new(LargeBinaryArray::from_iter_values([[0xff_u8; 4]]));
        assert!(
            decode_jobs(&RecordBatch::try_new(schema_of_jobs(), vec![column]).unwrap()).is_err()
        );
    }
}
