//! `capture -Z`: the process that parses packets has no privileges, and all features work.

mod recording;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use recording::{Bed, Running, WIRECAP, copy_for_everybody, tcpdump};
use rustix::process::Signal;
use tempfile::TempDir;
use wirecap_testbed::{Load, VethPair, pass_program, privileged, wait_until};

/// The user of these tests, which every system has.
const USER: &str = "nobody";
const UID: u32 = 65534;

/// A directory that only the user can write to, in a directory that every user can enter.
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
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| name(entry.unwrap())).collect();
    names.sort();
    names
}

/// The contents of /proc for each thread of the process, line by line.
fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread may end in the meantime.
    tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok()).collect()
}

#[track_caller]
fn assert_without_privileges(running: &Running) {
    assert_without(&["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"], running);
}

/// Asserts that no thread has a capability in these sets, or may get one.
#[track_caller]
fn assert_without(sets: &[&str], running: &Running) {
    let threads = threads(running.id());
    assert!(threads.len() > 2, "{} threads", threads.len());
    for status in threads {
        let value = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        for set in sets {
            assert_eq!(value(set), "0000000000000000", "{set} {status}");
        }
        assert_eq!(value("Uid:"), [UID.to_string().as_str(); 4].join(" "), "{status}");
        assert_eq!(value("Groups:"), "", "{status}");
        assert_eq!(
            (value("NoNewPrivs:"), value("Seccomp:")),
            ("1".to_owned(), "2".to_owned()),
            "{status}"
        );
    }
}

/// Asserts that the user of the capture can neither trace it nor take its descriptors, nor those of
/// its broker: what is in /proc about such a process for its owner belongs to root.
#[track_caller]
fn assert_not_inspectable(running: &Running) {
    let id = running.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let broker: u32 = children.trim().parse().unwrap();
    for id in [id, broker] {
        let owner = |file: &str| fs::metadata(format!("/proc/{id}/{file}")).unwrap().uid();
        assert_eq!((owner("environ"), owner("mem")), (0, 0), "process {id}, broker {broker}");
        assert_eq!(owner(""), UID, "process {id}");
    }
}

/// The privileges of root that the service has: they do not include reading the user's directory.
#[test]
fn a_process_with_few_privileges_of_root_records_into_a_directory_that_only_the_user_may_enter() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let (_outer, folder) = folder();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    for (name, rotation) in [("one.pcap", &[][..]), ("set-%i.pcap", &["--file-packets", "50"])] {
        let file = folder.join(name);
        let mut command = Command::new("setpriv");
        command.args([
            "--bounding-set",
            "-all,+net_raw,+net_admin,+bpf,+perfmon,+ipc_lock,+setuid,+setgid",
        ]);
        command.args([
            WIRECAP,
            "capture",
            "-i",
            "a1",
            "-M",
            "64",
            "-R",
            "64",
            "--no-control",
            "--json",
        ]);
        command.args(["-Z", USER, "-w", file.to_str().unwrap(), "udp"]).args(rotation);
        let mut running = bed.start(&mut command);
        running.wait_for("capturing");
        bed.generator().send(&[Load::new(0, 100)]).unwrap();
        let finished = running.interrupt();
        finished.assert_success();
        assert_eq!(finished.ledger()["recorded"]["in_file"], 100, "{}", finished.stderr);
    }
    let packets: usize =
        names(&folder).iter().map(|name| tcpdump(&folder.join(name), &[]).0.len()).sum();
    assert_eq!(packets, 200, "{:?}", names(&folder));
}

/// Without CAP_SETPCAP, the bounding set remains, of which `no_new_privs` allows no use.
#[test]
fn a_user_with_capabilities_gives_them_up() {
    if !privileged() {
        return;
    }
    let (_programs, program) = copy_for_everybody();
    for engine in ["xdp", "packet"] {
        let bed = Bed::new(1);
        let _passing = (engine == "packet").then(|| pass_program(&bed.pair.receiver).unwrap());
        let (_outer, folder) = folder();
        let capabilities = "+net_raw,+net_admin,+bpf,+perfmon,+ipc_lock";
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", &UID.to_string(), "--clear-groups"]);
        command.args(["--inh-caps", capabilities, "--ambient-caps", capabilities]).arg(&program);
        command.args([
            "capture",
            "-i",
            "a1",
            "--engine",
            engine,
            "-M",
            "64",
            "-R",
            "64",
            "--no-control",
        ]);
        command.args([
            "--json",
            "-Z",
            USER,
            "--file-packets",
            "50",
            "--on-file",
            "chmod 0640",
            "-w",
        ]);
        command.arg(folder.join("t-%i.pcap")).arg("udp");
        let mut running = bed.start(&mut command);
        running.wait_for("capturing");
        wait_until("the first file is there", || names(&folder).len() == 1);
        assert_without(&["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"], &running);
        assert_not_inspectable(&running);
        bed.generator().send(&[Load::new(0, 100)]).unwrap();
        let finished = running.interrupt();
        finished.assert_success();
        assert_eq!(finished.ledger()["recorded"]["in_file"], 100, "{}", finished.stderr);
        assert!(!finished.stderr.contains("rejected"), "{}", finished.stderr);
        let modes = names(&folder)
            .into_iter()
            .map(|name| fs::metadata(folder.join(name)).unwrap().mode() & 0o777);
        assert_eq!(modes.collect::<Vec<_>>(), [0o640, 0o640]);
    }
}

