//! The operator's marks: interfaces that are dedicated to capturing.
//!
//! No observation proves that a host does not use an interface: a macvlan that was moved to another
//! network namespace, a container behind a tc filter or a DHCP client that is not running yet leave
//! no trace that is always visible. So the evidence is the operator's word: a file per interface,
//! with the hardware address, so that another device that gets the name is not meant.
//!
//! A mark is a file in `/etc/wirecap/dedicated` with the interface's name, which contains its
//! permanent hardware address (its address, if it has no permanent one). A mark with another
//! address does not count, nor does a file or directory that another user owns or may write to. The
//! environment variable `WIRECAP_DEDICATED_DIR` names another directory, for tests.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;

use super::{Device, Mac};

/// The directory of the marks.
const DIRECTORY: &str = "/etc/wirecap/dedicated";
/// Names another directory, for tests.
const DIRECTORY_VARIABLE: &str = "WIRECAP_DEDICATED_DIR";
/// Maximum bytes of a mark.
const BYTES_MAX: u64 = 4096;

/// Whether an interface is dedicated to capturing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// The operator has not marked it.
    Missing,
    /// The operator has dedicated it to capturing.
    Dedicated,
    /// The interface that was marked had this hardware address, and this one has another.
    OtherAddress(String),
    /// There is a mark, and it does not count for this reason.
    Ignored(String),
}

/// The directory with the marks: `/etc/wirecap/dedicated`, or that of the environment variable
/// `WIRECAP_DEDICATED_DIR`.
pub fn dedicated_directory() -> PathBuf {
    match env::var_os(DIRECTORY_VARIABLE) {
        Some(directory) if !directory.is_empty() => directory.into(),
        _ => DIRECTORY.into(),
    }
}

/// The names of all interfaces that have a mark, in order, present or not.
///
/// # Errors
///
/// If the directory cannot be read.
pub fn marked_names() -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dedicated_directory()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let is_file = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
    let name = |entry: fs::DirEntry| entry.file_name().into_string().ok();
    let names = entries.flatten().filter(is_file).filter_map(name);
    let mut names: Vec<String> = names.filter(|name| super::check_name(name).is_ok()).collect();
    names.sort_unstable();
    Ok(names)
}

impl Mark {
    /// The mark of the interface with this name and hardware address.
    pub(super) fn of(name: &str, mac: Option<Mac>) -> Self {
        Self::in_directory(&dedicated_directory(), name, mac)
    }

    fn in_directory(directory: &Path, name: &str, mac: Option<Mac>) -> Self {
        let path = directory.join(name);
        let text = match read_trusted(directory, &path) {
            Ok(Some(text)) => text,
            Ok(None) => return Self::Missing,
            Err(why) => return Self::Ignored(why),
        };
        let mut addresses = text
            .lines()
            .map(str::trim)
            .filter(|line| !matches!(line.chars().next(), None | Some('#')));

        let own = mac.map(|mac| mac.to_string());
        #[cfg(sabotage)]
        if crate::sabotage::is("mark-of-any-device") {
            return Self::Dedicated;
        }

        match addresses
            .clone()
            .any(|address| own.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(address)))
        {
            true => Self::Dedicated,
            false => match addresses.next() {
                Some(address) => Self::OtherAddress(address.to_owned()),
                None => Self::Ignored(format!("{} contains no hardware address", path.display())),
            },
        }
    }
}

impl Device {
    /// The hardware address that a mark contains: the permanent one, which does not change with the
    /// device's settings.
    pub fn lasting_mac(&self) -> Option<Mac> {
        self.permanent_mac.or(self.mac)
    }

    /// Marks the interface as dedicated to capturing. Replaces another mark of its name.
    ///
    /// # Errors
    ///
    /// If it has no hardware address, or the mark cannot be written.
    pub fn dedicate(&self) -> io::Result<()> {
        let mac =
            self.lasting_mac().ok_or_else(|| io::Error::other("it has no hardware address"))?;
        let directory = dedicated_directory();
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&directory)?;

        let name = &self.name;

        // Longer than the name of any interface, so that it is no mark.
        let part = directory.join(format!("{name}.being-dedicated"));
        match fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }

        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&part)?;
        let text =
            format!("# Dedicated to capturing; \"wirecap release {name}\" undoes it.\n{mac}\n");
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&part, directory.join(name))?;

        File::open(&directory)?.sync_all()
    }
}

