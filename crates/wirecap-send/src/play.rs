//! Sends frames at given times, and accounts for each frame.
//!
//! A [`Source`] makes frames in advance in a separate thread, a batch at a time; the calling thread
//! waits for each frame's time and hands it to an [`Outlet`]. Batches are reused, so no memory is
//! allocated while frames are sent.

mod batch;
mod outlet;
mod schedule;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use crate::{SendError, monotonic_ns, sleep_until_ns};
use hdrhistogram::Histogram;

pub use batch::{Batch, BatchFrame};
pub use outlet::{KernelOutlet, Outlet, XdpOutlet};
pub use schedule::{Pace, Schedule};

/// Number of batches between the thread that makes frames and the thread that sends them.
const BATCHES: usize = 32;
/// Maximum number of due frames that are handed over together: the kernel accepts no more in one
/// call.
const GROUP_FRAMES_MAX: usize = 32;
/// Maximum time of a wait before the player checks whether it must stop.
const NAP_NS: u64 = 20_000_000;

/// A source of frames.
pub trait Source: Send {
    /// Fills an empty batch; leaves it empty at the end of the source.
    fn fill(&mut self, batch: &mut Batch);
}

/// Stops a player, and shows its progress.
#[derive(Clone, Default, Debug)]
pub struct Control(Arc<Shared>);

#[derive(Default, Debug)]
struct Shared {
    stopped: AtomicBool,
    frames: AtomicU64,
}

impl Control {
    /// Ends the player's work within some milliseconds.
    pub fn stop(&self) {
        self.0.stopped.store(true, Relaxed);
    }

    /// Number of frames handed to the kernel so far.
    pub fn frames(&self) -> u64 {
        self.0.frames.load(Relaxed)
    }

    fn is_stopped(&self) -> bool {
        self.0.stopped.load(Relaxed)
    }
}

/// What was sent.
#[derive(Debug)]
#[non_exhaustive]
pub struct Played {
    /// Frames handed to the kernel, for each of the outlet's queues.
    pub queues: Vec<u64>,
    /// Bytes of these frames, without Ethernet's checksums.
    pub bytes: u64,
    /// Time from when the first frame was due until the kernel had the last one.
    pub duration: Duration,
    /// The lateness of frames; `None` if they had no times.
    pub lateness: Option<Lateness>,
    /// Why the player ended before the source.
    pub error: Option<SendError>,
}

impl Played {
    /// Frames handed to the kernel.
    pub fn frames(&self) -> u64 {
        self.queues.iter().sum()
    }
}

/// The lateness of frames when they were handed to the kernel. No frame is early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lateness {
    /// The median.
    pub median: Duration,
    /// The 99th percentile.
    pub percentile_99: Duration,
    /// The maximum.
    pub max: Duration,
}

/// Sends the frames of `source` through `outlet`, each frame when it is due (at once with `timed`
/// false), and returns the source and the account. Ends when the source ends, `control` stops it,
/// or the kernel accepts no more.
pub fn play<S: Source>(
    source: S,
    outlet: &mut impl Outlet,
    timed: bool,
    control: &Control,
) -> (Played, S) {
    let (give, full) = sync_channel(BATCHES);
    let (give_back, empty) = sync_channel(BATCHES);
    for _ in 0..BATCHES {
        give_back.send(Batch::default()).expect("there is room for all batches");
    }

    thread::scope(|scope| {
        let making = scope.spawn(move || make(source, &empty, &give));
        let mut player = Player::new(outlet, timed, control);
        let error = player.play(full, &give_back).err();
        drop(give_back);
        (player.played(error), making.join().expect("a thread that makes frames"))
    })
}

/// Fills batches until the source or the reader ends.
fn make<S: Source>(mut source: S, empty: &Receiver<Batch>, full: &SyncSender<Batch>) -> S {
    for mut batch in empty {
        batch.clear();
        source.fill(&mut batch);
        if batch.is_empty() || full.send(batch).is_err() {
            break;
        }
    }
    source
}

struct Player<'a, O> {
    outlet: &'a mut O,
    lateness: Option<Histogram<u64>>,
    control: &'a Control,
    start_ns: u64,
    queues: Vec<u64>,
    bytes: u64,
    end_ns: u64,
}

impl<'a, O: Outlet> Player<'a, O> {
    fn new(outlet: &'a mut O, timed: bool, control: &'a Control) -> Self {
        let queues = vec![0; outlet.queue_count()];
        let histogram =
            || Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("bounds that can be");
        let lateness = timed.then(histogram);
        Self { outlet, lateness, control, start_ns: 0, queues, bytes: 0, end_ns: 0 }
    }

    fn play(
        &mut self,
        full: Receiver<Batch>,
        give_back: &SyncSender<Batch>,
    ) -> Result<(), SendError> {
        let sent = self.send_all(full, give_back);
        let finished = sent.and_then(|()| self.outlet.finish());
        self.end_ns = monotonic_ns();
        finished
    }

    fn send_all(
        &mut self,
        full: Receiver<Batch>,
        give_back: &SyncSender<Batch>,
    ) -> Result<(), SendError> {
        let mut full = full.into_iter();
        let mut next = full.next();

        // The first batch is ready: from now on the thread waits only for times.
        self.start_ns = monotonic_ns();

        while let Some(batch) = next {
            match self.lateness {
                Some(_) => self.send_when_due(&batch)?,
                None => self.send_at_once(&batch)?,
            }

            if self.control.is_stopped() {
                break;
            }

            // The thread that makes frames may have ended.
            let _ended = give_back.send(batch);
            next = full.next();
        }

        Ok(())
    }

