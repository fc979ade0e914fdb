//! Why a capture could not be opened, and why one ended early.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::bpf::BpfError;
use crate::device::{DeviceError, Reason, XdpOwner};
use crate::filter::{FilterError, Unsupported};
use crate::names::{Holder, RingName};
use crate::savefile::ReadError;

/// Why a capture could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The interface cannot be looked up.
    Device(DeviceError),
    /// The interface is there but administratively down.
    InterfaceDown {
        /// The interface's name.
        interface: String,
    },
    /// The interface has no such receive queue.
    NoSuchQueue {
        /// What was asked for.
        ring: RingName,
        /// How many receive queues the interface has.
        queues: u32,
    },
    /// A receive queue appeared that the capture has no room for: there are more than its driver said.
    NoRoom {
        /// Its ring.
        ring: RingName,
    },
    /// A device name that is not `INTERFACE` or `INTERFACE@QUEUES`.
    BadDeviceName {
        /// What was given.
        name: String,
    },
    /// An interface was named more than once, with settings that differ.
    SettingsDiffer {
        /// The interface's name.
        interface: String,
        /// Which setting.
        setting: &'static str,
    },
    /// A number that cannot be.
    BadParameter {
        /// Which one.
        parameter: &'static str,
        /// What was given.
        value: u64,
        /// What it may be.
        allowed: String,
    },
    /// The pool needs more locked memory than the process may have.
    PoolTooLarge {
        /// Bytes of locked memory that all pools need together.
        needed_bytes: u64,
        /// `RLIMIT_MEMLOCK`, in bytes.
        limit_bytes: u64,
    },
    /// The machine does not have the memory for the pools.
    NotEnoughMemory {
        /// Bytes that all pools need together.
        needed_bytes: u64,
        /// `MemAvailable`, in bytes.
        available_bytes: u64,
    },
    /// A memory cgroup of the process does not have the memory for the pools.
    CgroupTooSmall {
        /// Bytes that all pools need together.
        needed_bytes: u64,
        /// Bytes that the cgroup has left.
        available_bytes: u64,
        /// Its limit, in bytes.
        limit_bytes: u64,
        /// The file that has the limit.
        file: PathBuf,
    },
    /// The interface's frames do not fit the largest cells, and the kernel cannot spread them over several.
    MtuTooLarge {
        /// The interface's name.
        interface: String,
        /// Its MTU in bytes.
        mtu: u32,
        /// The largest MTU that can be captured.
        max_mtu: u32,
    },
    /// Another process, or another capture of this one, has the queue.
    QueueTaken {
        /// The queue.
        ring: RingName,
        /// Who has it.
        holder: Holder,
    },
    /// Another process has the interface, and this one may not find out how to share it.
    Joining {
        /// The interface's name.
        interface: String,
        /// Who has one of its queues.
        holder: Holder,
        /// What bpf(2) said.
        source: BpfError,
    },
    /// Another process has the interface as well, and one of the two uses the device's times, which takes a program
    /// that cannot be shared.
    NotShared {
        /// The interface's name.
        interface: String,
        /// Who has it, if that can be told.
        holder: Option<Holder>,
    },
    /// Another version of wirecap has the interface, with which this one cannot share it.
    OtherVersion {
        /// The interface's name.
        interface: String,
        /// The name of the XDP program on it, which ends in its version.
        program: String,
    },
    /// Another process has been about to open or join a capture on the interface for too long.
    Contended {
        /// The interface's name.
        interface: String,
        /// Who that is.
        holder: Holder,
    },
    /// Another XDP program is on the interface.
    OtherProgram {
        /// The interface's name.
        interface: String,
        /// What it is and who holds it, if that can be seen.
        owner: Option<Box<XdpOwner>>,
        /// What bpf(2) said.
        source: BpfError,
    },
    /// The kernel would not load or attach the XDP program.
    Program {
        /// The interface's name.
        interface: String,
        /// What bpf(2) said.
        source: BpfError,
    },
    /// The kernel would not bind a socket to this queue.
    Bind {
        /// The ring.
        ring: RingName,
        /// What the kernel said.
        source: io::Error,
    },
    /// A savefile could not be opened.
    Savefile {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: ReadError,
    },
    /// The host uses the interface, and the engine `xdp` would take its packets.
    CarriesHostTraffic {
        /// The interface's name.
        interface: String,
        /// What the host uses it for.
        reason: Reason,
    },
    /// Packets that the host sends were asked for where there are none.
    ReceivedOnly {
        /// The interface's name.
        interface: String,
        /// What has none of them.
        reason: &'static str,
    },
    /// Something was asked for that only the engine `xdp` has, and the interface is captured by `packet`.
    XdpOnly {
        /// The interface's name.
        interface: String,
        /// What was asked for.
        option: &'static str,
        /// Why the engine is `packet`, if that was our choice.
        why: Option<String>,
    },
    /// Something was asked for that a capture that forwards cannot have.
    NotForwarding {
        /// What was asked for.
        option: &'static str,
        /// Why it cannot be.
        reason: &'static str,
    },
    /// The kernel would not let a packet socket receive or send on the interface.
    PacketSocket {
        /// The interface's name.
        interface: String,
        /// What was being done, as words that the interface's name may follow.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The times at which the device itself received its packets were asked for.
    NoHardwareClock {
        /// The interface's name.
        interface: String,
        /// Why they cannot be had.
        reason: String,
    },
    /// [`Engine::Auto`](crate::Engine::Auto) chose the engine `xdp`, for which the process lacks privileges that the
    /// engine `packet` does not need.
    PacketPermitted(Box<OpenError>),
    /// The filter cannot be had.
    Filter(FilterChangeError),
    /// A system call failed that usually does not.
    System {
        /// What was being done.
        action: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(_) => write!(f, "cannot look up the interface"),
            Self::InterfaceDown { interface } => {
                write!(f, "{interface} is down; bring it up with: ip link set {interface} up")
            }
            Self::NoSuchQueue { ring, queues: 1 } => {
                write!(f, "{ring} does not exist: {} has one receive queue, 0", ring.interface)
            }
            Self::NoSuchQueue { ring, queues } => {
                let (interface, last) = (&ring.interface, queues - 1);
                write!(f, "{ring} does not exist: {interface} has receive queues 0 to {last}")
            }
            Self::BadDeviceName { name } => {
                write!(
                    f,
                    "'{name}' is not a device; write INTERFACE or INTERFACE@QUEUES, such as eth0@2, eth0@0-3 or \
                     eth0@0,2"
                )
            }
            Self::SettingsDiffer { interface, setting } => write!(
                f,
                "{interface} is named more than once with different values of {setting}; all of its rings share \
                 one"
            ),
            Self::BadParameter { parameter, value, allowed } => {
                write!(f, "invalid {parameter} {value}: expected {allowed}")
            }
            Self::PoolTooLarge { needed_bytes, limit_bytes } => write!(
                f,
                "the pools need {needed_bytes} bytes of locked memory, the limit is {limit_bytes}; grant \
                 CAP_IPC_LOCK, raise the limit (ulimit -l {}), or use fewer or smaller chunks (-R, -M, --buffer)",
                needed_bytes.div_ceil(1024)
            ),
            Self::NotEnoughMemory { needed_bytes, available_bytes } => write!(
                f,
                "the pools need {needed_bytes} bytes of memory, {available_bytes} are available; use fewer \
                 or smaller chunks (-R, -M, --buffer)"
            ),
            Self::CgroupTooSmall { needed_bytes, available_bytes, limit_bytes, file } => write!(
                f,
                "the pools need {needed_bytes} bytes of memory, and the memory cgroup of this process has \
                 {available_bytes} left of its limit of {limit_bytes} ({}); use fewer or smaller chunks (-R, -M, \
                 --buffer), or raise that limit",
                file.display()
            ),
            Self::MtuTooLarge { interface, mtu, max_mtu } => write!(
                f,
                "frames of {interface} (MTU {mtu}) do not fit a cell, and this kernel (before 6.6) cannot spread \
                 them over several; lower the MTU to {max_mtu} or less: ip link set {interface} mtu {max_mtu}"
            ),
            Self::NoRoom { ring } => {
                write!(f, "{ring} exceeds the maximum number of receive queues that its driver reported")
            }
            Self::QueueTaken { ring, holder } => write!(
                f,
                "{ring} is captured by {holder} already, and a receive queue serves one capture; give that one \
                 more workers (--workers N), name another queue ({}@QUEUE), or use --engine packet for both",
                ring.interface
            ),
            Self::Joining { interface, holder, .. } => write!(
                f,
                "{interface} is captured by {holder} already; to capture another of its queues this process \
                 must find that one's program, which takes CAP_SYS_ADMIN: run as root or grant it"
            ),
            Self::NotShared { interface, holder } => {
                let holder =
                    holder.as_ref().map_or_else(|| "another process".to_owned(), ToString::to_string);
                write!(
                    f,
                    "{interface} is captured by {holder} already, and hardware timestamps, which one of the two uses, \
                     need an interface for one capture alone; use --timestamp batch for both, or stop that capture"
                )
            }
            Self::OtherVersion { interface, program } => write!(
                f,
                "{interface} is captured by another version of wirecap (XDP program {program}), which this one \
                 cannot share it with; use the same version, or stop that capture"
            ),
            Self::Contended { interface, holder } => {
                write!(
                    f,
                    "timed out waiting for {holder}, which is opening a capture on {interface}; stop it"
                )
            }
            Self::OtherProgram { interface, owner, .. } => {
                let owner = owner.as_ref().map(|owner| format!(" ({owner})")).unwrap_or_default();
                write!(
                    f,
                    "another XDP program is on {interface}{owner}; stop the process that holds it, or detach it (ip link set \
                     {interface} xdp off), or use --engine packet"
                )
            }
            Self::Program { interface, .. } => {
                write!(f, "cannot attach wirecap's XDP program to {interface}")
            }
            Self::Bind { ring, source } if source.raw_os_error() == Some(libc::EBUSY) => {
                write!(
                    f,
                    "{ring} is in use by another AF_XDP socket; stop that program or name another queue"
                )
            }
            Self::Savefile { path, .. } => write!(f, "{} cannot be read as a savefile", path.display()),
            Self::Bind { ring, .. } => write!(f, "cannot bind an AF_XDP socket to {ring}"),
            Self::CarriesHostTraffic { interface, reason } => write!(
                f,
                "the engine xdp would take packets of {interface} from the host, but {reason}; use --engine packet, \
                 or --take if the host can do without them"
            ),
            Self::ReceivedOnly { interface, reason } => write!(
                f,
                "{reason} has received packets only; to capture sent packets, capture the whole {interface} with \
                 --engine packet"
            ),
            Self::XdpOnly { interface, option, why } => {
                let why = why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
                write!(
                    f,
                    "{option} requires the engine xdp, but {interface} is captured by the engine packet{why}; omit it, \
                     or use --engine xdp"
                )
            }
            Self::NotForwarding { option, reason } => {
                write!(f, "forwarding does not support {option}: {reason}; omit it")
            }
            Self::PacketSocket { interface, action, source } if is_permission(source) => {
                write!(f, "cannot {action} {interface}; run as root or grant CAP_NET_RAW")
            }
            Self::PacketSocket { interface, action, source }
                if source.raw_os_error() == Some(libc::ENOMEM) =>
            {
                let way = "use fewer or smaller chunks (-R, -M, --buffer)";
                write!(f, "cannot {action} {interface}; {way}")
            }
            Self::PacketSocket { interface, action, .. } => write!(f, "cannot {action} {interface}"),
            Self::NoHardwareClock { interface, reason } => write!(
                f,
                "{interface} has no hardware timestamps: {reason}; or use --timestamp packet, the kernel's clock for each \
                 packet, or batch, which costs less"
            ),
            Self::PacketPermitted(error) => {
                write!(
                    f,
                    "{error}; or use --engine packet, for which CAP_NET_RAW, which this process has, suffices"
                )
            }
            Self::Filter(error) => error.fmt(f),
            Self::System { action, source } if is_permission(source) => {
                write!(f, "cannot {action}; run as root or grant CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF")
            }
            Self::System { action, .. } => write!(f, "cannot {action}"),
        }
    }
}

