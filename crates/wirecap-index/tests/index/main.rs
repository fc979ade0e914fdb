//! The index against the packets themselves, against tcpdump, and against files that are not what they were.

mod damage;
mod duckdb;
mod files;
mod large;
mod lists;
mod traces;
