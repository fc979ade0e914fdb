//! Parsing and formatting of sizes, counts, rates, times and errors, and handling of output files,
//! for command lines; and repeatable random numbers.

pub mod clock;
pub mod error;
pub mod output;
pub mod random;
pub mod size;
