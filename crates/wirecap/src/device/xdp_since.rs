//! The kernel versions since which drivers have native XDP: the benefit of a newer kernel.

use std::fmt;

/// A version of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    /// The 6 of 6.14.
    pub major: u32,
    /// The 14 of 6.14.
    pub minor: u32,
}

impl KernelVersion {
    const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Parses the kernel's release string, such as `6.12.117-amd64`.
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
        Some(Self::new(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

impl fmt::Display for KernelVersion {
    /// `6.14`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The first kernel versions with XDP in a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpSince {
    /// Programs in the driver, with redirection.
    pub native: KernelVersion,
    /// AF_XDP zero-copy for received packets; `None` if no known version has it.
    pub zero_copy: Option<KernelVersion>,
}

const fn row(
    driver: &'static str,
    native: (u32, u32),
    zero_copy: Option<(u32, u32)>,
) -> (&'static str, XdpSince) {
    let zero_copy = match zero_copy {
        Some((major, minor)) => Some(KernelVersion::new(major, minor)),
        None => None,
    };
    (driver, XdpSince { native: KernelVersion::new(native.0, native.1), zero_copy })
}

/// The known drivers, with the release in which the commit that added the function appeared.
const DRIVERS: &[(&str, XdpSince)] = &[
    row("bnxt_en", (4, 11), None),
    row("ena", (5, 6), None),
    row("hv_netvsc", (5, 6), None),
    row("i40e", (4, 13), Some((4, 20))),
    row("ice", (5, 5), Some((5, 5))),
    row("igb", (5, 10), Some((6, 14))),
    row("igc", (5, 13), Some((5, 14))),
    row("ixgbe", (4, 12), Some((4, 20))),
    row("ixgbevf", (4, 17), None),
    row("mlx4_en", (4, 8), None),
    row("mlx5_core", (4, 9), Some((5, 3))),
    row("nfp", (4, 10), Some((5, 18))),
    row("qede", (4, 10), None),
    row("stmmac", (5, 13), Some((5, 13))),
    row("virtio_net", (4, 10), Some((6, 11))),
    row("vmxnet3", (6, 6), None),
];

impl XdpSince {
    /// The entry of the driver of this name; `None` if unknown, which may be a driver without XDP.
    pub fn of(driver: &str) -> Option<Self> {
        DRIVERS.iter().find(|(name, _)| *name == driver).map(|(_, since)| *since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let parse = |text| KernelVersion::parse(text).unwrap();
        assert!(parse("6.9.0-rc1") < parse("6.14.2-arch1") && parse("6.14.2") < parse("10.0"));
        assert_eq!(parse("6.12.117-amd64\n").to_string(), "6.12");
        assert_eq!(KernelVersion::parse("unknown"), None);
    }

    #[test]
    fn no_driver_has_zero_copy_before_it_has_xdp() {
        for (driver, since) in DRIVERS {
            assert!(since.zero_copy.is_none_or(|zero_copy| zero_copy >= since.native), "{driver}");
            assert_eq!(XdpSince::of(driver), Some(*since), "{driver} is listed once");
        }
        assert_eq!(XdpSince::of("igb").unwrap().zero_copy.unwrap().to_string(), "6.14");
    }
}
