//! Measures how much a run is disturbed from outside: a failed test of loss may be repeated only
//! for a reason other than the loss, and other than the code under test.
//!
//! A [`Watch`] judges by two measures that the code under test cannot produce: the time in which
//! the host of this machine used the processors for others (steal in `/proc/stat`), and the run
//! time of foreign processes, which are all except this process, its descendants and the kernel's
//! threads. The kernel's threads receive the test's own packets. It also shows two measures by
//! which it does not judge: the time in which the run's own threads were ready to run and waited
//! for a processor (`/proc/PID/task/TID/schedstat`), which a broken policy produces by itself, and
//! the longest delay of a sleeping thread, which a kernel that prefers sleepers keeps short beside
//! other work. [`repeat_if_disturbed`] repeats a failed run only if it was disturbed from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::iter::Sum;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::skip::{announce, void};

/// Steal above this share of all processors' time is a disturbance.
// Of 36 skewed loads of 8 and 20 s on two virtual processors, none of the 14 with less steal
// failed.
pub(crate) const STEAL_SHARE_MAX: f64 = 0.025;
/// A disturbance is also foreign processes that ran for more than this share of all processors'
/// time.
const FOREIGN_SHARE_MAX: f64 = 0.025;
/// Maximum number of repetitions of a disturbed run.
const REPEATS: usize = 2;
/// Interval at which threads are read; a thread that ends in between is known up to the last
/// reading.
const LOOK: Duration = Duration::from_millis(20);
/// Number of such readings per reading of the foreign processes, which takes some milliseconds.
const LOOKS_PER_CENSUS: u32 = 12;
/// Interval at which a metronome thread wakes up.
const BEAT: Duration = Duration::from_millis(1);
/// `/proc/stat` and `/proc/PID/stat` count in hundredths of a second.
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
    let ticks =
        text.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse::<u32>().ok());
    TICK * ticks.unwrap_or(0)
}

/// The flag of the kernel's threads in `/proc/PID/stat` (`PF_KTHREAD`).
const KERNEL_THREAD: u32 = 0x0020_0000;

/// A line of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy)]
struct Process {
    parent: u32,
    is_kernels: bool,
    /// Processor time, including that of the children whose end it has seen. So the sum over all
    /// processes does not change if one of them ends.
    ran: Duration,
}

/// All processes by PID.
fn processes() -> BTreeMap<u32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id: u32| {
        // It may have ended since.
        let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        Some((id, Process::parse(&text)?))
    })
    .collect()
}

impl Process {
    fn parse(text: &str) -> Option<Self> {
        // A name in parentheses, which may contain blanks, precedes the state and the parent.
        let (_, after_name) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        let parent = fields.get(1)?.parse().ok()?;
        let flags: u32 = fields.get(6)?.parse().ok()?;
        // utime, stime, cutime, cstime
        let ticks =
            fields.get(11..15)?.iter().map(|field| field.parse::<u32>().unwrap_or(0)).sum::<u32>();
        Some(Self { parent, is_kernels: flags & KERNEL_THREAD != 0, ran: TICK * ticks })
    }
}

/// The sum of the processor times of all processes except the kernel's threads and those that
/// `is_own` names, with their descendants.
fn foreign(processes: &BTreeMap<u32, Process>, is_own: impl Fn(u32) -> bool) -> Duration {
    let mut excluded = BTreeSet::new();
    for (&id, process) in processes {
        // A process whose parent is unknown has none here, and a PID that was used again cannot
        // make a circle longer than the number of processes.
        let parent_of = |id: &u32| processes.get(id).map(|process| process.parent);
        let mut line = std::iter::successors(Some(id), parent_of).take(processes.len());
        if process.is_kernels || line.any(&is_own) {
            excluded.insert(id);
        }
    }
    processes.iter().filter(|(id, _)| !excluded.contains(id)).map(|(_, process)| process.ran).sum()
}

/// Watches threads while a run lasts: those that this process starts after [`begin`](Self::begin),
/// and all of the [processes named](Self::process).
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
    census: Mutex<Census>,
    threads: Mutex<BTreeMap<OsString, Thread>>,
    /// Threads that do not belong to the run.
    others: Mutex<Vec<OsString>>,
}

