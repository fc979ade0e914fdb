//! Measures the cost of a captured packet, component by component, like the WinPcap paper.
//!
//! Components are enabled one at a time, in alternation within each round, on a private test bed;
//! the cost of a component is the difference to the run without it in the same round. Components
//! that are too cheap for this are measured by test runs in the kernel, or in this process.

mod bar;
mod bed;
mod book;
mod component;
mod drawing;
mod error;
mod figures;
mod filters;
mod line;
mod live;
mod offload;
mod reader;
mod reported;
mod savefile;
mod tsc;
mod winpcap;

use std::ops::ControlFlow;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::setpriority_process;
use serde::Serialize;
use wirecap::savefile::Format;
use wirecap_testbed::{LossLock, loss_lock};

pub use bar::{Bar, Part, Step, Target};
pub use book::Book;
pub use component::{Component, Group, How, Id};
pub use error::CostError;
pub use figures::Figures;
pub use filters::{Compiler, Kind};
pub use reported::{BATCH_NS_MAX, Cost};

use bed::Bed;
use component::{Act, Sample, Samples};
use filters::{BarePrograms, Forms};
use live::{CHUNK_CELLS, Setup};

/// The nice value of all threads of the measurement: the sender precedes other work of the machine.
const PRIORITY: i32 = -10;
/// Number of repetitions of a loop in a round: the fastest, which was disturbed least, counts.
const PARTS: usize = 5;
/// If a cache line takes this many times longer, the CPUs have moved.
const MOVED_RATIO: f64 = 2.0;
/// Time between two checks whether another measurement still runs.
const GLANCE: Duration = Duration::from_millis(50);
/// Length of the sender's frames.
const FRAME_BYTES: u16 = 60;

/// The effort of a measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effort {
    /// Number of rounds; at least 1.
    pub rounds: usize,
    /// Frames of a live run.
    pub frames: u64,
    /// R: chunks of a pool, of 256 cells each.
    pub chunks: u32,
    /// Number of packets measured in a loop.
    pub loops: u32,
    /// Maximum number of repetitions of a disturbed live run.
    pub repeats: usize,
}

impl Effort {
    /// For meaningful results: some minutes.
    pub fn full() -> Self {
        Self { rounds: 11, frames: 2_000_000, chunks: 512, loops: 100_000, repeats: 3 }
    }

    /// For a functional test: some seconds.
    pub fn quick() -> Self {
        Self { rounds: 1, frames: 50_000, chunks: 64, loops: 1_000, repeats: 0 }
    }

    /// A pool's cells.
    fn pool_frames(&self) -> u64 {
        u64::from(self.chunks) * u64::from(CHUNK_CELLS)
    }

    /// Frames sent before a run and not measured, so that every cell has been used once.
    fn warm_up_frames(&self) -> u64 {
        self.pool_frames()
    }

    /// Interval of progress reports.
    fn steps(&self) -> usize {
        self.rounds.saturating_mul(Setup::ALL.len() + 2)
    }
}

/// What is being measured.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// The round, from 1.
    pub round: usize,
    /// Steps that are done, of all rounds.
    pub done: usize,
    /// All steps.
    pub steps: usize,
    /// The step that begins, or the reason of a wait.
    pub what: &'static str,
}

/// Gets each step in advance, and may end the measurement.
pub type Watch<'a> = dyn FnMut(Progress) -> ControlFlow<()> + Send + 'a;

/// What a packet costs.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Rounds that were made.
    pub rounds: usize,
    /// Frames of a live run.
    pub frames: u64,
    /// Their length in bytes.
    pub frame_bytes: u16,
    /// Cells of a pool: R x M.
    pub cells: u64,
    /// Ticks of the processor's time stamp counter per second; `None` if it has none.
    pub tsc_hz: Option<f64>,
    /// The components in the order in which a packet passes them.
    pub components: Vec<Component>,
    /// The sums of both engines, then the WinPcap paper's figures.
    pub bars: Vec<Bar>,
    /// The next target for optimisation, by engine.
    pub next: Vec<Target>,
    /// The frame counts of each live run.
    pub books: Vec<Book>,
    /// The time of a cache line from the sender's CPU to the reader's before each live run with one
    /// ring, in nanoseconds; none on one CPU.
    pub cache_lines_ns: Figures,
    /// Live runs whose sender waited for its CPU for more than 4 % of the time, also when repeated.
    pub disturbed: usize,
}

