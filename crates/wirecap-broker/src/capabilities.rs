//! The capabilities of the broker: few in effect, and others only around the calls that need them.
//!
//! CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF, CAP_IPC_LOCK, CAP_SETUID and CAP_SETGID are in effect.
//! CAP_PERFMON is in effect only around the program at the tracepoint of the clock, and around the
//! reason why a driver rejects a program; CAP_SYS_ADMIN only around the search for another
//! capture's program and the tmpfs of a pool.

use std::io;

use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities,
};
use wirecap_filter::capability;

/// In effect: packet sockets, links and promiscuous mode, maps and programs, pinned memory, the
/// command's user.
const IN_EFFECT: CapabilitySet = CapabilitySet::NET_RAW
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID);

/// For a moment: the program at the tracepoint (PERFMON); a search for the program of another
/// capture, and huge pages (SYS_ADMIN); the process that holds another program (SYS_PTRACE); memory
/// beyond the limit on the length of files (SYS_RESOURCE); and the removal of sockets
/// (DAC_OVERRIDE).
const FOR_A_MOMENT: CapabilitySet = CapabilitySet::PERFMON
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_RESOURCE)
    .union(CapabilitySet::DAC_OVERRIDE);

/// Gives up all others for good, and puts the second group out of effect.
///
/// # Errors
///
/// The kernel's.
pub(crate) fn keep_few() -> io::Result<()> {
    let _ = clear_ambient_capability_set();
    let before = capabilities(None)?;
    let mut in_effect = IN_EFFECT;

    if !before.effective.contains(CapabilitySet::BPF) {
        // Before Linux 5.8 there is no CAP_BPF.
        in_effect |= CapabilitySet::SYS_ADMIN;
    }

    let permitted = before.permitted.intersection(in_effect.union(FOR_A_MOMENT));
    set_capabilities(
        None,
        CapabilitySets {
            effective: permitted.intersection(in_effect),
            permitted,
            inheritable: CapabilitySet::empty(),
        },
    )?;

    Ok(())
}

/// Does `work` with the right to change any directory, if this process has it.
pub(crate) fn with_files<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    capability::with(CapabilitySet::DAC_OVERRIDE, work)
}
