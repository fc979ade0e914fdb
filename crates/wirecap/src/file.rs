//! The `file` engine: a savefile read as if it were being captured.

#![allow(unsafe_code)]

mod sift;

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use crate::error::{CaptureError, FilterChangeError};
use crate::filter::FilterRequest;
use crate::ledger::{Account, HandedOut};
use crate::names::RingName;
use crate::savefile::{LinkType, ReadError, Reader, Record};
use crate::sync::{Mutex, lock};
use crate::sys::xdp::Descriptor;
use crate::time::Timestamp;
use crate::umem::chunk::records::{FileRecord, Stamps};
use crate::umem::chunk::{CellOwner, Chunk, RingIdentity};
use crate::umem::recycle::CellList;
use crate::umem::ring::{Abilities, Counters, Finite, Help, Ring, RingSize};
use sift::Sift;

/// A chunk ends when its packets exceed this many bytes, even with few packets.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// A savefile as a ring.
#[derive(Debug)]
pub(crate) struct FileRing {
    identity: Arc<RingIdentity>,
    chunk_packets: u32,
    path: PathBuf,
    side: Mutex<FileSide>,
}

#[derive(Debug)]
struct FileSide {
    reader: Reader,
    /// All packets were read, or the ring was closed.
    ended: bool,
    /// The first packet of the next chunk, if the last chunk ended because this packet is of
    /// another interface.
    ahead: Option<Gathering>,
    /// By the file's interfaces.
    identities: Vec<Arc<RingIdentity>>,
    /// The fault in the file after the packets returned so far.
    failure: Option<CaptureError>,
    /// There is or was a failure.
    has_failed: bool,
    sift: Sift,
    handed_out: HandedOut,
}

/// The packets of one chunk, each after its record.
#[derive(Debug)]
struct Gathering {
    interface: u32,
    list: Box<CellList>,
    bytes: Vec<u8>,
}

impl Gathering {
    fn begin(record: &Record<'_>, chunk_packets: u32) -> Self {
        let list = CellList::with_capacity(chunk_packets as usize);
        let mut gathering = Self { interface: record.interface, list, bytes: Vec::new() };
        gathering.add(record);
        gathering
    }

    fn add(&mut self, record: &Record<'_>) {
        let header = FileRecord {
            unix_nanos: record.timestamp.map_or(FileRecord::NO_TIME, Timestamp::unix_nanos),
            wire_len: record.wire_len,
            queue: record.queue.unwrap_or(FileRecord::NO_QUEUE),
        };
        self.bytes.extend_from_slice(&header.to_bytes());
        let address = self.bytes.len() as u64;
        let len = record.data.len() as u32;
        self.bytes.extend_from_slice(record.data);
        self.list.wire_bytes += u64::from(record.wire_len);
        self.list.cells.push(Descriptor { address, len, options: 0 });
    }

    fn is_full(&self, chunk_packets: u32) -> bool {
        self.list.cells.len() >= chunk_packets as usize || self.bytes.len() >= CHUNK_BYTES_MAX
    }
}

/// The bytes of one chunk.
#[derive(Debug)]
struct Block(NonNull<[u8]>);

// SAFETY: the bytes belong to the block alone, like those of a box.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn of(bytes: Vec<u8>) -> Self {
        Self(NonNull::from(Box::leak(bytes.into_boxed_slice())))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it was a box, and only the owner of this value can access it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: the bytes do not move, and only their chunk writes to them after they were gathered;
// `FileRing` makes one chunk per block, of descriptors that `Gathering::add` made for these bytes,
// each after its record.
unsafe impl CellOwner for Block {
    fn base(&self) -> NonNull<u8> {
        self.0.cast()
    }

    fn recycle(&self, list: Box<CellList>) {
        drop(list);
    }
}

impl FileRing {
    /// A ring with the packets of the savefile at `path`, up to `chunk_packets` per chunk.
    pub(crate) fn open(
        path: PathBuf,
        chunk_packets: u32,
        snap_len: u32,
    ) -> Result<Self, ReadError> {
        let reader = Reader::open(&path)?;
        let name = RingName::of_queue(path.display().to_string(), 0);
        let link_type =
            reader.interfaces().first().map(|interface| interface.link_type).unwrap_or_default();

        let identity = RingIdentity {
            name,
            index: 0,
            interface_index: 0,
            snap_len,
            link_type,
            order: OnceLock::new(),
        };
        let side = FileSide {
            reader,
            ended: false,
            ahead: None,
            identities: Vec::new(),
            failure: None,
            has_failed: false,
            sift: Sift::default(),
            handed_out: HandedOut::default(),
        };
        Ok(Self { identity: Arc::new(identity), chunk_packets, path, side: Mutex::new(side) })
    }

