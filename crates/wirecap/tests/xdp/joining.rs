//! Several captures on one interface, each with separate queues.

use std::process::Command;
use std::thread;

use wirecap::bpf::asm::{Assembler, Reg::R0};
use wirecap::bpf::{Link, LoadOptions, Program, ProgramKind, XDP_PASS, XdpMode, link_holding};
use wirecap::{Capture, Engine, OpenError, Timestamps, Worker};
use wirecap_testbed::{
    AfXdpSender, Counters, Generator, Load, Stamp, frames_of_several_cells, loss_lock,
    pass_program, privileged,
};

use crate::bed::{Bed, balanced, small_on, take};

/// Sends `count` frames to each queue.
fn send(bed: &Bed, queues: std::ops::Range<u16>, count: u64) {
    for queue in queues {
        let mut sender = AfXdpSender::on(&bed.pair.sender, queue.into()).unwrap();
        (0..count).for_each(|sequence| {
            sender.send(&bed.traffic().frame(Stamp { queue, sequence })).unwrap();
        });
        sender.flush().unwrap();
    }
}

fn take_from_queue(worker: &mut Worker, queue: u16, count: u64) {
    take(worker, count, |chunk| {
        assert!(chunk.iter().all(|packet| Stamp::of(packet.data()).unwrap().queue == queue));
    });
}

fn only_worker(capture: &Capture) -> Worker {
    let mut workers = capture.workers();
    assert_eq!(workers.len(), 1);
    workers.remove(0)
}

/// No object of wirecap is left: the interface accepts another program at once.
fn assert_untouched(bed: &Bed) {
    drop(bed.at_receiver(|| pass_program(&bed.pair.receiver)).unwrap());
}

#[test]
fn captures_join_and_leave_in_any_order_without_disturbing_each_other() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(4);
    for leaving in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1]] {
        let mut counters = Counters::of(&bed.pair.receiver).unwrap();
        let mut captures: Vec<_> = (0..3u16)
            .map(|queue| {
                let capture = bed.open(small_on(&format!("a1@{queue}")));
                let worker = only_worker(&capture);
                Some((capture, worker))
            })
            .collect();
        let mut sent = 0;
        for next in leaving {
            send(&bed, 0..4, 100);
            sent += 100;
            for (queue, capture) in (0..).zip(&mut captures) {
                if let Some((_, worker)) = capture {
                    take_from_queue(worker, queue, 100);
                }
            }
            let (capture, worker) = captures[next].take().unwrap();
            drop(worker);
            let ledger = bed.close(capture);
            balanced(&ledger, sent);
            assert!(ledger.is_lossless(), "{ledger}");
        }
        // Other packets pass to the host, where a program counts them.
        let queues = counters.since_start().unwrap().rx_queues;
        assert_eq!((queues[3].passed(), queues[leaving[2]].passed()), (300, 0));
        assert_eq!(queues[leaving[0]].passed(), 200);
        assert_untouched(&bed);
    }
}

#[test]
fn captures_that_share_an_interface_may_have_different_settings() {
    if !privileged() || !frames_of_several_cells() {
        return;
    }
    let bed = Bed::with_mtu(4, 9000);
    let stamped = bed.open(small_on("a1@0").timestamps(Timestamps::Packet));
    let steered = bed.open(small_on("a1@1,3").workers(4));
    let names: Vec<String> = steered.rings().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["a1@1.0", "a1@1.1", "a1@3.0", "a1@3.1"]);
    send(&bed, 0..4, 200);
    take(&mut only_worker(&stamped), 200, |chunk| {
        assert!(chunk.iter().all(|packet| packet.timestamp().is_some()));
    });
    bed.at_receiver(|| steered.stop());
    for mut worker in steered.workers() {
        while let Some(chunk) = worker.next_chunk().unwrap() {
            assert!(chunk.iter().all(|packet| packet.timestamp().is_none()));
        }
    }
    let ledger = bed.close(steered);
    balanced(&ledger, 400);
    assert!(ledger.is_lossless(), "{ledger}");
    balanced(&bed.close(stamped), 200);
    assert_untouched(&bed);
}

#[test]
fn a_queue_serves_one_capture_and_the_error_names_it() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let first = bed.open(small_on("a1@1"));
    let mut worker = only_worker(&first);
    let second = bed.open(small_on("a1@0"));
    for taken in ["a1@1", "a1", "a1@0-1"] {
        let (error, text) = bed.refusal(small_on(taken));
        assert!(matches!(error, OpenError::QueueTaken { .. }), "{text}");
        let this_process = format!("process {}", std::process::id());
        for words in [&*this_process, "--workers", "a1@QUEUE"] {
            assert!(text.contains(words), "{words:?} is not in: {text}");
        }
    }
    send(&bed, 0..2, 100);
    take_from_queue(&mut worker, 1, 100);
    balanced(&bed.close(first), 100);
    // Its queue is free again, at once.
    let third = bed.open(small_on("a1@1"));
    send(&bed, 1..2, 50);
    take_from_queue(&mut only_worker(&third), 1, 50);
    balanced(&bed.close(third), 50);
    take_from_queue(&mut only_worker(&second), 0, 100);
    balanced(&bed.close(second), 100);
    assert_untouched(&bed);
}

