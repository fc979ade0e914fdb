//! The known properties of values at each instruction of a program, over all paths to it.

use crate::classic::ClassicProgram;
use crate::insn::{Base, Extension, Op, Operand, Position, Register, Source, Verdict};

/// The reachable instructions of a program, and the known values on all paths to them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Flow {
    /// For each instruction; `None` if no path leads to it.
    known: Vec<Option<Known>>,
}

/// The known values before an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Known {
    /// The packet has at least this many bytes.
    bytes: u32,
    a_is_set: bool,
    x_is_set: bool,
    x_is_header_len: bool,
}

impl Flow {
    pub(crate) fn of(program: &ClassicProgram) -> Self {
        let ops = program.ops();
        if program.has_loop() {
            // Treat every instruction as reachable and no value as known: loops are rare.
            return Self { known: vec![Some(Known::default()); ops.len()] };
        }

        let mut flow = Self { known: vec![None; ops.len()] };
        flow.known[0] = Some(Known::default());

        for (index, &op) in ops.iter().enumerate() {
            let Some(before) = flow.known[index] else { continue };
            let after = before.after(op);

            match op {
                Op::Jump(target) => flow.reach(target, after),
                Op::Branch { if_true, if_false, .. } => {
                    for target in [if_true, if_false] {
                        // A branch to a rejection uses the common reject label.
                        if !is_rejection(ops[target as usize]) {
                            flow.reach(target, after);
                        }
                    }
                }
                Op::Return(_) => {}
                _ => flow.reach(index as u32 + 1, after),
            }
        }

        flow
    }

    fn reach(&mut self, index: u32, by_this_way: Known) {
        let known = &mut self.known[index as usize];
        *known = Some(known.map_or(by_this_way, |by_others| by_others.in_common(by_this_way)));
    }

    /// Whether a path leads to this instruction.
    pub(crate) fn reaches(&self, index: usize) -> bool {
        self.known[index].is_some()
    }

    /// The last reachable instruction.
    pub(crate) fn last(&self) -> usize {
        self.known.iter().rposition(Option::is_some).expect("the first is always reached")
    }

    /// The minimum number of bytes that the packet has at this instruction.
    pub(crate) fn sure_bytes(&self, index: usize) -> u32 {
        self.known[index].map_or(0, |known| known.bytes)
    }

    /// Whether the index register has the length of an IPv4 header at this instruction.
    pub(crate) fn x_is_header_len(&self, index: usize) -> bool {
        self.known[index].is_some_and(|known| known.x_is_header_len)
    }

    /// Whether the register may be read before the program writes it.
    pub(crate) fn needs_start(&self, program: &ClassicProgram, register: Register) -> bool {
        program.ops().iter().zip(&self.known).any(|(&op, known)| {
            known.is_some_and(|known| match register {
                Register::A => !known.a_is_set && reads_a(op),
                Register::X => !known.x_is_set && reads_x(op),
            })
        })
    }
}

impl Known {
    fn after(self, op: Op) -> Self {
        let x_is_header_len = match op {
            Op::Load(Register::X, source) => matches!(source, Source::HeaderLen(_)),
            Op::Tax => false,
            _ => self.x_is_header_len,
        };
        Self {
            bytes: self.bytes.max(seen_by(op)),
            a_is_set: self.a_is_set || matches!(op, Op::Load(Register::A, _) | Op::Txa),
            x_is_set: self.x_is_set || matches!(op, Op::Load(Register::X, _) | Op::Tax),
            x_is_header_len,
        }
    }

    fn in_common(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.min(other.bytes),
            a_is_set: self.a_is_set && other.a_is_set,
            x_is_set: self.x_is_set && other.x_is_set,
            x_is_header_len: self.x_is_header_len && other.x_is_header_len,
        }
    }
}

/// Whether the instruction unconditionally rejects the packet.
pub(crate) fn is_rejection(op: Op) -> bool {
    op == Op::Return(Verdict::Constant(0))
}

/// Whether the instruction ends the program and may accept the packet.
pub(crate) fn may_match(op: Op) -> bool {
    matches!(op, Op::Return(_)) && !is_rejection(op)
}

/// The minimum length of a packet for which the instruction does not end the program.
fn seen_by(op: Op) -> u32 {
    let end = |place: Position, bytes: u32| match place.base {
        Base::Packet => place.offset.saturating_add(bytes),
        Base::Network => 0,
    };
    match op {
        Op::Load(_, Source::Absolute(width, place)) => end(place, width.bytes()),
        Op::Load(_, Source::HeaderLen(place)) => end(place, 1),
        _ => 0,
    }
}

fn reads_a(op: Op) -> bool {
    match op {
        Op::Store(register, _) => register == Register::A,
        Op::Alu(..) | Op::Negate | Op::Tax | Op::Branch { .. } | Op::Return(Verdict::A) => true,
        _ => reads_both(op),
    }
}

fn reads_x(op: Op) -> bool {
    match op {
        Op::Store(register, _) => register == Register::X,
        Op::Alu(_, operand) | Op::Branch { operand, .. } => operand == Operand::X,
        Op::Txa | Op::Load(_, Source::Indirect(..)) => true,
        _ => reads_both(op),
    }
}

fn reads_both(op: Op) -> bool {
    use Extension::{NetlinkAttribute, NetlinkNested, XorX};
    matches!(op, Op::Load(_, Source::Extension(XorX | NetlinkAttribute | NetlinkNested)))
}
