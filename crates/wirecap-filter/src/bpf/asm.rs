//! A small assembler for eBPF with named instructions and labels as jump targets.
//!
//! The operand order is that of the kernel's notation, `destination` before `source`, and every
//! method returns the assembler, so a program reads from top to bottom:
//!
//! ```
//! use wirecap_filter::bpf::asm::{Assembler, Condition::*, Reg::*, Size::*};
//! use wirecap_filter::bpf::{XDP_DROP, XDP_PASS, xdp_md};
//!
//! // Drops every frame of receive queue 3.
//! let mut asm = Assembler::new();
//! let pass = asm.label();
//! asm.load(Word, R2, R1, xdp_md::RX_QUEUE_INDEX)
//!     .jump_if(R2, Ne, 3, pass)
//!     .mov(R0, XDP_DROP)
//!     .exit();
//! asm.bind(pass).mov(R0, XDP_PASS).exit();
//! let program = asm.finish()?;
//! assert_eq!(program.len(), 6);
//! # Ok::<(), wirecap_filter::bpf::asm::AsmError>(())
//! ```

use std::os::fd::{AsFd, AsRawFd};

/// The registers. `R0` has the return value, `R1` to `R5` are arguments and undefined after a call,
/// `R6` to `R9` are preserved by calls, and `R10` is the read-only end of the 512 bytes of stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "the registers' names say all")]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// The width of a load, a store or a byte swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// 8 bits.
    Byte,
    /// 16 bits.
    Half,
    /// 32 bits.
    Word,
    /// 64 bits.
    Double,
}

/// The second operand of arithmetic, stores and jumps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// The value of a register.
    Register(Reg),
    /// A constant, sign-extended in 64-bit operations.
    Constant(i32),
}

/// Arithmetic; the operation is in the high bits of the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Alu {
    /// `dst += src`
    Add = 0x00,
    /// `dst -= src`
    Sub = 0x10,
    /// `dst *= src`
    Mul = 0x20,
    /// `dst /= src`, unsigned; division by zero gives zero.
    Div = 0x30,
    /// `dst |= src`
    Or = 0x40,
    /// `dst &= src`
    And = 0x50,
    /// `dst <<= src`
    ShiftLeft = 0x60,
    /// `dst >>= src`, filling with zeros.
    ShiftRight = 0x70,
    /// `dst %= src`, unsigned; modulo zero leaves `dst` unchanged.
    Mod = 0x90,
    /// `dst ^= src`
    Xor = 0xa0,
    /// `dst = src`
    Mov = 0xb0,
    /// `dst >>= src`, filling with the sign bit.
    ShiftRightSigned = 0xc0,
}

/// The condition of a jump; the comparison is in the high bits of the opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Condition {
    /// `dst == src`
    Eq = 0x10,
    /// `dst > src`, unsigned.
    Gt = 0x20,
    /// `dst >= src`, unsigned.
    Ge = 0x30,
    /// `dst & src` has any bit set.
    AnySet = 0x40,
    /// `dst != src`
    Ne = 0x50,
    /// `dst > src`, signed.
    SignedGt = 0x60,
    /// `dst >= src`, signed.
    SignedGe = 0x70,
    /// `dst < src`, unsigned.
    Lt = 0xa0,
    /// `dst <= src`, unsigned.
    Le = 0xb0,
    /// `dst < src`, signed.
    SignedLt = 0xc0,
    /// `dst <= src`, signed.
    SignedLe = 0xd0,
}

