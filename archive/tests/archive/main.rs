//! The command, as users run it, on recordings made by the tests. Its results are compared with
//! naive searches, tcpdump and tshark.

mod bad_input;
mod cluster;
mod find;
mod large;
mod memory;
mod questions;
mod recorders;
mod recordings;
mod s3;
mod sql;
mod upload;
