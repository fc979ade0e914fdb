//! Reading: `pcap_loop`, `pcap_dispatch`, `pcap_next` and `pcap_next_ex`.
//!
//! A callback may do anything: call other functions of its handle, read from it, close it, throw an
//! exception, or jump out of the read. So while it runs, nothing is borrowed and no lock is held,
//! and the state for the next read is stored before.
//!
//! A read waits without a time limit until packets arrive, as in libpcap since TPACKET_V3. If a
//! filter runs in user space on `xdp`, the read also continues while only non-matching packets
//! arrive, unless the program has requested the descriptor. A read that was left by throw, longjmp
//! or cancellation is detected by its stack frame, or by the end of its thread. `pcap_next` returns
//! a pointer into the block or chunk; the last packet of a block or chunk is copied, so that the
//! block is returned before the next read.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uchar};
use std::ptr;

use crate::abi::{Callback, ERROR, ERROR_BREAK, PacketHeader, Pcap};
use crate::failure::guarded;
use crate::handle::Handle;
use crate::live::{Batch, Delivered, Found, Live};
use crate::read_lock::Seat;
use crate::real;
use crate::table::{Given, look_up};

/// The number of packets that are filtered together, before the callback gets the first of them.
const BATCH: usize = 64;
/// The same for the first packets of a wake-up: their places are not in the caches, and a wake-up
/// may find only a few hundred packets.
const FIRST_BATCH: usize = 16;
/// The number of packets of a wake-up after which batches are full.
const FIRST_PACKETS: c_int = 256;
/// The error if a second thread reads.
const BUSY: &str = "the handle is being read by another thread";

/// A live handle, and the right to read from it.
struct Reading {
    handle: &'static Handle,
    live: &'static Live,
    seat: Seat,
}

impl Reading {
    #[unsafe(link_section = "wirecap_wakeup")]
    fn begin(handle: &'static Handle, live: &'static Live) -> Option<Self> {
        let Some(seat) = handle.turn.enter() else {
            handle.fail(BUSY);
            return None;
        };
        // If this read comes from a callback of another read, that one must check its packets
        // again.
        live.disturb();
        Some(Self { handle, live, seat })
    }

    /// Ends the read. Frees the handle if it was closed meanwhile.
    #[unsafe(link_section = "wirecap_wakeup")]
    fn end(self, outcome: c_int) -> c_int {
        // SAFETY: we have the turn. Packets that were handed out are valid only until now, except
        // the one that `keep` returned, which stays valid.
        unsafe { self.live.tidy() };
        let was_closed = self.handle.turn.is_closed();

        // The handle may also be closed between these two calls. After `leave`, another thread may
        // have freed it.
        let is_ours_to_free = self.handle.turn.leave(self.seat);
        if is_ours_to_free {
            // SAFETY: the pointer came from a `Box`, is no longer in the table, and `leave` or
            // `close` returns true only once.
            let _ =
                guarded(|| drop(unsafe { Box::from_raw(ptr::from_ref(self.handle).cast_mut()) }));
        }

        if was_closed || is_ours_to_free { ERROR_BREAK } else { outcome }
    }

    fn failed(&self, found: Found) -> c_int {
        match found {
            Found::Nothing | Found::Packets => 0,
            Found::Broken => ERROR_BREAK,
            Found::Failed(text) => self.handle.fail(&text),
        }
    }

