//! The checks: each compares the command's result with the frames sent.

mod capturing;
mod changing;
mod doctor;
mod forwarding;
mod rival;
mod skewed;
mod trouble;
mod under_traffic;
mod verdict;

use std::error::Error;
use std::fmt;

use crate::bed::Bed;

pub(crate) use under_traffic::EVENTS;

/// The result of a check that did not fail.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// The check passed; with a short note for the table.
    Holds(String),
    /// The driver, or QEMU's device, does not support this, for this reason.
    Limit(&'static str),
}

impl Verdict {
    fn ok() -> Self {
        Self::Holds("ok".to_owned())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds(short) => f.write_str(short),
            Self::Limit(reason) => write!(f, "not here: {reason}"),
        }
    }
}

pub(crate) type Outcome = Result<Verdict, Box<dyn Error>>;

/// A check that runs on every kind of NIC.
#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    /// Whether CI runs it.
    pub(crate) core: bool,
    pub(crate) run: fn(&Bed) -> Outcome,
}

/// A check between NICs of two kinds, or one that other checks would disturb. It runs alone.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) name: &'static str,
    /// Its column in the table.
    pub(crate) column: &'static str,
    pub(crate) core: bool,
    pub(crate) run: fn() -> Outcome,
}

pub(crate) const ALL: &[Check] = &[
    Check { name: "rung", core: true, run: capturing::receive_mode },
    Check { name: "bytes", core: true, run: capturing::bytes },
    Check { name: "mtu", core: false, run: capturing::mtu },
    Check { name: "queues", core: false, run: capturing::queues },
    Check { name: "queues at attach", core: true, run: capturing::queues_at_attach },
    Check { name: "weights", core: false, run: changing::weights },
    Check { name: "vlan", core: false, run: capturing::vlan },
    Check { name: "ring sizes", core: false, run: changing::ring_sizes },
    Check { name: "coalescing", core: false, run: changing::coalescing },
    Check { name: "interrupts", core: false, run: changing::interrupts },
    Check { name: "device count", core: false, run: verdict::device_count },
    Check { name: "odd frames", core: false, run: verdict::odd_frames },
    Check { name: "resize", core: false, run: changing::resized },
    Check { name: "auto", core: false, run: verdict::auto },
    Check { name: "generate", core: false, run: verdict::generate },
    Check { name: "two processes", core: false, run: capturing::two_processes },
    Check { name: "kill -9", core: false, run: trouble::killed },
    Check { name: "at once", core: true, run: trouble::at_once },
    Check { name: "tcpdump", core: false, run: capturing::tcpdump },
    Check { name: "dumpcap", core: false, run: capturing::dumpcap },
    Check { name: "link down/up", core: false, run: trouble::flap },
    Check { name: "set_link", core: false, run: trouble::set_link },
    Check { name: "reset", core: true, run: trouble::reset },
    Check { name: "reset, packet", core: false, run: verdict::reset_unnoticed },
    // The check leaves changed settings; the next check binds the driver again, which restores its
    // defaults.
    Check { name: "doctor", core: false, run: doctor::finds_and_fixes },
    Check { name: "unbind, bind", core: false, run: trouble::rebind },
];

pub(crate) const ROUTES: &[Route] = &[
    Route { name: "skew", column: "igb", core: false, run: skewed::skew_on_igb },
    Route { name: "skew", column: "virtio", core: false, run: skewed::skew_on_virtio },
    Route { name: "forward one-way", column: "igb", core: true, run: forwarding::one_way_to_igb },
    Route {
        name: "forward one-way",
        column: "virtio",
        core: false,
        run: forwarding::one_way_to_virtio,
    },
    Route { name: "forward two-way", column: "igb", core: false, run: forwarding::igb_and_virtio },
    Route {
        name: "forward two-way",
        column: "plain",
        core: false,
        run: forwarding::plain_and_fixed,
    },
    Route {
        name: "forward two-way",
        column: "vmxnet3",
        core: false,
        run: forwarding::vmxnet3_and_e1000e,
    },
    Route { name: "testpmd", column: "igb", core: false, run: rival::testpmd_on_igb },
    Route { name: "device_del", column: "igb", core: false, run: trouble::device_del_igb },
    Route { name: "device_del", column: "virtio", core: false, run: trouble::device_del_virtio },
];
