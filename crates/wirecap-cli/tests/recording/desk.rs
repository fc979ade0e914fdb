//! A capture that can be asked, and what its answers are held to.

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

/// A bed with a directory of its own for control sockets.
pub(crate) struct Desk {
    pub(crate) bed: Bed,
    pub(crate) directory: TempDir,
    /// On the receiver, where packet sockets are to get the frames of a sender inside the kernel.
    _passing: Option<Link>,
}

impl Desk {
    pub(crate) fn new(queue_count: u32) -> Self {
        let directory = TempDir::new_in("/tmp").unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        Self { bed: Bed::new(queue_count), directory, _passing: None }
    }

    /// One on which this engine gets what the bed's generator sends.
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

    /// Starts a capture and waits until it can be asked.
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

    /// Stops a capture that had many clients when it has delivered all that the run sends, and gives that count. It has few
    /// descriptors, and little memory beside its pool of 64 MiB.
    #[track_caller]
    pub(crate) fn stop_unharmed(&self, name: &str, running: Running, run: Run<'_>) -> (Finished, u64) {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", running.id())).unwrap().count();
        assert!(descriptors < 200, "{descriptors} descriptors");
        let memory = running.peak_memory_bytes();
        assert!(memory < 256 << 20, "{memory} bytes");

        let sent = run.wait().unwrap()[0].frames;
        wait_until("all packets are in", || number(&self.status(name)["ledger"]["delivered"]) == sent);
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

    /// Whether the other side has closed it, after what it had to say.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).is_ok()
    }
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a count"))
}

/// The drops of an account, by all reasons.
pub(crate) fn dropped(account: &Value) -> u64 {
    account["dropped"].as_object().unwrap().values().filter_map(Value::as_u64).sum()
}

/// What holds for the account of a ring and for the sum, at each moment.
#[track_caller]
pub(crate) fn assert_conserved(account: &Value) {
    assert_eq!(number(&account["offered"]), number(&account["delivered"]) + dropped(account), "{account}");
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

/// The counts that two ledgers of one capture must have in common.
pub(crate) fn counts(ledger: &Value) -> BTreeMap<&str, Value> {
    let names = ["seen", "offered", "delivered", "bytes", "filtered", "dropped", "rings"];
    names.iter().map(|name| (*name, ledger[*name].clone())).collect()
}
