//! Limits of a capture: memory, privileges, names, modes.

mod recording;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use recording::{Bed, WIRECAP, copy_for_everybody, tcpdump};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tempfile::TempDir;
use wirecap_testbed::{Load, Namespace, pass_program, privileged, skip_on_this_machine};

const MIB: u64 = 1 << 20;

/// A memory cgroup with a limit; removed on drop.
struct Cgroup(PathBuf);

impl Cgroup {
    /// A cgroup below this process's; `None` if it cannot be created.
    fn with_limit(name: &str, bytes: u64) -> Option<Self> {
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap();
        let path = |prefix: &str| {
            membership
                .lines()
                .find_map(|line| line.split_once(':')?.1.strip_prefix(prefix).map(str::to_owned))
        };
        let below = |mount: &str, path: String| Path::new(mount).join(path.trim_start_matches('/'));
        let places = [
            path("memory:")
                .map(|path| (below("/sys/fs/cgroup/memory", path), "memory.limit_in_bytes")),
            path(":").map(|path| (below("/sys/fs/cgroup", path), "memory.max")),
        ];
        places.into_iter().flatten().find_map(|(directory, limit)| {
            let directory = directory.join(format!("wirecap-test-{}-{name}", std::process::id()));
            fs::create_dir(&directory).ok()?;
            let cgroup = Self(directory);
            fs::write(cgroup.0.join(limit), bytes.to_string()).ok()?;
            Some(cgroup)
        })
    }

    /// The command in the cgroup.
    fn run(&self, arguments: &str) -> Command {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &format!("echo $$ > {}/cgroup.procs && exec {WIRECAP} {arguments}", self.0.display()),
        ]);
        command
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel removes the last process from the cgroup shortly after it has ended.
        let deadline = Instant::now() + Duration::from_secs(5);
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn pools_fit_the_memory_cgroup_or_are_rejected_with_its_name() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(4);
    for (name, mib) in [("small", 300), ("larger", 600)] {
        let Some(cgroup) = Cgroup::with_limit(name, mib * MIB) else {
            skip_on_this_machine("no memory cgroup can be made here");
            return;
        };
        for engine in ["xdp", "packet"] {
            let count = format!("count -i a1 --engine {engine} --json");
            let mut running = bed.start(&mut cgroup.run(&count));
            running.wait_for("capturing");
            // On a veth, AF_PACKET receives the generator's frames only if an XDP program passes
            // them.
            let _pass = (engine == "packet").then(|| pass_program(&bed.pair.receiver).unwrap());
            let sent = bed.generator().send(&[Load::new(0, 1000)]).unwrap()[0].frames;
            let finished = running.interrupt();
            finished.assert_success();
            let ledger = finished.ledger();
            assert_eq!(
                (&ledger["offered"], &ledger["delivered"]),
                (&sent.into(), &sent.into()),
                "{ledger}"
            );
        }
        let large = bed.run(&mut cgroup.run("count -i a1 --buffer 1G --duration 1s"));
        large.assert_refused(1, &["memory cgroup", "--buffer", &cgroup.0.display().to_string()]);
    }
}

#[test]
fn the_default_memory_fits_the_link_and_not_the_number_of_rings_alone() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(4);
    let loopback = bed.receiver.run_in(|| {
        Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success()
    });
    assert!(loopback.unwrap());
    let cases =
        [("a1", "auto", "64.0 MiB", "4 rings of 8,192"), ("lo", "packet", "64.0 MiB", "ring")];
    for (interface, engine, memory, words) in cases {
        // An engine that is named needs no reason in the line, which leaves room for the memory.
        let arguments = ["count", "-i", interface, "--engine", engine, "--duration", "100ms"];
        let finished = bed.run(Command::new(WIRECAP).args(arguments));
        finished.assert_success();
        assert!(
            finished.stderr.contains(memory) && finished.stderr.contains(words),
            "{interface}: {}",
            finished.stderr
        );
    }
}

