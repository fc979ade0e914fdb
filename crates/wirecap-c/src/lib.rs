//! The engine for programs in C: what `include/wirecap.h` declares, and says all of.
//!
//! A handle that a program holds is not an address but a number in the clothes of one: kind, place and generation
//! in a `registry`. So one that was closed, or is of another kind, or null, is known for what it is, and
//! several threads may use one at a time. The functions' work is done in safe code; `unsafe` is where pointers
//! of the program's are read or written.

mod abi;
mod capture;
mod chunk;
mod device;
mod failure;
mod frame;
mod given;
mod group;
mod ledger;
mod names;
mod port;
mod registry;
mod worker;
