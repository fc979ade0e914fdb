//! The `sim` engine: real pools, rings, chunks and buddy groups over a kernel that is played.
//!
//! A [`SimKernel`] holds the kernel's half of one ring's fill and rx rings: it takes cells from the
//! fill ring, writes packets into them and publishes their descriptors, as a driver with an AF_XDP
//! socket does. It can also be slow, asleep or wrong. On the other half runs the very code that runs on
//! a real interface. Nothing here reads a clock or a source of chance: time is what the caller says, and
//! [`Random`] gives the same numbers for the same seed, so that every run can be played again.
//!
//! [`SimCapture`] is for tests that play kernel and workers themselves; a [`Simulation`] plays whole
//! captures under load:
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
#[cfg(all(test, not(loom)))]
mod forward_tests;
#[cfg(all(test, not(loom)))]
mod in_place_tests;
mod kernel;
#[cfg(all(test, loom))]
mod model;
mod push;
mod random;
#[cfg(all(test, not(loom)))]
mod seat_tests;
mod simulation;
mod transmitter;
// Miri is too slow for these, and goes the same ways in `tests`.
#[cfg(all(test, not(loom), not(miri)))]
mod simulation_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use crate::group::policy::{Next, Policy};
pub use arrivals::Arrivals;
pub use audit::BrokenPromise;
pub use kernel::{Fate, Fault, SimKernel, Violation};
pub use random::Random;
pub use simulation::{
    Mishap, Outcome, Sample, Service, Sharing, Simulation, SimulationConfig, WorkerOutcome,
};
pub use transmitter::{LinkState, SentPacket, SimTransmitter};

use crate::capture::waiting::{Wait, Waiting};
use crate::capture::{Capture, keeper};
use crate::error::{CaptureError, OpenError};
use crate::forward::{Exchange, Outlet, Port, PortShared, Sequence, TxOutlet};
use crate::group::Group;
use crate::kernel_ring::{Consumer, Producer};
use crate::ledger::{Ledger, Mode, RingLedger};
use crate::names::RingName;
use crate::ring::Ring;
use crate::savefile::LinkType;
use crate::sim::kernel::CellStates;
use crate::sys::xdp::Descriptor;
use crate::umem::chunk::records::Stamps;
use crate::umem::chunk::{Chunk, RingIdentity};
use crate::umem::completion::CompletionRing;
use crate::umem::fill::FillRing;
use crate::umem::owners::Owners;
use crate::umem::pool::{Geometry, Pool};
use crate::umem::rx::{RxRing, StampSource};
use crate::umem::supply::{Stock, Supply};
use crate::umem::tx::{TxKernel, TxRing};

/// What is to be simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct SimSettings {
    /// How many receive rings there are.
    pub rings: usize,
    /// How many more there may be later ([`SimCapture::seat_ring`]).
    pub rings_later: usize,
    /// How many workers share them; no more than rings.
    pub workers: usize,
    /// The sizes of each ring's pool. A cell must be larger than [`HEADROOM_BYTES`].
    pub geometry: Geometry,
    /// Whether and how workers help each other.
    pub mode: Mode,
    /// How they choose whom to help.
    pub policy: Policy,
    /// How long a worker may be away until its buddies take everything from its rings.
    pub stuck_after: Duration,
    /// N: how many free cells a driver takes from the fill ring ahead of the packets.
    pub descriptors: u32,
    /// Slots of the rx ring, a power of two; `None` makes room for all cells, as the other engines do.
    pub rx_slots: Option<u32>,
    /// Whether a driver that finds no free cells sleeps until it is called.
    pub drivers_sleep: bool,
    /// Where the rings' 32-bit indices begin.
    pub first_index: u32,
    /// How many cells of each ring are posted, if not all.
    pub warm: Option<u32>,
    /// Whether the rings share one pool, of which each has a quarter of R x M for itself.
    pub elastic: bool,
    /// Whether what is captured may be sent: on one port with a tx queue for each ring. The rings then share one pool,
    /// in which each has its R x M cells and there are M more for new packets. Not to be had with `elastic`.
    pub forwards: bool,
    /// Slots of the tx and completion rings, a power of two.
    pub tx_slots: u32,
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
            first_index: 0,
            warm: None,
            elastic: false,
            forwards: false,
            // Few, so that they are full at times.
            tx_slots: 8,
        }
    }
}

/// Bytes in front of every simulated packet: its time of arrival.
pub const HEADROOM_BYTES: u32 = 8;

/// Times as a [`SimKernel`] writes them.
#[derive(Debug)]
struct SimStamps;

impl StampSource for SimStamps {
    fn stamps(&self) -> Stamps {
        Stamps::Tai { ahead_of_utc_nanos: 0 }
    }
}

/// A capture whose kernel is simulated.
#[derive(Debug, Clone)]
pub struct SimCapture {
    group: Arc<Group>,
    rings: Vec<Arc<RxRing>>,
    kernels: Vec<Arc<SimKernel>>,
    geometry: Geometry,
    /// What the rings of an elastic pool share.
    stock: Option<Arc<Stock>>,
    exchange: Option<Arc<Exchange>>,
    transmitters: Vec<Arc<SimTransmitter>>,
}

