//! Measures how much a run is disturbed: on a shared machine, a test of loss may be repeated only for a reason other
//! than the loss.
//!
//! A [`Watch`] measures, from outside the engine, what takes processor time from workers and senders: the time in
//! which their threads were ready to run and waited for a processor (`/proc/PID/task/TID/schedstat`), the time in
//! which the host of this machine used the processors for others (steal in `/proc/stat`), and the longest time for
//! which a thread that had just become ready waited for a processor (gap). [`repeat_if_disturbed`] repeats a failed
//! run only with such evidence.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::iter::Sum;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

// Measured on two virtual processors of which the host uses 0 to 34 % for others: the loads of `tests/group/skew.rs` for 8
// and 20 s each (36 runs, nothing else on the machine), by steal:
//
// | steal        | runs | a thread waited up to | longest gap  | failed                                         |
// |--------------|------|-----------------------|--------------|------------------------------------------------|
// | below 2.5 %  | 8    | 1.4 to 4.3 %          | 5 to 70 ms   | none                                           |
// | 2.5 to 5 %   | 6    | 1.8 to 2.7 %          | 8 to 19 ms   | none                                           |
// | 5 to 12.5 %  | 11   | 1.9 to 10.6 %         | 9 to 53 ms   | none                                           |
// | above 12.5 % | 11   | 4.0 to 11.4 %         | 13 to 83 ms  | 2 lost packets, 3 senders did not keep up      |
//
// Later, in a complete run of all tests, one failed with 3.7 % of steal, 5.4 % of waiting and gaps of 10 ms: the sender and
// two workers at 0.9 of their capacity leave little time of two processors. So the limits are below the values of failed
// runs, although most runs beyond the limits do not fail.

/// A thread that waited for a processor for more than this share of the run was disturbed.
const WAITED_SHARE_MAX: f64 = 0.04;
/// Steal above this share of all processors' time is a disturbance.
pub(crate) const STEAL_SHARE_MAX: f64 = 0.025;
/// A gap longer than this is a disturbance.
const GAP_MAX: Duration = Duration::from_millis(20);
/// Maximum number of repetitions of a disturbed run.
const REPEATS: usize = 2;
/// Interval at which threads are read; a thread that ends in between is known up to the last reading.
const LOOK: Duration = Duration::from_millis(20);
/// Interval at which a metronome thread wakes up.
const BEAT: Duration = Duration::from_millis(1);
/// `/proc/stat` counts in hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

/// Processor time so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// On a processor.
    pub ran: Duration,
    /// Time in which the thread was ready to run and waited for a processor.
    pub waited: Duration,
}

impl Sum for CpuTime {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        let add = |a: Self, b: Self| Self { ran: a.ran + b.ran, waited: a.waited + b.waited };
        times.fold(Self::default(), add)
    }
}

/// The processor times of each current thread of a process, given by its PID or `self`.
///
/// # Errors
///
/// If the process has ended.
pub fn cpu_times(process: &str) -> io::Result<BTreeMap<OsString, CpuTime>> {
    let mut threads = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?;
        // It may have ended since.
        let Some(time) = cpu_time(&task.path()) else { continue };
        threads.insert(task.file_name(), time);
    }
    Ok(threads)
}

fn cpu_time(task: &Path) -> Option<CpuTime> {
    let text = fs::read_to_string(task.join("schedstat")).ok()?;
    let mut nanos = text.split_whitespace().map_while(|field| field.parse().ok());
    let mut next = || Duration::from_nanos(nanos.next().unwrap_or(0));
    Some(CpuTime { ran: next(), waited: next() })
}

/// Time that the host took from all processors of this machine together.
pub(crate) fn stolen() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = text.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse::<u32>().ok());
    TICK * ticks.unwrap_or(0)
}

/// Watches threads while a run lasts: those that this process starts after [`begin`](Self::begin), and all of the
/// [processes named](Self::process).
#[derive(Debug)]
pub struct Watch {
    begun: Instant,
    stolen: Duration,
    shared: Arc<Shared>,
    watchers: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    done: AtomicBool,
    /// In nanoseconds.
    longest_gap: AtomicU64,
    processes: Mutex<Vec<u32>>,
    threads: Mutex<BTreeMap<OsString, Thread>>,
    /// Threads that do not belong to the run.
    others: Mutex<Vec<OsString>>,
}

