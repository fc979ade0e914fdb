//! The indexes of a recording's files, made on a thread that runs when no other needs the processor
//! or the disk.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use wirecap_index::{Ensured, be_idle, ensure};
use wirecap_recorder::Watch;
use wirecap_units::error::causes;

use crate::shared::screen::notice;
use crate::shared::signals;
use crate::shared::sink::Writing;
use crate::size::count_of;

/// Makes the indexes.
#[derive(Debug)]
pub(crate) struct Indexer {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Vec<PathBuf>>,
    writing: Writing,
}

impl Indexer {
    /// Indexes are counted in `writing`.
    pub(crate) fn start(writing: &Writing) -> std::io::Result<(Self, Sender<PathBuf>)> {
        let (complete, files) = mpsc::channel();
        let ends = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&ends);
        let counted = writing.clone();
        let work = move || work(&files, &asked, &counted);
        let thread = thread::Builder::new().name("index".to_owned()).spawn(work)?;
        Ok((Self { ends, thread, writing: writing.clone() }, complete))
    }

    /// Makes the remaining indexes in this thread: the capture has ended, so CPU time need not be
    /// saved. A signal skips them. All files must have been announced.
    pub(crate) fn finish(self) {
        self.ends.store(true, Ordering::Relaxed);
        let left = self.thread.join().unwrap_or_default();
        let begun = Instant::now();
        let mut is_said = false;

        signals::optional(|is_skipped| {
            for (done, path) in left.iter().enumerate() {
                let mut goes_on = |_| {
                    if !is_said && begun.elapsed() > PATIENCE {
                        is_said = true;
                        let files = files(left.len() - done);
                        notice(&format!(
                            "indexing {files}; a signal skips this, and `wirecap index` does it later"
                        ));
                    }
                    !is_skipped()
                };
                if !index(path, &mut goes_on, &self.writing) {
                    notice(&format!(
                        "not indexed: {}; see `wirecap index`",
                        files(left.len() - done)
                    ));
                    break;
                }
            }
        });
    }
}

/// Indexing after the end that takes longer than this is announced.
const PATIENCE: Duration = Duration::from_secs(1);

fn files(count: usize) -> String {
    count_of(count as u64, "file", "files")
}

/// Indexes files. Returns those that are not indexed when it must end.
fn work(files: &Receiver<PathBuf>, ends: &AtomicBool, writing: &Writing) -> Vec<PathBuf> {
    be_idle();
    let mut left = Vec::new();
    for path in files {
        if ends.load(Ordering::Relaxed)
            || !index(&path, &mut |_| !ends.load(Ordering::Relaxed), writing)
        {
            left.push(path);
        }
    }
    left
}

/// Indexes a file. Returns whether another attempt is unnecessary.
fn index(path: &Path, goes_on: &mut dyn FnMut(u64) -> bool, writing: &Writing) -> bool {
    let outcome = ensure(path, goes_on);
    if !goes_on(0) && !matches!(outcome, Ok(Ensured::There | Ensured::Written { .. })) {
        return false;
    }

    writing.leave_index(matches!(outcome, Ok(Ensured::There | Ensured::Written { .. })));

    match outcome {
        Ok(Ensured::There | Ensured::Written { .. }) => {}
        // A budget has removed it already.
        _ if !path.exists() => {}
        Ok(Ensured::Faulty(error)) => tell(path, &error),
        Err(error) => tell(path, &error),
    }

    true
}

fn tell(path: &Path, error: &dyn Error) {
    notice(&format!("no index of {}: {}", path.display(), causes(error)));
}

/// Messages of the writer: the time of writes, and complete or removed files.
pub(crate) struct Told {
    pub(crate) writing: Writing,
    pub(crate) complete: Option<Sender<PathBuf>>,
}

impl Watch for Told {
    fn around(&self, work: &mut dyn FnMut()) {
        self.writing.time(work);
    }

    fn accepted(&self, bytes: u64) {
        self.writing.accept(bytes);
    }

    fn completed(&self, path: &Path) {
        self.writing.complete_file(path, self.complete.is_some());
        if let Some(complete) = &self.complete {
            // The thread is there as long as the recording.
            let _ = complete.send(path.to_owned());
        }
    }

    fn removed(&self, path: &Path) {
        // A leftover file is harmless; a recording does not end because of it.
        let _ = wirecap_index::remove(path);
    }
}
