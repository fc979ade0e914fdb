//! What a capture puts on an interface: its program, and the map of its sockets.

use std::sync::Arc;

use crate::bpf::{BpfError, Map, MapKind};
use crate::clock::Clock;
use crate::device::{Device, Rung};
use crate::error::OpenError;
use crate::program::{self, Plan, Stamping};
use crate::ring::StampSource;
use crate::stamps::{NoStamps, ProgramStamps};
use crate::steer::Steering;
use crate::sync::{Mutex, lock};
use crate::sys::promiscuous::Promiscuous;
use crate::sys::wait_for_running_programs;
use crate::sys::xdp::XdpSocket;
use crate::time::Timestamps;
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
    pub(super) place: SharedPlace,
    pub(super) stamps: Arc<dyn StampSource>,
    /// Whose times the program looks up.
    pub(super) timestamps: Timestamps,
    _clock: Clock,
    _promiscuous: Option<Promiscuous>,
    claims: Vec<Claim>,
}

/// A place that can be left while others have a look at it. None when it was left.
pub(super) type SharedPlace = Arc<Mutex<Option<Place>>>;

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
        let has_timestamps = settings.timestamps != Timestamps::None;
        let stamps = has_timestamps.then(ProgramStamps::new).transpose().map_err(failed)?;
        let clock = Clock::new(settings.timestamps, device);
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
                stamping: stamps.as_ref().map(|stamps| Stamping { clock: &clock, failed: stamps.failed() }),
            })
        })?;
        drop(turn);
        if ladder.rung == Rung::Generic {
            // It also sees packets that come in no batch.
            clock.read_for_each_packet().map_err(failed)?;
        }
        let timestamps = if has_timestamps { clock.timestamps() } else { Timestamps::None };
        let stamps: Arc<dyn StampSource> = match stamps {
            Some(stamps) => Arc::new(stamps),
            None => Arc::new(NoStamps),
        };
        let keys = steering.queues().iter().zip(steering.rings_of_queues());
        let keys = keys.flat_map(|(&queue, rings)| (0..rings).map(move |part| steering.key(queue, part)));
        Ok(Self {
            keys: keys.collect(),
            sockets,
            place: Arc::new(Mutex::new(Some(place))),
            stamps,
            timestamps,
            _clock: clock,
            _promiscuous: promiscuous,
            claims,
        })
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
        let mut place = lock(&self.place);
        if let Some(place) = &mut *place {
            place.leave();
        }
        // Between the slots and their array, for the reasons that `place` gives.
        self.claims.clear();
        *place = None;
    }
}
