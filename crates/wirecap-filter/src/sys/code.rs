//! Memory for machine code: first writable, then executable, never both.

#![allow(unsafe_code)]

use std::io;
use std::mem::transmute_copy;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// A function generated at run time.
#[derive(Debug)]
pub(crate) struct Code {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages are never written again, and they are not bound to a thread.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// Copies machine code to executable memory. Some systems do not allow this.
    pub(crate) fn new(code: &[u8]) -> io::Result<Self> {
        let bytes = code.len().max(1);
        let protection = ProtFlags::READ | ProtFlags::WRITE;

        // SAFETY: the kernel chooses the address of a new mapping, so it overlaps no other.
        let base =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast::<u8>()).expect("the kernel maps nothing at address 0");
        let mapping = Self { base, bytes };

        // SAFETY: the mapping is at least as long as the code, and nothing else refers to it; the
        // pages are no longer writable when they become executable.
        unsafe {
            base.copy_from_nonoverlapping(NonNull::from(code).cast(), code.len());
            mprotect(base.as_ptr().cast(), bytes, MprotectFlags::READ | MprotectFlags::EXEC)?;
        }

        Ok(mapping)
    }

    /// The code as a function pointer.
    ///
    /// # Safety
    ///
    /// The caller guarantees that `F` is a function pointer type, that the code is a function of
    /// this type, and that it is not called after this value is dropped.
    #[inline]
    pub(crate) unsafe fn function<F: Copy>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<NonNull<u8>>()) };
        // SAFETY: the sizes are equal (asserted above); a function pointer is represented by its
        // address.
        unsafe { transmute_copy(&self.base) }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and every caller of the code holds this value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
