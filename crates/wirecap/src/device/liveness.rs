//! Signs of life of a device without packets: its interrupts, and the status of a virtio device.

use std::fs;
use std::path::{Path, PathBuf};

use super::Device;

/// Drivers that make the device send an interrupt when an AF_XDP socket wakes them, so an answer
/// proves that the device works. Sources are those of Linux 6.12 and, for igb, 6.14, below
/// `drivers/net/ethernet`.
const ANSWERING: &[&str] = &[
    // intel/igb/igb_xsk.c igb_xsk_wakeup: writes EICS.
    "igb", // intel/igc/igc_main.c igc_xsk_wakeup: writes EICS.
    "igc", // intel/ixgbe/ixgbe_xsk.c ixgbe_xsk_wakeup: ixgbe_irq_rearm_queues writes EICS.
    "ixgbe",
    // intel/i40e/i40e_xsk.c i40e_xsk_wakeup: i40e_force_wb triggers a software interrupt.
    "i40e", // intel/ice/ice_xsk.c ice_xsk_wakeup: ice_trigger_sw_intr.
    "ice",
];

/// The status bit of a virtio device whose driver is ready; a reset clears it.
const DRIVER_OK: u32 = 4;

/// The sources of a device's signs of life.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Liveness {
    /// Its folder in /sys/bus/pci/devices, if it has one.
    folder: Option<PathBuf>,
    /// The directory of the kernel's interrupts.
    interrupts: PathBuf,
    /// Its status, if it is a virtio device.
    status: Option<PathBuf>,
    /// A wake-up of its driver causes an interrupt of the device.
    answers: bool,
}

impl Liveness {
    pub(crate) fn of(device: &Device) -> Self {
        let place = device.bus_info.as_deref().filter(|_| device.is_hardware());
        Self::below(Path::new("/sys"), place, device.driver.as_deref())
    }

    fn below(sys: &Path, place: Option<&str>, driver: Option<&str>) -> Self {
        let folder = place.map(|place| sys.join("bus/pci/devices").join(place));
        let folder = folder.filter(|folder| folder.is_dir());
        let status = folder.as_deref().and_then(|folder| {
            let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
            let virtio =
                names.into_iter().find(|name| name.to_string_lossy().starts_with("virtio"))?;
            Some(folder.join(virtio).join("status"))
        });
        let answers = folder.is_some() && driver.is_some_and(|driver| ANSWERING.contains(&driver));
        Self { folder, interrupts: sys.join("kernel/irq"), status, answers }
    }

    /// Whether its driver is known to make the device answer with an interrupt.
    pub(crate) fn answers(&self) -> bool {
        self.answers
    }

    /// Whether it publishes whether it was reset: a virtio device.
    pub(crate) fn reports_resets(&self) -> bool {
        self.status.is_some()
    }

    /// Number of interrupts that it has sent so far. It may decrease when its driver requests other
    /// interrupts.
    pub(crate) fn interrupts(&self) -> Option<u64> {
        let numbers = fs::read_dir(self.folder.as_ref()?.join("msi_irqs")).ok()?;
        let count = |number: fs::DirEntry| {
            let path = self.interrupts.join(number.file_name()).join("per_cpu_count");
            let counts = fs::read_to_string(path).ok()?;
            counts.trim().split(',').map(|count| count.parse::<u64>().ok()).sum::<Option<u64>>()
        };
        numbers.flatten().map(count).sum()
    }

    /// Whether the device was reset without its driver's knowledge.
    pub(crate) fn was_reset(&self) -> bool {
        let status = self.status.as_ref().and_then(|status| fs::read_to_string(status).ok());
        let status = status.as_deref().and_then(|status| status.trim().strip_prefix("0x"));
        let status = status.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        status.is_some_and(|status| status & DRIVER_OK == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that replaces /sys, removed at the end.
    struct Sys(PathBuf);

    impl Sys {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir()
                .join(format!("wirecap-liveness-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_interrupts_of_all_vectors_and_processors_are_added_up() {
        let sys = Sys::new("interrupts");
        sys.write("bus/pci/devices/0000:03:00.0/msi_irqs/41", "msix\n");
        sys.write("bus/pci/devices/0000:03:00.0/msi_irqs/42", "msix\n");
        sys.write("kernel/irq/41/per_cpu_count", "1,20,0\n");
        sys.write("kernel/irq/42/per_cpu_count", "300,0,4000\n");
        let liveness = Liveness::below(&sys.0, Some("0000:03:00.0"), Some("igb"));
        assert_eq!(liveness.interrupts(), Some(4321));
        assert!(liveness.answers() && !liveness.was_reset());
    }

    #[test]
    fn a_virtio_device_reports_its_reset() {
        let sys = Sys::new("virtio");
        let status = "bus/pci/devices/0000:01:00.0/virtio3/status";
        sys.write(status, "0x0000000f\n");
        let liveness = Liveness::below(&sys.0, Some("0000:01:00.0"), Some("virtio_net"));
        assert!(!liveness.was_reset() && !liveness.answers());
        sys.write(status, "0x00000000\n");
        assert!(liveness.was_reset());
    }

    #[test]
    fn a_device_on_another_bus_has_no_signs_of_life() {
        let sys = Sys::new("none");
        for place in [None, Some("usb-0000:00:14.0-1")] {
            let liveness = Liveness::below(&sys.0, place, Some("igb"));
            assert_eq!(
                (liveness.interrupts(), liveness.answers(), liveness.was_reset()),
                (None, false, false)
            );
        }
    }
}
