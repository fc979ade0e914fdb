//! Sender and receiver on AF_PACKET: any bytes, one system call per frame, through the host's
//! stack.

use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{self, Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::{Interface, SendError, SetupError, sys};

/// Maximum time for which an interface may have no room for a frame.
const FULL_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends frames of any content on an interface. On a veth the hash of the flow selects the queue.
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
        let socket =
            interface.namespace.run_in(|| sys::sending_packet_socket(interface.index))?.map_err(
                |source| SetupError::interface(&interface.name, "open a packet socket on", source),
            )?;

        // A device whose queue has stopped keeps its frames, and the socket's buffer stays full.
        set_socket_timeout(&socket, Timeout::Send, Some(FULL_TIMEOUT)).map_err(|errno| {
            SetupError::interface(
                &interface.name,
                "limit the waiting on",
                std::io::Error::from(errno),
            )
        })?;
        Ok(Self { interface: interface.name.clone(), socket, sent: 0 })
    }

    /// As [`on`](Self::on), bypassing the interface's queueing discipline: without a carrier, the
    /// discipline accepts frames and drops them, whereas the driver rejects them.
    ///
    /// # Errors
    ///
    /// As [`on`](Self::on).
    pub fn direct(interface: &Interface) -> Result<Self, SetupError> {
        let sender = Self::on(interface)?;
        let bypassing = sys::bypass_queueing_discipline(&sender.socket);
        bypassing.map_err(|source| {
            SetupError::interface(&interface.name, "open a packet socket on", source)
        })?;
        Ok(sender)
    }

    /// Sends one frame, Ethernet header included. Waits while there is no room for it: the ring of
    /// a veth's other end stays full until its processor empties it. Each attempt counts as
    /// `tx_dropped`.
    ///
    /// # Errors
    ///
    /// [`SendError::Socket`] if the frame is too long, the interface is down, or (ENOBUFS, EAGAIN)
    /// it has no room for long.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        let mut deadline = None;
        while let Err(errno) = self.try_send(frame) {
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + FULL_TIMEOUT);
            if errno != Errno::NOBUFS || Instant::now() > deadline {
                return Err(self.refused(frame, errno));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// As [`send`](Self::send), without waiting for room.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), with ENOBUFS at once.
    pub fn send_now(&mut self, frame: &[u8]) -> Result<(), SendError> {
        self.try_send(frame).map_err(|errno| self.refused(frame, errno))
    }

    fn try_send(&mut self, frame: &[u8]) -> Result<(), Errno> {
        send(&self.socket, frame, SendFlags::empty())?;
        self.sent += 1;
        Ok(())
    }

    fn refused(&self, frame: &[u8], errno: Errno) -> SendError {
        let interface = self.interface.clone();
        let frame_bytes = frame.len();
        SendError::Socket { interface, frame_bytes, source: errno.into() }
    }

    /// Number of frames that the kernel has accepted.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

/// Buffer for frames that were not received yet; each takes more than a page.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;
/// The longest frame that a packet socket delivers.
const FRAME_BYTES_MAX: usize = 1 << 16;

/// Receives the frames that an interface hands to its host's stack, as a reference for tests.
///
/// They lack their VLAN tag, which the stack has removed before.
#[derive(Debug)]
pub struct PacketReceiver {
    interface: String,
    socket: OwnedFd,
    frame: Vec<u8>,
}

impl PacketReceiver {
    /// Opens a socket that receives from now on.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if the privilege is missing.
    pub fn on(interface: &Interface) -> Result<Self, SetupError> {
        let open = || -> io::Result<_> {
            let socket = sys::receiving_packet_socket(interface.index)?;
            sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES)?;
            Ok(socket)
        };
        let socket = interface.namespace.run_in(open)?.map_err(|source| {
            SetupError::interface(&interface.name, "open a packet socket on", source)
        })?;
        Ok(Self { interface: interface.name.clone(), socket, frame: vec![0; FRAME_BYTES_MAX] })
    }

    /// The next frame, Ethernet header included; `None` if no frame arrives in this time.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if the interface is down or gone.
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<&[u8]>, SetupError> {
        // The kernel interprets a timeout of zero as no timeout.
        let timeout = Some(timeout.max(Duration::from_micros(1)));
        let received = sockopt::set_socket_timeout(&self.socket, sockopt::Timeout::Recv, timeout)
            .and_then(|()| {
                retry_on_intr(|| recv(&self.socket, &mut self.frame, RecvFlags::empty()))
            });
        match received {
            Ok((frame_bytes, _)) => Ok(Some(&self.frame[..frame_bytes])),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(SetupError::interface(&self.interface, "receive from", errno)),
        }
    }
}
