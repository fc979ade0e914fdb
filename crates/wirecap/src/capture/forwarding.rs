//! Captures that forward: opening their ports.

use std::sync::Arc;

use super::builder::CaptureBuilder;
use super::target::{Target, Way};
use super::{Capture, Shared};
use crate::device::Device;
use crate::error::OpenError;
use crate::forward::{
    BATCH_PACKETS_MAX, Exchange, Outlet, PacketOutlet, Port, PortError, PortShared, SHORTEST_FRAME,
    Sequence,
};
use crate::ledger::Mode;
use crate::sys::packet::PacketSender;
use crate::sys::xdp::HEADROOM_BYTES;
use crate::umem::fill::FillRing;
use crate::umem::owners::Owners;
use crate::umem::pool::Geometry;
use crate::umem::ring::Ring;
use crate::xdp;

impl CaptureBuilder {
    /// The interfaces that only send.
    pub(super) fn transmit_devices(&self, targets: &[Target]) -> Result<Vec<Device>, OpenError> {
        let mut devices: Vec<Device> = Vec::new();
        for name in &self.forwarding.transmit_on {
            let device = Device::find(name)?;
            if !device.up {
                return Err(OpenError::InterfaceDown { interface: device.name });
            }
            let mut known = targets.iter().map(|target| &target.device).chain(&devices);
            if known.all(|known| known.index != device.index) {
                devices.push(device);
            }
        }
        Ok(devices)
    }

    /// The UMEM that the rings of a forwarding capture share, if any of them has cells.
    pub(super) fn forwarding_commons(
        &self,
        targets: &[Target],
        transmit_on: &[Device],
        geometry: Geometry,
        copy_because: Option<&str>,
    ) -> Result<Option<Arc<xdp::SharedUmem>>, OpenError> {
        let by_xdp = || targets.iter().filter(|target| matches!(target.way, Way::Xdp(_)));
        let rings = by_xdp().map(Target::rings).sum();
        if rings == 0 {
            return Ok(None);
        }

        let devices = by_xdp().map(|target| &target.device).chain(transmit_on);
        let new_packets = self.forwarding.new_packets;
        let shared_umem =
            xdp::SharedUmem::forwarding(geometry, rings, new_packets, self.warm, devices)?;

        Ok(Some(Arc::new(shared_umem.copying(copy_because))))
    }

    /// Bytes of memory for new packets.
    pub(super) fn new_packets_bytes(&self, geometry: Geometry) -> u64 {
        let cells =
            u64::from(self.forwarding.new_packets).next_multiple_of(geometry.chunk_cells.into());
        if self.forwards() { cells * u64::from(geometry.cell_bytes) } else { 0 }
    }
}

/// The ports of a capture while it is opened.
#[derive(Debug, Default)]
pub(super) struct Ports {
    names: Vec<(String, usize)>,
    devices: Vec<Device>,
    /// The tx rings of each port; none if packets are copied.
    tx: Vec<Vec<xdp::PreparedTx>>,
    senders: Vec<Option<PacketSender>>,
    fill_rings: Vec<Arc<FillRing>>,
    claims: Vec<xdp::PortClaims>,
}

impl Ports {
    /// A captured interface; `tx` are its sockets' tx rings, and `fill_rings` take their cells
    /// back.
    pub(super) fn add_captured(
        &mut self,
        device: &Device,
        tx: Vec<xdp::PreparedTx>,
        fill_rings: Vec<Arc<FillRing>>,
    ) -> Result<(), OpenError> {
        self.fill_rings.extend(fill_rings);
        self.add(device, tx)
    }

    /// An interface that only sends.
    pub(super) fn add_transmitting(
        &mut self,
        device: &Device,
        shared_umem: Option<&Arc<xdp::SharedUmem>>,
        rings: usize,
    ) -> Result<(), xdp::Refusal> {
        let Some(shared_umem) = shared_umem else { return Ok(self.add(device, Vec::new())?) };
        // Queues beyond the number of rings would have no packets to send, and the kernel allocates
        // tables of all cells for each.
        let queues: Vec<u32> = (0..device.rx_queues.min(device.tx_queues)).take(rings).collect();
        let (tx, claims) = xdp::open_port(device, &queues, shared_umem)?;
        self.claims.push(claims);
        Ok(self.add(device, tx)?)
    }

