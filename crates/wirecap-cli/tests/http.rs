//! `--http`: metrics agree with the ledger to the packet, the page loads nothing from other hosts,
//! and no client can delay the capture or change anything. The tests also use Prometheus and a
//! browser from Debian.

#[path = "forward/bed.rs"]
#[allow(dead_code, reason = "this test does not use all of it")]
mod inline;
mod recording;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use recording::desk::{Desk, ENGINES, assert_ledger_conserved, counts, number};
use recording::{Running, WIRECAP};
use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use serde_json::Value;
use tempfile::TempDir;
use wirecap_testbed::{Load, Namespace, Stamp, Traffic, privileged, skip, wait_until};

const CONTRIB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib");
const OPEN: &str = "application/openmetrics-text;version=1.0.0";

/// A response of the server.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn of(text: &str) -> Self {
        let (head, body) =
            text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("not an answer: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn field(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields
            .into_iter()
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

fn exchange(mut stream: impl Read + Write, request: &str) -> io::Result<Answer> {
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(Answer::of(&text))
}

fn request(path: &str, accept: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
    )
}

/// The response for `path` of the server with this socket.
fn get(socket: &Path, path: &str) -> Answer {
    let answer = exchange(UnixStream::connect(socket).unwrap(), &request(path, OPEN)).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    answer
}

/// The samples in a metrics response, by name with labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
    };
    lines.map(sample).collect()
}

/// The sum of the samples of a metric whose labels contain `label`.
fn sum(samples: &BTreeMap<String, f64>, name: &str, label: &str) -> f64 {
    let prefix = format!("{name}{{");
    let of_metric =
        samples.iter().filter(|(sample, _)| sample.starts_with(&prefix) && sample.contains(label));
    of_metric.map(|(_, value)| value).sum()
}

/// Checks a scrape: the equations hold for the sum and for each ring. Returns the number of offered
/// packets.
#[track_caller]
fn assert_scrape_conserved(text: &str, rings: &[String]) -> u64 {
    let samples = samples(text);
    let total = |name: &str| sum(&samples, name, "");
    let offered = total("wirecap_packets_offered_total");
    assert_eq!(
        offered,
        total("wirecap_packets_delivered_total") + total("wirecap_packets_dropped_total"),
        "{text}"
    );
    for ring in rings {
        let label = format!("ring=\"{ring}\"");
        let of_ring = |name: &str| sum(&samples, name, &label);
        let delivered = of_ring("wirecap_ring_packets_delivered_total");
        let dropped = of_ring("wirecap_ring_packets_dropped_total");
        assert_eq!(of_ring("wirecap_ring_packets_offered_total"), delivered + dropped, "{text}");
        assert_eq!(of_ring("wirecap_pool_cells"), of_ring("wirecap_pool_capacity_cells"), "{text}");
    }
    assert_eq!(
        total("wirecap_ring_packets_delivered_total"),
        total("wirecap_packets_delivered_total"),
        "{text}"
    );
    offered as u64
}

/// Asserts that the last scrape agrees with the final ledger.
#[track_caller]
fn assert_scrape_is(ledger: &Value, text: &str) {
    let samples = samples(text);
    let mut compared = 0;
    let mut compare = |name: &str, labels: &str, count: &Value| {
        let Some(count) = count.as_u64() else { return };
        assert_eq!(sum(&samples, name, labels), count as f64, "{name} {labels}: {ledger} {text}");
        compared += 1;
    };
    let accounts = ledger["rings"].as_array().unwrap().iter().map(|ring| (ring, "ring_"));
    for (account, part) in accounts.chain([(ledger, "")]) {
        let label =
            account["name"].as_str().map(|name| format!("ring=\"{name}\"")).unwrap_or_default();
        for field in ["offered", "delivered", "filtered"] {
            compare(&format!("wirecap_{part}packets_{field}_total"), &label, &account[field]);
        }
        compare(&format!("wirecap_{part}delivered_bytes_total"), &label, &account["bytes"]);
        let reasons = account["dropped"].as_object().unwrap().iter();
        for (reason, count) in reasons
            .filter(|(reason, _)| part.is_empty() || !["device", "no_ring"].contains(&&***reason))
        {
            let labels = if label.is_empty() {
                format!("reason=\"{reason}\"")
            } else {
                format!("{label},reason=\"{reason}\"")
            };
            compare(&format!("wirecap_{part}packets_dropped_total"), &labels, count);
        }
    }
    assert!(compared >= 12, "{compared} numbers were compared");
}

