//! Links. A link keeps a program attached until its last descriptor is closed.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{BpfError, Program, collect_objects};
use crate::sys::bpf as sys;
use crate::sys::objects::{self, ObjectKind};

/// The hook in the receive path at which an XDP program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum XdpMode {
    /// In the network stack, on a socket buffer: slow, but works with any driver.
    Generic = 1 << 1,
    /// In the driver, before a socket buffer exists.
    Native = 1 << 2,
}

/// The number of tcx programs on an interface of the calling thread's network namespace, in both
/// directions; 0 if the kernel has no tcx (before Linux 6.6).
///
/// # Errors
///
/// If CAP_NET_ADMIN is missing, or the interface is gone.
pub fn tcx_programs(ifindex: u32) -> io::Result<u32> {
    let mut count = 0;
    for hook in sys::ATTACH_TCX {
        match sys::count_programs(ifindex, hook) {
            Ok(programs) => count += programs,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}

/// The attachment of a program to an interface, for as long as this descriptor or a copy of it is
/// open.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
}

/// The kernel's information about a link that holds an XDP program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LinkInfo {
    /// The kernel's ID, unique until the link is gone.
    pub id: u32,
    /// The program that it holds.
    pub program_id: u32,
    /// The interface's index *in the interface's network namespace*; 0 if the interface is gone or
    /// the link holds another kind of program.
    pub ifindex: u32,
}

impl Link {
    pub(super) fn of(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Runs `program` whenever the kernel reaches the tracepoint `name`, on the same CPU and in the
    /// same context.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if the process lacks CAP_PERFMON or the kernel has no such tracepoint.
    pub fn attach_tracepoint(program: &Program, name: &CStr) -> Result<Self, BpfError> {
        objects::attach_tracepoint(program.as_fd(), name)
            .map(Self::of)
            .map_err(|source| BpfError::new("attach to a tracepoint", program.name(), source))
    }

    /// Opens the link with this ID; the program stays attached as long as either descriptor is
    /// open.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if there is no such link, or CAP_SYS_ADMIN is missing.
    pub fn by_id(id: u32) -> Result<Self, BpfError> {
        objects::by_id(ObjectKind::Link, id)
            .map(Self::of)
            .map_err(|source| BpfError::discovering("link", id, source))
    }

    /// Replaces the attached program by `program`. No frame is lost.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if the interface is gone or the kernel rejects the program.
    pub fn update(&self, program: &Program) -> Result<(), BpfError> {
        objects::update_link(self.fd.as_fd(), program.as_fd()).map_err(|source| {
            BpfError::new("replace the attached program by", program.name(), source)
        })
    }

    /// The kernel's information about the link.
    ///
    /// # Errors
    ///
    /// [`BpfError`] if the kernel does not provide it.
    pub fn info(&self) -> Result<LinkInfo, BpfError> {
        Ok(LinkInfo::from_raw(&self.raw_info()?))
    }

    fn raw_info(&self) -> Result<sys::RawLinkInfo, BpfError> {
        sys::link_info(self.fd.as_fd())
            .map_err(|source| BpfError::new("describe", "a link", source))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl LinkInfo {
    fn from_raw(raw: &sys::RawLinkInfo) -> Self {
        let ifindex = if raw.link_type == sys::LINK_TYPE_XDP { raw.ifindex } else { 0 };
        Self { id: raw.id, program_id: raw.program_id, ifindex }
    }
}

/// The link, of any process, that holds the XDP program with this ID on the interface with this
/// index. None also if there are several: an interface of another network namespace may have the
/// same index, so none of them is known to be the right one. Opens every link briefly.
///
/// # Errors
///
/// [`BpfError`] if CAP_SYS_ADMIN is missing.
pub fn link_holding(program_id: u32, ifindex: u32) -> Result<Option<Link>, BpfError> {
    // Only one link is open at a time, because an open descriptor keeps a link alive after its
    // owner has closed it.
    let describe = |id| Link::by_id(id)?.info();
    let mut holding = collect_objects(ObjectKind::Link, describe)?;
    holding.retain(|link| link.program_id == program_id);
    match *holding {
        [LinkInfo { id, ifindex: held, .. }] if held == ifindex => match Link::by_id(id) {
            Err(error) if error.is_gone() => Ok(None),
            link => link.map(Some),
        },
        _ => Ok(None),
    }
}

/// The links, of all processes and namespaces, that hold an XDP program.
///
/// Interfaces in different namespaces may have the same index, so compare the program as well.
///
/// # Errors
///
/// [`BpfError`] if CAP_SYS_ADMIN is missing.
pub fn links() -> Result<Vec<(Link, LinkInfo)>, BpfError> {
    let open = |id| {
        let link = Link::by_id(id)?;
        let raw = link.raw_info()?;
        Ok((link, raw))
    };
    let all = collect_objects(ObjectKind::Link, open)?;
    let xdp = all.into_iter().filter(|(_, raw)| raw.link_type == sys::LINK_TYPE_XDP);
    Ok(xdp.map(|(link, raw)| (link, LinkInfo::from_raw(&raw))).collect())
}
