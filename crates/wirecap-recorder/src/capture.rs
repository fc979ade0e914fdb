//! Recording a capture: what happens between a ring and the file.

pub mod merge;