fn ring_names(count: u32) -> Vec<String> {
    (0..count).map(|queue| format!("a1@{queue}")).collect()
}

#[test]
fn each_scrape_under_load_conserves_packets_and_the_last_one_is_the_final_ledger() {
    if !privileged() {
        return;
    }
    for engine in ENGINES {
        // A worker processes 10,000 packets/s, a small part of the load even if a busy machine
        // sends it slowly.
        for mode in [&[][..], &["-T", "30", "-x", "20", "--cost", "100000"]] {
            let desk = Desk::of_engine(engine, 2);
            let socket = desk.file("http.sock");
            let command = if mode.is_empty() { "count" } else { "handle" };
            let arguments = [
                &[
                    command, "-i", "a1", "--engine", engine, "-M", "64", "-R", "32", "--json",
                    "--http", &socket,
                ],
                mode,
                &["udp"],
            ]
            .concat();
            let running = desk.capture("a1", &arguments);
            let socket = Path::new(&socket);
            assert_eq!(fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o660);
            let mut generator = desk.bed.generator();
            // A skewed load, of which buddies take a part in advanced mode, and packets are lost.
            let loads = [
                Load::new(0, 150_000).per_second(100_000),
                Load::new(1, 30_000).per_second(20_000),
            ];
            let run = generator.start(&loads).unwrap();
            let mut scrapes = 0;
            let mut offered = 0;
            while !run.is_finished() {
                let now = assert_scrape_conserved(&get(socket, "/metrics").body, &ring_names(2));
                assert!(now >= offered, "{now} after {offered}");
                (offered, scrapes) = (now, scrapes + 1);
                thread::sleep(Duration::from_millis(100));
            }
            let sent: u64 = run.wait().unwrap().iter().map(|sent| sent.frames).sum();
            assert!(scrapes > 5, "{scrapes} scrapes");
            let mut last = Value::Null;
            wait_until("all packets are accounted for", || {
                last = serde_json::from_str(&get(socket, "/status.json").body).unwrap();
                number(&last["ledger"]["offered"]) >= sent
                    && last["pool"]["rings"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .all(|ring| ring["waiting"] == 0)
            });
            assert_ledger_conserved(&last["ledger"]);
            let text = get(socket, "/metrics").body;
            assert!(text.ends_with("# EOF\n"), "{text}");
            assert_scrape_conserved(&text, &ring_names(2));
            desk.wirecap(&["stop", "a1"]);
            let finished = running.finish();
            let ledger = finished.ledger();
            assert_eq!(counts(&last["ledger"]), counts(&ledger), "{}", finished.stderr);
            assert_eq!(number(&ledger["offered"]), sent, "{ledger}");
            assert_scrape_is(&ledger, &text);
            let [offloaded, helped] = ["ring_chunks_offloaded", "worker_chunks_helped"]
                .map(|name| sum(&samples(&text), &format!("wirecap_{name}_total"), ""));
            assert_eq!(offloaded, helped, "{text}");
            if !mode.is_empty() {
                let [delivered, offered] =
                    ["delivered", "offered"].map(|count| number(&ledger[count]));
                // The pools of the engine `packet` have room for many more short frames.
                let has_lost = delivered < offered || engine == "packet";
                assert!(offloaded > 0.0 && has_lost, "the load was harmless: {ledger}");
            }
            assert!(!socket.exists(), "the socket stays");
        }
    }
}

#[test]
fn only_this_host_is_served_and_nothing_can_be_changed() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let count = |more: &[&str]| desk.wirecap(&[&["count"], more].concat());
    for address in ["0.0.0.0:9417", "[::]:9417", "192.168.1.1:9417"] {
        count(&["-i", "a1", "--http", address])
            .assert_refused(2, &["is not a loopback address", "127.0.0.1:9417"]);
    }
    count(&["-i", "a1", "--http", "9417"]).assert_refused(2, &["invalid address 9417"]);
    count(&["-r", "/dev/null", "--http", "127.0.0.1:0"])
        .assert_refused(2, &["--http requires a live capture"]);
    let file = desk.file("file");
    fs::write(&file, "").unwrap();
    count(&["-i", "a1", "--http", &file]).assert_refused(1, &["cannot serve http on", &file]);
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);

    let (running, port) = serving(&desk, &["count", "-i", "a1", "-R", "16", "--json"]);
    let ask = |text: &str| {
        let stream =
            desk.bed.receiver.run_in(|| TcpStream::connect(("127.0.0.1", port)).unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        exchange(stream, text).unwrap()
    };
    let to = |host: &str, method: &str, path: &str| {
        ask(&format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
    };
    for path in ["/", "/metrics", "/status.json", "/history.json", "/events.json"] {
        let answer = to(&format!("127.0.0.1:{port}"), "GET", path);
        assert_eq!(answer.status, 200, "{path}");
        let policy = answer.field("Content-Security-Policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none';") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(answer.field("X-Content-Type-Options"), Some("nosniff"));
        assert_eq!(answer.field("Access-Control-Allow-Origin"), None);
        let length: usize = answer.field("Content-Length").unwrap().parse().unwrap();
        assert_eq!(
            (answer.body.len(), to("localhost", "HEAD", path).body.len()),
            (length, 0),
            "{path}"
        );
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            assert_eq!(to("localhost", method, path).status, 405, "{method} {path}");
        }
    }
    // A request that another site's page makes under its own name (DNS rebinding) is rejected.
    assert_eq!(to("site.example", "GET", "/status.json").status, 421);
    assert_eq!(to("localhost", "GET", "/nothing").status, 404);
    // Several requests on one connection, some of them pipelined.
    let three = "GET /history.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(2)
        + &request("/metrics", "*/*");
    let answers = ask(&three);
    assert_eq!(answers.body.matches("HTTP/1.1 200 OK").count(), 2, "{answers:?}");
    assert!(
        answers.body.contains("# TYPE wirecap_packets_offered_total counter\n")
            && !answers.body.contains("# EOF")
    );
    running.interrupt().assert_success();
}

