//! Runs experiments one after the other and stores finished results, so an interrupted run
//! continues where it stopped.
//!
//! Its directory contains `results/ID.json` (findings and conditions), `data/ID/*.csv` and, once
//! all entries exist, the [report](crate::report).

use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use wirecap_units::error::causes;

use crate::experiment::{Effort, Experiment, Findings, Part, Run, RunError, Watch};
use crate::machine::Machine;

/// An observer of a list of experiments.
pub trait Audience: Watch {
    /// Experiment number `place` of `count` begins.
    fn begins(&self, place: usize, count: usize, title: &str);

    /// It has ended; `how` describes the result in a few words.
    fn ended(&self, how: &str);
}

/// The conditions of experiments, and the place of their results.
#[derive(Debug, Clone)]
pub struct Runner {
    /// Where results are kept.
    pub directory: PathBuf,
    /// The extent of the experiments.
    pub effort: Effort,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Whether to repeat experiments that already have a result.
    pub again: bool,
}

/// An experiment in the report.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The name of its files.
    pub id: String,
    /// Its heading.
    pub title: String,
    /// The part of the report that contains it.
    pub part: Part,
    /// The findings, or why there are none.
    pub outcome: Result<Findings, String>,
}

/// Why a list of experiments was not completed.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunnerError {
    /// The user interrupted. Finished results are kept.
    Stopped,
    /// This program could not be read, so its results could not be distinguished from those of
    /// another build.
    Program(io::Error),
    /// A result could not be stored.
    Write {
        /// The file.
        path: PathBuf,
        /// What was wrong.
        source: io::Error,
    },
}

impl fmt::Display for RunnerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str(
                "stopped; the same command continues after the last finished experiment",
            ),
            Self::Program(_) => write!(f, "cannot read {PROGRAM}, this program"),
            Self::Write { path, .. } => write!(f, "cannot write {}", path.display()),
        }
    }
}

impl Error for RunnerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Stopped => None,
            Self::Program(source) | Self::Write { source, .. } => Some(source),
        }
    }
}

/// A stored result.
#[derive(Serialize, Deserialize)]
struct Kept {
    key: String,
    findings: Findings,
}

impl Runner {
    /// Runs `experiments` in turn, except those with a result under the same conditions. An
    /// experiment that fails does not stop the others; its entry has the reason.
    ///
    /// # Errors
    ///
    /// If the user interrupts, or a result cannot be written.
    pub fn run(
        &self,
        experiments: &[Box<dyn Experiment>],
        audience: &dyn Audience,
    ) -> Result<Vec<Entry>, RunnerError> {
        self.check_directory()?;
        let build = build()?;
        let mut entries = Vec::new();

        for (index, experiment) in experiments.iter().enumerate() {
            if audience.is_stopped() {
                return Err(RunnerError::Stopped);
            }

            audience.begins(index + 1, experiments.len(), &experiment.title());
            let outcome = self.findings(experiment.as_ref(), &build, audience)?;
            entries.push(Entry {
                id: experiment.id().to_owned(),
                title: experiment.title(),
                part: experiment.part(),
                outcome,
            });
        }

        Ok(entries)
    }

    /// Creates the directory, and checks first whether it is writable.
    fn check_directory(&self) -> Result<(), RunnerError> {
        let probe = self.directory.join("probe");
        let named = |error| match error {
            RunnerError::Write { source, .. } => {
                RunnerError::Write { path: self.directory.clone(), source }
            }
            other => other,
        };
        write_whole(&probe, b"results").map_err(named)?;
        let _ = fs::remove_file(&probe);
        Ok(())
    }

    fn findings(
        &self,
        experiment: &dyn Experiment,
        build: &str,
        audience: &dyn Audience,
    ) -> Result<Result<Findings, String>, RunnerError> {
        let effort = self.effort;
        let seed = self.seed;

        let machine = match experiment.part() {
            Part::Simulated => String::new(),
            Part::Live => Machine::this().key(),
        };
        let key = format!("{build}; {effort}; seed {seed}; {}; {machine}", experiment.parameters());
        let path = self.directory.join("results").join(format!("{}.json", experiment.id()));
        let kept = fs::read(&path).ok().and_then(|json| serde_json::from_slice::<Kept>(&json).ok());

        if let Some(kept) = kept.filter(|kept| !self.again && kept.key == key) {
            audience.ended("kept from an earlier run");
            return Ok(Ok(kept.findings));
        }

        match experiment.run(&Run { effort, seed, watch: audience }) {
            Ok(findings) => {
                self.write_data(experiment.id(), &findings)?;
                let kept = Kept { key, findings };
                let json = serde_json::to_vec(&kept).expect("findings are plain data");
                write_whole(&path, &json)?;
                audience.ended("done");
                Ok(Ok(kept.findings))
            }
            Err(RunError::Stopped) => Err(RunnerError::Stopped),
            Err(RunError::Failed(error)) => {
                let reason = causes(error.as_ref());
                audience.ended(&format!("failed: {reason}"));
                Ok(Err(reason))
            }
        }
    }

    fn write_data(&self, id: &str, findings: &Findings) -> Result<(), RunnerError> {
        let directory = self.directory.join("data").join(id);
        findings
            .data
            .iter()
            .try_for_each(|file| write_whole(&directory.join(&file.name), file.csv.as_bytes()))
    }
}

