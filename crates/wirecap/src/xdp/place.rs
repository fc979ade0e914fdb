//! A capture's place on an interface that it may share with other processes, each with separate
//! queues.
//!
//! A single process attaches its program directly: a dispatcher would cost a tail call per packet
//! (12 ns if indirect jumps are mitigated). A second process finds the first one's program and
//! atomically replaces it by a dispatcher, which calls the program in an array of programs at the
//! index of the packet's queue, or passes the packet to the host. From then on every process fills
//! and empties the slots of its own queues.
//!
//! All objects are held by file descriptors. Each process holds the link, which keeps the program
//! attached, and the array, whose slots the kernel empties when no process holds it any more. So
//! processes may be killed in any order: the objects that others need remain, and the kernel
//! removes everything with the last process. The slots of a killed process keep its program, whose
//! sockets are closed, so the packets pass to the host.
//!
//! A program that reads the device's clock is bound to the device: it cannot be in the array, so
//! its process has the interface for itself.
//!
//! The kernel empties an array some time after its last holder closed it, even if another process
//! has obtained it in between. So every claim (`claim`) holds the array for as long as others see
//! the claim, and a joining process obtains the array before it looks for the claims of others. If
//! there are none, it uses a new array.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::bpf::{self, BpfError, Link, Map, MapInfo, MapKind, Program, ProgramKind, link_holding};
use crate::device::{AttachedXdp, DeviceSummary, XdpMode};
use crate::error::OpenError;
use crate::xdp::claim::{holder_beside, is_another_beside, is_stranger_beside, is_trusted};
use crate::xdp::programs::{self, BOUND_PROGRAM, DISPATCHER, QUEUE_PROGRAM};
use crate::xdp::refused;

/// The name of the array of programs.
const ARRAY: &str = "wirecap_queues";
/// Its number of slots: no driver has more queues.
pub(super) const SLOTS: u32 = 4096;
/// Maximum time for which an interface may be busy without a visible program: a process that lists
/// all links, or is just ending, holds a link for a moment.
const BUSY_PATIENCE: Duration = Duration::from_millis(500);
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// A program's place on an interface: attached directly or called by the dispatcher.
#[derive(Debug)]
pub(super) struct Place {
    slots: Slots,
    /// None while it is being attached again, and if that failed.
    link: Option<Link>,
}

/// A place that was taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) place: Place,
    /// Why the program is in the network stack and not in the driver, if it is.
    pub(super) not_native: Option<String>,
}

impl Place {
    /// Takes the place of `queues` on `device` for the program that `load` returns. `load` gets the
    /// array of programs, to which the program must refer so that others find it. Only one process
    /// may call this at a time. A program that is bound to the device does not share the interface.
    pub(super) fn take(
        device: &DeviceSummary,
        queues: &[u32],
        is_bound: bool,
        load: impl Fn(&Map) -> Result<Program, BpfError>,
    ) -> Result<Taken, OpenError> {
        Self::take_slots(device, queues, if is_bound { &[] } else { queues }, is_bound, load)
    }

    /// Attaches a program to `device`, whose `queues` only send: some drivers have no zero-copy tx
    /// rings without a program. It passes every packet to the host until others join. Only one
    /// process may call this at a time.
    pub(super) fn pass(device: &DeviceSummary, queues: &[u32]) -> Result<Taken, OpenError> {
        Self::take_slots(device, queues, &[], false, programs::load_dispatcher)
    }

    /// `slots`: the queues whose packets the program gets.
    fn take_slots(
        device: &DeviceSummary,
        queues: &[u32],
        slots: &[u32],
        is_bound: bool,
        load: impl Fn(&Map) -> Result<Program, BpfError>,
    ) -> Result<Taken, OpenError> {
        let deadline = Instant::now() + BUSY_PATIENCE;
        loop {
            let taken = match Occupant::find(device, queues)? {
                Some(_) if is_bound && is_another_beside(device, queues)? => {
                    return Err(not_shared(device, queues));
                }
                Some(occupant) if is_another_beside(device, queues)? => {
                    occupant.join(device, slots, &load)
                }
                // An untrusted user with capabilities may capture there nevertheless; the objects
                // of a dead process would disappear soon.
                Some(_) if is_stranger_beside(device, queues)? && Instant::now() < deadline => {
                    thread::sleep(BUSY_PAUSE);
                    continue;
                }
                Some(occupant) if is_stranger_beside(device, queues)? => {
                    occupant.join(device, slots, &load)
                }
                Some(leftover) => leftover.replace(device, slots, &load),
                None => Self::alone(device, slots, &load),
            };
            match taken {
                Err(BpfError::InterfaceBusy { .. }) if Instant::now() < deadline => {
                    thread::sleep(BUSY_PAUSE);
                }
                taken => return taken.map_err(|source| refused(device, source)),
            }
        }
    }

