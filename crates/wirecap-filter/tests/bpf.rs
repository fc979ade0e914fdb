//! Tests `wirecap_filter::bpf` in the kernel: programs are assembled, loaded and attached.
//!
//! Programs run by `BPF_PROG_TEST_RUN`, or on the interfaces of a test bed.

use std::error::Error;
use std::fs::File;

use rustix::thread::capabilities;
use wirecap_filter::bpf::asm::{Alu, Assembler, Condition::*, Helper, Insn, Reg::*, Size::*};
use wirecap_filter::bpf::{
    BpfError, Link, LiveFrames, LoadOptions, Map, MapKind, Program, ProgramKind, XDP_DROP,
    XDP_PASS, XdpMode, links, programs_named, xdp_md,
};
use wirecap_testbed::{Counters, Generator, Load, Namespace, Traffic, VethPair, privileged};

const FRAME: [u8; 60] = [0x5a; 60];

fn program(write: impl FnOnce(&mut Assembler)) -> Vec<Insn> {
    let mut asm = Assembler::new();
    write(&mut asm);
    asm.finish().expect("labels are bound")
}

fn load(name: &str, write: impl FnOnce(&mut Assembler)) -> Program {
    Program::load(ProgramKind::Xdp, name, &program(write), LoadOptions::default())
        .unwrap_or_else(|error| panic!("{error}: {:?}", error.source()))
}

fn verdict_of(program: &Program) -> u32 {
    program.test_run(&FRAME, 1).expect("a test run").verdict
}

#[test]
fn a_program_computes_the_results_of_its_instructions() {
    if !privileged() {
        return;
    }
    // Each step depends on the one before; the result is 42 only if all are right.
    let code = program(|asm| {
        let loop_start = asm.label();
        let wrong = asm.label();
        asm.load_imm64(R2, 0x1122_3344_5566_7788)
            .mov(R3, R2)
            .to_big_endian(Double, R3)
            .to_big_endian(Double, R3)
            .jump_if(R2, Ne, R3, wrong)
            .store(Double, R10, -8, R2)
            .load(Half, R4, R10, -8)
            .jump_if32(R4, Ne, 0x7788, wrong)
            .mov(R5, 3)
            .atomic_add(Double, R10, -8, R5)
            .atomic_fetch_add(Double, R10, -8, R5)
            .load(Byte, R4, R10, -8)
            .jump_if(R4, Ne, 0x8e, wrong)
            .shift_right(R5, 56)
            .jump_if(R5, Ne, 0x11, wrong);
        asm.mov(R0, 0).mov(R1, 0);
        asm.bind(loop_start).add(R0, 7).add(R1, 1).jump_if(R1, Lt, 8, loop_start);
        asm.alu64(Alu::Mod, R0, 15).neg(R0).alu64(Alu::Mul, R0, -4).alu32(Alu::ShiftLeft, R0, 1);
        asm.sub(R0, 46).exit();
        asm.bind(wrong).mov(R0, 1).exit();
    });
    // The verifier follows loops only for a loader with CAP_PERFMON.
    let program =
        Program::load_trusted(ProgramKind::Xdp, "arithmetic", &code, LoadOptions::default())
            .unwrap_or_else(|error| panic!("{error}: {:?}", error.source()));
    assert_eq!(verdict_of(&program), 42);
}

#[test]
fn a_test_run_returns_the_frame_as_modified() {
    if !privileged() {
        return;
    }
    let program = load("writes", |asm| {
        let short = asm.label();
        asm.load(Word, R2, R1, xdp_md::DATA)
            .load(Word, R3, R1, xdp_md::DATA_END)
            .mov(R4, R2)
            .add(R4, 14)
            .jump_if(R4, Gt, R3, short)
            .store(Byte, R2, 12, 0x88)
            .mov(R2, -20)
            .call(Helper::XdpAdjustTail);
        asm.bind(short).mov(R0, XDP_PASS).exit();
    });
    let run = program.test_run(&FRAME, 1).expect("a test run");
    assert_eq!(run.verdict, XDP_PASS as u32);
    assert_eq!(run.frame.len(), 40);
    assert_eq!((run.frame[11], run.frame[12], run.frame[13]), (0x5a, 0x88, 0x5a));
}

