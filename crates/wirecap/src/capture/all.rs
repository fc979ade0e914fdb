//! The interfaces of a capture of all interfaces, when it is opened.

use std::sync::Arc;

use super::builder::CaptureBuilder;
use crate::device::{Device, savefile_link_type};
use crate::error::OpenError;
use crate::packet::EXCLUDED_MAX;
use crate::packet::roster::Roster;
use crate::savefile::LinkType;

/// The link types of interfaces. Each has its own sockets.
const LINK_TYPES: usize = 2;

/// All interfaces of a network namespace.
#[derive(Debug, Clone)]
pub(super) struct AllInterfaces {
    pub(super) roster: Arc<Roster>,
    /// Those with sockets from the beginning.
    pub(super) link_types: Vec<LinkType>,
    /// The indices of the interfaces that the capture names: their packets come from other sockets.
    pub(super) excluded: Vec<u32>,
    /// The interfaces that are up and on a bus.
    pub(super) hardware: Vec<Device>,
    mtu: u32,
}

impl AllInterfaces {
    pub(super) fn new(builder: &CaptureBuilder, excluded: Vec<u32>) -> Result<Self, OpenError> {
        if excluded.len() > EXCLUDED_MAX {
            return Err(OpenError::TooManyBesideAny { named: excluded.len(), most: EXCLUDED_MAX });
        }

        let failed =
            |source| OpenError::System { action: "list the interfaces".to_owned(), source };
        let roster = Roster::new(builder.watched).map_err(failed)?;
        roster.number_those_up(&excluded);

        let present = roster.present();
        let up = || present.iter().filter(|link| link.up && !excluded.contains(&link.index));
        let mut link_types: Vec<LinkType> =
            up().map(|link| savefile_link_type(link.link_type)).collect();

        // The loopback interface exists in every namespace, and most that appear later are of its
        // link type.
        if link_types.is_empty() || !builder.one_link_type {
            link_types.push(LinkType::ETHERNET);
        }

        link_types.sort_unstable_by_key(|link_type| link_type.0);
        link_types.dedup();

        if builder.one_link_type && link_types.len() > 1 {
            return Err(OpenError::SeveralLinkTypes);
        }

        let found = up()
            .filter(|link| link.may_be_hardware)
            .filter_map(|link| Device::glance(&link.name).ok());
        let hardware = found.filter(Device::is_hardware).collect();
        let mtu = present.iter().map(|link| link.mtu).max().unwrap_or_default();

        Ok(Self { roster: Arc::new(roster), link_types, excluded, hardware, mtu })
    }

    /// Stands for the Ethernet interfaces.
    pub(super) fn device(&self) -> Device {
        self.device_of(LinkType::ETHERNET)
    }

    /// Stands for the interfaces of this link type.
    pub(super) fn device_of(&self, link_type: LinkType) -> Device {
        let number =
            if link_type == LinkType::ETHERNET { libc::ARPHRD_ETHER } else { libc::ARPHRD_NONE };
        Device::of_all(number, self.mtu)
    }

    /// The number of link types with sockets.
    pub(super) fn sockets(&self) -> usize {
        self.link_types.len()
    }

    /// The number of link types that may get sockets later.
    pub(super) fn sockets_to_come(&self) -> usize {
        LINK_TYPES - self.link_types.len()
    }
}
