//! The kinds of NICs, of which the virtual machine has two each, and what their drivers are known to do.

/// A kind of NIC. `NAME0` sends, `NAME1` receives, and they are joined by a cable.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Also the beginning of the interfaces' names.
    pub(crate) name: &'static str,
    /// The rung of AF_XDP at an MTU of 1500, as the command prints it.
    pub(crate) rung: &'static str,
    /// Words of the reason that the command gives for not receiving without a copy.
    pub(crate) reason: Option<&'static str>,
    /// Numbers of queues to try; none where there is one only.
    pub(crate) queue_counts: &'static [u32],
    /// The largest MTU of which all frames come. Beyond it QEMU's vmxnet3 reports those that need a second buffer as
    /// erroneous, and the driver drops and counts them.
    pub(crate) mtu_max: u32,
    /// The driver spreads flows over its queues by RSS.
    pub(crate) has_rss: bool,
    /// The driver goes on when its device was reset behind its back, and is set down and up.
    pub(crate) survives_reset: bool,
}

/// All of them. QEMU's vmxnet3 and e1000e have one queue that receives.
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
    // Without iommu_platform the driver has no DMA device to map the cells for.
    Kind {
        name: "plain",
        rung: "native copy",
        reason: Some("Invalid argument"),
        queue_counts: &[1, 8],
        mtu_max: 9000,
        has_rss: true,
        survives_reset: false,
    },
    // With queue_reset=off the driver cannot stop one queue to exchange its buffers.
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

/// The kind of this name.
///
/// # Panics
///
/// If there is none.
pub(crate) fn kind(name: &str) -> &'static Kind {
    KINDS.iter().find(|kind| kind.name == name).expect("a kind of NIC")
}
