//! Why a savefile could not be read.

use std::io;
use std::path::PathBuf;

/// Why a savefile could not be read.
///
/// Offsets are in bytes from the beginning of the file; for a compressed file, of its decompressed
/// contents.
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
    #[error("{}", unknown_format(magic))]
    UnknownFormat {
        /// The file's first bytes.
        magic: [u8; 4],
    },
    /// The source could not be read or decompressed.
    #[error(
        "{}",
        match source.kind() {
            io::ErrorKind::UnexpectedEof =>
                format!("the compressed savefile is truncated: its contents end after byte {offset}"),
            _ => format!("cannot continue reading at byte {offset} of the savefile"),
        }
    )]
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

/// The compressor of a file that begins with these bytes, and its program, if this crate does not
/// read its files.
fn compressor(magic: &[u8; 4]) -> Option<(&'static str, &'static str)> {
    match magic {
        [0x04, 0x22, 0x4d, 0x18] => Some(("LZ4", "lz4")),
        [0xfd, b'7', b'z', b'X'] => Some(("xz", "xz")),
        [b'B', b'Z', b'h', b'1'..=b'9'] => Some(("bzip2", "bzip2")),
        _ => None,
    }
}

/// What a file is that begins with these bytes, and is no savefile.
fn unknown_format(magic: &[u8; 4]) -> String {
    if let Some((name, program)) = compressor(magic) {
        return format!(
            "compressed by {name}, which wirecap does not read: decompress it first, {program} -d"
        );
    }
    let [a, b, c, d] = magic;
    let is_text = magic.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
    let text = if is_text { ", which is text" } else { "" };
    format!(
        "neither pcapng nor pcap, compressed or not: it begins with {a:02x} {b:02x} {c:02x} {d:02x}{text}"
    )
}
