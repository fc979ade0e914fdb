//! Direct I/O (open(2), `O_DIRECT`): the disk reads a page's whole blocks from the memory of the
//! page. The blocks are not copied to the page cache, and no kernel thread has to write them back.
//! The incomplete blocks at both ends of a page go through the page cache; a block is never written
//! in both ways, so no write waits for another.
//!
//! It is used for files without compression where statx(2) reports its alignment, which ext4 and
//! XFS do from Linux 6.1. A GiB takes 1,702 ms of the process's CPU time through the page cache,
//! 100 ms in direct writes of 1 MiB from pages of 4 KiB, 49 ms from huge pages, and 29 ms in direct
//! writes of 2 MiB from huge pages (`cargo bench -p wirecap-recorder --bench direct`, medians of
//! five rounds of 1 GiB in turns; on another host 214 ms through the page cache and 68 ms in direct
//! writes of 1 MiB).
//!
//! A page begins at the same offset within a block in memory as in the file. Pages of less than 128
//! KiB go through the page cache, such as the last one. The page cache takes bursts that the disk
//! does not: after a direct write that took more than 4 ms per MiB, pages go through the page cache
//! while more than two pages are unfinished, including the page that is being written.

use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};
use rustix::io::Errno;

/// The alignment in file and memory: a page of the page cache, and at least a block of the file
/// system.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// For fewer bytes, the page cache is cheaper than a direct write.
const BYTES_MIN: usize = 128 << 10;

/// A disk that takes longer than this for a MiB writes less than 250 MiB/s. The page cache then
/// accepts bursts faster.
const SLOW: Duration = Duration::from_millis(4);

/// Decides which pages are written directly.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    is_slow: bool,
}

impl Direct {
    /// Whether direct I/O is possible: the file system reports its alignment. Only kernels from 6.1
    /// do.
    pub(crate) fn is_possible(file: &File) -> bool {
        statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).is_ok_and(|status| {
            let is_fine = |bytes: u32| (1..=BLOCK_BYTES).contains(&(bytes as usize));
            status.stx_mask & StatxFlags::DIOALIGN.bits() != 0
                && is_fine(status.stx_dio_mem_align)
                && is_fine(status.stx_dio_offset_align)
        })
    }

    /// Writes all `bytes`, which belong at `offset` of the file, its current end. `written` counts
    /// those that are written, also if this fails. If `is_behind`, many pages wait, and a disk that
    /// was slow is written through the page cache.
    pub(crate) fn write_all(
        &mut self,
        file: &mut File,
        offset: u64,
        bytes: &[u8],
        is_behind: bool,
        written: &mut usize,
    ) -> io::Result<()> {
        self.is_slow &= is_behind;
        let first = (offset.next_multiple_of(BLOCK_BYTES as u64) - offset) as usize;
        let blocks = bytes.len().saturating_sub(first) / BLOCK_BYTES * BLOCK_BYTES;

        if blocks < BYTES_MIN
            || self.is_slow
            || !bytes[first..].as_ptr().addr().is_multiple_of(BLOCK_BYTES)
        {
            return write_cached(file, bytes, written);
        }

        write_cached(file, &bytes[..first], written)?;
        let begun = Instant::now();
        let count = write_direct(file, &bytes[first..first + blocks])?;

        self.is_slow = begun.elapsed() > SLOW.mul_f64(blocks as f64 / (1 << 20) as f64);
        *written += count;

        // The remainder, also of a direct write that was cut short.
        write_cached(file, &bytes[first + count..], written)
    }
}

/// Writes all bytes through the page cache. `written` counts those that are written, also if this
/// fails.
pub(crate) fn write_cached(
    file: &mut File,
    mut bytes: &[u8],
    written: &mut usize,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                *written += count;
                bytes = &bytes[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes one direct write of whole blocks. Returns the number of bytes written, 0 if the file
/// system refuses.
fn write_direct(file: &mut File, blocks: &[u8]) -> io::Result<usize> {
    let flags = fcntl_getfl(&*file)?;
    match fcntl_setfl(&*file, flags | OFlags::DIRECT) {
        Err(Errno::INVAL) => return Ok(0),
        outcome => outcome?,
    }

    let outcome = file.write(blocks);
    fcntl_setfl(&*file, flags)?;

    match outcome {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Interrupted) =>
        {
            Ok(0)
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::page::{PAGE_BYTES, Page};

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

        /// Page after page, with short ones between, the file has every byte in its place.
        #[test]
        fn a_file_of_direct_and_cached_writes_has_every_byte(
            lens in vec((1..=PAGE_BYTES, prop_oneof![1 => 1..20_000_usize, 2 => Just(PAGE_BYTES)], any::<bool>()), 1..12),
            begins_aligned in any::<bool>(),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("pages");
            let mut file = File::create_new(&path).unwrap();
            let mut direct = Direct::default();
            let mut expected: Vec<u8> = Vec::new();

            if !begins_aligned {
                file.write_all(b"head").unwrap();
                expected.extend(b"head");
            }

            let mut page = Page::new(PAGE_BYTES, true).unwrap();

            for (number, (len, other, is_behind)) in lens.into_iter().enumerate() {
                let len = len.max(other);
                page.start_at(expected.len() as u64, PAGE_BYTES);

                let slot = page.reserve(len).unwrap();
                slot.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 7 + number) as u8);

                let mut written = 0;
                direct.write_all(&mut file, expected.len() as u64, page.bytes(), is_behind, &mut written).unwrap();
                prop_assert_eq!(written, len);
                expected.extend(page.bytes());
                page.clear();
            }

            prop_assert!(fs::read(&path).unwrap() == expected);
            prop_assert_eq!(file.metadata().unwrap().size(), expected.len() as u64);
        }
    }

    /// If the file system of temporary files reports that direct I/O is possible, it is.
    #[test]
    fn blocks_are_written_directly_if_the_file_system_reports_direct_io() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = File::create_new(folder.path().join("pages")).unwrap();
        let mut page = Page::new(PAGE_BYTES, true).unwrap();
        page.start_at(0, PAGE_BYTES);
        page.reserve(2 * BLOCK_BYTES).unwrap();
        if Direct::is_possible(&file) {
            assert_eq!(write_direct(&mut file, page.bytes()).unwrap(), 2 * BLOCK_BYTES);
            assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::DIRECT));
        }
    }

    #[test]
    fn a_slow_disk_is_written_through_the_page_cache_while_pages_wait() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = File::create_new(folder.path().join("pages")).unwrap();
        let mut page = Page::new(PAGE_BYTES, true).unwrap();
        page.start_at(0, PAGE_BYTES);
        page.reserve(BLOCK_BYTES).unwrap();
        let mut direct = Direct { is_slow: true };
        direct.write_all(&mut file, 0, page.bytes(), true, &mut 0).unwrap();
        assert!(direct.is_slow);
        direct.write_all(&mut file, BLOCK_BYTES as u64, page.bytes(), false, &mut 0).unwrap();
        assert!(!direct.is_slow);
    }

    #[test]
    fn a_file_system_in_memory_has_no_direct_writes() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        assert!(!Direct::is_possible(&File::create_new(folder.path().join("file")).unwrap()));
    }
}
