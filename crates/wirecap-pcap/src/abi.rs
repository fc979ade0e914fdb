//! The declarations of `pcap.h` and `pcap/bpf.h` that this library uses.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_uchar, c_uint};

use wirecap::filter::ClassicInsn;

/// What programs hold as a `pcap_t`: a slot in the [table](crate::table).
#[repr(C)]
pub(crate) struct Pcap {
    _private: [u8; 0],
}

/// The real library's `pcap_t`.
#[repr(C)]
pub(crate) struct RealPcap {
    _private: [u8; 0],
}

/// `struct pcap_pkthdr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PacketHeader {
    pub(crate) seconds: c_long,
    /// Microseconds, or nanoseconds on request.
    pub(crate) fraction: c_long,
    pub(crate) captured_bytes: c_uint,
    pub(crate) wire_bytes: c_uint,
}
const _: () = assert!(size_of::<PacketHeader>() == size_of::<libc::timeval>() + 8);

/// `struct pcap_stat`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) received: c_uint,
    pub(crate) dropped: c_uint,
    pub(crate) dropped_by_interface: c_uint,
}

/// `struct bpf_program`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) insn_count: c_uint,
    pub(crate) insns: *mut Insn,
}

impl Program {
    /// The instructions.
    ///
    /// # Safety
    ///
    /// `insns` must point to `insn_count` instructions.
    pub(crate) unsafe fn classic(&self) -> Vec<ClassicInsn> {
        // SAFETY: guaranteed by the caller.
        let insns = unsafe { std::slice::from_raw_parts(self.insns, self.insn_count as usize) };
        insns.iter().map(|&Insn { code, jt, jf, k }| ClassicInsn { code, jt, jf, k }).collect()
    }
}

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Insn {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

/// `pcap_handler`. It may unwind: language bindings throw exceptions through this library.
pub(crate) type Callback =
    unsafe extern "C-unwind" fn(*mut c_uchar, *const PacketHeader, *const c_uchar);

/// `PCAP_ERROR` and other error codes.
pub(crate) const ERROR: c_int = -1;
pub(crate) const ERROR_BREAK: c_int = -2;
pub(crate) const ERROR_NO_SUCH_DEVICE: c_int = -5;
pub(crate) const ERROR_PERM_DENIED: c_int = -8;
pub(crate) const ERROR_PROMISC_PERM_DENIED: c_int = -11;

/// Bytes of a caller's error buffer (`PCAP_ERRBUF_SIZE`).
pub(crate) const ERRBUF_BYTES: usize = 256;

/// `DLT_EN10MB`.
pub(crate) const DLT_ETHERNET: c_int = 1;
/// `PCAP_TSTAMP_HOST`: timestamps of the kernel.
pub(crate) const TSTAMP_HOST: c_int = 0;
/// `PCAP_TSTAMP_PRECISION_NANO`.
pub(crate) const PRECISION_NANO: c_int = 1;

/// `pcap_direction_t`.
pub(crate) const D_INOUT: c_int = 0;
pub(crate) const D_IN: c_int = 1;
pub(crate) const D_OUT: c_int = 2;
