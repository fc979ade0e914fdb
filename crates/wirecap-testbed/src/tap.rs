//! TUN and TAP devices: the frames that the host sends on them come out of a file, and what is
//! written to the file is received by the host.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::{Namespace, SetupError, sys};

/// The longest frame that a device hands over.
const FRAME_BYTES_MAX: usize = 1 << 16;

/// What a device's frames begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapKind {
    /// An Ethernet header.
    Tap,
    /// An IP header.
    Tun,
}

/// Creates a TUN or TAP device, which exists until the file is closed. The device is down.
///
/// # Errors
///
/// [`SetupError`] if /dev/net/tun is missing, the name is in use, or the privilege is missing.
pub fn open_tap(namespace: &Namespace, name: &str, kind: TapKind) -> Result<File, SetupError> {
    let open = || -> io::Result<File> {
        let file = File::options().read(true).write(true).open("/dev/net/tun")?;
        sys::name_tap(&file, name, kind == TapKind::Tun)?;
        Ok(file)
    };
    namespace
        .run_in(open)?
        .map_err(|source| SetupError::interface(name, "create the device", source))
}

/// Opens the character device of a macvtap, as a virtual machine does.
///
/// # Errors
///
/// [`SetupError`] if it is not there, is in use, or the privilege is missing.
pub fn open_macvtap(namespace: &Namespace, path: &Path) -> Result<File, SetupError> {
    let open = || -> io::Result<File> {
        let file = File::options().read(true).write(true).open(path)?;
        // The kernel ignores the name; without this request, frames begin with a header for
        // offloads.
        sys::name_tap(&file, "", false)?;
        Ok(file)
    };
    let failed =
        |source| SetupError::interface(&path.display().to_string(), "open the device", source);
    namespace.run_in(open)?.map_err(failed)
}

/// A cable between two such files, as long as it exists.
#[derive(Debug)]
pub struct TapCable {
    end: Arc<()>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl TapCable {
    /// Copies the frames of each file to the other one.
    pub fn between(a: File, b: File) -> Self {
        let end = Arc::new(());
        let files = [Arc::new(a), Arc::new(b)];

        let copying = [(0, 1), (1, 0)].map(|(from, to)| {
            let from = Arc::clone(&files[from]);
            let to = Arc::clone(&files[to]);
            let is_open = Arc::downgrade(&end);

            thread::spawn(move || {
                let mut frame = vec![0; FRAME_BYTES_MAX];
                while is_open.upgrade().is_some() {
                    copy_frame(&from, &to, &mut frame);
                }
            })
        });
        Self { end, threads: copying.into() }
    }
}

impl Drop for TapCable {
    fn drop(&mut self) {
        self.end = Arc::new(());
        for thread in self.threads.drain(..) {
            let _panicked = thread.join();
        }
    }
}

/// Copies one frame if there is one within a short time. A device that is down loses its frames, as
/// without a cable.
fn copy_frame(mut from: &File, mut to: &File, buffer: &mut [u8]) {
    let limit = Timespec { tv_sec: 0, tv_nsec: Duration::from_millis(50).as_nanos() as i64 };
    match poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&limit)) {
        Ok(0) | Err(Errno::INTR) => {}
        _ => match from.read(buffer) {
            Ok(frame_bytes) => drop(to.write(&buffer[..frame_bytes])),
            Err(_) => thread::sleep(Duration::from_millis(1)),
        },
    }
}
