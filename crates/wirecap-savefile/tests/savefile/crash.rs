//! A writer that is killed, and a disk that is full.
//!
//! The writer must be a separate process, so these tests start their own program again. An
//! environment variable tells the second process that it is the writer.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use wirecap_savefile::{FileSink, Format, Interface, ReadError, Section, WriteError, Writer};

use crate::packet::{Packet, read_all};
use crate::tools::{has, skip};

/// The path that the writer process must write to.
const WRITER_PATH: &str = "WIRECAP_TEST_WRITER_PATH";

/// A command that runs this test again to write a file, by way of `wrapper` if there is one.
fn again(test: &str, wrapper: &[&str], path: &Path) -> Command {
    let this = env::current_exe().expect("a process knows its program");
    let mut command = match wrapper {
        [] => Command::new(this),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(this);
            command
        }
    };
    command.args(["--exact", test, "--nocapture"]).env(WRITER_PATH, path);
    command
}

/// The packet at `index` in every file of these tests.
fn packet(index: u64) -> Packet {
    let data: Vec<u8> = (0..60 + index % 1400).map(|at| (index + at) as u8).collect();
    Packet::plain(index, &data)
}

/// Writes up to `count` packets, or until a write fails.
fn write_packets(
    path: &Path,
    format: Format,
    buffer_bytes: usize,
    count: u64,
) -> Result<(), WriteError> {
    let sink = FileSink::create(path).expect("the folder can be written to");
    let mut writer = Writer::with_buffer(sink, format, &Section::default(), buffer_bytes);
    writer.add_interface(&Interface::default())?;
    for index in 0..count {
        writer.write(&packet(index).record())?;
    }
    writer.finish().map(drop)
}

fn format_of(path: &Path) -> Format {
    if path.extension().is_some_and(|extension| extension == "pcap") {
        Format::Pcap
    } else {
        Format::Pcapng
    }
}

/// Reads a file that may end in the middle of a packet but has no other fault.
fn count_packets(path: &Path) -> (u64, Option<ReadError>) {
    let (packets, error) = read_all(fs::File::open(path).expect("the file is there"));
    for (index, found) in (0..).zip(&packets) {
        assert_eq!(*found, packet(index));
    }
    (packets.len() as u64, error)
}

#[test]
fn a_killed_writer_leaves_every_packet_that_was_handed_over() {
    if let Some(path) = env::var_os(WRITER_PATH) {
        let path = PathBuf::from(path);
        write_packets(&path, format_of(&path), 64 << 10, 200_000).expect("the disk has room");
        return;
    }
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let mut packets = 0;
    let mut torn = 0;
    for round in 0..30 {
        let path = folder.path().join(if round % 2 == 0 { "file.pcap" } else { "file.pcapng" });
        let test = "crash::a_killed_writer_leaves_every_packet_that_was_handed_over";
        let mut child =
            again(test, &[], &path).stdout(Stdio::null()).spawn().expect("the test runs again");
        wait_for_bytes(&path, 256 << 10);
        thread::sleep(Duration::from_micros(997 * round % 20_000));
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");

        let file_bytes = fs::metadata(&path).expect("the file is there").len();
        let (count, error) = count_packets(&path);
        match error {
            None => {}
            // A kill may interrupt a write between two memory pages.
            Some(ReadError::Truncated { offset, present, .. }) => {
                assert_eq!(offset + present as u64, file_bytes);
                torn += 1;
            }
            Some(error) => panic!("round {round}: {error}"),
        }
        packets += count;
        fs::remove_file(&path).expect("it is our file");
    }
    assert!(packets >= 30 * 100, "{packets} packets in 30 files of 256 KiB or more");
    println!("{packets} packets in 30 files, {torn} of which ended inside a packet");
}

fn wait_for_bytes(path: &Path, byte_count: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while fs::metadata(path).map_or(0, |metadata| metadata.len()) < byte_count {
        assert!(Instant::now() < deadline, "the writer has written nothing for 20 s");
        thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_full_disk_ends_the_file_on_a_whole_packet() {
    if let Some(path) = env::var_os(WRITER_PATH) {
        for format in [Format::Pcapng, Format::Pcap] {
            for buffer_bytes in [1, 3000, 64 << 10, 1 << 20] {
                fill_disk(Path::new(&path), format, buffer_bytes);
            }
        }
        println!("the disk was full eight times");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("only root may mount a small disk");
    }
    if !has("unshare") {
        return;
    }
    let folder = tempfile::tempdir().expect("there is a temporary folder");
    let mount = r#"mount -t tmpfs -o size=1m small "$0" && exec "$@""#;
    let disk = folder.path().to_str().expect("its name is ASCII");
    let wrapper = ["unshare", "--mount", "sh", "-c", mount, disk];
    let test = "crash::a_full_disk_ends_the_file_on_a_whole_packet";
    let output =
        again(test, &wrapper, &folder.path().join("file")).output().expect("the test runs again");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("the disk was full eight times"), "{said}");
}

/// Writes until the disk is full, and checks the file.
fn fill_disk(path: &Path, format: Format, buffer_bytes: usize) {
    let error = write_packets(path, format, buffer_bytes, 10_000).expect_err("the disk has 1 MiB");
    let text = error.to_string();
    let WriteError::Sink { sink, packets, source } = error else { panic!("{error:?}") };
    assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    assert_eq!(text, format!("cannot write to {sink}; it contains {packets} complete packets"));
    assert_eq!(Path::new(&sink), path);

    let (count, error) = count_packets(path);
    assert!(error.is_none(), "{format:?} in writes of {buffer_bytes}: {error:?}");
    assert_eq!(count, packets);
    let file_bytes = fs::metadata(path).expect("the file is there").len();
    assert!(file_bytes > (1 << 20) - 2000, "{file_bytes} bytes: there was room for another packet");
    fs::remove_file(path).expect("it is our file");
}
