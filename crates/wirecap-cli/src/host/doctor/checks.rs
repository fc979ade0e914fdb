//! The checks: each is a function from readings to findings, and reads nothing itself.
//!
//! Limits depend on the speed of the link, if it is known: the time in which the shortest frames
//! fill a ring must be at least twice the coalescing time, and at least twice the wake-up time from
//! an idle state. GRO is a *note* if `auto` selects `xdp` in the driver, where the program sees
//! frames before GRO; otherwise the finding is *alters*. TSO and GSO matter only if the host
//! itself sends. VLAN offload matters to `xdp` on hardware; on a veth that of the other end does,
//! which hands over tags beside the frames. Unless that end is known to put tags into the frames, a
//! warning and the verdict report that tags may be lost.

mod frames;
mod memory;
mod processors;
mod queues;
mod stack;
mod storage;
mod support;

use super::finding::Diagnosis;
use super::host::Host;

/// Everything that is wrong with the host, the worst first.
pub(crate) fn diagnose(host: &Host) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();

    for nic in &host.nics {
        support::check(nic, host, &mut diagnosis);
        frames::check(nic, host, &mut diagnosis);
        queues::check(nic, host, &mut diagnosis);
        processors::check_nic(nic, host, &mut diagnosis);
        stack::check_nic(nic, host, &mut diagnosis);
    }

    processors::check(host, &mut diagnosis);
    stack::check(host, &mut diagnosis);
    memory::check(host, &mut diagnosis);
    storage::check(host, &mut diagnosis);

    // Stable: the interfaces stay in their order.
    diagnosis.findings.sort_by_key(|finding| finding.severity);
    diagnosis
}
