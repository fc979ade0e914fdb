//! The program that generates frames inside the kernel: it changes each copy of a template frame to
//! the next frame of its queue and sends it on the interface.

use wirecap_filter::bpf::asm::{
    Alu, AsmError, Assembler, Condition::*, Helper, Insn, Label, Reg::*, Size::*,
};
use wirecap_filter::bpf::{XDP_DROP, xdp_md};

use std::os::fd::AsFd;

use crate::frames::{PORTS_PER_ADDRESS, STAMP_OFFSET, Traffic};
use crate::pace::CATCH_UP_NS;

/// Maximum wait for a frame's time, in readings of the clock: the verifier requires a bound. A
/// reading takes at least 10 ns. Without CAP_PERFMON the verifier also follows each speculative
/// jump and rejects the program.
const CLOCK_READINGS_MAX: i32 = 4096;
/// Longest interval between frames for which the program itself waits.
pub(crate) const INTERVAL_NS_MAX: u64 = CLOCK_READINGS_MAX as u64 * 10 / 2;

/// The program's state on a CPU: one value of the array of states, shared with user space between
/// runs. Padded, so that no two CPUs write to the same cache line.
pub(crate) mod state {
    /// Number of the next frame.
    pub(crate) const SEQUENCE: i16 = 0;
    /// Time of the next frame by CLOCK_MONOTONIC, in nanoseconds; 0: at once.
    pub(crate) const DUE_NS: i16 = 8;
    /// Time from one frame to the next, in nanoseconds.
    pub(crate) const INTERVAL_NS: i16 = 16;
    /// The receive queue at which frames from this CPU arrive.
    pub(crate) const QUEUE: i16 = 24;
    /// Number of frames that could not be made.
    pub(crate) const NOT_MADE: i16 = 32;
    /// Length of the whole, in bytes.
    pub(crate) const BYTES: u32 = 128;
}

/// Fields of the frame, as offsets in bytes.
mod field {
    pub(super) const IP_TOTAL_BYTES: i16 = 16;
    pub(super) const IP_CHECKSUM: i16 = 24;
    pub(super) const IP_SOURCE: i16 = 26;
    pub(super) const UDP_SOURCE: i16 = 34;
    pub(super) const UDP_BYTES: i16 = 38;
    pub(super) const STAMP_QUEUE: i16 = super::STAMP_OFFSET as i16 + 4;
    pub(super) const STAMP_SEQUENCE: i16 = super::STAMP_OFFSET as i16 + 6;
    pub(super) const STAMP_END: i32 = super::STAMP_OFFSET as i32 + 14;
}

/// The program for this traffic. It runs on copies of a template as long as the longest frame.
///
/// `R6` has the context, `R7` the state, `R8` the frame's number, `R9` its length.
pub(crate) fn generate(
    traffic: &Traffic,
    ifindex: u32,
    states: &impl AsFd,
) -> Result<Vec<Insn>, AsmError> {
    let mut asm = Assembler::new();
    let no_state = asm.label();
    let failed = asm.label();

    find_state(&mut asm, states, no_state);
    wait_until_due(&mut asm);
    take_number(&mut asm);
    choose_length(&mut asm, traffic);
    cut_to_length(&mut asm, traffic, failed);
    find_frame(&mut asm, failed);
    write_lengths(&mut asm);
    write_stamp(&mut asm);
    write_flow(&mut asm, traffic);
    asm.mov32(R1, ifindex as i32).mov(R2, 0).call(Helper::Redirect).exit();
    asm.bind(failed).mov(R1, 1).atomic_add(Double, R7, state::NOT_MADE, R1);
    asm.bind(no_state).mov(R0, XDP_DROP).exit();

    asm.finish()
}

/// `R6` = the context, `R7` = this CPU's state.
fn find_state(asm: &mut Assembler, states: &impl AsFd, no_state: Label) {
    asm.mov(R6, R1).call(Helper::CpuId).store(Word, R10, -4, R0);
    asm.load_map_fd(R1, states).mov(R2, R10).add(R2, -4).call(Helper::MapLookup);
    asm.jump_if(R0, Eq, 0, no_state).mov(R7, R0);
}

/// Spins until the frame's time, and sets the time of the next one.
fn wait_until_due(asm: &mut Assembler) {
    let read_clock = asm.label();
    let due = asm.label();
    let in_time = asm.label();
    let at_once = asm.label();
    asm.load(Double, R8, R7, state::DUE_NS).jump_if(R8, Eq, 0, at_once);
    asm.mov(R9, CLOCK_READINGS_MAX);
    asm.bind(read_clock).call(Helper::KtimeNs).jump_if(R0, Ge, R8, due);
    asm.sub(R9, 1).jump_if(R9, Ne, 0, read_clock);
    // After a stall, only a short part of it is caught up, as in `Pacer`.
    asm.bind(due).sub(R0, CATCH_UP_NS as i32).jump_if(R8, SignedGe, R0, in_time).mov(R8, R0);
    asm.bind(in_time).load(Double, R1, R7, state::INTERVAL_NS).add(R8, R1);
    asm.store(Double, R7, state::DUE_NS, R8).bind(at_once);
}

