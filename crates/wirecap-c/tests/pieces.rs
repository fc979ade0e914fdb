//! Jumbo frames, copied to one piece and as the pieces in the cells.

mod common;

use common::{Bed, Example};
use wirecap_testbed::{PacketSender, Sizes, Stamp, Traffic, frames_of_several_cells, privileged};

#[test]
fn a_frame_of_several_cells_is_one_packet_and_several_pieces() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let bed = Bed::with_mtu(1, 9000);
    let program = Example::start(&bed.receiver, "tests/pieces.c", &["a1"], "ready").unwrap();
    let mut sender = PacketSender::on(&bed.pair.sender).unwrap();
    let lengths = [1000, 9000, 5000, 60];
    for (sequence, bytes) in lengths.into_iter().enumerate() {
        let traffic = Traffic { sizes: Sizes::fixed(bytes), ..Traffic::to(&bed.pair.receiver) };
        sender.send(&traffic.frame(Stamp { queue: 0, sequence: sequence as u64 })).unwrap();
    }
    let text = program.wait();
    assert!(!text.contains("WRONG"), "{text}");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let told: Vec<u16> = lines.iter().map(|words| words[0].parse().unwrap()).collect();
    assert_eq!(told, lengths, "{text}");
    let pieces: Vec<&str> = lines.iter().map(|words| words[2]).collect();
    assert_eq!((pieces[0], pieces[3]), ("1:", "1:"), "{text}");
    assert!(pieces[1] > pieces[2] && pieces[2] > "1:", "{text}");
}
