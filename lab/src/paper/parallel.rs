//! Many independent runs on all processors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::experiment::{Run, RunError};

/// The results of `work` for each of `jobs`, in the order of the jobs; `name` describes the current
/// job.
pub(super) fn map<J: Sync, R: Send>(
    run: &Run<'_>,
    jobs: &[J],
    name: impl Fn(&J) -> String + Sync,
    work: impl Fn(&J) -> R + Sync,
) -> Result<Vec<R>, RunError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<R>>> = Mutex::new(jobs.iter().map(|_| None).collect());

    let work_off = || -> Result<(), RunError> {
        while let Some(index) =
            Some(next.fetch_add(1, Ordering::Relaxed)).filter(|index| *index < jobs.len())
        {
            let share = done.load(Ordering::Relaxed) as f64 / jobs.len() as f64;
            run.step(share, &name(&jobs[index]))?;
            let result = work(&jobs[index]);
            results.lock().expect("no thread panics while it has this")[index] = Some(result);
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work_off)).collect();
        let ended =
            workers.into_iter().map(|worker| worker.join().expect("a simulation does not panic"));
        // All threads are joined, even after one was stopped.
        ended.collect::<Vec<_>>().into_iter().collect::<Result<(), RunError>>()
    })?;

    let results = results.into_inner().expect("no thread panics while it has this");
    Ok(results.into_iter().map(|result| result.expect("every job was done")).collect())
}
