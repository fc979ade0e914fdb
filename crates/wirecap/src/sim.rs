//! The `sim` engine: real pools, rings, chunks and buddy groups over a simulated kernel.
//!
//! A [`SimKernel`] holds the kernel's half of one ring's fill and rx rings: it takes cells from the
//! fill ring, writes packets into them and publishes their descriptors, as a driver with an AF_XDP
//! socket does. It can also be slow, asleep or faulty. The application's half is the code that runs
//! on a real interface. The simulator reads no clock and no source of randomness: the caller passes
//! the time, and [`Random`] returns the same numbers for the same seed, so every run can be
//! repeated.
//!
//! [`SimCapture`] is for tests that drive kernel and workers themselves; a [`Simulation`] simulates
//! whole captures under load:
//!
//! ```
//! use std::time::Duration;
//! use wirecap::Mode;
//! use wirecap::sim::{Arrivals, Service, SimSettings, Simulation, SimulationConfig};
//!
//! let skewed = |mode| SimulationConfig {
//!     settings: SimSettings { rings: 2, workers: 2, mode, ..SimSettings::default() },
//!     arrivals: vec![Arrivals::Constant { rate: 16_000.0 }, Arrivals::Poisson { rate: 2_000.0 }],
//!     service: vec![Service::at_rate(10_000.0); 2], // packets per second
//!     duration: Duration::from_secs(1),
//!     seed: 1,
//!     ..SimulationConfig::default()
//! };
//! let basic = Simulation::new(skewed(Mode::Basic)).run();
//! let advanced = Simulation::new(skewed(Mode::Advanced(0.6))).run();
//! assert!(!basic.ledger.is_lossless());
//! assert!(advanced.ledger.is_lossless());
//! assert!(advanced.broken_promises.is_empty());
//! ```

mod arrivals;
mod audit;
mod delays;
mod device;
#[cfg(all(test, not(loom)))]
mod forward_tests;
#[cfg(all(test, not(loom)))]
mod in_place_tests;
mod kernel;
#[cfg(all(test, loom))]
mod model;
mod push;
#[cfg(all(test, not(loom)))]
mod seat_tests;
mod simulation;
mod transmitter;
// Miri is too slow for these; it runs the same code in `tests`.
#[cfg(all(test, not(loom), not(miri)))]
mod simulation_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use crate::group::policy::{Next, Policy};
pub use arrivals::Arrivals;
pub use audit::BrokenPromise;
pub use device::{QueueState, SimCounts, SimDevice};
pub use kernel::{Fate, Fault, SimKernel, Violation};
pub use simulation::{
    Mishap, Outcome, Sample, Service, Sharing, Simulation, SimulationConfig, WorkerOutcome,
};
pub use transmitter::{LinkState, SentPacket, SimTransmitter};
pub use wirecap_units::random::Random;

use crate::capture::in_place::ReadableRing;
use crate::capture::waiting::{Wait, Waiting};
use crate::capture::{Capture, keeper};
use crate::error::{CaptureError, OpenError};
use crate::forward::{Exchange, Outlet, Port, PortShared, Sequence, TxOutlet};
use crate::group::Group;
use crate::kernel_ring::{Consumer, Producer};
use crate::ledger::{Ledger, Mode, RingLedger};
use crate::names::RingName;
use crate::savefile::LinkType;
use crate::sim::kernel::CellStates;
use crate::sys::xdp::Descriptor;
use crate::umem::chunk::records::Stamps;
use crate::umem::chunk::{Chunk, RingIdentity};
use crate::umem::completion::CompletionRing;
use crate::umem::fill::FillRing;
use crate::umem::owners::Owners;
use crate::umem::pool::{Geometry, Pool};
use crate::umem::ring::{Counters, Posting, Ring};
use crate::umem::rx::{RxRing, StampSource};
use crate::umem::supply::{Stock, Supply};
use crate::umem::tx::{TxKernel, TxRing};

