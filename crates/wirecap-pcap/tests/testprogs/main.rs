//! libpcap's own test programs, unmodified, behave the same with the drop-in as with the system's
//! libpcap, and so does tcpdump in its own tests. `make clients` runs them, because their sources
//! have to be fetched.

#[path = "../common/mod.rs"]
mod common;

mod source;
mod tcpdump_suite;

use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::{Bed, Library, PATIENCE, finish, said, signal_to};
use rustix::process::Signal;
use source::Fetched;
use tempfile::TempDir;
use wirecap::savefile::Reader;
use wirecap_testbed::{PacketSender, Sizes, Stamp, Traffic, privileged};

/// The number of frames that are sent. Every tenth has TCP in its header.
const SENT: u64 = 500;
const UDP: u64 = SENT - SENT / 10;
/// How long to wait for unexpected packets after the last expected one.
const LINGERING: Duration = Duration::from_millis(100);

/// A test program, and the bed in which it runs.
struct TestProgram {
    folder: TempDir,
    name: &'static str,
    bed: Bed,
}

impl TestProgram {
    /// `None`, after a message, if tests of this kind cannot run.
    fn new(name: &'static str) -> Option<Self> {
        if !privileged() {
            return None;
        }
        let source = source::or_skip(Fetched::Libpcap)?;
        let folder = tempfile::tempdir().unwrap();
        source::build(source, name, folder.path());
        let bed = Bed::new();
        bed.ip("link set lo up");
        bed.ip("address add 10.9.0.1/24 dev a1");
        Some(Self { folder, name, bed })
    }

    /// Output is line-buffered, few files can be opened, and SIGINT ends the program if it has no
    /// handler.
    fn command(&self, library: Library, arguments: &[&str]) -> Command {
        let mut command = self.bed.command("sh", library);
        // A background job of a shell without job control ignores SIGINT, and so do all programs
        // that it starts.
        let script = "ulimit -n 256; exec env --default-signal=INT stdbuf -oL \"$0\" \"$@\"";
        command.args(["-c", script]);
        command.arg(self.folder.path().join(self.name)).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program without traffic with each library, asserts that output and exit status are
    /// the same, and returns them.
    fn says_the_same(&self, arguments: &[&str]) -> String {
        let [theirs, ours] = [Library::System, Library::DropIn].map(|library| {
            let output = self.bed.run(&mut self.command(library, arguments));
            format!("{}{:?}", said(&output), output.status)
        });
        assert_eq!(ours, theirs, "{} {arguments:?}", self.name);
        theirs
    }

    fn listen(&self, library: Library, arguments: &[&str]) -> Listener {
        let mut child = self.bed.spawn(&mut self.command(library, arguments));
        let lines = Arc::new(Mutex::new(String::new()));
        let reader = collect(child.stdout.take().unwrap(), Arc::clone(&lines));
        Listener { child, lines, reader }
    }

    /// Two instances listen to the same frames, one with each library. `FILE` in `arguments` is
    /// replaced with a separate file for each.
    fn listen_both(&self, arguments: &[&str]) -> [Listener; 2] {
        [Library::System, Library::DropIn].map(|library| {
            let file = self.file(library);
            let arguments: Vec<&str> = arguments
                .iter()
                .map(|argument| if *argument == "FILE" { &*file } else { argument })
                .collect();
            self.listen(library, &arguments)
        })
    }

    fn file(&self, library: Library) -> String {
        self.folder.path().join(format!("{library:?}")).to_str().unwrap().to_owned()
    }

    fn send(&self, frames: Range<u64>) {
        let traffic = Traffic { sizes: Sizes::imix(), ..Traffic::to(&self.bed.pair.receiver) };
        let mut sender = PacketSender::on(&self.bed.pair.sender).unwrap();
        for sequence in frames {
            let mut frame = traffic.frame(Stamp { queue: 0, sequence });
            if sequence % 10 == 0 {
                frame[23] = 6;
            }
            sender.send(&frame).unwrap();
        }
    }

    /// Two instances listen until both have seen `expected` packets, and are then interrupted.
    /// Asserts that their output is the same and returns it, without the packet counts of each
    /// call, which no library guarantees.
    fn sees_the_same(&self, arguments: &[&str], expected: u64) -> String {
        let listeners = self.listen_both(arguments);
        listeners.iter().for_each(|listener| {
            listener.wait_for("Listening", |text| text.contains("Listening on"))
        });
        // In immediate mode libpcap's buffer has room for some thirty packets of any length.
        let at_a_time = if arguments.contains(&"-m") { 20 } else { SENT };
        for first in (0..SENT).step_by(at_a_time as usize) {
            let end = first + at_a_time;
            self.send(first..end);
            let so_far = expected * end / SENT;
            listeners
                .iter()
                .for_each(|listener| listener.wait_for("packets", |text| packets(text) >= so_far));
        }
        thread::sleep(LINGERING);
        let [theirs, ours] = listeners.map(|listener| {
            listener.interrupt();
            let text = listener.end();
            assert_eq!(packets(&text), expected, "{} {arguments:?}: {text}", self.name);
            without_counts(&text)
        });
        assert_eq!(ours, theirs, "{} {arguments:?}", self.name);
        theirs
    }
}

/// A running program that listens.
struct Listener {
    child: Child,
    lines: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Listener {
    fn wait_for(&self, what: &str, is_there: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_there(&self.lines.lock().unwrap()) {
            let text = self.lines.lock().unwrap().clone();
            assert!(Instant::now() < deadline && !self.reader.is_finished(), "no {what}: {text}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn interrupt(&self) {
        signal_to(&self.child, Signal::INT);
    }

    /// Waits for its end; returns its output and exit status.
    fn end(self) -> String {
        let output = finish(self.child);
        self.reader.join().unwrap();
        let lines = self.lines.lock().unwrap().clone();
        format!("{lines}{}{:?}", said(&output), output.status)
    }
}

fn collect(output: ChildStdout, lines: Arc<Mutex<String>>) -> JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            let mut lines = lines.lock().unwrap();
            lines.push_str(&line.unwrap());
            lines.push('\n');
        }
    })
}