/// The run time of foreign processes.
#[derive(Debug, Default)]
struct Census {
    /// Their processor times when they were last read.
    last: Option<Duration>,
    /// The increase since the first reading.
    ran: Duration,
}

/// The observed times of a thread.
#[derive(Debug, Clone)]
struct Thread {
    name: String,
    first: CpuTime,
    last: CpuTime,
}

impl Watch {
    /// Starts watching. On each processor that this process may use, a thread wakes up every
    /// millisecond and measures its delay. It does not spin, which would itself be a disturbance,
    /// and uses less than 1 % of a processor.
    pub fn begin() -> Self {
        let shared = Arc::new(Shared::default());
        let own = cpu_times("self").unwrap_or_default();
        shared.others.lock().unwrap_or_else(PoisonError::into_inner).extend(own.into_keys());
        shared.count_foreign();

        let spawn = |name: &str, work: Box<dyn FnOnce(&Shared) + Send>| {
            let shared = Arc::clone(&shared);
            let begin = move || {
                shared.exclude_this_thread();
                work(&shared);
            };
            thread::Builder::new()
                .name(name.to_owned())
                .spawn(begin)
                .expect("the system has threads left")
        };
        let mut watchers = vec![spawn("watch", Box::new(Shared::look_on))];
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        watchers
            .extend(cpus.map(|cpu| spawn("metronome", Box::new(move |shared| shared.beat(cpu)))));
        Self { begun: Instant::now(), stolen: stolen(), shared, watchers }
    }

    /// Watches another process, too, until it ends. It and its descendants belong to the run.
    pub fn process(&self, id: u32) {
        self.shared.processes.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        self.shared.look();
    }

    /// Ends watching and returns the result.
    pub fn end(mut self) -> Disturbance {
        self.shared.look();
        let foreign = self.shared.count_foreign();
        let duration = self.begun.elapsed();
        let stolen = stolen().saturating_sub(self.stolen);

        self.shared.done.store(true, Ordering::Relaxed);
        for watcher in self.watchers.drain(..) {
            watcher.join().expect("watching does not panic");
        }

        let threads = std::mem::take(&mut *self.shared.threads());
        let waited = |thread: &Thread| thread.last.waited.saturating_sub(thread.first.waited);
        let most =
            threads.into_values().max_by_key(waited).map(|thread| (waited(&thread), thread.name));
        let (waited, thread) = most.unwrap_or_default();
        let longest_gap = Duration::from_nanos(self.shared.longest_gap.load(Ordering::Relaxed));
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        Disturbance { duration, stolen, foreign, cpus, waited, thread, longest_gap }
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
        for look in 1_u32.. {
            if self.done.load(Ordering::Relaxed) {
                break;
            }
            self.look();
            if look.is_multiple_of(LOOKS_PER_CENSUS) {
                self.count_foreign();
            }
            thread::sleep(LOOK);
        }
    }

    /// Reads the foreign processes. Returns their run time since the first reading.
    fn count_foreign(&self) -> Duration {
        let named = self.processes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_own = |id| id == std::process::id() || named.contains(&id);
        let mut census = self.census.lock().unwrap_or_else(PoisonError::into_inner);
        let now = foreign(&processes(), is_own);
        // The sum decreases if the kernel removes a process without telling its parent.
        let last = census.last.replace(now).unwrap_or(now);
        census.ran += now.saturating_sub(last);
        census.ran
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
    /// A thread that is seen for the first time. Its earlier waiting counts if it began during the
    /// run, as threads of this process did.
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
    /// Processor time that the host used for others.
    pub stolen: Duration,
    /// Processor time of foreign processes.
    pub foreign: Duration,
    /// Number of processors.
    pub cpus: usize,
    /// The maximum total time in which one thread of the run was ready to run and did not run.
    pub waited: Duration,
    /// That thread.
    pub thread: String,
    /// The longest time for which a thread that had just become ready waited for a processor.
    pub longest_gap: Duration,
}

impl Disturbance {
    fn share_of_cpus(&self, time: Duration) -> f64 {
        time.as_secs_f64() / self.duration.as_secs_f64() / self.cpus as f64
    }

    /// The share of all processors' time that the host used for others.
    pub fn stolen_share(&self) -> f64 {
        self.share_of_cpus(self.stolen)
    }

