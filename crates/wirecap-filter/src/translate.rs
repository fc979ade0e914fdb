//! Translates classic BPF to eBPF, for XDP programs and for user space.
//!
//! Accumulator, index register and packet address are in registers preserved by calls. A load
//! beyond the packet's end jumps to a separate label; it is not checked if an earlier load on every
//! path to it has checked as far. Both registers and the scratch memory start as zero.

// The translation for user space is used only on platforms with machine code.
#![cfg_attr(any(miri, not(target_arch = "x86_64")), allow(dead_code, unused_imports))]

mod load;
#[cfg(test)]
mod tests;
mod user;
mod xdp;

pub(crate) use user::{Surroundings, user_program};
pub use xdp::XdpTarget;

use crate::bpf::asm::{Alu, Assembler, Condition as Jump, Label, Operand as AsmOperand, Reg, Size};
use crate::filter::Filter;
use crate::flow::{Flow, is_rejection, may_match};
use crate::insn::{Condition, Op, Operand, Operation, Register, SLOTS, Verdict};
use crate::interpreter::BACKWARD_JUMPS_MAX;

/// The accumulator.
const A: Reg = Reg::R7;
/// The index register.
const X: Reg = Reg::R8;
/// Temporary value within the translation of one instruction.
const SCRATCH: Reg = Reg::R0;
/// Stack offset of the number of backward jumps left, below the scratch memory.
const JUMPS_LEFT: i16 = slot_offset(SLOTS) - 8;
/// The maximum length of a program in which every jump can reach its target.
const INSNS_MAX: usize = 32_000;

/// User space: the offset of a slot of scratch memory from the stack's end.
const fn slot_offset(slot: u32) -> i16 {
    -4 * (slot as i16 + 1)
}

/// XDP: the same. Before Linux 6.8 and without CAP_PERFMON, the verifier takes four bytes for a
/// part of an address if their offset is a multiple of eight, and rejects a second store to them.
const fn xdp_slot_offset(slot: u32) -> i16 {
    -8 * slot as i16 - 4
}

/// Where the translated program runs.
#[derive(Clone, Copy, Debug)]
enum Environment {
    /// In the kernel, on a frame that an interface received.
    Xdp {
        /// The interface's Ethernet address.
        address: [u8; 6],
    },
    /// In this process, on packets in its memory.
    User,
}

/// The registers with the packet's properties.
#[derive(Clone, Copy, Debug)]
struct Registers {
    /// The address of the packet's first byte.
    data: Reg,
    /// XDP: the address after the packet's last byte; undefined after calls, and reloaded. User
    /// space: the length of the packet.
    end: Reg,
    /// The address of the program's context, or of the [`Surroundings`].
    context: Reg,
    /// User space: the packet's length on the wire.
    wire_len: Reg,
}

/// How loads access the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// They read the packet's memory, in XDP programs where the verifier permits it: at constant
    /// offsets.
    Direct,
    /// They call the kernel for a copy: slower, but possible for any byte in any fragment.
    Ask,
}

/// Where a translation continues.
#[derive(Clone, Copy, Debug)]
struct Exits {
    /// For a matching packet, with the number of bytes to keep in `R0`.
    accept: Label,
    /// For other packets.
    reject: Label,
    /// Target of a direct load beyond the mapped memory.
    beyond: Label,
}

/// A filter being translated into an assembler.
struct Translation<'a> {
    filter: &'a Filter,
    flow: Flow,
    asm: &'a mut Assembler,
    environment: Environment,
    way: Way,
    exits: Exits,
    registers: Registers,
    /// One for each instruction of the filter.
    labels: Vec<Label>,
}

impl<'a> Translation<'a> {
    fn new(
        filter: &'a Filter,
        asm: &'a mut Assembler,
        environment: Environment,
        registers: Registers,
        way: Way,
        exits: Exits,
    ) -> Self {
        let labels = filter.program.ops().iter().map(|_| asm.label()).collect();
        let flow = Flow::of(&filter.program);
        Self { filter, flow, asm, environment, way, exits, registers, labels }
    }

    /// Emits the whole filter. Returns whether execution continues after it for matching packets.
    fn write(mut self) -> bool {
        self.begin();
        let ops = self.filter.program.ops();
        for (index, &op) in ops.iter().enumerate() {
            if self.flow.reaches(index) {
                self.asm.bind(self.labels[index]);
                self.op(index, op);
            }
        }
        may_match(ops[self.flow.last()])
    }

    fn begin(&mut self) {
        self.load_bounds();

        for register in [Register::A, Register::X] {
            if self.flow.needs_start(&self.filter.program, register) {
                self.asm.mov32(self::register(register), 0);
            }
        }

        for slot in (0..SLOTS).filter(|&slot| self.filter.program.loads_slot(slot)) {
            self.asm.store(Size::Word, Reg::R10, self.slot_offset(slot), 0);
        }

        if self.filter.program.has_loop() {
            let most = BACKWARD_JUMPS_MAX.cast_signed();
            self.asm.store(Size::Word, Reg::R10, JUMPS_LEFT, most);
        }
    }

    fn slot_offset(&self, slot: u32) -> i16 {
        match self.environment {
            Environment::Xdp { .. } => xdp_slot_offset(slot),
            Environment::User => slot_offset(slot),
        }
    }

