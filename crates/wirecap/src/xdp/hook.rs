//! The program of a capture on an interface, with all that needs privileges: its maps, its place
//! beside other captures, the claims of the queues, and promiscuous mode.
//!
//! A capture describes the program that it needs in its own words ([`HookPlan`]) and gets a
//! [`Hook`]. [`LocalHook`] assembles and loads the program. In a process that has dropped its
//! privileges, the hook is in another process, which holds the program, its maps and its link; no
//! request contains instructions of eBPF, or the ID of an object.

mod fault;
mod local;

use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use crate::bpf::BpfError;
use crate::device::DeviceSummary;
use crate::error::OpenError;
use crate::filter::Filter;
use crate::sys::opener::{Handle, Release};
use crate::xdp::claim::Claim;
use crate::xdp::plan::{HookPlan, HookState, Where};
pub use fault::HookFault;
pub use local::LocalHook;

/// A new hook.
#[derive(Debug)]
pub struct OpenedHook {
    /// The hook. All packets pass to the host until it has sockets.
    pub hook: Arc<dyn Hook>,
    /// Its properties.
    pub state: HookState,
    /// With timestamps: a map whose first word becomes nonzero if the driver has no room for them.
    pub stamp_failed: Option<OwnedFd>,
}

/// The program of a capture on an interface.
pub trait Hook: Any + Send + Sync + fmt::Debug {
    /// From now on packets with this key in the steering go to a socket: one of this process, or of
    /// the process that has opened it.
    ///
    /// # Errors
    ///
    /// The kernel's, here and below.
    fn receive(&self, key: u32, socket: SocketRef<'_>) -> Result<(), BpfError>;

    /// Loads a program with this filter, for the next [`exchange`](Self::exchange); without one, a
    /// program that captures all packets.
    ///
    /// # Errors
    ///
    /// The kernel's, unless it rejects only the filter: then the program has none.
    fn prepare(&self, filter: Option<&Filter>) -> Result<Where, BpfError>;

    /// Replaces the program by the prepared one. Each packet is processed by one of the two.
    ///
    /// # Errors
    ///
    /// The kernel's; the previous program remains.
    fn exchange(&self, turn: &AttachLock) -> Result<(), BpfError>;

    /// Loads a program that captures all packets and keeps it for later: a process that can no
    /// longer load programs can still use it.
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn keep_unfiltered(&self) -> Result<(), BpfError>;

    /// Loads a program that passes all packets to the host, for the next
    /// [`exchange`](Self::exchange), and takes the right for that.
    ///
    /// # Errors
    ///
    /// The kernel's, or the right to change the program is taken.
    fn prepare_to_pass(&self) -> Result<AttachLock, OpenError>;

    /// Whether the program still gets packets.
    fn is_in_place(&self) -> bool;

    /// Attaches the program again after it was detached or replaced.
    ///
    /// # Errors
    ///
    /// As for opening.
    fn attach_again(&self) -> Result<(), OpenError>;

    /// Attaches the program again to a driver that no longer runs it although it is attached.
    ///
    /// # Errors
    ///
    /// As for opening.
    fn attach_anew(&self) -> Result<(), OpenError>;

    /// Makes the driver run the program on added queues: a veth runs it only on the queues that
    /// existed when it was attached.
    ///
    /// # Errors
    ///
    /// As for opening.
    fn run_on_new_queues(&self) -> Result<(), OpenError>;

    /// Claims a queue for this capture.
    ///
    /// # Errors
    ///
    /// As for opening.
    fn claim_queue(&self, queue: u32) -> Result<(), OpenError>;

    /// Gets the packets of a queue that was claimed.
    ///
    /// # Errors
    ///
    /// The kernel's.
    fn add_queue(&self, queue: u32) -> Result<(), BpfError>;

    /// Gives up a queue and these keys, so that its packets pass to the host and another capture
    /// may have it.
    fn close_queue(&self, queue: u32, keys: &[u32]);

    /// Continues on an interface that replaces the present one, on those of its queues that this
    /// has.
    ///
    /// # Errors
    ///
    /// As for opening.
    fn move_to(&self, device: &DeviceSummary) -> Result<HookState, OpenError>;

    /// The number of matching packets that went to the host because their queue had no socket.
    fn unseated(&self) -> u64;

    /// The number of captured frames for the interface's own hardware address, if they are counted.
    fn own(&self) -> u64;

    /// The number of non-matching packets of a queue.
    fn filtered(&self, queue: u32) -> u64;

    /// Detaches the program and gives up the queues. The counts remain.
    fn leave(&self);

    /// As [`leave`](Self::leave), without effect on another process with the same descriptors.
    fn leave_to_others(&self);
}

/// An AF_XDP socket in a request.
#[derive(Debug, Clone, Copy)]
pub struct SocketRef<'a> {
    /// Its descriptor.
    pub descriptor: BorrowedFd<'a>,
    /// Its handle, if another process has opened it.
    pub handle: Option<&'a Handle>,
}

/// The right to change the program attached to an interface.
#[derive(Debug)]
pub struct AttachLock {
    _held: Box<dyn Release>,
    number: Option<u32>,
}

impl AttachLock {
    /// A right that another process holds for this one.
    pub fn elsewhere(handle: Handle) -> Self {
        Self { _held: handle.release, number: Some(handle.number) }
    }

    /// The number by which the other process knows it.
    pub fn number(&self) -> Option<u32> {
        self.number
    }
}

/// Another process, which has the hooks of this one.
pub trait Hooks: Send + Sync + fmt::Debug {
    /// Takes the right to change the program attached to an interface, without waiting.
    ///
    /// # Errors
    ///
    /// [`OpenError::Contended`] if a process has it.
    fn turn(&self, device: &DeviceSummary) -> Result<AttachLock, OpenError>;

    /// Attaches a program.
    ///
    /// # Errors
    ///
    /// As [`LocalHook::open`].
    fn open(&self, plan: &HookPlan, turn: &AttachLock) -> Result<OpenedHook, OpenError>;
}

static HOOKS: OnceLock<Arc<dyn Hooks>> = OnceLock::new();

/// Has all later hooks of this process in another one. Works once.
///
/// # Errors
///
/// Returns `hooks` if there is one already.
pub fn set_hooks(hooks: Arc<dyn Hooks>) -> Result<(), Arc<dyn Hooks>> {
    HOOKS.set(hooks)
}

/// Takes the right to change the program attached to an interface, without waiting.
///
/// # Errors
///
/// [`OpenError::Contended`] if a process has it.
pub(crate) fn take_attach_lock(device: &DeviceSummary) -> Result<AttachLock, OpenError> {
    match HOOKS.get() {
        Some(hooks) => hooks.turn(device),
        None => own_turn(device),
    }
}

/// Takes the right to change the program attached to an interface in this process, without waiting.
///
/// # Errors
///
/// [`OpenError::Contended`] if a process has it.
pub fn own_turn(device: &DeviceSummary) -> Result<AttachLock, OpenError> {
    Ok(AttachLock { _held: Box::new(Claim::turn_now(device)?), number: None })
}

/// Attaches a program, here or in the other process.
pub(crate) fn open(plan: &HookPlan, turn: &AttachLock) -> Result<OpenedHook, OpenError> {
    match HOOKS.get() {
        Some(hooks) => hooks.open(plan, turn),
        None => LocalHook::open(plan),
    }
}
