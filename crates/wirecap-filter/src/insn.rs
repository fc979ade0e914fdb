//! Classic BPF instructions: the format that the kernel and libpcap exchange, and the decoded form.

use std::fmt;

/// A classic BPF instruction, with the layout of `struct bpf_insn` and `struct sock_filter`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub struct ClassicInsn {
    /// The operation, with its class in the low three bits.
    pub code: u16,
    /// For a conditional jump: instructions to skip if the condition is true.
    pub jt: u8,
    /// For a conditional jump: instructions to skip if it is false.
    pub jf: u8,
    /// The constant, packet offset or slot of scratch memory.
    pub k: u32,
}
const _: () = assert!(size_of::<ClassicInsn>() == 8 && align_of::<ClassicInsn>() == 4);

/// Number of slots of scratch memory.
pub(crate) const SLOTS: u32 = 16;

/// Loads from this offset on are relative to the network header (`SKF_NET_OFF`).
const NETWORK_OFFSET: u32 = (-0x10_0000_i32).cast_unsigned();
/// Loads from this offset on are relative to the link-layer header (`SKF_LL_OFF`).
const LINK_OFFSET: u32 = (-0x20_0000_i32).cast_unsigned();
/// Loads from this offset on are Linux extensions (`SKF_AD_OFF`).
const EXTENSION_OFFSET: u32 = (-0x1000_i32).cast_unsigned();

/// A decoded instruction. Jumps contain the index of their target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    Load(Register, Source),
    Store(Register, u32),
    /// Arithmetic on the accumulator.
    Alu(Operation, Operand),
    Negate,
    /// The accumulator is copied to the index register.
    Tax,
    /// The index register is copied to the accumulator.
    Txa,
    Jump(u32),
    Branch {
        condition: Condition,
        operand: Operand,
        if_true: u32,
        if_false: u32,
    },
    Return(Verdict),
}

/// The two registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Register {
    /// The accumulator.
    A,
    /// The index register.
    X,
}

/// The source of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Constant(u32),
    Slot(u32),
    /// The packet's length on the wire.
    WireLen,
    /// Bytes of the packet, in network byte order.
    Absolute(Width, Position),
    /// Bytes of the packet at this position plus the index register.
    Indirect(Width, Position),
    /// Four times the low half of a byte of the packet: the length of an IPv4 header.
    HeaderLen(Position),
    Extension(Extension),
}

/// An offset in the packet, and its base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    pub(crate) base: Base,
    pub(crate) offset: u32,
}

/// The base of an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Base {
    /// The packet's first byte.
    Packet,
    /// The first byte of the network header.
    Network,
}

/// The width of a load from the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Width {
    Byte,
    Half,
    Word,
}

/// Arithmetic operations on the accumulator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

/// The second operand of arithmetic and comparisons.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operand {
    Constant(u32),
    X,
}

/// Unsigned comparisons of the accumulator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Condition {
    Equal,
    Greater,
    GreaterOrEqual,
    AnySet,
}

/// The number of bytes of the packet to keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Constant(u32),
    A,
}

/// Data about a packet, besides its bytes, that Linux lets a program read; the value is the offset
/// from `SKF_AD_OFF`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Extension {
    /// The protocol of the packet's payload, from the link layer.
    Protocol = 0,
    /// The packet's destination: a [`PacketType`](crate::PacketType).
    PacketType = 4,
    /// The index of the interface.
    InterfaceIndex = 8,
    /// The offset of the netlink attribute with the type in the index register, searched from the
    /// accumulator on.
    NetlinkAttribute = 12,
    /// The same, nested in the attribute at the accumulator.
    NetlinkNested = 16,
    /// The packet's mark, set by the host's firewall.
    Mark = 20,
    /// The receive queue plus one; zero if unknown.
    Queue = 24,
    /// The interface's hardware type, for instance `ARPHRD_ETHER`.
    HardwareType = 28,
    /// The hash by which the host distributes packets over CPUs.
    ReceiveHash = 32,
    /// The CPU that runs the program.
    Cpu = 36,
    /// An operation rather than packet data: accumulator XOR index register.
    XorX = 40,
    /// The VLAN tag that was removed from the packet: priority and VLAN ID.
    VlanTag = 44,
    /// Whether a VLAN tag was removed from the packet.
    VlanPresent = 48,
    /// Offset of the transport protocol's payload.
    PayloadOffset = 52,
    /// A random number.
    Random = 56,
    /// The protocol identifier of the VLAN tag that was removed from the packet.
    VlanProtocol = 60,
}

