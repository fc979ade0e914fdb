//! The place of control sockets: the directory, the names in it, and the permissions.
//!
//! The directory has mode 0755 and belongs to root or to the user of the capture; one that other
//! users can write to is not used. The socket has mode 0660 before the first connection is
//! possible. If a live process has a name already, a name from `--name` is rejected, and a default
//! name gets a number (`eth0-2`). A socket whose process is dead (the kernel refuses connections)
//! is replaced; the file `.lock` in the directory, which only the owner of the directory can open,
//! serialises this. If a capture may not create the directory or the socket, it reports that once
//! and continues without one.

use std::env;
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::geteuid;
use wirecap_broker::{SocketState, remove_socket, set_socket_mode, socket_state};

/// The directory of sockets, unless the environment names another one.
const DIRECTORY: &str = "/run/wirecap";
/// The variable that does.
pub(crate) const DIRECTORY_VARIABLE: &str = "WIRECAP_CONTROL_DIR";
/// Held while a name is taken: without it two processes could both find the same socket without an
/// owner.
const LOCK: &str = ".lock";
/// How long to wait for it.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// The longest name.
const NAME_BYTES_MAX: usize = 64;
/// Maximum number of captures whose names differ only in a number at the end.
const NUMBER_MAX: u32 = 1000;
/// Connections that may wait until the server takes them.
const BACKLOG: i32 = 128;

/// The directory of the control sockets.
pub(crate) fn directory() -> PathBuf {
    env::var_os(DIRECTORY_VARIABLE)
        .filter(|value| !value.is_empty())
        .unwrap_or_else(|| DIRECTORY.into())
        .into()
}

/// A capture's name, as `--name` has it.
pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._@,+:-".contains(&byte);
    match text.as_bytes() {
        [] => Err("invalid name: it is empty".to_owned()),
        [b'.' | b'-', ..] => Err("invalid name: it begins with . or -".to_owned()),
        bytes if bytes.len() > NAME_BYTES_MAX => {
            Err(format!("invalid name: it is longer than {NAME_BYTES_MAX} characters"))
        }
        bytes if !bytes.iter().copied().all(is_plain) => {
            Err("invalid name: expected letters, digits and . _ @ , + : -".to_owned())
        }
        _ => Ok(text.to_owned()),
    }
}

/// The name of a capture of these sources: `eth0`, `eth0@0-3`, `eth0+eth1`.
pub(super) fn name_of(sources: &[String]) -> String {
    let allowed = |char: char| {
        if char.is_ascii_alphanumeric() || "._@,+:-".contains(char) { char } else { '_' }
    };
    let mut name: String =
        sources.join("+").chars().map(allowed).take(NAME_BYTES_MAX - 5).collect();
    if name.is_empty() || name.starts_with(['.', '-']) {
        name.insert(0, '_');
    }
    name
}

/// Why a capture has no control socket.
#[derive(Debug)]
pub(super) enum ClaimError {
    /// Another capture has the name.
    Taken {
        /// The name.
        name: String,
        /// The process, if it is known.
        pid: Option<i32>,
    },
    /// The directory cannot be used.
    Directory {
        /// Which one.
        directory: PathBuf,
        /// Why not.
        reason: String,
    },
}

impl fmt::Display for ClaimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken { name, pid: Some(pid) } => {
                write!(f, "the name {name} is in use by process {pid}; choose another one (--name)")
            }
            Self::Taken { name, pid: None } => {
                write!(
                    f,
                    "the name {name} is in use by another process; choose another one (--name)"
                )
            }
            Self::Directory { directory, reason } => write!(f, "{}: {reason}", directory.display()),
        }
    }
}

/// A control socket's place: its name in the directory. Removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

impl Drop for Place {
    fn drop(&mut self) {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        // A process without privileges has no right to do so: then its broker does.
        let Ok(_turn) = take_attach_lock(directory) else { return };
        // The file may have been replaced: inode numbers are reused, so they do not identify it.
        let own = rustix::process::getpid().as_raw_pid();
        if socket_state(&self.path).is_ok_and(|state| {
            matches!(state, SocketState::Dead) || state == SocketState::Taken(Some(own))
        }) {
            let _ = remove_socket(&self.path);
        }
    }
}

/// Takes the name, or, unless that `is_exact`, one with a number behind it. Only the owner and the
/// group of the socket can connect to it.
pub(super) fn claim(
    directory: &Path,
    name: &str,
    is_exact: bool,
) -> Result<(Place, UnixListener), ClaimError> {
    let unusable =
        |reason: String| ClaimError::Directory { directory: directory.to_owned(), reason };
    prepare(directory).map_err(unusable)?;

    let _turn = take_attach_lock(directory).map_err(unusable)?;
    let numbered = |number| if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
    let mut taken = None;

    for name in (1..=if is_exact { 1 } else { NUMBER_MAX }).map(numbered) {
        let path = directory.join(&name);
        match socket_state(&path).map_err(|error| unusable(error.to_string()))? {
            SocketState::Taken(pid) => {
                taken.get_or_insert(ClaimError::Taken { name, pid });
                continue;
            }
            SocketState::Dead => {
                remove_socket(&path).map_err(|error| unusable(error.to_string()))?;
            }
            SocketState::Free => {}
        }

        let listener = listen_at(&path).map_err(|error| unusable(format!("{name}: {error}")))?;
        return Ok((Place { name, path }, listener));
    }

    Err(taken.expect("a name that is not free is taken"))
}

