//! Opening a capture: check the settings, start receiving on each interface, then form groups of
//! the rings.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::builder::{CaptureBuilder, Engine};
use super::forwarding::Ports;
use super::target::{KnownFacts, Target, Way};
use super::watch::Watched;
use super::watch::comparison::Comparison;
use super::watch::drops::DropCount;
use super::{Attached, Capture, Interface, Running};

use crate::error::OpenError;
use crate::file::FileRing;
use crate::group::Group;
use crate::limits;
use crate::sys::opener::{self, Privilege};
use crate::time::Timestamps;
use crate::umem::pool::Geometry;
use crate::umem::ring::Ring;
use crate::xdp::Refusal;

/// Maximum number of restarts of opening: one for each interface, and one for all of them together.
const ATTEMPTS_MAX: usize = 16;

impl CaptureBuilder {
    /// Opens the capture. Packets are kept from now on, even before a worker asks for them.
    ///
    /// # Errors
    ///
    /// All detectable faults are reported before anything is changed.
    pub fn open(self) -> Result<Capture, OpenError> {
        let is_auto = self.engine == Engine::Auto;
        let first =
            self.sources.first().map(|source| source.device().to_owned()).unwrap_or_default();

        self.open_as_asked().map_err(|error| match (error.is_privilege_of_xdp(), is_auto) {
            (true, true) if opener::has(Privilege::PacketSockets) => {
                OpenError::PacketPermitted(error.into())
            }
            // With this right `auto` needs no other one, so the memory that xdp may not lock is a
            // minor matter.
            (true, true) => OpenError::PacketSocket {
                interface: first,
                action: "open a packet socket on",
                source: io::ErrorKind::PermissionDenied.into(),
            },
            _ => error,
        })
    }

    fn open_as_asked(self) -> Result<Capture, OpenError> {
        self.check_numbers()?;
        self.check_forwarding()?;

        if let Some(path) = &self.file {
            return self.open_file(path);
        }

        let mut known_facts = KnownFacts::default();

        for _ in 0..ATTEMPTS_MAX {
            match self.open_knowing(&known_facts) {
                Ok(capture) => return Ok(capture),
                Err(Refusal::Error(error)) => return Err(error),
                Err(Refusal::Reopen(reopen)) => known_facts.learn(reopen),
            }
        }

        let source = io::Error::other("they keep changing");
        Err(OpenError::System { action: "count the receive queues".to_owned(), source })
    }

