//! Compares the program's hash with the plain implementation.

use wirecap_testbed::privileged;

use super::*;
use crate::bpf::{LoadOptions, Program, ProgramKind};
use crate::sim::Random;
use crate::steer::flow::flow_hash as hash_of;

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
    assert_eq!(hash, hash_of(frame), "{frame:02x?}");
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

/// The headers between the MAC addresses and the payload.
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
        let fragment =
            |random: &mut Random| if random.once_in(5) { random.bits() as u16 } else { 0 };

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
        let a = End::random(&mut random);
        let b = End::random(&mut random);
        let hash = assert_agree(&program, &shape.frame(a, b));
        assert_eq!(hash, assert_agree(&program, &shape.frame(b, a)), "{shape:?}");
        let other = assert_agree(&program, &shape.frame(a, End::random(&mut random)));
        assert_ne!(hash, other, "{shape:?}");
    }
}

#[test]
fn a_flow_hash_covers_addresses_and_ports() {
    if !privileged() {
        return;
    }

    let program = program();
    let mut random = Random::new(3);
    let a = End::random(&mut random);
    let b = End::random(&mut random);
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
    // Consecutive ports, consecutive addresses, and ends that differ in both.
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
                let hash = hash_of(&shape.frame(end(host, port), end(0xc0a8_0001, 53)));
                counts[((u64::from(hash) * rings) >> 32) as usize] += 1;
            }
            let even = 10_000 / rings as i32;
            assert!(counts.iter().all(|count: &i32| (count - even).abs() < even / 5), "{counts:?}");
        }
    }
}
