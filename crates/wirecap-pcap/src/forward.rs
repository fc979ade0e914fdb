//! Functions that do not concern live packets: they are forwarded to the real library.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};
use std::ptr::{null, null_mut};

use libc::FILE;

use crate::abi::{ERROR, Insn, PacketHeader, Pcap, Program, RealPcap};
use crate::real::Symbol;
use crate::table::{adopt, real_of};

/// The default of functions without a return value.
const NOTHING: () = ();

/// Looks up a function of the real library; without it, returns the default from the calling
/// function.
macro_rules! real_function {
    ($name:ident, $function:ty, $default:expr) => {{
        const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(
            concat!(stringify!($name), "\0").as_bytes(),
        ) {
            Ok(name) => name,
            Err(_) => panic!("a name has no zero byte"),
        };
        // SAFETY: pcap.h declares this type.
        static SYMBOL: Symbol<$function> = unsafe { Symbol::new(NAME) };
        match SYMBOL.get() {
            Some(function) => function,
            None => return $default,
        }
    }};
}

/// Functions that take no handle.
macro_rules! forward {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)? = $default:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $kind),*) $(-> $result)? {
            let function =
                real_function!($name, unsafe extern "C-unwind" fn($($kind),*) $(-> $result)?, $default);
            // SAFETY: the caller follows pcap(3PCAP)'s rules.
            unsafe { function($($argument),*) }
        }
    )*};
}

/// Functions whose first argument is a handle, which is replaced with the real library's handle.
macro_rules! forward_handle {
    ($(fn $name:ident(pcap $(, $argument:ident: $kind:ty)*) $(-> $result:ty)? = $default:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(pcap: *mut Pcap $(, $argument: $kind)*) $(-> $result)? {
            let function = real_function!(
                $name, unsafe extern "C-unwind" fn(*mut RealPcap $(, $kind)*) $(-> $result)?, $default
            );
            let real = real_of(pcap);
            if real.is_null() {
                return $default;
            }
            // SAFETY: the handle is open, and the caller follows pcap(3PCAP)'s rules.
            unsafe { function(real $(, $argument)*) }
        }
    )*};
}

/// Functions that open a handle.
macro_rules! forward_open {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) with $errors:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> *mut Pcap {
            let function =
                real_function!($name, unsafe extern "C-unwind" fn($($kind),*) -> *mut RealPcap, null_mut());
            // SAFETY: the caller follows pcap(3PCAP)'s rules; the returned handle is open and has
            // no other user.
            unsafe { adopt(function($($argument),*), None, $errors) }
        }
    )*};
}

forward_open! {
    fn pcap_open_dead(kind: c_int, bytes: c_int) with null_mut();
    fn pcap_open_dead_with_tstamp_precision(kind: c_int, bytes: c_int, precision: c_uint) with null_mut();
    fn pcap_open_offline(path: *const c_char, errors: *mut c_char) with errors;
    fn pcap_open_offline_with_tstamp_precision(path: *const c_char, precision: c_uint, errors: *mut c_char) with errors;
    fn pcap_fopen_offline(file: *mut FILE, errors: *mut c_char) with errors;
    fn pcap_fopen_offline_with_tstamp_precision(file: *mut FILE, precision: c_uint, errors: *mut c_char) with errors;
}

forward_handle! {
    fn pcap_can_set_rfmon(pcap) -> c_int = ERROR;
    fn pcap_list_tstamp_types(pcap, types: *mut *mut c_int) -> c_int = ERROR;
    fn pcap_get_tstamp_precision(pcap) -> c_int = ERROR;
    fn pcap_datalink(pcap) -> c_int = ERROR;
    fn pcap_datalink_ext(pcap) -> c_int = ERROR;
    fn pcap_list_datalinks(pcap, links: *mut *mut c_int) -> c_int = ERROR;
    fn pcap_set_datalink(pcap, link: c_int) -> c_int = ERROR;
    fn pcap_snapshot(pcap) -> c_int = ERROR;
    fn pcap_is_swapped(pcap) -> c_int = ERROR;
    fn pcap_major_version(pcap) -> c_int = ERROR;
    fn pcap_minor_version(pcap) -> c_int = ERROR;
    fn pcap_bufsize(pcap) -> c_int = ERROR;
    fn pcap_file(pcap) -> *mut FILE = null_mut();
    fn pcap_perror(pcap, prefix: *const c_char) = NOTHING;
    fn pcap_compile(pcap, program: *mut Program, text: *const c_char, optimize: c_int, mask: u32) -> c_int = ERROR;
    fn pcap_dump_open(pcap, path: *const c_char) -> *mut c_void = null_mut();
    fn pcap_dump_fopen(pcap, file: *mut FILE) -> *mut c_void = null_mut();
    fn pcap_dump_open_append(pcap, path: *const c_char) -> *mut c_void = null_mut();
}

