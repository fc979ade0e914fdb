//! Why a filter could not be created.

use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io;

use crate::classic::ProgramError;

/// Why a filter could not be created.
#[derive(Debug)]
#[non_exhaustive]
pub enum FilterError {
    /// libpcap, which compiles filter expressions, is missing.
    Libpcap(LibpcapError),
    /// libpcap rejects the expression.
    Expression {
        /// The expression.
        expression: String,
        /// libpcap's error message.
        message: String,
    },
    /// The program is invalid.
    Program(ProgramError),
    /// A system call failed.
    System(io::Error),
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Libpcap(_) => f.write_str(
                "filter expressions need libpcap, which cannot be loaded; install it (Debian package libpcap0.8), or \
                 name the library in WIRECAP_LIBPCAP",
            ),
            Self::Expression { expression, message } => {
                // libpcap's longer form says no more.
                let message = message.strip_prefix("can't parse filter expression: ").unwrap_or(message);
                write!(f, "{message} in the filter \"{expression}\"")?;
                f.write_str(match is_for_display(expression) {
                    true => "; Wireshark's display filters are another language: see pcap-filter(7)",
                    false => "; see pcap-filter(7)",
                })
            }
            Self::Program(_) => f.write_str("the filter is not a valid BPF program"),
            Self::System(_) => f.write_str("cannot compile the filter"),
        }
    }
}

/// Whether an expression that libpcap rejects is a display filter of Wireshark: `dns`, `ip.addr == 10.1.2.3`.
fn is_for_display(expression: &str) -> bool {
    /// Protocols of Wireshark that are no words of pcap-filter(7).
    const NAMES: [&str; 10] = ["dns", "http", "tls", "ssl", "ssh", "dhcp", "ntp", "smb", "sip", "frame"];
    /// Those that are words of both.
    const SHARED: [&str; 7] = ["ip", "ipv6", "tcp", "udp", "icmp", "arp", "eth"];
    let mut words =
        expression.split(|c: char| c.is_whitespace() || c == '!' || c == '(').filter(|w| !w.is_empty());
    let first = words.next().unwrap_or_default();
    let protocol = first.split('.').next().unwrap_or(first);
    NAMES.contains(&protocol)
        || (protocol != first && SHARED.contains(&protocol))
        || expression.contains("==")
}

impl Error for FilterError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Libpcap(error) => Some(error),
            Self::Expression { .. } => None,
            Self::Program(error) => Some(error),
            Self::System(error) => Some(error),
        }
    }
}

impl From<ProgramError> for FilterError {
    fn from(error: ProgramError) -> Self {
        Self::Program(error)
    }
}

/// Why libpcap could not be loaded.
#[derive(Clone, Debug)]
pub struct LibpcapError {
    /// The names tried, and the dynamic linker's errors.
    pub tried: Vec<(OsString, String)>,
}

impl fmt::Display for LibpcapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (_, answer)) in self.tried.iter().enumerate() {
            write!(f, "{}{answer}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl Error for LibpcapError {}
