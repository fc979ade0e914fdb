//! How a capture receives from each of its interfaces: the engine, and the size of the rings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::builder::{CaptureBuilder, DEFAULT_CHUNKS, Engine, MAX_CELLS};
use super::in_place::{ReadableRing, as_rings};
use super::interface::packet_delay;
use super::{Attachment, Reception};
use crate::capture::all::AllInterfaces;
use crate::capture::source::{DeviceName, Source};
use crate::device::{self, Device, DeviceCounters, HardwareClock, RxMetadata, XdpSupport};
use crate::error::{FilterChangeError, OpenError};
use crate::filter::{Filter, FilterRequest};
use crate::limits;
use crate::packet::{self, Direction, Spread, Unplaced};
use crate::steer::Steering;
use crate::sys::packet::PacketSocket;
use crate::umem::fill::FillRing;
use crate::umem::pool::Geometry;
use crate::umem::ring::{Ring, RingSettings};
use crate::xdp;

/// The settings for receiving from one interface.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) device: Device,
    pub(super) queues: Vec<u32>,
    /// No queues were named.
    pub(super) whole: bool,
    pub(super) way: Way,
    /// The reason, if the engine was selected automatically.
    pub(super) why: Option<String>,
    /// Bytes kept of each packet.
    pub(super) snap_len: u32,
    /// The filter; all packets, if there is none.
    pub(super) filter: Option<FilterRequest>,
    /// It stands for all interfaces.
    pub(super) all: Option<AllInterfaces>,
}

/// The known facts of earlier attempts to open the capture.
#[derive(Debug, Default)]
pub(super) struct KnownFacts {
    /// The number of receive queues of interfaces with a program, by index.
    queues: BTreeMap<u32, u32>,
    /// The number of receive queues without a program.
    own_queues: BTreeMap<u32, u32>,
    /// Why rings that share cells cannot use zero-copy.
    pub(super) copy_because: Option<String>,
}

impl KnownFacts {
    /// Remembers a reason to reopen.
    pub(super) fn learn(&mut self, reopen: xdp::Reopen) {
        match reopen {
            xdp::Reopen::Queues { ifindex, own, rx_queues } => {
                self.own_queues.entry(ifindex).or_insert(own);
                self.queues.insert(ifindex, rx_queues);
            }
            xdp::Reopen::Copy { reason } => self.copy_because = Some(reason),
        }
    }

    /// Why `device` cannot use zero-copy, if that is known in advance.
    pub(super) fn why_copy(&self, device: &Device) -> Option<String> {
        xdp::why_copy(device, self.own_queues.get(&device.index).copied())
    }

    /// The interface with the properties that it has while a program is attached; unchanged at the
    /// first attempt.
    fn applied_to(&self, mut device: Device) -> Device {
        if let Some(&rx_queues) = self.queues.get(&device.index) {
            device.rx_queues = rx_queues;
        }
        device
    }
}

/// How to receive packets from an interface.
#[derive(Debug, Clone)]
pub(super) enum Way {
    Xdp(Steering),
    Packet { spread: Spread, direction: Direction },
}

impl Way {
    /// Whether a ring has the packets of one queue.
    fn goes_by_queue(&self) -> bool {
        match self {
            Self::Xdp(_) | Self::Packet { spread: Spread::Queues(_), .. } => true,
            Self::Packet { spread: Spread::Flows { .. }, .. } => false,
        }
    }

    /// Assigns each selected queue its number of rings of `steering`.
    fn deal(&mut self, steering: Steering) {
        match self {
            Self::Xdp(before) => *before = steering,
            Self::Packet { spread, .. } => {
                let dealt = steering.queues().iter().zip(steering.rings_of_queues());
                let rings = dealt.flat_map(|(&queue, rings)| (0..rings).map(move |_| queue));
                *spread = Spread::Queues(rings.collect());
            }
        }
    }
}

impl Target {
    /// How many rings it has.
    pub(super) fn rings(&self) -> usize {
        match &self.way {
            Way::Xdp(steering) => steering.rings(),
            Way::Packet { spread, .. } => {
                spread.rings() * self.all.as_ref().map_or(1, AllInterfaces::sockets)
            }
        }
    }