/// The settings of a simulated capture.
#[derive(Debug, Clone, PartialEq)]
pub struct SimSettings {
    /// Number of receive rings.
    pub rings: usize,
    /// Number of rings that can be added later ([`SimCapture::seat_ring`]).
    pub rings_later: usize,
    /// Number of workers, at most one per ring.
    pub workers: usize,
    /// The sizes of each ring's pool. A cell must be larger than [`HEADROOM_BYTES`].
    pub geometry: Geometry,
    /// Basic or advanced mode.
    pub mode: Mode,
    /// How a helper selects the next ring.
    pub policy: Policy,
    /// Time without a request after which buddies take all chunks of a worker's rings.
    pub stuck_after: Duration,
    /// N: number of free cells that a driver takes from the fill ring in advance.
    pub descriptors: u32,
    /// Slots of the rx ring, a power of two; `None`: room for all cells, as in the other engines.
    pub rx_slots: Option<u32>,
    /// Whether a driver that finds no free cells sleeps until a system call wakes it.
    pub drivers_sleep: bool,
    /// Whether the devices write into the cells themselves.
    pub zero_copy: bool,
    /// First value of the rings' 32-bit indices.
    pub first_index: u32,
    /// Number of posted cells per ring, if not all.
    pub warm: Option<u32>,
    /// Whether the rings share one pool, in which a quarter of R x M is reserved for each.
    pub elastic: bool,
    /// Whether captured packets can be sent, on one port with a tx queue for each ring. The rings
    /// then share one pool, which has R x M cells for each ring and M cells for new packets. Cannot
    /// be combined with `elastic`.
    pub forwards: bool,
    /// Slots of the tx and completion rings, a power of two.
    pub tx_slots: u32,
    /// Whether packets have times of the device's clock; 0 stands for none.
    pub device_clock: bool,
}

impl Default for SimSettings {
    /// One ring with one worker and a pool of 16 chunks of 16 cells of 128 bytes, in basic mode.
    fn default() -> Self {
        Self {
            rings: 1,
            rings_later: 0,
            workers: 1,
            geometry: Geometry { chunk_cells: 16, chunks: 16, cell_bytes: 128 },
            mode: Mode::Basic,
            policy: Policy::default(),
            stuck_after: Duration::from_secs(1),
            descriptors: 64,
            rx_slots: None,
            drivers_sleep: false,
            zero_copy: false,
            first_index: 0,
            warm: None,
            elastic: false,
            forwards: false,
            // Few slots, so that the rings are sometimes full.
            tx_slots: 8,
            device_clock: false,
        }
    }
}

/// Bytes before every simulated packet, which contain its time of arrival.
pub const HEADROOM_BYTES: u32 = 8;

/// Timestamps in the format that a [`SimKernel`] writes.
#[derive(Debug)]
struct SimStamps {
    by_device: bool,
}

impl StampSource for SimStamps {
    fn stamps(&self) -> Stamps {
        if self.by_device { Stamps::Device } else { Stamps::Tai { ahead_of_utc_nanos: 0 } }
    }
}

/// A capture whose kernel is simulated.
#[derive(Debug, Clone)]
pub struct SimCapture {
    group: Arc<Group>,
    rings: Vec<Arc<RxRing>>,
    kernels: Vec<Arc<SimKernel>>,
    geometry: Geometry,
    /// The stock of cells that the rings of an elastic pool share.
    stock: Option<Arc<Stock>>,
    exchange: Option<Arc<Exchange>>,
    transmitters: Vec<Arc<SimTransmitter>>,
}

/// One worker of a [`SimCapture`]. It never waits; a [`Simulation`] simulates the waiting by the
/// engine's own policy. Dropping it removes the worker.
#[derive(Debug)]
pub struct SimWorker {
    group: Arc<Group>,
    exchange: Option<Arc<Exchange>>,
    index: usize,
    waiting: Waiting,
}