/// The observed times of a thread.
#[derive(Debug, Clone)]
struct Thread {
    name: String,
    first: CpuTime,
    last: CpuTime,
}

impl Watch {
    /// Starts watching. On each processor that this process may use, a thread wakes up every millisecond and
    /// measures its delay. It does not spin, which would itself be a disturbance, and uses less than 1 % of a
    /// processor.
    pub fn begin() -> Self {
        let shared = Arc::new(Shared::default());
        let own = cpu_times("self").unwrap_or_default();
        shared.others.lock().unwrap_or_else(PoisonError::into_inner).extend(own.into_keys());
        let spawn = |name: &str, work: Box<dyn FnOnce(&Shared) + Send>| {
            let shared = Arc::clone(&shared);
            let begin = move || {
                shared.exclude_this_thread();
                work(&shared);
            };
            thread::Builder::new().name(name.to_owned()).spawn(begin).expect("the system has threads left")
        };
        let mut watchers = vec![spawn("watch", Box::new(Shared::look_on))];
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        watchers.extend(cpus.map(|cpu| spawn("metronome", Box::new(move |shared| shared.beat(cpu)))));
        Self { begun: Instant::now(), stolen: stolen(), shared, watchers }
    }

    /// Watches another process, too, until it ends.
    pub fn process(&self, id: u32) {
        self.shared.processes.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        self.shared.look();
    }

    /// Ends watching and returns the result.
    pub fn end(mut self) -> Disturbance {
        self.shared.look();
        let (duration, stolen) = (self.begun.elapsed(), stolen().saturating_sub(self.stolen));
        self.shared.done.store(true, Ordering::Relaxed);
        for watcher in self.watchers.drain(..) {
            watcher.join().expect("watching does not panic");
        }
        let threads = std::mem::take(&mut *self.shared.threads());
        let waited = |thread: &Thread| thread.last.waited.saturating_sub(thread.first.waited);
        let most = threads.into_values().max_by_key(waited).map(|thread| (waited(&thread), thread.name));
        let (waited, thread) = most.unwrap_or_default();
        let longest_gap = Duration::from_nanos(self.shared.longest_gap.load(Ordering::Relaxed));
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        Disturbance { duration, waited, thread, stolen, cpus, longest_gap }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.done.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn threads(&self) -> MutexGuard<'_, BTreeMap<OsString, Thread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exclude_this_thread(&self) {
        if let Ok(link) = fs::read_link("/proc/thread-self")
            && let Some(id) = link.file_name()
        {
            self.others.lock().unwrap_or_else(PoisonError::into_inner).push(id.to_owned());
        }
    }

    fn look_on(&self) {
        while !self.done.load(Ordering::Relaxed) {
            self.look();
            thread::sleep(LOOK);
        }
    }

    /// Records the times of all watched threads.
    fn look(&self) {
        self.look_at("self");
        let processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        processes.iter().for_each(|process| self.look_at(&process.to_string()));
    }

    fn look_at(&self, process: &str) {
        let Ok(times) = cpu_times(process) else { return };
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut threads = self.threads();
        for (id, time) in times.into_iter().filter(|(id, _)| !others.contains(id)) {
            threads.entry(id).or_insert_with_key(|id| Thread::new(process, id, time)).last = time;
        }
    }