    /// Opens the capture with the known facts of earlier attempts.
    fn open_knowing(&self, known_facts: &KnownFacts) -> Result<Capture, Refusal> {
        let targets = self.targets(known_facts)?;
        if self.timestamps == Timestamps::Hardware {
            targets.iter().try_for_each(Target::check_hardware_clock)?;
        }

        let workers = self.worker_count(&targets)?;
        let transmit_on = self.transmit_devices(&targets)?;
        let filters = targets.iter().map(Target::compile_filter).collect::<Result<Vec<_>, _>>();
        let filters = filters.map_err(OpenError::from)?;
        let geometry = self.geometry(&targets)?;
        let bytes = |target: &Target| target.pool_bytes(geometry);
        let locked = |target: &&Target| matches!(target.way, Way::Xdp(_));
        let new_bytes = self.new_packets_bytes(geometry);
        limits::check_memory(
            targets.iter().map(bytes).sum::<u64>() + new_bytes,
            targets.iter().filter(locked).map(bytes).sum::<u64>() + new_bytes,
        )?;

        let mut devices = targets.iter().map(|target| &target.device);
        let copy_because = known_facts.copy_because.clone();
        let copy_because =
            copy_because.or_else(|| devices.find_map(|device| known_facts.why_copy(device)));
        let copy_because = copy_because.as_deref();

        let shared_umem = if self.forwards() {
            self.forwarding_commons(&targets, &transmit_on, geometry, copy_because)?
        } else {
            self.shared_umem(&targets, geometry, copy_because)?
        };
        let mut rings = Vec::new();
        let mut first_ring = None;
        let mut interfaces = Vec::new();
        let mut attached = Vec::new();
        let mut ports = Ports::default();

        for (interface_index, (target, filter)) in targets.into_iter().zip(filters).enumerate() {
            let places = (interface_index, rings.len());
            let why_copy = known_facts.why_copy(&target.device);
            let tags_matter = filter.as_ref().is_some_and(crate::filter::Filter::depends_on_tags);
            let settings = self.ring_settings(&target, filter, geometry, places);

            let (opened, all) = match &target.all {
                Some(all) => {
                    let (opened, all) = self.open_all(&target, all, &settings)?;
                    (opened, Some(Box::new(all)))
                }
                None => {
                    (self.open_target(&target, settings, shared_umem.as_ref(), why_copy)?, None)
                }
            };
            let standby = self.standby_sockets(&target)?;
            rings.extend(opened.rings);
            first_ring = first_ring.or(opened.first_ring);

            if self.forwards() {
                ports.add_captured(&target.device, opened.tx, opened.fill_rings)?;
            }

            attached.push(Attached {
                target: target.clone(),
                drops: DropCount::begin(opened.counters_at_start),
                attachment: Some(opened.attachment),
                unplaced: opened.unplaced,
                watched: Watched::new(&target.device, !standby.is_empty()),
                index: interface_index,
                geometry,
                rings_on_return: standby.len() as u32,
                standby,
                former: None,
                was_handed_back: false,
                tags_matter,
                drops_read: Instant::now(),
                comparison: Comparison::default(),
                compared: Instant::now(),
                all,
            });
            let peer_tags = match opened.reception.engine() {
                Engine::Xdp => target.device.peer_tags(),
                _ => None,
            };
            interfaces.push(Interface {
                peer_tags,
                rings: target.rings(),
                pool_bytes: target.pool_bytes(geometry),
                reception: opened.reception,
                why: target.why,
                device: target.device,
                queues: target.queues,
                snap_len: target.snap_len,
                filter: target.filter,
            });
        }

        for device in &transmit_on {
            ports.add_transmitting(device, shared_umem.as_ref(), rings.len())?;
        }

        let port_devices = ports.devices();
        let forwarding = self
            .forwards()
            .then(|| ports.open(self, &rings, shared_umem.as_ref(), geometry))
            .unzip();

        let room = attached.iter().map(|attached| attached.target.rings_to_come()).sum();
        let group = self.group(rings, workers).with_room(room);
        let builder = self.clone();

        let running = Running {
            interfaces: attached,
            ports: port_devices,
            file: None,
            builder,
            end: None,
            last_packets_uncertain: false,
            first_ring,
        };
        Ok(Capture::start(group, interfaces, running, forwarding, geometry, &self.pin)?)
    }

    /// Number of workers that share the rings of these targets.
    fn worker_count(&self, targets: &[Target]) -> Result<usize, OpenError> {
        let rings = targets.iter().map(Target::rings).sum();
        let interfaces = targets.len();
        let workers = self.workers.or(self.most_workers).unwrap_or(rings).clamp(1, rings);
        if self.group_per_interface && workers < interfaces {
            return Err(OpenError::BadParameter {
                parameter: "number of workers",
                value: workers as u64,
                allowed: format!("{interfaces} or more: one for each interface's group"),
            });
        }
        Ok(workers)
    }

    /// The buddy group of all rings, or one for each interface.
    fn group(&self, rings: Vec<Arc<dyn Ring>>, workers: usize) -> Group {
        if !self.group_per_interface {
            return Group::new(rings, workers, self.mode, self.stuck_after);
        }
        let parts = rings.iter().map(|ring| ring.identity().interface_index).collect();
        Group::in_parts(rings, parts, workers, self.mode, self.stuck_after)
    }

    fn open_file(&self, path: &Path) -> Result<Capture, OpenError> {
        let ring = FileRing::open(path.to_owned(), self.chunk_cells, self.snap_len)
            .map_err(|source| OpenError::Savefile { path: path.to_owned(), source })?;
        let ring = Arc::new(ring);

        if let Some(filter) = &self.filter {
            ring.set_filter(filter)?;
        }

        let group = Group::new(vec![ring.clone()], 1, self.mode, self.stuck_after);

        // There is no pool: memory is allocated chunk by chunk.
        let geometry = Geometry { chunk_cells: self.chunk_cells, chunks: 1, cell_bytes: 0 };
        let running = Running {
            interfaces: Vec::new(),
            ports: Vec::new(),
            file: Some(ring),
            builder: self.clone(),
            end: None,
            last_packets_uncertain: false,
            first_ring: None,
        };
        Capture::start(group, Vec::new(), running, (None, None), geometry, &self.pin)
    }
}