    fn alone(
        device: &DeviceSummary,
        queues: &[u32],
        load: impl Fn(&Map) -> Result<Program, BpfError>,
    ) -> Result<Taken, BpfError> {
        let slots = Slots::of_new_array(queues, load)?;
        let (link, not_native) = attach(&slots.program, device)?;
        Ok(Taken { place: Self { slots, link: Some(link) }, not_native })
    }

    /// Also takes the place of `queue`.
    pub(super) fn add(&mut self, queue: u32) -> Result<(), BpfError> {
        if self.slots.program.info()?.name == BOUND_PROGRAM {
            return Ok(());
        }
        self.slots.array.update_fd(queue, &self.slots.program)?;
        if !self.slots.queues.contains(&queue) {
            self.slots.queues.push(queue);
        }
        Ok(())
    }

    /// Gives up the place of `queue`.
    pub(super) fn give_up(&mut self, queue: u32) {
        if self.slots.queues.contains(&queue) {
            let _ = self.slots.array.delete(queue);
            self.slots.queues.retain(|own| *own != queue);
        }
    }

    /// The array of programs, to which each of them must refer.
    pub(super) fn array(&self) -> &Map {
        &self.slots.array
    }

    /// Replaces the current program by `program`. Each packet is processed by one of the two. Only
    /// one process may call this at a time.
    pub(super) fn exchange(&mut self, program: Program) -> Result<(), BpfError> {
        let is_attached = self.is_attached_directly()?;
        if is_attached {
            self.put_in_place(&program)?;
        }

        let before = std::mem::replace(&mut self.slots.program, program);
        let exchanged = self.slots.fill();
        if exchanged.is_err() {
            // The previous contents are always accepted, unless the interface is gone.
            self.slots.program = before;
            let _ = self.slots.fill();
            let _ = if is_attached { self.put_in_place(&self.slots.program) } else { Ok(()) };
        }

        exchanged
    }

    /// Whether the link has the program itself and not a dispatcher; a detached link also keeps its
    /// program.
    fn is_attached_directly(&self) -> Result<bool, BpfError> {
        let Some(link) = &self.link else { return Ok(false) };
        Ok(link.info()?.program_id == self.slots.program.id()?)
    }

    /// Makes the link run `program`, unless it was detached or its interface is gone: then the
    /// program of that time is attached later.
    fn put_in_place(&self, program: &Program) -> Result<(), BpfError> {
        let Some(link) = &self.link else { return Ok(()) };
        match link.update(program) {
            Err(error) if error.errno() == Some(libc::ENOLINK) => Ok(()),
            updated => updated,
        }
    }

    /// Restores the program if another one has replaced it, if the link still holds one at all. Not
    /// if that is the program of another capture: it took the interface when this one, whose queues
    /// are `own`, had given them up. Only one process may call this at a time.
    pub(super) fn retake(&self, device: &DeviceSummary, own: &[u32]) -> Result<bool, OpenError> {
        let Some(link) = &self.link else { return Ok(false) };
        if link.info().map_or(true, |info| info.ifindex == 0) {
            return Ok(false);
        }
        if !is_another_beside(device, own)? {
            return Ok(link.update(&self.slots.program).is_ok());
        }
        if Occupant::find(device, own)?.is_some() {
            return Ok(false);
        }
        let dispatcher = programs::load_dispatcher(&self.slots.array);
        Ok(dispatcher.and_then(|dispatcher| link.update(&dispatcher)).is_ok())
    }

    /// Detaches the program and attaches it again: a driver may have lost it, and is notified of a
    /// program only if there was none. Packets pass to the host meanwhile. Fails if other processes
    /// share the place.
    pub(super) fn attach_anew(&mut self, device: &DeviceSummary) -> Result<(), BpfError> {
        self.link = None;
        self.link = Some(attach(&self.slots.program, device)?.0);
        Ok(())
    }

    /// Whether the program is still in place: attached, or called by another capture's dispatcher.
    /// If that cannot be queried, it counts as in place, because a process that joins this
    /// interface has more privileges than this query needs.
    pub(super) fn is_taken(&self) -> bool {
        let Some(link) = &self.link else { return false };
        let Ok(info) = link.info() else { return true };
        if info.ifindex == 0 || info.program_id == 0 {
            return false;
        }
        let is_own = self.slots.program.id().is_ok_and(|own| own == info.program_id);
        is_own
            || Program::by_id(info.program_id)
                .and_then(|program| program.info())
                .map_or(true, |program| {
                    program.name == DISPATCHER && program.map_ids == self.array_ids()
                })
    }