/// One worker of a [`SimCapture`]. It does not wait: a [`Simulation`] plays how it does, by the engine's own policy. A
/// worker that is dropped is gone.
#[derive(Debug)]
pub struct SimWorker {
    group: Arc<Group>,
    exchange: Option<Arc<Exchange>>,
    index: usize,
    waiting: Waiting,
}

/// What a worker got when it asked for a chunk.
#[derive(Debug)]
pub enum Answer {
    /// A chunk.
    Chunk {
        /// The chunk.
        chunk: Chunk,
        /// The workers that are to be woken, because help is needed.
        wake: Vec<usize>,
    },
    /// Nothing now.
    Nothing,
    /// Nothing, now and for ever: the capture has ended and its rings are empty.
    Ended,
}

impl SimCapture {
    /// Opens the rings and posts all their cells.
    ///
    /// # Panics
    ///
    /// If the settings make no sense: no rings, no workers or more of them than rings, no cells, cells
    /// that are no power of two or not larger than the headroom.
    pub fn new(settings: &SimSettings) -> Self {
        Self::with(settings, |ring| ring)
    }

    /// As [`new`](Self::new), with each ring shown to the group as `disguise` makes it.
    fn with(settings: &SimSettings, disguise: impl Fn(Arc<RxRing>) -> Arc<dyn Ring>) -> Self {
        assert!((1..=settings.rings).contains(&settings.workers), "1 to {} workers", settings.rings);
        assert!(settings.geometry.cells() > 0, "no cells");
        assert!(settings.geometry.cell_bytes > HEADROOM_BYTES, "cells of {HEADROOM_BYTES} bytes or less");
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
        let (group, geometry) = (Arc::new(group), settings.geometry);
        Self { group, rings, kernels, geometry, stock, exchange, transmitters }
    }

    /// Opens one more ring, as large as the others: a receive queue has appeared. Returns the worker that serves it.
    ///
    /// # Panics
    ///
    /// If there is no room for it, or the rings share a pool.
    pub fn seat_ring(&mut self, settings: &SimSettings) -> usize {
        assert!(!settings.elastic && !settings.forwards, "the cells of a shared pool were dealt out");
        let one = SimSettings { rings: 1, ..settings.clone() };
        let cells = supplies(&one).0.pop().expect("there is one ring");
        let Opened { ring, kernel, .. } = open_ring(self.rings.len(), cells, &one);
        self.rings.push(Arc::clone(&ring));
        self.kernels.push(kernel);
        self.group.add(ring, 0).expect("there is room for it")
    }

    /// Closes ring `ring`: what is left in it counts as dropped.
    pub fn close_ring(&self, ring: usize) {
        self.rings[ring].close();
    }

    /// The interface of ring `ring` is removed, and another one comes in its place: its driver begins anew.
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

    /// A handle on the port, if what is captured may be sent.
    pub fn port(&self) -> Option<Port> {
        self.exchange.as_ref().map(|exchange| Port::new(Arc::clone(exchange), 0))
    }

    /// The kernel's half of the tx ring of the port's queue `queue`.
    pub fn transmitter(&self, queue: usize) -> &Arc<SimTransmitter> {
        &self.transmitters[queue]
    }

    /// How many cells for new packets are free.
    pub fn new_cells(&self) -> usize {
        self.exchange.as_ref().map_or(0, |exchange| exchange.new_cells())
    }

    /// The worker of number `index`.
    pub fn worker(&self, index: usize) -> SimWorker {
        assert!(index < self.group.workers(), "there are {} workers", self.group.workers());
        let (group, exchange) = (Arc::clone(&self.group), self.exchange.clone());
        SimWorker { waiting: Waiting::new(&group, index), group, exchange, index }
    }

    /// The same rings as a [`Capture`], whose workers are those that applications have: they wait by the machine's
    /// clock, and nothing arrives while they do. [`worker`](Self::worker)s must not be used beside them.
    ///
    /// # Errors
    ///
    /// When the system has no descriptors left.
    pub fn capture(&self) -> Result<Capture, OpenError> {
        let rings = self.rings.iter().map(|ring| Arc::clone(ring) as Arc<dyn Ring>).collect();
        let group = &self.group;
        let group = Group::new(rings, group.workers(), group.mode(), group.stuck_after());
        Capture::over(group, self.exchange.clone(), self.geometry)
    }

    /// The kernel's half of ring `ring`.
    pub fn kernel(&self, ring: usize) -> &Arc<SimKernel> {
        &self.kernels[ring]
    }

    /// How many filled cells wait in ring `ring`.
    pub fn backlog(&self, ring: usize) -> u32 {
        self.rings[ring].backlog()
    }

    /// The worker that ring `ring` is a home ring of.
    pub fn home_of(&self, ring: usize) -> usize {
        self.group.home_of(ring)
    }

