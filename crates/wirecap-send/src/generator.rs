//! The in-kernel generator: the kernel makes the frames and hands them to the interface, in test
//! runs of an XDP program whose verdicts it executes.
//!
//! It needs no system call, copy or socket buffer per frame, and sends millions of frames per
//! second and core. The sending CPU determines which queue of a veth's peer receives a frame.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use wirecap_filter::bpf::{
    BpfError, Link, LiveFrames, LoadOptions, Map, MapKind, Program, ProgramKind, XdpMode,
};

use crate::frame_program::{self, INTERVAL_NS_MAX, state};
use crate::frames::GENERATED_BYTES_MAX;
use crate::pace::{Pacer, Rate, monotonic_ns, sleep_until_ns};
use crate::{Interface, Namespace, SendError, SetupError, Stamp, Traffic};

/// Frames between two flushes at top rate: fewer are slower, more overflow the veth's ring.
const BATCH_FRAMES_MAX: u64 = 64;
/// Maximum time for which paced frames wait for a batch.
const BATCH_NS_MAX: u64 = 16_000;
/// Frames per call at top rate: some milliseconds, between which a run can be stopped.
const SLICE_FRAMES_MAX: u64 = 16_384;
/// Length of a call when frames are paced.
const SLICE_NS: u64 = 5_000_000;
/// Index of the loopback interface in every namespace.
const LOOPBACK: u32 = 1;

/// The frames to send to one queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    queue: u32,
    frames: u64,
    rate: Rate,
    cpu: Option<u32>,
}

impl Load {
    /// This many frames to this receive queue, as fast as possible.
    pub fn new(queue: u32, frames: u64) -> Self {
        Self { queue, frames, rate: Rate::Top, cpu: None }
    }

    /// Frames to this receive queue until the run is stopped.
    pub fn endless(queue: u32) -> Self {
        Self::new(queue, u64::MAX)
    }

    /// The same at another rate.
    ///
    /// # Panics
    ///
    /// If the rate is zero frames per second.
    #[must_use]
    pub fn at(self, rate: Rate) -> Self {
        assert!(rate != Rate::PerSecond(0), "a rate of zero never sends");
        Self { rate, ..self }
    }

    /// The same at this many frames per second, evenly spaced.
    #[must_use]
    pub fn per_second(self, frames: u64) -> Self {
        self.at(Rate::PerSecond(frames))
    }

    /// The same from this CPU. On a veth the queue is the CPU's number modulo the number of queues,
    /// and the load must have this queue.
    #[must_use]
    pub fn on_cpu(self, cpu: u32) -> Self {
        Self { cpu: Some(cpu), ..self }
    }
}

/// The frames sent to one queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Sent {
    /// The receive queue.
    pub queue: u32,
    /// Number of frames handed to the interface; their stamps continue those of the last load.
    pub frames: u64,
    /// How long that took.
    pub duration: Duration,
    /// The part of this time in which the sending thread was ready to run and did not have its CPU.
    pub waited: Duration,
}

impl Sent {
    /// Frames per second.
    pub fn per_second(&self) -> f64 {
        self.frames as f64 / self.duration.as_secs_f64()
    }
}

/// A generator of one kind of traffic on one interface.
#[derive(Debug)]
pub struct Generator {
    engine: Arc<Engine>,
    /// The number of each queue's next frame.
    next_sequences: Vec<u64>,
}

/// The state shared by the sending threads.
#[derive(Debug)]
struct Engine {
    interface: Interface,
    program: Program,
    states: Map,
    template: Vec<u8>,
    /// Attaching or detaching a program takes the kernel tens of milliseconds, and a test run of a
    /// program that is not attached does both. So the program is attached to an interface without
    /// frames: the loopback interface of a private namespace.
    _residence: Option<(Link, Namespace)>,
}

