//! Filters as generated machine code.
//!
//! [`x86_64`] generates the code from eBPF instructions and adds no checks of memory accesses. No
//! checks are necessary: the translation emits a check against the packet's end before each load.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::Arc;

use crate::context::Context;
use crate::filter::Filter;
use crate::sys::code::Code;
use crate::translate::{Surroundings, user_program};
use crate::x86_64;

/// A filter as a function of the packet's address, its captured length, two unused arguments, its
/// length on the wire, and its [`Surroundings`].
type Function =
    unsafe extern "sysv64" fn(*const u8, usize, usize, usize, u64, *const Surroundings) -> u64;

/// A filter as a function in this process. Copies share it.
#[derive(Clone, Debug)]
pub(crate) struct MachineCode {
    /// Points into `code`.
    function: Function,
    _code: Arc<Code>,
    /// Whether the filter reads more than the packet's bytes and length. Few filters do.
    asks_linux: bool,
}

impl MachineCode {
    /// Fails if the filter is unsupported or the system does not allow generated code.
    pub(crate) fn compile(filter: &Filter) -> io::Result<Self> {
        let program = user_program(filter).map_err(io::Error::other)?;
        let code = x86_64::compile(&program).ok_or(io::ErrorKind::Unsupported)?;
        let code = Arc::new(Code::new(&code)?);
        // SAFETY: `compile` generates functions of this type. The function is called only through
        // this value, which owns the code.
        let function = unsafe { code.function() };
        Ok(Self { function, _code: code, asks_linux: filter.asks_linux() })
    }

    /// Returns the number of bytes of the packet to keep; 0 rejects it.
    #[inline]
    pub(crate) fn matches(&self, packet: &[u8], wire_len: u32, context: &Context) -> u32 {
        if self.asks_linux {
            let surroundings = Surroundings::from(context);
            return self.call(packet, wire_len, &raw const surroundings);
        }
        self.call(packet, wire_len, ptr::null())
    }

    #[inline]
    fn call(&self, packet: &[u8], wire_len: u32, surroundings: *const Surroundings) -> u32 {
        // SAFETY: the code lives as long as this value. It does what `user_program`'s instructions
        // do: it reads the packet between its beginning and its end, the surroundings only if the
        // filter uses Linux extensions, and its own stack.
        let verdict = unsafe {
            (self.function)(packet.as_ptr(), packet.len(), 0, 0, wire_len.into(), surroundings)
        };
        verdict as u32
    }
}
