//! Generated packets of all types that filters look at, and packets of stored traces.

use std::path::Path;

use wirecap_savefile::{LinkType, Reader};

use crate::choices::Choices;
use crate::names::{ADDRESSES, ADDRESSES_6, MACS, PORTS};
use crate::stored;

/// A packet, possibly truncated.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) data: Vec<u8>,
    pub(crate) wire_len: u32,
}

/// An Ethernet frame whose addresses and ports often are those in the expressions.
pub(crate) fn frame(choices: &mut Choices) -> Packet {
    let mut data = Vec::new();
    data.extend(choices.of(&MACS));
    data.extend(choices.of(&MACS));
    encapsulation(choices, &mut data);
    for _ in 0..choices.below(40) {
        data.push(choices.byte());
    }
    if choices.once_in(12) {
        data.resize(60 + choices.below(1500) as usize, 0x5a);
    }
    let wire_len = data.len() as u32;
    if choices.once_in(4) {
        data.truncate(choices.below(wire_len) as usize);
    }
    if choices.once_in(8) && !data.is_empty() {
        let at = choices.below(data.len() as u32) as usize;
        data[at] ^= 1 << choices.below(8);
    }
    Packet { data, wire_len: if choices.once_in(10) { choices.below(70_000) } else { wire_len } }
}

fn encapsulation(choices: &mut Choices, data: &mut Vec<u8>) {
    for _ in 0..choices.of(&[0, 0, 0, 0, 1, 1, 2, 3]) {
        let tpid = choices.of(&[0x8100_u16, 0x8100, 0x88a8, 0x9100]);
        data.extend(tpid.to_be_bytes());
        data.extend(
            ((choices.below(16) << 12) as u16 | choices.of(&[7, 42, 100, 4094])).to_be_bytes(),
        );
    }
    match choices.below(12) {
        0..=4 => {
            data.extend([0x08, 0x00]);
            ipv4(choices, data);
        }
        5..=7 => {
            data.extend([0x86, 0xdd]);
            ipv6(choices, data);
        }
        8 => arp(choices, data),
        9 => mpls(choices, data),
        10 => pppoe(choices, data),
        _ => {
            let other = choices.of(&[0x0026_u16, 0x05dc, 0x0600, 0x88cc, 0x809b, 0xffff, 0x0000]);
            data.extend(other.to_be_bytes());
            let llc =
                choices.of(&[[0x42, 0x42, 3], [0xaa, 0xaa, 3], [0xff, 0xff, 0], [0xfe, 0xfe, 3]]);
            data.extend(llc);
        }
    }
}

fn arp(choices: &mut Choices, data: &mut Vec<u8>) {
    data.extend(choices.of(&[[0x08, 0x06], [0x80, 0x35]]));
    data.extend([0, 1, 8, 0, 6, 4, 0, choices.byte() % 3]);
    data.extend(choices.of(&MACS));
    data.extend(choices.of(&ADDRESSES).octets());
    data.extend(choices.of(&MACS));
    data.extend(choices.of(&ADDRESSES).octets());
}

fn mpls(choices: &mut Choices, data: &mut Vec<u8>) {
    data.extend([0x88, 0x47]);
    let depth = 1 + choices.below(3);
    for label in 1..=depth {
        let bottom = u32::from(label == depth);
        let label = choices.of(&[16_u32, 1024, 100_000]) << 12;
        data.extend((label | bottom << 8 | 64).to_be_bytes());
    }
    if choices.once_in(2) { ipv4(choices, data) } else { ipv6(choices, data) }
}

fn pppoe(choices: &mut Choices, data: &mut Vec<u8>) {
    let session = choices.once_in(2);
    data.extend(if session { [0x88, 0x64] } else { [0x88, 0x63] });
    data.extend([0x11, if session { 0 } else { 9 }, 0, choices.of(&[1, 7]), 0, 40]);
    data.extend([0x00, 0x21]);
    ipv4(choices, data);
}

fn ipv4(choices: &mut Choices, data: &mut Vec<u8>) {
    let options = choices.of(&[0_u8, 0, 0, 0, 1, 3, 10]);
    let fragment: u16 = choices.of(&[0, 0, 0, 0x4000, 0x2000, 0x0007, 0x2064]);
    let protocol = choices.of(&[6, 6, 6, 17, 17, 1, 2, 47, 50, 51, 132, 88, 112, 255]);
    data.extend([0x45 + options, choices.byte(), 0, 60, 0, 0]);
    data.extend(fragment.to_be_bytes());
    data.extend([choices.byte(), protocol, 0, 0]);
    data.extend(choices.of(&ADDRESSES).octets());
    data.extend(choices.of(&ADDRESSES).octets());
    data.extend(vec![1; usize::from(options) * 4]);
    transport(choices, data, protocol);
}

fn ipv6(choices: &mut Choices, data: &mut Vec<u8>) {
    let mut next = choices.of(&[6, 6, 17, 17, 58, 44, 0, 51, 132]);
    data.extend([0x60, choices.byte(), 0, 0, 0, 40, next, 64]);
    data.extend(choices.of(&ADDRESSES_6).octets());
    data.extend(choices.of(&ADDRESSES_6).octets());
    for _ in 0..4 {
        if ![44, 0, 51].contains(&next) {
            break;
        }
        next = choices.of(&[6, 17, 58, 60]);
        data.extend([next, 0, 0, choices.byte(), 0, 0, 0, 1]);
    }
    transport(choices, data, next);
}

fn transport(choices: &mut Choices, data: &mut Vec<u8>, protocol: u8) {
    match protocol {
        6 | 17 | 132 => {
            data.extend(choices.of(&PORTS).to_be_bytes());
            data.extend(choices.of(&PORTS).to_be_bytes());
            data.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50 | choices.byte() & 0xa0, choices.byte()]);
        }
        1 | 58 => data.extend([choices.byte() % 20, choices.byte() % 4, 0, 0]),
        _ => {}
    }
}

/// A frame with several fragments.
pub(crate) fn jumbo(choices: &mut Choices) -> Packet {
    let mut data = frame(choices).data;
    let len = 3000 + choices.below(6200) as usize;
    data.extend((0..len).map(|at| (at % 251) as u8));
    Packet { wire_len: data.len() as u32, data }
}

/// Random bytes.
pub(crate) fn noise(choices: &mut Choices) -> Packet {
    let len = choices.of(&[0_u32, 1, 13, 14, 33, 60, 64, 128, 200]) + choices.below(3);
    let data: Vec<u8> = (0..len).map(|_| choices.byte()).collect();
    let wire_len = if choices.once_in(3) { choices.word() } else { len };
    Packet { data, wire_len }
}

/// Up to `per_file` packets of each stored trace of this link type.
pub(crate) fn traces(link_type: LinkType, per_file: usize) -> Vec<Packet> {
    let files = stored::traces();
    files.iter().flat_map(|file| packets_of(file, link_type).into_iter().take(per_file)).collect()
}

fn packets_of(file: &Path, link_type: LinkType) -> Vec<Packet> {
    let mut packets = Vec::new();
    let Ok(mut reader) = Reader::open(file) else { return packets };
    loop {
        // Some traces are damaged on purpose; the packets before the damage are valid.
        let Ok(Some(record)) = reader.next_record() else { return packets };
        let interface = record.interface;
        let data = record.data.to_vec();
        let packet = Packet { wire_len: record.wire_len, data };
        if reader.interfaces()[interface as usize].link_type == link_type {
            packets.push(packet);
        }
    }
}
