//! Packet capture on stock Linux: ring buffer pools, buddy groups, zero-copy chunks and a ledger.
//!
//! It rebuilds the system of Wu and DeMar, *WireCAP: a Novel Packet Capture Engine for Commodity
//! NICs in High-speed Networks* (IMC 2014), on AF_XDP and AF_PACKET.
//!
//! Every receive queue has a pool of R chunks of M packet buffers (cells). All cells are posted to
//! the kernel, so a burst of R x M packets is kept even if the application reads nothing. Workers
//! take filled cells as chunks, without copying them, and return them by dropping the chunk. An
//! exact [ledger](Ledger) accounts for every packet.
//!
//! ```no_run
//! let capture = wirecap::Capture::on("eth0") // all rings; "eth0@2" for one
//!     .chunk(256)
//!     .pool(500) // M, R
//!     .timestamps(wirecap::Timestamps::Batch)
//!     .filter("udp and net 131.225.2.0/24")
//!     .open()?;
//! std::thread::scope(|scope| {
//!     for mut worker in capture.workers() {
//!         scope.spawn(move || -> Result<(), wirecap::CaptureError> {
//!             while let Some(chunk) = worker.next_chunk()? {
//!                 for packet in &chunk {
//!                     println!("{:?}: {} bytes", packet.timestamp(), packet.data().len());
//!                 }
//!             } // a chunk dropped is a chunk recycled
//!             Ok(())
//!         });
//!     }
//! });
//! println!("{}", capture.close());
//! # Ok::<(), wirecap::OpenError>(())
//! ```
//!
//! Captured packets can be changed and sent on another interface, also without being copied:
//! [`CaptureBuilder::forwarding`], [`Chunk::drain`], [`Port`].

/// The guide's program, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/embed.md")]
struct Guide;

mod append_vec;
mod capture;
pub mod device;
mod error;
mod file;
mod forward;
mod group;
mod kernel_ring;
mod ledger;
mod limits;
mod names;
mod numbers;
mod packet;
#[doc(hidden)] // for wirecap-broker
pub mod privileged;
#[cfg(sabotage)]
#[path = "../../wirecap-testbed/src/sabotage.rs"]
mod sabotage;
mod sieve;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod steer;
mod sync;
mod sys;
pub mod time;
mod umem;
mod warning;
mod xdp;

pub use capture::affinity::{BadPin, Pin, Placement, interrupt_cpus};
pub use capture::source::Source;
pub use capture::worker::{Waker, Worker};
pub use capture::{Capture, CaptureBuilder, DEFAULT_CHUNK_CELLS, DEFAULT_CHUNKS, DEFAULT_SNAP_LEN};
pub use capture::{Engine, Event, Interface, Reception, RingState, Stopper, wanted_pool_bytes};
pub use device::ReceiveMode;
pub use error::{CaptureError, FilterChangeError, OpenError};
pub use forward::{DetachedPacket, Drain, NoRoom, OutPacket, Port, PortError, TxQueue};
pub use group::guarantee::{Guarantee, Shortfall};
pub use ledger::{
    Account, Answer, Counted, Drops, InterfaceLedger, Ledger, LostLater, Mode, PortAccount,
    PortDrops, PortLedger, Recorded, RingLedger, Unseen, UnseenReason, Verdict,
};
pub use limits::Cgroup;
pub use names::{Holder, RingName};
pub use packet::reader::BlockReader;
pub use packet::{Direction, SeenInterface, SeenInterfaces, Spread};
pub use steer::flow::flow_hash;
pub use time::{Timestamp, Timestamps};
pub use umem::chunk::{Chunk, Fragments, Head, Packet, Packets};
pub use umem::pool::{Cells, Geometry};
pub use umem::reader::{CellReader, NextBlock};
pub use warning::Warning;
pub use wirecap_filter as filter;
pub use wirecap_filter::bpf;
pub use wirecap_savefile as savefile;
pub use wirecap_units::size::grouped;
pub use xdp::{CellFit, holders};
