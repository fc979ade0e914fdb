//! The limits of a process before it reads packets.

use std::io;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr,
    RulesetStatus, path_beneath_rules,
};
use rustix::process::{DumpableBehavior, Gid, Uid, getegid, geteuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::message::User;
use crate::{sys, system_calls};

/// System files that a capture reads after it dropped its privileges: interfaces and their counters, and name lookups.
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
    /// None: Landlock is not part of this kernel, or was not switched on (`lsm=` on its command line).
    Not,
}

/// The newest version of Landlock's rules that was tested.
const RULES: ABI = ABI::V5;

impl Confinement {
    /// A recording for `user` into the directory or device at `writable`; without one, into open descriptors only.
    pub fn recording(user: User, writable: Option<&Path>) -> Self {
        let writable = writable.map(Path::to_owned).into_iter().collect();
        Self { user, writable, readable: SYSTEM.map(PathBuf::from).to_vec() }
    }

    /// From now on this thread, and those that it makes, have no capability, no way to get one
    /// (`no_new_privs`), the user's IDs, no file but those named, and no system call but those that a
    /// recording needs. To be called before any other thread is made. It cannot be undone.
    ///
    /// # Errors
    ///
    /// If a permission cannot be dropped; the process should then end.
    pub fn enter(&self) -> io::Result<Landlocked> {
        set_no_new_privs(true)?;
        let landlocked = self.restrict_files()?;
        drop_bounding_set();
        self.user.become_them()?;
        drop_capabilities()?;
        // A process that has changed its user no longer owns /proc/self unless it sets itself dumpable.
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        sys::name_refused_calls()?;
        system_calls::refuse_others()?;
        Ok(landlocked)
    }

    fn restrict_files(&self) -> io::Result<Landlocked> {
        let rules = || -> Result<RulesetStatus, landlock::RulesetError> {
            let (all, read) = (AccessFs::from_all(RULES), AccessFs::from_read(RULES));
            let ruleset: RulesetCreated =
                Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(all)?.create()?;
            let status = ruleset
                .add_rules(path_beneath_rules(self.writable.iter().map(PathBuf::as_path), all))?
                .add_rules(path_beneath_rules(self.readable.iter().map(PathBuf::as_path), read))?
                .no_new_privs(false)
                .restrict_self()?;
            Ok(status.ruleset)
        };
        match rules().map_err(io::Error::other)? {
            RulesetStatus::FullyEnforced => Ok(Landlocked::Fully),
            RulesetStatus::PartiallyEnforced => Ok(Landlocked::Partly),
            RulesetStatus::NotEnforced => Ok(Landlocked::Not),
        }
    }
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
        thread::scope(|scope| scope.spawn(acting).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// From now on this thread acts for this user.
    fn become_them(&self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        if geteuid() == uid && getegid() == gid && !uid.is_root() {
            return Ok(());
        }
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        Ok(())
    }
}

/// Drops the bounding set: this process executes no program that needs it. Requires CAP_SETPCAP, which root
/// has.
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
