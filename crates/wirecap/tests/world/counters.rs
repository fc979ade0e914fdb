//! Counters of the kernel with few bits.

#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use wirecap::Engine;
use wirecap_testbed::{pass_program, privileged};

use crate::bed::{Bed, small};

/// Number of packets that a ring's socket has dropped since the last query; this is also a query.
fn take_drops(socket: &impl AsRawFd) -> u32 {
    let mut counts = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
    let mut bytes = size_of_val(&counts) as libc::socklen_t;
    let level = libc::SOL_PACKET;
    let option = libc::PACKET_STATISTICS;
    // SAFETY: `counts` has room for `bytes` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut counts).cast(),
            &raw mut bytes,
        )
    };
    assert_eq!(result, 0);
    counts.tp_drops
}

#[test]
fn drops_are_added_up_before_their_counter_wraps_also_without_a_reader() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    // Before the capture opens: without a program a veth end has no queue that counts its drops.
    let _pass = pass_program(&bed.pair.receiver).unwrap();
    let capture = bed.open(small(Engine::Packet).pool(2).workers(1));
    let socket = capture.packet_socket(0).unwrap();
    bed.send(0, 10_000);
    thread::sleep(Duration::from_millis(1_500));
    let left = take_drops(&*socket);
    let dropped = capture.account(0).dropped.no_cell;
    assert!(
        left == 0 && dropped > 1_000,
        "{left} drops are in the kernel's 32 bits, {dropped} in the ledger"
    );
    let ledger = bed.close(capture);
    assert_eq!(ledger.total.offered, 10_000, "{ledger}");
}