    /// Number of rings that may be added: receive queues may be added, and the engine may change.
    pub(super) fn rings_to_come(&self) -> usize {
        match &self.way {
            Way::Xdp(steering) if self.whole => {
                let most = steering.rings_of_queues().max().unwrap_or(1);
                let queues = self.device.rx_queues_max.saturating_sub(self.device.rx_queues);
                (queues * most) as usize + steering.rings()
            }
            Way::Xdp(steering) => steering.rings(),
            Way::Packet { spread, .. } => match &self.all {
                Some(all) => all.sockets_to_come() * spread.rings(),
                None => 0,
            },
        }
    }

    /// Whether `auto` selected the engine `xdp` because the host does not use the interface.
    pub(super) fn is_on_loan(&self, builder: &CaptureBuilder) -> bool {
        builder.engine == Engine::Auto && matches!(self.way, Way::Xdp(_))
    }

    /// The filter for its packets, if there is one.
    pub(super) fn compile_filter(&self) -> Result<Option<Filter>, FilterChangeError> {
        let compile = |request: &FilterRequest| self.device.compile(request);
        Ok(self.filter.as_ref().map(compile).transpose()?)
    }

    /// Checks whether its packets get hardware timestamps.
    pub(super) fn check_hardware_clock(&self) -> Result<(), OpenError> {
        let interface = self.device.name.clone();
        let driver = self.device.driver.as_deref().unwrap_or("without a name");
        let offers = |xdp: &XdpSupport| xdp.rx_metadata.contains(RxMetadata::TIMESTAMP);

        let reason = match &self.way {
            Way::Packet { .. } => "the engine packet gives the kernel's time".to_owned(),
            Way::Xdp(_) if !self.device.xdp.as_ref().is_some_and(offers) => {
                format!("its driver ({driver}) does not provide them to XDP programs")
            }
            Way::Xdp(_) => match self.device.hardware_clock()? {
                HardwareClock::EveryPacket => return Ok(()),
                HardwareClock::Missing => format!("its driver ({driver}) has no hardware clock"),
                HardwareClock::Off | HardwareClock::SomePackets => format!(
                    "the device is not configured to timestamp every packet; run \"hwstamp_ctl -i {interface} -r 1\" (package linuxptp)"
                ),
            },
        };
        Err(OpenError::NoHardwareClock { interface, reason })
    }

    /// The device's counters; its drop count is unknown if it includes other packets.
    pub(super) fn counters(&self) -> Option<DeviceCounters> {
        if self.all.is_some() {
            return None;
        }
        // A veth's own count also includes captured packets that the host's stack discarded.
        let host_gets_some = matches!(self.way, Way::Packet { .. }) || self.filter.is_some();
        self.device.counters_from(!host_gets_some).ok()
    }

    fn cell_bytes(&self, chunk_cells: u32) -> Result<u32, OpenError> {
        match self.way {
            Way::Xdp(_) => xdp::cell_bytes(&self.device, chunk_cells),
            Way::Packet { .. } => Ok(packet::CELL_BYTES),
        }
    }

    /// Bytes that its link needs: all interfaces need as many as the fastest.
    fn link_bytes(&self) -> u64 {
        let hardware = self.all.iter().flat_map(|all| &all.hardware);
        let fastest = hardware.map(|device| LinkRate::of(device).pool_bytes()).max();
        fastest.unwrap_or(0).max(LinkRate::of(&self.device).pool_bytes())
    }

    /// Bytes of memory for its rings' packets.
    pub(super) fn pool_bytes(&self, geometry: Geometry) -> u64 {
        match &self.way {
            Way::Xdp(steering) => xdp::pool_bytes(geometry, steering),
            Way::Packet { spread, .. } => {
                let sockets = self.all.as_ref().map_or(1, AllInterfaces::sockets);
                packet::block_shape(geometry).ring_bytes() as u64
                    * (spread.rings() * sockets) as u64
            }
        }
    }
}

/// The rings of an interface, receiving.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) rings: Vec<Arc<dyn Ring>>,
    /// The first of them, if it can be read in place.
    pub(super) first_ring: Option<ReadableRing>,
    /// The tx rings and the fill rings of its queues, if the capture forwards with the engine
    /// `xdp`.
    pub(super) tx: Vec<xdp::PreparedTx>,
    pub(super) fill_rings: Vec<Arc<FillRing>>,
    pub(super) attachment: Attachment,
    pub(super) counters_at_start: Option<DeviceCounters>,
    /// Counts packets that no ring gets because their queue is unknown.
    pub(super) unplaced: Option<Arc<Unplaced>>,
    pub(super) reception: Reception,
}

