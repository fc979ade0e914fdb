//! Sizes, rates and times as people write and read them on a command line.

pub mod clock;
pub mod size;