    /// Records the delay of a thread on this processor.
    fn beat(&self, cpu: usize) {
        let mut only = CpuSet::new();
        only.set(cpu);
        // If the processor was taken offline, the thread runs on another one.
        let _ = sched_setaffinity(None, &only);
        while !self.done.load(Ordering::Relaxed) {
            let begin = Instant::now();
            thread::sleep(BEAT);
            let late = begin.elapsed().saturating_sub(BEAT);
            self.longest_gap.fetch_max(late.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}

impl Thread {
    /// A thread that is seen for the first time. Its earlier waiting counts if it began during the run, as threads of
    /// this process did.
    fn new(process: &str, id: &OsString, time: CpuTime) -> Self {
        let path = Path::new("/proc").join(process).join("task").join(id).join("comm");
        let name = fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let first = if process == "self" { CpuTime::default() } else { time };
        Self { name: format!("{name} ({})", id.display()), first, last: time }
    }
}

/// The disturbance of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Disturbance {
    /// The duration of the run.
    pub duration: Duration,
    /// The maximum total time in which one thread was ready to run and did not run.
    pub waited: Duration,
    /// That thread.
    pub thread: String,
    /// Processor time that the host used for others.
    pub stolen: Duration,
    /// Number of processors.
    pub cpus: usize,
    /// The longest time for which a thread that had just become ready waited for a processor.
    pub longest_gap: Duration,
}

impl Disturbance {
    fn waited_share(&self) -> f64 {
        self.waited.as_secs_f64() / self.duration.as_secs_f64()
    }

    /// The share of all processors' time that the host used for others.
    pub fn stolen_share(&self) -> f64 {
        self.stolen.as_secs_f64() / self.duration.as_secs_f64() / self.cpus as f64
    }

    /// The maximum time by which other work may have delayed a sequence of steps.
    pub fn delay(&self) -> Duration {
        self.waited + self.stolen + self.longest_gap
    }

    /// Whether the disturbance may explain a failure: more than 4 % of one thread's time, 2.5 % of the machine's,
    /// or 20 ms at once.
    pub fn is_disturbed(&self) -> bool {
        self.waited_share() > WAITED_SHARE_MAX
            || self.stolen_share() > STEAL_SHARE_MAX
            || self.longest_gap > GAP_MAX
    }
}

impl fmt::Display for Disturbance {
    /// `undisturbed: in 5.0 s a thread waited up to 0.4 % (sender (123)), steal 0.00 %, longest gap 0.3 ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: in {:.1} s a thread waited up to {:.1} % ({}), steal {:.2} %, longest gap {:.1} ms",
            if self.is_disturbed() { "disturbed" } else { "undisturbed" },
            self.duration.as_secs_f64(),
            self.waited_share() * 100.0,
            self.thread,
            self.stolen_share() * 100.0,
            self.longest_gap.as_secs_f64() * 1e3
        )
    }
}

/// Runs `trial`, prints the disturbance, and returns the result. A failure is repeated, at most twice, if the run was
/// disturbed. Conditions that must be true on every machine, such as balanced counts, must be asserted by `trial`.
///
/// # Panics
///
/// If an undisturbed run fails, or the third one.
#[track_caller]
pub fn repeat_if_disturbed<T>(what: &str, trial: impl FnMut(&Watch) -> Result<T, String>) -> T {
    repeat(what, watched(trial)).unwrap_or_else(|void| panic!("{what}: {void}"))
}

/// As [`repeat_if_disturbed`], for a load that needs nearly the full capacity of the machine's processors: `None` if all
/// three runs were disturbed and failed, so that there is no result. This is printed to standard error even if the test's
/// output is captured.
///
/// # Panics
///
/// When an undisturbed run fails.
#[track_caller]
pub fn unless_void<T>(what: &str, trial: impl FnMut(&Watch) -> Result<T, String>) -> Option<T> {
    let outcome = repeat(what, watched(trial));
    if let Err(void) = &outcome {
        let _ = writeln!(io::stderr(), "VOID: {what}: {void}");
    }
    outcome.ok()
}

/// A function that runs `trial`, and also returns the disturbance of this run.
fn watched<T>(
    mut trial: impl FnMut(&Watch) -> Result<T, String>,
) -> impl FnMut() -> (Result<T, String>, Disturbance) {
    move || {
        let watch = Watch::begin();
        let outcome = trial(&watch);
        (outcome, watch.end())
    }
}

