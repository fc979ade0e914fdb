//! Shared by the tests of the command: a test bed, and commands that run in it.
#![allow(dead_code, reason = "not every test uses all of it")]

pub(crate) mod desk;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use wirecap_testbed::{Generator, Namespace, Traffic, VethPair};

pub(crate) const WIRECAP: &str = env!("CARGO_BIN_EXE_wirecap");

/// Two namespaces connected by a cable; captures run on `a1`.
pub(crate) struct Bed {
    pub(crate) sender: Namespace,
    pub(crate) receiver: Namespace,
    pub(crate) pair: VethPair,
}

impl Bed {
    pub(crate) fn new(queue_count: u32) -> Self {
        let sender = Namespace::new().unwrap();
        let receiver = Namespace::new().unwrap();
        let pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), queue_count, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        Self { sender, receiver, pair }
    }

    pub(crate) fn traffic(&self) -> Traffic {
        Traffic::to(&self.pair.receiver)
    }

    pub(crate) fn generator(&self) -> Generator {
        Generator::new(&self.pair.sender, &self.traffic()).unwrap()
    }

    /// Runs `command` in the receiver's namespace until it ends.
    pub(crate) fn run(&self, command: &mut Command) -> Finished {
        self.start(command).finish()
    }

    /// Starts `command` in the receiver's namespace.
    pub(crate) fn start(&self, command: &mut Command) -> Running {
        self.start_on(Stdio::piped(), command)
    }

    /// Starts `command` in the receiver's namespace with this standard error.
    pub(crate) fn start_on(&self, stderr: impl Into<Stdio>, command: &mut Command) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = self.receiver.run_in(|| command.spawn().unwrap()).unwrap();
        let stdout = child.stdout.take().unwrap();
        let stderr = child.stderr.take().map(BufReader::new);
        Running { child, stdout: Some(read_all(stdout)), stderr, said: String::new() }
    }

    /// Starts `wirecap` with these arguments and waits until it captures.
    pub(crate) fn capture(&self, arguments: &[&str]) -> Running {
        let mut running = self.start(Command::new(WIRECAP).args(arguments));
        running.wait_for("capturing");
        running
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// A running command.
pub(crate) struct Running {
    child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<BufReader<std::process::ChildStderr>>,
    said: String,
}

impl Running {
    /// Waits until a line on standard error begins with `word`, and returns the line.
    pub(crate) fn wait_for(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            let count = self.stderr.as_mut().unwrap().read_line(&mut line).unwrap();
            self.said += &line;
            assert!(count > 0, "the command ended before it said {word:?}: {}", self.said);
            if line.starts_with(word) {
                return line;
            }
        }
    }

    /// Waits for a line that begins with each of these words, in any order.
    pub(crate) fn wait_for_all(&mut self, words: &[&str]) {
        let mut left = words.to_vec();
        while !left.is_empty() {
            // Every line begins with the empty string.
            let line = self.wait_for("");
            left.retain(|word| !line.starts_with(word));
        }
    }

    /// The command's peak memory so far, from /proc/PID/status.
    pub(crate) fn peak_memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }

    /// The process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Interrupts it like Ctrl-C.
    pub(crate) fn interrupt(self) -> Finished {
        self.signal(Signal::INT);
        self.finish()
    }

    pub(crate) fn finish(mut self) -> Finished {
        let mut rest = String::new();
        if let Some(mut stderr) = self.stderr.take() {
            stderr.read_to_string(&mut rest).unwrap();
        }
        let status = self.child.wait().unwrap();
        let stdout = self.stdout.take().unwrap().join().unwrap();
        Finished { status, stdout, stderr: self.said.clone() + &rest }
    }
}

impl Running {
    /// Waits for a killed command. Returns `None` as its exit status.
    pub(crate) fn finish_killed(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A running command is dropped only if the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Finished {
    /// The ledger printed by `--json`.
    pub(crate) fn ledger(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    pub(crate) fn assert_success(&self) {
        assert!(self.status.success(), "{}: {}", self.status, self.stderr);
    }

    /// Asserts that the exit status is `code`, and that the message contains all of `words`.
    pub(crate) fn assert_refused(&self, code: i32, words: &[&str]) {
        assert_eq!(self.status.code(), Some(code), "{}", self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in: {}", self.stderr);
        }
    }
}

/// A copy of the command that every user may execute, for as long as the directory exists.
pub(crate) fn copy_for_everybody() -> (TempDir, PathBuf) {
    let directory = TempDir::new_in("/tmp").unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = directory.path().join("wirecap");
    // Copied by another process: if this process had the file open for writing, a process that
    // another thread starts would inherit it, and the copy could not be executed.
    assert!(Command::new("cp").arg(WIRECAP).arg(&program).status().unwrap().success());
    (directory, program)
}

/// The output of `tcpdump -r` for a savefile, one line per packet, and whether it read to the end
/// without an error.
pub(crate) fn tcpdump(file: &Path, options: &[&str]) -> (Vec<String>, bool) {
    let output = Command::new("tcpdump").args(["-n", "-r"]).arg(file).args(options).output();
    let output = output.expect("tcpdump is installed by `make test`");
    let lines = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    (lines, output.status.success())
}

/// The values of `fields` for each packet, from tshark.
pub(crate) fn tshark(file: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let fields: Vec<&str> = fields.iter().flat_map(|field| ["-e", field]).collect();
    let output =
        Command::new("tshark").args(["-n", "-T", "fields", "-r"]).arg(file).args(fields).output();
    let output = output.expect("tshark is installed by `make test`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}