    fn array_ids(&self) -> Vec<u32> {
        self.slots.array.info().map(|array| vec![array.id]).unwrap_or_default()
    }

    /// Like [`exchange`](Self::exchange), but the driver is always notified of a program. Fails if
    /// another capture has replaced this one.
    pub(super) fn exchange_anew(
        &mut self,
        program: Program,
        device: &DeviceSummary,
    ) -> Result<(), BpfError> {
        if !self.is_taken() {
            let source = io::Error::from_raw_os_error(libc::EBUSY);
            return Err(BpfError::InterfaceBusy { ifindex: device.index, source });
        }

        let is_attached_directly = self.is_attached_directly()?;
        if let Some(link) = self.link.as_ref().filter(|_| !is_attached_directly) {
            link.update(&programs::load_dispatcher(&self.slots.array)?)?;
        }

        self.exchange(program)
    }

    /// Stops getting packets. Afterwards other captures may claim the queues.
    pub(super) fn leave(&mut self) {
        self.slots.empty();
    }

    /// Lets another process with the same descriptors keep the attachments on the interface.
    pub(super) fn leave_to_others(&mut self) {
        self.slots.queues.clear();
    }
}

/// The slots of this process's queues. Dropping the value empties them.
#[derive(Debug)]
struct Slots {
    array: Map,
    program: Program,
    queues: Vec<u32>,
}

impl Slots {
    fn of_new_array(
        queues: &[u32],
        load: impl Fn(&Map) -> Result<Program, BpfError>,
    ) -> Result<Self, BpfError> {
        let array = Map::create(MapKind::ProgArray, ARRAY, 4, SLOTS)?;
        let program = load(&array)?;
        Self::of(array, program, queues)
    }

    fn of(array: Map, program: Program, queues: &[u32]) -> Result<Self, BpfError> {
        let slots = Self { array, program, queues: queues.to_vec() };
        slots.fill()?;
        Ok(slots)
    }

    /// Puts the program into each of them, regardless of the previous contents: slots of a killed
    /// process are not empty.
    fn fill(&self) -> Result<(), BpfError> {
        self.queues.iter().try_for_each(|&queue| self.array.update_fd(queue, &self.program))
    }

    /// Empties them, once: later another process may have them.
    fn empty(&mut self) {
        for queue in self.queues.drain(..) {
            // Fails only if the slot is already empty.
            let _ = self.array.delete(queue);
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.empty();
    }
}

/// The attachments of other captures on an interface.
struct Occupant {
    link: Link,
    /// The attached program.
    program: Program,
    array: Map,
    mode: XdpMode,
    /// The first one's program is attached directly.
    is_alone: bool,
}

impl Occupant {
    /// The captures on `device` that `queues` should join; `None` if there are none, also if
    /// another program is attached.
    fn find(device: &DeviceSummary, queues: &[u32]) -> Result<Option<Self>, OpenError> {
        let Some(attached) = device.attached_now()?.into_iter().next() else { return Ok(None) };
        match Self::behind(device, attached) {
            Ok(Found::Wirecap(occupant)) => Ok(Some(occupant)),
            Ok(Found::Bound) if is_another_beside(device, queues)? => {
                Err(not_shared(device, queues))
            }
            Ok(Found::Bound | Found::Other) => Ok(None),
            Ok(Found::OtherVersion(program)) => {
                Err(OpenError::OtherVersion { interface: device.name.clone(), program })
            }
            Err(source @ BpfError::NotPermitted { .. }) => match holder_beside(device, queues) {
                Some(holder) => {
                    Err(OpenError::Joining { interface: device.name.clone(), holder, source })
                }
                None => Ok(None),
            },
            // The attached program, its link or one of its maps was removed in between.
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
            Err(source) => Err(refused(device, source)),
        }
    }

    fn behind(device: &DeviceSummary, attached: AttachedXdp) -> Result<Found, BpfError> {
        let Some(link) = link_holding(attached.program_id, device.index)? else {
            return Ok(Found::Other);
        };
        let program = Program::by_id(attached.program_id)?;
        let info = program.info()?;

        // Any process with CAP_BPF can name its program so.
        let is_ours = is_trusted(info.uid);
        #[cfg(sabotage)]
        let is_ours = is_ours || crate::sabotage::is("broker-joins-any-user");
        if info.kind != ProgramKind::Xdp as u32 || !is_ours {
            return Ok(Found::Other);
        }

        let is_alone = match &*info.name {
            QUEUE_PROGRAM => true,
            DISPATCHER => false,
            BOUND_PROGRAM => return Ok(Found::Bound),
            name if name.starts_with("wirecap") => return Ok(Found::OtherVersion(info.name)),
            _ => return Ok(Found::Other),
        };

        for id in info.map_ids {
            let array = Map::by_id(id)?;
            if !is_array_of_programs(&array.info()?) {
                continue;
            }

            let is_another =
                !is_alone && programs::load_dispatcher(&array)?.info()?.tag != info.tag;
            #[cfg(sabotage)]
            let is_another = is_another && !crate::sabotage::is("broker-joins-a-false-dispatcher");
            if is_another {
                return Ok(Found::Other);
            }

            return Ok(Found::Wirecap(Self {
                link,
                program,
                array,
                mode: attached.mode,
                is_alone,
            }));
        }

        Ok(Found::Other)
    }