    fn send_at_once(&mut self, batch: &Batch) -> Result<(), SendError> {
        batch.iter().try_for_each(|frame| self.send(frame))?;
        self.control.0.frames.fetch_add(batch.len() as u64, Relaxed);
        Ok(())
    }

    fn send_when_due(&mut self, batch: &Batch) -> Result<(), SendError> {
        let mut frames = batch.iter().peekable();
        while let Some(first) = frames.peek() {
            let due_ns = self.start_ns.saturating_add(first.due_ns);
            if !self.wait_until(due_ns) {
                return Ok(());
            }

            let now_ns = monotonic_ns();
            let mut group = 0;
            while group < GROUP_FRAMES_MAX
                && let Some(frame) =
                    frames.next_if(|frame| self.start_ns.saturating_add(frame.due_ns) <= now_ns)
            {
                self.send(frame)?;
                let late_ns = now_ns - (self.start_ns + frame.due_ns);
                self.lateness.as_mut().expect("frames with times").saturating_record(late_ns);
                group += 1;
            }

            self.outlet.hand_over()?;
            self.control.0.frames.fetch_add(group as u64, Relaxed);
        }

        Ok(())
    }

    fn send(&mut self, frame: BatchFrame<'_>) -> Result<(), SendError> {
        self.outlet.push(frame.queue, frame.bytes)?;
        self.queues[frame.queue as usize] += 1;
        self.bytes += frame.bytes.len() as u64;
        Ok(())
    }

    /// False if it was stopped meanwhile.
    fn wait_until(&self, due_ns: u64) -> bool {
        loop {
            let nap_end_ns = due_ns.min(monotonic_ns() + NAP_NS);
            sleep_until_ns(nap_end_ns);
            if self.control.is_stopped() {
                return false;
            }
            if nap_end_ns == due_ns {
                return true;
            }
        }
    }

    fn played(self, error: Option<SendError>) -> Played {
        let lateness = self.lateness.filter(|histogram| !histogram.is_empty()).map(|histogram| {
            let at = |quantile| Duration::from_nanos(histogram.value_at_quantile(quantile));
            Lateness {
                median: at(0.5),
                percentile_99: at(0.99),
                max: Duration::from_nanos(histogram.max()),
            }
        });
        let duration = Duration::from_nanos(self.end_ns - self.start_ns);
        Played { queues: self.queues, bytes: self.bytes, duration, lateness, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of one byte, each its number, every 100 µs, to two queues in turn.
    struct Numbers(u8);

    impl Source for Numbers {
        fn fill(&mut self, batch: &mut Batch) {
            while self.0 < 200 && batch.len() < 7 {
                batch.push(&[self.0], u64::from(self.0) * 100_000, u32::from(self.0) % 2);
                self.0 += 1;
            }
        }
    }

    /// Records frames and times; fails at a given frame if requested.
    #[derive(Default)]
    struct Memory {
        frames: Vec<(u32, u8, u64)>,
        fails_at: Option<u8>,
    }

    impl Outlet for Memory {
        fn queue_count(&self) -> usize {
            2
        }

        fn push(&mut self, queue: u32, frame: &[u8]) -> Result<(), SendError> {
            if self.fails_at == Some(frame[0]) {
                return Err(SendError::Stalled { interface: "memory".to_owned(), in_flight: 0 });
            }
            self.frames.push((queue, frame[0], monotonic_ns()));
            Ok(())
        }

        fn hand_over(&mut self) -> Result<(), SendError> {
            Ok(())
        }

        fn finish(&mut self) -> Result<(), SendError> {
            Ok(())
        }
    }

    #[test]
    fn every_frame_is_sent_once_in_order_and_not_before_its_time() {
        for timed in [false, true] {
            let mut memory = Memory::default();
            let control = Control::default();
            let before_ns = monotonic_ns();
            let (played, source) = play(Numbers(0), &mut memory, timed, &control);
            assert_eq!(
                (played.queues.as_slice(), played.bytes, source.0),
                (&[100, 100][..], 200, 200)
            );
            assert_eq!((played.frames(), control.frames()), (200, 200));
            assert!(played.error.is_none() && played.lateness.is_some() == timed);

            for (number, (queue, byte, sent_ns)) in (0..).zip(&memory.frames) {
                assert_eq!((*queue, u32::from(*byte)), (number % 2, number));
                assert!(!timed || *sent_ns >= before_ns + u64::from(number) * 100_000);
            }
        }
    }

    #[test]
    fn a_failing_outlet_ends_the_player_with_its_account() {
        let mut memory = Memory { fails_at: Some(50), ..Memory::default() };
        let (played, _) = play(Numbers(0), &mut memory, false, &Control::default());
        assert!(
            matches!(played.error, Some(SendError::Stalled { .. })) && !played.duration.is_zero()
        );
        assert_eq!((played.frames(), memory.frames.len()), (50, 50));
    }

    #[test]
    fn a_player_that_is_stopped_ends_before_the_source() {
        let control = Control::default();
        control.stop();
        let mut memory = Memory::default();
        let (played, _) = play(Numbers(0), &mut memory, true, &control);
        assert_eq!(played.frames() as usize, memory.frames.len());
        assert!(played.frames() < 200 && played.error.is_none());
    }
}
