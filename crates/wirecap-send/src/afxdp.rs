//! A sender on AF_XDP: any bytes, on a selected queue.
//!
//! It deliberately shares no code with the engine, because tests compare the engine with it.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::sys::{CELL_BYTES, XdpTxSocket};
use crate::{Interface, SendError, SetupError};

/// Number of cells that are handed over together.
const CELLS_PER_KICK: usize = 64;
/// Maximum time for which the kernel may hold all cells; then sending fails.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time for which a queue may stay busy.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends frames of any content and length on a queue of an interface. Frames sent on queue k of a
/// veth arrive on queue k of its peer, in order.
///
/// Frames may be lost at the peer's ring: the interface counts them as `tx_dropped`.
#[derive(Debug)]
pub struct AfXdpSender {
    interface: Interface,
    socket: XdpTxSocket,
    sent: u64,
}

impl AfXdpSender {
    /// Opens a sender on this queue.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if the queue does not exist or is in use, or the privilege is missing.
    pub fn on(interface: &Interface, queue: u32) -> Result<Self, SetupError> {
        let several_cells = interface.frame_bytes_max() > CELL_BYTES;
        let open = || XdpTxSocket::open(interface.index, queue, several_cells);
        let socket = interface.namespace.run_in(|| retry_while_busy(open))?;
        socket.map(|socket| Self { interface: interface.clone(), socket, sent: 0 }).map_err(
            |source| SetupError::interface(&interface.name, "open an AF_XDP socket on", source),
        )
    }

    /// Takes a frame, Ethernet header included, and hands it to the kernel together with others:
    /// see [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// [`SendError`] if the frame is empty or too long for the interface, or it is down.
    pub fn send(&mut self, frame: &[u8]) -> Result<(), SendError> {
        // Four additional bytes for a VLAN tag.
        if frame.is_empty() || frame.len() > self.interface.frame_bytes_max() + 4 {
            return Err(self.socket_error(frame.len(), Errno::MSGSIZE));
        }
        if !self.socket.has_room_for(frame.len()) {
            self.flush_until(|socket| socket.has_room_for(frame.len()), frame.len())?;
        }
        self.socket.push(frame);
        self.sent += 1;
        if self.socket.unpublished() >= CELLS_PER_KICK { self.kick(frame.len()) } else { Ok(()) }
    }

    /// Waits until the kernel has completed all frames taken so far.
    ///
    /// # Errors
    ///
    /// [`SendError`] if the interface is down or the kernel accepts no more frames.
    pub fn flush(&mut self) -> Result<(), SendError> {
        self.flush_until(|socket| socket.in_flight() == 0, 0)
    }

    /// Hands all frames taken so far to the kernel, without waiting for their completion.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush).
    pub fn hand_over(&mut self) -> Result<(), SendError> {
        self.flush_until(|socket| socket.unpublished() == 0 && socket.untaken() == 0, 0)
    }

    /// Number of frames taken.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Calls the kernel to send until the socket is in the required state.
    fn flush_until(
        &mut self,
        is_done: impl Fn(&XdpTxSocket) -> bool,
        frame_bytes: usize,
    ) -> Result<(), SendError> {
        let deadline = Instant::now() + STALL_TIMEOUT;

        while !is_done(&self.socket) {
            self.kick(frame_bytes)?;
            if Instant::now() > deadline {
                let interface = self.interface.name.clone();
                let in_flight = self.socket.in_flight();
                return Err(SendError::Stalled { interface, in_flight });
            }
        }
        Ok(())
    }

    /// Publishes the pushed frames, lets the kernel send some of them, and takes back completed
    /// cells.
    fn kick(&mut self, frame_bytes: usize) -> Result<(), SendError> {
        self.socket.publish();
        let kicked = send(self.socket.fd(), &[], SendFlags::DONTWAIT);
        self.socket.reclaim();
        match kicked {
            // EAGAIN: more frames remain. EBUSY: a frame was lost at the peer's ring, or the queue
            // is momentarily locked. ENOBUFS: no memory at the moment.
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => Ok(()),
            Err(errno) => Err(self.socket_error(frame_bytes, errno)),
        }
    }

    fn socket_error(&self, frame_bytes: usize, errno: Errno) -> SendError {
        SendError::Socket {
            interface: self.interface.name.clone(),
            frame_bytes,
            source: errno.into(),
        }
    }
}

/// A queue stays busy for some milliseconds after its last socket was closed, on a busy machine
/// longer.
fn retry_while_busy<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + BUSY_TIMEOUT;
    loop {
        match open() {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline =>
            {
                thread::sleep(Duration::from_millis(2));
            }
            outcome => return outcome,
        }
    }
}
