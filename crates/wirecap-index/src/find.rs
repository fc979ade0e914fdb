//! Finds packets in many segments, in order of time, reading only the pieces that may contain
//! matches.
//!
//! Pieces of all files are read in the order of their earliest packet. Packets wait in a heap until
//! no unread piece can contain an earlier one, so memory use depends on the number of pieces that
//! overlap in time, not on the size of the result.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wirecap_savefile::{
    Block, Direction, Element, Interface, LinkType, PacketOptions, ReadError, Reader, Record,
    Statistics, Timestamp,
};
use wirecap_units::clock;
use wirecap_units::size::{grouped, human_bytes};

use crate::blocks::Damaged;
use crate::build::{Built, build};
use crate::kept::Kept;
use crate::query::{Query, QueryError};
use crate::row::{Index, Row, Summary};
use crate::segment::{Piece, Segment, complete_name};
use crate::storage::{Disk, Storage};
use crate::store::Without;

/// A progress message of the search.
#[derive(Debug)]
pub enum Note<'a> {
    /// The number of segments examined, and their total number.
    Looked(usize, usize),
    /// A segment without an index is being read, with the number of bytes read.
    Scanning(&'a Path, u64),
    /// A segment was removed before all of it was read.
    Vanished(&'a Path),
    /// A segment cannot be read, or not to its end.
    Faulty(&'a Path, &'a dyn Error),
    /// A segment has packets of a link type that is not dissected: none of them has the addresses
    /// or ports of the query.
    NotDissected(&'a Path, LinkType),
}

/// Why the search failed.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// The filter does not apply to packets of a segment.
    #[error("{file}: {1}", file = .0.display())]
    Query(PathBuf, #[source] QueryError),
    /// `note` returned `false`.
    #[error("interrupted")]
    Stopped,
}

/// A segment and its pieces to be read.
#[derive(Debug)]
pub struct Planned {
    /// The segment.
    pub path: PathBuf,
    /// The reason why the segment was scanned instead of its index.
    pub without: Option<Without>,
    /// Bytes of the segment.
    pub bytes: u64,
    /// Packets of the segment.
    pub packets: u64,
    /// The earliest and the latest time of its packets, in nanoseconds since the epoch.
    pub times: Option<(u64, u64)>,
    /// The segment's number of pieces.
    pub pieces: usize,
    /// The pieces that may contain matches.
    pub selected: Vec<Piece>,
    /// The maximum number of matches in each of them, by its offset. Where it is missing, all
    /// packets of the piece may match.
    pub matches_max: BTreeMap<u64, u64>,
    /// Pieces that are required to read the others.
    pub context: Vec<Piece>,
    /// Whether the segment is read up to a fault.
    pub is_faulty: bool,
}

/// Lines of a list, each of which fits into 80 columns unless the path is long.
impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let packets = grouped(self.packets);
        let bytes = human_bytes(self.bytes);
        writeln!(f, "{}: {packets} packets, {bytes}", self.path.display())?;

        let times =
            self.times.map_or("no packets".to_owned(), |(first, last)| clock::span(first, last));
        let pieces = [self.selected.len(), self.pieces].map(|count| grouped(count as u64));
        write!(f, "  {times}, {} of {} pieces may match", pieces[0], pieces[1])?;
        self.without.iter().try_for_each(|without| write!(f, "\n  {without}"))?;

        // A segment without a valid index is a file on this machine. One with a fault gets no
        // index.
        match self.without {
            Some(Without::Damaged(_)) if !self.is_faulty => {
                f.write_str("\n  wirecap index rewrites it")
            }
            _ => Ok(()),
        }
    }
}

/// Conditions, in addition to a [`Query`], that exclude rows and pieces of an index.
pub trait Sieve {
    /// Sets `keep` to `false` for rows none of whose packets can match.
    fn rows(&mut self, index: &Index, keep: &mut [bool]);

    /// The same for pieces. Only the times, numbers and count of their packets are known.
    fn pieces(&mut self, pieces: &[Piece], keep: &mut [bool]);
}

/// Excludes nothing.
impl Sieve for () {
    fn rows(&mut self, _: &Index, _: &mut [bool]) {}

    fn pieces(&mut self, _: &[Piece], _: &mut [bool]) {}
}

