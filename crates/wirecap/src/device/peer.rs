//! The other end of a veth.

use std::io;

use super::link::{self, Link};
use super::netlink::Netlink;
use super::{Device, Offloads};
use crate::sys::ethtool::Ethtool;

/// How the VLAN tags of frames come that a veth's other end sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PeerTags {
    /// In the frames.
    InFrames,
    /// The end of this name may hand them over beside the frames.
    Beside(String),
    /// The other end is in another network namespace, and may do that.
    Unknown,
}

impl Device {
    /// How VLAN tags come from the other end. `None` if it is no veth.
    pub(crate) fn peer_tags(&self) -> Option<PeerTags> {
        let is_veth = self.kind.as_deref() == Some("veth");
        is_veth.then(|| match self.peer_offloads() {
            Ok(Some((_, offloads))) if !offloads.tx_vlan => PeerTags::InFrames,
            Ok(Some((name, _))) => PeerTags::Beside(name),
            Ok(None) | Err(_) => PeerTags::Unknown,
        })
    }

    /// The other end's name and offloads, if it is in this namespace.
    fn peer_offloads(&self) -> io::Result<Option<(String, Offloads)>> {
        let mut netlink = Netlink::route()?;
        let own = link::link_payload(&mut netlink, self.index, false)?;
        let Some(peer) = own.as_deref().and_then(Link::parse).and_then(|own| own.lower) else {
            return Ok(None);
        };
        let peer = link::link_payload(&mut netlink, peer, false)?;
        let Some(peer) = peer.as_deref().and_then(Link::parse) else { return Ok(None) };
        let offloads = Offloads::of(&Ethtool::new(netlink.socket(), &peer.name)?)?;
        Ok(Some((peer.name, offloads)))
    }
}
