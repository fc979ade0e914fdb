//! The common part of the programs of a capture that replace each other when the filter changes.

use std::sync::Arc;

use crate::bpf::{BpfError, Map, MapKind, Program, XDP_DROP, XDP_PASS};
use crate::device::DeviceSummary;
use crate::filter::Filter;
use crate::steer::Steering;
use crate::time::Timestamps;
use crate::xdp::clock::Clock;
use crate::xdp::place::SLOTS;
use crate::xdp::plan::{HookPlan, HookState, Where};
use crate::xdp::programs::{self, FilterPlan, LoadError, Plan, Stamping};
use crate::xdp::stamps::FAILED_BYTES;

#[derive(Debug)]
pub(super) struct ProgramPlan {
    pub(super) device: DeviceSummary,
    pub(super) steering: Steering,
    /// Packets of queues other than those of `steering`, including later ones, are ignored.
    names_queues: bool,
    /// The queues that the maps have room for.
    pub(super) queues_max: u32,
    pub(super) sockets: Map,
    pub(super) clock: Clock,
    /// With timestamps: becomes nonzero if the driver has no room for them.
    pub(super) stamp_failed: Option<Map>,
    /// Counts by queue of rejected packets, and of packets without a socket.
    pub(super) counts: Arc<Map>,
    verdict: i32,
    /// Frames for the interface's own hardware address are counted.
    counts_own: bool,
}

impl ProgramPlan {
    pub(super) fn new(plan: &HookPlan) -> Result<Self, BpfError> {
        let HookPlan { device, steering, timestamps, .. } = plan;
        let stamp_failed = || Map::create_mappable("wirecap_nostamp", FAILED_BYTES, 1);
        let counter_bytes = (programs::COUNTS * size_of::<u64>()) as u32;

        // Queues may be added while the capture runs; no driver has more than these.
        let queues_max = device.rx_queues_max.clamp(device.rx_queues, SLOTS.max(device.rx_queues));
        let drops = plan.drop_rejected;
        #[cfg(sabotage)]
        let drops = drops || crate::sabotage::is("rejected-packets-dropped");
        let counts =
            Map::create(MapKind::PercpuArray, "wirecap_counts", counter_bytes, queues_max)?;

        Ok(Self {
            device: device.clone(),
            steering: steering.clone(),
            names_queues: !plan.whole && steering.queues().len() < queues_max as usize,
            queues_max,
            sockets: Map::create(MapKind::Xskmap, "wirecap_sockets", 4, steering.keys(queues_max))?,
            clock: Clock::new(*timestamps, device)?,
            stamp_failed: (*timestamps != Timestamps::None).then(stamp_failed).transpose()?,
            counts: Arc::new(counts),
            verdict: if drops { XDP_DROP } else { XDP_PASS },
            counts_own: plan.counts_own,
        })
    }

    /// From now on programs are for `device`, which replaces another one.
    pub(super) fn move_to(&mut self, device: &DeviceSummary) -> Result<(), BpfError> {
        if self.clock.bound_to().is_some() {
            self.clock = Clock::new(Timestamps::Hardware, device)?;
        }
        self.device = device.clone();
        Ok(())
    }

    /// The properties of its programs, one of which was attached.
    pub(super) fn state(&self, not_native: Option<String>, filters: Where) -> HookState {
        let timestamps =
            self.stamp_failed.as_ref().map_or(Timestamps::None, |_| self.clock.timestamps());
        let is_bound = self.clock.bound_to().is_some();
        HookState { not_native, filters, timestamps, is_bound, queues_max: self.queues_max }
    }

    /// Loads a program with `filter` in it, or one without if that is impossible.
    pub(super) fn load(
        &self,
        array: &Map,
        filter: Option<&Filter>,
    ) -> Result<(Program, Where), BpfError> {
        let filter = filter.filter(|filter| !filter.matches_everything());
        let reason = match self.load_with(array, filter) {
            Ok(program) => return Ok((program, Where::Program)),
            Err(LoadError::Filter(unsupported)) => unsupported.to_string(),
            Err(LoadError::Kernel(BpfError::Rejected { log, .. })) if filter.is_some() => {
                format!("the kernel's verifier rejects it ({})", last_words(&log))
            }
            Err(LoadError::Kernel(error)) => return Err(error),
        };

        match self.load_with(array, None) {
            Ok(program) => Ok((program, Where::UserSpace(reason))),
            Err(LoadError::Kernel(error)) => Err(error),
            Err(LoadError::Filter(_)) => unreachable!("there is no filter"),
        }
    }

    fn load_with(&self, array: &Map, filter: Option<&Filter>) -> Result<Program, LoadError> {
        programs::load(&Plan {
            array,
            sockets: &self.sockets,
            steering: &self.steering,
            names_queues: self.names_queues,
            counts: &self.counts,
            filter: filter.map(|filter| FilterPlan {
                filter,
                address: self.device.mac,
                verdict: self.verdict,
            }),
            own: self.device.mac.filter(|_| self.counts_own),
            stamping: self
                .stamp_failed
                .as_ref()
                .map(|failed| Stamping { clock: &self.clock, failed }),
        })
    }
}

/// The verifier's last message before its statistics.
fn last_words(log: &str) -> &str {
    let is_statistics =
        |line: &&str| line.starts_with("processed ") || line.starts_with("verification time");
    let mut lines = log.lines().rev().map(str::trim);
    lines.find(|line| !line.is_empty() && !is_statistics(line)).unwrap_or("it does not say why")
}