    /// From now on delivers only packets that match `request`, starting with the first unread one.
    pub(crate) fn set_filter(&self, request: &FilterRequest) -> Result<(), FilterChangeError> {
        let mut side = lock(&self.side);
        let mut sift = Sift::new(request.clone());
        let path = self.path.display().to_string();
        let interfaces = side.reader.interfaces().iter().map(|interface| interface.link_type);
        let known: Vec<LinkType> = interfaces.collect();
        for (interface, &link_type) in known.iter().enumerate() {
            sift.learn(interface as u32, link_type, &path)?;
        }

        if known.is_empty() {
            // Most files are Ethernet; so errors of the filter are reported now.
            request.compile(LinkType::ETHERNET)?;
        }

        side.sift = sift.after(&side.sift);
        if let Some(ahead) = side.ahead.take() {
            side.ahead = side.accepts(&ahead).then_some(ahead);
        }

        Ok(())
    }

    /// The file, if its rest could not be read.
    pub(crate) fn unreadable(&self) -> Option<String> {
        lock(&self.side).has_failed.then(|| self.path.display().to_string())
    }

    fn capture_from(&self, side: &mut FileSide) -> Result<Option<Chunk>, CaptureError> {
        let Some(gathering) = side.gather(self.chunk_packets, &self.path) else {
            return side.failure.take().map_or(Ok(None), Err);
        };
        let ring = side.identity(&self.identity, gathering.interface);
        let packets = gathering.list.cells.len() as u64;
        let bytes = gathering.list.wire_bytes;
        let sequence = side.handed_out.count(packets, bytes, false, false);
        let owner = Arc::new(Block::of(gathering.bytes));
        // SAFETY: `Gathering::add` made the descriptors for these bytes.
        Ok(Some(unsafe {
            Chunk::new(gathering.list, owner, ring, Stamps::InFile, sequence, false)
        }))
    }
}

impl FileSide {
    /// Reads the next chunk's packets: all of one interface of the file.
    fn gather(&mut self, chunk_packets: u32, path: &Path) -> Option<Gathering> {
        let mut gathering = self.ahead.take();

        while !self.ended {
            if gathering.as_ref().is_some_and(|gathering| gathering.is_full(chunk_packets)) {
                break;
            }
            match (self.reader.next_record(), &mut gathering) {
                (Ok(Some(record)), gathering) if !self.sift.knows(record.interface) => {
                    let first = Gathering::begin(&record, chunk_packets);
                    match self.learn(&first, path) {
                        Ok(false) => {}
                        Ok(true) if gathering.is_none() => *gathering = Some(first),
                        Ok(true) => {
                            self.ahead = Some(first);
                            break;
                        }
                        Err(source) => {
                            self.fail(CaptureError::Filter { path: path.to_owned(), source });
                        }
                    }
                }
                (Ok(Some(record)), _) if !self.sift.accepts(&record) => {}
                (Ok(Some(record)), None) => {
                    gathering = Some(Gathering::begin(&record, chunk_packets));
                }
                (Ok(Some(record)), Some(current)) if current.interface == record.interface => {
                    current.add(&record);
                }
                (Ok(Some(record)), Some(_)) => {
                    self.ahead = Some(Gathering::begin(&record, chunk_packets));
                    break;
                }
                (Ok(None), _) => self.ended = true,
                (Err(source), _) => {
                    self.fail(CaptureError::Savefile { path: path.to_owned(), source });
                }
            }
        }
        gathering
    }

    fn fail(&mut self, failure: CaptureError) {
        (self.failure, self.has_failed) = (Some(failure), true);
        self.ended = true;
    }

    /// Looks up the interface of `first`, and whether the filter accepts that packet.
    fn learn(&mut self, first: &Gathering, path: &Path) -> Result<bool, FilterChangeError> {
        let link_type = self.reader.interfaces()[first.interface as usize].link_type;
        self.sift.learn(first.interface, link_type, &path.display().to_string())?;
        Ok(self.accepts(first))
    }

    /// Whether the filter accepts a packet that was read ahead.
    fn accepts(&mut self, ahead: &Gathering) -> bool {
        let data = &ahead.bytes[FileRecord::BYTES..];
        self.sift.accepts_bytes(ahead.interface, data, ahead.list.wire_bytes as u32)
    }

    /// The origin of the packets of this interface of the file.
    fn identity(&mut self, ring: &RingIdentity, interface: u32) -> Arc<RingIdentity> {
        let known = self.reader.interfaces();
        for (index, known) in known.iter().enumerate().skip(self.identities.len()) {
            let name = known.name.clone().unwrap_or_else(|| ring.name.interface.clone());
            self.identities.push(Arc::new(RingIdentity {
                name: RingName::of_queue(name, 0),
                index: 0,
                interface_index: index,
                snap_len: ring.snap_len,
                link_type: known.link_type,
                order: OnceLock::new(),
            }));
        }

        Arc::clone(&self.identities[interface as usize])
    }

