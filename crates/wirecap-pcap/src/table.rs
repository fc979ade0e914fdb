//! The table whose places programs hold as their `pcap_t *`.
//!
//! A handle is recognised by its address: one that was closed, or never opened, finds its place empty, and
//! one of the real library's own lies outside the table. Looking one up takes no lock, so a signal handler
//! may. Places are used again as late as possible.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::c_char;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::abi::{Pcap, RealPcap};
use crate::handle::Handle;
use crate::request::Request;
use crate::{failure, real};

/// More handles than a process has descriptors for.
const PLACES: usize = 1 << 16;
const PLACE_BYTES: usize = size_of::<AtomicPtr<Handle>>();

static TABLE: [AtomicPtr<Handle>; PLACES] = [const { AtomicPtr::new(ptr::null_mut()) }; PLACES];
static FREE: Mutex<Free> = Mutex::new(Free { unused: 0, left: VecDeque::new() });

/// The places without a handle.
struct Free {
    /// From here on no place was ever used.
    unused: usize,
    /// Places that were left, the one left first in front.
    left: VecDeque<usize>,
}

impl Free {
    fn take(&mut self) -> Option<usize> {
        // An unused place is better than one whose former holder may still use it.
        if self.unused < PLACES {
            self.unused += 1;
            return Some(self.unused - 1);
        }
        self.left.pop_front()
    }
}

/// A handle as passed by a program.
#[derive(Clone, Copy)]
pub(crate) enum Given {
    /// A handle.
    Ours(&'static Handle),
    /// A handle of the real library's own: it calls us where it means itself.
    Foreign(*mut RealPcap),
    /// Null, or a handle that was closed.
    Nothing,
}

/// Looks a handle up.
#[inline]
pub(crate) fn look_up(pcap: *mut Pcap) -> Given {
    let offset = pcap.addr().wrapping_sub(TABLE.as_ptr().addr());
    match TABLE.get(offset / PLACE_BYTES) {
        Some(place) => {
            let handle = place.load(Ordering::Acquire);
            if handle.is_null() || !offset.is_multiple_of(PLACE_BYTES) {
                return Given::Nothing;
            }
            // SAFETY: handles in the table are freed by `pcap_close` only, after they were taken out; what
            // happens to who uses a handle while closing it is what happens with libpcap.
            Given::Ours(unsafe { &*handle })
        }
        None if pcap.is_null() => Given::Nothing,
        None => Given::Foreign(pcap.cast()),
    }
}

/// Whether it is a place of the table, and no handle of the real library's.
pub(crate) fn is_place(pcap: *const Pcap) -> bool {
    pcap.addr().wrapping_sub(TABLE.as_ptr().addr()) < PLACES * PLACE_BYTES
}

/// Puts a handle in; gives it back if there are too many.
pub(crate) fn insert(handle: Box<Handle>) -> Result<*mut Pcap, Box<Handle>> {
    let Some(place) = FREE.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Err(handle) };
    TABLE[place].store(Box::into_raw(handle), Ordering::Release);
    Ok((&raw const TABLE[place]).cast_mut().cast())
}

/// Takes a handle out; the caller decides when to free it. `None` if it is not there any more.
pub(crate) fn remove(pcap: *mut Pcap) -> Option<*mut Handle> {
    let place = pcap.addr().wrapping_sub(TABLE.as_ptr().addr()) / PLACE_BYTES;
    let handle = TABLE.get(place)?.swap(ptr::null_mut(), Ordering::AcqRel);
    if handle.is_null() {
        return None;
    }
    FREE.lock().unwrap_or_else(PoisonError::into_inner).left.push_back(place);
    Some(handle)
}

/// Gives a handle of the real library's a place in the table; null stays null.
///
/// # Safety
///
/// `real` must be null, or open and without another user, and `errors` as for [`failure::write`].
pub(crate) unsafe fn adopt(real: *mut RealPcap, request: Option<Request>, errors: *mut c_char) -> *mut Pcap {
    // The real library may have called us for its return value.
    if real.is_null() || is_place(real.cast()) {
        return real.cast();
    }
    real::prepare_for_signals();
    insert(Box::new(Handle::new(real, request))).unwrap_or_else(|_too_many| {
        // SAFETY: the caller's promise.
        unsafe { failure::write(errors, "too many handles are open") };
        ptr::null_mut()
    })
}

/// The real library's handle behind a program's handle; null if there is none.
#[inline]
pub(crate) fn real_of(pcap: *mut Pcap) -> *mut RealPcap {
    match look_up(pcap) {
        Given::Ours(handle) => handle.real(),
        Given::Foreign(real) => real,
        Given::Nothing => ptr::null_mut(),
    }
}
