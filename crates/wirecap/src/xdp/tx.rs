//! The transmitting sockets of a capture that forwards.
//!
//! Each queue has one in addition to the receiving socket, because the latter is polled: polling
//! drives a tx ring in copy mode without reporting packets that the device rejected.

use std::sync::Arc;

use rustix::io::Errno;

use crate::device::{Device, DeviceSummary, ReceiveMode, XdpMode};
use crate::error::OpenError;
use crate::forward::{Outlet, TxOutlet};
use crate::kernel_ring::{Consumer, Producer};
use crate::names::RingName;
use crate::sys::xdp::Descriptor;
use crate::sys::xdp::XdpSocket;
use crate::umem::completion::CompletionRing;
use crate::umem::owners::Owners;
use crate::umem::tx::{CELLS_PER_KICK, Kicked, TxKernel, TxRing};
use crate::xdp::attach_lock;
use crate::xdp::claim::Claim;
use crate::xdp::link;
use crate::xdp::mode_search::{ModeSearch, refusal_to_bind};
use crate::xdp::place::{Place, Taken};
use crate::xdp::reopen::{Refusal, Reopen, why_copy};
use crate::xdp::{SharedUmem, system};

/// Slots of a tx ring.
const TX_SLOTS: u32 = 2048;
/// Slots of a completion ring: room for the cells of a full tx ring in addition to those of another
/// that were not taken yet.
pub(super) const COMPLETION_SLOTS: u32 = 2 * TX_SLOTS;

/// A socket that sends on a queue.
#[derive(Debug)]
pub(super) struct TxSocket {
    queue: u32,
    ring: Producer<Descriptor>,
    socket: XdpSocket,
}

impl TxSocket {
    fn new(queue: u32) -> Result<Self, OpenError> {
        let socket = XdpSocket::new().map_err(|source| system("open an AF_XDP socket", source))?;
        let ring = socket.make_tx_ring(TX_SLOTS);
        let ring = ring.map_err(|source| system("make the tx ring of an AF_XDP socket", source))?;
        // An older kernel is called twice as often.
        let _ = socket.set_frames_per_kick(CELLS_PER_KICK);
        Ok(Self { queue, ring, socket })
    }

    /// A socket on the queue of the ring `name`, whose socket `first` is bound; it uses the queue's
    /// completion ring.
    pub(super) fn beside(
        first: &XdpSocket,
        name: &RingName,
        device: &Device,
    ) -> Result<Self, OpenError> {
        let sender = Self::new(name.queue)?;
        let bound = sender.socket.bind_beside(first, device.index, name.queue);
        bound.map_err(|source| refusal_to_bind(name, source))?;
        Ok(sender)
    }
}

/// A tx ring whose cells' owners are not known yet.
#[derive(Debug)]
pub(crate) struct PreparedTx {
    pub(crate) queue: u32,
    ring: Producer<Descriptor>,
    kernel: Arc<TxSocketKernel>,
    completions: CompletionRing,
}

impl PreparedTx {
    /// Of a socket on the queue that has this completion ring.
    pub(super) fn new(socket: TxSocket, completions: Consumer<u64>) -> Self {
        let kernel = Arc::new(TxSocketKernel(socket.socket));
        let completions = CompletionRing::new(completions);
        Self { queue: socket.queue, ring: socket.ring, kernel, completions }
    }

    pub(crate) fn into_outlet(self, owners: &Arc<Owners>) -> Arc<dyn Outlet> {
        let ring = TxRing::new(Arc::clone(owners), self.completions, self.ring, self.kernel);
        Arc::new(TxOutlet::new(ring))
    }
}

/// The attachments to a transmit-only interface, besides the sockets.
#[derive(Debug)]
pub(crate) struct PortClaims {
    /// The program without which the driver cannot send. It is dropped before other captures may
    /// claim the queues.
    _place: Option<Place>,
    /// Keeps other captures off the queues.
    _claims: Vec<Claim>,
}

