//! What a capture puts on an interface: its program, and the map of its sockets.

use std::sync::Arc;

use crate::bpf::{BpfError, Map, MapKind};
use crate::device::Device;
use crate::error::OpenError;
use crate::program::{self, Plan};
use crate::ring::StampSource;
use crate::stamps::{NoStamps, ProgramStamps};
use crate::steer::Steering;
use crate::sys::promiscuous::Promiscuous;
use crate::sys::wait_for_running_programs;
use crate::sys::xdp::XdpSocket;
use crate::xdp::claim::Claim;
use crate::xdp::ladder::Ladder;
use crate::xdp::place::Place;
use crate::xdp::{Settings, refused, system};

/// What a capture has put on an interface: the program, and the map of its sockets. All of it is held
/// by descriptors, so the kernel removes it whatever way the process ends.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// The keys in use.
    keys: Vec<u32>,
    sockets: Map,
    place: Place,
    pub(super) stamps: Arc<dyn StampSource>,
    _promiscuous: Option<Promiscuous>,
    _claims: Vec<Claim>,
}

impl Attachment {
    /// Attaches the program, without sockets yet: everything passes.
    pub(super) fn new(
        device: &Device,
        steering: &Steering,
        settings: &Settings,
        ladder: &mut Ladder<'_>,
    ) -> Result<Self, OpenError> {
        let failed = |source| refused(device, source);
        let turn = Claim::turn(device)?;
        let claims = steering.queues().iter().map(|&queue| Claim::queue(device, queue));
        let claims = claims.collect::<Result<Vec<_>, _>>()?;
        let sockets = Map::create(MapKind::Xskmap, "wirecap_sockets", 4, steering.keys(device.rx_queues));
        let sockets = sockets.map_err(failed)?;
        let stamp_failed = settings
            .timestamps
            .then(|| Map::create(MapKind::Array, "wirecap_nostamp", 4, 1))
            .transpose()
            .map_err(failed)?;
        let promiscuous = settings
            .promiscuous
            .then(|| Promiscuous::join(device.index))
            .transpose()
            .map_err(|source| system("set the interface to promiscuous mode", source))?;
        let place = Place::take(ladder, steering.queues(), |array| {
            program::load(&Plan {
                array,
                sockets: &sockets,
                steering,
                rx_queues: device.rx_queues,
                stamp_failed: stamp_failed.as_ref(),
            })
        })?;
        let kept = claims.iter().try_for_each(|claim| claim.keep(place.array()));
        kept.map_err(|source| system("claim a receive queue by a socket", source))?;
        drop(turn);
        let stamps: Arc<dyn StampSource> = match stamp_failed {
            Some(map) => Arc::new(ProgramStamps::new(map)),
            None => Arc::new(NoStamps),
        };
        let keys = steering.queues().iter().zip(steering.rings_of_queues());
        let keys = keys.flat_map(|(&queue, rings)| (0..rings).map(move |part| steering.key(queue, part)));
        Ok(Self { keys: keys.collect(), sockets, place, stamps, _promiscuous: promiscuous, _claims: claims })
    }

    /// From now on the packets of the ring with this key go to `socket`.
    pub(super) fn receive(&self, key: u32, socket: &XdpSocket) -> Result<(), BpfError> {
        self.sockets.update_fd(key, socket)
    }

    /// Lets packets pass to the host again. When it returns, the last packet is in its ring.
    pub(crate) fn detach(self) {
        drop(self);
        wait_for_running_programs();
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        for &key in &self.keys {
            // Fails only where the socket is gone already.
            let _ = self.sockets.delete(key);
        }
        // Before others may claim the queues, whose slots are theirs then.
        self.place.leave();
    }
}
