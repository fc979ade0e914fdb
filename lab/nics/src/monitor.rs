//! QEMU's monitor, available in the virtual machine as a serial port, for external events on a NIC.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::Mutex;

const PORT: &str = "/dev/virtio-ports/monitor";
/// A serial port can be opened only once at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Executes a command in QEMU's monitor. The answer is not read.
///
/// # Errors
///
/// If the port cannot be used, for instance outside of the virtual machine.
pub(crate) fn execute(command: &str) -> io::Result<()> {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut port = OpenOptions::new().write(true).open(PORT)?;
    port.write_all(format!("{command}\n").as_bytes())
}
