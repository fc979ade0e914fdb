//! Errors of opening a capture and of running captures.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::bpf::BpfError;
use crate::device::{DeviceError, Reason, XdpOwner};
use crate::filter::{FilterError, Unsupported};
use crate::names::{Holder, RingName};
use crate::savefile::ReadError;

/// Why a capture could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The interface cannot be looked up.
    #[error("cannot look up the interface")]
    Device(#[from] DeviceError),
    /// The interface is there but administratively down.
    #[error("{interface} is down; bring it up with: ip link set {interface} up")]
    InterfaceDown {
        /// The interface's name.
        interface: String,
    },
    /// The interface's packets need a header in savefiles, or another byte order, which wirecap
    /// does not write.
    #[error("{interface} is {kind}, which wirecap does not record; use: tcpdump -i {interface}")]
    UnsupportedLink {
        /// The interface's name.
        interface: String,
        /// What it is.
        kind: &'static str,
    },
    /// The interface has no such receive queue.
    #[error("{ring} does not exist: {} has {}", ring.interface, QueueNumbers(*queues))]
    NoSuchQueue {
        /// The requested ring.
        ring: RingName,
        /// The interface's number of receive queues.
        queues: u32,
    },
    /// A receive queue was added that exceeds the maximum that the driver reported.
    #[error("{ring} exceeds the maximum number of receive queues that its driver reported")]
    NoRoom {
        /// Its ring.
        ring: RingName,
    },
    /// A device name that is not `INTERFACE` or `INTERFACE@QUEUES`.
    #[error(
        "'{name}' is not a device; write INTERFACE or INTERFACE@QUEUES, such as eth0@2, eth0@0-3 or eth0@0,2"
    )]
    BadDeviceName {
        /// What was given.
        name: String,
    },
    /// An interface was named more than once with different settings.
    #[error(
        "{interface} is named more than once with different values of {setting}; all its rings must use the \
         same value"
    )]
    SettingsDiffer {
        /// The interface's name.
        interface: String,
        /// Which setting.
        setting: &'static str,
    },
    /// A number out of range.
    #[error("invalid {parameter} {value}: expected {allowed}")]
    BadParameter {
        /// Which one.
        parameter: &'static str,
        /// What was given.
        value: u64,
        /// The permitted values.
        allowed: String,
    },
    /// The pools need more locked memory than the process may have.
    #[error(
        "the pools need {needed_bytes} bytes of locked memory, the limit is {limit_bytes}; grant \
         CAP_IPC_LOCK, raise the limit (ulimit -l {}), or use fewer or smaller chunks (-R, -M, --buffer)",
        .needed_bytes.div_ceil(1024)
    )]
    PoolTooLarge {
        /// Bytes of locked memory that all pools need together.
        needed_bytes: u64,
        /// `RLIMIT_MEMLOCK`, in bytes.
        limit_bytes: u64,
    },
    /// The machine does not have the memory for the pools.
    #[error(
        "the pools need {needed_bytes} bytes of memory, {available_bytes} are available; use fewer or \
         smaller chunks (-R, -M, --buffer)"
    )]
    NotEnoughMemory {
        /// Bytes that all pools need together.
        needed_bytes: u64,
        /// `MemAvailable`, in bytes.
        available_bytes: u64,
    },
    /// A memory cgroup of the process does not have the memory for the pools.
    #[error(
        "the pools need {needed_bytes} bytes of memory, and the memory cgroup of this process has \
         {available_bytes} left of its limit of {limit_bytes} ({}); use fewer or smaller chunks (-R, -M, \
         --buffer), or raise that limit",
        .file.display()
    )]
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
    /// The interface's frames do not fit the largest cells, and the kernel does not support frames
    /// of several cells.
    #[error(
        "frames of {interface} (MTU {mtu}) do not fit a cell, and this kernel (before 6.6) cannot spread \
         them over several; lower the MTU to {max_mtu} or less: ip link set {interface} mtu {max_mtu}"
    )]
    MtuTooLarge {
        /// The interface's name.
        interface: String,
        /// Its MTU in bytes.
        mtu: u32,
        /// The largest MTU that can be captured.
        max_mtu: u32,
    },
    /// Another capture, of this or another process, has the queue.
    #[error(
        "{ring} is already captured by {holder}, and a receive queue serves one capture; start that capture \
         with more workers (--workers N), name another queue ({}@QUEUE), or use --engine packet for both",
        .ring.interface
    )]
    QueueTaken {
        /// The queue.
        ring: RingName,
        /// Who has it.
        holder: Holder,
    },
    /// Another process has the interface, and this one lacks the privilege to share it.
    #[error(
        "{interface} is already captured by {holder}; to capture another of its queues, this process needs \
         CAP_SYS_ADMIN to find the attached program: run as root or grant it"
    )]
    Joining {
        /// The interface's name.
        interface: String,
        /// The process that has one of its queues.
        holder: Holder,
        /// What bpf(2) said.
        source: BpfError,
    },
    /// Another process has the interface, and one of the two uses hardware timestamps, whose
    /// program cannot be shared.
    #[error(
        "{interface} is already captured by {}, and a capture with hardware timestamps cannot share the \
         interface; use --timestamp batch for both, or stop that capture",
        holder.as_ref().map_or_else(|| "another process".to_owned(), ToString::to_string)
    )]
    NotShared {
        /// The interface's name.
        interface: String,
        /// The process that has it, if known.
        holder: Option<Holder>,
    },
    /// Another version of wirecap has the interface; versions cannot share one.
    #[error(
        "{interface} is captured by another version of wirecap (XDP program {program}), and versions cannot \
         share an interface; use the same version, or stop that capture"
    )]
    OtherVersion {
        /// The interface's name.
        interface: String,
        /// The name of its XDP program, which ends in its version.
        program: String,
    },
    /// Another process has been opening or joining a capture on the interface for too long.
    #[error("timed out waiting for {holder}, which is opening a capture on {interface}; stop it")]
    Contended {
        /// The interface's name.
        interface: String,
        /// Who that is.
        holder: Holder,
    },
    /// Another XDP program is attached to the interface.
    #[error(
        "another XDP program is attached to {interface}{}; stop the process that holds it, or detach it (ip \
         link set {interface} xdp off), or use --engine packet",
        in_parentheses(owner.as_ref())
    )]
    OtherProgram {
        /// The interface's name.
        interface: String,
        /// The program and the process that holds it, if visible.
        owner: Option<Box<XdpOwner>>,
        /// What bpf(2) said.
        source: BpfError,
    },
    /// The kernel did not load or attach the XDP program.
    #[error("cannot attach wirecap's XDP program to {interface}")]
    Program {
        /// The interface's name.
        interface: String,
        /// What bpf(2) said.
        source: BpfError,
    },
    /// The kernel did not bind a socket to this queue.
    #[error(
        "{}",
        match source.raw_os_error() {
            Some(libc::EBUSY) =>
                format!("{ring} is in use by another AF_XDP socket; stop that program or name another queue"),
            _ => format!("cannot bind an AF_XDP socket to {ring}"),
        }
    )]
    Bind {
        /// The ring.
        ring: RingName,
        /// The kernel's error.
        source: io::Error,
    },
    /// A savefile could not be opened.
    #[error("{} cannot be read as a savefile", .path.display())]
    Savefile {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: ReadError,
    },
    /// The host uses the interface, and the engine `xdp` would take its packets.
    #[error(
        "the engine xdp would take the packets of {interface} from the host, but {reason}; use --engine \
         packet, or --take to let the host lose them"
    )]
    CarriesHostTraffic {
        /// The interface's name.
        interface: String,
        /// How the host uses it.
        reason: Reason,
    },
    /// The engine `xdp` cannot receive from a bond or team: the kernel runs programs and delivers
    /// to sockets where its ports receive.
    #[error(
        "the engine xdp cannot receive from {interface}: the frames of a {kind} arrive on its ports; use \
         --engine packet, or capture the ports{}",
        if ports.is_empty() { String::new() } else { format!(": -i {}", ports.join(" -i ")) }
    )]
    Controller {
        /// The interface's name.
        interface: String,
        /// `bond` or `team`.
        kind: &'static str,
        /// Its ports.
        ports: Vec<String>,
    },
    /// Sent packets were requested, but only received ones are available.
    #[error(
        "{reason} has received packets only; to capture sent packets, capture the whole {interface} with \
         --engine packet"
    )]
    ReceivedOnly {
        /// The interface's name.
        interface: String,
        /// The reason why there are none.
        reason: &'static str,
    },
    /// An option of the engine `xdp` was used, but the interface is captured by `packet`.
    #[error(
        "{option} requires the engine xdp, but {interface} is captured by the engine packet{}; omit it, or \
         use --engine xdp",
        in_parentheses(why.as_ref())
    )]
    XdpOnly {
        /// The interface's name.
        interface: String,
        /// The option.
        option: &'static str,
        /// Why the engine is `packet`, if wirecap selected it.
        why: Option<String>,
    },
    /// The engine `xdp` was requested for all interfaces.
    #[error(
        "the engine xdp captures named interfaces, not any; name them (-i eth1), or use --engine auto or \
         packet"
    )]
    AnyByXdp,
    /// More interfaces are named beside all interfaces than a socket filter can leave out.
    #[error("{named} interfaces are named beside any, more than {most}; name fewer")]
    TooManyBesideAny {
        /// How many.
        named: usize,
        /// The maximum.
        most: usize,
    },
    /// All interfaces have several link types, and one was required.
    #[error(
        "the interfaces have several link types, and a pcap file has one; write pcapng, or name the \
         interfaces"
    )]
    SeveralLinkTypes,
    /// An option was used that forwarding does not support.
    #[error("forwarding does not support {option}: {reason}; omit it")]
    NotForwarding {
        /// The option.
        option: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// The kernel did not let a packet socket receive or send on the interface.
    #[error("cannot {action} {interface}{}", socket_advice(source))]
    PacketSocket {
        /// The interface's name.
        interface: String,
        /// The failed action; the interface's name follows it.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// Hardware timestamps were requested and are not available.
    #[error(
        "{interface} has no hardware timestamps: {reason}; or use --timestamp packet, the kernel's clock \
         for each packet, or batch, which costs less"
    )]
    NoHardwareClock {
        /// The interface's name.
        interface: String,
        /// The reason.
        reason: String,
    },
    /// [`Engine::Auto`](crate::Engine::Auto) selected the engine `xdp`, for which the process lacks
    /// privileges that the engine `packet` does not need.
    #[error("{0}; or use --engine packet, which needs only CAP_NET_RAW; this process has it")]
    PacketPermitted(#[source] Box<OpenError>),
    /// The filter cannot be used.
    #[error(transparent)]
    Filter(#[from] FilterChangeError),
    /// A system call failed unexpectedly.
    #[error(
        "cannot {action}{}",
        if is_permission(source) { "; run as root or grant CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF" } else { "" }
    )]
    System {
        /// The failed action.
        action: String,
        /// The kernel's error.
        source: io::Error,
    },
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