/// Creates the directory if required, and ensures that no other user can create files in it.
fn prepare(directory: &Path) -> Result<(), String> {
    match DirBuilder::new().mode(0o755).create(directory) {
        // Regardless of the umask.
        Ok(()) => fs::set_permissions(directory, Permissions::from_mode(0o755))
            .map_err(|error| format!("cannot set its mode: {error}"))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(format!("cannot create it: {error}")),
    }

    let metadata = fs::metadata(directory).map_err(|error| error.to_string())?;
    let owner = metadata.uid();

    match () {
        () if !metadata.is_dir() => Err("is not a directory".to_owned()),
        () if owner != 0 && owner != geteuid().as_raw() => Err(format!("belongs to user {owner}")),
        #[cfg(sabotage)]
        () if crate::sabotage::is("control-directory-of-others") => Ok(()),
        () if metadata.mode() & 0o022 != 0 => {
            Err("other users can write to it; run chmod 0755".to_owned())
        }
        () => Ok(()),
    }
}

/// Waits until no other process takes a name.
fn take_attach_lock(directory: &Path) -> Result<File, String> {
    let path = directory.join(LOCK);
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);

    let file =
        options.open(&path).map_err(|error| format!("cannot create a file in it: {error}"))?;
    let deadline = Instant::now() + LOCK_PATIENCE;

    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(format!("cannot lock {LOCK}: {error}")),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                return Err(format!("another process has locked {LOCK}"));
            }
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// A socket of the local kind.
pub(super) fn new_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | flags, None)?)
}

/// Nothing can connect before the mode is set: until `listen` the kernel refuses it.
pub(super) fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let socket = new_socket(SocketFlags::NONBLOCK)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;

    #[cfg(sabotage)]
    let mode = if crate::sabotage::is("control-socket-for-everyone") { 0o666 } else { 0o660 };
    #[cfg(not(sabotage))]
    let mode = 0o660;
    let ready = set_socket_mode(path, mode)
        .and_then(|()| listen(&socket, BACKLOG).map_err(io::Error::from));

    if let Err(error) = ready {
        let _ = remove_socket(path);
        return Err(error);
    }

    Ok(UnixListener::from(socket))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use tempfile::TempDir;

    use super::*;

    fn directory() -> (TempDir, PathBuf) {
        let outer = TempDir::new().unwrap();
        let inner = outer.path().join("wirecap");
        (outer, inner)
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn the_directory_is_for_all_to_read_and_the_socket_for_owner_and_group() {
        let (_outer, directory) = directory();
        let (place, listener) = claim(&directory, "eth0", true).unwrap();
        assert_eq!(
            (mode(&directory), mode(&place.path)),
            (0o755, 0o660),
            "modes of the directory and the socket"
        );
        UnixStream::connect(&place.path).unwrap();
        drop(listener);
        let path = place.path.clone();
        drop(place);
        assert!(!path.exists());
    }

    #[test]
    fn a_name_in_use_is_rejected_or_gets_a_number() {
        let (_outer, directory) = directory();
        let (place, _listener) = claim(&directory, "eth0", true).unwrap();
        let error = claim(&directory, "eth0", true).unwrap_err();
        let pid = std::process::id().to_string();
        assert!(error.to_string().contains(&pid), "{error}");
        let (second, _second) = claim(&directory, "eth0", false).unwrap();
        let (third, _third) = claim(&directory, "eth0", false).unwrap();
        assert_eq!([&place.name, &second.name, &third.name], ["eth0", "eth0-2", "eth0-3"]);
    }

    #[test]
    fn a_socket_whose_owner_is_dead_is_replaced_and_nothing_else_is() {
        let (_outer, directory) = directory();
        let (place, listener) = claim(&directory, "eth0", true).unwrap();
        // As if the process had been killed.
        drop(listener);
        std::mem::forget(place);
        let (again, _listener) = claim(&directory, "eth0", true).unwrap();
        UnixStream::connect(&again.path).unwrap();
        fs::write(directory.join("file"), "kept").unwrap();
        assert!(matches!(claim(&directory, "file", true), Err(ClaimError::Taken { .. })));
        assert_eq!(fs::read(directory.join("file")).unwrap(), b"kept");
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_not_used() {
        let (_outer, directory) = directory();
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        let error = claim(&directory, "eth0", true).expect_err("others can write to the directory");
        assert!(error.to_string().contains("other users can write to it"), "{error}");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    }

    #[test]
    fn names_are_those_of_the_interfaces_and_fit_into_a_path() {
        let name = |sources: &[&str]| {
            name_of(&sources.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(name(&["eth0"]), "eth0");
        assert_eq!(name(&["eth0@0-3", "eth1"]), "eth0@0-3+eth1");
        assert_eq!(name(&[".hidden"]), "_.hidden");
        assert_eq!(name(&["a*b/c"]), "a_b_c");
        assert!(name(&["interface"; 20]).len() < NAME_BYTES_MAX);
        for name in ["", ".lock", "-x", "a/b", "a b", &"n".repeat(65)] {
            assert!(parse_name(name).is_err(), "{name}");
        }
        assert_eq!(parse_name("eth0@0-3+eth1").unwrap(), "eth0@0-3+eth1");
    }
}
