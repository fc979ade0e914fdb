//! The only module that requests privileged operations from the kernel.
//!
//! Each [`Request`] is plain data and descriptors, and its [`Answer`] is a descriptor, a number or nothing.
//! So another process that has kept its privileges can execute them, while this process, which parses
//! packets, has none. The later use of the descriptors (binding, mapping, filtering, reading) needs no
//! privilege.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::thread::{CapabilitySet, capabilities};

use crate::sys::privileged;
pub use crate::sys::privileged::{Answer, MapRequest, ObjectKind, ProgramRequest, Request, Umem};

/// Executes privileged requests.
pub trait Opener: Send + Sync + fmt::Debug {
    /// Executes a request.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    fn open(&self, request: Request<'_>) -> io::Result<Answer>;

    /// Whether requests are executed with this privilege. The default implementation checks the calling
    /// thread.
    fn has(&self, privilege: Privilege) -> bool {
        let needed = match privilege {
            Privilege::PacketSockets => CapabilitySet::NET_RAW,
            Privilege::LockedMemory => CapabilitySet::IPC_LOCK,
        };
        capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
    }
}

/// A privilege that is checked before a request, so that the error can name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// Packet sockets: CAP_NET_RAW.
    PacketSockets,
    /// Locked memory beyond the limit (`RLIMIT_MEMLOCK`): CAP_IPC_LOCK.
    LockedMemory,
}

/// Executes requests in the calling thread, with its privileges.
#[derive(Debug, Clone, Copy, Default)]
pub struct Direct;

impl Opener for Direct {
    fn open(&self, request: Request<'_>) -> io::Result<Answer> {
        privileged::perform(request)
    }
}

static OPENER: OnceLock<Box<dyn Opener>> = OnceLock::new();

/// Sends all later requests of the process to `opener`. Works once, before the first request.
///
/// # Errors
///
/// Returns `opener` if it was set too late.
pub fn set_opener(opener: Box<dyn Opener>) -> Result<(), Box<dyn Opener>> {
    OPENER.set(opener)
}

/// Executes a privileged request.
///
/// # Errors
///
/// The kernel's error.
pub fn open(request: Request<'_>) -> io::Result<Answer> {
    opener().open(request)
}

/// Whether requests are executed with this privilege.
pub fn has(privilege: Privilege) -> bool {
    opener().has(privilege)
}

fn opener() -> &'static dyn Opener {
    &**OPENER.get_or_init(|| Box::new(Direct))
}

/// Opens a raw socket of `family` without a protocol.
///
/// # Errors
///
/// The kernel's error.
pub fn raw_socket(family: i32) -> io::Result<OwnedFd> {
    open(Request::Socket { family })?.descriptor()
}

/// Loads a program. The verifier writes its log to the request's buffer unless that is empty.
pub(crate) fn program(request: ProgramRequest<'_>) -> io::Result<OwnedFd> {
    open(Request::Program(request))?.descriptor()
}

/// Opens the object of this kind with this ID.
pub(crate) fn by_id(kind: ObjectKind, id: u32) -> io::Result<OwnedFd> {
    open(Request::ById { kind, id })?.descriptor()
}

/// The ID after `id`, or `None` after the last.
pub(crate) fn next_id(kind: ObjectKind, id: u32) -> io::Result<Option<u32>> {
    open(Request::NextId { kind, id })?.id()
}
