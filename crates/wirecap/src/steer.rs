//! Software steering: a flow hash chooses among the rings of one receive queue.
//!
//! The hash is symmetric: both directions of a connection have the same. It covers the addresses and
//! ports of TCP, UDP and SCTP over IPv4 and IPv6, behind up to two VLAN tags. Every fragment of a
//! datagram, the first as well, goes by the addresses alone, since the others have no ports; so does
//! whatever has no ports or is cut off before them. What is not IP goes by the pair of MAC addresses.
//!
//! IPv6's extension headers are passed over as far as they say where the next header is: not behind
//! the Encapsulating Security Payload, whose next header is a secret, nor behind those unknown.

use crate::bpf::asm::{Alu, Assembler, Condition::*, Label, Reg::*, Size::*};
use crate::bpf::xdp_md;

/// How many rings each receive queue of an interface has: the same number, or on the first queues one more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Steering {
    /// In ascending order.
    queues: Vec<u32>,
    /// Rings of the first queue.
    most: u32,
    /// How many queues have as many as the first one.
    with_most: usize,
}

impl Steering {
    /// Deals `rings` rings out to `queues`, in ascending order; one to each at least.
    pub(crate) fn new(queues: Vec<u32>, rings: usize) -> Self {
        let rings = rings.max(queues.len());
        let most = rings.div_ceil(queues.len());
        let with_most = rings - (most - 1) * queues.len();
        Self { queues, most: most as u32, with_most }
    }

    pub(crate) fn queues(&self) -> &[u32] {
        &self.queues
    }

    /// How many rings there are.
    pub(crate) fn rings(&self) -> usize {
        self.with_most + (self.most as usize - 1) * self.queues.len()
    }

    /// How many rings each queue has, in the order of [`queues`](Self::queues).
    pub(crate) fn rings_of_queues(&self) -> impl Iterator<Item = u32> {
        (0..self.queues.len()).map(|place| self.most - u32::from(place >= self.with_most))
    }

    /// Whether a queue has several rings, so that packets have to be looked at.
    pub(crate) fn is_needed(&self) -> bool {
        self.most > 1
    }

    /// The key of a queue's ring in the map of the sockets.
    pub(crate) fn key(&self, queue: u32, part: u32) -> u32 {
        queue * self.most + part
    }

    /// How many keys there are on an interface with `rx_queues` queues.
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
        // The hash, a fraction of 2^32, times the number of rings: no division, and its best bits decide.
        asm.alu64(Alu::Mul, R7, R1).shift_right(R7, 32);
        asm.alu64(Alu::Mul, R2, self.most.cast_signed()).add(R2, R7);
    }
}

/// Types of a VLAN tag: 802.1Q, 802.1ad, and what was in use before that.
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
/// As many as a datagram may have that follows the recommendation of RFC 8200, section 4.1.
const EXTENSION_HEADERS_MAX: usize = 6;

/// An IPv4 header's bits that only fragments have: the offset, and "more fragments".
const IPV4_FRAGMENT: u16 = 0x3fff;
/// The same of an IPv6 fragment header. One without is on a datagram that is whole (RFC 6946).
const IPV6_FRAGMENT: u16 = 0xfff9;

/// Odd numbers without pattern: the golden ratio's fraction, and a multiplier of MurmurHash3.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX: u64 = 0xff51_afd7_ed55_8ccd;

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

/// `R2` = what comes behind the Ethernet type, `R3` = the packet's end (of its first fragment), `R7` and
/// `R8` = the endpoints as far as they are known, here the MAC addresses.
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

/// `R2 += R1`, less than 4,096. The verifier is made to forget what it knows of the length: otherwise it
/// follows every kind of header behind every other kind, for a tenth of a second.
fn advance(asm: &mut Assembler) {
    // Swapped twice, it is as it was.
    asm.to_big_endian(Half, R1).to_big_endian(Half, R1).and(R1, 0xfff).add(R2, R1);
}

/// The endpoints become the addresses, `R4` the protocol and `R2` where its header is.
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

/// As [`ipv4_header`], where the protocol may stand behind extension headers.
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
    // What stands behind the last one may have ports.
}

/// Passes over one extension header if there is one.
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

/// Goes on at `otherwise` unless there are `bytes` more from `R2` on.
fn require(asm: &mut Assembler, bytes: i32, otherwise: Label) {
    asm.mov(R5, R2).add(R5, bytes).jump_if(R5, Gt, R3, otherwise);
}

