//! An index that is wrong, truncated, or of another file is not used, and the matches are the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::slice::from_ref;
use std::time::{Duration, SystemTime};

use wirecap_index::{
    EnsureError, Ensured, Note, Query, Without, build, ensure, index_path, load, plan, remove,
    segments, write,
};
use wirecap_savefile::LinkType;

use crate::files::{Packet, find, ip_packet, query, write_segment};

fn traffic(seed: u64, count: u64) -> Vec<Packet> {
    let packet = |number: u64| {
        let a = (number % 7) as u16;
        let b = (number % 11) as u16;
        ip_packet(
            1_700_000_000_000_000_000 + seed + number * 1_000_000,
            (a, 1000 + b),
            (b, 53),
            None,
            100,
        )
    };
    (0..count).map(packet).collect()
}

fn recorded(folder: &Path, name: &str, packets: &[Packet]) -> PathBuf {
    let path = folder.join(name);
    write_segment(&path, packets, LinkType::ETHERNET, 10_000);
    let Ensured::Written { because: Without::Missing, .. } = ensure(&path, &mut |_| true).unwrap()
    else {
        panic!("there was an index already");
    };
    path
}

#[test]
fn an_index_with_any_byte_changed_is_rebuilt() {
    let folder = tempfile::tempdir().unwrap();
    let packets = traffic(0, 500);
    let path = recorded(folder.path(), "s.pcapng.zst", &packets);
    let whole = fs::read(index_path(&path)).unwrap();
    let good = load(&path).unwrap();
    let expected = find(from_ref(&path), query("host 10.0.0.3")).0;
    assert!(!expected.is_empty());
    for place in (0..whole.len()).step_by(whole.len() / 150 + 1) {
        let mut changed = whole.clone();
        changed[place] ^= 0x10;
        fs::write(index_path(&path), changed).unwrap();
        let without = load(&path).expect_err("it is another one");
        assert!(matches!(without, Without::Damaged(_)), "byte {place}: {without}");
    }
    for len in [0, 1, 8, whole.len() / 2, whole.len() - 1] {
        fs::write(index_path(&path), &whole[..len]).unwrap();
        let (found, plan, _) = find(from_ref(&path), query("host 10.0.0.3"));
        assert!(matches!(plan.segments[0].without, Some(Without::Damaged(_))));
        assert!(plan.segments[0].to_string().ends_with("\n  wirecap index rewrites it"));
        assert_eq!(found, expected);
        let outcome = ensure(&path, &mut |_| true).unwrap();
        assert!(
            matches!(outcome, Ensured::Written { because: Without::Damaged(_), .. }),
            "{outcome:?}"
        );
        assert_eq!(load(&path).unwrap(), good);
    }
}

/// A search does not read the whole index.
#[test]
fn a_search_finds_the_same_with_any_byte_of_the_index_changed() {
    let folder = tempfile::tempdir().unwrap();
    let flow = |number: u64| {
        let host = (number % 3000) as u16;
        let port = 1000 + (number % 3000) as u16;
        ip_packet(
            1_700_000_000_000_000_000 + number * 1_000_000,
            (host, port),
            (7, 53),
            Some(0x10),
            20,
        )
    };
    let path = recorded(folder.path(), "s.pcapng.zst", &(0..6000).map(flow).collect::<Vec<_>>());
    let whole = fs::read(index_path(&path)).unwrap();
    let mut noticed = 0;
    let questions = ["host 10.0.1.5", "src port 2500", "host 10.0.200.1", "net 10.0.2.0/24"];
    for question in questions {
        fs::write(index_path(&path), &whole).unwrap();
        let (expected, plan, _) = find(from_ref(&path), query(question));
        assert!(plan.segments[0].without.is_none());
        for place in (0..whole.len()).step_by(whole.len() / 60 + 1) {
            let mut changed = whole.clone();
            changed[place] ^= 0x10;
            fs::write(index_path(&path), changed).unwrap();
            let (found, plan, _) = find(from_ref(&path), query(question));
            assert!(found == expected, "{question}: byte {place} of {}", whole.len());
            noticed += usize::from(plan.segments[0].without.is_some());
        }
    }
    assert!((1..questions.len() * 60).contains(&noticed), "noticed {noticed} times");
}

#[test]
fn the_index_of_another_file_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let packets = traffic(0, 500);
    let others = traffic(7, 500);
    let path = recorded(folder.path(), "a.pcapng", &packets);
    let other = recorded(folder.path(), "b.pcapng", &others);
    assert_eq!(path.metadata().unwrap().len(), other.metadata().unwrap().len());
    fs::copy(index_path(&other), index_path(&path)).unwrap();
    assert_eq!(load(&path), Err(Without::Stale));
    assert_eq!(find(from_ref(&path), query("")).0, packets);
    assert!(matches!(
        ensure(&path, &mut |_| true).unwrap(),
        Ensured::Written { because: Without::Stale, .. }
    ));
    assert_eq!(find(&[path, other], query("")).0.len(), 1000);
}

