//! Savefiles against other programs, other people's files, full disks, sudden death and random bytes.

mod body;
mod converting;
mod crash;
mod creating;
mod mutated;
mod packet;
mod reading;
mod roundtrip;
mod tools;
mod traces;
