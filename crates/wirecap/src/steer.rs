//! Software steering: a flow hash selects one of the rings of a receive queue.
//!
//! The hash is symmetric: both directions of a connection have the same hash. It covers the
//! addresses and ports of TCP, UDP and SCTP over IPv4 and IPv6, after up to two VLAN tags. Every
//! fragment of a datagram, including the first, is hashed by its addresses alone, because later
//! fragments have no ports; so are packets without ports and packets truncated before them. Packets
//! other than IP are hashed by the pair of MAC addresses.
//!
//! IPv6 extension headers are skipped if they state the position of the next header. Headers after
//! an Encapsulating Security Payload, which is encrypted, and after unknown headers are not found.
//!
//! Rings that share a queue share one pool and one fill ring, whose lock they share too; each has
//! its own rx ring, with room for R x M packets, rounded up to a power of two. The pool has a cell
//! for each of them and one more chunk for each ring, so a stuck worker loses its own packets and
//! none of its neighbours'.

pub(crate) mod flow;

use serde::{Deserialize, Serialize};

use crate::bpf::asm::{Alu, Assembler, Condition::*, Helper, Label, Reg::*, Size::*};
use crate::bpf::xdp_md;

/// The number of rings of each receive queue of an interface: the same for all, or one more on the
/// first queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steering {
    /// In ascending order.
    queues: Vec<u32>,
    /// Rings of the first queue.
    most: u32,
    /// Number of queues with as many rings as the first one.
    with_most: usize,
}

impl Steering {
    /// Distributes `rings` rings over `queues`, which are in ascending order; each gets at least
    /// one.
    pub(crate) fn new(queues: Vec<u32>, rings: usize) -> Self {
        let rings = rings.max(queues.len());
        let most = rings.div_ceil(queues.len());
        let with_most = rings - (most - 1) * queues.len();
        Self { queues, most: most as u32, with_most }
    }

    /// Whether [`new`](Self::new) could have made it: another process may send any numbers.
    pub fn is_sound(&self) -> bool {
        self.most > 0
            && (1..=self.queues.len()).contains(&self.with_most)
            && self.queues.windows(2).all(|pair| pair[0] < pair[1])
    }

    /// Adds a queue after all others, with as many rings as the last one, or one less than the
    /// first.
    pub(crate) fn add(&mut self, queue: u32) {
        assert!(
            self.queues.last().is_none_or(|last| *last < queue),
            "queues are added in ascending order"
        );
        self.with_most += usize::from(self.with_most == self.queues.len());
        self.queues.push(queue);
    }

