//! Recordings with known packets, and the command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;
use wirecap_index::{Ensured, ensure};
use wirecap_recorder::{CompressedSink, Compression};
use wirecap_savefile::{FileSink, Format, Interface, Record, Section, Timestamp, Writer};

/// 2026-11-22T17:00:00Z.
pub(crate) const BEGIN: u64 = 1_795_366_800_000_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;
/// Packets of a segment.
pub(crate) const PACKETS: usize = 6000;
/// Duration of a segment, with 10 ms between packets.
pub(crate) const STEP: u64 = SECOND / 100;

/// A packet made by the tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) nanos: u64,
    pub(crate) protocol: Option<u8>,
    pub(crate) source: Option<String>,
    pub(crate) destination: Option<String>,
    pub(crate) ports: Option<(u16, u16)>,
    pub(crate) vlan: Option<u16>,
    pub(crate) flags: Option<u8>,
    pub(crate) data: Vec<u8>,
}

/// Pseudo-random numbers, the same in each run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The packet with this number of a recording that begins at `begin`.
fn packet(random: &mut Random, nanos: u64) -> Packet {
    let mut data = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    let vlan = (random.below(10) == 0).then(|| 100 + random.below(3) as u16);
    if let Some(vlan) = vlan {
        data.extend([0x81, 0]);
        data.extend(vlan.to_be_bytes());
    }
    let a = random.below(40) as u8;
    let b = random.below(40) as u8;
    let payload = random.below(1200) as usize;
    let kind = random.below(20);
    if kind == 0 {
        // ARP.
        data.extend([
            8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 0, 0, a, 0, 0, 0, 0, 0, 0, 10, 0,
            0, b,
        ]);
        let source = Some(format!("10.0.0.{a}"));
        let destination = Some(format!("10.0.0.{b}"));
        return Packet {
            nanos,
            protocol: None,
            source,
            destination,
            ports: None,
            vlan,
            flags: None,
            data,
        };
    }
    let protocol = match kind {
        1 => 1,
        2..=8 => 17,
        _ => 6,
    };
    let ports = (protocol != 1).then(|| {
        (1024 + random.below(50) as u16, [53_u16, 80, 443, 8080][random.below(4) as usize])
    });
    let flags = (protocol == 6).then(|| [2, 16, 17, 24][random.below(4) as usize]);
    let mut transport = Vec::new();
    if let Some((source, destination)) = ports {
        transport.extend(source.to_be_bytes());
        transport.extend(destination.to_be_bytes());
    }
    match flags {
        Some(flags) => transport.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]),
        None if protocol == 17 => {
            transport.extend([((payload + 8) >> 8) as u8, (payload + 8) as u8, 0, 0]);
        }
        None => transport.extend([8, 0, 0, 0, 0, 0, 0, 0]),
    }
    transport.extend((0..payload).map(|_| random.below(256) as u8));
    let (source, destination);
    if random.below(8) == 0 {
        data.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        data.extend((transport.len() as u16).to_be_bytes());
        data.extend([protocol, 64]);
        for end in [a, b] {
            data.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end]);
        }
        (source, destination) = (v6(a), v6(b));
    } else {
        data.extend([8, 0, 0x45, 0]);
        data.extend((20 + transport.len() as u16).to_be_bytes());
        data.extend([0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, a, 10, 0, 0, b]);
        (source, destination) = (format!("10.0.0.{a}"), format!("10.0.0.{b}"));
    }
    data.extend(transport);
    let source = Some(source);
    let destination = Some(destination);
    Packet { nanos, protocol: Some(protocol), source, destination, ports, vlan, flags, data }
}

fn v6(end: u8) -> String {
    std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, end.into()).to_string()
}

/// Packets of recording `number`, at intervals of [`STEP`].
pub(crate) fn packets(number: u64, count: usize) -> Vec<Packet> {
    let mut random = Random::new(number + 1);
    (0..count as u64)
        .map(|place| packet(&mut random, BEGIN + number * 3600 * SECOND + place * STEP))
        .collect()
}

