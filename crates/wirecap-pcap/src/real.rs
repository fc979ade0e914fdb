//! The system's libpcap. It is opened at the first call of a function, so that loading this library
//! does not change the heap: a faulty program that depends on the heap's contents at `main` behaves
//! as with libpcap.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::marker::PhantomData;
use std::mem::transmute_copy;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::{Callback, Insn, PacketHeader, Program, RealPcap, Stats};
use crate::{data, find};

/// The opened library, which is never closed.
struct Library {
    handle: NonNull<c_void>,
    path: PathBuf,
}

// SAFETY: the loader's functions accept its handles from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();

/// The library; prints the error once on standard error if it is missing.
fn library() -> Option<NonNull<c_void>> {
    let library = LIBRARY.get_or_init(|| {
        let mut tried = String::new();

        for path in find::candidates() {
            match open(&path) {
                Ok(handle) => {
                    data::take_version_of(handle);
                    return Some(Library { handle, path });
                }
                Err(reason) => tried += &format!(" ({}: {reason})", path.display()),
            }
        }

        eprintln!("{MISSING}{tried}");
        None
    });
    library.as_ref().map(|library| library.handle)
}

/// The real library's file; empty if there is none.
pub(crate) fn path() -> &'static Path {
    let library = LIBRARY.get().and_then(Option::as_ref);
    library.map_or(Path::new(""), |library| &library.path)
}

/// The error if there is no real library.
pub(crate) const MISSING: &str =
    "wirecap: the system's libpcap was not found; install it, or name it in WIRECAP_REAL_LIBPCAP";

/// Opens the library such that its calls to its own functions stay inside it, although this library
/// exports the same names.
///
/// A sanitizer's runtime does not support the flag for this, `RTLD_DEEPBIND`. Without it, such
/// calls reach this library with handles of the real library, and are forwarded.
fn open(path: &Path) -> Result<NonNull<c_void>, String> {
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| "the path contains a NUL byte".to_owned())?;

    // SAFETY: the symbol's name is a string.
    let has = |name: &CStr| !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null();
    let sanitized = has(c"__asan_init") || has(c"__tsan_init");
    let own_calls = if sanitized { 0 } else { libc::RTLD_DEEPBIND };

    // SAFETY: the name is a string, and libpcap's initialisers have no preconditions.
    let library =
        unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | own_calls) };
    let library = NonNull::new(library).ok_or_else(last_error)?;

    // SAFETY: the library is open.
    let is_ours =
        !unsafe { libc::dlsym(library.as_ptr(), c"wirecap_pcap_drop_in".as_ptr()) }.is_null();
    if is_ours {
        // SAFETY: nothing in the library is in use.
        unsafe { libc::dlclose(library.as_ptr()) };
        return Err("it is wirecap's own".to_owned());
    }

    Ok(library)
}

/// The loader's last error in this thread.
fn last_error() -> String {
    // SAFETY: the function has no preconditions.
    let text = unsafe { libc::dlerror() };
    match text.is_null() {
        true => "the loader does not say why".to_owned(),
        // SAFETY: the string is valid until this thread's next call of the loader.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    }
}

/// Looks up the functions that a signal handler may call before there is a handle, because the
/// loader takes locks and allocates memory.
pub(crate) fn prepare_for_signals() {
    // If a function is missing, a call of it returns the default.
    let _ = (symbol::breakloop.get(), symbol::stats.get(), symbol::close.get());
}

/// A function of the real library, looked up at its first use.
pub(crate) struct Symbol<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Symbol<F> {
    /// # Safety
    ///
    /// `F` must be the function pointer type of the function with this name.
    pub(crate) const unsafe fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()), kind: PhantomData }
    }

    /// The function; `None` if the real library does not have it or is missing.
    #[inline]
    pub(crate) fn get(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            address = self.look_up()?.as_ptr();
        }
        // SAFETY: the sizes are equal, the address is that of a function, and the caller of `new`
        // guarantees its type.
        Some(unsafe { transmute_copy(&address) })
    }

    #[cold]
    fn look_up(&self) -> Option<NonNull<c_void>> {
        // SAFETY: the library is never closed, and the name is a string.
        let address = unsafe { libc::dlsym(library()?.as_ptr(), self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
        NonNull::new(address)
    }
}

/// The default of functions without a return value.
const NOTHING: () = ();

/// Declares functions that call those of the real library, or return a default if it is missing.
macro_rules! functions {
    ($($name_of:literal fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)? = $default:expr;)*) => {
        /// The functions under the names that this library uses for them.
        #[allow(non_upper_case_globals, reason = "they are named like the functions that call them")]
        mod symbol {
            use super::*;
            $(
                pub(super) static $name: Symbol<unsafe extern "C-unwind" fn($($kind),*) $(-> $result)?> = {
                    // SAFETY: pcap.h declares this type.
                    unsafe { Symbol::new($name_of) }
                };
            )*
        }
        $(
            /// The real library's function.
            ///
            /// # Safety
            ///
            /// As documented in pcap(3PCAP) for this function.
            pub(crate) unsafe fn $name($($argument: $kind),*) $(-> $result)? {
                match symbol::$name.get() {
                    // SAFETY: guaranteed by the caller.
                    Some(function) => unsafe { function($($argument),*) },
                    None => $default,
                }
            }
        )*
    };
}

