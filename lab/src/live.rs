//! Experiments on this machine: wirecap on both of its engines and alternative tools, on a private
//! test bed, with loads scaled to the machine.

pub mod bed;
mod burst;
pub mod contender;
mod cost;
pub mod figures;
mod footprint;
pub mod process;
pub mod programs;
mod rate;
pub mod receiver;
pub mod rivals;
mod room;
mod skew;
pub mod sweep;
pub mod trial;

use std::error::Error;

use crate::experiment::{Experiment, Findings, Part, Run, RunError};
use crate::runner::digest;
use process::CommandLine;

/// What measurements give.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The settings of the live experiments.
#[derive(Debug, Clone)]
pub struct Lab {
    /// The wirecap command.
    pub wirecap: CommandLine,
    /// The program `wirecap-lab`, which has the hand-written receivers.
    pub lab: CommandLine,
    /// For a functional test: very short runs.
    pub tiny: bool,
}

impl Lab {
    /// The live experiments, in the order of execution.
    pub fn experiments(&self) -> Vec<Box<dyn Experiment>> {
        let experiment = |id, title, measure: Measure| -> Box<dyn Experiment> {
            Box::new(LiveExperiment { lab: self.clone(), id, title, measure })
        };
        vec![
            experiment("live-rate", "Loss against the offered rate", rate::rates),
            experiment("live-length", "Loss against the length of packets", rate::lengths),
            experiment("live-cost", "Loss against the consumer's cost", cost::run),
            experiment("live-burst", "Loss against the length of bursts", burst::run),
            experiment("live-room", "Packets kept per MiB by length", room::run),
            experiment(
                "live-skew",
                "Loss, order and cost against skew: two queues",
                skew::handlers,
            ),
            experiment(
                "live-skew-queues",
                "Loss, order and cost against skew: more queues",
                skew::queues,
            ),
            experiment("live-threshold", "The threshold T, live", skew::thresholds),
            experiment("live-footprint", "What a packet and a capture cost", footprint::run),
        ]
    }

    fn choose<T>(&self, run: &Run<'_>, tiny: T, quick: T, full: T) -> T {
        if self.tiny { tiny } else { run.effort.choose(quick, full) }
    }

    /// The extent, and the build of the wirecap command: another one may have other results.
    fn parameters(&self) -> String {
        let extent = if self.tiny { "tiny, " } else { "" };
        match self.wirecap.file().map(|file| digest(&file)) {
            Some(Ok(digest)) => format!("{extent}wirecap {digest:016x}"),
            Some(Err(_)) | None => format!("{extent}no wirecap"),
        }
    }
}

/// Makes the measurement and returns the findings.
type Measure = fn(&Lab, &Run<'_>) -> Result<Findings, RunError>;

/// One of the live experiments.
struct LiveExperiment {
    lab: Lab,
    id: &'static str,
    title: &'static str,
    measure: Measure,
}

impl Experiment for LiveExperiment {
    fn id(&self) -> &'static str {
        self.id
    }

    fn title(&self) -> String {
        self.title.to_owned()
    }

    fn part(&self) -> Part {
        Part::Live
    }

    fn parameters(&self) -> String {
        self.lab.parameters()
    }

    fn run(&self, run: &Run<'_>) -> Result<Findings, RunError> {
        if !self.lab.wirecap.is_installed() {
            let message = "the command wirecap is neither beside wirecap-lab nor in PATH: install it, or run make build";
            return Err(RunError::Failed(message.into()));
        }
        (self.measure)(&self.lab, run)
    }
}

/// A rate as text.
fn per_second(rate: f64) -> String {
    match rate {
        rate if rate >= 1e6 => format!("{:.2} million packets/s", rate / 1e6),
        rate => format!("{} packets/s", wirecap::grouped(rate as u64)),
    }
}
