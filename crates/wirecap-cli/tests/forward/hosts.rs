//! Traffic between hosts through the box, as over a cable.

use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use wirecap_testbed::{Host, frames_of_several_cells, loss_lock, privileged};

use crate::bed::{Bed, ENGINES, PATIENCE, transfer_seconds};

/// Pings the other host five times.
#[track_caller]
fn ping(from: &Host, to: &str, payload_bytes: u32) {
    let size = payload_bytes.to_string();
    let mut ping = Command::new("ping");
    ping.args(["-c", "5", "-i", "0.05", "-W", "20", "-M", "do", "-s", &size, to]);
    let output = from.run(&mut ping).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(" 0% packet loss"), "{said}");
}

/// An iperf3 server for one test.
struct Server(Child);

impl Server {
    fn on(host: &Host) -> Self {
        let mut command = Command::new("iperf3");
        command
            .args(["-s", "-1", "--forceflush"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(host.interface.namespace.run_in(|| command.spawn()).unwrap().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a transfer between the hosts, and returns the measurements of both ends.
#[track_caller]
fn iperf3(from: &Host, to: &Host, address: &str, options: &str) -> Value {
    let _server = Server::on(to);
    let seconds = transfer_seconds().unwrap_or(1);
    let time = seconds.to_string();
    let limit = (seconds + PATIENCE.as_secs()).to_string();
    // The server needs a moment to start, so try repeatedly.
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let mut client = Command::new("timeout");
        client
            .args([&limit, "iperf3", "-J", "-c", address, "-t", &time])
            .args(options.split_whitespace());
        let output = from.run(&mut client).unwrap();
        let result: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stdout)));
        match result["error"].as_str() {
            Some(error) if error.contains("refused") => thread::sleep(Duration::from_millis(100)),
            Some(error) => panic!("iperf3 -c {address} {options}: {error}"),
            None => return result,
        }
    }
    panic!("the server never listened");
}

fn bytes(result: &Value) -> u64 {
    result["end"]["sum_received"]["bytes"].as_u64().unwrap_or_else(|| panic!("{:#}", result["end"]))
}

#[test]
fn ping_bulk_transfers_and_datagrams_pass_over_ipv4_and_ipv6() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    for engine in ENGINES {
        let mut bed = Bed::new(1, 1500);
        let forwarder = bed.forward(&format!("--engine {engine} -R 64"));
        bed.wake_hosts();
        let left = &bed.inline.left;
        let right = &bed.inline.right;
        for address in [right.ipv4, right.ipv6] {
            ping(left, address, 56);
            ping(left, address, 1400);
        }
        for (from, to, address, options) in [
            (left, right, right.ipv4, ""),
            (left, right, right.ipv6, ""),
            (right, left, left.ipv4, ""),
            (left, right, right.ipv4, "-R -P 4"),
            (left, right, right.ipv4, "-u -b 40M -l 1400"),
            (left, right, right.ipv6, "-u -b 10M -l 100"),
        ] {
            let result = iperf3(from, to, address, options);
            assert!(bytes(&result) > 0, "{engine} {address} {options}: {result:#}");
        }
        let said = forwarder.said();
        let ledger = bed.finish(forwarder);
        assert_eq!(ledger["engine"], engine);
        // The kernel does not show what a veth's peer in another namespace does with tags.
        let of_tags = |line: &&str| line.contains("may send VLAN tags beside the frames");
        let warnings: Vec<&str> = said.lines().filter(|line| line.starts_with("warning")).collect();
        assert!(warnings.iter().all(of_tags), "{said}");
    }
}

#[test]
fn jumbo_frames_carry_transfers_too() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    for engine in ENGINES.into_iter().filter(|engine| *engine != "xdp" || frames_of_several_cells())
    {
        let mut bed = Bed::new(1, 9000);
        let forwarder = bed.forward(&format!("--engine {engine} -R 64"));
        bed.wake_hosts();
        let left = &bed.inline.left;
        let right = &bed.inline.right;
        ping(left, right.ipv4, 8972);
        ping(left, right.ipv6, 8952);
        assert!(bytes(&iperf3(left, right, right.ipv4, "")) > 0);
        bed.finish(forwarder);
    }
}

#[test]
fn in_advanced_mode_a_worker_helps_with_anothers_connections() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let mut bed = Bed::new(1, 1500);
    // With a threshold of 0, either worker may process any chunk.
    let forwarder = bed.forward("--engine xdp -R 64 -T 0 --workers 2");
    bed.wake_hosts();
    let left = &bed.inline.left;
    let right = &bed.inline.right;
    assert!(bytes(&iperf3(left, right, right.ipv4, "")) > 0);
    bed.finish(forwarder);
}

#[test]
fn only_a_host_that_leaves_checksums_to_hardware_is_reported() {
    if !privileged() {
        return;
    }
    for (engine, offload) in [("xdp", true), ("packet", true), ("xdp", false)] {
        let bed = Bed::new(1, 1500);
        let forwarder = bed.forward(&format!("--engine {engine} -R 16"));
        bed.wake_hosts();
        bed.inline.left.set_checksum_offload(offload).unwrap();
        ping(&bed.inline.left, bed.inline.right.ipv4, 56);
        let address = format!("{}:9", bed.inline.right.ipv4);
        let send = || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            // Only the first packet of each chunk is checked, and a chunk may have many.
            let has_said = || forwarder.said().contains("left to hardware");
            for sent in 0..4000 {
                if sent >= 20 && (!offload || has_said()) {
                    break;
                }
                // The other host answers that the port is closed, which may be returned as an error
                // of the next call.
                let _ = socket.send_to(b"to whom it may concern", &address);
                thread::sleep(Duration::from_millis(5));
            }
        };
        bed.inline.left.interface.namespace.run_in(send).unwrap();
        if offload {
            forwarder.wait_for("ethtool -K INTERFACE tx off");
        }
        let finished = forwarder.interrupt();
        assert_eq!(
            finished.stderr.matches("left to hardware").count(),
            usize::from(offload),
            "{finished:#?}"
        );
        assert!(
            finished.status.success() && !finished.stderr.contains("come from right"),
            "{finished:#?}"
        );
    }
}
