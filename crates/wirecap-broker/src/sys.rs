//! What needs `unsafe`: memory that another process shares, descriptors by number, and the signal of a refused call.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use wirecap_filter::opener::Umem;

use crate::system_calls;

/// The descriptor of this number, which a request for a program names.
pub(crate) fn borrowed<'a>(descriptor: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the number stands in a program's instructions; who asks for the program has the map open until the request is
    // answered, or else the message cannot be sent. -1 is no number of a descriptor.
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
        // SAFETY: a fresh mapping at a place of the kernel's choosing overlaps nothing. This process never looks into it.
        let base = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
        Ok(Self { base, bytes })
    }

    /// This memory, as the UMEM of `socket`.
    pub(crate) fn as_umem<'a>(&self, socket: BorrowedFd<'a>, cell_bytes: u32) -> Umem<'a> {
        // SAFETY: what the kernel writes goes to pages of the file, of which this process uses none; it keeps them when
        // the mapping is gone. The asking process has made the promise for its own mapping.
        unsafe { Umem::new(socket, None, self.base as u64, self.bytes as u64, cell_bytes) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing in this process points into it.
        let _ = unsafe { munmap(self.base, self.bytes) };
    }
}

/// One entry for each system call that was refused already.
static NAMED: [AtomicBool; 1024] = [const { AtomicBool::new(false) }; 1024];

/// From now on a call that the system-call filter refuses is named on standard error, once each, and fails with EPERM.
pub(crate) fn name_refused_calls() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = refused;
    // SAFETY: a zeroed action is one without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: the handler has the signature that SA_SIGINFO demands, and does only what signal-safety(7) allows.
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
    // SAFETY: the kernel passes a whole `siginfo_t`, which is larger, and SIGSYS comes from the filter.
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
            // SAFETY: the bytes are a slice's. Nothing can be done if standard error is closed.
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
