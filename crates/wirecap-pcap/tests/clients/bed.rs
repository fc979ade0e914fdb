//! Two hosts on a cable: `here`, where clients run, and `there`.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use wirecap_testbed::{Namespace, VethPair};

use crate::common::{self, Library, finish, said};
use crate::conversation;
use crate::table::{Client, End};

/// Addresses of the host where clients run and of the other one.
pub(crate) const HERE: &str = "10.9.0.2";
pub(crate) const THERE: &str = "10.9.0.1";

/// Where clients are built that come as source.
const BUILD: &str = env!("CARGO_TARGET_TMPDIR");

/// Builds a client.
pub(crate) fn prepare(script: &str) -> Result<(), String> {
    let mut command = Command::new("sh");
    command.arg("-euc").arg(script).env("BUILD", BUILD).env_remove("LD_LIBRARY_PATH");
    command.env("SOURCE", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients"));
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(said(&output)) }
}

/// Two hosts on a cable.
pub(crate) struct ClientBed {
    here: Namespace,
    there: Namespace,
    interface_index: u32,
}

/// A client that runs.
pub(crate) struct Running {
    child: Child,
    folder: TempDir,
}

/// A client that has ended: what it said, and the folder that it may have written to.
pub(crate) struct Ended {
    said: String,
    folder: TempDir,
}

impl ClientBed {
    pub(crate) fn new() -> Self {
        let (here, there) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let pair = VethPair::new((&there, "a0"), (&here, "a1"), 1, 1500).unwrap();
        let bed = Self { here, there, interface_index: pair.receiver.index };
        for (namespace, commands) in [
            (
                &bed.here,
                ["link set lo up", "link set a1 address 02:00:00:00:00:02", "address add 10.9.0.2/24 dev a1"],
            ),
            (
                &bed.there,
                ["link set lo up", "link set a0 address 02:00:00:00:00:01", "address add 10.9.0.1/24 dev a0"],
            ),
        ] {
            commands.iter().for_each(|arguments| ip(namespace, arguments));
        }
        // Who looks for a way out finds one.
        ip(&bed.here, "route add default via 10.9.0.1");
        ip(&bed.there, "route add default via 10.9.0.2");
        // What the sender leaves to hardware is not there; with it, segments are merged at random.
        for (namespace, interface) in [(&bed.here, "a1"), (&bed.there, "a0")] {
            let settings = ["-K", interface, "tx", "off", "tso", "off", "gso", "off", "gro", "off"];
            run(namespace, Command::new("ethtool").args(settings));
        }
        bed
    }

    /// Starts a client's script in a folder of its own.
    pub(crate) fn start(&self, client: &Client, library: Library) -> Running {
        self.start_script(client.script, library, Path::new(""))
    }

    /// Starts a script that reads a savefile.
    pub(crate) fn read(&self, script: &str, file: &Path) -> Running {
        self.start_script(script, Library::System, file)
    }

    /// Has tcpdump record what passes.
    pub(crate) fn record(&self, file: &Path) -> Child {
        let mut command = Command::new("tcpdump");
        command.args(["-i", "a1", "-U", "-Z", "root", "-w"]).arg(file).env_remove("LD_LIBRARY_PATH");
        command.stderr(Stdio::null());
        self.here.run_in(|| command.spawn()).unwrap().unwrap()
    }

    fn start_script(&self, script: &str, library: Library, file: &Path) -> Running {
        let folder = tempfile::tempdir().unwrap();
        // A session of its own: nothing that it starts is left behind, and none of it meddles with ours.
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", script]).env_remove("LD_LIBRARY_PATH").env("FILE", file);
        command.envs([("IF", "a1"), ("HERE", HERE), ("THERE", THERE), ("LC_ALL", "C"), ("HOME", "/root")]);
        command.env("DIR", folder.path()).env("BUILD", BUILD).current_dir(folder.path());
        if library == Library::DropIn {
            command.env("LD_LIBRARY_PATH", common::drop_in());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.here.run_in(|| command.spawn()).unwrap().unwrap();
        Running { child, folder }
    }

    /// Waits until so many sockets receive from the cable, and one of the drop-in's stands beside, if it `is_ours`.
    pub(crate) fn wait_for_handles(&self, count: usize, is_ours: bool) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(15);
        while Instant::now() < deadline {
            let (receiving, beside) = self.handles();
            if receiving >= count && (!is_ours || beside > 0) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let (receiving, beside) = self.handles();
        Err(format!("the client has not opened {count} handles, but {receiving}, {beside} of the drop-in's"))
    }

    /// How many packet sockets receive from the cable, and how many of the drop-in's stand beside.
    fn handles(&self) -> (usize, usize) {
        let table = self.here.run_in(|| fs::read_to_string("/proc/thread-self/net/packet")).unwrap().unwrap();
        let index = self.interface_index.to_string();
        let of_protocol = |wanted: &str| {
            // The columns: sk, RefCnt, Type, Proto, Iface, ...
            let matches = |line: &&str| {
                let mut words = line.split_whitespace().skip(3);
                words.next() == Some(wanted) && words.next() == Some(&index)
            };
            table.lines().filter(matches).count()
        };
        (of_protocol("0003"), of_protocol("ffff"))
    }

    /// Has the hosts talk about everything that clients know.
    pub(crate) fn converse(&self) {
        conversation::hold(&self.here, &self.there);
    }

    /// What a client found: what it said, or what its report makes of what it wrote.
    pub(crate) fn report(&self, client: &Client, ended: Ended) -> String {
        let Some(report) = client.report else { return ended.said };
        let mut command = Command::new("sh");
        command.arg("-c").arg(report).env_remove("LD_LIBRARY_PATH").env("LC_ALL", "C");
        command.env("DIR", ended.folder.path()).current_dir(ended.folder.path());
        said(&command.output().unwrap())
    }
}

impl Running {
    /// Waits for the client's end, or brings it about.
    pub(crate) fn end(self, client: &Client) -> Ended {
        let group = format!("-{}", self.child.id());
        let signal = match client.end {
            End::Itself => None,
            End::Interrupt => Some("-INT"),
            End::Terminate => Some("-TERM"),
            End::Kill => Some("-KILL"),
        };
        if let Some(signal) = signal {
            let _ = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        }
        let said = said(&finish(self.child));
        // What a script left behind.
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        Ended { said, folder: self.folder }
    }
}

/// Ends a program by Ctrl-C.
pub(crate) fn stop(mut child: Child) {
    let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    child.wait().unwrap();
}

fn ip(namespace: &Namespace, arguments: &str) {
    run(namespace, Command::new("ip").args(arguments.split_whitespace()));
}

fn run(namespace: &Namespace, command: &mut Command) {
    let output = namespace.run_in(|| command.output()).unwrap().unwrap();
    assert!(output.status.success(), "{command:?}: {}", said(&output));
}
