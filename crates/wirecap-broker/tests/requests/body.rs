//! The body of the broker's fuzz target, which the tests run on the stored corpus.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};

use wirecap_broker::{Ask, Terms, User, judge, next_message};

/// A longer message would block until it is read.
const STREAM_BYTES_MAX: usize = 64 << 10;
/// Helpers that read memory of the kernel or of other processes: `enum bpf_func_id`.
const READING: [i32; 7] = [4, 45, 112, 113, 114, 115, 148];
const LOOPBACK: u32 = 1;

fn terms() -> Terms {
    Terms {
        interfaces: vec!["lo".to_owned()],
        user: User { name: "nobody".to_owned(), uid: 65534, gid: 65534 },
        directory: PathBuf::from("/var/lib/recordings"),
        command: Some(vec!["true".to_owned()]),
        sockets: Vec::new(),
    }
}

/// Decodes the bytes as a request and as a stream of messages. Returns the requests that a broker would
/// execute.
pub(crate) fn ask(bytes: &[u8]) -> Vec<Ask> {
    let mut allowed = judged(bytes);
    let (mut near, far) = UnixStream::pair().expect("a pair of sockets");
    near.write_all(&bytes[..bytes.len().min(STREAM_BYTES_MAX)]).expect("the socket's buffer takes it");
    drop(near);
    while let Ok(Some((message, descriptors))) = next_message(&far) {
        assert!(descriptors.is_empty(), "none were sent");
        allowed.extend(judged(&message));
    }
    allowed
}

fn judged(bytes: &[u8]) -> Vec<Ask> {
    let allowed: Vec<Ask> =
        [0, 1, 2, 64].into_iter().filter_map(|count| judge(&terms(), bytes, count).ok()).collect();
    allowed.iter().for_each(assert_within_terms);
    allowed
}

/// The guarantees of the terms, implemented independently of the broker.
fn assert_within_terms(ask: &Ask) {
    match ask {
        Ask::Socket { family } => assert!([libc::AF_PACKET, libc::AF_XDP].contains(family), "{ask:?}"),
        Ask::Map { key_bytes, value_bytes, max_entries, .. } => {
            let bytes = (u128::from(*key_bytes) + u128::from(*value_bytes)) * u128::from(*max_entries);
            assert!(bytes <= 1 << 30, "{ask:?}");
        }
        Ask::Program { program_type, code, log_bytes, .. } => {
            assert!([6, 17].contains(program_type) && *log_bytes <= 8 << 20, "{ask:?}");
            for insn in code.chunks(8) {
                let constant = i32::from_ne_bytes(insn[4..].try_into().expect("instructions are whole"));
                let is_call = insn[0] & 0xf0 == 0x80 && matches!(insn[0] & 7, 5 | 6);
                assert!(!is_call || insn[1] >> 4 != 0 || !READING.contains(&constant), "{ask:?}");
            }
        }
        Ask::Tracepoint { name } => assert_eq!(name, b"napi_poll"),
        Ask::XdpLink { ifindex, .. } => assert_eq!(*ifindex, LOOPBACK),
        Ask::Listen { name, .. } => assert!(name.starts_with(b"wirecap/"), "{ask:?}"),
        Ask::Run { path } => {
            let path = Path::new(std::str::from_utf8(path).unwrap_or("/var/lib/recordings/other"));
            let is_below = path.starts_with("/var/lib/recordings");
            assert!(is_below && path.components().all(|part| part != Component::ParentDir), "{ask:?}");
        }
        Ask::Umem { .. } | Ask::LinkUpdate | Ask::ById { .. } | Ask::NextId { .. } => {}
    }
}
