//! Two hosts connected by a cable: `here`, where clients run, and `there`.

use std::fs;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use tempfile::{NamedTempFile, TempDir};
use wirecap::Timestamp;
use wirecap::savefile::Reader;
use wirecap_testbed::{Namespace, PacketSender, VethPair};

use crate::common::{self, Library, finish, said, signal_to};
use crate::conversation;
use crate::table::{Client, End};

/// How the drop-in captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Packet,
    /// The host does not get captured packets.
    Xdp,
}

/// Addresses of the host where clients run and of the other one.
pub(crate) const HERE: &str = "10.9.0.2";
pub(crate) const THERE: &str = "10.9.0.1";

/// The longest pause between replayed packets.
const LONGEST_GAP: Duration = Duration::from_millis(50);

/// The directory in which clients that come as source are built.
const BUILD: &str = env!("CARGO_TARGET_TMPDIR");

/// Builds a client if it comes as source; the error names what is missing. The build is tried
/// twice, because a download may fail.
pub(crate) fn make_ready(client: &Client) -> Result<(), String> {
    let lacking = lacking(client);
    if !lacking.is_empty() {
        return Err(format!("{} is not installed", lacking.join(" ")));
    }
    client.prepare.map_or(Ok(()), |script| prepare(script).or_else(|_| prepare(script)))
}

fn prepare(script: &str) -> Result<(), String> {
    let mut command = Command::new("sh");
    command.arg("-euc").arg(script).env("BUILD", BUILD).env_remove("LD_LIBRARY_PATH");
    command.env("SOURCE", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients"));
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("it cannot be built: {}", said(&output)))
    }
}

/// The search path for commands, including those for root.
fn path() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

/// Those of a client's needs, `COMMAND:PACKAGE`, that are not installed.
fn lacking(client: &Client) -> Vec<&'static str> {
    let path = path();
    let is_there = |need: &str| {
        let command = need.split(':').next().unwrap_or_default();
        let is_program = |file: &Path| {
            file.metadata().is_ok_and(|about| about.permissions().mode() & 0o111 != 0)
        };
        let in_path = || path.split(':').any(|folder| is_program(&Path::new(folder).join(command)));
        if command.starts_with('/') { Path::new(command).exists() } else { in_path() }
    };
    client.needs.split_whitespace().filter(|need| !is_there(need)).collect()
}

/// Two hosts connected by a cable.
pub(crate) struct ClientBed {
    here: Namespace,
    there: Namespace,
    pair: VethPair,
}

/// A running client.
pub(crate) struct Running {
    child: Child,
    watcher: Watcher,
    folder: TempDir,
}

/// A configuration file of the drop-in, which shows whether the drop-in captured. A client may end
/// before its sockets are seen, but not before it has read this file. The file requests an engine,
/// so a capture that the engine cannot do fails and is not left to libpcap.
pub(crate) struct Settings {
    file: NamedTempFile,
    watch: OwnedFd,
}

impl Settings {
    pub(crate) fn new() -> Self {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(b"engine = packet\n").unwrap();
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, file.path(), WatchFlags::ACCESS).unwrap();
        Self { file, watch }
    }

    pub(crate) fn were_read(&self) -> bool {
        let mut room = [MaybeUninit::uninit(); 256];
        inotify::Reader::new(&self.watch, &mut room).next().is_ok()
    }
}

/// Kills a session of processes when it is dropped, and when the test is killed: it waits for the
/// end of a pipe from the test.
struct Watcher(Child);