#[test]
fn a_driver_that_rejects_native_xdp_gets_generic_xdp_and_its_reason_is_shown() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new().unwrap();
    let ip = |arguments: &str| {
        let status = namespace
            .run_in(|| Command::new("ip").args(arguments.split(' ')).status().unwrap())
            .unwrap();
        assert!(status.success(), "ip {arguments}");
    };
    // The interface has fewer receive queues than its peer has transmit queues.
    ip(
        "link add b0 numtxqueues 4 numrxqueues 4 type veth peer name b1 numtxqueues 1 numrxqueues 1",
    );
    ip("link set b0 up");
    ip("link set b1 up");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(WIRECAP);
        command.args(arguments);
        namespace.run_in(|| command.output().unwrap()).unwrap()
    };
    let output = run(&["count", "-i", "b1", "--engine", "xdp", "-R", "16", "--duration", "200ms"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("xdp engine (generic)"), "{said}");
    assert!(said.contains("number of rx queues not less than peer tx queues"), "{said}");
}

#[test]
fn auto_with_only_cap_net_raw_names_the_working_engine() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let (_directory, program) = copy_for_everybody();
    let with_net_raw = |arguments: &[&str]| {
        let unprivileged = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let capabilities = ["--inh-caps=+net_raw", "--ambient-caps=+net_raw"];
        bed.run(
            Command::new("setpriv")
                .args(unprivileged)
                .args(capabilities)
                .arg(&program)
                .args(arguments),
        )
    };
    for pool in ["4", "512"] {
        with_net_raw(&["count", "-i", "a1", "-R", pool])
            .assert_refused(1, &["--engine packet", "CAP_NET_RAW"]);
    }
    with_net_raw(&["count", "-i", "a1", "--engine", "packet", "-R", "4", "--duration", "200ms"])
        .assert_success();
}

#[test]
fn sending_needs_the_documented_capabilities_and_no_others() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("file").display().to_string();
    let running =
        bed.capture(&["capture", "-i", "a1", "-M", "64", "-R", "64", "-w", &file, "--json"]);
    // Root with only these capabilities, like a process that systemd starts with a bounding set.
    let limited = |more: &str, arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        let capabilities = format!("--bounding-set=-all,+net_raw,+net_admin,+bpf,+ipc_lock{more}");
        command.args([&capabilities, "--inh-caps=-all"]);
        command.arg(WIRECAP).args(arguments);
        let output = bed.sender.run_in(|| command.output().unwrap()).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    limited(",+perfmon", &["generate", "-i", "a0", "-c", "100"]);
    limited("", &["generate", "-i", "a0", "-c", "100", "--model", "even"]);
    let finished = running.interrupt();
    finished.assert_success();
    assert_eq!(finished.ledger()["delivered"], 200);
    let running = bed.capture(&["count", "-i", "a1", "-M", "64", "-R", "64", "--json"]);
    limited("", &["replay", &file, "-i", "a0", "--top"]);
    let finished = running.interrupt();
    assert_eq!(finished.ledger()["delivered"], 200);
    assert_eq!(tcpdump(Path::new(&file), &[]).0.len(), 200);
}

#[test]
fn an_interface_that_wirecap_captures_from_is_listed_with_the_process() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let running = bed.capture(&["count", "-i", "a1@0", "-R", "16"]);
    let listed = bed.run(Command::new(WIRECAP).arg("devices"));
    // Long lines are broken between words.
    let text = String::from_utf8(listed.stdout).unwrap();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let pid = running.id();
    assert!(text.contains(&format!("captured by process {pid} (wirecap): queue 0")), "{text}");
    assert!(text.contains("free for xdp: a1@1"), "{text}");
    assert!(text.contains(&format!("held by process {pid} (wirecap)")), "{text}");
    running.interrupt().assert_success();
}

/// Removes all privileges from this thread.
fn drop_privileges() {
    let unprivileged = (Uid::from_raw(65534), Gid::from_raw(65534));
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(unprivileged.1, unprivileged.1, unprivileged.1).unwrap();
    set_thread_res_uid(unprivileged.0, unprivileged.0, unprivileged.0).unwrap();
}

