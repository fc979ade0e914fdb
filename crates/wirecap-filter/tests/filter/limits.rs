//! Programs of maximum length.

use std::error::Error;

use wirecap_filter::LinkType;
use wirecap_filter::bpf::asm::{Assembler, Reg};
use wirecap_filter::{
    ClassicInsn, CompiledFilter, Context, Filter, Interpreter, Unsupported, XdpTarget,
};
use wirecap_testbed::privileged;

use crate::kernel::{WAYS, Way, load};

fn insn(code: u16, jt: u8, jf: u8, k: u32) -> ClassicInsn {
    ClassicInsn { code, jt, jf, k }
}

/// A filter with `count` copies of `unit`, followed by accepting the packet.
fn repeated(unit: &[ClassicInsn], count: usize) -> Filter {
    let body = unit.iter().copied().cycle().take(unit.len() * count);
    let insns = body.chain([insn(0x06, 0, 0, 96)]).collect();
    Filter::from_program(insns, LinkType::ETHERNET).expect("it is sound")
}

/// A filter with `count` comparisons with ports; a frame of zeros matches none of them.
fn ports(count: u32) -> Filter {
    let compare = (1..=count)
        .flat_map(|port| [insn(0x28, 0, 0, 36), insn(0x15, 0, 1, port), insn(0x06, 0, 0, 7)]);
    Filter::from_program(compare.chain([insn(0x06, 0, 0, 96)]).collect(), LinkType::ETHERNET)
        .expect("it is sound")
}

const DIVISION_BY_X: ClassicInsn = ClassicInsn { code: 0x3c, jt: 0, jf: 0, k: 0 };
const INDIRECT: ClassicInsn = ClassicInsn { code: 0x40, jt: 0, jf: 0, k: 14 };
const HEADER_LEN: ClassicInsn = ClassicInsn { code: 0xb1, jt: 0, jf: 0, k: 14 };

#[test]
fn the_longest_translations_of_an_instruction_fit_their_memory() {
    let one = insn(0x01, 0, 0, 1);
    for (unit, count) in [
        (DIVISION_BY_X, 4095),
        (insn(0x9c, 0, 0, 0), 4095),
        (INDIRECT, 3000),
        (insn(0x6c, 0, 0, 0), 4095),
    ] {
        let mut insns = vec![one];
        insns.extend(repeated(&[unit], count).program());
        let filter = Filter::from_program(insns, LinkType::ETHERNET).expect("it is sound");
        let compiled = CompiledFilter::new(&filter).expect("nothing special");
        assert!(compiled.is_machine_code() || !cfg!(target_arch = "x86_64"));
        assert_eq!(compiled.matches(&[0; 64], 64, &Context::default()), 96);
    }
}

#[test]
fn programs_too_long_for_machine_code_are_interpreted() {
    let filter = ports(20_000);
    assert_eq!(filter.program().len(), 60_001);
    let compiled = CompiledFilter::new(&filter).expect("nothing special");
    assert!(!compiled.is_machine_code());
    assert_eq!(compiled.matches(&[0; 64], 64, &Context::default()), 96);
    let mut frame = [0; 64];
    frame[36..38].copy_from_slice(&20_000_u16.to_be_bytes());
    assert_eq!(compiled.matches(&frame, 64, &Context::default()), 7);
}

#[test]
fn long_lists_are_loaded() {
    if !privileged() {
        return;
    }
    for way in WAYS {
        let count = if way.multi_buffer { 1300 } else { 2600 };
        let xdp = load(&ports(count), way)
            .expect("not too long")
            .unwrap_or_else(|error| panic!("{:?}", error.source()));
        assert_eq!(xdp.matches(&[0; 64]), 96);
        let mut frame = [0; 64];
        frame[36..38].copy_from_slice(&(count as u16).to_be_bytes());
        assert_eq!(xdp.matches(&frame), 7);
    }
}

#[test]
fn the_longest_accepted_program_is_loaded() {
    if !privileged() {
        return;
    }
    let way = Way { multi_buffer: true };
    let units: [&[ClassicInsn]; 4] =
        [&[INDIRECT], &[HEADER_LEN, INDIRECT], &[DIVISION_BY_X], &[insn(0x28, 0, 0, 12)]];
    for unit in units {
        let mut fits = 0;
        for bit in (0..14).rev() {
            let more = fits + (1 << bit);
            fits = if emitted(&repeated(unit, more), way).is_ok() { more } else { fits };
        }
        assert!((700..9000).contains(&fits), "{fits}");
        let loaded = load(&repeated(unit, fits), way).expect("it fits");
        loaded.unwrap_or_else(|error| panic!("{fits} of {unit:?}: {:?}", error.source()));
    }
}

fn emitted(filter: &Filter, way: Way) -> Result<(), Unsupported> {
    let mut asm = Assembler::new();
    let reject = asm.label();
    let target =
        XdpTarget { context: Reg::R6, reject, multi_buffer: way.multi_buffer, address: None };
    let outcome = filter.emit_xdp(&mut asm, &target);
    assert_eq!(outcome.is_err(), asm.is_empty(), "a refused filter leaves nothing behind");
    outcome
}

#[test]
fn programs_that_the_kernel_would_reject_are_rejected_first() {
    let refusal = |filter: &Filter| emitted(filter, WAYS[0]).unwrap_err();
    assert!(matches!(refusal(&ports(20_000)), Unsupported::TooManyJumps { jumps: 40_001.., .. }));
    assert!(matches!(
        refusal(&repeated(&[insn(0x84, 0, 0, 0)], 40_000)),
        Unsupported::TooLong { .. }
    ));
    let far = refusal(&repeated(&[insn(0x28, 0, 0, 65_534)], 1));
    assert_eq!(far, Unsupported::Offset { offset: 65_534, most: 65_533 });
    let endless = Filter::from_program(
        vec![insn(0x05, 0, 0, u32::MAX), insn(0x06, 0, 0, 1)],
        LinkType::ETHERNET,
    );
    assert_eq!(refusal(&endless.expect("it is sound")), Unsupported::Loop);
}

#[test]
fn an_endless_program_ends_in_all_forms() {
    let insns = vec![insn(0x05, 0, 0, u32::MAX), insn(0x06, 0, 0, 1)];
    let filter = Filter::from_program(insns, LinkType::ETHERNET).expect("it is sound");
    let interpreted = Interpreter::new(&filter).expect("it asks for nothing");
    assert_eq!(interpreted.matches(&[0; 64], 64, &Context::default()), 0);
    let compiled = CompiledFilter::new(&filter).expect("it asks for nothing");
    assert_eq!(compiled.matches(&[0; 64], 64, &Context::default()), 0);
}

#[test]
fn filters_that_decide_nothing_are_loaded() {
    if !privileged() {
        return;
    }
    for (verdict, way) in [0, 96].into_iter().flat_map(|verdict| WAYS.map(|way| (verdict, way))) {
        let filter = Filter::from_program(vec![insn(0x06, 0, 0, verdict)], LinkType::ETHERNET)
            .expect("it is sound");
        let xdp = load(&filter, way)
            .expect("it is short")
            .unwrap_or_else(|error| panic!("{:?}", error.source()));
        assert_eq!(xdp.matches(&[0; 64]), verdict);
    }
}
