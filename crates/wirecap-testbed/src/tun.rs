//! A tunnel interface whose other end is this process: an interface without Ethernet headers.

use std::fs::File;
use std::io::Write;

use wirecap_send::run_tool;

use crate::tap::{TapKind, open_tap};
use crate::{Namespace, SendError, SetupError};

/// A TUN interface. Dropping it removes the interface.
#[derive(Debug)]
pub struct Tun {
    namespace: Namespace,
    name: String,
    device: File,
}

impl Tun {
    /// Creates an interface of this name, which is down.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if the kernel has no TUN driver, or the name is in use.
    pub fn new(namespace: &Namespace, name: &str) -> Result<Self, SetupError> {
        let device = open_tap(namespace, name, TapKind::Tun)?;
        Ok(Self { namespace: namespace.clone(), name: name.to_owned(), device })
    }

    /// Sets it up; it has a carrier.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if `ip` is missing.
    pub fn set_up(&self) -> Result<(), SetupError> {
        run_tool(&self.namespace, "ip", &["link", "set", &self.name, "addrgenmode", "none", "up"])
    }

    /// Makes the interface receive an IP packet.
    ///
    /// # Errors
    ///
    /// [`SendError`] if it is down.
    pub fn receive(&mut self, packet: &[u8]) -> Result<(), SendError> {
        let sent = self.device.write_all(packet);
        let interface = self.name.clone();
        let frame_bytes = packet.len();
        sent.map_err(|source| SendError::Socket { interface, frame_bytes, source })
    }
}