impl Report {
    /// The component, if it could be measured.
    pub fn component(&self, id: Id) -> Option<&Component> {
        self.components.iter().find(|component| component.id == id)
    }

    /// Whether the time of a cache line from CPU to CPU changed so much that runs cannot be
    /// compared: the host of a virtual machine may place two CPUs on one cache, and change this a
    /// second later.
    pub fn cpus_moved(&self) -> bool {
        self.cache_lines_ns.max() > MOVED_RATIO * self.cache_lines_ns.min()
    }

    /// A line for each component and round.
    pub fn csv(&self) -> String {
        let mut text = "component,how,round,ns,cycles\n".to_owned();
        for Component { key, how, ns, cycles, .. } in &self.components {
            for (index, ns) in ns.rounds().iter().enumerate() {
                let cycles = cycles
                    .as_ref()
                    .map_or(String::new(), |cycles| format!("{:.3}", cycles.rounds()[index]));
                text += &format!("{key},{},{},{ns:.3},{cycles}\n", how.words(), index + 1);
            }
        }
        text
    }
}

/// Measures what a packet costs.
///
/// # Errors
///
/// [`CostError`] if the privilege is missing, a step fails, or the counts of a run do not balance.
pub fn measure(effort: &Effort, watch: &mut Watch<'_>) -> Result<Report, CostError> {
    let bed = Bed::new(1)?;
    let receiver = bed.receiver.namespace.clone();
    receiver.run_in(|| Session::new(bed, effort)?.measure(watch))?
}

/// The least of what `part` gives.
fn fastest(mut part: impl FnMut() -> Result<f64, CostError>) -> Result<f64, CostError> {
    (0..PARTS).try_fold(f64::INFINITY, |least, _| Ok(least.min(part()?)))
}

/// A running measurement, in a separate thread in the receiver's namespace.
#[derive(Debug)]
struct Session<'a> {
    effort: &'a Effort,
    bed: Bed,
    filters: Vec<(Kind, Forms)>,
    bare: BarePrograms,
    samples: Samples,
    books: Vec<Book>,
    cache_lines: Figures,
    disturbed: usize,
    done: usize,
}

impl<'a> Session<'a> {
    fn new(bed: Bed, effort: &'a Effort) -> Result<Self, CostError> {
        // Without the privilege the priority is unchanged.
        let _ = setpriority_process(None, PRIORITY);
        let forms = |kind| Ok((kind, Forms::of(kind)?));

        Ok(Self {
            effort,
            bed,
            filters: Kind::ALL.into_iter().map(forms).collect::<Result<_, CostError>>()?,
            bare: BarePrograms::new()?,
            samples: Samples::new(),
            books: Vec::new(),
            cache_lines: Figures::default(),
            disturbed: 0,
            done: 0,
        })
    }

    fn measure(mut self, watch: &mut Watch<'_>) -> Result<Report, CostError> {
        let calibration = tsc::Calibration::begin();
        let mut pair_of_rings = Bed::new(2)?;
        let rings_namespace = pair_of_rings.receiver.namespace.clone();

        for round in 1..=self.effort.rounds {
            let _alone = self.turn(round, watch)?;

            for setup in Setup::ALL {
                self.step(round, setup.name(), watch)?;
                self.live(setup)?;
            }

            self.step(round, "offloading", watch)?;
            let effort = self.effort;
            let offloading =
                rings_namespace.run_in(|| offload::round(&mut pair_of_rings, effort))??;
            self.offloaded(offloading);
            self.step(round, "filters and savefiles", watch)?;
            self.in_process()?;
        }

        Ok(self.report(calibration.hertz()))
    }