impl Extension {
    /// Whether it is a part of the VLAN tag that was removed from the packet.
    pub(crate) fn is_of_tag(self) -> bool {
        matches!(self, Self::VlanTag | Self::VlanPresent | Self::VlanProtocol)
    }

    const ALL: [Self; 16] = [
        Self::Protocol,
        Self::PacketType,
        Self::InterfaceIndex,
        Self::NetlinkAttribute,
        Self::NetlinkNested,
        Self::Mark,
        Self::Queue,
        Self::HardwareType,
        Self::ReceiveHash,
        Self::Cpu,
        Self::XorX,
        Self::VlanTag,
        Self::VlanPresent,
        Self::PayloadOffset,
        Self::Random,
        Self::VlanProtocol,
    ];

    /// The extension at this offset of a load.
    fn at(k: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|extension| EXTENSION_OFFSET + *extension as u32 == k)
    }
}

impl fmt::Display for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Protocol => "proto",
            Self::PacketType => "type",
            Self::InterfaceIndex => "ifidx",
            Self::NetlinkAttribute => "nla",
            Self::NetlinkNested => "nlan",
            Self::Mark => "mark",
            Self::Queue => "queue",
            Self::HardwareType => "hatype",
            Self::ReceiveHash => "rxhash",
            Self::Cpu => "cpu",
            Self::XorX => "xor_x",
            Self::VlanTag => "vlan_tci",
            Self::VlanPresent => "vlanp",
            Self::PayloadOffset => "poff",
            Self::Random => "rand",
            Self::VlanProtocol => "vlan_tpid",
        })
    }
}

impl Position {
    fn new(k: u32) -> Self {
        match k {
            NETWORK_OFFSET.. => Self { base: Base::Network, offset: k - NETWORK_OFFSET },
            LINK_OFFSET.. => Self { base: Base::Packet, offset: k - LINK_OFFSET },
            _ => Self { base: Base::Packet, offset: k },
        }
    }
}

impl Width {
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Self::Byte => 1,
            Self::Half => 2,
            Self::Word => 4,
        }
    }

    /// The bytes at `offset`, in network byte order; `None` if the packet ends before them.
    pub(crate) fn read(self, packet: &[u8], offset: u32) -> Option<u32> {
        let bytes = packet.get(offset as usize..)?;
        match self {
            Self::Byte => bytes.first().copied().map(u32::from),
            Self::Half => bytes.first_chunk().copied().map(u16::from_be_bytes).map(u32::from),
            Self::Word => bytes.first_chunk().copied().map(u32::from_be_bytes),
        }
    }
}

impl Condition {
    pub(crate) fn holds(self, a: u32, operand: u32) -> bool {
        match self {
            Self::Equal => a == operand,
            Self::Greater => a > operand,
            Self::GreaterOrEqual => a >= operand,
            Self::AnySet => a & operand != 0,
        }
    }
}

/// Fields of an instruction code, from `linux/bpf_common.h`.
mod code {
    pub(super) const MAX: u16 = 0xff;
    pub(super) const CLASS: u16 = 0x07;
    pub(super) const LD: u16 = 0x00;
    pub(super) const LDX: u16 = 0x01;
    pub(super) const ST: u16 = 0x02;
    pub(super) const STX: u16 = 0x03;
    pub(super) const ALU: u16 = 0x04;
    pub(super) const JMP: u16 = 0x05;

    pub(super) const MODE: u16 = 0xe0;
    pub(super) const IMM: u16 = 0x00;
    pub(super) const ABS: u16 = 0x20;
    pub(super) const IND: u16 = 0x40;
    pub(super) const MEM: u16 = 0x60;
    pub(super) const LEN: u16 = 0x80;
    pub(super) const MSH: u16 = 0xa0;

    pub(super) const SIZE: u16 = 0x18;
    pub(super) const W: u16 = 0x00;
    pub(super) const H: u16 = 0x08;
    pub(super) const B: u16 = 0x10;

    pub(super) const X: u16 = 0x08;
    pub(super) const OPERATION: u16 = 0xf0;
    pub(super) const NEG: u16 = 0x84;
    pub(super) const JA: u16 = 0x05;
    pub(super) const RET_K: u16 = 0x06;
    pub(super) const RET_A: u16 = 0x16;
    pub(super) const TAX: u16 = 0x07;
    pub(super) const TXA: u16 = 0x87;
}

