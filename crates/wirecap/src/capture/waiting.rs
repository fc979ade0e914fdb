//! How a worker waits: a state machine without a clock or a system call, which
//! [`Worker`](crate::Worker) and the simulator run.
//!
//! A worker that finds no packets first sleeps for a fixed time, and polls only when traffic has
//! paused: each wake-up of a polling worker costs the sender's core a few hundred nanoseconds in
//! the receive path, whereas a sleeping worker costs it nothing, and packets wait in the pool.
//! While a ring of its group is above T, a worker neither sleeps nor polls.
//!
//! For each chunk that the application requests, a worker calls [`begin`](Waiting::begin) and
//! [`ask`](Waiting::ask), and as long as it gets no chunk, [`idle`](Waiting::idle) and `ask` again.

use std::time::Duration;

use crate::error::CaptureError;
use crate::group::{Group, Turn};
use crate::ledger::Mode;
use crate::umem::chunk::Chunk;

/// The shortest sleep, which the kernel's timer slack doubles.
pub(crate) const SHORTEST_SLEEP: Duration = Duration::from_micros(50);
/// The longest sleep. If the worker then finds no packets, it polls.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(1);
/// A wake-up that finds more packets than this came too late.
const WORTH_WAKING: usize = 256;
/// A wake-up that finds fewer packets than this came too early.
const NOT_WORTH_WAKING: usize = WORTH_WAKING / 2;
/// Time between two packets at the line rate of 10 Gbit/s.
pub(crate) const PACKET_TIME: Duration = Duration::from_nanos(67);
/// A sleep may take an eighth of the cells that are posted.
const SLEEP_PER_CELL: Duration = Duration::from_nanos(PACKET_TIME.as_nanos() as u64 / 8);
/// Interval at which a polling worker checks whether its interface still exists, which no
/// descriptor reports.
pub(crate) const LOOK_ROUND: Duration = Duration::from_secs(1);
/// In advanced mode, interval at which an idle worker also checks whether a buddy needs help: a
/// buddy that is busy with one chunk or stuck cannot wake it. In both modes it checks whether rings
/// have all required free cells. A full pool of 131,072 cells takes 5 Mpackets/s for 26 ms. In a
/// virtual machine a wake-up costs about 60 us: 0.3 % of a core for each idle worker.
pub(crate) const LOOK_ROUND_FOR_BUDDIES: Duration = Duration::from_millis(20);
/// Number of immediate retries to get a chunk of a ring above T from which other workers are
/// capturing. Their captures take microseconds; a worker that was preempted during one needs the
/// processor.
const VAIN_ROUNDS_MAX: u32 = 64;

/// Whether this many packets are worth a chunk.
fn is_worth_taking(packets: u32) -> bool {
    packets as usize >= NOT_WORTH_WAKING
}

/// The next step of a worker before it asks for a chunk, or asks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Lets others run.
    Yield,
    /// Sleeps for this time; nothing wakes it.
    Sleep(Duration),
    /// Sleeps until packets arrive in a home ring or a buddy calls, for at most this time.
    Poll(Duration),
}

/// The waiting state of one worker.
#[derive(Debug)]
pub(crate) struct Waiting {
    worker: usize,
    turn: Turn,
    sleep: Duration,
    longest_sleep: Duration,
    /// Resting makes larger chunks, because packets accumulate meanwhile.
    rest_pays: bool,
    /// Packets captured since the last sleep, if resting pays.
    taken: usize,
    /// Packets that the last chunk left in a home ring, if known.
    left_behind: u32,
    vain_rounds: u32,
    /// Buddies may call it.
    polls: bool,
    /// It does not look at its buddies before it waits: the former fault, which the simulator must
    /// detect.
    #[cfg(test)]
    pub(crate) is_heedless: bool,
}

impl Waiting {
    pub(crate) fn new(group: &Group, worker: usize) -> Self {
        let fewest_posted = group.home(worker).map(|ring| ring.unattended()).min().unwrap_or(0);
        Self {
            worker,
            turn: Turn::default(),
            sleep: SHORTEST_SLEEP,
            longest_sleep: (SLEEP_PER_CELL.saturating_mul(fewest_posted))
                .clamp(SHORTEST_SLEEP, LONGEST_SLEEP),
            rest_pays: group.home(worker).all(|ring| ring.abilities().finite.is_none()),
            taken: 0,
            left_behind: 0,
            vain_rounds: 0,
            polls: false,
            #[cfg(test)]
            is_heedless: false,
        }
    }