/// The count in each line `N packets seen, N packets counted ...`, whose two numbers must be equal.
fn calls(text: &str) -> impl Iterator<Item = u64> {
    let count = |line: &str| {
        let (seen, rest) = line.split_once(" packets seen, ")?;
        let (counted, _) = rest.split_once(" packets counted")?;
        assert_eq!(seen, counted, "{line}");
        seen.parse().ok()
    };
    text.lines().filter_map(count)
}

fn packets(text: &str) -> u64 {
    calls(text).sum()
}

/// The distinct lines, without the numbers in lines with packet counts.
fn without_counts(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let is_count = line.contains(" packets seen") || line.contains(" ps_recv, ");
        let line = line.replace(|c: char| is_count && c.is_ascii_digit(), "");
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.join("\n")
}

#[test]
fn capturetest() {
    let Some(program) = TestProgram::new("capturetest") else { return };
    // With SIGINT caught, with breaking out of the loop, with packets at once or after a timeout,
    // blocking or not.
    let broken = ["-s", "-b", "-i", "a1", "udp"];
    assert!(program.sees_the_same(&broken, UDP).contains("Broken out of loop"));
    program.sees_the_same(&["-s", "-b", "-r", "-m", "-i", "a1"], SENT);
    // In nonblocking mode libpcap ends a read for pcap_breakloop only when there are packets, the
    // drop-in at once, so this is not tested.
    program.sees_the_same(&["-n", "-t", "10", "-i", "a1", "udp"], UDP);
    program.sees_the_same(&["-m", "-i", "a1"], SENT);
    for refused in [&["-i", "nonesuch"][..], &["-i", "a1", "no such filter"], &["-t", "x"], &["-x"]]
    {
        program.says_the_same(refused);
    }
}

