//! Classic BPF programs: validation, parsing, printing.

use std::fmt;

use crate::insn::{ClassicInsn, Op, Operand, Operation, SLOTS, Source};

/// The kernel's limit, `BPF_MAXINSNS`.
pub(crate) const INSNS_MAX: usize = 1 << 20;

/// A valid classic program: every instruction is defined, no jump leaves the program, and the last
/// instruction is a `ret`.
///
/// Jumps may go backwards, as in libpcap's code for `protochain`; the kernel rejects such programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClassicProgram {
    insns: Vec<ClassicInsn>,
    ops: Vec<Op>,
}

/// Why a program is not valid classic BPF.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// There are no instructions.
    #[error("the BPF program is empty")]
    Empty,
    /// There are more instructions than allowed.
    #[error("the BPF program has {insns} instructions; the limit is {INSNS_MAX}")]
    TooLong {
        /// Number of instructions.
        insns: usize,
    },
    /// An instruction is undefined.
    #[error("BPF instruction {index} is invalid: {} {} {} {}", .insn.code, .insn.jt, .insn.jf, .insn.k)]
    Unknown {
        /// The instruction's index in the program, from 0.
        index: usize,
        /// The instruction.
        insn: ClassicInsn,
    },
    /// An instruction jumps out of the program.
    #[error("BPF instruction {index} jumps to {target}, but the last one is {}", .insns - 1)]
    JumpsOut {
        /// The instruction's index in the program, from 0.
        index: usize,
        /// Index of the jump's target.
        target: u32,
        /// Number of instructions in the program.
        insns: usize,
    },
    /// An instruction divides by the constant zero.
    #[error("BPF instruction {index} divides by zero")]
    DividesByZero {
        /// The instruction's index in the program, from 0.
        index: usize,
    },
    /// An instruction shifts by more bits than the accumulator has.
    #[error("BPF instruction {index} shifts by {bits} bits; the maximum is 31")]
    ShiftsTooFar {
        /// The instruction's index in the program, from 0.
        index: usize,
        /// Number of bits.
        bits: u32,
    },
    /// An instruction uses a slot of scratch memory that does not exist.
    #[error("BPF instruction {index} uses M[{slot}]; the last slot is M[{}]", SLOTS - 1)]
    NoSuchSlot {
        /// The instruction's index in the program, from 0.
        index: usize,
        /// The slot.
        slot: u32,
    },
    /// The last instruction is not a `ret`.
    #[error("the BPF program does not end with ret")]
    NoReturn,
    /// A line of the text has the wrong form.
    #[error("line {line} of the BPF program is not {expected}, as tcpdump -ddd prints it")]
    Text {
        /// The line number, from 1.
        line: usize,
        /// The expected contents.
        expected: &'static str,
    },
    /// The text's number of instructions is wrong.
    #[error("the BPF program announces {announced} instructions and has {found}")]
    Count {
        /// The number in the text.
        announced: usize,
        /// The actual number.
        found: usize,
    },
}

impl ClassicProgram {
    pub(crate) fn new(insns: Vec<ClassicInsn>) -> Result<Self, ProgramError> {
        if insns.len() > INSNS_MAX {
            return Err(ProgramError::TooLong { insns: insns.len() });
        }

        let ops = insns.iter().enumerate().map(|(index, &insn)| {
            let op = insn.decode(index as u32).ok_or(ProgramError::Unknown { index, insn })?;
            check(index, op, insns.len()).map(|()| op)
        });
        let ops: Vec<Op> = ops.collect::<Result<_, _>>()?;
        match ops.last() {
            None => Err(ProgramError::Empty),
            Some(Op::Return(_)) => Ok(Self { insns, ops }),
            Some(_) => Err(ProgramError::NoReturn),
        }
    }

    /// Parses the output of `tcpdump -ddd`: the number of instructions, then code, jt, jf and k of
    /// each, on separate lines or separated by commas.
    pub(crate) fn parse(text: &str) -> Result<Self, ProgramError> {
        let mut lines = text
            .split(['\n', ','])
            .map(str::trim)
            .enumerate()
            .map(|(index, line)| (index + 1, line))
            .filter(|(_, line)| !line.is_empty());
        let (line, count) = lines.next().ok_or(ProgramError::Empty)?;
        let announced = count
            .parse()
            .map_err(|_| ProgramError::Text { line, expected: "the number of instructions" })?;

        let insns: Vec<ClassicInsn> = lines
            .map(|(line, text)| {
                parse_insn(text)
                    .ok_or(ProgramError::Text { line, expected: "four numbers: code jt jf k" })
            })
            .collect::<Result<_, _>>()?;
        if insns.len() != announced {
            return Err(ProgramError::Count { announced, found: insns.len() });
        }

        Self::new(insns)
    }

    pub(crate) fn insns(&self) -> &[ClassicInsn] {
        &self.insns
    }

    pub(crate) fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Whether the program loads this slot of scratch memory.
    pub(crate) fn loads_slot(&self, slot: u32) -> bool {
        self.ops.iter().any(|op| matches!(*op, Op::Load(_, Source::Slot(loaded)) if loaded == slot))
    }

    /// Whether a jump goes backwards.
    pub(crate) fn has_loop(&self) -> bool {
        let mut ops = self.ops.iter().zip(0..);
        // Branches cannot: their offsets are unsigned.
        ops.any(|(op, index)| matches!(*op, Op::Jump(target) if target <= index))
    }
}

