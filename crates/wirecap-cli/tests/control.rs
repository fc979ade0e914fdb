//! Requests to a running capture over its control socket: answers agree with the ledger to the
//! packet, requests are executed, and no client delays the capture.

mod recording;

use std::fs::{self, Permissions};
use std::io::{BufRead, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use recording::desk::{Desk, ENGINES, assert_ledger_conserved, counts, dropped, number};
use recording::{WIRECAP, copy_for_everybody, tcpdump};
use rustix::io::ioctl_fionbio;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Action, tcflow};
use serde_json::{Value, json};
use wirecap_testbed::{Load, Watch, privileged, wait_until};

/// The side of a terminal that its user reads from.
struct Terminal(OwnedFd);

impl Terminal {
    fn new() -> Self {
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        Self(user)
    }

    /// The side that a program writes to.
    fn of_program(&self) -> OwnedFd {
        ioctl_tiocgptpeer(&self.0, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap()
    }

    /// Stops output, like Ctrl-S.
    fn stop(&self) {
        tcflow(self.of_program(), Action::OOff).unwrap();
    }

    /// Fills the terminal's buffer.
    fn fill(&self) {
        let end = self.of_program();
        ioctl_fionbio(&end, true).unwrap();
        while rustix::io::write(&end, b"x").is_ok() {}
    }

    /// Reads the output until the last program has closed the terminal.
    fn read_to_end(&self) {
        tcflow(self.of_program(), Action::OOn).unwrap();
        // At the end, a read fails.
        while rustix::io::read(&self.0, &mut [0; 4096]).is_ok_and(|count| count > 0) {}
    }
}

#[test]
fn a_terminal_that_is_stopped_or_not_read_does_not_delay_a_capture() {
    if !privileged() {
        return;
    }
    for block in [Terminal::stop, Terminal::fill] {
        record_on_a_blocked_terminal(block);
    }
}

fn record_on_a_blocked_terminal(block: fn(&Terminal)) {
    let watch = Watch::begin();
    let desk = Desk::new(1);
    let terminal = Terminal::new();
    let file = desk.file("t.pcap");
    // One line per second reports the progress. While a write to the terminal waits, more packets
    // arrive than fit the pool.
    let arguments =
        ["capture", "-i", "a1", "-M", "64", "-R", "8", "-w", &file, "--name", "rec", "--json"];
    let running = desk.bed.start_on(terminal.of_program(), &mut desk.command(WIRECAP, &arguments));
    watch.process(running.id());
    wait_until("the capture can be asked", || desk.wirecap(&["status", "rec"]).status.success());
    block(&terminal);
    let sent =
        desk.bed.generator().send(&[Load::new(0, 8_000).per_second(2_000)]).unwrap()[0].frames;
    let mut status = Value::Null;
    wait_until("all packets are accounted for", || {
        status = desk.status("rec");
        number(&status["ledger"]["offered"]) == sent && status["pool"]["rings"][0]["waiting"] == 0
    });
    running.signal(Signal::INT);
    let reading = std::thread::spawn(move || terminal.read_to_end());
    let finished = running.finish();
    reading.join().unwrap();
    let ledger = finished.ledger();
    assert_ledger_conserved(&ledger);
    assert_eq!(number(&ledger["recorded"]["in_file"]), number(&ledger["delivered"]), "{ledger:#}");
    assert_eq!(number(&ledger["delivered"]), sent, "{}: {ledger:#}", watch.end());
    finished.assert_success();
}

#[test]
fn top_ends_when_its_terminal_is_closed() {
    let terminal = Terminal::new();
    let mut top = Command::new(WIRECAP)
        .arg("top")
        .stdin(terminal.of_program())
        .stdout(terminal.of_program())
        .stderr(terminal.of_program())
        .spawn()
        .unwrap();
    // It has drawn something.
    assert!(rustix::io::read(&terminal.0, &mut [0; 4096]).unwrap() > 0);
    drop(terminal);
    wait_until("top has ended", || top.try_wait().unwrap().is_some());
}

/// A user without privileges.
const UNPRIVILEGED: u32 = 65534;

#[test]
fn each_status_under_load_conserves_packets_and_the_last_one_is_the_final_ledger() {
    if !privileged() {
        return;
    }
    for engine in ENGINES {
        let desk = Desk::of_engine(engine, 2);
        let arguments =
            ["count", "-i", "a1", "--engine", engine, "-M", "64", "-R", "32", "--json", "udp"];
        let running = desk.capture("a1", &arguments);
        let mut client = desk.client("a1");
        let mut generator = desk.bed.generator();
        let load = |queue| Load::new(queue, 150_000).per_second(100_000);
        let run = generator.start(&[load(0), load(1)]).unwrap();
        let mut polls = 0;
        let mut delivered = 0;
        while delivered < 200_000 {
            let status = client.ask(&json!({ "command": "status" }));
            let ledger = &status["ledger"];
            assert_ledger_conserved(ledger);
            assert!(number(&ledger["delivered"]) >= delivered, "{ledger}");
            delivered = number(&ledger["delivered"]);
            polls += 1;
            if number(&ledger["offered"]) >= 300_000 {
                break;
            }
        }
        let sent: u64 = run.wait().unwrap().iter().map(|sent| sent.frames).sum();
        assert!(polls > 10, "{polls} polls");
        let mut last = Value::Null;
        wait_until("all packets are accounted for", || {
            last = client.ask(&json!({ "command": "status" }));
            number(&last["ledger"]["offered"]) + last["ledger"]["filtered"].as_u64().unwrap_or(0)
                >= sent
                && last["pool"]["rings"].as_array().unwrap().iter().all(|ring| ring["waiting"] == 0)
        });
        assert_ledger_conserved(&last["ledger"]);
        let stopped = desk.wirecap(&["stop", "a1", "--json"]);
        let finished = running.finish();
        let ledger = finished.ledger();
        assert_eq!(counts(&stopped.ledger()), counts(&ledger), "{}", stopped.stderr);
        assert_eq!(counts(&last["ledger"]), counts(&ledger), "{}", finished.stderr);
        assert_eq!(number(&ledger["offered"]), sent, "{ledger}");
        assert_eq!(stopped.status.code(), finished.status.code(), "{}", stopped.stderr);
        assert!(!desk.path("a1").exists());
    }
}

#[test]
fn a_capture_is_shown_gets_another_filter_rotates_and_ends_with_its_ledger() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let file = desk.file("t-%i.pcap");
    let running = desk.capture(
        "rec",
        &[
            "capture",
            "-i",
            "a1",
            "-R",
            "64",
            "-w",
            &file,
            "--file-packets",
            "1000",
            "--name",
            "rec",
            "--json",
            "udp",
        ],
    );
    assert!(fs::symlink_metadata(desk.path("rec")).unwrap().file_type().is_socket());
    desk.bed.generator().send(&[Load::new(0, 100)]).unwrap();
    wait_until("the packets are in", || number(&desk.status("rec")["ledger"]["delivered"]) == 100);
    let shown = desk.wirecap(&["status", "rec"]);
    shown.assert_success();
    let text = String::from_utf8(shown.stdout).unwrap();
    for words in ["rec: capture, process ", "a1: filter: udp", "a1@0", "so far lossless: yes"] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    desk.wirecap(&["top", "rec"]).assert_refused(2, &["top needs a terminal"]);
    let overview = String::from_utf8(desk.wirecap(&["status"]).stdout).unwrap();
    assert!(
        overview.lines().all(|line| line.len() <= 80) && overview.contains("rec"),
        "{overview}"
    );

