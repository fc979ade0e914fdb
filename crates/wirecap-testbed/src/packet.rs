//! A sender on AF_PACKET: any bytes, one system call per frame, through the stack's own queues.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{SendFlags, send};

use crate::{Interface, SendError, SetupError, sys};

/// Sends frames of any content on an interface. On a veth the flow's hash chooses the queue.
#[derive(Debug)]
pub struct PacketSender {
    interface: String,
    socket: OwnedFd,
    sent: u64,
}

impl PacketSender {
    /// Opens a socket that sends on the interface and receives nothing.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if the privilege is missing.
    pub fn on(interface: &Interface) -> Result<Self, SetupError> {
        let socket = interface
            .namespace
            .run_in(|| sys::packet_socket(interface.index))?
            .map_err(|source| SetupError::interface(&interface.name, "open a packet socket on", source))?;
        Ok(Self { interface: interface.name.clone(), socket, sent: 0 })
    }

    /// Sends one frame, Ethernet header included.
    ///
    /// # Errors
    ///
    /// [`SendError::Socket`] if the frame is too long, the interface is down, or (ENOBUFS) its queue
    /// is full.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        match send(&self.socket, frame, SendFlags::empty()) {
            Ok(_) => {
                self.sent += 1;
                Ok(())
            }
            Err(errno) => Err(SendError::Socket {
                interface: self.interface.clone(),
                frame_bytes: frame.len(),
                source: io::Error::from(errno),
            }),
        }
    }

    /// Number of frames that the kernel has taken.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}
