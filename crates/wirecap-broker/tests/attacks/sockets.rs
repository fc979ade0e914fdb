//! Sockets of interfaces, queues and groups outside the terms.

use wirecap::privileged::Inquiry;
use wirecap_broker::{Ask, Terms};

use crate::bed::{Attacker, Bed, CAPTURED, COPY, OTHER, terms};

pub(crate) fn a_packet_socket_is_bound_to_no_other_interface() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let (socket, _descriptor) = attacker.object(&Ask::PacketSocket);
    for ifindex in [bed.other(), 0, 1, u32::MAX] {
        attacker.is_refused(&Ask::BindPacket { socket, ifindex });
        assert_eq!(bed.packet_sockets(), [0], "bound to none");
    }
    attacker.is_done(&Ask::BindPacket { socket, ifindex: bed.index() });
    attacker.is_refused(&Ask::BindPacket { socket, ifindex: bed.other() });
    assert_eq!(bed.packet_sockets(), [bed.index()]);
    bed.assert_other_untouched();
    attacker.end();
}

pub(crate) fn no_other_interface_becomes_promiscuous() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    for ifindex in [bed.other(), 0, 1, u32::MAX] {
        attacker.is_refused(&Ask::Promiscuous { ifindex });
        attacker.is_refused(&Ask::GuardedHooks { ifindex });
    }
    bed.assert_other_untouched();
    let (held, _) = attacker.object(&Ask::Promiscuous { ifindex: bed.index() });
    assert_eq!(bed.promiscuity(CAPTURED), 1);
    attacker.is_done(&Ask::Release { object: held });
    assert_eq!(bed.promiscuity(CAPTURED), 0);
    let (held, _) = attacker.object(&Ask::Promiscuous { ifindex: bed.index() });
    for ifindex in [bed.other(), 0, 1, u32::MAX] {
        attacker.is_refused(&Ask::PromiscuousAlso { holder: held, ifindex });
    }
    bed.assert_other_untouched();
    attacker.end();
    assert_eq!(bed.promiscuity(CAPTURED), 0, "after the end");
}

/// All interfaces are a term of its own, for packet sockets only.
pub(crate) fn all_interfaces_are_for_packet_sockets_only() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &Terms { interfaces: Vec::new(), any: true, ..terms(None) });
    let (socket, _descriptor) = attacker.object(&Ask::PacketSocket);
    attacker.is_done(&Ask::BindPacket { socket, ifindex: 0 });
    let (held, _) = attacker.object(&Ask::Promiscuous { ifindex: bed.index() });
    attacker.is_done(&Ask::PromiscuousAlso { holder: held, ifindex: bed.other() });
    attacker.is_refused(&Ask::PromiscuousAlso { holder: socket, ifindex: bed.other() });
    assert_eq!([CAPTURED, OTHER].map(|name| bed.promiscuity(name)), [1, 1]);
    attacker.is_done(&Ask::Release { object: held });
    assert_eq!([CAPTURED, OTHER].map(|name| bed.promiscuity(name)), [0, 0]);

    let (xdp, _descriptor) = attacker.unbound_xdp_socket();
    for ifindex in [bed.index(), bed.other(), 0] {
        attacker.is_refused(&Ask::BindXdp { socket: xdp, ifindex, queue: 0, mode: COPY });
    }
    attacker.is_refused(&Ask::AttachLock(bed.device(CAPTURED)));
    attacker.end();
}

pub(crate) fn an_af_xdp_socket_is_bound_to_no_other_interface_or_queue() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(Some(&[0])));
    let (socket, _descriptor) = attacker.unbound_xdp_socket();
    let own = bed.index();
    let other = bed.other();
    let outside =
        [(other, 0), (other, 1), (own, 1), (own, 2), (own, u32::MAX), (0, 0), (u32::MAX, 0)];
    for (ifindex, queue) in outside {
        attacker.is_refused(&Ask::BindXdp { socket, ifindex, queue, mode: COPY });
    }
    assert!(bed.is_free(&bed.captured, 0) && bed.is_free(&bed.captured, 1));
    bed.assert_other_untouched();
    attacker.is_done(&Ask::BindXdp { socket, ifindex: own, queue: 0, mode: COPY });

    let (beside, descriptor) = attacker.object(&Ask::XdpSocket);
    rustix::net::sockopt::set_xdp_rx_ring_size(descriptor.unwrap(), 64).unwrap();
    for (ifindex, queue) in outside {
        attacker.is_refused(&Ask::BindXdpBeside { socket: beside, first: socket, ifindex, queue });
    }
    assert!(!bed.is_free(&bed.captured, 0), "the queue in the terms");
    assert!(bed.is_free(&bed.captured, 1), "the queue that is not");
    bed.assert_other_untouched();
    attacker.end();
}

pub(crate) fn no_netlink_socket_hears_of_other_groups() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let permitted =
        libc::RTMGRP_LINK | libc::RTMGRP_IPV4_ROUTE | libc::RTMGRP_IPV6_ROUTE | libc::RTMGRP_TC;
    for group in 0..32 {
        let groups = 1_u32 << group;
        let (reply, descriptor) = attacker.ask(&Ask::Netlink(Inquiry::Route { groups }));
        let table =
            bed.in_here(|| std::fs::read_to_string("/proc/thread-self/net/netlink").unwrap());
        // Column 4: the groups of a socket, in hexadecimal.
        let has_group = table.lines().skip(1).any(|line| {
            let heard = line.split_whitespace().nth(3).unwrap();
            u32::from_str_radix(heard, 16).unwrap() & groups & !(permitted.cast_unsigned() | 0x110)
                != 0
        });
        assert!(!has_group, "group {group}: {reply:?} {descriptor:?}\n{table}");
        if groups & (permitted.cast_unsigned() | 0x110) == 0 {
            assert!(
                crate::bed::is_refusal(&reply) && descriptor.is_none(),
                "group {group}: {reply:?}"
            );
        }
    }
    attacker.end();
}
