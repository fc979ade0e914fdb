//! A veth's driver implements hardware timestamps without a clock: a capture with the device's
//! clock can be tested on it, but not the clock's values.

use wirecap_testbed::{
    Generator, Load, Namespace, Traffic, VethPair, privileged, skip_on_this_machine,
};

use super::*;
use crate::umem::pool::Geometry;
use crate::umem::ring::{Counters, Ring};
use crate::xdp::programs::BOUND_PROGRAM;

/// Programs can read a device's clock since Linux 6.3.
fn kernel_has_device_clocks() -> bool {
    let has_them = crate::bpf::kernel_function(crate::xdp::clock::DEVICE_CLOCK).is_ok();
    if !has_them {
        skip_on_this_machine("this kernel has no hardware timestamps for XDP programs (Linux 6.3)");
    }
    has_them
}

fn settings(timestamps: Timestamps) -> Settings {
    let rings = RingSettings {
        geometry: Geometry { chunk_cells: 64, chunks: 32, cell_bytes: 2048 },
        timestamps,
        promiscuous: false,
        snap_len: 65_535,
        filter: None,
        interface_index: 0,
        first_ring_index: 0,
    };
    Settings {
        rings,
        warm: None,
        shared_umem: None,
        drop_rejected: false,
        copy_because: None,
        whole: true,
        counts_own: false,
    }
}

fn open_queue(device: &Device, queue: u32, timestamps: Timestamps) -> Result<Opened, OpenError> {
    open(device, &Steering::new(vec![queue], 1), &settings(timestamps)).map_err(|refusal| {
        match refusal {
            Refusal::Error(error) => error,
            Refusal::Reopen(reopen) => panic!("{reopen:?}"),
        }
    })
}

/// The number of packets within a minute, or until `wanted` arrived. None of them has a timestamp.
fn count_without_times(ring: &dyn Ring, wanted: usize) -> usize {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut packets = 0;
    while packets < wanted && std::time::Instant::now() < deadline {
        if let Some(chunk) = ring.capture().unwrap() {
            assert!(chunk.iter().all(|packet| packet.timestamp().is_none()));
            packets += chunk.len();
        }
    }
    packets
}

#[test]
fn packets_without_a_time_by_the_device_have_none_and_are_all_there() {
    if !privileged() || !kernel_has_device_clocks() {
        return;
    }

    let near = Namespace::new().unwrap();
    let far = Namespace::new().unwrap();
    let pair = VethPair::new((&near, "a0"), (&far, "a1"), 1, 1500).unwrap();
    let mut generator = Generator::new(&pair.sender, &Traffic::to(&pair.receiver)).unwrap();

    let opened = far.run_in(|| {
        let device = Device::find("a1").unwrap();
        let opened = open_queue(&device, 0, Timestamps::Hardware).unwrap();
        let attached = DeviceSummary::from(&device).attached_now().unwrap();
        let program = crate::bpf::Program::by_id(attached[0].program_id).unwrap();
        assert_eq!(program.info().unwrap().name, BOUND_PROGRAM);
        opened
    });
    let opened = opened.unwrap();
    assert_eq!(
        (opened.timestamps, opened.receive_mode),
        (Timestamps::Hardware, ReceiveMode::NativeCopy)
    );

    let sent = generator.send(&[Load::new(0, 1000)]).unwrap();
    assert_eq!(sent[0].frames, 1000);
    assert_eq!(count_without_times(&*opened.rings[0], 1000), 1000);

    let account = opened.rings[0].account();
    assert_eq!((account.delivered, account.dropped.no_cell), (1000, 0));
    drop(opened);

    let left =
        far.run_in(|| DeviceSummary::from(&Device::find("a1").unwrap()).attached_now().unwrap());
    assert!(left.unwrap().is_empty());
}

#[test]
fn an_interface_is_not_shared_if_a_capture_uses_the_device_clock() {
    if !privileged() || !kernel_has_device_clocks() {
        return;
    }

    let near = Namespace::new().unwrap();
    let far = Namespace::new().unwrap();
    let _pair = VethPair::new((&near, "a0"), (&far, "a1"), 2, 1500).unwrap();

    let run = || {
        let device = Device::find("a1").unwrap();

        for (first, second) in [
            (Timestamps::Hardware, Timestamps::Batch),
            (Timestamps::Batch, Timestamps::Hardware),
            (Timestamps::Hardware, Timestamps::Hardware),
        ] {
            let held = open_queue(&device, 0, first).unwrap();
            let refusal = open_queue(&device, 1, second).unwrap_err();
            assert!(matches!(refusal, OpenError::NotShared { holder: Some(_), .. }), "{refusal:?}");
            assert_eq!(DeviceSummary::from(&device).attached_now().unwrap().len(), 1);
            drop(held);
        }
        drop(open_queue(&device, 1, Timestamps::Batch).unwrap());
    };
    far.run_in(run).unwrap();
}
