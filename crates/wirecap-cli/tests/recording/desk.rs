//! A capture with a control socket, and the equations that its answers must fulfil.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use wirecap::bpf::Link;
use wirecap_testbed::{Run, pass_program, wait_until};

use super::{Bed, Finished, Running, WIRECAP};

pub(crate) const ENGINES: [&str; 2] = ["xdp", "packet"];

/// A test bed with a directory for control sockets.
pub(crate) struct Desk {
    pub(crate) bed: Bed,
    pub(crate) directory: TempDir,
    /// A program on the receiver, with which packet sockets receive the generator's frames.
    _passing: Option<Link>,
}

impl Desk {
    pub(crate) fn new(queue_count: u32) -> Self {
        let directory = TempDir::new_in("/tmp").unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        Self { bed: Bed::new(queue_count), directory, _passing: None }
    }

    /// A desk on which this engine receives the generator's frames.
    pub(crate) fn of_engine(engine: &str, queue_count: u32) -> Self {
        let desk = Self::new(queue_count);
        let passing = (engine == "packet").then(|| pass_program(&desk.bed.pair.receiver).unwrap());
        Self { _passing: passing, ..desk }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("control").join(name)
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    pub(crate) fn command(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Command {
        let mut command = Command::new(program.as_ref());
        command.args(arguments).env("WIRECAP_CONTROL_DIR", self.directory.path().join("control"));
        command
    }

    /// Starts a capture, and waits until its control socket answers.
    pub(crate) fn capture(&self, name: &str, arguments: &[&str]) -> Running {
        let mut running = self.bed.start(&mut self.command(WIRECAP, arguments));
        running.wait_for("capturing");
        wait_until("the capture can be asked", || self.wirecap(&["status", name]).status.success());
        running
    }

    pub(crate) fn wirecap(&self, arguments: &[&str]) -> Finished {
        self.bed.run(&mut self.command(WIRECAP, arguments))
    }

    pub(crate) fn client(&self, name: &str) -> Client {
        let stream = UnixStream::connect(self.path(name)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client(BufReader::new(stream))
    }

    pub(crate) fn status(&self, name: &str) -> Value {
        self.client(name).ask(&json!({ "command": "status" }))
    }

    /// Ends a capture that had many clients, after it has delivered all packets of the run. Checks
    /// that it uses few descriptors, and little memory in addition to its pool of 64 MiB. Returns
    /// the number of packets.
    #[track_caller]
    pub(crate) fn stop_unharmed(
        &self,
        name: &str,
        running: Running,
        run: Run<'_>,
    ) -> (Finished, u64) {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", running.id())).unwrap().count();
        assert!(descriptors < 200, "{descriptors} descriptors");
        let memory = running.peak_memory_bytes();
        assert!(memory < 256 << 20, "{memory} bytes");

        let sent = run.wait().unwrap()[0].frames;
        wait_until("all packets are in", || {
            number(&self.status(name)["ledger"]["delivered"]) == sent
        });
        self.wirecap(&["stop", name]).assert_success();
        let finished = running.finish();
        finished.assert_success();
        (finished, sent)
    }
}

pub(crate) struct Client(pub(crate) BufReader<UnixStream>);

impl Client {
    pub(crate) fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn read(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    pub(crate) fn ask(&mut self, request: &Value) -> Value {
        self.send(&format!("{request}\n"));
        self.read()
    }

    /// Whether the other side has closed the connection, after reading all that it sent.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).is_ok()
    }
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count"))
}

/// The drops of an account, for all reasons together.
pub(crate) fn dropped(account: &Value) -> u64 {
    account["dropped"].as_object().unwrap().values().filter_map(Value::as_u64).sum()
}

/// Asserts the equations that hold at any moment for each ring and for the sum.
#[track_caller]
pub(crate) fn assert_conserved(account: &Value) {
    assert_eq!(
        number(&account["offered"]),
        number(&account["delivered"]) + dropped(account),
        "{account}"
    );
    if let Some(filtered) = account["filtered"].as_u64() {
        assert_eq!(number(&account["seen"]), number(&account["offered"]) + filtered, "{account}");
    }
}

#[track_caller]
pub(crate) fn assert_ledger_conserved(ledger: &Value) {
    assert_conserved(ledger);
    let rings = ledger["rings"].as_array().unwrap();
    rings.iter().for_each(|ring| assert_conserved(ring));
    let sum: u64 = rings.iter().map(|ring| number(&ring["delivered"])).sum();
    assert_eq!(sum, number(&ledger["delivered"]), "{ledger}");
}

/// The counts that must be equal in two ledgers of one capture.
pub(crate) fn counts(ledger: &Value) -> BTreeMap<&str, Value> {
    let names = ["seen", "offered", "delivered", "bytes", "filtered", "dropped", "rings"];
    names.iter().map(|name| (*name, ledger[*name].clone())).collect()
}
