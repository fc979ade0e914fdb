//! Collects blocks in a buffer and passes them to a sink in large writes.
//!
//! The buffer always begins at a packet boundary of the file. The sink already has the first
//! `handed_over` bytes: more than zero only after a failed write to a sink that cannot remove
//! bytes. A later flush then continues in the middle of the incomplete packet.

use std::fmt;
use std::io;

use crate::{
    Format, Interface, LinkType, PACKET_BYTES_MAX, Record, Section, Sink, Statistics, Timestamp,
    pcap, pcapng,
};

/// Large enough to make the system call's cost per packet negligible, small enough for a core's own
/// cache.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes packets to a savefile.
///
/// Packets stay in a buffer until it is full or [`flush`](Self::flush) or [`finish`](Self::finish)
/// is called. If the process is killed, the file ends with a whole packet unless a write was in
/// progress. A dropped writer flushes, but ignores errors.
///
/// A writer can be used after an error: data that could not be written stay in the buffer, and the
/// next flush tries again.
///
/// ```
/// use wirecap_savefile::{Format, Interface, Record, Section, StreamSink, Writer};
///
/// let sink = StreamSink::new(Vec::new(), "memory");
/// let mut writer = Writer::new(sink, Format::Pcapng, &Section::default());
/// let eth0 = writer.add_interface(&Interface { name: Some("eth0".into()), ..Interface::default() })?;
/// writer.write(&Record { interface: eth0, wire_len: 60, data: &[0; 60], ..Record::default() })?;
/// let file: Vec<u8> = writer.finish()?.into_inner();
/// # assert!(!file.is_empty());
/// # Ok::<(), wirecap_savefile::WriteError>(())
/// ```
pub struct Writer<S: Sink> {
    /// `None` only after `finish`.
    sink: Option<S>,
    format: Format,
    /// For pcap: the link type in the file's header, set by the first interface.
    link_type: Option<LinkType>,
    interface_count: u32,
    /// Maximum packet length of the file.
    data_bytes_max: usize,
    /// Where the file states this length, if it is raised for a longer packet.
    snap_len_at: Option<u64>,
    /// Filled up to `end`.
    buffer: Box<[u8]>,
    end: usize,
    handed_over: usize,
    /// Bytes of the file before the buffer.
    settled_bytes: u64,
    /// Packets before the buffer.
    settled_packets: u64,
    buffered_packets: u64,
}

impl<S: Sink> Writer<S> {
    /// Begins a savefile. The sink receives no bytes before the first flush.
    ///
    /// A pcap file's header contains the link type, so it is created with the first interface.
    pub fn new(sink: S, format: Format, section: &Section) -> Self {
        Self::with_buffer(sink, format, section, BUFFER_BYTES)
    }

    /// Begins a savefile with a buffer of `buffer_bytes`, which grows only for a longer packet.
    pub fn with_buffer(sink: S, format: Format, section: &Section, buffer_bytes: usize) -> Self {
        let head = match format {
            Format::Pcapng => pcapng::section_header(section),
            Format::Pcap => Vec::new(),
        };
        let mut buffer = vec![0; buffer_bytes.max(head.len())].into_boxed_slice();
        buffer[..head.len()].copy_from_slice(&head);
        Self {
            sink: Some(sink),
            format,
            link_type: None,
            interface_count: 0,
            data_bytes_max: PACKET_BYTES_MAX as usize,
            snap_len_at: None,
            buffer,
            end: head.len(),
            handed_over: 0,
            settled_bytes: 0,
            settled_packets: 0,
            buffered_packets: 0,
        }
    }

    /// Begins a pcapng file to which existing blocks are copied, including the section header.
    pub(crate) fn of_blocks(sink: S) -> Self {
        let mut writer = Self::new(sink, Format::Pcapng, &Section::default());
        writer.end = 0;
        writer
    }

    /// Writes a complete pcapng block unchanged.
    pub(crate) fn block(&mut self, block: &[u8]) -> Result<(), WriteError> {
        let (_, is_packet) = pcapng::next_block(block);
        self.append(block)?;
        self.buffered_packets += u64::from(is_packet);
        Ok(())
    }

