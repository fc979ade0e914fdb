//! Functions other than reading that differ for the engine's captures.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

use crate::abi::{D_IN, D_INOUT, D_OUT, ERROR, Pcap, Program, RealPcap, Stats};
use crate::failure::{self, guarded};
use crate::handle::Handle;
use crate::live::Live;
use crate::real;
use crate::request::Name;
use crate::table::{Given, look_up, real_of};

/// The longest time that a program may wait on the descriptor while the interface is down: the
/// descriptor does not report when the interface comes up.
#[repr(transparent)]
struct Timeout(libc::timeval);
// SAFETY: it is never written to.
unsafe impl Sync for Timeout {}
static ONE_MILLISECOND: Timeout = Timeout(libc::timeval { tv_sec: 0, tv_usec: 1000 });

/// The kind of a handle, for functions that treat the engine's captures differently.
enum Kind {
    Live(&'static Handle, &'static Live),
    Real(*mut RealPcap),
    Nothing,
}

fn kind(pcap: *mut Pcap) -> Kind {
    match look_up(pcap) {
        Given::Ours(handle) => match handle.live() {
            Some(live) => Kind::Live(handle, live),
            None => Kind::Real(handle.real()),
        },
        Given::Foreign(real) => Kind::Real(real),
        Given::Nothing => Kind::Nothing,
    }
}

