//! Changes of a recording's rules while it runs: the question whether the recording can obey them,
//! and the answer.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a recording cannot obey rules.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RulesError {
    /// The new budget would remove the file that is being written before the next one is complete.
    #[error(
        "the budget of {keep_bytes} bytes has no room for the file that is being written ({open_bytes} \
         bytes) and the next one ({next_bytes} bytes); start a new file first, or use a larger budget or \
         smaller files"
    )]
    NoRoom {
        /// Budget for all files.
        keep_bytes: u64,
        /// The size of the file that is being written, before compression.
        open_bytes: u64,
        /// Maximum size of the next file.
        next_bytes: u64,
    },
    /// The file system would have too few free bytes even without all complete files.
    #[error(
        "the budget of {keep_free} free bytes cannot be kept: {free_bytes} bytes are free, and the complete \
         files have {complete_bytes} bytes; use a smaller budget, or free disk space"
    )]
    NoFreeBytes {
        /// Budget of free bytes.
        keep_free: u64,
        /// The bytes that are free now.
        free_bytes: u64,
        /// Total size of the complete files.
        complete_bytes: u64,
    },
    /// The directory cannot be read.
    #[error("cannot read {}", .directory.display())]
    Directory {
        /// Its path.
        directory: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Called with the outcome of a request about rules, in the capture thread or the writer's. Dropped
/// without a call if the recording ends first.
pub struct Answer(Box<dyn FnOnce(Result<(), RulesError>) + Send>);

impl Answer {
    /// Calls this function.
    pub fn new(answer: impl FnOnce(Result<(), RulesError>) + Send + 'static) -> Self {
        Self(Box::new(answer))
    }

    pub(crate) fn give(self, outcome: Result<(), RulesError>) {
        (self.0)(outcome);
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}