/// The answer to a worker's request for a chunk.
#[derive(Debug)]
pub enum Answer {
    /// A chunk.
    Chunk {
        /// The chunk.
        chunk: Chunk,
        /// The workers to wake, because a ring needs help.
        wake: Vec<usize>,
    },
    /// No chunk at the moment.
    Nothing,
    /// No more chunks: the capture has ended and its rings are empty.
    Ended,
}

impl SimCapture {
    /// Opens the rings and posts all their cells.
    ///
    /// # Panics
    /// If the settings are invalid: no rings, no workers or more workers than rings, no cells, or a
    /// cell size that is not a power of two or not larger than the headroom.
    pub fn new(settings: &SimSettings) -> Self {
        Self::with(settings, |ring| ring)
    }

    /// As [`new`](Self::new), but the group gets each ring as returned by `disguise`.
    fn with(settings: &SimSettings, disguise: impl Fn(Arc<RxRing>) -> Arc<dyn Ring>) -> Self {
        assert!(
            (1..=settings.rings).contains(&settings.workers),
            "1 to {} workers",
            settings.rings
        );
        assert!(settings.geometry.cells() > 0, "no cells");
        assert!(
            settings.geometry.cell_bytes > HEADROOM_BYTES,
            "cells of {HEADROOM_BYTES} bytes or less"
        );
        assert!(!(settings.elastic && settings.forwards), "elastic pools do not forward");

        let (supplies, stock) = supplies(settings);
        let mut opened: Vec<Opened> = supplies
            .into_iter()
            .enumerate()
            .map(|(index, supply)| open_ring(index, supply, settings))
            .collect();
        let (exchange, transmitters) =
            if settings.forwards { open_port(&mut opened, settings) } else { (None, Vec::new()) };
        let (rings, kernels): (Vec<_>, Vec<_>) =
            opened.into_iter().map(|Opened { ring, kernel, .. }| (ring, kernel)).unzip();
        let members = rings.iter().cloned().map(disguise).collect();
        let group = Group::new(members, settings.workers, settings.mode, settings.stuck_after)
            .with_policy(settings.policy)
            .with_room(settings.rings_later);
        let group = Arc::new(group);
        let geometry = settings.geometry;
        Self { group, rings, kernels, geometry, stock, exchange, transmitters }
    }

    /// Opens one more ring, as large as the others, as for a new receive queue. Returns the worker
    /// that serves it.
    ///
    /// # Panics
    /// If there is no free seat, or the rings share a pool.
    pub fn seat_ring(&mut self, settings: &SimSettings) -> usize {
        assert!(!settings.elastic && !settings.forwards, "all cells of a shared pool are assigned");
        let one = SimSettings { rings: 1, ..settings.clone() };
        let cells = supplies(&one).0.pop().expect("there is one ring");
        let Opened { ring, kernel, .. } = open_ring(self.rings.len(), cells, &one);
        self.rings.push(Arc::clone(&ring));
        self.kernels.push(kernel);
        self.group.add(ring, 0).expect("a seat is free")
    }

    /// Closes ring `ring`: packets left in it count as dropped.
    pub fn close_ring(&self, ring: usize) {
        self.rings[ring].close();
    }

    /// Replaces the interface of ring `ring` by another one, whose driver starts from its initial
    /// state.
    pub fn replace_interface(&self, ring: usize) {
        let (ring, kernel) = (&self.rings[ring], &self.kernels[ring]);
        let moved = ring.move_to(kernel.clone(), |rx| {
            kernel.forget_filled();
            rx.restart();
            Ok(())
        });
        moved.expect("an open ring can move");

        let held = ring.hold();
        let waiting: Vec<u64> = held.waiting().collect();
        let moved = ring.fill_ring().move_to(kernel.clone(), &waiting, held.taken(), |fill| {
            kernel.forget_posted();
            fill.restart();
            Ok(())
        });
        moved.expect("an open fill ring can move");
    }

    /// A handle on the port, if the capture forwards.
    pub fn port(&self) -> Option<Port> {
        self.exchange.as_ref().map(|exchange| Port::new(Arc::clone(exchange), 0))
    }