impl CaptureBuilder {
    /// The selected interfaces and queues, each interface once.
    pub(super) fn targets(&self, known_facts: &KnownFacts) -> Result<Vec<Target>, OpenError> {
        let mut targets: Vec<Target> = Vec::new();

        for source in self.sources.iter().filter(|source| !source.is_any) {
            let name: DeviceName = source.device.parse()?;

            // Only the other engines depend on how the host uses the interface.
            let device = match self.engine {
                Engine::Packet if !self.forwards() => Device::glance(&name.interface)?,
                _ => known_facts.applied_to(Device::find(&name.interface)?),
            };
            let queues = name.queues_of(&device)?;
            let snap_len = source.settings.snap_len.unwrap_or(self.snap_len);
            let filter = source.settings.filter.as_ref().or(self.filter.as_ref());

            match targets.iter_mut().find(|target| target.device.index == device.index) {
                Some(target) if target.snap_len != snap_len => {
                    let setting = "snap length";
                    return Err(OpenError::SettingsDiffer { interface: device.name, setting });
                }
                Some(target) if target.filter.as_ref() != filter => {
                    return Err(OpenError::SettingsDiffer {
                        interface: device.name,
                        setting: "filter",
                    });
                }
                Some(target) => {
                    target.queues.extend(queues);
                    target.queues.sort_unstable();
                    target.queues.dedup();
                    target.whole |= name.is_whole();
                }
                None => targets.push(Target {
                    way: Way::Xdp(Steering::new(queues.clone(), 0)),
                    why: None,
                    whole: name.is_whole(),
                    device,
                    queues,
                    snap_len,
                    filter: filter.cloned(),
                    all: None,
                }),
            }
        }

        self.add_all_interfaces(&mut targets)?;
        for target in &mut targets {
            (target.way, target.why) = self.way(target)?;
        }

        self.deal_rings(&mut targets)?;
        Ok(targets)
    }

    /// Adds all interfaces, if they were requested, except those that `targets` names.
    fn add_all_interfaces(&self, targets: &mut Vec<Target>) -> Result<(), OpenError> {
        let mut requested = self.sources.iter().filter(|source| source.is_any);
        let Some(source) = requested.next() else { return Ok(()) };
        let snap_len = |source: &Source| source.settings.snap_len.unwrap_or(self.snap_len);
        let filter =
            |source: &Source| source.settings.filter.as_ref().or(self.filter.as_ref()).cloned();

        for other in requested {
            let differs =
                |setting| OpenError::SettingsDiffer { interface: "any".to_owned(), setting };
            if snap_len(other) != snap_len(source) {
                return Err(differs("snap length"));
            }
            if filter(other) != filter(source) {
                return Err(differs("filter"));
            }
        }

        if self.forwards() {
            let reason = "packets are sent on named interfaces";
            return Err(OpenError::NotForwarding { option: "all interfaces (-i any)", reason });
        }

        // All interfaces include all queues of those that are named.
        for target in targets.iter_mut().filter(|target| !target.whole) {
            (target.whole, target.queues) = (true, (0..target.device.rx_queues).collect());
        }

        let excluded = targets.iter().map(|target| target.device.index).collect();
        let all = AllInterfaces::new(self, excluded)?;
        targets.push(Target {
            device: all.device(),
            queues: Vec::new(),
            whole: true,
            way: Way::Packet {
                spread: Spread::Flows { rings: 1 },
                direction: Direction::default(),
            },
            why: None,
            snap_len: snap_len(source),
            filter: filter(source),
            all: Some(all),
        });

        Ok(())
    }

    /// If there are fewer rings than requested workers, adds rings, as evenly per queue as whole
    /// rings allow.
    fn deal_rings(&self, targets: &mut [Target]) -> Result<(), OpenError> {
        let rings = targets.iter().map(Target::rings).sum();
        let mut extra = self.workers.unwrap_or(0).saturating_sub(rings);
        let shares_cells = targets.iter().any(|target| matches!(target.way, Way::Xdp(_)));

        if self.forwards() && extra > 0 && shares_cells {
            return Err(OpenError::NotForwarding {
                option: "more workers than receive queues (--workers)",
                reason: "rings that share a queue share its cells and its completion ring",
            });
        }

        let dealt = targets.iter_mut().filter(|target| target.way.goes_by_queue());
        let dealt: Vec<&mut Target> = dealt.collect();
        let mut left: usize = dealt.iter().map(|target| target.queues.len()).sum();

        for target in dealt {
            let queues = target.queues.len();
            let own = (extra * queues).div_ceil(left);
            (extra, left) = (extra - own, left - queues);
            target.way.deal(Steering::new(target.queues.clone(), queues + own));
        }

        Ok(())
    }