    /// The share of all processors' time that foreign processes used.
    pub fn foreign_share(&self) -> f64 {
        self.share_of_cpus(self.foreign)
    }

    /// The maximum time by which other work, including that of other threads of the run, may have
    /// delayed a sequence of steps. No verdict depends on it: it is the uncertainty of a time at
    /// which something happened.
    pub fn delay(&self) -> Duration {
        self.waited + self.stolen + self.longest_gap
    }

    /// Whether a failure may have a cause outside the run: the host used more than 2.5 % of the
    /// processors' time for others, or foreign processes did.
    pub fn is_disturbed(&self) -> bool {
        self.stolen_share() > STEAL_SHARE_MAX || self.foreign_share() > FOREIGN_SHARE_MAX
    }
}

impl fmt::Display for Disturbance {
    /// `undisturbed: in 5.0 s steal 0.00 %, foreign processes 0.10 % (a thread waited up to 0.4 %: sender (123); longest gap
    /// 0.3 ms)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: in {:.1} s steal {:.2} %, foreign processes {:.2} % (a thread waited up to {:.1} %: {}; longest gap {:.1} ms)",
            if self.is_disturbed() { "disturbed" } else { "undisturbed" },
            self.duration.as_secs_f64(),
            self.stolen_share() * 100.0,
            self.foreign_share() * 100.0,
            self.waited.as_secs_f64() / self.duration.as_secs_f64() * 100.0,
            self.thread,
            self.longest_gap.as_secs_f64() * 1e3
        )
    }
}

