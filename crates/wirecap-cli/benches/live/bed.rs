//! Where the measurements take place: a veth pair, a sender on the first CPU (for a second queue also on the
//! next), a receiver that is a process of its own on the last.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use wirecap_testbed::{Generator, Load, Namespace, Sizes, Traffic, VethPair};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long a receiver may take to open or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A veth pair: `a0` sends, `a1` receives.
pub(crate) struct Bed {
    pub(crate) pair: VethPair,
    _sender: Namespace,
    receiver: Namespace,
}

impl Bed {
    pub(crate) fn new() -> Outcome<Self> {
        Self::with_queues(1)
    }

    pub(crate) fn with_queues(count: u32) -> Outcome<Self> {
        let (sender, receiver) = (Namespace::new()?, Namespace::new()?);
        let pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), count, 1500)?;
        Ok(Self { pair, _sender: sender, receiver })
    }

    /// The same load for each queue, `frames` and `per_second` in all.
    pub(crate) fn loads(&self, frames: u64, per_second: Option<u64>) -> Outcome<Vec<Load>> {
        let (queues, cpus) = (self.pair.receiver.queue_count, allowed_cpus()?);
        let load = |queue: u32| -> Outcome<Load> {
            // On a veth the sending CPU's number decides.
            let cpu = cpus.iter().find(|cpu| **cpu as u32 % queues == queue).ok_or("too few CPUs")?;
            let load = Load::new(queue, frames / u64::from(queues)).on_cpu(*cpu as u32);
            Ok(per_second.into_iter().fold(load, |load, rate| load.per_second(rate / u64::from(queues))))
        };
        (0..queues).map(load).collect()
    }

    pub(crate) fn generator(&self, frame_bytes: u16) -> Outcome<Generator> {
        let traffic = Traffic { sizes: Sizes::fixed(frame_bytes), ..Traffic::to(&self.pair.receiver) };
        Ok(Generator::new(&self.pair.sender, &traffic)?)
    }

    /// Starts a command where the receiving end is, and waits until a line that it writes has `ready`
    /// in it.
    pub(crate) fn receive(&self, command: &CommandLine, ready: &str) -> Outcome<Receiver> {
        let child = self.receiver.run_in(|| -> Outcome<_> {
            pin_to_last_cpu()?;
            Ok(command.to_command().spawn().map_err(|error| format!("{command}: {error}"))?)
        })??;
        Receiver::watch(child, command, ready)
    }
}

/// What a run was, and how far others disturbed it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) frames: u64,
    pub(crate) seconds: f64,
    /// The share of the time that the receiver was on its CPU.
    pub(crate) busy: f64,
    /// The share of the time that sender or receiver waited for a CPU that somebody else had.
    pub(crate) waited: f64,
}

/// A run with more than this is a run of somebody else's work.
const DISTURBED_SHARE: f64 = 0.04;
/// How often a disturbed run is repeated.
const REPEATS: usize = 4;

impl Run {
    pub(crate) fn per_second(&self) -> f64 {
        self.frames as f64 / self.seconds
    }

    pub(crate) fn is_disturbed(&self) -> bool {
        self.waited > DISTURBED_SHARE
    }
}

/// Repeats a measurement while it is disturbed, and gives the least disturbed one.
pub(crate) fn calmest<T>(mut measure: impl FnMut() -> Outcome<(Run, T)>) -> Outcome<(Run, T)> {
    let mut best = measure()?;
    for _ in 0..REPEATS {
        if !best.0.is_disturbed() {
            break;
        }
        let next = measure()?;
        if next.0.waited < best.0.waited {
            best = next;
        }
    }
    Ok(best)
}

/// Sends these loads to the receiver.
pub(crate) fn send(generator: &mut Generator, receiver: &Receiver, loads: &[Load]) -> Outcome<Run> {
    let before = receiver.cpu_time()?;
    let (sent, sender) = watching_own_threads(|| generator.send(loads));
    let (sent, after) = (sent?, receiver.cpu_time()?);
    let seconds = sent.iter().map(|sent| sent.duration.as_secs_f64()).fold(0.0, f64::max);
    Ok(Run {
        frames: sent.iter().map(|sent| sent.frames).sum(),
        seconds,
        busy: (after.ran - before.ran).as_secs_f64() / seconds,
        waited: (sender.waited + after.waited - before.waited).as_secs_f64() / seconds,
    })
}

/// Does `work` and tells what processor time the threads had that it started.
fn watching_own_threads<T>(work: impl FnOnce() -> T) -> (T, CpuTime) {
    const STEP: Duration = Duration::from_millis(20);
    let done = AtomicBool::new(false);
    // A thread's times are gone with it: what was seen of it last counts.
    let watch = || {
        let mut threads = BTreeMap::new();
        while !done.load(Ordering::Relaxed) {
            threads.extend(cpu_times("self").unwrap_or_default());
            thread::sleep(STEP);
        }
        threads
    };
    let known = cpu_times("self").unwrap_or_default();
    thread::scope(|scope| {
        let watcher = scope.spawn(watch);
        let result = work();
        done.store(true, Ordering::Relaxed);
        let threads = watcher.join().expect("watching does not panic");
        let started = threads.into_iter().filter(|(id, _)| !known.contains_key(id));
        (result, started.map(|(_, time)| time).sum())
    })
}

pub(crate) fn allowed_cpus() -> Outcome<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

fn pin_to_last_cpu() -> Outcome<()> {
    let mut only = CpuSet::new();
    only.set(*allowed_cpus()?.last().ok_or("no CPU")?);
    Ok(sched_setaffinity(None, &only)?)
}

/// A program and its arguments.
#[derive(Debug, Clone)]
pub(crate) struct CommandLine {
    program: OsString,
    arguments: Vec<OsString>,
}

