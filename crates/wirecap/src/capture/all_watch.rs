//! A capture of all interfaces while it runs: its sockets, and the interfaces that come and go.
//!
//! The sockets are bound to no interface, so nothing passes unseen when an interface goes down, is
//! renamed, removed or added. Only the first interface of a link type may carry packets before that
//! link type has its sockets.
//!
//! There are sockets for two link types: Ethernet, to which the loopback interface belongs, and raw
//! IP. Monitors (Wi-Fi, IEEE 802.15.4, netlink, vsock) and CAN buses are not among all interfaces.
//! The sockets of a link type are opened when its first interface is created or changes, usually
//! before it is set up. If that interface was up before, the period is unseen (`link_type`). If the
//! sockets cannot be opened, or the capture writes a pcap file, which has one link type, the period
//! lasts until the end. For devices on a bus, periods in which they are down or without a carrier
//! are unseen as well. If the kernel's notifications overflow before all link types have sockets,
//! the ledger has an unseen period of `any`.
//!
//! Named interfaces (`-i any -i eth1`) have sockets of their own, with their own snap length,
//! filter and engine. The sockets of all interfaces reject packets of these interfaces, received
//! and sent ones, by index; if a named interface is removed and returns, its new index is rejected
//! before its own sockets receive. Promiscuous mode is set on all interfaces that are up, except
//! loopback, through one socket; on a later one when it is set up. On loopback each packet is
//! captured once, when it is received (if only sent packets are captured, when it is sent).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use super::all::AllInterfaces;
use super::builder::CaptureBuilder;
use super::event::Event;
use super::in_place::as_rings;
use super::target::{Opened, Target};
use super::{Attachment, Reception, Shared};
use crate::device::links::LinkState;
use crate::device::{Device, DeviceCounters, savefile_link_type};
use crate::error::{FilterChangeError, OpenError};
use crate::filter::{Filter, FilterError, FilterRequest};
use crate::ledger::{Unseen, UnseenReason};
use crate::packet::roster::RosterChange;
use crate::packet::{self, Everything, SeenInterfaces};
use crate::savefile::LinkType;
use crate::sys::promiscuous::Promiscuous;
use crate::umem::pool::Geometry;
use crate::umem::ring::RingSettings;

use wirecap_units::error::causes;

/// The sockets of a capture of all interfaces.
#[derive(Debug)]
pub(super) struct AllAttachment {
    links: Vec<(LinkType, packet::Attachment)>,
}

/// The interfaces of a capture of all interfaces, while it runs.
#[derive(Debug)]
pub(super) struct AllWatch {
    all: AllInterfaces,
    /// Keeps these interfaces in promiscuous mode, if that was requested.
    promiscuous: Option<Promiscuous>,
    joined: HashSet<u32>,
    hardware: Vec<Hardware>,
    /// Drops of hardware that was removed.
    drops_before: Option<u64>,
    /// When everything was last found in order.
    well: SystemTime,
    unseen: Vec<Unseen>,
    /// Interfaces of a link type that has no sockets.
    waiting: Vec<LinkState>,
    /// The interfaces among them that are reported when they are captured.
    untold: Vec<Event>,
    /// The last reported reason why the sockets could not be opened.
    obstacle: Option<String>,
    /// Indices of named interfaces that were removed.
    removed: HashSet<u32>,
}

/// An interface on a bus.
#[derive(Debug)]
struct Hardware {
    device: Device,
    at_start: Option<DeviceCounters>,
    drops: Option<u64>,
    /// Its number of carrier losses; `None` if it has not had a carrier.
    carrier_losses: Option<u32>,
    well: SystemTime,
}

/// A named interface of the same capture: its name when the capture began, and its present device.
pub(super) struct Named {
    pub(super) name: String,
    pub(super) index: u32,
}

impl AllAttachment {
    /// Stops receiving. On return the last packet is in its ring; false if that is not certain.
    pub(super) fn detach(self) -> bool {
        // All of them, even if the first one fails.
        self.links
            .into_iter()
            .map(|(_, link)| link.detach())
            .fold(true, |all, certain| all & certain)
    }

