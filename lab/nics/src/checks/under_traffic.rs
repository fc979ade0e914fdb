//! Events on a capturing NIC under traffic: every frame is in the file, or the ledger explains why
//! it is missing.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use wirecap_testbed::{PacketSender, Stamp};

use super::{Outcome, Verdict};
use crate::bed::{Bed, Nic};
use crate::command::{Recorded, Recording};
use crate::frames::Frames;

/// How often each event happens, unless set by an option.
const TIMES: usize = 3;
pub(crate) static EVENTS: OnceLock<usize> = OnceLock::new();
/// Time between two frames.
const INTERVAL: Duration = Duration::from_millis(4);
/// Time for which the capture must run undisturbed before each event, and after the last one.
const CALM: Duration = Duration::from_millis(1500);
/// Maximum time for the capture to report an event and to capture again.
const TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of runs of missing frames in a message.
const RUNS_NAMED: usize = 24;
/// The capture's messages when packets begin to pass unseen, and when they are captured again.
const LOST: &str = "packets pass unseen";
const BACK: &str = "captured again: ";

/// A frame was sent between these two times.
#[derive(Debug, Clone, Copy)]
struct Sent {
    from: SystemTime,
    to: SystemTime,
}

/// A capturing NIC.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) nic: &'a Nic,
    recording: &'a Recording,
}