/// `R8` = the frame's number.
fn take_number(asm: &mut Assembler) {
    asm.load(Double, R8, R7, state::SEQUENCE).mov(R1, R8).add(R1, 1);
    asm.store(Double, R7, state::SEQUENCE, R1);
}

/// `R9` = the frame's length, equal to [`Sizes::frame_bytes`](crate::Sizes::frame_bytes).
fn choose_length(asm: &mut Assembler, traffic: &Traffic) {
    let sizes = &traffic.sizes;
    let total_weight = sizes.total_weight() as i32;
    let chosen = asm.label();

    asm.mov(R2, R8).alu64(Alu::Mod, R2, total_weight);
    asm.alu64(Alu::Mul, R2, sizes.stride() as i32).alu64(Alu::Mod, R2, total_weight);

    let mut weights_below = 0;

    for &(frame_bytes, weight) in &sizes.shares {
        weights_below += weight as i32;
        asm.mov(R9, i32::from(frame_bytes));
        if weights_below < total_weight {
            asm.jump_if(R2, Lt, weights_below, chosen);
        }
    }

    asm.bind(chosen);
}

/// Cuts the template to the length in `R9`.
fn cut_to_length(asm: &mut Assembler, traffic: &Traffic, failed: Label) {
    let cut = asm.label();
    asm.mov(R2, R9).sub(R2, i32::from(traffic.sizes.frame_bytes_max())).jump_if(R2, Eq, 0, cut);
    asm.mov(R1, R6).call(Helper::XdpAdjustTail).jump_if(R0, Ne, 0, failed).bind(cut);
}

/// `R1` = the frame, of which everything up to the end of the stamp may be written.
fn find_frame(asm: &mut Assembler, failed: Label) {
    asm.load(Word, R1, R6, xdp_md::DATA).load(Word, R2, R6, xdp_md::DATA_END);
    asm.mov(R3, R1).add(R3, field::STAMP_END).jump_if(R3, Gt, R2, failed);
}

/// Writes both total lengths; `R9` becomes that of the IP packet.
fn write_lengths(asm: &mut Assembler) {
    asm.sub(R9, 14).mov(R2, R9).to_big_endian(Half, R2).store(Half, R1, field::IP_TOTAL_BYTES, R2);
    asm.mov(R2, R9).sub(R2, 20).to_big_endian(Half, R2).store(Half, R1, field::UDP_BYTES, R2);
}

/// Writes queue and number, as [`Stamp::of`](crate::Stamp::of) reads them.
fn write_stamp(asm: &mut Assembler) {
    asm.load(Double, R2, R7, state::QUEUE).to_big_endian(Half, R2).store(
        Half,
        R1,
        field::STAMP_QUEUE,
        R2,
    );
    asm.mov(R2, R8).to_big_endian(Double, R2).store(Double, R1, field::STAMP_SEQUENCE, R2);
}

/// Writes source address, source port and the IP header's checksum, which depends on the length,
/// too.
fn write_flow(asm: &mut Assembler, traffic: &Traffic) {
    // r2 = the flow
    asm.mov(R2, R8).alu64(Alu::Mod, R2, traffic.flows as i32);
    asm.load(Double, R3, R7, state::QUEUE).alu64(Alu::Mul, R3, traffic.flows as i32).add(R2, R3);

    // r3 = the port
    asm.mov(R3, R2).and(R3, PORTS_PER_ADDRESS as i32 - 1).add(R3, i32::from(traffic.source_port));
    asm.to_big_endian(Half, R3).store(Half, R1, field::UDP_SOURCE, R3);

    // r2 = the address
    asm.alu32(Alu::ShiftRight, R2, PORTS_PER_ADDRESS.trailing_zeros() as i32);
    asm.alu32(Alu::Add, R2, u32::from(traffic.source) as i32);

    // r3 = the sum of the header's words
    asm.mov(R3, traffic.constant_word_sum() as i32).add(R3, R9);
    asm.mov(R4, R2).shift_right(R4, 16).add(R3, R4).mov(R4, R2).and(R4, 0xffff).add(R3, R4);
    for _ in 0..2 {
        asm.mov(R4, R3).shift_right(R4, 16).and(R3, 0xffff).add(R3, R4);
    }

    asm.xor(R3, 0xffff).to_big_endian(Half, R3).store(Half, R1, field::IP_CHECKSUM, R3);
    asm.to_big_endian(Word, R2).store(Word, R1, field::IP_SOURCE, R2);
}
