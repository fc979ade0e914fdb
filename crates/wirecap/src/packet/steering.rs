//! The selection of a ring's packets: classic BPF on the kernel's data about a packet.
//!
//! A whole interface has one fanout group, which distributes all packets by flow. If queues are
//! named, each queue has a group. The kernel gives every group every packet of the interface, and
//! the socket filters, which begin with a check of the queue, reject packets of other queues: each
//! packet costs one filter run per captured queue. One group cannot distribute by queue and flow at
//! once: classic BPF has no access to the symmetric hash, and an eBPF program needs more than
//! CAP_NET_RAW.

use libc::sock_filter;

use crate::device::SPECIAL_LINKS;
use crate::sys::packet::SocketFilter;

/// The directions of captured packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// Those that the interface received.
    In,
    /// Those that the host sent.
    Out,
    /// Both.
    #[default]
    InOut,
}

/// The kernel's data about a packet, by offset.
#[derive(Debug, Clone, Copy)]
#[repr(i32)]
enum Knowledge {
    /// Its destination type, or [`OUTGOING`].
    PacketType = libc::SKF_AD_PKTTYPE,
    /// The mark of its receive queue.
    QueueMark = libc::SKF_AD_QUEUE,
    /// The index of its interface.
    Interface = libc::SKF_AD_IFINDEX,
    /// The link type of its interface, an `ARPHRD_` number.
    HardwareType = libc::SKF_AD_HATYPE,
}

/// The packet type of packets that the host sends.
const OUTGOING: u32 = libc::PACKET_OUTGOING as u32;

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn load(what: Knowledge) -> sock_filter {
    statement(
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        (libc::SKF_AD_OFF + what as i32).cast_unsigned(),
    )
}

fn give(result: u32) -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, result)
}

/// Jumps over `then` statements if the loaded value is `value`, and over `otherwise` if not.
fn jump_if(value: u32, then: u8, otherwise: u8) -> sock_filter {
    let test = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value);
    sock_filter { jt: then, jf: otherwise, ..test }
}

/// Refuses every packet.
pub(crate) fn nothing() -> Vec<sock_filter> {
    vec![give(0)]
}

/// Accepts the first `bytes` bytes of every packet.
pub(crate) fn everything(bytes: u32) -> Vec<sock_filter> {
    vec![give(bytes)]
}

/// The packets that a socket bound to no interface accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// Of interfaces whose frames begin with an Ethernet header (the loopback interface is one), or
    /// of those whose packets begin with an IP header.
    pub(crate) ethernet: bool,
    /// The indices of interfaces that other sockets capture.
    pub(crate) excluded: Vec<u32>,
}

impl Admitted {
    /// Falls through for packets that are accepted.
    fn code(&self, direction: Direction) -> Vec<sock_filter> {
        let [ethernet, loopback] = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].map(u32::from);
        let mut code = Vec::new();

        #[cfg(sabotage)]
        let direction = match self.ethernet {
            true if crate::sabotage::is("loopback-captured-twice") => Direction::Out,
            _ => direction,
        };
        let excludes = !self.excluded.is_empty();
        #[cfg(sabotage)]
        let excludes = excludes && !crate::sabotage::is("named-interface-captured-twice");

        if excludes {
            code.push(load(Knowledge::Interface));
            code.extend(self.excluded.iter().flat_map(|&index| [jump_if(index, 0, 1), give(0)]));
        }

        code.push(load(Knowledge::HardwareType));

        match (self.ethernet, direction) {
            (false, _) => {
                let others =
                    SPECIAL_LINKS.iter().map(|&number| number.into()).chain([ethernet, loopback]);
                code.extend(others.flat_map(|number| [jump_if(number, 0, 1), give(0)]));
            }
            (true, Direction::Out) => {
                code.extend([jump_if(loopback, 2, 0), jump_if(ethernet, 1, 0), give(0)]);
            }
            // The host receives the packets that it sends on the loopback interface, and each is
            // captured once.
            (true, Direction::In | Direction::InOut) => code.extend([
                jump_if(loopback, 0, 3),
                load(Knowledge::PacketType),
                jump_if(OUTGOING, 0, 3),
                give(0),
                jump_if(ethernet, 1, 0),
                give(0),
            ]),
        }

