//! The carrier of an interface while a capture is opened on it.
//!
//! Many drivers restart the device when a program is attached: igb then has no link for two
//! seconds. Frames sent to the device meanwhile are lost uncounted, so a capture begins when the
//! link is back.

use std::thread;
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::error::OpenError;

/// The maximum time for a link to come back: copper negotiates its speed in up to four seconds.
const PATIENCE: Duration = Duration::from_secs(15);
/// The same if there was none at first: because a capture has just ended, a program was detached,
/// or the cable is unplugged.
const PATIENCE_WITHOUT_HOPE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until `device` has a carrier, and returns the waiting time; `None` if it gets none. It
/// does not wait for a virtual interface that had none before, whose other end is down.
///
/// # Errors
///
/// [`OpenError::Device`] if the kernel does not answer.
pub(super) fn await_carrier(device: &Device) -> Result<Option<Duration>, OpenError> {
    let started = Instant::now();
    let patience = match device {
        Device { carrier: true, .. } => PATIENCE,
        device if device.is_hardware() => PATIENCE_WITHOUT_HOPE,
        _ => Duration::ZERO,
    };

    loop {
        if device.has_carrier_now()? {
            return Ok(Some(started.elapsed()));
        }
        if started.elapsed() >= patience {
            return Ok(None);
        }
        thread::sleep(PAUSE);
    }
}
