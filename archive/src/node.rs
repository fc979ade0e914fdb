//! A process of a cluster, scheduler or executor, and the archives that it reads.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::{Result, exec_err};
use datafusion::error::DataFusionError;
use tokio::runtime::Handle;
use wirecap_index::Storage;

use crate::cache::CacheOptions;
use crate::failure::Failure;
use crate::location::{Archive, Listing};
use crate::log;

/// Bytes of a thread's stack; plans are trees, which are processed by recursion.
const STACK_BYTES: usize = 32 << 20;

/// Runs a process of a cluster until it ends. `is_verbose` prints Ballista's log, not only its
/// warnings and errors.
pub(crate) fn run(
    is_verbose: bool,
    serve: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    log::start(is_verbose);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK_BYTES)
        .build()?;
    let outcome = runtime.block_on(serve);
    runtime.shutdown_background();
    outcome
}

/// This process. Queries name their archives; it opens them with its own credentials.
#[derive(Debug)]
pub(crate) struct Node {
    name: String,
    cache: CacheOptions,
    runtime: Handle,
    reached: Mutex<HashMap<String, Arc<dyn Storage>>>,
}

impl Node {
    /// `role` and `address` name it in errors. To be called in the runtime in which it waits for
    /// stores.
    pub(crate) fn new(role: &str, address: impl fmt::Display, cache: &CacheOptions) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = format!("{role} {address} on {host}");
        Self { name, cache: cache.clone(), runtime: Handle::current(), reached: Mutex::default() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn cannot_read(&self, archive: &str, failure: &Failure) -> DataFusionError {
        DataFusionError::Execution(format!(
            "{} cannot read the archive {archive}: {failure}",
            self.name
        ))
    }

    /// The segments of an archive, of which there must be some.
    pub(crate) async fn list(&self, archive: &str) -> Result<Listing> {
        let opened =
            Archive::open(archive).map_err(|failure| self.cannot_read(archive, &failure))?;
        let listing = opened.list(&self.cache).await;
        let listing = listing.map_err(|failure| self.cannot_read(archive, &failure))?;
        let advice = match opened.directory() {
            Some(_) => "a directory must have the same path on all machines",
            None => "check the bucket and the prefix",
        };
        match listing.segments.is_empty() {
            true => exec_err!("{}: no recordings in {archive}; {advice}", self.name),
            false => Ok(listing),
        }
    }

    /// The store of an archive, for a thread that may block.
    pub(crate) fn storage(&self, archive: &str) -> Result<Arc<dyn Storage>> {
        let reached = || self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = reached().get(archive) {
            return Ok(Arc::clone(known));
        }
        let storage = Archive::open(archive)
            .and_then(|opened| self.runtime.block_on(opened.reach(&self.cache)))
            .map_err(|failure| self.cannot_read(archive, &failure))?;
        reached().insert(archive.to_owned(), Arc::clone(&storage));
        Ok(storage)
    }
}
