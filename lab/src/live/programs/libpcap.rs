//! The core of programs that use libpcap: `pcap_loop` and a callback. With several rings it has a
//! handle and a thread per ring, joined by PACKET_FANOUT on the handles' sockets.
//!
//! libpcap is opened at run time, as for filters: the lab does not need its header.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_uint};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use libloading::Library;

use super::handler::{Handler, Options};
use super::ring::{Fanout, join_fanout};
use super::{Count, Dropped, Report, on_threads};
use crate::live::Outcome;

/// The names of the library, with the development package and without.
const NAMES: [&str; 3] = ["libpcap.so.1", "libpcap.so.0.8", "libpcap.so"];
const SNAP_LEN: c_int = 65_535;
const TIMEOUT_MS: c_int = 10;

/// What to receive and how.
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    /// Interface to receive from
    #[arg(short, long)]
    interface: String,
    /// Handles, each with a thread
    #[arg(long, default_value_t = 1)]
    threads: u16,
    /// Who gets a packet
    #[arg(long, value_enum, default_value_t = Fanout::Qm)]
    fanout: Fanout,
    /// Memory of each handle, in MiB
    #[arg(long, default_value_t = 16)]
    buffer: u32,
    /// Immediate mode, in which libpcap uses TPACKET_V2
    #[arg(long)]
    immediate: bool,
    #[command(flatten)]
    handler: Options,
}

/// `pcap_t`, which is opaque.
#[repr(C)]
struct Raw {
    _private: [u8; 0],
}

/// `struct pcap_pkthdr`.
#[repr(C)]
struct Header {
    time: libc::timeval,
    captured_bytes: u32,
    wire_bytes: u32,
}

/// `struct pcap_stat`.
#[repr(C)]
#[derive(Default)]
struct Statistics {
    received: c_uint,
    dropped: c_uint,
    dropped_by_interface: c_uint,
}

type Callback = unsafe extern "C" fn(*mut c_uchar, *const Header, *const c_uchar);

/// The functions of a libpcap, which stays loaded for as long as the process lives.
#[derive(Clone, Copy)]
struct Libpcap {
    create: unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut Raw,
    set_snaplen: unsafe extern "C" fn(*mut Raw, c_int) -> c_int,
    set_promisc: unsafe extern "C" fn(*mut Raw, c_int) -> c_int,
    set_timeout: unsafe extern "C" fn(*mut Raw, c_int) -> c_int,
    set_buffer_size: unsafe extern "C" fn(*mut Raw, c_int) -> c_int,
    set_immediate_mode: unsafe extern "C" fn(*mut Raw, c_int) -> c_int,
    activate: unsafe extern "C" fn(*mut Raw) -> c_int,
    fileno: unsafe extern "C" fn(*mut Raw) -> c_int,
    run_loop: unsafe extern "C" fn(*mut Raw, c_int, Callback, *mut c_uchar) -> c_int,
    dispatch: unsafe extern "C" fn(*mut Raw, c_int, Callback, *mut c_uchar) -> c_int,
    set_nonblock: unsafe extern "C" fn(*mut Raw, c_int, *mut c_char) -> c_int,
    break_loop: unsafe extern "C" fn(*mut Raw),
    stats: unsafe extern "C" fn(*mut Raw, *mut Statistics) -> c_int,
    get_error: unsafe extern "C" fn(*mut Raw) -> *mut c_char,
    lib_version: unsafe extern "C" fn() -> *const c_char,
}

impl Libpcap {
    fn open() -> Outcome<Self> {
        // SAFETY: libpcap's constructors have no harmful effects.
        let opened = NAMES.iter().map(|name| unsafe { Library::new(name) });
        let library = opened.reduce(Result::or).ok_or("a library has a name")?;
        let library: &'static Library = Box::leak(Box::new(library?));

        // SAFETY: the signatures are those of pcap.h, which libpcap does not change.
        unsafe {
            Ok(Self {
                create: *library.get(b"pcap_create\0")?,
                set_snaplen: *library.get(b"pcap_set_snaplen\0")?,
                set_promisc: *library.get(b"pcap_set_promisc\0")?,
                set_timeout: *library.get(b"pcap_set_timeout\0")?,
                set_buffer_size: *library.get(b"pcap_set_buffer_size\0")?,
                set_immediate_mode: *library.get(b"pcap_set_immediate_mode\0")?,
                activate: *library.get(b"pcap_activate\0")?,
                fileno: *library.get(b"pcap_fileno\0")?,
                run_loop: *library.get(b"pcap_loop\0")?,
                dispatch: *library.get(b"pcap_dispatch\0")?,
                set_nonblock: *library.get(b"pcap_setnonblock\0")?,
                break_loop: *library.get(b"pcap_breakloop\0")?,
                stats: *library.get(b"pcap_stats\0")?,
                get_error: *library.get(b"pcap_geterr\0")?,
                lib_version: *library.get(b"pcap_lib_version\0")?,
            })
        }
    }
}

/// The version text of the system's libpcap.
///
/// # Errors
///
/// When there is none.
pub fn version() -> Outcome<String> {
    let libpcap = Libpcap::open()?;
    // SAFETY: the text is a constant of the library.
    let text = unsafe { CStr::from_ptr((libpcap.lib_version)()) };
    Ok(text.to_string_lossy().into_owned())
}