    /// Adds an interface and returns its index for records.
    ///
    /// A pcap file stores only the link type of its interfaces, which must be the same for all, and
    /// the `snap_len` of the first interface.
    ///
    /// # Errors
    ///
    /// [`WriteError::LinkType`] if a pcap file has another link type, and errors of
    /// [`flush`](Self::flush).
    pub fn add_interface(&mut self, interface: &Interface) -> Result<u32, WriteError> {
        match self.format {
            Format::Pcapng => self.append(&pcapng::interface_description(interface))?,
            Format::Pcap => self.join_pcap(interface)?,
        }
        self.interface_count += 1;
        Ok(self.interface_count - 1)
    }

    /// Writes one packet.
    ///
    /// # Errors
    ///
    /// [`WriteError::UnknownInterface`], [`WriteError::TooLong`], [`WriteError::TooLate`] and
    /// [`WriteError::TimeOutOfRange`] for a record that does not fit the file, and errors of
    /// [`flush`](Self::flush). The record is not written then.
    #[inline]
    pub fn write(&mut self, record: &Record<'_>) -> Result<(), WriteError> {
        let is_fit =
            record.interface < self.interface_count && record.data.len() <= self.data_bytes_max;
        if !is_fit || record.is_time_out_of_range {
            self.make_fit(record)?;
        }

        match self.format {
            Format::Pcapng => {
                let slot = self.reserve(pcapng::enhanced_packet_len(record))?;
                pcapng::enhanced_packet(slot, record);
            }
            Format::Pcap => {
                if !pcap::holds_time(record) {
                    return Err(self.unfit(record));
                }
                let slot = self.reserve(pcap::packet_len(record))?;
                pcap::packet(slot, record);
            }
        }

        self.buffered_packets += 1;
        Ok(())
    }

