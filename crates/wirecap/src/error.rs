//! Errors of opening a capture and of running captures.

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
    /// The interface's packets need a header in savefiles, or another byte order, which wirecap does not write.
    UnsupportedLink {
        /// The interface's name.
        interface: String,
        /// What it is.
        kind: &'static str,
    },
    /// The interface has no such receive queue.
    NoSuchQueue {
        /// The requested ring.
        ring: RingName,
        /// The interface's number of receive queues.
        queues: u32,
    },
    /// A receive queue was added that exceeds the maximum that the driver reported.
    NoRoom {
        /// Its ring.
        ring: RingName,
    },
    /// A device name that is not `INTERFACE` or `INTERFACE@QUEUES`.
    BadDeviceName {
        /// What was given.
        name: String,
    },
    /// An interface was named more than once with different settings.
    SettingsDiffer {
        /// The interface's name.
        interface: String,
        /// Which setting.
        setting: &'static str,
    },
    /// A number out of range.
    BadParameter {
        /// Which one.
        parameter: &'static str,
        /// What was given.
        value: u64,
        /// The permitted values.
        allowed: String,
    },
    /// The pools need more locked memory than the process may have.
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
    /// The interface's frames do not fit the largest cells, and the kernel does not support frames of several
    /// cells.
    MtuTooLarge {
        /// The interface's name.
        interface: String,
        /// Its MTU in bytes.
        mtu: u32,
        /// The largest MTU that can be captured.
        max_mtu: u32,
    },
    /// Another capture, of this or another process, has the queue.
    QueueTaken {
        /// The queue.
        ring: RingName,
        /// Who has it.
        holder: Holder,
    },
    /// Another process has the interface, and this one lacks the privilege to share it.
    Joining {
        /// The interface's name.
        interface: String,
        /// The process that has one of its queues.
        holder: Holder,
        /// What bpf(2) said.
        source: BpfError,
    },
    /// Another process has the interface, and one of the two uses hardware timestamps, whose program cannot be shared.
    NotShared {
        /// The interface's name.
        interface: String,
        /// The process that has it, if known.
        holder: Option<Holder>,
    },
    /// Another version of wirecap has the interface; versions cannot share one.
    OtherVersion {
        /// The interface's name.
        interface: String,
        /// The name of its XDP program, which ends in its version.
        program: String,
    },
    /// Another process has been opening or joining a capture on the interface for too long.
    Contended {
        /// The interface's name.
        interface: String,
        /// Who that is.
        holder: Holder,
    },
    /// Another XDP program is attached to the interface.
    OtherProgram {
        /// The interface's name.
        interface: String,
        /// The program and the process that holds it, if visible.
        owner: Option<Box<XdpOwner>>,
        /// What bpf(2) said.
        source: BpfError,
    },
    /// The kernel did not load or attach the XDP program.
    Program {
        /// The interface's name.
        interface: String,
        /// What bpf(2) said.
        source: BpfError,
    },
    /// The kernel did not bind a socket to this queue.
    Bind {
        /// The ring.
        ring: RingName,
        /// The kernel's error.
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
        /// How the host uses it.
        reason: Reason,
    },
    /// The engine `xdp` cannot receive from a bond or team: the kernel runs programs and delivers to sockets where its ports
    /// receive.
    Controller {
        /// The interface's name.
        interface: String,
        /// `bond` or `team`.
        kind: &'static str,
        /// Its ports.
        ports: Vec<String>,
    },
    /// Sent packets were requested, but only received ones are available.
    ReceivedOnly {
        /// The interface's name.
        interface: String,
        /// The reason why there are none.
        reason: &'static str,
    },
    /// An option of the engine `xdp` was used, but the interface is captured by `packet`.
    XdpOnly {
        /// The interface's name.
        interface: String,
        /// The option.
        option: &'static str,
        /// Why the engine is `packet`, if wirecap selected it.
        why: Option<String>,
    },
    /// The engine `xdp` was requested for all interfaces.
    AnyByXdp,
    /// More interfaces are named beside all interfaces than a socket filter can leave out.
    TooManyBesideAny {
        /// How many.
        named: usize,
        /// The maximum.
        most: usize,
    },
    /// All interfaces have several link types, and one was required.
    SeveralLinkTypes,
    /// An option was used that forwarding does not support.
    NotForwarding {
        /// The option.
        option: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// The kernel did not let a packet socket receive or send on the interface.
    PacketSocket {
        /// The interface's name.
        interface: String,
        /// The failed action; the interface's name follows it.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// Hardware timestamps were requested and are not available.
    NoHardwareClock {
        /// The interface's name.
        interface: String,
        /// The reason.
        reason: String,
    },
    /// [`Engine::Auto`](crate::Engine::Auto) selected the engine `xdp`, for which the process lacks privileges that the
    /// engine `packet` does not need.
    PacketPermitted(Box<OpenError>),
    /// The filter cannot be used.
    Filter(FilterChangeError),
    /// A system call failed unexpectedly.
    System {
        /// The failed action.
        action: String,
        /// The kernel's error.
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
            Self::UnsupportedLink { interface, kind } => {
                write!(f, "{interface} is {kind}, which wirecap does not record; use: tcpdump -i {interface}")
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
                "{interface} is named more than once with different values of {setting}; all its rings must use the same value"
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
                "{ring} is already captured by {holder}, and a receive queue serves one capture; start that capture with more workers (--workers N), name another queue ({}@QUEUE), or use --engine packet for both",
                ring.interface
            ),
            Self::Joining { interface, holder, .. } => write!(
                f,
                "{interface} is already captured by {holder}; to capture another of its queues, this process needs CAP_SYS_ADMIN to find the attached program: run as root or grant it"
            ),
            Self::NotShared { interface, holder } => {
                let holder =
                    holder.as_ref().map_or_else(|| "another process".to_owned(), ToString::to_string);
                write!(
                    f,
                    "{interface} is already captured by {holder}, and a capture with hardware timestamps cannot share the interface; use --timestamp batch for both, or stop that capture"
                )
            }
            Self::OtherVersion { interface, program } => write!(
                f,
                "{interface} is captured by another version of wirecap (XDP program {program}), and versions cannot share an interface; use the same version, or stop that capture"
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
                    "another XDP program is attached to {interface}{owner}; stop the process that holds it, or detach it (ip link set \
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
                "the engine xdp would take the packets of {interface} from the host, but {reason}; use --engine packet, or --take to let the host lose them"
            ),
            Self::Controller { interface, kind, ports } => {
                write!(
                    f,
                    "the engine xdp cannot receive from {interface}: the frames of a {kind} arrive on its ports; "
                )?;
                match ports.as_slice() {
                    [] => f.write_str("use --engine packet, or capture the ports"),
                    ports => {
                        write!(f, "use --engine packet, or capture the ports: -i {}", ports.join(" -i "))
                    }
                }
            }
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
            Self::AnyByXdp => f.write_str(
                "the engine xdp captures named interfaces, not any; name them (-i eth1), or use --engine auto or packet",
            ),
            Self::TooManyBesideAny { named, most } => {
                write!(f, "{named} interfaces are named beside any, more than {most}; name fewer")
            }
            Self::SeveralLinkTypes => f.write_str(
                "the interfaces have several link types, and a pcap file has one; write pcapng, or name the interfaces",
            ),
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
                    "{error}; or use --engine packet, which needs only CAP_NET_RAW; this process has it"
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
    /// Whether the process lacks CAP_NET_RAW, the only right that the engine `packet` needs.
    pub fn lacks_net_raw(&self) -> bool {
        matches!(self, Self::PacketSocket { source, .. } if is_permission(source))
    }

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

/// Why the filter cannot be used. It was not changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum FilterChangeError {
    /// The filter is invalid.
    Filter(FilterError),
    /// Neither the kernel nor user space can apply it to packets of this interface.
    Unsupported {
        /// The interface's name, or the savefile's path.
        interface: String,
        /// Why.
        source: Unsupported,
    },
    /// The kernel did not attach it to a packet socket.
    Socket {
        /// The interface's name.
        interface: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel did not load or attach the XDP program.
    Program {
        /// The interface's name.
        interface: String,
        /// What bpf(2) said.
        source: BpfError,
    },
    /// The interface's program cannot be changed.
    Interface(Box<OpenError>),
    /// The capture was stopped.
    Stopped,
}

impl fmt::Display for FilterChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filter(error) => error.fmt(f),
            Self::Unsupported { interface, .. } => write!(f, "cannot filter packets of {interface}"),
            Self::Socket { interface, .. } => {
                write!(f, "cannot attach the filter to a packet socket on {interface}")
            }
            Self::Program { interface, .. } => {
                write!(f, "cannot add the filter to the XDP program of {interface}")
            }
            Self::Interface(error) => error.fmt(f),
            Self::Stopped => f.write_str("the capture has stopped; its filter cannot be changed"),
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

/// Why a running capture cannot deliver more packets.
#[derive(Debug)]
#[non_exhaustive]
pub enum CaptureError {
    /// The interface was removed from the system.
    InterfaceGone {
        /// Its name.
        interface: String,
    },
    /// The program of the engine `xdp` was detached from the interface, or replaced.
    Detached {
        /// The interface's name.
        interface: String,
    },
    /// A savefile could not be read further; the packets before the fault were delivered.
    Savefile {
        /// The savefile.
        path: PathBuf,
        /// The fault and its offset.
        source: ReadError,
    },
    /// A savefile has packets of a link type that the capture's filter does not support; the packets before them were
    /// delivered.
    Filter {
        /// The savefile.
        path: PathBuf,
        /// The filter's error for them.
        source: FilterChangeError,
    },
    /// A ring's worker was dropped during the capture, and in basic mode no other worker may take its packets.
    Orphaned {
        /// The ring.
        ring: RingName,
    },
    /// The kernel's side of a ring has impossible indices.
    BrokenRing {
        /// The ring.
        ring: RingName,
        /// The fault.
        detail: String,
    },
    /// A system call failed unexpectedly.
    System {
        /// The failed action.
        action: &'static str,
        /// The kernel's error.
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
                "the capture's program was detached from {interface}, so packets are lost uncounted; stop the program that detaches it, or allow reattaching"
            ),
            Self::Savefile { path, .. } => write!(f, "cannot continue reading {}", path.display()),
            Self::Filter { path, .. } => {
                write!(f, "{} has another link type, which the filter does not support", path.display())
            }
            Self::Orphaned { ring } => write!(
                f,
                "the worker of {ring} is gone, and in basic mode no other worker takes its packets; stop the capture first, or use advanced mode"
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
