//! The settings that a program makes before it activates a handle.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::{CString, c_int};
use std::time::Duration;

use wirecap::device::{Device, DeviceError};
use wirecap::{Capture, CaptureBuilder, Engine, Timestamps};

use crate::abi::{PRECISION_NANO, TSTAMP_HOST};
use crate::failure::causes;
use crate::settings::{Choice, Settings};

/// The default of M: a block of the engine `packet` has 256 KiB, as in libpcap.
const CHUNK_CELLS: u32 = 128;
/// The default of R: a buffer of 16 MiB, eight times as much as libpcap's.
const CHUNKS: u32 = 64;
/// The default buffer of libpcap.
const LIBPCAP_BYTES: u64 = 2 << 20;
/// The minimum number of bytes that the kernel keeps of a packet, and the size of the kernel's
/// header for each packet.
const SNAP_BYTES_MIN: u32 = 64;
const PACKET_OVERHEAD: u64 = 96;
/// Bytes of a cell, the unit of buffer sizes.
const CELL_BYTES: u64 = 2048;
/// libpcap's replacement for an invalid snapshot length.
const SNAP_LEN_MAX: c_int = 262_144;
/// How long a packet may wait if the program sets no timeout. libpcap then lets packets wait until
/// a block is full, however long that takes.
const UNNAMED_TIMEOUT: Duration = Duration::from_millis(20);

/// How often the watcher checks whether the XDP program is still attached, in addition to the
/// kernel's notifications.
const LOOK_PERIOD: Duration = Duration::from_secs(5);
/// Longer than any capture.
const NEVER: Duration = Duration::from_secs(1_000_000);
const ETHERNET_HEADER_BYTES: u32 = 14;

/// The arguments of `pcap_create` and the setters.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The device; `None` for `any`.
    pub(crate) device: Option<Name>,
    pub(crate) snap_len: Option<c_int>,
    pub(crate) promiscuous: Option<c_int>,
    pub(crate) rfmon: c_int,
    pub(crate) timeout_millis: c_int,
    pub(crate) buffer_bytes: c_int,
    pub(crate) immediate: c_int,
    pub(crate) tstamp_type: Option<c_int>,
    pub(crate) precision: c_int,
    pub(crate) protocol: c_int,
}

/// A device name: an interface, or receive queues of it (`eth0@2`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) interface: String,
    /// Such as `2` or `0-3`.
    pub(crate) queues: Option<String>,
}

impl Name {
    /// Parses a name. A name without a list of queues at its end is a whole interface.
    pub(crate) fn parse(name: &str) -> Self {
        let is_list = |text: &str| {
            !text.is_empty() && text.bytes().all(|byte| b"0123456789,-".contains(&byte))
        };
        match name.rsplit_once('@').filter(|(_, queues)| is_list(queues)) {
            Some((interface, queues)) => {
                Self { interface: interface.to_owned(), queues: Some(queues.to_owned()) }
            }
            None => Self { interface: name.to_owned(), queues: None },
        }
    }

    /// Like [`parse`](Self::parse), but if an interface has exactly this name, the name means that
    /// interface.
    pub(crate) fn of_device(name: &str) -> Self {
        let parsed = Self::parse(name);
        let is_interface = || {
            let name = CString::new(name).ok();
            // SAFETY: the name is a string.
            name.is_some_and(|name| unsafe { libc::if_nametoindex(name.as_ptr()) } != 0)
        };
        match parsed.queues {
            Some(_) if is_interface() => Self { interface: name.to_owned(), queues: None },
            _ => parsed,
        }
    }

    /// Whether the engine parses the interface's name as an interface without receive queues.
    fn is_plain(&self) -> bool {
        Self::parse(&self.interface).queues.is_none()
    }

    /// The name as the program passed it.
    pub(crate) fn whole(&self) -> String {
        match &self.queues {
            Some(queues) => format!("{}@{queues}", self.interface),
            None => self.interface.clone(),
        }
    }
}