    /// The application asks for a chunk: returns how the worker first rests if few packets wait, so
    /// that more accumulate. A chunk of two packets costs nearly as much as a full one.
    #[inline]
    pub(crate) fn begin(&mut self, group: &Group, now: impl Fn() -> u64) -> Option<Wait> {
        // Under load the function ends here, because looking at a ring reads memory that the kernel
        // writes.
        if self.taken == 0 || is_worth_taking(self.left_behind) {
            return None;
        }
        self.pause(group, now)
    }

    #[inline(never)]
    fn pause(&mut self, group: &Group, now: impl Fn() -> u64) -> Option<Wait> {
        let is_hurried = group.home(self.worker).any(|ring| is_worth_taking(ring.backlog()));
        (!is_hurried && !self.is_needed(group)).then(|| self.rest(group, now, false))
    }

    /// The next chunk, if there is one; as [`Group::ask`].
    #[inline]
    pub(crate) fn ask(
        &mut self,
        group: &Group,
        now: impl Fn() -> u64,
    ) -> Result<Option<Chunk>, CaptureError> {
        if self.polls {
            self.polls = false;
            group.set_asleep(self.worker, false);
        }

        let asked = group.ask(self.worker, &mut self.turn, now);
        if let Ok(Some(chunk)) = &asked {
            self.taken += if self.rest_pays { chunk.len() } else { 0 };
            self.left_behind =
                if chunk.is_offloaded() { 0 } else { chunk.left_behind().unwrap_or(0) };
            self.vain_rounds = 0;
        }

        asked
    }

    /// Number of buddies to wake after the last request.
    #[inline]
    pub(crate) fn calls(&self) -> usize {
        self.turn.calls
    }

    /// Whether the capture has ended: there will be no more chunks.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.turn.has_ended
    }

    /// No chunk was found: returns how the worker waits before it asks again. `lags`: packets on a
    /// tx ring must advance within [`LONGEST_SLEEP`].
    pub(crate) fn idle(&mut self, group: &Group, now: impl Fn() -> u64, lags: bool) -> Wait {
        if self.vain_rounds < VAIN_ROUNDS_MAX && self.is_needed(group) {
            self.vain_rounds += 1;
            return Wait::Yield;
        }
        self.vain_rounds = 0;
        self.rest(group, now, lags)
    }

    /// The next wait polls at once: the caller has rested and found nothing.
    pub(crate) fn skip_sleeps(&mut self) {
        (self.taken, self.sleep) = (0, self.longest_sleep);
    }

    fn is_needed(&self, group: &Group) -> bool {
        #[cfg(test)]
        if self.is_heedless {
            return false;
        }
        group.is_needed(self.worker)
    }

    #[cold]
    fn rest(&mut self, group: &Group, now: impl Fn() -> u64, lags: bool) -> Wait {
        self.adapt_sleep();
        if self.sleep <= self.longest_sleep {
            return Wait::Sleep(self.sleep);
        }

        // A packet socket stays readable while a chunk of its last block is held: when nothing is
        // found after this, a short sleep comes before the next poll.
        self.sleep = self.longest_sleep / 2;
        group.set_asleep(self.worker, true);
        self.polls = true;

        // A buddy that called before it saw this worker asleep did not wake it: look once more,
        // then sleep.
        if !group.is_quiet(self.worker, now) {
            return Wait::Yield;
        }

        Wait::Poll(match group.mode() {
            _ if lags => LONGEST_SLEEP,
            Mode::Basic if group.unattended().is_none() => LOOK_ROUND,
            Mode::Basic => LOOK_ROUND_FOR_BUDDIES,
            Mode::Advanced(_) => LOOK_ROUND_FOR_BUDDIES,
        })
    }

    /// Sets the next sleep to the time in which a chunk's worth of packets arrives, estimated from
    /// the last one; longer than the maximum means that the worker should poll.
    fn adapt_sleep(&mut self) {
        self.sleep = match std::mem::take(&mut self.taken) {
            0 => (self.sleep * 2).min(self.longest_sleep * 2),
            few if few < NOT_WORTH_WAKING => (self.sleep * 2).min(self.longest_sleep),
            many if many > WORTH_WAKING => (self.sleep / 2).max(SHORTEST_SLEEP),
            _ => self.sleep.min(self.longest_sleep),
        };
    }
}