/// Writes a file atomically, in a directory that is created if required.
///
/// # Errors
///
/// When it cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), RunnerError> {
    let mut unfinished = path.to_owned().into_os_string();
    unfinished.push(".unfinished");
    let directory = path.parent().unwrap_or(Path::new("."));
    let written = fs::create_dir_all(directory)
        .and_then(|()| fs::write(&unfinished, bytes))
        .and_then(|()| fs::rename(&unfinished, path));
    written.map_err(|source| {
        // The part for which a full disk had room.
        let _ = fs::remove_file(&unfinished);
        RunnerError::Write { path: path.to_owned(), source }
    })
}

/// The running program, even after an update has replaced its file; `std::env::current_exe` returns
/// the file's name.
const PROGRAM: &str = "/proc/self/exe";

/// Identifies this build. Another build may have other results, and the version does not change
/// with each build.
fn build() -> Result<String, RunnerError> {
    let digest = digest(Path::new(PROGRAM)).map_err(RunnerError::Program)?;
    Ok(format!("{} build {digest:016x}", env!("CARGO_PKG_VERSION")))
}

/// Identifies the content of a file.
pub(crate) fn digest(file: &Path) -> io::Result<u64> {
    let content = fs::read(file)?;
    // FNV-1a by words: it need not be secure.
    Ok(content.chunks(8).fold(0xcbf2_9ce4_8422_2325_u64, |digest, bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        (digest ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3)
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::experiment::DataFile;

    #[derive(Default)]
    struct Silent {
        stopped: AtomicBool,
    }

    impl Watch for Silent {
        fn progress(&self, _share: f64, _what: &str) {}

        fn is_stopped(&self) -> bool {
            self.stopped.load(Ordering::Relaxed)
        }
    }

    impl Audience for Silent {
        fn begins(&self, _place: usize, _count: usize, _title: &str) {}

        fn ended(&self, _how: &str) {}
    }

    /// Counts its runs.
    struct Counting {
        id: &'static str,
        fails: bool,
        runs: &'static AtomicUsize,
    }

    impl Experiment for Counting {
        fn id(&self) -> &'static str {
            self.id
        }

        fn title(&self) -> String {
            "Counting".to_owned()
        }

        fn part(&self) -> Part {
            Part::Simulated
        }

        fn run(&self, run: &Run<'_>) -> Result<Findings, RunError> {
            self.runs.fetch_add(1, Ordering::Relaxed);
            run.step(0.5, "counting")?;
            if self.fails {
                return Err(RunError::Failed("no such rival".into()));
            }
            let file =
                DataFile { name: "one.csv".to_owned(), csv: format!("seed\n{}\n", run.seed) };
            Ok(Findings { data: vec![file], ..Findings::default() })
        }
    }

    fn runner(directory: &Path, seed: u64) -> Runner {
        Runner { directory: directory.to_owned(), effort: Effort::Quick, seed, again: false }
    }

    #[test]
    fn a_finished_experiment_is_not_repeated_under_the_same_conditions() {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let directory = tempfile::tempdir().unwrap();
        let experiments: Vec<Box<dyn Experiment>> =
            vec![Box::new(Counting { id: "a", fails: false, runs: &RUNS })];
        let first = runner(directory.path(), 1).run(&experiments, &Silent::default()).unwrap();
        let second = runner(directory.path(), 1).run(&experiments, &Silent::default()).unwrap();
        assert_eq!((first, RUNS.load(Ordering::Relaxed)), (second, 1));
        runner(directory.path(), 2).run(&experiments, &Silent::default()).unwrap();
        Runner { again: true, ..runner(directory.path(), 2) }
            .run(&experiments, &Silent::default())
            .unwrap();
        assert_eq!(RUNS.load(Ordering::Relaxed), 3);
        assert_eq!(
            fs::read_to_string(directory.path().join("data/a/one.csv")).unwrap(),
            "seed\n2\n"
        );

        // A truncated result is not used.
        fs::write(directory.path().join("results/a.json"), "{\"key\": ").unwrap();
        runner(directory.path(), 2).run(&experiments, &Silent::default()).unwrap();
        assert_eq!(RUNS.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn a_failed_experiment_is_reported_and_the_others_run() {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let directory = tempfile::tempdir().unwrap();
        let experiments: Vec<Box<dyn Experiment>> = vec![
            Box::new(Counting { id: "a", fails: true, runs: &RUNS }),
            Box::new(Counting { id: "b", fails: false, runs: &RUNS }),
        ];
        let entries = runner(directory.path(), 1).run(&experiments, &Silent::default()).unwrap();
        assert_eq!(entries[0].outcome, Err("no such rival".to_owned()));
        assert!(entries[1].outcome.is_ok());
    }

    #[test]
    fn a_failed_write_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("page.html");
        fs::create_dir(&path).unwrap();
        let error = write_whole(&path, b"page").unwrap_err();
        assert!(
            matches!(error, RunnerError::Write { path: ref named, .. } if *named == path),
            "{error}"
        );
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_interruption_ends_the_run_and_leaves_no_half_result() {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let directory = tempfile::tempdir().unwrap();
        let experiments: Vec<Box<dyn Experiment>> =
            vec![Box::new(Counting { id: "a", fails: false, runs: &RUNS })];
        let silent = Silent { stopped: AtomicBool::new(true) };
        let error = runner(directory.path(), 1).run(&experiments, &silent).unwrap_err();
        assert!(matches!(error, RunnerError::Stopped));
        assert!(!directory.path().join("results").exists());
    }
}