#[test]
fn the_metrics_of_forwarding_are_its_ledger() {
    if !privileged() {
        return;
    }
    for engine in ENGINES {
        let mut bed = inline::Bed::new(1, 1500);
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("http.sock");
        let forwarder =
            bed.forward(&format!("--engine {engine} -R 64 --http {}", socket.display()));
        let traffic = Traffic::to(&bed.inline.right.interface);
        let frames: Vec<_> =
            (0..500).map(|sequence| traffic.frame(Stamp { queue: 0, sequence })).collect();
        let rings = ["left@0", "right@0"].map(str::to_owned);
        for frames in frames.chunks(100) {
            bed.send(frames);
            bed.send_back(&frames[..50]);
            let text = get(&socket, "/metrics").body;
            let delivered = assert_scrape_conserved(&text, &rings);
            let taken = sum(&samples(&text), "wirecap_port_packets_taken_total", "");
            assert!(taken <= delivered as f64, "taken by ports before they were delivered: {text}");
        }
        bed.wait_for_arrivals(500);
        bed.wait_for_returns(250);
        let mut text = String::new();
        wait_until("all packets are accounted for", || {
            text = get(&socket, "/metrics").body;
            let samples = samples(&text);
            let is_sent = sum(&samples, "wirecap_port_packets_sent_total", "") == 750.0;
            is_sent && sum(&samples, "wirecap_pool_cells", "state=\"waiting\"") == 0.0
        });
        assert!(get(&socket, "/").body.contains("</html>"));
        let ledger = forwarder.interrupt().ledger();
        bed.check_books(&ledger);
        assert_scrape_is(&ledger, &text);
        for (port, sent) in [("right", 500_u32), ("left", 250)] {
            let of_port = |name: &str| {
                sum(
                    &samples(&text),
                    &format!("wirecap_port_packets_{name}"),
                    &format!("port=\"{port}\""),
                )
            };
            let outcomes = ["sent_total", "dropped_total", "waiting"].map(of_port);
            assert_eq!(
                (of_port("taken_total"), outcomes),
                (f64::from(sent), [f64::from(sent), 0.0, 0.0]),
                "{text}"
            );
            assert_eq!(
                inline::at(inline::port(&ledger, port), "/sent"),
                u64::from(sent),
                "{ledger}"
            );
        }
        assert!(!socket.exists(), "the socket stays");
    }
}

