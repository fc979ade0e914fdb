//! The limits of a process before it reads packets.
//!
//! `PR_SET_DUMPABLE` is 0: processes of the same user can neither trace the process nor take its
//! descriptors with pidfd_getfd(2), and the kernel writes no core dump. `/proc/PID` of the capture
//! belongs to root; the process itself can read its own. The broker does the same, because it may
//! run as the same user, with capabilities. During the change of the user the kernel applies
//! `fs.suid_dumpable`; the value 1 opens a gap of some microseconds.
//!
//! All files are out of reach except the directory and the files for names, interfaces and
//! counters, by Landlock. With one savefile and no index, the process may create files in the
//! directory and write to them, but not read, rename or remove files. Landlock cannot name a file
//! that does not exist, so other files that the user may write to can be overwritten. TCP, and
//! signals and connections to processes outside, are refused by Landlock from Linux 6.7 and 6.12
//! on; the filter of system calls refuses the same on every kernel.

use std::io;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, make_bitflags,
    path_beneath_rules,
};
use rustix::process::{DumpableBehavior, Gid, Uid, getegid, geteuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use wirecap::device::dedicated_directory;

use crate::message::User;
use crate::{sys, system_calls, terminal};

/// System files that a capture reads after it dropped its privileges: interfaces and their
/// counters, and name lookups.
const SYSTEM: [&str; 8] = [
    "/proc",
    "/sys",
    "/etc/services",
    "/etc/protocols",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/dev/null",
];

/// The remaining permissions of a process.
#[derive(Debug, Clone)]
pub struct Confinement {
    /// It acts for this user.
    pub user: User,
    /// It may do anything in these directories; paths that do not exist are ignored.
    pub writable: Vec<PathBuf>,
    /// It may create files in these directories and write to files there, but neither read, rename
    /// nor remove files.
    pub creatable: Vec<PathBuf>,
    /// Files, and directories with their contents, that it may read.
    pub readable: Vec<PathBuf>,
}

/// How much of the rules for files the kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landlocked {
    /// All of them.
    Fully,
    /// The rules that this kernel supports.
    Partly,
    /// None: Landlock is not part of this kernel, or was not switched on (`lsm=` on its command
    /// line).
    Not,
}

/// The versions of Landlock's rules that were tested: for files, and for what is not a file.
const FILE_RULES: ABI = ABI::V5;
const OTHER_RULES: ABI = ABI::V6;

/// What creating a file needs: also to sync the directory.
const CREATE: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg | ReadDir});

impl Confinement {
    /// A recording for `user` into the directory or device at `writable`; without one, into open
    /// descriptors only.
    pub fn recording(user: User, writable: Option<&Path>) -> Self {
        let writable = writable.map(Path::to_owned).into_iter().collect();
        let mut readable = SYSTEM.map(PathBuf::from).to_vec();
        // The marks of dedicated interfaces.
        readable.push(dedicated_directory());
        Self { user, writable, creatable: Vec::new(), readable }
    }

    /// A recording for `user` into one file, which may not exist, in this directory.
    pub fn recording_one_file(user: User, directory: &Path) -> Self {
        Self { creatable: vec![directory.to_owned()], ..Self::recording(user, None) }
    }

    /// From now on this thread, and those that it makes, have no capability, no way to get one
    /// (`no_new_privs`), the user's IDs, no file but those named, no input of a terminal, and no
    /// system call but those that a recording needs; no process of the user can inspect them. To be
    /// called before any other thread is made. It cannot be undone.
    ///
    /// # Errors
    ///
    /// If a permission cannot be dropped; the process should then end.
    pub fn enter(&self) -> io::Result<Landlocked> {
        terminal::give_up_input();
        set_no_new_privs(true)?;

        let landlocked = self.restrict_files()?;
        restrict_reach(Scope::from_all(OTHER_RULES)).map_err(io::Error::other)?;
        drop_bounding_set();
        self.user.become_them()?;
        drop_capabilities()?;

        // After the change of the user, at which the kernel sets it too, to fs.suid_dumpable.
        refuse_inspection()?;
        #[cfg(sabotage)]
        if crate::sabotage::is("cage-without-call-filter") {
            return Ok(landlocked);
        }

        sys::name_refused_calls()?;
        system_calls::refuse_others()?;

        Ok(landlocked)
    }