/// The error of the last of three disturbed runs, if all of them failed.
#[track_caller]
fn repeat<T>(what: &str, mut run: impl FnMut() -> (Result<T, String>, Disturbance)) -> Result<T, String> {
    let mut repeats = 0;
    loop {
        let (outcome, disturbance) = run();
        println!("{what}: {disturbance}");
        match outcome {
            Ok(value) => return Ok(value),
            Err(failure) if disturbance.is_disturbed() && repeats < REPEATS => {
                repeats += 1;
                println!("{what}: repeated, since it was disturbed: {failure}");
            }
            Err(failure) if disturbance.is_disturbed() => {
                return Err(format!("{failure}\n{disturbance}, after {repeats} repeats"));
            }
            Err(failure) => panic!("{what}: {failure}\n{disturbance}, after {repeats} repeats"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{self, AssertUnwindSafe};

    use super::*;

    fn calm() -> Disturbance {
        Disturbance {
            duration: Duration::from_secs(10),
            waited: Duration::from_millis(100),
            thread: "worker".to_owned(),
            stolen: Duration::ZERO,
            cpus: 2,
            longest_gap: Duration::from_millis(2),
        }
    }

    #[test]
    fn each_measure_by_itself_marks_a_run_as_disturbed() {
        assert!(!calm().is_disturbed(), "{}", calm());
        assert_eq!(calm().delay(), Duration::from_millis(102));
        let cases = [
            Disturbance { waited: Duration::from_millis(900), ..calm() },
            Disturbance { stolen: Duration::from_millis(1100), ..calm() },
            Disturbance { longest_gap: Duration::from_millis(30), ..calm() },
        ];
        for case in cases {
            assert!(case.is_disturbed() && case.to_string().starts_with("disturbed: "), "{case}");
        }
    }

    #[test]
    fn threads_that_share_a_processor_are_seen_to_wait() {
        let watch = Watch::begin();
        let mut only = CpuSet::new();
        only.set((0..CpuSet::MAX_CPU).find(|cpu| sched_getaffinity(None).unwrap().is_set(*cpu)).unwrap());
        let spin = || {
            sched_setaffinity(None, &only).unwrap();
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(300) {}
        };
        thread::scope(|scope| {
            for name in ["one", "other"] {
                thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, spin).unwrap();
            }
        });
        let seen = watch.end();
        assert!(seen.is_disturbed() && seen.waited > Duration::from_millis(50), "{seen}");
        // Any of them may have waited longest, because threads of other tests may share the processor.
        assert!(!seen.thread.is_empty(), "{seen}");
    }

    /// Calls [`repeat`] with runs that fail, except the last one if `succeeds`; `disturbed` has a value for
    /// each run. Returns the result and the number of runs. The outer error is the message of a panic.
    fn repeated(disturbed: &[bool], succeeds: bool) -> (Result<Result<(), String>, String>, usize) {
        let mut runs = 0;
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
            repeat("a run", || {
                let stolen = if disturbed[runs] { Duration::from_secs(1) } else { Duration::ZERO };
                runs += 1;
                let last = runs == disturbed.len();
                let outcome = if succeeds && last { Ok(()) } else { Err("it fails".to_owned()) };
                (outcome, Disturbance { stolen, ..calm() })
            })
        }));
        (outcome.map_err(|panicked| *panicked.downcast().unwrap()), runs)
    }

    #[test]
    fn a_disturbed_failure_is_repeated_and_an_undisturbed_one_is_not() {
        assert_eq!(repeated(&[true, true, true], true), (Ok(Ok(())), 3));
        assert_eq!(repeated(&[false], true), (Ok(Ok(())), 1));

        let (void, runs) = repeated(&[true, true, true], false);
        let void = void.unwrap().unwrap_err();
        assert!(void.starts_with("it fails\ndisturbed") && void.ends_with("after 2 repeats"), "{void}");
        assert_eq!(runs, 3);

        for disturbed in [&[false][..], &[true, false], &[true, true, false]] {
            let (outcome, runs) = repeated(disturbed, false);
            let panicked = outcome.unwrap_err();
            let repeats = format!("after {} repeats", disturbed.len() - 1);
            assert!(panicked.starts_with("a run: it fails\nundisturbed"), "{panicked}");
            assert!(panicked.ends_with(&repeats), "{panicked}");
            assert_eq!(runs, disturbed.len());
        }
    }

    #[test]
    fn a_run_is_watched_while_its_trial_lasts() {
        let mut trial = watched(|_| {
            thread::sleep(Duration::from_millis(5));
            Ok(7)
        });
        let (outcome, disturbance) = trial();
        assert_eq!(outcome, Ok(7));
        assert!(disturbance.duration >= Duration::from_millis(5), "{disturbance}");
    }
}
