//! The account of a ring, with blocks and frames that the tests fill, and on real sockets.

use std::time::Duration;

use wirecap_testbed::{Namespace, PacketSender, Stamp, Traffic, VethPair, privileged};

use super::*;

use crate::names::RingName;
use crate::packet::steering::Direction;
use crate::packet::{blocks, frames};
use crate::sys::packet::BlockShape;

const EVERYTHING: Selection =
    Selection { direction: Direction::InOut, queue_mark: None, admitted: None };
const TRAITS: Traits = Traits {
    ifindex: 1,
    geometry: Geometry { chunk_cells: 64, chunks: 4, cell_bytes: 2048 },
    labels: Labels { timestamps: true, by_queue: false, numbered: false },
    longest_frame: 1514,
    roster: None,
};

fn ring_of(store: Store, socket: PacketSocket) -> PacketRing {
    let identity = RingIdentity {
        name: RingName::of_queue("test", 0),
        index: 0,
        interface_index: 1,
        snap_len: 4096,
        link_type: crate::savefile::LinkType::ETHERNET,
        order: Default::default(),
    };
    PacketRing::new(identity, TRAITS, EVERYTHING, store, socket)
}

/// Offered, delivered and dropped for other reasons.
fn counts(ring: &PacketRing) -> [u64; 3] {
    let account = ring.account();
    [account.offered, account.delivered, account.dropped.other]
}

#[test]
#[cfg_attr(miri, ignore = "miri has no sockets")]
fn packets_behind_an_invalid_header_are_counted() {
    if !privileged() {
        return;
    }
    for valid in [0, 1, 3] {
        let (blocks, mut kernel) = blocks::tests::ring();
        kernel.hand_over_broken(5, valid);

        let ring = ring_of(Store::Blocks(blocks), PacketSocket::new().unwrap());
        let captured = ring.capture();
        assert_eq!(captured.is_err(), valid == 0, "{captured:?}");
        assert_eq!(captured.ok().flatten().map_or(0, |chunk| chunk.len()), valid);

        let left = 5 - valid as u64;
        assert_eq!(counts(&ring), [5, valid as u64, left], "packets behind an invalid header");
        ring.close();
        assert_eq!(
            counts(&ring),
            [5, valid as u64, left],
            "packets behind an invalid header, after the close"
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "miri has no sockets")]
fn packets_left_at_the_close_are_counted() {
    if !privileged() {
        return;
    }

    let (blocks, mut kernel) = blocks::tests::ring();
    kernel.hand_over_broken(5, 5);
    kernel.hand_over_broken(2, 2);

    let ring = ring_of(Store::Blocks(blocks), PacketSocket::new().unwrap());

    // A part of the first block.
    let help = Help { limit: 0, most: 2, abandoned: false };
    let chunk = ring.offload(help).unwrap().unwrap();
    assert_eq!(chunk.len(), 2);
    ring.close();
    assert_eq!(counts(&ring), [7, 2, 5], "packets left in blocks at the close");

    let (frames, mut kernel) = frames::tests::ring();
    (0..3).for_each(|_| kernel.receive(&[1; 60], None));

    let ring = ring_of(Store::Frames(frames), PacketSocket::new().unwrap());
    let chunk = ring.offload(Help { most: 1, ..help }).unwrap().unwrap();
    assert_eq!(chunk.len(), 1);
    ring.close();
    assert_eq!(counts(&ring), [3, 1, 2], "packets left in frames at the close");
}

#[test]
#[cfg_attr(miri, ignore = "miri has no sockets")]
fn packets_that_a_socket_dropped_are_counted_when_another_one_replaces_it() {
    const SENT: u64 = 2000;
    if !privileged() {
        return;
    }

    let here = Namespace::new().unwrap();
    let there = Namespace::new().unwrap();
    let pair = VethPair::new((&here, "a0"), (&there, "a1"), 1, 1500).unwrap();
    let ifindex = pair.receiver.index;
    let shape = BlockShape { block_bytes: 16 << 10, blocks: 4 };

    let open = || {
        let socket = PacketSocket::new().unwrap();
        let mapping = socket.make_ring(shape, Duration::from_millis(20)).unwrap();
        socket.bind(ifindex).unwrap();
        (Store::Blocks(Arc::new(Blocks::new(mapping, shape))), socket)
    };
    let ring = there.run_in(|| {
        let (store, socket) = open();
        ring_of(store, socket)
    });
    let ring = ring.unwrap();
    let traffic = Traffic::to(&pair.receiver);
    let mut sender = PacketSender::on(&pair.sender).unwrap();
    (0..SENT)
        .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue: 0, sequence })).unwrap());
    pair.receiver.set_up(false).unwrap();

    // SAFETY: the interface is down, and the sender has sent its last packet.
    there
        .run_in(|| unsafe {
            let (store, socket) = open();
            ring.exchange(ifindex, EVERYTHING, socket, store);
        })
        .unwrap();
    let mut delivered = 0;
    while let Some(chunk) = ring.capture().unwrap() {
        delivered += chunk.len() as u64;
    }

    let account = ring.account();
    assert_eq!(account.delivered, delivered);
    assert!(delivered < SENT, "the ring had room for all");
    assert_eq!(account.offered, SENT, "packets that the former socket dropped: {account:?}");
    ring.close();
    assert_eq!(
        ring.account().offered,
        SENT,
        "packets that the former socket dropped, after the close"
    );
}