/// What is known in addition, in parentheses.
fn in_parentheses(known: Option<impl fmt::Display>) -> String {
    known.map(|known| format!(" ({known})")).unwrap_or_default()
}

/// The receive queues of an interface that has this many, in words.
struct QueueNumbers(u32);

impl fmt::Display for QueueNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("one receive queue, 0"),
            queues => write!(f, "receive queues 0 to {}", queues - 1),
        }
    }
}

/// What to do about the error of a packet socket.
fn socket_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        _ if is_permission(error) => "; run as root or grant CAP_NET_RAW",
        Some(libc::ENOMEM) => "; use fewer or smaller chunks (-R, -M, --buffer)",
        _ => "",
    }
}

fn is_permission(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Why the filter cannot be used. It was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterChangeError {
    /// The filter is invalid.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// Neither the kernel nor user space can apply it to packets of this interface.
    #[error("cannot filter packets of {interface}")]
    Unsupported {
        /// The interface's name, or the savefile's path.
        interface: String,
        /// Why.
        source: Unsupported,
    },
    /// The kernel did not attach it to a packet socket.
    #[error("cannot attach the filter to a packet socket on {interface}")]
    Socket {
        /// The interface's name.
        interface: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel did not load or attach the XDP program.
    #[error("cannot add the filter to the XDP program of {interface}")]
    Program {
        /// The interface's name.
        interface: String,
        /// What bpf(2) said.
        source: BpfError,
    },
    /// The interface's program cannot be changed.
    #[error(transparent)]
    Interface(Box<OpenError>),
    /// The capture was stopped.
    #[error("the capture has stopped; its filter cannot be changed")]
    Stopped,
}

/// Why a running capture cannot deliver more packets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The interface was removed from the system.
    #[error("{interface} was removed from the system while it was being captured")]
    InterfaceGone {
        /// Its name.
        interface: String,
    },
    /// The program of the engine `xdp` was detached from the interface, or replaced.
    #[error(
        "the capture's program was detached from {interface}, so packets are lost uncounted; stop the \
         program that detaches it, or allow reattaching"
    )]
    Detached {
        /// The interface's name.
        interface: String,
    },
    /// A savefile could not be read further; the packets before the fault were delivered.
    #[error("cannot continue reading {}", .path.display())]
    Savefile {
        /// The savefile.
        path: PathBuf,
        /// The fault and its offset.
        source: ReadError,
    },
    /// A savefile has packets of a link type that the capture's filter does not support; the
    /// packets before them were delivered.
    #[error("{} has another link type, which the filter does not support", .path.display())]
    Filter {
        /// The savefile.
        path: PathBuf,
        /// The filter's error for them.
        source: FilterChangeError,
    },
    /// A ring's worker was dropped during the capture, and in basic mode no other worker may take
    /// its packets.
    #[error(
        "the worker of {ring} is gone, and in basic mode no other worker takes its packets; stop the \
         capture first, or use advanced mode"
    )]
    Orphaned {
        /// The ring.
        ring: RingName,
    },
    /// The kernel's side of a ring has impossible indices.
    #[error("{ring} is broken: {detail}")]
    BrokenRing {
        /// The ring.
        ring: RingName,
        /// The fault.
        detail: String,
    },
    /// A system call failed unexpectedly.
    #[error("cannot {action}")]
    System {
        /// The failed action.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}
