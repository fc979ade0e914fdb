//! Ports: one thread's handle on an interface that sends packets.
//!
//! A port collects up to M packets (at most 1,024). A flush takes the tx ring's lock, puts up to 64
//! cells on the ring at a time and calls the kernel; while the kernel copies these, the engine
//! prefetches the next into the sender's cache. If the kernel makes no progress, packets are put on
//! the ring until it is full; further packets are dropped and counted, as in a switch. An interface
//! that is down (ENETDOWN) gets no more packets until a call succeeds again; at most 64 packets
//! stay on its tx ring and are sent then. The cells on the ring of a removed interface (ENXIO)
//! return to their owners. Packets that are dropped in either case count as `down`.

use std::cell::Cell;
use std::sync::Arc;

use crate::forward::out_packet::give_away;
use crate::forward::outlet::Batch;
use crate::forward::{Drain, Exchange, OutPacket, PortShared, Sequence};
use crate::ledger::PortAccount;
use crate::steer::flow::flow_hash;
use crate::sync::{AtomicU64, Ordering};
use crate::sys::xdp::CONTINUED;
use crate::sys::xdp::Descriptor;
use crate::umem::chunk::Order;
use crate::umem::owners::Owners;

/// Bytes of the shortest frame: an Ethernet header.
pub(crate) const SHORTEST_FRAME: usize = 14;
/// The maximum number of packets handed over together, if M is larger.
pub(crate) const BATCH_PACKETS_MAX: usize = 1024;
/// The number of cells for new packets that a port takes at a time.
const NEW_CELLS_AT_ONCE: usize = 32;

/// Selects the transmit queue of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TxQueue {
    /// The queue with the number of the receive queue if the port has it, otherwise another one,
    /// always the same for a receive queue: preserves the order of each ring, and on a veth packets
    /// arrive on the queue of that number. Built packets use the first queue.
    #[default]
    AsReceived,
    /// By the [flow](crate::flow_hash): preserves the order of each flow.
    ByFlow,
    /// This one.
    Fixed(u32),
}

/// One thread's handle on an interface of a capture that forwards, through which it sends packets.
///
/// [`send`](Self::send) takes packets, and [`flush`](Self::flush) hands them to the kernel; that
/// happens automatically when M of them wait (1,024 at most), and when the port is dropped. Each
/// thread opens its own ports with [`Capture::port`](crate::Capture::port); ports of one interface
/// share its tx rings, a batch at a time. Packets that cannot be sent are counted ([`PortAccount`])
/// and their cells return to their pool.
///
/// On an interface captured by the engine `packet`, packets are copied into a packet socket's
/// queue.
#[derive(Debug)]
pub struct Port {
    exchange: Arc<Exchange>,
    index: usize,
    queue: TxQueue,
    /// The address of the memory whose cells can be sent without copying; `None` if all packets are
    /// copied.
    memory: Option<usize>,
    /// The waiting packets of each transmit queue.
    lanes: Vec<Batch>,
    waiting: usize,
    /// Free cells for new packets.
    new_cells: Vec<u64>,
    /// The chunk whose packets wait, if order matters.
    held: Option<(Arc<Sequence>, u64)>,
}

impl Port {
    /// A handle on the port at `index`.
    pub(crate) fn new(exchange: Arc<Exchange>, index: usize) -> Self {
        let copies = exchange.ports[index].outlets[0].copies();
        let room = if copies { 0 } else { exchange.batch_packets };
        let lanes =
            exchange.ports[index].outlets.iter().map(|_| Batch::with_capacity(room)).collect();
        let queue = TxQueue::default();
        let new_cells = Vec::with_capacity(NEW_CELLS_AT_ONCE);
        let owners = exchange.owners.as_ref().filter(|_| !copies);
        let memory = owners.map(|owners| owners.pool().memory().base().addr().get());
        Self { exchange, index, queue, memory, lanes, waiting: 0, new_cells, held: None }
    }

    fn shared(&self) -> &PortShared {
        &self.exchange.ports[self.index]
    }

    /// The interface's name.
    pub fn interface(&self) -> &str {
        &self.shared().name
    }

    /// The index among the capture's ports: its interfaces come first, in their order.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The same port with this selection of transmit queues. Default: [`TxQueue::AsReceived`].
    ///
    /// # Errors
    ///
    /// [`PortError::NoSuchQueue`] if there is no such queue.
    pub fn on_queue(mut self, queue: TxQueue) -> Result<Self, PortError> {
        let shared = self.shared();
        if let TxQueue::Fixed(queue) = queue
            && !shared.queues.contains(&queue)
        {
            let interface = shared.name.clone();
            let queues = shared.queues.clone();
            return Err(PortError::NoSuchQueue { interface, queue, queues });
        }
        self.flush();
        self.queue = queue;
        Ok(self)
    }

