//! What is known of the packet at each instruction of a program, by the ways that lead there.

use super::insn::{Base, Op, Place, Source, Verdict};
use super::program::ClassicProgram;

/// The instructions of a program that can be reached, and what was found out on all ways to them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Flow {
    /// For each instruction: the bytes that the packet has for sure; `None` if no way leads there.
    sure_bytes: Vec<Option<u32>>,
}

impl Flow {
    pub(super) fn of(program: &ClassicProgram) -> Self {
        let ops = program.ops();
        if program.has_loop() {
            // Every instruction counts as reached, and nothing as known: loops are rare.
            return Self { sure_bytes: vec![Some(0); ops.len()] };
        }
        let mut flow = Self { sure_bytes: vec![None; ops.len()] };
        flow.sure_bytes[0] = Some(0);
        for (index, &op) in ops.iter().enumerate() {
            let Some(before) = flow.sure_bytes[index] else { continue };
            let after = before.max(seen_by(op));
            match op {
                Op::Jump(target) => flow.reach(target, after),
                Op::Branch { if_true, if_false, .. } => {
                    for target in [if_true, if_false] {
                        // A branch to a rejection goes to the common one.
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

    fn reach(&mut self, index: u32, sure_bytes: u32) {
        let known = &mut self.sure_bytes[index as usize];
        *known = Some(known.map_or(sure_bytes, |other| other.min(sure_bytes)));
    }

    /// The bytes that the packet has for sure at this instruction; `None` if no way leads there.
    pub(super) fn sure_bytes(&self, index: usize) -> Option<u32> {
        self.sure_bytes[index]
    }
}

/// Whether all that the instruction does is to reject the packet.
pub(super) fn is_rejection(op: Op) -> bool {
    op == Op::Return(Verdict::Constant(0))
}

/// How many bytes a packet has for which the instruction does not end the program.
fn seen_by(op: Op) -> u32 {
    let end = |place: Place, bytes: u32| match place.base {
        Base::Packet => place.offset.saturating_add(bytes),
        Base::Network => 0,
    };
    match op {
        Op::Load(_, Source::Absolute(width, place)) => end(place, width.bytes()),
        Op::Load(_, Source::HeaderLen(place)) => end(place, 1),
        _ => 0,
    }
}
