//! The kinds of NICs (the virtual machine has two of each), and the known properties of their
//! drivers.
//!
//! In zero-copy mode an igb whose pool is used up loses packets in two places, the ring and the
//! device. Of 6,000 packets in 2 s, processed at 1 ms each by a ring of 2,048 cells, 3,328 were
//! delivered and 2,163 counted as *ring full*, together the number that the driver counted; the
//! device dropped 509 uncounted. In a longer run the ledger counted 538 where 318 were missing: the
//! driver may retry a packet that found the ring full, and the kernel counts each attempt.
//!
//! The machine uses virtio-net without `hash=on`. With it, QEMU 10.0 selects the receive queue
//! itself, and a frame whose receive queue is full stops the queue of the tap device from which it
//! came, until the link changes. Of a burst of 20,000 frames to 8 queues of 128 descriptors, 7,843
//! arrived, 1,401 more after `set_link`; without `hash=on` all 20,000.
//!
//! QEMU's igb drops a frame whose queue has no descriptor if another queue has some, and does not
//! count it: of 400 frames that RSS sent to one of eight queues while the machine was busy, 376
//! arrived. So the senders have at most 64 frames in flight. Their queueing discipline is
//! pfifo_fast: fq_codel, the kernel's default, dropped up to 24 of 600 frames before they were
//! sent.

/// A kind of NIC. `NAME0` sends and `NAME1` receives; a cable connects them.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Also the prefix of the interfaces' names.
    pub(crate) name: &'static str,
    /// The mode of AF_XDP at an MTU of 1500, as printed by the command.
    pub(crate) receive_mode: &'static str,
    /// Part of the reason that the command prints for not using zero-copy.
    pub(crate) reason: Option<&'static str>,
    /// Numbers of queues to try; empty if there is only one queue.
    pub(crate) queue_counts: &'static [u32],
    /// The largest MTU at which all frames arrive. Beyond it QEMU's vmxnet3 reports those that need
    /// a second buffer as erroneous, and the driver drops and counts them.
    pub(crate) mtu_max: u32,
    /// The driver spreads flows over its queues by RSS.
    pub(crate) has_rss: bool,
    /// Whether the driver continues after its device was reset externally, and the interface was
    /// set down and up.
    pub(crate) survives_reset: bool,
}

/// All kinds. QEMU's vmxnet3 and e1000e have one receive queue.
pub(crate) const KINDS: &[Kind] = &[
    Kind {
        name: "igb",
        receive_mode: "zero-copy",
        reason: None,
        queue_counts: &[1, 2, 4, 8],
        mtu_max: 9000,
        has_rss: true,
        survives_reset: true,
    },
    Kind {
        name: "virtio",
        receive_mode: "zero-copy",
        reason: None,
        queue_counts: &[1, 2, 4, 8],
        mtu_max: 9000,
        has_rss: true,
        survives_reset: false,
    },
    // Without iommu_platform the driver has no DMA device for which to map the cells.
    Kind {
        name: "plain",
        receive_mode: "native copy",
        reason: Some("Invalid argument"),
        queue_counts: &[1, 8],
        mtu_max: 9000,
        has_rss: true,
        survives_reset: false,
    },
    // With queue_reset=off the driver cannot stop a single queue to exchange its buffers.
    Kind {
        name: "fixed",
        receive_mode: "native copy",
        reason: Some("No such file or directory"),
        queue_counts: &[1, 8],
        mtu_max: 9000,
        has_rss: true,
        survives_reset: false,
    },
    Kind {
        name: "vmxnet3",
        receive_mode: "native copy",
        reason: Some("no zero-copy AF_XDP"),
        queue_counts: &[],
        mtu_max: 3000,
        has_rss: false,
        survives_reset: false,
    },
    Kind {
        name: "e1000e",
        receive_mode: "generic",
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