/// A number of 16 bits as a load finds it in a packet.
fn on_the_wire(number: u16) -> i32 {
    number.to_be().into()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use wirecap_testbed::privileged;

    use super::*;
    use crate::bpf::{LoadOptions, Program, ProgramKind};
    use crate::sim::Random;

    #[test]
    fn rings_are_dealt_out_evenly() {
        let dealt = |queues: u32, rings| {
            let steering = Steering::new((0..queues).collect(), rings);
            assert_eq!(steering.rings(), rings.max(queues as usize));
            steering.rings_of_queues().collect::<Vec<_>>()
        };
        assert_eq!(dealt(1, 1), [1]);
        assert_eq!(dealt(1, 4), [4]);
        assert_eq!(dealt(3, 2), [1, 1, 1]);
        assert_eq!(dealt(3, 3), [1, 1, 1]);
        assert_eq!(dealt(3, 5), [2, 2, 1]);
        assert_eq!(dealt(4, 5), [2, 1, 1, 1]);
        assert_eq!(dealt(2, 8), [4, 4]);
    }

    /// The same hash, written without regard to speed.
    fn reference(frame: &[u8]) -> u32 {
        let (a, b) = endpoints(frame);
        let sum = a.min(b).wrapping_mul(SPREAD).wrapping_add(a.max(b));
        ((sum ^ (sum >> 32)).wrapping_mul(MIX) >> 32) as u32
    }

    fn endpoints(frame: &[u8]) -> (u64, u64) {
        let Some((header, mut rest)) = frame.split_first_chunk::<14>() else { return (0, 0) };
        let macs = (mac(&header[..6]), mac(&header[6..12]));
        let mut ethertype = [header[12], header[13]];
        for _ in 0..2 {
            if [[0x81, 0], [0x88, 0xa8], [0x91, 0]].contains(&ethertype) {
                let Some((tag, behind)) = rest.split_first_chunk::<4>() else { return macs };
                (ethertype, rest) = ([tag[2], tag[3]], behind);
            }
        }
        let addresses = match ethertype {
            [0x08, 0x00] => ipv4(rest),
            [0x86, 0xdd] => ipv6(rest),
            _ => None,
        };
        addresses.unwrap_or(macs)
    }

    fn mac(bytes: &[u8]) -> u64 {
        u64::from(u32::from_ne_bytes(bytes[..4].try_into().unwrap())) << 16 | u64::from(half(&bytes[4..]))
    }

    fn half(bytes: &[u8]) -> u16 {
        u16::from_ne_bytes(bytes[..2].try_into().unwrap())
    }

    fn ipv4(packet: &[u8]) -> Option<(u64, u64)> {
        let header: &[u8; 20] = packet.first_chunk()?;
        if header[0] >> 4 != 4 || header[0] & 15 < 5 {
            return None;
        }
        let address = |at: usize| u64::from(u32::from_ne_bytes(header[at..at + 4].try_into().unwrap())) << 16;
        let addresses = (address(12), address(16));
        let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        let ports = packet.get(usize::from(header[0] & 15) * 4..).filter(|_| !is_fragment);
        Some(ports.map_or(addresses, |ports| with_ports(addresses, header[9], ports)))
    }

    fn ipv6(packet: &[u8]) -> Option<(u64, u64)> {
        let (header, mut rest) = packet.split_first_chunk::<40>()?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let double = |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().unwrap());
        let address = |at: usize| double(at).wrapping_add(double(at + 8).wrapping_mul(SPREAD));
        let addresses = (address(8), address(24));
        let mut protocol = header[6];
        for _ in 0..6 {
            let Some(begin) = rest.first_chunk::<8>() else { break };
            let len = match protocol {
                0 | 43 | 60 => (usize::from(begin[1]) + 1) * 8,
                51 => (usize::from(begin[1]) + 2) * 4,
                44 if u16::from_be_bytes([begin[2], begin[3]]) & 0xfff9 != 0 => return Some(addresses),
                44 => 8,
                _ => break,
            };
            protocol = begin[0];
            rest = rest.get(len..).unwrap_or(&[]);
        }
        Some(with_ports(addresses, protocol, rest))
    }

    fn with_ports((a, b): (u64, u64), protocol: u8, ports: &[u8]) -> (u64, u64) {
        if ![6, 17, 132].contains(&protocol) || ports.len() < 4 {
            return (a, b);
        }
        (a.wrapping_add(half(ports).into()), b.wrapping_add(half(&ports[2..]).into()))
    }

    /// A program whose verdict is the hash.
    fn program() -> Program {
        let mut asm = Assembler::new();
        asm.mov(R6, R1);
        flow_hash(&mut asm);
        asm.mov(R0, R7).exit();
        let options = LoadOptions { fragments: true, device: None };
        Program::load(ProgramKind::Xdp, "flow_hash", &asm.finish().unwrap(), options).unwrap()
    }

    fn assert_agree(program: &Program, frame: &[u8]) -> u32 {
        let hash = program.test_run(frame, 1).unwrap().verdict;
        assert_eq!(hash, reference(frame), "{frame:02x?}");
        hash
    }

    /// One end of a connection.
    #[derive(Clone, Copy)]
    struct End {
        mac: [u8; 6],
        address: [u8; 16],
        port: [u8; 2],
    }

    impl End {
        fn random(random: &mut Random) -> Self {
            let [a, b, c] = [random.bits(), random.bits(), random.bits()].map(u64::to_ne_bytes);
            let mut address = [0; 16];
            address[..8].copy_from_slice(&a);
            address[8..].copy_from_slice(&b);
            Self { mac: *c.first_chunk().unwrap(), address, port: [c[6], c[7]] }
        }
    }

    /// What stands between the MAC addresses and the payload.
    #[derive(Clone, Debug)]
    struct Shape {
        tags: Vec<u16>,
        network: Network,
        protocol: u8,
    }

    #[derive(Clone, Debug)]
    enum Network {
        Ipv4 { option_words: u8, fragment: u16 },
        Ipv6 { extensions: Vec<(u8, u8, u16)> },
        Other,
    }

    impl Shape {
        fn random(random: &mut Random) -> Self {
            let tags = (0..random.below(4)).map(|_| VLAN_TYPES[random.below(3) as usize]).collect();
            let fragment = |random: &mut Random| if random.once_in(5) { random.bits() as u16 } else { 0 };
            let network = match random.below(9) {
                0..4 => Network::Ipv4 {
                    option_words: if random.once_in(3) { random.below(11) as u8 } else { 0 },
                    fragment: fragment(random),
                },
                4..8 => Network::Ipv6 {
                    extensions: (0..random.below(8).saturating_sub(2))
                        .map(|_| {
                            let kind = [0, 43, 44, 51, 60, 60, 50, 59, 135][random.below(9) as usize];
                            (kind, random.below(4) as u8, fragment(random))
                        })
                        .collect(),
                },
                _ => Network::Other,
            };
            let protocol = [6, 17, 132, 1, 58, random.bits() as u8][random.below(6) as usize];
            Self { tags, network, protocol }
        }

        fn frame(&self, from: End, to: End) -> Vec<u8> {
            let mut frame = [to.mac, from.mac].concat();
            for (number, tag) in self.tags.iter().enumerate() {
                frame.extend(tag.to_be_bytes());
                frame.extend([0x20, number as u8]);
            }
            match &self.network {
                Network::Ipv4 { option_words, fragment } => {
                    frame.extend(ETHERTYPE_IPV4.to_be_bytes());
                    frame.extend([0x45 + option_words, 0, 0, 0, 0, 0]);
                    frame.extend(fragment.to_be_bytes());
                    frame.extend([64, self.protocol, 0, 0]);
                    frame.extend([&from.address[..4], &to.address[..4]].concat());
                    frame.extend(vec![1; usize::from(*option_words) * 4]);
                }
                Network::Ipv6 { extensions } => {
                    let kinds = extensions.iter().map(|(kind, ..)| *kind).chain([self.protocol]);
                    let mut next = kinds.clone().skip(1);
                    frame.extend(ETHERTYPE_IPV6.to_be_bytes());
                    frame.extend([0x60, 0, 0, 0, 0, 0, kinds.clone().next().unwrap(), 64]);
                    frame.extend([from.address, to.address].concat());
                    for (kind, len, fragment) in extensions {
                        let bytes = match kind {
                            44 => 8,
                            51 => (usize::from(*len) + 2) * 4,
                            _ => (usize::from(*len) + 1) * 8,
                        };
                        let mut header = vec![0; bytes];
                        header[..2].copy_from_slice(&[next.next().unwrap(), *len]);
                        header[2..4].copy_from_slice(&fragment.to_be_bytes());
                        frame.extend(header);
                    }
                }
                Network::Other => frame.extend(0x0806_u16.to_be_bytes()),
            }
            frame.extend([from.port, to.port].concat());
            frame.extend([0; 16]);
            frame
        }
    }

    #[test]
    fn the_program_agrees_with_the_reference_on_sound_and_broken_frames() {
        if !privileged() {
            return;
        }
        let program = program();
        let mut random = Random::new(1);
        for _ in 0..20_000 {
            let mut frame =
                Shape::random(&mut random).frame(End::random(&mut random), End::random(&mut random));
            if random.once_in(3) {
                frame.truncate(random.between(14, frame.len() as u64) as usize);
            }
            if random.once_in(3) {
                for _ in 0..random.between(1, 4) {
                    let place = random.below(frame.len() as u64) as usize;
                    frame[place] = random.bits() as u8;
                }
            }
            assert_agree(&program, &frame);
        }
        for _ in 0..5000 {
            let len = random.between(14, 200);
            let frame: Vec<u8> = (0..len).map(|_| random.bits() as u8).collect();
            assert_agree(&program, &frame);
        }
    }

    #[test]
    fn both_directions_have_the_same_hash_and_other_flows_another() {
        if !privileged() {
            return;
        }
        let program = program();
        let mut random = Random::new(2);
        for _ in 0..5000 {
            let shape = Shape::random(&mut random);
            let (a, b) = (End::random(&mut random), End::random(&mut random));
            let hash = assert_agree(&program, &shape.frame(a, b));
            assert_eq!(hash, assert_agree(&program, &shape.frame(b, a)), "{shape:?}");
            let other = assert_agree(&program, &shape.frame(a, End::random(&mut random)));
            assert_ne!(hash, other, "{shape:?}");
        }
    }

    #[test]
    fn what_a_flow_is_made_of() {
        if !privileged() {
            return;
        }
        let program = program();
        let mut random = Random::new(3);
        let (a, b) = (End::random(&mut random), End::random(&mut random));
        let other_port = End { port: [1, 2], ..b };
        let hash = |shape: &Shape, to: End| assert_agree(&program, &shape.frame(a, to));
        let ipv4 = |protocol, fragment| Shape {
            tags: vec![],
            network: Network::Ipv4 { option_words: 0, fragment },
            protocol,
        };
        let ipv6 = |protocol, extensions: &[(u8, u8, u16)]| Shape {
            tags: vec![],
            network: Network::Ipv6 { extensions: extensions.to_vec() },
            protocol,
        };
        let by_ports = |shape: &Shape| hash(shape, b) != hash(shape, other_port);
        for protocol in WITH_PORTS {
            assert!(by_ports(&ipv4(protocol, 0)) && by_ports(&ipv6(protocol, &[])));
        }
        assert!(!by_ports(&ipv4(1, 0)) && !by_ports(&ipv6(58, &[])), "ICMP has no ports");
        for fragment in [0x2000, 0x2001, 0x1fff] {
            assert!(!by_ports(&ipv4(17, fragment)));
        }
        assert!(by_ports(&ipv4(17, 0x4000)), "not to be fragmented is not a fragment");
        assert_eq!(hash(&ipv4(17, 0x2000), b), hash(&ipv4(17, 0x0005), b), "first and last fragment");
        let extended = [(0, 0, 0), (60, 1, 0), (43, 2, 0), (44, 0, 0), (51, 4, 0), (60, 0, 0)];
        assert!(by_ports(&ipv6(17, &extended)));
        assert_eq!(hash(&ipv6(17, &extended), b), hash(&ipv6(17, &[]), b), "one flow");
        assert!(!by_ports(&ipv6(17, &[(44, 0, 0x0001)])) && !by_ports(&ipv6(17, &[(44, 0, 0xfff8)])));
        assert!(!by_ports(&ipv6(17, &[(50, 0, 0)])), "what is encrypted has no ports");
        for tags in [vec![0x8100], vec![0x88a8, 0x8100], vec![0x9100, 0x9100]] {
            let tagged = Shape { tags, ..ipv4(17, 0) };
            assert_eq!(hash(&tagged, b), hash(&ipv4(17, 0), b), "one flow, tagged or not");
        }
        assert!(!by_ports(&Shape { tags: vec![0x8100; 3], ..ipv4(17, 0) }), "three tags are too many");
    }

    #[test]
    fn flows_that_differ_little_spread_evenly() {
        // Ports that follow each other, addresses that follow each other, and ends that differ in both.
        let end = |host: u32, port: u16| End {
            mac: [2, 0, 0, 0, 0, 1],
            address: u128::from(host.to_be()).to_ne_bytes(),
            port: port.to_be_bytes(),
        };
        let network = Network::Ipv4 { option_words: 0, fragment: 0 };
        let shape = Shape { tags: vec![], network, protocol: 17 };
        let flows: [fn(u32) -> (u32, u16); 3] = [
            |n| (0x0a00_0001, 1024 + n as u16),
            |n| (0x0a00_0001 + n, 1024),
            |n| (0x0a00_0001 + n / 100, 1024 + (n % 100) as u16),
        ];
        for flow in flows {
            for rings in [2, 3, 4, 7] {
                let mut counts = vec![0; rings as usize];
                for n in 0..10_000 {
                    let (host, port) = flow(n);
                    let hash = reference(&shape.frame(end(host, port), end(0xc0a8_0001, 53)));
                    counts[((u64::from(hash) * rings) >> 32) as usize] += 1;
                }
                let even = 10_000 / rings as i32;
                assert!(counts.iter().all(|count: &i32| (count - even).abs() < even / 5), "{counts:?}");
            }
        }
    }
}
