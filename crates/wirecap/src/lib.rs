//! Lossless packet capture on stock Linux: ring buffer pools, buddy groups and zero-copy chunks.
//!
//! The system is that of Wu and DeMar, *WireCAP: a Novel Packet Capture Engine for Commodity NICs
//! in High-speed Networks* (IMC 2014), rebuilt on AF_XDP and AF_PACKET.

pub mod bpf;
pub mod device;
pub mod savefile;
mod sys;
pub mod time;
