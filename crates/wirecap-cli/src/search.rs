//! Commands that search what was recorded.

pub(crate) mod archive;
pub(crate) mod find;
pub(crate) mod index;
