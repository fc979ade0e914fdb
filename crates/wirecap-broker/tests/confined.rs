//! A process that has dropped all permissions tries to regain them.
//!
//! The tests run this program a second time as the confined process, because dropped permissions cannot be
//! regained.

#[path = "../../wirecap-testbed/src/skip.rs"]
mod skip;

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::geteuid;
use wirecap_broker::{Confinement, Landlocked, User};

const DIRECTORY: &str = "WIRECAP_TEST_DIRECTORY";
const UID: u32 = 65534;

/// No test harness: it has threads.
fn main() -> ExitCode {
    match env::var_os(DIRECTORY) {
        Some(directory) => confined(directory.as_ref()),
        None => try_it(),
    }
    ExitCode::SUCCESS
}

fn try_it() {
    if !geteuid().is_root() {
        skip::skip("dropping permissions needs root");
        return;
    }
    let directory = env::temp_dir().join(format!("wirecap-confined-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&directory, Some(UID), None).unwrap();
    let output = Command::new(env::current_exe().unwrap()).env(DIRECTORY, &directory).output().unwrap();
    fs::remove_dir_all(&directory).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    for call in ["execve", "setresuid"] {
        assert_eq!(
            said.matches(&format!("a system call was rejected after privileges were dropped: {call}\n"))
                .count(),
            1,
            "{said}"
        );
    }
    println!("test a_confined_process_gets_nothing_back ... ok");
}

/// Fails because of a missing permission.
#[track_caller]
fn assert_denied<T>(what: &str, outcome: io::Result<T>) {
    let error = outcome.err().unwrap_or_else(|| panic!("{what} was permitted"));
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{what}: {error}");
}

fn confined(directory: &Path) {
    let user = User { name: "nobody".to_owned(), uid: UID, gid: UID };
    let outside = directory.with_extension("outside");
    // Another thread acts for the user; this one does not.
    assert_eq!(user.act(|| geteuid().as_raw()).unwrap(), UID);
    assert!(geteuid().is_root());
    assert_eq!(User::owner_of(directory).unwrap().uid, UID);
    let landlocked = Confinement::recording(user, Some(directory)).enter().unwrap();
    // The permissions that a recording needs.
    File::create(directory.join("a")).unwrap().write_all(b"packets").unwrap();
    fs::rename(directory.join("a"), directory.join("b")).unwrap();
    assert_eq!(fs::read(directory.join("b")).unwrap(), b"packets");
    fs::remove_file(directory.join("b")).unwrap();
    assert!(fs::read_to_string("/proc/self/status").unwrap().contains("NoNewPrivs:\t1"));
    std::thread::spawn(|| assert_eq!(geteuid().as_raw(), UID)).join().unwrap();
    // Calls that the process does not need.
    assert_denied("a file outside the directory", File::create(&outside));
    if landlocked == Landlocked::Not {
        skip::skip_on_this_machine("this kernel has no Landlock");
    } else {
        assert_denied("the list of users, which every user may read", File::open("/etc/passwd"));
        assert_denied("a file in /tmp, which every user may create", File::create("/tmp/wirecap-outside"));
    }
    assert_denied("another program in this process", Err::<(), _>(Command::new("/bin/true").exec()));
    // The process between fork(2) and execve(2) has no handler of SIGSYS, and is ended by it.
    let status = Command::new("/bin/true").status();
    assert!(!status.is_ok_and(|status| status.success()), "another program was permitted");
    assert_denied("another user", become_root());
    assert_denied("a packet socket", packet_socket());
    // Sockets of other kinds are permitted, because they need no privilege.
    drop((
        TcpListener::bind("127.0.0.1:1"),
        TcpStream::connect("127.0.0.1:1"),
        UdpSocket::bind("127.0.0.1:1"),
    ));
    // A second call is also refused, but not reported again.
    assert_denied("another program in this process", Err::<(), _>(Command::new("/bin/true").exec()));
}

fn become_root() -> io::Result<()> {
    let root = rustix::process::Uid::ROOT;
    Ok(rustix::thread::set_thread_res_uid(root, root, root)?)
}

fn packet_socket() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketType, socket};
    Ok(socket(AddressFamily::PACKET, SocketType::RAW, None).map(drop)?)
}
