//! Unattended recording of packets to files, for weeks.
//!
//! A [`Recording`] accepts records on the capture thread, encodes them into pages of at most 2 MiB,
//! and passes the pages to a writer thread over a bounded queue. If the file is in memory (tmpfs)
//! and not compressed, the capture thread writes most pages itself.
//! [`has_room`](Recording::has_room) returns whether it accepts more without waiting for the disk.
//! The writer uses direct I/O if the file system supports it.
//!
//! Two sets of rules without I/O make all other decisions, so they are tested without a disk: a
//! [`Cutter`] decides before each packet whether a new file begins, by size, number of packets or
//! time; a [`Store`] decides before each write which files must be removed, so that no budget is
//! exceeded at any moment. [`Pattern`] names files, and finds the files of earlier runs.
//!
//! Until a file of a set is complete, its name ends in `.part`. The extension selects the
//! compression: `.zst` is Zstandard, one [frame of pages](wirecap_savefile::paged); `.gz` is gzip,
//! one member per page.

mod compression;
mod compressors;
mod cut;
mod direct;
mod files;
mod launch;
mod names;
mod page;
mod recording;
mod rules;
#[cfg(sabotage)]
#[path = "../../wirecap-testbed/src/sabotage.rs"]
mod sabotage;
mod store;
mod stream;
mod writer;

pub use compression::{CompressedSink, Compression, format_of};
pub use cut::{CutRules, Cutter, Period};
pub use files::refuse_busy;
pub use launch::{Commands, Launch};
pub use names::{BadPattern, Numbering, Pattern};
pub use recording::{Recording, Settings, Target};
pub use rules::{Answer, RulesError};
pub use store::{Room, Store, StoreRules};
pub use writer::{Durability, Summary, Watch};