#[test]
fn a_modified_file_has_no_valid_index() {
    let folder = tempfile::tempdir().unwrap();
    let mut packets = traffic(0, 3000);
    let path = recorded(folder.path(), "s.pcap", &packets);
    // A byte in the middle of the file, which the fingerprint does not cover: another host address.
    let mut bytes = fs::read(&path).unwrap();
    let place = 24 + 1500 * (16 + packets[0].data.len());
    bytes[place + 16 + 29] = 200;
    packets[1500].data[29] = 200;
    fs::write(&path, bytes).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(SystemTime::now() + Duration::from_secs(5))
        .unwrap();
    assert_eq!(load(&path), Err(Without::Stale), "the index of a modified file");
    assert_eq!(find(from_ref(&path), query("host 10.0.0.200")).0, [packets[1500].clone()]);
}

#[test]
fn a_copy_keeps_its_index() {
    let folder = tempfile::tempdir().unwrap();
    let path = recorded(folder.path(), "s.pcapng.zst", &traffic(0, 100));
    let copy = folder.path().join("copy.pcapng.zst");
    fs::copy(&path, &copy).unwrap();
    fs::copy(index_path(&path), index_path(&copy)).unwrap();
    assert!(load(&copy).is_ok());
}

#[test]
fn inconsistent_index_numbers_are_reported_while_reading() {
    let folder = tempfile::tempdir().unwrap();
    let packets = traffic(0, 2000);
    let path = recorded(folder.path(), "s.pcapng", &packets);
    let other = recorded(folder.path(), "t.pcapng", &traffic(1, 2000));
    // A file with the same beginning, end and length, so no fingerprint differs.
    let mut query = query("");
    let planned = plan(from_ref(&path), &mut query, &mut |_| true).unwrap();
    let mut bytes = fs::read(&other).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 5000].fill(0);
    fs::write(&path, bytes).unwrap();
    let mut told = 0;
    let outcome = planned.run(
        &mut query,
        &mut |note| {
            told += usize::from(matches!(note, Note::Faulty(..)));
            true
        },
        &mut |_| Ok::<bool, wirecap_index::FindError>(true),
    );
    assert_eq!((told, outcome.unwrap().faulty), (1, 1));
}

#[test]
fn a_removed_file_is_reported_and_the_others_are_searched() {
    let folder = tempfile::tempdir().unwrap();
    let packets = traffic(0, 300);
    let others = traffic(500, 300);
    let path = recorded(folder.path(), "a.pcapng.zst", &packets);
    let other = recorded(folder.path(), "b.pcapng.zst", &others);
    let mut query: Query = query("");
    let planned = plan(&[path.clone(), other], &mut query, &mut |_| true).unwrap();
    fs::remove_file(&path).unwrap();
    remove(&path).unwrap();
    let mut vanished = 0;
    let mut found = 0;
    let outcome = planned
        .run(
            &mut query,
            &mut |note| {
                vanished += usize::from(matches!(note, Note::Vanished(_)));
                true
            },
            &mut |_| {
                found += 1;
                Ok::<bool, wirecap_index::FindError>(true)
            },
        )
        .unwrap();
    assert_eq!((vanished, found, outcome.vanished, outcome.faulty), (1, 300, 1, 0));
}

#[test]
fn a_file_being_written_is_read_up_to_its_last_packet() {
    let folder = tempfile::tempdir().unwrap();
    let packets = traffic(0, 1000);
    let part = folder.path().join("s.pcapng.zst.part");
    write_segment(&folder.path().join("s.pcapng.zst"), &packets, LinkType::ETHERNET, 10_000);
    fs::rename(folder.path().join("s.pcapng.zst"), &part).unwrap();
    let bytes = fs::read(&part).unwrap();
    fs::write(&part, &bytes[..bytes.len() * 2 / 3]).unwrap();
    let listed = segments(folder.path()).unwrap();
    assert_eq!(listed, from_ref(&part));
    let (found, plan, outcome) = find(&listed, query(""));
    assert!(found.len() > 500 && found == packets[..found.len()], "{} were found", found.len());
    assert_eq!(
        (plan.segments[0].without.clone(), plan.faulty, outcome.faulty),
        (Some(Without::Missing), 0, 0)
    );
    // The file is completed after it was listed and before it is read.
    fs::rename(&part, folder.path().join("s.pcapng.zst")).unwrap();
    assert_eq!(find(&listed, query("")).0, found);
}

#[test]
fn an_index_is_not_written_for_a_file_that_was_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = recorded(folder.path(), "s.pcapng", &traffic(0, 100));
    let built = build(&path, &mut |_| true).unwrap();
    remove(&path).unwrap();
    write_segment(&path, &traffic(3, 200), LinkType::ETHERNET, 10_000);
    write(&path, &built.index).expect_err("it is that of another file");
    assert_eq!(load(&path), Err(Without::Missing));
    let names = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 1, "the directory has no other file");
}