/// What the advice of a refusal gives the program.
#[test]
fn a_user_without_rights_is_told_how_to_get_them_and_one_with_cap_net_raw_records() {
    if !privileged() {
        return;
    }
    let (_programs, program) = copy_for_everybody();
    let bed = Bed::new(1);
    let (_outer, folder) = folder();
    let as_user = |words: &[&str], rights: &str| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            USER,
            "--regid",
            &UID.to_string(),
            "--clear-groups",
            "--bounding-set",
        ]);
        command.args([&format!("-all{rights}"), "--inh-caps", &format!("-all{rights}")]);
        if !rights.is_empty() {
            command.args(["--ambient-caps", &rights[1..]]);
        }
        command.arg(&program).args(words);
        command
    };
    let file = folder.join("t.pcap");
    let file = file.to_str().unwrap();
    let record = ["-i", "a1", "-w", file, "udp"];
    for words in [&record[..], &["-i", "a1"], &["count", "-i", "a1"], &["stats", "-i", "a1"]] {
        let said = bed.run(&mut as_user(words, "")).stderr;
        assert_eq!(said.lines().count(), 2, "{words:?}: {said}");
        assert!(
            said.contains("CAP_NET_RAW") && said.contains("sudo setcap cap_net_raw=ep /"),
            "{said}"
        );
    }

    let _passing = pass_program(&bed.pair.receiver).unwrap();
    let mut running = bed.start(&mut as_user(&[&record[..], &["-c", "10"]].concat(), ",+net_raw"));
    running.wait_for("capturing");
    bed.generator().send(&[Load::new(0, 10)]).unwrap();
    running.finish().assert_success();
    assert_eq!(tcpdump(Path::new(file), &[]).0.len(), 10);
}