/// The pieces to be read, in order.
#[derive(Debug, Default)]
pub struct Plan {
    /// The segments, in the order in which they were given.
    pub segments: Vec<Planned>,
    /// Bytes of segments that were scanned.
    pub scanned_bytes: u64,
    /// Segments that were removed.
    pub vanished: usize,
    /// Segments that cannot be read, or not to their end.
    pub faulty: usize,
}

/// What was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Packets.
    pub packets: u64,
    /// Bytes that were read of the files of segments with an index. The others were read completely
    /// before ([`Plan::scanned_bytes`]).
    pub read_bytes: u64,
    /// Bytes of the pieces with matching packets.
    pub matching_bytes: u64,
    /// Pieces that were read.
    pub pieces: u64,
    /// Segments that vanished while they were read.
    pub vanished: usize,
    /// Segments that cannot be read, or contradict their index.
    pub faulty: usize,
}

/// A packet that was found.
#[derive(Debug)]
pub struct Found<'a> {
    /// The packet; its interface is the number of `interface` among those of the packets found, in
    /// order of their first packets.
    pub record: Record<'a>,
    /// Its interface.
    pub interface: &'a Interface,
}

/// Determines which of the files `segments` may contain matches. `note` returns `false` to stop.
///
/// # Errors
///
/// [`FindError`].
pub fn plan(
    segments: &[PathBuf],
    query: &mut Query,
    note: &mut dyn FnMut(Note<'_>) -> bool,
) -> Result<Plan, FindError> {
    let mut plan = Plan::default();
    for (index, path) in segments.iter().enumerate() {
        if !note(Note::Looked(index, segments.len())) {
            return Err(FindError::Stopped);
        }
        plan.add(&Disk, path, query, &mut (), note)?;
    }
    Ok(plan)
}

impl Plan {
    /// The segments that may contain matches.
    pub fn candidates(&self) -> impl Iterator<Item = &Planned> {
        self.segments.iter().filter(|segment| !segment.selected.is_empty())
    }

    /// Adds a segment. A segment that cannot be read is counted and skipped.
    ///
    /// # Errors
    ///
    /// [`FindError::Stopped`].
    pub fn add(
        &mut self,
        storage: &dyn Storage,
        path: &Path,
        query: &mut Query,
        sieve: &mut dyn Sieve,
        note: &mut dyn FnMut(Note<'_>) -> bool,
    ) -> Result<(), FindError> {
        let (index, without, name, is_faulty) = match read_index(storage, path, query) {
            Ok(index) => (Ok(index), None, path, false),
            Err(Unread::Query(error)) => (Err(error), None, path, false),
            Err(Unread::Index(without)) if storage.has_files() => match self.scan(path, note)? {
                Some((Built { index, fault }, name)) => {
                    (matching(index, query), Some(without), name, fault.is_some())
                }
                None => return Ok(()),
            },
            Err(Unread::Index(without)) => {
                self.faulty += 1;
                note(Note::Faulty(path, &without));
                return Ok(());
            }
        };
        if let Ok(index) = &index {
            let link_types: BTreeSet<u16> =
                index.rows.iter().map(|row| row.flow.link_type.0).collect();
            for link_type in
                link_types.into_iter().map(LinkType).filter(|&of| query.is_blind_to(of))
            {
                note(Note::NotDissected(name, link_type));
            }
        }

        match index.and_then(|index| planned(name, without, &index, query, sieve)) {
            Ok(planned) => self.segments.push(Planned { is_faulty, ..planned }),
            Err(error) => self.refuse(name, &error, note),
        }
        Ok(())
    }

    /// Reads a segment in place of its index; returns also the name under which it was found.
    fn scan<'a>(
        &mut self,
        path: &'a Path,
        note: &mut dyn FnMut(Note<'_>) -> bool,
    ) -> Result<Option<(Built, &'a Path)>, FindError> {
        let mut stopped = false;
        let mut progress = |bytes| {
            stopped = !note(Note::Scanning(path, bytes));
            !stopped
        };

        let mut name = path;
        let mut built = build(name, &mut progress);
        if let (Err(ReadError::Open { source, .. }), Some(complete)) = (&built, complete_name(path))
            && source.kind() == io::ErrorKind::NotFound
        {
            name = complete;
            built = build(name, &mut progress);
        }

        match built {
            Ok(built) => {
                self.scanned_bytes += built.index.summary.identity.bytes;
                // The last packet of a segment that is being written may be incomplete.
                let is_open = complete_name(name).is_some();
                if let Some(fault) = built.fault.as_ref().filter(|_| !is_open) {
                    self.faulty += 1;
                    note(Note::Faulty(name, fault));
                }
                Ok(Some((built, name)))
            }
            Err(_) if stopped => Err(FindError::Stopped),
            Err(ReadError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                self.vanished += 1;
                note(Note::Vanished(path));
                Ok(None)
            }
            // The file was created, but is still empty.
            Err(ReadError::Empty) => Ok(None),
            Err(error) => {
                self.faulty += 1;
                note(Note::Faulty(path, &error));
                Ok(None)
            }
        }
    }
}

/// Why the rows of an index that may match are not known.
enum Unread {
    /// The filter does not apply to packets of the segment.
    Query(QueryError),
    /// The segment has no valid index.
    Index(Without),
}

impl From<QueryError> for Unread {
    fn from(error: QueryError) -> Self {
        Self::Query(error)
    }
}

impl From<Damaged> for Unread {
    fn from(damaged: Damaged) -> Self {
        Self::Index(Without::Damaged(damaged.to_string()))
    }
}

/// The index of a segment with only those rows that may match.
fn read_index(storage: &dyn Storage, path: &Path, query: &mut Query) -> Result<Index, Unread> {
    query.index(storage.table(path).map_err(Unread::Index)?)
}

/// Like [`read_index`], for an index with all rows.
fn matching(index: Index, query: &mut Query) -> Result<Index, QueryError> {
    let Index { summary, rows } = index;
    let matching = |row: Row| query.may_match(&row).map(|may| may.then_some(row)).transpose();
    let rows = rows.into_iter().filter_map(matching).collect::<Result<_, _>>()?;
    Ok(Index { summary, rows })
}

/// `index` has only rows that may match.
fn planned(
    path: &Path,
    without: Option<Without>,
    index: &Index,
    query: &mut Query,
    sieve: &mut dyn Sieve,
) -> Result<Planned, QueryError> {
    let Summary { identity, packets, pieces, .. } = &index.summary;
    let mut keep = vec![true; index.rows.len()];
    sieve.rows(index, &mut keep);

    let mut may_match = vec![false; pieces.len()];
    let mut matches_max = BTreeMap::new();

    for (row, keep) in index.rows.iter().zip(keep) {
        for part in query.parts_of(row)? {
            let Some(piece) = pieces.get(part.piece as usize) else { continue };
            may_match[part.piece as usize] |= keep;
            // Also of rows that the sieve excludes, because the query finds their packets, too.
            *matches_max.entry(piece.offset).or_default() += u64::from(part.packets);
        }
    }

    sieve.pieces(pieces, &mut may_match);
    let selected =
        pieces.iter().zip(may_match).filter(|(piece, may)| *may && query.may_be_in_piece(piece));
    let selected: Vec<Piece> = selected.map(|(piece, _)| *piece).collect();
    let context = match selected.is_empty() {
        true => Vec::new(),
        false => pieces.iter().filter(|piece| piece.has_context).copied().collect(),
    };

    Ok(Planned {
        path: path.to_owned(),
        without,
        bytes: identity.bytes,
        packets: *packets,
        times: index.times(),
        pieces: pieces.len(),
        selected,
        matches_max,
        context,
        is_faulty: false,
    })
}

/// A packet of a segment.
#[derive(Debug)]
pub struct Packet<'a> {
    /// Its number in the segment, from 0.
    pub number: u64,
    /// Its time in nanoseconds since the epoch; 0 if it has none.
    pub nanos: u64,
    /// The packet; its interface is the number in the segment.
    pub record: Record<'a>,
    /// Its interface.
    pub interface: &'a Interface,
    /// Its options of pcapng.
    pub options: PacketOptions<'a>,
}

impl Planned {
    /// Opens the segment. Bytes that are read will be added to `read_bytes`.
    ///
    /// # Errors
    ///
    /// [`Fault`].
    pub fn open(
        &self,
        storage: &dyn Storage,
        read_bytes: &Arc<AtomicU64>,
    ) -> Result<PlannedReader<'_>, Fault> {
        let segment = Segment::open(storage.open(&self.path)?, read_bytes)?;
        Ok(PlannedReader { planned: self, segment, before: Mutex::default() })
    }
}

