//! A capture's place on an interface that it may share with other processes, each with separate queues.
//!
//! A single process attaches its program directly: a dispatcher would cost a tail call per packet (12 ns if
//! indirect jumps are mitigated). A second process finds the first one's program and atomically replaces it by
//! a dispatcher, which calls the program in an array of programs at the index of the packet's queue, or passes
//! the packet to the host. From then on every process fills and empties the slots of its own queues.
//!
//! All objects are held by file descriptors. Each process holds the link, which keeps the program attached,
//! and the array, whose slots the kernel empties when no process holds it any more. So processes may be
//! killed in any order: the objects that others need remain, and the kernel removes everything with the last
//! process. The slots of a killed process keep its program, whose sockets are closed, so the packets pass to
//! the host.
//!
//! A program that reads the device's clock is bound to the device: it cannot be in the array, so its process has the
//! interface for itself.
//!
//! The kernel empties an array some time after its last holder closed it, even if another process has
//! obtained it in between. So every claim (`claim`) holds the array for as long as others see the claim, and
//! a joining process obtains the array before it looks for the claims of others. If there are none, it uses a
//! new array.

use std::thread;
use std::time::{Duration, Instant};

use crate::bpf::{BpfError, Link, Map, MapKind, Program, link_holding};
use crate::device::{AttachedXdp, Device, XdpMode};
use crate::error::OpenError;
use crate::xdp::claim::{holder_beside, is_another_beside, is_stranger_beside};
use crate::xdp::ladder::Ladder;
use crate::xdp::programs::{self, BOUND_PROGRAM, DISPATCHER, QUEUE_PROGRAM};
use crate::xdp::refused;

/// The name of the array of programs.
const ARRAY: &str = "wirecap_queues";
/// Its number of slots: no driver has more queues.
pub(super) const SLOTS: u32 = 4096;
/// Maximum time for which an interface may be busy without a visible program: a process that lists all links,
/// or is just ending, holds a link for a moment.
const BUSY_PATIENCE: Duration = Duration::from_millis(500);
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// A program's place on an interface: attached directly or called by the dispatcher.
#[derive(Debug)]
pub(super) struct Place {
    slots: Slots,
    /// None while it is being attached again, and if that failed.
    link: Option<Link>,
}

impl Place {
    /// Takes the place of `queues` on the ladder's interface for the program that `load` returns. `load` gets
    /// the array of programs, to which the program must refer so that others find it. Only one process may call
    /// this at a time. A program that is bound to the device does not share the interface.
    pub(super) fn take(
        ladder: &mut Ladder<'_>,
        queues: &[u32],
        is_bound: bool,
        load: impl Fn(&Map) -> Result<Program, BpfError>,
    ) -> Result<Self, OpenError> {
        Self::take_slots(ladder, queues, if is_bound { &[] } else { queues }, is_bound, load)
    }

    /// Attaches a program to the ladder's interface, whose `queues` only send: some drivers have no zero-copy tx rings
    /// without a program. It passes every packet to the host until others join. Only one process may call this at a time.
    pub(super) fn pass(ladder: &mut Ladder<'_>, queues: &[u32]) -> Result<Self, OpenError> {
        Self::take_slots(ladder, queues, &[], false, programs::load_dispatcher)
    }

