//! The kernel objects of a command, and the check that none of them remains.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use wirecap::bpf::Link;
use wirecap_testbed::wait_until;

use super::Running;

/// Kernel objects that a process holds.
#[derive(Debug)]
pub(crate) struct Belongings {
    /// Namespaces in the form `net:[4026532000]`.
    namespaces: BTreeSet<String>,
    links: BTreeSet<u32>,
}

impl Belongings {
    /// The kernel objects of the process as soon as a program is attached.
    pub(crate) fn of(process: &Running) -> Self {
        let mut belongings = Self::now(process);
        wait_until("a program is attached", || {
            belongings = Self::now(process);
            !belongings.links.is_empty()
        });
        assert!(belongings.namespaces.len() >= 2, "{belongings:?}");
        belongings
    }

    pub(crate) fn now(process: &Running) -> Self {
        let directory = Path::new("/proc").join(process.pid().to_string());
        let link = |info: String| {
            info.lines().find_map(|line| line.strip_prefix("link_id:")?.trim().parse().ok())
        };
        Self {
            namespaces: namespaces_of(&directory),
            links: entries(&directory.join("fdinfo"))
                .flat_map(fs::read_to_string)
                .filter_map(link)
                .collect(),
        }
    }

    /// Waits until no process holds them. The kernel removes a namespace and its interfaces with
    /// the last reference.
    pub(crate) fn are_gone(&self) {
        let is_gone =
            |link| Link::by_id(link).is_err_and(|error| error.errno() == Some(libc::ENOENT));
        wait_until("the process's links and their programs are gone", || {
            self.links.iter().copied().all(is_gone)
        });
        wait_until("the process's namespaces are gone", || {
            let is_process = |path: &PathBuf| path.join("ns").exists();
            entries(Path::new("/proc"))
                .filter(is_process)
                .all(|process| self.namespaces.is_disjoint(&namespaces_of(&process)))
        });
    }
}

/// The network namespaces, except the test's, that a process is in or has a descriptor of.
fn namespaces_of(process: &Path) -> BTreeSet<String> {
    let own = fs::read_link("/proc/self/ns/net").unwrap();
    entries(&process.join("fd"))
        .chain([process.join("ns/net")])
        .chain(entries(&process.join("task")).map(|task| task.join("ns/net")))
        .flat_map(fs::read_link)
        .filter(|target| *target != own)
        .filter_map(|target| {
            target.to_str().filter(|text| text.starts_with("net:[")).map(str::to_owned)
        })
        .collect()
}

/// The directory's entries; none if it is gone.
fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}
