//! System calls that no crate wraps: the only place where the engine talks to the kernel by hand.

pub(crate) mod ethtool;
pub(crate) mod memory;
pub(crate) mod netlink;
pub(crate) mod option;
pub(crate) mod packet;
pub(crate) mod peer;
pub(crate) mod promiscuous;
pub(crate) mod xdp;

use std::thread;
use std::time::Duration;

/// Waits until whatever runs in the receive path at this moment, a program or a filter, has ended and its
/// packet is where it goes.
pub(crate) fn wait_for_running_programs() {
    // A global membarrier waits for an RCU grace period, and packets are received inside RCU read-side
    // sections, from the program's start until they are published on the socket's ring.
    if rustix::thread::membarrier(rustix::thread::MembarrierCommand::Global).is_err() {
        thread::sleep(Duration::from_millis(50));
    }
}
