//! The engine as a C library; `include/wirecap.h` declares and documents it.
//!
//! A handle is not an address but a number in a pointer type: the object's type, slot and
//! generation in a `registry`. So a closed handle, a handle of another type and null are detected,
//! and several threads may use a handle at a time. All functions do their work in safe code;
//! `unsafe` is used only to read and write through the program's pointers.
//!
//! The header is written by hand, because programmers read it as the reference. Tests compare it
//! with the library, the exported symbols and the manual. The library becomes `libwirecap.so.1`
//! when the interface is declared stable.
//!
//! A chunk is forwarded as a whole: the library calls the program for each packet, in order, and
//! the program names a port or none. So a packet leaves its chunk once, in ring order, and ports
//! are flushed before the chunk is freed. Closing a worker during a wait wakes the waiting thread.
//! Handing out and recycling a chunk costs some 650 instructions more than in Rust (callgrind), 2.5
//! for each packet of a full chunk. Functions take locks and must not be called from signal
//! handlers.

mod abi;
mod arguments;
mod capture;
mod chunk;
mod device;
mod failure;
mod frame;
mod group;
mod ledger;
mod names;
mod port;
mod registry;
mod worker;
