//! Filters for packets whose outer VLAN tag the kernel has removed. They decide like the filter on
//! the whole packet.

use crate::classic::ClassicProgram;
use crate::insn::{
    Base, ClassicInsn, Extension, Op, Operand, Position, Register, Source, Verdict, Width,
};

/// The tag's offset in the frame: its protocol, followed by priority and VLAN ID.
const TAG_START: u32 = 12;
const TAG_END: u32 = 16;
const TAG_BYTES: u32 = TAG_END - TAG_START;
/// The protocols of the tags that the kernel removes.
const PROTOCOLS: [u32; 2] = [0x8100, 0x88a8];
/// The maximum distance of a conditional jump.
const SKIP_MAX: usize = 255;

/// The program for packets whose tag was removed, keeping `keep` bytes of matching packets; `None`
/// if it would need bytes that cannot be assembled. The result has no loops, and no loads beyond
/// 2^31 bytes.
pub(crate) fn without_tag(program: &ClassicProgram, keep: u32) -> Option<Vec<ClassicInsn>> {
    let ops = program.ops();
    let reached = reached(program);
    let pieces =
        program.insns().iter().zip(ops).zip(&reached).map(
            |((&insn, &op), &reached)| match reached {
                true => piece(insn, op, keep),
                false => Some(vec![insn_of(code::RET, 0)]),
            },
        );
    let mut pieces = pieces.collect::<Option<Vec<_>>>()?;
    let starts: Vec<usize> = pieces
        .iter()
        .scan(0, |end, piece| {
            let start = *end;
            *end += piece.len();
            Some(start)
        })
        .collect();

    for (index, (piece, &op)) in
        pieces.iter_mut().zip(ops).enumerate().filter(|(index, _)| reached[*index])
    {
        let next = starts[index] + piece.len();
        let skip = |target: u32| starts[target as usize] - next;
        let insn = piece.last_mut().expect("no piece is empty");

        match op {
            Op::Jump(target) => insn.k = skip(target) as u32,
            Op::Branch { if_true, if_false, .. } => {
                let jt = skip(if_true);
                let jf = skip(if_false);
                if jt.max(jf) > SKIP_MAX {
                    return None;
                }
                (insn.jt, insn.jf) = (jt as u8, jf as u8);
            }
            _ => {}
        }
    }

    Some(pieces.concat())
}

/// The instructions that a tagged packet can reach; instructions for other protocols are not among
/// them.
fn reached(program: &ClassicProgram) -> Vec<bool> {
    let ops = program.ops();

    // For each reachable instruction, whether the accumulator is known to contain the tag's
    // protocol.
    let mut known: Vec<Option<bool>> = vec![None; ops.len()];
    known[0] = Some(false);

    for (index, &op) in ops.iter().enumerate() {
        let Some(before) = known[index] else { continue };
        let after = match op {
            Op::Load(Register::A, source) => is_protocol(source),
            Op::Load(Register::X, _)
            | Op::Store(..)
            | Op::Tax
            | Op::Branch { .. }
            | Op::Jump(_) => before,
            _ => false,
        };

        let mut reach = |target: u32| {
            let known = &mut known[target as usize];
            *known = Some(known.is_none_or(|known| known) && after);
        };

        match op {
            Op::Jump(target) => reach(target),
            Op::Branch { condition, operand, if_true, if_false } => {
                let outcomes = match operand {
                    Operand::Constant(k) if before => {
                        PROTOCOLS.map(|protocol| condition.holds(protocol, k))
                    }
                    _ => [true, false],
                };
                if outcomes.contains(&true) {
                    reach(if_true);
                }
                if outcomes.contains(&false) {
                    reach(if_false);
                }
            }
            Op::Return(_) => {}
            _ => reach(index as u32 + 1),
        }
    }

    known.iter().map(Option::is_some).collect()
}

fn is_protocol(source: Source) -> bool {
    source == Source::Absolute(Width::Half, Position { base: Base::Packet, offset: TAG_START })
}

mod code {
    pub(super) const LOAD: u16 = 0x20;
    pub(super) const ADD: u16 = 0x04;
    pub(super) const AND: u16 = 0x54;
    pub(super) const SHIFT_RIGHT: u16 = 0x74;
    pub(super) const RET: u16 = 0x06;
}

fn insn_of(code: u16, k: u32) -> ClassicInsn {
    ClassicInsn { code, jt: 0, jf: 0, k }
}

/// The replacement of an instruction. Its jumps are not adjusted yet.
fn piece(insn: ClassicInsn, op: Op, keep: u32) -> Option<Vec<ClassicInsn>> {
    let nearer = |place: Position| vec![ClassicInsn { k: place.offset - TAG_BYTES, ..insn }];
    Some(match op {
        Op::Load(Register::A, Source::WireLen) => vec![insn, insn_of(code::ADD, TAG_BYTES)],
        Op::Load(Register::X, Source::WireLen) => return None,
        Op::Load(
            _,
            Source::Absolute(_, place) | Source::Indirect(_, place) | Source::HeaderLen(place),
        ) if place.base == Base::Packet && place.offset >= TAG_END => nearer(place),
        Op::Load(_, Source::Absolute(width, place)) if place.base == Base::Packet => {
            if place.offset + width.bytes() <= TAG_START {
                vec![insn]
            } else {
                from_tag(width, place.offset)?
            }
        }
        Op::Load(_, Source::HeaderLen(place))
            if place.base == Base::Packet && place.offset >= TAG_START =>
        {
            return None;
        }
        // At such a small offset, the bytes may be before or after the tag.
        Op::Load(_, Source::Indirect(_, place)) if place.base == Base::Packet => return None,
        Op::Return(Verdict::Constant(1..)) => vec![ClassicInsn { k: keep, ..insn }],
        _ => vec![insn],
    })
}

/// Loads bytes of the tag from the kernel's packet metadata.
fn from_tag(width: Width, offset: u32) -> Option<Vec<ClassicInsn>> {
    let extension = match offset {
        12 | 13 => Extension::VlanProtocol,
        _ => Extension::VlanTag,
    };
    let load = insn_of(code::LOAD, 0xffff_f000 + extension as u32);
    match (width, offset) {
        (Width::Half, 12 | 14) => Some(vec![load]),
        (Width::Byte, 12 | 14) => Some(vec![load, insn_of(code::SHIFT_RIGHT, 8)]),
        (Width::Byte, 13 | 15) => Some(vec![load, insn_of(code::AND, 0xff)]),
        _ => None,
    }
}
