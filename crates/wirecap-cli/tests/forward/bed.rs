//! Two hosts, the box between them, the command that runs in the box, and the counters that its
//! ledger is compared with.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use wirecap::savefile::Reader;
use wirecap_testbed::{Counters, Host, Inline, PacketSender, wait_until};

pub(crate) const WIRECAP: &str = env!("CARGO_BIN_EXE_wirecap");

/// Maximum time for any step on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The duration of transfers, if set in the environment.
pub(crate) fn transfer_seconds() -> Option<u64> {
    env::var("WIRECAP_TRANSFER_SECONDS").ok()?.parse().ok()
}

/// The engines that can forward.
pub(crate) const ENGINES: [&str; 2] = ["xdp", "packet"];

pub(crate) struct Bed {
    pub(crate) inline: Inline,
    left: Counters,
    right: Counters,
    /// The box's interfaces.
    ports: [Counters; 2],
}

impl Bed {
    /// Two hosts that send no packets.
    pub(crate) fn new(queue_count: u32, mtu_bytes: u32) -> Self {
        let inline = Inline::new(queue_count, mtu_bytes).and_then(Inline::dedicated).unwrap();
        let [left, right] =
            [&inline.left, &inline.right].map(|host| Counters::of(&host.interface).unwrap());
        let ports = [&inline.left, &inline.right].map(|host| Counters::of(&host.port).unwrap());
        Self { inline, left, right, ports }
    }

    /// Assigns addresses to both hosts, and turns their checksum offload off. From now on they also
    /// send packets of their own, so forwarding should already run.
    pub(crate) fn wake_hosts(&self) {
        self.inline.set_checksum_offload(false).unwrap();
        self.inline.add_addresses().unwrap();
    }

    /// Starts the command, with options separated by blanks (`_` for a blank within an option), and
    /// waits until it forwards.
    pub(crate) fn forward(&self, options: &str) -> Forwarder {
        let forwarder = self.start(options);
        forwarder.wait_for("forwarding");
        forwarder
    }

    /// Starts the command.
    pub(crate) fn start(&self, options: &str) -> Forwarder {
        let mut command = Command::new(WIRECAP);
        command
            .args(["forward", "left", "right", "--json"])
            .args(options.split_whitespace().map(|word| word.replace('_', " ")));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Forwarder::of(self.inline.middle.run_in(|| command.spawn()).unwrap().unwrap())
    }

    /// Sends from the left host.
    pub(crate) fn send(&self, frames: &[Vec<u8>]) {
        send(&self.inline.left, frames);
    }

    /// Sends from the right host.
    pub(crate) fn send_back(&self, frames: &[Vec<u8>]) {
        send(&self.inline.right, frames);
    }

    /// Waits until the right host has received this many packets in total.
    #[track_caller]
    pub(crate) fn wait_for_arrivals(&mut self, packets: u64) {
        let right = &mut self.right;
        wait_until("they all arrive", || right.since_start().unwrap().rx_packets >= packets);
    }

    /// The same for the left host.
    #[track_caller]
    pub(crate) fn wait_for_returns(&mut self, packets: u64) {
        let left = &mut self.left;
        wait_until("they all come back", || left.since_start().unwrap().rx_packets >= packets);
    }

    /// Number of packets that the right host has received.
    pub(crate) fn arrived(&mut self) -> u64 {
        self.right.since_start().unwrap().rx_packets
    }

    /// Stops the hosts, waits for packets in flight, ends the command, and compares its ledger with
    /// the counters of the hosts' interfaces.
    #[track_caller]
    pub(crate) fn finish(&mut self, forwarder: Forwarder) -> Value {
        // An interface with addresses sends packets at any time.
        thread::sleep(Duration::from_millis(300));
        for host in [&self.inline.left, &self.inline.right] {
            host.interface.set_up(false).unwrap();
        }
        thread::sleep(Duration::from_millis(300));
        let finished = forwarder.interrupt();
        let ledger = finished.ledger();
        self.check_books(&ledger);
        ledger
    }