    /// The queues, in ascending order.
    pub fn queues(&self) -> &[u32] {
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
    pub fn keys(&self, rx_queues: u32) -> u32 {
        rx_queues.saturating_mul(self.most)
    }

    /// Writes code that leaves in `R2` the key of the ring that a packet belongs to. The context is
    /// in `R6`, and the queue is one of [`queues`](Self::queues).
    pub(crate) fn find_key(&self, asm: &mut Assembler) {
        if !self.is_needed() {
            asm.load(Word, R2, R6, xdp_md::RX_QUEUE_INDEX);
            return;
        }

        flow_hash(asm);
        asm.load(Word, R2, R6, xdp_md::RX_QUEUE_INDEX).mov32(R1, self.most.cast_signed());

        if let Some(first_with_fewer) = self.queues.get(self.with_most) {
            let has_most = asm.label();
            asm.jump_if32(R2, Lt, first_with_fewer.cast_signed(), has_most)
                .sub(R1, 1)
                .bind(has_most);
        }

        // The hash, as a fraction of 2^32, times the number of rings: this needs no division and
        // uses the hash's best bits.
        asm.alu64(Alu::Mul, R7, R1).shift_right(R7, 32);
        asm.alu64(Alu::Mul, R2, self.most.cast_signed()).add(R2, R7);
    }
}

/// Types of a VLAN tag: 802.1Q, 802.1ad, and a type used before.
const VLAN_TYPES: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// The protocols with ports in their first four bytes.
const WITH_PORTS: [u8; 3] =
    [libc::IPPROTO_TCP as u8, libc::IPPROTO_UDP as u8, libc::IPPROTO_SCTP as u8];

/// Extension headers that begin with the next header's number and their own length in words of
/// eight bytes, the first one not counted: hop-by-hop options, routing, destination options.
const WITH_LENGTH: [u8; 3] =
    [libc::IPPROTO_HOPOPTS as u8, libc::IPPROTO_ROUTING as u8, libc::IPPROTO_DSTOPTS as u8];
const FRAGMENT: u8 = libc::IPPROTO_FRAGMENT as u8;
const AUTHENTICATION: u8 = libc::IPPROTO_AH as u8;
/// The maximum number in a datagram that follows the recommendation of RFC 8200, section 4.1.
const EXTENSION_HEADERS_MAX: usize = 6;

/// An IPv4 header's bits that only fragments have: the offset, and "more fragments".
const IPV4_FRAGMENT: u16 = 0x3fff;
/// The same of an IPv6 fragment header. A header without them belongs to an unfragmented datagram
/// (RFC 6946).
const IPV6_FRAGMENT: u16 = 0xfff9;

/// Odd numbers with irregular bits: the fraction of the golden ratio, and a multiplier of
/// MurmurHash3.
pub(crate) const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
pub(crate) const MIX: u64 = 0xff51_afd7_ed55_8ccd;

/// Lengths of the headers that nearly all packets have.
const ETHERNET_BYTES: i32 = 14;
const TAG_BYTES: i32 = 4;
const IPV4_BYTES: i32 = 20;
const IPV6_BYTES: i32 = 40;
/// The number of VLAN tags that are skipped.
const TAGS_MAX: i32 = 2;

/// Stack offset to which the kernel copies bytes of the packet.
const COPY: i16 = -8;

/// Writes code that leaves a flow hash of 32 bits in `R7`. The context is in `R6`; all registers
/// but that one are overwritten, and the upper 8 bytes of the stack.
///
/// The verifier does not permit to add a register to a packet's address (without CAP_PERFMON). So
/// there is code for each number of tags, which reads the usual headers at constant offsets.
/// Headers at other offsets are rare, and the kernel copies them.
///
/// Between the parts, `R2` has the address of the packet, `R3` that of its end (of its first
/// fragment), and `R7` and `R8` the endpoints so far; `R4` has the protocol.
fn flow_hash(asm: &mut Assembler) {
    let exits = Exits { behind_options: asm.label(), extension: asm.label(), done: asm.label() };
    mac_addresses(asm, exits.done);

    for tags in 0..=TAGS_MAX {
        let tag = asm.label();
        let network = ETHERNET_BYTES + tags * TAG_BYTES;

        if tags < TAGS_MAX {
            for vlan_type in VLAN_TYPES {
                asm.jump_if(R4, Eq, on_the_wire(vlan_type), tag);
            }
        }

        network_layer(asm, network, exits);

        if tags < TAGS_MAX {
            asm.bind(tag);
            require(asm, network + TAG_BYTES, exits.done);
            asm.load(Half, R4, R2, (network + TAG_BYTES - 2) as i16);
        }
    }

    asm.bind(exits.extension);
    extension_headers(asm, exits);
    asm.bind(exits.behind_options);
    ports_from_the_kernel(asm, exits.done);
    asm.bind(exits.done);
    combine(asm);
}

/// Where the code for usual headers continues.
#[derive(Clone, Copy)]
struct Exits {
    /// `R9` is the offset of the header of the protocol in `R4`, after options or extension
    /// headers.
    behind_options: Label,
    /// `R9` is the offset of what may be an IPv6 extension header.
    extension: Label,
    /// The endpoints are complete.
    done: Label,
}

/// Sets the endpoints to the MAC addresses, and `R4` to the Ethernet type.
fn mac_addresses(asm: &mut Assembler, done: Label) {
    asm.mov(R7, 0).mov(R8, 0);
    asm.load(Word, R2, R6, xdp_md::DATA).load(Word, R3, R6, xdp_md::DATA_END);
    require(asm, ETHERNET_BYTES, done);
    for (endpoint, place) in [(R7, 0), (R8, 6)] {
        asm.load(Word, endpoint, R2, place).shift_left(endpoint, 16);
        asm.load(Half, R5, R2, place + 4).or(endpoint, R5);
    }
    asm.load(Half, R4, R2, 12);
}

/// Adds a network layer header at this offset, whose Ethernet type is in `R4`.
fn network_layer(asm: &mut Assembler, at: i32, exits: Exits) {
    let ipv4 = asm.label();
    let ipv6 = asm.label();
    asm.jump_if(R4, Eq, on_the_wire(ETHERTYPE_IPV4), ipv4);
    asm.jump_if(R4, Eq, on_the_wire(ETHERTYPE_IPV6), ipv6);
    asm.jump(exits.done);
    asm.bind(ipv4);
    ipv4_header(asm, at, exits);
    asm.bind(ipv6);
    ipv6_header(asm, at, exits);
}

/// Sets the endpoints to the addresses, and adds the ports.
fn ipv4_header(asm: &mut Assembler, at: i32, exits: Exits) {
    let done = exits.done;
    let usual = asm.label();
    let field = |place: i16| at as i16 + place;

    require(asm, at + IPV4_BYTES, done);
    asm.load(Byte, R0, R2, field(0)).mov(R1, R0).and(R1, 0xf0).jump_if(R1, Ne, 0x40, done);
    asm.and(R0, 0xf).jump_if(R0, Lt, IPV4_BYTES / 4, done);
    asm.load(Word, R7, R2, field(12)).shift_left(R7, 16);
    asm.load(Word, R8, R2, field(16)).shift_left(R8, 16);
    asm.load(Half, R1, R2, field(6)).jump_if(R1, AnySet, on_the_wire(IPV4_FRAGMENT), done);
    asm.load(Byte, R4, R2, field(9));
    asm.jump_if(R0, Eq, IPV4_BYTES / 4, usual);
    asm.shift_left(R0, 2).add(R0, at).mov(R9, R0).jump(exits.behind_options);

    asm.bind(usual);
    let ports = asm.label();
    jump_if_ports(asm, ports);
    asm.jump(done);
    asm.bind(ports);
    add_ports(asm, at + IPV4_BYTES, done);
}

/// Like [`ipv4_header`], but the protocol may follow extension headers.
fn ipv6_header(asm: &mut Assembler, at: i32, exits: Exits) {
    let done = exits.done;
    let ports = asm.label();
    let field = |place: i16| at as i16 + place;

    require(asm, at + IPV6_BYTES, done);
    asm.load(Byte, R1, R2, field(0)).and(R1, 0xf0).jump_if(R1, Ne, 0x60, done);
    asm.load_imm64(R0, SPREAD);

    for (endpoint, place) in [(R7, 8), (R8, 24)] {
        asm.load(Double, endpoint, R2, field(place + 8)).alu64(Alu::Mul, endpoint, R0);
        asm.load(Double, R1, R2, field(place)).add(endpoint, R1);
    }

    asm.load(Byte, R4, R2, field(6));
    jump_if_ports(asm, ports);

    // Fragments may be many, and need no copy.
    let other = asm.label();
    asm.jump_if(R4, Ne, i32::from(FRAGMENT), other);
    require(asm, at + IPV6_BYTES + 8, done);
    asm.load(Half, R1, R2, field(IPV6_BYTES as i16 + 2)).jump_if(
        R1,
        AnySet,
        on_the_wire(IPV6_FRAGMENT),
        done,
    );

    asm.bind(other).mov(R9, at + IPV6_BYTES).jump(exits.extension);

    asm.bind(ports);
    add_ports(asm, at + IPV6_BYTES, done);
}

fn jump_if_ports(asm: &mut Assembler, ports: Label) {
    for protocol in WITH_PORTS {
        asm.jump_if(R4, Eq, i32::from(protocol), ports);
    }
}

/// Adds the ports at this offset to the endpoints.
fn add_ports(asm: &mut Assembler, at: i32, done: Label) {
    require(asm, at + 4, done);
    for (endpoint, place) in [(R7, 0), (R8, 2)] {
        asm.load(Half, R1, R2, at as i16 + place).add(endpoint, R1);
    }
    asm.jump(done);
}

/// Skips the extension headers from offset `R9` on.
fn extension_headers(asm: &mut Assembler, exits: Exits) {
    for _ in 0..EXTENSION_HEADERS_MAX {
        extension_header(asm, exits);
    }
    // The header after the last one may have ports.
}

/// Skips one extension header, if there is one.
fn extension_header(asm: &mut Assembler, Exits { behind_options: ports, done, .. }: Exits) {
    let with_length = asm.label();
    let authentication = asm.label();
    let next = asm.label();
    for protocol in WITH_LENGTH {
        asm.jump_if(R4, Eq, i32::from(protocol), with_length);
    }

    asm.jump_if(R4, Eq, i32::from(AUTHENTICATION), authentication);
    asm.jump_if(R4, Ne, i32::from(FRAGMENT), ports);

    copy(asm, 8, done);
    asm.load(Half, R1, R10, COPY + 2).jump_if(R1, AnySet, on_the_wire(IPV6_FRAGMENT), done);
    asm.mov(R1, 8).jump(next);

    asm.bind(authentication);
    copy(asm, 8, done);
    asm.load(Byte, R1, R10, COPY + 1).add(R1, 2).shift_left(R1, 2).jump(next);

    asm.bind(with_length);
    copy(asm, 8, done);
    asm.load(Byte, R1, R10, COPY + 1).add(R1, 1).shift_left(R1, 3);

    asm.bind(next);
    asm.load(Byte, R4, R10, COPY).add(R9, R1);
}

/// Adds the ports at offset `R9` to the endpoints, if the protocol in `R4` has any.
fn ports_from_the_kernel(asm: &mut Assembler, done: Label) {
    let has_ports = asm.label();
    jump_if_ports(asm, has_ports);
    asm.jump(done);
    asm.bind(has_ports);
    copy(asm, 4, done);
    for (endpoint, place) in [(R7, COPY), (R8, COPY + 2)] {
        asm.load(Half, R1, R10, place).add(endpoint, R1);
    }
}

/// Copies the bytes at offset `R9` of the packet to the stack. Leaves nothing in `R0` to `R5`.
fn copy(asm: &mut Assembler, bytes: i32, otherwise: Label) {
    asm.mov(R1, R6).mov(R2, R9).mov(R3, R10).add(R3, i32::from(COPY)).mov(R4, bytes);
    asm.call(Helper::XdpLoadBytes).jump_if(R0, Ne, 0, otherwise);
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

/// Jumps to `otherwise` unless the packet has this many bytes.
fn require(asm: &mut Assembler, bytes: i32, otherwise: Label) {
    asm.mov(R5, R2).add(R5, bytes).jump_if(R5, Gt, R3, otherwise);
}

/// A 16-bit number in the byte order in which a packet contains it.
fn on_the_wire(number: u16) -> i32 {
    number.to_be().into()
}

#[cfg(all(test, not(loom)))]
mod tests;
