//! Protection against entries that another user created in a shared directory such as /tmp.
//!
//! The kernel has similar rules (`fs.protected_symlinks` and related settings, proc_sys_fs(5)), but
//! they may be off, and they do not apply to files opened without `O_CREAT`.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// Whether another user may have created the entry at `path`: several users may write to the
/// directory, and the entry is a hard link or belongs to a user other than the process's user, root
/// and the directory's owner.
///
/// # Errors
///
/// [`io::ErrorKind::NotFound`] if there is no entry; errors of the system.
pub fn is_planted(path: &Path) -> io::Result<bool> {
    let entry = fs::symlink_metadata(path)?;
    let directory = fs::metadata(directory_of(path))?;
    Ok(is_planted_entry(&Ownership::of(&directory), &Ownership::of(&entry), effective_user()))
}

/// Fails if [`is_planted`] returns true; a missing entry is not planted.
///
/// # Errors
///
/// [`io::ErrorKind::PermissionDenied`], with the reason; errors of the system.
pub fn refuse_planted(path: &Path) -> io::Result<()> {
    match is_planted(path) {
        Ok(true) => {
            let text = "it belongs to another user or is a hard link, in a directory that all users may write to";
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The ownership of a file or a directory.
#[derive(Debug, Clone, Copy)]
struct Ownership {
    user: u32,
    mode: u32,
    is_hard_link: bool,
}

impl Ownership {
    fn of(metadata: &Metadata) -> Self {
        // For a directory, the link count is the number of subdirectories.
        let is_hard_link = !metadata.is_dir() && metadata.nlink() > 1;
        Self { user: metadata.uid(), mode: metadata.mode(), is_hard_link }
    }
}

/// The group of a directory without the sticky bit is trusted.
fn is_planted_entry(directory: &Ownership, entry: &Ownership, user: Option<u32>) -> bool {
    let group_is_shared = directory.mode & (STICKY | GROUP_WRITES) == STICKY | GROUP_WRITES;
    if directory.mode & OTHERS_WRITE == 0 && !group_is_shared {
        return false;
    }
    let is_trusted = entry.user == 0 || entry.user == directory.user || Some(entry.user) == user;
    !is_trusted || entry.is_hard_link
}

/// The effective user of this process, if /proc reports it. The owner of /proc/self is not
/// reliable: for a process with file capabilities it is root.
fn effective_user() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_shared_directory_entries_of_other_users_count_as_planted() {
        const DIRECTORY_OWNER: u32 = 20;
        const OWN: Option<u32> = Some(10);

        for (mode, is_shared) in [
            (0o1777, true),
            (0o777, true),
            (0o1775, true),
            (0o775, false),
            (0o755, false),
            (0o1755, false),
        ] {
            let directory =
                Ownership { user: DIRECTORY_OWNER, mode: 0o040_000 | mode, is_hard_link: false };
            for (user, is_hard_link, expected) in [
                (0, false, false),
                (10, false, false),
                (DIRECTORY_OWNER, false, false),
                (30, false, is_shared),
                (0, true, is_shared),
                (10, true, is_shared),
            ] {
                let entry = Ownership { user, mode: 0o100_600, is_hard_link };
                assert_eq!(
                    is_planted_entry(&directory, &entry, OWN),
                    expected,
                    "mode {mode:o}, user {user}, hard link {is_hard_link}"
                );
            }
        }
    }

    #[test]
    fn the_effective_user_owns_what_this_process_creates() {
        let file = tempfile::NamedTempFile::new().expect("there is a temporary folder");
        let owner = fs::metadata(file.path()).expect("it is there").uid();
        assert_eq!(effective_user(), Some(owner));
        assert!(!is_planted(file.path()).expect("it is there"));
    }
}
