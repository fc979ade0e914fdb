//! Filters as machine code, made by the eBPF compiler of the crate `rbpf`.
//!
//! That compiler checks no access to memory, and does not have to: the program that it is given checks each
//! load against the packet's end, since the translation writes it so. It is used without its standard-library
//! half, which compiles into a single page of the heap and leaves that page writable and executable when it
//! gives it back; here the code has pages of its own, as many as it needs, which are never both.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::Arc;

use super::Filter;
use super::context::Context;
use super::translate::{Surroundings, user_program};
use crate::bpf::asm::{Insn, to_bytes};
use crate::sys::code::Code;

/// Bytes of machine code that an eBPF instruction becomes at most (a division by a register).
const INSN_CODE_BYTES: usize = 64;
/// Bytes for what stands around the program. They are more than enough.
const FRAME_CODE_BYTES: usize = 4096;

/// A filter as a function of the packet's address and length, two things that do not matter, its length on the
/// wire, and what else is known of it.
///
/// The eBPF registers that `user_program` names are those in which rbpf 0.4.1 finds the first, second, sixth and
/// fifth argument, and it leaves them there. Only the first is documented, so the manifest names that version.
type Function = unsafe extern "sysv64" fn(*const u8, usize, usize, usize, u64, *const Surroundings) -> u64;

/// A filter as a function of this process. Copies share it.
#[derive(Clone, Debug)]
pub(super) struct MachineCode {
    /// Stands in `code`.
    function: Function,
    _code: Arc<Code>,
    /// Whether the filter asks for more than the packet's bytes and length. Few do.
    asks_linux: bool,
}

impl MachineCode {
    /// Fails where the filter is not made for it, and where the system lets no process make code.
    pub(super) fn compile(filter: &Filter) -> io::Result<Self> {
        let program = user_program(filter).map_err(io::Error::other)?;
        let code = Arc::new(compile(&program)?);
        // SAFETY: `compile` wrote such a function. It is called through this value only, which keeps the code.
        let function = unsafe { code.function() };
        Ok(Self { function, _code: code, asks_linux: filter.asks_linux() })
    }

    /// How many bytes of the packet to keep; 0: none of it.
    #[inline]
    pub(super) fn matches(&self, packet: &[u8], wire_len: u32, context: &Context) -> u32 {
        if self.asks_linux {
            let surroundings = Surroundings::from(context);
            return self.call(packet, wire_len, &raw const surroundings);
        }
        self.call(packet, wire_len, ptr::null())
    }

    #[inline]
    fn call(&self, packet: &[u8], wire_len: u32, surroundings: *const Surroundings) -> u32 {
        // SAFETY: the code lives as long as this value. It is `user_program`'s, which reads the packet between its
        // beginning and its end, and the surroundings only where the filter asks Linux.
        let verdict =
            unsafe { (self.function)(packet.as_ptr(), packet.len(), 0, 0, wire_len.into(), surroundings) };
        verdict as u32
    }
}

fn compile(program: &[Insn]) -> io::Result<Code> {
    let bytes = to_bytes(program);
    let code_bytes = program.len() * INSN_CODE_BYTES + FRAME_CODE_BYTES;
    Code::write(code_bytes.next_multiple_of(FRAME_CODE_BYTES), |memory| {
        let failed = |error: rbpf::lib::Error| io::Error::other(format!("{error:?}"));
        let mut vm = rbpf::EbpfVmMbuff::new(Some(&bytes)).map_err(failed)?;
        vm.set_jit_exec_memory(memory).map_err(failed)?;
        vm.jit_compile().map_err(failed)
    })
}
