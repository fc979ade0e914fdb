//! Filters that run here: on what the kernel's could not decide about, or could not take.
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

/// Which packets a program accepts, and how much of each.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// All of them.
    All(u32),
    Compiled(CompiledFilter),
    /// For the real library's interpreter: what our own does not take.
    Classic(Vec<ClassicInsn>),
}

impl Wanted {
    /// What `program` says, which the real library found to be sound.
    ///
    /// # Safety
    ///
    /// The program must have as many instructions as it says.
    pub(crate) unsafe fn new(program: &Program) -> Self {
        // SAFETY: the caller's promise.
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

    /// How many bytes of `packet` to keep; 0: none of it. The program runs on what the kernel's filters see:
    /// the packet without the tag that was taken out and put back, for which `room` serves.
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
            // SAFETY: the real library found the program sound, and checks each load against the length.
            Self::Classic(insns) => unsafe {
                real::bpf_filter(insns.as_ptr().cast(), packet.as_ptr(), wire_len, packet.len() as u32)
            },
        }
    }
}
