//! Changes of a recording's rules over the control socket, by any member of its group: rules that
//! the command line rejects, or that the recording cannot obey, change nothing, and an answer means
//! that the client's own rules have taken effect.

#[path = "faults/disk.rs"]
#[allow(dead_code, reason = "the disk only stalls")]
mod disk;
mod recording;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use disk::Disk;
use recording::desk::{Client, Desk, number};
use recording::{Finished, Running};
use serde_json::{Value, json};
use wirecap::savefile::Reader;
use wirecap_testbed::{Generator, Load, Sizes, Traffic, privileged, wait_until};

/// A recording named `rec` with a pool for all packets of a test.
fn record(desk: &Desk, file: &Path, more: &[&str]) -> Running {
    let file = file.to_str().unwrap();
    let arguments =
        ["capture", "-i", "a1", "-M", "64", "-R", "512", "-w", file, "--name", "rec", "--json"];
    desk.capture("rec", &[&arguments[..], &["-Z", "root"], more].concat())
}

/// Sends packets, and waits until the capture has them.
fn send(desk: &Desk, sent: &mut u64, count: u64) {
    desk.bed.generator().send(&[Load::new(0, count)]).unwrap();
    *sent += count;
    wait_until("the packets are in", || {
        number(&desk.status("rec")["ledger"]["delivered"]) == *sent
    });
}

fn reload(client: &mut Client, rules: &Value) -> Value {
    client.ask(&json!({ "command": "reload", "rules": rules }))
}

/// The number of packets of each complete file, by name.
fn packets(directory: &Path) -> Vec<usize> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "pcap"));
    paths.sort();
    let count = |path: &PathBuf| {
        let mut reader = Reader::open(path).unwrap();
        let mut count = 0;
        while reader.next_record().unwrap().is_some() {
            count += 1;
        }
        count
    };
    paths.iter().map(count).collect()
}

/// All packets that were sent are in the files, and none was removed.
#[track_caller]
fn assert_complete(finished: &Finished, directory: &Path, sent: u64) {
    finished.assert_success();
    let ledger = finished.ledger();
    assert_eq!(number(&ledger["recorded"]["in_file"]), sent, "{}: {ledger}", finished.stderr);
    assert_eq!(packets(directory).iter().sum::<usize>() as u64, sent, "{}", finished.stderr);
}

#[test]
fn rules_that_the_command_line_rejects_are_rejected_and_change_nothing() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let running =
        record(&desk, &desk.directory.path().join("t-%i.pcap"), &["--file-packets", "20"]);
    let mut client = desk.client("rec");
    let mut sent = 0;
    send(&desk, &mut sent, 70);
    for (rules, words) in [
        (json!({ "file_packets": 20, "keep_files": 0 }), "--keep-files must be at least 1"),
        (json!({ "keep_bytes": 1 }), "--keep-bytes must be at least 4M"),
        (json!({ "file_bytes": 0 }), "--file-size must be at least 1"),
        (
            json!({ "file_period": [{ "secs": 0, "nanos": 0 }, true] }),
            "--file-time must be at least 1s",
        ),
        (json!({ "keep_files": 2 }), "a budget requires several files"),
        (json!({ "file_packets": 20, "keep_free": 1_u64 << 60 }), "free bytes cannot be kept"),
        (json!({}), "several files require"),
        (json!({ "file_packets": -1 }), "invalid value"),
        (json!({ "keep": 1 }), "unknown field"),
    ] {
        let answer = reload(&mut client, &rules);
        assert_eq!(answer["ok"], false, "{rules}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(words), "{rules}: {answer}");
    }
    send(&desk, &mut sent, 130);
    let finished = running.interrupt();
    assert_complete(&finished, desk.directory.path(), sent);
    assert_eq!(packets(desk.directory.path()), [20; 10], "{}", finished.stderr);
}