fn check(index: usize, op: Op, insns: usize) -> Result<(), ProgramError> {
    let inside = |target: u32| match (target as usize) < insns {
        true => Ok(()),
        false => Err(ProgramError::JumpsOut { index, target, insns }),
    };
    match op {
        Op::Jump(target) => inside(target),
        Op::Branch { if_true, if_false, .. } => inside(if_true).and_then(|()| inside(if_false)),
        Op::Load(_, Source::Slot(slot)) | Op::Store(_, slot) if slot >= SLOTS => {
            Err(ProgramError::NoSuchSlot { index, slot })
        }
        Op::Alu(Operation::Div | Operation::Mod, Operand::Constant(0)) => {
            Err(ProgramError::DividesByZero { index })
        }
        Op::Alu(Operation::ShiftLeft | Operation::ShiftRight, Operand::Constant(bits))
            if bits > 31 =>
        {
            Err(ProgramError::ShiftsTooFar { index, bits })
        }
        _ => Ok(()),
    }
}

fn parse_insn(text: &str) -> Option<ClassicInsn> {
    let mut numbers = text.split_whitespace();
    let insn = ClassicInsn {
        code: numbers.next()?.parse().ok()?,
        jt: numbers.next()?.parse().ok()?,
        jf: numbers.next()?.parse().ok()?,
        k: numbers.next()?.parse().ok()?,
    };
    numbers.next().is_none().then_some(insn)
}

/// The output format of `tcpdump -d`.
impl fmt::Display for ClassicProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (insn, op)) in self.insns.iter().zip(&self.ops).enumerate() {
            let (name, operand) = text::of(*insn, *op);
            match op {
                Op::Branch { if_true, if_false, .. } => {
                    writeln!(
                        f,
                        "({index:03}) {name:<8} {operand:<16} jt {if_true}\tjf {if_false}"
                    )?;
                }
                _ => writeln!(f, "({index:03}) {name:<8} {operand}")?,
            }
        }
        Ok(())
    }
}

/// The names and operands of instructions.
mod text {
    use crate::insn::{
        ClassicInsn, Condition, Op, Operand, Operation, Register, Source, Verdict, Width,
    };

    pub(super) fn of(insn: ClassicInsn, op: Op) -> (&'static str, String) {
        match op {
            Op::Load(register, source) => (load_name(register, insn), loaded(source, insn.k)),
            Op::Store(Register::A, slot) => ("st", format!("M[{slot}]")),
            Op::Store(Register::X, slot) => ("stx", format!("M[{slot}]")),
            Op::Alu(operation, operand) => {
                (operation_name(operation), alu_operand(operation, operand))
            }
            Op::Negate => ("neg", String::new()),
            Op::Tax => ("tax", String::new()),
            Op::Txa => ("txa", String::new()),
            Op::Jump(target) => ("ja", target.to_string()),
            Op::Branch { condition, operand, .. } => {
                (condition_name(condition), hexadecimal(operand))
            }
            Op::Return(Verdict::Constant(bytes)) => ("ret", decimal(bytes)),
            Op::Return(Verdict::A) => ("ret", String::new()),
        }
    }

    fn load_name(register: Register, insn: ClassicInsn) -> &'static str {
        match (register, insn.width()) {
            (Register::X, Some(Width::Byte)) => "ldxb",
            (Register::X, _) => "ldx",
            (Register::A, Some(Width::Byte)) => "ldb",
            (Register::A, Some(Width::Half)) => "ldh",
            (Register::A, _) => "ld",
        }
    }

    fn loaded(source: Source, k: u32) -> String {
        let offset = k.cast_signed();
        match source {
            Source::Constant(_) => format!("#{k:#x}"),
            Source::Slot(slot) => format!("M[{slot}]"),
            Source::WireLen => "#pktlen".to_owned(),
            Source::Absolute(..) => format!("[{offset}]"),
            Source::Indirect(..) => format!("[x + {offset}]"),
            Source::HeaderLen(_) => format!("4*([{offset}]&0xf)"),
            Source::Extension(extension) => format!("[{extension}]"),
        }
    }

    fn operation_name(operation: Operation) -> &'static str {
        match operation {
            Operation::Add => "add",
            Operation::Sub => "sub",
            Operation::Mul => "mul",
            Operation::Div => "div",
            Operation::Mod => "mod",
            Operation::And => "and",
            Operation::Or => "or",
            Operation::Xor => "xor",
            Operation::ShiftLeft => "lsh",
            Operation::ShiftRight => "rsh",
        }
    }

    fn condition_name(condition: Condition) -> &'static str {
        match condition {
            Condition::Equal => "jeq",
            Condition::Greater => "jgt",
            Condition::GreaterOrEqual => "jge",
            Condition::AnySet => "jset",
        }
    }

    fn alu_operand(operation: Operation, operand: Operand) -> String {
        match (operation, operand) {
            (Operation::And | Operation::Or | Operation::Xor, _) => hexadecimal(operand),
            (_, Operand::Constant(k)) => decimal(k),
            (_, Operand::X) => "x".to_owned(),
        }
    }

    fn hexadecimal(operand: Operand) -> String {
        match operand {
            Operand::Constant(k) => format!("#{k:#x}"),
            Operand::X => "x".to_owned(),
        }
    }

    fn decimal(k: u32) -> String {
        format!("#{}", k.cast_signed())
    }
}