impl OpenError {
    /// Whether the process lacks a privilege that only the engine `xdp` needs.
    pub(crate) fn is_privilege_of_xdp(&self) -> bool {
        match self {
            Self::PoolTooLarge { .. } => true,
            Self::Program { source, .. } => matches!(source, BpfError::NotPermitted { .. }),
            Self::System { source, .. } => is_permission(source),
            _ => false,
        }
    }
}

fn is_permission(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Device(source) => Some(source),
            Self::Program { source, .. }
            | Self::OtherProgram { source, .. }
            | Self::Joining { source, .. } => Some(source),
            Self::Savefile { source, .. } => Some(source),
            Self::Filter(error) => error.source(),
            Self::PacketPermitted(error) => error.source(),
            Self::Bind { source, .. } | Self::PacketSocket { source, .. } | Self::System { source, .. } => {
                Some(source)
            }
            _ => None,
        }
    }
}

impl From<DeviceError> for OpenError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<FilterChangeError> for OpenError {
    fn from(error: FilterChangeError) -> Self {
        Self::Filter(error)
    }
}

/// Why a capture cannot have a filter. Nothing was changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum FilterChangeError {
    /// There is no such filter.
    Filter(FilterError),
    /// Neither the kernel nor user space can run it on what comes from this interface.
    Unsupported {
        /// The interface's name, or the savefile's path.
        interface: String,
        /// Why.
        source: Unsupported,
    },
    /// The kernel would not attach it to a packet socket.
    Socket {
        /// The interface's name.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel would not load the XDP program, or not attach it.
    Program {
        /// The interface's name.
        interface: String,
        /// What bpf(2) said.
        source: BpfError,
    },
    /// What is on the interface cannot be changed.
    Interface(Box<OpenError>),
    /// The capture was stopped.
    Stopped,
}