/// Kernel functions that a program may call, `enum bpf_func_id`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Helper {
    /// `map_lookup_elem(map, &key)` returns the address of the value, or zero.
    MapLookup = 1,
    /// `ktime_get_ns()` returns nanoseconds since boot, without suspended time (CLOCK_MONOTONIC).
    KtimeNs = 5,
    /// `get_prandom_u32()` returns 32 random bits.
    RandomU32 = 7,
    /// `get_smp_processor_id()` returns the CPU's number.
    CpuId = 8,
    /// `tail_call(context, program array, index)` returns only if the slot is empty.
    TailCall = 12,
    /// `redirect(ifindex, flags)` returns the verdict that sends the frame out of that interface.
    Redirect = 23,
    /// `xdp_adjust_head(context, delta)` moves the beginning of the frame; nonzero on failure.
    XdpAdjustHead = 44,
    /// `redirect_map(map, key, flags)` returns the verdict that sends the frame to the entry of the
    /// map, or the low bits of `flags` if there is no entry.
    RedirectMap = 51,
    /// `xdp_adjust_meta(context, delta)` reserves space for metadata before the frame; nonzero on
    /// failure.
    XdpAdjustMeta = 54,
    /// `xdp_adjust_tail(context, delta)` moves the end of the frame; nonzero on failure.
    XdpAdjustTail = 65,
    /// `probe_read_kernel(to, bytes, from)` copies from kernel memory; negative on failure.
    ProbeReadKernel = 113,
    /// `probe_read_kernel_str(to, bytes, from)` copies a NUL-terminated string from kernel memory;
    /// negative on failure.
    ProbeReadKernelStr = 115,
    /// `jiffies64()` returns the number of ticks since boot.
    Jiffies = 118,
    /// `get_ns_current_pid_tgid(device, inode, to, bytes)` returns the thread and process IDs in a
    /// PID namespace; nonzero if the thread is in another one.
    NsCurrentPidTgid = 120,
    /// `ktime_get_boot_ns()` returns nanoseconds since boot (CLOCK_BOOTTIME).
    KtimeBootNs = 125,
    /// `ktime_get_coarse_ns()` returns the time of the last tick (CLOCK_MONOTONIC_COARSE).
    KtimeCoarseNs = 160,
    /// `xdp_get_buff_len(context)` returns the frame's length including all fragments.
    XdpFrameLen = 188,
    /// `xdp_load_bytes(context, offset, to, length)` copies from any fragment; nonzero if out of
    /// range.
    XdpLoadBytes = 189,
    /// `xdp_store_bytes(context, offset, from, length)` copies to any fragment; nonzero if out of
    /// range.
    XdpStoreBytes = 190,
    /// `ktime_get_tai_ns()` returns nanoseconds of CLOCK_TAI.
    KtimeTaiNs = 208,
}

/// One instruction in the kernel's format; `load_imm64` and the map loads occupy two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Insn {
    /// The operation, with its class in the low three bits.
    pub opcode: u8,
    /// The destination register in the low four bits, the source register in the high four.
    pub registers: u8,
    /// Displacement of a load or store in bytes, or of a jump in instructions.
    pub offset: i16,
    /// The constant.
    pub constant: i32,
}
const _: () = assert!(size_of::<Insn>() == 8);

impl Insn {
    /// The instruction's eight bytes in memory.
    pub fn to_bytes(self) -> [u8; 8] {
        let [offset_0, offset_1] = self.offset.to_ne_bytes();
        let [constant_0, constant_1, constant_2, constant_3] = self.constant.to_ne_bytes();
        [
            self.opcode,
            self.registers,
            offset_0,
            offset_1,
            constant_0,
            constant_1,
            constant_2,
            constant_3,
        ]
    }
}

/// The program as bytes, the input of bpf(2) and of interpreters and compilers in user space.
pub fn to_bytes(program: &[Insn]) -> Vec<u8> {
    program.iter().flat_map(|insn| insn.to_bytes()).collect()
}

/// A jump target in the program, created by [`Assembler::label`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Label(usize);

/// Why the instructions are not a valid program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AsmError {
    /// The label of a jump was never bound.
    #[error("the jump at instruction {jump_index} goes to a label that is not bound")]
    Unbound {
        /// Index of the jump.
        jump_index: usize,
    },
    /// A label was bound twice.
    #[error("the label bound at instruction {index} was bound before")]
    BoundTwice {
        /// Index of the instruction after the second binding.
        index: usize,
    },
    /// A jump's target is more than 32,767 instructions away.
    #[error(
        "the jump at instruction {jump_index} goes to {target_index}, out of its reach of {}",
        i16::MAX
    )]
    TooFar {
        /// Index of the jump.
        jump_index: usize,
        /// Index of the target.
        target_index: usize,
    },
}

/// Collects instructions; see the [module](self) for an example.
#[derive(Clone, Default, Debug)]
pub struct Assembler {
    program: Vec<Insn>,
    /// The index that each label is bound to.
    labels: Vec<Option<usize>>,
    /// The indices of the jumps, and their labels.
    jumps: Vec<(usize, Label)>,
    bound_twice: Option<usize>,
}

