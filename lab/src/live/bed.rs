//! The bed of the measurements: a veth pair, a sender on the first CPU (for a second queue also on
//! the next), and a receiver in a separate process on the last.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use wirecap::{Capture, Engine};
use wirecap_testbed::{
    AfXdpSender, CpuTime, Generator, Load, Namespace, Sizes, Stamp, Traffic, VethPair, cpu_times,
};

use super::Outcome;
use super::process::{CommandLine, Spawner, allowed_cpus};
use super::receiver::Receiver;

/// A veth pair: `a0` sends, `a1` receives.
#[derive(Debug)]
pub struct Bed {
    /// The pair.
    pub pair: VethPair,
    sender: Namespace,
    spawner: Spawner,
}

impl Bed {
    /// A pair with one queue.
    ///
    /// # Errors
    ///
    /// If the privilege is missing.
    pub fn new() -> Outcome<Self> {
        Self::with_queues(1)
    }

    /// A pair with `count` queues.
    ///
    /// # Errors
    ///
    /// If the privilege is missing.
    pub fn with_queues(count: u32) -> Outcome<Self> {
        Self::with(count, 1500)
    }

    /// A pair with one queue and this MTU.
    ///
    /// # Errors
    ///
    /// If the privilege is missing.
    pub fn with_mtu(mtu_bytes: u32) -> Outcome<Self> {
        Self::with(1, mtu_bytes)
    }

    fn with(queues: u32, mtu_bytes: u32) -> Outcome<Self> {
        let sender = Namespace::new()?;
        let receiver = Namespace::new()?;
        let pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), queues, mtu_bytes)?;
        Ok(Self { pair, sender, spawner: Spawner::in_namespace(&receiver)? })
    }

    /// The same load for each queue, `frames` and `per_second` in all.
    ///
    /// # Errors
    ///
    /// If there are fewer CPUs than queues.
    pub fn loads(&self, frames: u64, per_second: Option<u64>) -> Outcome<Vec<Load>> {
        let queues = self.pair.receiver.queue_count;
        let cpus = allowed_cpus()?;
        let load = |queue: u32| -> Outcome<Load> {
            // On a veth the number of the sending CPU determines the queue.
            let cpu =
                cpus.iter().find(|cpu| **cpu as u32 % queues == queue).ok_or("too few CPUs")?;
            let load = Load::new(queue, frames / u64::from(queues)).on_cpu(*cpu as u32);
            Ok(per_second
                .into_iter()
                .fold(load, |load, rate| load.per_second(rate / u64::from(queues))))
        };
        (0..queues).map(load).collect()
    }

    /// A generator of frames of this length.
    ///
    /// # Errors
    ///
    /// If the interface cannot carry them.
    pub fn generator(&self, frame_bytes: u16) -> Outcome<Generator> {
        let traffic =
            Traffic { sizes: Sizes::fixed(frame_bytes), ..Traffic::to(&self.pair.receiver) };
        Ok(Generator::new(&self.pair.sender, &traffic)?)
    }

    /// Source ports of flows for each ring, if the rings share an interface by the kernel's
    /// symmetric flow hash. If each flow is sent to the queue with its ring's number, rings by
    /// queue and rings by flow get the same packets.
    ///
    /// # Errors
    ///
    /// If the privilege is missing, or the hash leaves a ring without flows.
    pub fn flows_of_rings(&self, rings: u32, flows: usize) -> Outcome<Vec<Vec<u16>>> {
        const FIRST_PORT: u16 = 2048;
        let receiver = &self.pair.receiver;
        let builder = Capture::on(&*receiver.name).engine(Engine::Packet).chunk(64).pool(16);
        let capture = receiver.namespace.run_in(|| builder.workers(rings as usize).open())??;
        let mut sender = AfXdpSender::on(&self.pair.sender, 0)?;

        // Many more than required, so that every ring has enough.
        for port in FIRST_PORT..FIRST_PORT + 8 * (rings as usize * flows) as u16 {
            let traffic = Traffic { source_port: port, ..Traffic::to(receiver) };
            sender.send(&traffic.frame(Stamp { queue: 0, sequence: port.into() }))?;
        }

        sender.flush()?;
        let mut ports = vec![Vec::new(); rings as usize];

        // All workers exist until the end: in basic mode none continues alone.
        let mut workers = capture.workers();
        for worker in &mut workers {
            while let Some(chunk) = worker.next_chunk_timeout(Duration::from_millis(100))? {
                let numbers = chunk.iter().filter_map(|packet| Stamp::of(packet.data()));
                ports[chunk.ring_index()].extend(numbers.map(|stamp| stamp.sequence as u16));
            }
        }

        drop(workers);
        receiver.namespace.run_in(|| drop(capture))?;

        for ports in &mut ports {
            ports.sort_unstable();
            ports.truncate(flows);
        }

        match ports.iter().all(|ports| ports.len() == flows) {
            true => Ok(ports),
            false => Err(format!("the hash left rings without flows: {ports:?}").into()),
        }
    }

    /// Runs a command in the sending end's namespace and returns its standard output.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or fails.
    pub fn run_near(&self, command: &CommandLine) -> Outcome<String> {
        self.sender.run_in(|| command.run())?
    }

    /// Starts a command in the receiving end's namespace, and waits until it prints a line that
    /// contains `ready`. It ends with the bed at the latest.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or ends instead.
    pub fn receive(&self, command: &CommandLine, ready: &str) -> Outcome<Receiver> {
        Receiver::watch(self.spawner.spawn(command, None)?, command, ready)
    }

    /// The same with a file, which the command accesses as
    /// [`FILE_PATH`](super::process::FILE_PATH).
    pub(super) fn receive_with(
        &self,
        command: &CommandLine,
        ready: &str,
        file: OwnedFd,
    ) -> Outcome<Receiver> {
        Receiver::watch(self.spawner.spawn(command, Some(file))?, command, ready)
    }
}