/// Opens `queues` of `device` for sending cells of `shared_umem`, some of whose rings are bound.
pub(crate) fn open_port(
    device: &Device,
    queues: &[u32],
    shared_umem: &SharedUmem,
) -> Result<(Vec<PreparedTx>, PortClaims), Refusal> {
    let summary = DeviceSummary::from(device);
    let turn = attach_lock::wait(&summary)?;
    let claims = queues.iter().map(|&queue| Claim::queue(&summary, queue));
    let claims = claims.collect::<Result<Vec<_>, _>>()?;
    let is_zero_copy = matches!(shared_umem.first.get(), Some((_, ReceiveMode::ZeroCopy)));
    let place = if is_zero_copy { enable_xdp(device, queues, &claims)? } else { None };

    drop(turn);
    let open = |&queue| open_queue(device, queue, shared_umem);
    let tx = queues.iter().map(open).collect::<Result<Vec<_>, Refusal>>()?;

    link::await_carrier(device)?;
    Ok((tx, PortClaims { _place: place, _claims: claims }))
}

/// Makes the driver create its rings for XDP; without them igb, for example, does not send with
/// zero-copy.
fn enable_xdp(device: &Device, queues: &[u32], claims: &[Claim]) -> Result<Option<Place>, Refusal> {
    if let Some(reason) = why_copy(device, None) {
        return Err(Reopen::Copy { reason }.into());
    }

    let summary = DeviceSummary::from(device);
    let Taken { place, not_native } = match Place::pass(&summary, queues) {
        Err(OpenError::OtherProgram { .. }) if has_native(&summary)? => {
            // Another program does as well.
            return Ok(None);
        }
        taken => taken?,
    };
    let kept = claims.iter().try_for_each(|claim| claim.keep(place.array()));
    kept.map_err(|source| system("bind the socket that claims a receive queue", source))?;

    if not_native.is_some() {
        let reason =
            format!("{} has no program in its driver and therefore cannot send", device.name);
        return Err(Reopen::Copy { reason }.into());
    }

    Ok(Some(place))
}

fn has_native(device: &DeviceSummary) -> Result<bool, OpenError> {
    Ok(device.attached_now()?.iter().any(|attached| attached.mode == XdpMode::Native))
}

fn open_queue(
    device: &Device,
    queue: u32,
    shared_umem: &SharedUmem,
) -> Result<PreparedTx, Refusal> {
    let (first, receive_mode) =
        shared_umem.first.get().expect("interfaces are captured from before others are sent on");
    let sender = TxSocket::new(queue)?;
    let rings = sender.socket.make_fill_and_completion_rings(1, COMPLETION_SLOTS);

    // No cells are posted here, and nothing is received.
    let (_, completions) =
        rings.map_err(|source| system("make the completion ring of an AF_XDP socket", source))?;
    let name = RingName::of_queue(&device.name, queue);
    let mut mode_search = ModeSearch::new(device, shared_umem.pool.geometry().cell_bytes);
    mode_search.bind_sharing(&sender.socket, (&first.socket, *receive_mode), &name)?;

    Ok(PreparedTx::new(sender, completions))
}

/// The kernel's side of a tx ring on a real interface.
#[derive(Debug)]
struct TxSocketKernel(XdpSocket);

impl TxKernel for TxSocketKernel {
    fn kick(&self) -> Kicked {
        match self.0.kick() {
            Ok(()) => Kicked::Done,
            Err(Errno::BUSY) => Kicked::Refused,
            // EINVAL: the driver currently has no program or no ring, because the device is being
            // restarted.
            Err(Errno::NETDOWN | Errno::INVAL) => Kicked::Down,
            Err(Errno::NXIO | Errno::NODEV) => Kicked::Gone,
            // EAGAIN; and without memory (ENOBUFS, ENOMEM) the descriptor stays on the ring.
            Err(_) => Kicked::More,
        }
    }

    fn bad_descriptors(&self) -> u64 {
        self.0.statistics().map_or(0, |statistics| statistics.tx_invalid_descs)
    }
}