/// Removes the mark of this name; returns whether there was one.
///
/// # Errors
///
/// If it cannot be removed.
pub fn remove_mark(name: &str) -> io::Result<bool> {
    if super::check_name(name).is_err() {
        return Ok(false);
    }
    match fs::remove_file(dedicated_directory().join(name)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The text of a file that no other user could have written; `None` if there is none.
fn read_trusted(directory: &Path, path: &Path) -> Result<Option<String>, String> {
    let failed =
        |path: &Path, error: &io::Error| format!("{} cannot be read: {error}", path.display());
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| failed(path, &error))?,
    };
    let status = file.metadata().map_err(|error| failed(path, &error))?;
    check_trust(path, &status)?;

    if !status.is_file() {
        return Err(format!("{} is not a file", path.display()));
    }

    let status = fs::metadata(directory).map_err(|error| failed(directory, &error))?;
    check_trust(directory, &status)?;

    let mut text = String::new();
    file.take(BYTES_MAX).read_to_string(&mut text).map_err(|error| failed(path, &error))?;

    Ok(Some(text))
}

fn check_trust(path: &Path, status: &fs::Metadata) -> Result<(), String> {
    #[cfg(sabotage)]
    if crate::sabotage::is("mark-of-any-user") {
        return Ok(());
    }

    let owner = status.uid();
    let path = path.display();

    match () {
        () if owner != 0 && owner != geteuid().as_raw() => {
            Err(format!("{path} belongs to user {owner}"))
        }
        () if status.mode() & 0o022 != 0 => {
            Err(format!("other users can write to {path}; run chmod go-w {path}"))
        }
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 0xab]);

    fn with_mark(text: &str, change: impl FnOnce(&Path)) -> Mark {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("eth1"), text).unwrap();
        fs::set_permissions(folder.path().join("eth1"), fs::Permissions::from_mode(0o644)).unwrap();
        change(folder.path());
        Mark::in_directory(folder.path(), "eth1", Some(MAC))
    }

    #[test]
    fn a_mark_counts_for_its_address_only() {
        let nothing = |_: &Path| {};
        assert_eq!(with_mark("# why\n02:00:00:00:00:AB\n", nothing), Mark::Dedicated);
        assert_eq!(
            with_mark("02:00:00:00:00:01\n", nothing),
            Mark::OtherAddress("02:00:00:00:00:01".to_owned())
        );
        assert_eq!(with_mark("02:00:00:00:00:01\n02:00:00:00:00:ab\n", nothing), Mark::Dedicated);
        assert!(matches!(with_mark("# nothing\n\n", nothing), Mark::Ignored(_)));
        let remove = |folder: &Path| fs::remove_file(folder.join("eth1")).unwrap();
        assert_eq!(with_mark("", remove), Mark::Missing);
    }

    #[test]
    fn a_mark_that_another_user_could_write_does_not_count() {
        let text = "02:00:00:00:00:ab\n";
        let mode = |path: PathBuf, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };

        let ignored = |change: &dyn Fn(&Path), word: &str| {
            let Mark::Ignored(why) = with_mark(text, change) else { panic!("{word}") };
            assert!(why.contains(word), "{why}");
        };
        ignored(&|folder| mode(folder.join("eth1"), 0o664), "chmod go-w");
        ignored(&|folder| mode(folder.to_owned(), 0o777), "chmod go-w");

        let link = |folder: &Path| {
            fs::rename(folder.join("eth1"), folder.join("elsewhere")).unwrap();
            symlink(folder.join("elsewhere"), folder.join("eth1")).unwrap();
        };
        ignored(&link, "cannot be read");

        let directory = |folder: &Path| {
            fs::remove_file(folder.join("eth1")).unwrap();
            fs::create_dir(folder.join("eth1")).unwrap();
        };
        ignored(&directory, "not a file");

        if geteuid().is_root() {
            let give = |folder: &Path| {
                std::os::unix::fs::chown(folder.join("eth1"), Some(1234), None).unwrap();
            };
            ignored(&give, "belongs to user 1234");
        }
    }
}
