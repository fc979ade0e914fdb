//! bpf(2) without a library: one function per command, each with the part of `union bpf_attr` that
//! it uses.
//!
//! The kernel treats missing bytes of a short attribute as zero, so each command has a small struct
//! without padding instead of the whole union.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The commands of bpf(2), `enum bpf_cmd`.
#[derive(Clone, Copy)]
#[repr(i64)]
pub(super) enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    ProgramLoad = 5,
    ProgramTestRun = 10,
    ProgramGetNextId = 11,
    ProgramFdById = 13,
    MapFdById = 14,
    InfoByFd = 15,
    ProgramQuery = 16,
    RawTracepointOpen = 17,
    LinkCreate = 28,
    LinkUpdate = 29,
    LinkFdById = 30,
    LinkGetNextId = 31,
}

/// Map types of `enum bpf_map_type` with one value per CPU.
const MAP_TYPES_PER_CPU: [u32; 4] = [5, 6, 10, 21];
/// `enum bpf_attach_type`: the hook of an XDP program.
pub(crate) const ATTACH_XDP: u32 = 37;
/// `enum bpf_attach_type`: the hooks of tcx, for frames that arrive and that leave.
pub(crate) const ATTACH_TCX: [u32; 2] = [46, 47];
/// `enum bpf_link_type`: a link that holds an XDP program on an interface.
pub(crate) const LINK_TYPE_XDP: u32 = 6;
/// Flag of a test run: the kernel executes the verdicts.
pub(crate) const TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;

/// `BPF_F_MMAPABLE`
pub(crate) const MAP_MAPPABLE: u32 = 1 << 10;

/// A kernel object's name: at most 15 characters and a NUL.
pub(crate) type ObjectName = [u8; 16];

/// Marks attribute structs: `repr(C)`, without padding, and a prefix of the command's part of the
/// union.
///
/// # Safety
///
/// The implementation guarantees all three, and that during the call every pointer in a value is
/// valid for the number of bytes given in the same value.
pub(super) unsafe trait Attribute {}

macro_rules! attribute {
    ($(#[$doc:meta])* struct $name:ident = $bytes:literal { $($field:ident: $kind:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        struct $name { $($field: $kind),* }
        const _: () = assert!(size_of::<$name>() == $bytes);
        const _: () = assert!(0 $(+ size_of::<$kind>())* == $bytes, "padding");
        // SAFETY: the layout is asserted above and matches linux/bpf.h; each function below fills a
        // pointer and its length from one slice.
        unsafe impl $crate::sys::bpf::Attribute for $name {}
    };
}

pub(super) use attribute;

attribute! {
    struct MapElement = 32 { map: RawFd, pad: u32, key: u64, value: u64, flags: u64 }
}
attribute! {
    struct ProgramTestRun = 80 {
        program: RawFd, verdict: u32, data_in_bytes: u32, data_out_bytes: u32,
        data_in: u64, data_out: u64, repeat: u32, duration_ns: u32,
        context_in_bytes: u32, context_out_bytes: u32, context_in: u64, context_out: u64,
        flags: u32, cpu: u32, batch_frames: u32, pad: u32,
    }
}
attribute! {
    struct ProgramQuery = 64 {
        ifindex: u32, attach_type: u32, query_flags: u32, attach_flags: u32,
        program_ids: u64, program_count: u32, pad: u32,
        program_attach_flags: u64, link_ids: u64, link_attach_flags: u64, revision: u64,
    }
}
attribute! {
    struct InfoByFd = 16 { object: RawFd, info_bytes: u32, info: u64 }
}

/// The first fields of `struct bpf_map_info`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct RawMapInfo {
    pub(crate) map_type: u32,
    pub(crate) id: u32,
    pub(crate) key_bytes: u32,
    pub(crate) value_bytes: u32,
    pub(crate) max_entries: u32,
    pub(crate) flags: u32,
    pub(crate) name: ObjectName,
}
const _: () = assert!(size_of::<RawMapInfo>() == 40);