forward! {
    fn pcap_init(options: c_uint, errors: *mut c_char) -> c_int = ERROR;
    fn pcap_lib_version() -> *const c_char = c"wirecap, without libpcap".as_ptr();
    fn pcap_strerror(number: c_int) -> *const c_char = c"".as_ptr();
    fn pcap_statustostr(status: c_int) -> *const c_char = c"".as_ptr();
    fn pcap_findalldevs(list: *mut *mut c_void, errors: *mut c_char) -> c_int = ERROR;
    fn pcap_freealldevs(list: *mut c_void) = NOTHING;
    fn pcap_lookupdev(errors: *mut c_char) -> *mut c_char = null_mut();
    fn pcap_free_tstamp_types(types: *mut c_int) = NOTHING;
    fn pcap_free_datalinks(links: *mut c_int) = NOTHING;
    fn pcap_datalink_name_to_val(name: *const c_char) -> c_int = ERROR;
    fn pcap_datalink_val_to_name(link: c_int) -> *const c_char = null();
    fn pcap_datalink_val_to_description(link: c_int) -> *const c_char = null();
    fn pcap_datalink_val_to_description_or_dlt(link: c_int) -> *const c_char = null();
    fn pcap_tstamp_type_name_to_val(name: *const c_char) -> c_int = ERROR;
    fn pcap_tstamp_type_val_to_name(kind: c_int) -> *const c_char = null();
    fn pcap_tstamp_type_val_to_description(kind: c_int) -> *const c_char = null();
    fn pcap_compile_nopcap(
        bytes: c_int, link: c_int, program: *mut Program, text: *const c_char, optimize: c_int, mask: u32
    ) -> c_int = ERROR;
    fn pcap_freecode(program: *mut Program) = NOTHING;
    fn pcap_offline_filter(program: *const Program, header: *const PacketHeader, packet: *const c_uchar) -> c_int = 0;
    fn bpf_filter(insns: *const Insn, packet: *const c_uchar, wire: c_uint, bytes: c_uint) -> c_uint = 0;
    fn bpf_validate(insns: *const Insn, count: c_int) -> c_int = 0;
    fn bpf_image(insn: *const Insn, index: c_int) -> *mut c_char = null_mut();
    fn bpf_dump(program: *const Program, form: c_int) = NOTHING;
    fn pcap_dump(dumper: *mut c_uchar, header: *const PacketHeader, packet: *const c_uchar) = NOTHING;
    fn pcap_dump_close(dumper: *mut c_void) = NOTHING;
    fn pcap_dump_file(dumper: *mut c_void) -> *mut FILE = null_mut();
    fn pcap_dump_flush(dumper: *mut c_void) -> c_int = ERROR;
    fn pcap_dump_ftell(dumper: *mut c_void) -> libc::c_long = -1;
    fn pcap_dump_ftell64(dumper: *mut c_void) -> i64 = -1;
    fn pcap_nametoaddr(name: *const c_char) -> *mut *mut u32 = null_mut();
    fn pcap_nametoaddrinfo(name: *const c_char) -> *mut libc::addrinfo = null_mut();
    fn pcap_nametonetaddr(name: *const c_char) -> u32 = 0;
    fn pcap_nametoport(name: *const c_char, port: *mut c_int, protocol: *mut c_int) -> c_int = 0;
    fn pcap_nametoportrange(name: *const c_char, low: *mut c_int, high: *mut c_int, protocol: *mut c_int) -> c_int = 0;
    fn pcap_nametoproto(name: *const c_char) -> c_int = ERROR;
    fn pcap_nametoeproto(name: *const c_char) -> c_int = ERROR;
    fn pcap_nametollc(name: *const c_char) -> c_int = ERROR;
    fn pcap_ether_aton(text: *const c_char) -> *mut c_uchar = null_mut();
    fn pcap_ether_hostton(name: *const c_char) -> *mut c_uchar = null_mut();
    fn pcap_next_etherent(file: *mut FILE) -> *mut c_void = null_mut();
}
