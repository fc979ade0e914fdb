//! Commands that watch: packets, counts and statistics, live or of a file, and running captures.

pub(crate) mod ask;
pub(crate) mod count;
pub(crate) mod handle;
pub(crate) mod profile;
pub(crate) mod show;
pub(crate) mod stats;
pub(crate) mod svg;
pub(crate) mod top;
