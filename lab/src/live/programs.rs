//! Receivers: hand-written programs on AF_XDP, AF_PACKET and libpcap, and the same with wirecap's
//! library.
//!
//! Each is a separate process, prints `capturing` when it is ready, and ends at SIGINT with one
//! JSON object with the field names of the ledger. `wirecap-lab program NAME` runs one.

pub mod bare;
pub mod group;
pub mod handler;
pub mod libpcap;
pub mod order;
pub mod ring;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Subcommand;
use serde::Serialize;

use super::Outcome;
use handler::Handler;
use order::Order;

/// A receiver that is part of the lab.
#[derive(Debug, Clone, Subcommand)]
pub enum Program {
    /// A bare AF_XDP receive loop
    Bare(bare::Arguments),
    /// AF_PACKET rings (TPACKET_V3), several of them joined by PACKET_FANOUT
    Ring(ring::Arguments),
    /// A program around pcap_loop, with a thread and a handle per ring
    Libpcap(libpcap::Arguments),
    /// A buddy group of wirecap's library
    Group(group::Arguments),
}

impl Program {
    /// Runs it until it is interrupted.
    ///
    /// # Errors
    ///
    /// If the kernel or libpcap rejects it.
    pub fn run(&self) -> Outcome<()> {
        match self {
            Self::Bare(arguments) => bare::run(arguments),
            Self::Ring(arguments) => ring::run(arguments),
            Self::Libpcap(arguments) => libpcap::run(arguments),
            Self::Group(arguments) => group::run(arguments),
        }
    }
}

/// What a receiver counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Packets that the program received.
    pub delivered: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of IPv4 packets among them, the reason for reading headers.
    pub ipv4: u64,
    /// Losses that the kernel reports.
    pub dropped: Dropped,
}

/// Losses by reason, if the kernel distinguishes them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Dropped {
    /// No free buffer.
    pub no_cell: u64,
    /// No room in the receive ring.
    pub ring_full: u64,
}

impl Count {
    fn add(self, other: Self) -> Self {
        Self {
            delivered: self.delivered + other.delivered,
            bytes: self.bytes + other.bytes,
            ipv4: self.ipv4 + other.ipv4,
            dropped: Dropped {
                no_cell: self.dropped.no_cell + other.dropped.no_cell,
                ring_full: self.dropped.ring_full + other.dropped.ring_full,
            },
        }
    }

    /// Counts a packet and reads its header.
    #[inline]
    fn packet(&mut self, data: &[u8], wire_bytes: u32) {
        let ethertype = data.first_chunk::<14>().map(|header| [header[12], header[13]]);
        self.ipv4 += u64::from(ethertype == Some([0x08, 0x00]));
        self.bytes += u64::from(wire_bytes);
        self.delivered += 1;
    }
}

/// A flag that SIGINT sets.
fn interruption() -> Outcome<Arc<AtomicBool>> {
    let stopped = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stopped))?;
    Ok(stopped)
}

/// The final output of a receiver.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    count: Count,
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<Order>,
}

impl Report {
    fn print(count: Count, handler: &Handler) -> Outcome<()> {
        println!("{}", serde_json::to_string(&Self { count, order: handler.order() })?);
        Ok(())
    }
}

/// Runs a receiver per thread, each with a separate handler, and returns their sums.
fn on_threads<R: Send>(
    receivers: Vec<R>,
    interface: &str,
    handler: &Handler,
    receive: impl Fn(R, Handler, &AtomicBool) -> Outcome<Count> + Sync,
) -> Outcome<Count> {
    let stopped = interruption()?;
    let receivers: Vec<_> =
        receivers.into_iter().map(|receiver| (receiver, handler.of_thread())).collect();
    eprintln!("capturing {interface}");

    let counts = std::thread::scope(|scope| {
        let start = |(receiver, handler)| {
            let stopped = &stopped;
            let receive = &receive;
            scope.spawn(move || {
                // If one fails, the others end.
                receive(receiver, handler, stopped)
                    .inspect_err(|_| stopped.store(true, Ordering::Relaxed))
            })
        };
        let threads: Vec<_> = receivers.into_iter().map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().expect("receiving does not panic")
        };

        threads.into_iter().map(join).collect::<Outcome<Vec<Count>>>()
    })?;
    Ok(counts.into_iter().fold(Count::default(), Count::add))
}
