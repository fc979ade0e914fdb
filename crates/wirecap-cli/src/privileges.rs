//! `--user`: the process that processes packets has no privileges. A second process, `wirecap broker`, keeps them and makes
//! privileged calls.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{self, Path};
use std::process::{Command, Stdio};

use clap::Args;
use rustix::fs::{Access, access};
use rustix::process::geteuid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use wirecap::device::KernelVersion;
use wirecap::filter::Libpcap;
use wirecap::filter::opener::set_opener;
use wirecap_broker::{Broker, Confinement, Landlocked, Terms, User};
use wirecap_recorder::{Launch, Pattern, refuse_busy};

use crate::advice;
use crate::failure::Failure;
use crate::output;

/// The user that records.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Privileges")]
pub(crate) struct UserOption {
    /// Record as this user; a separate process keeps the privileges
    ///
    /// The directory of the savefile must be writable by that user. The process that reads and writes packets has no
    /// capabilities, cannot open files outside that directory (Landlock; it may read /proc, /sys and the name service's
    /// files), and is limited to the system calls that recording needs (seccomp). A second process keeps the privileges
    /// for opening and reattaching interfaces.
    ///
    /// With -Z root, the capture keeps its privileges. [default when started as root: user wirecap, or else the owner of the
    /// directory, if that user may write there; otherwise, and on kernels before 5.19, root]
    #[arg(short = 'Z', long, value_name = "USER", conflicts_with = "read")]
    user: Option<String>,
}

/// The user of recordings on systems that have one.
const USUAL: &str = "wirecap";
/// Since this version maps are written to without a privilege.
const KERNEL: KernelVersion = KernelVersion { major: 5, minor: 19 };

/// The output of a recording.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'a> {
    /// What is open already.
    Open,
    /// The files of a set.
    Set(&'a Pattern),
    /// One file, which may exist.
    File(&'a Path),
    /// A pipe or a device.
    Stream(&'a Path),
}

impl<'a> Place<'a> {
    /// The directory in which files are created or opened, or the pipe or device itself.
    pub(crate) fn writable(&self) -> Option<&'a Path> {
        match self {
            Self::Open => None,
            Self::Set(pattern) => Some(pattern.directory()),
            Self::File(path) => Some(output::directory_of(path)),
            Self::Stream(path) => Some(path),
        }
    }

    /// Whose the directory is.
    fn owner(&self) -> io::Result<User> {
        match self {
            Self::Open => Err(io::ErrorKind::NotFound.into()),
            Self::Set(pattern) => User::owner_of(pattern.directory()),
            Self::File(path) | Self::Stream(path) => User::owner_of(output::directory_of(path)),
        }
    }

    /// Why the user that this thread acts for cannot record there.
    fn check(&self) -> io::Result<()> {
        let may_create = |directory: &Path| access(directory, Access::WRITE_OK | Access::EXEC_OK);
        match self {
            Self::Open => {}
            Self::Set(pattern) => {
                may_create(pattern.directory())?;
                // It also looks at what earlier runs left incomplete.
                refuse_busy(pattern)?;
            }
            Self::File(path) => {
                may_create(output::directory_of(path))?;
                if path.exists() {
                    access(*path, Access::WRITE_OK)?;
                }
            }
            Self::Stream(path) => access(*path, Access::WRITE_OK)?,
        }
        Ok(())
    }
}

impl UserOption {
    /// The user that records, if not the one that started this process.
    pub(crate) fn choose(&self, place: &Place<'_>) -> Result<Option<User>, Failure> {
        match self.user.as_deref() {
            None if !geteuid().is_root() || !maps_need_no_privilege() => Ok(None),
            None => {
                let user = usual(place);
                if let Some(User { name, .. }) = &user {
                    eprintln!("recording as user {name} (-Z root: as root)");
                }
                Ok(user)
            }
            Some("root") => Ok(None),
            Some(name) => named(name, place).map(Some),
        }
    }

    /// Checks the output as the named user: a process with some of root's privileges may lack those to enter that
    /// user's directory. Without a name, `check` uses the privileges of this process.
    pub(crate) fn check(
        &self,
        place: &Place<'_>,
        check: impl FnOnce() -> Result<(), Failure> + Send,
    ) -> Result<(), Failure> {
        match self.user.as_deref() {
            None | Some("root") => check(),
            Some(name) => named(name, place)?.act(check).map_err(|error| cannot_act(name, &error))?,
        }
    }
}

/// The user of that name, if the user can record there.
fn named(name: &str, place: &Place<'_>) -> Result<User, Failure> {
    let user = User::named(name).map_err(|error| Failure::Usage(format!("-Z {name}: {error}")))?;
    let checked = user.act(|| place.check()).map_err(|error| cannot_act(name, &error))?;
    checked.map_err(|error| cannot_write(name, place, &error))?;
    Ok(user)
}

fn maps_need_no_privilege() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    KernelVersion::parse(&release).is_some_and(|version| version >= KERNEL)
}