    /// Hands packets to `callback`, at most `limit`, as `pcap_dispatch` does.
    #[inline]
    #[unsafe(link_section = "wirecap_wakeup")]
    fn dispatch(&self, limit: c_int, callback: Callback, user: *mut c_uchar) -> c_int {
        let limit = if limit <= 0 { c_int::MAX } else { limit };
        let mut count = 0;
        let mut batch = Batch::<BATCH>::new();

        loop {
            // SAFETY: we have the turn.
            if let Err(found) = unsafe { self.live.wait() } {
                return self.failed(found);
            }

            loop {
                let at_a_time = if count < FIRST_PACKETS { FIRST_BATCH } else { BATCH };
                let left = (limit.abs_diff(count) as usize).min(at_a_time);

                // SAFETY: we have the turn, and packets are no longer valid after their callback
                // has returned.
                match unsafe { self.live.next_there(&mut batch, left) } {
                    Found::Packets => {}
                    Found::Nothing => break,
                    // A persistent error occurs again at the next read.
                    Found::Failed(_) if count > 0 => return count,
                    found => return self.failed(found),
                }

                let handed_out = match batch.is_sifted() {
                    true => self.hand_out::<true>(&batch, callback, user),
                    false => self.hand_out::<false>(&batch, callback, user),
                };
                match handed_out {
                    Ok(handed_out) => count += handed_out,
                    Err(outcome) => return outcome,
                }

                if count >= limit {
                    return if self.live.was_broken_off() { ERROR_BREAK } else { count };
                }
            }

            if count > 0 || !self.live.is_endless() {
                return count;
            }
        }
    }

    /// Hands packets to `callback` until an event invalidates the rest of the batch; returns the
    /// number handed out.
    #[inline]
    fn hand_out<const SIFTED: bool>(
        &self,
        batch: &Batch<BATCH>,
        callback: Callback,
        user: *mut c_uchar,
    ) -> Result<c_int, c_int> {
        let mut packets = batch.packets().iter();
        while let Some(packet) = packets.next() {
            // SAFETY: we have the turn, and there was no read since these packets were filtered.
            // The program guarantees that the callback is valid; header and data stay valid until
            // it returns.
            unsafe {
                self.live.hand_out::<SIFTED>(packet);
                callback(user, &raw const packet.header, packet.data);
            }
            if self.live.is_disturbed(batch) && !self.goes_on(batch, packet)? {
                return Ok((batch.packets().len() - packets.len()) as c_int);
            }
        }

        // SAFETY: as above.
        unsafe { self.live.finish(batch) };
        Ok(batch.packets().len() as c_int)
    }

    /// Whether the rest of `batch` after `packet` is still valid. An error is the return value of
    /// the read.
    #[cold]
    fn goes_on(&self, batch: &Batch<BATCH>, packet: &Delivered) -> Result<bool, c_int> {
        if self.handle.turn.is_closed() {
            return Err(ERROR_BREAK);
        }
        // SAFETY: we have the turn.
        Ok(unsafe { self.live.goes_on(batch, packet) } && !self.live.is_broken_off())
    }

