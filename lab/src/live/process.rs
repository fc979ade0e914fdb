//! Programs that take part in a measurement: how they are started, watched and ended.
//!
//! None of them outlives the measurement, even if it is killed: the kernel signals each of them.
#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use wirecap_testbed::Namespace;

use super::Outcome;

/// The descriptor number of a file that is passed to a program; high, so that it is not used
/// otherwise.
const FILE_FD: i32 = 199;
/// The path of a file that is passed to a program. Not every user may read another process's files
/// in /proc.
pub(super) const FILE_PATH: &str = "/dev/fd/199";

/// The CPUs that this process may use, in order.
///
/// # Errors
///
/// The kernel's answer.
pub fn allowed_cpus() -> Outcome<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

fn pin_to_last_cpu() -> Outcome<()> {
    let mut only = CpuSet::new();
    only.set(*allowed_cpus()?.last().ok_or("no CPU")?);
    Ok(sched_setaffinity(None, &only)?)
}

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    program: OsString,
    arguments: Vec<OsString>,
}

impl CommandLine {
    /// A program, by its path or as a name in `PATH`.
    pub fn new(program: impl Into<OsString>) -> Self {
        Self { program: program.into(), arguments: Vec::new() }
    }

    /// This very program.
    ///
    /// # Errors
    ///
    /// If /proc does not show it.
    pub fn this() -> Outcome<Self> {
        Ok(Self::new(env::current_exe()?))
    }

    /// The wirecap command: the one beside this program, or beside the directory of a test or
    /// bench, as cargo and `make install` put it; otherwise the one in `PATH`.
    pub fn wirecap() -> Self {
        let this = env::current_exe().unwrap_or_default();
        let beside = this.ancestors().skip(1).take(2).map(|folder| folder.join("wirecap"));
        Self::new(
            beside.into_iter().find(|path| path.is_file()).unwrap_or_else(|| "wirecap".into()),
        )
    }

    /// Adds these arguments, separated by spaces.
    #[must_use]
    pub fn with(mut self, arguments: &str) -> Self {
        self.arguments.extend(arguments.split_whitespace().map(OsString::from));
        self
    }

    /// Replaces the word `from` in the arguments by `to`.
    #[must_use]
    pub fn replacing(&self, from: &str, to: &str) -> Self {
        let replace = |argument: &OsString| match argument.to_str() {
            Some(text) => OsString::from(text.replace(from, to)),
            None => argument.clone(),
        };
        Self {
            program: self.program.clone(),
            arguments: self.arguments.iter().map(replace).collect(),
        }
    }

    /// With the same arguments, another program: an earlier build.
    #[must_use]
    pub fn with_program(self, program: impl Into<OsString>) -> Self {
        Self { program: program.into(), ..self }
    }

    /// The same run by another program: callgrind.
    #[must_use]
    pub fn under(self, program: Self) -> Self {
        let mut outer = program;
        outer.arguments.push(self.program);
        outer.arguments.extend(self.arguments);
        outer
    }

    /// The command with the program's name instead of its path.
    pub fn by_name(&self) -> String {
        let name = Path::new(&self.program).file_name().unwrap_or(&self.program);
        Self { program: name.to_owned(), arguments: self.arguments.clone() }.to_string()
    }

    /// Whether the program can be found.
    pub fn is_installed(&self) -> bool {
        self.file().is_some()
    }

    /// The program's file, if it can be found.
    pub(super) fn file(&self) -> Option<PathBuf> {
        search_path().iter().map(|folder| folder.join(&self.program)).find(|path| path.is_file())
    }

    /// The program.
    pub fn program(&self) -> std::path::Display<'_> {
        Path::new(&self.program).display()
    }

    /// Runs it to its end and returns its standard output, even if it failed.
    pub(super) fn answer(&self) -> Outcome<String> {
        Ok(String::from_utf8_lossy(&self.output()?.stdout).into_owned())
    }

    fn output(&self) -> Outcome<Output> {
        let output = self.to_command().stdin(Stdio::null()).output();
        Ok(output.map_err(|error| format!("{self}: {error}"))?)
    }

    /// Runs it to its end and returns its standard output.
    pub(super) fn run(&self) -> Outcome<String> {
        let output = self.output()?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{self} ended with {}: {errors}", output.status).into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn to_command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env("LC_ALL", "C");
        if let Ok(path) = env::join_paths(search_path()) {
            command.env("PATH", path);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts it as a process that ends with the calling *thread* at the latest, and has `file` as
    /// [`FILE_FD`].
    fn spawn(&self, file: Option<&OwnedFd>) -> io::Result<Child> {
        let parent = getpid();
        let file = file.map(AsRawFd::as_raw_fd);

        let prepare = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;

            // The parent may have died before this request.
            if getppid() != Some(parent) {
                return Err(io::ErrorKind::NotConnected.into());
            }

            match file {
                // SAFETY: no memory is involved, and no other code in the child has the number.
                Some(file) if unsafe { libc::dup2(file, FILE_FD) } < 0 => {
                    Err(io::Error::last_os_error())
                }
                _ => Ok(()),
            }
        };
        let mut command = self.to_command();

        // A separate process group: Ctrl-C is for this program, which ends the others in order.
        command.process_group(0);

        // SAFETY: between fork and exec it does three system calls and neither allocates nor locks.
        unsafe { command.pre_exec(prepare) };
        command.spawn()
    }
}

/// The directories of programs: `PATH`, and those of administrators' tools, which are not in every
/// user's `PATH`.
fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from)).collect()
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.program.display())?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", argument.display()))
    }
}

type Request = (CommandLine, Option<OwnedFd>, mpsc::Sender<Outcome<Child>>);

/// Starts programs in a namespace, on the last CPU. They end when this does.
#[derive(Debug)]
pub(super) struct Spawner {
    requests: mpsc::Sender<Request>,
}

impl Spawner {
    /// The kernel ties the life of a process to the *thread* that started it, so this thread exists
    /// as long as they must run.
    pub(super) fn in_namespace(namespace: &Namespace) -> io::Result<Self> {
        let (requests, to_do) = mpsc::channel::<Request>();
        let namespace = namespace.clone();
        thread::Builder::new().name("spawner".to_owned()).spawn(move || {
            let ready = namespace.enter().map_err(Into::into).and_then(|()| pin_to_last_cpu());
            let ready = ready.map_err(|error| error.to_string());

            for (command, file, answer) in to_do {
                let started = ready.clone().map_err(Into::into).and_then(|()| {
                    command
                        .spawn(file.as_ref())
                        .map_err(|error| format!("{command}: {error}").into())
                });
                let _asker_is_gone = answer.send(started);
            }
        })?;

        Ok(Self { requests })
    }

    pub(super) fn spawn(&self, command: &CommandLine, file: Option<OwnedFd>) -> Outcome<Child> {
        let (answer, started) = mpsc::channel();
        self.requests.send((command.clone(), file, answer))?;
        started.recv()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_in_a_command_is_replaced_by_the_file() {
        let command = CommandLine::new("tcpdump").with("-w FILE -i a1");
        assert_eq!(command.replacing("FILE", "/tmp/x").to_string(), "tcpdump -w /tmp/x -i a1");
        assert!(!CommandLine::new("no-such-program-anywhere").is_installed());
    }

    #[test]
    fn a_program_ends_with_the_thread_that_started_it() {
        let child = thread::spawn(|| CommandLine::new("sleep").with("1000").spawn(None).unwrap());
        let mut child = child.join().unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
