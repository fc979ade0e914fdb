//! The table of handles. A program's `pcap_t *` is the address of a slot.
//!
//! A handle is recognised by its address: the slot of a handle that was closed or never opened is
//! empty, and a handle of the real library is outside the table. Looking a handle up and removing
//! it take no lock and allocate no memory, so a signal handler may do both. Slots are taken in
//! turn, so a slot is reused as late as possible: a program may still use the handle that it
//! closed.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::abi::{Pcap, RealPcap};
use crate::handle::Handle;
use crate::request::Request;
use crate::{failure, real};

/// The maximum number of open handles.
const PLACES: usize = 1 << 16;
const PLACE_BYTES: usize = size_of::<AtomicPtr<Handle>>();

static TABLE: [AtomicPtr<Handle>; PLACES] = [const { AtomicPtr::new(ptr::null_mut()) }; PLACES];
/// The number of slots tried so far: the next one to try, modulo the number of places.
static TRIED: AtomicUsize = AtomicUsize::new(0);

/// A handle as passed by a program.
#[derive(Clone, Copy)]
pub(crate) enum Given {
    /// A handle of this library.
    Ours(&'static Handle),
    /// A handle of the real library, whose calls to its own functions reach this library.
    Foreign(*mut RealPcap),
    /// Null, or a handle that was closed.
    Nothing,
}

/// Looks up a handle.
#[inline]
pub(crate) fn look_up(pcap: *mut Pcap) -> Given {
    let offset = pcap.addr().wrapping_sub(TABLE.as_ptr().addr());
    match TABLE.get(offset / PLACE_BYTES) {
        Some(place) => {
            let handle = place.load(Ordering::Acquire);
            if handle.is_null() || !offset.is_multiple_of(PLACE_BYTES) {
                return Given::Nothing;
            }
            // SAFETY: a handle is freed only after `pcap_close` has removed it from the table.
            // Using a handle while another thread closes it is undefined, as with libpcap.
            Given::Ours(unsafe { &*handle })
        }
        None if pcap.is_null() => Given::Nothing,
        None => Given::Foreign(pcap.cast()),
    }
}

/// Whether it is a slot of the table, and not a handle of the real library.
pub(crate) fn is_place(pcap: *const Pcap) -> bool {
    pcap.addr().wrapping_sub(TABLE.as_ptr().addr()) < PLACES * PLACE_BYTES
}

/// Adds a handle; returns it as an error if the table is full.
pub(crate) fn insert(handle: Box<Handle>) -> Result<*mut Pcap, Box<Handle>> {
    let handle = Box::into_raw(handle);
    for _ in 0..PLACES {
        let place = &TABLE[TRIED.fetch_add(1, Ordering::Relaxed) % PLACES];
        if place
            .compare_exchange(ptr::null_mut(), handle, Ordering::Release, Ordering::Relaxed)
            .is_ok()
        {
            return Ok(ptr::from_ref(place).cast_mut().cast());
        }
    }
    // SAFETY: it came from a box, and is in no slot.
    Err(unsafe { Box::from_raw(handle) })
}

/// Removes a handle; the caller decides when to free it. `None` if it is no longer in the table.
pub(crate) fn remove(pcap: *mut Pcap) -> Option<*mut Handle> {
    let place = pcap.addr().wrapping_sub(TABLE.as_ptr().addr()) / PLACE_BYTES;
    let handle = TABLE.get(place)?.swap(ptr::null_mut(), Ordering::AcqRel);
    (!handle.is_null()).then_some(handle)
}

/// Adds a handle of the real library to the table; null stays null.
///
/// # Safety
///
/// `real` must be null, or open and without another user, and `errors` as for [`failure::write`].
pub(crate) unsafe fn adopt(
    real: *mut RealPcap,
    request: Option<Request>,
    errors: *mut c_char,
) -> *mut Pcap {
    // The real library may have obtained its return value by calling this library.
    if real.is_null() || is_place(real.cast()) {
        return real.cast();
    }

    real::prepare_for_signals();
    insert(Box::new(Handle::new(real, request))).unwrap_or_else(|_too_many| {
        // SAFETY: guaranteed by the caller.
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
