//! The work of the bare loop, done with the library: a loop over chunks that reads each packet's
//! header.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use wirecap::{Capture, CaptureBuilder, Chunk, Engine, Packet};

use wirecap_lab::live::Outcome;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Interface to capture from
    #[arg(short, long)]
    interface: String,
    /// R: chunks of the pool
    #[arg(short = 'R', long, default_value_t = 512)]
    chunks: u32,
    /// M: cells per chunk
    #[arg(short = 'M', long, default_value_t = 256)]
    cells: u32,
    /// Number of posted cells [default: all]
    #[arg(long)]
    warm: Option<u32>,
    /// End after this many packets
    #[arg(short, long, default_value_t = u64::MAX)]
    count: u64,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome<()> {
    let builder = Capture::on(&arguments.interface)
        .engine(Engine::Xdp)
        .chunk(arguments.cells)
        .pool(arguments.chunks)
        .workers(1);
    let capture = arguments.warm.into_iter().fold(builder, CaptureBuilder::warm).open()?;
    let stopped = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stopped))?;
    let stopper = capture.stopper();
    thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
        stopper.stop();
    });
    eprintln!("capturing {}", arguments.interface);
    let mut worker = capture.workers().pop().ok_or("a new capture has its worker")?;
    let mut packets = 0;
    let mut ipv4 = 0;
    while let Some(chunk) = worker.next_chunk()? {
        ipv4 += count_ipv4(&chunk);
        packets += chunk.len() as u64;
        if packets >= arguments.count {
            break;
        }
    }
    let ledger = capture.close();
    assert!(ipv4 <= ledger.total.delivered, "more headers than packets");
    println!("{}", serde_json::to_string(&ledger)?);
    Ok(())
}

fn count_ipv4(chunk: &Chunk) -> u64 {
    let is_ipv4 = |packet: &Packet<'_>| {
        let header = packet.data().first_chunk::<14>();
        header.is_some_and(|header| u16::from_be_bytes([header[12], header[13]]) == 0x0800)
    };
    chunk.iter().filter(is_ipv4).count() as u64
}