    fn add(&mut self, device: &Device, tx: Vec<xdp::PreparedTx>) -> Result<(), OpenError> {
        let action = "open a packet socket to send on";
        let failed =
            |source| OpenError::PacketSocket { interface: device.name.clone(), action, source };
        let sender =
            tx.is_empty().then(|| PacketSender::new(device.index)).transpose().map_err(failed)?;
        self.names.push((device.name.clone(), xdp::longest_frame(device)));
        self.devices.push(device.clone());
        self.tx.push(tx);
        self.senders.push(sender);
        Ok(())
    }

    /// The interfaces of the ports.
    pub(super) fn devices(&self) -> Vec<Device> {
        self.devices.clone()
    }

    /// The opened ports, and the claims that keep other captures off transmit-only queues.
    pub(super) fn open(
        self,
        builder: &CaptureBuilder,
        rings: &[Arc<dyn Ring>],
        shared_umem: Option<&Arc<xdp::SharedUmem>>,
        geometry: Geometry,
    ) -> (Arc<Exchange>, Vec<xdp::PortClaims>) {
        let owners = shared_umem.map(|shared_umem| {
            let pool = Arc::clone(&shared_umem.pool);
            let rings = self.fill_rings;
            Arc::new(Owners::new(pool, HEADROOM_BYTES, shared_umem.ring_cells(), rings))
        });
        let shared = self.names.into_iter().zip(self.tx).zip(self.senders).map(
            |(((name, longest), tx), sender)| {
                let queues = tx.iter().map(|tx| tx.queue).collect::<Vec<_>>();
                let (queues, outlets): (Vec<u32>, Vec<Arc<dyn Outlet>>) = match (sender, &owners) {
                    (Some(sender), _) => (vec![0], vec![Arc::new(PacketOutlet::new(sender))]),
                    (None, Some(owners)) => {
                        (queues, tx.into_iter().map(|tx| tx.into_outlet(owners)).collect())
                    }
                    (None, None) => unreachable!("tx rings are made over cells only"),
                };
                PortShared::new(name, queues, outlets, SHORTEST_FRAME..=longest)
            },
        );
        let ports = shared.collect();
        let ordered = builder.forwarding.ordered && matches!(builder.mode, Mode::Advanced(_));

        let order = |ring: &Arc<dyn Ring>| {
            let window = geometry.chunks as usize;
            let order = Arc::new(Sequence::new(builder.forwarding.order_wait, window));
            let _ = ring.identity().order.set(order.clone());
            order
        };
        let orders = if ordered { rings.iter().map(order).collect() } else { Vec::new() };
        let batch = (geometry.chunk_cells as usize).min(BATCH_PACKETS_MAX);

        (Arc::new(Exchange::new(owners, ports, orders, batch)), self.claims)
    }
}

impl Shared {
    /// The ports, if the capture forwards.
    pub(crate) fn exchange(&self) -> Option<&Arc<Exchange>> {
        self.exchange.as_ref()
    }
}

impl Capture {
    /// A handle for one thread on the port of this interface.
    ///
    /// # Errors
    ///
    /// [`PortError::NoSuchPort`] if there is no port with this name.
    pub fn port(&self, interface: &str) -> Result<Port, PortError> {
        let place = self.ports().position(|name| name == interface);
        match (self.shared.exchange(), place) {
            (Some(exchange), Some(index)) => Ok(Port::new(Arc::clone(exchange), index)),
            _ => Err(PortError::NoSuchPort {
                interface: interface.to_owned(),
                ports: self.ports().map(str::to_owned).collect(),
            }),
        }
    }

    /// The names of the interfaces that can send; none unless the capture forwards.
    pub fn ports(&self) -> impl Iterator<Item = &str> {
        self.shared.exchange().into_iter().flat_map(|exchange| exchange.names())
    }
}
