//! The index of a recording: the flows of a savefile, and the positions of their packets.
//!
//! Each segment has a small Parquet file with a row per flow and time slice, which any Parquet
//! engine can read; `docs/index-format.md` describes its versioned schema. [`build()`] creates an
//! index, [`ensure`] writes missing or damaged ones, and [`plan`] finds packets with them: it reads
//! only the pieces of the segments (such as Zstandard frames) that may contain matching packets.
//!
//! The compiled filter decides this: it runs on the properties of packets that a row contains
//! ([`Filter::can_match`](wirecap_filter::Filter::can_match)), so the filter language has no second
//! implementation here. When an index is created, every packet is compared with its row, so every
//! row is correct.

mod blocks;
mod build;
mod carried;
mod extract;
mod find;
mod flow;
mod identity;
mod idle;
mod kept;
mod query;
mod row;
#[cfg(sabotage)]
#[path = "../../wirecap-testbed/src/sabotage.rs"]
mod sabotage;
mod segment;
mod storage;
mod store;
mod table;

pub use blocks::Damaged;
pub use build::{Built, build};
pub use extract::Extract;
pub use find::{
    Fault, FindError, Found, Note, Outcome, Packet, Plan, Planned, PlannedReader, Sieve, plan,
};
pub use flow::{Between, End, Ends, Flow, Fragment, Headers, LENGTH, Vlan};
pub use idle::be_idle;
pub use query::{Query, QueryError};
pub use row::{Index, Part, Row, SLICE_NANOS};
pub use segment::{Piece, Source};
pub use storage::{Disk, Storage};
pub use store::{EnsureError, Ensured, Without, ensure, index_path, load, remove, segments, write};
pub use table::{SCHEMA_VERSION, Table};
