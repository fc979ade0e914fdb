//! Interfaces: the two ends of a veth pair, or an existing one.

use std::os::fd::OwnedFd;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::{Namespace, SetupError, sys};

/// Maximum time of an interface from "up" to "running"; usually milliseconds, on a busy machine
/// longer.
const RUNNING_TIMEOUT: Duration = Duration::from_secs(20);

/// A network interface and its namespace.
#[derive(Clone, Debug)]
pub struct Interface {
    /// The namespace it is in.
    pub namespace: Namespace,
    /// Its name there.
    pub name: String,
    /// Its index there.
    pub index: u32,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// The longest packet that it accepts, in bytes, without the Ethernet header.
    pub mtu_bytes: u32,
    /// Number of its receive queues in use.
    pub queue_count: u32,
}

impl Interface {
    /// The interface with this name.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if there is none in the namespace.
    pub fn find(namespace: &Namespace, name: &str) -> Result<Self, SetupError> {
        let failed = |source| SetupError::interface(name, "describe interface", source);
        let socket = control_socket(namespace)?;
        let index =
            netdevice::name_to_index(&socket, name).map_err(|errno| failed(errno.into()))?;
        Ok(Self {
            namespace: namespace.clone(),
            name: name.to_owned(),
            index,
            mac: sys::mac_address(&socket, name).map_err(failed)?,
            mtu_bytes: sys::mtu_bytes(&socket, name).map_err(failed)?,
            queue_count: sys::queue_count(&socket, name).map_err(failed)?,
        })
    }

    /// Gives the interface an IPv4 address: `10.0.0.1/24`. From then on the host answers on it, so
    /// counts are no longer exact.
    ///
    /// # Errors
    ///
    /// [`SetupError::Command`] if the address is invalid.
    pub fn add_address(&self, address: &str) -> Result<(), SetupError> {
        self.ip(&["address", "add", address, "dev", &self.name])
    }

    /// Sets the interface administratively up or down. A cable has a carrier while both its ends
    /// are up.
    ///
    /// # Errors
    ///
    /// [`SetupError::Command`] if the interface is gone.
    pub fn set_up(&self, up: bool) -> Result<(), SetupError> {
        self.ip(&["link", "set", &self.name, if up { "up" } else { "down" }])
    }

    /// Removes the interface, and with a veth end its peer.
    ///
    /// # Errors
    ///
    /// [`SetupError::Command`] if it is gone already.
    pub fn delete(&self) -> Result<(), SetupError> {
        self.ip(&["link", "delete", &self.name])
    }

    /// Enables or disables a feature by its name in `ethtool -K`: `tx`, `gro`.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if `ethtool` is missing or does not have this feature.
    pub fn set_feature(&self, feature: &str, on: bool) -> Result<(), SetupError> {
        let arguments = ["-K", &self.name, feature, if on { "on" } else { "off" }];
        run_tool(&self.namespace, "ethtool", &arguments)
    }

    /// Runs `ip` with these arguments in the interface's namespace.
    ///
    /// # Errors
    ///
    /// As [`run_tool`].
    pub fn ip(&self, arguments: &[&str]) -> Result<(), SetupError> {
        ip(&self.namespace, arguments)
    }

    /// The longest frame that it accepts, in bytes, without a VLAN tag.
    pub fn frame_bytes_max(&self) -> usize {
        self.mtu_bytes as usize + 14
    }

    /// Waits until the interface, which is up like its peer, has a carrier: after it was set up,
    /// packets of the host's stack are lost for up to a second.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if it is gone, or down.
    pub fn wait_until_running(&self) -> Result<(), SetupError> {
        let socket = control_socket(&self.namespace)?;
        let deadline = Instant::now() + RUNNING_TIMEOUT;
        let failed = |source| SetupError::interface(&self.name, "wait for the carrier of", source);
        sys::settle_carrier(&socket, &self.name).map_err(failed)?;
        while !sys::is_running(&socket, &self.name).map_err(failed)? {
            if Instant::now() > deadline {
                return Err(failed(std::io::ErrorKind::TimedOut.into()));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Two interfaces connected by a cable: each receives the packets that the other sends.
#[derive(Clone, Debug)]
pub struct VethPair {
    /// The sending end.
    pub sender: Interface,
    /// The receiving end.
    pub receiver: Interface,
}

impl VethPair {
    /// Creates a pair with `queue_count` queues in each direction. Both ends are up and silent: no
    /// address, no IPv6. The ends may be in the same namespace; the pair is removed with either
    /// namespace.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if `ip` is missing, a name is in use, or the kernel rejects a number.
    pub fn new(
        (sender, sender_name): (&Namespace, &str),
        (receiver, receiver_name): (&Namespace, &str),
        queue_count: u32,
        mtu_bytes: u32,
    ) -> Result<Self, SetupError> {
        let queues = queue_count.to_string();
        let mtu = mtu_bytes.to_string();
        let sizes = ["mtu", &mtu, "numtxqueues", &queues, "numrxqueues", &queues];
        let receiver_path = receiver.path().display().to_string();
        let near = [&["link", "add", sender_name], &sizes[..], &["type", "veth"]].concat();
        let far =
            [&["peer", "name", receiver_name], &sizes[..], &["netns", &receiver_path]].concat();
        ip(sender, &[near, far].concat())?;
        ip(sender, &["link", "set", sender_name, "up"])?;
        ip(receiver, &["link", "set", receiver_name, "up"])?;

        let pair = Self {
            sender: Interface::find(sender, sender_name)?,
            receiver: Interface::find(receiver, receiver_name)?,
        };
        pair.sender.wait_until_running()?;
        pair.receiver.wait_until_running()?;

        Ok(pair)
    }
}

/// A socket for queries about interfaces of the namespace, from any thread.
pub(crate) fn control_socket(namespace: &Namespace) -> Result<OwnedFd, SetupError> {
    let open = || socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    namespace
        .run_in(open)?
        .map_err(|errno| SetupError::Namespace { what: "open a socket in", source: errno.into() })
}

/// Runs `ip` with these arguments in the namespace.
pub(crate) fn ip(namespace: &Namespace, arguments: &[&str]) -> Result<(), SetupError> {
    run_tool(namespace, "ip", arguments)
}

/// Runs a command in the namespace.
///
/// # Errors
///
/// [`SetupError::Tool`] if it cannot be started, [`SetupError::Command`] if it fails.
pub fn run_tool(namespace: &Namespace, tool: &str, arguments: &[&str]) -> Result<(), SetupError> {
    let output = namespace
        .run_in(|| Command::new(tool).args(arguments).output())?
        .map_err(|source| SetupError::Tool { tool: tool.to_owned(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(SetupError::Command { command: format!("{tool} {}", arguments.join(" ")), message })
}