    let mut reader = desk.client("rec");
    assert_eq!(reader.ask(&json!({ "command": "events" })), json!({ "ok": true }));
    desk.wirecap(&["filter", "rec", "udp", "port", "7"]).assert_success();
    let event = reader.read();
    assert_eq!(event["event"], "filter", "{event}");
    desk.bed.generator().send(&[Load::new(0, 50)]).unwrap();
    let status = desk.status("rec");
    assert_eq!(status["interfaces"][0]["filter"], "udp port 7");
    assert_eq!(status["ledger"]["delivered"], 100, "{status}");
    desk.wirecap(&["filter", "rec", "no such filter"]).assert_refused(1, &["rec: "]);
    desk.wirecap(&["filter", "rec", ""]).assert_success();

    desk.wirecap(&["rotate", "rec"]).assert_success();
    let files = || fs::read_dir(desk.directory.path()).unwrap().flatten().map(|entry| entry.path());
    let complete =
        || files().filter(|path| path.extension().is_some_and(|kind| kind == "pcap")).collect();
    wait_until("the first file is complete", || Vec::<PathBuf>::len(&complete()) == 1);
    desk.bed.generator().send(&[Load::new(0, 30)]).unwrap();
    wait_until("the packets are in", || number(&desk.status("rec")["ledger"]["delivered"]) == 130);