#[test]
fn per_cpu_counters_add_up_to_the_number_of_runs() {
    if !privileged() {
        return;
    }
    let map = Map::create(MapKind::PercpuArray, "counters", 16, 2).expect("a map");
    let program = load("counts", |asm| {
        let none = asm.label();
        asm.store(Word, R10, -4, 1)
            .mov(R2, R10)
            .add(R2, -4)
            .load_map_fd(R1, &map)
            .call(Helper::MapLookup)
            .jump_if(R0, Eq, 0, none)
            .mov(R1, 1)
            .atomic_add(Double, R0, 8, R1);
        asm.bind(none).mov(R0, XDP_DROP).exit();
    });
    program.test_run(&FRAME, 1000).expect("a test run");
    assert_eq!(map.lookup_sums(0).expect("a lookup"), [0, 0]);
    assert_eq!(map.lookup_sums(1).expect("a lookup"), [0, 1000]);

    map.update(1, &[0; 16]).expect("an update");
    assert_eq!(map.lookup_sums(1).expect("a lookup"), [0, 0]);
}

#[test]
fn user_space_and_program_share_an_array() {
    if !privileged() {
        return;
    }
    let map = Map::create(MapKind::Array, "shared", 8, 1).expect("a map");
    map.update(0, &77_u64.to_ne_bytes()).expect("an update");
    let program = load("reads", |asm| {
        asm.load_map_value(R1, &map, 4).load(Word, R0, R1, -4).store(Word, R1, 0, 5).exit();
    });
    assert_eq!(verdict_of(&program), 77);
    assert_eq!(map.lookup(0).expect("a lookup"), [[77, 0, 0, 0, 5, 0, 0, 0]]);
}

#[test]
fn a_tail_call_goes_to_the_slot_and_falls_through_when_it_is_empty() {
    if !privileged() {
        return;
    }
    let programs = Map::create(MapKind::ProgArray, "slots", 4, 4).expect("a map");
    let dispatcher = load("dispatcher", |asm| {
        asm.mov(R6, R1).tail_call(R6, &programs, 2).mov(R0, XDP_PASS).exit();
    });
    assert_eq!(verdict_of(&dispatcher), XDP_PASS as u32);

    let drop_all = load("drop_all", |asm| _ = asm.mov(R0, XDP_DROP).exit());
    programs.update_fd(2, &drop_all).expect("an update");
    assert_eq!(verdict_of(&dispatcher), XDP_DROP as u32);

    programs.delete(2).expect("a deletion");
    assert_eq!(verdict_of(&dispatcher), XDP_PASS as u32);
}

#[test]
fn a_rejected_program_comes_with_the_verifiers_reason() {
    if !privileged() {
        return;
    }
    let code = program(|asm| _ = asm.mov(R0, R3).exit());
    let error =
        Program::load(ProgramKind::Xdp, "broken", &code, LoadOptions::default()).unwrap_err();
    let BpfError::Rejected { program, log, .. } = &error else { panic!("{error:?}") };
    assert_eq!(program, "broken");
    assert!(log.contains("R3 !read_ok"), "{log}");
    assert_eq!(error.errno(), Some(libc::EACCES));
}