impl Generator {
    /// Prepares to send this traffic out of this interface.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if the interface cannot carry the traffic or the privilege is missing.
    pub fn new(interface: &Interface, traffic: &Traffic) -> Result<Self, SetupError> {
        traffic.check_up_to(interface.frame_bytes_max().min(GENERATED_BYTES_MAX))?;
        let failed = |source| SetupError::program(&interface.name, source);
        let cpu_count = allowed_cpus().map_or(1, |cpus| cpus.last().map_or(1, |last| last + 1));
        let states = Map::create(MapKind::Array, "testbed_states", state::BYTES, cpu_count)
            .map_err(failed)?;
        let code = frame_program::generate(traffic, interface.index, &states)
            .expect("the generator's labels");
        let program =
            Program::load_trusted(ProgramKind::Xdp, "testbed_send", &code, LoadOptions::default())
                .map_err(failed)?;

        let engine = Engine {
            _residence: reside(&program, interface)?,
            interface: interface.clone(),
            program,
            states,
            template: template(traffic),
        };
        Ok(Self {
            engine: Arc::new(engine),
            next_sequences: vec![0; interface.queue_count as usize],
        })
    }

    /// Whether some CPU that this process may use sends to this queue.
    pub fn reaches(&self, queue: u32) -> bool {
        self.engine.cpu_for(&Load::new(queue, 0)).is_ok()
    }

    /// Sends these loads, all at once, and waits until they are sent.
    ///
    /// # Errors
    ///
    /// [`SendError`] if no CPU sends to a queue, or the kernel does not continue.
    pub fn send(&mut self, loads: &[Load]) -> Result<Vec<Sent>, SendError> {
        self.start(loads)?.wait()
    }

    /// Starts sending these loads, each in a separate thread on a separate CPU.
    ///
    /// # Errors
    ///
    /// [`SendError`] if no CPU sends to a queue, or two loads have the same queue or CPU.
    pub fn start(&mut self, loads: &[Load]) -> Result<Run<'_>, SendError> {
        let cpus =
            loads.iter().map(|load| self.engine.cpu_for(load)).collect::<Result<Vec<_>, _>>()?;
        all_different("CPU", cpus.iter().copied())?;
        all_different("queue", loads.iter().map(|load| load.queue))?;
        let stopper = Stopper(Arc::default());
        let threads =
            loads.iter().zip(cpus).map(|(load, cpu)| self.spawn(load, cpu, &stopper)).collect();
        Ok(Run { threads, stopper, generator: self })
    }

    fn spawn(
        &self,
        load: &Load,
        cpu: u32,
        stopper: &Stopper,
    ) -> JoinHandle<Result<Sent, SendError>> {
        let first_sequence = self.next_sequences[load.queue as usize];
        let engine = Arc::clone(&self.engine);
        let load = load.clone();
        let stopper = stopper.clone();

        thread::spawn(move || {
            let prepared = engine.interface.namespace.enter().and_then(|()| pin_to(cpu));
            prepared.map_err(|source| SendError::Thread { source })?;
            engine.send(&load, cpu, first_sequence, &stopper)
        })
    }
}

impl Engine {
    /// The CPU to send this load from.
    fn cpu_for(&self, load: &Load) -> Result<u32, SendError> {
        let queue_count = self.interface.queue_count;
        let reaches = |cpu: u32| {
            cpu % queue_count == load.queue && load.cpu.is_none_or(|wanted| wanted == cpu)
        };
        let cpus = allowed_cpus().map_err(|source| SendError::Thread { source })?;
        cpus.into_iter()
            .find(|&cpu| reaches(cpu))
            .ok_or(SendError::OutOfReach { queue: load.queue, queue_count })
    }

