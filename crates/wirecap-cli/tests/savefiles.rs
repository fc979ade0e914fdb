//! Files that the command reads and writes, without interfaces: which ones it rejects, what it
//! preserves, and errors when it cannot write.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use wirecap::savefile::{
    FileSink, Format, Interface, LinkType, Reader, Record, Section, Timestamp, Writer,
};

const WIRECAP: &str = env!("CARGO_BIN_EXE_wirecap");

fn wirecap(arguments: &[&str]) -> Output {
    Command::new(WIRECAP).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn shell(script: &str) -> Output {
    Command::new("sh").args(["-c", script]).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn refused(output: &Output, status: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in: {text}"));
}

/// A UDP packet over IPv4, to 10.0.0.255 if the number is odd.
fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[..6].fill(0xff);
    (frame[12], frame[14], frame[23]) = (8, 0x45, 17);
    frame[26..30].copy_from_slice(&[10, 0, 0, 1]);
    frame[30..34].copy_from_slice(&[10, 0, 0, if number % 2 == 1 { 255 } else { 2 }]);
    if number.is_multiple_of(5) {
        frame[30..34].fill(255);
    }
    frame
}

/// A file of 100 packets, one second apart, beginning with this second.
fn recorded(folder: &TempDir, format: Format, first_second: u64) -> PathBuf {
    let path = folder.path().join("recorded");
    let mut writer = Writer::new(FileSink::replace(&path).unwrap(), format, &Section::default());
    writer.add_interface(&Interface { snap_len: 300, ..Interface::default() }).unwrap();
    for number in 0..100 {
        let timestamp =
            Some(Timestamp::from_unix_nanos((first_second + u64::from(number)) * 1_000_000_000));
        let data = &frame(number);
        writer.write(&Record { timestamp, wire_len: 60, data, ..Record::default() }).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn packets(path: &Path) -> usize {
    let mut reader = Reader::open(path).unwrap();
    let mut packets = 0;
    while reader.next_record().unwrap().is_some() {
        packets += 1;
    }
    packets
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_input_file_is_not_written_to_under_any_name() {
    let folder = TempDir::new().unwrap();
    let path = recorded(&folder, Format::Pcapng, 1);
    let before = fs::read(&path).unwrap();
    let link = folder.path().join("link");
    let hard = folder.path().join("hard");
    symlink(&path, &link).unwrap();
    fs::hard_link(&path, &hard).unwrap();
    for target in [&path, &link, &hard] {
        for force in [&[][..], &["--force"]] {
            let arguments = [&["capture", "-r", text(&path), "-w", text(target)], force].concat();
            refused(&wirecap(&arguments), 2, &["is the input file"]);
        }
    }
    let appended = format!("{WIRECAP} capture -r {0} -w - >> {0}", text(&path));
    refused(&shell(&appended), 2, &["is the input file"]);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn an_existing_file_is_replaced_only_by_force_and_accessible_only_to_its_owner() {
    let folder = TempDir::new().unwrap();
    let (path, copy) = (recorded(&folder, Format::Pcapng, 1), folder.path().join("copy"));
    fs::write(&copy, "kept").unwrap();
    let arguments = ["capture", "-r", text(&path), "-w", text(&copy)];
    refused(&wirecap(&arguments), 1, &["exists", "--force"]);
    assert_eq!(fs::read(&copy).unwrap(), b"kept");
    assert!(wirecap(&[&arguments[..], &["--force"]].concat()).status.success());
    assert_eq!(
        (packets(&copy), fs::metadata(&copy).unwrap().permissions().mode() & 0o777),
        (100, 0o600)
    );

    let link = folder.path().join("link");
    symlink(folder.path().join("kept"), &link).unwrap();
    refused(&wirecap(&["capture", "-r", text(&path), "-w", text(&link), "--force"]), 1, &["link"]);
    assert!(!folder.path().join("kept").exists());
    // As in a shell: a link to a pipe.
    let piped = format!(
        "{WIRECAP} capture -r {} -w /dev/stdout 2>/dev/null | tcpdump -nr - | wc -l",
        text(&path)
    );
    assert_eq!(String::from_utf8_lossy(&shell(&piped).stdout).trim(), "100");
}

#[test]
fn an_existing_file_is_rejected_before_an_interface_is_opened() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kept");
    fs::write(&path, "kept").unwrap();
    let path = text(&path);
    // The interfaces do not exist, but the error about the file must be reported first.
    let commands = [
        format!("capture -i nowhere0 -w {path}"),
        format!("forward nowhere0 nowhere1 --mirror {path}"),
        format!("profile -i nowhere0 --csv {path}"),
        format!("profile -i nowhere0 --svg {path}"),
        format!("generate --model even --count 1 -w {path}"),
    ];
    for command in &commands {
        let arguments: Vec<&str> = command.split(' ').collect();
        refused(&wirecap(&arguments), 1, &[path, "the file exists", "--force"]);
        assert_eq!(fs::read(path).unwrap(), b"kept", "{command}");
        let locked = FileSink::replace(path).unwrap();
        let forced = wirecap(&[&arguments[..], &["--force"]].concat());
        refused(&forced, 1, &[path, "another process is writing"]);
        drop(locked);
        fs::write(path, "kept").unwrap();
    }
    for command in &commands[..4] {
        let forced = wirecap(&[&command.split(' ').collect::<Vec<_>>()[..], &["--force"]].concat());
        refused(&forced, 1, &["nowhere0"]);
        assert_eq!(fs::read(path).unwrap(), b"kept", "{command}: nothing was recorded");
    }
    assert!(shell(&format!("{WIRECAP} {} --force", commands[4])).status.success());
    assert_eq!(packets(Path::new(path)), 1);
}

#[test]
fn a_bad_filter_leaves_no_file() {
    let folder = TempDir::new().unwrap();
    let (path, copy) = (recorded(&folder, Format::Pcapng, 1), folder.path().join("copy"));
    refused(
        &wirecap(&["capture", "-r", text(&path), "-w", text(&copy), "port http and"]),
        2,
        &["port http and"],
    );
    assert!(!copy.exists());
}

#[test]
fn a_recording_without_packets_can_be_read() {
    let folder = TempDir::new().unwrap();
    for source in [Format::Pcap, Format::Pcapng] {
        let path = recorded(&folder, source, 1);
        for format in ["pcap", "pcapng"] {
            let copy = folder.path().join(format!("copy.{format}.{source:?}"));
            let arguments =
                ["capture", "-r", text(&path), "-w", text(&copy), "--format", format, "tcp"];
            assert!(wirecap(&arguments).status.success());
            let tcpdump = Command::new("tcpdump").args(["-nr", text(&copy)]).output().unwrap();
            assert!(
                tcpdump.status.success(),
                "{format}: {}",
                String::from_utf8_lossy(&tcpdump.stderr)
            );
            assert_eq!(Reader::open(&copy).unwrap().interfaces()[0].snap_len, 300);
        }
    }
}

#[test]
fn pcap_does_not_wrap_in_2106() {
    let folder = TempDir::new().unwrap();
    let path = recorded(&folder, Format::Pcapng, (1 << 32) - 50);
    let copy = folder.path().join("copy");
    let arguments = ["capture", "-r", text(&path), "-w", text(&copy)];
    refused(&wirecap(&[&arguments[..], &["--format", "pcap"]].concat()), 1, &["2106", "pcapng"]);
    assert_eq!(packets(&copy), 50, "what came before is there");
    assert!(wirecap(&[&arguments[..], &["--force"]].concat()).status.success());
    assert_eq!(packets(&copy), 100);
}

#[test]
fn a_copy_of_an_unnamed_interface_has_no_name() {
    let folder = TempDir::new().unwrap();
    let (path, copy) = (recorded(&folder, Format::Pcap, 1), folder.path().join("copy"));
    assert!(wirecap(&["capture", "-r", text(&path), "-w", text(&copy)]).status.success());
    let reader = Reader::open(&copy).unwrap();
    assert_eq!(
        (reader.interfaces()[0].name.as_deref(), reader.interfaces()[0].snap_len),
        (None, 300)
    );
}

#[test]
fn a_conversion_reports_what_it_omits() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("commented");
    let section = Section { comment: Some("evidence".to_owned()), ..Section::default() };
    let mut writer = Writer::new(FileSink::create(&path).unwrap(), Format::Pcapng, &section);
    writer
        .add_interface(&Interface { name: Some("eth0".to_owned()), ..Interface::default() })
        .unwrap();
    writer
        .write(&Record { queue: Some(3), wire_len: 60, data: &frame(1), ..Record::default() })
        .unwrap();
    writer.finish().unwrap();
    let copy = |name: &str, format: &str| {
        let copy = folder.path().join(name);
        let output =
            wirecap(&["capture", "-r", text(&path), "-w", text(&copy), "--format", format]);
        assert!(output.status.success());
        (copy, String::from_utf8(output.stderr).unwrap())
    };
    let (_, said) = copy("pcap", "pcap");
    assert!(
        said.contains("omitted, because pcap cannot store it: 2 comments, 1 option of a packet"),
        "{said}"
    );
    let (same, said) = copy("pcapng", "pcapng");
    assert!(!said.contains("omitted"), "{said}");
    assert_eq!(fs::read(same).unwrap(), fs::read(path).unwrap());
}

#[test]
fn a_savefile_that_cannot_be_read_to_its_end_is_not_lossless() {
    let folder = TempDir::new().unwrap();
    for format in [Format::Pcap, Format::Pcapng] {
        let path = recorded(&folder, format, 10);
        let bytes = fs::metadata(&path).unwrap().len();
        File::options().write(true).open(&path).unwrap().set_len(bytes - 7).unwrap();
        let (path, copy) = (text(&path), folder.path().join("copy"));
        for command in [
            format!("count -r {path}"),
            format!("handle -r {path} --workers 1"),
            format!("capture -r {path} --force -w {}", text(&copy)),
        ] {
            let output = shell(&format!("{WIRECAP} {command}"));
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{command}: {said}");
            let verdict = format!("lossless: not known ({path} could not be read to its end)");
            assert!(said.contains(&verdict), "{command}: {said}");
        }
    }
}

#[test]
fn a_compressed_pipe_is_read_like_a_file_and_a_truncated_one_is_an_error() {
    let folder = TempDir::new().unwrap();
    let path = recorded(&folder, Format::Pcap, 10);
    let copy = folder.path().join("copy.pcap");
    let count = |text: &str| text.lines().filter(|line| line.contains(" IP ")).count();
    for compressor in ["cat", "gzip -c", "zstd -qc"] {
        let pipe = format!("{compressor} {}", text(&path));
        let bytes = shell(&pipe).stdout.len();
        for (command, reads) in [
            ("show -r - -n".to_owned(), true),
            ("show -nr -".to_owned(), true),
            ("-nr -".to_owned(), true),
            ("show --with tshark -nr - -Y ip".to_owned(), false),
            ("count -r - --json".to_owned(), false),
            ("handle -r - --workers 1".to_owned(), false),
            ("profile -r - --bin 1s".to_owned(), false),
            ("stats -r -".to_owned(), false),
            (format!("capture -r - --force -w {}", text(&copy)), false),
        ] {
            let whole = shell(&format!("{pipe} | {WIRECAP} {command}"));
            let said = String::from_utf8_lossy(&whole.stderr);
            assert_eq!(whole.status.code(), Some(0), "{pipe} | {command}: {said}");
            let read = String::from_utf8_lossy(&whole.stdout);
            assert!(!reads || count(&read) == 100, "{pipe} | {command}: {read}");
            if command.contains("tshark") {
                assert_eq!(read.lines().count(), 100, "{pipe} | {command}: {read}");
            }

            let torn = shell(&format!("{pipe} | head -c {} | {WIRECAP} {command}", bytes - 9));
            let said = String::from_utf8_lossy(&torn.stderr);
            assert_ne!(torn.status.code(), Some(0), "{pipe}, truncated | {command}: {said}");
            let is_named = ["truncated", "the savefile ends inside", "cut short"]
                .iter()
                .any(|words| said.contains(words));
            assert!(is_named, "{pipe}, truncated | {command}: {said}");
        }
        assert_eq!(packets(&copy), 100 - usize::from(compressor == "cat"), "{pipe}");
    }
    // What no command decompresses is named.
    fs::write(&path, [0x04, 0x22, 0x4d, 0x18, 0x64]).unwrap();
    let output = shell(&format!("cat {} | {WIRECAP} show -r -", text(&path)));
    refused(&output, 1, &["compressed by LZ4", "decompress it first, lz4 -d"]);
}

#[test]
fn a_reader_that_has_enough_packets_is_no_loss() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("long");
    assert!(
        wirecap(&["generate", "--model", "even", "-c", "20000", "-w", text(&path)])
            .status
            .success()
    );
    let script = format!(
        "{{ {WIRECAP} capture -r {} -w -; echo status $? >&2; }} | tcpdump -nr - -c 3 2>/dev/null",
        text(&path)
    );
    let output = shell(&script);
    let read = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(read.lines().count(), 3, "{said}");
    for words in ["standard output: its reader closed it and left ", "lossless: yes", "status 0"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn a_closed_or_full_standard_output_is_an_error() {
    let folder = TempDir::new().unwrap();
    let path = recorded(&folder, Format::Pcapng, 1);
    let path = text(&path);
    for command in [
        "--help".to_owned(),
        "--version".to_owned(),
        "capture --help".to_owned(),
        format!("count -r {path} --json"),
        format!("profile -r {path} --csv -"),
        format!("capture -r {path} -w -"),
        "devices".to_owned(),
    ] {
        for output in [">&-", ">/dev/full"] {
            refused(&shell(&format!("{WIRECAP} {command} {output}")), 1, &["standard output"]);
        }
        let output = shell(&format!("{WIRECAP} {command} >/dev/null"));
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_profile_of_packets_of_1970_and_of_today_is_small() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("gap");
    let mut writer =
        Writer::new(FileSink::create(&path).unwrap(), Format::Pcapng, &Section::default());
    writer.add_interface(&Interface::default()).unwrap();
    for nanos in [0, 1_800_000_000_000_000_000, 18_000_000_000_000_000_000] {
        let timestamp = Some(Timestamp::from_unix_nanos(nanos));
        writer
            .write(&Record { timestamp, wire_len: 60, data: &frame(1), ..Record::default() })
            .unwrap();
    }
    writer.finish().unwrap();
    let csv = folder.path().join("csv");
    let svg = folder.path().join("svg");
    let script = format!(
        "ulimit -v 2000000; {WIRECAP} profile -r {} --csv {} --svg {}",
        text(&path),
        text(&csv),
        text(&svg)
    );
    let output = shell(&script);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read_to_string(csv).unwrap().lines().count(), 1 + 7);
    assert!(File::open(svg).unwrap().metadata().unwrap().len() < 100_000);
}

#[test]
fn expressions_match_in_a_file_what_tcpdump_matches() {
    let folder = TempDir::new().unwrap();
    let path = recorded(&folder, Format::Pcapng, 1);
    for expression in
        ["ip broadcast", "not ip broadcast", "ether[-1] = 0", "not ether[-1] = 0", "ip[-1] > 3"]
    {
        let tcpdump = Command::new("tcpdump")
            .args(["-nr", text(&path), "--count", expression])
            .output()
            .unwrap();
        let theirs = String::from_utf8(tcpdump.stdout).unwrap();
        let ours = wirecap(&["count", "-r", text(&path), "--json", expression]);
        let json: serde_json::Value = serde_json::from_slice(&ours.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&ours.stderr)));
        assert_eq!(
            theirs.split(' ').next(),
            Some(&*json["delivered"].to_string()),
            "{expression}: {theirs}"
        );
    }
    // tcpdump rejects it on Ethernet, too; a cooked capture contains the direction.
    refused(&wirecap(&["count", "-r", text(&path), "inbound"]), 1, &["savefile"]);
    let cooked = folder.path().join("cooked");
    let mut writer =
        Writer::new(FileSink::create(&cooked).unwrap(), Format::Pcap, &Section::default());
    writer
        .add_interface(&Interface { link_type: LinkType::LINUX_SLL, ..Interface::default() })
        .unwrap();
    for packet_type in [0, 4, 4, 1, 0] {
        let data = &[0, packet_type, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0, 8, 0];
        writer.write(&Record { wire_len: 16, data, ..Record::default() }).unwrap();
    }
    writer.finish().unwrap();
    for (expression, packets) in [("inbound", 3), ("outbound", 2)] {
        let ours = wirecap(&["count", "-r", text(&cooked), "--json", expression]);
        let json: serde_json::Value = serde_json::from_slice(&ours.stdout).unwrap();
        assert_eq!(json["delivered"], packets, "{expression}");
    }
}

#[test]
fn a_name_of_another_compressor_is_rejected_and_the_format_is_that_of_the_extension() {
    let folder = TempDir::new().unwrap();
    let path = recorded(&folder, Format::Pcapng, 1);
    let written = folder.path().join("t.pcap.bz2");
    let commands = [
        format!("capture -r {} -w {}", text(&path), text(&written)),
        format!("capture -i nowhere0 -w {}", text(&written)),
        format!("find {} -w {}", text(&path), text(&written)),
        format!("generate --model even --count 100 -w {}", text(&written)),
    ];
    for command in commands {
        let arguments: Vec<&str> = command.split(' ').collect();
        refused(&wirecap(&arguments), 2, &["does not compress to .bz2", ".zst or .gz"]);
    }
    assert!(!written.exists());
    for (name, format) in
        [("g.pcap", Format::Pcap), ("g.pcap.zst", Format::Pcap), ("g.pcapng.gz", Format::Pcapng)]
    {
        let written = folder.path().join(name);
        let output =
            wirecap(&["generate", "--model", "even", "--count", "100", "-w", text(&written)]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(Reader::open(&written).unwrap().format(), format, "{name}");
        let is_compressed = fs::read(&written).unwrap()[..2] != [0x4d, 0x3c];
        assert_eq!(is_compressed, name != "g.pcap", "{name}");
    }
}

#[test]
fn a_file_size_below_one_packet_is_a_missing_unit() {
    let arguments = ["capture", "-i", "nowhere0", "-w", "/nowhere/t.pcap", "--file-size", "10"];
    refused(&wirecap(&arguments), 2, &["10 bytes are less than one packet", "10M"]);
}