/// A signal handler may call this function, so it takes no lock and allocates no memory.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_breakloop(pcap: *mut Pcap) {
    match kind(pcap) {
        Kind::Live(_, live) => live.break_off(),
        // SAFETY: the handle is open.
        Kind::Real(real) => unsafe { real::breakloop(real) },
        Kind::Nothing => {}
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_setfilter(pcap: *mut Pcap, program: *mut Program) -> c_int {
    let real = real_of(pcap);
    if real.is_null() {
        return ERROR;
    }
    // The real library validates the program and provides the error text.
    // SAFETY: the handle is open, and the caller follows pcap(3PCAP)'s rules.
    let status = unsafe { real::setfilter(real, program) };
    let Kind::Live(handle, live) = kind(pcap) else { return status };
    if status != 0 {
        return status;
    }
    // SAFETY: the real library accepted the program.
    match guarded(|| unsafe { live.want(&*program) }) {
        Ok(Ok(())) => 0,
        Ok(Err(text)) | Err(text) => handle.fail(&text),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_setdirection(pcap: *mut Pcap, direction: c_int) -> c_int {
    let real = real_of(pcap);
    if real.is_null() {
        return ERROR;
    }
    // SAFETY: the handle is open.
    let status = unsafe { real::setdirection(real, direction) };
    if let Kind::Live(_, live) = kind(pcap)
        && status == 0
        && [D_INOUT, D_IN, D_OUT].contains(&direction)
    {
        live.set_direction(direction);
    }
    status
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_stats(pcap: *mut Pcap, stats: *mut Stats) -> c_int {
    match kind(pcap) {
        Kind::Live(handle, live) => match guarded(|| (live.counts(), live.interface_drops())) {
            Ok(((received, dropped), dropped_by_interface)) => {
                // libpcap's counters have the same width, and wrap around.
                let found = Stats {
                    received: received as u32,
                    dropped: dropped as u32,
                    dropped_by_interface: dropped_by_interface as u32,
                };
                // SAFETY: the caller passes a valid pointer.
                unsafe { *stats = found };
                0
            }
            Err(panic) => handle.fail(&panic),
        },
        // SAFETY: the handle is open, and the caller passes a valid pointer.
        Kind::Real(real) => unsafe { real::stats(real, stats) },
        Kind::Nothing => ERROR,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_fileno(pcap: *mut Pcap) -> c_int {
    match kind(pcap) {
        Kind::Live(_, live) => live.descriptor(),
        // SAFETY: the handle is open.
        Kind::Real(real) => unsafe { real::fileno(real) },
        Kind::Nothing => ERROR,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_get_selectable_fd(pcap: *mut Pcap) -> c_int {
    match kind(pcap) {
        Kind::Live(_, live) => live.descriptor(),
        // SAFETY: the handle is open.
        Kind::Real(real) => unsafe { real::get_selectable_fd(real) },
        Kind::Nothing => ERROR,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_get_required_select_timeout(
    pcap: *mut Pcap,
) -> *const libc::timeval {
    match kind(pcap) {
        Kind::Live(_, live) if live.is_down() => &raw const ONE_MILLISECOND.0,
        Kind::Live(..) | Kind::Nothing => ptr::null(),
        // SAFETY: the handle is open.
        Kind::Real(real) => unsafe { real::get_required_select_timeout(real) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_setnonblock(
    pcap: *mut Pcap,
    on: c_int,
    errors: *mut c_char,
) -> c_int {
    match kind(pcap) {
        Kind::Live(handle, live) => {
            // The real library sets the mode of its descriptor, and fails if it has none.
            // SAFETY: the handle is open, and the caller passes an error buffer.
            let status = unsafe { real::setnonblock(handle.real(), on, errors) };
            if status == 0 {
                live.set_nonblocking(on != 0);
            }
            status
        }
        // SAFETY: the handle is open, and the caller passes an error buffer.
        Kind::Real(real) => unsafe { real::setnonblock(real, on, errors) },
        Kind::Nothing => ERROR,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_getnonblock(pcap: *mut Pcap, errors: *mut c_char) -> c_int {
    match kind(pcap) {
        Kind::Live(_, live) => live.is_nonblocking().into(),
        // SAFETY: the handle is open, and the caller passes an error buffer.
        Kind::Real(real) => unsafe { real::getnonblock(real, errors) },
        Kind::Nothing => ERROR,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_inject(
    pcap: *mut Pcap,
    frame: *const c_void,
    bytes: usize,
) -> c_int {
    match kind(pcap) {
        Kind::Live(handle, live) if (1..=c_int::MAX as usize).contains(&bytes) => {
            send(handle, live, frame, bytes)
        }
        // The real library rejects invalid lengths with its own error text.
        _ => {
            let real = real_of(pcap);
            // SAFETY: the handle is open, and the caller guarantees that the frame has this many
            // bytes.
            if real.is_null() { ERROR } else { unsafe { real::inject(real, frame, bytes) } }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_sendpacket(
    pcap: *mut Pcap,
    frame: *const c_uchar,
    bytes: c_int,
) -> c_int {
    match kind(pcap) {
        Kind::Live(handle, live) if bytes > 0 => {
            send(handle, live, frame.cast(), bytes.unsigned_abs() as usize).min(0)
        }
        _ => {
            let real = real_of(pcap);
            // SAFETY: as in `pcap_inject`.
            if real.is_null() { ERROR } else { unsafe { real::sendpacket(real, frame, bytes) } }
        }
    }
}

/// Sends a frame and returns its length.
fn send(handle: &Handle, live: &Live, frame: *const c_void, bytes: usize) -> c_int {
    let flags = if live.is_nonblocking() { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: the program guarantees that the frame has this many bytes, and the kernel only reads
    // them.
    let sent = unsafe { libc::send(live.sender().as_raw_fd(), frame, bytes, flags) };
    match c_int::try_from(sent) {
        Ok(sent @ 0..) => sent,
        _ => {
            let errno = io::Error::last_os_error().raw_os_error().unwrap_or_default();
            handle.fail(&failure::system("send", errno))
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_geterr(pcap: *mut Pcap) -> *mut c_char {
    let real = real_of(pcap);
    if real.is_null() {
        return c"the handle is closed or invalid".as_ptr().cast_mut();
    }
    // SAFETY: the handle is open.
    unsafe { real::geterr(real) }
}

/// The network of an interface; the device name may include receive queues.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_lookupnet(
    device: *const c_char,
    network: *mut u32,
    mask: *mut u32,
    errors: *mut c_char,
) -> c_int {
    // SAFETY: pcap(3PCAP) requires null or a string.
    let name = Name::of_device(&unsafe { failure::text(device) });
    let interface = name.queues.and_then(|_| std::ffi::CString::new(name.interface).ok());
    let device = interface.as_ref().map_or(device, |interface| interface.as_ptr());
    // SAFETY: the caller follows pcap(3PCAP)'s rules.
    unsafe { real::lookupnet(device, network, mask, errors) }
}
