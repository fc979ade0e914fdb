//! System calls that no crate wraps: the only place where the engine calls the kernel directly.

pub(crate) mod ethtool;
pub(crate) mod memory;
pub(crate) mod netlink;
pub(crate) mod opener;
pub(crate) mod option;
pub(crate) mod packet;
pub(crate) mod peer;
pub(crate) mod promiscuous;
pub(crate) mod signals;
pub(crate) mod xdp;

use std::thread;
use std::time::Duration;

/// Waits until the programs and filters that are currently running in the receive path have ended
/// and their packets have been delivered. False if the kernel offers no way to determine this; then
/// it has waited for longer than any of them takes.
///
/// Packets are received inside RCU read-side sections, from the program's start until they are
/// published on the socket's ring, so an RCU grace period does it.
pub(crate) fn wait_for_running_programs() -> bool {
    let by_membarrier =
        || rustix::thread::membarrier(rustix::thread::MembarrierCommand::Global).is_ok();
    wait_by(&[&by_membarrier, &close_packet_socket])
}

/// Waits by the first of these ways that there is.
fn wait_by(ways: &[&dyn Fn() -> bool]) -> bool {
    let waited = ways.iter().any(|way| way());
    if !waited {
        thread::sleep(Duration::from_millis(50));
    }
    waited
}

/// A global membarrier is rejected if CPUs run without a tick (`nohz_full`). Closing a packet
/// socket waits for a grace period everywhere (`packet_release` calls `synchronize_net`, in
/// `net/packet/af_packet.c`), and every capture may open one, unless the process has dropped its
/// privileges.
fn close_packet_socket() -> bool {
    packet::PacketSocket::new().map(drop).is_ok()
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn without_a_membarrier_a_packet_socket_waits_and_without_both_a_warning_says_so() {
        assert!(wait_by(&[&|| false, &|| true]));
        assert!(!wait_by(&[&|| false, &|| false]));
    }
}
