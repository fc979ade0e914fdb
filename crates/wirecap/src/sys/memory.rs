//! Shared memory of the process, in which pools are.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::fs::{MemfdFlags, Mode, OFlags, ftruncate, memfd_create, openat};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;

use wirecap_filter::capability;

pub(crate) use crate::sys::opener::Pages;
use crate::sys::opener::{Handle, opener};
use crate::sys::signals;

/// Maximum number of threads that clear memory: more are not faster.
const POPULATING_THREADS_MAX: usize = 8;

/// The number of threads that clear memory fastest on this machine.
pub(crate) fn populating_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(POPULATING_THREADS_MAX)
}

/// Bytes of a huge page on x86-64 and of the usual ones elsewhere.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes of a cache line, the unit of prefetching.
pub(crate) const LINE_BYTES: usize = 64;

/// A zeroed, page-aligned mapping that other processes may share (a memfd): after a fork, a child
/// process continues to see the packets that the kernel writes into it, whereas private memory
/// would be copied.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    pages: Pages,
    /// The mapped file, if it was made by the process that opens for this one.
    file: Option<Handle>,
}

// SAFETY: the mapping belongs to the process, not to a thread; code that reads or writes it through
// `base` must own the bytes, which the pool's types enforce.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps at least `bytes`, on huge pages when enough of them are free.
    pub(crate) fn map(bytes: usize) -> io::Result<Self> {
        let Some(opener) = opener() else { return Self::map_own(bytes) };
        let (file, pages, handle) = opener.pool_file(bytes as u64)?;
        let bytes = mapped_bytes(bytes, pages);
        Ok(Self::of(map_file(&file, bytes)?, bytes, pages, Some(handle)))
    }

    fn map_own(bytes: usize) -> io::Result<Self> {
        let (base, pages) = match pool_file(bytes) {
            Ok((file, pages)) => (map_file(&file, mapped_bytes(bytes, pages))?, pages),
            // Anonymous memory has no length, but another process cannot map it.
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                (map_anonymous(bytes)?, Pages::Ordinary)
            }
            Err(error) => return Err(error),
        };
        Ok(Self::of(base, mapped_bytes(bytes, pages), pages, None))
    }

    fn of(base: NonNull<u8>, bytes: usize, pages: Pages, file: Option<Handle>) -> Self {
        if pages == Pages::Ordinary {
            // Only advice: shared memory gets them if the administrator allows it. SAFETY: the
            // range is the new mapping.
            let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        }
        Self { base, bytes, pages, file }
    }

    /// Makes all pages present with this number of threads; otherwise the kernel would clear them
    /// one by one when the memory is registered. Only advice, without effect before Linux 5.14.
    pub(crate) fn populate(&self, threads: usize) {
        let share = self.bytes.div_ceil(threads.max(1)).next_multiple_of(HUGE_PAGE_BYTES);
        let starts = (0..self.bytes).step_by(share);
        thread::scope(|scope| {
            for start in starts {
                let bytes = share.min(self.bytes - start);

                // The calling thread always takes part; possibly no other thread can be started.
                let populate = move || {
                    // SAFETY: the range lies in the mapping, which lives as long as `self`, and the
                    // call changes no byte.
                    let _ = unsafe {
                        madvise(
                            self.base.as_ptr().add(start).cast(),
                            bytes,
                            Advice::LinuxPopulateWrite,
                        )
                    };
                };
                let _ = signals::blocked(|| thread::Builder::new().spawn_scoped(scope, populate));
            }
        });
    }

    /// Allocates `bytes` on the heap.
    pub(crate) fn on_heap(bytes: usize) -> Self {
        let layout = Self::heap_layout(bytes);
        // SAFETY: the layout is never of size 0.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Self { base, bytes, pages: Pages::Heap, file: None }
    }

    fn heap_layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes.max(1), align_of::<u64>())
            .expect("pools fit the address space")
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The handle of the mapped file, if it was made by the process that opens for this one.
    pub(crate) fn handle(&self) -> Option<&Handle> {
        self.file.as_ref()
    }

    pub(crate) fn pages(&self) -> Pages {
        self.pages
    }
}