/// The times of a run, and its disturbance.
#[derive(Debug, Clone, Copy, Default)]
pub struct Run {
    /// Frames sent.
    pub frames: u64,
    /// How long that took.
    pub seconds: f64,
    /// The share of the time for which the receiver ran.
    pub busy: f64,
    /// The share of the time that sender or receiver waited for a CPU that another process used.
    pub waited: f64,
    /// Processor time of the sender, in seconds; on a veth the kernel receives on the sender's CPU.
    pub sender_seconds: f64,
    /// Processor time of the kernel's softirq threads, which receive under high load, in seconds.
    pub softirq_seconds: f64,
}

/// A run with more than this was disturbed.
const DISTURBED_SHARE: f64 = 0.04;
/// How often a disturbed run is repeated.
const REPEATS: usize = 4;

impl Run {
    /// Frames per second.
    pub fn per_second(&self) -> f64 {
        self.frames as f64 / self.seconds
    }

    /// Whether the run was disturbed so much that it has little meaning.
    pub fn is_disturbed(&self) -> bool {
        self.waited > DISTURBED_SHARE
    }
}

/// Repeats a measurement while it is disturbed, and returns the least disturbed one.
///
/// # Errors
///
/// Those of `measure`.
pub fn calmest<T>(mut measure: impl FnMut() -> Outcome<(Run, T)>) -> Outcome<(Run, T)> {
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

/// Sends these loads, and watches the receiver, if there is one.
///
/// # Errors
///
/// If the kernel does not continue, or the receiver has ended.
pub fn send<'a>(
    generator: &mut Generator,
    receiver: impl Into<Option<&'a Receiver>>,
    loads: &[Load],
) -> Outcome<Run> {
    watch(receiver.into(), || {
        let sent = generator.send(loads)?;
        let longest = sent.iter().map(|sent| sent.duration.as_secs_f64()).fold(0.0, f64::max);
        Ok((sent.iter().map(|sent| sent.frames).sum(), longest))
    })
}

/// Calls `send`, which returns the number of sent frames and the seconds, and measures the
/// processor times of the sender and of the receiver, if there is one.
///
/// # Errors
///
/// Errors of `send`, or if the receiver has ended.
pub fn watch(
    receiver: Option<&Receiver>,
    send: impl FnOnce() -> Outcome<(u64, f64)>,
) -> Outcome<Run> {
    let of_receiver = || receiver.map_or(Ok(CpuTime::default()), Receiver::cpu_time);
    let softirq_before = softirq_threads_seconds()?;
    let before = of_receiver()?;
    let own_before = own_seconds();
    let (sent, sender) = watching_own_threads(send);
    let (frames, seconds) = sent?;
    let after = of_receiver()?;

    Ok(Run {
        frames,
        seconds,
        busy: after.ran.saturating_sub(before.ran).as_secs_f64() / seconds,
        waited: (sender.waited + after.waited).saturating_sub(before.waited).as_secs_f64()
            / seconds,
        sender_seconds: own_seconds() - own_before,
        softirq_seconds: softirq_threads_seconds()? - softirq_before,
    })
}

/// Processor time of the kernel's softirq threads, which receive under high load, in seconds.
pub(super) fn softirq_threads_seconds() -> Outcome<f64> {
    let mut seconds = 0.0;

    for process in fs::read_dir("/proc")?.flatten() {
        let name = process.file_name();
        let Some(id) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        else {
            continue;
        };

        let comm = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        if comm.starts_with("ksoftirqd/") {
            seconds += cpu_times(id)
                .unwrap_or_default()
                .values()
                .map(|time| time.ran.as_secs_f64())
                .sum::<f64>();
        }
    }
    Ok(seconds)
}

/// Processor time of this process, including ended threads.
fn own_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Runs `work` and returns the processor time of the threads that it started.
fn watching_own_threads<T>(work: impl FnOnce() -> T) -> (T, CpuTime) {
    const STEP: Duration = Duration::from_millis(20);
    let done = AtomicBool::new(false);

    // A thread's times disappear when it ends: the last seen ones count.
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
