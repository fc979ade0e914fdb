//! Queries the status of captures in a separate thread: one that does not answer delays neither
//! keys nor the screen.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::shared::control::client::{Remote, Unreachable, names};
use crate::shared::failure::Failure;

/// The answer of each capture by name, or the reason why there is none.
pub(super) type Statuses = BTreeMap<String, Result<Value, String>>;

/// Maximum sleep at a time, because the interval may become shorter meanwhile.
const NAP: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Poller(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    interval_ms: AtomicU64,
    latest: Mutex<Option<Statuses>>,
}

impl Poller {
    /// Queries the captures with these names, or all captures.
    pub(super) fn start(wanted: &[String], interval: Duration) -> io::Result<Self> {
        let interval_ms = AtomicU64::new(interval.as_millis() as u64);
        let shared = Arc::new(Shared { interval_ms, latest: Mutex::new(None) });
        let poller = Self(Arc::clone(&shared));
        let wanted = wanted.to_vec();

        thread::Builder::new().name("poll".to_owned()).spawn(move || {
            let mut remotes = BTreeMap::new();
            loop {
                let asked = Instant::now();
                let statuses = ask_all(&wanted, &mut remotes);
                *shared.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(statuses);
                while asked.elapsed()
                    < Duration::from_millis(shared.interval_ms.load(Ordering::Relaxed))
                {
                    thread::sleep(NAP);
                }
            }
        })?;
        Ok(poller)
    }

    /// The statuses since the last call.
    pub(super) fn latest(&self) -> Option<Statuses> {
        self.0.latest.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn interval(&self) -> Duration {
        Duration::from_millis(self.0.interval_ms.load(Ordering::Relaxed))
    }

    pub(super) fn set_interval(&self, interval: Duration) {
        self.0.interval_ms.store(interval.as_millis() as u64, Ordering::Relaxed);
    }
}

fn ask_all(wanted: &[String], remotes: &mut BTreeMap<String, Remote>) -> Statuses {
    let all = match wanted {
        [] => match names() {
            Ok(names) => names,
            Err(failure) => return [("".to_owned(), Err(failure.to_string()))].into(),
        },
        names => names.to_vec(),
    };
    remotes.retain(|name, _| all.contains(name));

    let mut statuses = Statuses::new();

    for name in all {
        match ask(&name, remotes) {
            Ok(status) => drop(statuses.insert(name, Ok(status))),
            // A socket without an owner is no capture, unless it was requested.
            Err(Unreachable::None(_)) if wanted.is_empty() => {}
            Err(unreachable) => drop(statuses.insert(name, Err(unreachable.text().to_owned()))),
        }
    }

    statuses
}

/// Over the existing connection, or a new one if that has ended.
fn ask(name: &str, remotes: &mut BTreeMap<String, Remote>) -> Result<Value, Unreachable> {
    let status = |remote: &mut Remote| remote.ask(&json!({ "command": "status" }));
    if let Some(remote) = remotes.get_mut(name)
        && let Ok(status) = status(remote)
    {
        return Ok(status);
    }
    remotes.remove(name);
    let mut remote = Remote::connect(name)?;
    let answer =
        status(&mut remote).map_err(|failure: Failure| Unreachable::Failed(failure.to_string()))?;
    remotes.insert(name.to_owned(), remote);
    Ok(answer)
}
