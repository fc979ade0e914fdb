//! Filters that run in user space: on packets that arrived before the kernel had the filter, or on
//! all packets if the kernel cannot run it.
//!
//! For each ring, a packet count marks where the kernel's new filter begins. Filters that the
//! kernel rejects and, on `xdp`, filters that truncate packets or read the kernel's data (such as
//! the packet type) always run in user space. Then all packets arrive, by an accept-all program,
//! which stays loaded after it is replaced: a process that has dropped its privileges can attach it
//! again but can load no other.
#![allow(unsafe_code)]

use wirecap::Packet;
use wirecap::filter::{ClassicInsn, CompiledFilter, Context, Filter};
use wirecap::savefile::LinkType;

use crate::abi::Program;
use crate::real;

/// Bytes of a VLAN tag, and of the addresses before it.
const TAG_BYTES: usize = 4;
const ADDRESS_BYTES: usize = 12;
/// `ret #k`.
pub(crate) const RETURN: u16 = 0x06;
/// `ret a`.
pub(crate) const RETURN_A: u16 = 0x16;

/// Which packets a filter program accepts, and how much of each.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// All packets, up to this length.
    All(u32),
    Compiled(CompiledFilter),
    /// Programs that our compiler rejects, for the real library's interpreter.
    Classic(Vec<ClassicInsn>),
}

impl Wanted {
    /// The filter of `program`, which the real library has validated.
    ///
    /// # Safety
    ///
    /// As for [`Program::classic`].
    pub(crate) unsafe fn new(program: &Program) -> Self {
        // SAFETY: guaranteed by the caller.
        let insns = unsafe { program.classic() };
        if let [ClassicInsn { code: RETURN, k: bytes @ 1.., .. }] = *insns {
            return Self::All(bytes);
        }
        let filter = Filter::from_program(insns.clone(), LinkType::ETHERNET);
        match filter.ok().and_then(|filter| CompiledFilter::new(&filter).ok()) {
            Some(compiled) => Self::Compiled(compiled),
            None => Self::Classic(insns),
        }
    }

    /// How many bytes of `packet` to keep; 0 if it does not match. The program sees the packet as
    /// the kernel's filters do: without the VLAN tag that the kernel removed and the engine
    /// reinserted. `room` is a buffer for this form.
    pub(crate) fn kept(&self, packet: &Packet<'_>, ifindex: u32, room: &mut Vec<u8>) -> u32 {
        let data = packet.data();
        let tag = packet.tag_put_back();

        let context = Context {
            ifindex,
            queue: packet.queue().unwrap_or_default(),
            packet_type: packet.packet_type().unwrap_or_default(),
            vlan: tag,
        };
        if tag.is_none() || data.len() < ADDRESS_BYTES + TAG_BYTES {
            return self.run(data, packet.wire_len(), &context);
        }

        room.clear();
        room.extend_from_slice(&data[..ADDRESS_BYTES]);
        room.extend_from_slice(&data[ADDRESS_BYTES + TAG_BYTES..]);

        match self.run(room, packet.wire_len() - TAG_BYTES as u32, &context) {
            0 => 0,
            bytes => bytes.saturating_add(TAG_BYTES as u32),
        }
    }

    fn run(&self, packet: &[u8], wire_len: u32, context: &Context) -> u32 {
        match self {
            Self::All(bytes) => *bytes,
            Self::Compiled(filter) => filter.matches(packet, wire_len, context),
            // SAFETY: the real library has validated the program, and checks each load against the
            // length.
            Self::Classic(insns) => unsafe {
                real::bpf_filter(
                    insns.as_ptr().cast(),
                    packet.as_ptr(),
                    wire_len,
                    packet.len() as u32,
                )
            },
        }
    }
}
