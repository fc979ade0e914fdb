//! A capture on a host that is in use.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use wirecap_testbed::{Interface, PacketSender};

use crate::client::{BURST, Client, PING, REQUEST, Server, marked, reaches};
use crate::command::{Finished, Recorded, Running};
use crate::host::{Host, Use, patience};

/// Time in which a host can be reached after it was built: LACP negotiates for seconds.
pub(crate) const SETTLING: Duration = Duration::from_secs(30);
/// Number of pings and of TCP requests before a capture, while it runs, and after it.
pub(crate) const EXCHANGES: u32 = 5;
/// Number of frames that are sent to the interface besides, while a capture runs.
const BURST_FRAMES: u32 = 50;

const BROADCAST: [u8; 6] = [0xff; 6];

/// What a capture is told to observe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Interface,
    Any,
}

/// Whether the operator has marked the interface as dedicated to capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    Absent,
    Present,
}

/// The control: the client asks without a capture. Returns what was wrong.
pub(crate) fn works_by_itself(mut host: Host) -> Vec<String> {
    let _server = Server::start(&host.server, host.address);
    if let Some(arrival) = host.arrival.take() {
        arrival();
    }
    if !reaches(&host.client, host.address, SETTLING) {
        return vec!["the host cannot be reached".to_owned()];
    }
    started(&host).finish()
}

/// Captures on the host while its client asks it, and returns what was wrong.
pub(crate) fn observe(mut host: Host, target: Target, mark: Mark) -> Vec<String> {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("recorded");
    let device = if target == Target::Any { "any" } else { host.interface };
    let mut command = wirecap(&host, &folder, mark);
    command
        .args(["capture", "-i", device, "--no-control", "--json", "-M", "64", "-R", "64", "-w"])
        .arg(&file);

    let server = Server::start(&host.server, host.address);
    // On a dedicated port whose use nothing shows, the host is cut off, as the operator has asked.
    let is_cut_off = mark == Mark::Present && host.usage == Use::Hidden;
    let arrival = host.arrival.take();
    let mut client = None;
    if arrival.is_none() && !is_cut_off {
        assert!(
            reaches(&host.client, host.address, SETTLING),
            "the host cannot be reached before the capture"
        );
        client = Some(started(&host));
    }

    let mut running = Running::start(&host.namespace, &mut command);
    if !running.wait_for("capturing") {
        return vec![format!("it did not capture: {:?}", running.interrupt())];
    }
    let mut failures = Vec::new();
    if let Some(arrival) = arrival.filter(|_| !is_cut_off) {
        arrival();
        if reaches(&host.client, host.address, patience(2)) {
            client = Some(started(&host));
        } else {
            failures.push("the host got no address".to_owned());
        }
    }

    // These exchanges begin after the capture has, and end before it does.
    let first = client.as_ref().map(Client::next);
    if let Some(far) = &host.far {
        let port = || Interface::find(&host.namespace, host.interface).unwrap().mac;
        send_burst(far, if is_cut_off { port() } else { BROADCAST });
    }
    client.iter().for_each(|client| client.wait_for(EXCHANGES + 1));
    let last = client.as_ref().map(Client::next);
    let finished = running.interrupt();

    client.iter().for_each(|client| client.wait_for(EXCHANGES));
    let unanswered = client.map(Client::finish).unwrap_or_default();
    failures.extend(unanswered);
    drop(server);

    let warning = format!("were addressed to {} itself", host.interface);
    if is_cut_off && !finished.stderr.contains(&warning) {
        failures.push("no warning that frames were addressed to the port".to_owned());
    }
    let expects_packet = !is_cut_off && host.usage != Use::Later || mark == Mark::Absent;
    if expects_packet && finished.stderr.contains("xdp engine") {
        failures.push("auto selected xdp".to_owned());
    }
    let recorded = Recorded::read(&file, host.interface);
    failures.extend(check_verdict(&finished, &recorded));
    if host.far.is_some()
        && recorded.of_kind(BURST) != (BURST_FRAMES as usize, BURST_FRAMES as usize)
    {
        failures.push(format!(
            "{:?} of {BURST_FRAMES} frames are in the file",
            recorded.of_kind(BURST)
        ));
    }
    if let (Some(first), Some(last)) = (first, last) {
        // A capture that began with xdp continues with received packets only.
        let began_with_xdp = finished.stderr.contains("xdp engine");
        let passes = if began_with_xdp { host.passes / 2 } else { host.passes };
        failures.extend(check_exchanges(passes, &recorded, first, last));
    }
    if !failures.is_empty() {
        failures.push(format!("the command printed:\n{}", finished.stderr));
    }
    failures
}

/// The command, with the host's port marked or not.
pub(crate) fn wirecap(host: &Host, folder: &TempDir, mark: Mark) -> Command {
    let marks = folder.path().join("dedicated");
    fs::create_dir(&marks).unwrap();
    if mark == Mark::Present {
        let interface = Interface::find(&host.namespace, host.interface).unwrap();
        let address = interface.mac.map(|byte| format!("{byte:02x}")).join(":");
        fs::write(marks.join(host.interface), address + "\n").unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_wirecap"));
    command.env("WIRECAP_DEDICATED_DIR", &marks);
    command
}

/// A client that has been answered.
pub(crate) fn started(host: &Host) -> Client {
    let client = Client::start(&host.client, host.address);
    client.wait_for(EXCHANGES);
    client
}

fn send_burst(far: &Interface, destination: [u8; 6]) {
    let mut sender = PacketSender::on(far).unwrap();
    for number in 0..BURST_FRAMES {
        // The EtherType of local experiments: no host answers.
        let frame =
            [&destination[..], &far.mac, &[0x88, 0xb5], &[0; 30], &marked(BURST, number)].concat();
        sender.send(&frame).unwrap();
    }
}

/// The verdict is "lossless: yes", and the ledger has as many packets as the file.
fn check_verdict(finished: &Finished, recorded: &Recorded) -> Vec<String> {
    let Ok(ledger) = serde_json::from_str::<Value>(&finished.stdout) else {
        return vec![format!("no ledger: {finished:?}")];
    };
    let mut failures = Vec::new();
    if finished.status != Some(0) || ledger["lossless"] != true {
        failures.push(format!("status {:?}, lossless: {}", finished.status, ledger["lossless"]));
    }
    for name in ["/delivered", "/recorded/in_file"] {
        let count = ledger.pointer(name).and_then(Value::as_u64);
        if count != Some(recorded.packets) {
            failures.push(format!(
                "{name} is {count:?}, and the file has {} packets",
                recorded.packets
            ));
        }
    }
    failures
}

/// Each exchange is in the file as often as it passes the interface. TCP may repeat a segment.
fn check_exchanges(
    passes: usize,
    recorded: &Recorded,
    first: [u32; 2],
    last: [u32; 2],
) -> Option<String> {
    let wrong = |kind, index: usize, is_right: fn(usize, usize) -> bool| {
        // The first one may have begun before the capture.
        let numbers = first[index] + 1..last[index];
        let wrong =
            numbers.clone().filter(|number| !is_right(recorded.count(kind, *number), passes));
        wrong.map(|number| (number, recorded.count(kind, number))).collect::<Vec<_>>()
    };
    let pings = wrong(PING, 0, |count, passes| count == passes);
    let requests = wrong(REQUEST, 1, |count, passes| count >= passes);
    let is_right = pings.is_empty() && requests.is_empty();
    (!is_right).then(|| {
        format!("not {passes} times in the file (number, times): pings {pings:?}, TCP requests {requests:?}")
    })
}