fn attach(bed: &Bed, name: &str) -> Link {
    let mut asm = Assembler::new();
    asm.mov(R0, XDP_PASS).exit();
    let options = LoadOptions { fragments: true, device: None };
    let program = Program::load(ProgramKind::Xdp, name, &asm.finish().unwrap(), options).unwrap();
    let attach = || Link::attach_xdp(&program, bed.pair.receiver.index, XdpMode::Native);
    bed.at_receiver(attach).unwrap()
}

#[test]
fn the_programs_of_others_are_named_and_left_alone() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let link = attach(&bed, "foreign");
    let before = link.info().unwrap();
    let (error, text) = bed.refusal(small_on("a1@0"));
    assert!(matches!(error, OpenError::OtherProgram { .. }), "{text}");
    assert!(text.contains("another XDP program is attached"), "{text}");
    assert_eq!(link.info().unwrap(), before);
    drop(link);

    let link = attach(&bed, "wirecap_v0");
    let (error, text) = bed.refusal(small_on("a1@0"));
    assert!(matches!(error, OpenError::OtherVersion { .. }), "{text}");
    assert!(text.contains("wirecap_v0"), "{text}");
    drop(link);
    assert_untouched(&bed);
}

/// The first capture's program is replaced by the dispatcher under traffic.
#[test]
fn nothing_is_lost_when_others_join_and_leave() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(2);
    let mut generator = Generator::new(&bed.pair.sender, &bed.traffic()).unwrap();
    let mut sent_before = 0;
    for _ in 0..8 {
        let first = bed.open(Capture::on("a1@0").engine(Engine::Xdp));
        let mut worker = only_worker(&first);
        thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut sequences = Vec::new();
                while let Some(chunk) = worker.next_chunk().unwrap() {
                    sequences.extend(
                        chunk.iter().map(|packet| Stamp::of(packet.data()).unwrap().sequence),
                    );
                }
                sequences
            });
            let run = generator.start(&[Load::endless(0).per_second(200_000)]).unwrap();
            for _ in 0..2 {
                balanced(&bed.close(bed.open(small_on("a1@1"))), 0);
            }
            let sent = run.stop().unwrap()[0].frames;
            bed.at_receiver(|| first.stop());
            let sequences = reader.join().unwrap();
            let ledger = bed.close(first);
            balanced(&ledger, sent);
            // Only a reader without processor time for long may lose some.
            assert_eq!(ledger.total.dropped.total(), ledger.total.dropped.no_cell, "{ledger}");
            assert_eq!(ledger.total.delivered, sequences.len() as u64);
            assert!(sequences.is_sorted_by(|one, next| one < next));
            if ledger.is_lossless() {
                assert!(sequences.into_iter().eq(sent_before..sent_before + sent));
            }
            sent_before += sent;
        });
    }
    assert_untouched(&bed);
}

/// The number of the program on the receiver's interface, as others see it.
fn attached_id(bed: &Bed) -> u32 {
    let shown = bed.at_receiver(|| Command::new("ip").args(["-d", "link", "show", "a1"]).output());
    let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
    shown.split("xdp id ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}

fn attached(bed: &Bed) -> String {
    Program::by_id(attached_id(bed)).unwrap().name().to_owned()
}

fn attached_link(bed: &Bed) -> Link {
    link_holding(attached_id(bed), bed.pair.receiver.index).unwrap().unwrap()
}

#[test]
fn one_alone_has_its_program_attached_directly() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let first = bed.open(small_on("a1@0"));
    assert_eq!(attached(&bed), "wirecap_v1");
    let second = bed.open(small_on("a1@1"));
    assert_eq!(attached(&bed), "wirecap_disp_v1");
    balanced(&bed.close(first), 0);
    assert_eq!(attached(&bed), "wirecap_disp_v1");
    balanced(&bed.close(second), 0);
    assert_untouched(&bed);
}

/// As when a process is being killed: its claims are already gone, its link is not.
#[test]
fn leftovers_of_other_processes_are_replaced() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    for others in [&["a1@0"][..], &["a1@0", "a1@1"]] {
        let captures: Vec<_> = others.iter().map(|device| bed.open(small_on(device))).collect();
        let left = attached_link(&bed);
        captures.into_iter().for_each(|capture| balanced(&bed.close(capture), 0));
        let heir = bed.open(small_on("a1@0"));
        assert_eq!(attached(&bed), "wirecap_v1");
        send(&bed, 0..2, 100);
        take_from_queue(&mut only_worker(&heir), 0, 100);
        drop(left);
        balanced(&bed.close(heir), 100);
        assert_untouched(&bed);
    }
}