    let stopped = desk.wirecap(&["stop", "rec"]);
    stopped.assert_success();
    assert!(
        String::from_utf8_lossy(&stopped.stdout)
            .contains("rec: 130 packets delivered; lossless: yes")
    );
    let finished = running.finish();
    finished.assert_success();
    let ledger = finished.ledger();
    assert_eq!(
        (number(&ledger["delivered"]), number(&ledger["recorded"]["in_file"])),
        (130, 130),
        "{ledger}"
    );
    let paths: Vec<PathBuf> = complete();
    let packets: usize = paths.iter().map(|path| tcpdump(path, &[]).0.len()).sum();
    assert_eq!((paths.len(), packets), (2, 130));
    let mut last = Value::Null;
    while last["event"] != "end" || !last["text"].as_str().unwrap().contains("lossless") {
        last = reader.read();
    }
    assert!(reader.is_closed());
    desk.wirecap(&["stop", "rec"]).assert_refused(1, &["no running capture is named rec"]);
}

#[test]
fn impossible_requests_are_rejected_and_stop_returns_the_exit_status_of_loss() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let arguments =
        ["handle", "-i", "a1", "-M", "16", "-R", "4", "--cost", "1000000", "--json", "udp"];
    let running = desk.capture("a1", &arguments);
    desk.wirecap(&["rotate", "a1"]).assert_refused(1, &["does not write a set of files"]);
    desk.bed.generator().send(&[Load::new(0, 1_000)]).unwrap();
    wait_until("packets are lost", || dropped(&desk.status("a1")["ledger"]) > 0);
    let stopped = desk.wirecap(&["stop", "a1", "--timeout", "60s"]);
    assert_eq!(stopped.status.code(), Some(3), "{}", stopped.stderr);
    let finished = running.finish();
    assert_eq!(finished.status.code(), Some(3), "{}", finished.stderr);
    let ledger = finished.ledger();
    assert_ledger_conserved(&ledger);
    assert_eq!(number(&ledger["offered"]), 1_000, "{ledger}");
}

#[test]
fn the_name_of_a_running_capture_is_rejected_and_that_of_a_killed_one_reused() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let arguments = ["count", "-i", "a1", "--engine", "packet", "-R", "16", "--json"];
    let first = desk.capture("a1", &arguments);
    let second = desk.capture("a1-2", &arguments);
    let named = [&arguments[..], &["--name", "a1"]].concat();
    let pid = first.id().to_string();
    desk.wirecap(&named).assert_refused(1, &["the name a1 is in use by process", &pid]);
    first.signal(Signal::KILL);
    assert_eq!(first.finish_killed(), None);
    assert!(desk.path("a1").exists());
    desk.wirecap(&["status", "a1"]).assert_refused(1, &["no running capture is named a1"]);
    let third = desk.capture("a1", &named);
    for (running, name) in [(second, "a1-2"), (third, "a1")] {
        assert_eq!(number(&desk.status(name)["pid"]), u64::from(running.id()));
        desk.wirecap(&["stop", name]).assert_success();
        running.finish().assert_success();
    }
    let silent =
        desk.bed.start(&mut desk.command(WIRECAP, &[&arguments[..], &["--no-control"]].concat()));
    let mut silent = silent;
    silent.wait_for("capturing");
    assert!(!desk.path("a1").exists());
    silent.interrupt().assert_success();
}