/// The first fields of `struct bpf_prog_info`. `map_ids` is a pointer to the caller's buffer.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct RawProgramInfo {
    pub(crate) program_type: u32,
    pub(crate) id: u32,
    pub(crate) tag: [u8; 8],
    jited_bytes: u32,
    translated_bytes: u32,
    jited: u64,
    translated: u64,
    pub(crate) load_time_ns: u64,
    pub(crate) created_by_uid: u32,
    map_id_count: u32,
    map_ids: u64,
    pub(crate) name: ObjectName,
    pub(crate) ifindex: u32,
    bits: u32,
}
const _: () = assert!(size_of::<RawProgramInfo>() == 88);

/// The first fields of `struct bpf_link_info`, with those of XDP links.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct RawLinkInfo {
    pub(crate) link_type: u32,
    pub(crate) id: u32,
    pub(crate) program_id: u32,
    pad: u32,
    pub(crate) ifindex: u32,
    tail: u32,
}
const _: () = assert!(size_of::<RawLinkInfo>() == 24);

/// Structs that `InfoByFd` may fill: `repr(C)`, and any bytes are a valid value.
///
/// # Safety
///
/// The implementation guarantees both.
unsafe trait Info: Default {}
// SAFETY: integers and arrays of integers only, `repr(C)`.
unsafe impl Info for RawMapInfo {}
// SAFETY: as above; the pointers in it are zero unless `program_info` sets them.
unsafe impl Info for RawProgramInfo {}
// SAFETY: as above.
unsafe impl Info for RawLinkInfo {}

pub(super) fn bpf<A: Attribute>(command: Command, attribute: &mut A) -> io::Result<i32> {
    let bytes = size_of::<A>();
    // SAFETY: `attribute` is valid for `bytes` bytes, and `Attribute` guarantees that its pointers
    // are valid as well.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command as i64, std::ptr::from_mut(attribute), bytes)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

pub(super) fn bpf_fd<A: Attribute>(command: Command, attribute: &mut A) -> io::Result<OwnedFd> {
    let fd = bpf(command, attribute)?;
    // SAFETY: the commands that call this function return a new descriptor that only this process
    // owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The number of programs at a hook of an interface in the network namespace of the calling thread.
pub(crate) fn count_programs(ifindex: u32, attach_type: u32) -> io::Result<u32> {
    let mut query = ProgramQuery {
        ifindex,
        attach_type,
        query_flags: 0,
        attach_flags: 0,
        program_ids: 0,
        program_count: 0,
        pad: 0,
        program_attach_flags: 0,
        link_ids: 0,
        link_attach_flags: 0,
        revision: 0,
    };
    bpf(Command::ProgramQuery, &mut query)?;

    Ok(query.program_count)
}

pub(super) fn address<T>(slice: &[T]) -> u64 {
    slice.as_ptr() as u64
}

pub(super) fn address_mut<T>(slice: &mut [T]) -> u64 {
    slice.as_mut_ptr() as u64
}

/// A map's descriptor together with the sizes of its keys and values.
#[derive(Debug)]
pub(crate) struct MapFd {
    fd: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
    copies: usize,
}

impl MapFd {
    /// Reads the sizes of the map with this descriptor.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let info = map_info(fd.as_fd())?;
        let copies = if MAP_TYPES_PER_CPU.contains(&info.map_type) { possible_cpus()? } else { 1 };
        Ok(Self {
            fd,
            key_bytes: info.key_bytes as usize,
            value_bytes: info.value_bytes as usize,
            copies,
        })
    }

    pub(crate) fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    pub(crate) fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Distance of two CPUs' values in bytes: the kernel aligns them to eight.
    fn stride(&self) -> usize {
        if self.copies == 1 { self.value_bytes } else { self.value_bytes.next_multiple_of(8) }
    }

    fn element(&self, key: &[u8], value: u64) -> MapElement {
        assert_eq!(key.len(), self.key_bytes, "a map's key has the map's key size");
        MapElement { map: self.fd.as_raw_fd(), pad: 0, key: address(key), value, flags: 0 }
    }

    /// Stores `value` under `key`; in a per-CPU map, in every CPU's copy.
    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!(value.len(), self.value_bytes, "a map's value has the map's value size");
        let mut copy = value.to_vec();
        copy.resize(self.stride(), 0);
        let copies = copy.repeat(self.copies);
        bpf(Command::MapUpdate, &mut self.element(key, address(&copies))).map(drop)
    }

    pub(crate) fn delete(&self, key: &[u8]) -> io::Result<()> {
        bpf(Command::MapDelete, &mut self.element(key, 0)).map(drop)
    }

    /// The values under `key`: one, or one per possible CPU.
    pub(crate) fn lookup(&self, key: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut copies = vec![0_u8; self.stride() * self.copies];
        let mut attribute = self.element(key, address_mut(&mut copies));
        bpf(Command::MapLookup, &mut attribute)?;
        Ok(copies.chunks(self.stride()).map(|copy| copy[..self.value_bytes].to_vec()).collect())
    }
}