    /// The kernel's half of the tx ring of the port's queue `queue`.
    pub fn transmitter(&self, queue: usize) -> &Arc<SimTransmitter> {
        &self.transmitters[queue]
    }

    /// Number of free cells for new packets.
    pub fn new_cells(&self) -> usize {
        self.exchange.as_ref().map_or(0, |exchange| exchange.new_cells())
    }

    /// The worker with number `index`.
    pub fn worker(&self, index: usize) -> SimWorker {
        assert!(index < self.group.workers(), "there are {} workers", self.group.workers());
        let group = Arc::clone(&self.group);
        let exchange = self.exchange.clone();
        SimWorker { waiting: Waiting::new(&group, index), group, exchange, index }
    }

    /// The same rings as a [`Capture`] with the workers that applications use. They wait by the
    /// machine's clock, and no packets arrive while they wait. Do not use [`worker`](Self::worker)s
    /// at the same time.
    ///
    /// # Errors
    /// If the system has no file descriptors left.
    pub fn capture(&self) -> Result<Capture, OpenError> {
        let first_ring = self.rings.first().cloned().map(ReadableRing::Cells);
        let rings = self.rings.iter().map(|ring| Arc::clone(ring) as Arc<dyn Ring>).collect();
        let group = &self.group;
        let group = Group::new(rings, group.workers(), group.mode(), group.stuck_after());
        Capture::over(group, first_ring, self.exchange.clone(), self.geometry)
    }

    /// The rings, in their order.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn rings(&self) -> &[Arc<RxRing>] {
        &self.rings
    }

    /// The kernel's half of ring `ring`.
    pub fn kernel(&self, ring: usize) -> &Arc<SimKernel> {
        &self.kernels[ring]
    }

    /// Number of filled cells that wait in ring `ring`.
    pub fn backlog(&self, ring: usize) -> u32 {
        self.rings[ring].backlog()
    }

    /// The worker that ring `ring` is a home ring of.
    pub fn home_of(&self, ring: usize) -> usize {
        self.group.home_of(ring)
    }

    /// Runs the keeper once: posts free cells to rings that have too few.
    pub fn tend(&self) {
        if let Some(exchange) = &self.exchange {
            exchange.tend();
        }
        self.rings.iter().for_each(|ring| ring.tend());
    }

    /// The keeper's interval, if the capture has a keeper.
    pub fn keeper_period(&self) -> Option<Duration> {
        self.group.unattended().map(keeper::period)
    }

    /// Number of cells of ring `ring` that are free and not posted.
    pub fn idle_cells(&self, ring: usize) -> usize {
        self.rings[ring].fill_ring().idle_cells()
    }

    /// Number of free cells in the stock of an elastic pool.
    pub fn stock_cells(&self) -> usize {
        self.stock.as_ref().map_or(0, |stock| stock.len())
    }

    /// Takes a chunk from ring `ring` without a worker.
    fn take_chunk(&self, ring: usize) -> Option<Chunk> {
        self.rings[ring].capture().expect("a simulated ring breaks only on request")
    }

    /// Filled cells that are not captured yet, including those of incomplete packets.
    #[cfg(all(test, not(loom)))]
    fn cells_waiting(&self, ring: usize) -> usize {
        self.rings[ring].filled_cells() as usize + self.kernels[ring].held_back()
    }

    /// Number of cells in the pool that all rings share.
    fn cells(&self) -> usize {
        self.rings[0].fill_ring().pool().geometry().cells() as usize
    }

    /// Number of cells that are on tx and completion rings or between these, wait for earlier
    /// chunks, or are reserved for new packets.
    fn cells_on_their_way(&self) -> usize {
        let parked = self.exchange.as_ref().map_or(0, |exchange| exchange.parked_cells());
        let sent: usize = self.transmitters.iter().map(|transmitter| transmitter.cells()).sum();
        parked + sent + self.new_cells()
    }

    /// Stops the capture: workers end when the rings are empty.
    pub fn end(&self) {
        self.group.end();
    }

    /// Closes the rings: packets left in them count as dropped. Outstanding chunks stay valid.
    pub fn close(&self) {
        if let Some(exchange) = &self.exchange {
            exchange.close();
        }
        self.rings.iter().for_each(|ring| ring.close());
    }

    /// The ledger so far, for a run of length `duration`.
    pub fn ledger(&self, duration: Duration) -> Ledger {
        let page = |ring: &Arc<RxRing>| RingLedger {
            name: ring.identity().name.to_string(),
            account: ring.account(),
        };
        let rings = self.rings.iter().map(page).collect();
        let ports = self.exchange.as_ref().map(|exchange| exchange.ledgers()).unwrap_or_default();
        let mode = self.group.mode().notation(self.geometry.chunk_cells, self.geometry.chunks);
        Ledger { ports, ..Ledger::of("sim", mode, duration, rings, vec![Some(0)]) }
    }
}

