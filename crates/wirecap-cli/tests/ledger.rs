//! The ledger covers the whole path of a packet, losses are reported when they happen, and the
//! command prints its ledger no matter what ends it.

mod recording;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use recording::{Bed, Finished, Running, WIRECAP, tcpdump};
use rustix::process::Signal;
use tempfile::TempDir;
use wirecap_testbed::{AfXdpSender, Load, Stamp, privileged};

fn path(directory: &TempDir, name: &str) -> String {
    directory.path().join(name).display().to_string()
}

/// Runs a shell script in the receiver's namespace, and waits until its capture has begun.
fn script(bed: &Bed, script: &str) -> Running {
    let mut running = bed.start(Command::new("sh").args(["-c", script]));
    running.wait_for("capturing");
    running
}

#[track_caller]
fn said(finished: &Finished, words: &[&str]) {
    for word in words {
        assert!(finished.stderr.contains(word), "{word:?} is not in: {}", finished.stderr);
    }
}

#[test]
fn signals_within_a_second_are_one_and_sigusr_does_not_kill() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    for round in 0..5 {
        let running = bed.capture(&["count", "-i", "a1", "-R", "16", "--json"]);
        bed.generator().send(&[Load::new(0, 100)]).unwrap();
        for signal in
            [Signal::USR2, Signal::USR1, Signal::TERM, Signal::TERM, Signal::TERM, Signal::INT]
        {
            running.signal(signal);
            // Like timeout(1): first to the process, then to its group.
            thread::sleep(Duration::from_millis(round));
        }
        let finished = running.finish();
        finished.assert_success();
        assert_eq!(finished.ledger()["delivered"], 100);
        assert!(!finished.stderr.contains("interrupted twice"), "{}", finished.stderr);
    }
}

#[test]
fn sigusr1_prints_the_ledger_so_far() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let file = path(&directory, "file");
    let mut running = bed.capture(&["capture", "-i", "a1", "-R", "16", "-w", &file]);
    bed.generator().send(&[Load::new(0, 100)]).unwrap();
    running.signal(Signal::USR1);
    running.wait_for("so far:");
    let finished = running.interrupt();
    finished.assert_success();
    said(&finished, &["wrote 100 packets"]);
}

#[test]
fn every_command_prints_its_ledger_under_timeout() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    for command in ["count", "handle"] {
        // timeout(1) sends the signal to the command and then to its own process group, to which
        // the command belongs.
        let script =
            format!("timeout 1 {WIRECAP} {command} -i a1 -R 16 --json; echo status $? >&2");
        let running = self::script(&bed, &script);
        bed.generator().send(&[Load::new(0, 100)]).unwrap();
        let finished = running.finish();
        assert_eq!(finished.ledger()["delivered"], 100, "{}", finished.stderr);
        said(&finished, &["status 124", "lossless: yes"]);
        let mut running = bed.capture(&[command, "-i", "a1", "-R", "16", "--json"]);
        running.signal(Signal::USR1);
        running.wait_for("so far:");
        running.interrupt().assert_success();
    }
}

#[test]
fn count_writes_into_a_pipe_and_ends_with_its_reader() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let script = format!("{WIRECAP} count -i a1 -R 16 --interval 100ms | head -n 2");
    let running = self::script(&bed, &script);
    bed.generator().send(&[Load::new(0, 100)]).unwrap();
    let finished = running.finish();
    let text = String::from_utf8(finished.stdout.clone()).unwrap();
    assert_eq!(text.lines().filter(|line| line.contains(" packets, ")).count(), 2, "{text}");
    said(&finished, &["lossless: yes"]);
    // The capture ends in time although the reader reads nothing.
    let mut unread = bed.start(Command::new("sh").args([
        "-c",
        &format!("{WIRECAP} count -i a1 -R 16 --interval 1ms --duration 2s | sleep 5"),
    ]));
    unread.wait_for("capturing");
    unread.wait_for("lossless: yes");
    unread.finish();
}

#[test]
fn a_file_size_limit_ends_the_capture_with_its_ledger() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let file = path(&directory, "file");
    let command = format!(
        "ulimit -f 1000; {WIRECAP} capture -i a1 -M 64 -R 512 -w {file} --json; echo status $? >&2"
    );
    let running = script(&bed, &command);
    bed.generator().send(&[Load::new(0, 20_000)]).unwrap();
    let finished = running.finish();
    said(&finished, &["status 1", "File too large", "lossless: no"]);
    let (lines, whole) = tcpdump(Path::new(&file), &[]);
    assert!(whole && !lines.is_empty());
    let ledger = finished.ledger();
    assert_eq!(ledger["recorded"]["in_file"], lines.len(), "{ledger}");
}

/// Records to a disk of this size that is visible only to the command. At the end, the exit status
/// is printed on standard error, and the file is copied to the returned path.
fn capture_on_disk(bed: &Bed, directory: &TempDir, size: &str, options: &str) -> (Running, String) {
    let disk = path(directory, "disk");
    let kept = path(directory, "kept");
    let command = format!(
        "mkdir {disk} && mount -t tmpfs -o size={size} full {disk} && {WIRECAP} capture -i a1 -M 64 -R 512 {options} \
         -w {disk}/file --json; echo status $? >&2; cp {disk}/file {kept}"
    );
    let mut running = bed.start(Command::new("unshare").args(["-m", "sh", "-c", &command]));
    running.wait_for("capturing");
    (running, kept)
}

