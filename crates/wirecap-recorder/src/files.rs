//! The files of a set in their directory: found again after a restart, completed, removed.
//!
//! At start, numbers continue, and a file left by a killed process is truncated to its last whole
//! packet (its last whole page, if it is compressed) and completed. Zeros at its end count as not
//! written. Besides these zeros, only one unfinished packet, pcapng block or page is removed:
//!
//! - A packet or block is unfinished if its header is incomplete, or if its header is one that the
//!   recorder writes and its data extend beyond the written bytes.
//! - A page is unfinished if it decompresses up to the last written byte and no other page begins
//!   or ends in it.
//! - A file with other damage, or with a part that cannot be read, keeps its contents and the name
//!   `.part`, and the recording begins.
//! - Some damage looks like an unfinished end and is removed: packets after a damaged pcap length
//!   that is still a possible length (at most as many bytes as the snap length), or a damaged last
//!   gzip member (at most a page).
//! - An empty file is removed.
//!
//! Two processes cannot write to one set. Files that another user has put into a shared directory
//! do not belong to the set: no budget counts them, and the recorder does not wait for their locks.
//! If the target name of a rename exists, the existing file keeps it and the new one gets a number
//! before its extension (`-1`). With tcpdump's `-C` and `-W` names repeat, and the new file
//! replaces the existing one.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{CWD, OFlags, RenameFlags, fcntl_getfl, fstatfs, renameat_with, statvfs};
use rustix::io::Errno;
use wirecap_savefile::{Format, Interface, PACKET_BYTES_MAX, ReadError, Reader, is_planted};

use crate::compression::{Compression, FrameEnd, whole_parts};
use crate::names::{Pattern, extension_start};

/// Suffix of an incomplete file's name.
const PART: &str = ".part";

/// The name of a file while it is being written.
pub(crate) fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(PART);
    name.into()
}

/// The files that earlier runs left.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    /// Paths and sizes, oldest first.
    pub(crate) files: Vec<(PathBuf, u64)>,
    /// The next sequence number.
    pub(crate) next_sequence: u64,
}

/// Finds the files of a pattern. An incomplete file that a killed process left is truncated to its
/// last whole packet and completed.
pub(crate) fn earlier(pattern: &Pattern) -> io::Result<Earlier> {
    let mut found: Vec<(Option<u64>, SystemTime, PathBuf, u64)> = Vec::new();

    for entry in fs::read_dir(pattern.directory())? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        let Some(sequence) = pattern.sequence_of(name.strip_suffix(PART).unwrap_or(&name)) else {
            continue;
        };

        // In a shared directory, other users may create files with matching names. If these were
        // counted against the budgets, or were locked, they would end the recording.
        if !entry.file_type()?.is_file() || is_planted(&entry.path()).unwrap_or(true) {
            continue;
        }

        let mut path = entry.path();

        if name.ends_with(PART) {
            match salvage(&path)? {
                Some(salvaged) => path = salvaged,
                None => continue,
            }
        }

        let metadata = fs::symlink_metadata(&path)?;
        found.push((sequence, metadata.modified()?, path, metadata.len()));
    }

    // Sort by number if all files have one: changes of the clock do not affect that order.
    match found.iter().all(|(sequence, ..)| sequence.is_some()) {
        true => found.sort_by_key(|(sequence, modified, ..)| (*sequence, *modified)),
        false => found.sort_by_key(|(_, modified, ..)| *modified),
    }

    let next_sequence =
        found.iter().filter_map(|(sequence, ..)| *sequence).max().map_or(0, |last| last + 1);
    let files = found.into_iter().map(|(_, _, path, bytes)| (path, bytes)).collect();
    Ok(Earlier { files, next_sequence })
}

/// Total size of the complete files of a pattern.
pub(crate) fn complete_bytes(pattern: &Pattern) -> io::Result<u64> {
    let mut bytes = 0;

    for entry in fs::read_dir(pattern.directory())? {
        let entry = entry?;
        let is_ours =
            entry.file_name().to_str().is_some_and(|name| pattern.sequence_of(name).is_some());

        // A file that is gone meanwhile has no bytes.
        if let (true, Ok(metadata)) = (is_ours, entry.metadata())
            && metadata.is_file()
            && !is_planted(&entry.path()).unwrap_or(true)
        {
            bytes += metadata.len();
        }
    }
    Ok(bytes)
}

