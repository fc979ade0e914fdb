//! The kinds of NICs (the virtual machine has two of each), and the known properties of their drivers.

/// A kind of NIC. `NAME0` sends and `NAME1` receives; a cable connects them.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Also the prefix of the interfaces' names.
    pub(crate) name: &'static str,
    /// The mode of AF_XDP at an MTU of 1500, as printed by the command.
    pub(crate) rung: &'static str,
    /// Part of the reason that the command prints for not using zero-copy.
    pub(crate) reason: Option<&'static str>,
    /// Numbers of queues to try; empty if there is only one queue.
    pub(crate) queue_counts: &'static [u32],
    /// The largest MTU at which all frames arrive. Beyond it QEMU's vmxnet3 reports those that need a second
    /// buffer as erroneous, and the driver drops and counts them.
    pub(crate) mtu_max: u32,
    /// The driver spreads flows over its queues by RSS.
    pub(crate) has_rss: bool,
    /// Whether the driver continues after its device was reset externally, and the interface was set down and
    /// up.
    pub(crate) survives_reset: bool,
}

/// All kinds. QEMU's vmxnet3 and e1000e have one receive queue.
pub(crate) const KINDS: &[Kind] = &[
    Kind {
        name: "igb",
        rung: "zero-copy",
        reason: None,
        queue_counts: &[1, 2, 4, 8],
        mtu_max: 9000,
        has_rss: true,
        survives_reset: true,
    },
    Kind {
        name: "virtio",
        rung: "zero-copy",
        reason: None,
        queue_counts: &[1, 2, 4, 8],
        mtu_max: 9000,
        has_rss: true,
        survives_reset: false,
    },
    // Without iommu_platform the driver has no DMA device for which to map the cells.
    Kind {
        name: "plain",
        rung: "native copy",
        reason: Some("Invalid argument"),
        queue_counts: &[1, 8],
        mtu_max: 9000,
        has_rss: true,
        survives_reset: false,
    },
    // With queue_reset=off the driver cannot stop a single queue to exchange its buffers.
    Kind {
        name: "fixed",
        rung: "native copy",
        reason: Some("No such file or directory"),
        queue_counts: &[1, 8],
        mtu_max: 9000,
        has_rss: true,
        survives_reset: false,
    },
    Kind {
        name: "vmxnet3",
        rung: "native copy",
        reason: Some("no zero-copy AF_XDP"),
        queue_counts: &[],
        mtu_max: 3000,
        has_rss: false,
        survives_reset: false,
    },
    Kind {
        name: "e1000e",
        rung: "generic",
        reason: Some("no native XDP"),
        queue_counts: &[],
        mtu_max: 9000,
        has_rss: false,
        survives_reset: false,
    },
];

/// The kind with this name.
///
/// # Panics
///
/// If there is no such kind.
pub(crate) fn kind(name: &str) -> &'static Kind {
    KINDS.iter().find(|kind| kind.name == name).expect("a kind of NIC")
}
