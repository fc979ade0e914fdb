//! Memory for machine code: written first, executed then, and never both at a time.

#![allow(unsafe_code)]

use std::io;
use std::mem::transmute_copy;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// A function that was made at run time.
#[derive(Debug)]
pub(crate) struct Code {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages are never written again, and belong to the process, not to a thread.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// Puts machine code where it can be executed. Some systems forbid processes to make code.
    pub(crate) fn new(code: &[u8]) -> io::Result<Self> {
        let bytes = code.len().max(1);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at a place of the kernel's choosing overlaps nothing.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast::<u8>()).expect("the kernel maps nothing at address 0");
        let mapping = Self { base, bytes };
        // SAFETY: the mapping is as long as the code, and nothing else refers to it; its pages cannot be written
        // any more when they can be executed.
        unsafe {
            base.copy_from_nonoverlapping(NonNull::from(code).cast(), code.len());
            mprotect(base.as_ptr().cast(), bytes, MprotectFlags::READ | MprotectFlags::EXEC)?;
        }
        Ok(mapping)
    }

    /// The code as a function, by a function pointer.
    ///
    /// # Safety
    ///
    /// The caller guarantees that `F` is the type of a function pointer, that what was written is such a function,
    /// and that it is not called after this value is gone.
    #[inline]
    pub(crate) unsafe fn function<F: Copy>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<NonNull<u8>>()) };
        // SAFETY: the sizes agree (asserted above); a function's address is what its pointer is.
        unsafe { transmute_copy(&self.base) }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and a call into it holds this value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
