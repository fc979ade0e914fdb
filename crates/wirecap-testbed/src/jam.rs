//! A device that accepts frames and does not complete them, because its output is blocked.

use wirecap_send::run_tool;

use crate::{Interface, SetupError, VethPair};

/// The names of the blocking interfaces.
const BRIDGE: &str = "jam";
const EXIT: &str = "jam0";
const BEYOND: &str = "jam1";

/// A queueing discipline that sends a frame of 1,000 bytes every 80 seconds and keeps the others;
/// the first two are sent at once.
const SLOWEST: [&str; 7] = ["tbf", "rate", "100bit", "burst", "2kb", "limit", "64mb"];

/// A jam after an interface. Frames that arrive there, of a protocol that no firewall handles and
/// not for its own Ethernet address, are bridged to another interface whose queueing discipline
/// sends none. So the sender does not get the memory of their socket buffers back, and cannot send
/// any more when it has none left. Arriving frames are counted as received nevertheless, and the
/// other direction is not blocked.
#[derive(Debug)]
#[must_use = "the jam stays until it is cleared"]
pub struct Jam {
    behind: Interface,
    exit: Interface,
}

impl Jam {
    /// Blocks the output after an interface that is up.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if the kernel has no bridges or no token bucket filter.
    pub fn behind(interface: &Interface) -> Result<Self, SetupError> {
        let namespace = &interface.namespace;
        let pair = VethPair::new((namespace, EXIT), (namespace, BEYOND), 1, interface.mtu_bytes)?;
        run_tool(
            namespace,
            "tc",
            &[&["qdisc", "add", "dev", EXIT, "root"], &SLOWEST[..]].concat(),
        )?;

        // Multicast snooping would send packets on the interface.
        interface.ip(&["link", "add", BRIDGE, "type", "bridge", "mcast_snooping", "0"])?;
        interface.ip(&["link", "set", BRIDGE, "up"])?;
        for port in [EXIT, &interface.name] {
            interface.ip(&["link", "set", port, "master", BRIDGE])?;
        }

        Ok(Self { behind: interface.clone(), exit: pair.sender })
    }

    /// Removes the jam, and the frames that are stuck in it.
    ///
    /// # Errors
    ///
    /// [`SetupError::Command`] if the interface is gone.
    pub fn clear(self) -> Result<(), SetupError> {
        self.behind.ip(&["link", "set", &self.behind.name, "nomaster"])?;
        self.exit.delete()?;
        self.behind.ip(&["link", "delete", BRIDGE])
    }
}
