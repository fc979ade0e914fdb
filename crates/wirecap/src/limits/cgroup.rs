//! The memory cgroups of a process: its own and all its ancestors, version 2 or 1.
//!
//! The kernel kills a process that exceeds one of their limits without a message, so the limits are
//! checked before any memory is allocated.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A memory cgroup of this process that has a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// The file that has the limit.
    pub file: PathBuf,
    /// The limit.
    pub limit_bytes: u64,
    /// Bytes in use that the kernel cannot reclaim.
    pub used_bytes: u64,
}

impl Cgroup {
    /// Bytes that may still be allocated.
    pub fn available_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes)
    }

    /// The cgroups of this process that limit its memory.
    pub fn all() -> Vec<Self> {
        let read = |path: &Path| fs::read_to_string(path).ok();
        let of_process = |name| read(Path::new(name)).unwrap_or_default();
        limits(&of_process("/proc/self/mountinfo"), &of_process("/proc/self/cgroup"), &read)
    }
}

/// The files of a version.
struct Version {
    filesystem: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// The line of `memory.stat` with the reclaimable pages.
    reclaimable: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        filesystem: "cgroup2",
        limit: "memory.max",
        usage: "memory.current",
        reclaimable: "inactive_file",
    },
    Version {
        filesystem: "cgroup",
        limit: "memory.limit_in_bytes",
        usage: "memory.usage_in_bytes",
        reclaimable: "total_inactive_file",
    },
];

/// The limit of version 1 if there is none: all memory that a process can address, in whole pages.
const NO_LIMIT: u64 = 1 << 62;

/// The limits, from the process's `mountinfo` and `cgroup` files and from the files that `read`
/// returns.
fn limits(
    mountinfo: &str,
    membership: &str,
    read: &dyn Fn(&Path) -> Option<String>,
) -> Vec<Cgroup> {
    let mut limits = Vec::new();

    for version in &VERSIONS {
        let Some(path) = path_in(membership, version) else { continue };
        for (root, mounted_at) in mounts(mountinfo, version) {
            // A container without a cgroup namespace sees the host's path, of which only a part is
            // mounted.
            let Ok(below) = path.strip_prefix(root) else { continue };
            let directories = below.ancestors().map(|directory| mounted_at.join(directory));
            limits.extend(directories.filter_map(|directory| limit_of(&directory, version, read)));
        }
    }
    limits
}

/// The process's place in the hierarchy that limits memory.
fn path_in<'a>(membership: &'a str, version: &Version) -> Option<&'a Path> {
    membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let _number = fields.next()?;
        let controllers = fields.next()?;
        let path = fields.next()?;
        let is_meant = match version.filesystem {
            "cgroup2" => controllers.is_empty(),
            _ => controllers.split(',').any(|controller| controller == "memory"),
        };
        is_meant.then(|| Path::new(path))
    })
}

/// The mount point of the hierarchy, and the mounted part.
fn mounts<'a>(mountinfo: &'a str, version: &Version) -> impl Iterator<Item = (&'a Path, &'a Path)> {
    mountinfo.lines().filter_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let root = fields.next()?;
        let mounted_at = fields.next()?;
        let mut filesystem = filesystem.split(' ');
        let is_meant = filesystem.next()? == version.filesystem
            && (version.filesystem == "cgroup2"
                || filesystem.nth(1)?.split(',').any(|option| option == "memory"));
        is_meant.then(|| (Path::new(root), Path::new(mounted_at)))
    })
}

fn limit_of(
    directory: &Path,
    version: &Version,
    read: &dyn Fn(&Path) -> Option<String>,
) -> Option<Cgroup> {
    let file = directory.join(version.limit);

    // `max` in version 2.
    let limit_bytes = number(&read(&file)?).filter(|&limit| limit < NO_LIMIT)?;
    let usage = read(&directory.join(version.usage)).and_then(|text| number(&text)).unwrap_or(0);
    let statistics = read(&directory.join("memory.stat")).unwrap_or_default();
    let reclaimable = statistics.lines().find_map(|line| {
        let (name, count) = line.split_once(' ')?;
        (name == version.reclaimable).then(|| number(count))?
    });

    Some(Cgroup { file, limit_bytes, used_bytes: usage.saturating_sub(reclaimable.unwrap_or(0)) })
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits in a recorded tree of paths, each with the file's contents.
    fn found(mountinfo: &str, membership: &str, tree: &[(&str, &str)]) -> Vec<(String, u64, u64)> {
        let read = |path: &Path| {
            tree.iter()
                .find(|(name, _)| Path::new(name) == path)
                .map(|(_, text)| (*text).to_owned())
        };
        let limits = limits(mountinfo, membership, &read).into_iter();
        limits
            .map(|limit| {
                (limit.file.display().to_string(), limit.limit_bytes, limit.available_bytes())
            })
            .collect()
    }

    const UNIFIED: &str = "24 1 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn every_limit_up_the_hierarchy_counts_in_version_2() {
        let tree = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "314572800\n"),
            ("/sys/fs/cgroup/a/memory.current", "104857600\n"),
            ("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 4857600\n"),
            ("/sys/fs/cgroup/memory.max", "629145600\n"),
        ];
        let expected = [
            ("/sys/fs/cgroup/a/memory.max".to_owned(), 314_572_800, 214_572_800),
            ("/sys/fs/cgroup/memory.max".to_owned(), 629_145_600, 629_145_600),
        ];
        assert_eq!(found(UNIFIED, "0::/a/b\n", &tree), expected);
    }

    #[test]
    fn version_1_has_no_limit_where_it_names_the_largest_number() {
        let mountinfo = "30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                         31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                         32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let membership = "5:cpu:/x\n4:memory:/jobs/one\n0::/\n";
        let tree = [
            ("/sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "629145600\n"),
            ("/sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "1000\n"),
            (
                "/sys/fs/cgroup/memory/jobs/memory.stat",
                "inactive_file 7\ntotal_inactive_file 400\n",
            ),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        let limit = "/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes".to_owned();
        assert_eq!(found(mountinfo, membership, &tree), [(limit, 629_145_600, 629_145_000)]);
    }

    #[test]
    fn a_container_that_sees_the_hosts_path_finds_its_limit_at_the_mount() {
        let mountinfo = "40 1 0:22 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        let tree = [("/sys/fs/cgroup/memory.max", "1000\n")];
        let expected = [("/sys/fs/cgroup/memory.max".to_owned(), 1000, 1000)];
        assert_eq!(found(mountinfo, "0::/docker/abc\n", &tree), expected);
        assert_eq!(found(mountinfo, "0::/elsewhere\n", &tree), []);
    }
}
