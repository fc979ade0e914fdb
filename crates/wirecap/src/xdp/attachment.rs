//! What a capture puts on an interface: its program, and the map of its sockets.

use std::sync::Arc;

use crate::bpf::{BpfError, Link, Map, MapKind, Program, XDP_DROP, XDP_PASS};
use crate::device::Device;
use crate::error::{FilterChangeError, OpenError};
use crate::filter::Filter;
use crate::program::{self, FilterPlan, LoadError, Plan};
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
    blueprint: Blueprint,
    pub(super) stamps: Arc<dyn StampSource>,
    /// The keys in use.
    keys: Vec<u32>,
    rings: Vec<Arc<UmemRing>>,
    filtering: Filtering,
    _promiscuous: Option<Promiscuous>,
}

/// What is the same for all programs that are attached in turn.
#[derive(Debug)]
struct Blueprint {
    device: Device,
    steering: Steering,
    sockets: Map,
    stamp_failed: Option<Arc<Map>>,
    filtered: Arc<Map>,
    verdict: i32,
}

/// What user space does of the filter.
#[derive(Debug, Clone, Default)]
struct Filtering {
    check: Check,
    /// Why it decides on every packet, where the program was to.
    in_user_space: Option<String>,
}

impl Blueprint {
    fn new(device: &Device, steering: &Steering, settings: &Settings) -> Result<Self, BpfError> {
        let stamp_failed = || Map::create(MapKind::Array, "wirecap_nostamp", 4, 1).map(Arc::new);
        let counter_bytes = size_of::<u64>() as u32;
        Ok(Self {
            device: device.clone(),
            steering: steering.clone(),
            sockets: Map::create(MapKind::Xskmap, "wirecap_sockets", 4, steering.keys(device.rx_queues))?,
            stamp_failed: settings.timestamps.then(stamp_failed).transpose()?,
            filtered: Arc::new(Map::create(
                MapKind::PercpuArray,
                "wirecap_filter",
                counter_bytes,
                device.rx_queues,
            )?),
            verdict: if settings.drop_rejected { XDP_DROP } else { XDP_PASS },
        })
    }

    /// Loads a program with `filter` in it, or one without and says what is left to user space.
    fn load(&self, filter: Option<&Filter>) -> Result<(Program, Filtering), FilterChangeError> {
        let kernel = |source| FilterChangeError::Program { interface: self.device.name.clone(), source };
        let Some(filter) = filter.filter(|filter| !filter.matches_everything()) else {
            return match self.load_with(None) {
                Ok(program) => Ok((program, Filtering::default())),
                Err(LoadError::Kernel(source)) => Err(kernel(source)),
                Err(LoadError::Filter(_)) => unreachable!("there is no filter"),
            };
        };
        let reason = match self.load_with(Some(filter)) {
            Ok(program) => return Ok((program, Filtering::default())),
            Err(LoadError::Filter(unsupported)) => unsupported.to_string(),
            Err(LoadError::Kernel(BpfError::Rejected { log, .. })) => {
                format!("the kernel's verifier refuses it ({})", last_words(&log))
            }
            Err(LoadError::Kernel(source)) => return Err(kernel(source)),
        };
        let unsupported =
            |source| FilterChangeError::Unsupported { interface: self.device.name.clone(), source };
        let check = Check::Everything(UserFilter::new(filter, &self.device).map_err(unsupported)?);
        let (program, _) = self.load(None)?;
        Ok((program, Filtering { check, in_user_space: Some(reason) }))
    }

    fn load_with(&self, filter: Option<&Filter>) -> Result<Program, LoadError> {
        program::load(&Plan {
            sockets: &self.sockets,
            steering: &self.steering,
            rx_queues: self.device.rx_queues,
            filter: filter.map(|filter| FilterPlan {
                filter,
                counts: &self.filtered,
                address: self.device.mac.map(|mac| mac.0),
                verdict: self.verdict,
            }),
            stamp_failed: self.stamp_failed.as_deref(),
        })
    }
}

/// What the verifier said at last, but for its statistics.
fn last_words(log: &str) -> &str {
    let is_statistics = |line: &&str| line.starts_with("processed ") || line.starts_with("verification time");
    log.lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty() && !is_statistics(line))
        .unwrap_or("it does not say why")
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
        let blueprint = Blueprint::new(device, steering, settings).map_err(failed)?;
        let (program, filtering) = blueprint.load(settings.filter.as_ref()).map_err(|error| match error {
            FilterChangeError::Program { source, .. } => refused(device, source),
            error => error.into(),
        })?;
        let stamps: Arc<dyn StampSource> = match &blueprint.stamp_failed {
            Some(map) => Arc::new(ProgramStamps::new(Arc::clone(map))),
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
        let rings = Vec::new();
        Ok(Self { link, blueprint, stamps, keys, rings, filtering, _promiscuous: promiscuous })
    }

    /// Counts by queue what the program turned away.
    pub(super) fn filtered(&self) -> &Arc<Map> {
        &self.blueprint.filtered
    }

    /// Has user space do on `rings` what the program leaves to it.
    pub(super) fn settle(&mut self, rings: &[Arc<UmemRing>]) {
        self.rings = rings.to_vec();
        self.rings.iter().for_each(|ring| ring.settle(self.filtering.check.clone()));
    }

    /// From now on the packets that `filter` wants are captured.
    pub(crate) fn set_filter(&mut self, filter: &Filter) -> Result<(), FilterChangeError> {
        let (program, filtering) = self.blueprint.load(Some(filter))?;
        // What waits in the rings may have been let through for user space to decide on.
        if let Ok(filter) = UserFilter::new(filter, &self.blueprint.device) {
            self.rings.iter().for_each(|ring| ring.begin_change(filter.clone()));
        }
        let updated = self.link.update(&program);
        if updated.is_ok() {
            self.filtering = filtering;
        }
        wait_for_running_programs();
        self.rings.iter().for_each(|ring| ring.settle(self.filtering.check.clone()));
        updated.map_err(|source| FilterChangeError::Program {
            interface: self.blueprint.device.name.clone(),
            source,
        })
    }

    /// Why user space decides on every packet, if it does.
    pub(crate) fn filters_in_user_space(&self) -> Option<&str> {
        self.filtering.in_user_space.as_deref()
    }

    /// From now on the packets of the ring with this key go to `socket`.
    pub(super) fn receive(&self, key: u32, socket: &XdpSocket) -> Result<(), BpfError> {
        self.blueprint.sockets.update_fd(key, socket)
    }

    /// Lets packets pass to the host again. When it returns, the last packet is in its ring.
    pub(crate) fn detach(self) {
        for &key in &self.keys {
            // Fails only where the socket is gone already.
            let _ = self.blueprint.sockets.delete(key);
        }
        drop(self.link);
        wait_for_running_programs();
    }
}
