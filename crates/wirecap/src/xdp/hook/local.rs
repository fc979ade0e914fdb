//! A hook whose program, maps and claims are in this process.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{AttachLock, Hook, OpenedHook, SocketRef, own_turn};
use crate::bpf::{BpfError, Map, Program};
use crate::device::DeviceSummary;
use crate::error::OpenError;
use crate::filter::Filter;
use crate::sys::promiscuous::join_promiscuous;
use crate::sys::wait_for_running_programs;
use crate::xdp::claim::Claim;
use crate::xdp::place::{Place, Taken};
use crate::xdp::plan::{HookPlan, HookState, Where};
use crate::xdp::program_plan::ProgramPlan;
use crate::xdp::programs::{self, NO_SOCKET, NOT_WANTED, OWN};
use crate::xdp::{refused, system};

/// A hook whose program, maps and claims are in this process. All are held by descriptors, so the
/// kernel removes them when the process ends for any reason.
#[derive(Debug)]
pub struct LocalHook {
    counts: Arc<Map>,
    queues_max: u32,
    /// `None` once it has left the interface.
    state: Mutex<Option<State>>,
}

#[derive(Debug)]
struct State {
    program_plan: ProgramPlan,
    place: Place,
    /// The keys that have sockets.
    keys: Vec<u32>,
    /// The filter of the attached program, if it filters.
    filter: Option<Filter>,
    /// The program that replaces the attached one at the next exchange, and its filter.
    prepared: Option<(Program, Option<Filter>)>,
    /// A program that captures all packets, kept after it was replaced.
    unfiltered: Option<Program>,
    promiscuous: Option<OwnedFd>,
    claims: Vec<Claim>,
}

