//! The files of a set in their directory: found again after a restart, completed, removed.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs};
use rustix::io::Errno;
use wirecap_savefile::{Format, ReadError, Reader, is_planted};

use crate::compression::{Compression, whole_frames};
use crate::names::Pattern;

/// More than a pcapng block of the longest packet.
const BLOCK_LEN_MAX: u32 = 1 << 20;

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

/// Finds the files of a pattern. An incomplete file that a killed process left is truncated to its last whole
/// packet and completed.
pub(crate) fn earlier(pattern: &Pattern) -> io::Result<Earlier> {
    let mut found: Vec<(Option<u64>, SystemTime, PathBuf, u64)> = Vec::new();
    for entry in fs::read_dir(pattern.directory())? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        let Some(sequence) = pattern.sequence_of(name.strip_suffix(PART).unwrap_or(&name)) else { continue };
        // In a shared directory, other users may create files with matching names. If these were counted
        // against the budgets, or were locked, they would end the recording.
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
    let next_sequence = found.iter().filter_map(|(sequence, ..)| *sequence).max().map_or(0, |last| last + 1);
    let files = found.into_iter().map(|(_, _, path, bytes)| (path, bytes)).collect();
    Ok(Earlier { files, next_sequence })
}

/// Fails if another process is writing files of this pattern in the directory, or if the directory cannot be
/// read.
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
            refuse_locked(&File::open(entry.path())?, &entry.path())?;
        }
    }
    Ok(())
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

/// Completes an incomplete file that no process writes: truncates an incomplete end and renames the file. An
/// empty file is removed, and a file that is not a savefile keeps its name.
fn salvage(part: &Path) -> io::Result<Option<PathBuf>> {
    let file = File::options().read(true).write(true).open(part)?;
    refuse_locked(&file, part)?;
    let path = part.to_str().and_then(|part| part.strip_suffix(PART)).map(PathBuf::from);
    let Some(path) = path.filter(|path| !path.exists()) else { return Ok(Some(part.to_owned())) };
    if file.metadata()?.len() == 0 {
        fs::remove_file(part)?;
        return Ok(None);
    }
    let is_whole = match Compression::of(&path) {
        Compression::None => cut_to_whole_packets(&file, part)?,
        compression => cut_to_whole_frames(&file, compression)?,
    };
    if !is_whole {
        return Ok(Some(part.to_owned()));
    }
    file.sync_all()?;
    match rename_to_new(part, &path) {
        Ok(()) => Ok(Some(path)),
        // Another process has created a file of this name.
        Err(_) if fs::symlink_metadata(&path).is_ok() => Ok(Some(part.to_owned())),
        Err(error) => Err(error),
    }
}

/// Truncates a savefile to its whole packets: removes a packet that the process had not finished, and zeros, which a
/// file system leaves where it had not written the data before a power failure. Returns whether all of the rest is a
/// savefile: packets may follow other damage, so such a file remains unchanged.
fn cut_to_whole_packets(file: &File, path: &Path) -> io::Result<bool> {
    let Ok(mut reader) = Reader::open(path) else { return Ok(false) };
    let format = reader.format();
    loop {
        let before = reader.offset();
        let (end, is_tail) = match reader.next_record() {
            // A pcap file of zeros is one of empty packets.
            Ok(Some(record)) if record.wire_len > 0 || format == Format::Pcapng => continue,
            Ok(Some(_)) => (before, is_zero_from(file, before)?),
            Ok(None) => return Ok(true),
            Err(ReadError::Truncated { .. }) => {
                (reader.offset(), is_unfinished(file, reader.offset(), format)?)
            }
            Err(ReadError::Malformed { .. }) => {
                let block = if format == Format::Pcapng { block_len(file, reader.offset())? } else { 0 };
                (reader.offset(), is_zero_from(file, reader.offset() + block)?)
            }
            Err(_) => return Ok(false),
        };
        if is_tail {
            file.set_len(end)?;
        }
        return Ok(is_tail);
    }
}

/// Lengths in the head of a pcap packet or of a pcapng block.
#[derive(Debug)]
struct Head([u8; HEAD_LEN]);

/// Of an enhanced packet block up to the captured length. A pcap packet has 16 bytes.
const HEAD_LEN: usize = 24;
/// The type of an enhanced packet block, and its bytes other than data, padding and options.
const PACKET_BLOCK: u32 = 6;
const PACKET_BLOCK_LEN: u32 = 32;
/// The longest options of a packet block, and the longest other block, that the recorder writes.
const OPTIONS_LEN_MAX: u32 = 1 << 10;

impl Head {
    /// The recorder writes little-endian files.
    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    /// Whether the recorder writes such a head.
    fn is_ours(&self, format: Format) -> bool {
        match format {
            Format::Pcap => self.word(8) <= self.word(12),
            Format::Pcapng if self.word(0) == PACKET_BLOCK => self
                .word(20)
                .checked_next_multiple_of(4)
                .and_then(|data| self.word(4).checked_sub(data)?.checked_sub(PACKET_BLOCK_LEN))
                .is_some_and(|options| options <= OPTIONS_LEN_MAX),
            Format::Pcapng => self.word(4) <= BLOCK_LEN_MAX,
        }
    }
}

