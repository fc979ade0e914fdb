//! The two data objects that libpcap exports. Programs may have copied them by their size when they were
//! linked, so sizes are those of libpcap 1.10.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::ptr;

/// What C code may write to, though nobody does.
#[repr(transparent)]
struct Global<T>(UnsafeCell<T>);

// SAFETY: we never look at it.
unsafe impl<T> Sync for Global<T> {}

#[unsafe(no_mangle)]
static pcap_version: Global<[u8; 7]> = Global(UnsafeCell::new(*b"1.10.3\0"));

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

/// What tells a drop-in of wirecap's from the real library.
#[unsafe(no_mangle)]
static wirecap_pcap_drop_in: u8 = 1;
