//! `capture -Z`: the process that looks at packets has no privileges, and everything works all the same.

mod recording;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use recording::{Bed, Running, tcpdump};
use rustix::process::Signal;
use tempfile::TempDir;
use wirecap_testbed::{Load, VethPair, pass_program, privileged, wait_until};

/// The user of these tests, whom every system has.
const USER: &str = "nobody";
const UID: u32 = 65534;

/// A folder that only the user can write to, below one that every user can enter.
fn folder() -> (TempDir, PathBuf) {
    let outer = TempDir::new_in("/tmp").unwrap();
    fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let inner = outer.path().join("recordings");
    fs::create_dir(&inner).unwrap();
    chown(&inner, Some(UID), None).unwrap();
    (outer, inner)
}

fn names(directory: &Path) -> Vec<String> {
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(directory).unwrap().map(|entry| name(entry.unwrap())).collect();
    names.sort();
    names
}

/// What /proc says of each thread of the process, line by line.
fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread may end meanwhile.
    tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok()).collect()
}

#[track_caller]
fn assert_without_privileges(running: &Running) {
    let threads = threads(running.id());
    assert!(threads.len() > 2, "{} threads", threads.len());
    for status in threads {
        let value = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(value(set), "0000000000000000", "{set} {status}");
        }
        assert_eq!(value("Uid:"), [UID.to_string().as_str(); 4].join(" "), "{status}");
        assert_eq!(value("Groups:"), "", "{status}");
        assert_eq!((value("NoNewPrivs:"), value("Seccomp:")), ("1".to_owned(), "2".to_owned()), "{status}");
    }
}

#[test]
fn a_recording_without_privileges_rotates_runs_its_command_and_reattaches() {
    if !privileged() {
        return;
    }
    for engine in ["xdp", "packet"] {
        let mut bed = Bed::new(1);
        // Without a program in the driver, the sender's frames would not pass a veth as XDP frames.
        let pass = |bed: &Bed| (engine == "packet").then(|| pass_program(&bed.pair.receiver).unwrap());
        let mut _passing = pass(&bed);
        let (_outer, folder) = folder();
        let file = folder.join("t-%i.pcap");
        let arguments = [
            "capture",
            "-i",
            "a1",
            "-w",
            file.to_str().unwrap(),
            "-Z",
            USER,
            "--engine",
            engine,
            "-M",
            "64",
            "-R",
            "512",
            "--json",
            "--reattach",
            "on",
            "--file-packets",
            "500",
            "--on-file",
            "chmod 0640",
            "udp",
        ];
        let mut running = bed.capture(&arguments);
        wait_until("the first file is there", || names(&folder).len() == 1);
        assert_without_privileges(&running);
        bed.generator().send(&[Load::new(0, 1_200)]).unwrap();
        wait_until("two files are complete", || {
            names(&folder).iter().filter(|name| name.ends_with(".pcap")).count() == 2
        });
        running.signal(Signal::HUP);
        wait_until("a signal completes the third", || {
            names(&folder).iter().filter(|name| name.ends_with(".pcap")).count() == 3
        });
        // The interface goes and comes back.
        bed.pair.receiver.delete().unwrap();
        bed.pair = VethPair::new((&bed.sender, "a0"), (&bed.receiver, "a1"), 1, 1500).unwrap();
        _passing = pass(&bed);
        running.wait_for("captured again");
        bed.generator().send(&[Load::new(0, 300)]).unwrap();
        assert_without_privileges(&running);
        let finished = running.interrupt();
        let ledger = finished.ledger();
        assert_eq!(ledger["delivered"], 1_500, "{ledger} {}", finished.stderr);
        assert_eq!(ledger["recorded"]["in_file"], 1_500, "{ledger}");
        assert!(!finished.stderr.contains("refused"), "{}", finished.stderr);
        let names = names(&folder);
        let packets: usize = names.iter().map(|name| tcpdump(&folder.join(name), &[]).0.len()).sum();
        assert_eq!(packets, 1_500, "{names:?}");
        for name in &names {
            let metadata = fs::metadata(folder.join(name)).unwrap();
            assert_eq!(
                (metadata.uid(), metadata.mode() & 0o777),
                (UID, 0o640),
                "{name}: {}",
                finished.stderr
            );
        }
    }
}

#[test]
fn what_cannot_be_is_said() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let (outer, folder) = folder();
    let run = |file: &Path, more: &[&str]| {
        let mut command = std::process::Command::new(recording::WIRECAP);
        command.args(["capture", "-i", "a1", "--duration", "1s", "-w"]).arg(file).args(more);
        bed.run(&mut command)
    };
    run(&folder.join("t"), &["-Z", "nobody-of-this-name"])
        .assert_refused(2, &["no user nobody-of-this-name"]);
    run(&outer.path().join("t"), &["-Z", USER]).assert_refused(1, &["cannot write to", "chown nobody"]);
    assert_eq!(names(outer.path()), ["recordings"]);
    run(&folder.join("t"), &["-Z", USER]).assert_success();
}
