//! The index of a recording: which flows are in a savefile, and where.
//!
//! Beside a segment stands a small Parquet file with a row per flow and time slice, which any engine for Parquet reads; its schema
//! has a version and is described in `docs/index.md`. [`build()`] makes one, [`ensure`] writes those that are missing or damaged,
//! and [`plan`] finds packets by them: it reads only those pieces of the segments, Zstandard frames for instance, that may have
//! packets which match.
//!
//! That is decided by the filter's own program, run on what a row says of its packets
//! ([`Filter::can_match`](wirecap_filter::Filter::can_match)): what the language of filters means has no second
//! implementation here. Every packet is held against its row when the index is made, so that a row never says what is not so.

mod build;
mod find;
mod flow;
mod identity;
mod idle;
mod query;
mod row;
mod segment;
mod store;
mod table;

pub use build::{Built, build};
pub use find::{FindError, Found, Note, Outcome, Plan, Planned, plan};
pub use flow::{Between, End, Flow, Fragment, LENGTH, Vlan};
pub use idle::be_idle;
pub use query::{Query, QueryError};
pub use row::{Index, Part, Row, SLICE_NANOS};
pub use segment::Piece;
pub use store::{Ensured, Without, ensure, index_path, load, remove, segments, write};
pub use table::{Damaged, SCHEMA_VERSION};