    fn is_exhausted(&self) -> bool {
        self.ended && self.ahead.is_none() && self.failure.is_none()
    }
}

impl Ring for FileRing {
    fn identity(&self) -> &Arc<RingIdentity> {
        &self.identity
    }

    fn size(&self) -> RingSize {
        RingSize { capacity: u32::MAX, usable: u32::MAX, chunk_cells: self.chunk_packets }
    }

    fn capture(&self) -> Result<Option<Chunk>, CaptureError> {
        self.capture_from(&mut lock(&self.side))
    }

    /// A file has one worker, and waits for it.
    fn offload(&self, _help: Help) -> Result<Option<Chunk>, CaptureError> {
        Ok(None)
    }

    fn watch(&self, _watch: &mut dyn FnMut(BorrowedFd<'_>)) {}

    fn is_gone(&self) -> bool {
        false
    }

    /// Packets not yet read are not lost.
    fn close(&self) {
        let mut side = lock(&self.side);
        side.ended = true;
        side.ahead = None;
        side.failure = None;
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities { finite: Some(self), ..Abilities::default() }
    }
}

impl Counters for FileRing {
    /// One, for "more packets follow": the number is unknown until they are read.
    fn backlog(&self) -> u32 {
        u32::from(!self.is_exhausted())
    }

    fn account(&self) -> Account {
        let side = lock(&self.side);
        Account { filtered: Some(side.sift.filtered), ..side.handed_out.account() }.balanced()
    }
}

impl Finite for FileRing {
    fn is_exhausted(&self) -> bool {
        lock(&self.side).is_exhausted()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::savefile::{FileSink, Format, Interface, Section, Writer};

    fn ring(packets_of_interfaces: &[u32], chunk_packets: u32) -> (tempfile::TempDir, FileRing) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let sink = FileSink::create(&path).unwrap();
        let mut writer = Writer::new(sink, Format::Pcapng, &Section::default());

        for name in ["a", "b"] {
            writer
                .add_interface(&Interface { name: Some(name.to_owned()), ..Interface::default() })
                .unwrap();
        }

        for (number, &interface) in packets_of_interfaces.iter().enumerate() {
            let data = vec![number as u8; 60 + number];
            writer
                .write(&Record {
                    interface,
                    timestamp: Some(Timestamp::from_unix_nanos(number as u64)),
                    queue: Some(7),
                    wire_len: 1000 + number as u32,
                    data: &data,
                    ..Record::default()
                })
                .unwrap();
        }

        writer.finish().unwrap();
        let ring = FileRing::open(path, chunk_packets, 100).unwrap();
        (folder, ring)
    }

    #[test]
    fn packets_come_as_they_are_in_the_file() {
        let (_folder, ring) = ring(&[0; 50], 16);
        let mut number = 0;
        let mut sequence = 0;

        while let Some(chunk) = ring.capture().unwrap() {
            assert_eq!((chunk.sequence(), &*chunk.ring().interface), (sequence, "a"));
            sequence += 1;

            for packet in &chunk {
                assert_eq!(packet.data(), vec![number as u8; (60 + number).min(100)]);
                assert_eq!(packet.wire_len(), 1000 + number as u32);
                assert_eq!(packet.timestamp(), Some(Timestamp::from_unix_nanos(number as u64)));
                assert_eq!(packet.queue(), Some(7));
                number += 1;
            }
        }

        assert_eq!((number, sequence), (50, 4));
        assert!(ring.is_exhausted());

        let account = ring.account();
        assert_eq!((account.offered, account.delivered), (50, 50));
    }

    #[test]
    fn a_chunk_holds_packets_of_one_interface() {
        let (_folder, ring) = ring(&[0, 0, 1, 0, 1, 1], 16);
        let chunks: Vec<(String, usize)> = std::iter::from_fn(|| ring.capture().unwrap())
            .map(|chunk| (chunk.ring().interface.clone(), chunk.len()))
            .collect();
        let expected = [("a", 2), ("b", 1), ("a", 1), ("b", 2)];
        assert_eq!(chunks, expected.map(|(name, len)| (name.to_owned(), len)));
    }

    #[test]
    fn packets_before_a_fault_are_delivered_before_the_error() {
        let (folder, _) = ring(&[0; 5], 16);
        let path = folder.path().join("file");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
        let ring = FileRing::open(path, 16, 100).unwrap();
        assert_eq!(ring.capture().unwrap().unwrap().len(), 4);
        assert!(!ring.is_exhausted());
        assert!(matches!(ring.capture(), Err(CaptureError::Savefile { .. })));
        assert!(ring.is_exhausted());
        assert!(ring.capture().unwrap().is_none());
    }
}
