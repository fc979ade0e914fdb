//! Overload: every packet that is not forwarded is in the ledger.

use std::thread;
use std::time::Duration;

use serde_json::Value;
use wirecap_testbed::{
    Counters, Generator, Load, SteadySender, Ticks, Traffic, Watch, drop_program, loss_lock,
    pass_program, privileged, repeat_if_disturbed,
};

use crate::bed::{Bed, ENGINES, at, port};

/// Processing time of a packet in nanoseconds: a worker can process 10,000 per second.
const COST: &str = "100000";
const WORKER_RATE: f64 = 10_000.0;
/// The load of each queue, relative to the capacity of a worker.
const LOADS: [f64; 2] = [1.6, 0.2];
const POOL: &str = "-M 64 -R 64";
const POOL_CELLS: f64 = 64.0 * 64.0;

/// Duration of a skewed load: five seconds, or as set in the environment. `make skew` sets twenty.
fn load_time() -> Duration {
    wirecap_testbed::skewed_time(5.0)
}

#[test]
fn at_overload_every_sent_frame_arrived_or_is_in_the_ledger() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    for engine in ENGINES {
        let bed = Bed::new(1, 1500);
        // A small pool, and a generator that sends millions of frames per second.
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
        let unsent: u64 = port["dropped"]
            .as_object()
            .unwrap()
            .values()
            .map(|count| count.as_u64().unwrap())
            .sum();
        let lost: u64 = ledger["dropped"]
            .as_object()
            .unwrap()
            .values()
            .map(|count| count.as_u64().unwrap_or(0))
            .sum();
        assert_eq!(frames, arrived + unsent + lost, "{ledger:#}");
        assert!(arrived > 0 && lost + unsent > 0, "no overload: {ledger:#}");
    }
}

/// Heavy processing and skewed queues: workers need 100 us per packet, and the queues receive 1.6
/// and 0.2 times the capacity of a worker. Returns the number of packets sent, and the ledger.
fn skewed(watch: &Watch, options: &str) -> Result<(u64, Value), String> {
    let mut bed = Bed::new(2, 1500);
    let forwarder =
        bed.forward(&format!("--engine xdp --one-way --workers 2 --cost {COST} {POOL} {options}"));
    watch.process(forwarder.id());
    let traffic = Traffic::to(&bed.inline.right.interface);
    let mut sender = SteadySender::on(&bed.inline.left.interface, traffic, 2).unwrap();
    let mut ticks = Ticks::new(load_time());
    let sent = sender.send(&LOADS.map(|load| load * WORKER_RATE), &mut ticks).unwrap();
    // The command processes the remaining packets before it ends.
    let ledger = forwarder.interrupt().ledger();
    bed.check_books(&ledger);
    assert_eq!(at(&ledger, "/offered"), sent, "{ledger:#}");
    ticks.check()?;
    Ok((sent, ledger))
}

/// Figure 13 of the paper, with pools of equal size in both modes.
#[test]
fn with_heavy_processing_and_skewed_queues_advanced_mode_forwards_what_basic_mode_loses() {
    if !privileged() {
        return;
    }
    let _lock = loss_lock().unwrap();
    repeat_if_disturbed("forwarding in basic mode", |watch| {
        let (_, basic) = skewed(watch, "--basic")?;
        let surplus = (LOADS[0] - 1.0) * WORKER_RATE * load_time().as_secs_f64() - POOL_CELLS;
        assert!(surplus > 0.0, "the pool has room for all");
        let lost = at(&basic, "/dropped/no_cell") as f64;
        let least = 0.98 * surplus;
        if lost >= least { Ok(()) } else { Err(format!("{lost} of {surplus} lost: {basic:#}")) }
    });
    for order in ["--ordered", "--unordered"] {
        repeat_if_disturbed(&format!("forwarding in advanced mode, {order}"), |watch| {
            let (sent, advanced) = skewed(watch, &format!("-T 60 {order}"))?;
            assert!(at(&advanced, "/offloaded_chunks") > 0, "{advanced:#}");
            let is_lossless = at(port(&advanced, "right"), "/sent") == sent;
            if is_lossless {
                Ok(())
            } else {
                Err(format!("packets of {sent} were lost: {advanced:#}"))
            }
        });
    }
}