    /// Sends the load from this thread, slice by slice.
    fn send(
        &self,
        load: &Load,
        cpu: u32,
        first: u64,
        stopper: &Stopper,
    ) -> Result<Sent, SendError> {
        let mut slicer = Slicer::new(load.rate);
        let mut state = State { sequence: first, queue: load.queue, ..State::default() };
        let started = Instant::now();
        let waited = waited_by_thread();

        while state.sequence - first < load.frames && !stopper.is_stopped() {
            let slice = slicer.next(load.frames - (state.sequence - first), &mut state);
            let before = state.sequence;
            state = self
                .run_slice(slice, cpu, &state)
                .map_err(|source| SendError::Program { source })?;
            stopper.0.frames.fetch_add(state.sequence - before, Relaxed);
        }

        let queue = load.queue;
        let duration = started.elapsed();
        let waited = waited_by_thread().saturating_sub(waited);

        match state.not_made {
            0 => Ok(Sent { queue, frames: state.sequence - first, duration, waited }),
            frames => Err(SendError::NotMade { queue, frames }),
        }
    }

    /// Runs one slice and returns the resulting state; a signal may have ended it early.
    fn run_slice(&self, slice: Slice, cpu: u32, state: &State) -> Result<State, BpfError> {
        self.states.update(cpu, &state.to_bytes())?;
        let run = self.program.run_live(LiveFrames {
            frame: &self.template,
            frame_count: slice.frames as u32,
            batch_frames: slice.batch_frames as u32,
            ingress_ifindex: None,
        });
        match run {
            Err(error) if error.errno() != Some(libc::EINTR) => Err(error),
            _ => Ok(State::from_bytes(&self.states.lookup(cpu)?[0])),
        }
    }
}

/// A running generator. Dropping it stops it and waits for its threads.
#[derive(Debug)]
#[must_use = "a run that is dropped stops"]
pub struct Run<'a> {
    threads: Vec<JoinHandle<Result<Sent, SendError>>>,
    stopper: Stopper,
    generator: &'a mut Generator,
}

impl Run<'_> {
    /// A handle that stops the run, from any thread, within some milliseconds.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Number of frames sent so far, on all queues.
    pub fn frames(&self) -> u64 {
        self.stopper.0.frames.load(Relaxed)
    }

    /// Whether [`wait`](Self::wait) would return at once.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Stops the run and returns the sent frames.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn stop(self) -> Result<Vec<Sent>, SendError> {
        self.stopper.stop();
        self.wait()
    }

    /// Waits for the end of the run and returns the sent frames, in the order of the loads.
    ///
    /// # Errors
    ///
    /// [`SendError`] if the kernel did not continue.
    pub fn wait(mut self) -> Result<Vec<Sent>, SendError> {
        self.join()
    }

    fn join(&mut self) -> Result<Vec<Sent>, SendError> {
        // All threads are joined before any error is checked.
        let joined: Vec<_> =
            self.threads.drain(..).map(|thread| thread.join().expect("a sending thread")).collect();
        for sent in joined.iter().flatten() {
            self.generator.next_sequences[sent.queue as usize] += sent.frames;
        }
        joined.into_iter().collect()
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.stopper.stop();
        let _abandoned = self.join();
    }
}

/// Stops a [`Run`].
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Shared>);

/// The state that a run's threads share with its owner.
#[derive(Default, Debug)]
struct Shared {
    stopped: AtomicBool,
    frames: AtomicU64,
}

impl Stopper {
    /// Stops the run within some milliseconds.
    pub fn stop(&self) {
        self.0.stopped.store(true, Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.0.stopped.load(Relaxed)
    }
}

/// The number of frames that the kernel sends in one call.
struct Slice {
    frames: u64,
    batch_frames: u64,
}

/// Cuts a load into slices.
enum Slicer {
    /// At top rate.
    Top,
    /// The program spaces the frames of a slice.
    InProgram { pacer: Pacer, per_second: u64 },
    /// Each slice is one frame, spaced by this thread.
    ByFrame { pacer: Pacer },
}

impl Slicer {
    fn new(rate: Rate) -> Self {
        match rate {
            Rate::Top => Self::Top,
            Rate::PerSecond(per_second) if NANOS / per_second.max(1) <= INTERVAL_NS_MAX => {
                Self::InProgram { pacer: Pacer::new(per_second), per_second }
            }
            Rate::PerSecond(per_second) => Self::ByFrame { pacer: Pacer::new(per_second) },
        }
    }