    /// Takes `packet`, to be handed to the kernel with others. Its cells belong to the kernel until
    /// it is sent. A packet outside the memory of this port's capture (from another capture, or
    /// from the engine `packet`) is copied into a free cell.
    #[inline]
    pub fn send(&mut self, packet: OutPacket<'_>) {
        let len = packet.len();
        if !self.shared().lens().contains(&len) || packet.is_cut_short() {
            return count(&self.shared().bad_length);
        }
        if let Some((order, sequence)) = packet.order() {
            self.hold(order, sequence);
        }

        let lane = self.lane_of(&packet);

        match self.memory {
            Some(memory) if memory == packet.memory().addr().get() => {
                packet.give_away(&mut self.lanes[lane].cells);
            }
            Some(_) => {
                if !self.copy_into_cells(&packet, len, lane) {
                    return count(&self.shared().no_cell);
                }
            }
            None => {
                let lane = &mut self.lanes[lane];
                packet.fragments().for_each(|fragment| lane.copies.extend_from_slice(fragment));
                lane.lens.push(len as u32);
            }
        }

        self.lanes[lane].packets += 1;
        self.waiting += 1;

        if self.waiting >= self.exchange.batch_packets {
            self.flush();
        }
    }

    /// Takes all packets left in `packets`, like [`send`](Self::send). If each is in one cell of
    /// this port's capture and queues are not selected by flow, only their descriptors are read,
    /// which costs a fraction.
    pub fn send_all(&mut self, packets: Drain<'_>) {
        if !self.take_together(&packets) {
            packets.for_each(|packet| self.send(packet));
        }
    }

    /// Takes the cells of all `packets`, unless packets must be examined one by one.
    fn take_together(&mut self, packets: &Drain<'_>) -> bool {
        let (Some((mut cells, origin)), shared) = (packets.plain(), self.shared()) else {
            return false;
        };
        let Some(lane) = self.lane_of_queue(origin.ring.name.queue) else { return false };
        let lens = shared.lens();
        let has_good_length = |cell: &Cell<Descriptor>| lens.contains(&(cell.get().len as usize));
        if self.memory != Some(origin.base.addr().get()) || !cells.iter().all(has_good_length) {
            return false;
        }

        while !cells.is_empty() {
            if let Some(order) = origin.ring.order.get() {
                self.hold(order, origin.sequence);
            }

            let room = self.exchange.batch_packets - self.waiting;
            let (fitting, others) = cells.split_at(room.min(cells.len()));
            let batch = &mut self.lanes[lane];
            batch.cells.extend(fitting.iter().map(give_away));
            batch.packets += fitting.len() as u64;
            self.waiting += fitting.len();

            if self.waiting >= self.exchange.batch_packets {
                self.flush();
            }

            cells = others;
        }

        true
    }

    /// Ensures that all waiting packets are of this chunk.
    fn hold(&mut self, order: &Arc<dyn Order>, sequence: u64) {
        #[cfg(sabotage)]
        if crate::sabotage::is("offloaded-packets-overtake") {
            return;
        }
        let is_same = |held: &Arc<Sequence>| Arc::as_ptr(held).addr() == Arc::as_ptr(order).addr();
        let is_held = |(held, number): &(Arc<Sequence>, u64)| is_same(held) && *number == sequence;
        if !self.held.as_ref().is_some_and(is_held) {
            self.flush();
            let order = Sequence::of(order);
            order.hold(sequence);
            self.held = Some((order, sequence));
        }
    }

    /// The lane of the packet.
    fn lane_of(&self, packet: &OutPacket<'_>) -> usize {
        let by_flow =
            || ((u64::from(flow_hash(packet.data())) * self.lanes.len() as u64) >> 32) as usize;
        self.lane_of_queue(packet.queue()).unwrap_or_else(by_flow)
    }

    /// The lane of all packets from a receive queue, unless lanes are selected by flow.
    fn lane_of_queue(&self, received_on: u32) -> Option<usize> {
        match self.queue {
            _ if self.lanes.len() == 1 => Some(0),
            TxQueue::AsReceived => Some(self.shared().lane_of(received_on)),
            TxQueue::Fixed(queue) => Some(self.shared().lane_of(queue)),
            TxQueue::ByFlow => None,
        }
    }