    /// The filter of `request` for each link type.
    pub(super) fn compile(
        &self,
        all: &AllWatch,
        request: &FilterRequest,
    ) -> Result<Vec<Filter>, FilterError> {
        let devices = self.links.iter().map(|(link_type, _)| all.all.device_of(*link_type));
        devices.map(|device| device.compile(request)).collect()
    }

    /// From now on captures the packets that match the filter of their link type.
    pub(super) fn set_filter(&mut self, filters: &[Filter]) -> Result<(), FilterChangeError> {
        self.links
            .iter_mut()
            .zip(filters)
            .try_for_each(|((_, link), filter)| link.set_filter(filter))
    }

    /// Why user space filters every packet, if it does.
    pub(super) fn filters_in_user_space(&self) -> Option<&str> {
        self.links.iter().find_map(|(_, link)| link.filters_in_user_space())
    }

    fn has(&self, link_type: LinkType) -> bool {
        self.links.iter().any(|(known, _)| *known == link_type)
    }

    fn exclude(&mut self, excluded: &[u32]) {
        // The kernel only fails for lack of memory; the next look tries again.
        self.links.iter_mut().for_each(|(_, link)| _ = link.exclude(excluded));
    }
}

impl CaptureBuilder {
    /// Opens the sockets of all interfaces.
    pub(super) fn open_all(
        &self,
        target: &Target,
        all: &AllInterfaces,
        rings: &RingSettings,
    ) -> Result<(Opened, AllWatch), OpenError> {
        let mut links = Vec::new();
        let mut opened_rings = Vec::new();
        let mut blocks = None;

        for &link_type in &all.link_types {
            let first = rings.first_ring_index + opened_rings.len();
            let settings = RingSettings { first_ring_index: first, ..rings.clone() };
            let opened =
                self.open_link_type(target, all, settings, link_type, opened_rings.len())?;
            blocks = blocks.or(Some(opened.shape));
            opened_rings.extend(as_rings(opened.rings));
            links.push((link_type, opened.attachment));
        }

        let mut watch = AllWatch::new(all.clone());
        if rings.promiscuous {
            watch.join_all()?;
        }

        let settings = self.packet_settings(target, rings.clone());
        let shape = blocks.unwrap_or(settings.shape);

        let opened = Opened {
            rings: opened_rings,
            // Its packets are counted for their interfaces when a chunk is made of them.
            first_ring: None,
            tx: Vec::new(),
            fill_rings: Vec::new(),
            counters_at_start: None,
            attachment: Attachment::All(Box::new(AllAttachment { links })),
            unplaced: None,
            reception: Reception::Packet {
                spread: settings.spread,
                direction: settings.direction,
                blocks: shape.blocks,
                block_bytes: shape.block_bytes,
                retire_after: settings.retire_after,
            },
        };
        Ok((opened, watch))
    }

    /// Opens the sockets of all interfaces of one link type.
    fn open_link_type(
        &self,
        target: &Target,
        all: &AllInterfaces,
        rings: RingSettings,
        link_type: LinkType,
        first_number: usize,
    ) -> Result<packet::Opened, OpenError> {
        let device = all.device_of(link_type);
        let compile = |request: &FilterRequest| device.compile(request);
        let filter = target.filter.as_ref().map(compile).transpose();
        let filter = filter.map_err(|error| OpenError::from(FilterChangeError::from(error)))?;

        // Each interface is set to promiscuous mode separately.
        let rings = RingSettings { filter, promiscuous: false, ..rings };
        let roster = Arc::clone(&all.roster);
        let excluded = all.excluded.clone();
        let everything = Some(Everything { roster, first_number, excluded });
        let settings = packet::Settings { everything, ..self.packet_settings(target, rings) };

        packet::open(&device, &settings, &mut Vec::new())
    }
}

impl AllWatch {
    fn new(all: AllInterfaces) -> Self {
        let now = SystemTime::now();
        let hardware = all.hardware.iter().cloned().map(Hardware::new).collect();
        Self {
            all,
            promiscuous: None,
            joined: HashSet::new(),
            hardware,
            drops_before: None,
            well: now,
            unseen: Vec::new(),
            waiting: Vec::new(),
            untold: Vec::new(),
            obstacle: None,
            removed: HashSet::new(),
        }
    }

