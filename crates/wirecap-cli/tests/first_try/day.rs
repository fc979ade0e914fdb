//! A folder with recordings, three cables on which numbered packets arrive, and a shell.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tempfile::TempDir;
use wirecap_testbed::{Interface, Namespace, PacketSender, VethPair, skip};

use crate::recording::WIRECAP;

/// Number of packets in `f.pcap`; `a.pcap` has those with even numbers and `b.pcap` the others.
pub(crate) const COUNT: u64 = 60;
/// The time of the first packet of `f.pcap`; each is a second after the one before.
pub(crate) const BEGIN: u64 = 1_700_000_000;
/// Where the programs are that results are compared with.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// Bytes of each frame.
const LENGTH: usize = 90;
/// One in so many packets is for port 53, the others are for port 9.
pub(crate) const DNS_EVERY: u64 = 3;

/// Who types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum As {
    Root,
    /// User nobody, with these rights in the form of setpriv: `,+net_raw`.
    User(&'static str),
    /// The same user with the bounding set of a login, for whom only the file of the program has
    /// rights.
    Login,
}

/// What a line printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) line: String,
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) struct Day {
    folder: TempDir,
    near: Namespace,
    far: Namespace,
    /// Between the two namespaces: `a0` and `a1`, `b0` and `b1`, `c0` and `c1`.
    pub(crate) pairs: Vec<VethPair>,
    who: As,
}

impl Day {
    /// A day of root, at a command that only root needs to run.
    pub(crate) fn new() -> Self {
        let day = Self::with(As::Root);
        symlink(WIRECAP, day.program()).unwrap();
        day
    }

    /// A day of another user, with a copy of the command.
    pub(crate) fn of_user(who: As) -> Self {
        let day = Self::with(who);
        // By another process: one that another thread starts would inherit the open file, and the
        // copy could not be run.
        assert!(Command::new("cp").arg(WIRECAP).arg(day.program()).status().unwrap().success());
        day
    }

    fn with(who: As) -> Self {
        let folder = TempDir::new_in("/tmp").unwrap();
        for name in ["", "bin", "work", "work/rec", "marks"] {
            let path = folder.path().join(name);
            fs::create_dir_all(&path).unwrap();
            // Without a sticky bit: root's command may replace what another user has written.
            fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        }
        // Marks that others could make are ignored.
        fs::set_permissions(folder.path().join("marks"), Permissions::from_mode(0o755)).unwrap();
        let near = Namespace::new().unwrap();
        let far = Namespace::new().unwrap();
        let pairs = ["a", "b", "c"].map(|name| {
            let [near_end, far_end] = [format!("{name}0"), format!("{name}1")];
            VethPair::new((&near, &*near_end), (&far, &*far_end), 1, 1500).unwrap()
        });
        let day = Self { folder, near, far, pairs: pairs.into(), who };
        day.write("f.pcap", 0..COUNT);
        for (name, first) in [("a.pcap", 0), ("b.pcap", 1)] {
            day.write(name, (first..COUNT).step_by(2));
            fs::copy(day.path(name), day.path(&format!("rec/{name}"))).unwrap();
        }
        day
    }

    /// Writes a savefile with these packets.
    fn write(&self, name: &str, numbers: impl Iterator<Item = u64>) {
        let mut bytes = Vec::new();
        for field in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1] {
            bytes.extend(field.to_le_bytes());
        }
        for number in numbers {
            let seconds = u32::try_from(BEGIN + number).unwrap();
            for field in [seconds, 250_000, LENGTH as u32, LENGTH as u32] {
                bytes.extend(field.to_le_bytes());
            }
            bytes.extend(frame(number));
        }
        fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn program(&self) -> std::path::PathBuf {
        self.folder.path().join("bin/wirecap")
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join("work").join(name)
    }

    /// Sends numbered packets on an interface until the result is dropped.
    pub(crate) fn sending(&self, interface: &Interface) -> Sending {
        let mut sender = PacketSender::on(interface).unwrap();
        let end = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&end);
        let send = move || {
            for number in (0..).take_while(|_| !asked.load(Ordering::Relaxed)) {
                sender.send(&frame(number)).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        };
        Sending { end, thread: Some(thread::spawn(send)) }
    }