        code
    }
}

/// The packets that a socket accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Outgoing packets that were not requested are rejected first, which costs the host less.
    pub(crate) direction: Direction,
    /// The mark of the receive queue; none for all.
    pub(crate) queue_mark: Option<u32>,
    /// Which of all interfaces' packets, if the socket is bound to none.
    pub(crate) admitted: Option<Admitted>,
}

impl Selection {
    /// Runs `program` on the packets selected.
    pub(crate) fn then(&self, program: &SocketFilter) -> Vec<sock_filter> {
        let mut code = Vec::new();
        let sent_only = self.direction == Direction::Out;
        #[cfg(sabotage)]
        let sent_only = sent_only && !crate::sabotage::is("direction-of-a-socket-ignored");
        if sent_only {
            code.extend([load(Knowledge::PacketType), jump_if(OUTGOING, 1, 0), give(0)]);
        }
        if let Some(mark) = self.queue_mark {
            code.extend([load(Knowledge::QueueMark), jump_if(mark, 1, 0), give(0)]);
        }
        if let Some(admitted) = &self.admitted {
            code.extend(admitted.code(self.direction));
        }

        // Jumps are relative, so a program may follow another.
        code.extend(program);
        code
    }
}

/// The mark of packets whose receive queue is unknown.
pub(crate) const NO_QUEUE: u32 = 0;

/// Returns the index of a packet's queue mark in `marks`, or the number of marks if it is not among
/// them.
pub(crate) fn place_of_mark(marks: &[u32]) -> Vec<sock_filter> {
    let mut code = vec![load(Knowledge::QueueMark)];
    for (place, &mark) in (0..).zip(marks) {
        code.extend([jump_if(mark, 0, 1), give(place)]);
    }
    code.push(give(marks.len() as u32));
    code
}

