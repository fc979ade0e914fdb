//! What a capture puts on an interface: its program, and the map of its sockets.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use crate::bpf::{BpfError, Map, Program};
use crate::device::{Device, Rung};
use crate::error::{FilterChangeError, OpenError};
use crate::filter::{Filter, Unsupported};
use crate::sieve::{Check, UserFilter};
use crate::steer::Steering;
use crate::sys::promiscuous::Promiscuous;
use crate::sys::wait_for_running_programs;
use crate::sys::xdp::XdpSocket;
use crate::time::Timestamps;
use crate::umem::rx::{RxRing, StampSource};
use crate::xdp::blueprint::{Blueprint, Where};
use crate::xdp::claim::{Claim, Turn};
use crate::xdp::ladder::Ladder;
use crate::xdp::place::Place;
use crate::xdp::stamps::{NoStamps, ProgramStamps};
use crate::xdp::{Settings, refused, system};

/// What a capture has put on an interface: the program, and the map of its sockets. All of it is held
/// by descriptors, so the kernel removes it whatever way the process ends.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// The keys in use.
    keys: Vec<u32>,
    blueprint: Blueprint,
    place: Place,
    pub(super) stamps: Arc<dyn StampSource>,
    /// Whose times the program looks up.
    pub(super) timestamps: Timestamps,
    rings: Vec<Arc<RxRing>>,
    filters: Where,
    check: Check,
    /// The program in place turns nothing away.
    takes_everything: bool,
    /// One that turns nothing away, once another one was in place: whoever lost the right to load programs may
    /// still put this one back.
    unfiltered: Option<Program>,
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
        let turn = Claim::turn(device)?;
        let claims = steering.queues().iter().map(|&queue| Claim::queue(device, queue));
        let claims = claims.collect::<Result<Vec<_>, _>>()?;
        let blueprint =
            Blueprint::new(device, steering, settings).map_err(|source| refused(device, source))?;
        let promiscuous = settings
            .promiscuous
            .then(|| Promiscuous::join(device.index))
            .transpose()
            .map_err(|source| system("set the interface to promiscuous mode", source))?;
        let filter = settings.filter.as_ref();
        let filters = RefCell::new(Where::default());
        let is_bound = blueprint.clock.bound_to().is_some();
        let place = Place::take(ladder, steering.queues(), is_bound, |array| {
            let (program, place) = blueprint.load(array, filter)?;
            filters.replace(place);
            Ok(program)
        })?;
        let kept = claims.iter().try_for_each(|claim| claim.keep(place.array()));
        kept.map_err(|source| system("claim a receive queue by a socket", source))?;
        drop(turn);
        let filters = filters.into_inner();
        if ladder.rung == Rung::Generic {
            // It also sees packets that come in no batch.
            blueprint.clock.read_for_each_packet().map_err(|source| refused(device, source))?;
        }
        let check = blueprint.check(filter, &filters).map_err(|source| unsupported(device, source))?;
        let stamps: Arc<dyn StampSource> = match &blueprint.stamp_failed {
            Some(map) => {
                let stamps = ProgramStamps::new(is_bound, map);
                Arc::new(stamps.map_err(|source| system("map the map of missing times", source))?)
            }
            None => Arc::new(NoStamps),
        };
        let keys = steering.queues().iter().zip(steering.rings_of_queues());
        let keys = keys.flat_map(|(&queue, rings)| (0..rings).map(move |part| steering.key(queue, part)));
        let timestamps = blueprint.timestamps();
        Ok(Self {
            keys: keys.collect(),
            blueprint,
            place,
            timestamps,
            stamps,
            rings: Vec::new(),
            takes_everything: takes_everything(filter, &filters),
            filters,
            check,
            unfiltered: None,
            _promiscuous: promiscuous,
            _claims: claims,
        })
    }

    /// Counts by queue what the program turned away.
    pub(super) fn filtered(&self) -> &Arc<Map> {
        &self.blueprint.filtered
    }

    /// Has user space do on `rings` what the program leaves to it.
    pub(super) fn settle(&mut self, rings: &[Arc<RxRing>]) {
        self.rings = rings.to_vec();
        self.rings.iter().for_each(|ring| ring.settle(self.check.clone()));
    }

    /// From now on the packets that `filter` wants are captured.
    pub(crate) fn set_filter(&mut self, filter: &Filter, _turn: &Turn) -> Result<(), FilterChangeError> {
        let device = &self.blueprint.device;
        let failed = |source| FilterChangeError::Program { interface: device.name.clone(), source };
        let (program, filters) = self.blueprint.load(self.place.array(), Some(filter)).map_err(failed)?;
        let check = self.blueprint.check(Some(filter), &filters);
        let check = check.map_err(|source| unsupported(device, source))?;
        // What waits in the rings may have been let through for user space to decide on.
        if let Ok(filter) = UserFilter::new(filter, device) {
            self.rings.iter().for_each(|ring| ring.begin_change(filter.clone()));
        }
        let exchanged = self.place.exchange(program).map_err(failed);
        if exchanged.is_ok() {
            self.takes_everything = takes_everything(Some(filter), &filters);
            (self.filters, self.check) = (filters, check);
        }
        wait_for_running_programs();
        self.rings.iter().for_each(|ring| ring.settle(self.check.clone()));
        exchanged
    }

    /// From now on the program decides by `filter`, whatever `set_filter` said.
    pub(crate) fn run_in_kernel(&mut self, filter: &Filter, _turn: &Turn) -> io::Result<()> {
        let everything = filter.matches_everything();
        if everything && self.takes_everything {
            return Ok(());
        }
        let load = |filter| self.blueprint.load(self.place.array(), filter).map_err(io::Error::other);
        let unfiltered = match self.unfiltered.take() {
            Some(program) => program,
            None => load(None)?.0,
        };
        let unfiltered = self.unfiltered.insert(unfiltered);
        let program = match everything {
            true => unfiltered.try_clone().map_err(io::Error::other)?,
            false => match load(Some(filter))? {
                (program, Where::Program) => program,
                (_, Where::UserSpace(reason)) => {
                    return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
                }
            },
        };
        self.place.exchange(program).map_err(io::Error::other)?;
        self.takes_everything = everything;
        wait_for_running_programs();
        Ok(())
    }

    /// Why user space decides on every packet, if it does.
    pub(crate) fn filters_in_user_space(&self) -> Option<&str> {
        match &self.filters {
            Where::Program => None,
            Where::UserSpace(reason) => Some(reason),
        }
    }

    /// From now on the packets of the ring with this key go to `socket`.
    pub(super) fn receive(&self, key: u32, socket: &XdpSocket) -> Result<(), BpfError> {
        self.blueprint.sockets.update_fd(key, socket)
    }

    /// Lets packets pass to the host again. When it returns, the last packet is in its ring; false if that is not certain.
    pub(crate) fn detach(self) -> bool {
        drop(self);
        wait_for_running_programs()
    }

    /// Lets go of its descriptors, and of nothing that another process with the same descriptors needs.
    pub(crate) fn leave_to_others(mut self) {
        self.keys.clear();
        self.place.leave_to_others();
    }
}

/// Whether a program turns nothing away that was loaded for `filter`, which runs there.
fn takes_everything(filter: Option<&Filter>, filters: &Where) -> bool {
    *filters != Where::Program || filter.is_none_or(Filter::matches_everything)
}

fn unsupported(device: &Device, source: Unsupported) -> FilterChangeError {
    FilterChangeError::Unsupported { interface: device.name.clone(), source }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        for &key in &self.keys {
            // Fails only where the socket is gone already.
            let _ = self.blueprint.sockets.delete(key);
        }
        // Before others may claim the queues, whose slots are theirs then.
        self.place.leave();
    }
}
