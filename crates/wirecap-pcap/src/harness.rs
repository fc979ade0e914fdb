//! For benchmarks: a handle of a capture that is already open, read as programs read it.
#![allow(unsafe_code)]

use std::error::Error;
use std::ffi::{c_int, c_uchar};
use std::ptr;

use wirecap::Capture;

use crate::abi::{DLT_ETHERNET, PacketHeader, Pcap};
use crate::activate::pcap_close;
use crate::live::Live;
use crate::read::{pcap_loop, pcap_next_ex};
use crate::real;
use crate::table::{Given, adopt, look_up};

/// Bytes of a packet that the handle keeps.
const SNAP_LEN: u32 = 262_144;

/// An open handle, as a program has it.
#[derive(Debug)]
pub struct OpenHandle(*mut Pcap);

/// Counts of the packets that a program has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The sum of their first bytes.
    pub first_bytes: u64,
}

impl OpenHandle {
    /// A handle for all rings of `capture`, which must have one worker.
    ///
    /// # Errors
    ///
    /// If the system's libpcap is missing, or if descriptors or shared memory are not available.
    pub fn over(capture: Capture) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let live = Live::over(capture, SNAP_LEN)?;
        // SAFETY: the function has no preconditions; the returned handle is open and has no other
        // user.
        let pcap = unsafe {
            adopt(real::open_dead(DLT_ETHERNET, SNAP_LEN as c_int), None, ptr::null_mut())
        };
        let Given::Ours(handle) = look_up(pcap) else { return Err(real::MISSING.into()) };
        handle.go_live(live);
        Ok(Self(pcap))
    }

    /// Reads `count` packets, which must have arrived, with `pcap_loop`.
    pub fn read_by_loop(&mut self, count: u32) -> Tally {
        let mut tally = Tally::default();
        // SAFETY: the handle is open, and the callback gets the tally, which nothing else uses
        // during the call.
        unsafe { pcap_loop(self.0, count as c_int, Some(tell), (&raw mut tally).cast()) };
        tally
    }

    /// Reads `count` packets, which must have arrived, with `pcap_next_ex`.
    pub fn read_by_next(&mut self, count: u32) -> Tally {
        let mut tally = Tally::default();

        for _ in 0..count {
            let mut header = ptr::null_mut();
            let mut data = ptr::null();

            // SAFETY: the handle is open; header and data are valid until the next call.
            unsafe {
                if pcap_next_ex(self.0, &raw mut header, &raw mut data) != 1 {
                    break;
                }
                tell((&raw mut tally).cast(), header, data);
            }
        }
        tally
    }
}

impl Drop for OpenHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is open, and nothing reads from it.
        unsafe { pcap_close(self.0) };
    }
}

/// A callback that counts each packet and reads its first byte.
///
/// # Safety
///
/// `tally` must point to a [`Tally`] that nothing else uses; header and data must be those of a
/// packet.
unsafe extern "C-unwind" fn tell(
    tally: *mut c_uchar,
    header: *const PacketHeader,
    data: *const c_uchar,
) {
    // SAFETY: guaranteed by the caller.
    let (tally, header) = unsafe { (&mut *tally.cast::<Tally>(), &*header) };
    tally.packets += 1;
    tally.bytes += u64::from(header.wire_bytes);
    if header.captured_bytes > 0 {
        // SAFETY: the packet has at least one byte.
        tally.first_bytes += u64::from(unsafe { data.read() });
    }
}
