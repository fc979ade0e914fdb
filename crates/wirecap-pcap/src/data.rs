//! The two data objects that libpcap exports. Programs may have copy relocations for them, which
//! depend on the size, so the sizes are those of libpcap 1.10.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, NonNull};

const VERSION: &CStr = c"pcap_version";

/// A symbol that C code could write to, but does not.
#[repr(transparent)]
struct Global<T>(UnsafeCell<T>);

// SAFETY: this library never reads the value, and writes it only in `take_version_of`, before a
// program's first call returns.
unsafe impl<T> Sync for Global<T> {}

/// The real library's version when this was written, until the real library is opened.
#[unsafe(no_mangle)]
static pcap_version: Global<[u8; 7]> = Global(UnsafeCell::new(*b"1.10.3\0"));

/// Copies the real library's version text into `pcap_version`, and into the program's copy of it if
/// there is one. A text of another length is not copied.
pub(crate) fn take_version_of(library: NonNull<c_void>) {
    // SAFETY: the names are strings, and the library is open.
    let (theirs, seen) = unsafe {
        (
            libc::dlsym(library.as_ptr(), VERSION.as_ptr()),
            libc::dlsym(libc::RTLD_DEFAULT, VERSION.as_ptr()),
        )
    };
    if theirs.is_null() {
        return;
    }

    // SAFETY: libpcap's `pcap_version` is a string.
    let theirs = unsafe { CStr::from_ptr(theirs.cast()) }.to_bytes_with_nul();

    for place in [pcap_version.0.get().cast::<c_char>(), seen.cast()] {
        // SAFETY: both strings have this size, and no thread reads them during a program's first
        // call.
        unsafe {
            if !place.is_null()
                && theirs.len() == size_of_val(&pcap_version)
                && theirs.as_ptr() != place.cast()
            {
                place.cast::<u8>().copy_from_nonoverlapping(theirs.as_ptr(), theirs.len());
            }
        }
    }
}

/// `struct eproto`: an Ethernet protocol by name.
#[repr(C)]
struct EthernetProtocol {
    name: *const c_char,
    number: u16,
}

const fn protocol(name: &'static CStr, number: u16) -> EthernetProtocol {
    EthernetProtocol { name: name.as_ptr(), number }
}

#[unsafe(no_mangle)]
static eproto_db: Global<[EthernetProtocol; 13]> = Global(UnsafeCell::new([
    protocol(c"aarp", 0x80f3),
    protocol(c"arp", 0x0806),
    protocol(c"atalk", 0x809b),
    protocol(c"decnet", 0x6003),
    protocol(c"ip", 0x0800),
    protocol(c"ip6", 0x86dd),
    protocol(c"lat", 0x6004),
    protocol(c"loopback", 0x9000),
    protocol(c"mopdl", 0x6001),
    protocol(c"moprc", 0x6002),
    protocol(c"rarp", 0x8035),
    protocol(c"sca", 0x6007),
    EthernetProtocol { name: ptr::null(), number: 0 },
]));

/// Marks this library as wirecap's drop-in, so that it is not mistaken for the real library.
#[unsafe(no_mangle)]
static wirecap_pcap_drop_in: u8 = 1;
