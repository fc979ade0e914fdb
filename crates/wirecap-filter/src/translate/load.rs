//! Loads: constants, scratch memory, bytes of the packet, and Linux extensions.

use std::mem::offset_of;

use super::Registers;
use super::{A, Environment, SCRATCH, Surroundings, Translation, Way, X, xdp_slot_offset};
use crate::bpf::asm::{Alu, Condition as Jump, Helper, Reg, Size};
use crate::bpf::xdp_md;
use crate::context::PacketType;
use crate::ethernet;
use crate::filter::NetworkHeader;
use crate::flow::Flow;
use crate::insn::{Base, Extension, Position, SLOTS, Source, Width};

/// An offset that depends on the packet, later the resulting address.
const INDEX: Reg = Reg::R3;
/// Stack offset to which the kernel copies bytes of the packet, below the scratch memory.
const COPY: i16 = xdp_slot_offset(SLOTS) - 4;
/// Number of bytes of a packet that an XDP program can read.
pub(super) const XDP_BYTES_MAX: u32 = 0xffff;
/// Number of bytes of a packet that machine code reads.
pub(super) const USER_BYTES_MAX: u32 = i32::MAX as u32;

/// The offset of the network header after an Ethernet header without a tag.
const UNTAGGED: u32 = ethernet::HEADER_BYTES;
/// The index register after a load of an IPv4 header's length: without options.
const USUAL_HEADER: &[u32] = &[20];
/// The index register otherwise, in an expression that people use: the length of an IPv4 and a TCP
/// header, without options and with timestamps, as in `tcp[((tcp[12] & 0xf0) >> 2):4]`.
const USUAL_PAYLOAD: &[u32] = &[40, 52];

/// The offset of a load.
#[derive(Clone, Copy, Debug)]
enum Offset {
    Constant(u32),
    /// A register plus this constant. In most packets the register is one of `usual`, plus `base`.
    Computed {
        register: Reg,
        constant: u32,
        base: u32,
        usual: &'static [u32],
    },
}

impl Offset {
    /// `INDEX` plus this constant. In most packets `INDEX` is `usual`.
    fn at_index(constant: u32, usual: u32) -> Self {
        Self::Computed { register: INDEX, constant, base: usual, usual: &[0] }
    }
}