    /// Checks that each port received what its host sent, that each host received what its port
    /// sent, and that each received packet was sent or is in the ledger with the reason why not.
    #[track_caller]
    pub(crate) fn check_books(&mut self, ledger: &Value) {
        let left = self.left.since_start().unwrap();
        let right = self.right.since_start().unwrap();
        let is_one_way = number(ledger, "/ways/1/from").is_none();
        // A full veth ring rejects a frame. If it was sent as an XDP frame, only the ledger counts
        // it; if a host's own stack sent it, the host counts it as `tx_dropped`.
        let refused_by_cable = left.xdp_xmit_errors() + right.xdp_xmit_errors();
        if ledger["engine"] == "xdp"
            && let Some(device) = number(ledger, "/dropped/device")
        {
            assert_eq!(device, refused_by_cable, "{left:?}, {right:?}, {ledger:#}");
        }
        let [at_left, at_right] = self.ports.each_mut().map(|port| port.since_start().unwrap());
        for (from, to, sent, arrived, port_counters) in [
            ("left", "right", left.tx_packets, right.rx_packets, at_left),
            ("right", "left", right.tx_packets, left.rx_packets, at_right),
        ] {
            if is_one_way && from == "right" {
                continue;
            }
            let port = port(ledger, to);
            let rings = ledger["rings"].as_array().unwrap().iter();
            let of_port =
                |ring: &&Value| ring["name"].as_str().unwrap().starts_with(&format!("{from}@"));
            let mut delivered = 0;
            let mut lost = 0;
            let mut lost_by_queues = 0;
            for ring in rings.filter(of_port) {
                delivered += at(ring, "/delivered");
                let no_room = at(ring, "/dropped/no_cell") + at(ring, "/dropped/ring_full");
                lost +=
                    no_room + at(ring, "/dropped/other") + number(ring, "/filtered").unwrap_or(0);
                lost_by_queues += no_room;
            }
            let way =
                ledger["ways"].as_array().unwrap().iter().find(|way| way["from"] == from).unwrap();
            let unsent: u64 = port["dropped"]
                .as_object()
                .unwrap()
                .values()
                .map(|count| count.as_u64().unwrap())
                .sum();
            assert_eq!(at(port, "/waiting"), 0, "{ledger:#}");
            assert_eq!(at(port, "/taken"), at(port, "/sent") + unsent, "{ledger:#}");
            assert_eq!(delivered, at(port, "/taken") + at(way, "/no_room"), "{ledger:#}");
            assert_eq!(arrived, at(port, "/sent"), "{from} to {to}: {ledger:#}");
            // The losses of the port's queues include the rings' losses and frames for which the
            // driver had no memory. With frames of several cells they exceed the rings' losses.
            let of_queues: u64 = port_counters.rx_queues.iter().map(|queue| queue.drops).sum();
            let received = delivered + lost;
            if filtered_is_known(ledger) {
                assert!(
                    received <= sent && sent <= received + of_queues.saturating_sub(lost_by_queues),
                    "{from}: {sent} sent, {port_counters:?}, {ledger:#}"
                );
            }
        }
    }
}

fn send(from: &Host, frames: &[Vec<u8>]) {
    let mut sender = PacketSender::on(&from.interface).unwrap();
    frames.iter().for_each(|frame| sender.send(frame).unwrap());
}

fn filtered_is_known(ledger: &Value) -> bool {
    !ledger["filtered"].is_null()
}

/// The ledger of one port.
#[track_caller]
pub(crate) fn port<'a>(ledger: &'a Value, name: &str) -> &'a Value {
    let mut ports =
        ledger["ports"].as_array().unwrap_or_else(|| panic!("no ports: {ledger:#}")).iter();
    ports.find(|port| port["name"] == name).unwrap_or_else(|| panic!("no {name}: {ledger:#}"))
}

/// A number that must exist.
#[track_caller]
pub(crate) fn at(json: &Value, pointer: &str) -> u64 {
    number(json, pointer).unwrap_or_else(|| panic!("no {pointer}: {json:#}"))
}