/// Writes packets into a savefile whose extension is its format and compression, as
/// `wirecap capture` does.
pub(crate) fn record(path: &Path, packets: &[Packet]) {
    let file = FileSink::create(path).unwrap().into_file();
    let compression = Compression::of(path);
    let interface =
        Interface { name: Some("eth0".into()), snap_len: 262_144, ..Interface::default() };
    if compression == Compression::None {
        let sink = wirecap_savefile::StreamSink::new(file, "file");
        let format = if path.extension().is_some_and(|extension| extension == "pcap") {
            Format::Pcap
        } else {
            Format::Pcapng
        };
        let mut writer = Writer::new(sink, format, &Section::default());
        write(&mut writer, &interface, packets);
        writer.finish().unwrap();
    } else {
        let sink = CompressedSink::new(file, "file".into(), compression).unwrap();
        let mut writer = Writer::new(sink, Format::Pcapng, &Section::default());
        write(&mut writer, &interface, packets);
        writer.finish().unwrap();
    }
}

fn write<S: wirecap_savefile::Sink>(
    writer: &mut Writer<S>,
    interface: &Interface,
    packets: &[Packet],
) {
    let interface = writer.add_interface(interface).unwrap();
    for packet in packets {
        let timestamp = Some(Timestamp::from_unix_nanos(packet.nanos));
        let (data, wire_len) = (&packet.data[..], packet.data.len() as u32);
        let record =
            Record { interface, timestamp, queue: Some(3), wire_len, data, ..Record::default() };
        writer.write(&record).unwrap();
    }
}

/// A directory with three recordings of a minute each, an hour apart, with indexes, and their
/// packets.
pub(crate) struct Recordings {
    pub(crate) folder: TempDir,
    pub(crate) packets: Vec<Packet>,
}

impl Recordings {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut all = Vec::new();
        for (number, name) in ["a.pcapng.zst", "b.pcapng", "sub/c.pcapng.zst"].iter().enumerate() {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let packets = packets(number as u64, PACKETS);
            record(&path, &packets);
            assert!(matches!(ensure(&path, &mut |_| true).unwrap(), Ensured::Written { .. }));
            all.extend(packets);
        }
        Self { folder, packets: all }
    }

    pub(crate) fn archive(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    /// The recordings as plain pcap files, which tcpdump reads.
    pub(crate) fn plain(&self) -> Vec<PathBuf> {
        let chunks = self.packets.chunks(PACKETS).enumerate();
        chunks
            .map(|(number, packets)| {
                let folder = self.folder.path().with_extension("plain");
                fs::create_dir_all(&folder).unwrap();
                let path = folder.join(format!("{number}.pcap"));
                if !path.exists() {
                    record(&path, packets);
                }
                path
            })
            .collect()
    }

    /// The result of a statement as lines of CSV, without the names.
    pub(crate) fn sql(&self, statement: &str) -> Vec<String> {
        let run = run(&["sql", "-a", self.archive(), statement, "--format", "csv"]);
        assert!(run.is_success, "{statement}: {}", run.said);
        run.text().lines().skip(1).map(str::to_owned).collect()
    }
}

impl Drop for Recordings {
    fn drop(&mut self) {
        let _none = fs::remove_dir_all(self.folder.path().with_extension("plain"));
    }
}

/// How a run of the command ended.
pub(crate) struct Run {
    pub(crate) is_success: bool,
    pub(crate) status: Option<i32>,
    pub(crate) output: Vec<u8>,
    pub(crate) said: String,
}

impl Run {
    /// Runs a command without input.
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.stdin(Stdio::null()).output().unwrap();
        Self {
            is_success: output.status.success(),
            status: output.status.code(),
            output: output.stdout,
            said: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.output).unwrap()
    }
}

pub(crate) fn run(arguments: &[&str]) -> Run {
    run_with(arguments, &[])
}

pub(crate) fn run_with(arguments: &[&str], environment: &[(&str, &str)]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wirecap-archive"));
    Run::of(command.args(arguments).envs(environment.iter().copied()))
}

/// The packets of a savefile: their times and bytes.
pub(crate) fn read(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let mut reader = wirecap_savefile::Reader::open(path).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        packets.push((record.timestamp.unwrap().unix_nanos(), record.data.to_vec()));
    }
    packets
}

/// Number of packets that tcpdump finds in plain files.
pub(crate) fn tcpdump(files: &[PathBuf], expression: &str) -> usize {
    let count = |file: &PathBuf| {
        let output =
            Command::new("tcpdump").arg("-nr").arg(file).args(["-w", "-", expression]).output();
        let output = output.expect("tcpdump is installed");
        assert!(
            output.status.success(),
            "{expression}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut reader =
            wirecap_savefile::Reader::new(std::io::Cursor::new(output.stdout)).unwrap();
        let mut count = 0;
        while reader.next_record().unwrap().is_some() {
            count += 1;
        }
        count
    };
    files.iter().map(count).sum()
}
