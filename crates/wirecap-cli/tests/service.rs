//! A capture as a service: its messages to the service manager and the journal, its configuration
//! file, and reloads that lose no packets.

mod recording;

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use recording::{Bed, Finished, WIRECAP, tcpdump};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use wirecap::savefile::Reader;
use wirecap_testbed::{Load, privileged, uninterrupted, wait_until};

/// A test bed with a service manager's socket and a directory with a configuration file.
struct Host {
    bed: Bed,
    folder: TempDir,
    manager: UnixDatagram,
}

impl Host {
    fn new() -> Self {
        let folder = TempDir::new_in("/tmp").unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { bed: Bed::new(1), folder, manager }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn configure(&self, rest: &str) {
        let write = self.path("t-%i.pcapng");
        let text = format!(
            "# a test\ninterface = a1\nwrite = {}\nchunk = 64\npool = 1024\n{rest}",
            write.display()
        );
        fs::write(self.path("a1.conf"), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(WIRECAP);
        command.args(arguments).current_dir(self.folder.path());
        command.env("WIRECAP_CONTROL_DIR", self.path("control"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        self.bed.run(&mut self.command(arguments))
    }

    /// Starts the service, and waits until it reports that it is ready.
    fn start(&self, more: &[&str]) -> Service {
        let arguments =
            [&["capture", "--config", "a1.conf", "--name", "a1", "--json"], more].concat();
        let mut command = self.command(&arguments);
        command.env("NOTIFY_SOCKET", self.path("notify")).env("WATCHDOG_USEC", "400000");
        let (log, stderr) = rustix::pipe::pipe().unwrap();
        let status = rustix::fs::fstat(&stderr).unwrap();
        command.env("JOURNAL_STREAM", format!("{}:{}", status.st_dev, status.st_ino));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let child = self.bed.receiver.run_in(|| command.spawn().unwrap()).unwrap();
        let service = Service { child, log: BufReader::new(File::from(log)) };
        self.wait_for("READY=1");
        service
    }

    /// Returns the messages to the manager up to and including `message`.
    fn wait_for(&self, message: &str) -> Vec<String> {
        let mut messages = Vec::new();
        loop {
            let mut bytes = [0; 4096];
            let length = uninterrupted(|| self.manager.recv(&mut bytes))
                .unwrap_or_else(|error| panic!("{error}: no {message} in {messages:?}"));
            messages.push(String::from_utf8(bytes[..length].to_vec()).unwrap());
            if messages.last().unwrap().starts_with(message) {
                return messages;
            }
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> =
            entries.filter(|path| path.to_str().unwrap().contains("/t-")).collect();
        files.sort();
        files
    }

    fn send(&self, packets: u64) {
        self.bed.generator().send(&[Load::new(0, packets)]).unwrap();
    }
}

struct Service {
    child: Child,
    log: BufReader<File>,
}

impl Service {
    fn end(mut self, signal: Signal) -> (Option<i32>, Value, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let mut log = String::new();
        for line in self.log.by_ref_lines() {
            log += &(line + "\n");
        }
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default(), log)
    }
}

trait Lines {
    fn by_ref_lines(&mut self) -> Vec<String>;
}

impl Lines for BufReader<File> {
    fn by_ref_lines(&mut self) -> Vec<String> {
        self.lines().map(Result::unwrap).collect()
    }
}

fn packets(file: &Path) -> u64 {
    let mut reader = Reader::open(file).unwrap();
    let mut count = 0;
    while reader.next_record().unwrap().is_some() {
        count += 1;
    }
    count
}

#[test]
fn the_manager_is_notified_of_start_watchdog_reload_and_end_and_the_journal_has_priorities() {
    if !privileged() {
        return;
    }
    let host = Host::new();
    host.configure("file-packets = 50\n");
    let service = host.start(&[]);
    host.send(120);
    let messages = [
        host.wait_for("WATCHDOG=1"),
        host.wait_for("WATCHDOG=1"),
        host.wait_for("STATUS=120 packets"),
    ]
    .concat();
    assert!(messages.iter().all(|message| !message.starts_with("STOPPING")), "{messages:?}");
    host.run(&["reload", "a1"]).assert_success();
    let reloading = host.wait_for("RELOADING=1").pop().unwrap();
    assert!(reloading.contains("\nMONOTONIC_USEC="), "{reloading}");
    host.wait_for("READY=1");
    let (status, ledger, log) = service.end(Signal::TERM);
    host.wait_for("STOPPING=1");
    assert_eq!(
        (status, &ledger["delivered"], &ledger["recorded"]["in_file"]),
        (Some(0), &120.into(), &120.into()),
        "{log}"
    );
    assert!(log.lines().all(|line| line.starts_with("<6>") || line.starts_with("<4>")), "{log}");
    for words in [
        "<6>capturing a1: ",
        "t-00001.pcapng is complete",
        "<6>ending: SIGTERM",
        "<6>lossless: yes",
    ] {
        assert!(log.contains(words), "{words}: {log}");
    }
}

#[test]
fn a_reload_changes_filter_and_files_and_loses_no_packet() {
    if !privileged() {
        return;
    }
    let host = Host::new();
    host.configure("file-packets = 1000\nfilter = udp\n");
    let service = host.start(&[]);
    let mut generator = host.bed.generator();
    // Reloads under traffic: each time with another filter that matches all packets, and with other
    // files.
    let reloads = std::thread::scope(|scope| {
        let sending = scope
            .spawn(|| (0..40).for_each(|_| drop(generator.send(&[Load::new(0, 500)]).unwrap())));
        let mut reloads = 0;
        while !sending.is_finished() || reloads < 4 {
            reloads += 1;
            host.configure(&format!(
                "file-packets = {}\nfilter = udp and greater {reloads}\n",
                500 + reloads
            ));
            host.run(&["reload", "a1"]).assert_success();
        }
        sending.join().unwrap();
        reloads
    });
    let last = 500 + reloads;
    let status: Value =
        serde_json::from_slice(&host.run(&["status", "a1", "--json"]).stdout).unwrap();
    assert_eq!(status["interfaces"][0]["filter"], format!("udp and greater {reloads}"));
    let mut sent = 40 * 500;
    wait_until("the last rules hold", || {
        host.send(last);
        sent += last;
        host.files()
            .iter()
            .any(|file| !file.to_str().unwrap().ends_with(".part") && packets(file) == last)
    });
    let (status, ledger, log) = service.end(Signal::TERM);
    assert_eq!(status, Some(0), "{log}");
    assert_eq!(
        (&ledger["delivered"], &ledger["recorded"]["in_file"]),
        (&sent.into(), &sent.into()),
        "{ledger}"
    );
    assert_eq!(host.files().iter().map(|file| packets(file)).sum::<u64>(), sent);
}

#[test]
fn an_invalid_configuration_is_reported_and_changes_nothing() {
    if !privileged() {
        return;
    }
    let host = Host::new();
    host.configure("wirte = x\n");
    host.run(&["capture", "--config", "a1.conf"])
        .assert_refused(2, &["a1.conf: line 6: unknown option \"wirte\""]);
    host.run(&["capture", "--config", "absent.conf"])
        .assert_refused(1, &["absent.conf: No such file"]);
    host.configure("file-packets = 1000\nfilter = udp\n");
    let service = host.start(&[]);
    for (rest, words) in
        [("file-packets = 1000\nfilter = udb\n", "udb"), ("file-packets = none\n", "file-packets")]
    {
        host.configure(rest);
        let finished = host.run(&["reload", "a1"]);
        assert!(
            !finished.status.success() && finished.stderr.contains(words),
            "{rest}: {}",
            finished.stderr
        );
        let status: Value =
            serde_json::from_slice(&host.run(&["status", "a1", "--json"]).stdout).unwrap();
        assert_eq!(status["interfaces"][0]["filter"], "udp");
    }
    host.send(10);
    let (status, ledger, log) = service.end(Signal::INT);
    assert_eq!((status, &ledger["delivered"]), (Some(0), &10.into()), "{log}");
    let plain = host.bed.run(
        host.command(&[
            "capture",
            "-i",
            "a1",
            "-w",
            "plain.pcap",
            "--name",
            "plain",
            "--duration",
            "1ms",
        ])
        .env_remove("NOTIFY_SOCKET"),
    );
    plain.assert_success();
    assert_eq!(tcpdump(&host.path("plain.pcap"), &[]).0.len(), 0);
}

#[test]
fn a_service_without_privileges_is_reloaded_as_well() {
    if !privileged() {
        return;
    }
    let host = Host::new();
    std::os::unix::fs::chown(host.folder.path(), Some(65534), Some(65534)).unwrap();
    host.configure("file-packets = 1000\nfilter = udp\n");
    let service = host.start(&["--user", "nobody"]);
    host.send(10);
    host.configure("file-packets = 20\nfilter = udp and greater 1\n");
    host.run(&["reload", "a1"]).assert_success();
    host.wait_for("RELOADING=1");
    host.send(40);
    host.wait_for("STATUS=50 packets");
    let (status, ledger, log) = service.end(Signal::TERM);
    host.wait_for("STOPPING=1");
    assert_eq!((status, &ledger["recorded"]["in_file"]), (Some(0), &50.into()), "{log}");
    let counts: Vec<u64> = host.files().iter().map(|file| packets(file)).collect();
    assert!(
        counts.iter().sum::<u64>() == 50 && counts.iter().all(|&count| count <= 20),
        "{counts:?}"
    );
}

/// The installed unit, except for the path of the command.
#[test]
fn the_unit_is_valid_and_confined() {
    let folder = TempDir::new().unwrap();
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/wirecap@.service");
    let text = fs::read_to_string(source).unwrap().replace("/usr/bin/wirecap", WIRECAP);
    let unit = folder.path().join("wirecap@eth1.service");
    fs::write(&unit, text).unwrap();
    let analyze = |arguments: &[&str]| {
        let output = Command::new("systemd-analyze").args(arguments).arg(&unit).output();
        let output = output.expect("systemd-analyze is installed by `make test`");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr),
        )
    };
    assert_eq!(analyze(&["verify", "--man=no"]), (true, String::new()));
    // Out of 100: services without confinement have 96. This one needs interfaces, sockets and BPF.
    let (is_below, text) = analyze(&["security", "--offline=true", "--no-pager", "--threshold=32"]);
    assert!(is_below, "{text}");
}

/// CAP_PERFMON saves CPU time; without another one there is no capture, and an error that names it.
#[test]
fn the_capabilities_of_the_unit_suffice_and_each_is_needed() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).unwrap();
    let unit =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/wirecap@.service");
    let unit = fs::read_to_string(unit).unwrap();
    let set = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let all: Vec<&str> = set.split_whitespace().collect();
    // The pool is smaller than the usual limit on locked memory, which the unit lifts.
    let record = |file: &Path, without: &str| {
        let kept = all.iter().filter(|name| **name != without);
        let kept: String =
            kept.map(|name| format!(",+{}", name["CAP_".len()..].to_lowercase())).collect();
        let mut command = Command::new("setpriv");
        command.args([
            "--bounding-set",
            &format!("-all{kept}"),
            "--inh-caps",
            "-all",
            WIRECAP,
            "capture",
        ]);
        command.args([
            "-i",
            "a1",
            "--engine",
            "xdp",
            "-M",
            "64",
            "-R",
            "32",
            "--duration",
            "100ms",
            "-w",
        ]);
        command.arg(file).args(["-Z", "nobody", "--no-control"]);
        bed.run(&mut command)
    };
    let clock =
        |file: &Path| Reader::open(file).unwrap().interfaces()[0].time_source.clone().unwrap();
    let file = folder.path().join("all.pcapng");
    record(&file, "none").assert_success();
    assert!(clock(&file).contains("first packet of a batch"), "{}", clock(&file));
    for without in &all {
        let file = folder.path().join(without).with_extension("pcapng");
        let finished = record(&file, without);
        match *without {
            "CAP_PERFMON" => {
                finished.assert_success();
                assert!(clock(&file).contains("every packet"), "{}", clock(&file));
            }
            _ => finished.assert_refused(1, &[without]),
        }
    }
}

/// All options in the example are valid, and tmpfiles and the example use the same file names.
#[test]
fn the_example_is_a_valid_configuration() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let example = fs::read_to_string(packaging.join("eth0.conf")).unwrap();
    let used: BTreeSet<&str> =
        example.lines().filter_map(|line| line.strip_prefix("write = ")).collect();
    let tmpfiles = fs::read_to_string(packaging.join("systemd/wirecap.tmpfiles")).unwrap();
    let directory = tmpfiles.split_whitespace().nth(1).unwrap();
    assert!(used.iter().all(|path| path.starts_with(directory)) && used.len() == 1, "{used:?}");
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("x.conf");
    let everything: String = example
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(option) if option.contains(" = ") && !option.starts_with(' ') => option,
            _ => line,
        })
        .map(|line| {
            line.replace("interface = eth0", "interface = absent0")
                .replace(directory, folder.path().to_str().unwrap())
                + "\n"
        })
        .collect();
    fs::write(&file, everything).unwrap();
    let output = Command::new(WIRECAP)
        .args(["capture", "--no-control", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && text.contains("absent0"),
        "{}: {text}",
        output.status
    );
}