functions! {
    c"pcap_create" fn create(device: *const c_char, errors: *mut c_char) -> *mut RealPcap = ptr::null_mut();
    c"pcap_open_dead" fn open_dead(kind: c_int, bytes: c_int) -> *mut RealPcap = ptr::null_mut();
    c"pcap_activate" fn activate(pcap: *mut RealPcap) -> c_int = -1;
    c"pcap_close" fn close(pcap: *mut RealPcap) = NOTHING;
    c"pcap_breakloop" fn breakloop(pcap: *mut RealPcap) = NOTHING;
    c"pcap_geterr" fn geterr(pcap: *mut RealPcap) -> *mut c_char = ptr::null_mut();
    c"pcap_strerror" fn strerror(number: c_int) -> *const c_char = ptr::null();
    c"pcap_statustostr" fn statustostr(status: c_int) -> *const c_char = c"?".as_ptr();
    c"pcap_set_snaplen" fn set_snaplen(pcap: *mut RealPcap, bytes: c_int) -> c_int = -1;
    c"pcap_set_promisc" fn set_promisc(pcap: *mut RealPcap, on: c_int) -> c_int = -1;
    c"pcap_set_rfmon" fn set_rfmon(pcap: *mut RealPcap, on: c_int) -> c_int = -1;
    c"pcap_set_timeout" fn set_timeout(pcap: *mut RealPcap, millis: c_int) -> c_int = -1;
    c"pcap_set_buffer_size" fn set_buffer_size(pcap: *mut RealPcap, bytes: c_int) -> c_int = -1;
    c"pcap_set_immediate_mode" fn set_immediate_mode(pcap: *mut RealPcap, on: c_int) -> c_int = -1;
    c"pcap_set_tstamp_type" fn set_tstamp_type(pcap: *mut RealPcap, kind: c_int) -> c_int = -1;
    c"pcap_set_tstamp_precision" fn set_tstamp_precision(pcap: *mut RealPcap, precision: c_int) -> c_int = -1;
    c"pcap_set_protocol_linux" fn set_protocol_linux(pcap: *mut RealPcap, protocol: c_int) -> c_int = -1;
    c"pcap_datalink" fn datalink(pcap: *mut RealPcap) -> c_int = -1;
    c"pcap_snapshot" fn snapshot(pcap: *mut RealPcap) -> c_int = -1;
    c"pcap_fileno" fn fileno(pcap: *mut RealPcap) -> c_int = -1;
    c"pcap_get_selectable_fd" fn get_selectable_fd(pcap: *mut RealPcap) -> c_int = -1;
    c"pcap_get_required_select_timeout"
        fn get_required_select_timeout(pcap: *mut RealPcap) -> *const libc::timeval = ptr::null();
    c"pcap_setnonblock" fn setnonblock(pcap: *mut RealPcap, on: c_int, errors: *mut c_char) -> c_int = -1;
    c"pcap_getnonblock" fn getnonblock(pcap: *mut RealPcap, errors: *mut c_char) -> c_int = -1;
    c"pcap_setfilter" fn setfilter(pcap: *mut RealPcap, program: *mut Program) -> c_int = -1;
    c"pcap_setdirection" fn setdirection(pcap: *mut RealPcap, direction: c_int) -> c_int = -1;
    c"pcap_stats" fn stats(pcap: *mut RealPcap, stats: *mut Stats) -> c_int = -1;
    c"pcap_inject" fn inject(pcap: *mut RealPcap, frame: *const c_void, bytes: usize) -> c_int = -1;
    c"pcap_sendpacket" fn sendpacket(pcap: *mut RealPcap, frame: *const c_uchar, bytes: c_int) -> c_int = -1;
    c"pcap_dispatch"
        fn dispatch(pcap: *mut RealPcap, count: c_int, callback: Callback, user: *mut c_uchar) -> c_int = -1;
    c"pcap_loop"
        fn pcap_loop(pcap: *mut RealPcap, count: c_int, callback: Callback, user: *mut c_uchar) -> c_int = -1;
    c"pcap_next" fn next(pcap: *mut RealPcap, header: *mut PacketHeader) -> *const c_uchar = ptr::null();
    c"pcap_next_ex"
        fn next_ex(
            pcap: *mut RealPcap,
            header: *mut *mut PacketHeader,
            data: *mut *const c_uchar
        ) -> c_int = -1;
    c"pcap_lookupnet"
        fn lookupnet(
            device: *const c_char,
            network: *mut u32,
            mask: *mut u32,
            errors: *mut c_char
        ) -> c_int = -1;
    c"bpf_filter" fn bpf_filter(insns: *const Insn, packet: *const c_uchar, wire: u32, bytes: u32) -> u32 = 0;
}
