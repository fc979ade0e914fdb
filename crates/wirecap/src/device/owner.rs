//! Which program is attached to an interface, and which process holds it there.

use std::fmt;
use std::fs;

use serde::{Deserialize, Serialize};

use wirecap_filter::capability::{self, CapabilitySet};

use super::AttachedXdp;
use crate::bpf::Program;

/// An XDP program that is attached to an interface, and the process that holds it, as far as
/// visible.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct XdpOwner {
    /// The program's name; reading it requires CAP_SYS_ADMIN.
    pub program: Option<String>,
    /// The process that holds the link by which it is attached, and what that process runs. None if
    /// it was attached without a link, as by ip(8), or this process lacks the permission.
    pub process: Option<(u32, String)>,
}

impl fmt::Display for XdpOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.program, &self.process) {
            (Some(program), Some((pid, name))) => {
                write!(f, "{program}, held by process {pid} ({name})")
            }
            (Some(program), None) => f.write_str(program),
            (None, Some((pid, name))) => write!(f, "held by process {pid} ({name})"),
            (None, None) => f.write_str("owner unknown"),
        }
    }
}

impl AttachedXdp {
    /// The program and its holder, as far as visible. Searches the open files of all processes.
    pub fn owner(&self) -> Option<XdpOwner> {
        let info = Program::by_id(self.program_id).and_then(|program| program.info());
        let program = info.ok().map(|info| info.name).filter(|name| !name.is_empty());
        // Reading which files another process has open requires CAP_SYS_PTRACE.
        let process =
            capability::with(CapabilitySet::SYS_PTRACE, || holding_process(self.program_id));
        let process = process.ok().flatten();
        (program.is_some() || process.is_some()).then_some(XdpOwner { program, process })
    }
}

/// The first process with a link that holds this program.
fn holding_process(program_id: u32) -> Option<(u32, String)> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
        files
            .filter_map(|file| fs::read_to_string(file.path()).ok())
            .any(|info| holds_link(&info, program_id))
    };
    let pid = pids.into_iter().find(holds)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, name.trim_end().to_owned()))
}

/// Whether a file is a link that holds this program, by its entry in `fdinfo`.
fn holds_link(info: &str, program_id: u32) -> bool {
    let value = |key: &str| {
        info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':').map(str::trim))
    };
    value("link_type") == Some("xdp")
        && value("prog_id").and_then(|id| id.parse().ok()) == Some(program_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_known_by_its_entry() {
        let link = "pos:\t0\nflags:\t02000000\nlink_type:\txdp\nlink_id:\t3\nprog_tag:\t5a\nprog_id:\t77\nifindex:\t4\n";
        assert!(holds_link(link, 77));
        assert!(!holds_link(link, 7));
        // The program's own descriptor has no link's type.
        assert!(!holds_link("prog_type:\t6\nprog_id:\t77\n", 77));
    }
}
