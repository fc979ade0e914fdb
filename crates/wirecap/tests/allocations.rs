//! The capture path allocates no memory per packet, and with the engine `xdp` none at all after the
//! first rounds. A counting allocator checks this.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use wirecap::{Capture, CaptureBuilder, Engine, Port, Timestamps, Worker};
use wirecap_testbed::{Generator, Load, Namespace, Traffic, VethPair, pass_program, privileged};

/// Maximum time for packets to arrive on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The system's allocator, which counts the requests of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the promises.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Takes and reads this many packets, and returns the number of allocations per chunk.
fn take(worker: &mut Worker, packets: u64) -> (u64, u64) {
    let before = ALLOCATIONS.get();
    let mut taken = 0;
    let mut chunks = 0;
    let mut bytes = 0;
    while taken < packets {
        let chunk = worker.next_chunk_timeout(PATIENCE).unwrap().expect("packets come");
        taken += chunk.len() as u64;
        chunks += 1;
        for packet in &chunk {
            assert!(packet.timestamp().is_some());
            bytes += packet.data().len() as u64;
        }
    }
    assert_eq!((taken, bytes), (packets, packets * 60));
    (ALLOCATIONS.get() - before, chunks)
}

fn allocates(engine: Engine, per_chunk: u64) {
    if !privileged() {
        return;
    }
    let sender = Namespace::new().unwrap();
    let receiver = Namespace::new().unwrap();
    let pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), 1, 1500)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    // A veth end shows AF_PACKET the frames of the generator if it has an XDP program.
    let _pass = (engine == Engine::Packet).then(|| pass_program(&pair.receiver).unwrap());
    let mut generator = Generator::new(&pair.sender, &Traffic::to(&pair.receiver)).unwrap();
    let builder =
        Capture::on("a1").engine(engine).chunk(64).pool(512).timestamps(Timestamps::Packet);
    let capture = receiver.run_in(|| builder.open()).unwrap().unwrap();
    let mut worker = capture.workers().pop().unwrap();
    // Some rounds, in which the lists of cells are allocated that circulate from then on.
    for round in 0..10 {
        generator.send(&[Load::new(0, 20_000)]).unwrap();
        let (allocations, chunks) = take(&mut worker, 20_000);
        println!("round {round}: {allocations} allocations for {chunks} chunks");
        assert!(chunks >= 20_000 / 64);
        if round >= 2 {
            assert!(
                allocations <= per_chunk * chunks,
                "in round {round}: {allocations}, {chunks} chunks"
            );
        }
    }
    let ledger = receiver.run_in(|| capture.close()).unwrap();
    assert_eq!((ledger.total.offered, ledger.total.delivered), (200_000, 200_000), "{ledger}");
}

/// Forwards this many changed packets, and returns the number of allocations.
fn forward(worker: &mut Worker, port: &mut Port, packets: u64) -> u64 {
    let before = ALLOCATIONS.get();
    let mut taken = 0;
    while taken < packets {
        let mut chunk = worker.next_chunk_timeout(PATIENCE).unwrap().expect("packets come");
        taken += chunk.len() as u64;
        let half = chunk.len() / 2;
        let mut packets = chunk.drain();
        for mut packet in packets.by_ref().take(half) {
            assert!(packet.timestamp().is_some());
            packet.push_vlan(5).unwrap();
            port.send(packet);
        }
        port.send_all(packets);
        if let Some(new) = port.build(60) {
            port.send(new);
        }
        port.flush();
    }
    ALLOCATIONS.get() - before
}

fn forwarding_allocates_nothing(builder: impl Fn(CaptureBuilder) -> CaptureBuilder) {
    if !privileged() {
        return;
    }
    let [near, middle, far] = std::array::from_fn(|_| Namespace::new().unwrap());
    let pair = VethPair::new((&near, "a0"), (&middle, "a1"), 1, 1500)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    let _other = VethPair::new((&middle, "b0"), (&far, "b1"), 1, 1500)
        .and_then(wirecap_testbed::dedicated)
        .unwrap();
    let mut generator = Generator::new(&pair.sender, &Traffic::to(&pair.receiver)).unwrap();
    let base = Capture::on("a1").engine(Engine::Xdp).transmit_on("b0").chunk(64).pool(512);
    let builder = builder(base.timestamps(Timestamps::Packet));
    let capture = middle.run_in(|| builder.open()).unwrap().unwrap();
    let mut worker = capture.workers().pop().unwrap();
    let mut port = capture.port("b0").unwrap();
    for round in 0..10 {
        generator.send(&[Load::new(0, 20_000)]).unwrap();
        let allocations = forward(&mut worker, &mut port, 20_000);
        println!("round {round}: {allocations} allocations");
        assert!(round < 2 || allocations == 0, "in round {round}: {allocations}");
    }
    drop((worker, port));
    let ledger = middle.run_in(|| capture.close()).unwrap();
    let account = ledger.ports[1].account;
    assert_eq!((ledger.total.delivered, account.copied), (200_000, 0), "{ledger}");
    assert_eq!(account.taken, account.sent + account.dropped.total(), "{account:#?}");
}

#[test]
fn forwarding_allocates_nothing_in_basic_mode() {
    forwarding_allocates_nothing(CaptureBuilder::basic);
}

#[test]
fn forwarding_in_order_allocates_nothing() {
    forwarding_allocates_nothing(|builder| builder.advanced(0.5));
}

#[test]
fn the_engine_xdp_allocates_nothing() {
    allocates(Engine::Xdp, 0);
}

#[test]
fn the_engine_packet_allocates_a_list_for_each_block() {
    allocates(Engine::Packet, 3);
}