    fn op(&mut self, index: usize, op: Op) {
        match op {
            Op::Load(register, source) => self.load(index, self::register(register), source),
            Op::Store(register, slot) => {
                self.asm.store(
                    Size::Word,
                    Reg::R10,
                    self.slot_offset(slot),
                    self::register(register),
                );
            }
            Op::Alu(operation, operand) => self.alu(operation, operand),
            Op::Negate => _ = self.asm.neg32(A),
            Op::Tax => _ = self.asm.mov32(X, A),
            Op::Txa => _ = self.asm.mov32(A, X),
            Op::Jump(target) => self.jump(index, target),
            Op::Branch { condition, operand, if_true, if_false } => {
                self.branch(index, condition, operand.into(), if_true, if_false);
            }
            Op::Return(Verdict::Constant(0)) => _ = self.asm.jump(self.exits.reject),
            Op::Return(Verdict::Constant(bytes)) => {
                self.asm.mov32(Reg::R0, bytes.cast_signed());
                self.accept(index);
            }
            Op::Return(Verdict::A) => {
                self.asm.jump_if32(A, Jump::Eq, 0, self.exits.reject).mov32(Reg::R0, A);
                self.accept(index);
            }
        }
    }

    fn accept(&mut self, index: usize) {
        if index != self.flow.last() {
            self.asm.jump(self.exits.accept);
        }
    }

    fn alu(&mut self, operation: Operation, operand: Operand) {
        let alu = match operation {
            Operation::Add => Alu::Add,
            Operation::Sub => Alu::Sub,
            Operation::Mul => Alu::Mul,
            Operation::Div => Alu::Div,
            Operation::Mod => Alu::Mod,
            Operation::And => Alu::And,
            Operation::Or => Alu::Or,
            Operation::Xor => Alu::Xor,
            Operation::ShiftLeft => Alu::ShiftLeft,
            Operation::ShiftRight => Alu::ShiftRight,
        };
        match (alu, operand) {
            (Alu::Div | Alu::Mod, Operand::X) => {
                self.asm.jump_if32(X, Jump::Eq, 0, self.exits.reject).alu32(alu, A, X);
            }
            (Alu::ShiftLeft | Alu::ShiftRight, Operand::X) => self.shift(alu),
            _ => _ = self.asm.alu32(alu, A, AsmOperand::from(operand)),
        }
    }

    /// Shifts by the index register. From 32 on the result is zero; eBPF would use only the low
    /// five bits.
    fn shift(&mut self, alu: Alu) {
        let near = self.asm.label();
        let done = self.asm.label();
        self.asm.jump_if32(X, Jump::Lt, 32, near).mov32(A, 0).jump(done);
        self.asm.bind(near).alu32(alu, A, X).bind(done);
    }

    fn jump(&mut self, index: usize, target: u32) {
        if target as usize <= index {
            let left = SCRATCH;
            self.asm.load(Size::Word, left, Reg::R10, JUMPS_LEFT);
            self.asm.jump_if32(left, Jump::Eq, 0, self.exits.reject);
            self.asm.alu32(Alu::Sub, left, 1).store(Size::Word, Reg::R10, JUMPS_LEFT, left);
        }
        if target as usize != index + 1 {
            self.asm.jump(self.labels[target as usize]);
        }
    }

    fn branch(
        &mut self,
        index: usize,
        condition: Condition,
        operand: AsmOperand,
        if_true: u32,
        if_false: u32,
    ) {
        let [to_true, to_false] = [if_true, if_false].map(|target| self.label(target));
        let next = self.labels.get(index + 1);

        match opposite(condition) {
            Some(opposite) if next == Some(&to_true) => {
                self.asm.jump_if32(A, opposite, operand, to_false);
            }
            _ => {
                self.asm.jump_if32(A, jump(condition), operand, to_true);
                if next != Some(&to_false) {
                    self.asm.jump(to_false);
                }
            }
        }
    }

    /// The label for a branch to this instruction.
    fn label(&self, target: u32) -> Label {
        let target = target as usize;
        if is_rejection(self.filter.program.ops()[target]) {
            self.exits.reject
        } else {
            self.labels[target]
        }
    }
}

fn register(register: Register) -> Reg {
    match register {
        Register::A => A,
        Register::X => X,
    }
}

fn jump(condition: Condition) -> Jump {
    match condition {
        #[cfg(sabotage)]
        Condition::GreaterOrEqual if crate::sabotage::is("translation-compares-wrongly") => {
            Jump::AnySet
        }
        Condition::Equal => Jump::Eq,
        Condition::Greater => Jump::Gt,
        Condition::GreaterOrEqual => Jump::Ge,
        Condition::AnySet => Jump::AnySet,
    }
}

/// The jump with the opposite condition, if there is one.
fn opposite(condition: Condition) -> Option<Jump> {
    match condition {
        Condition::Equal => Some(Jump::Ne),
        Condition::Greater => Some(Jump::Le),
        Condition::GreaterOrEqual => Some(Jump::Lt),
        Condition::AnySet => None,
    }
}

impl From<Operand> for AsmOperand {
    fn from(operand: Operand) -> Self {
        match operand {
            Operand::Constant(k) => Self::Constant(k.cast_signed()),
            Operand::X => Self::Register(X),
        }
    }
}