impl CommandLine {
    pub(crate) fn new(program: impl Into<OsString>) -> Self {
        Self { program: program.into(), arguments: Vec::new() }
    }

    /// The wirecap command.
    pub(crate) fn wirecap() -> Self {
        Self::new(env!("CARGO_BIN_EXE_wirecap"))
    }

    /// This very program.
    pub(crate) fn this() -> Outcome<Self> {
        Ok(Self::new(std::env::current_exe()?))
    }

    /// With these arguments, divided by spaces, as well.
    pub(crate) fn with(mut self, arguments: &str) -> Self {
        self.arguments.extend(arguments.split_whitespace().map(OsString::from));
        self
    }

    /// The same run by another program: callgrind.
    pub(crate) fn under(self, program: Self) -> Self {
        let mut outer = program;
        outer.arguments.push(self.program);
        outer.arguments.extend(self.arguments);
        outer
    }

    /// Whether the program can be found.
    pub(crate) fn is_installed(&self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|directory| directory.join(&self.program).is_file())
    }

    fn to_command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl std::fmt::Display for CommandLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.program.display())?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", argument.display()))
    }
}

/// A process that ends with this at the latest.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Fails where it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that receives. Dropped, it is killed.
pub(crate) struct Receiver {
    child: Process,
    command: String,
    output: JoinHandle<String>,
    log: mpsc::Receiver<String>,
    started: Instant,
}

/// Processor time so far.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CpuTime {
    /// On a processor.
    pub(crate) ran: Duration,
    /// Ready to run and waiting for a processor that somebody else had.
    pub(crate) waited: Duration,
}

impl std::iter::Sum for CpuTime {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        let add = |a: Self, b: Self| Self { ran: a.ran + b.ran, waited: a.waited + b.waited };
        times.fold(Self::default(), add)
    }
}

/// The processor times of each thread of a process that is there now.
fn cpu_times(process: &str) -> io::Result<BTreeMap<OsString, CpuTime>> {
    let mut threads = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?;
        // It may have ended since.
        let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
        let mut nanos = text.split_whitespace().map_while(|field| field.parse().ok());
        let mut next = || Duration::from_nanos(nanos.next().unwrap_or(0));
        threads.insert(task.file_name(), CpuTime { ran: next(), waited: next() });
    }
    Ok(threads)
}

impl Receiver {
    fn watch(mut child: Child, command: &CommandLine, ready: &str) -> Outcome<Self> {
        let (stdout, stderr) = (child.stdout.take().ok_or("piped")?, child.stderr.take().ok_or("piped")?);
        let (sender, log) = mpsc::channel();
        let also = sender.clone();
        thread::spawn(move || lines(stderr, |line| drop(sender.send(line))));
        let output = thread::spawn(move || {
            let mut text = String::new();
            lines(stdout, |line| {
                text += &line;
                text.push('\n');
                let _ = also.send(line);
            });
            text
        });
        let receiver = Self {
            child: Process(child),
            command: command.to_string(),
            output,
            log,
            started: Instant::now(),
        };
        let mut said = Vec::new();
        loop {
            match receiver.log.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(ready) => return Ok(receiver),
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(format!("{command} did not say {ready:?} but {said:?}").into());
                }
            }
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Of all its threads.
    pub(crate) fn cpu_time(&self) -> Outcome<CpuTime> {
        Ok(cpu_times(&self.id().to_string())?.into_values().sum())
    }

    /// Waits until the process does nothing any more, for `calm` at a stretch.
    pub(crate) fn settle(&self, calm: Duration) -> Outcome<()> {
        const STEP: Duration = Duration::from_millis(50);
        let mut last = self.cpu_time()?.ran;
        let mut calm_since = Instant::now();
        while calm_since.elapsed() < calm && self.started.elapsed() < PATIENCE {
            thread::sleep(STEP);
            let ran = self.cpu_time()?.ran;
            if ran - last > STEP / 20 {
                calm_since = Instant::now();
            }
            last = ran;
        }
        Ok(())
    }

    /// Interrupts the process, as Ctrl-C does, and gives what it wrote.
    pub(crate) fn stop(self) -> Outcome<Finished> {
        let pid = Pid::from_raw(self.child.0.id() as i32).ok_or("a process has a number")?;
        let _ = kill_process(pid, Signal::INT);
        self.wait()
    }

    /// Waits for the end of the process and gives what it wrote.
    pub(crate) fn wait(mut self) -> Outcome<Finished> {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.0.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    return Err(format!("{} did not end", self.command).into());
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        let errors: Vec<String> = self.log.iter().collect();
        let output = self.output.join().map_err(|_| "reading the output")?;
        if !status.success() {
            return Err(format!("{} ended with {status}: {errors:?}", self.command).into());
        }
        Ok(Finished { output, errors: errors.join("\n") })
    }
}

fn lines(source: impl Read, mut each: impl FnMut(String)) {
    // Not everybody writes UTF-8 or ends a progress line.
    for line in BufReader::new(source).split(b'\n').map_while(Result::ok) {
        each(String::from_utf8_lossy(&line).into_owned());
    }
}

/// What a process left behind.
#[derive(Debug)]
pub(crate) struct Finished {
    /// All of its standard output.
    pub(crate) output: String,
    /// What it wrote on standard output and standard error since it was ready.
    pub(crate) errors: String,
}

impl Finished {
    /// A number of the ledger that `--json` prints: `delivered`, `/dropped/no_cell`.
    pub(crate) fn ledger(&self, pointer: &str) -> Outcome<u64> {
        let json: serde_json::Value = serde_json::from_str(&self.output)?;
        Ok(json.pointer(pointer).and_then(serde_json::Value::as_u64).ok_or_else(|| pointer.to_owned())?)
    }
}
