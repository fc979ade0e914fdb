//! Emits filters into XDP programs.
//!
//! The program first tries direct access, and restarts with calls of `bpf_xdp_load_bytes` if the
//! packet is longer than its first fragment or ends before the bytes that the filter reads. A load
//! at an offset that depends on the packet reads directly if the offset has its usual value (after
//! an IPv4 header without options, or a TCP header without options or with timestamps), and
//! otherwise calls the kernel.

use super::load::{XDP_BYTES_MAX, usual_index};
use super::{Environment, Exits, INSNS_MAX, Registers, Translation, Way};
use crate::bpf::asm::{Assembler, Condition as Jump, Label, Reg};
use crate::context::Unsupported;
use crate::ethernet;
use crate::filter::Filter;
use crate::flow::{Flow, may_match};
use crate::insn::{Base, Extension, Op, Operand, Position, Source, Width};

/// The verifier rejects a program with more than 8,192 pending branches; some are left for the
/// program around the filter.
const JUMPS_IN_A_ROW_MAX: u32 = 8000;

/// Properties of the XDP program around a filter.
#[derive(Clone, Copy, Debug)]
pub struct XdpTarget {
    /// The register of the program's context: `R6`, which the filter preserves. It changes all
    /// other registers and the upper 136 bytes of the stack.
    pub context: Reg,
    /// The label for packets that do not match.
    pub reject: Label,
    /// The program receives packets with several fragments. Bytes beyond the first fragment are
    /// read by a kernel call.
    pub multi_buffer: bool,
    /// The interface's Ethernet address, for filters that read the packet type.
    pub address: Option<[u8; 6]>,
}

impl Filter {
    /// Emits the filter into an XDP program. Execution continues after it for matching packets,
    /// with the number of bytes to keep in `R0`, and at `target.reject` for others (as far as the
    /// verifier can see, some do).
    ///
    /// Bytes and length are those of the whole packet. An offset that depends on the packet can
    /// reach the first 65,535 bytes, the kernel's limit.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if the filter reads data that an XDP program does not have, or exceeds a
    /// limit of the kernel. Nothing is emitted then.
    pub fn emit_xdp(&self, asm: &mut Assembler, target: &XdpTarget) -> Result<(), Unsupported> {
        self.check_sources(xdp_refuses)?;
        if self.program.has_loop() {
            return Err(Unsupported::Loop);
        }

        self.program.ops().iter().try_for_each(|&op| check_op(op, target))?;
        let again = if target.multi_buffer { self.jumps_in_a_row(Way::Ask) } else { 0 };
        let jumps = self.jumps_in_a_row(Way::Direct) + again;
        if jumps > JUMPS_IN_A_ROW_MAX {
            return Err(Unsupported::TooManyJumps { jumps, most: JUMPS_IN_A_ROW_MAX });
        }

        let mut longer = asm.clone();
        self.write_xdp(&mut longer, target);

        let insns = longer.len() - asm.len();
        if insns > INSNS_MAX {
            return Err(Unsupported::TooLong { insns, most: INSNS_MAX });
        }

        *asm = longer;
        Ok(())
    }

    /// An upper bound of the number of conditional jumps on the longest path through the
    /// translation.
    fn jumps_in_a_row(&self, way: Way) -> u32 {
        let ops = self.program.ops();
        let flow = Flow::of(&self.program);
        let mut behind = vec![0; ops.len() + 1];

        for (index, &op) in ops.iter().enumerate().rev() {
            let from = |target: u32| behind[target as usize];
            let cases = match way {
                Way::Direct if flow.reaches(index) => usual_index(&flow, index).len() as u32,
                _ => 0,
            };
            behind[index] = conditional_jumps(op, cases)
                + match op {
                    Op::Jump(target) => from(target),
                    Op::Branch { if_true, if_false, .. } => from(if_true).max(from(if_false)),
                    Op::Return(_) => 0,
                    _ => from(index as u32 + 1),
                };
        }

        behind[0]
    }

