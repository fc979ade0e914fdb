//! Filters as programs of this process.

use super::{Access, Environment, Exits, INSNS_MAX, Translation, Way};
use crate::bpf::asm::{Assembler, Insn, Reg};
use crate::filter::Filter;
use crate::filter::context::{Context, Unsupported};
use crate::filter::insn::Extension;
use crate::filter::interpreter::user_space_refuses;

/// What a filter in this process is called with.
#[repr(C)]
#[derive(Debug)]
pub(in crate::filter) struct UserFrame {
    /// The packet's first byte.
    pub(super) data: *const u8,
    /// Behind its last.
    pub(super) end: *const u8,
    pub(super) wire_len: u32,
    pub(super) ifindex: u32,
    pub(super) queue: u32,
    pub(super) packet_type: u32,
    pub(super) vlan_tci: u32,
    pub(super) vlan_tpid: u32,
    pub(super) vlan_present: u32,
}

impl UserFrame {
    /// The frame for a packet, which it borrows without saying so.
    pub(in crate::filter) fn new(packet: &[u8], wire_len: u32, context: &Context) -> Self {
        let vlan = context.vlan.unwrap_or_default();
        let range = packet.as_ptr_range();
        Self {
            data: range.start,
            end: range.end,
            wire_len,
            ifindex: context.ifindex,
            queue: context.queue,
            packet_type: context.packet_type as u32,
            vlan_tci: vlan.tci.into(),
            vlan_tpid: vlan.tpid.into(),
            vlan_present: context.vlan.is_some().into(),
        }
    }
}

/// The filter as a program that takes the address of a [`UserFrame`] in `R1` and returns how many bytes of
/// the packet to keep. It reads nothing but the frame, the packet, and the upper 128 bytes of its stack.
pub(in crate::filter) fn user_program(filter: &Filter) -> Result<Vec<Insn>, Unsupported> {
    filter.check_sources(machine_code_refuses)?;
    let mut asm = Assembler::new();
    let (accept, reject) = (asm.label(), asm.label());
    let context = Reg::R6;
    asm.mov(context, Reg::R1);
    let access = Access { constant: Way::Direct, computed: Way::Direct };
    let exits = Exits { accept, reject, beyond: reject };
    Translation::new(filter, &mut asm, Environment::User, context, access, exits).write();
    asm.bind(accept).exit();
    asm.bind(reject).mov32(Reg::R0, 0).exit();
    match asm.len() {
        insns if insns > INSNS_MAX => Err(Unsupported::TooLong { insns, most: INSNS_MAX }),
        _ => Ok(asm.finish().expect("every label is bound once, and near")),
    }
}

fn machine_code_refuses(extension: Extension) -> Option<&'static str> {
    match extension {
        Extension::NetlinkAttribute | Extension::NetlinkNested => {
            Some("machine code does not look for attributes")
        }
        _ => user_space_refuses(extension),
    }
}