    /// Writes one packet with these options of pcapng, which include direction and queue; see
    /// [`PacketOptions`](crate::PacketOptions). A pcap file gets the packet without them.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_with_options(
        &mut self,
        record: &Record<'_>,
        options: &[u8],
    ) -> Result<(), WriteError> {
        if self.format == Format::Pcap || options.is_empty() {
            return self.write(record);
        }

        let is_fit =
            record.interface < self.interface_count && record.data.len() <= self.data_bytes_max;
        if !is_fit || record.is_time_out_of_range {
            self.make_fit(record)?;
        }

        let slot = self.reserve(pcapng::enhanced_packet_len_with_options(record, options))?;
        pcapng::enhanced_packet_with_options(slot, record, options);
        self.buffered_packets += 1;

        Ok(())
    }

    /// Writes a whole block that [`Block::portable`](crate::Block::portable) returned. A pcap file
    /// cannot store it and is unchanged.
    ///
    /// # Errors
    ///
    /// Those of [`flush`](Self::flush).
    pub fn write_block(&mut self, block: &[u8]) -> Result<(), WriteError> {
        match self.format {
            Format::Pcapng => self.append(block),
            Format::Pcap => Ok(()),
        }
    }

    /// Writes the counters of an interface. A pcap file cannot store them and is unchanged.
    ///
    /// # Errors
    ///
    /// [`WriteError::UnknownInterface`], and errors of [`flush`](Self::flush).
    pub fn statistics(&mut self, statistics: &Statistics) -> Result<(), WriteError> {
        if statistics.interface >= self.interface_count {
            return Err(self.unknown_interface(statistics.interface));
        }
        match self.format {
            Format::Pcapng => self.append(&pcapng::interface_statistics(statistics)),
            Format::Pcap => Ok(()),
        }
    }

    /// Passes everything written so far to the sink.
    ///
    /// # Errors
    ///
    /// [`WriteError::BrokenPipe`], [`WriteError::Sink`] or [`WriteError::Torn`]; data that could
    /// not be written stay in the buffer for another flush.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        let sink = self.sink.as_mut().expect("a writer has its sink until it is finished");
        while self.handed_over < self.end {
            match sink.append(&self.buffer[self.handed_over..self.end]) {
                Ok(0) => return Err(self.stopped(io::ErrorKind::WriteZero.into())),
                Ok(count) => self.handed_over += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.stopped(error)),
            }
        }
        let flushed = sink.flush();
        self.settle(self.end, self.buffered_packets);
        flushed.map_err(|error| self.failure(error))
    }

    /// Flushes, and returns the sink.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush).
    pub fn finish(mut self) -> Result<S, WriteError> {
        self.flush()?;
        let ended = self.sink.as_mut().map_or(Ok(()), Sink::end);
        ended.map_err(|error| self.failure(error))?;
        Ok(self.sink.take().expect("a writer has its sink until it is finished"))
    }

    /// The file's length in bytes, including buffered bytes.
    pub fn file_bytes(&self) -> u64 {
        self.settled_bytes + self.end as u64
    }

    /// The number of packets written so far, including buffered packets.
    pub fn packets(&self) -> u64 {
        self.settled_packets + self.buffered_packets
    }

    /// Writes packets that are longer than the snapshot length in the file's header, as a copy of a
    /// file that has such packets.
    pub(crate) fn accept_longer_packets(&mut self) {
        self.data_bytes_max = PACKET_BYTES_MAX as usize;
    }

    /// Adds the first interface of a copy in another format. Its snapshot length is raised to the
    /// maximum if a longer packet follows: libpcap truncates such packets in pcap, and rejects them
    /// in pcapng. If the sink cannot replace bytes, it is raised when the first bytes are passed
    /// on.
    pub(crate) fn add_adjustable_interface(
        &mut self,
        interface: &Interface,
    ) -> Result<(), WriteError> {
        const IN_PCAP: u64 = 16;
        const IN_INTERFACE: u64 = 12;

        let at = match self.format {
            Format::Pcap => IN_PCAP,
            Format::Pcapng => self.file_bytes() + IN_INTERFACE,
        };
        self.add_interface(interface)?;

        if interface.snap_len > 0 {
            self.data_bytes_max = self.data_bytes_max.min(interface.snap_len as usize);
            self.snap_len_at = Some(at);
        }

        Ok(())
    }

    /// Raises the snapshot length that the file states, or returns why the record does not fit.
    #[cold]
    fn make_fit(&mut self, record: &Record<'_>) -> Result<(), WriteError> {
        let is_only_long = record.interface < self.interface_count
            && record.data.len() <= PACKET_BYTES_MAX as usize
            && !record.is_time_out_of_range;
        let is_fit = match self.snap_len_at {
            Some(at) if is_only_long => self.raise_snap_len(at)?,
            _ => false,
        };
        if is_fit { Ok(()) } else { Err(self.unfit(record)) }
    }

    /// Returns `false` if the sink has the bytes, and cannot replace them.
    fn raise_snap_len(&mut self, at: u64) -> Result<bool, WriteError> {
        let bytes = PACKET_BYTES_MAX.to_le_bytes();
        let place = at.checked_sub(self.settled_bytes + self.handed_over as u64);
        match place.map(|place| self.handed_over + place as usize) {
            Some(place) => self.buffer[place..place + bytes.len()].copy_from_slice(&bytes),
            None => {
                let sink = self.sink.as_mut().expect("a writer has its sink until it is finished");
                let rewritten = sink.rewrite(at, &bytes);
                if !rewritten.map_err(|error| self.failure(error))? {
                    return Ok(false);
                }
            }
        }

        self.accept_longer_packets();
        self.snap_len_at = None;

        Ok(true)
    }

    fn join_pcap(&mut self, interface: &Interface) -> Result<(), WriteError> {
        match self.link_type {
            Some(file) if file != interface.link_type => {
                Err(WriteError::LinkType { file, interface: interface.link_type })
            }
            Some(_) => Ok(()),
            None => {
                self.append(&pcap::file_header(interface))?;
                self.link_type = Some(interface.link_type);
                self.data_bytes_max = pcap::snap_len(interface) as usize;
                Ok(())
            }
        }
    }

    /// Writes a block that is not a packet.
    fn append(&mut self, block: &[u8]) -> Result<(), WriteError> {
        self.reserve(block.len())?.copy_from_slice(block);
        Ok(())
    }

    /// Reserves the next `byte_count` bytes of the buffer for the caller to fill.
    #[inline]
    fn reserve(&mut self, byte_count: usize) -> Result<&mut [u8], WriteError> {
        if self.buffer.len() - self.end < byte_count {
            self.make_room(byte_count)?;
        }
        let slot = &mut self.buffer[self.end..self.end + byte_count];
        self.end += byte_count;
        Ok(slot)
    }

    #[cold]
    fn make_room(&mut self, byte_count: usize) -> Result<(), WriteError> {
        if let (Some(at), Some(sink)) = (self.snap_len_at, &mut self.sink)
            && !sink.rewrite(at, &[]).is_ok_and(|can| can)
        {
            self.raise_snap_len(at)?;
        }
        self.flush()?;
        if self.buffer.len() < byte_count {
            self.buffer = vec![0; byte_count].into_boxed_slice();
        }
        Ok(())
    }

    /// After a failed write, removes an incomplete packet from the sink if possible, and returns
    /// the error.
    #[cold]
    fn stopped(&mut self, source: io::Error) -> WriteError {
        let (boundary, packets) = self.last_boundary();
        let torn_bytes = self.handed_over - boundary;
        self.settle(boundary, packets);

        if torn_bytes == 0 {
            return self.failure(source);
        }

        let sink = self.sink.as_mut().expect("a writer has its sink until it is finished");
        match sink.take_back(torn_bytes) {
            Ok(true) => self.handed_over = 0,
            _ if source.kind() == io::ErrorKind::BrokenPipe => {}
            _ => {
                return WriteError::Torn {
                    sink: sink.name(),
                    packets: self.settled_packets,
                    source,
                };
            }
        }

        self.failure(source)
    }

    /// The number of whole-packet bytes at the beginning of what the sink has, and the number of
    /// these packets.
    fn last_boundary(&self) -> (usize, u64) {
        let mut boundary = 0;
        let mut packets = 0;
        while boundary < self.handed_over {
            let (len, is_packet) = self.next_block(boundary);
            if boundary + len > self.handed_over {
                break;
            }
            boundary += len;
            packets += u64::from(is_packet);
        }
        (boundary, packets)
    }

    /// The length of the block at `at`, and whether it is a packet.
    fn next_block(&self, at: usize) -> (usize, bool) {
        match self.format {
            Format::Pcapng => pcapng::next_block(&self.buffer[at..self.end]),
            Format::Pcap if self.settled_bytes == 0 && at == 0 => (pcap::FILE_HEADER, false),
            Format::Pcap => (pcap::next_packet_len(&self.buffer[at..self.end]), true),
        }
    }

    /// Removes whole blocks from the buffer that the sink now has.
    fn settle(&mut self, byte_count: usize, packets: u64) {
        self.buffer.copy_within(byte_count..self.end, 0);
        self.end -= byte_count;
        self.handed_over -= byte_count;
        self.settled_bytes += byte_count as u64;
        self.settled_packets += packets;
        self.buffered_packets -= packets;
    }

    #[cold]
    fn failure(&self, source: io::Error) -> WriteError {
        let packets = self.settled_packets;
        if source.kind() == io::ErrorKind::BrokenPipe {
            return WriteError::BrokenPipe { packets };
        }
        let sink = self.sink.as_ref().map(Sink::name).unwrap_or_default();
        WriteError::Sink { sink, packets, source }
    }

    #[cold]
    fn unfit(&self, record: &Record<'_>) -> WriteError {
        if record.interface >= self.interface_count {
            return self.unknown_interface(record.interface);
        }
        if record.is_time_out_of_range {
            return WriteError::TimeOutOfRange;
        }
        if self.format == Format::Pcap && !pcap::holds_time(record) {
            return WriteError::TooLate { timestamp: record.timestamp.unwrap_or_default() };
        }
        WriteError::TooLong { bytes: record.data.len(), bytes_max: self.data_bytes_max }
    }

    fn unknown_interface(&self, interface: u32) -> WriteError {
        WriteError::UnknownInterface { interface, interface_count: self.interface_count }
    }
}

