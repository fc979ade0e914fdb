//! The sources of a capture: interfaces, or receive queues of them by name (virtual capture devices
//! in the terms of Fusco and Deri: `eth1@2`), each with its own settings.

use std::str::FromStr;

use crate::device::Device;
use crate::error::OpenError;
use crate::filter::FilterRequest;
use crate::names::RingName;
use crate::numbers::parse_ranges;

/// What a capture reads from: an interface (`eth0`: all its receive queues) or receive queues of it
/// (`eth0@2`, `eth0@0-3`, `eth0@0,2`), with separate settings. A name alone has no separate
/// settings.
///
/// ```no_run
/// use wirecap::{Capture, Source};
///
/// let headers = Source::new("eth0").snap_len(96);
/// let capture = Capture::on(headers).and("eth1@0-3").open()?;
/// # Ok::<(), wirecap::OpenError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Source {
    pub(crate) device: String,
    pub(crate) settings: SourceSettings,
    pub(crate) is_any: bool,
}

/// Settings of one source of a capture. Unset ones follow the whole capture.
#[derive(Debug, Clone, Default)]
pub(crate) struct SourceSettings {
    /// Bytes kept of each packet.
    pub(crate) snap_len: Option<u32>,
    /// Which packets are wanted.
    pub(crate) filter: Option<FilterRequest>,
}

impl Source {
    /// The interface or the receive queues of this name.
    pub fn new(device: impl Into<String>) -> Self {
        Self { device: device.into(), settings: SourceSettings::default(), is_any: false }
    }

    /// All interfaces of the network namespace, also those that appear later, with one packet
    /// socket per link type (the engine `packet`). Interfaces that other sources of the capture
    /// name are left to those.
    ///
    /// [`Packet::seen_interface`](crate::Packet::seen_interface) tells the interface of a packet,
    /// and [`Capture::seen_interfaces`](crate::Capture::seen_interfaces) lists them.
    pub fn any() -> Self {
        Self { is_any: true, ..Self::new("any") }
    }

    /// Whether it is [all interfaces](Self::any).
    pub fn is_any(&self) -> bool {
        self.is_any
    }

    /// The name given by the user: `eth0`, `eth0@2`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Snap length of its packets, instead of [`CaptureBuilder::snap_len`].
    ///
    /// [`CaptureBuilder::snap_len`]: crate::CaptureBuilder::snap_len
    pub fn snap_len(mut self, bytes: u32) -> Self {
        self.settings.snap_len = Some(bytes);
        self
    }

    /// Filter of its packets, instead of [`CaptureBuilder::filter`].
    ///
    /// [`CaptureBuilder::filter`]: crate::CaptureBuilder::filter
    pub fn filter(mut self, filter: impl Into<FilterRequest>) -> Self {
        self.settings.filter = Some(filter.into());
        self
    }
}

impl<T: Into<String>> From<T> for Source {
    fn from(device: T) -> Self {
        Self::new(device)
    }
}

/// The parts of a source's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceName {
    pub(crate) interface: String,
    /// In ascending order, each once; `None` for all.
    queues: Option<Vec<u32>>,
}

/// No driver has more queues. The limit keeps `eth0@0-4294967295` from filling the memory.
const QUEUE_COUNT_MAX: u32 = 4096;

impl FromStr for DeviceName {
    type Err = OpenError;

    fn from_str(name: &str) -> Result<Self, OpenError> {
        let bad = || OpenError::BadDeviceName { name: name.to_owned() };
        let (interface, queues) = match name.split_once('@') {
            None => (name, None),
            Some((interface, queues)) => (interface, Some(parse_queues(queues).ok_or_else(bad)?)),
        };
        if interface.is_empty() {
            return Err(bad());
        }
        Ok(Self { interface: interface.to_owned(), queues })
    }
}

/// The interface and the receive queues that a source names, in ascending order; `None` for all.
///
/// # Errors
///
/// [`OpenError::BadDeviceName`].
pub fn interface_and_queues(name: &str) -> Result<(String, Option<Vec<u32>>), OpenError> {
    name.parse().map(|DeviceName { interface, queues }| (interface, queues))
}

/// As of [`parse_ranges`], in ascending order, each once.
fn parse_queues(list: &str) -> Option<Vec<u32>> {
    let mut queues = parse_ranges(list, QUEUE_COUNT_MAX)?;
    queues.sort_unstable();
    queues.dedup();
    Some(queues)
}

impl DeviceName {
    /// Whether the source is the whole interface.
    pub(crate) fn is_whole(&self) -> bool {
        self.queues.is_none()
    }

    /// The selected queues of `device`.
    ///
    /// # Errors
    ///
    /// [`OpenError::NoSuchQueue`] for a queue that the device does not have.
    pub(crate) fn queues_of(&self, device: &Device) -> Result<Vec<u32>, OpenError> {
        let Some(queues) = &self.queues else { return Ok((0..device.rx_queues).collect()) };
        match queues.iter().find(|queue| **queue >= device.rx_queues) {
            None => Ok(queues.clone()),
            Some(&queue) => Err(OpenError::NoSuchQueue {
                ring: RingName::of_queue(&device.name, queue),
                queues: device.rx_queues,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_may_name_queues() {
        let queues = |name: &str| name.parse::<DeviceName>().unwrap().queues;
        assert_eq!(queues("eth0"), None);
        assert_eq!(queues("eth0@2"), Some(vec![2]));
        assert_eq!(queues("eth0@0-3"), Some(vec![0, 1, 2, 3]));
        assert_eq!(queues("eth0@2,0,2"), Some(vec![0, 2]));
        assert_eq!(queues("eth0@4,0-1"), Some(vec![0, 1, 4]));
    }

    #[test]
    fn invalid_names_are_rejected() {
        for bad in
            ["", "@0", "eth0@", "eth0@x", "eth0@-1", "eth0@3-1", "eth0@0,", "eth0@0-4294967295"]
        {
            let error = bad.parse::<DeviceName>().unwrap_err();
            assert!(matches!(error, OpenError::BadDeviceName { .. }), "{bad} was taken");
        }
    }
}