    /// The next slice of what remains, when it is due; sets the program's clock for it.
    fn next(&mut self, remaining: u64, state: &mut State) -> Slice {
        match self {
            Self::Top => {
                Slice { frames: remaining.min(SLICE_FRAMES_MAX), batch_frames: BATCH_FRAMES_MAX }
            }
            Self::InProgram { pacer, per_second } => {
                let interval_ns = (NANOS / *per_second).max(1);
                let frames = remaining.min(SLICE_NS / interval_ns);
                state.due_ns = pacer.due_ns(monotonic_ns());
                state.interval_ns = interval_ns;
                sleep_until_ns(state.due_ns);
                pacer.advance(frames);
                let batch_frames = (BATCH_NS_MAX / interval_ns).clamp(1, BATCH_FRAMES_MAX);
                Slice { frames, batch_frames }
            }
            Self::ByFrame { pacer } => {
                pacer.wait();
                Slice { frames: 1, batch_frames: 1 }
            }
        }
    }
}

const NANOS: u64 = 1_000_000_000;

/// Time in which the calling thread was ready to run and did not have a CPU, if the kernel reports
/// it.
fn waited_by_thread() -> Duration {
    let times = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = times.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// One CPU's state as user space sees it; `frame_program::state` has its layout.
#[derive(Clone, Copy, Default, Debug)]
struct State {
    sequence: u64,
    due_ns: u64,
    interval_ns: u64,
    queue: u32,
    not_made: u64,
}

impl State {
    fn to_bytes(self) -> [u8; state::BYTES as usize] {
        let mut bytes = [0; state::BYTES as usize];
        let mut put = |offset: i16, value: u64| {
            bytes[offset as usize..][..8].copy_from_slice(&value.to_ne_bytes());
        };
        put(state::SEQUENCE, self.sequence);
        put(state::DUE_NS, self.due_ns);
        put(state::INTERVAL_NS, self.interval_ns);
        put(state::QUEUE, self.queue.into());
        put(state::NOT_MADE, self.not_made);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let get = |offset: i16| {
            let field = bytes[offset as usize..].first_chunk().expect("a field of the state");
            u64::from_ne_bytes(*field)
        };
        Self {
            sequence: get(state::SEQUENCE),
            due_ns: get(state::DUE_NS),
            interval_ns: get(state::INTERVAL_NS),
            queue: get(state::QUEUE) as u32,
            not_made: get(state::NOT_MADE),
        }
    }
}

/// A template of the maximum length, from which the program makes all frames.
fn template(traffic: &Traffic) -> Vec<u8> {
    let mut frame = traffic.frame(Stamp { queue: 0, sequence: 0 });
    frame.resize(traffic.sizes.frame_bytes_max().into(), 0);
    frame
}

/// Attaches the program where it never runs: the kernel calls an attached program directly, and
/// others through a pointer. A process that may not create a namespace omits this step.
pub(crate) fn reside(
    program: &Program,
    interface: &Interface,
) -> Result<Option<(Link, Namespace)>, SetupError> {
    let namespace = match Namespace::new() {
        Err(SetupError::Namespace { source, .. })
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            return Ok(None);
        }
        namespace => namespace?,
    };
    let link = namespace
        .run_in(|| Link::attach_xdp(program, LOOPBACK, XdpMode::Generic))?
        .map_err(|source| SetupError::program(&interface.name, source))?;
    Ok(Some((link, namespace)))
}

fn all_different(what: &'static str, numbers: impl Iterator<Item = u32>) -> Result<(), SendError> {
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_unstable();
    match numbers.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(SendError::Twice { what, number: pair[0] }),
        None => Ok(()),
    }
}