impl ClassicInsn {
    /// Converts an instruction of libpcap. libpcap accepts expressions like `ether[-1]`: its
    /// interpreter looks for this byte 4 GiB after the packet's first one and rejects the packet.
    /// Here and in the kernel, no such instruction exists.
    pub(crate) fn as_libpcap_runs_it(self) -> Self {
        let is_absolute_load = matches!(self.code & code::CLASS, code::LD | code::LDX)
            && matches!(self.code & code::MODE, code::ABS | code::MSH);
        if is_absolute_load && self.k >= EXTENSION_OFFSET && Extension::at(self.k).is_none() {
            return Self { code: code::RET_K, jt: 0, jf: 0, k: 0 };
        }
        self
    }

    /// The decoded instruction at `index` of a program; `None` if it is invalid. Slots, operands
    /// and targets are not checked.
    pub(crate) fn decode(self, index: u32) -> Option<Op> {
        let Self { code, k, .. } = self;
        let next = index + 1;

        Some(match code {
            code::NEG => Op::Negate,
            code::TAX => Op::Tax,
            code::TXA => Op::Txa,
            code::RET_K => Op::Return(Verdict::Constant(k)),
            code::RET_A => Op::Return(Verdict::A),
            // Wraps: libpcap encodes backward jumps this way, in the loops of `protochain`.
            code::JA => Op::Jump(next.wrapping_add(k)),
            _ => match code & code::CLASS {
                code::LD => Op::Load(Register::A, self.source()?),
                code::LDX => Op::Load(Register::X, self.source()?),
                code::ST if code == code::ST => Op::Store(Register::A, k),
                code::STX if code == code::STX => Op::Store(Register::X, k),
                code::ALU => Op::Alu(self.operation()?, self.operand()),
                code::JMP => Op::Branch {
                    condition: self.condition()?,
                    operand: self.operand(),
                    if_true: next + u32::from(self.jt),
                    if_false: next + u32::from(self.jf),
                },
                _ => return None,
            },
        })
        .filter(|_| code <= code::MAX)
    }

    /// Whether the instruction loads an extension of Linux by its offset.
    pub(crate) fn is_for_linux(self) -> bool {
        let is_load = [code::LD, code::LDX].contains(&(self.code & code::CLASS));
        let is_of_packet = [code::ABS, code::IND, code::MSH].contains(&(self.code & code::MODE));
        is_load && is_of_packet && self.k >= LINK_OFFSET
    }

    fn source(self) -> Option<Source> {
        let Self { code, k, .. } = self;
        let width = self.width()?;
        let to_a = code & code::CLASS == code::LD;

        match (code & code::MODE, width) {
            (code::IMM, Width::Word) => Some(Source::Constant(k)),
            (code::MEM, Width::Word) => Some(Source::Slot(k)),
            (code::LEN, Width::Word) => Some(Source::WireLen),
            (code::MSH, Width::Byte) if !to_a => Some(Source::HeaderLen(Position::new(k))),
            (code::ABS, _) if to_a && k >= EXTENSION_OFFSET => {
                Extension::at(k).map(Source::Extension)
            }
            (code::ABS, _) if to_a => Some(Source::Absolute(width, Position::new(k))),
            (code::IND, _) if to_a => Some(Source::Indirect(width, Position::new(k))),
            _ => None,
        }
    }

    /// The width of a load.
    pub(crate) fn width(self) -> Option<Width> {
        match self.code & code::SIZE {
            code::W => Some(Width::Word),
            code::H => Some(Width::Half),
            code::B => Some(Width::Byte),
            _ => None,
        }
    }

    fn operation(self) -> Option<Operation> {
        Some(match self.code & code::OPERATION {
            0x00 => Operation::Add,
            0x10 => Operation::Sub,
            0x20 => Operation::Mul,
            0x30 => Operation::Div,
            0x40 => Operation::Or,
            0x50 => Operation::And,
            0x60 => Operation::ShiftLeft,
            0x70 => Operation::ShiftRight,
            0x90 => Operation::Mod,
            0xa0 => Operation::Xor,
            _ => return None,
        })
        .filter(|_| self.code & !(code::CLASS | code::OPERATION | code::X) == 0)
    }

    fn condition(self) -> Option<Condition> {
        Some(match self.code & code::OPERATION {
            0x10 => Condition::Equal,
            0x20 => Condition::Greater,
            0x30 => Condition::GreaterOrEqual,
            0x40 => Condition::AnySet,
            _ => return None,
        })
        .filter(|_| self.code & !(code::CLASS | code::OPERATION | code::X) == 0)
    }

    fn operand(self) -> Operand {
        if self.code & code::X == 0 { Operand::Constant(self.k) } else { Operand::X }
    }
}