/// Runs `trial`, prints the disturbance, and returns the result. A failure is repeated, at most
/// twice, if the run was disturbed from outside; each repetition is printed to standard error even
/// if the test's output is captured. `None` if all three runs were disturbed and failed, so that
/// there is no verdict; this is printed, too. Conditions that must be true on every machine, such
/// as balanced counts, must be asserted by `trial`.
///
/// # Panics
///
/// When an undisturbed run fails. If there is no verdict and the environment has
/// `WIRECAP_NO_SKIP=1`: in that lane a test that could not judge has failed.
#[track_caller]
pub fn repeat_if_disturbed<T>(
    what: &str,
    trial: impl FnMut(&Watch) -> Result<T, String>,
) -> Option<T> {
    let outcome = repeat(what, watched(trial), announce);
    outcome.map_err(|no_verdict| void(&format!("{what}: {no_verdict}"))).ok()
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

/// The error of the last of three disturbed runs, if all of them failed. `report` gets a line for
/// each repetition.
#[track_caller]
fn repeat<T>(
    what: &str,
    mut run: impl FnMut() -> (Result<T, String>, Disturbance),
    report: impl Fn(&str),
) -> Result<T, String> {
    let mut repeats = 0;
    loop {
        let (outcome, disturbance) = run();
        println!("{what}: {disturbance}");

        match outcome {
            Ok(value) => return Ok(value),
            Err(failure) if disturbance.is_disturbed() && repeats < REPEATS => {
                repeats += 1;
                report(&format!("REPEATED: {what}: {disturbance}"));
                println!("{what}: {failure}");
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
            stolen: Duration::ZERO,
            foreign: Duration::ZERO,
            cpus: 2,
            waited: Duration::from_millis(100),
            thread: "worker".to_owned(),
            longest_gap: Duration::from_millis(2),
        }
    }

    #[test]
    fn only_steal_and_foreign_processes_mark_a_run_as_disturbed() {
        let by_itself = Disturbance {
            waited: Duration::from_secs(6),
            longest_gap: Duration::from_millis(90),
            foreign: Duration::from_millis(490),
            stolen: Duration::from_millis(490),
            ..calm()
        };
        for case in [calm(), by_itself] {
            assert!(
                !case.is_disturbed() && case.to_string().starts_with("undisturbed: "),
                "{case}"
            );
        }

        assert_eq!(calm().delay(), Duration::from_millis(102));
        let disturbed = [
            Disturbance { stolen: Duration::from_millis(510), ..calm() },
            Disturbance { foreign: Duration::from_millis(510), ..calm() },
        ];
        for case in disturbed {
            assert!(case.is_disturbed() && case.to_string().starts_with("disturbed: "), "{case}");
        }
    }

    #[test]
    fn threads_that_share_a_processor_are_seen_to_wait() {
        let watch = Watch::begin();
        let mut only = CpuSet::new();
        only.set(
            (0..CpuSet::MAX_CPU).find(|cpu| sched_getaffinity(None).unwrap().is_set(*cpu)).unwrap(),
        );

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
        assert!(seen.waited > Duration::from_millis(50), "{seen}");

        // Any of them may have waited longest, because threads of other tests may share the
        // processor.
        assert!(!seen.thread.is_empty(), "{seen}");
    }

    #[test]
    fn the_run_time_of_a_process_is_read_with_that_of_its_ended_children() {
        let text = "7 (a) name) S 3 7 7 0 -1 4194560 1 2 3 4 10 20 300 4000 20 0 1 0 5";
        let process = Process::parse(text).unwrap();
        assert_eq!((process.parent, process.is_kernels, process.ran), (3, false, TICK * 4330));
        let thread = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 2";
        assert!(Process::parse(thread).unwrap().is_kernels);
        assert!(Process::parse("7 (a").is_none() && Process::parse("7 (a) S 3").is_none());
    }

    #[test]
    fn neither_descendants_of_the_test_nor_the_kernels_threads_are_foreign() {
        let process = |parent, seconds| Process {
            parent,
            is_kernels: false,
            ran: Duration::from_secs(seconds),
        };
        let thread = |parent, seconds| Process { is_kernels: true, ..process(parent, seconds) };

        // In a PID namespace, process 2 is any process.
        let mut all = BTreeMap::from([(1, process(0, 1)), (2, thread(0, 10)), (3, thread(2, 100))]);

        // The test, its child and its grandchild, and two others.
        all.extend([(50, process(40, 1000)), (51, process(50, 1000)), (52, process(51, 1000))]);
        all.extend([(40, process(1, 20)), (60, process(1, 300))]);
        assert_eq!(foreign(&all, |id| id == 50), Duration::from_secs(321));
        assert_eq!(foreign(&all, |id| id == 50 || id == 60), Duration::from_secs(21));
    }

    #[test]
    fn the_run_time_of_a_process_outside_the_run_is_counted() {
        // To a run that consists of this child only, this process is foreign.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let count = || foreign(&processes(), |id| id == child.id());
        let before = count();
        let spent = || cpu_times("self").unwrap().into_values().sum::<CpuTime>().ran;
        let begun = spent();
        let deadline = Instant::now() + Duration::from_secs(30);
        while spent() < begun + Duration::from_millis(300) && Instant::now() < deadline {}
        let after = count();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(after >= before + Duration::from_millis(250), "{before:?}, {after:?}");
    }

    /// Calls [`repeat`] with runs that fail, except the last one if `succeeds`; `disturbed` has a
    /// value for each run. Returns the result and the number of runs. The outer error is the
    /// message of a panic.
    fn repeated(disturbed: &[bool], succeeds: bool) -> (Result<Result<(), String>, String>, usize) {
        let mut runs = 0;
        let reported = Mutex::new(Vec::new());

        let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
            let run = || {
                let stolen = if disturbed[runs] { Duration::from_secs(1) } else { Duration::ZERO };
                runs += 1;
                let last = runs == disturbed.len();
                let outcome = if succeeds && last { Ok(()) } else { Err("it fails".to_owned()) };
                (outcome, Disturbance { stolen, ..calm() })
            };
            repeat("a run", run, |line: &str| reported.lock().unwrap().push(line.to_owned()))
        }));
        let reported = reported.into_inner().unwrap();
        assert_eq!(reported.len(), runs - 1, "{reported:?}");
        assert!(
            reported.iter().all(|line| line.starts_with("REPEATED: a run: disturbed")),
            "{reported:?}"
        );

        (outcome.map_err(|panicked| *panicked.downcast().unwrap()), runs)
    }

    #[test]
    fn a_disturbed_failure_is_repeated_and_an_undisturbed_one_is_not() {
        assert_eq!(repeated(&[true, true, true], true), (Ok(Ok(())), 3));
        assert_eq!(repeated(&[false], true), (Ok(Ok(())), 1));

        let (void, runs) = repeated(&[true, true, true], false);
        let void = void.unwrap().unwrap_err();
        assert!(
            void.starts_with("it fails\ndisturbed") && void.ends_with("after 2 repeats"),
            "{void}"
        );
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
