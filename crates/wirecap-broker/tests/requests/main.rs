//! The requests that a broker refuses.

mod body;

use std::fs;
use std::path::Path;

use body::ask;
use proptest::prelude::*;
use wirecap_broker::{Ask, Kind, request};
use wirecap_filter::bpf::asm::{Assembler, Helper, Reg, to_bytes};

/// A request of each kind that a recording makes.
fn usual() -> Vec<(&'static str, Ask)> {
    let mut program = Assembler::new();
    program.call(Helper::KtimeTaiNs).mov(Reg::R0, 2).exit();
    let code = to_bytes(&program.finish().unwrap());
    let name = *b"wirecap_test\0\0\0\0";
    let program = Ask::Program {
        program_type: 6,
        name,
        code,
        license: b"GPL".to_vec(),
        flags: 32,
        ifindex: 0,
        expected_attach_type: 37,
        log_bytes: 1 << 16,
    };
    let map = Ask::Map { map_type: 17, name, key_bytes: 4, value_bytes: 4, max_entries: 64, flags: 0 };
    vec![
        ("socket", Ask::Socket { family: libc::AF_PACKET }),
        ("umem", Ask::Umem { bytes: 64 << 20, cell_bytes: 2048 }),
        ("map", map),
        ("program", program),
        ("tracepoint", Ask::Tracepoint { name: b"napi_poll".to_vec() }),
        ("xdp-link", Ask::XdpLink { ifindex: 1, flags: 4 }),
        ("link-update", Ask::LinkUpdate),
        ("by-id", Ask::ById { kind: Kind::Program, id: 7 }),
        ("next-id", Ask::NextId { kind: Kind::Link, id: 0 }),
        ("listen", Ask::Listen { name: b"wirecap/lo/0".to_vec(), backlog: 1 }),
        ("run", Ask::Run { path: b"/var/lib/recordings/t-1.pcapng".to_vec() }),
    ]
}

/// The stored corpus of the fuzz target.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/broker_requests");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn the_requests_of_a_recording_are_allowed_and_in_the_corpus() {
    let corpus = corpus();
    for (name, wanted) in usual() {
        let bytes = request(&wanted).unwrap();
        assert!(ask(&bytes).contains(&wanted), "{wanted:?}");
        let stored = corpus.iter().find(|(stored, _)| stored == name);
        assert!(stored.is_some_and(|(_, stored)| *stored == bytes), "fuzz/corpus/broker_requests/{name}");
    }
}

#[test]
fn a_stream_of_messages_is_read_one_by_one() {
    let mut stream = Vec::new();
    for (_, wanted) in usual() {
        let bytes = request(&wanted).unwrap();
        stream.extend((bytes.len() as u32).to_ne_bytes());
        stream.extend(bytes);
    }
    let allowed = ask(&stream);
    for (_, wanted) in usual() {
        assert!(allowed.contains(&wanted), "{wanted:?}");
    }
}

proptest! {
    /// A process under an attacker's control may send any bytes.
    #[test]
    fn bytes_of_any_kind_are_judged(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        ask(&bytes);
    }

    #[test]
    fn requests_that_are_almost_usual_are_judged(
        choice in any::<proptest::sample::Index>(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
    ) {
        let corpus = corpus();
        let mut bytes = choice.get(&corpus).1.clone();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        ask(&bytes);
    }
}