/// Instruction classes: the low three bits of an opcode.
pub(crate) mod class {
    pub(super) const LD: u8 = 0;
    pub(crate) const LDX: u8 = 1;
    pub(crate) const ST: u8 = 2;
    pub(crate) const STX: u8 = 3;
    pub(crate) const ALU32: u8 = 4;
    pub(crate) const JMP: u8 = 5;
    pub(crate) const JMP32: u8 = 6;
    pub(crate) const ALU64: u8 = 7;
}

/// The other fields of an opcode.
pub(crate) mod field {
    /// The instruction class.
    pub(crate) const CLASS: u8 = 0x07;
    /// The operation of arithmetic and jumps.
    pub(crate) const OPERATION: u8 = 0xf0;
    /// The second operand is a register.
    pub(crate) const FROM_REGISTER: u8 = 0x08;
    /// Addressing mode of loads and stores: a register and a displacement.
    pub(crate) const MEM: u8 = 0x60;
    /// Addressing mode of atomic operations.
    pub(super) const ATOMIC: u8 = 0xc0;
    pub(crate) const NEG: u8 = 0x80;
    pub(crate) const END: u8 = 0xd0;
    /// Byte swap to big-endian; without this bit, to little-endian.
    pub(crate) const TO_BIG_ENDIAN: u8 = 0x08;
    pub(crate) const JUMP_ALWAYS: u8 = 0x00;
    pub(super) const CALL: u8 = 0x80;
    pub(crate) const EXIT: u8 = 0x90;
}

/// Atomic operation that returns the old value in the source register.
const FETCH: i32 = 0x01;
/// Source "register" of a 64-bit load whose constant is a map descriptor.
const PSEUDO_MAP_FD: u8 = 1;
/// The same for the address of a value in the map.
const PSEUDO_MAP_VALUE: u8 = 2;

impl Assembler {
    /// Creates an empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the program and resolves its jumps.
    ///
    /// # Errors
    ///
    /// [`AsmError`] if a jump's label is not bound or too far away, or a label is bound twice.
    pub fn finish(mut self) -> Result<Vec<Insn>, AsmError> {
        if let Some(index) = self.bound_twice {
            return Err(AsmError::BoundTwice { index });
        }
        for (jump_index, label) in self.jumps {
            let target_index = self.labels[label.0].ok_or(AsmError::Unbound { jump_index })?;
            let distance = target_index as i64 - (jump_index as i64 + 1);
            self.program[jump_index].offset =
                distance.try_into().map_err(|_| AsmError::TooFar { jump_index, target_index })?;
        }
        Ok(self.program)
    }

    /// Number of instructions so far; a 64-bit constant counts as two.
    pub fn len(&self) -> usize {
        self.program.len()
    }

    /// Whether the program has no instructions.
    pub fn is_empty(&self) -> bool {
        self.program.is_empty()
    }

    /// Creates a label, to be bound before or after the jumps that refer to it.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds the label to the next instruction.
    pub fn bind(&mut self, label: Label) -> &mut Self {
        let here = self.program.len();
        if self.labels[label.0].replace(here).is_some() {
            self.bound_twice.get_or_insert(here);
        }
        self
    }

    /// Whether a jump added so far refers to the label.
    pub fn has_jump_to(&self, label: Label) -> bool {
        self.jumps.iter().any(|&(_, target)| target == label)
    }

    /// `dst = src`, 64 bits.
    pub fn mov(&mut self, dst: Reg, src: impl Into<Operand>) -> &mut Self {
        self.alu64(Alu::Mov, dst, src)
    }

    /// `dst = src`, 32 bits; the upper half becomes zero.
    pub fn mov32(&mut self, dst: Reg, src: impl Into<Operand>) -> &mut Self {
        self.alu32(Alu::Mov, dst, src)
    }

    /// `dst += src`, 64 bits.
    pub fn add(&mut self, dst: Reg, src: impl Into<Operand>) -> &mut Self {
        self.alu64(Alu::Add, dst, src)
    }

    /// `dst -= src`, 64 bits.
    pub fn sub(&mut self, dst: Reg, src: impl Into<Operand>) -> &mut Self {
        self.alu64(Alu::Sub, dst, src)
    }

    /// `dst &= src`, 64 bits.
    pub fn and(&mut self, dst: Reg, src: impl Into<Operand>) -> &mut Self {
        self.alu64(Alu::And, dst, src)
    }

    /// `dst |= src`, 64 bits.
    pub fn or(&mut self, dst: Reg, src: impl Into<Operand>) -> &mut Self {
        self.alu64(Alu::Or, dst, src)
    }

