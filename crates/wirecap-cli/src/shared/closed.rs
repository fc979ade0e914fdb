//! Whether standard output was closed when the process began. Before `main` the standard library
//! opens /dev/null for a closed standard descriptor, and output to it would be lost without an
//! error.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::fcntl_getfd;

const STDOUT: i32 = 1;

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether it was.
pub(crate) fn stdout_was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}

extern "C" fn look() {
    // SAFETY: the descriptor is used for one system call only, which fails if it is not open.
    let stdout = unsafe { BorrowedFd::borrow_raw(STDOUT) };
    WAS_CLOSED.store(fcntl_getfd(stdout).is_err(), Ordering::Relaxed);
}

// SAFETY: the loader calls the functions of this section before `main`; this one uses no part of
// the standard library that requires initialisation.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
