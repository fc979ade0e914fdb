//! Copies past the caches of the processor.
//!
//! A page for direct I/O is filled with non-temporal stores, from a stage of 16 KiB in which
//! packets are encoded: the disk's driver, or the host of a virtual machine, reads the page on
//! another processor, and a common store would first fetch the cache line from there. Other pages
//! are filled in the caches, because a processor reads them at once, to copy or compress them.

#![allow(unsafe_code)]

/// Whether [`copy`] bypasses the caches. On other processors it is a common copy.
pub(crate) const BYPASSES_CACHES: bool = cfg!(target_arch = "x86_64");

/// Copies `from` to `to`, which is as long, and leaves no copy of `to` in the caches: for memory
/// that this processor does not read, and that a device or another core will. A common store first
/// fetches the old contents of its cache line, from the other core's cache if that has read it.
///
/// Other threads see the bytes after [`fence`].
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

        const WORD: usize = size_of::<__m128i>();
        assert_eq!(to.len(), from.len());

        // SAFETY: any bytes are a valid __m128i.
        let (begin, words, end) = unsafe { to.align_to_mut::<__m128i>() };
        let (from_begin, rest) = from.split_at(begin.len());
        let (from_words, from_end) = rest.split_at(words.len() * WORD);

        begin.copy_from_slice(from_begin);
        for (word, from_word) in words.iter_mut().zip(from_words.chunks_exact(WORD)) {
            // SAFETY: both are 16 bytes, and `word` is aligned. SSE2 is part of x86-64.
            unsafe { _mm_stream_si128(word, _mm_loadu_si128(from_word.as_ptr().cast())) };
        }

        end.copy_from_slice(from_end);
    }
    #[cfg(not(target_arch = "x86_64"))]
    to.copy_from_slice(from);
}

/// Makes earlier copies by this thread visible to other threads before what it writes later.
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_byte_is_copied_to_its_place_and_no_other_is_changed(
            from in vec(any::<u8>(), 0..400),
            begin in 0..70_usize,
        ) {
            let mut to = vec![7; from.len() + 140];
            copy(&mut to[begin..begin + from.len()], &from);
            fence();
            let expected = [&vec![7; begin][..], &from, &vec![7; 140 - begin]].concat();
            prop_assert_eq!(to, expected);
        }
    }
}