#[test]
fn bpf_objects_are_found_through_their_users() {
    if !privileged() {
        return;
    }
    let name = format!("find_{}", std::process::id());
    let map = Map::create(MapKind::Xskmap, &name, 4, 8).expect("a map");
    let program = load(&name, |asm| {
        asm.load(Word, R2, R1, xdp_md::RX_QUEUE_INDEX)
            .load_map_fd(R1, &map)
            .mov(R3, XDP_PASS)
            .call(Helper::RedirectMap)
            .exit();
    });
    let found = programs_named(&name).expect("a search");
    assert_eq!(found.len(), 1);
    let info = program.info().expect("its description");
    let found = &found[0];
    assert_eq!(found.info().expect("its description"), info);
    assert_eq!((found.name(), info.kind), (name.as_str(), ProgramKind::Xdp as u32));

    assert_eq!(info.map_ids, [map.info().expect("its description").id]);
    let same_map = Map::by_id(info.map_ids[0]).expect("the map");
    let map_info = same_map.info().expect("its description");
    assert_eq!((map_info.name, map_info.kind), (name, MapKind::Xskmap as u32));
    assert_eq!((map_info.key_bytes, map_info.value_bytes, map_info.max_entries), (4, 4, 8));

    let attached = links().expect("a search");
    assert!(attached.iter().all(|(_, link)| link.program_id != info.id), "nothing was attached");
}

#[test]
fn live_frames_run_the_requested_number_of_times() {
    if !privileged() {
        return;
    }
    let map = Map::create(MapKind::PercpuArray, "live", 8, 1).expect("a map");
    let program = load("live", |asm| {
        let none = asm.label();
        asm.store(Word, R10, -4, 0)
            .mov(R2, R10)
            .add(R2, -4)
            .load_map_fd(R1, &map)
            .call(Helper::MapLookup)
            .jump_if(R0, Eq, 0, none)
            .load(Double, R1, R0, 0)
            .add(R1, 1)
            .store(Double, R0, 0, R1);
        asm.bind(none).mov(R0, XDP_DROP).exit();
    });
    let frames =
        LiveFrames { frame: &FRAME, frame_count: 10_007, batch_frames: 64, ingress_ifindex: None };
    program.run_live(frames).expect("a run");
    assert_eq!(map.lookup_sums(0).expect("a lookup"), [10_007]);
}

#[test]
fn sizes_and_names_are_checked_before_the_kernel_is_called() {
    let error = Map::create(MapKind::Array, "name with spaces", 4, 1).unwrap_err();
    assert!(matches!(error, BpfError::BadName { .. }), "{error}");
    let error = Map::create(MapKind::Array, "sixteen_letters_", 4, 1).unwrap_err();
    assert!(matches!(error, BpfError::BadName { .. }), "{error}");
    if !privileged() {
        return;
    }
    let map = Map::create(MapKind::Array, "sizes", 4, 1).expect("a map");
    let error = map.update(0, &[0; 5]).unwrap_err();
    assert_eq!(error.to_string(), "a value of map sizes has 4 bytes, not 5");
}

#[test]
fn the_kernels_rejection_is_reported_with_its_reason() {
    if !privileged() {
        return;
    }
    let sockets = Map::create(MapKind::Xskmap, "sockets", 4, 1).expect("a map");
    let not_a_socket = File::open("/dev/null").expect("the null device");
    let error = sockets.update_fd(0, not_a_socket).unwrap_err();
    assert_eq!(error.to_string(), "cannot update map sockets");
    assert!(error.source().expect("a cause").to_string().contains("non-socket"));
    assert_eq!(Map::by_id(u32::MAX - 1).unwrap_err().errno(), Some(libc::ENOENT));
}

