//! The right to change the programs of an interface, while other processes have it.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::thread;
use std::time::{Duration, Instant};

use wirecap_testbed::{Generator, Load, privileged};

use crate::bed::{Bed, PATIENCE, small_on, take};

#[test]
fn a_capture_can_be_stopped_while_a_filter_waits_for_its_turn() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let capture = bed.open(small_on("a1"));
    let mut worker = capture.workers().pop().unwrap();
    let mut generator = Generator::new(&bed.pair.sender, &bed.traffic()).unwrap();
    generator.send(&[Load::new(0, 100)]).unwrap();
    take(&mut worker, 100, |_| {});
    // Simulates another wirecap process that is opening a capture and makes no progress.
    let name = format!("wirecap/1/{}/turn", bed.pair.receiver.index);
    let listen =
        || UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    let turn = bed.at_receiver(listen);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| bed.at_receiver(|| capture.set_filter("udp")));
        thread::sleep(Duration::from_millis(300));
        let begun = Instant::now();
        bed.at_receiver(|| capture.stop());
        let ledger = bed.at_receiver(|| capture.ledger());
        let took = begun.elapsed();
        drop(turn);
        assert!(waiting.join().unwrap().is_err(), "the capture was stopped");
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!((ledger.total.offered, ledger.total.delivered), (100, 100), "{ledger}");
    });
    assert!(worker.next_chunk_timeout(PATIENCE).unwrap().is_none());
}