/// Fails if another process is writing files of this pattern in the directory, or if the directory
/// cannot be read.
///
/// # Errors
///
/// [`io::ErrorKind::WouldBlock`] if another process is writing, and errors of the system.
pub fn refuse_busy(pattern: &Pattern) -> io::Result<()> {
    for entry in fs::read_dir(pattern.directory())? {
        let entry = entry?;
        let name = entry.file_name();
        let is_part = name.to_str().and_then(|name| name.strip_suffix(PART));
        let is_ours = is_part.is_some_and(|name| pattern.sequence_of(name).is_some())
            && entry.file_type()?.is_file()
            && !is_planted(&entry.path()).unwrap_or(true);
        if is_ours {
            refuse_locked(&open(File::options().read(true), &entry.path())?, &entry.path())?;
        }
    }
    Ok(())
}

/// Opens a file; the error names it.
fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    options
        .open(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn refuse_locked(file: &File, path: &Path) -> io::Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let text = format!("another process is writing to {}", path.display());
            Err(io::Error::new(io::ErrorKind::WouldBlock, text))
        }
        _ => Ok(()),
    }
}

/// Completes an incomplete file that no process writes: truncates an incomplete end and renames the
/// file. An empty file is removed. A file that is not a savefile, cannot be read, or has other
/// damage is not changed. Returns the path of the file, or `None` if it was removed.
fn salvage(part: &Path) -> io::Result<Option<PathBuf>> {
    let file = open(File::options().read(true).write(true), part)?;
    refuse_locked(&file, part)?;

    let path = part.to_str().and_then(|part| part.strip_suffix(PART)).map(PathBuf::from);
    let Some(path) = path.filter(|path| !path.exists()) else { return Ok(Some(part.to_owned())) };

    if file.metadata()?.len() == 0 {
        fs::remove_file(part)?;
        return Ok(None);
    }

    let end = match Compression::of(&path) {
        Compression::None => end_of_packets(&file, part),
        compression => end_of_parts(&file, compression),
    };

    // A file that cannot be read does not prevent a new recording.
    let Ok(Some(end)) = end else { return Ok(Some(part.to_owned())) };
    end.apply(&file)?;

    #[cfg(sabotage)]
    if crate::sabotage::is("salvage-without-sync") {
        return rename_to_new(part, &path).map(|()| Some(path));
    }

    file.sync_all()?;

    match rename_to_new(part, &path) {
        Ok(()) => Ok(Some(path)),
        // Another process has created a file of this name.
        Err(_) if fs::symlink_metadata(&path).is_ok() => Ok(Some(part.to_owned())),
        Err(error) => Err(error),
    }
}

/// How to complete a file.
#[derive(Debug)]
struct End {
    /// The length of its whole packets or pages.
    len: u64,
    /// The bytes after them.
    bytes: FrameEnd,
}

impl End {
    fn apply(&self, mut file: &File) -> io::Result<()> {
        #[cfg(sabotage)]
        if crate::sabotage::is("torn-end-kept") {
            return Ok(());
        }
        // Truncation changes the file's time, by which files without a number are ordered.
        if file.metadata()?.len() != self.len {
            file.set_len(self.len)?;
        }
        file.seek(SeekFrom::Start(self.len))?;
        file.write_all(self.bytes.bytes())
    }
}

/// Finds the end of a savefile's whole packets. After it, the file may have only a packet that the
/// process had not finished, and zeros: a file system leaves zeros where it had not written the
/// data before a power failure. Returns `None` if the file has other damage, because packets may
/// follow the damage.
fn end_of_packets(file: &File, path: &Path) -> io::Result<Option<End>> {
    let end_at = |len| Some(End { len, bytes: FrameEnd::default() });
    let Ok(mut reader) = Reader::open(path) else { return Ok(None) };
    let format = reader.format();

    let end = loop {
        let before = reader.offset();
        match reader.next_record() {
            // In a pcap file, zeros read as packets of length 0.
            Ok(Some(record)) if record.wire_len == 0 && format == Format::Pcap => break before,
            Ok(Some(_)) => {}
            Ok(None) => return Ok(end_at(file.metadata()?.len())),
            Err(ReadError::Truncated { .. } | ReadError::Malformed { .. }) => {
                break reader.offset();
            }
            Err(_) => return Ok(None),
        }
    };
    let is_tail = is_unfinished(file, end, format, reader.interfaces())?;
    Ok(if is_tail { end_at(end) } else { None })
}