    /// The engine for `target`, and the reason if it was selected automatically.
    fn way(&self, target: &Target) -> Result<(Way, Option<String>), OpenError> {
        let device = &target.device;
        if !device.up {
            return Err(OpenError::InterfaceDown { interface: device.name.clone() });
        }
        if let Some(kind) = device.unsupported_kind() {
            return Err(OpenError::UnsupportedLink { interface: device.name.clone(), kind });
        }

        let (engine, why) = match self.engine {
            Engine::Xdp if target.all.is_some() => return Err(OpenError::AnyByXdp),
            _ if target.all.is_some() => (Engine::Packet, None),
            Engine::Auto => self.choice(device),
            engine => (engine, None),
        };
        let way =
            if engine == Engine::Xdp { self.xdp_way(target) } else { self.packet_way(target) }?;
        match (&way, self.xdp_option()) {
            (Way::Packet { .. }, Some(option)) => {
                Err(OpenError::XdpOnly { interface: device.name.clone(), option, why })
            }
            _ => Ok((way, why)),
        }
    }

    /// The engine that [`Engine::Auto`] selects for `device`.
    fn choice(&self, device: &Device) -> (Engine, Option<String>) {
        let packet = |why| (Engine::Packet, Some(why));
        let choice = device.choose_engine();
        match choice.engine {
            device::ChosenEngine::Xdp(_) if self.wants_sent() => {
                packet("the engine xdp does not see packets that the host sends".to_owned())
            }
            device::ChosenEngine::Xdp(_) if xdp::cell_bytes(device, self.chunk_cells).is_err() => {
                packet(format!("frames of its MTU, {}, do not fit a cell", device.mtu))
            }
            device::ChosenEngine::Xdp(_) => (Engine::Xdp, Some(choice.why)),
            device::ChosenEngine::Packet => packet(choice.why),
        }
    }