/// Starts a capture that serves on its own port in the receiver's namespace, and waits until it
/// responds.
fn serving(desk: &Desk, arguments: &[&str]) -> (Running, u16) {
    let status = desk
        .bed
        .receiver
        .run_in(|| Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap());
    assert!(status.unwrap().success());
    let mut running = desk
        .bed
        .start(&mut desk.command(WIRECAP, &[arguments, &["--http", "127.0.0.1:0"]].concat()));
    let line = running.wait_for("serving");
    let port = line.trim_end().trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    running.wait_for("capturing");
    wait_until("the capture can be asked", || desk.wirecap(&["status", "a1"]).status.success());
    (running, port)
}

#[test]
fn no_client_holds_up_the_capture_or_other_clients() {
    if !privileged() {
        return;
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit })
        .unwrap();
    let desk = Desk::new(1);
    let socket = desk.file("http.sock");
    // There is a cell for each packet, so none is lost even on a busy machine.
    let arguments =
        ["count", "-i", "a1", "-M", "64", "-R", "512", "--json", "--http", &socket, "udp"];
    let running = desk.capture("a1", &arguments);
    let socket = Path::new(&socket);
    let connect = || UnixStream::connect(socket).unwrap();
    let mut generator = desk.bed.generator();
    let run = generator.start(&[Load::new(0, 30_000).per_second(10_000)]).unwrap();

    // Clients that send requests and never read, until their sockets are full.
    let deaf: Vec<UnixStream> = (0..8).map(|_| connect()).collect();
    for client in &deaf {
        client.set_nonblocking(true).unwrap();
        let requests = "GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3_000);
        let mut client = client;
        let _as_much_as_there_is_room_for = client.write(requests.as_bytes());
    }
    // A request sent in pieces is answered; a request that never ends is not.
    let mut slow = connect();
    for piece in ["GET /met", "rics HTTP/1.1\r\nHo", "st: x\r\nConnection: close\r", "\n\r"] {
        slow.write_all(piece.as_bytes()).unwrap();
        get(socket, "/metrics");
    }
    assert_eq!(exchange(slow, "\n").unwrap().status, 200);
    let mut never = connect();
    never.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap();
    // Invalid requests are rejected.
    for (text, status) in [
        ("\0\0\0\0\0\0\0\0", 400),
        ("GET\r\n\r\n", 400),
        ("{\"command\":\"stop\"}\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}", 400),
        ("GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n", 413),
    ] {
        assert_eq!(exchange(connect(), text).unwrap().status, status, "{text:?}");
        get(socket, "/metrics");
    }
    // A header without an end is not stored.
    let mut endless = connect();
    let _closed_before_all_was_sent = endless.write_all(&vec![b'x'; 1 << 20]);
    let _ = endless.shutdown(Shutdown::Write);
    // A thousand connections that send little or nothing, while another process is served.
    let stops = AtomicBool::new(false);
    let silent: Vec<UnixStream> = thread::scope(|scope| {
        let scraping = scope.spawn(|| {
            let mut scrapes = 0;
            while !stops.load(Ordering::Relaxed) {
                assert_scrape_conserved(&get(socket, "/metrics").body, &ring_names(1));
                scrapes += 1;
            }
            scrapes
        });
        let silent = (0..1_000).map(|number| {
            let mut client = connect();
            if number % 2 == 0 {
                let _it_may_be_closed_already = client.write_all(b"GET /metrics HTTP/1.1\r\nHo");
            }
            client
        });
        let silent = silent.collect();
        stops.store(true, Ordering::Relaxed);
        assert!(scraping.join().unwrap() > 0);
        silent
    });
    get(socket, "/status.json");
    let (finished, sent) = desk.stop_unharmed("a1", running, run);
    assert_eq!(number(&finished.ledger()["delivered"]), sent, "{}", finished.stderr);
    drop((deaf, never, endless, silent));
}