impl fmt::Display for FilterChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filter(error) => error.fmt(f),
            Self::Unsupported { interface, .. } => write!(f, "cannot filter what comes from {interface}"),
            Self::Socket { interface, .. } => {
                write!(f, "cannot attach the filter to a packet socket on {interface}")
            }
            Self::Program { interface, .. } => {
                write!(f, "cannot put the filter into the XDP program of {interface}")
            }
            Self::Interface(error) => error.fmt(f),
            Self::Stopped => f.write_str("the capture was stopped, and needs no other filter"),
        }
    }
}

impl Error for FilterChangeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Filter(error) => error.source(),
            Self::Unsupported { source, .. } => Some(source),
            Self::Socket { source, .. } => Some(source),
            Self::Program { source, .. } => Some(source),
            Self::Interface(error) => error.source(),
            Self::Stopped => None,
        }
    }
}

impl From<FilterError> for FilterChangeError {
    fn from(error: FilterError) -> Self {
        Self::Filter(error)
    }
}

/// Why a running capture can deliver no more packets.
#[derive(Debug)]
#[non_exhaustive]
pub enum CaptureError {
    /// The interface was removed from the system.
    InterfaceGone {
        /// Its name.
        interface: String,
    },
    /// The program of a capture by the engine `xdp` was detached from the interface, or replaced.
    Detached {
        /// The interface's name.
        interface: String,
    },
    /// A savefile could not be read on; what stands before was delivered.
    Savefile {
        /// The savefile.
        path: PathBuf,
        /// What is wrong with it, and where.
        source: ReadError,
    },
    /// A savefile has packets of a kind for which the capture's filter does not exist; what stands before was
    /// delivered.
    Filter {
        /// The savefile.
        path: PathBuf,
        /// What is wrong with the filter for them.
        source: FilterChangeError,
    },
    /// The worker of a ring was dropped while the capture goes on, and in basic mode no other may
    /// take its packets.
    Orphaned {
        /// The ring.
        ring: RingName,
    },
    /// The kernel's side of a ring holds indices that cannot be.
    BrokenRing {
        /// The ring.
        ring: RingName,
        /// What is wrong with it.
        detail: String,
    },
    /// A system call failed that usually does not.
    System {
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InterfaceGone { interface } => {
                write!(f, "{interface} was removed from the system while it was being captured")
            }
            Self::Detached { interface } => write!(
                f,
                "the capture's program was detached from {interface}, which loses packets unseen; end what detaches it, or \
                 have it attached again"
            ),
            Self::Savefile { path, .. } => write!(f, "cannot read on in {}", path.display()),
            Self::Filter { path, .. } => {
                write!(f, "{} has packets of another kind, for which there is no such filter", path.display())
            }
            Self::Orphaned { ring } => write!(
                f,
                "the worker of {ring} is gone and in basic mode no other takes its packets; stop the capture \
                 first, or use advanced mode"
            ),
            Self::BrokenRing { ring, detail } => write!(f, "{ring} is broken: {detail}"),
            Self::System { action, .. } => write!(f, "cannot {action}"),
        }
    }
}

impl Error for CaptureError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::System { source, .. } => Some(source),
            Self::Savefile { source, .. } => Some(source),
            Self::Filter { source, .. } => Some(source),
            Self::InterfaceGone { .. }
            | Self::Detached { .. }
            | Self::Orphaned { .. }
            | Self::BrokenRing { .. } => None,
        }
    }
}