    fn write_xdp(&self, asm: &mut Assembler, target: &XdpTarget) {
        let accept = asm.label();
        let whole = asm.label();

        let write = |way, beyond, asm: &mut Assembler| {
            let environment = Environment::Xdp { address: target.address.unwrap_or_default() };
            let exits = Exits { accept, reject: target.reject, beyond };

            let registers = Registers {
                data: Reg::R9,
                end: Reg::R5,
                context: target.context,
                wire_len: Reg::R0,
            };
            Translation::new(self, asm, environment, registers, way, exits).write()
        };

        if !self.may_match() {
            // Without CAP_PERFMON, the verifier follows the jump as the processor may do by
            // speculation.
            asm.mov32(Reg::R0, 0);
            jump_never(asm, accept);
        }

        if target.multi_buffer {
            // For nearly all packets, the filter reads only the first fragment. Otherwise it starts
            // over and calls the kernel for every byte.
            let falls_through = write(Way::Direct, whole, asm);
            if asm.has_jump_to(whole) {
                if falls_through {
                    asm.jump(accept);
                }
                asm.bind(whole);
                write(Way::Ask, target.reject, asm);
            }
        } else {
            write(Way::Direct, target.reject, asm);
        }

        asm.bind(accept);
        if !asm.has_jump_to(target.reject) {
            jump_never(asm, target.reject);
        }
    }

    /// Whether a path accepts packets.
    fn may_match(&self) -> bool {
        let flow = Flow::of(&self.program);
        let mut ops = self.program.ops().iter().enumerate();
        ops.any(|(index, &op)| may_match(op) && flow.reaches(index))
    }
}

/// A jump that the verifier considers possible but that is never taken: the verifier requires a
/// path to every instruction.
fn jump_never(asm: &mut Assembler, target: Label) {
    asm.mov32(Reg::R1, 1).jump_if32(Reg::R1, Jump::Eq, 0, target);
}

/// Why the extension is unsupported in XDP programs; `None` if it is supported.
fn xdp_refuses(extension: Extension) -> Option<&'static str> {
    match extension {
        Extension::Mark | Extension::ReceiveHash | Extension::PayloadOffset => {
            Some("only the host's network stack knows it, which the packet has not reached")
        }
        Extension::HardwareType => Some("an XDP program does not see the kind of the interface"),
        Extension::NetlinkAttribute | Extension::NetlinkNested => {
            Some("no interface with netlink messages has XDP")
        }
        Extension::VlanTag | Extension::VlanPresent | Extension::VlanProtocol => {
            Some("an XDP program sees packets with their tag in place")
        }
        _ => None,
    }
}

/// Maximum number of conditional jumps that the instruction becomes, with this number of direct
/// loads for different values of the index register.
fn conditional_jumps(op: Op, cases: u32) -> u32 {
    match op {
        Op::Load(_, Source::Extension(_)) => 20,
        Op::Load(_, Source::Indirect(_, place)) | Op::Load(_, Source::Absolute(_, place))
            if place.base == Base::Network =>
        {
            6 + cases
        }
        Op::Load(_, Source::Indirect(..)) => 2 + cases,
        Op::Load(_, Source::Absolute(..) | Source::HeaderLen(_))
        | Op::Branch { .. }
        | Op::Return(_) => 1,
        Op::Alu(_, Operand::X) => 1,
        _ => 0,
    }
}

fn check_op(op: Op, target: &XdpTarget) -> Result<(), Unsupported> {
    let Op::Load(_, source) = op else { return Ok(()) };
    match source {
        Source::Extension(extension @ Extension::PacketType) if target.address.is_none() => {
            Err(Unsupported::Extension {
                extension,
                reason: "the interface has no Ethernet address",
            })
        }
        Source::Absolute(width, place) | Source::Indirect(width, place) => {
            check_reach(width, place)
        }
        Source::HeaderLen(place) => check_reach(Width::Byte, place),
        _ => Ok(()),
    }
}

fn check_reach(width: Width, place: Position) -> Result<(), Unsupported> {
    let base = match place.base {
        Base::Packet => 0,
        Base::Network => ethernet::HEADER_BYTES + ethernet::TAG_BYTES,
    };
    let most = XDP_BYTES_MAX - width.bytes() - base;
    match place.offset <= most {
        true => Ok(()),
        false => Err(Unsupported::Offset { offset: place.offset, most }),
    }
}
