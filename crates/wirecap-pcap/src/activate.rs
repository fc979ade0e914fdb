//! From `pcap_create` to an active handle, and `pcap_close`.
//!
//! Inside a callback or a signal handler, `pcap_close` only ends the read, and the reader frees the
//! handle; from another thread, it first stops the capture, because the reader may free the handle
//! as soon as it is marked closed.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use wirecap::device::Device;

use crate::abi::{
    DLT_ETHERNET, ERROR, ERROR_NO_SUCH_DEVICE, ERROR_PERM_DENIED, ERROR_PROMISC_PERM_DENIED, Pcap,
    RealPcap,
};
use crate::failure::{self, guarded};
use crate::group;
use crate::handle::Handle;
use crate::live::Live;
use crate::opening::LiveError;
use crate::request::{Name, Obstacle, Request};
use crate::settings::Settings;
use crate::table::{self, Given, adopt, look_up};
use crate::{real, socket};

/// Requests the smallest ring for the real library's handle, which receives no packets.
const COMPANION_BYTES: c_int = 4096;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_create(device: *const c_char, errors: *mut c_char) -> *mut Pcap {
    // SAFETY: the caller follows pcap(3PCAP)'s rules.
    unsafe {
        let name = (!device.is_null()).then(|| Name::of_device(&failure::text(device)));
        let Some(queues_of) = name.as_ref().filter(|name| name.queues.is_some()) else {
            return adopt(create(device, errors), Some(Request::new(name)), errors);
        };
        let Ok(interface) = CString::new(queues_of.interface.as_str()) else {
            return ptr::null_mut();
        };
        adopt(create(interface.as_ptr(), errors), Some(Request::new(name)), errors)
    }
}

/// Creates an inactive handle of the real library, or writes the error to `errors`.
///
/// # Safety
///
/// As for `pcap_create`.
unsafe fn create(device: *const c_char, errors: *mut c_char) -> *mut RealPcap {
    // SAFETY: guaranteed by the caller; `errors` is written before it is read.
    unsafe {
        if !errors.is_null() {
            errors.write(0);
        }
        let created = real::create(device, errors);
        if created.is_null() && !errors.is_null() && errors.read() == 0 {
            failure::write(errors, real::MISSING);
        }
        created
    }
}

/// Declares setters: each passes the value to the real library's handle, and records it if that
/// accepts it.
macro_rules! setters {
    ($(fn $name:ident as $real:ident($value:ident, $request:ident) $note:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(pcap: *mut Pcap, $value: c_int) -> c_int {
            // SAFETY: `set` passes an open handle.
            set(pcap, |pcap| unsafe { real::$real(pcap, $value) }, |$request| $note)
        }
    )*};
}

setters! {
    fn pcap_set_snaplen as set_snaplen(bytes, request) request.snap_len = Some(bytes);
    fn pcap_set_promisc as set_promisc(on, request) request.promiscuous = Some(on);
    fn pcap_set_rfmon as set_rfmon(on, request) request.rfmon = on;
    fn pcap_set_timeout as set_timeout(millis, request) request.timeout_millis = millis;
    fn pcap_set_buffer_size as set_buffer_size(bytes, request) if bytes > 0 { request.buffer_bytes = bytes };
    fn pcap_set_immediate_mode as set_immediate_mode(on, request) request.immediate = on;
    fn pcap_set_tstamp_type as set_tstamp_type(kind, request) request.tstamp_type = Some(kind);
    fn pcap_set_tstamp_precision as set_tstamp_precision(precision, request) request.precision = precision;
    fn pcap_set_protocol_linux as set_protocol_linux(protocol, request) request.protocol = protocol;
}

