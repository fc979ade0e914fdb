//! Runs the built command in namespaces of the test bed.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod belongings;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use wirecap::{Capture, Ledger};
use wirecap_testbed::{Interface, Namespace, VethPair};

/// Maximum time for any step of the command on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Two namespaces connected by a cable: `a0` sends to `a1`.
pub(crate) struct Bed {
    pub(crate) near: Namespace,
    pub(crate) far: Namespace,
    pub(crate) pair: VethPair,
}

impl Bed {
    pub(crate) fn new(queue_count: u32) -> Self {
        let (near, far) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let pair = VethPair::new((&near, "a0"), (&far, "a1"), queue_count, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        Self { near, far, pair }
    }

    pub(crate) fn sender(&self) -> &Interface {
        &self.pair.sender
    }
}

/// Captures the packets that arrive at `a1` during `work`, and returns each packet with its queue. A queue
/// has room for 16,384 packets.
pub(crate) fn arriving(bed: &Bed, work: impl FnOnce() + Send) -> (Vec<(u32, Vec<u8>)>, Ledger) {
    let capture =
        bed.far.run_in(|| Capture::on("a1").chunk(64).pool(256).workers(1).open()).unwrap().unwrap();
    let mut worker = capture.workers().pop().unwrap();
    let packets = thread::scope(|scope| {
        let taking = scope.spawn(move || {
            let mut packets = Vec::new();
            while let Some(chunk) = worker.next_chunk().unwrap() {
                packets.extend(chunk.iter().map(|packet| (chunk.ring().queue, packet.data().to_vec())));
            }
            packets
        });
        let outcome = catch_unwind(AssertUnwindSafe(work));
        // Also after a failure: the scope waits for the thread.
        bed.far.run_in(|| capture.stop()).unwrap();
        let packets = taking.join().unwrap();
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
        packets
    });
    (packets, bed.far.run_in(|| capture.close()).unwrap())
}

/// The result of a run of the command.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The exit status; `None` if a signal ended the command.
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

    /// Checks that the command failed with this status, and that the error contains these words.
    #[track_caller]
    pub(crate) fn refused(&self, status: i32, words: &[&str]) {
        assert_eq!(self.status, Some(status), "{self:#?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {self:#?}");
        }
    }
}

/// Runs the command in the namespace.
pub(crate) fn wirecap(namespace: &Namespace, arguments: &[&str]) -> Finished {
    namespace.run_in(|| command(arguments).output()).unwrap().unwrap().into()
}

/// Runs the command in the namespace as an unprivileged user.
pub(crate) fn wirecap_unprivileged(namespace: &Namespace, arguments: &[&str]) -> Finished {
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]);
    command.arg(env!("CARGO_BIN_EXE_wirecap")).args(arguments).stdin(Stdio::null());
    namespace.run_in(|| command.output()).unwrap().unwrap().into()
}

/// Starts the command in the namespace.
pub(crate) fn start(namespace: &Namespace, arguments: &[&str]) -> Running {
    let start = || command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    Running(Some(namespace.run_in(start).unwrap().unwrap()))
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wirecap"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A running command; killed if the test ends first.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.0.as_ref().expect("not yet waited for").id()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.pid().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until the command ends, and kills it after [`PATIENCE`].
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