    /// Waits for other measurements on this machine; the watcher may end the wait.
    fn turn(&mut self, round: usize, watch: &mut Watch<'_>) -> Result<LossLock, CostError> {
        let (locked, lock) = mpsc::channel();
        thread::spawn(move || locked.send(loss_lock()));

        loop {
            match lock.recv_timeout(GLANCE) {
                Ok(lock) => return Ok(lock?),
                Err(RecvTimeoutError::Timeout) => {
                    self.tell(round, "waiting for another measurement on this machine", watch)?;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    unreachable!("the thread sends before it ends")
                }
            }
        }
    }

    fn step(
        &mut self,
        round: usize,
        what: &'static str,
        watch: &mut Watch<'_>,
    ) -> Result<(), CostError> {
        self.tell(round, what, watch)?;
        self.done += 1;
        Ok(())
    }

    fn tell(
        &self,
        round: usize,
        what: &'static str,
        watch: &mut Watch<'_>,
    ) -> Result<(), CostError> {
        match watch(Progress { round, done: self.done, steps: self.effort.steps(), what }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CostError::Interrupted),
        }
    }

    fn note(&mut self, sample: Sample, ns: f64) {
        self.samples.entry(sample).or_default().push(ns);
    }

    fn live(&mut self, setup: Setup) -> Result<(), CostError> {
        let run = live::calmest(&mut self.bed, setup, self.effort)?;
        self.disturbed += usize::from(run.pace.is_disturbed());
        self.note(Sample::Run(setup), run.pace.ns_per_frame);

        if let Some(ns) = run.line_ns {
            self.cache_lines.push(ns);
            if setup == Setup::FewCells {
                self.note(Sample::CacheLine, ns);
            }
        }

        self.books.push(run.book);
        let Some(reading) = run.reading else { return Ok(()) };
        let acts = [
            (Act::HandOver, reading.hand_over),
            (Act::Look, reading.look),
            (Act::Recycle, reading.recycle),
        ];
        for (act, figures) in acts {
            self.note(Sample::Reader(setup, act), figures.median());
        }

        Ok(())
    }

    fn offloaded(&mut self, round: offload::Round) {
        self.note(Sample::OwnChunk, round.own.hand_over.median());
        self.note(Sample::BuddysChunk, round.offloaded.hand_over.median());
        self.books.push(round.book);
    }

    fn in_process(&mut self) -> Result<(), CostError> {
        for compiler in Compiler::ALL {
            for index in 0..self.filters.len() {
                let (kind, forms) = &self.filters[index];
                let sample = Sample::Filter(*kind, compiler);
                let ns = forms.time(compiler, self.effort)?;
                self.note(sample, ns);
            }
        }

        self.note(Sample::BareProgram, self.bare.time_alone(self.effort)?);
        self.note(Sample::DispatchedProgram, self.bare.time_dispatched(self.effort)?);
        self.note(Sample::Pcap, savefile::time(Format::Pcap, self.effort)?);
        self.note(Sample::Pcapng, savefile::time(Format::Pcapng, self.effort)?);

        Ok(())
    }

    fn report(self, tsc_hz: Option<f64>) -> Report {
        let components = component::all(&self.samples, tsc_hz);
        let mut bars = bar::ours(&components);
        let next = bars.iter().filter_map(bar::target).collect();

        bars.extend(winpcap::bars());
        Report {
            rounds: self.effort.rounds,
            frames: self.effort.frames,
            frame_bytes: FRAME_BYTES,
            cells: self.effort.pool_frames(),
            tsc_hz,
            components,
            bars,
            next,
            books: self.books,
            cache_lines_ns: self.cache_lines,
            disturbed: self.disturbed,
        }
    }
}