/// The length of the mapping for `bytes` on these pages.
fn mapped_bytes(bytes: usize, pages: Pages) -> usize {
    if pages == Pages::Huge { bytes.next_multiple_of(HUGE_PAGE_BYTES) } else { bytes }
}

fn map_file(file: &OwnedFd, bytes: usize) -> io::Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at a place of the kernel's choosing overlaps nothing.
    let base = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
    Ok(NonNull::new(base.cast::<u8>()).expect("the kernel maps nothing at address 0"))
}

fn map_anonymous(bytes: usize) -> io::Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: as above.
    let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::SHARED) }?;
    Ok(NonNull::new(base.cast::<u8>()).expect("the kernel maps nothing at address 0"))
}

/// Makes a file of zeros for a pool, in memory, of at least `bytes`, on huge pages when enough of
/// them are free. The limit on the length of files (`ulimit -f`) is meant for those on disks: this
/// process may exceed it for this file, if it may raise the limit.
///
/// # Errors
///
/// [`io::ErrorKind::FileTooLarge`] if the limit cannot be raised; otherwise that of the kernel.
pub fn pool_file(bytes: usize) -> io::Result<(OwnedFd, Pages)> {
    [Pages::Huge, Pages::Transparent]
        .into_iter()
        .find_map(|pages| Some((pool_file_on(pages, bytes).ok()?, pages)))
        .map_or_else(|| Ok((pool_file_on(Pages::Ordinary, bytes)?, Pages::Ordinary)), Ok)
}

fn pool_file_on(pages: Pages, bytes: usize) -> io::Result<OwnedFd> {
    let file = match pages {
        Pages::Transparent => file_on_transparent_huge_pages()?,
        Pages::Huge => memfd_create("wirecap-pool", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB)?,
        Pages::Ordinary | Pages::Heap => memfd_create("wirecap-pool", MemfdFlags::CLOEXEC)?,
    };
    let bytes = mapped_bytes(bytes, pages);
    let _limit = RaisedFileLimit::to(bytes as u64)?;

    signals::without_file_size_signal(|| ftruncate(&file, bytes as u64))?;
    if pages == Pages::Huge {
        // The first mapping reserves the pages, for as long as the file exists.
        Mapping::unpopulated(&file, bytes)?;
    }

    Ok(file)
}

/// While a pool's file may be longer than others. The previous limit is restored, because commands
/// inherit it.
#[derive(Debug)]
struct RaisedFileLimit {
    before: Option<Rlimit>,
    /// The limit is that of all threads: one of them at a time raises it.
    _turn: MutexGuard<'static, ()>,
}

impl RaisedFileLimit {
    fn to(bytes: u64) -> io::Result<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let before = getrlimit(Resource::Fsize);
        if before.current.is_none_or(|limit| limit >= bytes) {
            return Ok(Self { before: None, _turn });
        }

        // Raising the hard limit as well requires CAP_SYS_RESOURCE.
        let maximum = before.maximum.map(|limit| limit.max(bytes));
        setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), maximum }).map_err(|_| {
            let limit_bytes = before.maximum.unwrap_or_default();
            io::Error::new(
                io::ErrorKind::FileTooLarge,
                FileLimit { needed_bytes: bytes, limit_bytes },
            )
        })?;

        Ok(Self { before: Some(before), _turn })
    }
}

impl Drop for RaisedFileLimit {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            setrlimit(Resource::Fsize, before).expect("a process may lower its limits");
        }
    }
}

/// The file of a pool would be longer than the process may make files.
#[derive(Debug, thiserror::Error)]
#[error(
    "the pool is a file of {needed_bytes} bytes in memory, the limit on the size of files is {limit_bytes}; \
     grant CAP_SYS_RESOURCE, raise the limit (ulimit -f {}), or use fewer or smaller chunks (-R, -M, \
     --buffer)",
    needed_bytes.div_ceil(1024)
)]
struct FileLimit {
    needed_bytes: u64,
    limit_bytes: u64,
}

/// A file of a separate tmpfs. Only with CAP_SYS_ADMIN: for a process that has dropped its
/// privileges, even the attempt may be forbidden.
fn file_on_transparent_huge_pages() -> io::Result<OwnedFd> {
    if !rustix::thread::capabilities(None)?.permitted.contains(CapabilitySet::SYS_ADMIN) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    capability::with(CapabilitySet::SYS_ADMIN, file_of_own_tmpfs)?
}

