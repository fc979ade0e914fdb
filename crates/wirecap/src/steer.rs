//! Software steering: a flow hash selects one of the rings of a receive queue.
//!
//! The hash is symmetric: both directions of a connection have the same hash. It covers the addresses and ports
//! of TCP, UDP and SCTP over IPv4 and IPv6, after up to two VLAN tags. Every fragment of a datagram, including
//! the first, is hashed by its addresses alone, because later fragments have no ports; so are packets without
//! ports and packets truncated before them. Packets other than IP are hashed by the pair of MAC addresses.
//!
//! IPv6 extension headers are skipped if they state the position of the next header. Headers after an
//! Encapsulating Security Payload, which is encrypted, and after unknown headers are not found.

pub(crate) mod flow;

use crate::bpf::asm::{Alu, Assembler, Condition::*, Label, Reg::*, Size::*};
use crate::bpf::xdp_md;

/// The number of rings of each receive queue of an interface: the same for all, or one more on the first
/// queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Steering {
    /// In ascending order.
    queues: Vec<u32>,
    /// Rings of the first queue.
    most: u32,
    /// Number of queues with as many rings as the first one.
    with_most: usize,
}

impl Steering {
    /// Distributes `rings` rings over `queues`, which are in ascending order; each gets at least one.
    pub(crate) fn new(queues: Vec<u32>, rings: usize) -> Self {
        let rings = rings.max(queues.len());
        let most = rings.div_ceil(queues.len());
        let with_most = rings - (most - 1) * queues.len();
        Self { queues, most: most as u32, with_most }
    }

    /// Adds a queue after all others, with as many rings as the last one, or one less than the first.
    pub(crate) fn add(&mut self, queue: u32) {
        assert!(self.queues.last().is_none_or(|last| *last < queue), "queues are added in ascending order");
        self.with_most += usize::from(self.with_most == self.queues.len());
        self.queues.push(queue);
    }

    pub(crate) fn queues(&self) -> &[u32] {
        &self.queues
    }

    /// How many rings there are.
    pub(crate) fn rings(&self) -> usize {
        self.with_most + (self.most as usize - 1) * self.queues.len()
    }

    /// The number of rings of each queue, in the order of [`queues`](Self::queues).
    pub(crate) fn rings_of_queues(&self) -> impl Iterator<Item = u32> {
        (0..self.queues.len()).map(|place| self.most - u32::from(place >= self.with_most))
    }

    /// Whether a queue has several rings, so that packets must be hashed.
    pub(crate) fn is_needed(&self) -> bool {
        self.most > 1
    }

    /// The key of a queue's ring in the socket map.
    pub(crate) fn key(&self, queue: u32, part: u32) -> u32 {
        queue * self.most + part
    }

    /// The number of keys of an interface with `rx_queues` queues.
    pub(crate) fn keys(&self, rx_queues: u32) -> u32 {
        rx_queues * self.most
    }

    /// Writes code that leaves in `R2` the key of the ring that a packet belongs to. The context is in
    /// `R6`, and the queue is one of [`queues`](Self::queues).
    pub(crate) fn find_key(&self, asm: &mut Assembler) {
        if !self.is_needed() {
            asm.load(Word, R2, R6, xdp_md::RX_QUEUE_INDEX);
            return;
        }
        flow_hash(asm);
        asm.load(Word, R2, R6, xdp_md::RX_QUEUE_INDEX).mov32(R1, self.most.cast_signed());
        if let Some(first_with_fewer) = self.queues.get(self.with_most) {
            let has_most = asm.label();
            asm.jump_if32(R2, Lt, first_with_fewer.cast_signed(), has_most).sub(R1, 1).bind(has_most);
        }
        // The hash, as a fraction of 2^32, times the number of rings: this needs no division and uses the
        // hash's best bits.
        asm.alu64(Alu::Mul, R7, R1).shift_right(R7, 32);
        asm.alu64(Alu::Mul, R2, self.most.cast_signed()).add(R2, R7);
    }
}

/// Types of a VLAN tag: 802.1Q, 802.1ad, and a type used before.
const VLAN_TYPES: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// The protocols with ports in their first four bytes.
const WITH_PORTS: [u8; 3] = [libc::IPPROTO_TCP as u8, libc::IPPROTO_UDP as u8, libc::IPPROTO_SCTP as u8];

