//! What there is below a capture's rings, for a library that stands in another's place.

use std::io;
use std::os::fd::OwnedFd;

use super::Capture;
use crate::filter::ClassicInsn;
use crate::ledger::Account;

/// Instructions of a socket's filter at most (`BPF_MAXINSNS`).
const KERNEL_INSNS_MAX: usize = 4096;

impl Capture {
    /// The account of one ring so far, which asks nobody but its socket.
    pub fn account(&self, ring: usize) -> Account {
        self.shared.group.rings()[ring].account()
    }

    /// How many packets have come to a ring that it did not drop, captured yet or not.
    pub fn arrived(&self, ring: usize) -> u64 {
        self.shared.group.rings()[ring].arrived()
    }

    /// With the engine `packet`: has the kernel run `program` on the packets of a ring from now on, as it is,
    /// in place of what the capture's own filter put there. Its result is how many bytes of a packet come. What is
    /// in the ring already stays, and what the program turns away is counted nowhere. The kernel's filters see
    /// packets without the VLAN tag that it takes out.
    ///
    /// # Errors
    ///
    /// What the kernel says of the program, or that packets come in another way.
    pub fn run_in_kernel(&self, ring: usize, program: &[ClassicInsn]) -> io::Result<()> {
        if program.len() > KERNEL_INSNS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let insn = |&ClassicInsn { code, jt, jf, k }: &ClassicInsn| libc::sock_filter { code, jt, jf, k };
        let program: Vec<_> = program.iter().map(insn).collect();
        self.shared.group.rings()[ring].run_in_kernel(&program)
    }

    /// The packet socket of a ring, again: what is sent by it the ring does not see, and other options than
    /// a filter may be set. `None` where packets come in another way.
    ///
    /// # Errors
    ///
    /// When the process has no descriptor left.
    pub fn packet_socket(&self, ring: usize) -> io::Result<Option<OwnedFd>> {
        self.shared.group.rings()[ring].packet_socket().transpose()
    }
}