/// An open segment whose pieces are read, each independently of the others.
#[derive(Debug)]
pub struct PlannedReader<'a> {
    planned: &'a Planned,
    segment: Segment,
    /// The reader of the last piece, for the next one: it knows the interfaces and sections before
    /// that piece, of which a segment may have thousands.
    before: Mutex<Option<Before>>,
}

/// A reader that has read all context before an offset of the segment's file.
#[derive(Debug)]
struct Before {
    reader: Reader,
    offset: u64,
}

/// Gets each block that is not a packet, and where it begins in the segment's decompressed
/// contents.
type TakeBlock<'a> = dyn FnMut(u64, &Block<'_>) + 'a;

impl PlannedReader<'_> {
    /// Passes the matching packets of a piece to `each`, which returns `false` to stop.
    ///
    /// # Errors
    ///
    /// [`Fault`].
    pub fn read(
        &self,
        piece: &Piece,
        query: &mut Query,
        each: &mut dyn FnMut(&Packet<'_>) -> bool,
    ) -> Result<(), Fault> {
        self.read_all(piece, query, each, &mut |_, _| {})
    }

    /// As [`read`](Self::read); `take` gets the other blocks of the piece, and those before it that
    /// are required to read it.
    pub(crate) fn read_all(
        &self,
        piece: &Piece,
        query: &mut Query,
        each: &mut dyn FnMut(&Packet<'_>) -> bool,
        take: &mut TakeBlock<'_>,
    ) -> Result<(), Fault> {
        let Planned { matches_max, is_faulty, .. } = self.planned;
        let mut reader = self.reader_at(piece, take)?;
        let mut left = piece.packets;
        let mut matches_left =
            matches_max.get(&piece.offset).map_or(piece.packets, |matches| *matches);

        // The fault of a segment that could not be read to its end is in its last piece.
        while left > 0 || !is_faulty {
            let begin = piece.begin + reader.offset();
            let (record, interface, options) = match reader.next_element()? {
                Some(Element::Packet(record, interface, options)) => (record, interface, options),
                Some(Element::Block(block)) => {
                    take(begin, &block);
                    continue;
                }
                None if left > 0 => return Err(Fault::of_index()),
                None => break,
            };

            if left == 0 {
                return Err(Fault::of_index());
            }

            let number = piece.first_packet + piece.packets - left;
            left -= 1;

            let nanos = record.timestamp.map_or(0, Timestamp::unix_nanos);
            if !(piece.earliest..=piece.latest).contains(&nanos) {
                return Err(Fault::of_index());
            }

            let is_match = query.matches(interface.link_type, &record).map_err(Fault::Query)?;
            if !is_match {
                continue;
            }

            matches_left = matches_left.saturating_sub(1);
            let is_wanted = each(&Packet { number, nanos, record, interface, options });
            if !is_wanted || matches_left == 0 && left > 0 {
                if !piece.has_context {
                    self.put_back(reader, piece);
                }
                return Ok(());
            }
        }

        self.put_back(reader, piece);
        Ok(())
    }

    /// Passes the blocks after `piece` that are required to read other pieces to `take`.
    pub(crate) fn read_context_after(
        &self,
        piece: &Piece,
        take: &mut TakeBlock<'_>,
    ) -> Result<(), Fault> {
        let after = self.planned.context.iter().rfind(|part| part.offset > piece.offset);
        match after {
            Some(last) => {
                let end = Piece { offset: last.offset + last.bytes, bytes: 0, len: 0, ..*last };
                self.reader_at(&end, take).map(drop)
            }
            None => Ok(()),
        }
    }

    /// A reader at the beginning of the piece, which has read the context before it.
    fn reader_at(&self, piece: &Piece, take: &mut TakeBlock<'_>) -> Result<Reader, Fault> {
        let before = lock(&self.before).take().filter(|before| before.offset <= piece.offset);
        let (mut reader, offset) = match before {
            Some(Before { reader, offset }) => (Some(reader), offset),
            None => (None, 0),
        };

        let context = self.planned.context.iter();
        for part in context.filter(|part| (offset..piece.offset).contains(&part.offset)) {
            let reader = continued(&mut reader, self.segment.expand(part)?)?;
            let mut packets = 0;

            loop {
                let begin = part.begin + reader.offset();
                match reader.next_element()? {
                    Some(Element::Packet(..)) => packets += 1,
                    Some(Element::Block(block)) => take(begin, &block),
                    None => break,
                }
            }

            if packets != part.packets {
                return Err(Fault::of_index());
            }
        }

        continued(&mut reader, self.segment.expand(piece)?)?;
        Ok(reader.expect("it was begun or continued"))
    }

    fn put_back(&self, reader: Reader, piece: &Piece) {
        *lock(&self.before) = Some(Before { reader, offset: piece.offset + piece.bytes });
    }
}

/// The reader, which continues with `source`; a new one begins with it.
fn continued(
    reader: &mut Option<Reader>,
    source: impl std::io::Read + Send + 'static,
) -> Result<&mut Reader, Fault> {
    match reader {
        Some(reader) => reader.continue_with(source),
        None => *reader = Some(Reader::from_start(source)?),
    }
    Ok(reader.as_mut().expect("it was begun above"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A packet that waits for earlier ones, ordered by time, by segment, and by its number in the
/// segment.
#[derive(Debug)]
struct Waiting {
    order: (u64, usize, u64),
    /// The place of its interface in the list of the search.
    interface: usize,
    timestamp: Option<Timestamp>,
    is_time_out_of_range: bool,
    queue: Option<u32>,
    direction: Option<Direction>,
    wire_len: u32,
    data: Box<[u8]>,
    /// Its options, if they are kept.
    options: Box<[u8]>,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

impl Plan {
    /// The filter does not apply to packets of this segment, which is skipped.
    fn refuse(&mut self, path: &Path, error: &QueryError, note: &mut dyn FnMut(Note<'_>) -> bool) {
        self.faulty += 1;
        note(Note::Faulty(path, error));
    }

    /// Passes the packets of files in order of time to `emit`, which returns `false` to stop.
    ///
    /// # Errors
    ///
    /// `E` from `emit`; [`FindError`] for a filter that does not apply, converted to `E`.
    pub fn run<E: From<FindError>>(
        &self,
        query: &mut Query,
        note: &mut dyn FnMut(Note<'_>) -> bool,
        emit: &mut dyn FnMut(&Found<'_>) -> Result<bool, E>,
    ) -> Result<Outcome, E> {
        self.run_in(&Disk, query, note, emit)
    }

    /// As [`run`](Self::run), with segments in `storage`.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_in<E: From<FindError>>(
        &self,
        storage: &dyn Storage,
        query: &mut Query,
        note: &mut dyn FnMut(Note<'_>) -> bool,
        emit: &mut dyn FnMut(&Found<'_>) -> Result<bool, E>,
    ) -> Result<Outcome, E> {
        self.search(storage, None, query, note, &mut |item| match item {
            Item::Packet(found, _) => emit(found),
            Item::Block(_) | Item::Statistics(_) => Ok(true),
        })
    }

    /// As [`run_in`](Self::run_in), also with what a copy keeps besides the packets.
    pub(crate) fn run_whole<E: From<FindError>>(
        &self,
        storage: &dyn Storage,
        query: &mut Query,
        note: &mut dyn FnMut(Note<'_>) -> bool,
        emit: &mut dyn FnMut(Item<'_>) -> Result<bool, E>,
    ) -> Result<Outcome, E> {
        self.search(storage, Some(Kept::default()), query, note, emit)
    }

    fn search<E: From<FindError>>(
        &self,
        storage: &dyn Storage,
        kept: Option<Kept>,
        query: &mut Query,
        note: &mut dyn FnMut(Note<'_>) -> bool,
        emit: &mut dyn FnMut(Item<'_>) -> Result<bool, E>,
    ) -> Result<Outcome, E> {
        let read_bytes = Arc::new(AtomicU64::new(0));
        let mut search = Search {
            plan: self,
            storage,
            outcome: Outcome::default(),
            interfaces: Vec::new(),
            numbered: 0,
            waiting: BinaryHeap::new(),
            kept,
            read_bytes: Arc::clone(&read_bytes),
            read_again_bytes: Arc::default(),
            given_up: BTreeSet::new(),
            open: None,
        };

        let mut jobs: Vec<(u64, usize, usize)> = Vec::new();

        for (segment, planned) in self.segments.iter().enumerate() {
            let pieces = planned.selected.iter().enumerate();
            jobs.extend(pieces.map(|(piece, Piece { earliest, .. })| (*earliest, segment, piece)));
        }

        jobs.sort_unstable();
        let mut is_enough = false;

        for (earliest, segment, piece) in jobs {
            is_enough = !search.emit_before(earliest, emit)?;
            if is_enough {
                break;
            }
            if search.given_up.contains(&segment) {
                continue;
            }
            if !note(Note::Looked(segment, self.segments.len())) {
                return Err(FindError::Stopped.into());
            }

            search.read(segment, piece, query, note)?;
        }

        if !is_enough {
            search.read_rest(note);
            let _ = search.emit_before(u64::MAX, emit)? && search.emit_statistics(emit)?;
        }

        search.outcome.read_bytes = read_bytes.load(Ordering::Relaxed);
        Ok(search.outcome)
    }
}

/// What was found, in the order of a savefile.
#[derive(Debug)]
pub(crate) enum Item<'a> {
    /// A packet, and its options.
    Packet(&'a Found<'a>, &'a [u8]),
    /// A block that is not a packet, of a segment with matching packets.
    Block(&'a [u8]),
    /// Counters of an interface with matching packets.
    Statistics(&'a Statistics),
}

struct Search<'a> {
    plan: &'a Plan,
    storage: &'a dyn Storage,
    outcome: Outcome,
    /// All interfaces with matching packets in the order in which they were read, and the numbers
    /// of those with packets that were passed on.
    interfaces: Vec<(Interface, Option<u32>)>,
    /// How many interfaces have a number.
    numbered: u32,
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// What is kept besides the packets, if it is required.
    kept: Option<Kept>,
    read_bytes: Arc<AtomicU64>,
    /// Bytes of segments that were scanned.
    read_again_bytes: Arc<AtomicU64>,
    /// Segments that cannot be read.
    given_up: BTreeSet<usize>,
    /// The segment that was read last, and its number: the next piece is usually one of it.
    open: Option<(usize, PlannedReader<'a>)>,
}

impl Search<'_> {
    /// Passes on packets that no unread packet can precede; `false` to stop.
    fn emit_before<E>(
        &mut self,
        nanos: u64,
        emit: &mut dyn FnMut(Item<'_>) -> Result<bool, E>,
    ) -> Result<bool, E> {
        for block in self.kept.iter_mut().flat_map(Kept::take_ready) {
            if !emit(Item::Block(&block))? {
                return Ok(false);
            }
        }

        while let Some(Reverse(first)) = self.waiting.peek() {
            if first.order.0 >= nanos && nanos != u64::MAX {
                break;
            }

            let Some(Reverse(packet)) = self.waiting.pop() else { break };
            let Waiting {
                interface,
                timestamp,
                is_time_out_of_range,
                queue,
                direction,
                wire_len,
                ref data,
                ref options,
                ..
            } = packet;

            let (interface, number) = &mut self.interfaces[interface];
            let number = *number.get_or_insert_with(|| {
                self.numbered += 1;
                self.numbered - 1
            });

            let record = Record {
                interface: number,
                timestamp,
                is_time_out_of_range,
                queue,
                direction,
                wire_len,
                data,
            };
            let found = Found { record, interface };
            self.outcome.packets += 1;

            if !emit(Item::Packet(&found, options))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads what is kept of the segments with matching packets and was not read with them. A fault
    /// in it is no fault of the search.
    fn read_rest(&mut self, note: &mut dyn FnMut(Note<'_>) -> bool) {
        let matching = self.kept.as_ref().map(Kept::matching).unwrap_or_default();
        for segment in matching {
            let planned = &self.plan.segments[segment];
            let Some(last) = planned.selected.iter().max_by_key(|piece| piece.offset) else {
                continue;
            };

            if self.given_up.contains(&segment) {
                continue;
            }

            let read_bytes =
                if planned.without.is_none() { &self.read_bytes } else { &self.read_again_bytes };
            let mut take = |offset, block: &Block<'_>| {
                self.kept.iter_mut().for_each(|kept| kept.add(segment, offset, block));
            };
            let read = match self.open.take() {
                Some((open, reader)) if open == segment => {
                    reader.read_context_after(last, &mut take)
                }
                _ => planned
                    .open(self.storage, read_bytes)
                    .and_then(|reader| reader.read_context_after(last, &mut take)),
            };
            if let Err(fault) = read {
                note(Note::Faulty(&planned.path, &fault));
            }
        }
    }

    /// Passes on the latest counters of each interface that has packets.
    fn emit_statistics<E>(
        &mut self,
        emit: &mut dyn FnMut(Item<'_>) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let mut latest: BTreeMap<u32, Statistics> = BTreeMap::new();

        for (interface, statistics) in self.kept.iter().flat_map(Kept::statistics) {
            let known = self.interfaces.iter().find(|(known, _)| known == interface);
            let Some(number) = known.and_then(|(_, number)| *number) else { continue };
            let is_later = latest.get(&number).is_none_or(|known| known.end <= statistics.end);
            if is_later {
                latest.insert(number, Statistics { interface: number, ..*statistics });
            }
        }

        for statistics in latest.values() {
            if !emit(Item::Statistics(statistics))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read(
        &mut self,
        segment: usize,
        piece: usize,
        query: &mut Query,
        note: &mut dyn FnMut(Note<'_>) -> bool,
    ) -> Result<(), FindError> {
        let planned = &self.plan.segments[segment];
        match self.read_piece(segment, piece, query) {
            Ok(()) => Ok(()),
            Err(Fault::Query(error)) => Err(FindError::Query(planned.path.clone(), error)),
            Err(Fault::Vanished) => {
                self.given_up.insert(segment);
                self.outcome.vanished += 1;
                note(Note::Vanished(&planned.path));
                Ok(())
            }
            Err(Fault::Unreadable(error)) => {
                self.given_up.insert(segment);
                self.outcome.faulty += 1;
                note(Note::Faulty(&planned.path, &*error));
                Ok(())
            }
        }
    }

    fn read_piece(&mut self, segment: usize, piece: usize, query: &mut Query) -> Result<(), Fault> {
        let planned = &self.plan.segments[segment];
        let piece = planned.selected[piece];
        self.outcome.pieces += 1;

        let interfaces = &mut self.interfaces;
        let waiting = &mut self.waiting;
        let kept = &mut self.kept;
        let keeps_options = kept.is_some();
        let mut places: Vec<Option<usize>> = Vec::new();
        let mut is_match = false;
        let read_bytes =
            if planned.without.is_none() { &self.read_bytes } else { &self.read_again_bytes };

        let reader = match self.open.take() {
            Some((open, reader)) if open == segment => reader,
            _ => planned.open(self.storage, read_bytes)?,
        };
        let mut each = |packet: &Packet<'_>| {
            is_match = true;
            let Record {
                interface,
                timestamp,
                is_time_out_of_range,
                queue,
                direction,
                wire_len,
                data,
            } = packet.record;

            let number = interface as usize;
            if places.len() <= number {
                places.resize(number + 1, None);
            }

            let interface =
                *places[number].get_or_insert_with(|| place_of(interfaces, packet.interface));
            waiting.push(Reverse(Waiting {
                order: (packet.nanos, segment, packet.number),
                interface,
                timestamp,
                is_time_out_of_range,
                queue,
                direction,
                wire_len,
                data: data.into(),
                options: match keeps_options {
                    true => packet.options.to_little_endian().into(),
                    false => Box::default(),
                },
            }));

            true
        };

        let mut take = |offset, block: &Block<'_>| {
            kept.iter_mut().for_each(|kept| kept.add(segment, offset, block));
        };
        let read = reader.read_all(&piece, query, &mut each, &mut take);

        if is_match {
            kept.iter_mut().for_each(|kept| kept.found_in(segment));
        }
        if is_match && read.is_ok() {
            self.outcome.matching_bytes += piece.bytes;
        }

        self.open = Some((segment, reader));
        read
    }
}

/// The place of an interface in the list of known interfaces.
fn place_of(interfaces: &mut Vec<(Interface, Option<u32>)>, interface: &Interface) -> usize {
    interfaces.iter().position(|(known, _)| known == interface).unwrap_or_else(|| {
        interfaces.push((interface.clone(), None));
        interfaces.len() - 1
    })
}

/// The reason why a piece cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The filter does not apply to its packets.
    #[error(transparent)]
    Query(QueryError),
    /// The segment was removed.
    #[error("it was removed before all of it was read")]
    Vanished,
    /// The segment is damaged, or its index is that of another one.
    #[error(transparent)]
    Unreadable(Box<dyn Error + Send + Sync>),
}

impl Fault {
    fn of_index() -> Self {
        Self::Unreadable(
            "its index does not match it: write a new one, with wirecap index on the machine that recorded"
                .into(),
        )
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Vanished,
            _ => Self::Unreadable(error.into()),
        }
    }
}

impl From<ReadError> for Fault {
    fn from(error: ReadError) -> Self {
        Self::Unreadable(error.into())
    }
}