impl SimWorker {
    /// The worker's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Requests the next chunk at time `now` of the clock that all workers share.
    ///
    /// # Errors
    /// If a ring broke, or if in basic mode a ring's worker is gone, whose ring no other worker may
    /// serve.
    pub fn ask(&mut self, now: Duration) -> Result<Answer, CaptureError> {
        if let Some(exchange) = &self.exchange {
            exchange.tend();
        }
        Ok(match self.waiting.ask(&self.group, || now.as_nanos() as u64)? {
            Some(chunk) => {
                let calls = 0..self.waiting.calls();
                let wake = calls.map_while(|_| self.group.next_sleeper(self.index)).collect();
                Answer::Chunk { chunk, wake }
            }
            None if self.waiting.has_ended() => Answer::Ended,
            None => Answer::Nothing,
        })
    }

    /// How long the worker rests before it requests the next chunk, if it rests.
    fn begin(&mut self, now: Duration) -> Option<Wait> {
        self.waiting.begin(&self.group, || now.as_nanos() as u64)
    }

    /// How the worker waits after a request that returned no chunk.
    fn idle(&mut self, now: Duration) -> Wait {
        let lags = self.exchange.as_ref().is_some_and(|exchange| exchange.is_busy());
        self.waiting.idle(&self.group, || now.as_nanos() as u64, lags)
    }
}

impl Drop for SimWorker {
    fn drop(&mut self) {
        self.group.leave(self.index);
    }
}

/// The cells of one ring.
struct RingCells {
    pool: Arc<Pool>,
    states: CellStates,
    addresses: Vec<u64>,
    supply: Supply,
}

/// The cells of every ring, and the parts that they share.
fn supplies(settings: &SimSettings) -> (Vec<RingCells>, Option<Arc<Stock>>) {
    let geometry = settings.geometry;
    let warm = settings.warm;

    if settings.forwards {
        return (forwarding_supplies(settings), None);
    }

    if !settings.elastic {
        let own = |_| {
            let pool = Arc::new(Pool::on_heap(geometry));
            let states = CellStates::new(&pool);
            let addresses = pool.cell_addresses().collect();
            RingCells { pool, states, addresses, supply: Supply::of(geometry.cells(), warm) }
        };
        return ((0..settings.rings).map(own).collect(), None);
    }

    let chunks = geometry.chunks * settings.rings as u32;
    let pool = Arc::new(Pool::on_heap(Geometry { chunks, ..geometry }));
    let states = CellStates::new(&pool);
    let (shares, stock) =
        Stock::share_out(&pool, settings.rings, Supply::guaranteed(geometry.cells()));

    let share = |addresses| RingCells {
        pool: Arc::clone(&pool),
        states: states.clone(),
        addresses,
        supply: Supply::elastic(geometry.cells(), warm, Arc::clone(&stock)),
    };
    (shares.into_iter().map(share).collect(), Some(stock.clone()))
}