#[test]
fn a_recording_without_privileges_is_shown_with_its_files_and_its_socket_is_removed() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let folder = desk.directory.path().join("recordings");
    fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(65534), None).unwrap();
    let file = folder.join("t-%i.pcapng.zst").display().to_string();
    let socket = desk.file("http.sock");
    let options = [
        "--file-packets",
        "50",
        "--index",
        "on",
        "-Z",
        "nobody",
        "--json",
        "--http",
        &socket,
        "udp",
    ];
    let running = desk
        .capture("a1", &[&["capture", "-i", "a1", "-R", "64", "-w", &file], &options[..]].concat());
    let socket = PathBuf::from(&socket);
    desk.bed.generator().send(&[Load::new(0, 120)]).unwrap();
    wait_until("two files are complete and indexed", || {
        let samples = samples(&get(&socket, "/metrics").body);
        sum(&samples, "wirecap_index_files_indexed_total", "") == 2.0
            && sum(&samples, "wirecap_writer_files_completed_total", "") == 2.0
    });
    assert!(get(&socket, "/").body.contains("</html>"));
    assert!(get(&socket, "/events.json").body.contains("is complete"));
    let status: Value = serde_json::from_str(&get(&socket, "/status.json").body).unwrap();
    assert_eq!(status["ledger"]["delivered"], 120);
    let threads = status["threads"].as_array().unwrap();
    for name in ["index", "http", "control", "wirecap"] {
        assert!(
            threads.iter().any(|thread| thread["name"] == name),
            "{name} is not among {threads:?}"
        );
    }
    desk.wirecap(&["stop", "a1"]).assert_success();
    let finished = running.finish();
    finished.assert_success();
    assert_eq!(finished.ledger()["recorded"]["in_file"], 120, "{}", finished.stderr);
    wait_until("the sockets are removed", || !socket.exists() && !desk.path("a1").exists());
}

#[test]
fn the_report_of_a_loss_includes_doctors_findings() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(2);
    use_one_queue(&desk);
    let arguments =
        ["handle", "-i", "a1", "-M", "16", "-R", "4", "--cost", "1000000", "--json", "udp"];
    let mut running = desk.capture("a1", &arguments);
    desk.bed.generator().send(&[Load::new(0, 1_000)]).unwrap();
    let line = running.wait_for("no free cell on a1@0: 1 of 2 receive queues in use");
    assert!(line.trim_end().ends_with("; fix: ethtool -L a1 rx 2"), "{line}");
    let status = desk.status("a1");
    let lost = &status["losses"][0];
    let now = status["unix_s"].as_f64().unwrap();
    assert_eq!(
        (&lost["place"], &lost["reason"]),
        (&"a1@0".into(), &"no free cell".into()),
        "{status}"
    );
    assert!((now - 60.0..=now).contains(&lost["last_unix_s"].as_f64().unwrap()), "{status}");
    let finished = running.interrupt();
    assert_eq!(finished.status.code(), Some(3), "{}", finished.stderr);
    assert_eq!(number(&finished.ledger()["offered"]), 1_000, "{}", finished.stderr);
}

#[test]
fn an_unprivileged_capture_reports_doctors_findings_with_a_loss() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(2);
    use_one_queue(&desk);
    let folder = desk.directory.path().join("recordings");
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(65_534), None).unwrap();
    let file = folder.join("t.pcap").display().to_string();
    let arguments = [
        "capture", "-i", "a1", "-M", "16", "-R", "4", "-Z", "nobody", "-w", &file, "--json", "udp",
    ];
    let mut running = desk.capture("a1", &arguments);
    // While the process is stopped, packets arrive for which it has no cells. The file is not the
    // cause.
    running.signal(Signal::STOP);
    desk.bed.generator().send(&[Load::new(0, 1_000)]).unwrap();
    running.signal(Signal::CONT);
    let line = running.wait_for("no free cell on a1@0: 1 of 2 receive queues in use");
    assert!(line.trim_end().ends_with("; fix: ethtool -L a1 rx 2"), "{line}");
    let finished = running.interrupt();
    assert_eq!(finished.status.code(), Some(3), "{}", finished.stderr);
    assert_eq!(number(&finished.ledger()["offered"]), 1_000, "{}", finished.stderr);
}