impl<S: Sink> Drop for Writer<S> {
    fn drop(&mut self) {
        if self.sink.is_some() {
            // Drop cannot report an error; `finish` can.
            let _ = self.flush();
        }
    }
}

impl<S: Sink> fmt::Debug for Writer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("sink", &self.sink.as_ref().map(Sink::name))
            .field("format", &self.format)
            .field("interfaces", &self.interface_count)
            .field("packets", &self.packets())
            .field("file_bytes", &self.file_bytes())
            .finish_non_exhaustive()
    }
}

/// Why a savefile could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The reader has closed the stream, as is usual at the end of a capture into a pipe.
    #[error("the reader closed the pipe after {packets} packets")]
    BrokenPipe {
        /// The number of whole packets written to the pipe.
        packets: u64,
    },
    /// The system failed to write. The savefile contains whole packets only.
    #[error("cannot write to {sink}; it contains {packets} complete packets")]
    Sink {
        /// The savefile's path.
        sink: String,
        /// The number of packets in it.
        packets: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The system failed to write in the middle of a packet, and the savefile could not be
    /// truncated before that packet: it is a stream, or truncation failed.
    #[error(
        "cannot continue writing to {sink}, which now ends inside a packet; the {packets} packets before it \
         are complete"
    )]
    Torn {
        /// The savefile's path.
        sink: String,
        /// The number of whole packets in it.
        packets: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The interface's link type differs from that of the pcap file.
    #[error(
        "a pcap file has one link type: this one has {}, the interface has {}; write pcapng",
        .file.0, .interface.0
    )]
    LinkType {
        /// The file's link type.
        file: LinkType,
        /// The interface's link type.
        interface: LinkType,
    },
    /// No interface with this index has been added.
    #[error("no interface {interface} in the savefile, which has {interface_count}")]
    UnknownInterface {
        /// The index.
        interface: u32,
        /// The number of interfaces.
        interface_count: u32,
    },
    /// The packet is longer than the file's maximum.
    #[error("a packet of {bytes} bytes is longer than the {bytes_max} that the savefile allows")]
    TooLong {
        /// Length of the packet.
        bytes: usize,
        /// Maximum length in this file.
        bytes_max: usize,
    },
    /// The packet's time is later than a pcap file can store: its seconds have 32 bits and end in
    /// the year 2106.
    #[error("pcap cannot store timestamps from 2106 on ({timestamp}); write pcapng")]
    TooLate {
        /// The packet's time.
        timestamp: Timestamp,
    },
    /// The packet's time is before 1970 or after 2554. Only a copy of a pcapng file in the same
    /// format can keep it.
    #[error(
        "a packet's time is before 1970 or after 2554: only wirecap capture -r FILE -w COPY.pcapng keeps it"
    )]
    TimeOutOfRange,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts `room` bytes, at most `gulp` per call, then fails. Every other call is interrupted.
    struct Tight {
        file: Vec<u8>,
        room: usize,
        gulp: usize,
        error: io::ErrorKind,
        takes_back: bool,
        calls: usize,
    }

    impl Tight {
        fn with_room(room: usize) -> Self {
            let error = io::ErrorKind::StorageFull;
            Self { file: Vec::new(), room, gulp: 97, error, takes_back: true, calls: 0 }
        }
    }

    impl Sink for &mut Tight {
        fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            let count = bytes.len().min(self.gulp).min(self.room - self.file.len());
            match count {
                _ if self.calls % 2 == 1 => Err(io::ErrorKind::Interrupted.into()),
                0 => Err(self.error.into()),
                count => {
                    self.file.extend_from_slice(&bytes[..count]);
                    Ok(count)
                }
            }
        }

        fn take_back(&mut self, byte_count: usize) -> io::Result<bool> {
            if self.takes_back {
                self.file.truncate(self.file.len() - byte_count);
            }
            Ok(self.takes_back)
        }

        fn name(&self) -> String {
            "tight".into()
        }
    }

    const FORMATS: [Format; 2] = [Format::Pcapng, Format::Pcap];

    /// The packet at `index` in every file of these tests.
    fn packet(index: u64) -> Vec<u8> {
        vec![index as u8; 20 + index as usize % 50]
    }

    fn write_one<S: Sink>(writer: &mut Writer<S>, index: u64) -> Result<(), WriteError> {
        let data = packet(index);
        writer.write(&Record { wire_len: data.len() as u32, data: &data, ..Record::default() })
    }

    fn begin<S: Sink>(sink: S, format: Format) -> Writer<S> {
        let mut writer = Writer::with_buffer(sink, format, &Section::default(), 1000);
        writer.add_interface(&Interface::default()).expect("the buffer has room for it");
        writer
    }

    /// The bytes of a file with this number of packets.
    fn whole_file(format: Format, packets: u64) -> Vec<u8> {
        let mut sink = Tight::with_room(usize::MAX);
        let mut writer = begin(&mut sink, format);
        for index in 0..packets {
            write_one(&mut writer, index).expect("there is room");
        }
        writer.finish().expect("there is room");
        sink.file
    }

    /// Writes packets until one is rejected. Returns the error and the number of accepted packets.
    fn write_until_refused<S: Sink>(writer: &mut Writer<S>) -> (WriteError, u64) {
        for index in 0..100_000 {
            if let Err(error) = write_one(writer, index) {
                return (error, index);
            }
        }
        panic!("the sink never failed");
    }

    #[test]
    fn a_full_disk_leaves_whole_packets_and_their_number() {
        for format in FORMATS {
            for room in 0..5000 {
                let mut sink = Tight::with_room(room);
                let mut writer = begin(&mut sink, format);
                let (error, taken) = write_until_refused(&mut writer);
                assert_eq!(writer.packets(), taken);
                drop(writer); // Drop tries to flush once more, and must not damage the file.
                let WriteError::Sink { packets, .. } = error else { panic!("{error:?}") };

                assert!(room - sink.file.len() < 120, "room for another packet was left");
                if packets > 0 {
                    assert_eq!(sink.file, whole_file(format, packets));
                }
            }
        }
    }

    #[test]
    fn a_writer_continues_when_there_is_room_again() {
        for format in FORMATS {
            for takes_back in [true, false] {
                for room in [0, 10, 500, 1234, 2345] {
                    let mut sink = Tight { takes_back, ..Tight::with_room(room) };
                    let mut writer = begin(&mut sink, format);
                    let (_, taken) = write_until_refused(&mut writer);
                    writer.sink.as_mut().expect("it has one").room = usize::MAX;
                    write_one(&mut writer, taken).expect("there is room again");
                    writer.finish().expect("there is room again");
                    assert_eq!(sink.file, whole_file(format, taken + 1));
                }
            }
        }
    }

    #[test]
    fn a_stream_that_cannot_be_truncated_is_reported_as_torn() {
        let mut sink = Tight { takes_back: false, ..Tight::with_room(1234) };
        let (error, _) = write_until_refused(&mut begin(&mut sink, Format::Pcap));
        assert!(matches!(error, WriteError::Torn { .. }), "{error:?}");
    }

    #[test]
    fn a_pipe_without_a_reader_has_its_own_error() {
        let mut sink =
            Tight { takes_back: false, error: io::ErrorKind::BrokenPipe, ..Tight::with_room(1234) };
        let (error, _) = write_until_refused(&mut begin(&mut sink, Format::Pcapng));
        assert!(matches!(error, WriteError::BrokenPipe { packets: 1.. }), "{error:?}");
    }

    #[test]
    fn a_real_pipe_breaks_when_its_reader_closes_it() {
        let (mut reader, pipe) = io::pipe().expect("the system has pipes");
        let mut writer = begin(crate::StreamSink::new(pipe, "a pipe"), Format::Pcap);
        write_one(&mut writer, 0).expect("it goes into the buffer");
        writer.flush().expect("the pipe has room");
        let mut file = whole_file(Format::Pcap, 1);
        io::Read::read_exact(&mut reader, &mut file).expect("it is all in the pipe");
        assert_eq!(file, whole_file(Format::Pcap, 1));
        drop(reader);
        let (error, _) = write_until_refused(&mut writer);
        assert_eq!(error.to_string(), "the reader closed the pipe after 1 packets");
    }

    #[test]
    fn a_packet_longer_than_the_buffer_is_written() {
        let data = vec![7; PACKET_BYTES_MAX as usize];
        let mut sink = Tight { gulp: 1 << 20, ..Tight::with_room(1 << 20) };
        let mut writer = begin(&mut sink, Format::Pcapng);
        let record = Record { wire_len: PACKET_BYTES_MAX, data: &data, ..Record::default() };
        writer.write(&record).expect("it is as long as a packet may be");
        let file_bytes = writer.file_bytes();
        writer.finish().expect("there is room");
        assert_eq!(sink.file.len() as u64, file_bytes);
        assert!(sink.file.windows(data.len()).any(|window| window == data));
    }

    #[test]
    fn records_that_do_not_fit_the_file_are_rejected() {
        let mut sink = Tight::with_room(1 << 20);
        let mut writer = begin(&mut sink, Format::Pcap);
        let raw = Interface { link_type: LinkType::RAW, ..Interface::default() };
        let error = writer.add_interface(&raw).expect_err("the file is Ethernet");
        assert!(matches!(error, WriteError::LinkType { .. }), "{error:?}");
        assert_eq!(writer.add_interface(&Interface::default()).expect("it is Ethernet"), 1);

        let error =
            writer.write(&Record { interface: 2, ..Record::default() }).expect_err("there are two");
        assert_eq!(error.to_string(), "no interface 2 in the savefile, which has 2");

        let statistics = Statistics { interface: 2, ..Statistics::default() };
        writer.statistics(&statistics).expect_err("there are two");

        let data = vec![0; PACKET_BYTES_MAX as usize + 1];
        let error =
            writer.write(&Record { data: &data, ..Record::default() }).expect_err("it is too long");
        assert_eq!(
            error.to_string(),
            "a packet of 262145 bytes is longer than the 262144 that the savefile allows"
        );
        assert_eq!(writer.packets(), 0);
    }

    #[test]
    fn pcap_ends_in_2106_with_an_error_and_pcapng_continues() {
        let last = u64::from(u32::MAX) * 1_000_000_000 + 999_999_999;
        for (format, nanos, holds) in [
            (Format::Pcap, last, true),
            (Format::Pcap, last + 1, false),
            (Format::Pcapng, last + 1, true),
        ] {
            let mut sink = Tight::with_room(1 << 20);
            let mut writer = begin(&mut sink, format);
            let timestamp = Some(Timestamp::from_unix_nanos(nanos));
            let outcome = writer.write(&Record { timestamp, ..Record::default() });
            assert_eq!(
                (outcome.is_ok(), writer.packets()),
                (holds, u64::from(holds)),
                "{outcome:?}"
            );
            if let Err(error) = outcome {
                assert_eq!(
                    error.to_string(),
                    "pcap cannot store timestamps from 2106 on (4294967296.000000000); write pcapng"
                );
            }
        }
    }

    #[test]
    fn a_dropped_writer_flushes() {
        let mut sink = Tight::with_room(1 << 20);
        write_one(&mut begin(&mut sink, Format::Pcapng), 0).expect("there is room");
        assert_eq!(sink.file, whole_file(Format::Pcapng, 1));
    }
}