fn set(
    pcap: *mut Pcap,
    real: impl FnOnce(*mut RealPcap) -> c_int,
    note: impl FnOnce(&mut Request),
) -> c_int {
    match look_up(pcap) {
        Given::Ours(handle) => {
            let status = real(handle.real());
            if let Some(request) = handle.request().as_mut().filter(|_| status == 0) {
                note(request);
            }
            status
        }
        Given::Foreign(foreign) => real(foreign),
        Given::Nothing => ERROR,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_activate(pcap: *mut Pcap) -> c_int {
    match look_up(pcap) {
        Given::Ours(handle) => {
            guarded(|| activate(handle)).unwrap_or_else(|panic| handle.fail(&panic))
        }
        // SAFETY: an open handle of the real library.
        Given::Foreign(foreign) => unsafe { real::activate(foreign) },
        Given::Nothing => ERROR,
    }
}

fn activate(handle: &Handle) -> c_int {
    let request = handle.request().clone();
    let (Some(request), None) = (request, handle.live()) else {
        // SAFETY: the handle is open.
        return unsafe { real::activate(handle.real()) };
    };
    if handle.is_spent() && !renew(handle, &request) {
        return ERROR;
    }

    let status = match Settings::get() {
        Err(text) => refuse_unopened(handle, text),
        Ok(settings) => match request.served(settings) {
            Ok(device) => activate_engine(handle, &request, device, settings),
            Err(Obstacle::Unknown(reason)) if needs_engine(&request, settings) => {
                refuse_unopened(handle, &reason)
            }
            Err(Obstacle::Unserved(reason) | Obstacle::Unknown(reason)) => {
                tell(settings, || {
                    let device = whole(&request);
                    let libpcap = real::path();
                    format!(
                        "{device} is captured by the system's libpcap, {}: {reason}",
                        libpcap.display()
                    )
                });
                activate_real(handle, &request, &reason)
            }
        },
    };
    if status >= 0 {
        *handle.request() = None;
    } else if request.device.is_some() {
        // The program may activate the handle again. Two of its settings may have been changed, and
        // libpcap (1.10.3) may crash if a handle that failed to activate is activated again.
        handle.set_spent(true);
    }

    status
}

/// Activates a capture by the real library. The engine does not support it for this reason.
fn activate_real(handle: &Handle, request: &Request, reason: &str) -> c_int {
    // SAFETY: the handle is open.
    let status = unsafe { real::activate(handle.real()) };
    let queues = request.device.as_ref().filter(|name| name.queues.is_some());
    match queues {
        // The interface exists, but the engine does not support it. The request was for some of its
        // receive queues, so the whole interface must not be captured.
        Some(name) if status >= 0 => {
            let whole = name.whole();
            refuse(
                handle,
                &format!("{whole}: only wirecap's engine captures single receive queues: {reason}"),
            )
        }
        _ => status,
    }
}

/// Activates a capture by the engine, and the real library's handle, which does everything that
/// does not concern packets.
fn activate_engine(
    handle: &Handle,
    request: &Request,
    device: Device,
    settings: &Settings,
) -> c_int {
    let index = device.index;

    // SAFETY: the handle is open.
    let (status, link_type, snap_len, descriptor) = unsafe {
        let real = handle.real();
        real::set_buffer_size(real, COMPANION_BYTES);
        // One promiscuous socket is enough, and the interface's `promiscuity` counter shows each
        // request.
        real::set_promisc(real, 0);
        let status = real::activate(real);
        if status < 0 {
            return status;
        }
        (status, real::datalink(real), real::snapshot(real), real::fileno(real))
    };
    let silenced = match link_type {
        DLT_ETHERNET => socket::silence(descriptor, index)
            .map_err(|error| LiveError::System("bind libpcap's packet socket", error)),
        _ => Err(LiveError::NoEthernet),
    };
    match silenced.and_then(|()| Live::open(request, device, snap_len.unsigned_abs(), settings)) {
        Ok(live) => {
            tell(settings, || {
                format!("{} is captured by the engine {}", live.name(), live.engine())
            });
            // SAFETY: the handle is open.
            live.set_nonblocking(unsafe { real::getnonblock(handle.real(), ptr::null_mut()) } == 1);
            handle.go_live(live);
            status
        }
        Err(error) if needs_engine(request, settings) => refuse(handle, &error.to_string()),
        Err(error) => {
            tell(settings, || format!("the engine does not support {}: {error}", whole(request)));
            fall_back(handle, request, &error.to_string())
        }
    }
}

/// Whether the engine was requested, or a group or receive queues, which only the engine has.
fn needs_engine(request: &Request, settings: &Settings) -> bool {
    settings.engine.is_some() || group::requested(request, settings).is_some() || is_part(request)
}

/// Fails with `text`. The real library's handle was activated; it is replaced with one that failed
/// to activate, so the handle is as after an error of libpcap: without descriptors, and the program
/// may activate it again.
fn refuse(handle: &Handle, text: &str) -> c_int {
    // SAFETY: the name is a string, the handles are open, and the calls without an error buffer
    // write none when they succeed.
    unsafe {
        let mut errors = [0; crate::abi::ERRBUF_BYTES];
        let failed = real::create(NO_INTERFACE.as_ptr(), errors.as_mut_ptr());
        if !failed.is_null() {
            real::setnonblock(
                failed,
                real::getnonblock(handle.real(), ptr::null_mut()),
                ptr::null_mut(),
            );
            real::activate(failed);
            real::close(handle.replace_real(failed));
        }
    }
    handle.fail(text)
}

/// Fails with `text` before the real library's handle was activated. libpcap (1.10.3) does not
/// close the eventfd of a handle that was never activated.
fn refuse_unopened(handle: &Handle, text: &str) -> c_int {
    // SAFETY: the handle is open.
    unsafe {
        real::set_buffer_size(handle.real(), COMPANION_BYTES);
        real::set_promisc(handle.real(), 0);
        real::activate(handle.real());
    }
    refuse(handle, text)
}

/// Too long for the name of an interface, so that activating it fails before anything is opened.
const NO_INTERFACE: &CStr = c"no interface has this name";

/// Prints which engine captures to standard error, if `verbose` is set.
fn tell(settings: &Settings, text: impl FnOnce() -> String) {
    if settings.verbose {
        let own = crate::find::own_path().unwrap_or_default();
        eprintln!("wirecap: {}: {}", own.display(), text());
    }
}

fn whole(request: &Request) -> String {
    request.device.as_ref().map_or_else(|| "any".to_owned(), Name::whole)
}

/// Whether single receive queues were requested.
fn is_part(request: &Request) -> bool {
    request.device.as_ref().is_some_and(|name| name.queues.is_some())
}

/// Lets the real library capture with the same settings.
fn fall_back(handle: &Handle, request: &Request, reason: &str) -> c_int {
    if !renew(handle, request) {
        return ERROR;
    }
    activate_real(handle, request, reason)
}

/// Replaces the real library's handle with a new, inactive one with the same settings; returns
/// whether that succeeded.
fn renew(handle: &Handle, request: &Request) -> bool {
    let Some(name) = &request.device else { return false };
    let Ok(interface) = CString::new(name.interface.as_str()) else { return false };

    // SAFETY: the name is a string, the new handle is open, and the calls without an error buffer
    // write none when they succeed.
    unsafe {
        let mut errors = [0; crate::abi::ERRBUF_BYTES];
        let new = real::create(interface.as_ptr(), errors.as_mut_ptr());
        if new.is_null() {
            handle.fail(&failure::text(errors.as_ptr()));
            return false;
        }

        request.snap_len.map(|bytes| real::set_snaplen(new, bytes));
        request.promiscuous.map(|on| real::set_promisc(new, on));
        request.tstamp_type.map(|kind| real::set_tstamp_type(new, kind));
        real::set_rfmon(new, request.rfmon);
        real::set_timeout(new, request.timeout_millis);
        real::set_buffer_size(new, request.buffer_bytes);
        real::set_immediate_mode(new, request.immediate);
        real::set_tstamp_precision(new, request.precision);
        real::set_protocol_linux(new, request.protocol);
        real::setnonblock(new, real::getnonblock(handle.real(), ptr::null_mut()), ptr::null_mut());
        real::close(handle.replace_real(new));
    }

    handle.set_spent(false);
    true
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pcap_open_live(
    device: *const c_char,
    snap_len: c_int,
    promiscuous: c_int,
    timeout_millis: c_int,
    errors: *mut c_char,
) -> *mut Pcap {
    // SAFETY: the caller follows pcap(3PCAP)'s rules; the handle is open until it is closed here.
    unsafe {
        let pcap = pcap_create_quietly(device, errors);
        if pcap.is_null() {
            return pcap;
        }
        let mut status = pcap_set_snaplen(pcap, snap_len);
        if status >= 0 {
            status = pcap_set_promisc(pcap, promiscuous);
        }
        if status >= 0 {
            status = pcap_set_timeout(pcap, timeout_millis);
        }
        if status >= 0 {
            status = pcap_activate(pcap);
        }
        if status >= 0 {
            return pcap;
        }
        let name = if device.is_null() { "any".to_owned() } else { failure::text(device) };
        let text = failure::text(real::geterr(crate::table::real_of(pcap)));
        failure::write(errors, &open_error(&name, status, &text));
        pcap_close(pcap);
        ptr::null_mut()
    }
}

/// Like `pcap_create`, but writes to `errors` only on failure.
///
/// # Safety
///
/// As for `pcap_create`.
unsafe fn pcap_create_quietly(device: *const c_char, errors: *mut c_char) -> *mut Pcap {
    let mut own = [0; crate::abi::ERRBUF_BYTES];
    // SAFETY: guaranteed by the caller; both buffers are large enough.
    unsafe {
        let pcap = pcap_create(device, own.as_mut_ptr());
        if pcap.is_null() {
            failure::write(errors, &failure::text(own.as_ptr()));
        }
        pcap
    }
}

/// The error text of `pcap_open_live` for `device`, in libpcap's format.
fn open_error(device: &str, status: c_int, text: &str) -> String {
    // SAFETY: the function accepts any number, and its strings are static.
    let says = || unsafe { failure::text(real::statustostr(status)) };
    match status {
        ERROR => format!("{device}: {text}"),
        ERROR_NO_SUCH_DEVICE | ERROR_PERM_DENIED | ERROR_PROMISC_PERM_DENIED
            if !text.is_empty() =>
        {
            format!("{device}: {} ({text})", says())
        }
        _ => format!("{device}: {}", says()),
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn pcap_close(pcap: *mut Pcap) {
    match look_up(pcap) {
        Given::Ours(handle) => {
            let Some(place) = table::remove(pcap) else { return };
            // The capture is ended before the handle is closed, because a reader may free the
            // handle from then on. A signal handler may have interrupted the reader while that held
            // a lock: then `break_off`, which takes no lock, only ends the read, and the reader
            // frees the handle after the handler has returned.
            match handle.live() {
                Some(live) if handle.turn.is_on_this_stack() => live.break_off(),
                Some(live) => drop(guarded(|| live.end())),
                None => {}
            }
            if handle.turn.close() {
                // SAFETY: the pointer came from a `Box`, is no longer in the table, and no thread
                // reads from the handle.
                let _ = guarded(|| drop(unsafe { Box::from_raw(place) }));
            }
        }
        // SAFETY: an open handle of the real library.
        Given::Foreign(foreign) => unsafe { real::close(foreign) },
        Given::Nothing => {}
    }
}
