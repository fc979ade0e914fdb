//! Upper bounds of a program's registers.

use crate::classic::ClassicProgram;
use crate::insn::{Base, Op, Operand, Operation, Register, SLOTS, Source, Verdict, Width};

/// Maximum values before an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bounds {
    a: u32,
    x: u32,
    slots: [u32; SLOTS as usize],
}

/// Whether no load relative to the index register can reach `limit`; false for programs that jump
/// backwards, which are not examined.
pub(crate) fn index_stays_below(program: &ClassicProgram, limit: u32) -> bool {
    if program.has_loop() {
        return false;
    }

    let ops = program.ops();
    let mut before: Vec<Option<Bounds>> = vec![None; ops.len()];
    before[0] = Some(Bounds { a: 0, x: 0, slots: [0; SLOTS as usize] });

    for (index, &op) in ops.iter().enumerate() {
        let Some(bounds) = before[index] else { continue };

        if let Op::Load(_, Source::Indirect(width, place)) = op {
            let end = u64::from(bounds.x) + u64::from(place.offset) + u64::from(width.bytes());
            if place.base == Base::Packet && end > u64::from(limit) {
                return false;
            }
        }

        let after = bounds.after(op);
        let mut reach = |target: u32| {
            let known = &mut before[target as usize];
            *known = Some(known.map_or(after, |known| known.or(after)));
        };

        match op {
            Op::Jump(target) => reach(target),
            Op::Branch { if_true, if_false, .. } => [if_true, if_false].into_iter().for_each(reach),
            Op::Return(Verdict::A | Verdict::Constant(_)) => {}
            _ => reach(index as u32 + 1),
        }
    }

    true
}

impl Bounds {
    fn or(self, other: Self) -> Self {
        let mut slots = self.slots;
        slots.iter_mut().zip(other.slots).for_each(|(slot, other)| *slot = other.max(*slot));
        Self { a: self.a.max(other.a), x: self.x.max(other.x), slots }
    }

    fn after(mut self, op: Op) -> Self {
        match op {
            Op::Load(Register::A, source) => self.a = self.loaded(source),
            Op::Load(Register::X, source) => self.x = self.loaded(source),
            Op::Store(Register::A, slot) => self.slots[slot as usize] = self.a,
            Op::Store(Register::X, slot) => self.slots[slot as usize] = self.x,
            Op::Alu(operation, operand) => self.a = self.computed(operation, operand),
            Op::Negate => self.a = u32::MAX,
            Op::Tax => self.x = self.a,
            Op::Txa => self.a = self.x,
            Op::Jump(_) | Op::Branch { .. } | Op::Return(_) => {}
        }
        self
    }

    fn loaded(&self, source: Source) -> u32 {
        match source {
            Source::Constant(k) => k,
            Source::Slot(slot) => self.slots[slot as usize],
            Source::Absolute(Width::Byte, _) | Source::Indirect(Width::Byte, _) => 0xff,
            Source::Absolute(Width::Half, _) | Source::Indirect(Width::Half, _) => 0xffff,
            Source::HeaderLen(_) => 60,
            _ => u32::MAX,
        }
    }

    fn computed(&self, operation: Operation, operand: Operand) -> u32 {
        let a = self.a;
        let most = if let Operand::Constant(k) = operand { k } else { self.x };

        match (operation, operand) {
            (Operation::Add, _) => a.saturating_add(most),
            (Operation::Mul, _) => a.saturating_mul(most),
            (Operation::And, _) => a.min(most),
            (Operation::Or | Operation::Xor, _) => {
                u32::MAX.checked_shr((a | most).leading_zeros()).unwrap_or(0)
            }
            (Operation::Div, Operand::Constant(k)) => a.checked_div(k).unwrap_or(0),
            (Operation::Mod, Operand::Constant(k)) => a.min(k.saturating_sub(1)),
            (Operation::ShiftLeft, Operand::Constant(k)) => {
                u32::try_from(u64::from(a) << k.min(32)).unwrap_or(u32::MAX)
            }
            (Operation::ShiftRight, Operand::Constant(k)) => a.checked_shr(k).unwrap_or(0),
            (Operation::Div | Operation::Mod | Operation::ShiftRight, Operand::X) => a,
            (Operation::Sub, _) | (Operation::ShiftLeft, Operand::X) => u32::MAX,
        }
    }
}