/// The beginning of a pcap packet or of a pcapng block.
#[derive(Debug)]
struct Head([u8; HEAD_LEN]);

/// Bytes of an enhanced packet block up to and including the captured length. The header of a pcap
/// packet has 16 bytes.
const HEAD_LEN: usize = 24;
/// Bytes of an enhanced packet block other than data, padding and options.
const PACKET_BLOCK_LEN: u32 = 32;
/// Maximum bytes of options in a packet block that the recorder writes.
const OPTIONS_LEN_MAX: u32 = 1 << 10;
/// Maximum bytes of a block of another type, which contains a few texts of at most 64 KiB.
const BLOCK_LEN_MAX: u32 = 1 << 20;

impl Head {
    /// The recorder writes little-endian files.
    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    /// The length of the packet or block, if the recorder writes such a head.
    fn len(&self, format: Format, interfaces: &[Interface]) -> Option<u64> {
        match format {
            Format::Pcap => {
                let snap_len = interfaces.first()?.snap_len;
                let [nanos, captured, wire] = [4, 8, 12].map(|at| self.word(at));
                (nanos < 1_000_000_000 && captured <= snap_len && captured <= wire && wire > 0)
                    .then_some(16 + u64::from(captured))
            }
            Format::Pcapng => {
                let [block_type, len, interface, captured] = [0, 4, 8, 20].map(|at| self.word(at));
                let is_ours = match block_type {
                    // An enhanced packet.
                    6 => {
                        let rest = PACKET_BLOCK_LEN..=PACKET_BLOCK_LEN + OPTIONS_LEN_MAX;
                        (interface as usize) < interfaces.len()
                            && captured <= PACKET_BYTES_MAX
                            && len
                                .checked_sub(captured.next_multiple_of(4))
                                .is_some_and(|len| rest.contains(&len))
                    }
                    // An interface, or its statistics.
                    1 | 5 => len <= BLOCK_LEN_MAX,
                    _ => false,
                };
                is_ours.then_some(len.into())
            }
        }
    }
}

/// Whether the recorder had not finished the packet or block at `offset`: its head is incomplete,
/// or is one that the recorder writes, with a length that extends beyond the written bytes.
/// Otherwise the file is damaged, and packets may follow.
fn is_unfinished(
    file: &File,
    offset: u64,
    format: Format,
    interfaces: &[Interface],
) -> io::Result<bool> {
    let written = written_len(file)?;
    let mut head = Head([0; HEAD_LEN]);
    let needed = if format == Format::Pcap { 16 } else { HEAD_LEN };
    if written < offset + needed as u64 {
        return Ok(true);
    }
    file.read_exact_at(&mut head.0[..needed], offset)?;
    Ok(head.len(format, interfaces).is_some_and(|len| offset + len > written))
}

