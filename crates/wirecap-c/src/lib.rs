//! The engine as a C library; `include/wirecap.h` declares and documents it.
//!
//! A handle is not an address but a number in a pointer type: the object's type, slot and generation in a
//! `registry`. So a closed handle, a handle of another type and null are detected, and several threads may
//! use a handle at a time. All functions do their work in safe code; `unsafe` is used only to read and write
//! through the program's pointers.

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
