//! The system's libpcap, opened at run time: wirecap runs without it, and a drop-in of wirecap's that bears
//! libpcap's name can still use the real one.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::mem::{MaybeUninit, transmute_copy};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{self, NonNull};

/// `pcap_t`, which only libpcap looks into.
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
type Compile = unsafe extern "C" fn(*mut Handle, *mut RawProgram, *const c_char, c_int, c_uint) -> c_int;
type GetError = unsafe extern "C" fn(*mut Handle) -> *mut c_char;
type FreeCode = unsafe extern "C" fn(*mut RawProgram);
type Close = unsafe extern "C" fn(*mut Handle);
type Validate = unsafe extern "C" fn(*const RawInsn, c_int) -> c_int;
type RunFilter = unsafe extern "C" fn(*const RawInsn, *const u8, c_uint, c_uint) -> c_uint;

/// The functions of a libpcap, which stays loaded for as long as the process lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Libpcap {
    open_dead: OpenDead,
    compile: Compile,
    get_error: GetError,
    free_code: FreeCode,
    close: Close,
    validate: Validate,
    run_filter: RunFilter,
}

/// Why libpcap did not compile an expression.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It says why.
    Message(String),
    /// It had no memory.
    System(io::Error),
}

impl Libpcap {
    /// Loads the library of this name or path, or says why that failed.
    pub(crate) fn load(name: &OsStr) -> Result<Self, String> {
        let path = CString::new(name.as_bytes()).map_err(|_| "a name has no zero byte".to_owned())?;
        // SAFETY: the name is a string. The library's initialisers run; libpcap has none to speak of, and
        // who may choose the library is up to our caller.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | own_calls()) };
        let library = NonNull::new(library).ok_or_else(last_error)?;
        // SAFETY: the types are those that pcap.h and pcap/bpf.h declare.
        let libpcap = unsafe {
            Self {
                open_dead: symbol(library, c"pcap_open_dead")?,
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

    /// Whether the library found is the one that contains this code. A program's own code never is: a loaded library
    /// has another base.
    fn is_ourselves(&self) -> bool {
        let found = base_of(self.compile as *const c_void);
        found.is_some() && found == base_of(Self::load as *const c_void)
    }

    /// Compiles `expression` for packets of the kind `dlt`, in a network of this mask, in network order. Not more than one
    /// thread at a time.
    pub(crate) fn compile(
        &self,
        expression: &CStr,
        dlt: c_int,
        snap_len: c_int,
        netmask: u32,
    ) -> Result<Vec<RawInsn>, Refusal> {
        // SAFETY: the function takes any numbers.
        let handle = unsafe { (self.open_dead)(dlt, snap_len) };
        let handle =
            NonNull::new(handle).ok_or_else(|| Refusal::System(io::ErrorKind::OutOfMemory.into()))?;
        let outcome = self.compile_on(handle, expression, netmask);
        // SAFETY: the handle came from `open_dead` and is not used again.
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
        // SAFETY: all three point to what the function expects, and outlive the call.
        let status = unsafe { (self.compile)(handle.as_ptr(), &raw mut program, expression, 1, netmask) };
        if status < 0 {
            // SAFETY: the text belongs to the handle, which lives, and ends with a zero.
            let message = unsafe { CStr::from_ptr((self.get_error)(handle.as_ptr())) };
            return Err(Refusal::Message(message.to_string_lossy().into_owned()));
        }
        // SAFETY: libpcap says that so many instructions stand there, and they are plain numbers.
        let insns =
            unsafe { std::slice::from_raw_parts(program.insns, program.insn_count as usize) }.to_vec();
        // SAFETY: libpcap filled the program, and what was in it has been copied.
        unsafe { (self.free_code)(&raw mut program) };
        Ok(insns)
    }

    /// Prepares a program for libpcap's interpreter, if libpcap finds that it is sound.
    pub(crate) fn prepare(&self, program: Vec<RawInsn>) -> Option<Runnable> {
        let insn_count = c_int::try_from(program.len()).ok()?;
        // SAFETY: so many instructions stand there, and the function only reads them.
        let sound = unsafe { (self.validate)(program.as_ptr(), insn_count) };
        (sound != 0).then_some(Runnable { run_filter: self.run_filter, program })
    }
}

/// A sound program, for libpcap's interpreter.
#[derive(Clone, Debug)]
pub(crate) struct Runnable {
    run_filter: RunFilter,
    program: Vec<RawInsn>,
}

impl Runnable {
    /// What the program returns.
    pub(crate) fn run(&self, packet: &[u8], wire_len: u32) -> u32 {
        // SAFETY: libpcap itself said that the program stays inside of itself and of its scratch memory, and its
        // interpreter checks each load against the packet's length.
        unsafe { (self.run_filter)(self.program.as_ptr(), packet.as_ptr(), wire_len, packet.len() as c_uint) }
    }
}

/// A flag with which libpcap's calls to its own functions stay in the library, even where a drop-in of wirecap's
/// exports functions of the same names; nothing where that flag is not to be had. The address sanitizer ends a
/// process that uses it.
fn own_calls() -> c_int {
    // SAFETY: it is the name of a symbol.
    let sanitized = || !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__asan_init".as_ptr()) }.is_null();
    if cfg!(fuzzing) || cfg!(not(target_env = "gnu")) || sanitized() { 0 } else { DEEP_BIND }
}

#[cfg(target_env = "gnu")]
const DEEP_BIND: c_int = libc::RTLD_DEEPBIND;
#[cfg(not(target_env = "gnu"))]
const DEEP_BIND: c_int = 0;

/// Whether the process has more privileges than the user who started it, so that the environment must not decide which
/// library is loaded.
pub(crate) fn has_elevated_rights() -> bool {
    // SAFETY: the function takes any number.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// A function of the library, by name.
///
/// # Safety
///
/// The caller guarantees that `F` is the function pointer type of that function.
unsafe fn symbol<F: Copy>(library: NonNull<c_void>, name: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the library is loaded and the name is a string.
    let address = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
    match address.is_null() {
        true => Err(last_error()),
        // SAFETY: the sizes agree (asserted above), the address is not zero, and the caller vouches for the type.
        false => Ok(unsafe { transmute_copy(&address) }),
    }
}

/// The base address of the library that contains `address`.
fn base_of(address: *const c_void) -> Option<NonNull<c_void>> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the function takes any address and writes into `info`, of which zeroes are a valid value.
    let info = unsafe {
        libc::dladdr(address, info.as_mut_ptr());
        info.assume_init()
    };
    NonNull::new(info.dli_fbase)
}

/// What the dynamic linker says went wrong in this thread.
fn last_error() -> String {
    // SAFETY: the function has no conditions.
    let text = unsafe { libc::dlerror() };
    match text.is_null() {
        true => "the dynamic linker does not say why".to_owned(),
        // SAFETY: it is a string, which stays until this thread's next call of the dynamic linker.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
    }
}