impl AsFd for MapFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The number of possible CPUs, for which the kernel keeps per-CPU values; it may be greater than
/// the number of online CPUs.
fn possible_cpus() -> io::Result<usize> {
    let ranges = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = ranges.trim().rsplit([',', '-']).next().and_then(|cpu| cpu.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, ranges))
}

/// The input of a test run, and the buffer for the resulting frame; empty if it is not needed.
pub(crate) struct TestRunRequest<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) data_out: &'a mut [u8],
    pub(crate) context: &'a [u8],
    pub(crate) repeat: u32,
    pub(crate) flags: u32,
    pub(crate) batch_frames: u32,
}

/// The result of a test run.
pub(crate) struct TestRunResult {
    pub(crate) verdict: u32,
    pub(crate) data_out_bytes: usize,
    pub(crate) duration_ns: u32,
}

pub(crate) fn program_test_run(
    program: BorrowedFd<'_>,
    request: TestRunRequest<'_>,
) -> io::Result<TestRunResult> {
    let mut attribute = ProgramTestRun {
        program: program.as_raw_fd(),
        verdict: 0,
        data_in_bytes: request.data.len() as u32,
        data_out_bytes: request.data_out.len() as u32,
        data_in: address(request.data),
        data_out: if request.data_out.is_empty() { 0 } else { address_mut(request.data_out) },
        repeat: request.repeat,
        duration_ns: 0,
        context_in_bytes: request.context.len() as u32,
        context_out_bytes: 0,
        context_in: if request.context.is_empty() { 0 } else { address(request.context) },
        context_out: 0,
        flags: request.flags,
        cpu: 0,
        batch_frames: request.batch_frames,
        pad: 0,
    };
    bpf(Command::ProgramTestRun, &mut attribute)?;

    Ok(TestRunResult {
        verdict: attribute.verdict,
        data_out_bytes: attribute.data_out_bytes as usize,
        duration_ns: attribute.duration_ns,
    })
}

fn fill_info<I: Info>(object: BorrowedFd<'_>, info: &mut I) -> io::Result<()> {
    let info_bytes = size_of::<I>() as u32;
    let info = std::ptr::from_mut(info) as u64;
    bpf(Command::InfoByFd, &mut InfoByFd { object: object.as_raw_fd(), info_bytes, info }).map(drop)
}

pub(crate) fn map_info(map: BorrowedFd<'_>) -> io::Result<RawMapInfo> {
    let mut info = RawMapInfo::default();
    fill_info(map, &mut info)?;
    Ok(info)
}

pub(crate) fn link_info(link: BorrowedFd<'_>) -> io::Result<RawLinkInfo> {
    let mut info = RawLinkInfo::default();
    fill_info(link, &mut info)?;
    Ok(info)
}

/// A program's information and the IDs of its maps.
pub(crate) fn program_info(program: BorrowedFd<'_>) -> io::Result<(RawProgramInfo, Vec<u32>)> {
    let mut counted = RawProgramInfo::default();
    fill_info(program, &mut counted)?;
    // A loaded program's maps never change, so the second call returns as many as the first.
    let mut map_ids = vec![0_u32; counted.map_id_count as usize];
    let mut info = RawProgramInfo {
        map_id_count: counted.map_id_count,
        map_ids: address_mut(&mut map_ids),
        ..RawProgramInfo::default()
    };
    fill_info(program, &mut info)?;
    Ok((info, map_ids))
}