    /// The next packet, as in `pcap_next_ex`.
    fn next(&self) -> Result<(*mut PacketHeader, *const u8), c_int> {
        loop {
            // SAFETY: we have the turn, and the packets of the last read are no longer valid; this
            // packet is the one that was handed out last.
            if let Some(packet) = unsafe { self.live.take_ahead() } {
                // SAFETY: as above.
                return Ok(unsafe { self.live.keep(&packet) });
            }

            // SAFETY: as above.
            let found = unsafe {
                match self.live.wait() {
                    Err(found) => return Err(self.failed(found)),
                    Ok(()) => self.live.look_ahead(),
                }
            };
            match found {
                Found::Packets => {}
                Found::Nothing if self.live.is_endless() => {}
                found => return Err(self.failed(found)),
            }
        }
    }
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "wirecap_wakeup")]
unsafe extern "C-unwind" fn pcap_dispatch(
    pcap: *mut Pcap,
    count: c_int,
    callback: Option<Callback>,
    user: *mut c_uchar,
) -> c_int {
    let Some(callback) = callback else { return ERROR };
    let handle = match look_up(pcap) {
        Given::Ours(handle) => handle,
        Given::Foreign(foreign) => {
            // SAFETY: a handle of the real library; the caller follows pcap(3PCAP)'s rules.
            return unsafe { real::dispatch(foreign, count, callback, user) };
        }
        Given::Nothing => return ERROR,
    };
    match handle.live() {
        None => read_real(handle, |real| {
            // SAFETY: the handle is open, and the caller follows pcap(3PCAP)'s rules.
            unsafe { real::dispatch(real, count, callback, user) }
        }),
        Some(live) => {
            let Some(reading) = Reading::begin(handle, live) else { return ERROR };
            let outcome = reading.dispatch(count, callback, user);
            reading.end(outcome)
        }
    }
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "wirecap_wakeup")]
pub(crate) unsafe extern "C-unwind" fn pcap_loop(
    pcap: *mut Pcap,
    count: c_int,
    callback: Option<Callback>,
    user: *mut c_uchar,
) -> c_int {
    let Some(callback) = callback else { return ERROR };
    let handle = match look_up(pcap) {
        Given::Ours(handle) => handle,
        Given::Foreign(foreign) => {
            // SAFETY: as in `pcap_dispatch`.
            return unsafe { real::pcap_loop(foreign, count, callback, user) };
        }
        Given::Nothing => return ERROR,
    };
    let Some(live) = handle.live() else {
        // SAFETY: as in `pcap_dispatch`.
        return read_real(handle, |real| unsafe { real::pcap_loop(real, count, callback, user) });
    };
    let Some(reading) = Reading::begin(handle, live) else { return ERROR };
    let mut left = count;
    let outcome = loop {
        match reading.dispatch(left, callback, user) {
            0 => {}
            error if error < 0 => break error,
            _ if count <= 0 => {}
            read => {
                left -= read;
                if left <= 0 {
                    break 0;
                }
            }
        }
    };
    reading.end(outcome)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pcap_next_ex(
    pcap: *mut Pcap,
    header: *mut *mut PacketHeader,
    data: *mut *const c_uchar,
) -> c_int {
    let handle = match look_up(pcap) {
        Given::Ours(handle) => handle,
        // SAFETY: as in `pcap_dispatch`.
        Given::Foreign(foreign) => return unsafe { real::next_ex(foreign, header, data) },
        Given::Nothing => return ERROR,
    };
    let Some(live) = handle.live() else {
        // SAFETY: as in `pcap_dispatch`.
        return read_real(handle, |real| unsafe { real::next_ex(real, header, data) });
    };
    let Some(reading) = Reading::begin(handle, live) else { return ERROR };
    let outcome = match reading.next() {
        Ok((found_header, found_data)) => {
            // SAFETY: the caller passes valid pointers for both.
            unsafe { (*header, *data) = (found_header, found_data) };
            1
        }
        Err(outcome) => {
            // Some programs read the length before they check the return value.
            // SAFETY: we have the turn, and the caller passes a valid pointer.
            unsafe { *header = live.header() };
            outcome
        }
    };
    reading.end(outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_next(
    pcap: *mut Pcap,
    header: *mut PacketHeader,
) -> *const c_uchar {
    let handle = match look_up(pcap) {
        Given::Ours(handle) => handle,
        // SAFETY: as in `pcap_dispatch`.
        Given::Foreign(foreign) => return unsafe { real::next(foreign, header) },
        Given::Nothing => return ptr::null(),
    };
    let Some(live) = handle.live() else {
        // SAFETY: as in `pcap_dispatch`.
        return read_real(handle, |real| unsafe { real::next(real, header) });
    };
    let Some(reading) = Reading::begin(handle, live) else { return ptr::null() };
    let found = reading.next();
    let data = found.map_or(ptr::null(), |(found_header, data)| {
        // SAFETY: the caller passes a valid pointer for the header; the other header belongs to the
        // handle.
        unsafe { *header = *found_header };
        data
    });
    reading.end(0);
    data
}

/// Reads from the real library's handle. As in libpcap, other readers are not excluded.
fn read_real<T>(handle: &'static Handle, read: impl FnOnce(*mut crate::abi::RealPcap) -> T) -> T {
    read(handle.real())
}
