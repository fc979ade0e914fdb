//! Random valid programs.

use wirecap_filter::LinkType;
use wirecap_filter::{ClassicInsn, Filter};

use crate::choices::Choices;

/// What a generated program may contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents {
    pub(crate) insns_max: u32,
    /// Scratch memory is stored to first, so that its initial contents do not matter: in libpcap
    /// they are whatever was on the stack.
    pub(crate) slots_stored_first: bool,
    /// Loads supported by Linux but not by libpcap.
    pub(crate) extensions: bool,
    /// Loads from offsets beyond any frame.
    pub(crate) far: bool,
}

pub(crate) fn program(choices: &mut Choices, contents: Contents) -> Filter {
    let mut insns = Vec::new();
    if contents.slots_stored_first && choices.once_in(2) {
        insns.extend((0..16).map(|slot| insn(0x02, slot)));
    }
    let has_slots = !insns.is_empty() || !contents.slots_stored_first;
    let body = 1 + choices.below(contents.insns_max);
    for left in (1..=body).rev() {
        insns.push(any_insn(choices, left, has_slots, contents));
    }
    insns.push(choices.of(&[insn(0x06, 0), insn(0x06, 262_144), insn(0x16, 0)]));
    Filter::from_program(insns, LinkType::ETHERNET)
        .expect("the generator makes sound programs only")
}

fn insn(code: u16, k: u32) -> ClassicInsn {
    ClassicInsn { code, jt: 0, jf: 0, k }
}

/// An instruction that is followed by `left` others.
fn any_insn(choices: &mut Choices, left: u32, has_slots: bool, contents: Contents) -> ClassicInsn {
    match choices.below(32) {
        0..=5 => insn(choices.of(&[0x20, 0x28, 0x30]), offset(choices, contents.far)),
        6..=8 => insn(choices.of(&[0x40, 0x48, 0x50]), offset(choices, contents.far)),
        9 => insn(0xb1, offset(choices, contents.far)),
        10 => insn(choices.of(&[0x80, 0x81]), 0),
        11 => insn(choices.of(&[0x00, 0x01]), number(choices)),
        12 | 13 if has_slots => insn(choices.of(&[0x02, 0x03, 0x60, 0x61]), choices.below(16)),
        14 => insn(choices.of(&[0x07, 0x87]), 0),
        15 => insn(0x84, 0),
        16..=20 => arithmetic(choices),
        21..=28 => branch(choices, left),
        29 if choices.once_in(3) => insn(0x05, choices.below(left)),
        30 if choices.once_in(4) => choices.of(&[insn(0x06, 0), insn(0x06, 96), insn(0x16, 0)]),
        31 if contents.extensions => extension(choices),
        _ => insn(choices.of(&[0x20, 0x28, 0x30]), choices.below(40)),
    }
}

fn offset(choices: &mut Choices, far: bool) -> u32 {
    match choices.below(24) {
        0..=15 => choices.below(48),
        16..=20 => choices.below(200),
        21 => choices.below(10_000),
        22 => choices.of(&[32_766, 32_767, 32_768, 32_769, 65_000]),
        _ if !far => choices.below(14),
        _ => choices.of(&[
            65_530,
            65_535,
            65_536,
            1 << 20,
            i32::MAX as u32,
            1 << 31,
            (1 << 31) + 14,
            0xffdf_ffff,
        ]),
    }
}

fn number(choices: &mut Choices) -> u32 {
    match choices.below(8) {
        0..=3 => choices.below(80),
        4 => choices.of(&[0x800, 0x86dd, 0x8100, 0xffff, 0x1_0000]),
        5 => choices.of(&[u32::MAX, u32::MAX - 20, 1 << 31, i32::MAX as u32, 0xfff0_0000]),
        _ => choices.word(),
    }
}

fn arithmetic(choices: &mut Choices) -> ClassicInsn {
    let operation = choices.of(&[0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x90, 0xa0]);
    let from_x = if choices.once_in(3) { 0x08 } else { 0 };
    let k = match operation {
        0x30 | 0x90 => number(choices).max(1),
        0x60 | 0x70 => choices.below(32),
        _ => number(choices),
    };
    insn(0x04 | operation | from_x, k)
}

fn branch(choices: &mut Choices, left: u32) -> ClassicInsn {
    let condition = choices.of(&[0x10, 0x20, 0x30, 0x40]);
    let from_x = if choices.once_in(4) { 0x08 } else { 0 };
    let mut skip = || choices.of(&[0, 0, 1, 2, 3, 7, 20, 255]).min(left - 1) as u8;
    let jt = skip();
    let jf = skip();
    ClassicInsn { code: 0x05 | condition | from_x, jt, jf, k: number(choices) }
}

fn extension(choices: &mut Choices) -> ClassicInsn {
    // Protocol, packet type, interface, queue, XOR; bytes of the network and link-layer headers.
    let k = match choices.below(7) {
        kind @ 0..=4 => 0xffff_f000 + [0, 4, 8, 24, 40][kind as usize],
        5 => 0xfff0_0000 + choices.below(40),
        _ => 0xffe0_0000 + choices.below(40),
    };
    let indirect = k < 0xffff_f000 && choices.once_in(3);
    insn(if indirect { 0x50 } else { choices.of(&[0x20, 0x28, 0x30]) }, k)
}
