//! QEMU's monitor, which the virtual machine has as a serial port: what happens to a NIC from outside.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::Mutex;

const PORT: &str = "/dev/virtio-ports/monitor";
/// A serial port opens once.
static TURN: Mutex<()> = Mutex::new(());

/// Has QEMU execute a command of its monitor. What it answers stays unread.
///
/// # Errors
///
/// The port's, outside of the virtual machine.
pub(crate) fn execute(command: &str) -> io::Result<()> {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut port = OpenOptions::new().write(true).open(PORT)?;
    port.write_all(format!("{command}\n").as_bytes())
}
