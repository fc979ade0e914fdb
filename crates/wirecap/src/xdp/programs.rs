//! The XDP program of a capture: rejects the non-matching packets of its queues, timestamps the
//! others, selects one of the queue's rings, and redirects to that ring's socket.
//!
//! If several processes capture from one interface, a dispatcher passes each queue's packets to the
//! program of the process that has the queue.
//!
//! Programs are loaded without CAP_PERFMON and CAP_SYS_ADMIN, also by root: the verifier then
//! rejects programs that could disclose kernel memory, also by speculative execution, and makes
//! others safe. So the programs add no register to an address: steering has code for zero, one and
//! two VLAN tags, and the kernel copies what follows IPv4 options and IPv6 extension headers. Nor
//! do they store to the stack on the usual paths, because the processor would wait there for all
//! earlier instructions (8 to 10 ns per packet): the keys of the counts and of the clock are in
//! maps. Non-matching packets are counted by queue and CPU (0 to 1 ns; an atomic count takes 2 to 5
//! ns); if a queue has several rings, the first ring's row has the count.

use crate::bpf::asm::{Assembler, Condition, Helper, Insn, Label, Reg, Size};
use crate::bpf::{BpfError, LoadOptions, Map, MapKind, Program, ProgramKind, XDP_PASS, xdp_md};
use crate::filter::{Filter, Unsupported, XdpTarget};
use crate::steer::Steering;
use crate::xdp::clock::Clock;

/// The program's name and version, by which other captures find it; `bpftool prog` shows it.
pub(crate) const QUEUE_PROGRAM: &str = "wirecap_v1";
/// The same for a program that reads the device's clock: it is bound to the device, and no
/// dispatcher can call it.
pub(crate) const BOUND_PROGRAM: &str = "wirecap_hw_v1";
/// The same for the dispatcher. The versions change when the two become incompatible.
pub(crate) const DISPATCHER: &str = "wirecap_disp_v1";

/// Bytes of metadata that the program writes before a packet: its timestamp.
const STAMP_BYTES: i32 = size_of::<u64>() as i32;

/// Indices among the counts of a queue: non-matching packets.
pub(crate) const NOT_WANTED: usize = 0;
/// Matching packets that went to the host, because their queue has no socket.
pub(crate) const NO_SOCKET: usize = 1;
/// Captured frames for the interface's own hardware address.
pub(crate) const OWN: usize = 2;
/// Number of counts per queue.
pub(crate) const COUNTS: usize = 3;

/// What the kernel's `bpf_redirect_map` returns if it found a socket.
const XDP_REDIRECT: i32 = 4;

/// Stack offset of the key of a count, for queues beyond the first [`KEYS_MAX`].
const COUNT_KEY: i16 = -4;
/// Number of queues whose keys are in a map.
const KEYS_MAX: usize = 64;

/// The description of a program.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// The programs of all queues, which the dispatcher calls.
    pub(crate) array: &'a Map,
    /// The socket map: packets go to the socket at their ring's key, or to the host if there is
    /// none.
    pub(crate) sockets: &'a Map,
    /// The queues that have sockets, and how many.
    pub(crate) steering: &'a Steering,
    /// Packets of other queues are ignored.
    pub(crate) names_queues: bool,
    /// Counts by queue and CPU: non-matching packets ([`NOT_WANTED`]), and packets without a socket
    /// ([`NO_SOCKET`]).
    pub(crate) counts: &'a Map,
    /// The filter; all packets, if there is none.
    pub(crate) filter: Option<FilterPlan<'a>>,
    /// The interface's hardware address, if frames for it are counted ([`OWN`]).
    pub(crate) own: Option<[u8; 6]>,
    /// How packets get timestamps, if requested.
    pub(crate) stamping: Option<Stamping<'a>>,
}

/// How packets get their timestamps.
#[derive(Debug)]
pub(crate) struct Stamping<'a> {
    pub(crate) clock: &'a Clock,
    /// An array of one value, which becomes nonzero if the driver has no room for metadata.
    pub(crate) failed: &'a Map,
}

/// The program's filter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FilterPlan<'a> {
    pub(crate) filter: &'a Filter,
    /// The interface's Ethernet address.
    pub(crate) address: Option<[u8; 6]>,
    /// The verdict for non-matching packets.
    pub(crate) verdict: i32,
}

/// Why there is no program.
#[derive(Debug)]
pub(crate) enum LoadError {
    /// The filter cannot be a part of it.
    Filter(Unsupported),
    /// The kernel rejected it.
    Kernel(BpfError),
}

