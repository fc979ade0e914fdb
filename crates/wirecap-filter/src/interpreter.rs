//! The interpreter, the reference for all other forms of a filter.

use crate::context::{Context, Unsupported};
use crate::ethernet;
use crate::filter::{Filter, NetworkHeader};
use crate::insn::{
    Base, Extension, Op, Operand, Operation, Position, Register, SLOTS, Source, Verdict, Width,
};
use crate::netlink;

/// Backward jumps after which a program is considered endless. A loop over the headers of a packet,
/// as in `protochain`, takes one per header.
pub(crate) const BACKWARD_JUMPS_MAX: u32 = 1 << 16;

/// Runs a filter instruction by instruction.
#[derive(Clone, Debug)]
pub struct Interpreter {
    ops: Vec<Op>,
    network: NetworkHeader,
}

impl Interpreter {
    /// Prepares `filter`.
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if the filter reads packet data that user space does not have.
    pub fn new(filter: &Filter) -> Result<Self, Unsupported> {
        filter.check_sources(user_space_refuses)?;
        let network = NetworkHeader::of(filter.link_type());
        Ok(Self { ops: filter.program.ops().to_vec(), network })
    }

    /// Returns the number of bytes of the packet to keep; 0 rejects it. A program that reads beyond
    /// the end of `packet`, divides by zero, or does not terminate rejects the packet.
    pub fn matches(&self, packet: &[u8], wire_len: u32, context: &Context) -> u32 {
        let machine =
            Machine { interpreter: self, packet, wire_len, context, a: 0, x: 0, slots: [0; _] };
        machine.run().unwrap_or(0)
    }
}

/// Why the extension is unsupported in user space; `None` if it is supported.
pub(crate) fn user_space_refuses(extension: Extension) -> Option<&'static str> {
    match extension {
        Extension::Mark => Some("only the host's network stack has marks"),
        Extension::HardwareType => Some("a packet does not contain the type of its interface"),
        Extension::ReceiveHash => Some("only the NIC knows its hash"),
        Extension::Cpu => {
            Some("the CPU that runs the filter is not the one that received the packet")
        }
        Extension::PayloadOffset => Some("only the host's network stack dissects packets"),
        Extension::Random => {
            Some("a filter in user space gives the same answer for the same packet")
        }
        _ => None,
    }
}

/// The registers, and the sources of loads.
struct Machine<'a> {
    interpreter: &'a Interpreter,
    packet: &'a [u8],
    wire_len: u32,
    context: &'a Context,
    a: u32,
    x: u32,
    slots: [u32; SLOTS as usize],
}

impl Machine<'_> {
    /// Returns the verdict; `None` if an instruction has no result, which rejects the packet.
    fn run(mut self) -> Option<u32> {
        let mut at = 0_u32;
        let mut backward_jumps = 0;

        loop {
            let next = at + 1;
            at = match self.interpreter.ops[at as usize] {
                Op::Load(register, source) => {
                    let value = self.load(source)?;
                    *self.register(register) = value;
                    next
                }
                Op::Store(register, slot) => {
                    self.slots[slot as usize] = *self.register(register);
                    next
                }
                Op::Alu(operation, operand) => {
                    self.a = compute(operation, self.a, self.value(operand))?;
                    next
                }
                Op::Negate => {
                    self.a = self.a.wrapping_neg();
                    next
                }
                Op::Tax => {
                    self.x = self.a;
                    next
                }
                Op::Txa => {
                    self.a = self.x;
                    next
                }
                Op::Jump(target) => {
                    backward_jumps += u32::from(target <= at);
                    if backward_jumps > BACKWARD_JUMPS_MAX {
                        return None;
                    }
                    target
                }
                Op::Branch { condition, operand, if_true, if_false } => {
                    if condition.holds(self.a, self.value(operand)) { if_true } else { if_false }
                }
                Op::Return(Verdict::Constant(bytes)) => return Some(bytes),
                Op::Return(Verdict::A) => return Some(self.a),
            };
        }
    }

    fn register(&mut self, register: Register) -> &mut u32 {
        match register {
            Register::A => &mut self.a,
            Register::X => &mut self.x,
        }
    }

    fn value(&self, operand: Operand) -> u32 {
        match operand {
            Operand::Constant(k) => k,
            Operand::X => self.x,
        }
    }

    fn load(&self, source: Source) -> Option<u32> {
        match source {
            Source::Constant(k) => Some(k),
            Source::Slot(slot) => Some(self.slots[slot as usize]),
            Source::WireLen => Some(self.wire_len),
            Source::Absolute(width, place) => width.read(self.packet, self.offset(place)?),
            Source::Indirect(width, place) => {
                width.read(self.packet, self.offset(place)?.checked_add(self.x)?)
            }
            Source::HeaderLen(place) => {
                Width::Byte.read(self.packet, self.offset(place)?).map(|byte| (byte & 0xf) * 4)
            }
            Source::Extension(extension) => self.ask(extension),
        }
    }

    /// Converts the position to an offset from the packet's first byte.
    fn offset(&self, place: Position) -> Option<u32> {
        match place.base {
            Base::Packet => Some(place.offset),
            Base::Network => self.network_offset()?.checked_add(place.offset),
        }
    }

    fn network_offset(&self) -> Option<u32> {
        match self.interpreter.network {
            NetworkHeader::First => Some(0),
            NetworkHeader::Ethernet => {
                ethernet::network_offset(self.packet, self.context.vlan.is_some())
            }
            NetworkHeader::Unknown => unreachable!("refused by `new`"),
        }
    }

    fn ask(&self, extension: Extension) -> Option<u32> {
        let vlan = self.context.vlan.unwrap_or_default();
        Some(match extension {
            Extension::Protocol => ethernet::protocol(self.packet, self.network_offset()?)?,
            Extension::PacketType => self.context.packet_type as u32,
            Extension::InterfaceIndex => self.context.ifindex,
            Extension::NetlinkAttribute => netlink::find(self.packet, self.a, self.x),
            Extension::NetlinkNested => netlink::find_nested(self.packet, self.a, self.x),
            Extension::Queue => self.context.queue.wrapping_add(1),
            Extension::XorX => self.a ^ self.x,
            Extension::VlanTag => u32::from(vlan.tci),
            Extension::VlanPresent => u32::from(self.context.vlan.is_some()),
            Extension::VlanProtocol => u32::from(vlan.tpid),
            _ => unreachable!("refused by `new`"),
        })
    }
}

pub(crate) fn compute(operation: Operation, a: u32, operand: u32) -> Option<u32> {
    Some(match operation {
        Operation::Add => a.wrapping_add(operand),
        Operation::Sub => a.wrapping_sub(operand),
        Operation::Mul => a.wrapping_mul(operand),
        Operation::Div => a.checked_div(operand)?,
        Operation::Mod => a.checked_rem(operand)?,
        Operation::And => a & operand,
        Operation::Or => a | operand,
        Operation::Xor => a ^ operand,
        // As in libpcap; the kernel uses only the low five bits of X.
        Operation::ShiftLeft => a.checked_shl(operand).unwrap_or(0),
        Operation::ShiftRight => a.checked_shr(operand).unwrap_or(0),
    })
}
