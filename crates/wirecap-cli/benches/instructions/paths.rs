//! The measured paths of packets. The simulated kernel runs between the counted parts of a path.

use std::io;

use wirecap::savefile::StreamSink;
use wirecap::sim::SimSettings;
use wirecap::{Chunk, Mode, Port, Timestamp};
use wirecap_pcap::harness::{OpenHandle, Tally};

use crate::Outcome;
use crate::bed::{ADVANCED as T, BALANCED, Bed, CHUNK_CELLS};
use crate::callgrind::{counted_part, rehearsed};

/// Counted rounds. An uncounted round precedes them and allocates the memory that they reuse.
const ROUNDS: u32 = 4;
/// Chunks that buddies take from a full ring of 16 before its backlog is below T.
const OFFLOADED: usize = 7;

pub(crate) const BASIC: &str = "capture-basic";
pub(crate) const ADVANCED: &str = "capture-advanced";

/// A path of packets. `take` runs it on this number of rings and returns the number of counted
/// packets.
pub(crate) struct Path {
    pub(crate) name: &'static str,
    pub(crate) fewest_rings: usize,
    take: fn(usize) -> Outcome<u64>,
}

pub(crate) const PATHS: [Path; 11] = [
    Path { name: BASIC, fewest_rings: 1, take: |rings| capture(rings, Mode::Basic) },
    Path { name: ADVANCED, fewest_rings: 1, take: |rings| capture(rings, T) },
    Path { name: "iterate", fewest_rings: 1, take: iterate },
    Path { name: "recycle", fewest_rings: 1, take: recycle },
    Path { name: "offload", fewest_rings: 2, take: offload },
    Path {
        name: "forward",
        fewest_rings: 1,
        take: |rings| forward(rings, Mode::Basic, one_by_one),
    },
    Path {
        name: "forward-together",
        fewest_rings: 1,
        take: |rings| forward(rings, Mode::Basic, together),
    },
    Path { name: "forward-ordered", fewest_rings: 1, take: |rings| forward(rings, T, one_by_one) },
    Path {
        name: "pcap_loop",
        fewest_rings: 1,
        take: |rings| drop_in(rings, OpenHandle::read_by_loop),
    },
    Path {
        name: "pcap_next_ex",
        fewest_rings: 1,
        take: |rings| drop_in(rings, OpenHandle::read_by_next),
    },
    Path { name: "record", fewest_rings: 1, take: record },
];

impl Path {
    pub(crate) fn named(name: &str) -> Outcome<&'static Self> {
        PATHS.iter().find(|path| path.name == name).ok_or_else(|| format!("no path {name}").into())
    }

    pub(crate) fn run(&self, rings: usize) -> Outcome<u64> {
        (self.take)(rings)
    }
}

/// Runs the counted part of a round. In round 0 it is not counted.
fn part<T>(round: u32, work: impl FnOnce() -> T) -> T {
    if round == 0 { rehearsed(work) } else { counted_part(work) }
}

/// The number of packets in the counted rounds, from the number in all rounds.
fn of_counted_rounds(packets: u64) -> u64 {
    packets / u64::from(ROUNDS + 1) * u64::from(ROUNDS)
}

/// Each worker takes chunks from its own ring.
fn capture(rings: usize, mode: Mode) -> Outcome<u64> {
    let mut bed = Bed::new(rings, mode)?;
    let mut chunks = Vec::with_capacity(rings * BALANCED as usize);
    for round in 0..=ROUNDS {
        bed.arrive(0..rings, BALANCED);
        part(round, || Bed::take(&mut bed.workers, BALANCED, &mut chunks))?;
        assert!(chunks.iter().all(|chunk: &Chunk| chunk.len() == CHUNK_CELLS as usize));
        chunks.clear();
    }
    bed.balance(0).map(of_counted_rounds)
}

/// Reads the data and the timestamp of each packet in captured chunks.
fn iterate(rings: usize) -> Outcome<u64> {
    let mut bed = Bed::new(rings, Mode::Basic)?;
    let mut chunks = Vec::new();
    let mut looked_at = (0, 0);
    for round in 0..=ROUNDS {
        bed.arrive(0..rings, BALANCED);
        Bed::take(&mut bed.workers, BALANCED, &mut chunks)?;
        part(round, || {
            for packet in chunks.iter().flatten() {
                looked_at.0 += u64::from(packet.data()[12]);
                looked_at.1 += packet.timestamp().map_or(0, Timestamp::unix_nanos);
            }
        });
        chunks.clear();
    }
    // The sums of the first byte of each packet's EtherType, and of its timestamp.
    assert_eq!(looked_at, (bed.arrived * 8, bed.arrived * (bed.arrived + 1) / 2 * 100));
    bed.balance(0).map(of_counted_rounds)
}

