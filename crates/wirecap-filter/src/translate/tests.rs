//! The translation compared with the interpreter: machine code in this process, and XDP programs in
//! the kernel.

use wirecap_testbed::privileged;

use super::user_program;
use crate::bpf::asm::{Assembler, Insn, Reg};
use crate::choices::Choices;
use crate::kernel::{self, WAYS, Way, XdpFilter};
use crate::packets::{frame, jumbo, noise};
use crate::programs::{Contents, program};
use crate::{
    ClassicInsn, CompiledFilter, Context, Filter, Interpreter, LinkType, PacketType, Unsupported,
    VlanTag, XdpTarget,
};

/// The length of an Ethernet header, the minimum length for the kernel's test run.
const TEST_RUN_BYTES_MIN: usize = 14;
/// Maximum length of one fragment in a test run.
const FRAGMENT_BYTES: usize = 3400;

fn context(choices: &mut Choices) -> Context {
    let types = [
        PacketType::Host,
        PacketType::Broadcast,
        PacketType::Multicast,
        PacketType::OtherHost,
        PacketType::Outgoing,
    ];
    let vlan = choices.once_in(2).then(|| VlanTag { tpid: 0x88a8, tci: choices.word() as u16 });
    Context {
        ifindex: choices.word(),
        queue: choices.below(64),
        packet_type: choices.of(&types),
        vlan,
    }
}

fn filter(insns: &[(u16, u32)]) -> Filter {
    let insns = insns.iter().map(|&(code, k)| ClassicInsn { code, jt: 0, jf: 0, k }).collect();
    Filter::from_program(insns, LinkType::ETHERNET).expect("it is sound")
}

/// The result of the interpreter, which machine code must return as well.
#[track_caller]
fn result(filter: &Filter, data: &[u8], wire_len: u32, context: &Context) -> u32 {
    let result =
        Interpreter::new(filter).expect("user space has it").matches(data, wire_len, context);
    let compiled = CompiledFilter::new(filter).expect("user space has it");
    assert!(compiled.is_machine_code() || cfg!(any(miri, not(target_arch = "x86_64"))));
    assert_eq!(
        compiled.matches(data, wire_len, context),
        result,
        "{data:02x?} {context:?}\n{filter}"
    );
    result
}

#[test]
fn machine_code_decides_as_the_interpreter_does() {
    let mut choices = Choices::from_seed(12, 1 << 23);
    let mut matched = 0;
    let mut rejected = 0;

    for round in 0..if cfg!(miri) { 10 } else { 2000 } {
        let extensions = round % 2 == 0;
        let contents = Contents { insns_max: 60, slots_stored_first: false, extensions, far: true };
        let filter = program(&mut choices, contents);

        for _ in 0..3 {
            for packet in [noise(&mut choices), frame(&mut choices)] {
                let context = context(&mut choices);
                let result = result(&filter, &packet.data, packet.wire_len, &context);
                *if result > 0 { &mut matched } else { &mut rejected } += 1;
            }
        }
    }

    assert!(!choices.is_used_up());
    assert!(
        cfg!(miri) || matched > 1000 && rejected > 1000,
        "{matched} matched, {rejected} did not"
    );
}

#[test]
fn the_properties_of_a_packet_have_the_kernels_numbers() {
    let vlan = Some(VlanTag { tpid: 0x88a8, tci: 0x1234 });
    let tagged = Context { ifindex: 7, queue: 4, packet_type: PacketType::Outgoing, vlan };

    for (extension, with_tag, without) in
        [(4, 4, 4), (8, 7, 7), (24, 5, 5), (44, 0x1234, 0), (48, 1, 0), (60, 0x88a8, 0)]
    {
        let filter = filter(&[(0x20, 0xffff_f000 + extension), (0x16, 0)]);
        assert_eq!(result(&filter, &[0; 60], 60, &tagged), with_tag, "{filter}");
        assert_eq!(
            result(&filter, &[0; 60], 60, &Context { vlan: None, ..tagged }),
            without,
            "{filter}"
        );
    }
}

#[test]
fn programs_in_the_kernel_decide_as_the_interpreter_does() {
    if !privileged() {
        return;
    }

    let mut choices = Choices::from_seed(13, 1 << 22);
    let mut loaded = 0;

    for round in 0..300 {
        let extensions = round % 2 == 0;
        let contents =
            Contents { insns_max: 60, slots_stored_first: false, extensions, far: false };
        let filter = program(&mut choices, contents);
        let interpreter = Interpreter::new(&filter).expect("user space has it");

        for way in WAYS {
            let xdp = XdpFilter::new(&filter, way).expect("the kernel has it");
            loaded += 1;

            let packets = [
                noise(&mut choices),
                frame(&mut choices),
                frame(&mut choices),
                jumbo(&mut choices),
            ];
            let fits =
                |len| len >= TEST_RUN_BYTES_MIN && (way.multi_buffer || len <= FRAGMENT_BYTES);
            for data in packets.map(|packet| packet.data).iter().filter(|data| fits(data.len())) {
                let expected = interpreter.matches(data, data.len() as u32, &kernel::context(data));
                assert_eq!(xdp.matches(data), expected, "{way:?}: {data:02x?}\n{filter}");
            }
        }
    }

    assert!(!choices.is_used_up() && loaded == 300 * WAYS.len());
}

