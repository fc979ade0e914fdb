//! Processor time of this process's threads, by their names.

use std::collections::BTreeMap;
use std::fs;
use std::thread::{self, Scope, ScopedJoinHandle};

use serde_json::{Value, json};

/// Starts the thread of a worker, under a name by which its processor time is found.
pub(crate) fn spawn_worker<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    worker: usize,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let named = thread::Builder::new().name(format!("worker {worker}"));
    named.spawn_scoped(scope, work).expect("a thread can be started")
}

/// `[{"name":"worker 0","cpu_s":1.5}]`. Threads of one name count as one; the first thread has the
/// program's.
pub(crate) fn in_json() -> Vec<Value> {
    let mut times: BTreeMap<String, u64> = BTreeMap::new();

    for entry in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |file| fs::read_to_string(entry.path().join(file)).ok();
        // It may have ended.
        let (Some(name), Some(statistics)) = (read("comm"), read("schedstat")) else { continue };
        let nanos: u64 =
            statistics.split_whitespace().next().and_then(|count| count.parse().ok()).unwrap_or(0);
        *times.entry(name.trim_end().to_owned()).or_default() += nanos;
    }

    times
        .iter()
        .map(|(name, nanos)| json!({ "name": name, "cpu_s": *nanos as f64 / 1e9 }))
        .collect()
}
