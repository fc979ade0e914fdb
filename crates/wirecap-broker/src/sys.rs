//! All uses of `unsafe`: memory shared with another process, descriptors by number, and the signal of a refused
//! call.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use wirecap_filter::opener::Umem;

use crate::system_calls;

/// The descriptor with this number, to which a request for a program refers.
pub(crate) fn borrowed<'a>(descriptor: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the number is in a program's instructions. The caller that requests the program keeps the map open until the
    // request is answered, or else the message cannot be sent. -1 is not a descriptor.
    unsafe { BorrowedFd::borrow_raw(descriptor.max(0)) }
}

/// Memory that another process has mapped as well, for the time of a registration.
#[derive(Debug)]
pub(crate) struct Shared {
    base: *mut core::ffi::c_void,
    bytes: usize,
}

impl Shared {
    /// Maps the first `bytes` of `file`.
    pub(crate) fn map(file: impl AsFd, bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel selects overlaps nothing. This process never reads it.
        let base = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
        Ok(Self { base, bytes })
    }

    /// This memory, as the UMEM of `socket`.
    pub(crate) fn as_umem<'a>(&self, socket: BorrowedFd<'a>, cell_bytes: u32) -> Umem<'a> {
        // SAFETY: the kernel writes to pages of the file, of which this process uses none; the kernel keeps
        // the pages when the mapping is gone. The requesting process guarantees the same for its mapping.
        unsafe { Umem::new(socket, None, self.base as u64, self.bytes as u64, cell_bytes) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing in this process points into it.
        let _ = unsafe { munmap(self.base, self.bytes) };
    }
}

/// One entry for each system call that was already refused.
static NAMED: [AtomicBool; 1024] = [const { AtomicBool::new(false) }; 1024];

/// From now on a call that the system-call filter refuses fails with EPERM, and is named on standard error once.
pub(crate) fn name_refused_calls() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = refused;
    // SAFETY: a zeroed action is one without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: the handler has the signature required by SA_SIGINFO, and makes only calls that signal-safety(7)
    // allows.
    match unsafe { libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn refused(_signal: libc::c_int, information: *mut libc::siginfo_t, context: *mut libc::c_void) {
    /// The head of `siginfo_t` for SIGSYS (`_sigsys` in the kernel's `asm-generic/siginfo.h`).
    #[repr(C)]
    struct RefusedCall {
        head: [libc::c_int; 4],
        address: usize,
        number: libc::c_int,
        architecture: libc::c_uint,
    }
    // SAFETY: the kernel passes a complete `siginfo_t`, which is larger, and the filter raises SIGSYS.
    let number = unsafe { (*information.cast::<RefusedCall>()).number };
    // SAFETY: the kernel passes the interrupted thread's context, which it loads again when this returns: the call fails
    // with EPERM.
    unsafe { answer(context.cast(), -i64::from(libc::EPERM)) };
    let known = usize::try_from(number).ok().and_then(|number| NAMED.get(number));
    if known.is_some_and(|known| !known.swap(true, Ordering::Relaxed)) {
        let mut digits = [b'0'; 4];
        let mut rest = number;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let (name, number) = match system_calls::name(number.into()) {
            Some(name) => (name, &[][..]),
            None => ("of number ", &digits[..]),
        };
        for part in [
            b"wirecap: a system call was rejected after privileges were dropped: ",
            name.as_bytes(),
            number,
            b"\n",
        ] {
            // SAFETY: pointer and length are those of a slice. An error is ignored, because standard error may
            // be closed.
            let _ = unsafe { libc::write(2, part.as_ptr().cast(), part.len()) };
        }
    }
}

/// Sets what the interrupted system call returns.
///
/// # Safety
///
/// `context` is the one that the kernel passed to a handler of SIGSYS.
#[cfg(target_arch = "x86_64")]
unsafe fn answer(context: *mut libc::ucontext_t, value: i64) {
    // SAFETY: the caller's promise.
    unsafe { (*context).uc_mcontext.gregs[libc::REG_RAX as usize] = value };
}

/// As above.
#[cfg(target_arch = "aarch64")]
unsafe fn answer(context: *mut libc::ucontext_t, value: i64) {
    // SAFETY: the caller's promise.
    unsafe { (*context).uc_mcontext.regs[0] = value.cast_unsigned() };
}
