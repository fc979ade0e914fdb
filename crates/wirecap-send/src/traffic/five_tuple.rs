//! What tells one flow from another.

use std::net::IpAddr;

/// What tells one flow from another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FiveTuple {
    /// IP's number of the protocol: 6 for TCP, 17 for UDP.
    pub protocol: u8,
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same kind.
    pub destination: IpAddr,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

impl FiveTuple {
    /// The flow in the other direction.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..self
        }
    }
}
