//! The command, as users run it, on recordings made by the tests. Its results are compared with naive searches
//! and tcpdump.

mod bad_input;
mod find;
mod memory;
mod recordings;
mod s3;
mod sql;
mod upload;
