//! The XDP program of a capture: stamps the packets of its queues, chooses among the rings of each, and
//! redirects them to the sockets of those.
//!
//! Where several processes capture from one interface, a dispatcher hands each queue's packets to the
//! program of the process that has the queue.

use crate::bpf::asm::{Assembler, Condition, Helper, Insn, Reg, Size};
use crate::bpf::{BpfError, LoadOptions, Map, Program, ProgramKind, XDP_PASS, xdp_md};
use crate::clock::Clock;
use crate::steer::Steering;

/// The program's name and version, by which other captures find it, and a user in `bpftool prog`.
pub(crate) const QUEUE_PROGRAM: &str = "wirecap_v1";
/// Likewise the dispatcher's. The versions change when the two no longer fit together.
pub(crate) const DISPATCHER: &str = "wirecap_disp_v1";

/// Bytes of metadata that the program puts in front of a packet: its time.
const STAMP_BYTES: i32 = size_of::<u64>() as i32;

/// What the program is to do.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// The programs of all queues: the dispatcher goes on in them.
    pub(crate) array: &'a Map,
    /// Where packets go: the socket at the key of their ring, or the host if there is none.
    pub(crate) sockets: &'a Map,
    /// The queues that have sockets, and how many.
    pub(crate) steering: &'a Steering,
    /// How many queues the interface has.
    pub(crate) rx_queues: u32,
    /// How packets get times, if they do.
    pub(crate) stamping: Option<Stamping<'a>>,
}

/// How packets get their times.
#[derive(Debug)]
pub(crate) struct Stamping<'a> {
    pub(crate) clock: &'a Clock,
    /// A one-value array that becomes nonzero where the driver has no room for metadata.
    pub(crate) failed: &'a Map,
}

/// Loads the program for `plan`.
pub(crate) fn load(plan: &Plan<'_>) -> Result<Program, BpfError> {
    load_for_fragments(QUEUE_PROGRAM, &assemble(plan))
}

/// Loads the dispatcher: it goes on in the program at the queue's index in `array`, and lets packets of
/// queues that have none pass.
pub(crate) fn load_dispatcher(array: &Map) -> Result<Program, BpfError> {
    let mut program = Assembler::new();
    program.load(Size::Word, Reg::R3, Reg::R1, xdp_md::RX_QUEUE_INDEX);
    program.tail_call(Reg::R1, array, Reg::R3);
    program.mov(Reg::R0, XDP_PASS);
    program.exit();
    load_for_fragments(DISPATCHER, &program.finish().expect("there are no labels"))
}

/// Loads a program for frames of several fragments as well, unless the kernel does not know them (before
/// Linux 5.18). All programs in one array must be alike in this.
fn load_for_fragments(name: &str, code: &[Insn]) -> Result<Program, BpfError> {
    let load =
        |fragments| Program::load(ProgramKind::Xdp, name, code, LoadOptions { fragments, device: None });
    load(true).or_else(|error| if error.errno() == Some(libc::EINVAL) { load(false) } else { Err(error) })
}

fn assemble(plan: &Plan<'_>) -> Vec<Insn> {
    let mut program = Assembler::new();
    // For nothing but that the array is found with the program.
    program.load_map_fd(Reg::R0, plan.array);
    program.mov(Reg::R6, Reg::R1);
    let queues = plan.steering.queues();
    if queues.len() < plan.rx_queues as usize {
        pass_other_queues(&mut program, queues);
    }
    // Here is the place of a filter: the packet is as it came, R6 is the context, and no other register is
    // in use.
    if let Some(stamping) = &plan.stamping {
        stamp(&mut program, stamping);
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

/// Writes the packet's time, in nanoseconds of CLOCK_TAI, right in front of it.
fn stamp(program: &mut Assembler, stamping: &Stamping<'_>) {
    let (failed, done) = (program.label(), program.label());
    program.mov(Reg::R1, Reg::R6).mov(Reg::R2, -STAMP_BYTES);
    program.call(Helper::XdpAdjustMeta);
    program.jump_if(Reg::R0, Condition::Ne, 0, failed);
    stamping.clock.read(program);
    // The verifier wants to see that the eight bytes lie between the metadata's start and the packet.
    program.load(Size::Word, Reg::R2, Reg::R6, xdp_md::DATA_META);
    program.load(Size::Word, Reg::R3, Reg::R6, xdp_md::DATA);
    program.mov(Reg::R4, Reg::R2).add(Reg::R4, STAMP_BYTES);
    program.jump_if(Reg::R4, Condition::Gt, Reg::R3, failed);
    program.store(Size::Double, Reg::R2, 0, Reg::R0);
    program.jump(done);
    program.bind(failed);
    program.load_map_value(Reg::R2, stamping.failed, 0);
    program.store(Size::Word, Reg::R2, 0, 1);
    program.bind(done);
}