/// Why the engine does not capture.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// It does not support the request.
    Unserved(Cow<'static, str>),
    /// The kernel did not report the interface, for example because descriptors are lacking.
    Unknown(Cow<'static, str>),
}

impl Request {
    pub(crate) fn new(device: Option<Name>) -> Self {
        Self {
            device,
            snap_len: None,
            promiscuous: None,
            rfmon: 0,
            timeout_millis: 0,
            buffer_bytes: 0,
            immediate: 0,
            tstamp_type: None,
            precision: 0,
            protocol: 0,
        }
    }

    /// The interface, or why the engine does not capture.
    pub(crate) fn served(&self, settings: &Settings) -> Result<Device, Obstacle> {
        let unserved = |reason| Obstacle::Unserved(Cow::Borrowed(reason));
        let name = self.device.as_ref().ok_or(unserved("it captures on all interfaces"))?;
        let has_host_time = self.tstamp_type.is_none_or(|kind| kind == TSTAMP_HOST);
        let obstacles = [
            (settings.engine == Some(Choice::Off), "WIRECAP_ENGINE is off"),
            (self.rfmon != 0, "it is in monitor mode"),
            (self.protocol != 0, "it captures a single protocol"),
            (!has_host_time, "its timestamps are not those of the host's clock"),
            (!name.is_plain(), "its name contains '@'"),
        ];
        if let Some((_, reason)) = obstacles.iter().find(|(is_there, _)| *is_there) {
            return Err(unserved(reason));
        }

        match Device::glance(&name.interface) {
            Ok(device) if !device.up => Err(unserved("it is down")),
            Ok(device) if device.is_ethernet() || device.is_loopback() => Ok(device),
            Ok(_) => Err(unserved("it is not an Ethernet interface")),
            Err(error) => Err(why_unknown(&error)),
        }
    }

    pub(crate) fn is_immediate(&self) -> bool {
        self.immediate != 0
    }

    pub(crate) fn wants_nanos(&self) -> bool {
        self.precision == PRECISION_NANO
    }

    /// The requested capture of `device`; [`chunks`](Self::chunks) sets the size of its pools.
    /// Packets are captured in full length, because filters read them before they are truncated.
    pub(crate) fn builder(&self, device: &str, settings: &Settings) -> CaptureBuilder {
        let builder = Capture::on(device)
            .engine(engine(settings))
            .take(settings.take)
            // No watcher thread with the engine `packet`: libpcap has no thread, and programs that
            // use libpcap fork.
            .watched(engine(settings) != Engine::Packet)
            // At low rates each check costs the process as much as a hundred packets.
            .look_every(LOOK_PERIOD)
            .promiscuous(self.promiscuous.is_some_and(|on| on != 0))
            .timestamps(self.timestamps())
            .retire_after(self.retire_after())
            .chunk(chunk_cells(settings));
        if self.is_immediate() { builder.immediate(self.snap_len()) } else { builder }
    }

    /// The snapshot length.
    pub(crate) fn snap_len(&self) -> u32 {
        let asked = self.snap_len.filter(|bytes| (1..=SNAP_LEN_MAX).contains(bytes));
        asked.unwrap_or(SNAP_LEN_MAX).unsigned_abs()
    }

    /// R; `None` for the engine's default.
    pub(crate) fn chunks(&self, settings: &Settings) -> Option<u32> {
        match (settings.chunks, u64::try_from(self.buffer_bytes)) {
            (Some(chunks), _) => Some(chunks),
            (None, Ok(bytes @ 1..)) => {
                let chunk_bytes = u64::from(chunk_cells(settings)) * CELL_BYTES;
                // With one chunk, the kernel would have none while the program has it.
                Some(bytes.div_ceil(chunk_bytes).max(2) as u32)
            }
            (None, _) if engine(settings) == Engine::Packet => Some(self.default_chunks(settings)),
            // A cell of the engine `xdp` holds one packet, however short, so the engine's default
            // applies.
            (None, _) => None,
        }
    }

    /// R for a buffer that holds as many packets of the requested length as the default buffer has
    /// cells. The buffer is at least as large as libpcap's default, and at most as large as this
    /// library's.
    fn default_chunks(&self, settings: &Settings) -> u32 {
        let kept = u64::from(self.snap_len().max(SNAP_BYTES_MIN)) + PACKET_OVERHEAD;
        let all = u64::from(CHUNKS * CHUNK_CELLS) * CELL_BYTES;
        let bytes = (u64::from(CHUNKS * CHUNK_CELLS) * kept).clamp(LIBPCAP_BYTES, all);
        let chunk_bytes = u64::from(chunk_cells(settings)) * CELL_BYTES;
        bytes.div_ceil(chunk_bytes).max(2) as u32
    }

    /// Reading the clock for each packet is expensive, and most programs use microseconds, so the
    /// engine `xdp` reads it for some packets of a batch. With the engine `packet` the kernel reads
    /// it for each packet in any case.
    fn timestamps(&self) -> Timestamps {
        if self.wants_nanos() { Timestamps::Packet } else { Timestamps::Batch }
    }

    /// How long a packet may wait for others.
    pub(crate) fn longest_wait(&self) -> Duration {
        match u64::try_from(self.timeout_millis) {
            Ok(millis @ 1..) => Duration::from_millis(millis),
            _ => UNNAMED_TIMEOUT,
        }
    }

    /// The time after which the kernel hands over a started block that is not full.
    fn retire_after(&self) -> Duration {
        // A program that requests less than the Ethernet header and sets no timeout, as Wireshark's
        // start page does for each interface, only counts packets. The kernel needs no timer for
        // its blocks, as with libpcap.
        if self.timeout_millis == 0 && self.snap_len() < ETHERNET_HEADER_BYTES {
            return NEVER;
        }
        self.longest_wait()
    }
}

/// Why the device was not found.
fn why_unknown(error: &DeviceError) -> Obstacle {
    match error {
        DeviceError::NoSuchDevice { .. } | DeviceError::InvalidName { .. } => {
            Obstacle::Unserved(Cow::Borrowed("it is not a network interface"))
        }
        error => Obstacle::Unknown(Cow::Owned(causes(error))),
    }
}

fn engine(settings: &Settings) -> Engine {
    match settings.engine {
        None | Some(Choice::Packet | Choice::Off) => Engine::Packet,
        Some(Choice::Xdp) => Engine::Xdp,
        Some(Choice::Auto) => Engine::Auto,
    }
}

/// M.
fn chunk_cells(settings: &Settings) -> u32 {
    settings.chunk_cells.unwrap_or(CHUNK_CELLS)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_lookup_that_failed_does_not_mean_that_there_is_no_interface() {
        let absent = DeviceError::NoSuchDevice { name: "usbmon1".to_owned(), existing: Vec::new() };
        assert!(matches!(why_unknown(&absent), Obstacle::Unserved(_)));
        let source = io::Error::from_raw_os_error(libc::EMFILE);
        let error = DeviceError::Kernel { interface: Some("eth0".to_owned()), source };
        let Obstacle::Unknown(text) = why_unknown(&error) else {
            panic!("{error} says nothing about eth0")
        };
        let words = ["did not report interface eth0", "Too many open files"];
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }

    #[test]
    fn only_lists_of_queues_are_removed_from_device_names() {
        let parts = |name: &str| {
            let name = Name::parse(name);
            (name.interface, name.queues)
        };
        assert_eq!(parts("eth0@2"), ("eth0".to_owned(), Some("2".to_owned())));
        assert_eq!(parts("eth0@0-3,5"), ("eth0".to_owned(), Some("0-3,5".to_owned())));
        for whole in ["eth0", "eth0@", "eth0@if4", "usbmon1", "a@b"] {
            assert_eq!(parts(whole), (whole.to_owned(), None));
        }
    }
}
