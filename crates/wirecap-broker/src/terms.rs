//! The terms of a broker, compared with requests: which interfaces, queues, sizes and paths are
//! permitted.
//!
//! The terms name interfaces in the network namespace of the broker. An interface keeps its place
//! in the terms by its index, also if it is renamed; when it is removed, one that appears under its
//! name replaces it. If a queue is named, only that queue is permitted with the engine `xdp`; a
//! packet socket sees all packets of its interface. *Any* is a term of its own: it permits packet
//! sockets and promiscuous mode on all interfaces, also on later ones, and no program or AF_XDP
//! socket.

use std::path::{Component, Path, PathBuf};

use nix::net::if_::{if_indextoname, if_nametoindex};
use wirecap::device::{Device, DeviceSummary};
use wirecap::privileged::{HookPlan, Inquiry};

use crate::message::{Ask, FILTER_INSNS_MAX, HookAsk, Permitted, Terms, path_of};

/// No driver has more queues.
const QUEUES_MAX: u32 = 4096;
/// Maximum number of keys of all maps of sockets.
pub(crate) const KEYS_MAX: u32 = 1 << 20;
/// Maximum bytes of an interface's name (`IFNAMSIZ`, without the zero).
const NAME_BYTES_MAX: usize = 15;
/// The groups of notifications that a capture subscribes to: interfaces, addresses, routes, tc
/// filters.
const GROUPS: u32 = (libc::RTMGRP_LINK
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV6_ROUTE
    | libc::RTMGRP_TC) as u32;

/// Why a request is refused.
pub(crate) type Refusal = String;

/// The terms, with the present indices of the interfaces.
#[derive(Debug)]
pub(crate) struct Bounds {
    interfaces: Vec<Bound>,
    /// Packet sockets are for all interfaces.
    any: bool,
    directory: PathBuf,
    has_command: bool,
}

/// An interface that may be captured.
#[derive(Debug)]
struct Bound {
    permitted: Permitted,
    /// Its index in this network namespace; `None` if there was no interface of this name yet.
    index: Option<u32>,
}

impl Bound {
    /// Its present index. An interface that is renamed keeps its index; if it is removed, one that
    /// appears under its name replaces it.
    fn index(&mut self) -> Option<u32> {
        if self.index.is_none_or(|index| !exists(index)) {
            self.index = if_nametoindex(self.permitted.name.as_str()).ok().or(self.index);
        }
        self.index
    }

    fn permits(&self, queue: u32) -> bool {
        #[cfg(sabotage)]
        if crate::sabotage::is("broker-any-queue") {
            return true;
        }
        queue < QUEUES_MAX
            && self.permitted.queues.as_ref().is_none_or(|queues| queues.contains(&queue))
    }
}

/// Whether an interface has this index. For one that does not exist, nix returns an empty name and
/// no error.
fn exists(index: u32) -> bool {
    if_indextoname(index).is_ok_and(|name| !name.is_empty())
}

impl Bounds {
    pub(crate) fn of(terms: &Terms) -> Self {
        let bound = |permitted: &Permitted| {
            let index = if_nametoindex(permitted.name.as_str()).ok();
            Bound { permitted: permitted.clone(), index }
        };
        Self {
            interfaces: terms.interfaces.iter().map(bound).collect(),
            any: terms.any,
            directory: terms.directory.clone(),
            has_command: terms.command.is_some(),
        }
    }

    /// Checks whatever does not depend on the objects that a request names.
    pub(crate) fn check(&mut self, ask: &Ask) -> Result<(), Refusal> {
        match ask {
            #[cfg(sabotage)]
            Ask::Netlink(_) if crate::sabotage::is("broker-any-notification") => Ok(()),
            #[cfg(sabotage)]
            Ask::Promiscuous { .. } if crate::sabotage::is("broker-promiscuous-anywhere") => Ok(()),
            Ask::Netlink(Inquiry::Route { groups }) if groups & !GROUPS != 0 => {
                Err(format!("notifications of the groups {groups:#x}"))
            }
            Ask::BindXdp { ifindex, queue, .. } | Ask::BindXdpBeside { ifindex, queue, .. } => {
                self.check_queue(*ifindex, *queue)
            }
            Ask::BindPacket { .. } | Ask::Promiscuous { .. } | Ask::PromiscuousAlso { .. }
                if self.any =>
            {
                Ok(())
            }
            Ask::BindPacket { ifindex, .. }
            | Ask::Promiscuous { ifindex }
            | Ask::PromiscuousAlso { ifindex, .. }
            | Ask::GuardedHooks { ifindex } => self.check_interface(*ifindex),
            Ask::AttachLock(device) => self.check_device(device),
            Ask::OpenHook { plan, .. } => self.check_plan(plan),
            Ask::Hook { ask: HookAsk::Prepare(filter), .. } => check_filter(filter.as_ref()),
            Ask::Hook { ask: HookAsk::MoveTo(device), .. } => self.check_device(device),
            Ask::Run { path } => self.check_path(path_of(path)),
            Ask::Netlink(_)
            | Ask::PoolFile { .. }
            | Ask::XdpSocket
            | Ask::RegisterUmem { .. }
            | Ask::PacketSocket
            | Ask::Hook { .. }
            | Ask::Release { .. } => Ok(()),
        }
    }