#[test]
fn a_recording_without_privileges_rotates_runs_its_command_and_reattaches() {
    if !privileged() {
        return;
    }
    for engine in ["xdp", "packet"] {
        let mut bed = Bed::new(1);
        // On a veth, packet sockets receive the generator's frames only if an XDP program passes
        // them.
        let pass =
            |bed: &Bed| (engine == "packet").then(|| pass_program(&bed.pair.receiver).unwrap());
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
        // The interface is removed and created again.
        bed.pair.receiver.delete().unwrap();
        bed.pair = VethPair::new((&bed.sender, "a0"), (&bed.receiver, "a1"), 1, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        _passing = pass(&bed);
        running.wait_for("captured again");
        bed.generator().send(&[Load::new(0, 300)]).unwrap();
        assert_without_privileges(&running);
        let finished = running.interrupt();
        let ledger = finished.ledger();
        assert_eq!(ledger["delivered"], 1_500, "{ledger} {}", finished.stderr);
        assert_eq!(ledger["recorded"]["in_file"], 1_500, "{ledger}");
        assert!(!finished.stderr.contains("rejected"), "{}", finished.stderr);
        let names = names(&folder);
        let packets: usize =
            names.iter().map(|name| tcpdump(&folder.join(name), &[]).0.len()).sum();
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

/// The capture cannot query tcx and netfilter itself.
#[test]
fn a_recording_without_privileges_hands_its_interface_back_to_a_netfilter_hook() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let (_outer, folder) = folder();
    let file = folder.join("t.pcap");
    let arguments =
        ["capture", "-i", "a1", "-w", file.to_str().unwrap(), "-Z", USER, "-M", "64", "-R", "64"];
    let mut running =
        bed.start(Command::new(WIRECAP).args(arguments).args(["--json", "--no-control", "udp"]));
    let banner = running.wait_for("capturing");
    assert!(banner.contains("xdp engine") && !banner.contains("not known"), "{banner}");
    assert_without_privileges(&running);
    bed.generator().send(&[Load::new(0, 100)]).unwrap();
    let chain = "add chain netdev t c { type filter hook ingress device a1 priority 0; }";
    for words in ["add table netdev t", chain] {
        assert!(
            bed.receiver
                .run_in(|| Command::new("nft").arg(words).status())
                .unwrap()
                .unwrap()
                .success()
        );
    }
    while !running.wait_for("").contains("handed back to the host") {}
    bed.generator().send(&[Load::new(0, 100)]).unwrap();
    let finished = running.interrupt();
    finished.assert_success();
    assert_eq!(finished.ledger()["recorded"]["in_file"], 200, "{}", finished.stderr);
    assert!(!finished.stderr.contains("rejected"), "{}", finished.stderr);
}

/// The broker of each process finds the program of the other one, and joins or leaves it.
#[test]
fn recordings_without_privileges_share_an_interface_and_leave_it_to_each_other() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let (_outer, folder) = folder();
    let start = |queue: u32, run: u32| {
        let source = format!("a1@{queue}");
        let file = folder.join(format!("q{queue}-{run}.pcap"));
        let arguments =
            ["capture", "-i", &source, "-w", file.to_str().unwrap(), "-Z", USER, "--engine", "xdp"];
        let more = ["-M", "64", "-R", "64", "--no-control", "--json", "udp"];
        bed.capture(&[&arguments[..], &more].concat())
    };
    let mut generator = bed.generator();
    let mut send =
        |packets| generator.send(&[Load::new(0, packets), Load::new(1, packets)]).unwrap();
    let end = |running: Running, packets: u64| {
        assert_without_privileges(&running);
        let finished = running.interrupt();
        finished.assert_success();
        let ledger = finished.ledger();
        assert_eq!(ledger["recorded"]["in_file"], packets, "{ledger} {}", finished.stderr);
        assert!(!finished.stderr.contains("rejected"), "{}", finished.stderr);
    };

    let first = start(0, 1);
    send(100);
    let second = start(1, 1);
    send(200);
    end(first, 300);
    send(50);
    // The queue was given up, so another process may have it.
    let again = start(0, 2);
    send(25);
    end(second, 275);
    send(10);
    end(again, 35);
    let attached =
        bed.receiver.run_in(|| Command::new("ip").args(["-d", "link", "show", "a1"]).output());
    let shown = String::from_utf8(attached.unwrap().unwrap().stdout).unwrap();
    assert!(!shown.contains("xdp"), "{shown}");
}

/// The owners and names of the files in a directory.
fn owners(directory: &Path) -> Vec<(u32, String)> {
    let owner = |name: String| (fs::symlink_metadata(directory.join(&name)).unwrap().uid(), name);
    names(directory).into_iter().map(owner).collect()
}

#[test]
fn a_recording_without_privileges_writes_indexes() {
    if !privileged() {
        return;
    }
    for engine in ["xdp", "packet"] {
        let bed = Bed::new(1);
        let _passing = (engine == "packet").then(|| pass_program(&bed.pair.receiver).unwrap());
        let (_outer, folder) = folder();
        let file = folder.join("t-%i.pcapng.zst");
        let mut arguments = vec!["capture", "-i", "a1", "-w", file.to_str().unwrap(), "-Z", USER];
        arguments.extend(["--engine", engine, "--index", "on", "--file-packets", "400", "--json"]);
        arguments.extend(["-M", "64", "-R", "512"]);
        let running = bed.capture(&arguments);
        bed.generator().send(&[Load::new(0, 1_000)]).unwrap();
        wait_until("the indexes of two complete files are there", || {
            names(&folder).iter().filter(|name| name.ends_with(".flows.parquet")).count() == 2
        });
        assert_without_privileges(&running);
        let finished = running.interrupt();
        assert_eq!(finished.ledger()["recorded"]["in_file"], 1_000, "{}", finished.stderr);
        // A veth's peer in another namespace may send tags beside the frames.
        let lines = finished.stderr.lines().filter(|line| !line.contains("may send VLAN tags"));
        for line in lines {
            let is_bad = ["rejected", "no index", "warning"].iter().any(|word| line.contains(word));
            assert!(!is_bad, "{}", finished.stderr);
        }
        let owners = owners(&folder);
        let segments: Vec<&str> =
            owners.iter().map(|(_, name)| &**name).filter(|name| name.ends_with(".zst")).collect();
        assert_eq!((segments.len(), owners.len()), (3, 6), "{owners:?}");
        assert!(owners.iter().all(|(uid, _)| *uid == UID), "{owners:?}");
        for segment in segments {
            let index = wirecap_index::load(&folder.join(segment)).unwrap();
            assert_eq!(
                index.packets(),
                if segment.starts_with("t-00003") { 200 } else { 400 },
                "{segment}"
            );
        }
        // The clock of the engine xdp uses a program at a tracepoint, which the broker permits.
        let reader = wirecap::savefile::Reader::open(folder.join(&owners[0].1)).unwrap();
        let clock = reader.interfaces()[0].time_source.as_deref().unwrap();
        assert!(engine == "packet" || clock.contains("first packet of a batch"), "{clock}");
    }
}

#[test]
fn root_records_as_the_owner_of_the_directory_or_as_user_wirecap() {
    if !privileged() {
        return;
    }
    const USUAL: u32 = 64_321;
    let bed = Bed::new(1);
    let (outer, folder) = folder();
    // A list of users that contains the user wirecap, at the path that the command reads.
    let users = outer.path().join("passwd");
    let others = fs::read_to_string("/etc/passwd").unwrap();
    let others: String = others
        .lines()
        .filter(|line| !line.starts_with("wirecap:"))
        .map(|line| format!("{line}\n"))
        .collect();
    for (has_wirecap, mode, more, owner) in [
        (false, 0o755, &[][..], UID),
        (false, 0o755, &["-Z", "root"], 0),
        (false, 0o555, &[], 0),
        (true, 0o755, &[], UID),
        (true, 0o777, &[], USUAL),
        (true, 0o777, &["-Z", "root"], 0),
        (true, 0o777, &["-Z", USER], UID),
    ] {
        let usual = if has_wirecap {
            format!("wirecap:x:{USUAL}:{USUAL}::/:/bin/false\n")
        } else {
            String::new()
        };
        fs::write(&users, format!("{others}{usual}")).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
        let list = outer.path().join("list");
        let script = "mount --bind \"$1\" /etc/passwd && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(&users).arg(recording::WIRECAP);
        command.args(["capture", "-i", "a1", "--duration", "200ms", "-b", "packets:10", "-w"]);
        command
            .arg(folder.join("t-%i.pcap"))
            .arg("-b")
            .arg(format!("printname:{}", list.display()))
            .args(more);
        let finished = bed.run(&mut command);
        finished.assert_success();
        let is_default = more.is_empty() && owner != 0;
        assert_eq!(
            finished.stderr.contains("recording as user"),
            is_default,
            "{}",
            finished.stderr
        );
        let owners = owners(&folder);
        assert_eq!(owners, [(owner, "t-00001.pcap".to_owned())], "{has_wirecap} {mode:o} {more:?}");
        // The file outside the directory was opened before the privileges were dropped.
        assert!(fs::read_to_string(&list).unwrap().contains("t-00001.pcap"));
        fs::remove_file(folder.join("t-00001.pcap")).unwrap();
        fs::remove_file(list).unwrap();
    }
    // In a directory of root, files belong to root.
    let file = outer.path().join("t.pcap");
    let mut command = Command::new(recording::WIRECAP);
    let finished =
        bed.run(command.args(["capture", "-i", "a1", "--duration", "200ms", "-w"]).arg(&file));
    finished.assert_success();
    assert_eq!(fs::metadata(&file).unwrap().uid(), 0);
}

#[test]
fn impossible_values_are_reported() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let (outer, folder) = folder();
    let run = |file: &Path, more: &[&str]| {
        let mut command = Command::new(recording::WIRECAP);
        command.args(["capture", "-i", "a1", "--duration", "1s", "-w"]).arg(file).args(more);
        bed.run(&mut command)
    };
    run(&folder.join("t"), &["-Z", "nobody-of-this-name"])
        .assert_refused(2, &["no user nobody-of-this-name"]);
    run(&outer.path().join("t"), &["-Z", USER])
        .assert_refused(1, &["cannot write to", "chown nobody"]);
    assert_eq!(names(outer.path()), ["recordings"]);
    // Whether another process writes this file cannot be determined.
    let part = folder.join("t-00001.part");
    fs::write(&part, "incomplete").unwrap();
    fs::set_permissions(&part, fs::Permissions::from_mode(0o600)).unwrap();
    let more = ["-Z", USER, "--file-packets", "5"];
    run(&folder.join("t-%i"), &more).assert_refused(1, &["t-00001.part: Permission denied"]);
    fs::remove_file(&part).unwrap();
    run(&folder.join("t"), &["-Z", USER]).assert_success();
}
