//! A handle: one of the real library, and a capture of the engine if the engine captures.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::abi::{ERROR, RealPcap};
use crate::live::Live;
use crate::read_lock::ReadLock;
use crate::request::Request;
use crate::{failure, real};

/// The state behind a `pcap_t *` of this library.
pub(crate) struct Handle {
    real: AtomicPtr<RealPcap>,
    /// The real library's handle has failed to activate, and not all of its settings are those of
    /// `request`.
    is_spent: AtomicBool,
    /// The settings of a handle for a live capture, until it is activated.
    request: Mutex<Option<Request>>,
    /// The engine's capture.
    live: OnceLock<Live>,
    pub(crate) turn: ReadLock,
}

impl Handle {
    pub(crate) fn new(real: *mut RealPcap, request: Option<Request>) -> Self {
        Self {
            real: AtomicPtr::new(real),
            is_spent: AtomicBool::new(false),
            request: Mutex::new(request),
            live: OnceLock::new(),
            turn: ReadLock::new(),
        }
    }

    /// The real library's handle.
    #[inline]
    pub(crate) fn real(&self) -> *mut RealPcap {
        self.real.load(Ordering::Acquire)
    }

    /// Replaces the real library's handle and returns the old one.
    pub(crate) fn replace_real(&self, real: *mut RealPcap) -> *mut RealPcap {
        self.real.swap(real, Ordering::AcqRel)
    }

    /// Whether the real library's handle must be replaced before it is activated.
    pub(crate) fn is_spent(&self) -> bool {
        self.is_spent.load(Ordering::Relaxed)
    }

    pub(crate) fn set_spent(&self, is_spent: bool) {
        self.is_spent.store(is_spent, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn live(&self) -> Option<&Live> {
        self.live.get()
    }

    /// Makes the engine's capture the source of packets.
    pub(crate) fn go_live(&self, live: Live) {
        // A handle is activated once. If two threads activate it at the same time, the second
        // capture is dropped.
        let _ = self.live.set(live);
    }

    pub(crate) fn request(&self) -> MutexGuard<'_, Option<Request>> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores `text` for `pcap_geterr` and returns `PCAP_ERROR`.
    pub(crate) fn fail(&self, text: &str) -> c_int {
        // SAFETY: the real library's error buffer of this handle has PCAP_ERRBUF_SIZE + 1 bytes.
        unsafe { failure::write(real::geterr(self.real()), text) };
        ERROR
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        drop(self.live.take());
        // SAFETY: the handle is open and has no other user.
        unsafe { real::close(self.real()) };
    }
}