/// Receives until it is interrupted.
///
/// # Errors
///
/// When libpcap refuses.
pub fn run(arguments: &Arguments) -> Outcome<()> {
    let libpcap = Libpcap::open()?;
    let handler = Handler::new(&arguments.handler)?;
    let open = |_| Handle::open(libpcap, arguments);
    let handles = (0..arguments.threads).map(open).collect::<Outcome<Vec<Handle>>>()?;
    if arguments.threads > 1 {
        handles.iter().try_for_each(|handle| handle.join(arguments.fanout))?;
    }
    let count = on_threads(handles, &arguments.interface, &handler, |handle, handler, stopped| {
        handle.receive(handler, stopped)
    })?;
    Report::print(count, &handler)
}

/// A `pcap_t`, open until the process ends.
#[derive(Clone, Copy)]
struct Handle {
    libpcap: Libpcap,
    raw: NonNull<Raw>,
}

// SAFETY: libpcap does not tie a handle to a thread. `pcap_breakloop` is the only function called
// while another thread uses the handle, and is designed for that.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// The callback's state.
struct Work {
    handler: Handler,
    count: Count,
}

impl Handle {
    fn open(libpcap: Libpcap, arguments: &Arguments) -> Outcome<Self> {
        let device = CString::new(&*arguments.interface)?;
        let mut message: [c_char; 256] = [0; 256];

        // SAFETY: the name ends in a zero, and libpcap writes no more than PCAP_ERRBUF_SIZE (256)
        // bytes.
        let raw = unsafe { (libpcap.create)(device.as_ptr(), message.as_mut_ptr()) };
        let handle = Self { libpcap, raw: NonNull::new(raw).ok_or("pcap_create")? };
        let buffer_bytes = (arguments.buffer * 1024 * 1024) as c_int;
        let raw = handle.raw.as_ptr();

        // SAFETY: the handle is new and not active yet.
        let status = unsafe {
            (libpcap.set_snaplen)(raw, SNAP_LEN);
            (libpcap.set_promisc)(raw, 1);
            (libpcap.set_timeout)(raw, TIMEOUT_MS);
            (libpcap.set_buffer_size)(raw, buffer_bytes);
            (libpcap.set_immediate_mode)(raw, arguments.immediate.into());
            (libpcap.activate)(raw)
        };
        if status < 0 { Err(handle.error()) } else { Ok(handle) }
    }

    fn error(&self) -> Box<dyn std::error::Error + Send + Sync> {
        // SAFETY: the text belongs to the handle and ends in a zero.
        let text = unsafe { CStr::from_ptr((self.libpcap.get_error)(self.raw.as_ptr())) };
        format!("libpcap: {}", text.to_string_lossy()).into()
    }

    fn join(&self, fanout: Fanout) -> Outcome<()> {
        // SAFETY: the handle is active, so it has a socket, which stays open as long as the handle.
        let socket = unsafe { BorrowedFd::borrow_raw((self.libpcap.fileno)(self.raw.as_ptr())) };
        Ok(join_fanout(&socket, fanout)?)
    }

    fn receive(self, handler: Handler, stopped: &AtomicBool) -> Outcome<Count> {
        let mut work = Work { handler, count: Count::default() };
        let done = AtomicBool::new(false);

        let status = thread::scope(|scope| {
            scope.spawn(|| self.break_when(stopped, &done));
            let user = std::ptr::from_mut(&mut work).cast();
            // SAFETY: the callback gets `work`, which has no other user until the loop is over.
            let status =
                unsafe { (self.libpcap.run_loop)(self.raw.as_ptr(), -1, handle_packet, user) };
            done.store(true, Ordering::Relaxed);
            self.drain(user);
            status
        });
        const BROKEN: c_int = -2;

        if status != BROKEN {
            return Err(self.error());
        }

        let mut statistics = Statistics::default();

        // SAFETY: libpcap writes its three numbers.
        if unsafe { (self.libpcap.stats)(self.raw.as_ptr(), &mut statistics) } < 0 {
            return Err(self.error());
        }

        work.count.dropped = Dropped { no_cell: statistics.dropped.into(), ring_full: 0 };
        Ok(work.count)
    }

    /// Processes the packets left in the ring.
    fn drain(&self, user: *mut c_uchar) {
        let (mut message, raw): ([c_char; 256], _) = ([0; 256], self.raw.as_ptr());
        // SAFETY: libpcap writes no more than PCAP_ERRBUF_SIZE (256) bytes.
        unsafe { (self.libpcap.set_nonblock)(raw, 1, message.as_mut_ptr()) };
        // The first return may only report that the loop was broken.
        let mut idle = 0;
        while idle < 2 {
            // SAFETY: as in the loop, which is over.
            let handled = unsafe { (self.libpcap.dispatch)(raw, -1, handle_packet, user) };
            idle = if handled > 0 { 0 } else { idle + 1 };
        }
    }

    fn break_when(&self, stopped: &AtomicBool, done: &AtomicBool) {
        while !stopped.load(Ordering::Relaxed) && !done.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10));
        }
        // SAFETY: may be called while another thread is in the loop.
        unsafe { (self.libpcap.break_loop)(self.raw.as_ptr()) };
    }
}

unsafe extern "C" fn handle_packet(
    user: *mut c_uchar,
    header: *const Header,
    data: *const c_uchar,
) {
    // SAFETY: `user` is the `Work` that was passed to the loop, and libpcap guarantees header and
    // data.
    let (work, header, data) = unsafe {
        let header = &*header;
        let data = std::slice::from_raw_parts(data, header.captured_bytes as usize);
        (&mut *user.cast::<Work>(), header, data)
    };
    work.count.packet(data, header.wire_bytes);
    work.handler.packet(data, header.wire_bytes);
}