    /// A requested option that only the engine `xdp` supports.
    fn xdp_option(&self) -> Option<&'static str> {
        match self.warm {
            _ if self.elastic => Some("elastic pools (--elastic)"),
            Some(_) => Some("warm cells (--warm)"),
            None => None,
        }
    }

    fn xdp_way(&self, target: &Target) -> Result<Way, OpenError> {
        let interface = target.device.name.clone();
        if self.wants_sent() {
            return Err(OpenError::ReceivedOnly { interface, reason: "the engine xdp" });
        }

        if let Some(kind) = target.device.is_controller() {
            return Err(OpenError::Controller {
                interface,
                kind,
                ports: target.device.ports.clone(),
            });
        }

        match target.device.carries_host_traffic() {
            Some(reason) if !self.take => Err(OpenError::CarriesHostTraffic { interface, reason }),
            _ => Ok(Way::Xdp(Steering::new(target.queues.clone(), 0))),
        }
    }

    fn packet_way(&self, target: &Target) -> Result<Way, OpenError> {
        if target.whole {
            let count = self.workers.or(self.most_workers);
            let rings = count.map_or(target.device.rx_queues, |count| count as u32);
            // A forwarding capture must not see its own packets, because it would forward them
            // again.
            let default = if self.forwards() { Direction::In } else { Direction::default() };
            let direction = self.direction.unwrap_or(default);
            return Ok(Way::Packet { spread: Spread::Flows { rings }, direction });
        }

        if self.wants_sent() {
            let interface = target.device.name.clone();
            return Err(OpenError::ReceivedOnly { interface, reason: "a receive queue" });
        }
        Ok(Way::Packet { spread: Spread::Queues(target.queues.clone()), direction: Direction::In })
    }

    /// Whether packets that the host sends were requested.
    fn wants_sent(&self) -> bool {
        matches!(self.direction, Some(Direction::Out | Direction::InOut))
    }

    /// The settings of the rings of `target`; `places` are the indices of the interface and of its
    /// first ring in the capture.
    pub(super) fn ring_settings(
        &self,
        target: &Target,
        filter: Option<Filter>,
        geometry: Geometry,
        (interface_index, first_ring_index): (usize, usize),
    ) -> RingSettings {
        RingSettings {
            geometry,
            timestamps: self.timestamps,
            promiscuous: self.promiscuous,
            snap_len: target.snap_len,
            filter,
            interface_index,
            first_ring_index,
        }
    }

    /// Opens the rings of one interface.
    pub(super) fn open_target(
        &self,
        target: &Target,
        rings: RingSettings,
        shared_umem: Option<&Arc<xdp::SharedUmem>>,
        copy_because: Option<String>,
    ) -> Result<Opened, xdp::Refusal> {
        let Way::Xdp(steering) = &target.way else {
            return Ok(self.open_packet(target, rings, &mut Vec::new())?);
        };
        let settings = xdp::Settings {
            rings,
            warm: self.warm,
            shared_umem: shared_umem.cloned(),
            drop_rejected: self.drop_rejected,
            copy_because,
            whole: target.whole,
            counts_own: target.is_on_loan(self),
        };
        let opened = xdp::open(&target.device, steering, &settings)?;

        Ok(Opened {
            first_ring: opened.rings.first().cloned().map(ReadableRing::Cells),
            rings: as_rings(opened.rings),
            tx: opened.tx,
            fill_rings: opened.fill_rings,
            counters_at_start: opened.counters_at_start,
            attachment: Attachment::Xdp(Box::new(opened.attachment)),
            unplaced: None,
            reception: Reception::Xdp {
                receive_mode: opened.receive_mode,
                missed_receive_modes: opened.missed_receive_modes,
                huge_pages: opened.huge_pages,
                timestamps: opened.timestamps,
                posted: opened.posted,
                link_wait: opened.link_wait,
            },
        })
    }

    /// Opens the rings of an interface with the engine `packet`, using the sockets of `standby`
    /// first.
    pub(super) fn open_packet(
        &self,
        target: &Target,
        rings: RingSettings,
        standby: &mut Vec<PacketSocket>,
    ) -> Result<Opened, OpenError> {
        let settings = self.packet_settings(target, rings);
        let opened = packet::open(&target.device, &settings, standby)?;

        Ok(Opened {
            first_ring: opened.rings.first().cloned().map(ReadableRing::Blocks),
            rings: as_rings(opened.rings),
            tx: Vec::new(),
            fill_rings: Vec::new(),
            counters_at_start: target.counters(),
            attachment: Attachment::Packet(Box::new(opened.attachment)),
            unplaced: opened.unplaced,
            reception: Reception::Packet {
                spread: settings.spread,
                direction: settings.direction,
                blocks: opened.shape.blocks,
                block_bytes: opened.shape.block_bytes,
                retire_after: settings.retire_after,
            },
        })
    }

    /// Maximum time that a packet waits in a block that is not full.
    fn block_wait(&self) -> Duration {
        if self.immediate.is_some() { Duration::ZERO } else { self.retire_after }
    }

    /// Maximum time from a packet's timestamp until it can be captured by the engine `packet`.
    pub(super) fn packet_delay(&self) -> Duration {
        packet_delay(self.block_wait())
    }

    /// The settings of the engine `packet` for rings of one interface.
    pub(super) fn packet_settings(&self, target: &Target, rings: RingSettings) -> packet::Settings {
        let Way::Packet { spread, direction } = &target.way else {
            unreachable!("it uses the engine packet")
        };
        let shape = if self.small_blocks { packet::small_blocks } else { packet::block_shape };
        packet::Settings {
            spread: spread.clone(),
            direction: *direction,
            retire_after: self.block_wait(),
            immediate: self.immediate,
            shape: shape(rings.geometry),
            rings,
            everything: None,
        }
    }

    /// The packet sockets for returning the interface to the host, if `auto` selected `xdp`.
    pub(super) fn standby_sockets(&self, target: &Target) -> Result<Vec<PacketSocket>, OpenError> {
        let interface = || target.device.name.clone();
        let failed = |source| OpenError::PacketSocket {
            interface: interface(),
            action: "open a packet socket for",
            source,
        };
        let is_on_loan = target.is_on_loan(self) && !self.forwards();
        let count =
            if is_on_loan { target.rings().min(target.device.rx_queues as usize) } else { 0 };
        (0..count).map(|_| PacketSocket::new()).collect::<Result<_, _>>().map_err(failed)
    }

    /// The UMEM and the stock that the rings of an elastic capture share.
    pub(super) fn shared_umem(
        &self,
        targets: &[Target],
        geometry: Geometry,
        copy_because: Option<&str>,
    ) -> Result<Option<Arc<xdp::SharedUmem>>, OpenError> {
        if !self.elastic {
            return Ok(None);
        }

        let (rings, queues): (usize, usize) =
            targets.iter().fold((0, 0), |(rings, queues), target| {
                (rings + target.rings(), queues + target.queues.len())
            });
        if rings > queues {
            return Err(OpenError::BadParameter {
                parameter: "number of workers of an elastic capture",
                value: rings as u64,
                allowed: format!("up to {queues}: rings that share a queue cannot reserve cells"),
            });
        }

        let devices = targets.iter().map(|target| &target.device);
        let shared_umem = xdp::SharedUmem::new(geometry, rings, self.warm, devices)?;
        Ok(Some(Arc::new(shared_umem.copying(copy_because))))
    }

    /// The same for all rings: cells large enough for the interface with the longest frames.
    pub(super) fn geometry(&self, targets: &[Target]) -> Result<Geometry, OpenError> {
        let mut geometry = Geometry { chunk_cells: self.chunk_cells, chunks: 1, cell_bytes: 0 };
        for target in targets {
            geometry.cell_bytes = geometry.cell_bytes.max(target.cell_bytes(self.chunk_cells)?);
        }

        let bytes = |chunks| {
            let geometry = Geometry { chunks, ..geometry };
            targets.iter().map(|target| target.pool_bytes(geometry)).sum::<u64>()
        };
        let most = (MAX_CELLS / u64::from(self.chunk_cells)) as u32;
        geometry.chunks = match (self.chunks, self.buffer_bytes) {
            (Some(chunks), _) => chunks,
            (None, Some(buffer)) if bytes(1) > buffer => {
                return Err(OpenError::BadParameter {
                    parameter: "buffer size",
                    value: buffer,
                    allowed: format!("{} bytes (one chunk per ring) or more", bytes(1)),
                });
            }
            (None, Some(buffer)) => largest(most, |chunks| bytes(chunks) <= buffer),
            (None, None) => {
                let rings = targets.iter().map(|target| target.rings() as u64).sum();
                let links = targets.iter().map(Target::link_bytes).sum();
                let buffer = default_pool_bytes(links, rings, limits::memory_total());
                largest(most.min(DEFAULT_CHUNKS), |chunks| bytes(chunks) <= buffer)
            }
        };

        for target in targets {
            if let Way::Xdp(steering) = &target.way {
                xdp::check_pools(geometry, steering)?;
            }
        }

        Ok(geometry)
    }
}

