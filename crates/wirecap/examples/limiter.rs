//! A rate limiter as a bump in the wire. It limits each direction to a number of bits per second
//! and drops the packets that exceed it.
//!
//! `limiter A B MBIT`: two interfaces and the rate in Mbit/s. Ctrl-C ends it.

use std::error::Error;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use wirecap::{Capture, CaptureError, OpenError, Worker};

/// A token bucket, in bytes. It fills at the allowed rate; each forwarded packet removes its
/// length.
#[derive(Debug)]
pub(crate) struct Bucket {
    bytes_per_second: f64,
    /// The maximum length of a burst.
    capacity_bytes: f64,
    bytes: f64,
    filled: Instant,
    /// Packets that were dropped because the bucket had too few bytes.
    pub(crate) dropped: u64,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(bits_per_second: f64, capacity_bytes: u32) -> Self {
        let capacity_bytes = capacity_bytes.into();
        let bytes_per_second = bits_per_second / 8.0;
        Self {
            bytes_per_second,
            capacity_bytes,
            bytes: capacity_bytes,
            filled: Instant::now(),
            dropped: 0,
        }
    }

    fn fill(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.filled).as_secs_f64();
        self.bytes = (self.bytes + time * self.bytes_per_second).min(self.capacity_bytes);
        self.filled = self.filled.max(now);
    }

    fn lets_pass(&mut self, frame_bytes: usize) -> bool {
        let passes = self.bytes >= frame_bytes as f64;
        if passes {
            self.bytes -= frame_bytes as f64;
        }
        self.dropped += u64::from(!passes);
        passes
    }
}

/// Opens both interfaces.
pub(crate) fn open(a: &str, b: &str) -> Result<Capture, OpenError> {
    Capture::on(a).and(b).forwarding().open()
}

/// Forwards until the capture is stopped, with a bucket for each receiving interface.
pub(crate) fn run(
    capture: &Capture,
    buckets: &[Mutex<Bucket>; 2],
) -> Result<(), Box<dyn Error + Send + Sync>> {
    thread::scope(|scope| {
        let work = |worker| scope.spawn(|| forward(worker, capture, buckets));
        let workers: Vec<_> = capture.workers().into_iter().map(work).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    Ok(())
}

fn forward(
    mut worker: Worker,
    capture: &Capture,
    buckets: &[Mutex<Bucket>; 2],
) -> Result<(), CaptureError> {
    let names = [&capture.interfaces()[1], &capture.interfaces()[0]].map(|to| &to.device.name);
    // The output port of each interface's packets.
    let mut ports = names.map(|name| capture.port(name).expect("the capture forwards"));
    while let Some(mut chunk) = worker.next_chunk()? {
        let port = &mut ports[chunk.interface_index()];
        let bucket = &buckets[chunk.interface_index()];
        // Once per chunk, not per packet.
        let mut bucket = bucket.lock().expect("no thread panics with the lock");
        bucket.fill(Instant::now());
        for packet in chunk.drain() {
            if bucket.lets_pass(packet.len()) {
                port.send(packet);
            } // Otherwise the packet is dropped and its cell is recycled.
        }
        drop(bucket);
        port.flush();
    }
    Ok(())
}

#[allow(dead_code, reason = "a test has its own way to end")]
fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [a, b, mbit] = &arguments[..] else {
        return Err("give two interfaces and a rate: A B MBIT".into());
    };
    let bits_per_second = mbit.parse::<f64>()? * 1e6;
    let capture = open(a, b)?;
    let stopper = capture.stopper();
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT])?;
    thread::spawn(move || signals.forever().for_each(|_| stopper.stop()));
    // 10 ms at the allowed rate, but at least enough for a few long packets.
    let capacity_bytes = (bits_per_second / 800.0).max(20_000.0) as u32;
    let buckets = [(); 2].map(|()| Mutex::new(Bucket::new(bits_per_second, capacity_bytes)));
    run(&capture, &buckets)?;
    println!("{}", capture.close());
    for (bucket, name) in buckets.into_iter().zip([a, b]) {
        println!("{} packets from {name} exceeded the rate", bucket.into_inner()?.dropped);
    }
    Ok(())
}