    /// `dst ^= src`, 64 bits.
    pub fn xor(&mut self, dst: Reg, src: impl Into<Operand>) -> &mut Self {
        self.alu64(Alu::Xor, dst, src)
    }

    /// `dst <<= src`, 64 bits.
    pub fn shift_left(&mut self, dst: Reg, src: impl Into<Operand>) -> &mut Self {
        self.alu64(Alu::ShiftLeft, dst, src)
    }

    /// `dst >>= src`, 64 bits, filling with zeros.
    pub fn shift_right(&mut self, dst: Reg, src: impl Into<Operand>) -> &mut Self {
        self.alu64(Alu::ShiftRight, dst, src)
    }

    /// 64-bit arithmetic.
    pub fn alu64(&mut self, operation: Alu, dst: Reg, src: impl Into<Operand>) -> &mut Self {
        self.with_operand(class::ALU64 | operation as u8, dst, 0, src.into())
    }

    /// 32-bit arithmetic; the upper half of `dst` becomes zero.
    pub fn alu32(&mut self, operation: Alu, dst: Reg, src: impl Into<Operand>) -> &mut Self {
        self.with_operand(class::ALU32 | operation as u8, dst, 0, src.into())
    }

    /// `dst = -dst`, 64 bits.
    pub fn neg(&mut self, dst: Reg) -> &mut Self {
        self.push(class::ALU64 | field::NEG, dst, 0, 0, 0)
    }

    /// `dst = -dst`, 32 bits; the upper half becomes zero.
    pub fn neg32(&mut self, dst: Reg) -> &mut Self {
        self.push(class::ALU32 | field::NEG, dst, 0, 0, 0)
    }

    /// Converts the lower `size` of `dst` between host byte order and network byte order; the rest
    /// becomes zero.
    pub fn to_big_endian(&mut self, size: Size, dst: Reg) -> &mut Self {
        self.push(class::ALU32 | field::END | field::TO_BIG_ENDIAN, dst, 0, 0, size.bits())
    }

    /// Converts the lower `size` of `dst` between host byte order and little-endian; the rest
    /// becomes zero.
    pub fn to_little_endian(&mut self, size: Size, dst: Reg) -> &mut Self {
        self.push(class::ALU32 | field::END, dst, 0, 0, size.bits())
    }

    /// `dst = *(base + offset)`, zero-extended.
    pub fn load(&mut self, size: Size, dst: Reg, base: Reg, offset: i16) -> &mut Self {
        self.push(class::LDX | field::MEM | size.opcode(), dst, base as u8, offset, 0)
    }

    /// `*(base + offset) = src`
    pub fn store(
        &mut self,
        size: Size,
        base: Reg,
        offset: i16,
        src: impl Into<Operand>,
    ) -> &mut Self {
        match src.into() {
            Operand::Register(src) => {
                self.push(class::STX | field::MEM | size.opcode(), base, src as u8, offset, 0)
            }
            Operand::Constant(value) => {
                self.push(class::ST | field::MEM | size.opcode(), base, 0, offset, value)
            }
        }
    }

    /// `*(base + offset) += src`, atomically; `size` is `Word` or `Double`.
    pub fn atomic_add(&mut self, size: Size, base: Reg, offset: i16, src: Reg) -> &mut Self {
        self.push(
            class::STX | field::ATOMIC | size.opcode(),
            base,
            src as u8,
            offset,
            Alu::Add as i32,
        )
    }

    /// Like [`atomic_add`](Self::atomic_add); `src` gets the previous value.
    pub fn atomic_fetch_add(&mut self, size: Size, base: Reg, offset: i16, src: Reg) -> &mut Self {
        self.push(
            class::STX | field::ATOMIC | size.opcode(),
            base,
            src as u8,
            offset,
            Alu::Add as i32 | FETCH,
        )
    }

    /// `dst = value`; takes two instructions.
    pub fn load_imm64(&mut self, dst: Reg, value: u64) -> &mut Self {
        self.wide(dst, 0, value as u32, (value >> 32) as u32)
    }

    /// `dst = map`, in the form that helpers expect. The map must stay open until the program is
    /// loaded.
    pub fn load_map_fd(&mut self, dst: Reg, map: &impl AsFd) -> &mut Self {
        self.wide(dst, PSEUDO_MAP_FD, map.as_fd().as_raw_fd() as u32, 0)
    }