    /// The terms for the interface with this index.
    fn interface(&mut self, ifindex: u32) -> Result<Vec<&Bound>, Refusal> {
        #[cfg(sabotage)]
        if crate::sabotage::is("broker-any-interface") {
            return Ok(self.interfaces.iter().collect());
        }
        let found = self.interfaces.iter_mut().filter_map(|bound| {
            let is_it = bound.index() == Some(ifindex);
            is_it.then_some(&*bound)
        });
        match found.collect::<Vec<_>>() {
            found if found.is_empty() => Err(format!("interface {ifindex}, which is not captured")),
            found => Ok(found),
        }
    }

    fn check_interface(&mut self, ifindex: u32) -> Result<(), Refusal> {
        self.interface(ifindex).map(drop)
    }

    pub(crate) fn check_queue(&mut self, ifindex: u32, queue: u32) -> Result<(), Refusal> {
        match self.interface(ifindex)?.iter().any(|bound| bound.permits(queue)) {
            true => Ok(()),
            false => Err(format!("queue {queue} of interface {ifindex}, which is not captured")),
        }
    }

    fn check_device(&mut self, device: &DeviceSummary) -> Result<(), Refusal> {
        self.check_interface(device.index)?;
        if device.name.len() > NAME_BYTES_MAX {
            return Err(format!("an interface with a name of {} bytes", device.name.len()));
        }
        let most = device.rx_queues.max(device.rx_queues_max);
        if most > QUEUES_MAX {
            return Err(format!("an interface with {most} queues, more than {QUEUES_MAX}"));
        }
        Ok(())
    }

    pub(crate) fn check_plan(&mut self, plan: &HookPlan) -> Result<(), Refusal> {
        self.check_device(&plan.device)?;
        let steering = &plan.steering;
        if !steering.is_sound() {
            return Err("an impossible distribution of queues over rings".to_owned());
        }
        self.check_queues(plan.device.index, steering.queues().iter().copied(), plan.whole)?;
        let keys = steering.keys(plan.device.rx_queues.max(plan.device.rx_queues_max));
        if keys > KEYS_MAX {
            return Err(format!("{keys} rings of an interface, more than {KEYS_MAX}"));
        }
        check_filter(plan.filter.as_ref())
    }

    /// Checks the queues of a program, and whether it may capture from all (`whole`).
    pub(crate) fn check_queues(
        &mut self,
        ifindex: u32,
        mut queues: impl Iterator<Item = u32>,
        whole: bool,
    ) -> Result<(), Refusal> {
        queues.try_for_each(|queue| self.check_queue(ifindex, queue))?;
        #[cfg(sabotage)]
        if crate::sabotage::is("broker-whole-interface") {
            return Ok(());
        }

        let is_permitted =
            self.interface(ifindex)?.iter().any(|bound| bound.permitted.queues.is_none());
        if whole && !is_permitted {
            return Err(format!("all queues of interface {ifindex}"));
        }

        Ok(())
    }

    /// The properties of the interface with this index. The capture's own description may be false.
    pub(crate) fn device(&mut self, ifindex: u32) -> Result<DeviceSummary, Refusal> {
        self.check_interface(ifindex)?;
        let name = if_indextoname(ifindex).map_err(|error| error.to_string())?;
        let device = Device::glance(&name.to_string_lossy()).map_err(|error| error.to_string())?;
        match device.index == ifindex {
            true => Ok(DeviceSummary::from(&device)),
            false => Err(format!("interface {ifindex}, which was just renamed")),
        }
    }

    /// The current name of an interface.
    pub(crate) fn name(&mut self, ifindex: u32) -> Result<String, Refusal> {
        self.check_interface(ifindex)?;
        let name = if_indextoname(ifindex).map_err(|error| error.to_string())?;
        Ok(name.to_string_lossy().into_owned())
    }

    /// Whether the command may run for this path.
    fn check_path(&self, path: &Path) -> Result<(), Refusal> {
        if !self.has_command {
            return Err("a command, but the recording has none".to_owned());
        }

        #[cfg(sabotage)]
        let path = if crate::sabotage::is("broker-parent-directory") {
            &self.directory.join(path.file_name().unwrap_or_default())
        } else {
            path
        };
        let is_plain =
            |rest: &Path| rest.components().all(|part| matches!(part, Component::Normal(_)));

        match path.strip_prefix(&self.directory) {
            Ok(rest) if is_plain(rest) => Ok(()),
            _ => Err(format!(
                "the command for {}, which is outside the recording's directory",
                path.display()
            )),
        }
    }
}

fn check_filter(filter: Option<&wirecap::filter::Filter>) -> Result<(), Refusal> {
    match filter.map(|filter| filter.program().len()) {
        Some(insns) if insns > FILTER_INSNS_MAX => {
            Err(format!("a filter of {insns} instructions, more than {FILTER_INSNS_MAX}"))
        }
        _ => Ok(()),
    }
}