    /// Copies a packet of `len` bytes into free cells; `false` if there are not enough.
    fn copy_into_cells(&mut self, packet: &OutPacket<'_>, len: usize, lane: usize) -> bool {
        let Some(owners) = self.exchange.owners.clone() else { return false };
        let room = owners.longest_new();
        let cells = len.div_ceil(room);
        if !self.stock_up(&owners, cells) {
            return false;
        }

        let mut bytes = packet.fragments().flatten();
        let taken = self.new_cells.drain(self.new_cells.len() - cells..);
        for (index, address) in taken.enumerate() {
            let mut part = OutPacket::new(
                owners.new_cell(address, room.min(len - index * room) as u32),
                Arc::clone(&owners),
            );
            part.data_mut().iter_mut().zip(&mut bytes).for_each(|(place, byte)| *place = *byte);
            part.give_away(&mut self.lanes[lane].cells);

            if let Some(cell) = self.lanes[lane].cells.last_mut() {
                cell.options = if index + 1 < cells { CONTINUED } else { 0 };
            }
        }

        count(&self.shared().copied);
        true
    }

    /// Whether this many cells for new packets are free, after taking more.
    fn stock_up(&mut self, owners: &Owners, cells: usize) -> bool {
        if self.new_cells.len() < cells {
            let wanted = cells.max(NEW_CELLS_AT_ONCE) - self.new_cells.len();
            owners.take_new(wanted, &mut self.new_cells);
        }
        if self.new_cells.len() < cells {
            // Some may have been sent meanwhile.
            self.exchange.collect();
            owners.take_new(cells - self.new_cells.len(), &mut self.new_cells);
        }
        self.new_cells.len() >= cells
    }

    /// A new packet of `len` uninitialised bytes. `None` if all cells for new packets are in use
    /// ([`CaptureBuilder::new_packets`](crate::CaptureBuilder::new_packets)), or if no cell has so
    /// many bytes ([`longest_new_packet`](Self::longest_new_packet)).
    pub fn build(&mut self, len: usize) -> Option<OutPacket<'static>> {
        let owners = self.exchange.owners.clone()?;
        if len > owners.longest_new() || !self.stock_up(&owners, 1) {
            return None;
        }
        self.new_cells.pop().map(|address| {
            OutPacket::new(owners.new_cell(address, len as u32), Arc::clone(&owners))
        })
    }

    /// Bytes of the longest packet that can be built.
    pub fn longest_new_packet(&self) -> usize {
        self.exchange
            .owners
            .as_ref()
            .map_or(0, |owners| owners.longest_new())
            .min(*self.shared().lens().end())
    }

    /// Hands waiting packets to the kernel and has them sent, as far as the device accepts them.
    /// Also takes back the cells of sent packets.
    pub fn flush(&mut self) {
        let outlets = &self.exchange.ports[self.index].outlets;
        for (batch, outlet) in self.lanes.iter_mut().zip(outlets) {
            match &self.held {
                _ if batch.is_empty() => {
                    outlet.collect();
                    outlet.push_on();
                }
                Some((order, sequence)) => order.submit(*sequence, outlet, batch),
                None => outlet.submit(batch, false),
            }
        }

        self.waiting = 0;
        if let Some((order, sequence)) = self.held.take() {
            order.finish(sequence);
        }
    }

    /// The number of packets not yet handed to the kernel.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Cells that the port holds.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn cells(&self) -> usize {
        self.new_cells.len() + self.lanes.iter().map(|lane| lane.cells.len()).sum::<usize>()
    }

    /// The account of all handles on this port.
    pub fn account(&self) -> PortAccount {
        self.shared().account()
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.flush();
        if let Some(owners) = &self.exchange.owners {
            owners.put_new(&mut self.new_cells);
        }
    }
}

#[cold]
fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Why there is no such port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The capture does not send on an interface of this name.
    #[error(
        "nothing can be sent on {interface}{}",
        match ports.as_slice() {
            [] => ": the capture was not opened for forwarding".to_owned(),
            ports => format!("; the capture sends on {}", ports.join(", ")),
        }
    )]
    NoSuchPort {
        /// The name.
        interface: String,
        /// The existing names; none if the capture does not forward.
        ports: Vec<String>,
    },
    /// The interface has no such transmit queue, or the capture does not have it.
    #[error(
        "{interface} has no transmit queue {queue}; it has {}",
        queues.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    )]
    NoSuchQueue {
        /// The interface's name.
        interface: String,
        /// The requested queue.
        queue: u32,
        /// The existing queues.
        queues: Vec<u32>,
    },
}
