//! Waiting for the right to change the program attached to an interface.

use std::thread;
use std::time::{Duration, Instant};

use crate::device::DeviceSummary;
use crate::error::OpenError;
use crate::xdp::claim::random;
use crate::xdp::hook::{AttachLock, take_attach_lock};

/// Maximum time to wait while one process has its turn; a turn takes some 50 ms.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(2);
/// The maximum: if other users have bound names, two claims may see each other, and must not retry
/// at the same time again and again.
const PAUSE_MAX: Duration = Duration::from_millis(8);

/// Waits for the right. The caller must not hold a lock that ending a capture needs.
pub(crate) fn wait(device: &DeviceSummary) -> Result<AttachLock, OpenError> {
    let mut last_holder = None;
    let mut since = Instant::now();

    loop {
        let contended = match take_attach_lock(device) {
            Err(OpenError::Contended { interface, holder }) => {
                OpenError::Contended { interface, holder }
            }
            taken => return taken,
        };
        if let OpenError::Contended { holder, .. } = &contended
            && last_holder.as_ref() != Some(holder)
        {
            (last_holder, since) = (Some(holder.clone()), Instant::now());
        }

        if since.elapsed() >= PATIENCE {
            return Err(contended);
        }

        thread::sleep(PAUSE + (PAUSE_MAX - PAUSE).mul_f64(random() as f64 / u64::MAX as f64));
    }
}
