//! More than the box can do: everything that is not sent on is in the ledger.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use wirecap_testbed::{
    AfXdpSender, Counters, Generator, Load, Stamp, Traffic, drop_program, loss_lock, pass_program, privileged,
};

use crate::bed::{Bed, ENGINES, at, port};

/// What a worker needs for one packet, in nanoseconds: it can do 10,000 a second.
const COST: &str = "100000";
const WORKER_RATE: u64 = 10_000;
/// Packets of a full chunk, and what a worker needs for them.
const CHUNK: u64 = 64;
const CHUNK_COST: Duration = Duration::from_micros(6400);

#[test]
fn at_overload_what_was_sent_arrived_or_is_in_the_ledger() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    for engine in ENGINES {
        let bed = Bed::new(1, 1500);
        // A shallow pool, and a generator that makes some millions a second.
        let forwarder = bed.forward(&format!("--engine {engine} -M 64 -R 32"));
        let inline = &bed.inline;
        let mut arrivals = Counters::of(&inline.right.interface).unwrap();
        let _dropping = drop_program(&inline.right.interface).unwrap();
        let _passing = (engine == "packet").then(|| pass_program(&inline.left.port).unwrap());
        let mut handed_over = Counters::of(&inline.left.interface).unwrap();
        let traffic = Traffic { flows: 16, ..Traffic::to(&inline.right.interface) };
        let mut generator = Generator::new(&inline.left.interface, &traffic).unwrap();
        let frames = generator.send(&[Load::new(0, 500_000)]).unwrap()[0].frames;
        assert_eq!(handed_over.since_start().unwrap().handed_over_as_xdp(), frames);
        thread::sleep(Duration::from_secs(1));
        let ledger = forwarder.interrupt().ledger();
        let arrived: u64 =
            arrivals.since_start().unwrap().rx_queues.iter().map(|queue| queue.xdp_drops).sum();
        let port = port(&ledger, "right");
        assert_eq!(at(port, "/sent"), arrived, "{ledger:#}");
        assert_eq!(at(port, "/taken"), at(&ledger, "/delivered"), "{ledger:#}");
        assert_eq!(at(&ledger, "/offered"), frames, "{ledger:#}");
        let unsent: u64 =
            port["dropped"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
        let lost: u64 =
            ledger["dropped"].as_object().unwrap().values().map(|count| count.as_u64().unwrap_or(0)).sum();
        assert_eq!(frames, arrived + unsent + lost, "{ledger:#}");
        assert!(arrived > 0 && lost + unsent > 0, "no overload: {ledger:#}");
    }
}

/// Heavy processing and skewed queues, with workers that wait 100 us for each packet, for three seconds. The senders wait
/// as the workers do, and make up for nothing: what else a machine has to do makes all of them slower. Gives how many were
/// sent and the ledger.
fn skewed(options: &str) -> (u64, Value) {
    let mut bed = Bed::new(2, 1500);
    let forwarder = bed.forward(&format!("--engine xdp --one-way --workers 2 --cost {COST} {options}"));
    let traffic = Traffic::to(&bed.inline.right.interface);
    let send = |queue: u16, per_second: u64| {
        let mut sender = AfXdpSender::on(&bed.inline.left.interface, queue.into()).unwrap();
        let frames = per_second * 3;
        let (mut sent, mut due) = (0, 0);
        while sent < frames {
            // Hundredths of a frame.
            due += CHUNK * 100 * per_second / WORKER_RATE;
            for sequence in sent..frames.min(due / 100) {
                sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap();
            }
            sender.flush().unwrap();
            sent = frames.min(due / 100);
            thread::sleep(CHUNK_COST);
        }
        frames
    };
    let sent = thread::scope(|scope| {
        // Of what the two workers can do a quarter is spare: on a busy machine they do less.
        let loads = [(0, WORKER_RATE * 7 / 5), (1, WORKER_RATE / 10)];
        let senders = loads.map(|(queue, rate)| scope.spawn(move || send(queue, rate)));
        senders.map(|sender| sender.join().unwrap()).iter().sum()
    });
    // Ended at once, the rest would be processed all the same.
    let ledger = forwarder.interrupt().ledger();
    bed.check_books(&ledger);
    (sent, ledger)
}

/// The paper's Figure 13.
#[test]
fn with_heavy_processing_and_skewed_queues_advanced_mode_forwards_what_basic_mode_loses() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    // Other work on the machine takes time from a worker or from a sender, but not every time.
    let once = |options: &str, is_so: fn(u64, &Value) -> bool| {
        let is_so = (0..10).any(|_| {
            let (sent, ledger) = skewed(options);
            assert_eq!(at(&ledger, "/offered"), sent, "{ledger:#}");
            println!("{options}: {ledger:#}");
            is_so(sent, &ledger)
        });
        assert!(is_so, "ten times not what it should be: {options}");
    };
    once("--basic -M 64 -R 64", |_, basic| at(basic, "/dropped/no_cell") > 0);
    for order in ["--ordered", "--unordered"] {
        once(&format!("-T 60 -M 64 -R 160 {order}"), |sent, advanced| {
            at(port(advanced, "right"), "/sent") == sent && at(advanced, "/offloaded_chunks") > 0
        });
    }
}