/// Classes of link speeds, which determine the default buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkRate {
    /// Loopback.
    Loopback,
    /// In Mbit/s.
    Speed(u32),
    /// An interface without a link, such as a veth.
    Virtual,
    /// The driver does not report a speed, as in virtual machines.
    Unknown,
}

/// Kinds of virtual interfaces whose drivers report a speed that has no meaning.
const KINDS_WITHOUT_SPEED: [&str; 3] = ["veth", "tun", "netkit"];

impl LinkRate {
    fn of(device: &Device) -> Self {
        match device.speed_mbps {
            _ if device.is_loopback() => Self::Loopback,
            _ if device.kind.as_deref().is_some_and(|kind| KINDS_WITHOUT_SPEED.contains(&kind)) => {
                Self::Virtual
            }
            Some(speed) => Self::Speed(speed),
            None if device.kind.is_some() => Self::Virtual,
            None => Self::Unknown,
        }
    }

    /// Bytes of cells for all rings of the link together.
    ///
    /// At the line rate, these buffer frames of 1,518 and of 64 bytes for: with 1 Gbit/s 0.4 s and
    /// 22 ms, with 10 Gbit/s 160 ms and 8.8 ms, with 100 Gbit/s 65 ms and 3.5 ms.
    fn pool_bytes(self) -> u64 {
        match self {
            Self::Loopback | Self::Virtual | Self::Speed(..=1_000) => 64 << 20,
            Self::Speed(..=10_000) | Self::Unknown => 256 << 20,
            Self::Speed(..=40_000) => 512 << 20,
            Self::Speed(_) => 1 << 30,
        }
    }
}