/// Accepts one byte of packets whose receive queue is unknown.
pub(crate) fn without_queue() -> Vec<sock_filter> {
    vec![load(Knowledge::QueueMark), jump_if(NO_QUEUE, 0, 1), give(1), give(0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::filtering::{ADMISSION_INSNS, EXCLUDED_MAX};

    /// The kernel's data about a packet.
    #[derive(Clone, Copy)]
    struct Known {
        packet_type: u32,
        queue_mark: u32,
        interface: u32,
        hardware_type: u16,
    }

    /// Runs a program like the kernel; it supports the instructions that our programs use.
    fn run(program: &SocketFilter, known: Known) -> u32 {
        let mut accumulator = 0;
        let mut at = 0;

        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;

            match u32::from(code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    accumulator = match k.cast_signed() - libc::SKF_AD_OFF {
                        libc::SKF_AD_PKTTYPE => known.packet_type,
                        libc::SKF_AD_QUEUE => known.queue_mark,
                        libc::SKF_AD_IFINDEX => known.interface,
                        libc::SKF_AD_HATYPE => known.hardware_type.into(),
                        other => panic!("a load of {other}"),
                    }
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if accumulator == k { jt } else { jf });
                }
                code if code == libc::BPF_RET | libc::BPF_K => return k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn received(queue_mark: u32) -> Known {
        let interface = 7;
        let hardware_type = libc::ARPHRD_ETHER;
        Known { packet_type: libc::PACKET_OTHERHOST.into(), queue_mark, interface, hardware_type }
    }

    #[test]
    fn a_selection_runs_the_program_on_selected_packets_only() {
        let program = everything(99);
        let sent = Known { packet_type: OUTGOING, ..received(3) };
        let all = Selection { direction: Direction::InOut, queue_mark: None, admitted: None };
        let out = Selection { direction: Direction::Out, ..all.clone() };
        let queue = Selection { direction: Direction::In, queue_mark: Some(3), ..all.clone() };
        let results = |selection: Selection| {
            [received(3), received(4), sent].map(|known| run(&selection.then(&program), known))
        };
        assert_eq!(results(all), [99, 99, 99]);
        assert_eq!(results(out), [0, 0, 99]);
        assert_eq!(results(queue)[..2], [99, 0]);
    }

    #[test]
    fn a_socket_of_all_interfaces_gets_one_link_type_and_no_excluded_interface() {
        let program = everything(99);
        let accepts = |ethernet, direction, excluded: &[u32]| {
            let admitted = Some(Admitted { ethernet, excluded: excluded.to_vec() });
            let program = Selection { direction, queue_mark: None, admitted }.then(&program);

            // Received and sent packets of an Ethernet interface, the loopback interface and a
            // tunnel.
            let types = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK, libc::ARPHRD_NONE];
            types.map(|hardware_type| {
                let known = Known { hardware_type, ..received(0) };
                let sent = Known { packet_type: OUTGOING, ..known };
                (run(&program, known) > 0, run(&program, sent) > 0)
            })
        };

        let none = (false, false);
        let both = (true, true);
        let in_only = (true, false);
        let out_only = (false, true);
        let monitor = Known { hardware_type: libc::ARPHRD_IEEE80211_RADIOTAP, ..received(0) };

        for ethernet in [true, false] {
            let admitted = Some(Admitted { ethernet, excluded: Vec::new() });
            let selection = Selection { direction: Direction::InOut, queue_mark: None, admitted };
            assert_eq!(
                run(&selection.then(&program), monitor),
                0,
                "a monitor's packets are of neither type"
            );
        }

        assert_eq!(accepts(true, Direction::InOut, &[]), [both, in_only, none]);
        assert_eq!(accepts(true, Direction::Out, &[]), [out_only, out_only, none]);
        assert_eq!(accepts(false, Direction::InOut, &[]), [none, none, both]);
        assert_eq!(accepts(false, Direction::Out, &[]), [none, none, out_only]);
        assert_eq!(
            accepts(true, Direction::InOut, &[1, 2, 9]),
            [both, in_only, none],
            "others are excluded"
        );

        for excluded in [&[7][..], &[1, 7], &[7, 9, 300]] {
            assert_eq!(accepts(true, Direction::InOut, excluded), [none; 3]);
            assert_eq!(accepts(false, Direction::InOut, excluded), [none; 3]);
        }
    }

    #[test]
    fn what_admits_packets_of_all_interfaces_is_as_short_as_filters_assume() {
        let excluded: Vec<u32> = (0..EXCLUDED_MAX as u32).collect();
        let lengths = [Direction::In, Direction::Out, Direction::InOut].map(|direction| {
            [true, false].map(|ethernet| {
                Admitted { ethernet, excluded: excluded.clone() }.code(direction).len()
            })
        });
        assert_eq!(lengths.as_flattened().iter().max(), Some(&ADMISSION_INSNS), "{lengths:?}");
    }

    #[test]
    fn every_named_mark_has_its_place_and_the_others_the_last() {
        let marks: Vec<u32> = (0..200).map(|n| 3 * n + 1).collect();
        let program = place_of_mark(&marks);
        for mark in 0..700 {
            let place = marks.iter().position(|known| *known == mark).unwrap_or(marks.len());
            assert_eq!(run(&program, received(mark)), place as u32, "mark {mark}");
        }
    }

    #[test]
    fn only_packets_without_a_queue_are_counted_as_such() {
        assert_eq!([0, 1, 7].map(|mark| run(&without_queue(), received(mark))), [1, 0, 0]);
        assert_eq!(run(&nothing(), received(0)), 0);
    }
}
