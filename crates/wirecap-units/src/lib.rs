//! Sizes, counts, rates, times, errors and output files as people write and read them on a command line.

pub mod clock;
pub mod error;
pub mod output;
pub mod size;
