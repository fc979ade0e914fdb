//! The test bed of buddy groups, with workers that wait a fixed time per packet: they simulate slow
//! cores, so two cores can simulate many.

use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use wirecap::{Capture, CaptureBuilder, Chunk, Engine, Ledger};
use wirecap_testbed::{
    AfXdpSender, Counters, KernelSender, Namespace, Pacer, Sizes, SlowCore, Stamp, SteadySender,
    Ticks, Traffic, VethPair, pass_program,
};

/// A worker's time per packet: it can process 10,000 per second.
pub(crate) const COST: Duration = Duration::from_micros(100);
pub(crate) const WORKER_RATE: f64 = 10_000.0;
/// Time limit on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Both engines.
pub(crate) const ENGINES: [Engine; 2] = [Engine::Xdp, Engine::Packet];

/// Duration of a load: five seconds, or as set by the environment. `make skew` sets twenty.
pub(crate) fn load_time() -> Duration {
    wirecap_testbed::skewed_time(5.0)
}

/// Two namespaces and the cable between them; captures happen at `a1`.
pub(crate) struct Bed {
    _sender: Namespace,
    pub(crate) receiver: Namespace,
    pub(crate) pair: VethPair,
    queues: u16,
}

impl Bed {
    pub(crate) fn new(queues: u16) -> Self {
        let sender = Namespace::new().unwrap();
        let receiver = Namespace::new().unwrap();
        let pair = VethPair::new((&sender, "a0"), (&receiver, "a1"), queues.into(), 1500)
            .and_then(wirecap_testbed::dedicated)
            .unwrap();
        Self { _sender: sender, receiver, pair, queues }
    }

    pub(crate) fn open(&self, builder: CaptureBuilder) -> Capture {
        self.receiver.run_in(|| builder.open()).unwrap().unwrap()
    }

    /// Captures while `send` sends, with a worker per ring that needs `cost` per packet, until all
    /// kept packets have been processed. `see` gets every chunk with the number of its worker. The
    /// engine's own work for a packet is in addition to the cost: in a debug build 0.6 µs, a ninth
    /// of the capacity of a worker that needs 5 µs.
    pub(crate) fn process<T>(
        &self,
        builder: CaptureBuilder,
        cost: Duration,
        see: impl Fn(usize, &Chunk) + Sync,
        send: impl FnOnce(&Self) -> T,
    ) -> (T, Ledger) {
        let mut counters = Counters::of(&self.pair.sender).unwrap();
        let capture = self.open(builder);
        let sent = thread::scope(|scope| {
            for mut worker in capture.workers() {
                let see = &see;
                let work = move || {
                    let mut core = SlowCore::default();
                    while let Some(chunk) = worker.next_chunk().unwrap() {
                        see(worker.index(), &chunk);
                        core.work(cost * chunk.len() as u32);
                    }
                };
                spawn(scope, "worker", work);
            }
            // Also when `send` panics: the workers wait for it.
            let _stop = Stop(self, &capture);
            send(self)
        });
        let ledger = self.receiver.run_in(|| capture.close()).unwrap();
        // Without frames that had no room before the interface, which cannot be captured.
        let arrived = counters.since_start().unwrap().tx_packets;
        assert_eq!(ledger.total.offered, arrived, "{ledger}");
        assert_eq!(ledger.total.delivered + ledger.total.dropped.total(), arrived, "{ledger}");
        (sent, ledger)
    }

    /// One flow of frames of this many bytes.
    pub(crate) fn traffic(&self, frame_bytes: u16) -> Traffic {
        Traffic { sizes: Sizes::fixed(frame_bytes), ..Traffic::to(&self.pair.receiver) }
    }

    /// Sends frames of this length to each queue at its rate, in frames per second, for this time:
    /// an error if the rates were not reached.
    pub(crate) fn load(
        &self,
        frame_bytes: u16,
        rates: &[f64],
        time: Duration,
    ) -> Result<u64, String> {
        let (sent, ticks) = self.send(frame_bytes, rates, time);
        ticks.check().map(|()| sent)
    }

