//! The order in which the packets of each flow were processed, and the number of threads: the cost
//! of load sharing besides processor time.
//!
//! A packet counts as processed when the core that its thread simulates has finished it: after the
//! packets that this thread took before it, one by one. So two threads that hold packets of one
//! flow at the same time behave as on separate cores.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use wirecap_testbed::Stamp;

/// Number of packets that a thread can record without another allocation.
const EXPECTED_PACKETS: usize = 1 << 20;
/// Offset of the source port in the test bed's frames.
const SOURCE_PORT: usize = 34;

/// The results for all flows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Number of packets whose flow and number are known.
    pub packets: u64,
    /// Number of these that were processed after a later packet of their flow.
    pub out_of_order: u64,
    /// Flows.
    pub flows: u64,
    /// Number of these of which two or more threads had packets.
    pub shared_flows: u64,
}

impl Order {
    /// Share of the packets, in percent.
    pub fn out_of_order_percent(&self) -> f64 {
        100.0 * self.out_of_order as f64 / self.packets.max(1) as f64
    }
}

/// A packet that was processed.
#[derive(Debug, Clone, Copy)]
struct Processed {
    queue: u16,
    source_port: u16,
    sequence: u32,
    /// Since all threads began.
    at_ns: u64,
}

/// A processed packet of one flow, sorted by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    at_ns: u64,
    sequence: u32,
    thread: usize,
}

/// What all threads processed.
#[derive(Debug, Clone)]
pub struct Book {
    begun: Instant,
    logs: Arc<Mutex<Vec<Vec<Processed>>>>,
}

impl Book {
    /// An empty one.
    pub fn begin() -> Self {
        Self { begun: Instant::now(), logs: Arc::default() }
    }

    /// A thread's log.
    pub fn log(&self, cost: Duration) -> Log {
        let processed = Vec::with_capacity(EXPECTED_PACKETS);
        Log { book: self.clone(), cost_ns: cost.as_nanos() as u64, free_at_ns: 0, processed }
    }

    /// The results, once all logs are closed.
    pub fn order(&self) -> Order {
        let logs = mem::take(&mut *self.logs.lock().unwrap_or_else(PoisonError::into_inner));
        let mut flows: HashMap<(u16, u16), Vec<Step>> = HashMap::new();

        for (thread, log) in logs.into_iter().enumerate() {
            for Processed { queue, source_port, sequence, at_ns } in log {
                flows.entry((queue, source_port)).or_default().push(Step {
                    at_ns,
                    sequence,
                    thread,
                });
            }
        }

        let mut order = Order { flows: flows.len() as u64, ..Order::default() };

        for packets in flows.values_mut() {
            packets.sort_unstable();
            order.packets += packets.len() as u64;
            order.shared_flows +=
                u64::from(packets.iter().any(|step| step.thread != packets[0].thread));

            let mut latest = 0;

            for step in &*packets {
                order.out_of_order += u64::from(step.sequence < latest);
                latest = latest.max(step.sequence);
            }
        }

        order
    }
}

/// The packets that one thread processed. Dropping it closes it.
#[derive(Debug)]
pub struct Log {
    book: Book,
    cost_ns: u64,
    /// The time at which the thread's core has finished all earlier packets.
    free_at_ns: u64,
    processed: Vec<Processed>,
}

impl Log {
    /// The thread takes a packet.
    #[inline]
    pub fn note(&mut self, frame: &[u8]) {
        self.note_at(self.book.begun.elapsed().as_nanos() as u64, frame);
    }

    fn note_at(&mut self, now_ns: u64, frame: &[u8]) {
        self.free_at_ns = self.free_at_ns.max(now_ns) + self.cost_ns;
        // A packet with a stamp has ports.
        let Some(Stamp { queue, sequence }) = Stamp::of(frame) else { return };
        let source_port = u16::from_be_bytes([frame[SOURCE_PORT], frame[SOURCE_PORT + 1]]);
        let sequence = sequence as u32;
        let at_ns = self.free_at_ns;
        self.processed.push(Processed { queue, source_port, sequence, at_ns });
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let processed = mem::take(&mut self.processed);
        self.book.logs.lock().unwrap_or_else(PoisonError::into_inner).push(processed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wirecap_testbed::{Namespace, Traffic, VethPair, privileged};

    const COST: Duration = Duration::from_nanos(100);

    #[test]
    fn a_packet_is_out_of_order_if_a_later_one_of_its_flow_was_done_before() {
        if !privileged() {
            return;
        }

        let here = Namespace::new().unwrap();
        let pair = VethPair::new((&here, "a0"), (&here, "a1"), 1, 1500).unwrap();
        let traffic =
            |flow: u16| Traffic { source_port: 2000 + flow, ..Traffic::to(&pair.receiver) };
        let frame = |flow, sequence: u64| traffic(flow).frame(Stamp { queue: 0, sequence });
        let book = Book::begin();
        let mut first = book.log(COST);
        let mut second = book.log(COST);

        // The first thread finishes flow 0's packets 0, 1, 2 at 100, 200 and 300, the second thread
        // finishes its packets 3 and 4 at 250 and 350: only packet 2 is finished after a later one.
        (0..3).for_each(|sequence| first.note_at(0, &frame(0, sequence)));
        (3..5).for_each(|sequence| second.note_at(150, &frame(0, sequence)));

        // Flow 1 is processed by the second thread alone, in order.
        (0..4).for_each(|sequence| second.note_at(0, &frame(1, sequence)));
        second.note_at(0, &[0; 60]);
        drop((first, second));

        let order = book.order();
        assert_eq!(order, Order { packets: 9, out_of_order: 1, flows: 2, shared_flows: 1 });
        assert_eq!(Order::default().out_of_order_percent(), 0.0);
    }
}
