//! Beds for programs that capture, and the drop-in for them to find.

#![allow(dead_code, reason = "each test program uses its part")]

use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use wirecap_testbed::{Namespace, VethPair};

/// What no program of ours takes so long for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Which libpcap a program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    System,
    DropIn,
}

/// The library as cargo built it.
pub(crate) fn built() -> PathBuf {
    let test = env::current_exe().unwrap();
    // Not a folder higher: what lies there `cargo test` does not renew.
    let deps = test.parent().unwrap();
    let path = deps.join("libwirecap_pcap.so");
    assert!(path.exists(), "{} is not there", path.display());
    path
}

/// A folder in which the loader finds the drop-in under all of libpcap's names.
pub(crate) fn drop_in() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            for name in ["libpcap.so.0.8", "libpcap.so.1", "libpcap.so"] {
                symlink(built(), folder.path().join(name)).unwrap();
            }
            folder
        })
        .path()
}

/// Two ends of a cable in one namespace: `a0`, on which tests send, and `a1`, where programs capture.
pub(crate) struct Bed {
    pub(crate) namespace: Namespace,
    pub(crate) pair: VethPair,
}

impl Bed {
    pub(crate) fn new() -> Self {
        let namespace = Namespace::new().unwrap();
        let pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), 1, 1500).unwrap();
        Self { namespace, pair }
    }

    /// A program that gets one library or the other.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>, library: Library) -> Command {
        let mut command = Command::new(program);
        // Cargo names folders of its own, where another build of ours may lie.
        command.env_remove("LD_LIBRARY_PATH");
        if library == Library::DropIn {
            command.env("LD_LIBRARY_PATH", drop_in());
        }
        command
    }

    pub(crate) fn spawn(&self, command: &mut Command) -> Child {
        self.namespace.run_in(|| command.spawn()).unwrap().expect("the program is installed")
    }

    /// Runs a program to its end, with all that it says.
    pub(crate) fn run(&self, command: &mut Command) -> Output {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(self.spawn(command))
    }

    pub(crate) fn ip(&self, arguments: &str) {
        let output = self.run(Command::new("ip").args(arguments.split_whitespace()));
        assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Waits for a program that should end by itself, and ends it if it does not.
pub(crate) fn finish(mut child: Child) -> Output {
    let id = child.id();
    let deadline = Instant::now() + PATIENCE;
    let outcome = std::thread::scope(|scope| {
        let output = scope.spawn(|| {
            let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
            let stdout = scope.spawn(move || read_all(stdout));
            let stderr = scope.spawn(move || read_all(stderr));
            (child.wait().unwrap(), stdout.join().unwrap(), stderr.join().unwrap())
        });
        while !output.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let is_late = !output.is_finished();
        if is_late {
            let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
        }
        (output.join().unwrap(), is_late)
    });
    let ((status, stdout, stderr), is_late) = outcome;
    let output = Output { status, stdout, stderr };
    assert!(!is_late, "it did not end:\n{}", said(&output));
    output
}

fn read_all(pipe: Option<impl std::io::Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes).unwrap();
    }
    bytes
}

/// Everything that a program said.
pub(crate) fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// A C program of the tests', compiled once.
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
