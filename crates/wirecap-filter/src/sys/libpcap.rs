//! Opens the system's libpcap at run time: wirecap runs without it, and wirecap's drop-in, which
//! has libpcap's name, can still use the real one.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::mem::{MaybeUninit, transmute_copy};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{self, NonNull};

/// `pcap_t`, opaque.
#[repr(C)]
struct Handle {
    _private: [u8; 0],
}

/// `struct bpf_program`.
#[repr(C)]
struct RawProgram {
    insn_count: c_uint,
    insns: *mut RawInsn,
}

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawInsn {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}
const _: () = assert!(size_of::<RawInsn>() == 8);

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut Handle;
type OpenFile = unsafe extern "C" fn(*mut libc::FILE, *mut c_char) -> *mut Handle;
type Compile =
    unsafe extern "C" fn(*mut Handle, *mut RawProgram, *const c_char, c_int, c_uint) -> c_int;
type GetError = unsafe extern "C" fn(*mut Handle) -> *mut c_char;
type FreeCode = unsafe extern "C" fn(*mut RawProgram);
type Close = unsafe extern "C" fn(*mut Handle);
type Validate = unsafe extern "C" fn(*const RawInsn, c_int) -> c_int;
type RunFilter = unsafe extern "C" fn(*const RawInsn, *const u8, c_uint, c_uint) -> c_uint;

/// The functions of a libpcap, which is never unloaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Libpcap {
    open_dead: OpenDead,
    open_file: OpenFile,
    compile: Compile,
    get_error: GetError,
    free_code: FreeCode,
    close: Close,
    validate: Validate,
    run_filter: RunFilter,
}

/// Bytes of the header of a pcap file.
pub(crate) const FILE_HEADER: usize = 24;
/// `PCAP_ERRBUF_SIZE`, and a zero byte.
const ERROR_BYTES: usize = 256 + 1;

/// Why libpcap did not compile an expression.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// libpcap's error message.
    Message(String),
    /// libpcap could not allocate memory.
    System(io::Error),
}

impl Libpcap {
    /// Loads the library with this name or path; returns the error as text.
    pub(crate) fn load(name: &OsStr) -> Result<Self, String> {
        let path =
            CString::new(name.as_bytes()).map_err(|_| "a name has no zero byte".to_owned())?;

        // SAFETY: the name is a C string. Loading runs the library's initialisers; those of libpcap
        // do nothing relevant, and the caller is responsible for the choice of the library.
        let library =
            unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | own_calls()) };
        let library = NonNull::new(library).ok_or_else(last_error)?;

        // SAFETY: the types are those declared in pcap.h and pcap/bpf.h.
        let libpcap = unsafe {
            Self {
                open_dead: symbol(library, c"pcap_open_dead")?,
                open_file: symbol(library, c"pcap_fopen_offline")?,
                compile: symbol(library, c"pcap_compile")?,
                get_error: symbol(library, c"pcap_geterr")?,
                free_code: symbol(library, c"pcap_freecode")?,
                close: symbol(library, c"pcap_close")?,
                validate: symbol(library, c"bpf_validate")?,
                run_filter: symbol(library, c"bpf_filter")?,
            }
        };
        match libpcap.is_ourselves() {
            true => Err("it is wirecap's own".to_owned()),
            false => Ok(libpcap),
        }
    }

    /// Whether the library found is the one that contains this code. If the code is in a program,
    /// it never is: a loaded library has another base address.
    fn is_ourselves(&self) -> bool {
        let found = base_of(self.compile as *const c_void);
        found.is_some() && found == base_of(Self::load as *const c_void)
    }

    /// Compiles `expression` for packets of the link type `dlt`, in a network with this mask in
    /// network byte order. Only one thread may call it at a time.
    pub(crate) fn compile(
        &self,
        expression: &CStr,
        dlt: c_int,
        snap_len: c_int,
        netmask: u32,
    ) -> Result<Vec<RawInsn>, Refusal> {
        // SAFETY: the function accepts any numbers.
        let handle = unsafe { (self.open_dead)(dlt, snap_len) };
        let handle = NonNull::new(handle)
            .ok_or_else(|| Refusal::System(io::ErrorKind::OutOfMemory.into()))?;
        let outcome = self.compile_on(handle, expression, netmask);
        // SAFETY: the handle is from `open_dead` and is not used again.
        unsafe { (self.close)(handle.as_ptr()) };
        outcome
    }

    /// Compiles `expression` for the packets of the savefile that begins with `header`. Only one
    /// thread may call it at a time.
    pub(crate) fn compile_for_file(
        &self,
        expression: &CStr,
        mut header: [u8; FILE_HEADER],
    ) -> Result<Vec<RawInsn>, Refusal> {
        // SAFETY: the memory has this length, and outlives the stream, which is closed below.
        let stream =
            unsafe { libc::fmemopen(header.as_mut_ptr().cast(), FILE_HEADER, c"r".as_ptr()) };
        let stream = NonNull::new(stream)
            .ok_or_else(|| Refusal::System(io::Error::last_os_error()))?
            .as_ptr();
        let mut message: [c_char; ERROR_BYTES] = [0; ERROR_BYTES];

        // SAFETY: the stream is open, and the buffer has the size that pcap(3PCAP) requires.
        let handle = unsafe { (self.open_file)(stream, message.as_mut_ptr()) };
        let Some(handle) = NonNull::new(handle) else {
            // SAFETY: libpcap closes a stream only with its handle, and there is none. The last
            // byte of the message is never written to, and is zero.
            let message = unsafe {
                libc::fclose(stream);
                CStr::from_ptr(message.as_ptr())
            };
            return Err(Refusal::Message(message.to_string_lossy().into_owned()));
        };
        let outcome = self.compile_on(handle, expression, 0);

        // SAFETY: the handle is not used again. It owns the stream, and closes it.
        unsafe { (self.close)(handle.as_ptr()) };
        outcome
    }

    fn compile_on(
        &self,
        handle: NonNull<Handle>,
        expression: &CStr,
        netmask: u32,
    ) -> Result<Vec<RawInsn>, Refusal> {
        let mut program = RawProgram { insn_count: 0, insns: ptr::null_mut() };
        let expression = expression.as_ptr();

        // SAFETY: the three pointers are to valid objects of the expected types, which outlive the
        // call.
        let status =
            unsafe { (self.compile)(handle.as_ptr(), &raw mut program, expression, 1, netmask) };
        if status < 0 {
            // SAFETY: the text is NUL-terminated and belongs to the open handle.
            let message = unsafe { CStr::from_ptr((self.get_error)(handle.as_ptr())) };
            return Err(Refusal::Message(message.to_string_lossy().into_owned()));
        }

        // SAFETY: libpcap returns the number of instructions at this address, and they are plain
        // integers.
        let insns =
            unsafe { std::slice::from_raw_parts(program.insns, program.insn_count as usize) }
                .to_vec();

        // SAFETY: libpcap filled the program, and its contents have been copied.
        unsafe { (self.free_code)(&raw mut program) };
        Ok(insns)
    }

    /// Prepares a program for libpcap's interpreter; `None` if libpcap considers it invalid.
    pub(crate) fn prepare(&self, program: Vec<RawInsn>) -> Option<Runnable> {
        let insn_count = c_int::try_from(program.len()).ok()?;
        // SAFETY: the program has this many instructions, and the function only reads them.
        let sound = unsafe { (self.validate)(program.as_ptr(), insn_count) };
        (sound != 0).then_some(Runnable { run_filter: self.run_filter, program })
    }
}

