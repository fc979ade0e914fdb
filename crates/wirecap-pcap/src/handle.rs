//! A handle: the real library's, and perhaps a capture of the engine's.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::abi::{ERROR, RealPcap};
use crate::live::Live;
use crate::request::Request;
use crate::turn::Turn;
use crate::{failure, real};

/// The state behind a `pcap_t *` of this library.
pub(crate) struct Handle {
    real: AtomicPtr<RealPcap>,
    /// Of handles for live captures, as long as they are not activated.
    request: Mutex<Option<Request>>,
    /// The engine's capture.
    live: OnceLock<Live>,
    pub(crate) turn: Turn,
}

impl Handle {
    pub(crate) fn new(real: *mut RealPcap, request: Option<Request>) -> Self {
        Self {
            real: AtomicPtr::new(real),
            request: Mutex::new(request),
            live: OnceLock::new(),
            turn: Turn::new(),
        }
    }

    /// The real library's handle.
    #[inline]
    pub(crate) fn real(&self) -> *mut RealPcap {
        self.real.load(Ordering::Acquire)
    }

    /// Has another handle of the real library's from now on, and gives the old one.
    pub(crate) fn replace_real(&self, real: *mut RealPcap) -> *mut RealPcap {
        self.real.swap(real, Ordering::AcqRel)
    }

    #[inline]
    pub(crate) fn live(&self) -> Option<&Live> {
        self.live.get()
    }

    /// Packets come from the engine from now on.
    pub(crate) fn go_live(&self, live: Live) {
        // A handle is activated once; the capture of a second thread at the same moment is dropped.
        let _ = self.live.set(live);
    }

    pub(crate) fn request(&self) -> MutexGuard<'_, Option<Request>> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `text` where `pcap_geterr` finds it.
    pub(crate) fn fail(&self, text: &str) -> c_int {
        // SAFETY: the real library's buffer of this handle has PCAP_ERRBUF_SIZE bytes and one more.
        unsafe { failure::write(real::geterr(self.real()), text) };
        ERROR
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        drop(self.live.take());
        // SAFETY: it is open, and has no other user any more.
        unsafe { real::close(self.real()) };
    }
}
