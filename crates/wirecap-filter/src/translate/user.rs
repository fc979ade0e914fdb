//! Translates filters to programs for this process.

use super::{Environment, Exits, INSNS_MAX, Registers, Translation, Way};
use crate::bpf::asm::{Assembler, Insn, Reg};
use crate::context::{Context, Unsupported};
use crate::filter::Filter;
use crate::insn::Extension;
use crate::interpreter::user_space_refuses;

/// Data about a packet besides its bytes and length.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Surroundings {
    pub(super) ifindex: u32,
    pub(super) queue: u32,
    pub(super) packet_type: u32,
    pub(super) vlan_tci: u32,
    pub(super) vlan_tpid: u32,
    pub(super) vlan_present: u32,
}

impl From<&Context> for Surroundings {
    fn from(context: &Context) -> Self {
        let vlan = context.vlan.unwrap_or_default();
        Self {
            ifindex: context.ifindex,
            queue: context.queue,
            packet_type: context.packet_type as u32,
            vlan_tci: vlan.tci.into(),
            vlan_tpid: vlan.tpid.into(),
            vlan_present: context.vlan.is_some().into(),
        }
    }
}

/// The filter as a program that returns the number of bytes of a packet to keep. Its arguments are
/// the address of the packet's first byte in `R1`, the number of its bytes in `R2`, the address of
/// the [`Surroundings`] in `R4` (read only if the filter uses Linux extensions), and the packet's
/// length on the wire in `R5`.
///
/// It reads no other memory except the upper 128 bytes of its stack, and makes no calls.
pub(crate) fn user_program(filter: &Filter) -> Result<Vec<Insn>, Unsupported> {
    filter.check_sources(machine_code_refuses)?;
    let mut asm = Assembler::new();
    let accept = asm.label();
    let reject = asm.label();
    let registers = Registers { data: Reg::R1, end: Reg::R2, context: Reg::R4, wire_len: Reg::R5 };
    let exits = Exits { accept, reject, beyond: reject };
    Translation::new(filter, &mut asm, Environment::User, registers, Way::Direct, exits).write();
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
