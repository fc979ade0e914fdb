//! `--user`: what looks at packets has no privileges. A second process, `wirecap broker`, keeps them and opens what needs some.

use std::io;
use std::os::fd::AsFd;
use std::path::{self, Path};
use std::process::{Command, Stdio};

use clap::Args;
use rustix::fs::{Access, access};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use wirecap::filter::Libpcap;
use wirecap::filter::opener::set_opener;
use wirecap_broker::{Broker, Confinement, Landlocked, Terms, User};
use wirecap_recorder::Launch;

use crate::failure::Failure;

/// Who records.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct UserOption {
    /// Record as this user; a separate process keeps the privileges
    ///
    /// The directory of the savefile must be writable by that user. The process that reads and writes packets has no
    /// capabilities, cannot open files outside that directory (Landlock; it may read /proc, /sys and the name service's
    /// files), and is limited to the system calls that recording needs (seccomp). A second process keeps the privileges
    /// for opening and reattaching interfaces.
    #[arg(short = 'Z', long, value_name = "USER", conflicts_with = "read")]
    user: Option<String>,
}

impl UserOption {
    /// Drops this process's privileges, if that was asked for. `interfaces` are all that may be captured from, `directory` is
    /// the only one that may be written to, the process that keeps the privileges runs `command` for complete files, and
    /// removes `socket` at the end.
    pub(crate) fn drop_privileges(
        &self,
        interfaces: &[String],
        directory: &Path,
        command: Option<&[String]>,
        socket: Option<&Path>,
    ) -> Result<Option<Broker>, Failure> {
        let Some(name) = &self.user else { return Ok(None) };
        let failed = |what: &str, error: io::Error| Failure::Failed(format!("{what}: {error}").into());
        let user = User::named(name).map_err(|error| Failure::Usage(format!("-Z {name}: {error}")))?;
        let directory = path::absolute(directory)?;
        let terms = Terms {
            interfaces: interfaces.iter().flat_map(|name| names_of(name)).collect(),
            user: user.clone(),
            directory: directory.clone(),
            command: command.map(<[String]>::to_vec),
            socket: socket.map(path::absolute).transpose()?,
        };
        let mut program = Command::new("/proc/self/exe");
        // A pipe that the recording goes to is none of its business.
        program.arg("broker").stdout(Stdio::null());
        let broker = Broker::start(program, &terms)
            .map_err(|error| failed("cannot start the privileged process", error))?;
        set_opener(Box::new(broker.clone())).expect("nothing was opened before");
        // Libraries cannot be loaded afterwards. Where libpcap is missing, the error comes when a filter needs it.
        let _ = Libpcap::get();
        let landlocked = Confinement::recording(user, &directory)
            .enter()
            .map_err(|error| failed(&format!("cannot continue as user {name}"), error))?;
        if landlocked != Landlocked::Fully {
            let much = if landlocked == Landlocked::Not { "no" } else { "not every" };
            eprintln!(
                "warning: this kernel enforces {much} rule for files (Landlock): only the rights of user {name} \
                 keep the recording from other files"
            );
        }
        access(&directory, Access::WRITE_OK | Access::EXEC_OK).map_err(|errno| {
            let directory = directory.display();
            let advice = format!("chown {name} {directory}, or name another directory or user");
            Failure::Failed(format!("user {name} cannot write to {directory}: {errno} ({advice})").into())
        })?;
        Ok(Some(broker))
    }
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

/// Has the broker run the command for complete files.
#[derive(Debug)]
pub(crate) struct ByBroker(pub(crate) Broker);

impl Launch for ByBroker {
    fn launch(&mut self, path: &Path) {
        let _a_command_that_fails = path::absolute(path).and_then(|path| self.0.run(&path));
    }

    /// The broker waits for what it has started.
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