/// Loads the program for `plan`.
pub(crate) fn load(plan: &Plan<'_>) -> Result<Program, LoadError> {
    let device = plan.stamping.as_ref().and_then(|stamping| stamping.clock.bound_to());
    let name = if device.is_some() { BOUND_PROGRAM } else { QUEUE_PROGRAM };
    let keys = keys(plan).map_err(LoadError::Kernel)?;
    let load = |fragments| {
        let code = assemble(plan, &keys, fragments).map_err(LoadError::Filter)?;
        load_code(name, &code, LoadOptions { fragments, device }).map_err(LoadError::Kernel)
    };
    match load(true) {
        Err(LoadError::Kernel(error)) if knows_no_fragments(&error) => load(false),
        loaded => loaded,
    }
}

/// Loads the dispatcher: it calls the program at the queue's index in `array`, and passes packets
/// of queues without one.
pub(crate) fn load_dispatcher(array: &Map) -> Result<Program, BpfError> {
    let mut program = Assembler::new();
    program.load(Size::Word, Reg::R3, Reg::R1, xdp_md::RX_QUEUE_INDEX);
    program.tail_call(Reg::R1, array, Reg::R3);
    program.mov(Reg::R0, XDP_PASS);
    program.exit();
    let code = program.finish().expect("there are no labels");
    let load = |fragments| load_code(DISPATCHER, &code, LoadOptions { fragments, device: None });
    load(true).or_else(|error| if knows_no_fragments(&error) { load(false) } else { Err(error) })
}

/// Loads a program that passes all packets, to replace the program of a capture that no longer uses
/// the interface.
pub(crate) fn load_pass(array: &Map) -> Result<Program, BpfError> {
    let mut program = Assembler::new();
    // For nothing but that the array is found with the program.
    program.load_map_fd(Reg::R0, array).mov(Reg::R0, XDP_PASS).exit();
    let code = program.finish().expect("there are no labels");
    let load = |fragments| load_code(QUEUE_PROGRAM, &code, LoadOptions { fragments, device: None });
    load(true).or_else(|error| if knows_no_fragments(&error) { load(false) } else { Err(error) })
}

/// All programs in one array must be alike in whether they know fragments.
fn load_code(name: &str, code: &[Insn], options: LoadOptions) -> Result<Program, BpfError> {
    Program::load(ProgramKind::Xdp, name, code, options)
}

/// Whether the kernel may be older than Linux 5.18, which introduced frames of several fragments.
fn knows_no_fragments(error: &BpfError) -> bool {
    !matches!(error, BpfError::Rejected { .. }) && error.errno() == Some(libc::EINVAL)
}

/// A map whose value has the numbers of the plan's queues.
fn keys(plan: &Plan<'_>) -> Result<Map, BpfError> {
    let queues = plan.steering.queues();
    let numbers: Vec<u8> =
        queues.iter().take(KEYS_MAX).flat_map(|queue| queue.to_ne_bytes()).collect();
    let keys = Map::create(MapKind::Array, "wirecap_keys", numbers.len() as u32, 1)?;
    keys.update(0, &numbers)?;
    Ok(keys)
}

/// `fragments`: the program receives frames of several fragments.
fn assemble(plan: &Plan<'_>, keys: &Map, fragments: bool) -> Result<Vec<Insn>, Unsupported> {
    let mut program = Assembler::new();

    // For nothing but that the array is found with the program.
    program.load_map_fd(Reg::R0, plan.array);
    program.mov(Reg::R6, Reg::R1);

    if plan.names_queues {
        pass_other_queues(&mut program, plan.steering.queues());
    }
    if let Some(filter) = plan.filter {
        turn_away(&mut program, plan, filter, keys, fragments)?;
    }
    if let Some(own) = plan.own {
        count_own(&mut program, plan, own, keys);
    }
    if let Some(stamping) = &plan.stamping {
        stamp(&mut program, stamping);
    }

    plan.steering.find_key(&mut program);
    program.load_map_fd(Reg::R1, plan.sockets);

    // If the ring's socket is closed, the packet goes to the host.
    program.mov(Reg::R3, XDP_PASS);
    program.call(Helper::RedirectMap);

    let found = program.label();
    program.jump_if(Reg::R0, Condition::Eq, XDP_REDIRECT, found);
    program.mov(Reg::R7, Reg::R0);

    let rare = count(&mut program, plan, keys, NO_SOCKET);
    program.mov(Reg::R0, Reg::R7);
    program.bind(found).exit();
    rare.write(&mut program);

    Ok(program.finish().expect("every label is bound once, and near"))
}

/// Ends the program for packets that the filter rejects, and counts them.
fn turn_away(
    program: &mut Assembler,
    plan: &Plan<'_>,
    filter: FilterPlan<'_>,
    keys: &Map,
    fragments: bool,
) -> Result<(), Unsupported> {
    let [reject, wanted] = [(); 2].map(|()| program.label());
    let target =
        XdpTarget { context: Reg::R6, reject, multi_buffer: fragments, address: filter.address };
    filter.filter.emit_xdp(program, &target)?;
    program.jump(wanted).bind(reject);

    let rare = count(program, plan, keys, NOT_WANTED);
    program.mov(Reg::R0, filter.verdict).exit();
    rare.write(program);
    program.bind(wanted);

    Ok(())
}

