//! A model's packets as frames.

use std::net::IpAddr;

use crate::Stamp;

use super::{FiveTuple, Flows, Rss, Stream};
use crate::play::{Batch, Source};

const STAMP_BYTES: usize = 14;
const HEADER_BYTES: usize = 14 + 20 + 8;
const TTL: u8 = 64;

/// Makes a frame of each arrival: UDP over IPv4 with the flow's addresses and ports, a [`Stamp`] of
/// its queue and its number on that queue, and zeros.
#[derive(Debug)]
pub struct Frames {
    stream: Stream,
    end_ns: u64,
    maker: Maker,
}

#[derive(Debug)]
struct Maker {
    flows: Flows,
    rss: Rss,
    macs: [u8; 12],
    /// Flows' addresses and queues, each at the index of the last bits of its number.
    known: Vec<Option<(u32, FiveTuple, u32)>>,
    /// The number of each queue's next frame.
    sequences: Vec<u64>,
    frame: Vec<u8>,
}

/// Number of cached flows.
const KNOWN_FLOWS: usize = 4096;

impl Frames {
    /// Frames of the arrivals before `end_ns`, distributed over queues by `rss`, from one hardware
    /// address to another.
    pub fn new(
        stream: Stream,
        rss: Rss,
        source_mac: [u8; 6],
        destination_mac: [u8; 6],
        end_ns: u64,
    ) -> Self {
        let maker = Maker {
            flows: stream.flows(),
            macs: std::array::from_fn(|at| [destination_mac, source_mac].as_flattened()[at]),
            known: vec![None; KNOWN_FLOWS],
            sequences: vec![0; rss.queue_count() as usize],
            frame: Vec::new(),
            rss,
        };
        Self { stream, end_ns, maker }
    }
}

impl Source for Frames {
    fn fill(&mut self, batch: &mut Batch) {
        while !batch.is_full() {
            let Some(arrival) = self.stream.next().filter(|arrival| arrival.time_ns < self.end_ns)
            else {
                // No frames follow it.
                self.end_ns = 0;
                return;
            };
            let queue = self.maker.make(arrival.flow, arrival.frame_bytes.into());
            batch.push(&self.maker.frame, arrival.time_ns, queue);
        }
    }
}

impl Maker {
    /// Makes a frame of this flow and length, and returns its queue.
    fn make(&mut self, flow: u32, frame_bytes: usize) -> u32 {
        let (tuple, queue) = self.look_up(flow);
        let sequence = &mut self.sequences[queue as usize];
        let stamp = Stamp { queue: queue as u16, sequence: *sequence };

        *sequence += 1;
        self.frame.clear();
        self.frame.extend(self.macs);
        self.frame.extend([0x08, 0x00]);
        self.frame.extend(ipv4_header(&tuple, frame_bytes - 14));
        self.frame.extend(tuple.source_port.to_be_bytes());
        self.frame.extend(tuple.destination_port.to_be_bytes());
        self.frame.extend(((frame_bytes - 34) as u16).to_be_bytes());
        self.frame.extend([0, 0]); // no UDP checksum, as IPv4 allows
        self.frame.extend(stamp.to_bytes());
        debug_assert_eq!(self.frame.len(), HEADER_BYTES + STAMP_BYTES);
        self.frame.resize(frame_bytes, 0);

        queue
    }

    fn look_up(&mut self, flow: u32) -> (FiveTuple, u32) {
        let known = &mut self.known[flow as usize % KNOWN_FLOWS];
        match *known {
            Some((same, tuple, queue)) if same == flow => (tuple, queue),
            _ => {
                let tuple = self.flows.five_tuple(flow);
                let queue = self.rss.queue_of(&tuple);
                *known = Some((flow, tuple, queue));
                (tuple, queue)
            }
        }
    }
}

fn ipv4_header(tuple: &FiveTuple, total_bytes: usize) -> [u8; 20] {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (tuple.source, tuple.destination) else {
        unreachable!("a model's flows are IPv4");
    };
    let mut header = [0; 20];
    header[0] = 0x45; // version 4, five words
    header[2..4].copy_from_slice(&(total_bytes as u16).to_be_bytes());
    header[8] = TTL;
    header[9] = tuple.protocol;
    header[12..16].copy_from_slice(&source.octets());
    header[16..].copy_from_slice(&destination.octets());

    let sum: u32 =
        header.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let once = (sum & 0xffff) + (sum >> 16);
    let checksum = !((once & 0xffff) + (once >> 16)) as u16;
    header[10..12].copy_from_slice(&checksum.to_be_bytes());

    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::queue_of;
    use crate::traffic::{HashKey, Model, Pattern};

    #[test]
    fn frames_arrive_numbered_on_the_queue_in_their_payload() {
        for (pattern, key) in
            [(Pattern::Standard, HashKey::Standard), (Pattern::HeavyTailed, HashKey::Symmetric)]
        {
            let model = Model { packets: 5_000, ..Model::new(pattern, 3) };
            let rss = Rss::new(key, 6);
            let mut frames = Frames::new(model.stream(), rss.clone(), [2; 6], [4; 6], u64::MAX);
            let mut arrivals = model.stream();
            let mut batch = Batch::default();
            let mut sequences = [0; 6];

            loop {
                batch.clear();
                frames.fill(&mut batch);

                if batch.is_empty() {
                    break;
                }

                for frame in batch.iter() {
                    let arrival = arrivals.next().unwrap();
                    assert_eq!(frame.due_ns, arrival.time_ns);
                    assert_eq!(frame.bytes.len(), usize::from(arrival.frame_bytes));
                    assert_eq!(frame.queue, queue_of(&rss, frame.bytes));
                    let sequence = sequences[frame.queue as usize];
                    let stamp = Stamp { queue: frame.queue as u16, sequence };
                    assert_eq!(Stamp::of(frame.bytes), Some(stamp));
                    sequences[frame.queue as usize] += 1;
                }
            }

            assert_eq!(sequences.iter().sum::<u64>(), 5_000);
        }
    }

    #[test]
    fn frames_end_with_the_time() {
        let stream = Model::new(Pattern::Even, 1).stream();
        let mut frames =
            Frames::new(stream, Rss::new(HashKey::Standard, 1), [2; 6], [4; 6], 1_000_000);
        let mut batch = Batch::default();
        frames.fill(&mut batch);
        assert!((50..200).contains(&batch.len()), "{}", batch.len());
        assert!(batch.iter().all(|frame| frame.due_ns < 1_000_000));
        batch.clear();
        frames.fill(&mut batch);
        assert!(batch.is_empty());
    }
}