/// Even with many rings, each keeps a burst of some thousand packets.
const RING_BYTES_MIN: u64 = 16 << 20;

/// Default memory for packets of a capture from all queues of `device`, at most an eighth of the
/// memory of the machine or of the memory cgroup.
pub fn wanted_pool_bytes(device: &Device) -> u64 {
    default_pool_bytes(LinkRate::of(device).pool_bytes(), device.rx_queues.into(), u64::MAX)
}

/// Default bytes of the cells of all rings: by the speed of the links, with a minimum per ring, and
/// at most an eighth of the memory of the machine or of the cgroup.
fn default_pool_bytes(links: u64, rings: u64, memory: u64) -> u64 {
    links.max(rings * RING_BYTES_MIN).min(memory / 8)
}

/// The largest number up to `most` that fits, if all smaller numbers fit as well; 1 if none fits.
fn largest(most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let mut fitting = 1;
    let mut beyond = most + 1;
    while beyond - fitting > 1 {
        let middle = fitting + (beyond - fitting) / 2;
        *(if fits(middle) { &mut fitting } else { &mut beyond }) = middle;
    }
    fitting
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::savefile::LinkType;

    #[test]
    fn the_default_fits_the_links_the_rings_and_the_memory() {
        const MIB: u64 = 1 << 20;
        let links = |rate: LinkRate| rate.pool_bytes();
        let much = 64 << 30;
        assert_eq!(default_pool_bytes(links(LinkRate::Loopback), 1, much), 64 * MIB);
        assert_eq!(default_pool_bytes(links(LinkRate::Speed(1_000)), 1, much), 64 * MIB);
        assert_eq!(default_pool_bytes(links(LinkRate::Speed(10_000)), 4, much), 256 * MIB);
        assert_eq!(default_pool_bytes(links(LinkRate::Speed(100_000)), 16, much), 1024 * MIB);
        assert_eq!(
            default_pool_bytes(links(LinkRate::Speed(1_000)), 8, much),
            128 * MIB,
            "many rings"
        );
        assert_eq!(
            default_pool_bytes(links(LinkRate::Unknown), 4, 300 * MIB),
            300 * MIB / 8,
            "a small cgroup"
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel for an interface")]
    fn a_speed_counts_where_there_is_a_link() {
        let mut device = Device::find("lo").unwrap();
        assert_eq!(LinkRate::of(&device), LinkRate::Loopback);
        device.link_type = libc::ARPHRD_ETHER;
        let mut rate = |kind: Option<&str>, speed_mbps| {
            (device.kind, device.speed_mbps) = (kind.map(str::to_owned), speed_mbps);
            LinkRate::of(&device)
        };
        assert_eq!(rate(None, Some(25_000)), LinkRate::Speed(25_000));
        assert_eq!(rate(None, None), LinkRate::Unknown, "a virtual machine's NIC");
        assert_eq!(rate(Some("bond"), Some(200_000)), LinkRate::Speed(200_000));
        assert_eq!(rate(Some("veth"), Some(10_000)), LinkRate::Virtual, "every veth says so");
        assert_eq!(rate(Some("bridge"), None), LinkRate::Virtual);
    }

    /// Numbers of `if_arp.h` and of the LINKTYPE registry, as in libpcap's `map_arphrd_to_dlt`.
    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel for an interface")]
    fn an_interface_has_the_link_type_of_its_packets() {
        let mut device = Device::find("lo").unwrap();

        for (arphrd, link_type) in [
            (1, 1),
            (772, 1),
            (65534, 101),
            (768, 101),
            (801, 105),
            (802, 119),
            (803, 127),
            (804, 230),
            (805, 195),
            (826, 271),
        ] {
            device.link_type = arphrd;
            assert_eq!(
                (device.savefile_link_type(), device.unsupported_kind()),
                (LinkType(link_type), None)
            );
        }

        for (arphrd, kind) in [(280, "a CAN bus"), (824, "a netlink monitor")] {
            device.link_type = arphrd;
            assert_eq!(device.unsupported_kind(), Some(kind));
        }
    }

    #[test]
    fn the_largest_that_fits_is_found() {
        for most in 1..40 {
            for limit in 1..50 {
                assert_eq!(largest(most, |number| number <= limit), most.min(limit));
            }
        }
        assert_eq!(largest(10, |_| false), 1);
    }
}
