//! Low-level access to a capture's rings, for a library that replaces another one.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Attached, Attachment, Capture};
use crate::filter::{ClassicInsn, Filter};
use crate::ledger::{Account, Tally};
use crate::sync::{lock, try_lock};
use crate::xdp;

impl Capture {
    /// The account of one ring so far, from its socket only.
    pub fn account(&self, ring: usize) -> Account {
        self.shared.group.rings()[ring].account()
    }

    /// The account of one ring's packets so far. It takes no lock, allocates nothing and queries
    /// only the ring's socket, so a signal handler may call it. Packets that another thread, or the
    /// interrupted one, is taking out of the ring at that moment may be missing.
    pub fn tally(&self, ring: usize) -> Tally {
        self.shared.group.rings()[ring].tally()
    }

    /// The index of the worker whose home ring this is. A signal handler may call it.
    pub fn home_worker(&self, ring: usize) -> usize {
        self.shared.group.home_of(ring)
    }

    /// The number of packets that arrived at a ring and were not dropped, captured or not.
    pub fn arrived(&self, ring: usize) -> u64 {
        self.shared.group.rings()[ring].arrived()
    }

    /// From now on the kernel runs `program` on the packets of all rings, instead of the capture's
    /// own filter. Packets that are already in the rings stay there.
    ///
    /// With the engine `packet` it runs unchanged: its result is the number of bytes of a packet
    /// that are kept, it sees packets without the VLAN tag that the kernel removes, and
    /// non-matching packets are not counted. With the engine `xdp` its result decides whether a
    /// packet is captured completely or passes to the host, and it sees the packet as it was on the
    /// wire.
    ///
    /// A program that accepts all packets can be restored at any time after another one, even by a
    /// process that has dropped its privileges meanwhile.
    ///
    /// # Errors
    ///
    /// The kernel's error, or that the program cannot run on an interface of the capture; the
    /// interfaces before that one then have the program.
    pub fn run_in_kernel(&self, program: &[ClassicInsn]) -> io::Result<()> {
        let turns = self.turns().map_err(io::Error::other)?;
        let mut running = lock(&self.shared.running);
        if running.interfaces.is_empty() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut interfaces = running.interfaces.iter_mut().zip(&turns);
        interfaces.try_for_each(|(attached, turn)| attached.run_in_kernel(program, turn.as_ref()))
    }

    /// After a fork: another process has this capture as well, and continues or ends it. After this
    /// call, stopping, closing or dropping the capture in this process only unmaps its memory and
    /// closes its descriptors, without effect on the other process.
    pub fn leave_to_others(&self) {
        self.shared.left.store(true, Ordering::SeqCst);
        // In a child process, another thread of the parent may have held the lock. It guards
        // descriptors, which then stay open until the process ends.
        let Some(mut running) = try_lock(&self.shared.running) else { return };
        for attachment in
            running.interfaces.iter_mut().filter_map(|interface| interface.attachment.take())
        {
            attachment.leave_to_others();
        }
    }

    /// The packet socket of a ring: the ring does not see packets sent on it, and options other
    /// than a filter may be set. It stays open as long as the returned value exists. `None` for
    /// other engines.
    pub fn packet_socket(&self, ring: usize) -> Option<Arc<OwnedFd>> {
        self.shared.group.rings()[ring].abilities().packet_socket?.packet_socket()
    }
}

impl Attached {
    fn run_in_kernel(
        &mut self,
        program: &[ClassicInsn],
        turn: Option<&xdp::AttachLock>,
    ) -> io::Result<()> {
        match (&mut self.attachment, turn) {
            (Some(Attachment::Packet(attachment)), _) => attachment.run_in_kernel(program),
            (Some(Attachment::Xdp(attachment)), Some(turn)) => {
                let link_type = self.target.device.savefile_link_type();
                let filter =
                    Filter::from_program(program.to_vec(), link_type).map_err(io::Error::other)?;
                attachment.run_in_kernel(&filter, turn)
            }
            (Some(Attachment::All(_)), _) => Err(io::ErrorKind::Unsupported.into()),
            (Some(Attachment::Xdp(_)) | None, _) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}
