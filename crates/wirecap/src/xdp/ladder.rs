//! The ways in which AF_XDP receives packets, and finding the best that an interface has.

use std::io;

use crate::bpf::{self, BpfError, Link, Program};
use crate::device::{Device, Rung, XdpMode};
use crate::error::OpenError;
use crate::names::RingName;
use crate::sys::xdp::{BindMode, XdpSocket};
use crate::xdp::sizes::{ONE_CELL_MTU, cells_per_frame};

/// How far down the ladder the interface's queues had to go.
pub(super) struct Ladder<'a> {
    pub(super) device: &'a Device,
    /// The longest frames do not fit a cell.
    has_long_frames: bool,
    pub(super) rung: Rung,
    pub(super) missed: Vec<(Rung, String)>,
}

impl<'a> Ladder<'a> {
    pub(super) fn new(device: &'a Device, cell_bytes: u32) -> Self {
        let has_long_frames = cells_per_frame(device, cell_bytes) > 1;
        Self { device, has_long_frames, rung: Rung::ZeroCopy, missed: Vec::new() }
    }

    /// For queues that come later, on an interface that was as far down as `rung`.
    pub(super) fn at(device: &'a Device, cell_bytes: u32, rung: Rung) -> Self {
        Self { rung, ..Self::new(device, cell_bytes) }
    }

    fn miss(&mut self, rung: Rung, reason: String) {
        if self.missed.iter().all(|(missed, _)| *missed != rung) {
            self.missed.push((rung, reason));
        }
    }

    /// Attaches `program` in the driver if that is possible, else in the network stack.
    pub(super) fn attach(&mut self, program: &Program) -> Result<Link, BpfError> {
        match Link::attach_xdp(program, self.device.index, bpf::XdpMode::Native) {
            Err(error) if is_refusal_by_driver(&error) => {
                let reason = match (error.errno(), error.reason()) {
                    (Some(libc::EOPNOTSUPP), _) => "the driver has no native XDP".to_owned(),
                    (_, Some(reason)) => format!("the driver has no native XDP now: {reason}"),
                    _ => format!("the driver has no native XDP at an MTU of {}", self.device.mtu),
                };
                self.miss(Rung::ZeroCopy, reason.clone());
                self.miss(Rung::NativeCopy, reason);
                self.rung = Rung::Generic;
                Link::attach_xdp(program, self.device.index, bpf::XdpMode::Generic)
            }
            outcome => outcome,
        }
    }

    /// Takes the rung on which another capture has attached its program already.
    pub(super) fn join(&mut self, mode: XdpMode) {
        if mode == XdpMode::Generic {
            let reason = "another capture on the interface has attached its program to the network stack";
            self.miss(Rung::ZeroCopy, reason.to_owned());
            self.miss(Rung::NativeCopy, reason.to_owned());
            self.rung = Rung::Generic;
        }
    }

    /// Binds with zero-copy if that is possible, else with a copy.
    pub(super) fn bind(&mut self, socket: &XdpSocket, ring: &RingName) -> Result<(), OpenError> {
        if self.rung == Rung::ZeroCopy {
            // A driver that can receive fragments may be slower when it is asked to.
            let mode = BindMode { zero_copy: true, fragments: self.has_long_frames };
            match socket.bind(self.device.index, ring.queue, mode) {
                Err(error) if is_refusal_of_zero_copy(&error) => {
                    self.miss(Rung::ZeroCopy, zero_copy_reason(&error, ring));
                    self.rung = Rung::NativeCopy;
                }
                outcome => return outcome.map_err(|source| refusal_to_bind(ring, source)),
            }
        }
        self.bind_with_copy(socket, ring)
    }

    /// Binds to receive into the cells of a socket that is bound, as that one does.
    pub(super) fn bind_sharing(
        &mut self,
        socket: &XdpSocket,
        first: (&XdpSocket, Rung),
        ring: &RingName,
    ) -> Result<(), OpenError> {
        let (first, rung) = first;
        if rung != Rung::ZeroCopy {
            self.copy_because("it shares its cells with rings that have none");
        }
        let bound = socket.bind_beside(first, self.device.index, ring.queue);
        bound.map_err(|source| refusal_to_bind(ring, source))
    }

    /// Gives up receiving without a copy.
    pub(super) fn copy_because(&mut self, reason: &str) {
        if self.rung == Rung::ZeroCopy {
            self.miss(Rung::ZeroCopy, reason.to_owned());
            self.rung = Rung::NativeCopy;
        }
    }

    /// Binds for fragments, which costs nothing here: packets that the host has joined to longer ones
    /// than the MTU come whole. Before Linux 6.6 there are none.
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

/// Whether the driver cannot have the program. Drivers that have no XDP, or not at this MTU or with these queues, have
/// several ways to say so; what is left are errors that another mode would meet as well.
fn is_refusal_by_driver(error: &BpfError) -> bool {
    const OTHER_CAUSES: [i32; 3] = [libc::ENODEV, libc::ENOMEM, libc::ENETDOWN];
    matches!(error, BpfError::Failed { .. } | BpfError::Refused { .. })
        && error.errno().is_some_and(|errno| !OTHER_CAUSES.contains(&errno))
}

/// Whether the driver cannot have zero-copy on a queue. virtio-net says ENOENT without the feature `queue_reset`.
fn is_refusal_of_zero_copy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOENT | libc::ENOSPC))
}

fn zero_copy_reason(error: &io::Error, ring: &RingName) -> String {
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "the driver has no zero-copy AF_XDP".to_owned(),
        _ => format!("the driver refused zero-copy on {ring}: {error}"),
    }
}