/// The default user of recordings: the system's user for recording, or the owner of the directory, if that is not root
/// and may write there.
fn usual(place: &Place<'_>) -> Option<User> {
    let candidates = [User::named(USUAL).ok(), place.owner().ok()];
    let can = |user: &User| user.uid != 0 && user.act(|| place.check()).is_ok_and(|checked| checked.is_ok());
    candidates.into_iter().flatten().find(can)
}

fn cannot_act(name: &str, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot continue as user {name}: {error}").into())
}

fn cannot_write(name: &str, place: &Place<'_>, error: &io::Error) -> Failure {
    let writable = place.writable().unwrap_or(Path::new("-")).display();
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!(" (chown {name} {writable}, or name another directory or user)")
        }
        _ => String::new(),
    };
    Failure::Failed(format!("user {name} cannot write to {writable}: {error}{advice}").into())
}

/// Drops this process's privileges and continues as `user`. `interfaces` are all that may be captured, and `writable`
/// is the only directory or device that may be written to. The privileged process runs `command` for complete files,
/// and removes `sockets` at the end.
pub(crate) fn drop_privileges(
    user: User,
    interfaces: &[String],
    writable: Option<&Path>,
    command: Option<&[String]>,
    sockets: &[&Path],
) -> Result<Broker, Failure> {
    let writable = writable.map(path::absolute).transpose()?;
    let terms = Terms {
        interfaces: interfaces.iter().flat_map(|name| names_of(name)).collect(),
        user: user.clone(),
        directory: writable.clone().unwrap_or_default(),
        command: command.map(<[String]>::to_vec),
        sockets: sockets.iter().map(path::absolute).collect::<Result<_, _>>()?,
    };
    let mut program = Command::new("/proc/self/exe");
    // It must not hold the pipe to which the recording is written.
    program.arg("broker").stdout(Stdio::null());
    let broker = Broker::start(program, &terms)
        .map_err(|error| Failure::Failed(format!("cannot start the privileged process: {error}").into()))?;
    set_opener(Box::new(broker.clone())).expect("nothing was opened before");
    // After the opener is set, because all objects are opened with it.
    advice::look_before_privileges_drop(&terms.interfaces);
    // Libraries cannot be loaded afterwards. Where libpcap is missing, the error comes when a filter needs it.
    let _ = Libpcap::get();
    let name = user.name.clone();
    let landlocked = Confinement::recording(user, writable.as_deref())
        .enter()
        .map_err(|error| cannot_act(&name, &error))?;
    if landlocked != Landlocked::Fully {
        let much = if landlocked == Landlocked::Not { "no" } else { "not every" };
        eprintln!(
            "warning: this kernel enforces {much} rule for files (Landlock): only the file permissions of user {name} protect other files"
        );
    }
    Ok(broker)
}

/// The names that interfaces may have that are called so on the command line: `eth0@2` is a queue of `eth0`, unless it is an
/// interface's name.
fn names_of(text: &str) -> Vec<String> {
    let whole = text.to_owned();
    match text.rsplit_once('@') {
        Some((name, _)) => vec![name.to_owned(), whole],
        None => vec![whole],
    }
}

/// Makes the broker run the command for complete files.
#[derive(Debug)]
pub(crate) struct ByBroker(pub(crate) Broker);

impl Launch for ByBroker {
    fn launch(&mut self, path: &Path) {
        let _a_command_that_fails = path::absolute(path).and_then(|path| self.0.run(&path));
    }

    /// The broker waits for the commands that it started.
    fn finish(&mut self) {}
}

/// Keep privileges for a process that dropped its own: started by `capture -Z`
#[derive(Debug, Args)]
pub(crate) struct Arguments {}

/// Serves the process at the other end of standard input until it ends.
pub(crate) fn serve() -> Result<(), Failure> {
    // The terminal signals both processes. This one ends when the other one has.
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2] {
        flag::register(signal, std::sync::Arc::default())?;
    }
    let _ = rustix::thread::set_name(c"wirecap-broker");
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    wirecap_broker::serve(socket)
        .map_err(|error| Failure::Failed(format!("the privileged process: {error}").into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_of_an_interface() {
        assert_eq!(names_of("eth0"), ["eth0"]);
        assert_eq!(names_of("eth0@2-3"), ["eth0", "eth0@2-3"]);
    }
}
