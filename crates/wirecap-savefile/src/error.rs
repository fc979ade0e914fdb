//! Why a savefile could not be read.

use std::io;
use std::path::PathBuf;

/// Why a savefile could not be read.
///
/// Offsets are in bytes from the beginning of the file; for a compressed file, of its decompressed contents.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file could not be opened.
    #[error("cannot open {}", .path.display())]
    Open {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is empty.
    #[error("the savefile is empty")]
    Empty,
    /// The file is not a savefile.
    #[error(
        "neither pcapng nor pcap, compressed or not: it begins with {0:02x} {1:02x} {2:02x} {3:02x}",
        magic[0], magic[1], magic[2], magic[3]
    )]
    UnknownFormat {
        /// The file's first bytes.
        magic: [u8; 4],
    },
    /// The source could not be read or decompressed.
    #[error("cannot continue reading at byte {offset} of the savefile")]
    Source {
        /// Offset of the block that could not be read.
        offset: u64,
        /// The error of the system or the decompressor.
        source: io::Error,
    },
    /// The file ends inside a header, block or packet.
    #[error(
        "the savefile ends inside a {what} that begins at byte {offset}: {present} of {expected} bytes are \
         present"
    )]
    Truncated {
        /// Offset of this header, block or packet.
        offset: u64,
        /// What is truncated.
        what: &'static str,
        /// Its length in bytes.
        expected: usize,
        /// The number of its bytes in the file.
        present: usize,
    },
    /// The file violates its format.
    #[error("malformed savefile: at byte {offset}, {problem}")]
    Malformed {
        /// Offset of the offending block or packet.
        offset: u64,
        /// The fault.
        problem: String,
    },
}