#[test]
fn a_budget_without_room_for_the_file_that_is_being_written_is_rejected() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let running = record(&desk, &desk.directory.path().join("t-%i.pcap"), &["--file-size", "1G"]);
    let traffic = Traffic { sizes: Sizes::fixed(1514), ..Traffic::to(&desk.bed.pair.receiver) };
    let mut generator = Generator::new(&desk.bed.pair.sender, &traffic).unwrap();
    generator.send(&[Load::new(0, 2_500)]).unwrap();
    wait_until("the packets are in", || {
        number(&desk.status("rec")["ledger"]["delivered"]) == 2_500
    });
    let mut client = desk.client("rec");
    let rules = json!({ "keep_bytes": 5 << 20, "file_bytes": 2 << 20 });
    let answer = reload(&mut client, &rules);
    assert!(
        answer["error"].as_str().is_some_and(|error| error.contains("that is being written")),
        "{answer}"
    );
    assert!(packets(desk.directory.path()).is_empty(), "the file was ended");
    assert_eq!(client.ask(&json!({ "command": "rotate" }))["ok"], true);
    wait_until("the file is complete", || packets(desk.directory.path()) == [2_500]);
    assert_eq!(reload(&mut client, &rules)["ok"], true);
    assert_complete(&running.interrupt(), desk.directory.path(), 2_500);
}

#[test]
fn filter_and_rules_change_together_or_not_at_all() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let running =
        record(&desk, &desk.directory.path().join("t-%i.pcap"), &["--file-packets", "20", "udp"]);
    let mut client = desk.client("rec");
    let mut sent = 0;
    for (expression, rules) in [
        ("udp and greater 1", json!({ "keep_bytes": 1 })),
        ("udp and greater 1", json!({ "file_packets": 5, "keep_free": 1_u64 << 60 })),
        ("no such filter", json!({ "file_packets": 5 })),
    ] {
        let answer =
            client.ask(&json!({ "command": "reload", "expression": expression, "rules": rules }));
        assert_eq!(answer["ok"], false, "{expression} {rules}");
        assert_eq!(desk.status("rec")["interfaces"][0]["filter"], "udp");
    }
    send(&desk, &mut sent, 20);
    let both = json!({ "command": "reload", "expression": "udp and greater 1", "rules": { "file_packets": 5 } });
    assert_eq!(client.ask(&both)["ok"], true);
    assert_eq!(desk.status("rec")["interfaces"][0]["filter"], "udp and greater 1");
    send(&desk, &mut sent, 10);
    assert_complete(&running.interrupt(), desk.directory.path(), sent);
    assert_eq!(packets(desk.directory.path()), [20, 5, 5]);
}

#[test]
fn a_hundred_reloads_from_eight_clients_are_all_applied_and_lose_no_packet() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let running =
        record(&desk, &desk.directory.path().join("t-%i.pcap"), &["--file-packets", "20"]);
    let mut generator = desk.bed.generator();
    let run = generator.start(&[Load::new(0, 20_000).per_second(10_000)]).unwrap();
    thread::scope(|scope| {
        for client in 0..8 {
            let desk = &desk;
            scope.spawn(move || {
                let mut connection = desk.client("rec");
                for number in 0..100 {
                    let rules = json!({ "file_packets": 500 + 100 * client + number });
                    let expression = format!("udp and greater {}", 1 + number % 50);
                    let request =
                        json!({ "command": "reload", "expression": expression, "rules": rules });
                    assert_eq!(connection.ask(&request), json!({ "ok": true }));
                }
            });
        }
    });
    let sent = run.wait().unwrap()[0].frames;
    wait_until("the packets are in", || number(&desk.status("rec")["ledger"]["delivered"]) == sent);
    assert_eq!(reload(&mut desk.client("rec"), &json!({ "file_packets": 7 }))["ok"], true);
    generator.send(&[Load::new(0, 70)]).unwrap();
    wait_until("the packets are in", || {
        number(&desk.status("rec")["ledger"]["delivered"]) == sent + 70
    });
    let finished = running.interrupt();
    assert_complete(&finished, desk.directory.path(), sent + 70);
    assert!(packets(desk.directory.path()).ends_with(&[7; 10]));
    assert_eq!(finished.stderr.matches("the configuration was reread").count(), 801);
}

/// Ends a stall also if the test fails: a process that writes to a stalled disk cannot be killed.
struct Moving<'a>(&'a Disk);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.set(|faults| faults.is_stalled = false);
    }
}