#[test]
fn capturetest_has_the_same_counts_as_on_libpcap() {
    let Some(program) = TestProgram::new("capturetest") else { return };
    let listeners = program.listen_both(&["-s", "-b", "-i", "a1", "udp"]);
    listeners
        .iter()
        .for_each(|listener| listener.wait_for("Listening", |text| text.contains("Listening on")));
    program.send(0..SENT);
    for listener in listeners {
        listener.wait_for("packets", |text| packets(text) >= UDP);
        listener.interrupt();
        let text = listener.end();
        let last = text.lines().rfind(|line| line.contains("ps_recv")).unwrap();
        assert_eq!(last, format!("{UDP} ps_recv, 0 ps_drop, 0 ps_ifdrop"), "{text}");
    }
}

#[test]
fn selpolltest() {
    let Some(program) = TestProgram::new("selpolltest") else { return };
    for mechanism in [
        &["-s"][..],
        &["-p"],
        &["-s", "-n"],
        &["-p", "-n"],
        &["-s", "-t", "-q"],
        &["-p", "-t", "-q"],
        &[],
    ] {
        program.sees_the_same(&[mechanism, &["-i", "a1", "udp"]].concat(), UDP);
    }
    program.says_the_same(&["-s", "-p"]);
    program.says_the_same(&["-t"]);
}

#[test]
fn programs_end_on_sigint_if_the_tests_run_as_a_background_job() {
    // selpolltest has no handler for SIGINT.
    let Some(program) = TestProgram::new("selpolltest") else { return };
    let mut job = program.bed.command("sh", Library::System);
    job.args(["-c", "trap '' INT; exec \"$0\" --exact selpolltest"])
        .arg(std::env::current_exe().unwrap());
    let output = program.bed.run(&mut job);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn nonblocktest() {
    let Some(program) = TestProgram::new("nonblocktest") else { return };
    let listeners = program.listen_both(&["-i", "a1"]);
    // It prints nothing before it loops until the first packet. In the end it prints that it has no
    // descriptor left.
    let deadline = Instant::now() + PATIENCE;
    while listeners.iter().any(|listener| !listener.reader.is_finished()) {
        assert!(Instant::now() < deadline, "it waits for packets that came");
        program.send(0..SENT);
        thread::sleep(Duration::from_millis(200));
    }
    let [theirs, ours] = listeners.map(Listener::end);
    assert_eq!(ours, theirs);
    assert!(theirs.contains("failed as expected"), "{theirs}");
}

#[test]
fn threadsignaltest() {
    let Some(program) = TestProgram::new("threadsignaltest") else { return };
    for arguments in [&["-i", "a1"][..], &["-n", "-i", "a1"]] {
        let [theirs, ours] = program.listen_both(arguments).map(|listener| sorted(&listener.end()));
        assert_eq!(ours, theirs);
        assert!(theirs.contains("Loop got broken"), "{theirs}");
    }
}

/// Two threads print, and whether the signal reaches the one that was already woken is a matter of
/// chance.
fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().filter(|line| *line != "Got SIGUSR1").collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn writecaptest() {
    let Some(program) = TestProgram::new("writecaptest") else { return };
    for (arguments, expected) in
        [(&["-i", "a1"][..], SENT), (&["-s", "40", "-i", "a1", "udp"], UDP)]
    {
        let listeners = program.listen_both(&[&["-w", "FILE"], arguments].concat());
        let files = [Library::System, Library::DropIn].map(|library| program.file(library));
        // It prints nothing until it has opened its file, which it does after it has set its
        // filter.
        for (listener, file) in listeners.iter().zip(&files) {
            listener.wait_for("file", |_| Path::new(file).exists());
        }
        program.send(0..SENT);
        thread::sleep(Duration::from_millis(2500));
        common::wait_for_sleep(|| listeners.iter().map(|listener| listener.child.id()).collect());
        let [theirs, ours] = listeners.map(|listener| {
            listener.interrupt();
            listener.end()
        });
        let mask =
            |text: &str, library| without_counts(&text.replace(&program.file(library), "FILE"));
        assert_eq!(mask(&ours, Library::DropIn), mask(&theirs, Library::System));
        let [theirs, ours] = files.map(|file| {
            let packets = recorded(Path::new(&file));
            std::fs::remove_file(file).unwrap();
            packets
        });
        assert_eq!(theirs.len() as u64, expected);
        assert!(ours == theirs, "other packets were recorded");
    }
    for arguments in [
        &["-D"][..],
        &["-L", "-i", "a1"],
        &["-L", "-i", "any"],
        &["-i", "a1"],
        &["-y", "x", "-i", "a1"],
    ] {
        program.says_the_same(arguments);
    }
}

/// The packets of a savefile: bytes and length on the wire.
fn recorded(file: &Path) -> Vec<(Vec<u8>, u32)> {
    let mut reader = Reader::open(file).unwrap();
    let mut packets = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        packets.push((record.data.to_vec(), record.wire_len));
    }
    packets
}