    /// The same if the rates need not be reached; returns the number of sent packets, and their
    /// times.
    pub(crate) fn send(&self, frame_bytes: u16, rates: &[f64], time: Duration) -> (u64, Ticks) {
        let traffic = self.traffic(frame_bytes);
        let mut sender = SteadySender::on(&self.pair.sender, traffic, self.queues).unwrap();
        let send = move || {
            let mut ticks = Ticks::new(time);
            (sender.send(rates, &mut ticks).unwrap(), ticks)
        };
        thread::scope(|scope| spawn(scope, "sender", send).join().unwrap())
    }

    /// The same from inside the kernel, with separate traffic for each queue, from a CPU that
    /// reaches it.
    pub(crate) fn load_from_the_kernel(
        &self,
        traffic: &[Traffic],
        rates: &[f64],
        time: Duration,
    ) -> Result<u64, String> {
        let send = |queue: u16, traffic: &Traffic, rate: f64| {
            let mut sender = KernelSender::on(&self.pair.sender, queue.into()).unwrap();
            let mut ticks = Ticks::new(time);
            let mut sequence = 0;
            while let Some(at) = ticks.next_at() {
                for sequence in sequence..(rate * at) as u64 {
                    sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap();
                }
                sequence = (rate * at) as u64;
                sender.flush().unwrap();
            }
            ticks.check().map(|()| sequence)
        };
        thread::scope(|scope| {
            let begin = |(queue, (traffic, &rate))| {
                spawn(scope, "sender", move || send(queue, traffic, rate))
            };
            let senders: Vec<_> = (0..).zip(traffic.iter().zip(rates)).map(begin).collect();
            senders.into_iter().map(|sender| sender.join().unwrap()).sum()
        })
    }

    /// While this value exists, frames from inside the kernel reach the host's stack.
    pub(crate) fn pass_to_the_host(&self) -> impl Sized + use<> {
        pass_program(&self.pair.receiver).unwrap()
    }

    /// Traffic with one flow for each of this many rings, which the hash of the flow selects.
    pub(crate) fn traffic_by_ring(&self, builder: CaptureBuilder, rings: usize) -> Vec<Traffic> {
        let capture = self.open(builder);
        // Frames to queue n have the n-th port from the source port on.
        let flow =
            |port: u16, queue: u16| Traffic { source_port: port - queue, ..self.traffic(60) };
        let mut sender = AfXdpSender::on(&self.pair.sender, 0).unwrap();
        for port in 1024..1024 + 64 {
            sender.send(&flow(port, 0).frame(Stamp { queue: 0, sequence: port.into() })).unwrap();
        }
        sender.flush().unwrap();
        let mut of_ring = vec![None; rings];
        let mut workers = capture.workers();
        let deadline = Instant::now() + PATIENCE;
        while of_ring.contains(&None) {
            assert!(
                Instant::now() < deadline,
                "64 flows hit no more rings than these: {of_ring:?}"
            );
            for worker in &mut workers {
                let chunk = worker.next_chunk_timeout(Duration::from_millis(20)).unwrap();
                for packet in chunk.iter().flatten() {
                    let ring = chunk.as_ref().unwrap().ring_index();
                    of_ring[ring] = Stamp::of(packet.data()).map(|stamp| stamp.sequence as u16);
                }
            }
        }
        drop(workers);
        self.receiver.run_in(|| drop(capture)).unwrap();
        of_ring.into_iter().flatten().zip(0..).map(|(port, queue)| flow(port, queue)).collect()
    }
}

/// Stops a capture at the end, in the interface's namespace.
struct Stop<'a>(&'a Bed, &'a Capture);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        let _ = self.0.receiver.run_in(|| self.1.stop());
    }
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work).unwrap()
}

/// Sends `frames` frames to `queue`, evenly spaced.
pub(crate) fn send_evenly(
    sender: &mut AfXdpSender,
    traffic: &Traffic,
    queue: u16,
    frames: u64,
    per_second: u64,
) {
    let mut pacer = Pacer::new(per_second.div_ceil(10));
    for sequence in 0..frames {
        if sequence % 10 == 0 {
            sender.flush().unwrap();
            pacer.wait();
        }
        sender.send(&traffic.frame(Stamp { queue, sequence })).unwrap();
    }
    sender.flush().unwrap();
}