#[test]
fn while_the_disk_stalls_a_reload_waits_for_its_turn_or_changes_nothing() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let disk = Disk::mount();
    let more = ["--file-packets", "20", "--sync", "100ms"];
    let running = record(&desk, &disk.path().join("t-%i.pcap"), &more);
    let _moving = Moving(&disk);
    let mut sent = 0;
    // Only what is written after the first file has begun waits in the writer.
    send(&desk, &mut sent, 20);
    wait_until("the first packets are on the disk", || disk.written_bytes() > 20 * 60);
    let stall = |sent: &mut u64| {
        disk.set(|faults| faults.is_stalled = true);
        send(&desk, sent, 20);
        // Until its write begins, a reload does not have to wait.
        wait_until("a write waits", || {
            desk.status("rec")["writer"]["blocked_s"].as_f64().unwrap() > 0.1
        });
    };
    let request = |packets: u64| {
        format!("{}\n", json!({ "command": "reload", "rules": { "file_packets": packets } }))
    };

    // Longer than a client waits.
    stall(&mut sent);
    let mut clients = [desk.client("rec"), desk.client("rec")];
    clients.iter_mut().for_each(|client| client.send(&request(9)));
    for client in &mut clients {
        let answer = client.read();
        assert_eq!(answer["ok"], false, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains("waits for the disk"), "{answer}");
    }
    disk.set(|faults| faults.is_stalled = false);
    send(&desk, &mut sent, 20);

    // Two reloads at once: each is applied, the later one last.
    stall(&mut sent);
    clients[0].send(&request(5));
    thread::sleep(Duration::from_millis(50));
    clients[1].send(&request(4));
    thread::sleep(Duration::from_millis(2_000));
    clients.iter().for_each(|client| client.0.get_ref().set_nonblocking(true).unwrap());
    let is_silent = |client: &mut Client| {
        std::io::BufRead::fill_buf(&mut client.0)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    assert!(clients.iter_mut().all(is_silent), "rules that have not taken effect were confirmed");
    clients.iter().for_each(|client| client.0.get_ref().set_nonblocking(false).unwrap());
    disk.set(|faults| faults.is_stalled = false);
    assert_eq!(clients.map(|mut client| client.read()), [(); 2].map(|()| json!({ "ok": true })));
    send(&desk, &mut sent, 8);
    let finished = running.interrupt();
    assert_complete(&finished, disk.path(), sent);
    assert_eq!(packets(disk.path()), [20, 20, 20, 20, 4, 4], "{}", finished.stderr);
    assert_eq!(finished.stderr.matches("the configuration was reread").count(), 2);
}

#[test]
fn a_reload_at_the_end_is_applied_or_refused_and_loses_no_packet() {
    if !privileged() {
        return;
    }
    for round in 0..5 {
        let desk = Desk::new(1);
        let running =
            record(&desk, &desk.directory.path().join("t-%i.pcap"), &["--file-packets", "20"]);
        let mut sent = 0;
        send(&desk, &mut sent, 100);
        let finished = thread::scope(|scope| {
            for client in 0..4_u64 {
                let mut connection = desk.client("rec");
                scope.spawn(move || {
                    for number in 1.. {
                        let rules = json!({ "file_packets": client * 100 + number });
                        connection
                            .send(&format!("{}\n", json!({ "command": "reload", "rules": rules })));
                        let mut line = String::new();
                        match std::io::BufRead::read_line(&mut connection.0, &mut line) {
                            Ok(0) | Err(_) => return,
                            Ok(_) => {}
                        }
                        let answer: Value = serde_json::from_str(&line).unwrap();
                        match answer["ok"].as_bool() {
                            Some(true) => {}
                            _ => return assert!(line.contains("the capture is ending"), "{line}"),
                        }
                    }
                });
            }
            thread::sleep(Duration::from_millis(20 * round));
            desk.wirecap(&["stop", "rec"]).assert_success();
            running.finish()
        });
        assert_complete(&finished, desk.directory.path(), sent);
    }
}

#[test]
fn a_capture_of_one_file_or_none_takes_a_filter_and_no_rules() {
    if !privileged() {
        return;
    }
    let desk = Desk::new(1);
    let file = desk.file("t.pcap");
    for arguments in [
        &["capture", "-i", "a1", "-R", "64", "-w", &file, "--name", "rec", "-Z", "root", "udp"][..],
        &["count", "-i", "a1", "-R", "64", "--name", "rec", "udp"],
    ] {
        let running = desk.capture("rec", arguments);
        let mut client = desk.client("rec");
        let rules = json!({ "file_packets": 5 });
        let answer =
            client.ask(&json!({ "command": "reload", "expression": "tcp", "rules": rules }));
        assert!(
            answer["error"].as_str().unwrap().contains("does not write a set of files"),
            "{answer}"
        );
        assert_eq!(desk.status("rec")["interfaces"][0]["filter"], "udp");
        assert_eq!(client.ask(&json!({ "command": "reload", "expression": "tcp" }))["ok"], true);
        assert_eq!(desk.status("rec")["interfaces"][0]["filter"], "tcp");
        running.interrupt().assert_success();
    }
}