/// Recycles captured chunks.
fn recycle(rings: usize) -> Outcome<u64> {
    let mut bed = Bed::new(rings, Mode::Basic)?;
    let mut chunks = Vec::new();
    for round in 0..=ROUNDS {
        bed.arrive(0..rings, BALANCED);
        Bed::take(&mut bed.workers, BALANCED, &mut chunks)?;
        part(round, || chunks.clear());
    }
    bed.balance(0).map(of_counted_rounds)
}

/// One ring is full. The workers of the other rings take chunks from it in turn until its backlog
/// is below T.
fn offload(rings: usize) -> Outcome<u64> {
    let mut bed = Bed::new(rings, T)?;
    let mut chunks = Vec::with_capacity(OFFLOADED);
    for round in 0..=ROUNDS {
        bed.arrive(0..1, 16);
        let [busy, helpers @ ..] = &mut bed.workers[..] else { return Err("no workers".into()) };
        part(round, || -> Outcome<()> {
            for turn in 0..OFFLOADED {
                let helper = &mut helpers[turn % (rings - 1)];
                chunks.push(helper.try_next_chunk()?.ok_or("nothing to help with")?);
            }
            Ok(())
        })?;
        assert!(helpers[0].try_next_chunk()?.is_none(), "below T");
        assert!(chunks.iter().all(|chunk: &Chunk| chunk.is_offloaded()));
        let left = 16 - OFFLOADED as u32;
        Bed::take(std::slice::from_mut(busy), left, &mut chunks)?;
        chunks.clear();
    }
    let rounds = u64::from(ROUNDS);
    bed.balance((rounds + 1) * OFFLOADED as u64)?;
    Ok(rounds * OFFLOADED as u64 * u64::from(CHUNK_CELLS))
}

/// Moves packets from the rx ring to the tx ring with `send`. After the kernel has sent them, their
/// cells return to the pool.
fn forward(rings: usize, mode: Mode, send: impl Fn(&mut Chunk, &mut Port)) -> Outcome<u64> {
    let settings = Bed::settings(rings, rings, mode);
    let mut bed = Bed::open(&SimSettings { forwards: true, ..settings })?;
    bed.workers = bed.capture.workers();
    let mut ports = (0..rings).map(|_| bed.capture.port("sim0")).collect::<Result<Vec<_>, _>>()?;
    (0..rings).for_each(|ring| bed.kernels.transmitter(ring).set_by_itself(true));
    let mut sent = 0;
    for round in 0..=ROUNDS {
        bed.arrive(0..rings, BALANCED);
        part(round, || -> Outcome<()> {
            for (worker, port) in bed.workers.iter_mut().zip(&mut ports) {
                for _ in 0..BALANCED {
                    let mut chunk = worker.next_chunk()?.ok_or("the capture has ended")?;
                    send(&mut chunk, port);
                    port.flush();
                }
            }
            Ok(())
        })?;
        for ring in 0..rings {
            bed.kernels.transmitter(ring).send();
            sent += bed.kernels.transmitter(ring).take_sent().len() as u64;
        }
        part(round, || ports.iter_mut().for_each(Port::flush));
    }
    drop(ports);
    assert_eq!(sent, bed.arrived, "packets that were not sent");
    bed.balance(0).map(of_counted_rounds)
}

/// Sends packets one by one, each with a new destination MAC address.
fn one_by_one(chunk: &mut Chunk, port: &mut Port) {
    for mut packet in chunk.drain() {
        packet.data_mut()[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        port.send(packet);
    }
}

fn together(chunk: &mut Chunk, port: &mut Port) {
    port.send_all(chunk.drain());
}

/// A libpcap program reads all rings.
fn drop_in(rings: usize, read: fn(&mut OpenHandle, u32) -> Tally) -> Outcome<u64> {
    let mut bed = Bed::open(&Bed::settings(rings, 1, Mode::Basic))?;
    let mut handle = OpenHandle::over(bed.kernels.capture()?)?;
    for round in 0..=ROUNDS {
        let before = bed.arrived;
        bed.arrive(0..rings, BALANCED);
        let packets = bed.arrived - before;
        let tally = part(round, || read(&mut handle, packets as u32));
        assert_eq!(tally, Tally { packets, bytes: packets * 60, first_bytes: packets * 2 });
    }
    drop(handle);
    bed.balance(0).map(of_counted_rounds)
}

/// `wirecap capture` writes the waiting packets. Packets of several rings are written in order of
/// time: one from each ring in turn.
fn record(rings: usize) -> Outcome<u64> {
    let mut bed = Bed::open(&Bed::settings(rings, 1, Mode::Basic))?;
    bed.arrive(0..rings, 16);
    let record = wirecap_cli::record_waiting(&bed.capture, StreamSink::new(io::sink(), "nothing"))?;
    assert_eq!(counted_part(record)?, bed.arrived);
    bed.balance(0)
}