/// The length of the file without zeros at its end.
fn written_len(file: &File) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 16];
    let mut end = file.metadata()?.len();
    while end > 0 {
        let begin = end.saturating_sub(buffer.len() as u64);
        let part = &mut buffer[..(end - begin) as usize];
        file.read_exact_at(part, begin)?;
        if let Some(last) = part.iter().rposition(|&byte| byte != 0) {
            return Ok(begin + last as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}

/// Like [`end_of_packets`], for a compressed file; each frame or page contains whole packets. The
/// bytes after the last whole one are an unfinished one if they decompress up to the last written
/// byte and no other one begins or ends in them.
fn end_of_parts(file: &File, compression: Compression) -> io::Result<Option<End>> {
    let Some(whole) = whole_parts(file, compression)? else { return Ok(None) };
    let len = file.metadata()?.len();
    // Fewer zeros than four may be the upper bytes of the length that ends a gzip member, or a part
    // of a checksum.
    let written = Some(written_len(file)?).filter(|written| len - written >= 4).unwrap_or(len);
    if !whole.is_torn_after(file, written)? || whole.is_followed(file, written)? {
        return Ok(None);
    }
    Ok(Some(End { len: whole.bytes, bytes: whole.end }))
}

/// Number of suffixes tried in order, before random ones, which other users cannot predict.
const NUMBERS_TRIED: u64 = 16;

/// An unused name: the path, or the path with a number before its extension.
pub(crate) fn free_name(path: &Path) -> PathBuf {
    let is_free = |path: &PathBuf| {
        fs::symlink_metadata(path).is_err() && fs::symlink_metadata(part_of(path)).is_err()
    };
    let with = |suffix: String| {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            return PathBuf::from(name);
        };
        let (stem, extension) = name.split_at(extension_start(name));
        path.with_file_name(format!("{stem}{suffix}{extension}"))
    };
    let numbered = (1..=NUMBERS_TRIED).map(|number| with(format!("-{number}")));
    let unforeseen = std::iter::repeat_with(|| {
        // Without input, the hash depends only on the random key.
        with(format!("-{:016x}", RandomState::new().build_hasher().finish()))
    });

    std::iter::once(path.to_owned())
        .chain(numbered)
        .chain(unforeseen)
        .find(is_free)
        .expect("there are names enough")
}

/// Renames `file`, which is being written as `part`, to `path`. If that name is in use, an existing
/// file is replaced if `replaces`; otherwise another name is used. Returns `None` if another
/// process has removed the file.
pub(crate) fn give_name(
    file: &File,
    part: &Path,
    path: &Path,
    replaces: bool,
) -> io::Result<Option<PathBuf>> {
    let own = file.metadata()?;
    let mut name = path.to_owned();

    loop {
        match fs::symlink_metadata(part) {
            Ok(entry) if (entry.dev(), entry.ino()) == (own.dev(), own.ino()) => {}
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // If the directory is missing, the next file cannot be created either.
            _ => return fs::metadata(directory_of(part)).map(|_| None),
        }

        let renamed = match replaces && name == path {
            true => fs::rename(part, &name),
            false => rename_to_new(part, &name),
        };
        match renamed {
            Ok(()) => return Ok(Some(name)),
            Err(error) if fs::symlink_metadata(&name).is_err() => {
                if error.kind() != io::ErrorKind::NotFound {
                    return Err(error);
                }
            }
            // The name is in use and must not be replaced.
            Err(_) => name = free_name(path),
        }
    }
}

/// Whether the file opened as `path` has lost all its names. A file that was opened without a name
/// is not gone while it is open.
pub(crate) fn is_gone(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    // A file without a link can still be found through a path such as /dev/fd/1.
    let is_found = || {
        fs::metadata(path).is_ok_and(|entry| (entry.dev(), entry.ino()) == (own.dev(), own.ino()))
    };
    Ok(own.is_file() && own.nlink() == 0 && !is_found())
}

/// Like rename(2), but never replaces a file.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system does not support it.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
            if fs::symlink_metadata(to).is_err() =>
        {
            fs::rename(from, to)
        }
        outcome => Ok(outcome?),
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Bytes that an unprivileged process may still write to the file system of `directory`.
pub(crate) fn free_bytes(directory: &Path) -> io::Result<u64> {
    let status = statvfs(directory)?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

/// Whether the file is regular and in memory (tmpfs(5)): no write waits for a disk, and a sync does
/// nothing.
pub(crate) fn is_in_memory(file: &File) -> bool {
    let is_regular = file.metadata().is_ok_and(|status| status.is_file());
    is_regular && fstatfs(file).is_ok_and(|status| status.f_type == libc::TMPFS_MAGIC)
}

/// Whether bytes at the end of the file can be replaced: it is regular, and writes do not always
/// append.
pub(crate) fn is_replaceable(file: &File) -> bool {
    let is_regular = file.metadata().is_ok_and(|status| status.is_file());
    is_regular && fcntl_getfl(file).is_ok_and(|flags| !flags.contains(OFlags::APPEND))
}

/// Makes the directory's entries survive a power failure. Directories such as /proc and /dev/fd do
/// not support this and need no sync.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory)?.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use wirecap_savefile::Sink;

    use super::*;
    use crate::compression::CompressedSink;

    /// A compressed file of six frames, and the offsets at which they end.
    fn six_frames(compression: Compression, directory: &Path) -> (Vec<u8>, Vec<usize>) {
        let path = directory.join("frames");
        let mut sink =
            CompressedSink::new(File::create(&path).unwrap(), "frames".into(), compression)
                .unwrap();
        let mut ends = Vec::new();
        let mut state = 1_u64;

        for _ in 0..6 {
            let page: Vec<u8> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .take(20_000)
            .collect();
            sink.append(&page).unwrap();
            ends.push(fs::metadata(&path).unwrap().len() as usize);
        }

        let mut bytes = Vec::new();
        File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();

        (bytes, ends)
    }

    #[test]
    fn a_compressed_file_loses_only_an_unfinished_frame_at_its_end() {
        for (compression, extension) in [(Compression::Gzip, "gz"), (Compression::Zstandard, "zst")]
        {
            let directory = tempfile::tempdir().unwrap();
            let (bytes, ends) = six_frames(compression, directory.path());

            for zeros in [0, 9000] {
                let part = directory.path().join(format!("t.pcapng.{extension}.part"));
                let torn = [&bytes[..ends[4] + 5000], &vec![0; zeros][..]].concat();
                fs::write(&part, torn).unwrap();
                let complete = salvage(&part).unwrap().expect("a file with frames");
                assert!(complete != part, "{extension}: it is complete");
                assert!(fs::read(&complete).unwrap().starts_with(&bytes[..ends[4]]), "{extension}");
                fs::remove_file(complete).unwrap();
            }
        }
    }

    #[test]
    fn a_compressed_file_with_damage_before_whole_frames_keeps_its_contents() {
        for (compression, extension) in [(Compression::Gzip, "gz"), (Compression::Zstandard, "zst")]
        {
            let directory = tempfile::tempdir().unwrap();
            let (bytes, ends) = six_frames(compression, directory.path());

            for fill in [0, 0xff] {
                for hole in
                    [ends[1]..ends[1] + 4000, ends[1] + 4000..ends[1] + 8000, ends[1]..ends[2]]
                {
                    let mut damaged = bytes.clone();
                    damaged[hole.clone()].fill(fill);

                    let part = directory.path().join(format!("t.pcapng.{extension}.part"));
                    fs::write(&part, &damaged).unwrap();
                    assert_eq!(
                        salvage(&part).unwrap().as_ref(),
                        Some(&part),
                        "{extension} {fill} {hole:?}"
                    );
                    assert!(fs::read(&part).unwrap() == damaged, "{extension} {fill} {hole:?}");
                }
            }
        }
    }

    /// A plain file as the recorder writes it: its bytes, and where its packets begin; the last
    /// offset is their end.
    fn plain_file(
        format: Format,
        lens: &[usize],
        snap_len: usize,
        text: bool,
    ) -> (Vec<u8>, Vec<usize>) {
        let word = |value: usize| (value as u32).to_le_bytes();
        let pcapng = format == Format::Pcapng;
        let mut bytes = Vec::new();

        let words: &[usize] = match format {
            Format::Pcap => &[0xa1b2_3c4d, 0x0004_0002, 0, 0, snap_len, 1],
            // A section and an interface.
            Format::Pcapng => &[
                0x0a0d_0d0a,
                28,
                0x1a2b_3c4d,
                1,
                0xffff_ffff,
                0xffff_ffff,
                28,
                1,
                20,
                1,
                snap_len,
                20,
            ],
        };
        words.iter().for_each(|&value| bytes.extend(word(value)));

        let mut begins = Vec::new();
        let mut state = 7_u64;

        for (number, &wire_len) in lens.iter().enumerate() {
            begins.push(bytes.len());
            let len = wire_len.min(snap_len);
            let block = 32 + len.next_multiple_of(4);
            let seconds = 1_700_000_000 + number;
            let nanos = number * 1000 + 1;

            match pcapng {
                true => [6, block, 0, seconds, nanos, len, wire_len]
                    .map(word)
                    .iter()
                    .for_each(|w| bytes.extend(w)),
                false => {
                    [seconds, nanos, len, wire_len].map(word).iter().for_each(|w| bytes.extend(w));
                }
            }

            for _ in 0..len {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let byte = (state >> 56) as u8;
                bytes.push(if text { b' ' + byte % 90 } else { byte });
            }

            if pcapng {
                bytes.resize(bytes.len().next_multiple_of(4), 0);
                bytes.extend(word(block));
            }
        }

        begins.push(bytes.len());
        (bytes, begins)
    }

    /// What `salvage` makes of a file with these bytes: whether it is complete, and its bytes.
    fn salvaged(bytes: &[u8], extension: &str) -> (bool, Vec<u8>) {
        let directory = tempfile::tempdir().unwrap();
        let part = directory.path().join(format!("t.{extension}.part"));
        fs::write(&part, bytes).unwrap();
        let path = salvage(&part).unwrap().expect("the file is not empty");
        (path != part, fs::read(&path).unwrap())
    }

    const PLAIN: [(Format, &str); 2] = [(Format::Pcap, "pcap"), (Format::Pcapng, "pcapng")];

    #[test]
    fn a_torn_end_is_cut_wherever_the_written_bytes_end() {
        for (format, extension) in PLAIN {
            let (bytes, begins) = plain_file(format, &[100, 301, 90, 100], 1000, false);
            let last = begins[3];
            for end in last + 1..bytes.len() {
                for zeros in [0, 4096] {
                    let torn = [&bytes[..end], &vec![0; zeros][..]].concat();
                    let (is_complete, rest) = salvaged(&torn, extension);
                    let what = format!("{extension}: {} bytes and {zeros} zeros", end - last);
                    assert!(is_complete, "{what}");
                    // A pcap file does not show that the rest of a packet was not written, and the
                    // upper bytes of a block's length are zeros.
                    let is_whole = zeros > 0 && rest.len() == bytes.len();
                    assert!(rest == bytes[..last] || is_whole, "{what}: {} bytes", rest.len());
                }
            }
        }
    }

    #[test]
    fn a_file_is_not_cut_at_a_damaged_length_of_any_value() {
        for (format, extension) in PLAIN {
            for (snap_len, zeros) in [(96, 0), (96, 5000), (2000, 0), (2000, 5000)] {
                let (mut bytes, begins) = plain_file(format, &[1500; 40], snap_len, true);
                let written = bytes.len();
                bytes.resize(written + zeros, 0);

                let places: &[usize] = if format == Format::Pcap { &[8] } else { &[4, 20] };
                let begin = begins[20];
                let to_end = written - begin;
                let near_end = [
                    to_end - 16,
                    to_end - 12,
                    to_end - 4,
                    to_end,
                    to_end + 4,
                    to_end + 400,
                    to_end + 4000,
                ];

                for place in places {
                    for value in near_end.into_iter().chain([65_536, 262_144, 1 << 20, 3 << 20]) {
                        let mut damaged = bytes.clone();
                        damaged[begin + place..][..4]
                            .copy_from_slice(&(value as u32).to_le_bytes());
                        let (_, rest) = salvaged(&damaged, extension);
                        let what =
                            format!("{extension}, {snap_len}: {value} at {place}, {zeros} zeros");
                        assert!(rest.len() >= written, "{what}: {} of {written} bytes", rest.len());
                    }
                }
            }
        }
    }

    #[test]
    fn a_block_of_a_type_that_the_recorder_does_not_write_is_not_cut() {
        let (bytes, begins) = plain_file(Format::Pcapng, &[1500; 40], 2000, true);
        let mut damaged = bytes.clone();
        damaged[begins[20]..][..8]
            .copy_from_slice(&[0x0bad_u32, 500_000].map(u32::to_le_bytes).concat());
        assert!(salvaged(&damaged, "pcapng") == (false, damaged));
    }

    #[test]
    fn a_last_frame_that_is_damaged_but_not_torn_is_not_cut() {
        for (compression, extension) in [(Compression::Gzip, "gz"), (Compression::Zstandard, "zst")]
        {
            let directory = tempfile::tempdir().unwrap();
            let (bytes, ends) = six_frames(compression, directory.path());

            // In gzip, a hole in a member, or zeros after one, can look like a missing end, so the
            // checksum is damaged instead.
            let (damage, numbers_of_zeros) = match compression {
                Compression::Gzip => (ends[5] - 8..ends[5] - 4, &[0][..]),
                _ => (ends[4] + 8000..ends[4] + 12_000, &[0, 9000][..]),
            };
            for &zeros in numbers_of_zeros {
                let mut damaged = [&bytes[..], &vec![0; zeros][..]].concat();
                damaged[damage.clone()].fill(0);
                let extension = format!("pcapng.{extension}");
                assert!(
                    salvaged(&damaged, &extension) == (false, damaged),
                    "{extension}, {zeros} zeros"
                );
            }
        }
    }

    #[test]
    fn a_compressed_file_is_cut_wherever_the_written_bytes_end() {
        for (compression, extension) in [(Compression::Gzip, "gz"), (Compression::Zstandard, "zst")]
        {
            let directory = tempfile::tempdir().unwrap();
            let (mut bytes, ends) = six_frames(compression, directory.path());
            let frames = File::open(directory.path().join("frames")).unwrap();
            bytes.extend(whole_parts(&frames, compression).unwrap().unwrap().end.bytes());

            let near = |end: usize| end - 12..=(end + 40).min(bytes.len());
            for end in near(ends[4]).chain(near(ends[5])).chain([ends[4] + 9000, bytes.len()]) {
                for zeros in [0, 4096] {
                    let torn = [&bytes[..end], &vec![0; zeros][..]].concat();
                    let (is_complete, rest) = salvaged(&torn, &format!("pcapng.{extension}"));
                    let whole = ends.iter().rfind(|&&whole| whole <= end).unwrap();
                    let what = format!("{extension}: {end} and {zeros} zeros");
                    assert!(is_complete && rest.starts_with(&bytes[..*whole]), "{what}");
                }
            }
        }
    }

    #[test]
    fn an_error_of_reading_is_not_the_end_of_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let unreadable = File::open(directory.path()).unwrap();
        for compression in [Compression::Gzip, Compression::Zstandard] {
            assert!(whole_parts(&unreadable, compression).is_err(), "{compression:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        #[test]
        fn a_hole_costs_no_packet_that_is_not_in_it(
            lens in vec(60..1500_usize, 8..60),
            is_pcapng in any::<bool>(),
            text in any::<bool>(),
            snap_len in prop_oneof![Just(96_usize), Just(262_144)],
            hole in (0.0..1.0_f64, 1..9000_usize),
            fill in prop_oneof![Just(0_u8), Just(0xff), any::<u8>()],
            zeros in prop_oneof![Just(0_usize), 1..9000_usize],
        ) {
            let (format, extension) = PLAIN[usize::from(is_pcapng)];
            let (mut bytes, begins) = plain_file(format, &lens, snap_len, text);
            let written = bytes.len();
            let begin = begins[0] + (hole.0 * (written - begins[0]) as f64) as usize;
            let end = written.min(begin + hole.1);
            bytes[begin..end].fill(fill);
            bytes.resize(written + zeros, 0);

            let (is_complete, rest) = salvaged(&bytes, extension);
            prop_assert!(bytes.starts_with(&rest));
            prop_assert!(is_complete || rest == bytes);

            // The packet in which the hole begins may be cut only if nothing was written after it.
            let first_damaged = begins.partition_point(|&offset| offset <= begin) - 1;
            let data_end = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
            let is_last = begins[first_damaged + 1] >= data_end;
            let kept = if is_last { begins[first_damaged] } else { data_end };
            prop_assert!(rest.len() >= kept, "{} of {written} bytes, hole {begin}..{end}", rest.len());
        }
    }
}
