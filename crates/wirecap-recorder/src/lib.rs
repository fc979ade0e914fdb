//! Packets into files, unattended, for weeks.
//!
//! A [`Recording`] takes records on the thread that captures, encodes them into pages of 1 MiB and hands these to a writer
//! thread over a bounded queue. [`has_room`](Recording::has_room) says whether it takes more without waiting for the disk. The data
//! of long packets need not be copied: the writer gathers them from where they are
//! ([`write_in_place`](Recording::write_in_place)).
//!
//! Two rules without I/O decide everything else, so that they are tested without a disk: a [`Cutter`] says before each
//! packet whether a new file begins, by size, by packets or by time; a [`Store`] says before each write which files must go,
//! so that no budget is exceeded at any moment. [`Pattern`] names files, and finds those of earlier runs again.
//!
//! A file of a set bears its name with `.part` behind it until it is complete. Its extension says how it is compressed: `.zst`
//! is Zstandard in the seekable format, a frame per page, `.gz` is gzip, a member per page.

mod compression;
mod compressors;
mod cut;
mod files;
mod launch;
mod local_time;
mod names;
mod page;
mod recording;
mod store;
mod writer;

pub use compression::{CompressedSink, Compression, format_of};
pub use cut::{CutRules, Cutter, Period};
pub use files::refuse_busy;
pub use launch::{Commands, Launch};
pub use names::{BadPattern, Numbering, Pattern};
pub use page::Batch;
pub use recording::{Recording, Settings, Target};
pub use store::{Room, Store, StoreRules};
pub use writer::{Durability, Summary, Watch};
