//! All uses of `unsafe`: memory shared with another process, the terminal, and the signal of a
//! refused call.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use wirecap::privileged::{self, Mapping};

use crate::system_calls;

/// Registers the first `bytes` of `file` as the UMEM of `socket`. The kernel keeps the pages when
/// the mapping is gone.
pub(crate) fn register_umem(
    socket: BorrowedFd<'_>,
    file: &OwnedFd,
    bytes: u64,
    cell_bytes: u32,
) -> io::Result<()> {
    let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mapping = Mapping::unpopulated(file, length)?;
    let address = mapping.base().as_ptr() as u64;
    // SAFETY: the kernel writes to pages of the file, of which this process uses none.
    unsafe { privileged::register_umem(&socket, address, bytes, cell_bytes) }
}

/// From now on the number of `stream` is `file`. Standard streams stay open, whatever they are.
pub(crate) fn replace(stream: BorrowedFd<'_>, file: impl AsFd) -> io::Result<()> {
    // SAFETY: both are open. The number stays a descriptor, of the kind that its users expect: one
    // that they write to or read.
    match unsafe { libc::dup2(file.as_fd().as_raw_fd(), stream.as_raw_fd()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// From now on the process has no controlling terminal, if this is that one.
pub(crate) fn give_up_terminal(terminal: RawFd) -> io::Result<()> {
    // SAFETY: the request has no argument, and the kernel checks the descriptor.
    match unsafe { libc::ioctl(terminal, libc::TIOCNOTTY) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether this process leads its session. The leader may be outside of this process's PID
/// namespace, where it is 0 to the kernel, and a panic to `rustix`.
pub(crate) fn leads_session() -> bool {
    // SAFETY: the calls have no effect.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// One entry for each system call that was already refused.
static NAMED: [AtomicBool; 1024] = [const { AtomicBool::new(false) }; 1024];

/// From now on a call that the system-call filter refuses fails with EPERM, and is named on
/// standard error once.
pub(crate) fn name_refused_calls() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = refused;
    // SAFETY: a zeroed action is one without flags and with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: the handler has the signature required by SA_SIGINFO, and makes only calls that
    // signal-safety(7) allows.
    match unsafe { libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn refused(
    _signal: libc::c_int,
    information: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    /// The head of `siginfo_t` for SIGSYS (`_sigsys` in the kernel's `asm-generic/siginfo.h`).
    #[repr(C)]
    struct RefusedCall {
        head: [libc::c_int; 4],
        address: usize,
        number: libc::c_int,
        architecture: libc::c_uint,
    }

    // SAFETY: the kernel passes a complete `siginfo_t`, which is larger, and the filter raises
    // SIGSYS.
    let number = unsafe { (*information.cast::<RefusedCall>()).number };

    // SAFETY: the kernel passes the interrupted thread's context, which it loads again when this
    // returns: the call fails with EPERM.
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
            // SAFETY: pointer and length are those of a slice. An error is ignored, because
            // standard error may be closed.
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
