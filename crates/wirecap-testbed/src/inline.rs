//! Two hosts and a box between them, for tests of forwarding: A - box - B.

use std::fs;
use std::process::{Command, Output};

use crate::{Interface, Namespace, SetupError, VethPair};

/// Two hosts in separate namespaces, each connected by a cable to the box in the middle.
///
/// Hosts are silent until they get [addresses](Self::add_addresses), and leave checksums to
/// hardware until told [otherwise](Host::set_checksum_offload).
#[derive(Clone, Debug)]
pub struct Inline {
    /// The host at the box's port `left`.
    pub left: Host,
    /// The host at the box's port `right`.
    pub right: Host,
    /// Where the box is.
    pub middle: Namespace,
}

/// A host, and the cable from it to the box.
#[derive(Clone, Debug)]
pub struct Host {
    /// The host's own end, `eth0`.
    pub interface: Interface,
    /// The box's end.
    pub port: Interface,
    /// The host's IPv4 address once it has addresses.
    pub ipv4: &'static str,
    /// The host's IPv6 address once it has addresses.
    pub ipv6: &'static str,
}

impl Inline {
    /// Creates the namespaces and the cables, with `queue_count` queues in each direction.
    ///
    /// # Errors
    ///
    /// As [`VethPair::new`].
    pub fn new(queue_count: u32, mtu_bytes: u32) -> Result<Self, SetupError> {
        let middle = Namespace::new()?;
        let host = |port, ipv4, ipv6| {
            let pair = VethPair::new(
                (&Namespace::new()?, "eth0"),
                (&middle, port),
                queue_count,
                mtu_bytes,
            )?;
            Ok::<_, SetupError>(Host { interface: pair.sender, port: pair.receiver, ipv4, ipv6 })
        };
        let left = host("left", "10.0.0.1", "fd00::1")?;
        let right = host("right", "10.0.0.2", "fd00::2")?;

        Ok(Self { left, right, middle })
    }

    /// Gives both hosts an address of IPv4 and one of IPv6 in the same networks. From then on they
    /// also send packets by themselves, which their interfaces' counters include.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if the kernel has no IPv6.
    pub fn add_addresses(&self) -> Result<(), SetupError> {
        [&self.left, &self.right].into_iter().try_for_each(Host::add_addresses)
    }

    /// Connects the ports by the kernel's bridge, which exists as long as the ports.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if the kernel has no bridges.
    pub fn bridge(&self) -> Result<(), SetupError> {
        let middle = &self.left.port;
        middle.ip(&["link", "add", "bridge", "type", "bridge"])?;
        middle.ip(&["link", "set", "bridge", "up"])?;
        [&self.left, &self.right].into_iter().try_for_each(|host| {
            host.port.ip(&["link", "set", &host.port.name, "master", "bridge"])
        })
    }

    /// Whether the hosts' stacks leave the checksums of TCP and UDP to hardware, which does not
    /// exist on a cable between namespaces.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if `ethtool` is missing.
    pub fn set_checksum_offload(&self, on: bool) -> Result<(), SetupError> {
        [&self.left, &self.right].into_iter().try_for_each(|host| host.set_checksum_offload(on))
    }
}

impl Host {
    fn add_addresses(&self) -> Result<(), SetupError> {
        let Interface { namespace, name, .. } = &self.interface;
        let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
        namespace
            .run_in(|| fs::write(path, "0"))?
            .map_err(|source| SetupError::interface(name, "turn on IPv6 on", source))?;
        self.interface.add_address(&format!("{}/24", self.ipv4))?;
        // Usable at once, without duplicate address detection: no other host can have it.
        self.interface.ip(&["address", "add", &format!("{}/64", self.ipv6), "dev", name, "nodad"])
    }

    /// As [`Inline::set_checksum_offload`], for this host.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if `ethtool` is missing.
    pub fn set_checksum_offload(&self, on: bool) -> Result<(), SetupError> {
        self.interface.set_feature("tx", on)
    }

    /// Runs a command on the host and waits for its end.
    ///
    /// # Errors
    ///
    /// [`SetupError::Tool`] if it cannot be started.
    pub fn run(&self, command: &mut Command) -> Result<Output, SetupError> {
        let tool = command.get_program().to_string_lossy().into_owned();
        let run = || command.output();
        self.interface.namespace.run_in(run)?.map_err(|source| SetupError::Tool { tool, source })
    }
}