/// An unprivileged process in the receiver's namespace. It binds every name that wirecap uses, if
/// possible, and connects to every such name, until `stop`.
fn attack(bed: &Bed, begun: &Barrier, stop: &AtomicBool) {
    bed.receiver.enter().unwrap();
    drop_privileges();
    let index = bed.pair.receiver.index;
    let names = |what: &str| {
        let name = format!("wirecap/1/{index}/{what}");
        (0..100)
            .map(move |number| if number == 0 { name.clone() } else { format!("{name}#{number}") })
    };
    let address = |name: &str| SocketAddr::from_abstract_name(name).unwrap();
    let all: Vec<String> = names("turn").chain(names("queue/0")).chain(names("queue/1")).collect();
    let mut taken = Vec::new();
    let mut own = HashSet::new();
    let mut connections = Vec::new();
    for name in &all {
        if let Ok(listener) = UnixListener::bind_addr(&address(name)) {
            taken.push(listener);
            own.insert(name.clone());
        }
    }
    begun.wait();
    while !stop.load(Ordering::Relaxed) {
        for name in &all {
            if !own.contains(name) && connections.len() < 600 {
                connections.extend(UnixStream::connect_addr(&address(name)));
            }
        }
        // Some names are released, and others bound.
        own.clear();
        taken.clear();
        for name in all.iter().step_by(2) {
            if let Ok(listener) = UnixListener::bind_addr(&address(name)) {
                taken.push(listener);
                own.insert(name.clone());
            }
        }
    }
}

#[test]
fn a_capture_is_found_if_other_users_had_bound_its_names() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let index = bed.pair.receiver.index;
    // More names than any process would try.
    let squat = || {
        bed.receiver.enter().unwrap();
        drop_privileges();
        let names = (0..500).map(|number| match number {
            0 => format!("wirecap/1/{index}/queue/0"),
            number => format!("wirecap/1/{index}/queue/0#{number}"),
        });
        let listen =
            |name: String| UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap());
        names.map(|name| listen(name).unwrap()).collect::<Vec<_>>()
    };
    let taken = thread::scope(|scope| scope.spawn(squat).join().unwrap());
    let running = bed.capture(&["count", "-i", "a1@0", "-M", "64", "-R", "64", "--json"]);
    let holder = format!("a1@0 is already captured by process {} (wirecap)", running.id());
    let second = || bed.run(Command::new(WIRECAP).args(["count", "-i", "a1@0", "-R", "16"]));
    second().assert_refused(1, &[&holder]);
    drop(taken);
    // The name is free again.
    second().assert_refused(1, &[&holder]);
    bed.generator().send(&[Load::new(0, 500)]).unwrap();
    let finished = running.interrupt();
    finished.assert_success();
    assert_eq!(finished.ledger()["delivered"], 500, "{}", finished.stderr);
}