    pub(super) fn unseen(&self) -> &[Unseen] {
        &self.unseen
    }

    /// The interfaces that were seen.
    pub(super) fn seen(&self) -> SeenInterfaces {
        SeenInterfaces::of(Arc::clone(&self.all.roster))
    }

    /// What the devices of all interfaces on a bus dropped; `None` if none reports it.
    pub(super) fn device_drops(&mut self) -> Option<u64> {
        let drops = self.hardware.iter_mut().filter_map(Hardware::device_drops);
        drops.chain(self.drops_before).reduce(|sum, drops| sum + drops)
    }

    /// Puts all interfaces into promiscuous mode.
    fn join_all(&mut self) -> Result<(), OpenError> {
        for link in self.all.roster.present() {
            match self.join(&link) {
                // It was removed meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(source) => {
                    let action = "set promiscuous mode on";
                    return Err(OpenError::PacketSocket { interface: link.name, action, source });
                }
                // The kernel reports each, and has room for a limited number of reports.
                Ok(()) => self.all.roster.catch_up(),
            }
        }
        Ok(())
    }

    fn join(&mut self, link: &LinkState) -> std::io::Result<()> {
        let is_wanted = link.up && link.link_type != libc::ARPHRD_LOOPBACK;
        if !is_wanted
            || self.all.excluded.contains(&link.index)
            || self.joined.contains(&link.index)
        {
            return Ok(());
        }

        match &self.promiscuous {
            Some(promiscuous) => promiscuous.join_also(link.index)?,
            None => self.promiscuous = Some(Promiscuous::join(link.index)?),
        }

        self.joined.insert(link.index);
        Ok(())
    }

    /// Takes in what has changed since the last look.
    fn take_changes(&mut self, joins: bool, named: &[Named], tell: &dyn Fn(Event)) {
        let now = SystemTime::now();
        for change in self.all.roster.changes() {
            match change {
                RosterChange::Appeared(link) => {
                    if named.iter().all(|named| named.name != link.name) {
                        let event = Event::Appeared { interface: link.name.clone() };
                        match self.all.link_types.contains(&savefile_link_type(link.link_type)) {
                            true => tell(event),
                            false => self.untold.push(event),
                        }
                    }
                    self.take_in(link, joins);
                }
                RosterChange::Changed { before, now } => {
                    if before.name != now.name && named.iter().all(|named| named.index != now.index)
                    {
                        tell(Event::Renamed { interface: before.name, name: now.name.clone() });
                    }
                    self.take_in(now, joins);
                }
                RosterChange::Removed(link) => {
                    self.joined.remove(&link.index);
                    self.removed.insert(link.index);
                    self.waiting.retain(|waiting| waiting.index != link.index);
                    self.end_gaps(&link.name, now, tell);
                    self.forget_hardware(link.index);
                }
                RosterChange::Overrun => {
                    // An interface of a link type without sockets may have come and gone.
                    if self.all.sockets_to_come() > 0 {
                        let interface = "any".to_owned();
                        let reason = UnseenReason::Unwatched;
                        self.unseen.push(Unseen {
                            interface,
                            from: self.well,
                            to: Some(now),
                            reason,
                        });
                    }
                }
            }
        }
    }

    fn take_in(&mut self, link: LinkState, joins: bool) {
        self.removed.remove(&link.index);
        if joins {
            // Without promiscuous mode the packets for the host itself are still captured.
            let _ = self.join(&link);
        }

        let is_known = self.hardware.iter().any(|known| known.device.index == link.index);
        if link.up && link.may_be_hardware && !is_known && !self.all.excluded.contains(&link.index)
        {
            let device = Device::glance(&link.name).ok().filter(Device::is_hardware);
            self.hardware.extend(device.map(Hardware::new));
        }

        self.waiting.retain(|waiting| waiting.index != link.index);
        self.waiting.push(link);
    }

    fn forget_hardware(&mut self, index: u32) {
        let Some(place) = self.hardware.iter().position(|known| known.device.index == index) else {
            return;
        };
        if let Some(drops) = self.hardware.swap_remove(place).drops {
            *self.drops_before.get_or_insert(0) += drops;
        }
    }

    /// The current gap of an interface.
    fn gap(&mut self, interface: &str) -> Option<&mut Unseen> {
        self.unseen.iter_mut().find(|gap| gap.to.is_none() && gap.interface == interface)
    }

    fn lose(
        &mut self,
        interface: &str,
        from: SystemTime,
        reason: UnseenReason,
        obstacle: Option<String>,
        tell: &dyn Fn(Event),
    ) {
        match self.gap(interface) {
            Some(gap) if gap.reason == reason => {
                if obstacle.is_none() || obstacle == self.obstacle {
                    return;
                }
            }
            Some(gap) => gap.reason = reason,
            None => {
                self.unseen.push(Unseen {
                    interface: interface.to_owned(),
                    from,
                    to: None,
                    reason,
                });
            }
        }

        if obstacle.is_some() {
            self.obstacle.clone_from(&obstacle);
        }

        tell(Event::Lost { interface: interface.to_owned(), reason, obstacle });
    }

    fn end_gaps(&mut self, interface: &str, to: SystemTime, tell: &dyn Fn(Event)) {
        if let Some(gap) = self.gap(interface) {
            gap.to = Some(to);
            let gap = gap.clone();
            tell(Event::Back(gap));
        }
    }

    /// Excludes the interfaces that the capture names, under their present indices.
    fn excluded(&self, named: &[Named]) -> Vec<u32> {
        let present = self.all.roster.present();
        let by_index =
            named.iter().map(|named| named.index).filter(|index| !self.removed.contains(index));
        // One that has returned under its name is about to be captured.
        let is_named = |link: &&LinkState| named.iter().any(|named| named.name == link.name);
        let by_name = present.iter().filter(is_named).map(|link| link.index);
        let mut excluded: Vec<u32> = by_index.chain(by_name).collect();
        excluded.sort_unstable();
        excluded.dedup();
        excluded.truncate(packet::EXCLUDED_MAX);
        excluded
    }

    /// Checks what has changed, and opens the sockets of a link type that has appeared.
    pub(super) fn look(
        &mut self,
        attachment: &mut AllAttachment,
        (target, geometry, index): (&Target, Geometry, usize),
        shared: &Shared,
        builder: &CaptureBuilder,
        named: &[Named],
    ) {
        let tell = |event: Event| builder.tell(&event);
        let now = SystemTime::now();
        self.take_changes(builder.promiscuous, named, &tell);
        self.all.excluded = self.excluded(named);
        attachment.exclude(&self.all.excluded);

        let waiting = std::mem::take(&mut self.waiting);
        let is_excluded = |link: &LinkState| self.all.excluded.contains(&link.index);
        let without_socket = waiting.into_iter().filter(|link| !is_excluded(link));
        let (_, waiting): (Vec<_>, Vec<_>) =
            without_socket.partition(|link| attachment.has(savefile_link_type(link.link_type)));
        self.waiting = waiting;

        if let Some(first) = self.waiting.first() {
            let link_type = savefile_link_type(first.link_type);
            match self.open_later(attachment, (target, geometry, index), shared, builder, link_type)
            {
                Ok(()) => self.begin_with(&tell),
                Err(error) => self.lose_waiting(Some(causes(&error)), &tell),
            }
        }

        self.look_at_hardware(&tell);
        if self.waiting.is_empty() {
            self.well = now;
        }
    }

    /// The sockets of the waiting interfaces were just opened: those that are up may have carried
    /// packets before.
    fn begin_with(&mut self, tell: &dyn Fn(Event)) {
        let now = SystemTime::now();
        let waiting = std::mem::take(&mut self.waiting);

        // An interface that is still down had no packets.
        self.all.roster.catch_up();
        let present = self.all.roster.present();

        for link in waiting {
            let is_up = present.iter().any(|now| now.index == link.index && now.up);
            if link.up || is_up {
                self.lose(&link.name, self.well, UnseenReason::LinkType, None, tell);
                self.end_gaps(&link.name, now, tell);
            }
        }

        self.untold.drain(..).for_each(tell);
        self.obstacle = None;
    }

    fn lose_waiting(&mut self, obstacle: Option<String>, tell: &dyn Fn(Event)) {
        let up: Vec<String> =
            self.waiting.iter().filter(|link| link.up).map(|link| link.name.clone()).collect();
        for name in up {
            self.lose(&name, self.well, UnseenReason::LinkType, obstacle.clone(), tell);
        }
    }

    /// Opens the sockets of a link type while the capture runs.
    fn open_later(
        &mut self,
        attachment: &mut AllAttachment,
        (target, geometry, index): (&Target, Geometry, usize),
        shared: &Shared,
        builder: &CaptureBuilder,
        link_type: LinkType,
    ) -> Result<(), OpenError> {
        if builder.one_link_type {
            return Err(OpenError::SeveralLinkTypes);
        }

        let first = shared.group.rings().len();
        let rings = builder.ring_settings(target, None, geometry, (index, first));
        let number = shared.rings_of(index).count();
        let opened = builder.open_link_type(target, &self.all, rings, link_type, number)?;
        attachment.links.push((link_type, opened.attachment));
        self.all.link_types.push(link_type);

        as_rings(opened.rings)
            .into_iter()
            .try_for_each(|ring| shared.add_ring(ring, builder.group_per_interface))
    }

    /// The last look, before receiving ends.
    pub(super) fn look_at_end(&mut self, attachment: &AllAttachment) {
        self.take_changes(false, &[], &|_| ());
        let is_without = |link: &LinkState| !attachment.has(savefile_link_type(link.link_type));
        let excluded = std::mem::take(&mut self.all.excluded);
        self.waiting.retain(|link| is_without(link) && !excluded.contains(&link.index));
        self.lose_waiting(None, &|_| ());
        self.look_at_hardware(&|_| ());
    }

    /// Whether devices on a bus are up and have a carrier: what they are sent meanwhile does not
    /// arrive.
    fn look_at_hardware(&mut self, tell: &dyn Fn(Event)) {
        let excluded = &self.all.excluded;
        let mut hardware = std::mem::take(&mut self.hardware);
        hardware.retain(|known| !excluded.contains(&known.device.index));

        for known in &mut hardware {
            let now = SystemTime::now();
            let name = known.device.name.clone();

            match known.fault() {
                Some((reason, lasts)) => {
                    self.lose(&name, known.well, reason, None, tell);
                    if !lasts {
                        self.end_gaps(&name, now, tell);
                        known.well = now;
                    }
                }
                None => {
                    self.end_gaps(&name, now, tell);
                    known.well = now;
                }
            }
        }

        self.hardware = hardware;
    }
}

