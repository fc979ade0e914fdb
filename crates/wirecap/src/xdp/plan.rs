//! The program that a capture needs on an interface, in the capture's own words: plain data, for
//! another process.

use serde::{Deserialize, Serialize};

use crate::device::DeviceSummary;
use crate::filter::Filter;
use crate::steer::Steering;
use crate::time::Timestamps;

/// The description of a program on an interface.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HookPlan {
    /// The interface.
    pub device: DeviceSummary,
    /// The queues whose packets are captured, and how their packets are distributed over rings.
    pub steering: Steering,
    /// Packets of all queues are captured, including queues that are added later.
    pub whole: bool,
    /// Only matching packets are captured; all, if there is no filter.
    pub filter: Option<Filter>,
    /// Non-matching packets are dropped instead of passed to the host.
    pub drop_rejected: bool,
    /// How packets get timestamps.
    pub timestamps: Timestamps,
    /// The interface is in promiscuous mode.
    pub promiscuous: bool,
    /// Captured frames for the interface's own hardware address are counted.
    pub counts_own: bool,
}

/// Where a filter runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Where {
    /// In the program, or there is none.
    #[default]
    Program,
    /// In user space, on every packet, for this reason.
    UserSpace(String),
}

/// The properties of an attached program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookState {
    /// Why it is in the network stack and not in the driver, if it is.
    pub not_native: Option<String>,
    /// Where the filter runs.
    pub filters: Where,
    /// The source of its timestamps.
    pub timestamps: Timestamps,
    /// The program is bound to the device, whose clock it reads.
    pub is_bound: bool,
    /// The number of queues that its maps have room for.
    pub queues_max: u32,
}