/// A valid program, for libpcap's interpreter.
#[derive(Clone, Debug)]
pub(crate) struct Runnable {
    run_filter: RunFilter,
    program: Vec<RawInsn>,
}

impl Runnable {
    /// Returns the program's result.
    pub(crate) fn run(&self, packet: &[u8], wire_len: u32) -> u32 {
        // SAFETY: libpcap has checked that the program stays within its instructions and scratch
        // memory, and its interpreter checks each load against the packet's length.
        unsafe {
            (self.run_filter)(
                self.program.as_ptr(),
                packet.as_ptr(),
                wire_len,
                packet.len() as c_uint,
            )
        }
    }
}

/// A flag of dlopen(3) that makes libpcap's calls to its own functions stay in the library, even if
/// wirecap's drop-in exports functions with the same names; 0 if the flag is not supported. The
/// address and the thread sanitizer abort a process that uses it.
fn own_calls() -> c_int {
    // SAFETY: the argument is a NUL-terminated symbol name.
    let has = |name: &CStr| !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null();
    let sanitized = || has(c"__asan_init") || has(c"__tsan_init");
    // A sanitizer that is linked into the program is not visible to dlsym.
    let cannot = cfg!(any(fuzzing, sanitized, not(target_env = "gnu")));
    if cannot || sanitized() { 0 } else { DEEP_BIND }
}

#[cfg(target_env = "gnu")]
const DEEP_BIND: c_int = libc::RTLD_DEEPBIND;
#[cfg(not(target_env = "gnu"))]
const DEEP_BIND: c_int = 0;

/// Whether the process has more privileges than the user who started it. The environment then must
/// not select the library.
pub(crate) fn has_elevated_rights() -> bool {
    // SAFETY: the function accepts any number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// A function of the library, by name.
///
/// # Safety
///
/// The caller guarantees that `F` is the type of a pointer to that function.
unsafe fn symbol<F: Copy>(library: NonNull<c_void>, name: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the library is loaded and the name is a C string.
    let address = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
    match address.is_null() {
        true => Err(last_error()),
        // SAFETY: the sizes are equal (asserted above), the address is not zero, and the caller
        // guarantees the type.
        false => Ok(unsafe { transmute_copy(&address) }),
    }
}

/// The base address of the library that contains `address`.
fn base_of(address: *const c_void) -> Option<NonNull<c_void>> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the function accepts any address and writes to `info`, for which zero bytes are a
    // valid value.
    let info = unsafe {
        libc::dladdr(address, info.as_mut_ptr());
        info.assume_init()
    };
    NonNull::new(info.dli_fbase)
}

/// The dynamic linker's last error in this thread.
fn last_error() -> String {
    // SAFETY: the function has no preconditions.
    let text = unsafe { libc::dlerror() };
    match text.is_null() {
        true => "the dynamic linker does not say why".to_owned(),
        // SAFETY: the text is NUL-terminated and valid until this thread's next call of the dynamic
        // linker.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    }
}
