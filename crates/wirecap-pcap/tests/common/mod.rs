//! Beds for programs that capture, and directories in which they find the drop-in.

#![allow(dead_code, reason = "each test program uses its part")]

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use wirecap_testbed::{Namespace, VethPair};

/// No program in these tests runs for this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Which libpcap a program loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    System,
    DropIn,
}

/// The library as cargo built it.
pub(crate) fn built() -> PathBuf {
    let test = env::current_exe().unwrap();
    // Not in the parent directory: `cargo test` does not update the file there.
    let deps = test.parent().unwrap();
    let path = deps.join("libwirecap_pcap.so");
    assert!(path.exists(), "{} is not there", path.display());
    path
}

/// A folder in which the loader finds the drop-in under all of libpcap's names.
pub(crate) fn drop_in() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| with_all_names(&built())).path()
}

/// A folder in which the loader finds `library` under all of libpcap's names.
pub(crate) fn with_all_names(library: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libpcap.so.0.8", "libpcap.so.1", "libpcap.so"] {
        symlink(library, folder.path().join(name)).unwrap();
    }
    folder
}

/// The system's library, as the loader finds it.
pub(crate) fn system_library() -> PathBuf {
    let output = Command::new("ldconfig")
        .arg("-p")
        .env("PATH", "/sbin:/usr/sbin:/bin:/usr/bin")
        .output()
        .unwrap();
    let text = said(&output);
    let line =
        text.lines().find(|line| line.contains("libpcap.so.0.8 ")).expect("libpcap is installed");
    Path::new(line.rsplit("=> ").next().unwrap()).canonicalize().unwrap()
}

/// Two ends of a cable in one namespace: tests send on `a0`, and programs capture on `a1`.
pub(crate) struct Bed {
    pub(crate) namespace: Namespace,
    pub(crate) pair: VethPair,
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self::with_queues(1)
    }

    /// With so many receive queues.
    pub(crate) fn with_queues(queues: u32) -> Self {
        let namespace = Namespace::new().unwrap();
        let pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), queues, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        Self { namespace, pair }
    }

    /// A command that runs a program with this library.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>, library: Library) -> Command {
        let mut command = Command::new(program);
        // Cargo sets this variable to its directories, which may contain another build of the
        // drop-in.
        command.env_remove("LD_LIBRARY_PATH");
        if library == Library::DropIn {
            command.env("LD_LIBRARY_PATH", drop_in());
        }
        command
    }

    pub(crate) fn spawn(&self, command: &mut Command) -> Child {
        self.namespace.run_in(|| command.spawn()).unwrap().expect("the program is installed")
    }

    /// Runs a program to its end, and returns its output.
    pub(crate) fn run(&self, command: &mut Command) -> Output {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(self.spawn(command))
    }

    pub(crate) fn ip(&self, arguments: &str) {
        let output = self.run(Command::new("ip").args(arguments.split_whitespace()));
        assert!(
            output.status.success(),
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Waits for a program that should end by itself, and kills it if it does not.
pub(crate) fn finish(mut child: Child) -> Output {
    let id = Pid::from_child(&child);
    let deadline = Instant::now() + PATIENCE;
    let outcome = std::thread::scope(|scope| {
        let output = scope.spawn(|| {
            let stdout = child.stdout.take();
            let stderr = child.stderr.take();
            let stdout = scope.spawn(move || read_all(stdout));
            let stderr = scope.spawn(move || read_all(stderr));
            (child.wait().unwrap(), stdout.join().unwrap(), stderr.join().unwrap())
        });
        while !output.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let late = (!output.is_finished()).then(|| state(id));
        if late.is_some() {
            // No thread has reaped the process yet, so the id still belongs to it.
            let _ = kill_process(id, Signal::KILL);
        }
        (output.join().unwrap(), late)
    });
    let ((status, stdout, stderr), late) = outcome;
    let output = Output { status, stdout, stderr };
    assert!(late.is_none(), "it did not end: {}\n{}", late.unwrap_or_default(), said(&output));
    output
}

/// What a process waits for, which signals it blocks, ignores and handles, and which libpcap it has
/// loaded: with the drop-in, both.
fn state(process: Pid) -> String {
    let read = |file| fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
    let status = read("status");
    let maps = read("maps");
    let told = ["Name:", "State:", "SigBlk:", "SigIgn:", "SigCgt:"];
    let lines = status.lines().filter(|line| told.iter().any(|name| line.starts_with(name)));
    let mut libraries: Vec<&str> =
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).collect();
    libraries.retain(|path| path.contains("pcap"));
    libraries.dedup();
    let lines: Vec<&str> = lines.collect();
    format!("{}; waits in {}; has {}", lines.join(", "), read("wchan"), libraries.join(" "))
        .replace('\t', " ")
}

/// Sends a signal to a program that was not reaped yet.
pub(crate) fn signal_to(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits until all threads of these processes sleep: then they have processed what has arrived,
/// however busy the machine is. Gives up after some seconds, because some processes never sleep.
pub(crate) fn wait_for_sleep(processes: impl Fn() -> Vec<u32>) {
    let deadline = Instant::now() + Duration::from_secs(4);
    let mut looks = 0;
    while looks < 5 && Instant::now() < deadline {
        looks = if processes().into_iter().all(sleeps) { looks + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn sleeps(process: u32) -> bool {
    // A process that has ended counts as sleeping.
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    threads
        .map(|thread| words_of_stat(&thread.path()))
        .all(|words| !matches!(&*words[0], "R" | "D"))
}

/// The processes of the session that `leader` has started.
pub(crate) fn processes_of_session(leader: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_member =
        |id: &u32| words_of_stat(Path::new(&format!("/proc/{id}")))[1] == leader.to_string();
    ids.filter(is_member).collect()
}

/// State and session of a process or a thread, from its directory in /proc; empty if it has ended.
fn words_of_stat(folder: &Path) -> [String; 2] {
    let stat = fs::read_to_string(folder.join("stat")).unwrap_or_default();
    // Its name, in parentheses, may contain any character. After it: state, parent, process group,
    // session.
    let words: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    [0, 3].map(|index| words.get(index).copied().unwrap_or_default().to_owned())
}

fn read_all(pipe: Option<impl std::io::Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes).unwrap();
    }
    bytes
}

/// A program's standard output and standard error.
pub(crate) fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// Compiles a C program of the tests.
pub(crate) fn compile(source: &str, folder: &Path, flags: &[&str]) -> PathBuf {
    let program = folder.join(Path::new(source).file_stem().unwrap());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    let output = Command::new("gcc")
        .args(["-Wall", "-Werror", "-O1", "-g", "-o"])
        .arg(&program)
        .arg(source)
        .args(flags)
        .args(["-lpcap", "-lpthread"])
        .output()
        .expect("gcc is installed");
    assert!(output.status.success(), "{}", said(&output));
    program
}
