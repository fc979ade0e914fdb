//! Ways out.

use crate::{AfXdpSender, Interface, KernelSender, SendError, SetupError};

/// What frames leave through.
pub trait Outlet: Send {
    /// Number of queues, counted from 0.
    fn queue_count(&self) -> usize;

    /// Takes a frame for a queue, and sends it soon.
    ///
    /// # Errors
    ///
    /// [`SendError`] if the kernel accepts no more.
    fn push(&mut self, queue: u32, frame: &[u8]) -> Result<(), SendError>;

    /// Hands all pushed frames to the kernel.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    fn hand_over(&mut self) -> Result<(), SendError>;

    /// As [`hand_over`](Self::hand_over), and waits until the kernel has completed all frames.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    fn finish(&mut self) -> Result<(), SendError>;
}

/// AF_XDP sockets on the first queues of an interface: frames of any content, each on a selected
/// queue.
#[derive(Debug)]
pub struct XdpOutlet {
    senders: Vec<AfXdpSender>,
}

impl XdpOutlet {
    /// Opens sockets on queues 0 to `queue_count` - 1.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if a queue does not exist or is in use, or the privilege is missing.
    pub fn on(interface: &Interface, queue_count: u32) -> Result<Self, SetupError> {
        let senders = (0..queue_count).map(|queue| AfXdpSender::on(interface, queue));
        Ok(Self { senders: senders.collect::<Result<_, _>>()? })
    }
}

impl Outlet for XdpOutlet {
    fn queue_count(&self) -> usize {
        self.senders.len()
    }

    fn push(&mut self, queue: u32, frame: &[u8]) -> Result<(), SendError> {
        self.senders[queue as usize].send(frame)
    }

    fn hand_over(&mut self) -> Result<(), SendError> {
        self.senders.iter_mut().try_for_each(AfXdpSender::hand_over)
    }

    fn finish(&mut self) -> Result<(), SendError> {
        self.senders.iter_mut().try_for_each(AfXdpSender::flush)
    }
}

/// Frames copied from a map inside the kernel: several times as fast as [`XdpOutlet`], on one
/// queue, and only to receivers of XDP frames. The sending thread is bound to a CPU.
#[derive(Debug)]
pub struct KernelOutlet {
    sender: KernelSender,
}

impl KernelOutlet {
    /// The longest frame that it can send, in bytes.
    pub const FRAME_BYTES_MAX: usize = KernelSender::FRAME_BYTES_MAX;

    /// Prepares to send on queue 0.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if no CPU of this process sends to the queue, or the privilege is missing.
    pub fn on(interface: &Interface) -> Result<Self, SetupError> {
        Ok(Self { sender: KernelSender::on(interface, 0)? })
    }
}

impl Outlet for KernelOutlet {
    fn queue_count(&self) -> usize {
        1
    }

    fn push(&mut self, _queue: u32, frame: &[u8]) -> Result<(), SendError> {
        self.sender.send(frame)
    }

    fn hand_over(&mut self) -> Result<(), SendError> {
        self.sender.flush()
    }

    fn finish(&mut self) -> Result<(), SendError> {
        self.sender.flush()
    }
}

impl<O: Outlet + ?Sized> Outlet for Box<O> {
    fn queue_count(&self) -> usize {
        (**self).queue_count()
    }

    fn push(&mut self, queue: u32, frame: &[u8]) -> Result<(), SendError> {
        (**self).push(queue, frame)
    }

    fn hand_over(&mut self) -> Result<(), SendError> {
        (**self).hand_over()
    }

    fn finish(&mut self) -> Result<(), SendError> {
        (**self).finish()
    }
}
