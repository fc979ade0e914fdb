//! Several `wirecap` processes on one interface, each on a separate queue, that start and end.

mod recording;

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use recording::{Bed, Finished, Running, WIRECAP, copy_for_everybody};
use rustix::process::Signal;
use wirecap_testbed::{AfXdpSender, Load, Stamp, loss_lock, pass_program, privileged};

impl Bed {
    /// Starts `wirecap count` on a device, with a pool of 65,536 cells.
    fn count(&self, device: &str) -> Running {
        self.count_into(device, "256")
    }

    fn count_into(&self, device: &str, chunks: &str) -> Running {
        let options = ["-M", "256", "-R", chunks, "--engine", "xdp", "--json"];
        self.capture(&[&["count", "-i", device], &options[..]].concat())
    }

    /// No XDP program of wirecap remains: another program can be attached to the interface.
    fn assert_untouched(&self) {
        drop(self.attach_foreign());
    }

    /// Attaches a foreign XDP program until the result is dropped. It may remain attached for a
    /// moment longer: a process that another test starts has the descriptor until its execve(2).
    fn attach_foreign(&self) -> impl Sized + use<> {
        self.receiver.run_in(|| pass_program(&self.pair.receiver)).unwrap().unwrap()
    }

    fn sender(&self, queue: u16) -> AfXdpSender {
        AfXdpSender::on(&self.pair.sender, queue.into()).unwrap()
    }

    fn send(&self, queue: u16, count: u64) {
        self.send_by(&mut self.sender(queue), queue, count);
    }

    fn send_by(&self, sender: &mut AfXdpSender, queue: u16, count: u64) {
        let traffic = self.traffic();
        (0..count)
            .for_each(|sequence| sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap());
        sender.flush().unwrap();
    }

    /// Sends to the queue until `stopped`. Returns the number of frames.
    fn send_until(&self, queue: u16, stopped: &AtomicBool) -> u64 {
        let mut sender = self.sender(queue);
        while !stopped.load(Ordering::Relaxed) {
            self.send_by(&mut sender, queue, 20);
            thread::sleep(Duration::from_millis(1));
        }
        sender.sent()
    }
}

fn kill(running: Running) {
    running.signal(Signal::KILL);
    running.finish();
}

/// Asserts that the process received exactly this many packets, which fit its pool, and lost none.
fn assert_delivered(finished: &Finished, sent: u64) {
    finished.assert_success();
    let ledger = finished.ledger();
    assert_eq!(
        (&ledger["offered"], &ledger["delivered"]),
        (&sent.into(), &sent.into()),
        "{ledger}"
    );
}

/// Asserts that this many packets were offered to the process, and that any loss is due to its
/// speed.
fn assert_offered(finished: &Finished, sent: u64) {
    finished.assert_success();
    let ledger = finished.ledger();
    let number = |pointer: &str| ledger.pointer(pointer).unwrap().as_u64().unwrap();
    assert_eq!(number("/offered"), sent, "{ledger}");
    assert_eq!(number("/delivered") + number("/dropped/no_cell"), sent, "{ledger}");
}

#[test]
fn a_killed_process_does_not_disturb_the_others_capture() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(2);
    let mut generator = bed.generator();
    for round in 0..6 {
        let mut processes = vec![bed.count("a1@0"), bed.count("a1@1")];
        let loads = [0, 1].map(|queue| Load::endless(queue).per_second(100_000));
        let run = generator.start(&loads).unwrap();
        thread::sleep(Duration::from_millis(100 + 13 * round));
        // Alternates between the first process, which attached the program, and the second one,
        // which joined.
        let killed = (round % 2) as usize;
        kill(processes.remove(killed));
        thread::sleep(Duration::from_millis(100));
        // Packets of its queue pass to the stack, and another process may use the queue.
        let heir = bed.count(&format!("a1@{killed}"));
        thread::sleep(Duration::from_millis(50));
        kill(heir);
        thread::sleep(Duration::from_millis(50));
        let sent = run.stop().unwrap();
        assert_offered(&processes.remove(0).interrupt(), sent[1 - killed].frames);
        bed.assert_untouched();
    }
}

#[test]
fn of_three_processes_killed_in_any_order_each_keeps_its_queue_until_it_is_killed() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    let bed = Bed::new(4);
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut processes: Vec<_> =
            (0..3).map(|queue| Some(bed.count(&format!("a1@{queue}")))).collect();
        let stopped = AtomicBool::new(false);
        let [first, second, survivor] = order;
        let sent: Vec<u64> = thread::scope(|scope| {
            let send = |queue| {
                let bed = &bed;
                let stopped = &stopped;
                scope.spawn(move || bed.send_until(queue, stopped))
            };
            let senders: Vec<_> = (0..4).map(send).collect();
            for killed in [first, second] {
                thread::sleep(Duration::from_millis(50));
                kill(processes[killed].take().unwrap());
            }
            thread::sleep(Duration::from_millis(50));
            stopped.store(true, Ordering::Relaxed);
            senders.into_iter().map(|sender| sender.join().unwrap()).collect()
        });
        assert_offered(&processes[survivor].take().unwrap().interrupt(), sent[survivor]);
        bed.assert_untouched();
    }
}