/// Extension headers that begin with the next header's number and their own length in words of eight
/// bytes, the first one not counted: hop-by-hop options, routing, destination options.
const WITH_LENGTH: [u8; 3] =
    [libc::IPPROTO_HOPOPTS as u8, libc::IPPROTO_ROUTING as u8, libc::IPPROTO_DSTOPTS as u8];
const FRAGMENT: u8 = libc::IPPROTO_FRAGMENT as u8;
const AUTHENTICATION: u8 = libc::IPPROTO_AH as u8;
/// The maximum number in a datagram that follows the recommendation of RFC 8200, section 4.1.
const EXTENSION_HEADERS_MAX: usize = 6;

/// An IPv4 header's bits that only fragments have: the offset, and "more fragments".
const IPV4_FRAGMENT: u16 = 0x3fff;
/// The same of an IPv6 fragment header. A header without them belongs to an unfragmented datagram (RFC 6946).
const IPV6_FRAGMENT: u16 = 0xfff9;

/// Odd numbers with irregular bits: the fraction of the golden ratio, and a multiplier of MurmurHash3.
pub(crate) const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
pub(crate) const MIX: u64 = 0xff51_afd7_ed55_8ccd;

/// Writes code that leaves a flow hash of 32 bits in `R7`. The context is in `R6`; all registers but
/// that one are overwritten.
fn flow_hash(asm: &mut Assembler) {
    let (ipv4, ipv6, ports, done) = (asm.label(), asm.label(), asm.label(), asm.label());
    link_layer(asm, ipv4, ipv6, done);
    asm.bind(ipv4);
    ipv4_header(asm, ports, done);
    asm.bind(ipv6);
    ipv6_headers(asm, ports, done);
    asm.bind(ports);
    add_ports(asm, done);
    asm.bind(done);
    combine(asm);
}

/// `R2` = the address after the Ethernet type, `R3` = the packet's end (of its first fragment), `R7` and `R8` = the
/// endpoints so far, here the MAC addresses.
fn link_layer(asm: &mut Assembler, ipv4: Label, ipv6: Label, done: Label) {
    let network_layer = asm.label();
    asm.mov(R7, 0).mov(R8, 0);
    asm.load(Word, R2, R6, xdp_md::DATA).load(Word, R3, R6, xdp_md::DATA_END);
    require(asm, 14, done);
    for (endpoint, place) in [(R7, 0), (R8, 6)] {
        asm.load(Word, endpoint, R2, place).shift_left(endpoint, 16);
        asm.load(Half, R5, R2, place + 4).or(endpoint, R5);
    }
    asm.load(Half, R4, R2, 12).mov(R1, 14);
    for tag_end in [18, 22] {
        let tag = asm.label();
        for vlan_type in VLAN_TYPES {
            asm.jump_if(R4, Eq, on_the_wire(vlan_type), tag);
        }
        asm.jump(network_layer);
        asm.bind(tag);
        require(asm, tag_end, done);
        asm.load(Half, R4, R2, tag_end as i16 - 2).mov(R1, tag_end);
    }
    asm.bind(network_layer);
    advance(asm);
    asm.jump_if(R4, Eq, on_the_wire(ETHERTYPE_IPV4), ipv4);
    asm.jump_if(R4, Eq, on_the_wire(ETHERTYPE_IPV6), ipv6);
    asm.jump(done);
}

/// `R2 += R1`, less than 4,096. The code hides the length from the verifier, which would otherwise follow every
/// kind of header after every other kind, for a tenth of a second.
fn advance(asm: &mut Assembler) {
    // Swapping it twice restores it.
    asm.to_big_endian(Half, R1).to_big_endian(Half, R1).and(R1, 0xfff).add(R2, R1);
}

