//! The command as its users run it, over recordings that the tests make, beside naive answers and tcpdump.

mod bad_input;
mod find;
mod memory;
mod recordings;
mod s3;
mod sql;
mod upload;
