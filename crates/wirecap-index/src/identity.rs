//! Identifies the segment, in its current state, to which an index belongs.

use std::fs::{File, Metadata};
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use twox_hash::XxHash64;

/// Bytes at the end of a segment that are hashed: the table of its frames, or its last packets and
/// its counts.
const END_BYTES: u64 = 64 << 10;
/// Bytes at its beginning.
const START_BYTES: u64 = 4 << 10;

/// The segment when its index was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) bytes: u64,
    /// xxHash64 of its beginning and its end.
    pub(crate) fingerprint: u64,
    /// When it was written, in nanoseconds since the epoch.
    pub(crate) modified: i64,
}

impl Identity {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }

        let bytes = metadata.len();
        let mut hasher = XxHash64::with_seed(0);
        let start = bytes.min(START_BYTES);
        let end = (bytes - start).min(END_BYTES);
        let mut buffer = [0; 16 << 10];

        for (offset, count) in [(0, start), (bytes - end, end)] {
            for at in (0..count).step_by(buffer.len()) {
                let part_bytes = buffer.len().min((count - at) as usize);
                let part = &mut buffer[..part_bytes];
                file.read_exact_at(part, offset + at)?;
                hasher.write(part);
            }
        }

        Ok(Self { bytes, fingerprint: hasher.finish(), modified: modified(&metadata) })
    }
}

/// When a file was last written.
pub(crate) fn modified(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}
