//! The XDP programs: a fixed dispatcher on the interface, and behind it one program per queue.
//!
//! The attached program serves everybody on the interface, so it does nothing of anybody's own: it
//! jumps to the program that the queue's user put into the queue's slot, or passes the packet to the
//! host where there is none. The queue's program stamps the packet and redirects it to the queue's
//! socket. A user who dies leaves an empty slot in the socket map, and so a queue that passes.

use crate::bpf::asm::{Assembler, Condition, Helper, Insn, Reg, Size};
use crate::bpf::{BpfError, LoadOptions, Map, Program, ProgramKind, XDP_PASS};

/// The dispatcher's name, with its version: others find it by that.
const DISPATCHER: &str = "wirecap_disp_v1";
const QUEUE_PROGRAM: &str = "wirecap_queue";

/// Offsets in `struct xdp_md`.
mod context {
    pub(super) const DATA: i16 = 0;
    pub(super) const DATA_META: i16 = 8;
    pub(super) const RX_QUEUE_INDEX: i16 = 16;
}

/// Bytes of metadata that the queue's program puts in front of a packet: its time.
const STAMP_BYTES: i32 = size_of::<u64>() as i32;

/// Loads the dispatcher over `slots`, a program array with a slot for each queue.
pub(crate) fn load_dispatcher(slots: &Map) -> Result<Program, BpfError> {
    load(DISPATCHER, &dispatcher(slots))
}

/// Loads the program of a queue that redirects to `sockets`; with `stamp_failed`, a one-value array
/// that becomes nonzero where the driver has no room for metadata, it stamps the packets.
pub(crate) fn load_queue_program(sockets: &Map, stamp_failed: Option<&Map>) -> Result<Program, BpfError> {
    load(QUEUE_PROGRAM, &queue_program(sockets, stamp_failed))
}

fn load(name: &str, code: &[Insn]) -> Result<Program, BpfError> {
    // Tail calls only join programs that agree on fragments.
    Program::load(ProgramKind::Xdp, name, code, LoadOptions { fragments: true, ..LoadOptions::default() })
}

fn dispatcher(slots: &Map) -> Vec<Insn> {
    let mut program = Assembler::new();
    program.load(Size::Word, Reg::R4, Reg::R1, context::RX_QUEUE_INDEX);
    program.tail_call(Reg::R1, slots, Reg::R4);
    program.mov(Reg::R0, XDP_PASS);
    program.exit();
    finish(program)
}

fn queue_program(sockets: &Map, stamp_failed: Option<&Map>) -> Vec<Insn> {
    let mut program = Assembler::new();
    program.mov(Reg::R6, Reg::R1);
    if let Some(stamp_failed) = stamp_failed {
        stamp(&mut program, stamp_failed);
    }
    program.load(Size::Word, Reg::R2, Reg::R6, context::RX_QUEUE_INDEX);
    program.load_map_fd(Reg::R1, sockets);
    // Where the queue's socket is gone, the packet goes to the host.
    program.mov(Reg::R3, XDP_PASS);
    program.call(Helper::RedirectMap);
    program.exit();
    finish(program)
}

/// Writes CLOCK_TAI, in nanoseconds, right in front of the packet. TAI is UTC with a whole number of
/// seconds between them, and no other clock that a program may read converts to UTC exactly.
fn stamp(program: &mut Assembler, stamp_failed: &Map) {
    let (failed, done) = (program.label(), program.label());
    program.mov(Reg::R1, Reg::R6).mov(Reg::R2, -STAMP_BYTES);
    program.call(Helper::XdpAdjustMeta);
    program.jump_if(Reg::R0, Condition::Ne, 0, failed);
    program.call(Helper::KtimeTaiNs);
    // The verifier wants to see that the eight bytes lie between the metadata's start and the packet.
    program.load(Size::Word, Reg::R2, Reg::R6, context::DATA_META);
    program.load(Size::Word, Reg::R3, Reg::R6, context::DATA);
    program.mov(Reg::R4, Reg::R2).add(Reg::R4, STAMP_BYTES);
    program.jump_if(Reg::R4, Condition::Gt, Reg::R3, failed);
    program.store(Size::Double, Reg::R2, 0, Reg::R0);
    program.jump(done);
    program.bind(failed);
    program.load_map_value(Reg::R2, stamp_failed, 0);
    program.store(Size::Word, Reg::R2, 0, 1);
    program.bind(done);
}

fn finish(program: Assembler) -> Vec<Insn> {
    program.finish().expect("every label is bound once, and near")
}
