//! `--user`: the process that processes packets has no privileges. A second process,
//! `wirecap broker`, keeps them and makes privileged calls.

use std::io;
use std::os::fd::AsFd;
use std::path::{self, Path};
use std::process::{Command, Stdio};
use std::sync::Arc;

use clap::Args;
use rustix::fs::{Access, access};
use rustix::process::geteuid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use wirecap::Source;
use wirecap::filter::Libpcap;
use wirecap::privileged::{interface_and_queues, set_hooks, set_opener};
use wirecap_broker::{Broker, Confinement, Landlocked, Permitted, Terms, User, refuse_inspection};
use wirecap_recorder::{Launch, Pattern, refuse_busy};

use crate::host::advice;
use crate::shared::failure::Failure;
use crate::shared::output;
use crate::shared::signals;

/// The user that records.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Privileges")]
pub(crate) struct UserOption {
    /// Record as this user; a separate process keeps the privileges
    ///
    /// The directory of the savefile must be writable by that user. The process that reads and
    /// writes packets has no capabilities, cannot open files outside that directory (Landlock; it
    /// may read /proc, /sys and the name service's files), and is limited to the system calls that
    /// recording needs (seccomp). With one savefile and no index, it cannot read, rename or remove
    /// the other files of the directory. A second process keeps the privileges for opening and
    /// reattaching interfaces.
    ///
    /// With -Z root, the capture keeps its privileges.
    /// [default when started as root: user wirecap, or else the owner of the directory, if that
    /// user may write there; otherwise root]
    #[arg(short = 'Z', long, value_name = "USER", conflicts_with = "read")]
    user: Option<String>,
}

/// The user of recordings on systems that have one.
const USUAL: &str = "wirecap";

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
            None if !geteuid().is_root() => Ok(None),
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

    /// Checks the output as the named user: a process with some of root's privileges may lack those
    /// to enter that user's directory. Without a name, `check` uses the privileges of this process.
    pub(crate) fn check(
        &self,
        place: &Place<'_>,
        check: impl FnOnce() -> Result<(), Failure> + Send,
    ) -> Result<(), Failure> {
        match self.user.as_deref() {
            None | Some("root") => check(),
            Some(name) => {
                named(name, place)?.act(check).map_err(|error| cannot_act(name, &error))?
            }
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

/// The default user of recordings: the system's user for recording, or the owner of the directory,
/// if that is not root and may write there.
fn usual(place: &Place<'_>) -> Option<User> {
    let candidates = [User::named(USUAL).ok(), place.owner().ok()];
    let can = |user: &User| {
        user.uid != 0 && user.act(|| place.check()).is_ok_and(|checked| checked.is_ok())
    };
    candidates.into_iter().flatten().find(can)
}

fn cannot_act(name: &str, error: &io::Error) -> Failure {
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied => "; run as root or grant CAP_SETUID and CAP_SETGID",
        _ => "",
    };
    Failure::Failed(format!("cannot continue as user {name}: {error}{advice}").into())
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

/// Drops this process's privileges and continues as `user`. `interfaces` are all that may be
/// captured, and only `place` may be written to; beside a file that `has_index`, other files are
/// created. The privileged process runs `command` for complete files, and removes `sockets` at the
/// end.
pub(crate) fn drop_privileges(
    user: User,
    interfaces: &[Source],
    place: &Place<'_>,
    has_index: bool,
    command: Option<&[String]>,
    sockets: &[&Path],
) -> Result<Broker, Failure> {
    let writable = place.writable().map(path::absolute).transpose()?;
    let named = interfaces.iter().filter(|source| !source.is_any());

    let terms = Terms {
        interfaces: named.filter_map(|source| permitted(source.device())).collect(),
        any: interfaces.iter().any(Source::is_any),
        user: user.clone(),
        directory: writable.clone().unwrap_or_default(),
        command: command.map(<[String]>::to_vec),
        sockets: sockets.iter().map(path::absolute).collect::<Result<_, _>>()?,
    };
    let mut program = Command::new("/proc/self/exe");

    // It must not hold the pipe to which the recording is written.
    program.arg("broker").stdout(Stdio::null());
    let broker = Broker::start(program, &terms).map_err(|error| {
        Failure::Failed(format!("cannot start the privileged process: {error}").into())
    })?;
    let names: Vec<String> = terms.interfaces.into_iter().map(|interface| interface.name).collect();
    advice::look_before_privileges_drop(&names);
    set_opener(Arc::new(broker.clone())).expect("privileges are dropped once");
    set_hooks(Arc::new(broker.clone())).expect("privileges are dropped once");

    // Libraries cannot be loaded afterwards. Where libpcap is missing, the error comes when a
    // filter needs it.
    let _ = Libpcap::get();
    signals::make_pipe()?;

    let name = user.name.clone();
    let confinement = match (place, &writable) {
        (Place::File(_), Some(directory)) if !has_index => {
            Confinement::recording_one_file(user, directory)
        }
        _ => Confinement::recording(user, writable.as_deref()),
    };
    let landlocked = confinement.enter().map_err(|error| cannot_act(&name, &error))?;

    if landlocked != Landlocked::Fully {
        let much = if landlocked == Landlocked::Not { "no" } else { "not every" };
        eprintln!(
            "warning: this kernel enforces {much} rule for files (Landlock): only the file permissions of user {name} protect other files"
        );
    }

    Ok(broker)
}

/// The interface and queues that are called so on the command line; none, if opening them will fail
/// anyway.
fn permitted(text: &str) -> Option<Permitted> {
    let (name, queues) = interface_and_queues(text).ok()?;
    Some(Permitted { name, queues })
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
    // A user with capabilities can start a capture, and the broker is a process of that user.
    refuse_inspection()?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    wirecap_broker::serve(socket)
        .map_err(|error| Failure::Failed(format!("the privileged process: {error}").into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_of_an_interface() {
        let named = |text, queues| (permitted(text), Permitted { name: "eth0".to_owned(), queues });
        for (found, expected) in [
            named("eth0", None),
            named("eth0@2", Some(vec![2])),
            named("eth0@3,1-2", Some(vec![1, 2, 3])),
        ] {
            assert_eq!(found, Some(expected));
        }
        assert_eq!(permitted("eth0@"), None);
    }
}