impl Watcher {
    /// Watches over the session of `leader`.
    fn over(leader: &Child) -> Self {
        let script = "read -r word; kill -KILL -- -$0";
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", script, &leader.id().to_string()]).env_remove("LD_LIBRARY_PATH");
        Self(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A client that has ended: its output, and the folder that it may have written to.
pub(crate) struct Ended {
    pub(crate) said: String,
    folder: TempDir,
}

impl ClientBed {
    pub(crate) fn new() -> Self {
        let bed = Self::with_addresses("10.9.0.2/24", "10.9.0.1/24");
        // For clients that look for a default route.
        ip(&bed.here, "route add default via 10.9.0.1");
        ip(&bed.there, "route add default via 10.9.0.2");
        bed
    }

    /// A bed whose hosts do not have the addresses [`HERE`] and [`THERE`], so they do not answer
    /// replayed packets.
    pub(crate) fn aside() -> Self {
        Self::with_addresses("10.99.0.2/24", "10.99.0.1/24")
    }

    fn with_addresses(here_address: &str, there_address: &str) -> Self {
        let here = Namespace::new().unwrap();
        let there = Namespace::new().unwrap();
        let pair = VethPair::new((&there, "a0"), (&here, "a1"), 1, 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        let bed = Self { here, there, pair };
        for (namespace, interface, mac, address) in [
            (&bed.here, "a1", "02:00:00:00:00:02", here_address),
            (&bed.there, "a0", "02:00:00:00:00:01", there_address),
        ] {
            ip(namespace, "link set lo up");
            ip(namespace, &format!("link set {interface} address {mac}"));
            ip(namespace, &format!("address add {address} dev {interface}"));
            // Offloads are off: with them, packets lack what the sender leaves to hardware, and
            // segments are merged at random.
            let settings = ["-K", interface, "tx", "off", "tso", "off", "gso", "off", "gro", "off"];
            run(namespace, Command::new("ethtool").args(settings));
            // Hosts do not probe each other's addresses again: which listener sees these packets is
            // a matter of chance.
            let probe_time = format!("/proc/sys/net/ipv4/neigh/{interface}/delay_first_probe_time");
            namespace.run_in(|| fs::write(probe_time, "3600")).unwrap().unwrap();
        }
        bed
    }

    /// Starts a client's script in a separate folder.
    pub(crate) fn start(&self, client: &Client, library: Library, engine: Engine) -> Running {
        let mut command = command(client.script);
        if library == Library::DropIn {
            command.env("LD_LIBRARY_PATH", common::drop_in());
            if engine == Engine::Xdp {
                command.envs([
                    ("WIRECAP_ENGINE", "xdp"),
                    ("WIRECAP_TAKE", "1"),
                    ("WIRECAP_R", "64"),
                ]);
            }
        }
        self.launch(command)
    }

    /// Starts a client's script on the drop-in, with settings.
    pub(crate) fn start_with(&self, client: &Client, settings: &Settings) -> Running {
        let mut command = command(client.script);
        command
            .env("LD_LIBRARY_PATH", common::drop_in())
            .env("WIRECAP_PCAP_CONF", settings.file.path());
        self.launch(command)
    }

    /// Starts a script that reads a savefile.
    pub(crate) fn read(&self, script: &str, file: &Path) -> Running {
        let mut command = command(script);
        command.env("FILE", file);
        self.launch(command)
    }

    /// Starts tcpdump to record all packets.
    pub(crate) fn record(&self, file: &Path) -> Running {
        self.read("exec tcpdump -i a1 -U -Z root -w \"$FILE\" 2>&1", file)
    }

    /// Sends all recorded packets, of both hosts, from the other host.
    pub(crate) fn replay(&self, file: &Path) {
        on_one_processor(|| self.send_all(file));
    }

    fn send_all(&self, file: &Path) {
        let mut sender = PacketSender::on(&self.pair.sender).unwrap();
        let mut reader = Reader::open(file).unwrap();
        let mut last = None;
        while let Some(record) = reader.next_record().unwrap() {
            let now = record.timestamp.map(Timestamp::unix_nanos);
            let gap = now.zip(last).map_or(0, |(now, last): (u64, u64)| now.saturating_sub(last));
            thread::sleep(Duration::from_nanos(gap).min(LONGEST_GAP));
            sender.send(record.data).unwrap();
            last = now;
        }
    }

    fn launch(&self, mut command: Command) -> Running {
        let folder = tempfile::tempdir().unwrap();
        command.env("DIR", folder.path()).current_dir(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.here.run_in(|| command.spawn()).unwrap().unwrap();
        let watcher = Watcher::over(&child);
        Running { child, watcher, folder }
    }

    /// Waits until the drop-in has this many handles on the engine `xdp`, which does not receive on
    /// packet sockets.
    pub(crate) fn wait_for_taking_handles(&self, count: usize) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(15);
        // The XDP program is attached last.
        while self.handles().1 < count || !self.takes() {
            if Instant::now() > deadline {
                return Err(format!(
                    "the client has not opened {count} handles, but {}",
                    self.handles().1
                ));
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Whether an XDP program is attached to the interface.
    fn takes(&self) -> bool {
        let mut command = Command::new("ip");
        command.args(["link", "show", "dev", "a1"]).env_remove("LD_LIBRARY_PATH");
        said(&self.here.run_in(|| command.output()).unwrap().unwrap()).contains("xdp")
    }

    /// Waits until this many packet sockets receive from the cable, and, if `is_ours`, until the
    /// drop-in has a handle.
    pub(crate) fn wait_for_handles(&self, count: usize, is_ours: bool) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(15);
        while Instant::now() < deadline {
            let (receiving, beside) = self.handles();
            if receiving >= count && (!is_ours || beside > 0) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(2));
        }
        let (receiving, beside) = self.handles();
        Err(format!(
            "the client has not opened {count} handles, but {receiving}, {beside} of the drop-in's"
        ))
    }

    /// How many packet sockets receive from the cable, and how many handles the drop-in has: each
    /// has a socket with protocol ffff, which receives nothing.
    fn handles(&self) -> (usize, usize) {
        let table = self
            .here
            .run_in(|| fs::read_to_string("/proc/thread-self/net/packet"))
            .unwrap()
            .unwrap();
        let index = self.pair.receiver.index.to_string();
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

    /// Holds the conversation between the hosts.
    pub(crate) fn converse(&self) {
        on_one_processor(|| conversation::hold(&self.here, &self.there));
    }

    /// A client's result: its output, or that of its report script.
    pub(crate) fn report(&self, client: &Client, ended: Ended) -> String {
        let Some(report) = client.report else { return ended.said };
        let mut command = Command::new("sh");
        command.arg("-c").arg(report).env_remove("LD_LIBRARY_PATH").env("LC_ALL", "C");
        command.env("DIR", ended.folder.path()).current_dir(ended.folder.path());
        said(&command.output().unwrap())
    }
}

/// A command that runs a script.
fn command(script: &str) -> Command {
    // A separate session, so that all its processes can be killed, and none of them affects the
    // test's session. SIGINT has its default action: a background job of a shell without job
    // control ignores it, and a shell cannot trap a signal that was ignored when it started.
    let mut command = Command::new("setsid");
    command.args(["env", "--default-signal=INT", "sh", "-c", script]).env_remove("LD_LIBRARY_PATH");
    command.envs([
        ("IF", "a1"),
        ("HERE", HERE),
        ("THERE", THERE),
        ("LC_ALL", "C"),
        ("HOME", "/root"),
    ]);
    command.env("BUILD", BUILD).env("PATH", path());
    command
}

impl Running {
    /// The client's processes.
    pub(crate) fn processes(&self) -> Vec<u32> {
        common::processes_of_session(self.child.id())
    }

    /// The client if it has started as expected; otherwise the reason and its output.
    pub(crate) fn begun(self, outcome: Result<(), String>) -> Result<Self, String> {
        let Err(reason) = outcome else { return Ok(self) };
        drop(self.watcher);
        Err(format!("{reason}:\n{}", said(&finish(self.child))))
    }

    /// Waits for the client's end, after its signal if it needs one.
    pub(crate) fn end(self, client: &Client) -> Ended {
        let signal = match client.end {
            End::Itself => None,
            End::Interrupt => Some(Signal::INT),
            End::Terminate => Some(Signal::TERM),
            End::Kill => Some(Signal::KILL),
        };
        if let Some(signal) = signal {
            signal_to(&self.child, signal);
        }
        let said = said(&finish(self.child));
        // This kills processes that the script left behind.
        drop(self.watcher);
        Ended { said, folder: self.folder }
    }
}

/// Runs `work` on one CPU, which processes that it starts inherit: if two CPUs send packets at
/// once, two listeners may see them in different order.
fn on_one_processor(work: impl FnOnce() + Send) {
    let pinned = || {
        let mut processor = CpuSet::new();
        processor.set(sched_getcpu());
        sched_setaffinity(None, &processor).unwrap();
        work();
    };
    let outcome = thread::scope(|scope| scope.spawn(pinned).join());
    outcome.unwrap_or_else(|panic| resume_unwind(panic));
}

fn ip(namespace: &Namespace, arguments: &str) {
    run(namespace, Command::new("ip").args(arguments.split_whitespace()));
}

fn run(namespace: &Namespace, command: &mut Command) {
    let output = namespace.run_in(|| command.output()).unwrap().unwrap();
    assert!(output.status.success(), "{command:?}: {}", said(&output));
}
