//! The memory that the process may use, checked before any is allocated.

mod cgroup;

use std::fs;

use rustix::process::{Resource, getrlimit};

use crate::error::OpenError;
use crate::sys::opener::{self, Privilege};
pub use cgroup::Cgroup;

/// Fails if the machine or a memory cgroup of the process lacks the memory, or the process may not
/// lock it: of `needed_bytes`, `locked_bytes` count against the limit.
///
/// # Errors
///
/// [`OpenError::PoolTooLarge`], [`OpenError::NotEnoughMemory`] or [`OpenError::CgroupTooSmall`].
pub(crate) fn check_memory(needed_bytes: u64, locked_bytes: u64) -> Result<(), OpenError> {
    if let Some(limit_bytes) = locked_memory_limit().filter(|limit| locked_bytes > *limit) {
        return Err(OpenError::PoolTooLarge { needed_bytes: locked_bytes, limit_bytes });
    }

    let available_bytes = meminfo("MemAvailable").unwrap_or(u64::MAX);
    if needed_bytes > available_bytes {
        return Err(OpenError::NotEnoughMemory { needed_bytes, available_bytes });
    }

    let smallest = Cgroup::all().into_iter().min_by_key(Cgroup::available_bytes);
    match smallest.filter(|cgroup| needed_bytes > cgroup.available_bytes()) {
        Some(cgroup) => Err(OpenError::CgroupTooSmall {
            needed_bytes,
            available_bytes: cgroup.available_bytes(),
            limit_bytes: cgroup.limit_bytes,
            file: cgroup.file,
        }),
        None => Ok(()),
    }
}

/// The limit on locked memory in bytes; `None` if there is none, or it does not apply to this
/// process.
fn locked_memory_limit() -> Option<u64> {
    if opener::has(Privilege::LockedMemory) { None } else { locked_memory_rlimit() }
}

/// `RLIMIT_MEMLOCK` in bytes; `None` when it is unlimited.
pub(crate) fn locked_memory_rlimit() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// The maximum memory of the process in bytes: that of the machine, or of a smaller memory cgroup.
pub(crate) fn memory_total() -> u64 {
    let machine = meminfo("MemTotal").unwrap_or(1 << 30);
    Cgroup::all().iter().map(|cgroup| cgroup.limit_bytes).fold(machine, u64::min)
}

/// A line of /proc/meminfo, in bytes.
fn meminfo(key: &str) -> Option<u64> {
    parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?, key)
}

fn parse_meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_by_whole_names() {
        let text = "MemTotal:       16 kB\nMemAvailable:    8 kB\n";
        assert_eq!(parse_meminfo(text, "MemAvailable"), Some(8192));
        assert_eq!(parse_meminfo(text, "Mem"), None);
    }
}
