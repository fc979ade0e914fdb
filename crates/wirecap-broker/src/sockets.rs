//! Sockets in directories: whose process is dead, and how such a socket is removed, and no other
//! file.
//!
//! A privileged process does this in directories that may belong to an unprivileged user, who can
//! exchange files at any moment. So a path is resolved once, to an open directory; a socket is an
//! open inode, whose number is not reused; and a removal acts for the owner of the directory. That
//! user can exchange the file just before the removal, but only lose what the user could remove as
//! well.
//!
//! The broker holds directory and socket open from the beginning, and removes the socket, only if
//! the name is still its own, with the rights of the directory's owner.

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, open, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};
use rustix::process::geteuid;

use crate::message::User;

/// Held by a process that is between bind(2) and listen(2) in the directory.
const LOCK: &str = ".lock";
/// How long to wait for it.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

/// The kind of file at a path.
#[derive(Debug, PartialEq, Eq)]
pub enum SocketState {
    /// Nothing.
    Free,
    /// A socket without a listening process.
    Dead,
    /// A socket with a listening process, whose number is known if it can be connected to, or
    /// another kind of file.
    Taken(Option<i32>),
}

/// The state of the socket at `path`. A symbolic link is not followed: it is another kind of file.
///
/// # Errors
///
/// If the path cannot be looked at.
pub fn socket_state(path: &Path) -> io::Result<SocketState> {
    match Named::open(path) {
        Ok(Some(named)) => named.state(),
        Ok(None) => Ok(SocketState::Taken(None)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(SocketState::Free),
        Err(error) => Err(error),
    }
}

/// Removes the socket at `path`, if that is a socket, for the owner of the directory.
///
/// # Errors
///
/// If it is another kind of file, or cannot be removed.
pub fn remove_socket(path: &Path) -> io::Result<()> {
    match Named::open(path)? {
        Some(named) => named.remove(),
        None => Err(io::Error::other("it is not a socket")),
    }
}

/// Sets the mode of the socket at `path`.
///
/// # Errors
///
/// If it is another kind of file, or its mode cannot be set.
pub fn set_socket_mode(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let named = Named::open(path)?.ok_or_else(|| io::Error::other("it is not a socket"))?;
    std::fs::set_permissions(named.link(), std::fs::Permissions::from_mode(mode))
}

/// Sockets that exist when the terms are agreed on, before an unprivileged user takes part.
#[derive(Debug)]
pub(crate) struct Sockets(Vec<Named>);

impl Sockets {
    pub(crate) fn of(paths: &[PathBuf]) -> Self {
        Self(paths.iter().filter_map(|path| Named::open(path).ok().flatten()).collect())
    }

    /// Removes those to which no process listens, unless another file has the name.
    pub(crate) fn remove_dead(&self) {
        for socket in &self.0 {
            let _another_process_may_have_removed_it = socket.remove_dead();
        }
    }
}

/// A socket, and its name in a directory.
#[derive(Debug)]
struct Named {
    directory: OwnedFd,
    name: OsString,
    /// Open by path only: it identifies the socket.
    socket: OwnedFd,
}

impl Named {
    /// `None` if the file is not a socket.
    fn open(path: &Path) -> io::Result<Option<Self>> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let parent =
            path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let by_path = OFlags::PATH | OFlags::CLOEXEC;
        let directory = open(parent, by_path | OFlags::DIRECTORY, Mode::empty())?;
        let socket = openat(&directory, &name, by_path | OFlags::NOFOLLOW, Mode::empty())?;
        let is_socket = FileType::from_raw_mode(fstat(&socket)?.st_mode) == FileType::Socket;
        Ok(is_socket.then_some(Self { directory, name, socket }))
    }

    /// A path that leads to this inode, whatever has its name now.
    fn link(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.socket.as_raw_fd()).into()
    }

    fn state(&self) -> io::Result<SocketState> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok(match connect(&client, &SocketAddrUnix::new(self.link())?) {
            Ok(()) => {
                let peer = sockopt::socket_peercred(&client).ok();
                SocketState::Taken(peer.map(|peer| peer.pid.as_raw_pid()))
            }
            Err(Errno::CONNREFUSED) => SocketState::Dead,
            Err(_) => SocketState::Taken(None),
        })
    }

    fn remove_dead(&self) -> io::Result<()> {
        let _turn = lock(&self.directory)?;
        match self.state()? {
            SocketState::Dead => self.remove(),
            SocketState::Free | SocketState::Taken(_) => Ok(()),
        }
    }

    /// Removes the name if it is still the socket's, with the rights of the directory's owner.
    fn remove(&self) -> io::Result<()> {
        let own = fstat(&self.socket)?;
        let present = statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if identity(&own) != identity(&present) {
            return Err(io::Error::other("another file has its name"));
        }
        let unlink = || Ok(unlinkat(&self.directory, &self.name, AtFlags::empty())?);
        let owner = fstat(&self.directory)?;
        match geteuid().is_root() && owner.st_uid != 0 {
            false => unlink(),
            true => User { name: owner.st_uid.to_string(), uid: owner.st_uid, gid: owner.st_gid }
                .act(unlink)?,
        }
    }
}

