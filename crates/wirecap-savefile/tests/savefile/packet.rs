//! Packets that own their data, and functions that read them from a savefile.

use std::error::Error as _;
use std::io::Read;

use wirecap_savefile::{Direction, ReadError, Reader, Record};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) interface: u32,
    pub(crate) nanos: Option<u64>,
    pub(crate) queue: Option<u32>,
    pub(crate) direction: Option<Direction>,
    pub(crate) wire_len: u32,
    pub(crate) data: Vec<u8>,
}

impl Packet {
    /// An inbound packet on interface 0 with only those properties that pcap stores.
    pub(crate) fn plain(nanos: u64, data: &[u8]) -> Self {
        let wire_len = data.len() as u32;
        let data = data.to_vec();
        Self { interface: 0, nanos: Some(nanos), queue: None, direction: None, wire_len, data }
    }

    pub(crate) fn record(&self) -> Record<'_> {
        Record {
            interface: self.interface,
            timestamp: self.nanos.map(wirecap_savefile::Timestamp::from_unix_nanos),
            queue: self.queue,
            direction: self.direction,
            wire_len: self.wire_len,
            data: &self.data,
            ..wirecap_savefile::Record::default()
        }
    }
}

impl From<Record<'_>> for Packet {
    fn from(record: Record<'_>) -> Self {
        Self {
            interface: record.interface,
            nanos: record.timestamp.map(wirecap_savefile::Timestamp::unix_nanos),
            queue: record.queue,
            direction: record.direction,
            wire_len: record.wire_len,
            data: record.data.to_vec(),
        }
    }
}

/// Returns all packets before the end or the first error, and that error.
pub(crate) fn read_rest(reader: &mut Reader) -> (Vec<Packet>, Option<ReadError>) {
    let mut packets = Vec::new();
    loop {
        match reader.next_record() {
            Ok(Some(record)) => packets.push(record.into()),
            Ok(None) => return (packets, None),
            Err(error) => return (packets, Some(error)),
        }
    }
}

/// Like [`read_rest`], from the beginning of the file.
pub(crate) fn read_all(file: impl Read + Send + 'static) -> (Vec<Packet>, Option<ReadError>) {
    match Reader::new(file) {
        Ok(mut reader) => read_rest(&mut reader),
        Err(error) => (Vec::new(), Some(error)),
    }
}

/// Returns the packets of a file, which must be valid.
pub(crate) fn read_whole(file: &[u8]) -> Vec<Packet> {
    let (packets, error) = read_all(std::io::Cursor::new(file.to_vec()));
    if let Some(error) = error {
        panic!("{error}: {:?}", error.source());
    }
    packets
}
