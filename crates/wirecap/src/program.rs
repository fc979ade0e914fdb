//! The XDP program of a capture: stamps the packets of its queues, chooses among the rings of each, and
//! redirects them to the sockets of those.
//!
//! It is attached by itself, without a dispatcher in front: a tail call costs 12 ns where indirect
//! jumps are mitigated (retpolines), 6 % of what the kernel needs to receive a 60-byte packet.

use crate::bpf::asm::{Assembler, Condition, Helper, Insn, Reg, Size};
use crate::bpf::{BpfError, LoadOptions, Map, Program, ProgramKind, XDP_PASS, xdp_md};
use crate::steer::Steering;

/// The program's name, by which a user finds it in `bpftool prog`.
const NAME: &str = "wirecap";

/// Bytes of metadata that the program puts in front of a packet: its time.
const STAMP_BYTES: i32 = size_of::<u64>() as i32;

/// What the program is to do.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// Where packets go: the socket at the key of their ring, or the host if there is none.
    pub(crate) sockets: &'a Map,
    /// The queues that have sockets, and how many.
    pub(crate) steering: &'a Steering,
    /// How many queues the interface has.
    pub(crate) rx_queues: u32,
    /// With times: a one-value array that becomes nonzero where the driver has no room for metadata.
    pub(crate) stamp_failed: Option<&'a Map>,
}

/// Loads the program for `plan`; for frames of several fragments as well, unless the kernel does not know
/// them (before Linux 5.18).
pub(crate) fn load(plan: &Plan<'_>) -> Result<Program, BpfError> {
    let code = assemble(plan);
    let load =
        |fragments| Program::load(ProgramKind::Xdp, NAME, &code, LoadOptions { fragments, device: None });
    load(true).or_else(|error| if error.errno() == Some(libc::EINVAL) { load(false) } else { Err(error) })
}

fn assemble(plan: &Plan<'_>) -> Vec<Insn> {
    let mut program = Assembler::new();
    program.mov(Reg::R6, Reg::R1);
    let queues = plan.steering.queues();
    if queues.len() < plan.rx_queues as usize {
        pass_other_queues(&mut program, queues);
    }
    // Here is the place of a filter: the packet is as it came, R6 is the context, and no other register is
    // in use.
    if let Some(stamp_failed) = plan.stamp_failed {
        stamp(&mut program, stamp_failed);
    }
    plan.steering.find_key(&mut program);
    program.load_map_fd(Reg::R1, plan.sockets);
    // Where the ring's socket is gone, the packet goes to the host.
    program.mov(Reg::R3, XDP_PASS);
    program.call(Helper::RedirectMap);
    program.exit();
    program.finish().expect("every label is bound once, and near")
}

fn pass_other_queues(program: &mut Assembler, queues: &[u32]) {
    let ours = program.label();
    program.load(Size::Word, Reg::R2, Reg::R6, xdp_md::RX_QUEUE_INDEX);
    for &queue in queues {
        program.jump_if32(Reg::R2, Condition::Eq, queue.cast_signed(), ours);
    }
    program.mov(Reg::R0, XDP_PASS);
    program.exit();
    program.bind(ours);
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
    program.load(Size::Word, Reg::R2, Reg::R6, xdp_md::DATA_META);
    program.load(Size::Word, Reg::R3, Reg::R6, xdp_md::DATA);
    program.mov(Reg::R4, Reg::R2).add(Reg::R4, STAMP_BYTES);
    program.jump_if(Reg::R4, Condition::Gt, Reg::R3, failed);
    program.store(Size::Double, Reg::R2, 0, Reg::R0);
    program.jump(done);
    program.bind(failed);
    program.load_map_value(Reg::R2, stamp_failed, 0);
    program.store(Size::Word, Reg::R2, 0, 1);
    program.bind(done);
}