impl LocalHook {
    /// Attaches the program, without sockets yet: all packets pass to the host. The caller has the
    /// turn of the interface.
    ///
    /// # Errors
    ///
    /// If another capture has one of the queues, another program is attached, or the kernel
    /// refuses.
    pub fn open(plan: &HookPlan) -> Result<OpenedHook, OpenError> {
        let device = &plan.device;
        let queues = plan.steering.queues();
        let claims = queues.iter().map(|&queue| Claim::queue(device, queue));
        let claims = claims.collect::<Result<Vec<_>, _>>()?;
        let program_plan = ProgramPlan::new(plan).map_err(|source| refused(device, source))?;
        let promiscuous = plan.promiscuous.then(|| join(device)).transpose()?;

        let (Taken { place, not_native }, filters) =
            take(&program_plan, queues, plan.filter.as_ref())?;
        keep_array(&claims, &place)?;

        if not_native.is_some() {
            // It also sees packets outside of batches.
            program_plan.clock.read_for_each_packet().map_err(|source| refused(device, source))?;
        }

        let stamp_failed =
            program_plan.stamp_failed.as_ref().map(|map| map.as_fd().try_clone_to_owned());
        let stamp_failed =
            stamp_failed.transpose().map_err(|source| system("open the map of times", source))?;
        let state = program_plan.state(not_native, filters);

        let hook = Self {
            counts: Arc::clone(&program_plan.counts),
            queues_max: program_plan.queues_max,
            state: Mutex::new(Some(State {
                program_plan,
                place,
                keys: Vec::new(),
                filter: plan.filter.clone(),
                prepared: None,
                unfiltered: None,
                promiscuous,
                claims,
            })),
        };
        Ok(OpenedHook { hook: Arc::new(hook), state, stamp_failed })
    }

    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work` unless the hook has left the interface.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> Result<T, BpfError>) -> Result<T, BpfError> {
        self.lock().as_mut().map_or_else(|| Err(left()), work)
    }

    /// As [`with`](Self::with), for errors with the interface's name.
    fn with_device<T>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        let left = || {
            Err(system("change the program of an interface", io::Error::other("it was detached")))
        };
        self.lock().as_mut().map_or_else(left, work)
    }
}

/// The error of a hook that has left the interface.
fn left() -> BpfError {
    let source = io::Error::from_raw_os_error(libc::ENODEV);
    BpfError::Failed {
        operation: "change".into(),
        object: "a program that was detached".to_owned(),
        source,
    }
}

fn join(device: &DeviceSummary) -> Result<OwnedFd, OpenError> {
    join_promiscuous(device.index)
        .map_err(|source| system("set the interface to promiscuous mode", source))
}

/// Takes the place of `queues`, for a program with `filter`; also returns where that runs. The
/// caller has claimed them.
fn take(
    program_plan: &ProgramPlan,
    queues: &[u32],
    filter: Option<&Filter>,
) -> Result<(Taken, Where), OpenError> {
    let filters = RefCell::new(Where::default());
    let load = |array: &Map| {
        let (program, place) = program_plan.load(array, filter)?;
        filters.replace(place);
        Ok(program)
    };

    let is_bound = program_plan.clock.bound_to().is_some();
    let taken = Place::take(&program_plan.device, queues, is_bound, load)?;
    Ok((taken, filters.into_inner()))
}

/// Keeps the array of programs open for as long as others see the claims.
fn keep_array(claims: &[Claim], place: &Place) -> Result<(), OpenError> {
    let kept = claims.iter().try_for_each(|claim| claim.keep(place.array()));
    kept.map_err(|source| system("bind the socket that claims a receive queue", source))
}

impl State {
    /// Whether this capture has claimed a queue of its interface.
    fn has_claimed(&self, queue: u32) -> bool {
        self.claims.iter().any(|claim| claim.is_of_queue(&self.program_plan.device, queue))
    }

    /// Those of the steering's queues that are claimed. Another capture may have the others.
    fn claimed(&self) -> Vec<u32> {
        self.program_plan
            .steering
            .queues()
            .iter()
            .copied()
            .filter(|&queue| self.has_claimed(queue))
            .collect()
    }

    /// Takes a place on the interface again, for the current program.
    fn take_place(&mut self) -> Result<Option<String>, OpenError> {
        // The slots may be in the next place's array as well.
        self.place.leave();
        let (Taken { place, not_native }, _) =
            take(&self.program_plan, &self.claimed(), self.filter.as_ref())?;
        keep_array(&self.claims, &place)?;
        self.place = place;
        Ok(not_native)
    }

    fn load(&self, filter: Option<&Filter>) -> Result<(Program, Where), BpfError> {
        self.program_plan.load(self.place.array(), filter)
    }

    fn remove(&mut self, keys: &[u32]) {
        // Fails only if the socket is already gone.
        keys.iter().for_each(|key| _ = self.program_plan.sockets.delete(*key));
        self.keys.retain(|key| !keys.contains(key));
    }
}

impl Hook for LocalHook {
    fn receive(&self, key: u32, socket: SocketRef<'_>) -> Result<(), BpfError> {
        self.with(|state| {
            state.program_plan.sockets.update_fd(key, socket.descriptor)?;
            if !state.keys.contains(&key) {
                state.keys.push(key);
            }
            Ok(())
        })
    }

    fn prepare(&self, filter: Option<&Filter>) -> Result<Where, BpfError> {
        self.with(|state| {
            let kept = state.unfiltered.as_ref().filter(|_| filter.is_none());
            let (program, filters) = match kept {
                Some(program) => (program.try_clone()?, Where::Program),
                None => state.load(filter)?,
            };
            state.prepared = Some((program, filter.cloned()));
            Ok(filters)
        })
    }

    fn exchange(&self, _turn: &AttachLock) -> Result<(), BpfError> {
        self.with(|state| {
            let (program, filter) = state.prepared.take().ok_or_else(left)?;
            state.place.exchange(program)?;
            state.filter = filter;
            Ok(())
        })
    }

    fn keep_unfiltered(&self) -> Result<(), BpfError> {
        self.with(|state| {
            if state.unfiltered.is_none() {
                state.unfiltered = Some(state.load(None)?.0);
            }
            Ok(())
        })
    }

    fn prepare_to_pass(&self) -> Result<AttachLock, OpenError> {
        self.with_device(|state| {
            let turn = own_turn(&state.program_plan.device)?;
            let program = programs::load_pass(state.place.array());
            let program = program.map_err(|source| refused(&state.program_plan.device, source))?;
            state.prepared = Some((program, None));
            Ok(turn)
        })
    }

    fn is_in_place(&self) -> bool {
        self.lock().as_ref().is_some_and(|state| state.place.is_taken())
    }

    fn attach_again(&self) -> Result<(), OpenError> {
        self.with_device(|state| {
            let device = &state.program_plan.device;
            let _turn = Claim::turn_now(device)?;
            if state.place.is_taken() {
                return Ok(());
            }
            if !state.place.retake(device, &state.claimed())? {
                state.take_place()?;
            }
            Ok(())
        })
    }

    fn attach_anew(&self) -> Result<(), OpenError> {
        self.with_device(|state| {
            let device = &state.program_plan.device;
            let _turn = Claim::turn_now(device)?;
            state.place.attach_anew(device).map_err(|source| refused(device, source))
        })
    }

    fn run_on_new_queues(&self) -> Result<(), OpenError> {
        self.with_device(|state| {
            let device = state.program_plan.device.clone();
            let _turn = Claim::turn_now(&device)?;
            let failed = |source| refused(&device, source);
            let (program, _) = state.load(state.filter.as_ref()).map_err(failed)?;
            state.place.exchange_anew(program, &device).map_err(failed)
        })
    }

    fn claim_queue(&self, queue: u32) -> Result<(), OpenError> {
        self.with_device(|state| {
            let _turn = Claim::turn_now(&state.program_plan.device)?;
            let claim = Claim::queue(&state.program_plan.device, queue)?;
            keep_array(slice::from_ref(&claim), &state.place)?;
            state.claims.push(claim);
            Ok(())
        })
    }

    fn add_queue(&self, queue: u32) -> Result<(), BpfError> {
        self.with(|state| {
            let queues = state.program_plan.steering.queues();
            let is_known = queues.contains(&queue);
            let is_last = queues.last().is_none_or(|last| *last < queue);
            if !state.has_claimed(queue) || !(is_known || is_last) {
                return Err(left());
            }

            state.place.add(queue)?;
            if !is_known {
                state.program_plan.steering.add(queue);
            }

            Ok(())
        })
    }

    fn close_queue(&self, queue: u32, keys: &[u32]) {
        let mut locked = self.lock();
        let Some(state) = &mut *locked else { return };
        state.remove(keys);
        wait_for_running_programs();
        state.place.give_up(queue);
        // From here on another capture may have the queue.
        let device = &state.program_plan.device;
        state.claims.retain(|claim| !claim.is_of_queue(device, queue));
    }

    fn move_to(&self, device: &DeviceSummary) -> Result<HookState, OpenError> {
        self.with_device(|state| {
            let _turn = Claim::turn_now(device)?;
            let queues = state.program_plan.steering.queues().iter().copied();
            let queues: Vec<u32> = queues.filter(|queue| *queue < device.rx_queues).collect();

            // Without the claims, another capture may have the slots.
            state.place.leave();

            // An earlier attempt may have claimed queues already.
            state
                .claims
                .retain(|claim| queues.iter().any(|&queue| claim.is_of_queue(device, queue)));

            for &queue in &queues {
                if !state.claims.iter().any(|claim| claim.is_of_queue(device, queue)) {
                    state.claims.push(Claim::queue(device, queue)?);
                }
            }

            if state.promiscuous.is_some() {
                state.promiscuous = Some(join(device)?);
            }

            state.program_plan.move_to(device).map_err(|source| refused(device, source))?;
            let not_native = state.take_place()?;
            Ok(state.program_plan.state(not_native, Where::default()))
        })
    }

    fn unseated(&self) -> u64 {
        self.sum_of(NO_SOCKET)
    }

    fn own(&self) -> u64 {
        self.sum_of(OWN)
    }

    fn filtered(&self, queue: u32) -> u64 {
        self.counts.lookup_sums(queue).map_or(0, |sums| sums[NOT_WANTED])
    }

    fn leave(&self) {
        let Some(mut state) = self.lock().take() else { return };
        let keys = std::mem::take(&mut state.keys);
        state.remove(&keys);

        #[cfg(sabotage)]
        if crate::sabotage::is("promiscuous-mode-outlives-the-capture") {
            std::mem::forget(join(&state.program_plan.device));
        }
        #[cfg(sabotage)]
        if crate::sabotage::is("program-outlives-the-capture") {
            return std::mem::forget(state);
        }

        // Before other captures may claim the queues and use their slots.
        state.place.leave();
    }

    fn leave_to_others(&self) {
        let Some(mut state) = self.lock().take() else { return };
        state.keys.clear();
        state.place.leave_to_others();
    }
}

impl LocalHook {
    /// A count of all queues together.
    fn sum_of(&self, place: usize) -> u64 {
        let counts = |queue| self.counts.lookup_sums(queue).map_or(0, |sums| sums[place]);
        (0..self.queues_max).map(counts).sum()
    }
}

impl Drop for LocalHook {
    fn drop(&mut self) {
        self.leave();
    }
}