    /// Makes the link run `program`, and checks that the interface does: the link of an interface
    /// in another network namespace may have the same properties.
    fn put(&self, device: &DeviceSummary, program: &Program) -> Result<(), BpfError> {
        self.link.update(program)?;
        #[cfg(sabotage)]
        if crate::sabotage::is("broker-replaces-the-link-of-another-namespace") {
            return Ok(());
        }

        let id = program.id()?;
        let runs =
            |attached: Vec<AttachedXdp>| attached.iter().any(|attached| attached.program_id == id);
        if device.attached_now().is_ok_and(runs) {
            return Ok(());
        }

        self.link.update(&self.program)?;
        let source = io::Error::from_raw_os_error(libc::EBUSY);
        Err(BpfError::InterfaceBusy { ifindex: device.index, source })
    }

    fn join(
        self,
        device: &DeviceSummary,
        queues: &[u32],
        load: impl Fn(&Map) -> Result<Program, BpfError>,
    ) -> Result<Taken, BpfError> {
        let program = load(&self.array)?;
        if self.is_alone {
            self.put(device, &programs::load_dispatcher(&self.array)?)?;
        }
        let not_native = self.not_native();
        let slots = Slots::of(self.array, program, queues)?;
        Ok(Taken { place: Place { slots, link: Some(self.link) }, not_native })
    }

    /// Replaces processes that have ended, although the kernel has not yet removed all of their
    /// objects.
    fn replace(
        self,
        device: &DeviceSummary,
        queues: &[u32],
        load: impl Fn(&Map) -> Result<Program, BpfError>,
    ) -> Result<Taken, BpfError> {
        let slots = Slots::of_new_array(queues, load)?;
        self.put(device, &slots.program)?;
        let not_native = self.not_native();
        Ok(Taken { place: Place { slots, link: Some(self.link) }, not_native })
    }

    fn not_native(&self) -> Option<String> {
        let reason =
            "another capture on the interface has attached its program to the network stack";
        (self.mode == XdpMode::Generic).then(|| reason.to_owned())
    }
}

/// Whether it is an array like those of this version.
fn is_array_of_programs(map: &MapInfo) -> bool {
    map.name == ARRAY && map.kind == MapKind::ProgArray as u32 && map.max_entries == SLOTS
}

/// Attaches `program` in the driver if that is possible, else in the network stack, with the
/// reason.
fn attach(program: &Program, device: &DeviceSummary) -> Result<(Link, Option<String>), BpfError> {
    match Link::attach_xdp(program, device.index, bpf::XdpMode::Native) {
        Err(error) if is_refusal_by_driver(&error) => {
            let reason = match (error.errno(), error.reason()) {
                (Some(libc::EOPNOTSUPP), _) => "the driver has no native XDP".to_owned(),
                (_, Some(reason)) => format!("the driver has no native XDP now: {reason}"),
                _ => format!("the driver has no native XDP at an MTU of {}", device.mtu),
            };
            Ok((Link::attach_xdp(program, device.index, bpf::XdpMode::Generic)?, Some(reason)))
        }
        attached => Ok((attached?, None)),
    }
}

/// Whether the driver cannot run the program. Drivers without XDP, or not at this MTU or with these
/// queues, report it in several ways; the remaining errors would occur in another mode as well.
fn is_refusal_by_driver(error: &BpfError) -> bool {
    const OTHER_CAUSES: [i32; 3] = [libc::ENODEV, libc::ENOMEM, libc::ENETDOWN];
    matches!(error, BpfError::Failed { .. } | BpfError::Refused { .. })
        && error.errno().is_some_and(|errno| !OTHER_CAUSES.contains(&errno))
}

fn not_shared(device: &DeviceSummary, queues: &[u32]) -> OpenError {
    OpenError::NotShared { interface: device.name.clone(), holder: holder_beside(device, queues) }
}

/// The state of an interface.
enum Found {
    Wirecap(Occupant),
    /// A program that is bound to the device.
    Bound,
    OtherVersion(String),
    Other,
}