    fn restrict_files(&self) -> io::Result<Landlocked> {
        #[cfg(sabotage)]
        if crate::sabotage::is("cage-without-landlock") {
            return Ok(Landlocked::Fully);
        }

        let rules = || -> Result<RulesetStatus, RulesetError> {
            let all = AccessFs::from_all(FILE_RULES);
            let read = AccessFs::from_read(FILE_RULES);
            let creating = CREATE;
            #[cfg(sabotage)]
            let creating =
                if crate::sabotage::is("cage-has-the-whole-directory") { all } else { creating };

            let ruleset: RulesetCreated = Ruleset::default()
                .set_compatibility(CompatLevel::BestEffort)
                .handle_access(all)?
                .create()?;
            let status = ruleset
                .add_rules(path_beneath_rules(self.writable.iter().map(PathBuf::as_path), all))?
                .add_rules(path_beneath_rules(
                    self.creatable.iter().map(PathBuf::as_path),
                    creating,
                ))?
                .add_rules(path_beneath_rules(self.readable.iter().map(PathBuf::as_path), read))?
                .no_new_privs(false)
                .restrict_self()?;
            Ok(status.ruleset)
        };
        rules().map(Landlocked::from).map_err(io::Error::other)
    }
}

impl From<RulesetStatus> for Landlocked {
    fn from(status: RulesetStatus) -> Self {
        match status {
            RulesetStatus::FullyEnforced => Self::Fully,
            RulesetStatus::PartiallyEnforced => Self::Partly,
            RulesetStatus::NotEnforced => Self::Not,
        }
    }
}

/// No TCP; no signals to processes outside, and no connections to their abstract sockets, as far as
/// these are in `scopes` and the kernel has these rules. The filter of calls refuses the same.
fn restrict_reach(scopes: BitFlags<Scope>) -> Result<Landlocked, RulesetError> {
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessNet::from_all(OTHER_RULES))?
        .scope(scopes)?
        .create()?
        .no_new_privs(false)
        .restrict_self()?;
    Ok(status.ruleset.into())
}

/// From now on no other process of this user can take this one's descriptors (`pidfd_getfd`), trace
/// it, or read its memory and what is in `/proc` about it for its owner. The kernel writes no core
/// dump of it.
///
/// # Errors
///
/// The system's error.
pub fn refuse_inspection() -> io::Result<()> {
    #[cfg(sabotage)]
    if crate::sabotage::is("cage-can-be-inspected") {
        return Ok(set_dumpable_behavior(DumpableBehavior::Dumpable)?);
    }
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

impl User {
    /// Does `work` on a thread that has this user's rights and no others.
    ///
    /// # Errors
    ///
    /// If this process cannot act for the user.
    pub fn act<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let acting = || {
            self.become_them()?;
            Ok(work())
        };
        thread::scope(|scope| scope.spawn(acting).join())
            .unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// From now on this thread acts for this user.
    fn become_them(&self) -> io::Result<()> {
        let uid = Uid::from_raw(self.uid);
        let gid = Gid::from_raw(self.gid);
        if geteuid() == uid && getegid() == gid && !uid.is_root() {
            return Ok(());
        }
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        Ok(())
    }
}

/// Drops the bounding set: this process executes no program that needs it. Requires CAP_SETPCAP,
/// which root has.
fn drop_bounding_set() {
    for capability in CapabilitySet::all().iter() {
        // Older kernels do not support all capabilities.
        let _ = remove_capability_from_bounding_set(capability);
    }
}

fn drop_capabilities() -> io::Result<()> {
    let _ = clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::process::Command;

    use rustix::process::{Pid, Signal, getpid, kill_process};

    use super::*;

    /// Without the filter of calls, which refuses the same.
    #[test]
    fn landlock_alone_refuses_signals_tcp_and_abstract_sockets_of_other_processes() {
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let other_id = Pid::from_child(&other);
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap();
        let name = SocketAddr::from_abstract_name(format!("wirecap-confine-{}", getpid())).unwrap();
        let _listening = UnixListener::bind_addr(&name).unwrap();

        let attack = move || {
            [
                kill_process(other_id, Signal::CONT).map_err(io::Error::from),
                TcpStream::connect(port).map(drop),
                TcpListener::bind("127.0.0.1:0").map(drop),
                UnixStream::connect_addr(&name).map(drop),
            ]
        };
        let (before, landlocked, after) = thread::spawn(move || {
            let before = attack();
            set_no_new_privs(true).unwrap();
            let landlocked = restrict_reach(Scope::from_all(OTHER_RULES)).unwrap();
            (before, landlocked, attack())
        })
        .join()
        .unwrap();
        other.kill().and_then(|()| other.wait()).unwrap();
        assert!(before.iter().all(Result::is_ok), "{before:?}");

        // Older kernels lack some of these rules.
        if landlocked == Landlocked::Fully {
            let denied = |outcome: &io::Result<()>| {
                outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
            };
            assert!(after.iter().all(denied), "{after:?}");
        }
    }
}
