//! When packets arrived, and which of them are asked.

pub use wirecap_savefile::Timestamp;

/// Which packets' times of arrival are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timestamps {
    /// None: packets have no times. It costs nothing.
    #[default]
    None,
    /// Every packet's, by itself.
    Packet,
    /// With the engine `xdp`: of the first packet of a batch that the driver hands over and of every
    /// eighth one, each for those up to the next, which may have come up to a few microseconds later.
    /// Where the kernel does not tell where a batch ends, and with other engines, as
    /// [`Packet`](Self::Packet).
    Batch,
    /// Every packet's, by the clock of the device that received it, as it stands: nothing is converted (a clock that
    /// `ptp4l` keeps shows TAI, 37 s ahead of UTC since 2017). A packet that the device gave no time has none. With the
    /// engine `xdp`, where the driver shows its times to programs and was told to stamp every packet
    /// (`hwstamp_ctl -i eth0 -r 1`); anywhere else opening is an error that says what is missing. Such a capture has
    /// its interface for itself.
    Hardware,
}