    /// Does what the keeper does: gives the kernel more free cells, where it has fewer than it should.
    pub fn tend(&self) {
        if let Some(exchange) = &self.exchange {
            exchange.tend();
        }
        self.rings.iter().for_each(|ring| ring.tend());
    }

    /// How often the keeper does that, if the capture has one.
    pub fn keeper_period(&self) -> Option<Duration> {
        self.group.unattended().map(keeper::period)
    }

    /// How many cells of ring `ring` are free and not posted.
    pub fn idle_cells(&self, ring: usize) -> usize {
        self.rings[ring].fill_ring().idle_cells()
    }

    /// How many free cells are no ring's, in an elastic pool.
    pub fn stock_cells(&self) -> usize {
        self.stock.as_ref().map_or(0, |stock| stock.len())
    }

    /// Takes a chunk from ring `ring` without a worker.
    fn take_chunk(&self, ring: usize) -> Option<Chunk> {
        self.rings[ring].capture().expect("simulated rings break only when they are told to")
    }

    /// Filled cells that are not captured yet, also those of packets that are not all there.
    #[cfg(all(test, not(loom)))]
    fn cells_waiting(&self, ring: usize) -> usize {
        self.rings[ring].filled_cells() as usize + self.kernels[ring].held_back()
    }

    /// How many cells there are in the pool that all rings share.
    fn cells(&self) -> usize {
        self.rings[0].fill_ring().pool().geometry().cells() as usize
    }

    /// How many cells are on tx and completion rings and in between, wait for earlier chunks, or are for new packets.
    fn cells_on_their_way(&self) -> usize {
        let parked = self.exchange.as_ref().map_or(0, |exchange| exchange.parked_cells());
        let sent: usize = self.transmitters.iter().map(|transmitter| transmitter.cells()).sum();
        parked + sent + self.new_cells()
    }

    /// From now on workers end when the rings are empty.
    pub fn end(&self) {
        self.group.end();
    }

    /// Closes the rings: what is left in them counts as dropped. Chunks that are held stay valid.
    pub fn close(&self) {
        if let Some(exchange) = &self.exchange {
            exchange.close();
        }
        self.rings.iter().for_each(|ring| ring.close());
    }

    /// The account so far, for a run that has taken `duration`.
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

    /// Asks for the next chunk at time `now` of the clock that all workers share.
    ///
    /// # Errors
    ///
    /// When a ring broke, or its worker is gone and in basic mode no other worker may serve it.
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

    /// How it rests before it asks for the next chunk, if it does.
    fn begin(&mut self, now: Duration) -> Option<Wait> {
        self.waiting.begin(&self.group, || now.as_nanos() as u64)
    }

    /// How it waits after it asked in vain.
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

/// The cells of every ring, and what they share.
fn supplies(settings: &SimSettings) -> (Vec<RingCells>, Option<Arc<Stock>>) {
    let (geometry, warm) = (settings.geometry, settings.warm);
    if settings.forwards {
        return (forwarding_supplies(settings), None);
    }
    if !settings.elastic {
        let own = |_| {
            let pool = Arc::new(Pool::on_heap(geometry));
            let (states, addresses) = (CellStates::new(&pool), pool.cell_addresses().collect());
            RingCells { pool, states, addresses, supply: Supply::of(geometry.cells(), warm) }
        };
        return ((0..settings.rings).map(own).collect(), None);
    }
    let chunks = geometry.chunks * settings.rings as u32;
    let pool = Arc::new(Pool::on_heap(Geometry { chunks, ..geometry }));
    let states = CellStates::new(&pool);
    let (shares, stock) = Stock::share_out(&pool, settings.rings, Supply::guaranteed(geometry.cells()));
    let share = |addresses| RingCells {
        pool: Arc::clone(&pool),
        states: states.clone(),
        addresses,
        supply: Supply::elastic(geometry.cells(), warm, Arc::clone(&stock)),
    };
    (shares.into_iter().map(share).collect(), Some(stock.clone()))
}

/// The cells of rings that share a pool with cells for new packets at its end.
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

/// A ring while its capture is opened.
struct Opened {
    ring: Arc<RxRing>,
    kernel: Arc<SimKernel>,
    fill_ring: Arc<FillRing>,
    sender: Option<(Arc<SimTransmitter>, Producer<Descriptor>, Consumer<u64>)>,
}

/// The port of a capture that forwards, with a tx ring for each ring.
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
    let sender = settings.forwards.then(|| SimTransmitter::new(Arc::clone(&pool), states, settings));
    let fill_ring = FillRing::new(pool, addresses, supply, fill, kernel.clone());
    let fill_ring = Arc::new(fill_ring.expect("a new ring is not broken"));
    let sender = sender.map(|(transmitter, tx, completions)| (Arc::new(transmitter), tx, completions));
    let capacity = settings.geometry.cells();
    let ring =
        RxRing::new(identity, capacity, Arc::clone(&fill_ring), rx, kernel.clone(), Arc::new(SimStamps));
    Opened { ring: Arc::new(ring), kernel, fill_ring, sender }
}