fn identity(status: &Stat) -> (u64, u64) {
    (status.st_dev, status.st_ino)
}

/// Takes the lock of the directory, if it has one. The owner of the directory may have replaced or
/// locked it.
fn lock(directory: impl AsFd) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match openat(directory, OsStr::new(LOCK), flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => File::from(opened?),
    };

    let deadline = Instant::now() + LOCK_PATIENCE;

    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A directory of a test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder =
                std::env::temp_dir().join(format!("wirecap-sockets-{}-{name}", std::process::id()));
            fs::create_dir(&folder).unwrap();
            Self(folder)
        }

        /// A socket whose process is dead.
        fn dead(&self, name: &str) -> PathBuf {
            let path = self.0.join(name);
            drop(UnixListener::bind(&path).unwrap());
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_a_dead_socket_is_removed() {
        let folder = Folder::new("dead");
        let dead = folder.dead("dead");
        let live = folder.0.join("live");
        let _listener = UnixListener::bind(&live).unwrap();
        let file = folder.0.join("file");
        let link = folder.0.join("link");

        fs::write(&file, "kept").unwrap();
        symlink(&dead, &link).unwrap();
        assert_eq!(socket_state(&dead).unwrap(), SocketState::Dead);
        assert_eq!(
            socket_state(&live).unwrap(),
            SocketState::Taken(Some(std::process::id().cast_signed()))
        );
        assert_eq!(socket_state(&file).unwrap(), SocketState::Taken(None));
        assert_eq!(socket_state(&link).unwrap(), SocketState::Taken(None));
        assert_eq!(socket_state(&folder.0.join("none")).unwrap(), SocketState::Free);
        assert!(remove_socket(&file).is_err() && remove_socket(&link).is_err());
        Sockets::of(&[file.clone(), link.clone(), live.clone(), dead.clone()]).remove_dead();
        assert!(!dead.exists() && live.exists() && file.exists() && link.is_symlink());
    }

    #[test]
    fn a_file_that_has_taken_the_name_of_a_socket_is_kept() {
        let folder = Folder::new("name");
        for replace in [
            |path: &Path| fs::write(path, "kept").unwrap(),
            |path: &Path| symlink(path.with_file_name("other"), path).unwrap(),
            |path: &Path| fs::rename(path.with_file_name("other"), path).unwrap(),
        ] {
            let path = folder.dead("socket");
            let _other = folder.dead("other");
            let sockets = Sockets::of(std::slice::from_ref(&path));
            fs::remove_file(&path).unwrap();
            replace(&path);
            sockets.remove_dead();
            assert!(fs::symlink_metadata(&path).is_ok());
            let _gone_if_it_was_renamed = fs::remove_file(folder.0.join("other"));
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn a_directory_that_has_taken_the_place_of_another_one_keeps_its_sockets() {
        let folder = Folder::new("first");
        let other = Folder::new("second");
        let path = folder.dead("socket");
        let victim = other.dead("socket");
        let sockets = Sockets::of(std::slice::from_ref(&path));
        let moved = folder.0.with_extension("moved");
        fs::rename(&folder.0, &moved).unwrap();
        symlink(&other.0, &folder.0).unwrap();
        sockets.remove_dead();
        assert!(victim.exists() && !moved.join("socket").exists());
        fs::remove_file(&folder.0).unwrap();
        fs::remove_dir_all(&moved).unwrap();
    }

    #[test]
    fn a_lock_that_is_no_file_or_is_held_does_not_block() {
        let folder = Folder::new("lock");
        let path = folder.dead("socket");
        let lock = folder.0.join(LOCK);
        rustix::fs::mknodat(rustix::fs::CWD, &lock, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let sockets = Sockets::of(std::slice::from_ref(&path));
        sockets.remove_dead();
        fs::remove_file(&lock).unwrap();
        let path = folder.dead("held");
        let held = File::create(&lock).unwrap();
        held.lock().unwrap();
        Sockets::of(std::slice::from_ref(&path)).remove_dead();
        assert!(path.exists(), "without the lock nothing is removed");
    }

    #[test]
    fn a_removal_has_the_rights_of_the_owner_of_the_directory() {
        if !geteuid().is_root() {
            return println!("SKIP: root");
        }

        let folder = Folder::new("owner");
        let path = folder.dead("socket");
        chown(&folder.0, Some(65534), Some(65534)).unwrap();

        // A directory that its owner cannot write to.
        fs::set_permissions(&folder.0, std::os::unix::fs::PermissionsExt::from_mode(0o555))
            .unwrap();
        assert_eq!(remove_socket(&path).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::set_permissions(&folder.0, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        remove_socket(&path).unwrap();
        assert!(!path.exists());
    }
}