/// Sets the endpoints to the addresses, `R4` to the protocol and `R2` to the address of its header.
fn ipv4_header(asm: &mut Assembler, ports: Label, done: Label) {
    require(asm, 20, done);
    asm.load(Byte, R0, R2, 0).mov(R1, R0).and(R1, 0xf0).jump_if(R1, Ne, 0x40, done);
    asm.and(R0, 0xf).jump_if(R0, Lt, 5, done);
    asm.load(Word, R7, R2, 12).shift_left(R7, 16);
    asm.load(Word, R8, R2, 16).shift_left(R8, 16);
    asm.load(Half, R1, R2, 6).jump_if(R1, AnySet, on_the_wire(IPV4_FRAGMENT), done);
    asm.load(Byte, R4, R2, 9);
    asm.shift_left(R0, 2).add(R2, R0).jump(ports);
}

/// Like [`ipv4_header`], but the protocol may follow extension headers.
fn ipv6_headers(asm: &mut Assembler, ports: Label, done: Label) {
    require(asm, 40, done);
    asm.load(Byte, R1, R2, 0).and(R1, 0xf0).jump_if(R1, Ne, 0x60, done);
    asm.load_imm64(R0, SPREAD);
    for (endpoint, place) in [(R7, 8), (R8, 24)] {
        asm.load(Double, endpoint, R2, place + 8).alu64(Alu::Mul, endpoint, R0);
        asm.load(Double, R1, R2, place).add(endpoint, R1);
    }
    asm.load(Byte, R4, R2, 6).add(R2, 40);
    for _ in 0..EXTENSION_HEADERS_MAX {
        extension_header(asm, ports, done);
    }
    // The header after the last one may have ports.
}

/// Skips one extension header, if there is one.
fn extension_header(asm: &mut Assembler, ports: Label, done: Label) {
    let (with_length, authentication, next) = (asm.label(), asm.label(), asm.label());
    for protocol in WITH_LENGTH {
        asm.jump_if(R4, Eq, i32::from(protocol), with_length);
    }
    asm.jump_if(R4, Eq, i32::from(AUTHENTICATION), authentication);
    asm.jump_if(R4, Ne, i32::from(FRAGMENT), ports);

    require(asm, 8, done);
    asm.load(Half, R1, R2, 2).jump_if(R1, AnySet, on_the_wire(IPV6_FRAGMENT), done);
    asm.load(Byte, R4, R2, 0).mov(R1, 8).jump(next);

    asm.bind(authentication);
    require(asm, 8, done);
    asm.load(Byte, R4, R2, 0).load(Byte, R1, R2, 1).add(R1, 2).shift_left(R1, 2).jump(next);

    asm.bind(with_length);
    require(asm, 8, done);
    asm.load(Byte, R4, R2, 0).load(Byte, R1, R2, 1).add(R1, 1).shift_left(R1, 3);

    asm.bind(next);
    advance(asm);
}

/// Adds the ports to the endpoints, if the protocol in `R4` has any.
fn add_ports(asm: &mut Assembler, done: Label) {
    let has_ports = asm.label();
    for protocol in WITH_PORTS {
        asm.jump_if(R4, Eq, i32::from(protocol), has_ports);
    }
    asm.jump(done);
    asm.bind(has_ports);
    require(asm, 4, done);
    for (endpoint, place) in [(R7, 0), (R8, 2)] {
        asm.load(Half, R1, R2, place).add(endpoint, R1);
    }
}

/// `R7` = a hash of both endpoints that does not depend on their order.
fn combine(asm: &mut Assembler) {
    let in_order = asm.label();
    asm.jump_if(R7, Le, R8, in_order).mov(R1, R7).mov(R7, R8).mov(R8, R1);
    asm.bind(in_order);
    asm.load_imm64(R1, SPREAD).alu64(Alu::Mul, R7, R1).add(R7, R8);
    asm.mov(R1, R7).shift_right(R1, 32).xor(R7, R1);
    asm.load_imm64(R1, MIX).alu64(Alu::Mul, R7, R1).shift_right(R7, 32);
}

/// Jumps to `otherwise` unless there are `bytes` bytes from `R2` on.
fn require(asm: &mut Assembler, bytes: i32, otherwise: Label) {
    asm.mov(R5, R2).add(R5, bytes).jump_if(R5, Gt, R3, otherwise);
}

/// A 16-bit number in the byte order in which a packet contains it.
fn on_the_wire(number: u16) -> i32 {
    number.to_be().into()
}

#[cfg(all(test, not(loom)))]
mod tests;
