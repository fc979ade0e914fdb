//! Filters for packets in this process's memory.

use std::sync::Arc;

use crate::context::{Context, Unsupported};
use crate::filter::Filter;
use crate::insn::Extension;
use crate::interpreter::Interpreter;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use crate::machine_code::MachineCode;

/// A filter for packets in memory: machine code on x86-64 if the system allows generated code,
/// otherwise interpreted. Copies share the code.
#[derive(Clone, Debug)]
pub struct CompiledFilter(Form);

#[derive(Clone, Debug)]
enum Form {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    MachineCode(MachineCode),
    Interpreted(Arc<Interpreter>),
}

impl CompiledFilter {
    /// Prepares `filter`.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if the filter reads packet data that user space does not have.
    pub fn new(filter: &Filter) -> Result<Self, Unsupported> {
        let interpreter = Interpreter::new(filter)?;
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Ok(code) = MachineCode::compile(filter) {
            return Ok(Self(Form::MachineCode(code)));
        }
        Ok(Self(Form::Interpreted(Arc::new(interpreter))))
    }

    /// Prepares `filter` for packets in a savefile.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if the filter reads data that a savefile does not contain.
    pub fn for_file(filter: &Filter) -> Result<Self, Unsupported> {
        filter.check_sources(file_refuses)?;
        Self::new(filter)
    }

    /// Returns the number of bytes of the packet to keep; 0 rejects it. `packet` contains the
    /// captured bytes of a packet of `wire_len` bytes; a filter that reads beyond them rejects the
    /// packet.
    #[inline]
    pub fn matches(&self, packet: &[u8], wire_len: u32, context: &Context) -> u32 {
        match &self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Form::MachineCode(code) => code.matches(packet, wire_len, context),
            Form::Interpreted(interpreter) => interpreter.matches(packet, wire_len, context),
        }
    }

    /// Whether the filter was compiled to machine code.
    pub fn is_machine_code(&self) -> bool {
        !matches!(self.0, Form::Interpreted(_))
    }
}

/// Why the extension is unsupported for savefiles; `None` if it is supported. Packets in savefiles
/// contain their VLAN tags: none was removed.
fn file_refuses(extension: Extension) -> Option<&'static str> {
    match extension {
        Extension::PacketType => Some("a savefile does not store the packet type"),
        Extension::InterfaceIndex => Some("a savefile does not store interface indexes"),
        Extension::Queue => Some("a savefile may not store the receive queue"),
        _ => None,
    }
}