/// Whether the packet or block at `offset`, which extends beyond the end of the file, is one that the process had not
/// finished: its head is not complete either, or is one that the recorder writes. Otherwise its length is damaged, and
/// packets follow.
fn is_unfinished(file: &File, offset: u64, format: Format) -> io::Result<bool> {
    let mut head = Head([0; HEAD_LEN]);
    let needed = if format == Format::Pcap { 16 } else { HEAD_LEN };
    let read = read_up_to(file, &mut head.0[..needed], offset)?;
    Ok(read < needed || head.is_ours(format))
}

/// The length of the pcapng block at `offset`, of which only the beginning may have been written; 0 if there is none in
/// the file.
fn block_len(file: &File, offset: u64) -> io::Result<u64> {
    let mut head = [0; 8];
    let read = read_up_to(file, &mut head, offset)?;
    let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    let is_here =
        read == head.len() && len <= BLOCK_LEN_MAX && offset + u64::from(len) <= file.metadata()?.len();
    Ok(if is_here { len.into() } else { 0 })
}

/// Fills the buffer, or reads to the end of the file.
fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

/// Whether the file contains only zeros from `offset` on.
fn is_zero_from(file: &File, mut offset: u64) -> io::Result<bool> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read_at(&mut buffer, offset)?;
        if read == 0 || buffer[..read].iter().any(|&byte| byte != 0) {
            return Ok(read == 0);
        }
        offset += read as u64;
    }
}

/// The same for a compressed file; each frame contains whole packets. A frame that begins after the first one that cannot
/// be decompressed may contain packets.
fn cut_to_whole_frames(file: &File, compression: Compression) -> io::Result<bool> {
    let Some((bytes, end)) = whole_frames(file, compression)? else { return Ok(false) };
    if contains_after(file, bytes + 1, compression.frame_head())? {
        return Ok(false);
    }
    file.set_len(bytes)?;
    let mut file = file;
    file.seek(SeekFrom::Start(bytes))?;
    file.write_all(&end)?;
    Ok(true)
}

/// Whether these bytes occur in the file after `offset`.
fn contains_after(file: &File, mut offset: u64, bytes: &[u8]) -> io::Result<bool> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = read_up_to(file, &mut buffer, offset)?;
        if buffer[..read].windows(bytes.len()).any(|window| window == bytes) {
            return Ok(true);
        }
        if read < buffer.len() {
            return Ok(false);
        }
        // They may begin in this part and end in the next one.
        offset += (read - bytes.len() + 1) as u64;
    }
}

/// Number of suffixes tried in order, before random ones, which other users cannot predict.
const NUMBERS_TRIED: u64 = 16;

/// An unused name: the path, or the path with a number.
pub(crate) fn free_name(path: &Path) -> PathBuf {
    let is_free =
        |path: &PathBuf| fs::symlink_metadata(path).is_err() && fs::symlink_metadata(part_of(path)).is_err();
    let with = |suffix: String| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
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

/// Renames `file`, which is being written as `part`, to `path`. If that name is in use, an existing file is
/// replaced if `replaces`; otherwise another name is used. Returns `None` if another process has removed the
/// file.
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

/// Whether the file opened as `path` has lost all its names. A file that was opened without a name is not
/// gone while it is open.
pub(crate) fn is_gone(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    // A file without a link can still be found through a path such as /dev/fd/1.
    let is_found =
        || fs::metadata(path).is_ok_and(|entry| (entry.dev(), entry.ino()) == (own.dev(), own.ino()));
    Ok(own.is_file() && own.nlink() == 0 && !is_found())
}

/// Like rename(2), but never replaces a file.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system does not support it.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) if fs::symlink_metadata(to).is_err() => {
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

/// Makes the directory's entries survive a power failure. Directories such as /proc and /dev/fd do not
/// support this and need no sync.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory)?.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use wirecap_savefile::Sink;

    use super::*;
    use crate::compression::CompressedSink;

    /// A compressed file of six frames, and the offsets at which they end.
    fn six_frames(compression: Compression, directory: &Path) -> (Vec<u8>, Vec<usize>) {
        let path = directory.join("frames");
        let mut sink =
            CompressedSink::new(File::create(&path).unwrap(), "frames".into(), compression).unwrap();
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
        for (compression, extension) in [(Compression::Gzip, "gz"), (Compression::Zstandard, "zst")] {
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
        for (compression, extension) in [(Compression::Gzip, "gz"), (Compression::Zstandard, "zst")] {
            let directory = tempfile::tempdir().unwrap();
            let (bytes, ends) = six_frames(compression, directory.path());
            for fill in [0, 0xff] {
                for hole in [ends[1]..ends[1] + 4000, ends[1] + 4000..ends[1] + 8000, ends[1]..ends[2]] {
                    let mut damaged = bytes.clone();
                    damaged[hole.clone()].fill(fill);
                    let part = directory.path().join(format!("t.pcapng.{extension}.part"));
                    fs::write(&part, &damaged).unwrap();
                    assert_eq!(salvage(&part).unwrap().as_ref(), Some(&part), "{extension} {fill} {hole:?}");
                    assert!(fs::read(&part).unwrap() == damaged, "{extension} {fill} {hole:?}");
                }
            }
        }
    }
}
