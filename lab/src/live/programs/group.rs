//! A buddy group with wirecap's library: a worker per ring, in basic or advanced mode.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use wirecap::{Capture, Engine, Worker};

use super::handler::{Handler, Options};
use super::{Count, Dropped, Report, on_threads};
use crate::live::Outcome;

/// Interval at which a waiting worker checks whether it must stop.
const PATIENCE: Duration = Duration::from_millis(50);

/// What to receive and how.
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    /// Interface to receive from
    #[arg(short, long)]
    interface: String,
    /// How packets are received
    #[arg(long, value_enum)]
    engine: EngineName,
    /// Workers, each with a ring
    #[arg(long)]
    workers: usize,
    /// M: packets of a chunk
    #[arg(short = 'M', long, default_value_t = 64)]
    chunk: u32,
    /// R: chunks of each ring
    #[arg(short = 'R', long)]
    pool: u32,
    /// T in percent, for advanced mode
    #[arg(short = 'T', long)]
    threshold: Option<f64>,
    #[command(flatten)]
    handler: Options,
}

/// An engine by its name.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum EngineName {
    /// AF_XDP, a ring for each queue
    Xdp,
    /// AF_PACKET, rings that share flows
    Packet,
}

impl From<EngineName> for Engine {
    fn from(name: EngineName) -> Self {
        match name {
            EngineName::Xdp => Self::Xdp,
            EngineName::Packet => Self::Packet,
        }
    }
}

/// Receives until it is interrupted.
///
/// # Errors
///
/// If the kernel returns an error, or the ledger's count differs from the workers' counts.
pub fn run(arguments: &Arguments) -> Outcome<()> {
    let handler = Handler::new(&arguments.handler)?;
    let builder = Capture::on(&*arguments.interface)
        .engine(arguments.engine.into())
        .workers(arguments.workers);
    let builder = builder.chunk(arguments.chunk).pool(arguments.pool);
    let builder = match arguments.threshold {
        Some(percent) => builder.advanced(percent / 100.0),
        None => builder,
    };
    let capture = builder.open()?;
    let workers = capture.workers();
    let mut count =
        on_threads(workers, &arguments.interface, &handler, |worker, handler, stopped| {
            receive(worker, handler, &capture, stopped)
        })?;

    let ledger = capture.close();
    if ledger.total.delivered != count.delivered {
        return Err(format!("the workers had {} packets: {ledger}", count.delivered).into());
    }

    let dropped = ledger.total.dropped;
    count.dropped =
        Dropped { no_cell: dropped.no_cell, ring_full: dropped.ring_full + dropped.other };

    Report::print(count, &handler)
}

fn receive(
    mut worker: Worker,
    mut handler: Handler,
    capture: &Capture,
    stopped: &AtomicBool,
) -> Outcome<Count> {
    let mut count = Count::default();

    while !worker.is_finished() {
        if stopped.load(Ordering::Relaxed) {
            capture.stop();
        }

        let Some(chunk) = worker.next_chunk_timeout(PATIENCE)? else { continue };
        for packet in &chunk {
            count.packet(packet.data(), packet.wire_len());
            handler.packet(packet.data(), packet.wire_len());
        }

        handler.wait();
    }
    Ok(count)
}