/// Reduces both interfaces to one of two receive queues, which doctor reports. The sender must not
/// use more queues, since a veth needs as many receive queues for native XDP.
fn use_one_queue(desk: &Desk) {
    for (namespace, interface) in [(&desk.bed.sender, "a0"), (&desk.bed.receiver, "a1")] {
        let fewer = || {
            Command::new("ethtool").args(["-L", interface, "rx", "1", "tx", "1"]).status().unwrap()
        };
        assert!(namespace.run_in(fewer).unwrap().success());
    }
}

/// Whether these programs are installed. If not, the test is skipped with a message, or fails where
/// skipping is not allowed.
fn has(programs: &[&str]) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &&&str| env::split_paths(&path).any(|folder| folder.join(program).exists());
    let Some(lacking) = programs.iter().find(|program| !is_there(program)) else { return true };
    skip(&format!("{lacking} is not installed"));
    false
}

fn run(command: &mut Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[track_caller]
fn assert_accepted(output: &Output) {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

/// All expressions of a dashboard.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| expressions(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        _ => {}
    }
}

/// The metric names in an expression.
fn metric_names(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    words.filter(|word| word.starts_with("wirecap_"))
}

#[test]
fn promtool_accepts_the_rules_the_dashboard_and_the_metrics() {
    if !privileged() || !has(&["promtool"]) {
        return;
    }
    let rules = PathBuf::from(CONTRIB).join("prometheus/wirecap.rules.yml");
    assert_accepted(
        &Command::new("promtool").args(["check", "rules"]).arg(&rules).output().unwrap(),
    );
    let tests = rules.with_file_name("wirecap.rules.test.yml");
    assert_accepted(&Command::new("promtool").args(["test", "rules"]).arg(tests).output().unwrap());
    let config = rules.with_file_name("prometheus.yml");
    assert_accepted(
        &Command::new("promtool").args(["check", "config"]).arg(config).output().unwrap(),
    );

    let desk = Desk::new(2);
    let socket = desk.file("http.sock");
    let file = desk.file("t.pcap");
    let running = desk.capture(
        "a1",
        &["capture", "-i", "a1", "-R", "32", "-w", &file, "-T", "60", "--http", &socket, "udp"],
    );
    desk.bed.generator().send(&[Load::new(0, 100)]).unwrap();
    wait_until("the packets are in", || number(&desk.status("a1")["ledger"]["delivered"]) == 100);
    let stream = || UnixStream::connect(&socket).unwrap();
    let plain = exchange(stream(), &request("/metrics", "text/plain")).unwrap();
    assert!(plain.field("Content-Type").unwrap().starts_with("text/plain; version=0.0.4"));
    let checked = run(Command::new("promtool").args(["check", "metrics"]), &plain.body);
    assert_accepted(&checked);
    assert_eq!(String::from_utf8_lossy(&checked.stderr), "", "{}", plain.body);
    running.interrupt().assert_success();

    // Every metric in the rules and the dashboard exists, or belongs to a feature that this capture
    // does not use.
    let dashboard =
        fs::read_to_string(PathBuf::from(CONTRIB).join("grafana/wirecap.json")).unwrap();
    let mut panels = Vec::new();
    expressions(&serde_json::from_str(&dashboard).unwrap(), &mut panels);
    assert!(panels.len() >= 15, "{} expressions", panels.len());
    let absent_here = [
        "wirecap_packets_lost_after_delivery_total",
        "wirecap_port_packets_dropped_total",
        "wirecap_port_packets_sent_total",
        "wirecap_worker_chunks_helped_total",
        "wirecap_device_packets_dropped_total",
    ];
    let rules = fs::read_to_string(rules).unwrap();
    for name in panels.iter().chain([&rules]).flat_map(|text| metric_names(text)) {
        let is_there =
            plain.body.contains(&format!("# TYPE {name} ")) || absent_here.contains(&name);
        assert!(is_there, "{name} is not in {}", plain.body);
    }
    // Written as rules, so that promtool also checks the panels' expressions.
    let filled = |text: &String| text.replace("$__rate_interval", "1m").replace('$', "");
    let rule = |(text, index): (&String, usize)| serde_json::json!({ "record": format!("panel:{index}"), "expr": filled(text) });
    let records: Vec<Value> = panels.iter().zip(0..).map(rule).collect();
    let file = desk.file("panels.yml");
    fs::write(
        &file,
        serde_json::json!({ "groups": [{ "name": "panels", "rules": records }] }).to_string(),
    )
    .unwrap();
    assert_accepted(&Command::new("promtool").args(["check", "rules", &file]).output().unwrap());
}

