//! Machine code for x86-64, from those eBPF instructions that the translation for user space consists of.
//!
//! Every eBPF register is one that a function may destroy, and the stack is the 128 bytes below the stack
//! pointer that the System V ABI leaves to functions which call none: so there is nothing to save and to
//! restore, which for a short filter would take longer than the filter.

use crate::bpf::asm::{Insn, Reg, opcode};

/// The processor's registers, by the numbers that instructions know them by.
mod machine {
    pub(super) const RAX: u8 = 0;
    pub(super) const RCX: u8 = 1;
    pub(super) const RDX: u8 = 2;
    pub(super) const RSP: u8 = 4;
    pub(super) const RSI: u8 = 6;
    pub(super) const RDI: u8 = 7;
    pub(super) const R8: u8 = 8;
    pub(super) const R9: u8 = 9;
    pub(super) const R10: u8 = 10;
    pub(super) const R11: u8 = 11;
}
