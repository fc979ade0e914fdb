//! Why a savefile could not be read.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a savefile could not be read.
///
/// Offsets are in bytes from the beginning of the file; for a compressed file, of its decompressed contents.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The file could not be opened.
    Open {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is empty.
    Empty,
    /// The file is not a savefile.
    UnknownFormat {
        /// The file's first bytes.
        magic: [u8; 4],
    },
    /// The source could not be read or decompressed.
    Source {
        /// Offset of the block that could not be read.
        offset: u64,
        /// The error of the system or the decompressor.
        source: io::Error,
    },
    /// The file ends inside a header, block or packet.
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
    Malformed {
        /// Offset of the offending block or packet.
        offset: u64,
        /// The fault.
        problem: String,
    },
}

/// Compressions that are not read, by the bytes that files of them begin with.
const PROGRAMS: [(&[u8], &str); 2] = [(b"\xfd7zX", "xz"), (b"BZh", "bzip2")];

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, .. } => write!(f, "cannot open {}", path.display()),
            Self::Empty => write!(f, "the savefile is empty"),
            Self::UnknownFormat { magic } => {
                if let Some((_, program)) = PROGRAMS.iter().find(|(start, _)| magic.starts_with(start)) {
                    return write!(f, "it is compressed by {program}: decompress it first, {program} -d");
                }
                let [a, b, c, d] = magic;
                write!(
                    f,
                    "neither pcapng nor pcap, compressed or not: it begins with {a:02x} {b:02x} {c:02x} {d:02x}"
                )?;
                match magic.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) {
                    true => f.write_str(", which is text"),
                    false => Ok(()),
                }
            }
            Self::Source { offset, .. } => {
                write!(f, "cannot continue reading at byte {offset} of the savefile")
            }
            Self::Truncated { offset, what, expected, present } => write!(
                f,
                "the savefile ends inside a {what} that begins at byte {offset}: \
                 {present} of {expected} bytes are present"
            ),
            Self::Malformed { offset, problem } => {
                write!(f, "malformed savefile: at byte {offset}, {problem}")
            }
        }
    }
}

impl Error for ReadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Open { source, .. } | Self::Source { source, .. } => Some(source),
            _ => None,
        }
    }
}
