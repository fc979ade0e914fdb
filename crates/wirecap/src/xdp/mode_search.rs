//! The ways in which AF_XDP receives packets (receive modes), and the search for the best one that
//! an interface supports.

use std::io;

use crate::device::{Device, ReceiveMode};
use crate::error::OpenError;
use crate::names::RingName;
use crate::sys::xdp::{BindMode, XdpSocket};
use crate::xdp::reopen::{Refusal, Reopen};
use crate::xdp::sizes::{ONE_CELL_MTU, buffers_per_frame, cells_per_frame};

/// The search for the receive mode of an interface's queues.
pub(super) struct ModeSearch<'a> {
    pub(super) device: &'a Device,
    /// The longest frames do not fit a cell.
    has_long_frames: bool,
    /// They do not fit the device's buffers with zero-copy.
    has_several_buffers: bool,
    pub(super) receive_mode: ReceiveMode,
    pub(super) missed: Vec<(ReceiveMode, String)>,
}

impl<'a> ModeSearch<'a> {
    pub(super) fn new(device: &'a Device, cell_bytes: u32) -> Self {
        let has_long_frames = cells_per_frame(device, cell_bytes) > 1;
        let has_several_buffers = buffers_per_frame(device, cell_bytes) > 1;
        Self {
            device,
            has_long_frames,
            has_several_buffers,
            receive_mode: ReceiveMode::ZeroCopy,
            missed: Vec::new(),
        }
    }

    /// For queues that are added to an interface that uses `receive_mode`.
    pub(super) fn at(device: &'a Device, cell_bytes: u32, receive_mode: ReceiveMode) -> Self {
        Self { receive_mode, ..Self::new(device, cell_bytes) }
    }

    fn miss(&mut self, receive_mode: ReceiveMode, reason: String) {
        if self.missed.iter().all(|(missed, _)| *missed != receive_mode) {
            self.missed.push((receive_mode, reason));
        }
    }

    /// Takes the lowest receive mode, as the program is in the network stack.
    pub(super) fn not_native(&mut self, reason: String) {
        self.miss(ReceiveMode::ZeroCopy, reason.clone());
        self.miss(ReceiveMode::NativeCopy, reason);
        self.receive_mode = ReceiveMode::Generic;
    }

    /// Binds with zero-copy if that is possible, else with a copy.
    pub(super) fn bind(&mut self, socket: &XdpSocket, ring: &RingName) -> Result<(), OpenError> {
        if self.receive_mode == ReceiveMode::ZeroCopy {
            // A driver that supports fragments may be slower if they are enabled.
            let mode = BindMode { zero_copy: true, fragments: self.has_several_buffers };
            match socket.bind(self.device.index, ring.queue, mode) {
                // Drivers have many reasons, none of which applies with a copy.
                Err(error) if !is_in_use(&error) => {
                    let reason = self.zero_copy_reason(&error, ring);
                    self.miss(ReceiveMode::ZeroCopy, reason);
                    self.receive_mode = ReceiveMode::NativeCopy;
                }
                outcome => return outcome.map_err(|source| refusal_to_bind(ring, source)),
            }
        }
        self.bind_with_copy(socket, ring)
    }

    /// Binds to the UMEM of a bound socket, with that socket's receive mode.
    pub(super) fn bind_sharing(
        &mut self,
        socket: &XdpSocket,
        first: (&XdpSocket, ReceiveMode),
        ring: &RingName,
    ) -> Result<(), Refusal> {
        let (first, receive_mode) = first;
        if receive_mode != ReceiveMode::ZeroCopy {
            self.copy_because("it shares its cells with rings without zero-copy");
        }

        match socket.bind_beside(first, self.device.index, ring.queue) {
            Err(error) if receive_mode == ReceiveMode::ZeroCopy && !is_in_use(&error) => {
                let reason = self.zero_copy_reason(&error, ring);
                Err(Reopen::Copy { reason: format!("{}: {reason}", self.device.name) }.into())
            }
            bound => Ok(bound.map_err(|source| refusal_to_bind(ring, source))?),
        }
    }

    /// Why the kernel refused zero-copy on `ring`.
    fn zero_copy_reason(&self, error: &io::Error, ring: &RingName) -> String {
        let mtu = self.device.mtu;
        match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) if self.has_several_buffers => {
                format!("the driver has none for frames of several cells, as at an MTU of {mtu}")
            }
            Some(libc::EOPNOTSUPP) => "the driver has no zero-copy AF_XDP".to_owned(),
            _ => format!("the driver refused zero-copy on {ring}: {error}"),
        }
    }

    /// Gives up zero-copy.
    pub(super) fn copy_because(&mut self, reason: &str) {
        if self.receive_mode == ReceiveMode::ZeroCopy {
            self.miss(ReceiveMode::ZeroCopy, reason.to_owned());
            self.receive_mode = ReceiveMode::NativeCopy;
        }
    }

    /// Enables fragments, which costs nothing here: packets longer than the MTU that the host has
    /// merged arrive completely. Linux before 6.6 has no fragments.
    fn bind_with_copy(&self, socket: &XdpSocket, ring: &RingName) -> Result<(), OpenError> {
        let bind = |fragments| {
            let mode = BindMode { zero_copy: false, fragments };
            socket.bind(self.device.index, ring.queue, mode)
        };
        match bind(true) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => match bind(false) {
                Ok(()) if self.has_long_frames => Err(OpenError::MtuTooLarge {
                    interface: self.device.name.clone(),
                    mtu: self.device.mtu,
                    max_mtu: ONE_CELL_MTU,
                }),
                outcome => outcome.map_err(|source| refusal_to_bind(ring, source)),
            },
            outcome => outcome.map_err(|source| refusal_to_bind(ring, source)),
        }
    }
}

pub(super) fn refusal_to_bind(ring: &RingName, source: io::Error) -> OpenError {
    OpenError::Bind { ring: ring.clone(), source }
}

/// Whether the queue is in use, which would also prevent a copy.
fn is_in_use(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}