/// A CPU that this process may use and that sends to this queue of a veth's peer with this number
/// of queues.
pub(crate) fn cpu_reaching(queue: u32, queue_count: u32) -> io::Result<u32> {
    let cpus = allowed_cpus()?;
    cpus.into_iter()
        .find(|cpu| cpu % queue_count == queue)
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The CPUs that this process may use, in order.
fn allowed_cpus() -> io::Result<Vec<u32>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).map(|cpu| cpu as u32).collect())
}

pub(crate) fn pin_to(cpu: u32) -> io::Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu as usize);
    Ok(sched_setaffinity(None, &only)?)
}

#[cfg(test)]
mod tests {
    use wirecap_filter::bpf::XDP_REDIRECT;

    use super::*;
    use wirecap_testbed::privileged;

    use crate::{Sizes, VethPair};

    /// Makes the frame of this stamp in the kernel, on a template that other frames were made from.
    fn frame_of_kernel(engine: &Engine, stamp: Stamp, worn_template: &[u8]) -> Vec<u8> {
        let state =
            State { sequence: stamp.sequence, queue: stamp.queue.into(), ..State::default() };
        // The state is set for every CPU on which this thread may run.
        for cpu in allowed_cpus().expect("this thread's CPUs") {
            engine.states.update(cpu, &state.to_bytes()).expect("an update");
        }
        let run = engine.program.test_run(worn_template, 1).expect("a test run");
        assert_eq!(run.verdict, XDP_REDIRECT as u32);
        run.frame
    }

    #[test]
    fn the_kernel_makes_the_frames_that_user_space_makes() {
        if !privileged() {
            return;
        }

        let namespace = Namespace::new().expect("a namespace");
        let pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), 1, 1500).expect("a pair");
        let plain = Traffic::to(&pair.receiver);
        let kinds = [
            plain.clone(),
            Traffic { sizes: Sizes::imix(), flows: 7, ..plain.clone() },
            Traffic {
                sizes: Sizes::mix(&[(61, 3), (1514, 2), (999, 9)]),
                flows: 40_000,
                ..plain.clone()
            },
            Traffic {
                source: [255, 255, 255, 250].into(),
                flows: 1 << 24,
                source_port: 0xc000,
                ..plain
            },
        ];

        for traffic in kinds {
            let generator = Generator::new(&pair.sender, &traffic).expect("a generator");
            let mut worn_template = template(&traffic);

            for sequence in (0..50).chain([16_383, 16_384, 39_999, 40_000, 1 << 33, u64::MAX / 3]) {
                let stamp = Stamp { queue: (sequence % 5) as u16, sequence };
                let frame = frame_of_kernel(&generator.engine, stamp, &worn_template);
                assert_eq!(frame, traffic.frame(stamp), "{stamp:?} of {traffic:?}");
                assert_eq!(Stamp::of(&frame), Some(stamp));
                worn_template[..frame.len()].copy_from_slice(&frame);
            }
        }
    }

    #[test]
    fn impossible_traffic_is_rejected_with_its_limits() {
        if !privileged() {
            return;
        }

        let namespace = Namespace::new().expect("a namespace");
        let pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), 1, 1500).expect("a pair");
        let plain = Traffic::to(&pair.receiver);
        let refused =
            |traffic| Generator::new(&pair.sender, &traffic).expect_err("a refusal").to_string();
        assert_eq!(
            refused(Traffic { sizes: Sizes::mix(&[(60, 1), (1515, 1)]), ..plain.clone() }),
            "invalid frame length in bytes 1515: expected 60 to 1514"
        );
        assert_eq!(
            refused(Traffic { sizes: Sizes::fixed(59), ..plain.clone() }),
            "invalid frame length in bytes 59: expected 60 to 1514"
        );
        assert_eq!(
            refused(Traffic { flows: 0, ..plain.clone() }),
            "invalid number of flows 0: expected 1 to 16777216"
        );
        assert_eq!(
            refused(Traffic { source_port: 49_153, ..plain }),
            "invalid first source port 49153: expected 0 to 49152"
        );
    }
}