#[test]
fn a_full_disk_is_in_the_ledger() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let (running, kept) = capture_on_disk(&bed, &directory, "1M", "");
    let sent = bed.generator().send(&[Load::new(0, 20_000)]).unwrap()[0].frames;
    let finished = running.finish();
    said(&finished, &["status 1", "No space left on device", "not recorded"]);
    let in_file = tcpdump(Path::new(&kept), &[]).0.len() as u64;
    let ledger = finished.ledger();
    let delivered = ledger["delivered"].as_u64().unwrap();
    assert_eq!(ledger["recorded"]["in_file"], in_file, "{ledger}");
    assert!(delivered <= sent && in_file < delivered, "{ledger}");
    assert_eq!(ledger["lossless"], false, "{ledger}");
    let words = format!("lossless: no ({} packets lost: ", grouped(delivered - in_file));
    said(&finished, &[&words]);
}

#[test]
fn a_disk_that_is_full_when_the_interface_is_gone_is_in_the_ledger_as_well() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let (running, kept) = capture_on_disk(&bed, &directory, "256k", "--reattach off");
    // Less than a page of packets, but more than the disk has room for.
    bed.generator().send(&[Load::new(0, 6000)]).unwrap();
    let removal = bed.sender.run_in(|| Command::new("ip").args(["link", "delete", "a0"]).status());
    assert!(removal.unwrap().unwrap().success());
    let finished = running.finish();
    said(&finished, &["status 1", "lossless: no"]);
    let in_file = tcpdump(Path::new(&kept), &[]).0.len();
    let ledger = finished.ledger();
    assert_eq!(
        (&ledger["delivered"], &ledger["recorded"]["in_file"]),
        (&6000.into(), &in_file.into()),
        "{ledger}"
    );
    assert!(0 < in_file && in_file < 6000, "{ledger}");
}

#[test]
fn a_file_removed_while_it_is_written_is_not_counted_as_recorded() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let file = path(&directory, "file");
    let running = bed.capture(&["capture", "-i", "a1", "-R", "16", "-w", &file, "--json"]);
    bed.generator().send(&[Load::new(0, 100)]).unwrap();
    fs::remove_file(&file).unwrap();
    let finished = running.interrupt();
    assert_eq!(finished.status.code(), Some(3), "{}", finished.stderr);
    said(
        &finished,
        &["removed by another process", "lossless: no (100 packets lost: 100 not recorded)"],
    );
    let ledger = finished.ledger();
    assert_eq!(
        (&ledger["delivered"], &ledger["recorded"]["in_file"]),
        (&100.into(), &0.into()),
        "{ledger}"
    );
}

/// A number in the ledger's format.
fn grouped(count: u64) -> String {
    wirecap::grouped(count)
}

/// The number of packets of 60 bytes in the first bytes of a pcap file, without an incomplete one
/// at the end.
fn packets_of_60_bytes(pcap: &[u8]) -> u64 {
    (pcap.len().saturating_sub(24) / (16 + 60)) as u64
}

#[test]
fn packets_that_the_reader_of_a_pipe_did_not_read_are_not_in_the_file() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let fifo = path(&directory, "fifo");
    let json = path(&directory, "json");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let command = format!(
        "{WIRECAP} capture -i a1 -M 64 -R 512 --format pcap -w {fifo} --json > {json}; echo status $? >&2"
    );
    let mut running = bed.start(Command::new("sh").args(["-c", &command]));
    running.wait_for("waiting for a reader of");
    let mut reader = File::open(&fifo).unwrap();
    let mut generator = bed.generator();
    let run = generator.start(&[Load::new(0, 30_000).per_second(10_000)]).unwrap();
    let mut read = vec![0; 24 + 76 * 5000 + 13];
    reader.read_exact(&mut read).unwrap();
    drop(reader);
    let finished = running.finish();
    run.stop().unwrap();
    // A reader that has enough packets is no loss.
    said(&finished, &["status 0", "its reader closed it and left"]);
    let ledger: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let recorded = &ledger["recorded"];
    let in_file = packets_of_60_bytes(&read);
    assert_eq!(recorded["in_file"], in_file, "{ledger}");
    let [delivered, unread] =
        [&ledger["delivered"], &recorded["unread"]].map(|count| count.as_u64().unwrap());
    assert!(delivered > 5000 && delivered == in_file + unread, "{ledger}");
}

#[test]
fn a_named_pipe_without_a_reader_ends_with_a_ledger() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let fifo = path(&directory, "fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let running = bed.capture(&["capture", "-i", "a1", "-R", "16", "-w", &fifo, "--json"]);
    bed.generator().send(&[Load::new(0, 100)]).unwrap();
    let begun = Instant::now();
    let finished = running.interrupt();
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    said(&finished, &["no process opened the named pipe"]);
    let ledger = finished.ledger();
    assert_eq!(
        (&ledger["delivered"], &ledger["recorded"]["in_file"]),
        (&100.into(), &0.into()),
        "{ledger}"
    );
}