#[test]
fn a_link_holds_its_program_and_can_exchange_it() {
    if !privileged() {
        return;
    }
    let namespace = Namespace::new().expect("a namespace");
    let pair = VethPair::new((&namespace, "a0"), (&namespace, "a1"), 1, 1500).expect("a pair");
    let mut counters = Counters::of(&pair.receiver).expect("counters");
    let mut generator =
        Generator::new(&pair.sender, &Traffic::to(&pair.receiver)).expect("a generator");
    let drop_all = load("drop_all", |asm| _ = asm.mov(R0, XDP_DROP).exit());
    let pass_all = load("pass_all", |asm| _ = asm.mov(R0, XDP_PASS).exit());
    let attach = |program| {
        let attach = || Link::attach_xdp(program, pair.receiver.index, XdpMode::Native);
        namespace.run_in(attach).expect("in the namespace")
    };
    let link = attach(&drop_all).expect("attached");
    let busy = attach(&pass_all).expect_err("one program at a time");
    assert!(matches!(busy, BpfError::InterfaceBusy { .. }), "{busy}");

    generator.send(&[Load::new(0, 100)]).expect("sent");
    link.update(&pass_all).expect("exchanged");
    generator.send(&[Load::new(0, 10)]).expect("sent");
    let counts = counters.since_start().expect("counters").rx_queues[0];
    assert_eq!((counts.xdp_drops, counts.passed()), (100, 10));

    let info = link.info().expect("its description");
    assert_eq!(info.program_id, pass_all.info().expect("its description").id);
    assert_eq!(info.ifindex, pair.receiver.index);
    let same = Link::by_id(info.id).expect("the same link");
    assert!(links().expect("a search").iter().any(|(_, found)| *found == info));
    drop(link);
    assert!(attach(&drop_all).is_err(), "the second descriptor holds it still");
    drop(same);
    assert!(attach(&drop_all).is_ok());
}

#[test]
fn an_interface_that_cannot_take_the_program_is_an_error() {
    if !privileged() {
        return;
    }
    let program = load("nowhere", |asm| _ = asm.mov(R0, XDP_PASS).exit());
    let namespace = Namespace::new().expect("a namespace");
    let attach = |ifindex, mode| namespace.run_in(|| Link::attach_xdp(&program, ifindex, mode));
    let missing =
        attach(999_999, XdpMode::Native).expect("in the namespace").expect_err("no such interface");
    assert_eq!(missing.to_string(), "cannot attach an XDP program to interface 999999");
    // The loopback driver has no native XDP; generic XDP works on every interface.
    let driverless =
        attach(1, XdpMode::Native).expect("in the namespace").expect_err("no native XDP");
    assert_eq!(driverless.errno(), Some(libc::EOPNOTSUPP));
    attach(1, XdpMode::Generic).expect("in the namespace").expect("generic XDP");
}

/// Adds a register to the address of the packet, after the checks that the verifier requires.
fn with_address_arithmetic(asm: &mut Assembler) {
    let beyond = asm.label();
    asm.load(Word, R2, R1, xdp_md::DATA).load(Word, R3, R1, xdp_md::DATA_END).mov(R0, 0);
    asm.mov(R4, R2).add(R4, 1).jump_if(R4, Gt, R3, beyond);
    asm.load(Byte, R5, R2, 0).add(R2, R5);
    asm.mov(R4, R2).add(R4, 1).jump_if(R4, Gt, R3, beyond);
    asm.load(Byte, R0, R2, 0).bind(beyond).exit();
}

/// Returns the address of its context.
fn disclosing(asm: &mut Assembler) {
    asm.mov(R0, R1).exit();
}

#[test]
fn root_loads_xdp_programs_without_the_verifiers_trust() {
    if !privileged() {
        return;
    }
    // With this boot parameter, the kernel (since Linux 6.7) trusts every program as far as
    // speculation goes.
    let mitigates = !std::fs::read_to_string("/proc/cmdline").unwrap().contains("mitigations=off");
    let harmless = program(|asm| _ = asm.mov(R0, XDP_PASS).exit());
    for (needs_trust, code) in [
        (true, program(disclosing)),
        (mitigates, program(with_address_arithmetic)),
        (false, harmless),
    ] {
        let before = capabilities(None).unwrap();
        let loaded = Program::load(ProgramKind::Xdp, "untrusted", &code, LoadOptions::default());
        assert_eq!(capabilities(None).unwrap(), before);
        assert_eq!(matches!(loaded, Err(BpfError::Rejected { .. })), needs_trust, "{loaded:?}");
        Program::load_trusted(ProgramKind::Xdp, "trusted", &code, LoadOptions::default())
            .expect("the verifier trusts it");
    }
}
