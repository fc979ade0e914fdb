//! What a capture puts on an interface: its program, and the map of its sockets.

use std::sync::Arc;

use crate::bpf::{BpfError, Link, Map, MapKind};
use crate::device::Device;
use crate::error::{FilterChangeError, OpenError};
use crate::filter::Filter;
use crate::program::{self, Plan};
use crate::ring::{StampSource, UmemRing};
use crate::sieve::{Check, UserFilter};
use crate::stamps::{NoStamps, ProgramStamps};
use crate::steer::Steering;
use crate::sys::promiscuous::Promiscuous;
use crate::sys::wait_for_running_programs;
use crate::sys::xdp::XdpSocket;
use crate::xdp::ladder::Ladder;
use crate::xdp::{Settings, refused, system};

/// What a capture has put on an interface: the program, and the map of its sockets. All of it is held
/// by descriptors, so the kernel removes it whatever way the process ends.
#[derive(Debug)]
pub(crate) struct Attachment {
    link: Link,
    sockets: Map,
    pub(super) stamps: Arc<dyn StampSource>,
    /// The keys in use.
    keys: Vec<u32>,
    rings: Vec<Arc<UmemRing>>,
    device: Device,
    _promiscuous: Option<Promiscuous>,
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
        let sockets = Map::create(MapKind::Xskmap, "wirecap_sockets", 4, steering.keys(device.rx_queues));
        let sockets = sockets.map_err(failed)?;
        let stamp_failed = settings
            .timestamps
            .then(|| Map::create(MapKind::Array, "wirecap_nostamp", 4, 1))
            .transpose()
            .map_err(failed)?;
        let program = program::load(&Plan {
            sockets: &sockets,
            steering,
            rx_queues: device.rx_queues,
            stamp_failed: stamp_failed.as_ref(),
        })
        .map_err(failed)?;
        let stamps: Arc<dyn StampSource> = match stamp_failed {
            Some(map) => Arc::new(ProgramStamps::new(map)),
            None => Arc::new(NoStamps),
        };
        let promiscuous = settings
            .promiscuous
            .then(|| Promiscuous::join(device.index))
            .transpose()
            .map_err(|source| system("set the interface to promiscuous mode", source))?;
        let link = ladder.attach(&program).map_err(failed)?;
        let keys = steering.queues().iter().zip(steering.rings_of_queues());
        let keys = keys.flat_map(|(&queue, rings)| (0..rings).map(move |part| steering.key(queue, part)));
        let keys = keys.collect();
        let device = device.clone();
        Ok(Self { link, sockets, stamps, keys, rings: Vec::new(), device, _promiscuous: promiscuous })
    }

    /// Has `filter` decide, if there is one, on what comes to `rings`.
    pub(super) fn filter(
        &mut self,
        rings: &[Arc<UmemRing>],
        filter: Option<&Filter>,
    ) -> Result<(), FilterChangeError> {
        self.rings = rings.to_vec();
        filter.map_or(Ok(()), |filter| self.set_filter(filter))
    }

    /// From now on the packets that `filter` wants are captured.
    pub(crate) fn set_filter(&mut self, filter: &Filter) -> Result<(), FilterChangeError> {
        let unsupported =
            |source| FilterChangeError::Unsupported { interface: self.device.name.clone(), source };
        let filter = UserFilter::new(filter, &self.device).map_err(unsupported)?;
        for ring in &self.rings {
            ring.begin_change(filter.clone());
            ring.settle(Check::Everything(filter.clone()));
        }
        Ok(())
    }

    /// Why user space decides on every packet, if it does.
    pub(crate) fn filters_in_user_space(&self) -> Option<&str> {
        None
    }

    /// From now on the packets of the ring with this key go to `socket`.
    pub(super) fn receive(&self, key: u32, socket: &XdpSocket) -> Result<(), BpfError> {
        self.sockets.update_fd(key, socket)
    }

    /// Lets packets pass to the host again. When it returns, the last packet is in its ring.
    pub(crate) fn detach(self) {
        for &key in &self.keys {
            // Fails only where the socket is gone already.
            let _ = self.sockets.delete(key);
        }
        drop(self.link);
        wait_for_running_programs();
    }
}
