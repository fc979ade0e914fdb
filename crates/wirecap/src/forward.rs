//! Forwarding: captured packets are sent on another interface, after being inspected or changed,
//! and only their descriptors move (WireCAP, section 3.2.3).
//!
//! [`CaptureBuilder::forwarding`](crate::CaptureBuilder::forwarding) makes the interfaces of a
//! capture its [`Port`]s, too. Their cells are in one UMEM, so a cell filled by one interface is
//! put on another's tx ring unchanged, and returns to its pool when the kernel has sent it.
//!
//! ```no_run
//! use wirecap::Capture;
//!
//! let capture = Capture::on("a1").and("b0").forwarding().group_per_interface().open()?;
//! std::thread::scope(|scope| {
//!     for mut worker in capture.workers() {
//!         let [a1, b0] = ["a1", "b0"].map(|interface| capture.port(interface));
//!         let mut ports = [b0?, a1?]; // where the packets of each interface go
//!         scope.spawn(move || -> Result<(), wirecap::CaptureError> {
//!             while let Some(mut chunk) = worker.next_chunk()? {
//!                 let port = &mut ports[chunk.interface_index()];
//!                 for mut packet in chunk.drain() {
//!                     packet.data_mut()[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
//!                     port.send(packet);
//!                 }
//!                 port.flush();
//!             }
//!             Ok(())
//!         });
//!     }
//!     Ok::<(), wirecap::PortError>(())
//! })?;
//! println!("{}", capture.close());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod exchange;
mod out_packet;
mod outlet;
mod packet_outlet;
mod port;
mod sequence;

pub use out_packet::{DetachedPacket, Drain, NoRoom, OutPacket};
pub use port::{Port, PortError, TxQueue};

pub(crate) use exchange::{Exchange, PortShared};
pub(crate) use outlet::{Outlet, TxOutlet};
pub(crate) use packet_outlet::PacketOutlet;
pub(crate) use port::{BATCH_PACKETS_MAX, SHORTEST_FRAME};
pub(crate) use sequence::Sequence;
