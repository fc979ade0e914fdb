//! Filters that are set while packets arrive and wait, with libpcap and with both engines.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use common::{Bed, Library, compile, finish, said};
use wirecap_testbed::{
    AfXdpSender, Namespace, PacketReceiver, PacketSender, Stamp, Traffic, VethPair, privileged,
};

/// How long to wait for a frame that must not come.
const SILENCE: Duration = Duration::from_millis(100);

/// A library, and the engine that it uses.
type Contender = (Library, &'static str);

/// A program that executes commands on a handle.
struct Puppet {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    _folder: tempfile::TempDir,
}

impl Puppet {
    fn start(bed: &Bed, (library, engine): Contender, device: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = bed.command(compile("filters.c", folder.path(), &[]), library);
        command
            .arg(device)
            .env("WIRECAP_ENGINE", engine)
            .env("WIRECAP_M", "64")
            .env("WIRECAP_R", "64");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = bed.spawn(&mut command);
        let orders = child.stdin.take().unwrap();
        let answers = child.stdout.take().unwrap();
        let mut puppet = Self { child, orders, answers: BufReader::new(answers), _folder: folder };
        assert_eq!(puppet.answer(), "ready");
        puppet
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends a command and returns the answer.
    fn tell(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        self.answer()
    }

    /// Ends the program, and returns its counts of received and dropped packets.
    fn end(mut self) -> String {
        let books = self.tell("stats");
        let Self { child, orders, answers, _folder } = self;
        drop((orders, answers));
        assert_eq!(said(&finish(child)), "");
        books
    }
}

/// Frames with these numbers. Every third has TCP in its header.
fn frames(bed: &Bed, sequences: Range<u64>) -> impl Iterator<Item = Vec<u8>> {
    let traffic = Traffic::to(&bed.pair.receiver);
    sequences.map(move |sequence| {
        let mut frame = traffic.frame(Stamp { queue: 0, sequence });
        if sequence.is_multiple_of(3) {
            frame[23] = 6;
        }
        frame
    })
}

fn send(bed: &Bed, sequences: Range<u64>) {
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    frames(bed, sequences).for_each(|frame| sender.send(&frame).unwrap());
}

/// Sets filters after, before and between packets, and returns the counts at the end.
fn change_filters(bed: &Bed, contender: Contender) -> String {
    let mut puppet = Puppet::start(bed, contender, "a1");
    send(bed, 0..6);
    assert_eq!(puppet.tell("filter udp"), "filter");
    send(bed, 6..12);
    assert_eq!(puppet.tell("read"), "read 1 2 4 5 7 8 10 11", "{contender:?}");
    assert_eq!(puppet.tell("filter tcp"), "filter");
    send(bed, 12..18);
    assert_eq!(puppet.tell("read"), "read 12 15", "{contender:?}");
    send(bed, 18..24);
    assert_eq!(puppet.tell("filter ip"), "filter");
    assert_eq!(
        puppet.tell("read"),
        "read 18 21",
        "{contender:?}: what the old filter refused never came"
    );
    send(bed, 24..30);
    assert_eq!(
        puppet.tell("read udp"),
        "read 24 25 26 28 29",
        "{contender:?}: set in the first callback"
    );
    assert_eq!(puppet.tell("cut 20"), "cut");
    send(bed, 30..32);
    assert_eq!(puppet.tell("read"), "read 20 bytes 20 bytes", "{contender:?}");
    assert_eq!(puppet.tell("filter tcp"), "filter");
    assert_eq!(puppet.tell("nobody"), "nobody");
    assert_eq!(puppet.tell("filter udp"), "filter", "{contender:?}: without rights");
    send(bed, 32..40);
    assert_eq!(puppet.tell("read"), "read 32 34 35 37 38", "{contender:?}");
    puppet.end()
}

#[test]
fn filters_change_as_with_libpcap_and_the_host_gets_packets_that_xdp_rejects() {
    if !privileged() {
        return;
    }
    let theirs = change_filters(&Bed::new(), (Library::System, ""));
    // The kernel's filter also passed packets that a later filter rejected: two before the first
    // filter, and one after a callback.
    let delivered = 8 + 2 + 2 + 5 + 2 + 5;
    assert_eq!(theirs, format!("stats {} 0", delivered + 2 + 1));
    let books = change_filters(&Bed::new(), (Library::DropIn, "packet"));
    assert_eq!(books, theirs);
    let bed = Bed::new();
    let mut host = PacketReceiver::on(&bed.pair.receiver).unwrap();
    let books = change_filters(&bed, (Library::DropIn, "xdp"));
    assert_eq!(books, format!("stats {delivered} 0"));
    let mut passed = Vec::new();
    while let Some(frame) = host.receive(SILENCE).unwrap() {
        passed.extend(Stamp::of(frame).map(|stamp| stamp.sequence));
    }
    // The host does not get packets that the last filter rejects: it was set without the privilege
    // to load programs.
    assert_eq!(passed, [6, 9, 13, 14, 16, 17, 19, 20, 22, 23]);
}

#[test]
fn waiting_packets_are_filtered_again_in_each_ring() {
    if !privileged() {
        return;
    }
    // A packet socket also counts packets that arrived before its filter, as with libpcap.
    for (engine, device, counted) in [("packet", "a1@0-1", 68), ("xdp", "a1", 6)] {
        let namespace = Namespace::new().unwrap();
        let pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), 2, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        let bed = Bed { namespace, pair };
        let mut puppet = Puppet::start(&bed, (Library::DropIn, engine), device);
        let send = |queue, sequences| {
            let mut sender = AfXdpSender::on(&bed.pair.sender, queue).unwrap();
            frames(&bed, sequences).for_each(|frame| sender.send(&frame).unwrap());
            sender.flush().unwrap();
        };
        send(0, 0..60);
        send(1, 60..64);
        assert_eq!(puppet.tell("filter ether[55] >= 62"), "filter");
        send(1, 64..66);
        send(0, 66..68);
        let answer = puppet.tell("read");
        let mut numbers: Vec<u32> =
            answer.split(' ').filter_map(|word| word.parse().ok()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [62, 63, 64, 65, 66, 67], "{engine}: {answer}");
        assert_eq!(puppet.end(), format!("stats {counted} 0"), "{engine}");
    }
}