impl Translation<'_> {
    pub(super) fn load(&mut self, index: usize, to: Reg, source: Source) {
        match source {
            Source::Constant(k) => _ = self.asm.mov32(to, k.cast_signed()),
            Source::Slot(slot) => {
                _ = self.asm.load(Size::Word, to, Reg::R10, self.slot_offset(slot));
            }
            Source::WireLen => self.wire_len(to),
            Source::Absolute(width, place) => self.absolute(index, to, width, place),
            Source::Indirect(width, place) => self.indirect(index, to, width, place),
            Source::HeaderLen(place) => {
                self.absolute(index, to, Width::Byte, place);
                self.asm.and(to, 0xf).shift_left(to, 2);
            }
            Source::Extension(extension) => self.extension(extension),
        }
    }

    fn absolute(&mut self, index: usize, to: Reg, width: Width, place: Position) {
        if self.is_at_the_network_header(place) {
            self.network_index();
            self.bytes(to, width, Offset::at_index(place.offset, UNTAGGED));
        } else {
            let sure_bytes = self.flow.sure_bytes(index);
            self.bytes_unless_sure(to, width, Offset::Constant(place.offset), sure_bytes);
        }
    }

    fn indirect(&mut self, index: usize, to: Reg, width: Width, place: Position) {
        let constant = place.offset;
        let usual = usual_index(&self.flow, index);

        if self.is_at_the_network_header(place) {
            self.network_index();
            self.asm.add(INDEX, X);
            self.bytes(
                to,
                width,
                Offset::Computed { register: INDEX, constant, base: UNTAGGED, usual },
            );
        } else {
            self.bytes(to, width, Offset::Computed { register: X, constant, base: 0, usual });
        }
    }

    fn is_at_the_network_header(&self, place: Position) -> bool {
        let header = NetworkHeader::of(self.filter.link_type());
        place.base == Base::Network && header == NetworkHeader::Ethernet
    }

    fn bytes(&mut self, to: Reg, width: Width, offset: Offset) {
        self.bytes_unless_sure(to, width, offset, 0);
    }

    /// Loads bytes in network byte order. The first `sure_bytes` of the packet need no check.
    fn bytes_unless_sure(&mut self, to: Reg, width: Width, offset: Offset, sure_bytes: u32) {
        match (self.way, self.environment, offset) {
            (Way::Ask, ..) => self.bytes_from_the_kernel(to, width, offset),
            (
                Way::Direct,
                Environment::Xdp { .. },
                Offset::Computed { register, constant, base, usual },
            ) => {
                let ends_in_reach = |offset: &u32| offset + width.bytes() <= self.bytes_max();
                let offsets =
                    usual.iter().map(|index| base + index + constant).filter(ends_in_reach);
                self.computed_bytes(to, width, (register, constant), &offsets.collect::<Vec<_>>());
            }
            (Way::Direct, ..) => self.bytes_directly(to, width, offset, sure_bytes),
        }
        if width != Width::Byte {
            self.asm.to_big_endian(size(width), to);
        }
    }

    /// XDP: loads bytes at a register plus a constant. The verifier does not permit to add a
    /// register to a packet's address (without CAP_PERFMON), so only bytes at the usual offsets are
    /// read directly.
    fn computed_bytes(
        &mut self,
        to: Reg,
        width: Width,
        (register, constant): (Reg, u32),
        usual_offsets: &[u32],
    ) {
        let done = self.asm.label();
        let cases: Vec<_> =
            usual_offsets.iter().map(|&offset| (offset, self.asm.label())).collect();
        for &(offset, is_usual) in &cases {
            self.asm.jump_if(register, Jump::Eq, (offset - constant).cast_signed(), is_usual);
        }

        // The verifier follows the code after a jump first. So when it arrives at `done` with a
        // usual value of the register, it has already followed the rest of the program with any
        // value.
        self.bytes_from_the_kernel(
            to,
            width,
            Offset::Computed { register, constant, base: 0, usual: &[] },
        );

        for (offset, is_usual) in cases {
            self.asm.jump(done).bind(is_usual);
            self.bytes_directly(to, width, Offset::Constant(offset), 0);
        }

        self.asm.bind(done);
    }

    fn bytes_directly(&mut self, to: Reg, width: Width, offset: Offset, sure_bytes: u32) {
        let (Offset::Constant(k) | Offset::Computed { constant: k, .. }) = offset;
        let Some(end) = k.checked_add(width.bytes()).filter(|&end| end <= self.bytes_max()) else {
            self.asm.jump(self.exits.beyond);
            return;
        };

        match offset {
            Offset::Constant(_) if end <= sure_bytes => {}
            Offset::Constant(_) => self.check_constant(end),
            Offset::Computed { register, .. } => self.check_computed(register, end),
        }

        let data = self.registers.data;
        let (address, displacement) = match (offset, i16::try_from(k)) {
            (Offset::Constant(_), Ok(k)) => (data, k),
            (Offset::Constant(_), Err(_)) => {
                self.asm.mov(SCRATCH, data).add(SCRATCH, k.cast_signed());
                (SCRATCH, 0)
            }
            // The register is at the end of the bytes now.
            (Offset::Computed { .. }, _) => (INDEX, -(width.bytes() as i16)),
        };
        self.asm.load(size(width), to, address, displacement);
    }

    fn bytes_max(&self) -> u32 {
        match self.environment {
            Environment::Xdp { .. } => XDP_BYTES_MAX,
            Environment::User => USER_BYTES_MAX,
        }
    }

    /// Continues if the packet has this many bytes.
    fn check_constant(&mut self, end: u32) {
        let beyond = self.exits.beyond;
        let end = end.cast_signed();
        match self.environment {
            Environment::Xdp { .. } => {
                self.asm.mov(SCRATCH, self.registers.data).add(SCRATCH, end);
                self.asm.jump_if(SCRATCH, Jump::Gt, self.registers.end, beyond)
            }
            Environment::User => self.asm.jump_if(self.registers.end, Jump::Lt, end, beyond),
        };
    }

    /// User space: continues if the packet has this many bytes after the offset in a register.
    /// `INDEX` becomes the address of their end.
    fn check_computed(&mut self, register: Reg, end: u32) {
        let Registers { data, end: bound, .. } = self.registers;
        if register != INDEX {
            self.asm.mov(INDEX, register);
        }
        self.asm.add(INDEX, end.cast_signed()).jump_if(INDEX, Jump::Gt, bound, self.exits.beyond);
        self.asm.add(INDEX, data);
    }

    fn bytes_from_the_kernel(&mut self, to: Reg, width: Width, offset: Offset) {
        match offset {
            Offset::Constant(k) => _ = self.asm.mov(Reg::R2, k.cast_signed()),
            Offset::Computed { register, constant: k, .. } => {
                // The kernel would use only the low 32 bits.
                let most = XDP_BYTES_MAX.cast_signed();
                self.asm.mov(Reg::R2, register).add(Reg::R2, k.cast_signed());
                self.asm.jump_if(Reg::R2, Jump::Gt, most, self.exits.reject);
            }
        }

        self.asm.mov(Reg::R1, self.registers.context);
        self.asm
            .mov(Reg::R3, Reg::R10)
            .add(Reg::R3, i32::from(COPY))
            .mov(Reg::R4, width.bytes() as i32);
        self.call(Helper::XdpLoadBytes);
        self.asm.jump_if(Reg::R0, Jump::Ne, 0, self.exits.reject);
        self.asm.load(size(width), to, Reg::R10, COPY);
    }

    /// XDP: loads the addresses of the packet's beginning and end.
    pub(super) fn load_bounds(&mut self) {
        if matches!(self.environment, Environment::Xdp { .. }) && self.way == Way::Direct {
            let Registers { data, context, .. } = self.registers;
            self.asm.load(Size::Word, data, context, xdp_md::DATA);
            self.load_end();
        }
    }

    fn load_end(&mut self) {
        let Registers { end, context, .. } = self.registers;
        self.asm.load(Size::Word, end, context, xdp_md::DATA_END);
    }

    /// Calls a kernel helper.
    fn call(&mut self, helper: Helper) {
        self.asm.call(helper);
        if self.way == Way::Direct {
            self.load_end();
        }
    }

    fn wire_len(&mut self, to: Reg) {
        match self.environment {
            Environment::Xdp { .. } => {
                self.asm.mov(Reg::R1, self.registers.context);
                self.call(Helper::XdpFrameLen);
                self.asm.mov32(to, Reg::R0);
            }
            Environment::User => _ = self.asm.mov32(to, self.registers.wire_len),
        }
    }

    /// User space: loads one of the [`Surroundings`].
    fn ask(&mut self, to: Reg, field_offset: usize) {
        self.asm.load(Size::Word, to, self.registers.context, field_offset as i16);
    }

    fn extension(&mut self, extension: Extension) {
        match (extension, self.environment) {
            (Extension::Protocol, _) => self.protocol(),
            (Extension::XorX, _) => _ = self.asm.alu32(Alu::Xor, A, X),
            (_, Environment::Xdp { address }) => self.extension_of_xdp(extension, address),
            (_, Environment::User) => self.extension_of_user_space(extension),
        }
    }

    fn extension_of_xdp(&mut self, extension: Extension, address: [u8; 6]) {
        match extension {
            Extension::PacketType => self.packet_type(address),
            Extension::InterfaceIndex => {
                self.asm.load(Size::Word, A, self.registers.context, xdp_md::INGRESS_IFINDEX);
            }
            Extension::Queue => {
                self.asm.load(Size::Word, A, self.registers.context, xdp_md::RX_QUEUE_INDEX).alu32(
                    Alu::Add,
                    A,
                    1,
                );
            }
            Extension::Cpu => self.ask_helper(Helper::CpuId),
            Extension::Random => self.ask_helper(Helper::RandomU32),
            _ => unreachable!("[{extension}] is refused before"),
        }
    }

    fn ask_helper(&mut self, helper: Helper) {
        self.call(helper);
        self.asm.mov32(A, Reg::R0);
    }

    fn extension_of_user_space(&mut self, extension: Extension) {
        match extension {
            Extension::PacketType => self.ask(A, offset_of!(Surroundings, packet_type)),
            Extension::InterfaceIndex => self.ask(A, offset_of!(Surroundings, ifindex)),
            Extension::Queue => {
                self.ask(A, offset_of!(Surroundings, queue));
                self.asm.alu32(Alu::Add, A, 1);
            }
            Extension::VlanTag => self.ask(A, offset_of!(Surroundings, vlan_tci)),
            Extension::VlanPresent => self.ask(A, offset_of!(Surroundings, vlan_present)),
            Extension::VlanProtocol => self.ask(A, offset_of!(Surroundings, vlan_tpid)),
            _ => unreachable!("[{extension}] is refused before"),
        }
    }

    /// Loads the packet type that the kernel would derive from the frame's Ethernet addresses.
    fn packet_type(&mut self, address: [u8; 6]) {
        let [group, multicast, other_host, done] = [(); 4].map(|()| self.asm.label());
        let high = i32::from_be_bytes([address[0], address[1], address[2], address[3]]);
        let low = i32::from(u16::from_be_bytes([address[4], address[5]]));

        self.bytes(A, Width::Word, Offset::Constant(0));
        self.asm.jump_if32(A, Jump::AnySet, 0x0100_0000, group).jump_if32(
            A,
            Jump::Ne,
            high,
            other_host,
        );

        self.bytes(A, Width::Half, Offset::Constant(4));
        self.asm.jump_if32(A, Jump::Ne, low, other_host);
        self.asm.mov32(A, PacketType::Host as i32).jump(done);
        self.asm.bind(group).jump_if32(A, Jump::Ne, -1, multicast);
        self.bytes(A, Width::Half, Offset::Constant(4));
        self.asm.jump_if32(A, Jump::Ne, 0xffff, multicast);
        self.asm.mov32(A, PacketType::Broadcast as i32).jump(done);
        self.asm.bind(multicast).mov32(A, PacketType::Multicast as i32).jump(done);
        self.asm.bind(other_host).mov32(A, PacketType::OtherHost as i32);
        self.asm.bind(done);
    }

    /// Sets `A` to the kernel's protocol number of the frame; see [`ethernet::protocol`].
    fn protocol(&mut self) {
        let novell = self.asm.label();
        let done = self.asm.label();
        self.network_index();
        self.asm.sub(INDEX, 2);
        self.bytes(A, Width::Half, Offset::at_index(0, UNTAGGED - 2));
        self.asm.jump_if32(A, Jump::Ge, ethernet::TYPE_MIN.cast_signed(), done);
        self.network_index();
        self.bytes(A, Width::Half, Offset::at_index(0, UNTAGGED));
        self.asm.jump_if32(A, Jump::Eq, ethernet::NOVELL.cast_signed(), novell);
        self.asm.mov32(A, ethernet::PROTOCOL_802_2.cast_signed()).jump(done);
        self.asm.bind(novell).mov32(A, ethernet::PROTOCOL_802_3.cast_signed());
        self.asm.bind(done);
    }

    /// Sets `INDEX` to the offset of the network header; see [`ethernet::network_offset`].
    fn network_index(&mut self) {
        let tagged = self.asm.label();
        let done = self.asm.label();
        self.bytes(SCRATCH, Width::Half, Offset::Constant(ethernet::TYPE_OFFSET));

        let [tag, service_tag] = ethernet::TAG_TYPES.map(u32::cast_signed);
        self.asm.mov(INDEX, ethernet::HEADER_BYTES.cast_signed());
        self.asm.jump_if32(SCRATCH, Jump::Eq, tag, tagged).jump_if32(
            SCRATCH,
            Jump::Ne,
            service_tag,
            done,
        );

        self.asm.bind(tagged);

        if matches!(self.environment, Environment::User) {
            self.ask(SCRATCH, offset_of!(Surroundings, vlan_present));
            self.asm.jump_if32(SCRATCH, Jump::Ne, 0, done);
        }

        self.asm.add(INDEX, ethernet::TAG_BYTES.cast_signed()).bind(done);
    }
}

/// The values that the index register has at this instruction in most packets.
pub(super) fn usual_index(flow: &Flow, index: usize) -> &'static [u32] {
    if flow.x_is_header_len(index) { USUAL_HEADER } else { USUAL_PAYLOAD }
}

fn size(width: Width) -> Size {
    match width {
        Width::Byte => Size::Byte,
        Width::Half => Size::Half,
        Width::Word => Size::Word,
    }
}
