//! What takes a capture's packets: a stream, written by the capturing thread; or files, written by
//! another thread.

use std::thread;
use std::time::Duration;

use wirecap_savefile::{Interface, Record, Statistics, Timestamp, WriteError};

/// Takes packets and writes them.
pub trait Outlet {
    /// Whether it accepts this many bytes of packets without waiting: in all of its memory if
    /// `all`, otherwise in the part with the lowest cost.
    fn has_room(&mut self, bytes: usize, all: bool) -> bool {
        let _ = (bytes, all);
        true
    }

    /// Gives it `pause` to make room.
    fn wait_for_room(&mut self, pause: Duration) -> Result<(), WriteError> {
        thread::sleep(pause);
        Ok(())
    }

    /// Takes a packet, which came at `now` if it has no time; `false` if the recording is over by
    /// its rules.
    fn write(&mut self, packet: &Record<'_>, now: Timestamp) -> Result<bool, WriteError>;

    /// As [`write`](Self::write), for a packet of one of all interfaces: the interface has this
    /// number, and is described when its first packet comes.
    fn write_of(
        &mut self,
        number: usize,
        describe: &dyn Fn() -> Interface,
        packet: &Record<'_>,
        now: Timestamp,
    ) -> Result<bool, WriteError>;

    /// Hands on the accepted packets.
    fn flush(&mut self) -> Result<(), WriteError>;

    /// Whether handed-on packets remain to be written.
    fn is_writing(&self) -> bool {
        false
    }

    /// No earlier packet will follow.
    fn look_at_clock(&mut self, now: Timestamp) -> Result<(), WriteError> {
        let _ = now;
        Ok(())
    }

    /// Ends the file, if there may be another one.
    fn rotate(&mut self) -> Result<(), WriteError> {
        Ok(())
    }

    /// Packets that were taken.
    fn packets(&self) -> u64;

    /// The size of the packets: `4.1 KiB`.
    fn extent(&self) -> String;

    /// Writes the interfaces' counts, if there are any, and everything that is still in memory; how
    /// many packets were written whole. `of_any` are those of [`write_of`](Self::write_of), by
    /// number.
    fn end(&mut self, counts: &[Statistics], of_any: &[Statistics]) -> Result<u64, WriteError>;

    /// Packets that the reader of a pipe ended without.
    fn unread(&self) -> u64 {
        0
    }
}

/// The interfaces that a file describes before its first packet.
#[derive(Debug, Default)]
pub struct Described {
    /// Those that the capture names, in its order.
    pub named: Vec<Interface>,
    /// The first of all interfaces, by number: see [`Outlet::write_of`].
    pub of_any: Vec<Interface>,
}

impl Described {
    /// All of them, in the order of the file.
    pub fn all(&self) -> impl Iterator<Item = &Interface> {
        self.named.iter().chain(&self.of_any)
    }
}
