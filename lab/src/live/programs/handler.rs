//! The handler of all receivers: the paper's pkt_handler, which applies a filter x times to every
//! packet; or one that waits instead, so a few CPUs can simulate many slow ones.

use std::hint::black_box;
use std::time::{Duration, Instant};

use clap::Args;
use wirecap::filter::{Context, Filter, Interpreter};
use wirecap::savefile::LinkType;
use wirecap_testbed::SlowCore;

use super::order::{Book, Log, Order};
use crate::live::Outcome;

/// The paper's filter.
pub const FILTER: &str = "net 131.225.2 and udp";
/// A waiting handler waits once for this many packets, as `wirecap handle` does for a chunk.
const WAIT_PACKETS: u32 = 256;

/// The work per packet.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Options {
    /// How often the filter is applied to each packet
    #[arg(short = 'x', long, default_value_t = 0)]
    pub times: u32,
    /// Nanoseconds to wait for each packet
    #[arg(long, default_value_t = 0)]
    pub cost: u64,
    /// Report the order in which the packets of each flow were processed, and the number of threads
    #[arg(long)]
    pub order: bool,
}

impl Options {
    /// Whether there is any work per packet.
    pub fn is_something(&self) -> bool {
        self.times > 0 || self.cost > 0 || self.order
    }
}

/// A thread's handler.
#[derive(Debug)]
pub struct Handler {
    interpreter: Option<Interpreter>,
    times: u32,
    cost_ns: u64,
    /// Number of packets for which it has not waited yet.
    owed_packets: u32,
    core: SlowCore,
    book: Option<Book>,
    log: Option<Log>,
}

impl Handler {
    /// A handler with this work.
    ///
    /// # Errors
    ///
    /// If there is no libpcap to compile the filter.
    pub fn new(options: &Options) -> Outcome<Self> {
        let interpreter = match options.times {
            0 => None,
            _ => Some(Interpreter::new(&Filter::compile(FILTER, LinkType::ETHERNET, 65_535)?)?),
        };
        Ok(Self {
            interpreter,
            times: options.times,
            cost_ns: options.cost,
            owed_packets: 0,
            core: SlowCore::default(),
            book: options.order.then(Book::begin),
            log: None,
        })
    }

    /// The same for one more thread.
    #[must_use]
    pub fn of_thread(&self) -> Self {
        let log = self.book.as_ref().map(|book| book.log(Duration::from_nanos(self.cost_ns)));
        Self {
            interpreter: self.interpreter.clone(),
            times: self.times,
            cost_ns: self.cost_ns,
            owed_packets: 0,
            core: SlowCore::default(),
            book: self.book.clone(),
            log,
        }
    }

    /// The order of packets recorded by its threads, after they have ended, if requested.
    pub fn order(&self) -> Option<Order> {
        self.book.as_ref().map(Book::order)
    }

    /// Deals with a packet.
    #[inline]
    pub fn packet(&mut self, data: &[u8], wire_bytes: u32) {
        if let Some(interpreter) = &self.interpreter {
            apply(interpreter, self.times, data, wire_bytes);
        }
        if let Some(log) = &mut self.log {
            log.note(data);
        }
        self.owed_packets += 1;
        if self.owed_packets == WAIT_PACKETS {
            self.wait();
        }
    }

    /// Waits for the packets that it has processed.
    pub fn wait(&mut self) {
        let packets = u64::from(std::mem::take(&mut self.owed_packets));
        if self.cost_ns > 0 {
            self.core.work(Duration::from_nanos(self.cost_ns * packets));
        }
    }
}

/// Applies the filter this many times.
fn apply(interpreter: &Interpreter, times: u32, data: &[u8], wire_bytes: u32) {
    let context = Context::default();
    for _ in 0..times {
        // The optimiser must not see that the verdict is the same each time.
        black_box(interpreter.matches(black_box(data), wire_bytes, &context));
    }
}

/// The time of one application of the filter to `packet`, in nanoseconds: the minimum of some
/// rounds.
///
/// # Errors
///
/// If there is no libpcap to compile the filter.
pub fn application_ns(packet: &[u8]) -> Outcome<f64> {
    const TIMES: u32 = 20_000;
    let handler = Handler::new(&Options { times: TIMES, ..Options::default() })?;
    let Some(interpreter) = handler.interpreter else {
        return Err("a handler without a filter".into());
    };
    let round = || {
        let begin = Instant::now();
        apply(&interpreter, TIMES, packet, packet.len() as u32);
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES)
    };
    Ok((0..7).map(|_| round()).fold(f64::INFINITY, f64::min))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_handler_waits_at_least_as_long_as_it_owes_but_for_one_batch() {
        let mut handler = Handler::new(&Options { cost: 10_000, ..Options::default() }).unwrap();
        let begin = Instant::now();
        (0..1000).for_each(|_| handler.packet(&[], 60));
        let owed = Duration::from_nanos(10_000) * (1000 - WAIT_PACKETS);
        assert!(begin.elapsed() >= owed, "{:?}", begin.elapsed());
    }
}