/// Whether an XDP program can be made of a filter.
fn emitted(filter: &Filter, way: Way, address: Option<[u8; 6]>) -> Result<(), Unsupported> {
    let mut asm = Assembler::new();
    let context = Reg::R6;
    let reject = asm.label();
    filter
        .emit_xdp(&mut asm, &XdpTarget { context, reject, multi_buffer: way.multi_buffer, address })
}

#[test]
fn an_xdp_program_reads_the_first_65535_bytes() {
    let network = 0xfff0_0000;
    // Words, half-words and bytes, from the beginning and after the longest Ethernet header.
    for (code, base, most) in [
        (0x20, 0, 65_531),
        (0x28, 0, 65_533),
        (0x30, 0, 65_534),
        (0x40, 0, 65_531),
        (0x48, 0, 65_533),
        (0x50, 0, 65_534),
        (0xb1, 0, 65_534),
        (0x20, network, 65_513),
        (0x48, network, 65_515),
        (0x30, network, 65_516),
    ] {
        for way in WAYS {
            let reading = |offset| emitted(&filter(&[(code, base + offset), (0x16, 0)]), way, None);
            assert_eq!(reading(most), Ok(()), "{code:#x} at {base:#x} + {most}");
            assert_eq!(
                reading(most + 1),
                Err(Unsupported::Offset { offset: most + 1, most }),
                "{code:#x}"
            );
        }
    }
}

#[test]
fn properties_that_an_xdp_program_does_not_have_are_rejected() {
    let address = Some([2, 0, 0, 0, 0, 1]);
    for way in WAYS {
        let reading = |extension: u32, address| {
            emitted(&filter(&[(0x20, 0xffff_f000 + extension), (0x16, 0)]), way, address)
        };
        for extension in [0, 4, 8, 24, 36, 40, 56] {
            assert_eq!(reading(extension, address), Ok(()), "{extension}");
        }

        for extension in [20, 28, 32, 44, 48, 52, 60] {
            assert!(
                matches!(reading(extension, address), Err(Unsupported::Extension { .. })),
                "{extension}"
            );
        }

        assert!(
            matches!(reading(4, None), Err(Unsupported::Extension { .. })),
            "no address to compare with"
        );
    }
}

/// Half-words of the packet, each of which an XDP program checks against the packet's end.
fn loads(count: usize) -> Vec<(u16, u32)> {
    vec![(0x28, 12); count]
}

#[test]
fn jumps_count_only_on_paths_that_are_possible() {
    const MANY: usize = 9000;
    for way in WAYS {
        let emitted = |insns: &[(u16, u32)]| emitted(&filter(insns), way, None);

        // Jumps over the loads, and returns before them.
        assert_eq!(
            emitted(&[&[(0x05, MANY as u32)], &*loads(MANY), &[(0x06, 96)]].concat()),
            Ok(())
        );
        assert_eq!(emitted(&[&[(0x06, 96)], &*loads(MANY), &[(0x06, 96)]].concat()), Ok(()));

        let through = emitted(&[&*loads(MANY), &[(0x06, 96)]].concat());
        assert!(
            matches!(through, Err(Unsupported::TooManyJumps { jumps: 9001.., .. })),
            "{through:?}"
        );
    }
}

#[test]
fn a_branch_to_the_next_instruction_is_one_jump() {
    let len = |jt, jf| {
        let insn = |code, k| ClassicInsn { code, jt: 0, jf: 0, k };
        let branch = ClassicInsn { code: 0x15, jt, jf, k: 0x0800 };
        let insns = vec![insn(0x28, 12), branch, insn(0x06, 96), insn(0x06, 64)];
        user_program(&Filter::from_program(insns, LinkType::ETHERNET).expect("it is sound"))
            .unwrap()
            .len()
    };
    assert_eq!(len(0, 1), len(1, 0));
}

#[test]
fn a_match_in_the_first_fragment_is_not_looked_at_again() {
    let mut asm = Assembler::new();
    let context = Reg::R6;
    let reject = asm.label();
    let target = XdpTarget { context, reject, multi_buffer: true, address: None };
    filter(&[(0x28, 12), (0x06, 96)]).emit_xdp(&mut asm, &target).unwrap();
    asm.exit().bind(reject).mov32(Reg::R0, 0).exit();

    let code = asm.finish().unwrap();
    let matches = |insn: &Insn| insn.opcode == 0xb4 && insn.constant == 96;
    let first = code.iter().position(matches).unwrap();
    assert!(code[first + 1..].iter().any(matches), "the second pass, in which the kernel reads");

    // An unconditional jump to the end of the filter.
    assert_eq!(
        (code[first + 1].opcode, code[first + 1].offset as usize),
        (0x05, code.len() - first - 5)
    );
}

/// A loop that runs three times leaves all scratch memory as it is.
#[test]
fn loops_and_scratch_memory_do_not_disturb_each_other() {
    for slot in 0..16 {
        let insns = [
            (0x00, 0, 42),
            (0x02, 0, slot),
            (0x01, 0, 3),
            // The loop: X decreases to 0.
            (0x87, 0, 0),
            (0x14, 0, 1),
            (0x07, 0, 0),
            (0x15, 1, 0),
            (0x05, 0, 5_u32.wrapping_neg()),
            (0x60, 0, slot),
            (0x16, 0, 0),
        ];
        let insns = insns.map(|(code, jt, k)| ClassicInsn { code, jt, jf: 0, k }).to_vec();
        let filter = Filter::from_program(insns, LinkType::ETHERNET).expect("it is sound");
        assert_eq!(result(&filter, &[0; 60], 60, &Context::default()), 42, "slot {slot}");
    }
}
