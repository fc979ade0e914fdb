//! Sending by a packet socket, for interfaces that the engine `packet` captures: packets are
//! copied.
//!
//! They bypass the queueing discipline (PACKET_QDISC_BYPASS), as packets of AF_XDP do: no packet
//! waits in a queue to be sent later, taps on the interface do not see them, and a device without
//! room returns an error.

use rustix::io::Errno;

use crate::forward::outlet::{Batch, Outlet};
use crate::ledger::{PortAccount, PortDrops};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::sys::packet::PacketSender;

/// A packet socket that sends, shared by all threads that send on its interface.
#[derive(Debug)]
pub(crate) struct PacketOutlet {
    parked: AtomicU64,
    side: Mutex<Side>,
}

#[derive(Debug)]
struct Side {
    /// None once it is closed.
    socket: Option<PacketSender>,
    taken: u64,
    sent: u64,
    bytes: u64,
    late: u64,
    dropped: PortDrops,
}

impl PacketOutlet {
    pub(crate) fn new(socket: PacketSender) -> Self {
        let taken = 0;
        let sent = 0;
        let bytes = 0;
        let late = 0;
        let dropped = PortDrops::default();
        let side = Side { socket: Some(socket), taken, sent, bytes, late, dropped };
        Self { parked: AtomicU64::new(0), side: Mutex::new(side) }
    }
}

impl Side {
    fn send(&mut self, mut bytes: &[u8], mut lens: &[u32]) {
        while !lens.is_empty() {
            let Some(socket) = &self.socket else {
                self.dropped.other += lens.len() as u64;
                return;
            };
            let (count, reason) = match socket.send(bytes, lens) {
                Ok(sent) => {
                    self.sent += sent as u64;
                    (sent, None)
                }
                // The kernel's error concerns the first packet.
                Err(errno) => (1, Some(errno)),
            };
            match reason {
                None => {}
                Some(Errno::NOBUFS) => self.dropped.refused += 1,
                Some(Errno::MSGSIZE) => self.dropped.bad_length += 1,
                // The socket has no room until the device has sent earlier packets.
                Some(Errno::AGAIN) => {
                    self.dropped.ring_full += lens.len() as u64;
                    return;
                }
                Some(Errno::NETDOWN | Errno::NXIO | Errno::NODEV) => {
                    self.dropped.down += lens.len() as u64;
                    return;
                }
                Some(_) => self.dropped.other += 1,
            }

            let done: u64 = lens[..count].iter().map(|len| u64::from(*len)).sum();
            self.bytes += if reason.is_none() { done } else { 0 };
            (bytes, lens) = (&bytes[done as usize..], &lens[count..]);
        }
    }
}

impl Outlet for PacketOutlet {
    fn copies(&self) -> bool {
        true
    }

    fn submit(&self, batch: &mut Batch, late: bool) {
        let mut side = lock(&self.side);
        side.taken += batch.packets;
        side.late += if late { batch.packets } else { 0 };
        side.send(&batch.copies, &batch.lens);
        drop(side);
        batch.clear();
    }

    fn count_parked(&self, coming: u64, going: u64) {
        self.parked.fetch_add(coming, Ordering::Relaxed);
        self.parked.fetch_sub(going, Ordering::Relaxed);
    }

    fn collect(&self) {}

    fn push_on(&self) {}

    fn is_lagging(&self) -> bool {
        false
    }

    fn account(&self) -> PortAccount {
        let side = lock(&self.side);
        let parked = self.parked.load(Ordering::Relaxed);
        PortAccount {
            taken: side.taken + parked,
            sent: side.sent,
            bytes: side.bytes,
            dropped: side.dropped,
            waiting: parked,
            copied: side.taken,
            late: side.late,
        }
    }

    fn close(&self) {
        lock(&self.side).socket = None;
    }
}