#[test]
fn a_capture_without_permission_for_a_control_socket_runs_and_reports_it() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let control = desk.path("");
    fs::create_dir(&control).unwrap();
    fs::set_permissions(&control, Permissions::from_mode(0o777)).unwrap();
    let mut running =
        desk.bed.start(&mut desk.command(WIRECAP, &["count", "-i", "a1", "-R", "16", "--json"]));
    running.wait_for("capturing");
    desk.bed.generator().send(&[Load::new(0, 10)]).unwrap();
    let finished = running.interrupt();
    finished.assert_success();
    assert_eq!(finished.ledger()["delivered"], 10);
    let said = finished.stderr.matches("no control socket: ").count();
    assert!(said == 1 && finished.stderr.contains("--no-control"), "{}", finished.stderr);
}

#[test]
fn another_user_sees_and_changes_nothing() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let (_folder, program) = copy_for_everybody();
    let file = desk.file("t-%i.pcap");
    let running = desk.capture(
        "a1",
        &[
            "capture",
            "-i",
            "a1",
            "-R",
            "64",
            "-w",
            &file,
            "--file-packets",
            "1000",
            "--json",
            "udp",
        ],
    );
    desk.bed.generator().send(&[Load::new(0, 100)]).unwrap();
    wait_until("the packets are in", || number(&desk.status("a1")["ledger"]["delivered"]) == 100);
    let before = desk.status("a1");
    let run = |arguments: &[&str]| {
        desk.bed.run(
            desk.command(&program, arguments).uid(UNPRIVILEGED).gid(UNPRIVILEGED).current_dir("/"),
        )
    };
    for arguments in [
        &["status", "a1"][..],
        &["status"],
        &["status", "--json"],
        &["stop", "a1"],
        &["filter", "a1", "tcp"],
        &["rotate", "a1"],
        &["events", "a1"],
    ] {
        let finished = run(arguments);
        finished.assert_refused(1, &["Permission denied", "only its owner, its group and root"]);
        assert!(finished.stdout.is_empty(), "{arguments:?}: {finished:?}");
    }
    // The user cannot replace, remove or lock the socket either.
    let directory = desk.path("");
    let script = format!(
        "cd {} && ! rm -f a1 && ! mv a1 b && ! touch c && ! flock -n .lock true && ! flock -n a1 true",
        directory.display()
    );
    desk.bed
        .run(Command::new("sh").args(["-c", &script]).uid(UNPRIVILEGED).gid(UNPRIVILEGED))
        .assert_success();
    let after = desk.status("a1");
    assert_eq!((&before["interfaces"], &before["state"]), (&after["interfaces"], &after["state"]));
    desk.bed.generator().send(&[Load::new(0, 50)]).unwrap();
    wait_until("the packets are in", || number(&desk.status("a1")["ledger"]["delivered"]) == 150);
    let finished = running.interrupt();
    finished.assert_success();
    assert_eq!(finished.ledger()["recorded"]["in_file"], 150);
    let files = fs::read_dir(desk.directory.path()).unwrap().flatten();
    assert_eq!(
        files.filter(|entry| entry.path().extension().is_some()).count(),
        1,
        "it was rotated"
    );
}

