//! Installs the library as a user would, and provides test beds for programs that use it.

#![allow(dead_code, reason = "each test program uses its part")]

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;
use wirecap_testbed::{Namespace, VethPair};

/// A time limit in seconds that no test program needs.
const PATIENCE: &str = "120";

/// The directory of this crate's sources.
pub(crate) fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The library built by cargo.
pub(crate) fn built() -> PathBuf {
    let test = env::current_exe().unwrap();
    // The copy one directory higher is not updated by `cargo test`.
    let path = test.parent().unwrap().join("libwirecap_c.so");
    assert!(path.exists(), "{} is not there", path.display());
    path
}

/// A directory in which the library is installed, as for a package.
pub(crate) fn installed() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER
        .get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let mut make = Command::new("make");
            make.arg("-C").arg(sources().join("../..")).args([
                "-s",
                "install-c",
                "SUDO=",
                "PREFIX=/usr/local",
            ]);
            make.arg(format!("C_LIBRARY={}", built().display()));
            make.arg(format!("DESTDIR={}", folder.path().display()));
            succeed(&mut make);
            folder
        })
        .path()
}

/// The output of pkg-config for the installed library.
pub(crate) fn pkg_config(arguments: &[&str]) -> Vec<String> {
    let output = succeed(
        Command::new("pkg-config")
            .env("PKG_CONFIG_SYSROOT_DIR", installed())
            .env("PKG_CONFIG_LIBDIR", installed().join("usr/local/lib/pkgconfig"))
            .args(arguments)
            .arg("wirecap"),
    );
    output.split_whitespace().map(str::to_owned).collect()
}

/// Compiles and links a C program as a user would.
pub(crate) fn compile(source: &str, folder: &Path, flags: &[&str]) -> PathBuf {
    let source = sources().join(source);
    let program = folder.join(source.file_stem().unwrap());
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"])
        .arg(&program)
        .arg(source);
    compiler.args(flags).args(pkg_config(&["--cflags", "--libs"])).arg("-lpthread");
    succeed(&mut compiler);
    program
}

/// Runs a command that must succeed. Returns its standard output.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}:\n{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// All output of a program.
pub(crate) fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// A running example. It prints a line on standard error when it is ready, and ends on Ctrl-C.
#[derive(Debug)]
pub(crate) struct Example(Child);

impl Example {
    /// Starts the example in a namespace and waits until it prints a line that begins with `ready`.
    /// If it ends first, returns its output as an error.
    pub(crate) fn start(
        namespace: &Namespace,
        source: &str,
        arguments: &[&str],
        ready: &str,
    ) -> Result<Self, Output> {
        let folder = tempfile::tempdir().unwrap();
        let program = compile(source, folder.path(), &[]);
        let mut command = bounded(program);
        command.args(arguments);
        let mut child = namespace.run_in(|| command.spawn()).unwrap().unwrap();
        let mut stderr = BufReader::with_capacity(1, child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        child.stderr = Some(stderr.into_inner());
        if line.starts_with(ready) {
            return Ok(Self(child));
        }
        let mut output = child.wait_with_output().unwrap();
        output.stderr.splice(..0, line.into_bytes());
        Err(output)
    }

    /// Interrupts it like Ctrl-C. Returns its output.
    pub(crate) fn end(self) -> String {
        let id = self.0.id().to_string();
        succeed(Command::new("kill").args(["-INT", &id]));
        self.wait()
    }

    /// Waits until it ends by itself. Returns its output.
    pub(crate) fn wait(self) -> String {
        let output = self.0.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }
}

/// A program that uses the installed library, with a time limit. Signals are passed on to it.
fn bounded(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    // Cargo sets directories that may contain another build of the library.
    command.env("LD_LIBRARY_PATH", installed().join("usr/local/lib"));
    command.args(["-k", "5", PATIENCE]).arg(program);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A cable from `a0`, where tests send, to `a1`, where programs capture.
pub(crate) struct Bed {
    _sender: Namespace,
    pub(crate) receiver: Namespace,
    pub(crate) pair: VethPair,
}

impl Bed {
    pub(crate) fn new(queues: u32) -> Self {
        Self::with_mtu(queues, 1500)
    }

    pub(crate) fn with_mtu(queues: u32, mtu: u32) -> Self {
        let sender = Namespace::new().unwrap();
        let receiver = Namespace::new().unwrap();
        let pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), queues, mtu)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        Self { _sender: sender, receiver, pair }
    }
}