    /// `dst = &map[0] + offset_bytes`, for an array of one value. The map must stay open until the
    /// program is loaded.
    pub fn load_map_value(&mut self, dst: Reg, map: &impl AsFd, offset_bytes: u32) -> &mut Self {
        self.wide(dst, PSEUDO_MAP_VALUE, map.as_fd().as_raw_fd() as u32, offset_bytes)
    }

    /// Jumps to the label.
    pub fn jump(&mut self, target: Label) -> &mut Self {
        self.jumps.push((self.program.len(), target));
        self.push(class::JMP | field::JUMP_ALWAYS, Reg::R0, 0, 0, 0)
    }

    /// Jumps to the label if the 64-bit comparison is true.
    pub fn jump_if(
        &mut self,
        dst: Reg,
        condition: Condition,
        src: impl Into<Operand>,
        target: Label,
    ) -> &mut Self {
        self.jumps.push((self.program.len(), target));
        self.with_operand(class::JMP | condition as u8, dst, 0, src.into())
    }

    /// Jumps to the label if the comparison of the lower 32 bits is true.
    pub fn jump_if32(
        &mut self,
        dst: Reg,
        condition: Condition,
        src: impl Into<Operand>,
        target: Label,
    ) -> &mut Self {
        self.jumps.push((self.program.len(), target));
        self.with_operand(class::JMP32 | condition as u8, dst, 0, src.into())
    }

    /// `r0 = helper(r1, ..., r5)`; `r1` to `r5` are undefined afterwards.
    pub fn call(&mut self, helper: Helper) -> &mut Self {
        self.push(class::JMP | field::CALL, Reg::R0, 0, 0, helper as i32)
    }

    /// Calls the kernel function with this number, like [`call`](Self::call):
    /// [`kernel_function`](super::kernel_function) returns the numbers,
    /// [`LoadOptions::device`](super::LoadOptions) describes which functions a program may call.
    pub fn call_kernel(&mut self, function: u32) -> &mut Self {
        const PSEUDO_KFUNC_CALL: u8 = 2;
        self.push(class::JMP | field::CALL, Reg::R0, PSEUDO_KFUNC_CALL, 0, function.cast_signed())
    }

    /// Continues in the program at `index` of the array and does not return; if there is none, the
    /// next instruction follows. `context` must not be `R3`, and the map must stay open until the
    /// program is loaded.
    pub fn tail_call(
        &mut self,
        context: Reg,
        programs: &impl AsFd,
        index: impl Into<Operand>,
    ) -> &mut Self {
        assert!(context != Reg::R3, "r3 is overwritten by the index");
        self.mov(Reg::R3, index)
            .mov(Reg::R1, context)
            .load_map_fd(Reg::R2, programs)
            .call(Helper::TailCall)
    }

    /// Ends the program with `r0` as its verdict.
    pub fn exit(&mut self) -> &mut Self {
        self.push(class::JMP | field::EXIT, Reg::R0, 0, 0, 0)
    }

    fn with_operand(&mut self, opcode: u8, dst: Reg, offset: i16, operand: Operand) -> &mut Self {
        match operand {
            Operand::Register(src) => {
                self.push(opcode | field::FROM_REGISTER, dst, src as u8, offset, 0)
            }
            Operand::Constant(value) => self.push(opcode, dst, 0, offset, value),
        }
    }

    fn wide(&mut self, dst: Reg, pseudo: u8, low: u32, high: u32) -> &mut Self {
        let opcode = class::LD | Size::Double.opcode();
        self.push(opcode, dst, pseudo, 0, low as i32).push(0, Reg::R0, 0, 0, high as i32)
    }

    fn push(&mut self, opcode: u8, dst: Reg, src: u8, offset: i16, constant: i32) -> &mut Self {
        self.program.push(Insn { opcode, registers: src << 4 | dst as u8, offset, constant });
        self
    }
}

impl Size {
    pub(crate) const fn opcode(self) -> u8 {
        match self {
            Self::Word => 0x00,
            Self::Half => 0x08,
            Self::Byte => 0x10,
            Self::Double => 0x18,
        }
    }

    fn bits(self) -> i32 {
        match self {
            Self::Byte => 8,
            Self::Half => 16,
            Self::Word => 32,
            Self::Double => 64,
        }
    }
}