/// The cells of rings that share a pool, whose last cells are for new packets.
fn forwarding_supplies(settings: &SimSettings) -> Vec<RingCells> {
    let geometry = settings.geometry;
    let chunks = geometry.chunks * settings.rings as u32 + 1;
    let pool = Arc::new(Pool::on_heap(Geometry { chunks, ..geometry }));
    let states = CellStates::new(&pool);
    let mut addresses = pool.cell_addresses();
    let mut own = || RingCells {
        pool: Arc::clone(&pool),
        states: states.clone(),
        addresses: addresses.by_ref().take(geometry.cells() as usize).collect(),
        supply: Supply::of(geometry.cells(), settings.warm),
    };
    (0..settings.rings).map(|_| own()).collect()
}

/// A ring of a capture that is being opened.
struct Opened {
    ring: Arc<RxRing>,
    kernel: Arc<SimKernel>,
    fill_ring: Arc<FillRing>,
    sender: Option<(Arc<SimTransmitter>, Producer<Descriptor>, Consumer<u64>)>,
}

/// The port of a forwarding capture, with a tx ring for each ring.
fn open_port(
    opened: &mut [Opened],
    settings: &SimSettings,
) -> (Option<Arc<Exchange>>, Vec<Arc<SimTransmitter>>) {
    let fill_rings: Vec<_> = opened.iter().map(|opened| Arc::clone(&opened.fill_ring)).collect();
    let pool = Arc::clone(fill_rings[0].pool());
    let owners = Arc::new(Owners::new(pool, HEADROOM_BYTES, settings.geometry.cells(), fill_rings));
    let (mut outlets, mut transmitters): (Vec<Arc<dyn Outlet>>, _) = (Vec::new(), Vec::new());

    for opened in opened.iter_mut() {
        let (transmitter, tx, completions) =
            opened.sender.take().expect("a capture that forwards has senders");
        let kernel: Arc<dyn TxKernel> = transmitter.clone();
        let ring = TxRing::new(Arc::clone(&owners), CompletionRing::new(completions), tx, kernel);
        outlets.push(Arc::new(TxOutlet::new(ring)));
        transmitters.push(transmitter);
    }

    let queues = (0..settings.rings as u32).collect();
    let port = PortShared::new("sim0".to_owned(), queues, outlets, 1..=usize::MAX);

    let order = |opened: &Opened| {
        let order = Arc::new(Sequence::new(Duration::MAX, usize::MAX));
        let _ = opened.ring.identity().order.set(order.clone());
        order
    };
    let ordered = matches!(settings.mode, Mode::Advanced(_));
    let orders = if ordered { opened.iter().map(order).collect() } else { Vec::new() };
    let batch = settings.geometry.chunk_cells as usize;
    let exchange = Arc::new(Exchange::new(Some(owners), vec![port], orders, batch));

    (Some(exchange), transmitters)
}

fn open_ring(index: usize, cells: RingCells, settings: &SimSettings) -> Opened {
    let name = RingName::of_queue("sim0", index as u32);
    let identity = RingIdentity {
        name,
        index,
        interface_index: 0,
        snap_len: u32::MAX,
        link_type: LinkType::ETHERNET,
        order: OnceLock::new(),
    };

    let RingCells { pool, states, addresses, supply } = cells;
    let (kernel, rx, fill) = SimKernel::new(Arc::clone(&pool), states.clone(), settings);
    let kernel = Arc::new(kernel);
    let sender =
        settings.forwards.then(|| SimTransmitter::new(Arc::clone(&pool), states, settings));
    let fill_ring = FillRing::new(pool, addresses, supply, fill, kernel.clone());
    let fill_ring = Arc::new(fill_ring.expect("a new ring is not broken"));
    let sender =
        sender.map(|(transmitter, tx, completions)| (Arc::new(transmitter), tx, completions));
    let capacity = settings.geometry.cells();
    let stamps = SimStamps { by_device: settings.device_clock };
    let ring = RxRing::new(
        identity,
        capacity,
        Arc::clone(&fill_ring),
        rx,
        kernel.clone(),
        Arc::new(stamps),
    );
    Opened { ring: Arc::new(ring), kernel, fill_ring, sender }
}