impl Hardware {
    fn new(device: Device) -> Self {
        let look = device.look().ok().flatten().filter(|interface_state| interface_state.carrier);
        Self {
            at_start: device.counters_from(false).ok(),
            drops: None,
            carrier_losses: look.map(|interface_state| interface_state.carrier_losses.unwrap_or(0)),
            well: SystemTime::now(),
            device,
        }
    }

    fn device_drops(&mut self) -> Option<u64> {
        if let Ok(counters) = self.device.counters_from(false) {
            self.drops = counters.dropped_since(self.at_start.as_ref()?).or(self.drops);
        }
        self.drops
    }

    /// Why it does not receive, or did not for a moment, and whether that lasts.
    fn fault(&mut self) -> Option<(UnseenReason, bool)> {
        let interface_state = self.device.look().ok()??;
        if !interface_state.up {
            return Some((UnseenReason::Down, true));
        }

        match (self.carrier_losses, interface_state.carrier) {
            (None, false) => None,
            (Some(_), false) => Some((UnseenReason::NoCarrier, true)),
            (before, true) => {
                let losses = interface_state.carrier_losses.unwrap_or(0);
                self.carrier_losses = Some(losses);
                before.filter(|before| *before != losses).map(|_| (UnseenReason::NoCarrier, false))
            }
        }
    }
}