impl From<Reg> for Operand {
    fn from(register: Reg) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(value: i32) -> Self {
        Self::Constant(value)
    }
}

#[cfg(test)]
mod tests {
    use super::Condition::*;
    use super::Reg::*;
    use super::Size::*;
    use super::*;

    /// The only instruction that `write` adds, in the kernel's order: opcode, registers (source,
    /// destination), offset, constant.
    fn encoded(write: impl FnOnce(&mut Assembler)) -> (u8, u8, i16, i32) {
        let mut asm = Assembler::new();
        write(&mut asm);
        let program = asm.finish().unwrap();
        assert_eq!(program.len(), 1);
        let insn = program[0];
        (insn.opcode, insn.registers, insn.offset, insn.constant)
    }

    // The expected opcodes are those of the table in RFC 9669, appendix A.

    #[test]
    fn arithmetic_is_encoded_by_class_operation_and_operand() {
        assert_eq!(encoded(|asm| _ = asm.mov(R1, -7)), (0xb7, 0x01, 0, -7));
        assert_eq!(encoded(|asm| _ = asm.mov(R1, R10)), (0xbf, 0xa1, 0, 0));
        assert_eq!(encoded(|asm| _ = asm.mov32(R9, R2)), (0xbc, 0x29, 0, 0));
        assert_eq!(encoded(|asm| _ = asm.add(R2, R3)), (0x0f, 0x32, 0, 0));
        assert_eq!(encoded(|asm| _ = asm.sub(R2, 5)), (0x17, 0x02, 0, 5));
        assert_eq!(encoded(|asm| _ = asm.and(R2, R3)), (0x5f, 0x32, 0, 0));
        assert_eq!(encoded(|asm| _ = asm.or(R2, R3)), (0x4f, 0x32, 0, 0));
        assert_eq!(encoded(|asm| _ = asm.xor(R2, R3)), (0xaf, 0x32, 0, 0));
        assert_eq!(encoded(|asm| _ = asm.shift_left(R2, 4)), (0x67, 0x02, 0, 4));
        assert_eq!(encoded(|asm| _ = asm.shift_right(R2, 4)), (0x77, 0x02, 0, 4));
        assert_eq!(encoded(|asm| _ = asm.alu64(Alu::ShiftRightSigned, R2, 4)), (0xc7, 0x02, 0, 4));
        assert_eq!(encoded(|asm| _ = asm.alu32(Alu::Mul, R2, R3)), (0x2c, 0x32, 0, 0));
        assert_eq!(encoded(|asm| _ = asm.alu32(Alu::Div, R2, 9)), (0x34, 0x02, 0, 9));
        assert_eq!(encoded(|asm| _ = asm.alu64(Alu::Mod, R2, R3)), (0x9f, 0x32, 0, 0));
        assert_eq!(encoded(|asm| _ = asm.neg(R4)), (0x87, 0x04, 0, 0));
        assert_eq!(encoded(|asm| _ = asm.neg32(R4)), (0x84, 0x04, 0, 0));
    }

    #[test]
    fn byte_swaps_name_their_width_in_bits() {
        assert_eq!(encoded(|asm| _ = asm.to_big_endian(Half, R1)), (0xdc, 0x01, 0, 16));
        assert_eq!(encoded(|asm| _ = asm.to_big_endian(Word, R1)), (0xdc, 0x01, 0, 32));
        assert_eq!(encoded(|asm| _ = asm.to_little_endian(Double, R1)), (0xd4, 0x01, 0, 64));
    }

    #[test]
    fn loads_and_stores_are_encoded_by_size() {
        assert_eq!(encoded(|asm| _ = asm.load(Byte, R0, R1, 16)), (0x71, 0x10, 16, 0));
        assert_eq!(encoded(|asm| _ = asm.load(Half, R0, R1, 16)), (0x69, 0x10, 16, 0));
        assert_eq!(encoded(|asm| _ = asm.load(Word, R0, R1, 16)), (0x61, 0x10, 16, 0));
        assert_eq!(encoded(|asm| _ = asm.load(Double, R0, R1, -8)), (0x79, 0x10, -8, 0));
        assert_eq!(encoded(|asm| _ = asm.store(Byte, R10, -1, R2)), (0x73, 0x2a, -1, 0));
        assert_eq!(encoded(|asm| _ = asm.store(Half, R10, -2, 7)), (0x6a, 0x0a, -2, 7));
        assert_eq!(encoded(|asm| _ = asm.store(Word, R10, -4, 7)), (0x62, 0x0a, -4, 7));
        assert_eq!(encoded(|asm| _ = asm.store(Double, R10, -8, R2)), (0x7b, 0x2a, -8, 0));
        assert_eq!(encoded(|asm| _ = asm.atomic_add(Double, R0, 8, R1)), (0xdb, 0x10, 8, 0));
        assert_eq!(encoded(|asm| _ = asm.atomic_fetch_add(Word, R0, 8, R1)), (0xc3, 0x10, 8, 1));
    }