impl Scene<'_> {
    /// How often the capture has printed these words.
    pub(super) fn times(&self, words: &str) -> usize {
        self.recording.said().matches(words).count()
    }

    /// Waits until the capture has printed them more than `times` times.
    pub(super) fn wait_for_more(&self, words: &str, times: usize) -> Result<(), Box<dyn Error>> {
        self.wait(|| self.times(words) > times)
            .map_err(|said| format!("does not say {words:?} for time {}: {said}", times + 1).into())
    }

    /// Waits until packets have been captured without interruption for a while: a device may lose
    /// its link some seconds after it has started.
    fn wait_for_calm(&self) -> Result<(), Box<dyn Error>> {
        let mut since = Instant::now();
        let is_calm = || {
            let said = self.recording.said();
            if said.rfind(LOST) > said.rfind(BACK) || !self.nic.has_carrier() {
                since = Instant::now();
            }
            since.elapsed() >= CALM
        };
        self.wait(is_calm).map_err(|said| format!("does not capture again: {said}").into())
    }

    fn wait(&self, mut is_so: impl FnMut() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + TIMEOUT;
        while !is_so() {
            if Instant::now() > deadline {
                return Err(self.recording.said());
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

/// Repeats an event on the receiving NIC while it captures. Frames are sent continuously, starting
/// before the capture, and the next event waits until they are captured again.
///
/// Frames may be lost, but each lost frame must have been sent during a gap listed in the ledger,
/// or be among the packets that the ledger counts as dropped.
pub(super) fn with_traffic(
    bed: &Bed,
    event: impl Fn(&Scene<'_>) -> Result<(), Box<dyn Error>>,
) -> Outcome {
    let times = EVENTS.get().copied().unwrap_or(TIMES);
    let events = |scene: &Scene<'_>| {
        for _ in 0..times {
            let back = scene.times(BACK);
            event(scene)?;
            scene.wait_for_more(BACK, back)?;
            scene.wait_for_calm()?;
        }
        Ok(times)
    };
    captured(bed, events, judge)
}

/// As [`with_traffic`], for an event that may not interrupt the capture, and whose losses may be in
/// no gap: then the verdict must not be "yes".
pub(super) fn with_traffic_that_may_go_on(
    bed: &Bed,
    event: impl Fn(&Scene<'_>) -> Result<(), Box<dyn Error>>,
) -> Outcome {
    let times = EVENTS.get().copied().unwrap_or(TIMES);
    let events = |scene: &Scene<'_>| {
        for _ in 0..times {
            event(scene)?;
            thread::sleep(CALM);
            scene.wait_for_calm()?;
        }
        Ok(times)
    };
    captured(bed, events, judge_verdict)
}

/// Executes an event after which the NIC no longer captures, and checks the result like
/// [`with_traffic`].
pub(super) fn with_traffic_until(
    bed: &Bed,
    event: impl Fn(&Scene<'_>) -> Result<(), Box<dyn Error>>,
) -> Outcome {
    let events = |scene: &Scene<'_>| {
        event(scene)?;
        thread::sleep(CALM);
        Ok(1)
    };
    captured(bed, events, judge)
}

/// Compares the frames sent, of which the first ones may be missing, with the file and the ledger.
/// Returns the figures.
type Judge = fn(&Recorded, &Frames, &[Sent], usize) -> Result<String, Box<dyn Error>>;

fn captured(
    bed: &Bed,
    events: impl Fn(&Scene<'_>) -> Result<usize, Box<dyn Error>>,
    judge: Judge,
) -> Outcome {
    let frames = bed.frames(&[60, 1025], 16, u64::MAX)?;
    let sender = PacketSender::on(&bed.sender.interface()?)?;
    let stop = AtomicBool::new(false);
    let sent = Mutex::default();
    let happen = || {
        let recording = Recording::start(&bed.receiver.0, &[])?;
        // The next frame may already be in flight.
        let first = locked(&sent).len() + 1;
        let scene = Scene { nic: &bed.receiver, recording: &recording };
        scene.wait_for_calm()?;
        let happened = events(&scene)?;
        Ok::<_, Box<dyn Error>>((recording, first, happened))
    };
    let (recording, first, happened) = thread::scope(|scope| {
        let sending = scope.spawn(|| send(sender, &frames, &sent, &stop));
        let happened = happen().map_err(|error| error.to_string());
        stop.store(true, Relaxed);
        sending.join().expect("a sender").and(happened)
    })?;
    // The NIC may be missing.
    let _at_rest = bed.rest();
    let sent = sent.into_inner().unwrap_or_else(PoisonError::into_inner);
    let counts = [bed.sender.counts(), bed.receiver.counts()].join("; ");
    let figures = judge(&recording.end()?, &frames, &sent, first)
        .map_err(|error| format!("{error}; {counts}"))?;
    println!("{:>8} {happened} events: {figures}", bed.kind.name);
    Ok(Verdict::ok())
}

fn send(
    mut sender: PacketSender,
    frames: &Frames,
    sent: &Mutex<Vec<Sent>>,
    stop: &AtomicBool,
) -> Result<(), String> {
    let mut number = 0;
    while !stop.load(Relaxed) {
        let from = SystemTime::now();
        sender.send(&frames.frame(number)).map_err(|error| error.to_string())?;
        locked(sent).push(Sent { from, to: SystemTime::now() });
        number += 1;
        thread::sleep(INTERVAL);
    }
    Ok(())
}

/// A gap in the ledger: packets may have passed unseen during this time.
#[derive(Debug)]
struct Gap {
    from: SystemTime,
    to: Option<SystemTime>,
}

impl Gap {
    fn of(value: &Value) -> Option<Self> {
        let time = |name: &str| {
            Some(UNIX_EPOCH + Duration::try_from_secs_f64(value[name].as_f64()?).ok()?)
        };
        Some(Self { from: time("from")?, to: time("to") })
    }

    /// Whether a frame with a delay of at most `delay` may have arrived in the gap.
    fn has(&self, sent: &Sent, delay: Duration) -> bool {
        sent.to + delay >= self.from && self.to.is_none_or(|to| sent.from <= to)
    }
}

/// Which of the frames sent are in the file, each at most once and as it was sent, and the maximum
/// delay of those.
fn arrivals(
    recorded: &Recorded,
    frames: &Frames,
    sent: &[Sent],
) -> Result<(Vec<bool>, Duration), Box<dyn Error>> {
    let error = |what: String| Err(format!("{what}; {}", recorded.said).into());
    let mut is_recorded = vec![false; sent.len()];
    let mut delay = Duration::ZERO;
    for (frame, time) in recorded.frames.iter().zip(&recorded.times) {
        let number =
            Stamp::of(frame).map(|stamp| stamp.sequence).filter(|&n| frames.frame(n) == *frame);
        let Some(number) =
            number.map(|number| number as usize).filter(|&number| number < sent.len())
        else {
            return error(format!(
                "{} bytes came as they were not sent: {frame:02x?}",
                frame.len()
            ));
        };
        if std::mem::replace(&mut is_recorded[number], true) {
            return error(format!("frame {number} came twice"));
        }
        delay = delay.max(time.duration_since(sent[number].to).unwrap_or_default());
    }
    let delivered = recorded.count("/delivered");
    if delivered != recorded.frames.len() as u64 {
        return error(format!("{delivered} delivered, {} in the file", recorded.frames.len()));
    }
    Ok((is_recorded, delay))
}

/// The verdict is not "yes" if frames are missing.
fn judge_verdict(
    recorded: &Recorded,
    frames: &Frames,
    sent: &[Sent],
    first: usize,
) -> Result<String, Box<dyn Error>> {
    let (is_recorded, _) = arrivals(recorded, frames, sent)?;
    let absent = is_recorded.iter().skip(first).filter(|is_recorded| !**is_recorded).count();
    if absent > 0 && recorded.claims_lossless() {
        return Err(format!("{absent} frames are missing; {}", recorded.said).into());
    }
    Ok(format!("{} frames, {absent} not captured", sent.len().saturating_sub(first)))
}

/// Each missing frame is in a gap, or among the packets that the ledger counts as dropped.
fn judge(
    recorded: &Recorded,
    frames: &Frames,
    sent: &[Sent],
    first: usize,
) -> Result<String, Box<dyn Error>> {
    let error = |what: String| Err(format!("{what}; {}", recorded.said).into());
    let (is_recorded, delay) = arrivals(recorded, frames, sent)?;
    let gaps: Vec<Gap> =
        recorded.ledger["unseen"].as_array().into_iter().flatten().filter_map(Gap::of).collect();
    let absent: Vec<usize> = (first..sent.len()).filter(|&number| !is_recorded[number]).collect();
    let outside: Vec<usize> = absent
        .iter()
        .copied()
        .filter(|&number| !gaps.iter().any(|gap| gap.has(&sent[number], delay)))
        .collect();
    let dropped: u64 = recorded.ledger["dropped"]
        .as_object()
        .into_iter()
        .flat_map(|reasons| reasons.values().filter_map(Value::as_u64))
        .sum();
    if outside.len() as u64 > dropped {
        return error(format!(
            "{} frames are in no gap, of which {dropped} are counted as dropped: {}",
            outside.len(),
            runs_of(&outside, sent)
        ));
    }
    if !absent.is_empty() && recorded.claims_lossless() {
        return error(format!("{} frames are missing", absent.len()));
    }
    let count = sent.len().saturating_sub(first);
    let absent = absent.len();
    let gaps = gaps.len();
    Ok(format!(
        "{count} frames, {absent} not captured in {gaps} gaps or {dropped} dropped, on their way for up to {delay:.0?}"
    ))
}

/// Numbers of frames, as runs of consecutive numbers, each with the time in which they were sent.
fn runs_of(numbers: &[usize], sent: &[Sent]) -> String {
    let runs = numbers.chunk_by(|number, next| number + 1 == *next).map(|run| {
        let first = run[0];
        let last = run[run.len() - 1];
        let [from, to] = [sent[first].from, sent[last].to].map(unix_seconds);
        format!("{first} to {last} ({from:.3} to {to:.3})")
    });
    runs.take(RUNS_NAMED).collect::<Vec<_>>().join(", ")
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn locked(sent: &Mutex<Vec<Sent>>) -> MutexGuard<'_, Vec<Sent>> {
    sent.lock().unwrap_or_else(PoisonError::into_inner)
}