#[test]
fn an_index_that_cannot_be_written_is_not_reported_as_an_unreadable_segment() {
    let folder = tempfile::tempdir().unwrap();
    let path = recorded(folder.path(), "s.pcapng", &traffic(0, 100));
    remove(&path).unwrap();
    fs::create_dir(index_path(&path)).unwrap();
    let error = ensure(&path, &mut |_| true).unwrap_err();
    assert!(matches!(error, EnsureError::Write(_)), "{error:?}");
    assert_eq!(error.to_string(), "cannot write its index");
    let error = ensure(&folder.path().join("none"), &mut |_| true).unwrap_err();
    assert!(matches!(error, EnsureError::Vanished), "{error:?}");
}

/// `zstd --zstd=wlog=20` of a pipe writes the head of a frame of pages, and no pages.
#[test]
fn a_frame_of_another_compressor_with_the_same_head_is_one_piece() {
    let folder = tempfile::tempdir().unwrap();
    let plain = recorded(folder.path(), "plain.pcapng", &traffic(0, 2000));
    let path = folder.path().join("s.pcapng.zst");
    let mut encoder = zstd::Encoder::new(fs::File::create(&path).unwrap(), 3).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.set_parameter(zstd::zstd_safe::CParameter::WindowLog(20)).unwrap();
    std::io::copy(&mut fs::File::open(&plain).unwrap(), &mut encoder).unwrap();
    encoder.finish().unwrap();
    assert!(fs::read(&path).unwrap().starts_with(&wirecap_savefile::paged::HEAD));
    let built = build(&path, &mut |_| true).unwrap();
    write(&path, &built.index).unwrap();
    let (found, plan, outcome) = find(from_ref(&path), query("host 10.0.0.3"));
    assert_eq!(found, find(from_ref(&plain), query("host 10.0.0.3")).0);
    assert!(!found.is_empty() && (plan.faulty, outcome.faulty) == (0, 0));
}

/// The checksum of a page detects a byte that was changed, also where the other pages are not read.
#[test]
fn a_changed_byte_in_a_page_is_reported_by_a_search_that_reads_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = recorded(folder.path(), "s.pcapng.zst", &traffic(0, 2000));
    let mut bytes = fs::read(&path).unwrap();
    // In the middle, and later than the file was found to be that of its index.
    let mut query = query("");
    let planned = plan(from_ref(&path), &mut query, &mut |_| true).unwrap();
    let is_mark = |at: &usize| wirecap_savefile::paged::is_like_mark(&bytes[*at..*at + 16]);
    let mark = (bytes.len() / 2..bytes.len() - 16).find(is_mark).unwrap();
    bytes[mark + 3] ^= 1;
    fs::write(&path, bytes).unwrap();
    let mut faults = Vec::new();
    let outcome = planned.run(
        &mut query,
        &mut |note| {
            if let Note::Faulty(_, error) = note {
                faults.push(error.to_string());
            }
            true
        },
        &mut |_| Ok::<bool, wirecap_index::FindError>(true),
    );
    assert_eq!((faults.len(), outcome.unwrap().faulty), (1, 1), "one page is damaged: {faults:?}");
}

#[test]
fn several_processes_write_the_same_index_one_after_the_other() {
    const WRITERS: usize = 4;
    const ROUNDS: usize = 50;
    let folder = tempfile::tempdir().unwrap();
    let path = recorded(folder.path(), "s.pcapng.zst", &traffic(0, 500));
    let index = load(&path).unwrap();
    // Locks belong to open file descriptions, so threads exclude each other like processes.
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    write(&path, &index).unwrap();
                    assert_eq!(load(&path).as_ref(), Ok(&index));
                }
            });
        }
    });
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "the segment and its index");
}

#[test]
fn a_partial_index_of_a_killed_process_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = recorded(folder.path(), "s.pcapng", &traffic(0, 100));
    let index = load(&path).unwrap();
    let mut part = index_path(&path).into_os_string();
    part.push(".part");
    let part = PathBuf::from(part);
    let other = folder.path().join("other");
    fs::write(&other, "kept").unwrap();
    let leave: [&dyn Fn(); 3] = [
        &|| fs::write(&part, "half of it").unwrap(),
        &|| fs::hard_link(&other, &part).unwrap(),
        &|| {
            std::os::unix::fs::symlink(&other, &part).unwrap();
        },
    ];
    for leave in leave {
        remove(&path).unwrap();
        leave();
        write(&path, &index).unwrap();
        assert_eq!(load(&path).as_ref(), Ok(&index));
        assert!(fs::symlink_metadata(&part).is_err(), "it is gone");
    }
    assert_eq!(fs::read(&other).unwrap(), b"kept");
}
