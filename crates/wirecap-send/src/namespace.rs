//! Private network namespaces that exist only as a file descriptor.
//!
//! A name in /run/netns would outlive a killed process. A descriptor does not: the kernel removes
//! the namespace, and every virtual interface in it, when the last descriptor, process and socket
//! in it are gone. So no clean-up is needed.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{SetupError, sys};

/// The calling thread's namespace.
const CURRENT: &str = "/proc/thread-self/ns/net";

/// A network namespace. Clones refer to the same one, which ends with the last of them.
#[derive(Clone, Debug)]
pub struct Namespace {
    file: Arc<File>,
}

impl Namespace {
    /// Creates a namespace that contains only a loopback interface, which is down. IPv6 is
    /// disabled, so no interface in it sends packets by itself.
    ///
    /// # Errors
    ///
    /// [`SetupError::Namespace`] if the privilege is missing.
    pub fn new() -> Result<Self, SetupError> {
        on_a_thread(|| {
            sys::unshare_network().and_then(|()| silence_ipv6()).and_then(|()| open_current())
        })
        .map_err(|source| SetupError::Namespace { what: "make", source })
    }

    /// The calling thread's namespace.
    ///
    /// # Errors
    ///
    /// [`SetupError::Namespace`] if /proc is not mounted.
    pub fn current() -> Result<Self, SetupError> {
        open_current().map_err(|source| SetupError::Namespace { what: "open", source })
    }

    /// The namespace behind a path: `/run/netns/NAME`, `/proc/PID/ns/net` or another one's
    /// [`path`](Self::path).
    ///
    /// # Errors
    ///
    /// [`SetupError::Namespace`] if it cannot be opened.
    pub fn at(path: &Path) -> Result<Self, SetupError> {
        open(path).map_err(|source| SetupError::Namespace { what: "open", source })
    }

    /// A path by which other processes reach the namespace as long as this process holds it:
    /// `nsenter --net=PATH` puts a command into it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Runs `work` in the namespace, in a separate thread, and waits for it. Sockets that it opens
    /// stay in the namespace; commands that it starts run in it.
    ///
    /// # Errors
    ///
    /// [`SetupError::Namespace`] if the privilege is missing.
    ///
    /// # Panics
    ///
    /// If `work` does.
    pub fn run_in<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, SetupError> {
        on_a_thread(|| self.enter().map(|()| work()))
            .map_err(|source| SetupError::Namespace { what: "enter", source })
    }

    /// Moves the calling thread into the namespace permanently. Use it only in a separate thread. A
    /// thread that is already in it needs no privilege, although setns(2) would require one.
    ///
    /// # Errors
    ///
    /// The kernel's error if the privilege is missing.
    pub fn enter(&self) -> io::Result<()> {
        if self.is_current()? {
            return Ok(());
        }
        Ok(move_into_link_name_space(self.as_fd(), Some(LinkNameSpaceType::Network))?)
    }
}

impl Namespace {
    /// Whether the calling thread is in it.
    fn is_current(&self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        let current = fs::metadata(CURRENT)?;
        Ok((own.dev(), own.ino()) == (current.dev(), current.ino()))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Runs `work` in another thread, so it cannot change the caller's thread; a panic is passed on to
/// the caller.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let outcome = thread::scope(|scope| scope.spawn(work).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn open_current() -> io::Result<Namespace> {
    open(Path::new(CURRENT))
}

fn open(path: &Path) -> io::Result<Namespace> {
    Ok(Namespace { file: Arc::new(File::open(path)?) })
}

/// Disables IPv6 for future interfaces, because each would announce itself by multicast.
fn silence_ipv6() -> io::Result<()> {
    for interfaces in ["all", "default"] {
        match fs::write(format!("/proc/sys/net/ipv6/conf/{interfaces}/disable_ipv6"), "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            written => written?,
        }
    }
    Ok(())
}