/// An unprivileged process that creates entries in the shared directory `folder` that may disturb a
/// recording, and removes entries where permitted, until `stop`.
fn litter(folder: &Path, victim: &Path, begun: &Barrier, stop: &AtomicBool) {
    drop_privileges();
    let put = |path: &Path, kind: usize| match kind % 4 {
        0 => mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0)
            .map_err(io::Error::from),
        1 => symlink(victim, path),
        2 => fs::hard_link(victim, path),
        _ => fs::write(path, "another user's"),
    };
    let mut locks = Vec::new();
    for round in 0_usize.. {
        for number in 1..40 {
            for (kind, suffix) in
                [".pcap", ".pcap.part", "-1.pcap", "-1.pcap.part"].into_iter().enumerate()
            {
                let path = folder.join(format!("t-{number:05}{suffix}"));
                // Existing files of the recording cannot be removed.
                let _ = fs::remove_file(&path);
                let _ = put(&path, round + number + kind);
                let is_file = fs::symlink_metadata(&path).is_ok_and(|entry| entry.is_file());
                if is_file
                    && locks.len() < 500
                    && let Ok(file) = fs::File::open(&path)
                {
                    // Holds a lock, as a recording would.
                    let _ = file.try_lock();
                    locks.push(file);
                }
            }
        }
        if round == 0 {
            begun.wait();
        }
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

#[test]
fn links_and_pipes_in_a_shared_directory_neither_delay_nor_end_a_recording() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let private = TempDir::new().unwrap();
    let victim = private.path().join("victim");
    fs::write(&victim, "kept").unwrap();
    let begun = Barrier::new(2);
    let stop = AtomicBool::new(false);
    let pattern = folder.path().join("t-%i.pcap").display().to_string();
    thread::scope(|scope| {
        scope.spawn(|| litter(folder.path(), &victim, &begun, &stop));
        begun.wait();
        let _stop = Stop(&stop);
        for round in 0..2 {
            let options =
                ["-M", "64", "-R", "512", "--file-packets", "500", "--keep-files", "100", "--json"];
            let running =
                bed.capture(&[&["capture", "-i", "a1", "-w", &pattern][..], &options].concat());
            bed.generator().send(&[Load::new(0, 10_000).per_second(20_000)]).unwrap();
            let finished = running.interrupt();
            finished.assert_success();
            let ledger = finished.ledger();
            assert_eq!(ledger["delivered"], 10_000, "round {round}: {ledger}");
            assert_eq!(ledger["recorded"]["in_file"], 10_000, "round {round}: {ledger}");
        }
    });
    let entries = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap());
    let own = entries
        .filter(|entry| entry.metadata().is_ok_and(|entry| entry.is_file() && entry.uid() == 0));
    let packets: usize = own.map(|entry| tcpdump(&entry.path(), &[]).0.len()).sum();
    assert_eq!(packets, 20_000);
    assert_eq!(fs::read(&victim).unwrap(), b"kept");
}

#[test]
fn a_pipe_or_a_link_of_another_user_is_not_recorded_into() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let [pipe, link, hard] = ["pipe", "link", "hard"].map(|name| folder.path().join(name));
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    symlink("/dev/null", &link).unwrap();
    lchown(&pipe, Some(65534), None).unwrap();
    lchown(&link, Some(65534), None).unwrap();
    fs::write(folder.path().join("file"), "kept").unwrap();
    fs::hard_link(folder.path().join("file"), &hard).unwrap();
    for path in [&pipe, &link, &hard] {
        let path = path.display().to_string();
        let options = ["-R", "16", "--force", "--duration", "5s"];
        let refused = [&["capture", "-i", "a1", "-w", &path][..], &options].concat();
        let begun = Instant::now();
        bed.run(Command::new(WIRECAP).args(refused)).assert_refused(1, &[&path, "another user"]);
        assert!(begun.elapsed() < Duration::from_secs(5), "it waits for a reader");
    }
    assert_eq!(fs::read(&hard).unwrap(), b"kept");
}

/// Stops another thread on drop, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn an_unprivileged_process_cannot_delay_block_or_end_a_capture() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let begun = Barrier::new(2);
    let stop = AtomicBool::new(false);
    let longest = Mutex::new(Duration::ZERO);
    thread::scope(|scope| {
        scope.spawn(|| attack(&bed, &begun, &stop));
        begun.wait();
        let _stop = Stop(&stop);
        for _ in 0..5 {
            let start = Instant::now();
            let first = bed.capture(&["count", "-i", "a1@0", "-M", "64", "-R", "64", "--json"]);
            let second = bed.capture(&["count", "-i", "a1@1", "-M", "64", "-R", "64", "--json"]);
            let third = bed.run(Command::new(WIRECAP).args(["count", "-i", "a1@0", "-R", "16"]));
            third.assert_refused(1, &["a1@0 is already captured by"]);
            bed.generator().send(&[Load::new(0, 500), Load::new(1, 500)]).unwrap();
            for running in [first, second] {
                let finished = running.interrupt();
                finished.assert_success();
                assert_eq!(finished.ledger()["delivered"], 500, "{}", finished.stderr);
            }
            let mut longest = longest.lock().unwrap();
            *longest = longest.max(start.elapsed());
        }
    });
    let longest = longest.into_inner().unwrap();
    assert!(
        longest < Duration::from_secs(15),
        "{longest:?}: a turn that is squatted is waited for 20 s"
    );
}
