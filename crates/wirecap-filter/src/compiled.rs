//! Filters for packets in the memory of this process.

use std::sync::Arc;

use crate::context::{Context, Unsupported};
use crate::filter::Filter;
use crate::insn::Extension;
use crate::interpreter::Interpreter;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use crate::machine_code::MachineCode;

/// A filter, ready for packets in memory: as machine code if the processor is an x86-64 and the system lets
/// processes make code, else interpreted. Copies share the code.
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
    /// [`Unsupported`] if the filter asks for what user space does not know of a packet.
    pub fn new(filter: &Filter) -> Result<Self, Unsupported> {
        let interpreter = Interpreter::new(filter)?;
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if let Ok(code) = MachineCode::compile(filter) {
            return Ok(Self(Form::MachineCode(code)));
        }
        Ok(Self(Form::Interpreted(Arc::new(interpreter))))
    }

    /// Prepares `filter` for packets of a savefile.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if the filter reads data that a savefile does not contain.
    pub fn for_file(filter: &Filter) -> Result<Self, Unsupported> {
        filter.check_sources(file_refuses)?;
        Self::new(filter)
    }

    /// How many bytes of the packet to keep; 0 rejects it. `packet` contains the captured bytes of a packet that had
    /// `wire_len` bytes; a filter that reads beyond them rejects the packet.
    #[inline]
    pub fn matches(&self, packet: &[u8], wire_len: u32, context: &Context) -> u32 {
        match &self.0 {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Form::MachineCode(code) => code.matches(packet, wire_len, context),
            Form::Interpreted(interpreter) => interpreter.matches(packet, wire_len, context),
        }
    }

    /// Whether the filter became machine code.
    pub fn is_machine_code(&self) -> bool {
        !matches!(self.0, Form::Interpreted(_))
    }
}

/// Why a savefile cannot answer for the extension, if it cannot. Its packets have their tags in place: none was
/// taken off.
fn file_refuses(extension: Extension) -> Option<&'static str> {
    match extension {
        Extension::PacketType => Some("a savefile does not store the packet type"),
        Extension::InterfaceIndex => Some("a savefile does not store interface indexes"),
        Extension::Queue => Some("a savefile may not store the receive queue"),
        _ => None,
    }
}
