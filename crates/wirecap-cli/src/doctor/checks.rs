//! The checks: each is a function from readings to findings, and reads nothing itself.

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