/// A process that is killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// The response of Prometheus, which listens on this port in the namespace.
fn prometheus(namespace: &Namespace, path: &str) -> io::Result<Value> {
    let stream = namespace.run_in(|| TcpStream::connect("127.0.0.1:9090")).unwrap()?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let answer = exchange(stream, &format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n"))?;
    serde_json::from_str(&answer.body).map_err(io::Error::other)
}

/// The values of an expression.
fn query(namespace: &Namespace, expression: &str) -> Vec<f64> {
    let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let answer = prometheus(namespace, &format!("/api/v1/query?query={encoded}")).unwrap();
    let results =
        answer["data"]["result"].as_array().unwrap_or_else(|| panic!("{expression}: {answer}"));
    results.iter().map(|result| result["value"][1].as_str().unwrap().parse().unwrap()).collect()
}

#[test]
fn prometheus_scrapes_under_load_and_has_the_final_ledger() {
    if !privileged() || !has(&["prometheus"]) {
        return;
    }
    let desk = Desk::new(2);
    let arguments =
        ["handle", "-i", "a1", "-M", "64", "-R", "32", "-T", "30", "-x", "20", "--json", "udp"];
    let (running, port) = serving(&desk, &arguments);
    let rules =
        fs::canonicalize(PathBuf::from(CONTRIB).join("prometheus/wirecap.rules.yml")).unwrap();
    let config = serde_json::json!({
        "global": { "scrape_interval": "100ms", "scrape_timeout": "100ms", "evaluation_interval": "500ms" },
        "rule_files": [rules],
        "scrape_configs": [
            { "job_name": "wirecap", "static_configs": [{ "targets": [format!("127.0.0.1:{port}")] }] },
        ],
    });
    let file = desk.file("prometheus.yml");
    fs::write(&file, config.to_string()).unwrap();
    let receiver = &desk.bed.receiver;
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={file}"))
        .arg(format!("--storage.tsdb.path={}", desk.file("data")))
        .args(["--web.listen-address=127.0.0.1:9090", "--log.level=warn"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _prometheus = Killed(receiver.run_in(|| command.spawn().unwrap()).unwrap());
    wait_until("Prometheus has scraped", || {
        prometheus(receiver, "/api/v1/query?query=up")
            .is_ok_and(|answer| answer["data"]["result"][0]["value"][1] == "1")
    });
    let mut generator = desk.bed.generator();
    let loads = [Load::new(0, 150_000).per_second(75_000), Load::new(1, 30_000).per_second(15_000)];
    let sent: u64 = generator.send(&loads).unwrap().iter().map(|sent| sent.frames).sum();
    wait_until("all packets are accounted for", || {
        let status = desk.status("a1");
        number(&status["ledger"]["offered"]) >= sent
            && status["pool"]["rings"].as_array().unwrap().iter().all(|ring| ring["waiting"] == 0)
    });
    wait_until("Prometheus has seen the last packet", || {
        query(receiver, "wirecap_packets_offered_total") == [sent as f64]
    });
    let offered = "wirecap_packets_offered_total";
    let balance = format!(
        "{offered} - ignoring(reason) wirecap_packets_delivered_total - ignoring(reason) sum without(reason) (wirecap_packets_dropped_total)"
    );
    let delivered = query(receiver, "wirecap_packets_delivered_total");
    let by_rings = query(receiver, "sum(wirecap_ring_packets_delivered_total)");
    let dropped = query(receiver, "sum(wirecap_packets_dropped_total)");
    // Checked for every scrape; there was one every 100 ms.
    assert_eq!(query(receiver, &format!("max_over_time(({balance})[1m:50ms])")), [0.0]);
    assert_eq!(query(receiver, &format!("min_over_time(({balance})[1m:50ms])")), [0.0]);
    let scrapes = query(receiver, &format!("count_over_time({offered}[1m])"));
    assert!(scrapes[0] >= 10.0, "{scrapes:?} scrapes");
    let answer = prometheus(receiver, "/api/v1/rules").unwrap();
    let rules = answer["data"]["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() >= 9 && rules.iter().all(|rule| rule["health"] != "err"), "{answer}");
    let targets = prometheus(receiver, "/api/v1/targets").unwrap();
    assert_eq!(targets["data"]["activeTargets"][0]["lastError"], "", "{targets}");
    desk.wirecap(&["stop", "a1"]);
    let ledger = running.finish().ledger();
    assert_eq!(
        (delivered, by_rings),
        (vec![number(&ledger["delivered"]) as f64], vec![number(&ledger["delivered"]) as f64])
    );
    assert_eq!(
        dropped,
        [(number(&ledger["offered"]) - number(&ledger["delivered"])) as f64],
        "{ledger}"
    );
    assert_eq!(number(&ledger["offered"]), sent, "{ledger}");
}

/// Debian has two packages of the browser; the smaller one is headless.
fn browser() -> Option<&'static str> {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &&str| env::split_paths(&path).any(|folder| folder.join(program).exists());
    ["chromium-headless-shell", "chromium"].into_iter().find(is_there)
}

#[test]
fn a_browser_shows_the_page_without_policy_violations() {
    if !privileged() {
        return;
    }
    let Some(browser) = browser() else {
        has(&["chromium-headless-shell"]);
        return;
    };
    let desk = Desk::new(2);
    let arguments =
        ["handle", "-i", "a1", "-M", "64", "-R", "32", "-T", "30", "-x", "5", "--json", "udp"];
    let (running, port) = serving(&desk, &arguments);
    desk.bed
        .generator()
        .send(&[Load::new(0, 2_000).per_second(20_000), Load::new(1, 200)])
        .unwrap();
    wait_until("the packets are accounted for", || {
        number(&desk.status("a1")["ledger"]["offered"]) == 2_200
    });
    let ledger = desk.status("a1")["ledger"].clone();
    let profile = desk.file("profile");
    let look = |size: &str, what: &[&str]| {
        let mut command = Command::new(browser);
        command
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--enable-logging=stderr",
                "--hide-scrollbars",
            ])
            .args([
                &format!("--user-data-dir={profile}"),
                &format!("--window-size={size}"),
                "--virtual-time-budget=4000",
            ])
            .args(what)
            .arg(format!("http://127.0.0.1:{port}/"))
            .env("HOME", desk.directory.path());
        let output = desk.bed.receiver.run_in(|| run(&mut command, "")).unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        for forbidden in ["Content Security Policy", "CONSOLE", "Uncaught"] {
            assert!(!said.contains(forbidden), "{said}");
        }
        String::from_utf8(output.stdout).unwrap()
    };
    for size in ["1280,900", "390,844"] {
        let page = look(size, &["--dump-dom"]);
        let delivered = wirecap::grouped(number(&ledger["delivered"]));
        for words in ["a1@0", "a1@1", "worker 1", &delivered, "A-(64,32,30)"] {
            assert!(page.contains(words), "{words:?} is not in {page}");
        }
        // Contents wider than the window would need horizontal scrolling.
        assert!(page.contains("data-fits=\"yes\""), "{size}: {page}");
    }
    running.interrupt();
}
