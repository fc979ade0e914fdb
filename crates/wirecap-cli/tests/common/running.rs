//! Runs a program in namespaces of the test bed: `PROGRAM` of the module above. The lab's tests use
//! it, too.

use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use wirecap_testbed::Namespace;

use super::PROGRAM;

/// Maximum time for any step of the program on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a run of the program.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The exit status; `None` if a signal ended the program.
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Finished {
    /// The output of `--json`.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.status, Some(0), "{self:#?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Checks that the program failed with this status, and that the error contains these words.
    #[track_caller]
    pub(crate) fn refused(&self, status: i32, words: &[&str]) {
        assert_eq!(self.status, Some(status), "{self:#?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {self:#?}");
        }
    }
}

/// Runs the program in the namespace.
pub(crate) fn run(namespace: &Namespace, arguments: &[&str]) -> Finished {
    namespace.run_in(|| command(arguments).output()).unwrap().unwrap().into()
}

/// Runs the program in the namespace as an unprivileged user.
pub(crate) fn run_unprivileged(namespace: &Namespace, arguments: &[&str]) -> Finished {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]);
    command.arg(PROGRAM).args(arguments).stdin(Stdio::null());
    namespace.run_in(|| command.output()).unwrap().unwrap().into()
}

/// Starts the program in the namespace.
pub(crate) fn start(namespace: &Namespace, arguments: &[&str]) -> Running {
    let start = || command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    Running(Some(namespace.run_in(start).unwrap().unwrap()))
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A running program; killed if the test ends first.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.0.as_ref().expect("not yet waited for").id()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.pid().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until the program ends, and kills it after [`PATIENCE`].
    pub(crate) fn finish(mut self) -> Finished {
        let mut child = self.0.take().expect("not yet waited for");
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        let _ended_already = child.kill();
        child.wait_with_output().unwrap().into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ended_already = child.kill();
            let _reaped = child.wait();
        }
    }
}