    /// `slots`: the queues whose packets the program gets.
    fn take_slots(
        ladder: &mut Ladder<'_>,
        queues: &[u32],
        slots: &[u32],
        is_bound: bool,
        load: impl Fn(&Map) -> Result<Program, BpfError>,
    ) -> Result<Self, OpenError> {
        let device = ladder.device;
        let deadline = Instant::now() + BUSY_PATIENCE;
        loop {
            let taken = match Occupant::find(device, queues)? {
                Some(_) if is_bound && is_another_beside(device, queues)? => {
                    return Err(not_shared(device, queues));
                }
                Some(occupant) if is_another_beside(device, queues)? => occupant.join(ladder, slots, &load),
                // An untrusted user with capabilities may capture there nevertheless; the objects of a dead
                // process would disappear soon.
                Some(_) if is_stranger_beside(device, queues)? && Instant::now() < deadline => {
                    thread::sleep(BUSY_PAUSE);
                    continue;
                }
                Some(occupant) if is_stranger_beside(device, queues)? => occupant.join(ladder, slots, &load),
                Some(leftover) => leftover.replace(ladder, slots, &load),
                None => Self::alone(ladder, slots, &load),
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
        ladder: &mut Ladder<'_>,
        queues: &[u32],
        load: impl Fn(&Map) -> Result<Program, BpfError>,
    ) -> Result<Self, BpfError> {
        let slots = Slots::of_new_array(queues, load)?;
        let link = Some(ladder.attach(&slots.program)?);
        Ok(Self { slots, link })
    }

    /// Also takes the place of `queue`.
    pub(super) fn add(&mut self, queue: u32) -> Result<(), BpfError> {
        if !self.slots.queues.is_empty() {
            self.slots.array.update_fd(queue, &self.slots.program)?;
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

    /// Replaces the current program by `program`. Each packet is processed by one of the two. Only one process
    /// may call this at a time.
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

    /// Whether the link has the program itself and not a dispatcher; a detached link also keeps its program.
    fn is_attached_directly(&self) -> Result<bool, BpfError> {
        let Some(link) = &self.link else { return Ok(false) };
        Ok(link.info()?.program_id == self.slots.program.id()?)
    }

    /// Makes the link run `program`, unless it was detached or its interface is gone: then the program of that time is
    /// attached later.
    fn put_in_place(&self, program: &Program) -> Result<(), BpfError> {
        let Some(link) = &self.link else { return Ok(()) };
        match link.update(program) {
            Err(error) if error.errno() == Some(libc::ENOLINK) => Ok(()),
            updated => updated,
        }
    }

    /// Restores the program if another one has replaced it, if the link still holds one at all.
    pub(super) fn retake(&self) -> bool {
        let Some(link) = &self.link else { return false };
        let is_held = link.info().is_ok_and(|info| info.ifindex != 0);
        is_held && link.update(&self.slots.program).is_ok()
    }

    /// Detaches the program and attaches it again: a driver may have lost it, and is notified of a program only if
    /// there was none. Packets pass to the host meanwhile. Fails if other processes share the place.
    pub(super) fn attach_anew(&mut self, ladder: &mut Ladder<'_>) -> Result<(), BpfError> {
        self.link = None;
        self.link = Some(ladder.attach(&self.slots.program)?);
        Ok(())
    }

    /// Whether the program is still in place: attached, or called by another capture's dispatcher. If that cannot
    /// be queried, it counts as in place, because a process that joins this interface has more privileges than
    /// this query needs.
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
                .map_or(true, |program| program.name == DISPATCHER && program.map_ids == self.array_ids())
    }

    fn array_ids(&self) -> Vec<u32> {
        self.slots.array.info().map(|array| vec![array.id]).unwrap_or_default()
    }

    /// Like [`exchange`](Self::exchange), but the driver is always notified of a program.
    pub(super) fn exchange_anew(&mut self, program: Program) -> Result<(), BpfError> {
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

    /// Puts the program into each of them, regardless of the previous contents: slots of a killed process are
    /// not empty.
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
    array: Map,
    mode: XdpMode,
    /// The first one's program is attached directly.
    is_alone: bool,
}

impl Occupant {
    /// The captures on `device` that `queues` should join; `None` if there are none, also if another program is
    /// attached.
    fn find(device: &Device, queues: &[u32]) -> Result<Option<Self>, OpenError> {
        let Some(attached) = device.attached_now()?.into_iter().next() else { return Ok(None) };
        match Self::behind(attached) {
            Ok(Found::Wirecap(occupant)) => Ok(Some(occupant)),
            Ok(Found::Bound) if is_another_beside(device, queues)? => Err(not_shared(device, queues)),
            Ok(Found::Bound | Found::Other) => Ok(None),
            Ok(Found::OtherVersion(program)) => {
                Err(OpenError::OtherVersion { interface: device.name.clone(), program })
            }
            Err(source @ BpfError::NotPermitted { .. }) => match holder_beside(device, queues) {
                Some(holder) => Err(OpenError::Joining { interface: device.name.clone(), holder, source }),
                None => Ok(None),
            },
            // The attached program, its link or one of its maps was removed in between.
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
            Err(source) => Err(refused(device, source)),
        }
    }

    fn behind(attached: AttachedXdp) -> Result<Found, BpfError> {
        let Some(link) = link_holding(attached.program_id)? else { return Ok(Found::Other) };
        let program = Program::by_id(attached.program_id)?.info()?;
        let is_alone = match &*program.name {
            QUEUE_PROGRAM => true,
            DISPATCHER => false,
            BOUND_PROGRAM => return Ok(Found::Bound),
            name if name.starts_with("wirecap") => return Ok(Found::OtherVersion(program.name)),
            _ => return Ok(Found::Other),
        };
        for id in program.map_ids {
            let array = Map::by_id(id)?;
            if array.name() == ARRAY {
                let mode = attached.mode;
                return Ok(Found::Wirecap(Self { link, array, mode, is_alone }));
            }
        }
        Ok(Found::Other)
    }

    fn join(
        self,
        ladder: &mut Ladder<'_>,
        queues: &[u32],
        load: impl Fn(&Map) -> Result<Program, BpfError>,
    ) -> Result<Place, BpfError> {
        let program = load(&self.array)?;
        if self.is_alone {
            self.link.update(&programs::load_dispatcher(&self.array)?)?;
        }
        ladder.join(self.mode);
        let slots = Slots::of(self.array, program, queues)?;
        Ok(Place { slots, link: Some(self.link) })
    }

    /// Replaces processes that have ended, although the kernel has not yet removed all of their objects.
    fn replace(
        self,
        ladder: &mut Ladder<'_>,
        queues: &[u32],
        load: impl Fn(&Map) -> Result<Program, BpfError>,
    ) -> Result<Place, BpfError> {
        let slots = Slots::of_new_array(queues, load)?;
        self.link.update(&slots.program)?;
        ladder.join(self.mode);
        Ok(Place { slots, link: Some(self.link) })
    }
}

fn not_shared(device: &Device, queues: &[u32]) -> OpenError {
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
