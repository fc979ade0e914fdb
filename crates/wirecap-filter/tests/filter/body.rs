//! The body of the translator's fuzz target, for arbitrary bytes; the tests in `mutated` run it on
//! the stored corpus.

use wirecap_filter::LinkType;
use wirecap_filter::bpf::asm::{Assembler, Reg};
use wirecap_filter::{ClassicInsn, CompiledFilter, Context, Filter, Interpreter, XdpTarget};

use crate::choices::Choices;
use crate::programs::{Contents, program};

/// Interprets the bytes as a program and a packet. Machine code and interpreter must return the
/// same, and each translation for XDP must be complete or refused.
pub(crate) fn translate(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    let context = Context { ifindex: 3, queue: 1, ..Context::default() };
    let filter = match kind % 2 {
        0 => raw(bytes),
        _ => Some(sound(bytes)),
    };
    let Some(filter) = filter else { return };
    for multi_buffer in [false, true] {
        emit(&filter, multi_buffer);
    }
    let (Ok(interpreter), Ok(compiled)) = (Interpreter::new(&filter), CompiledFilter::new(&filter))
    else {
        return;
    };
    let wire_len = bytes.len() as u32;
    for packet in [bytes, &bytes[bytes.len() / 2..], &[]] {
        let expected = interpreter.matches(packet, wire_len, &context);
        assert_eq!(
            compiled.matches(packet, wire_len, &context),
            expected,
            "{packet:02x?}\n{filter}"
        );
    }
}

fn emit(filter: &Filter, multi_buffer: bool) {
    let mut asm = Assembler::new();
    let reject = asm.label();
    let address = Some([2, 0, 0, 0, 0, 1]);
    let target = XdpTarget { context: Reg::R6, reject, multi_buffer, address };
    if filter.emit_xdp(&mut asm, &target).is_ok() {
        asm.exit().bind(reject).exit();
        asm.finish().expect("every label is bound once, and near");
    }
}

/// The bytes as instructions: few such programs are valid.
fn raw(bytes: &[u8]) -> Option<Filter> {
    let insn = |bytes: &[u8; 8]| {
        let [code_0, code_1, jt, jf, k @ ..] = *bytes;
        ClassicInsn { code: u16::from_le_bytes([code_0, code_1]), jt, jf, k: u32::from_le_bytes(k) }
    };
    let insns = bytes.as_chunks().0.iter().map(insn).collect();
    Filter::from_program(insns, LinkType::ETHERNET).ok()
}

/// A generated program; the bytes are the generator's choices.
fn sound(bytes: &[u8]) -> Filter {
    let mut choices = Choices::from_bytes(bytes);
    let insns_max = 1 + choices.below(500);
    let contents = Contents { insns_max, slots_stored_first: false, extensions: true, far: true };
    program(&mut choices, contents)
}
