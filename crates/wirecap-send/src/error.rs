//! Errors of setting up interfaces and namespaces, and of sending frames.

use std::error::Error;
use std::fmt;
use std::io;

use wirecap_filter::bpf::BpfError;

/// Why a namespace or an interface could not be created, read or opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum SetupError {
    /// A network namespace could not be created or entered.
    Namespace {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A command could not be started.
    Tool {
        /// The command's name.
        tool: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A command failed.
    Command {
        /// The command with its arguments.
        command: String,
        /// Its output on standard error.
        message: String,
    },
    /// An interface could not be found, described, or opened for sending.
    Interface {
        /// The interface's name.
        interface: String,
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// An XDP program could not be loaded or attached.
    Program {
        /// The interface of the program.
        interface: String,
        /// The kernel's answer.
        source: BpfError,
    },
    /// The requested frames are invalid or do not fit the interface.
    Traffic {
        /// The value that is out of range.
        what: &'static str,
        /// That value.
        given: u64,
        /// The smallest possible value.
        min: u64,
        /// The largest possible value.
        max: u64,
    },
}

impl SetupError {
    /// Something that was tried with an interface failed.
    pub fn interface(interface: &str, what: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Interface { interface: interface.to_owned(), what, source: source.into() }
    }

    /// A program could not be loaded for an interface or attached to it.
    pub fn program(interface: &str, source: BpfError) -> Self {
        Self::Program { interface: interface.to_owned(), source }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace { what, .. } => {
                write!(f, "cannot {what} a network namespace; run as root or grant CAP_SYS_ADMIN")
            }
            Self::Tool { tool, .. } => {
                let package = if ["ip", "tc"].contains(&tool.as_str()) { "iproute2" } else { tool };
                write!(f, "cannot run `{tool}`; install it (Debian: {package})")
            }
            Self::Command { command, message } => {
                write!(f, "`{command}` failed: {}", message.trim_end())
            }
            Self::Interface { interface, what, source } => {
                write!(f, "cannot {what} {interface}")?;
                if source.kind() == io::ErrorKind::PermissionDenied {
                    f.write_str("; run as root or grant CAP_NET_RAW and CAP_NET_ADMIN")?;
                }
                Ok(())
            }
            Self::Program { interface, .. } => {
                write!(f, "cannot attach an XDP program to {interface}")
            }
            Self::Traffic { what, given, min, max } => {
                write!(f, "invalid {what} {given}: expected {min} to {max}")
            }
        }
    }
}

impl Error for SetupError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Namespace { source, .. }
            | Self::Tool { source, .. }
            | Self::Interface { source, .. } => Some(source),
            Self::Program { source, .. } => Some(source),
            Self::Command { .. } | Self::Traffic { .. } => None,
        }
    }
}

/// Why frames could not be sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendError {
    /// No CPU that this process may use sends to the queue.
    OutOfReach {
        /// The receiving queue.
        queue: u32,
        /// Number of receiving queues.
        queue_count: u32,
    },
    /// Two loads that run at once have the same queue or the same CPU.
    Twice {
        /// `queue` or `CPU`.
        what: &'static str,
        /// Its number.
        number: u32,
    },
    /// The sending thread could not be moved to its CPU and namespace.
    Thread {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The generating program did not run.
    Program {
        /// The kernel's answer.
        source: BpfError,
    },
    /// The generating program could not make some frames.
    NotMade {
        /// The receiving queue.
        queue: u32,
        /// Number of frames that were not made.
        frames: u64,
    },
    /// The socket rejects the frame.
    Socket {
        /// The interface's name.
        interface: String,
        /// The frame's length in bytes; 0 if the error does not concern a frame.
        frame_bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel stopped taking frames off the ring.
    Stalled {
        /// The interface's name.
        interface: String,
        /// Number of buffers that the kernel still holds.
        in_flight: usize,
    },
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfReach { queue, queue_count } => write!(
                f,
                "no CPU reaches queue {queue}: CPU n sends to queue n modulo {queue_count}; use AfXdpSender"
            ),
            Self::Twice { what, number } => {
                write!(f, "two loads for {what} {number}; start one after the other")
            }
            Self::Thread { .. } => {
                f.write_str("cannot bring the sending thread to its CPU and namespace")
            }
            Self::Program { .. } => f.write_str("cannot run the generating program"),
            Self::NotMade { queue, frames } => {
                write!(f, "the generating program failed to make {frames} frames for queue {queue}")
            }
            Self::Socket { interface, frame_bytes: 0, .. } => {
                write!(f, "cannot send on {interface}")
            }
            Self::Socket { interface, frame_bytes, .. } => {
                write!(f, "cannot send a frame of {frame_bytes} bytes on {interface}")
            }
            Self::Stalled { interface, in_flight } => {
                write!(f, "{interface} no longer takes frames, {in_flight} buffers wait; is it up?")
            }
        }
    }
}

impl Error for SendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Thread { source } | Self::Socket { source, .. } => Some(source),
            Self::Program { source } => Some(source),
            Self::OutOfReach { .. }
            | Self::Twice { .. }
            | Self::NotMade { .. }
            | Self::Stalled { .. } => None,
        }
    }
}