#[test]
fn opentest() {
    let Some(program) = TestProgram::new("opentest") else { return };
    assert!(program.says_the_same(&["-i", "a1"]).contains("opened successfully"));
    for arguments in [
        &["-i", "a1", "-a", "-p", "-s", "100", "-B", "4096"][..],
        &["-i", "a1", "-I"],
        &["-i", "a1", "-B", "0"],
        &["-i", "a1", "-s", "-1"],
        &["-i", "lo", "-a"],
        &["-i", "any"],
        &["-i", "any", "-p", "-a"],
        &["-i", "nonesuch"],
        &["-i", "nonesuch", "-a"],
        &["-i", ""],
        &[],
    ] {
        program.says_the_same(arguments);
    }
}

#[test]
fn programs_without_traffic_behave_the_same_with_both_libraries() {
    for (name, runs) in [
        ("can_set_rfmon_test", &[&["a1"][..], &["lo"], &["any"], &["nonesuch"], &[]][..]),
        ("findalldevstest", &[&[]]),
        ("reactivatetest", &[&[]]),
        (
            "valgrindtest",
            &[&["-i", "a1"], &["-a", "-i", "a1"], &["-I", "-i", "a1"], &["-i", "nonesuch"]],
        ),
    ] {
        let Some(program) = TestProgram::new(name) else { return };
        runs.iter().for_each(|arguments| drop(program.says_the_same(arguments)));
    }
}

#[test]
fn filtertest() {
    let Some(program) = TestProgram::new("filtertest") else { return };
    for expression in [
        "",
        "ip",
        "not ip6 and not arp",
        "tcp port 80 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)",
        "host 10.9.0.1 or net 131.225.2.0/24",
        "vlan 7 and udp",
        "vlan and vlan and ip6 host fe80::1",
        "mpls 1024 and host 1.2.3.4",
        "pppoes and tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
        "ether host 02:00:00:00:00:01 and greater 100",
        "ip broadcast",
        "portrange 1000-2000 and sctp",
        "no such filter",
        "port 99999",
        "wlan type mgt",
        "ip and",
    ] {
        for link_type in ["EN10MB", "RAW", "LINUX_SLL", "IEEE802_11", "PPI", "1"] {
            program.says_the_same(&[link_type, expression]);
        }
        program.says_the_same(&["-O", "-d", "-s", "96", "EN10MB", expression]);
        program.says_the_same(&["-m", "255.255.255.0", "EN10MB", expression]);
    }
    for arguments in
        [&["-x"][..], &["nonesuch", "ip"], &["-s", "x", "EN10MB"], &["-g", "EN10MB", "ip"], &[]]
    {
        program.says_the_same(arguments);
    }
}