    /// A shell in the namespace at the far end that runs the line, for a minute at most.
    fn shell(&self, line: &str, who: As) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "60"]);
        let user = ["setpriv", "--reuid", "nobody", "--regid", "65534", "--clear-groups"];
        match who {
            As::Root => {}
            As::User(rights) => {
                command.args(user).args(["--bounding-set", &format!("-all{rights}")]);
                command.args(["--inh-caps", &format!("-all{rights}")]);
                if !rights.is_empty() {
                    command.args(["--ambient-caps", &rights[1..]]);
                }
            }
            As::Login => {
                command.args(user).args(["--inh-caps", "-all"]);
            }
        }
        command.args(["sh", "-c", line]).current_dir(self.path("")).stdin(Stdio::null());
        command.env("PATH", format!("{}:{PATH}", self.folder.path().join("bin").display()));
        command.env("HOME", self.path("")).env("TZ", "UTC").env("LC_ALL", "C");
        command.env("WIRECAP_CONTROL_DIR", self.folder.path().join("control"));
        command.env("WIRECAP_DEDICATED_DIR", self.folder.path().join("marks"));
        command
    }

    /// Types a line.
    pub(crate) fn types(&self, line: &str) -> Ran {
        self.types_as(self.who, line)
    }

    pub(crate) fn types_as(&self, who: As, line: &str) -> Ran {
        let mut command = self.shell(line, who);
        let output = self.far.run_in(|| command.output()).unwrap().unwrap();
        Ran {
            line: line.to_owned(),
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Starts a line in the namespace at the near end (as root) or at the far end.
    pub(crate) fn starts(&self, is_near: bool, line: &str) -> Child {
        let mut command = self.shell(line, if is_near { As::Root } else { self.who });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let namespace = if is_near { &self.near } else { &self.far };
        namespace.run_in(|| command.spawn()).unwrap().unwrap()
    }

    /// Types a line whose output must be that of the other program.
    #[track_caller]
    pub(crate) fn prints_as(&self, line: &str, other: &str) {
        if !self.has_program_of(other) {
            return;
        }
        self.types(line).assert_prints(&self.types_as(As::Root, other));
    }

    /// Types a line after which a file has the packets that another line, of another program,
    /// writes to standard output.
    #[track_caller]
    pub(crate) fn writes_as(&self, line: &str, file: &str, other: &str) {
        if !self.has_program_of(other) {
            return;
        }
        let ran = self.types(line);
        ran.assert_success();
        let theirs = self.types_as(As::Root, &format!("{other} > theirs"));
        theirs.assert_success();
        let packets = self.packets(file);
        assert!(!packets.is_empty(), "{ran:#?}");
        assert_eq!(packets, self.packets("theirs"), "{ran:#?}");
        fs::remove_file(self.path("theirs")).unwrap();
    }

    /// Whether the program of a line is installed. If not, prints SKIP.
    fn has_program_of(&self, line: &str) -> bool {
        let program = line.split_whitespace().next().unwrap();
        let directories = PATH.split(':').map(Path::new);
        let is_there =
            directories.map(|directory| directory.join(program)).any(|path| path.exists());
        if !is_there {
            skip(&format!("{program} is not installed"));
        }
        is_there
    }

    /// Times and bytes of the packets in a file, as tcpdump reads it.
    pub(crate) fn packets(&self, file: &str) -> Vec<(u64, Vec<u8>)> {
        // tcpdump reads nothing compressed.
        let read = match file.rsplit('.').next() {
            Some("gz") => format!("gzip -dc {file} | tcpdump -r -"),
            _ => format!("tcpdump -r {file}"),
        };
        let ran = self.types_as(As::Root, &format!("{read} -w read.pcap"));
        assert_eq!(ran.status, Some(0), "{ran:#?}");
        let bytes = fs::read(self.path("read.pcap")).unwrap();
        fs::remove_file(self.path("read.pcap")).unwrap();
        let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(field(0), 0xa1b2_c3d4, "{ran:#?}");
        let mut packets = Vec::new();
        let mut at = 24;
        while at < bytes.len() {
            let micros = u64::from(field(at)) * 1_000_000 + u64::from(field(at + 4));
            let length = field(at + 8) as usize;
            packets.push((micros, bytes[at + 16..at + 16 + length].to_vec()));
            at += 16 + length;
        }
        packets
    }

    /// Asserts that a file has `count` packets of those that are being sent, without gaps and
    /// unchanged: each `every`th, of each the first `snap_len` bytes. Returns the number of the
    /// first one.
    #[track_caller]
    pub(crate) fn assert_live(&self, file: &str, count: usize, every: u64, snap_len: usize) -> u64 {
        let packets = self.packets(file);
        assert_eq!(packets.len(), count, "packets in {file}");
        self.assert_in_order(file, &packets, every, snap_len)
    }

    /// Asserts that a file has `count` packets of those that are being sent, unchanged, and those
    /// of each flow without gaps. Two workers may forward two flows, in any order.
    #[track_caller]
    pub(crate) fn assert_flows_in_order(&self, file: &str, count: usize) {
        let packets = self.packets(file);
        assert_eq!(packets.len(), count, "packets in {file}");

        for is_dns in [true, false] {
            let is_of_flow = |number: &u64| number.is_multiple_of(DNS_EVERY) == is_dns;
            let flow: Vec<&[u8]> = packets
                .iter()
                .map(|(_, bytes)| bytes.as_slice())
                .filter(|bytes| is_of_flow(&number(bytes)))
                .collect();
            let first = number(flow.first().unwrap_or_else(|| panic!("{file} lacks a flow")));

            for (bytes, expected) in flow.iter().zip((first..).filter(is_of_flow)) {
                assert_eq!(*bytes, frame(expected), "packet {expected} in {file}");
            }
        }
    }

    #[track_caller]
    pub(crate) fn assert_in_order(
        &self,
        file: &str,
        packets: &[(u64, Vec<u8>)],
        every: u64,
        snap_len: usize,
    ) -> u64 {
        let first = number(&packets.first().unwrap_or_else(|| panic!("{file} is empty")).1);
        assert_eq!(first % every, 0, "{file} has a packet that does not match");
        for ((_, bytes), expected) in packets.iter().zip((first..).step_by(every as usize)) {
            let frame = frame(expected);
            assert_eq!(*bytes, frame[..frame.len().min(snap_len)], "packet {expected} in {file}");
        }
        assert!(packets.is_sorted_by_key(|(time, _)| *time), "{file} is not in the order of time");
        first
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn assert_success(&self) {
        assert_eq!(self.status, Some(0), "{self:#?}");
    }

    #[track_caller]
    pub(crate) fn assert_prints(&self, other: &Self) {
        assert!(!other.stdout.is_empty(), "{other:#?}");
        let mut lines = self.stdout.lines().zip(other.stdout.lines());
        let different = lines.find(|(own, other)| own != other);
        let is_same = (self.status, &self.stdout) == (other.status, &other.stdout);
        assert!(is_same, "{:?} {:?} {different:?} {}", self.line, self.status, self.stderr);
    }

    #[track_caller]
    pub(crate) fn assert_lines(&self, count: usize) {
        self.assert_success();
        assert_eq!(self.stdout.lines().count(), count, "{self:#?}");
    }

    /// The ledger, the statistics and so on.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        self.assert_success();
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// The command that the message of a refusal tells to use instead.
    #[track_caller]
    pub(crate) fn advice(&self) -> String {
        assert!(matches!(self.status, Some(1 | 2)), "{self:#?}");
        assert!(self.stderr.lines().count() <= 2, "{self:#?}");
        // The first line begins with `wirecap: `.
        let text = self.stderr.trim_end();
        let start = text.find("sudo setcap ").or_else(|| text.find("wirecap ")).expect("a command");
        let command = &text[start..];
        command[..command.find(['`', ';', '\n']).unwrap_or(command.len())].to_owned()
    }
}

/// Numbered packets being sent.
pub(crate) struct Sending {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(
            thread::panicking() || ended.is_none_or(|ended| ended.is_ok()),
            "a packet was not sent"
        );
    }
}

/// UDP over IPv4, for port 53 or 9, with the packet's number.
pub(crate) fn frame(number: u64) -> Vec<u8> {
    let port: u16 = if number.is_multiple_of(DNS_EVERY) { 53 } else { 9 };
    let mut ip =
        vec![0x45, 0, 0, (LENGTH - 14) as u8, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());

    let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 8, 0], &ip].concat();
    frame.extend(4000_u16.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend(((LENGTH - 34) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(number.to_be_bytes());
    frame.resize(LENGTH, 0);
    frame
}

/// The number of a packet, which its first 50 bytes contain.
fn number(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame[42..50].try_into().unwrap())
}

/// The names in a folder that begin so, sorted.
pub(crate) fn names(folder: &Path, start: &str) -> Vec<String> {
    let names = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(start)).collect();
    names.sort();
    names
}
