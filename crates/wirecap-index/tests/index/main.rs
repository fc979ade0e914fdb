//! The index, compared with the packets themselves, with tcpdump, and after the files were changed.

mod damage;
mod duckdb;
mod files;
mod interfaces;
mod large;
mod lists;
mod traces;