fn number(json: &Value, pointer: &str) -> Option<u64> {
    json.pointer(pointer).and_then(|value| value.as_u64().or(value.is_string().then_some(0)))
}

/// A running command; killed if the test ends first.
pub(crate) struct Forwarder {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    said: Arc<Mutex<String>>,
    stderr: Option<JoinHandle<()>>,
}

impl Forwarder {
    fn of(mut child: Child) -> Self {
        let mut stdout = child.stdout.take().unwrap();
        let stderr = child.stderr.take().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let noted = Arc::clone(&said);
        let stderr = thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                *noted.lock().unwrap() += &(line + "\n");
            }
        });
        let stdout = thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).unwrap();
            text
        });
        Self { child, stdout: Some(stdout), said, stderr: Some(stderr) }
    }

    /// The process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until the command has printed these words on standard error.
    #[track_caller]
    pub(crate) fn wait_for(&self, words: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.said().contains(words) {
            let ended = self.stderr.as_ref().is_some_and(JoinHandle::is_finished)
                && !self.said().contains(words);
            assert!(
                !ended && Instant::now() < deadline,
                "it did not say {words:?} but {}",
                self.said()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// Interrupts it like Ctrl-C.
    pub(crate) fn interrupt(self) -> Finished {
        self.signal(Signal::INT);
        self.finish()
    }

    /// Waits until it ends.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Finished {
        let mut status = None;
        wait_until("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let stdout = self.stdout.take().unwrap().join().unwrap();
        self.stderr.take().unwrap().join().unwrap();
        Finished { status: status.unwrap(), stdout, stderr: self.said() }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The result of a run of the command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    /// The output of `--json` if the command succeeded: with status 3 if packets were lost,
    /// otherwise 0.
    #[track_caller]
    pub(crate) fn ledger(&self) -> Value {
        let ledger: Value =
            serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"));
        let lossless = ledger["lossless"].as_bool().unwrap_or_else(|| panic!("{self:#?}"));
        assert_eq!(self.status.code(), Some(if lossless { 0 } else { 3 }), "{self:#?}");
        ledger
    }

    /// Checks that the command failed with this status, and that the error contains these words.
    #[track_caller]
    pub(crate) fn refused(&self, status: i32, words: &[&str]) {
        assert_eq!(self.status.code(), Some(status), "{self:#?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {self:#?}");
        }
    }
}

/// tcpdump at a host, which records what arrives, with VLAN tags in place.
pub(crate) struct Recording {
    directory: TempDir,
    child: Child,
    arrivals: Counters,
}

impl Recording {
    pub(crate) fn at(host: &Host) -> Self {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("arrivals.pcap");
        let mut command = Command::new("tcpdump");
        command
            .args([
                "-i",
                "eth0",
                "-Q",
                "in",
                "--immediate-mode",
                "-Z",
                "root",
                "-U",
                "-s",
                "9100",
                "-B",
                "65536",
                "-w",
            ])
            .arg(file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = host.interface.namespace.run_in(|| command.spawn()).unwrap().unwrap();
        let mut first = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut first).unwrap();
        assert!(first.contains("listening"), "{first}");
        Self { directory, child, arrivals: Counters::of(&host.interface).unwrap() }
    }

    /// Waits until `count` packets have arrived, and returns all that have.
    #[track_caller]
    pub(crate) fn finish(mut self, count: u64) -> Vec<Vec<u8>> {
        let arrivals = &mut self.arrivals;
        wait_until("they all arrive", || arrivals.since_start().unwrap().rx_packets >= count);
        let file = self.directory.path().join("arrivals.pcap");
        wait_until("they all are recorded", || recorded(&file).len() as u64 >= count);
        // Leaves time for unexpected packets to arrive.
        thread::sleep(Duration::from_millis(300));
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), Signal::INT).unwrap();
        self.child.wait().unwrap();
        recorded(&file)
    }
}

/// The packets of a savefile that may still be growing.
fn recorded(file: &Path) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let Ok(mut reader) = Reader::open(file) else { return packets };
    while let Ok(Some(record)) = reader.next_record() {
        packets.push(record.data.to_vec());
    }
    packets
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