#[test]
fn no_client_holds_up_the_capture_or_other_clients() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let file = desk.file("t.pcap");
    // There is a cell for each packet, so none is lost even on a busy machine.
    let arguments = ["capture", "-i", "a1", "-M", "64", "-R", "512", "-w", &file, "--json", "udp"];
    let running = desk.capture("a1", &arguments);
    let mut generator = desk.bed.generator();
    let run = generator.start(&[Load::new(0, 30_000).per_second(10_000)]).unwrap();

    // Clients that send requests and never read, until their sockets are full.
    let mut stopped = Vec::new();
    for _ in 0..8 {
        let client = UnixStream::connect(desk.path("a1")).unwrap();
        client.set_nonblocking(true).unwrap();
        let requests = "{\"command\":\"status\"}\n".repeat(3_000);
        let _as_much_as_there_is_room_for = (&client).write(requests.as_bytes());
        stopped.push(client);
    }
    // A client that subscribes to events and never reads, while there are many events.
    let mut deaf = desk.client("a1");
    deaf.send("{\"command\":\"events\"}\n");

    // A request sent in pieces is answered; a request that never ends is not.
    let mut slow = desk.client("a1");
    for piece in ["{\"comm", "and\": ", "\"status\"", "}\n"] {
        slow.send(piece);
        assert_eq!(desk.status("a1")["ok"], true);
    }
    assert_eq!(slow.read()["ok"], true);
    slow.send("{\"command\":");
    assert_eq!(desk.status("a1")["ok"], true);

    // Invalid requests are rejected, and the next request is answered.
    let mut wrong = desk.client("a1");
    for line in [
        "status",
        "{}",
        "[]",
        "\"stop\"",
        "{\"command\":\"halt\"}",
        "{\"command\":\"stop\",\"x\":1}",
        "\0\0",
    ] {
        wrong.send(&format!("{line}\n"));
        assert_eq!(wrong.read()["ok"], false, "{line}");
    }
    wrong.0.get_mut().write_all(&[0xff, 0x80, b'\n', b'\n']).unwrap();
    assert_eq!(wrong.read()["ok"], false);
    assert_eq!(wrong.ask(&json!({ "command": "status" }))["ok"], true);

    // Many requests sent at once are answered one by one.
    let mut eager = desk.client("a1");
    eager.send(&"{\"command\":\"status\"}\n".repeat(20));
    (0..20).for_each(|_| assert_eq!(eager.read()["ok"], true));

    // A line without an end is not stored.
    let mut endless = desk.client("a1");
    let _closed_before_all_was_sent = endless.0.get_mut().write_all(&vec![b'x'; 1 << 20]);
    let mut answer = String::new();
    if endless.0.read_line(&mut answer).is_ok_and(|count| count > 0) {
        assert!(answer.contains("longer than 65536 bytes"), "{answer}");
    }

    // A thousand silent connections: the next one is answered nevertheless.
    let mut silent = Vec::new();
    for _ in 0..1_000 {
        silent.push(UnixStream::connect(desk.path("a1")).unwrap());
    }
    assert_eq!(desk.status("a1")["ok"], true);
    let (finished, sent) = desk.stop_unharmed("a1", running, run);
    let ledger = finished.ledger();
    assert_eq!(number(&ledger["recorded"]["in_file"]), sent, "{ledger}");
    assert_eq!(tcpdump(Path::new(&file), &[]).0.len() as u64, sent);
    drop((stopped, deaf, silent));
}

#[test]
fn a_capture_without_privileges_answers_requests_and_its_socket_is_removed() {
    if !privileged() {
        return;
    }
    for engine in ENGINES {
        let desk = Desk::of_engine(engine, 1);
        let folder = desk.directory.path().join("recordings");
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::chown(&folder, Some(UNPRIVILEGED), None).unwrap();
        let file = folder.join("t-%i.pcap").display().to_string();
        let arguments = [
            "capture",
            "-i",
            "a1",
            "--engine",
            engine,
            "-R",
            "64",
            "-w",
            &file,
            "--file-packets",
            "1000",
            "-Z",
            "nobody",
            "--json",
            "udp",
        ];
        let running = desk.capture("a1", &arguments);
        desk.bed.generator().send(&[Load::new(0, 100)]).unwrap();
        wait_until("the packets are in", || {
            number(&desk.status("a1")["ledger"]["delivered"]) == 100
        });
        desk.wirecap(&["filter", "a1", "tcp"]).assert_success();
        desk.bed.generator().send(&[Load::new(0, 50)]).unwrap();
        desk.wirecap(&["filter", "a1", "udp", "or", "tcp"]).assert_success();
        desk.wirecap(&["rotate", "a1"]).assert_success();
        desk.bed.generator().send(&[Load::new(0, 10)]).unwrap();
        wait_until("the packets are in", || {
            number(&desk.status("a1")["ledger"]["delivered"]) == 110
        });
        desk.wirecap(&["stop", "a1"]).assert_success();
        let finished = running.finish();
        finished.assert_success();
        assert_eq!(finished.ledger()["recorded"]["in_file"], 110, "{}", finished.stderr);
        assert!(!finished.stderr.contains("rejected"), "{}", finished.stderr);
        wait_until("the socket is removed", || !desk.path("a1").exists());
    }
}
