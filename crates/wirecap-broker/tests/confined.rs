//! A process that has dropped all permissions is taken over, and tries to gain something.
//!
//! The tests run this program a second time as the confined process, because dropped permissions
//! cannot be regained. A test is two functions of one name: `tests::NAME` starts the process and
//! looks at it from outside, `attacks::NAME` is what it tries.
#![allow(unsafe_code)] // Attacks are system calls with any arguments.

#[path = "../../wirecap-testbed/src/skip.rs"]
mod skip;

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

use rustix::process::geteuid;
use wirecap_broker::User;

/// The confined process's attack, directory, and the process that it attacks.
const ATTACK: &str = "WIRECAP_TEST_ATTACK";
const DIRECTORY: &str = "WIRECAP_TEST_DIRECTORY";
const VICTIM: &str = "WIRECAP_TEST_VICTIM";
const UID: u32 = 65534;

macro_rules! tests {
    ($($name:ident)*) => { [$((stringify!($name), tests::$name, attacks::$name)),*] };
}

/// The name of a test, what it does, and what the process that it starts does.
type Test = (&'static str, fn(&Path), fn(&Path));

const TESTS: &[Test] = &tests! {
    a_confined_process_gets_nothing_back
    a_process_whose_session_began_outside_its_pid_namespace_is_confined
    one_file_is_created_and_no_other_is_read_or_removed
    nothing_is_typed_into_the_terminal
    nothing_is_read_from_the_terminal
    no_process_and_no_namespace_is_made
    no_socket_is_made_bound_or_connected
    a_packet_socket_stays_on_its_interface
    no_other_process_of_the_user_is_signalled_or_limited
    no_other_process_of_the_user_takes_its_descriptors
};

/// No test harness: it has threads.
fn main() -> ExitCode {
    let directory = env::var_os(DIRECTORY).map(PathBuf::from);
    if let (Ok(attack), Some(directory)) = (env::var(ATTACK), directory) {
        let (.., attack) =
            TESTS.iter().find(|(name, ..)| *name == attack).expect("an attack of this name");
        attack(&directory);
        return ExitCode::SUCCESS;
    }
    if !geteuid().is_root() {
        skip::skip("dropping permissions needs root");
        return ExitCode::SUCCESS;
    }
    let only: Vec<String> =
        env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let mut has_failed = false;
    for (name, test, _) in TESTS {
        if !only.is_empty() && !only.iter().any(|part| name.contains(part)) {
            continue;
        }
        let directory = env::temp_dir().join(format!("wirecap-confined-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        std::os::unix::fs::chown(&directory, Some(UID), None).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| test(&directory)));
        fs::remove_dir_all(&directory).unwrap();
        println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        has_failed |= outcome.is_err();
    }
    ExitCode::from(u8::from(has_failed))
}

fn user() -> User {
    User { name: "nobody".to_owned(), uid: UID, gid: UID }
}

/// Fails because of a missing permission.
#[track_caller]
fn assert_denied<T>(what: &str, outcome: Result<T, impl Into<io::Error>>) {
    let error = outcome.err().unwrap_or_else(|| panic!("{what} was permitted")).into();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{what}: {error}");
}

/// Makes a system call; arguments are numbers or addresses.
fn call<const N: usize>(number: i64, arguments: [usize; N]) -> io::Result<usize> {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    let [a, b, c, d, e, f] = all;
    // SAFETY: the addresses in the arguments are those of values that outlive the call and are as
    // long as the kernel expects. The calls do not change this process's memory otherwise.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value as usize),
    }
}

/// A process that is killed at the end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

impl Running {
    /// A process of the user of the confined process, which has nothing to do with it.
    fn of_user() -> Self {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("sleep");
        Self(command.arg("60").uid(UID).gid(UID).stdin(Stdio::null()).spawn().unwrap())
    }

    fn id(&self) -> u32 {
        self.0.id()
    }
}

/// This program, with the arguments of `before` before it, as the process that tries an attack.
fn attacking(attack: &str, directory: &Path, before: &[&str]) -> Command {
    let program = env::current_exe().unwrap();
    let mut command = match before {
        [] => Command::new(&program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(&program);
            command
        }
    };
    command.env(ATTACK, attack).env(DIRECTORY, directory);
    command
}

/// Runs an attack to its end; returns what the process printed on standard error.
#[track_caller]
fn run(mut command: Command) -> String {
    let output = command.stdout(Stdio::inherit()).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{} {said}", output.status);
    said
}

/// The confined process says that it has tried everything that it can, and waits.
fn say_tried() {
    println!("tried");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

/// Starts an attack, and waits until the process has tried everything.
#[track_caller]
fn start(mut command: Command) -> Running {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::<ChildStdout>::new(child.stdout.take().unwrap()).lines();
    let line = lines.next();
    let running = Running(child);
    assert!(matches!(&line, Some(Ok(line)) if line == "tried"), "{line:?}");
    running
}

/// What the tests do outside the confined process.
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    pub(super) fn a_confined_process_gets_nothing_back(directory: &Path) {
        let said = run(attacking("a_confined_process_gets_nothing_back", directory, &[]));
        for call in ["execve", "setresuid"] {
            assert_eq!(
                said.matches(&format!(
                    "a system call was rejected after privileges were dropped: {call}\n"
                ))
                .count(),
                1,
                "{said}"
            );
        }
    }

    /// As `nsenter` and the commands that run a program in a container start it.
    pub(super) fn a_process_whose_session_began_outside_its_pid_namespace_is_confined(
        directory: &Path,
    ) {
        let attack = "a_process_whose_session_began_outside_its_pid_namespace_is_confined";
        run(attacking(attack, directory, &["unshare", "--pid", "--fork", "--mount-proc"]));
    }

    pub(super) fn one_file_is_created_and_no_other_is_read_or_removed(directory: &Path) {
        run(attacking("one_file_is_created_and_no_other_is_read_or_removed", directory, &[]));
        assert_eq!(fs::read(directory.join("trace.pcap")).unwrap(), b"packets");
    }

    /// A terminal: the end that a terminal emulator has, and the other one, from which the
    /// processes read.
    fn terminal() -> (File, File) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let emulator = openpt(flags).unwrap();
        grantpt(&emulator).unwrap();
        unlockpt(&emulator).unwrap();
        let name = ptsname(&emulator, Vec::new()).unwrap().into_string().unwrap();
        let flags = libc::O_NOCTTY | libc::O_NONBLOCK;
        let terminal =
            File::options().read(true).write(true).custom_flags(flags).open(name).unwrap();
        (emulator.into(), terminal)
    }

    /// The confined process leads the session of the terminal, so the terminal remains its
    /// controlling one, and it has a descriptor that it can read: the filter of calls alone
    /// protects the input.
    pub(super) fn nothing_is_typed_into_the_terminal(directory: &Path) {
        let (_emulator, mut terminal) = terminal();
        let mut command =
            attacking("nothing_is_typed_into_the_terminal", directory, &["setsid", "--ctty"]);
        command.stdin(terminal.try_clone().unwrap());
        let _running = start(command);
        let typed = terminal.read(&mut [0; 16]).map_err(|error| error.kind());
        assert_eq!(typed, Err(ErrorKind::WouldBlock), "something was typed");
    }

    pub(super) fn nothing_is_read_from_the_terminal(directory: &Path) {
        let (mut emulator, terminal) = terminal();
        emulator.write_all(b"secret\n").unwrap();
        let shell = ["setsid", "--ctty", "--wait", "sh", "-c", "\"$0\"; exit $?"];
        let mut command = attacking("nothing_is_read_from_the_terminal", directory, &shell);
        command.stdin(terminal.try_clone().unwrap()).stderr(terminal.try_clone().unwrap());
        let status = command.stdout(Stdio::inherit()).status().unwrap();
        let mut said = vec![0; 4096];
        let said_bytes = emulator.read(&mut said).unwrap_or(0);
        assert!(status.success(), "{status} {}", String::from_utf8_lossy(&said[..said_bytes]));
    }

    pub(super) fn no_process_and_no_namespace_is_made(directory: &Path) {
        run(attacking("no_process_and_no_namespace_is_made", directory, &[]));
    }

    pub(super) fn no_socket_is_made_bound_or_connected(directory: &Path) {
        let said = run(attacking("no_socket_is_made_bound_or_connected", directory, &[]));
        // Landlock refuses some of these as well, but without a report.
        for call in ["socketpair", "bind", "connect", "listen", "sendmsg", "bpf", "memfd_create"] {
            assert!(said.contains(&format!("dropped: {call}\n")), "{call}: {said}");
        }
    }

    pub(super) fn a_packet_socket_stays_on_its_interface(directory: &Path) {
        run(attacking("a_packet_socket_stays_on_its_interface", directory, &["unshare", "--net"]));
    }

    pub(super) fn no_other_process_of_the_user_is_signalled_or_limited(directory: &Path) {
        let mut victim = Running::of_user();
        let mut command =
            attacking("no_other_process_of_the_user_is_signalled_or_limited", directory, &[]);
        command.env(VICTIM, victim.id().to_string());
        let said = run(command);
        // Landlock refuses signals as well, but without a report.
        for call in ["kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"] {
            assert!(said.contains(&format!("dropped: {call}\n")), "{call}: {said}");
        }
        assert!(victim.0.try_wait().unwrap().is_none(), "the other process was ended");
    }

    /// The broker's socket is a descriptor of the confined process.
    pub(super) fn no_other_process_of_the_user_takes_its_descriptors(directory: &Path) {
        let command =
            attacking("no_other_process_of_the_user_takes_its_descriptors", directory, &[]);
        let confined = start(command);
        let other = Running::of_user();
        let take = |id: u32| {
            let process =
                pidfd_open(Pid::from_raw(id.cast_signed()).unwrap(), PidfdFlags::empty())?;
            pidfd_getfd(process, 0, PidfdGetfdFlags::empty()).map_err(io::Error::from)
        };
        // The kernel detaches a tracer that ends.
        let trace =
            |id: u32| call(libc::SYS_ptrace, [libc::PTRACE_SEIZE as usize, id as usize, 0, 0]);
        let list = |id: u32| fs::read_dir(format!("/proc/{id}/fd")).map(drop);
        let read = |id: u32, file: &str| fs::read(format!("/proc/{id}/{file}"));
        let attack = |id: u32| {
            [
                ("taking a descriptor", take(id).map(drop)),
                ("tracing", trace(id).map(drop)),
                ("reading its descriptors", list(id)),
                ("reading its environment", read(id, "environ").map(drop)),
                ("reading its addresses", read(id, "auxv").map(drop)),
            ]
        };
        // A thread with the user's rights and no others attacks. Its attacks work on another
        // process of the user.
        for (what, outcome) in user().act(|| attack(other.id())).unwrap() {
            assert!(outcome.is_ok(), "{what}: {outcome:?}");
        }
        for (what, outcome) in user().act(|| attack(confined.id())).unwrap() {
            assert_denied(what, outcome);
        }
    }
}

/// What the confined process tries.
mod attacks {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
    use std::os::fd::{AsFd, AsRawFd, OwnedFd};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
    use std::os::unix::process::CommandExt;
    use std::ptr;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket, socket_with};
    use rustix::process::getpid;
    use wirecap_broker::{Confinement, Landlocked};

    use super::*;

    fn enter(directory: &Path) -> Landlocked {
        Confinement::recording(user(), Some(directory)).enter().unwrap()
    }

    pub(super) fn a_confined_process_gets_nothing_back(directory: &Path) {
        let outside = directory.with_extension("outside");
        // Another thread acts for the user; this one does not.
        assert_eq!(user().act(|| geteuid().as_raw()).unwrap(), UID);
        assert!(geteuid().is_root());
        assert_eq!(User::owner_of(directory).unwrap().uid, UID);
        let landlocked = enter(directory);
        // The permissions that a recording needs.
        File::create(directory.join("a")).unwrap().write_all(b"packets").unwrap();
        fs::rename(directory.join("a"), directory.join("b")).unwrap();
        assert_eq!(fs::read(directory.join("b")).unwrap(), b"packets");
        fs::remove_file(directory.join("b")).unwrap();
        // Of itself, the process can read what it needs.
        assert!(fs::read_to_string("/proc/self/status").unwrap().contains("NoNewPrivs:\t1"));
        for file in ["schedstat", "comm", "net/packet", "mountinfo", "cgroup"] {
            fs::read(Path::new("/proc/thread-self").join(file)).unwrap();
        }
        assert!(fs::read_dir("/proc/self/fd").unwrap().count() > 2);
        fs::metadata("/proc/thread-self/ns/pid").unwrap();
        std::thread::spawn(|| assert_eq!(geteuid().as_raw(), UID)).join().unwrap();
        // Calls that the process does not need.
        assert_denied("a file outside the directory", File::create(&outside));
        if landlocked == Landlocked::Not {
            skip::skip_on_this_machine("this kernel has no Landlock");
        } else {
            assert_denied(
                "the list of users, which every user may read",
                File::open("/etc/passwd"),
            );
            assert_denied(
                "a file in /tmp, which every user may create",
                File::create("/tmp/wirecap-outside"),
            );
        }
        assert_denied(
            "another program in this process",
            Err::<(), _>(Command::new("/bin/true").exec()),
        );
        assert_denied("another user", become_root());
        // A second call is also refused, but not reported again.
        assert_denied(
            "another program in this process",
            Err::<(), _>(Command::new("/bin/true").exec()),
        );
    }

    fn become_root() -> io::Result<()> {
        let root = rustix::process::Uid::ROOT;
        Ok(rustix::thread::set_thread_res_uid(root, root, root)?)
    }

    pub(super) fn a_process_whose_session_began_outside_its_pid_namespace_is_confined(
        directory: &Path,
    ) {
        enter(directory);
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert!(
            status.contains("NSsid:\t0") && status.contains("CapPrm:\t0000000000000000"),
            "{status}"
        );
    }

    pub(super) fn one_file_is_created_and_no_other_is_read_or_removed(directory: &Path) {
        let other = directory.join("other");
        fs::write(&other, "older packets").unwrap();
        std::os::unix::fs::chown(&other, Some(UID), None).unwrap();
        let landlocked = Confinement::recording_one_file(user(), directory).enter().unwrap();
        let mut file = File::create(directory.join("trace.pcap")).unwrap();
        file.write_all(b"more packets").unwrap();
        file.set_len(0).unwrap();
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).unwrap();
        file.write_all(b"packets").unwrap();
        File::open(directory).unwrap().sync_all().unwrap();
        if landlocked == Landlocked::Not {
            return skip::skip_on_this_machine("this kernel has no Landlock");
        }
        assert_denied("reading another file", fs::read(&other));
        assert_denied("removing another file", fs::remove_file(&other));
        assert_denied("renaming another file", fs::rename(&other, directory.join("new")));
        assert_denied("a directory", fs::create_dir(directory.join("new")));
        assert_denied("a symbolic link", std::os::unix::fs::symlink("/etc", directory.join("new")));
    }

    pub(super) fn nothing_is_typed_into_the_terminal(directory: &Path) {
        let terminal = File::options().read(true).write(true).open("/dev/tty").unwrap();
        enter(directory);
        let request = |request: libc::Ioctl, argument: &[u8]| {
            let number = terminal.as_raw_fd() as usize;
            call(libc::SYS_ioctl, [number, request as usize, argument.as_ptr() as usize])
        };
        // In some terminals' modes a program gets whole lines.
        for key in [b"x", b"\n"] {
            assert_denied("typing (TIOCSTI)", request(libc::TIOCSTI, key));
            // The kernel ignores the upper half of a request.
            assert_denied("typing (TIOCSTI)", request(libc::TIOCSTI | 1 << 40, key));
        }
        assert_denied("pasting (TIOCLINUX)", request(libc::TIOCLINUX, &[3, 0]));
        assert_denied("changing its modes", request(libc::TCSETS, &[0; 64]));
        assert_denied("changing its foreground", request(libc::TIOCSPGRP, &[0; 4]));
        assert_denied("having its size", request(libc::TIOCSWINSZ, &[0; 8]));
        assert_denied("redirecting the console", request(libc::TIOCCONS, &[]));
        // The width of its output.
        let mut size = [0_u8; 8];
        let address = size.as_mut_ptr() as usize;
        call(libc::SYS_ioctl, [terminal.as_raw_fd() as usize, libc::TIOCGWINSZ as usize, address])
            .unwrap();
        say_tried();
    }

    pub(super) fn nothing_is_read_from_the_terminal(directory: &Path) {
        enter(directory);
        let mut secret = [0; 16];
        assert_eq!(io::stdin().read(&mut secret).unwrap(), 0, "standard input is a terminal");
        let outcome = rustix::io::read(io::stderr(), &mut secret);
        assert_eq!(outcome, Err(rustix::io::Errno::BADF), "{secret:?}");
        assert!(io::IsTerminal::is_terminal(&io::stderr()));
        eprintln!("a line");
        assert!(File::open("/dev/tty").is_err());
        let status = fs::read_to_string("/proc/self/stat").unwrap();
        // After the name, which is in parentheses: state, parent, group, session, terminal.
        let terminal = status.rsplit_once(')').unwrap().1.split_whitespace().nth(4).unwrap();
        assert_eq!(terminal, "0", "{status}");
    }

    pub(super) fn no_process_and_no_namespace_is_made(directory: &Path) {
        enter(directory);
        let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNET;
        for flags in [namespaces, 0, libc::CLONE_VM | libc::CLONE_VFORK, libc::CLONE_NEWPID] {
            assert_denied("a process", clone((flags | libc::SIGCHLD) as usize));
        }
        // A thread in namespaces of its own.
        let thread = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
        assert_denied("a thread with namespaces", clone((thread | libc::CLONE_NEWNET) as usize));
        let arguments = [namespaces as u64, 0, 0, 0, libc::SIGCHLD as u64, 0, 0, 0];
        let outcome =
            call(libc::SYS_clone3, [arguments.as_ptr() as usize, size_of_val(&arguments)]);
        if let Ok(0) = outcome {
            std::process::exit(0);
        }
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::ENOSYS));
        assert_denied("namespaces", call(libc::SYS_unshare, [namespaces as usize]));
        // The C library's ways to start a process, with all signals blocked.
        assert_denied("a command", Command::new("/bin/true").status());
        std::thread::spawn(|| ()).join().unwrap();
    }

    /// A process or thread that ends at once, if it is permitted.
    fn clone(flags: usize) -> io::Result<usize> {
        let outcome = call(libc::SYS_clone, [flags, 0, 0, 0, 0]);
        if let Ok(0) = outcome {
            std::process::exit(0);
        }
        outcome
    }

    pub(super) fn no_socket_is_made_bound_or_connected(directory: &Path) {
        let before = |family| socket(family, SocketType::STREAM, None).unwrap();
        let inet = before(AddressFamily::INET);
        let unix = before(AddressFamily::UNIX);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap();
        let name = format!("wirecap-confined-{}", getpid());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _listening = UnixListener::bind_addr(&address).unwrap();
        enter(directory);
        for family in
            [AddressFamily::INET, AddressFamily::INET6, AddressFamily::UNIX, AddressFamily::NETLINK]
        {
            assert_denied("a socket", socket(family, SocketType::DGRAM, None));
        }
        assert_denied("a packet socket", socket(AddressFamily::PACKET, SocketType::RAW, None));
        assert_denied("a pair of sockets", UnixDatagram::pair());
        assert_denied("a connection", rustix::net::connect(&inet, &port));
        let abstract_name =
            rustix::net::SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let outcome = rustix::net::connect(&unix, &abstract_name);
        assert_denied("a connection to an abstract socket", outcome);
        let outcome = rustix::net::bind(&inet, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
        assert_denied("an address", outcome);
        assert_denied("listening", rustix::net::listen(&inet, 1));
        assert_denied("a map", call(libc::SYS_bpf, [0, [0_u32; 32].as_ptr() as usize, 128]));
        let name = c"x".as_ptr() as usize;
        assert_denied("memory", call(libc::SYS_memfd_create, [name, 0]));
        let message = [0_usize; 7];
        let sending = [unix.as_raw_fd() as usize, message.as_ptr() as usize, 0];
        assert_denied("a message", call(libc::SYS_sendmsg, sending));
    }

    pub(super) fn a_packet_socket_stays_on_its_interface(directory: &Path) {
        // Two pairs: the socket is bound to one end of the first, and the others hear what is sent.
        for (end, other_end) in [("a0", "a1"), ("b0", "b1")] {
            ip(&["link", "add", end, "type", "veth", "peer", "name", other_end]);
            ip(&["link", "set", end, "up"]);
            ip(&["link", "set", other_end, "up"]);
        }
        let own = packet_socket("a0");
        let near = packet_socket("a1");
        let far = packet_socket("b1");
        // Another capture of the same interface, in a fan-out group.
        let group = 7_u32;
        let other = packet_socket("a0");
        let arguments = [
            other.as_raw_fd() as usize,
            libc::SOL_PACKET as usize,
            libc::PACKET_FANOUT as usize,
            &raw const group as usize,
            4,
        ];
        call(libc::SYS_setsockopt, arguments).unwrap();
        let elsewhere = link_address(index_of("b0"));
        enter(directory);
        let address = &raw const elsewhere as usize;
        let number = own.as_raw_fd() as usize;
        let bytes = size_of::<libc::sockaddr_ll>();

        assert_denied("another interface", call(libc::SYS_bind, [number, address, bytes]));
        let promiscuous = [elsewhere.sll_ifindex as u32, libc::PACKET_MR_PROMISC as u32, 0, 0];
        let option = |level: i32, name: i32, value: &[u32]| {
            let address = value.as_ptr() as usize;
            let bytes = size_of_val(value);
            call(libc::SYS_setsockopt, [number, level as usize, name as usize, address, bytes])
        };
        let outcome = option(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &promiscuous);
        assert_denied("promiscuous mode elsewhere", outcome);
        for (level, name) in [
            (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
            (libc::SOL_SOCKET, libc::SO_MARK),
            (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE),
            (libc::SOL_PACKET, libc::PACKET_TX_RING),
            (libc::SOL_XDP, libc::XDP_TX_RING),
            (libc::SOL_XDP, libc::XDP_UMEM_REG),
        ] {
            assert_denied(&format!("option {level} {name}"), option(level, name, &[0; 4]));
        }
        // The same numbers in 64 bits, of which the kernel reads 32.
        let high = 1 << 40;
        let arguments = [
            number,
            libc::SOL_PACKET as usize | high,
            libc::PACKET_TX_RING as usize | high,
            address,
            16,
        ];
        assert_denied("option", call(libc::SYS_setsockopt, arguments));
        option(libc::SOL_PACKET, libc::PACKET_RESERVE, &[0]).unwrap();

        let frame = |last: u8| [&[0xff_u8; 12][..], &[0x88, 0xb5], &[last; 50]].concat();
        let send = |frame: &[u8], address: usize| {
            call(
                libc::SYS_sendto,
                [number, frame.as_ptr() as usize, frame.len(), 0, address, bytes],
            )
        };
        assert_denied("sending elsewhere", send(&frame(1), address));
        let second = frame(2);
        let parts = [second.as_ptr() as usize, second.len()];
        let message = [address, bytes, parts.as_ptr() as usize, 1, 0, 0, 0, 0];
        let sending = |call_number| call(call_number, [number, message.as_ptr() as usize, 1, 0]);
        assert_denied("sending elsewhere", sending(libc::SYS_sendmmsg));
        assert_denied("sending elsewhere", sending(libc::SYS_sendmsg));
        assert!(!heard(&far), "a frame was sent on another interface");
        // What remains: a share of the packets that others capture on its own interface, and
        // sending there.
        option(libc::SOL_PACKET, libc::PACKET_FANOUT, &[group]).unwrap();
        rustix::io::write(&own, &frame(3)).unwrap();
        assert!(heard(&near));
        let flags = [0_u8; 40];
        let request =
            call(libc::SYS_ioctl, [number, libc::SIOCSIFFLAGS as usize, flags.as_ptr() as usize]);
        assert_denied("settings of an interface", request);
    }

    fn ip(arguments: &[&str]) {
        assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
    }

    fn index_of(interface: &str) -> i32 {
        let any = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        netdevice::name_to_index(&any, interface).unwrap().cast_signed()
    }

    fn link_address(ifindex: i32) -> libc::sockaddr_ll {
        // SAFETY: zeroes are a value of it.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = ifindex;
        address
    }

    /// A socket for all packets of the interface, as the broker hands it over.
    fn packet_socket(interface: &str) -> OwnedFd {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None).unwrap();
        let address = link_address(index_of(interface));
        let number = socket.as_raw_fd() as usize;
        let bytes = size_of::<libc::sockaddr_ll>();
        call(libc::SYS_bind, [number, &raw const address as usize, bytes]).unwrap();
        socket
    }

    /// Whether a frame of this test has arrived. There may be others, of IPv6.
    fn heard(socket: &impl AsFd) -> bool {
        let mut frame = [0; 256];
        std::thread::sleep(std::time::Duration::from_millis(50));
        std::iter::from_fn(|| {
            rustix::io::read(socket, &mut frame).ok().map(|_| frame[12..14] == [0x88, 0xb5])
        })
        .any(|is_own| is_own)
    }

    pub(super) fn no_other_process_of_the_user_is_signalled_or_limited(directory: &Path) {
        let other: usize = env::var(VICTIM).unwrap().parse().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        enter(directory);
        let own = getpid().as_raw_nonzero().get() as usize;
        let end = libc::SIGTERM as usize;
        let information = [0_u64; 16];
        let information = information.as_ptr() as usize;
        assert_denied("a signal", call(libc::SYS_kill, [other, end]));
        assert_denied("a signal to all", call(libc::SYS_kill, [usize::MAX, end]));
        assert_denied("a signal", call(libc::SYS_tkill, [other, end]));
        assert_denied("a signal", call(libc::SYS_tgkill, [other, other, end]));
        assert_denied("a signal", call(libc::SYS_rt_sigqueueinfo, [other, end, information]));
        assert_denied(
            "a signal",
            call(libc::SYS_rt_tgsigqueueinfo, [other, other, end, information]),
        );
        assert_denied("a handle", call(libc::SYS_pidfd_open, [other, 0]));
        call(libc::SYS_tgkill, [own, own, 0]).unwrap();
        // Signals by a descriptor that has something to read.
        let pipe = read.as_raw_fd() as usize;
        assert_denied("an owner", call(libc::SYS_fcntl, [pipe, libc::F_SETOWN as usize, other]));
        assert_denied(
            "an owner",
            call(libc::SYS_fcntl, [pipe, F_SETOWN_EX, [0, other as u32].as_ptr() as usize]),
        );
        assert_denied("a signal", call(libc::SYS_fcntl, [pipe, F_SETSIG, end]));
        assert_denied(
            "an owner",
            call(libc::SYS_ioctl, [pipe, FIOSETOWN, &raw const other as usize]),
        );
        let asynchronous = (libc::O_ASYNC | libc::O_NONBLOCK) as usize;
        assert_denied(
            "signals",
            call(libc::SYS_fcntl, [pipe, libc::F_SETFL as usize, asynchronous]),
        );
        call(libc::SYS_fcntl, [pipe, libc::F_SETFL as usize, libc::O_NONBLOCK as usize]).unwrap();
        rustix::io::write(&write, b"x").unwrap();

        let limit = [0_u64; 2];
        let none = ptr::null::<u8>() as usize;
        let limit = limit.as_ptr() as usize;
        for process in [other, 0] {
            let arguments = [process, libc::RLIMIT_NOFILE as usize, limit, none];
            assert_denied("a limit", call(libc::SYS_prlimit64, arguments));
        }
        let set = [1_u64; 16];
        assert_denied(
            "processors",
            call(libc::SYS_sched_setaffinity, [other, 128, set.as_ptr() as usize]),
        );
        let priority = [0_u32; 1];
        let priority = priority.as_ptr() as usize;
        let idle = libc::SCHED_IDLE as usize;
        assert_denied("a priority", call(libc::SYS_sched_setscheduler, [other, idle, priority]));
        let fifo = libc::SCHED_FIFO as usize;
        assert_denied("a higher priority", call(libc::SYS_sched_setscheduler, [0, fifo, priority]));
        assert_denied("a priority", call(libc::SYS_setpriority, [0, other, 19]));
        assert_denied("a priority of its disk", call(libc::SYS_ioprio_set, [1, other, 3 << 13]));
        call(libc::SYS_ioprio_set, [1, 0, 3 << 13]).unwrap();
    }

    const F_SETSIG: usize = 10;
    const F_SETOWN_EX: usize = 15;
    const FIOSETOWN: usize = 0x8901;

    pub(super) fn no_other_process_of_the_user_takes_its_descriptors(directory: &Path) {
        enter(directory);
        let set =
            |option: i32, value: usize| call(libc::SYS_prctl, [option as usize, value, 0, 0, 0]);
        assert_eq!(set(libc::PR_GET_DUMPABLE, 0).unwrap(), 0, "it can be inspected");
        assert_denied("being inspected again", set(libc::PR_SET_DUMPABLE, 1));
        assert_denied("being traced", set(libc::PR_SET_PTRACER, usize::MAX));
        say_tried();
    }
}
