//! A process of a cluster, scheduler or executor, and the archives that it reads.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::{Result, exec_err};
use datafusion::error::DataFusionError;
use tokio::runtime::Handle;
use wirecap_index::Storage;

use crate::cache::CacheOptions;
use crate::failure::Failure;
use crate::location::{Archive, Listing};

/// This process. Queries name their archives; it opens them with its own credentials.
#[derive(Debug)]
pub(crate) struct Node {
    name: String,
    cache: CacheOptions,
    runtime: Handle,
    reached: Mutex<HashMap<String, Arc<dyn Storage>>>,
}

impl Node {
    /// `role` and `address` name it in errors. To be called in the runtime in which it waits for stores.
    pub(crate) fn new(role: &str, address: impl fmt::Display, cache: &CacheOptions) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = format!("{role} {address} on {host}");
        Self { name, cache: cache.clone(), runtime: Handle::current(), reached: Mutex::default() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn cannot_read(&self, archive: &str, failure: &Failure) -> DataFusionError {
        DataFusionError::Execution(format!("{} cannot read the archive {archive}: {failure}", self.name))
    }

    /// The segments of an archive, of which there must be some.
    pub(crate) async fn list(&self, archive: &str) -> Result<Listing> {
        let listing = match Archive::open(archive) {
            Ok(opened) => opened.list(&self.cache).await,
            Err(failure) => Err(failure),
        };
        let listing = listing.map_err(|failure| self.cannot_read(archive, &failure))?;
        match listing.segments.is_empty() {
            true => exec_err!("no recordings in {archive}, as {} reads it", self.name),
            false => Ok(listing),
        }
    }

    /// The store of an archive, for a thread that may wait.
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