#[test]
fn when_all_processes_are_killed_no_program_remains() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(4);
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut processes: Vec<_> =
            (0..3).map(|queue| Some(bed.count(&format!("a1@{queue}")))).collect();
        for next in order {
            kill(processes[next].take().unwrap());
            for (queue, process) in (0..).zip(&processes) {
                if process.is_some() {
                    bed.send(queue, 10);
                }
            }
        }
        bed.assert_untouched();
    }
}

/// Numbers that differ from run to run.
fn pause_of(thread: u64, round: u64, most: u64) -> Duration {
    let number = u64::from(std::process::id()) * 7919 + thread * 104_729 + round * 1_299_709;
    Duration::from_millis(number % most)
}

#[test]
fn twenty_processes_that_start_and_end_at_once_do_not_disturb_each_other() {
    if !privileged() {
        return;
    }
    const PROCESSES: u16 = 20;
    let bed = Bed::new(u32::from(PROCESSES) + 1);
    // The first round begins without a capture; in the second, the processes start and end while
    // another one captures.
    for with_resident in [false, true] {
        let resident = with_resident.then(|| bed.count("a1@0"));
        let run = |queue: u16| {
            for round in 0..2 {
                let process = bed.count_into(&format!("a1@{queue}"), "16");
                bed.send(queue, 100);
                thread::sleep(pause_of(queue.into(), round, 30));
                if (u64::from(queue) + round) % 3 == 0 {
                    kill(process);
                } else {
                    assert_delivered(&process.interrupt(), 100);
                }
            }
        };
        thread::scope(|scope| {
            for queue in 1..=PROCESSES {
                let run = &run;
                scope.spawn(move || run(queue));
            }
            if with_resident {
                for _ in 0..10 {
                    bed.send(0, 200);
                    thread::sleep(Duration::from_millis(50));
                }
            }
        });
        if let Some(resident) = resident {
            assert_delivered(&resident.interrupt(), 2000);
        }
        bed.assert_untouched();
    }
}

#[test]
fn the_error_of_a_taken_queue_names_its_process() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let first = bed.count("a1@0");
    for device in ["a1", "a1@0"] {
        let refused = bed
            .run(Command::new(WIRECAP).args(["count", "--engine", "xdp", "-i", device, "-R", "4"]));
        let holder = format!("process {} (wirecap)", first.id());
        refused.assert_refused(1, &["a1@0", &holder, "--workers", "a1@QUEUE"]);
    }
    bed.send(0, 100);
    assert_delivered(&first.interrupt(), 100);
    bed.assert_untouched();
}

/// Claims are valid in the network namespace: containers that share it have different mounts.
#[test]
fn processes_in_two_mount_namespaces_join_and_do_not_take_each_others_queues() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let elsewhere = |device: &str| {
        let mut command = Command::new("unshare");
        let hide = "mount -t tmpfs none /sys/fs && mount -t tmpfs none /run && exec \"$@\"";
        command.args(["--mount", "sh", "-c", hide, "sh", WIRECAP]);
        command.args(["count", "-i", device, "-R", "4", "--json"]);
        command
    };
    let mut first = bed.start(&mut elsewhere("a1@0"));
    first.wait_for("capturing");
    let mut second = bed.start(&mut elsewhere("a1@1"));
    second.wait_for("capturing");
    let holder = format!("process {} (wirecap)", first.id());
    bed.run(&mut elsewhere("a1@0")).assert_refused(1, &["a1@0", &holder]);
    (0..2).for_each(|queue| bed.send(queue, 100));
    assert_delivered(&first.interrupt(), 100);
    assert_delivered(&second.interrupt(), 100);
    bed.assert_untouched();
}

#[test]
fn joining_needs_a_privilege_that_is_named() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(2);
    let (_directory, program) = copy_for_everybody();
    let unprivileged = |more: &str, device: &str| {
        let capabilities = format!("+net_raw,+net_admin,+bpf{more}");
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command
            .args([format!("--inh-caps={capabilities}"), format!("--ambient-caps={capabilities}")]);
        command.arg(&program).args(["count", "-i", device, "-R", "4", "--json"]);
        command
    };
    // The first process needs no additional capability.
    let mut first = bed.start(&mut unprivileged("", "a1@0"));
    first.wait_for("capturing");
    let holder = format!("process {} (wirecap)", first.id());
    bed.run(&mut unprivileged("", "a1@1")).assert_refused(1, &["CAP_SYS_ADMIN", "a1", &holder]);
    let mut second = bed.start(&mut unprivileged(",+sys_admin", "a1@1"));
    second.wait_for("capturing");
    (0..2).for_each(|queue| bed.send(queue, 100));
    assert_delivered(&first.interrupt(), 100);
    bed.send(1, 100);
    assert_delivered(&second.interrupt(), 200);
    // wirecap's program is gone, and wirecap cannot join a foreign one.
    let foreign = bed.attach_foreign();
    let mut refused = unprivileged("", "a1@1");
    bed.run(refused.args(["--engine", "xdp"]))
        .assert_refused(1, &["another XDP program is attached"]);
    drop(foreign);
}