    #[test]
    fn a_wide_constant_takes_two_instructions() {
        let mut asm = Assembler::new();
        asm.load_imm64(R3, 0x1122_3344_ffee_ddcc);
        let bytes = to_bytes(&asm.finish().unwrap());
        let expected = [0x18, 3, 0, 0, 0xcc, 0xdd, 0xee, 0xff, 0, 0, 0, 0, 0x44, 0x33, 0x22, 0x11];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn maps_are_named_by_descriptor() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut asm = Assembler::new();
        asm.load_map_fd(R1, &file).load_map_value(R2, &file, 24);
        let program = asm.finish().unwrap();
        assert_eq!((program[0].opcode, program[0].registers), (0x18, 0x11));
        assert_eq!(program[0].constant, file.as_raw_fd());
        assert_eq!((program[2].opcode, program[2].registers), (0x18, 0x22));
        assert_eq!(program[3].constant, 24);
    }

    #[test]
    fn jumps_reach_labels_before_and_after_them() {
        let mut asm = Assembler::new();
        let start = asm.label();
        let end = asm.label();
        asm.bind(start).jump_if(R1, Gt, R2, end).jump_if32(R1, AnySet, 3, start).jump(start);
        asm.load_imm64(R0, 1).bind(end).exit();
        let program = asm.finish().unwrap();
        let jumps: Vec<_> = program[..3].iter().map(|insn| (insn.opcode, insn.offset)).collect();
        assert_eq!(jumps, [(0x2d, 4), (0x46, -2), (0x05, -3)]);
        assert_eq!(program[5].opcode, 0x95);
    }

    #[test]
    fn every_condition_has_the_opcode_of_the_standard() {
        let conditions = [Eq, Gt, Ge, AnySet, Ne, SignedGt, SignedGe, Lt, Le, SignedLt, SignedLe];
        let opcodes = [0x15, 0x25, 0x35, 0x45, 0x55, 0x65, 0x75, 0xa5, 0xb5, 0xc5, 0xd5];
        for (condition, opcode) in conditions.into_iter().zip(opcodes) {
            let mut asm = Assembler::new();
            let here = asm.label();
            asm.bind(here).jump_if(R0, condition, 0, here);
            assert_eq!(asm.finish().unwrap()[0].opcode, opcode, "{condition:?}");
        }
    }

    #[test]
    fn a_tail_call_sets_its_three_arguments() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut asm = Assembler::new();
        asm.tail_call(R6, &file, R1);
        let program = asm.finish().unwrap();
        assert_eq!((program[0].opcode, program[0].registers), (0xbf, 0x13));
        assert_eq!((program[1].opcode, program[1].registers), (0xbf, 0x61));
        assert_eq!(program[2].registers, 0x12);
        assert_eq!((program[4].opcode, program[4].constant), (0x85, 12));
    }

    #[test]
    fn a_jump_to_an_unbound_label_is_an_error() {
        let mut asm = Assembler::new();
        let nowhere = asm.label();
        asm.exit().jump(nowhere);
        assert_eq!(asm.finish(), Err(AsmError::Unbound { jump_index: 1 }));
    }

    #[test]
    fn a_label_bound_twice_is_an_error() {
        let mut asm = Assembler::new();
        let here = asm.label();
        asm.bind(here).exit().bind(here);
        assert_eq!(asm.finish(), Err(AsmError::BoundTwice { index: 1 }));
    }

    #[test]
    fn a_jump_reaches_32767_instructions_and_no_further() {
        for (distance, reached) in [(32_767, true), (32_768, false)] {
            let mut asm = Assembler::new();
            let end = asm.label();
            asm.jump(end);
            for _ in 0..distance {
                asm.exit();
            }
            asm.bind(end).exit();
            assert_eq!(asm.finish().is_ok(), reached);
        }
    }
}