#[test]
fn the_merge_window_is_written_when_an_interface_is_removed() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let directory = TempDir::new().unwrap();
    let file = path(&directory, "file");
    let running = bed.capture(&[
        "capture",
        "-i",
        "a1@0-1",
        "--engine",
        "packet",
        "--reattach",
        "off",
        "-R",
        "64",
        "-w",
        &file,
        "--json",
    ]);
    for queue in [0, 1] {
        let mut sender = AfXdpSender::on(&bed.pair.sender, queue.into()).unwrap();
        for sequence in 0..100 {
            sender.send(&bed.traffic().frame(Stamp { queue, sequence })).unwrap();
        }
        sender.flush().unwrap();
    }
    // Both rings have packets in the merge window. No packet can be written before the other ring
    // is known to be empty.
    let removal = bed.sender.run_in(|| Command::new("ip").args(["link", "delete", "a0"]).status());
    assert!(removal.unwrap().unwrap().success());
    let finished = running.finish();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let ledger = finished.ledger();
    let (lines, whole) = tcpdump(Path::new(&file), &[]);
    assert!(whole, "{}", finished.stderr);
    assert_eq!(ledger["recorded"]["in_file"], lines.len(), "{ledger}");
    assert_eq!((&ledger["delivered"], lines.len()), (&200.into(), 200), "{ledger}");
}

#[test]
fn loss_is_reported_while_it_happens_and_a_slow_reader_is_named() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let fifo = path(&directory, "fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let options = ["-M", "64", "-R", "16", "--format", "pcap", "--json"];
    let mut running =
        bed.start(Command::new(WIRECAP).args(["capture", "-i", "a1", "-w", &fifo]).args(options));
    running.wait_for("waiting for a reader of");
    let mut reader = BufReader::new(File::open(&fifo).unwrap());
    let mut generator = bed.generator();
    // The pool holds 200 ms of it, so a busy machine alone causes no loss. The reader does not read
    // at this time.
    let run = generator.start(&[Load::endless(0).per_second(5000)]).unwrap();
    running.wait_for_all(&[
        "warning: a1@0 is losing packets",
        &format!("warning: {fifo} accepts no data"),
    ]);
    let draining = thread::spawn(move || {
        let mut bytes = 0;
        while let Ok(more) = reader.fill_buf().map(<[u8]>::len) {
            if more == 0 {
                break;
            }
            reader.consume(more);
            bytes += more;
        }
        bytes
    });
    running
        .wait_for_all(&[&format!("{fifo} accepts data again"), "a1@0 has stopped losing packets"]);
    let sent: u64 = run.stop().unwrap().iter().map(|sent| sent.frames).sum();
    let finished = running.interrupt();
    assert_eq!(finished.status.code(), Some(3), "{}", finished.stderr);
    said(&finished, &["is slower than the traffic", "lossless: no"]);
    let ledger = finished.ledger();
    assert_eq!(ledger["offered"], sent, "{ledger}");
    let bytes = draining.join().unwrap();
    assert_eq!(ledger["recorded"]["in_file"], ((bytes - 24) / 76) as u64, "{ledger}");
}

/// Sends packets at a low rate while the capture is stopped. Returns the number of packets, and the
/// ledger.
fn stalled(buffer: &str, pause: Duration) -> (u64, serde_json::Value) {
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let file = path(&directory, "file");
    let options = ["--engine", "packet", "--buffer", buffer, "--json"];
    let running = bed.capture(&[&["capture", "-i", "a1", "-w", &file][..], &options].concat());
    let mut generator = bed.generator();
    let _pass =
        bed.receiver.run_in(|| wirecap_testbed::pass_program(&bed.pair.receiver)).unwrap().unwrap();
    let run = generator.start(&[Load::endless(0).per_second(200)]).unwrap();
    thread::sleep(Duration::from_secs(1));
    running.signal(Signal::STOP);
    thread::sleep(pause);
    running.signal(Signal::CONT);
    thread::sleep(Duration::from_secs(1));
    let sent = run.stop().unwrap().iter().map(|sent| sent.frames).sum();
    let finished = running.interrupt();
    let ledger = finished.ledger();
    assert_eq!(ledger["offered"], sent, "{ledger}");
    (sent, ledger)
}

#[test]
fn a_recording_by_the_packet_engine_keeps_a_low_rate_for_as_long_as_its_memory_holds() {
    if !privileged() {
        return;
    }
    let pauses = [("8M", Duration::from_secs(6)), ("256M", Duration::from_secs(13))];
    thread::scope(|scope| {
        let runs = pauses.map(|(buffer, pause)| scope.spawn(move || stalled(buffer, pause)));
        for (run, (buffer, _)) in runs.into_iter().zip(pauses) {
            let (sent, ledger) = run.join().unwrap();
            assert_eq!(ledger["delivered"], sent, "{buffer}: {ledger}");
            assert_eq!(ledger["lossless"], true, "{buffer}: {ledger}");
        }
    });
}
