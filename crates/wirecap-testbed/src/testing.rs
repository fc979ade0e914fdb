//! Rules for tests on a shared machine: when to skip, and when to wait.

use std::env;
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use wirecap_filter::bpf::{Map, MapKind};

use crate::skip::{skip, skip_on_this_machine};
use crate::{AfXdpSender, Namespace, SetupError, VethPair};

/// Time limit for waiting on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `receive` again if it was interrupted because the process was stopped and continued:
/// unlike other reads, a receive with a time limit then fails with EINTR (signal(7)).
///
/// # Errors
///
/// Those of `receive`, except [`io::ErrorKind::Interrupted`].
pub fn uninterrupted<T>(mut receive: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match receive() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

/// Writes a script that a test executes. Another process writes it: if this one had the file open
/// for writing, a process that another thread starts at that moment would inherit it, and the
/// script could not be executed ("Text file busy").
///
/// # Panics
///
/// If the script cannot be written.
pub fn write_program(path: &Path, text: &str) {
    let mut writer = Command::new("sh")
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("every system has sh");
    let mut input = writer.stdin.take().expect("it is piped");
    input.write_all(text.as_bytes()).expect("cat reads its input");
    drop(input);
    assert!(
        writer.wait().expect("it is our child").success(),
        "{} cannot be written",
        path.display()
    );
}

/// The file that tests of loss lock, in the directory for temporary files.
const LOCK_NAME: &str = "wirecap-testbed.lock";

/// Whether this process may build a test bed: create namespaces and load programs. If not, prints
/// SKIP and the reason to standard error.
///
/// # Panics
///
/// If it may not and the environment has `WIRECAP_NO_SKIP=1`: in that lane a skip is a failure.
pub fn privileged() -> bool {
    let lacking = Namespace::new().err().map(|error| error.to_string());
    let lacking =
        lacking.or_else(|| Map::create(MapKind::Array, "probe", 4, 1).err().map(|e| e.to_string()));
    lacking.iter().for_each(|lacking| skip(lacking));
    lacking.is_none()
}

/// Whether this kernel has AF_XDP frames of several cells: since Linux 6.6, so Debian 12 has none.
/// If not, prints SKIP.
///
/// # Panics
///
/// If it cannot be tried, for instance without privileges.
pub fn frames_of_several_cells() -> bool {
    static ARE_THERE: OnceLock<bool> = OnceLock::new();
    let are_there = *ARE_THERE.get_or_init(|| {
        let namespace = Namespace::new().expect("a namespace");
        let pair =
            VethPair::new((&namespace, "a0"), (&namespace, "a1"), 1, 9000).expect("a veth pair");

        // The sender asks for them if the interface's frames are longer than a cell; older kernels
        // reject the flag.
        match AfXdpSender::on(&pair.sender, 0) {
            Ok(_) => true,
            Err(SetupError::Interface { source, .. })
                if source.raw_os_error() == Some(libc::EINVAL) =>
            {
                false
            }
            Err(error) => panic!("{error}: {:?}", error.source()),
        }
    });
    if !are_there {
        skip_on_this_machine("this kernel has no AF_XDP frames of several cells (Linux 6.6)");
    }

    are_there
}

/// Waits until `is_so` returns true, for at most a minute: tests wait for conditions, never for a
/// time.
///
/// # Panics
///
/// After a minute.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Duration of a skewed load: `usual_seconds`, or `WIRECAP_SKEW_SECONDS`, which `make skew` sets to
/// twenty.
///
/// # Panics
///
/// If the variable is not a number.
pub fn skewed_time(usual_seconds: f64) -> Duration {
    let seconds = env::var("WIRECAP_SKEW_SECONDS").ok();
    let seconds =
        seconds.map(|text| text.parse().expect("WIRECAP_SKEW_SECONDS is a number of seconds"));
    Duration::from_secs_f64(seconds.unwrap_or(usual_seconds))
}

/// A lock held while a test counts losses or measures rates, because two such tests at the same
/// time disturb each other.
#[derive(Debug)]
#[must_use = "the lock ends when this is dropped"]
pub struct LossLock {
    _file: File,
}

/// Waits until no other process on this machine, and no other thread of this one, holds the lock.
/// The kernel releases it when a process dies.
///
/// # Errors
///
/// The kernel's error if the lock file cannot be opened.
pub fn loss_lock() -> io::Result<LossLock> {
    let file = open_lock_file(&env::temp_dir().join(LOCK_NAME))?;
    retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
    Ok(LossLock { _file: file })
}

/// Opens an existing file without creating it: in a sticky directory not even root may open another
/// user's file for writing with O_CREAT.
fn open_lock_file(path: &Path) -> io::Result<File> {
    File::open(path)
        .or_else(|_| OpenOptions::new().write(true).create(true).truncate(false).open(path))
}