/// Counts a frame for the hardware address `own`.
fn count_own(program: &mut Assembler, plan: &Plan<'_>, own: [u8; 6], keys: &Map) {
    let done = program.label();
    let [a, b, c, d, e, f] = own;
    let first = i32::from_ne_bytes([a, b, c, d]);
    let last = i32::from(u16::from_ne_bytes([e, f]));

    program.load(Size::Word, Reg::R2, Reg::R6, xdp_md::DATA);
    program.load(Size::Word, Reg::R3, Reg::R6, xdp_md::DATA_END);
    program.mov(Reg::R4, Reg::R2).add(Reg::R4, own.len() as i32);
    program.jump_if(Reg::R4, Condition::Gt, Reg::R3, done);
    program.load(Size::Word, Reg::R5, Reg::R2, 0).jump_if32(Reg::R5, Condition::Ne, first, done);
    program.load(Size::Half, Reg::R5, Reg::R2, 4).jump_if32(Reg::R5, Condition::Ne, last, done);

    let rare = count(program, plan, keys, OWN);
    program.jump(done);
    rare.write(program);
    program.bind(done);
}

/// Adds one to a count of the packet's queue. Leaves nothing in R0 to R5. The result is to be
/// written after the code that follows.
#[must_use]
fn count(program: &mut Assembler, plan: &Plan<'_>, keys: &Map, place: usize) -> RareKey {
    let counted = program.label();
    let rare = RareKey { wanted: program.label(), found: program.label() };
    let offset = (place * size_of::<u64>()) as i16;
    let numbered: Vec<_> =
        (0..).zip(plan.steering.queues().iter().copied()).take(KEYS_MAX).collect();

    program.load(Size::Word, Reg::R2, Reg::R6, xdp_md::RX_QUEUE_INDEX);
    search_key(program, keys, &numbered, rare, true);
    program.bind(rare.found);
    program.load_map_fd(Reg::R1, plan.counts).call(Helper::MapLookup);
    program.jump_if(Reg::R0, Condition::Eq, 0, counted);
    program.load(Size::Double, Reg::R1, Reg::R0, offset).add(Reg::R1, 1);
    program.store(Size::Double, Reg::R0, offset, Reg::R1).bind(counted);

    rare
}

/// The key of a count for a queue that [`search_key`] does not find.
#[derive(Clone, Copy)]
struct RareKey {
    wanted: Label,
    found: Label,
}

impl RareKey {
    /// Puts the address of the packet's queue number, which is in R2, into R2.
    fn write(self, program: &mut Assembler) {
        program.bind(self.wanted).store(Size::Word, Reg::R10, COUNT_KEY, Reg::R2);
        program.mov(Reg::R2, Reg::R10).add(Reg::R2, i32::from(COUNT_KEY)).jump(self.found);
    }
}

/// Puts the address of the number in R2 into R2, if it is among those of the queues, each with its
/// index in the map: a binary search. `is_last`: the next instruction is where the search ends.
///
/// Without CAP_PERFMON, the processor waits for all earlier instructions after a store to unused
/// stack (8 ns per packet), and an address in a map that is computed from the number makes the
/// verifier follow 25 times as many paths. So the numbers are in a map, and the program branches to
/// the constant address of each.
fn search_key(
    program: &mut Assembler,
    keys: &Map,
    queues: &[(u32, u32)],
    rare: RareKey,
    is_last: bool,
) {
    match *queues {
        [] => _ = program.jump(rare.wanted),
        [(index, queue)] => {
            program.jump_if32(Reg::R2, Condition::Ne, queue.cast_signed(), rare.wanted);
            program.load_map_value(Reg::R2, keys, index * size_of::<u32>() as u32);
            if !is_last {
                program.jump(rare.found);
            }
        }
        _ => {
            let (lower, upper) = queues.split_at(queues.len() / 2);
            let is_upper = program.label();
            program.jump_if32(Reg::R2, Condition::Ge, upper[0].1.cast_signed(), is_upper);
            search_key(program, keys, lower, rare, false);
            program.bind(is_upper);
            search_key(program, keys, upper, rare, is_last);
        }
    }
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

/// Writes the packet's time, in nanoseconds of CLOCK_TAI or of the device's clock, directly before
/// it.
fn stamp(program: &mut Assembler, stamping: &Stamping<'_>) {
    let failed = program.label();
    let done = program.label();
    program.mov(Reg::R1, Reg::R6).mov(Reg::R2, -STAMP_BYTES);
    program.call(Helper::XdpAdjustMeta);
    program.jump_if(Reg::R0, Condition::Ne, 0, failed);
    stamping.clock.read(program);

    // The verifier must see that the eight bytes are between the metadata's start and the packet.
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

#[cfg(all(test, not(loom), not(miri)))]
mod tests;