fn file_of_own_tmpfs() -> io::Result<OwnedFd> {
    let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;

    // Huge pages up to the file's end, and as many of them as there are: the default is half of the
    // memory.
    fsconfig_set_string(&tmpfs, "huge", "within_size")?;
    fsconfig_set_string(&tmpfs, "size", "0")?;
    fsconfig_create(&tmpfs)?;

    let mount = fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    Ok(openat(
        &mount,
        ".",
        OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )?)
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.pages == Pages::Heap {
            // SAFETY: allocated with this layout, and only the owner of this value can access it.
            unsafe { dealloc(self.base.as_ptr(), Self::heap_layout(self.bytes)) };
            return;
        }
        // SAFETY: the mapping is ours, and only a holder of this value could reach into it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A piece of a kernel object mapped into the process: the rings of a socket.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: as for `Memory`.
unsafe impl Send for Mapping {}
// SAFETY: as for `Memory`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of `file` from `offset` on; the pages are present from the start.
    pub(crate) fn of(file: impl std::os::fd::AsFd, bytes: usize, offset: u64) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping at a place of the kernel's choosing overlaps nothing.
        let base = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, file, offset) }?;
        let base = NonNull::new(base.cast::<u8>()).expect("the kernel maps nothing at address 0");
        Ok(Self { base, bytes })
    }

    /// Maps the first `bytes` of a file, without pages.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn unpopulated(file: &OwnedFd, bytes: usize) -> io::Result<Self> {
        Ok(Self { base: map_file(file, bytes)?, bytes })
    }

    /// Where the mapping starts.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Releases the kernel object that the mapping keeps alive, and replaces the mapping by private
    /// memory at the same address, with the same bytes in the ranges `kept` and zeros elsewhere.
    ///
    /// # Safety
    ///
    /// No code may write into the ranges during this call, or rely on the kernel to see later
    /// writes.
    pub(crate) unsafe fn cut_loose(
        &self,
        kept: impl Iterator<Item = Range<usize>>,
    ) -> io::Result<()> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;

        // SAFETY: a fresh mapping at a place of the kernel's choosing overlaps nothing.
        let copy = unsafe { mmap_anonymous(ptr::null_mut(), self.bytes, protection, flags) }?;

        for range in kept {
            assert!(
                range.start <= range.end && range.end <= self.bytes,
                "a range outside the mapping"
            );
            // SAFETY: inside both mappings, which are different; the caller guarantees that they
            // are not written to.
            unsafe {
                let from = self.base.as_ptr().add(range.start);
                copy.cast::<u8>().add(range.start).copy_from_nonoverlapping(from, range.len());
            }
        }

        let base = self.base.as_ptr().cast();

        // SAFETY: both are complete mappings of `self.bytes`. A reader of a kept range finds the
        // same bytes before and after: the kernel exchanges the pages while it holds off page
        // faults.
        unsafe { move_onto(copy, base, self.bytes) }.inspect_err(|_| {
            // SAFETY: the copy is still at its address, and has no other user.
            let _ = unsafe { munmap(copy, self.bytes) };
        })
    }

    /// Replaces `other`, which has the same length: from now on its addresses refer to the memory
    /// that was mapped here.
    ///
    /// # Safety
    ///
    /// Holders of addresses in `other` must find objects of the same types at them.
    pub(crate) unsafe fn take_place_of(self, other: &Self) -> io::Result<()> {
        if self.bytes != other.bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let from = self.base.as_ptr().cast();
        let to = other.base.as_ptr().cast();
        // SAFETY: both are complete mappings of the same length. A concurrent reader finds the one
        // or the other: the kernel exchanges the pages while it holds off page faults.
        unsafe { move_onto(from, to, self.bytes) }?;
        // Nothing is mapped at its former address any more.
        std::mem::forget(self);
        Ok(())
    }

    /// The address of the `T` at `offset`.
    ///
    /// # Panics
    ///
    /// If a `T` does not fit there.
    #[inline]
    pub(crate) fn at<T>(&self, offset: usize, count: usize) -> NonNull<T> {
        let end = offset.checked_add(count * size_of::<T>());
        assert!(end.is_some_and(|end| end <= self.bytes), "offset {offset} is outside the mapping");
        assert!(offset.is_multiple_of(align_of::<T>()), "offset {offset} is not aligned");
        // SAFETY: `offset` was just checked to lie inside the mapping.
        unsafe { self.base.add(offset) }.cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and only a holder of this value could reach into it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Moves the mapping of `bytes` bytes at `from` to `to`, and replaces the mapping of the same
/// length there.
///
/// Calls libc, because the call fails with the libc backend of rustix 1.1.6: it passes MAP_FIXED
/// instead of MREMAP_FIXED. Any crate in a program can select this backend for all crates.
///
/// # Safety
///
/// Both are complete mappings. `from` has no other user, and users of `to` must find objects of the
/// same types there.
unsafe fn move_onto(from: *mut c_void, to: *mut c_void, bytes: usize) -> io::Result<()> {
    // SAFETY: as the caller guarantees.
    let moved =
        unsafe { libc::mremap(from, bytes, bytes, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to) };
    if moved == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Hints of x86-64's prefetch instruction (`_MM_HINT_T0`, `_MM_HINT_T1`).
const INTO_ALL_CACHES: i32 = 3;
const INTO_SECOND_LEVEL: i32 = 2;

/// Prefetches the memory at `place`, if there is any, into all caches.
#[inline]
pub(crate) fn prefetch(place: *const u8) {
    prefetch_with::<INTO_ALL_CACHES>(place);
}

/// Prefetches the memory at `place`, if there is any, into the second-level cache. That cache waits
/// for more lines at a time than the first-level cache: with many lines in flight, copying them
/// takes half as long.
#[inline]
pub(crate) fn prefetch_to_second_level(place: *const u8) {
    prefetch_with::<INTO_SECOND_LEVEL>(place);
}

#[inline]
fn prefetch_with<const HINT: i32>(place: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, which has no visible effect for any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<HINT>(place.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn assert_zeroed_and_writable(memory: &Memory) {
        assert!(memory.bytes() >= 1 << 20);
        // SAFETY: this memory has no other user.
        unsafe {
            let last = memory.base().add(memory.bytes() - 1);
            assert_eq!(last.read(), 0);
            last.write(7);
            assert_eq!(last.read(), 7);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no memfd")]
    fn mapped_memory_is_zeroed_and_writable() {
        assert_zeroed_and_writable(&Memory::map(1 << 20).unwrap());
    }

    /// Whether the kernel has transparent huge pages for shared memory, and the administrator has
    /// not forbidden them.
    fn allows_huge_pages() -> bool {
        let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        setting.is_ok_and(|setting| !setting.contains("[deny]"))
    }

    /// The number available without compaction: the free blocks of 2 MiB and more in
    /// /proc/buddyinfo.
    fn huge_pages_free() -> u64 {
        let zones = std::fs::read_to_string("/proc/buddyinfo").unwrap();
        let blocks = zones.lines().flat_map(|zone| zone.split_whitespace().skip(4 + 9));
        blocks.map(|count| count.parse::<u64>().unwrap()).sum()
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no mounts")]
    fn memory_on_transparent_huge_pages_is_zeroed_and_writable_to_its_last_byte() {
        let is_plenty = allows_huge_pages() && huge_pages_free() > 64;
        let bytes = 5 << 20;
        let memory = match pool_file_on(Pages::Transparent, bytes) {
            Ok(file) => {
                Memory::of(map_file(&file, bytes).unwrap(), bytes, Pages::Transparent, None)
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return wirecap_testbed::skip("CAP_SYS_ADMIN, to mount a tmpfs");
            }
            Err(error) => panic!("{error}"),
        };
        memory.populate(2);
        assert_zeroed_and_writable(&memory);

        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begin = format!("{:x}-", memory.base().as_ptr().addr());
        let own = maps.split_once(&begin).expect("it is mapped").1;
        let line = own.lines().find(|line| line.starts_with("ShmemPmdMapped:")).unwrap();
        let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(kib > 0 || !is_plenty, "{line}");
        println!("{kib} KiB of 5 MiB on huge pages");
    }

    #[test]
    fn heap_memory_is_zeroed_and_writable() {
        assert_zeroed_and_writable(&Memory::on_heap(1 << 20));
    }
}
